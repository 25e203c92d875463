"""Lightning: `LawMonitor` measures the network of a trainer every so many epochs and logs through every logger.

trainer = lightning.Trainer(callbacks=[LawMonitor(every_n_epochs=5)])
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from layerlaw.errors import InputError, MissingExtraError, check_whole, shown
from layerlaw.integrations.monitor import Monitor, check_options, is_text, stopping_rule
from layerlaw.integrations.trackers import PREFIX, MlflowTracker, Scalars, Tracker, scalars, tracker_of
from layerlaw.integrations.undisturbed import check_unsharded
from layerlaw.record import Record
from layerlaw.verdict.stopping import UntilLaw

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:  # told when somebody makes one: this module can be read without
        Callback = None

OF_THE_LAW = tuple(f"{PREFIX}/{name}" for name in ("rho", "evenness", "trend"))


class LawMonitor(Callback or object):  # type: ignore[misc]
    """A callback for Lightning's `Trainer`.

    every_n_epochs  measure before the training, and after so many epochs
    at_end          measure after the last epoch, too
    data            what to measure on; default: the samples of the trainer's own train loader, each process its share
    stop            end the training when the law has held at three measurements in a row (`True`), at so many (a number), or
                    by a rule of yours (`UntilLaw(…)`)
    model           the network inside the LightningModule, by the name of its attribute; default: the module itself where it
                    has a `forward`, else its only child with weights
    folder          records are written here, page and movie at the end; as for `Monitor`, where a training is resumed
    probe           further arguments of `probe`

    The numbers are named layerlaw/<measure>/<site> and layerlaw/rho, evenness, trend, in the loggers and in
    `trainer.callback_metrics`, where the last known ones stay between two measurements: `ModelCheckpoint(monitor=…)` finds
    them at every epoch. All processes measure together, rank 0 logs. The training is bit by bit the same as without.
    """

    def __init__(
        self,
        every_n_epochs: int = 1,
        *,
        at_end: bool = True,
        data: Any = None,
        stop: bool | int | UntilLaw | None = None,
        model: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        **probe: Any,
    ) -> None:
        if Callback is None:
            raise MissingExtraError("lightning", "lightning", "LawMonitor")
        super().__init__()
        check_whole(1, every_n_epochs=every_n_epochs)
        check_options({k: v for k, v in probe.items() if k != "test"}, text=is_text(data), caller=LawMonitor)
        self.every_n_epochs, self.at_end = every_n_epochs, at_end
        self.monitor: Monitor | None = None
        """Records and more; there once a training has begun."""
        self._rule = stopping_rule(stop)
        self._data, self._model, self._folder, self._probe = data, model, folder, probe
        self._last: Scalars = {}
        self._looked = 0

    @property
    def records(self) -> list[Record]:
        """What was measured."""
        return self.monitor.records if self.monitor is not None else []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find network and data, and measure before the first step: what others monitor is there from the beginning.

        What can never be measured is answered now, not epochs later.
        """
        check_unsharded(getattr(trainer.strategy, "model", None) or pl_module)
        data = self._data if self._data is not None else _train_loader(trainer)
        to = [LoggerTracker(logger, trainer) for logger in trainer.loggers]
        network = network_in(pl_module, self._model)
        self.monitor = Monitor(network, data, to=to, folder=self._folder, **self._probe)
        self.monitor.rule = self._rule or self.monitor.rule
        self._last, self._looked = {}, trainer.current_epoch
        self._measure(trainer, trainer.current_epoch)
        self._tell(trainer)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A validation at the end of an epoch comes before the epoch's own end, and checkpoints may be saved by it."""
        fitting = self.monitor is not None and not trainer.sanity_checking and trainer.state.fn == "fit"
        if fitting and trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._look(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure where this epoch is one of those, unless its validation has done so."""
        self._look(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last measurement, where a training ended early, and the page."""
        if self.monitor is None:
            return
        done = trainer.current_epoch  # by now the number of finished epochs
        measured = self.monitor.record.settings["step"] if self.monitor.record else -1
        if self.at_end and done > measured:
            self._measure(trainer, done)
        self.monitor.finish()

    def _look(self, trainer: Any) -> None:
        done = trainer.current_epoch + 1
        last = trainer.max_epochs is not None and 0 < trainer.max_epochs <= done
        due = done % self.every_n_epochs == 0 or (self.at_end and last)
        if due and done > self._looked:
            self._looked = done
            self._measure(trainer, done)
        self._tell(trainer)

    def _measure(self, trainer: Any, done: int) -> None:
        assert self.monitor is not None
        record = self.monitor.measure(done)
        if record is not None:
            # A law that cannot be fitted (yet) is no number, which checkpoints take for the worst.
            self._last |= dict.fromkeys(OF_THE_LAW, math.nan) | scalars(record)
        if self._rule is not None and self.monitor.should_stop:
            trainer.should_stop = True

    def _tell(self, trainer: Any) -> None:
        known = {name: torch.tensor(value, dtype=torch.float64) for name, value in self._last.items()}
        trainer.callback_metrics.update(known)


class LoggerTracker(Tracker):
    """One of Lightning's loggers; pictures and pages go to what it logs to, where that takes them."""

    def __init__(self, given: Any, trainer: Any) -> None:
        super().__init__(given)
        self._trainer = trainer

    @cached_property
    def _inner(self) -> Tracker:
        """Its TensorBoard, wandb or mlflow; nothing where it logs numbers alone."""
        inner, run_id = self.given.experiment, getattr(self.given, "run_id", None)
        if run_id is not None and hasattr(inner, "log_artifact"):  # a client of mlflow
            return MlflowTracker(inner, run_id)
        try:
            return tracker_of(inner)
        except InputError:
            return Tracker(inner)

    def numbers(self, values: Scalars, step: int) -> None:
        """By the logger itself, at the trainer's step."""
        self.given.log_metrics({**values, "epoch": step}, step=self._trainer.global_step)

    def picture(self, figure: Any, step: int) -> None:
        """To its TensorBoard, wandb or mlflow."""
        self._inner.picture(figure, self._trainer.global_step)

    def page(self, path: Any) -> None:
        """To its TensorBoard, wandb or mlflow."""
        self._inner.page(path)


def network_in(module: nn.Module, name: str | None = None) -> nn.Module:
    """The network of a LightningModule: what was named, the module itself, or its only child with weights."""
    children = {key: child for key, child in module.named_children() if next(child.parameters(), None) is not None}
    if name is not None:
        found = getattr(module, name, None) if isinstance(name, str) else None
        if not isinstance(found, nn.Module):
            raise InputError(
                f"model: expected the name of one of {', '.join(children) or 'no modules'}, got {shown(name)}."
            )
        return found
    own = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    if own.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning", "torch"):
        return module
    if len(children) == 1:
        return next(iter(children.values()))
    known = f"children with weights: {', '.join(children) or 'none'}"
    raise InputError(
        f"model: expected a LightningModule with a forward(x), got none ({known}). Pass model='name of one'."
    )


def _train_loader(trainer: Any) -> Any:
    loader = trainer.train_dataloader
    if isinstance(loader, (Mapping, list, tuple)) and len(loader) == 1:
        loader = next(iter(loader.values() if isinstance(loader, Mapping) else loader))
    if loader is None:
        raise InputError("data: expected a trainer with a train loader, got none. Pass LawMonitor(data=…).")
    if isinstance(loader, (Mapping, list, tuple)) or type(loader).__name__ == "CombinedLoader":
        raise InputError("data: expected one train loader, got several. Pass LawMonitor(data=one of them).")
    return loader
