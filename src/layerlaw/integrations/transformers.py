"""The Hugging Face Trainer: `LawCallback` measures its model, classifier or language model, every so many epochs or steps.

trainer.add_callback(LawCallback(trainer, every_n_epochs=1))
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from layerlaw.capture.batches import LABEL_KEYS
from layerlaw.errors import DataError, InputError, LayerlawError, MissingExtraError, check_whole
from layerlaw.integrations import undisturbed
from layerlaw.integrations.monitor import Monitor, check_options, is_text, stopping_rule
from layerlaw.integrations.trackers import PREFIX, Scalars, Tracker, tracker_of, trackers_of
from layerlaw.probing import sites
from layerlaw.probing.classes import names_in
from layerlaw.record import Record
from layerlaw.stats.ranks import rank, world_size
from layerlaw.verdict.stopping import UntilLaw

try:
    from transformers import TrainerCallback
except ImportError:  # told when somebody makes one: this module can be read without
    TrainerCallback = None  # type: ignore[assignment, misc]

TOKENS_PER_FEATURE = 200  # of a language model's data so many are read: twice of what a probe wants by itself
REPORTERS = ("tb_writer", "_wandb", "_ml_flow")  # where transformers' own callbacks keep what they report to
ROUNDING = 1e-6  # of an epoch that is a sum of shares
OF_THE_LAW = ("rho", "evenness", "trend", "holds", "accuracy", "test_accuracy")  # numbers that the trainer itself logs


class LawCallback(TrainerCallback or object):  # type: ignore[misc]
    """A callback for the Trainer of transformers: `trainer.add_callback(LawCallback(trainer))`.

    every_n_epochs  measure before the training, and after so many epochs
    every_n_steps   measure after so many optimizer steps instead
    at_end          measure at the end, too; in the midst of an epoch as that epoch
    data            what to measure on: default: the trainer's train_dataset through its collator, each process its share; of
                    a language model its token ids, of which as many are read as the width of the model wants
                    a data set of the kind that the trainer takes is read in this way, too
    test            held-out data of a classifier; a data set is read through the trainer's collator
    stop            end the training when the law has held at three measurements in a row (`True`), at so many (a number), or
                    by a rule of yours (`UntilLaw(…)`)
    to              trackers beside those that the trainer reports to (TensorBoard, wandb, mlflow)
    folder          records are written here, page and movie at the end; as for `Monitor`, where a training is resumed
    probe           further arguments of `probe`, or of `probe_lm` for a language model

    The trainer logs the numbers of the law, trackers get those of all sites, the figure and the page. A classifier of tokens
    is measured as it reduces them itself (reduce=…). The training is bit by bit the same as without.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        every_n_epochs: int = 1,
        every_n_steps: int | None = None,
        at_end: bool = True,
        data: Any = None,
        test: Any = None,
        stop: bool | int | UntilLaw | None = None,
        to: Any = (),
        folder: str | os.PathLike[str] | None = None,
        **probe: Any,
    ) -> None:
        if TrainerCallback is None:
            raise MissingExtraError("transformers", "lm", "LawCallback")
        check_whole(1, every_n_epochs=every_n_epochs, every_n_steps=1 if every_n_steps is None else every_n_steps)
        if not hasattr(trainer, "train_dataset") or not hasattr(trainer, "add_callback"):
            expected = "expected the Trainer that this callback is for, as in LawCallback(trainer)"
            raise InputError(f"trainer: {expected}, got {type(trainer).__name__}.")
        self.every_n_epochs, self.every_n_steps, self.at_end = every_n_epochs, every_n_steps, at_end
        self._trainer, self._rule, self._to = trainer, stopping_rule(stop), trackers_of(to)
        undisturbed.check_unsharded(trainer.model)
        prepared = "prepare" in probe  # `probe` makes the inputs
        read = _Samples(trainer, data) if data is None or (_is_of_rows(data) and not prepared) else None
        if test is not None and _is_of_rows(test) and not prepared:
            test = _Samples(trainer, test, "test").loader()
        if read is not None and read.of_tokens:
            data = read.token_ids()
        elif read is not None:
            data, probe = read.loader(), read.usual() | probe
        check_options(probe, text=is_text(data), caller=LawCallback)
        self.monitor = Monitor(trainer.model, data, test=test, folder=folder, **probe)
        """Records and more."""
        self.monitor.rule = self._rule or self.monitor.rule
        self.monitor.unit = "epoch" if every_n_steps is None else "step"

    @property
    def records(self) -> list[Record]:
        """What was measured."""
        return self.monitor.records

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Measure before the first step."""
        undisturbed.check_unsharded(self._trainer.model_wrapped)
        found = (getattr(callback, name, None) for callback in self._callbacks() for name in REPORTERS)
        given = [tracker_of(one) for one in found if one is not None]
        self.monitor.trackers = [TrainerTracker(self._trainer), *given, *self._to]
        return self._look(state, control, int(state.epoch or 0) if self.every_n_steps is None else state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Measure where this epoch is one of those."""
        if self.every_n_steps is None and self._done(state) % self.every_n_epochs == 0:
            self._look(state, control, self._done(state))
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Measure where this step is one of those."""
        if self.every_n_steps is not None and state.global_step % self.every_n_steps == 0:
            self._look(state, control, state.global_step)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """The last measurement and the page."""
        if self.at_end:
            self._look(state, control, self._done(state))
        self.monitor.finish()
        return control

    def _done(self, state: Any) -> int:
        """The epoch that ends, also in its midst (max_steps), or the step."""
        return math.ceil((state.epoch or 0) - ROUNDING) if self.every_n_steps is None else int(state.global_step)

    def _look(self, state: Any, control: Any, done: int) -> Any:
        known = self.monitor.record
        if known is None or done > known.settings["step"]:
            self.monitor.measure(done)
        if self._rule is not None and self.monitor.should_stop:
            control.should_training_stop = True
        return control

    def _callbacks(self) -> list[Any]:
        return [callback for callback in self._trainer.callback_handler.callbacks if callback is not self]


def _is_of_rows(data: Any) -> bool:
    """Whether data are a data set whose samples are dictionaries, as a trainer takes them and its collator joins them."""
    plain = isinstance(data, (list, tuple))
    kind = plain or isinstance(data, Dataset) or hasattr(data, "column_names")
    if not kind or not hasattr(data, "__len__") or not hasattr(data, "__getitem__") or not len(data):
        return False
    with undisturbed.seeded(0, data):
        first = data[0]
    return isinstance(first, Mapping) and not (plain and _is_batch(first))


def _is_batch(row: Mapping[str, Any]) -> bool:
    """Whether a dictionary in a list is a batch: several labels, or token ids of several texts."""
    if "input_ids" in row:
        return np.ndim(row["input_ids"]) > 1
    return any(np.ndim(row[key]) > 0 for key in LABEL_KEYS if key in row)


class TrainerTracker(Tracker):
    """The trainer's own log: the numbers of the law, in its history and in whatever it reports to."""

    def numbers(self, values: Scalars, step: int) -> None:
        """As the trainer logs its loss; what it was about to log itself is not forgotten over it."""
        control = self.given.control
        about_to_log = control.should_log
        names = [f"{PREFIX}/{name}" for name in OF_THE_LAW]
        try:
            self.given.log({name: values[name] for name in names if name in values})
        finally:
            control.should_log = self.given.control.should_log = about_to_log


class _Samples:
    """The training data of a trainer, or others of that kind, read through its own collator, in a loader of their own."""

    def __init__(self, trainer: Any, dataset: Any = None, where: str = "data") -> None:
        dataset, self._trainer = trainer.train_dataset if dataset is None else dataset, trainer
        if dataset is None:
            raise InputError("data: expected a trainer with a train_dataset, got none. Pass LawCallback(…, data=…).")
        if not hasattr(dataset, "__len__"):
            why = "an IterableDataset without length: reading from it would take samples away from the training"
            cure = "Pass a fixed part of it: LawCallback(…, data=list of batches)"
            raise InputError(f"data: expected a train_dataset of known length, got {why}. {cure}.")
        self._collate: Callable[..., Any] = trainer.data_collator
        if hasattr(dataset, "column_names") and hasattr(trainer, "_remove_unused_columns"):
            dataset = trainer._remove_unused_columns(dataset)
        elif hasattr(trainer, "_get_collator_with_removed_columns"):
            self._collate = trainer._get_collator_with_removed_columns(self._collate)
        self._dataset = dataset
        try:
            with undisturbed.seeded(0, dataset, self._collate):
                self.batch: Any = self._collate([dataset[i] for i in range(min(3, len(dataset)))])
        except Exception as error:  # data sets and collators of users raise anything
            why = f"got {type(error).__name__}: {error}"
            raise DataError(
                f"{where}: expected samples that the trainer's collator makes a batch of, {why}."
            ) from error

    @property
    def of_tokens(self) -> bool:
        """Whether every token has a label: a language model."""
        if not isinstance(self.batch, Mapping) or "input_ids" not in self.batch:
            return False
        labels = self.batch.get("labels")
        if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.is_floating_point():
            return False
        return bool(labels.shape == self.batch["input_ids"].shape)

    def token_ids(self) -> Any:
        """Token ids of documents spread over the data set, without padding."""
        from layerlaw.lm import pieces_of

        config, ids = getattr(self._trainer.model, "config", None), list[Tensor]()
        wanted = TOKENS_PER_FEATURE * int(getattr(config, "hidden_size", 0) or 1024)
        order = torch.randperm(len(self._dataset), generator=torch.Generator().manual_seed(0)).tolist()
        with undisturbed.seeded(0, self._dataset):
            for i in order:
                row = self._dataset[i]
                tokens = torch.as_tensor(row["input_ids"])
                mask = row.get("attention_mask")
                ids.append(tokens if mask is None else tokens[torch.as_tensor(mask).bool()])
                wanted -= len(ids[-1])
                if wanted <= 0:
                    break
        return pieces_of(ids, length=max(2, *map(len, ids)))

    def loader(self) -> DataLoader[Any]:
        """Batches in an order that stays; of several processes each has its share."""
        n, args = len(self._dataset), self._trainer.args
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()[rank() :: world_size()]
        how: Any = {"batch_size": args.per_device_train_batch_size, "collate_fn": self._collate}
        share = Subset(self._dataset, order)
        names = None if names_in(self._dataset) else self._class_names()
        if names is not None:
            share.class_names = names  # type: ignore[attr-defined]  # where `probe` looks for them
        return undisturbed.reread(DataLoader(share, **how))  # type: ignore[no-any-return]

    def _class_names(self) -> list[str] | None:
        """The names of the classes in the model's configuration, unless they are those that transformers makes up."""
        known = getattr(getattr(self._trainer.model, "config", None), "id2label", None) or {}
        names = [known.get(i) for i in range(len(known))]
        if not all(isinstance(name, str) for name in names) or all(
            name == f"LABEL_{i}" for i, name in enumerate(names)
        ):
            return None
        return [str(name) for name in names]

    def usual(self) -> dict[str, Any]:
        """How the tokens of a classifier are reduced where nobody says: as the network itself does, else their mean."""
        if not isinstance(self.batch, Mapping) or "input_ids" not in self.batch:
            return {}
        try:
            with undisturbed.seeded(0):
                used = sites(self._trainer.model, dict(self.batch)).tokens
        except LayerlawError:  # told by the measurement
            return {}
        return {"reduce": used.reduce if used is not None and used.reduce else "mean"}
