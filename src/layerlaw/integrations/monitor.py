"""A monitor for training loops: it measures every so many epochs, keeps and sends on what it found, and disturbs nothing."""

from __future__ import annotations

import difflib
import inspect
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from layerlaw.capture.choice import check_sites
from layerlaw.data import Text
from layerlaw.errors import InputError, LayerlawError, check_choice, check_seed, check_whole, shown
from layerlaw.files import made_folder
from layerlaw.integrations import undisturbed
from layerlaw.integrations.run_folder import is_like, records_in
from layerlaw.integrations.trackers import PAGE, Tracker, law_figure, scalars, trackers_of
from layerlaw.later import waits
from layerlaw.pages import movie, report
from layerlaw.probing import probe
from layerlaw.probing.kept_plans import Curve, KeptPlans, keeping
from layerlaw.progress import warn
from layerlaw.record import Record
from layerlaw.stats.ranks import rank
from layerlaw.threads import on_cpu, users_device
from layerlaw.verdict.checks import other_data
from layerlaw.verdict.stopping import UntilLaw

MOVIE = "movie.html"
AUGMENTED = (
    "The data differ whenever they are read (augmentation): measured is one drawing of them, from seed {seed}, not the "
    "samples without it. A loader without augmentation measures those."
)

MOST_UNSEEN = 20  # records for which the rule of `should_stop` is asked when somebody wants to know
SMALL_SAMPLE, SMALL_BATCH = 4096, 1024  # bytes, and how many of such samples are run at once: calls cost more than work


class Monitor:
    """Measure a network while it is trained, in a loop of your own: call it after every epoch.

        monitor = ll.Monitor(model, train_loader, every=5, to=SummaryWriter(), folder="run")
        for epoch in range(epochs):
            train_one_epoch(...)
            monitor(epoch)
        monitor.finish()

    model   the network that is trained; weights, gradients, random numbers, samplers and losses of its training are bit by
            bit the same with and without a monitor
    data    what to measure on, as for `probe`, such as the training loader, over whose samples a loader of its own is made;
            of a language model a text, or token ids (documents, length) as `lm.pieces_of(ids)`
            (with augmentation, the augmented samples are measured: give a loader without it if you mean the samples)
    every   measure at epochs that it divides; `monitor.measure(epoch)` measures in any case. In the loop above epoch 0 is
            after the first epoch; call `monitor.measure(0)` before the loop and `monitor(epoch + 1)` in it to count finished
            epochs, as the callbacks of Lightning and Hugging Face do
    test    held-out data; where they alone cannot be measured, the record is of the training data, and a note says so
    to      trackers: a SummaryWriter, a wandb run, the module mlflow, a function of (numbers, step), or a list of them
    folder  records are written here, epoch-000005.json and so on, page and movie by `finish()`. Records of earlier epochs
            that lie there, as of a training that is resumed, are in page and movie, too; those of another network are
            an error
    at_end  `finish()` measures the last epoch that the monitor was called with, if `every` does not divide it
    probe   further arguments of `probe` (of `probe_lm` where the data are text); default: uncertainty=False, which takes
            half of the time

    A measurement that fails warns once, and the training goes on; so does a tracker that raises. In a job of several
    processes all of them call it, and rank 0 writes and sends.
    """

    @on_cpu
    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        every: int = 1,
        test: Any = None,
        to: Any = (),
        folder: str | os.PathLike[str] | None = None,
        at_end: bool = True,
        **probe: Any,
    ) -> None:
        check_whole(1, kind=Integral, every=every)
        check_choice("at_end", at_end, (True, False))
        if not isinstance(model, nn.Module):
            raise InputError(f"model: expected an nn.Module, got {shown(model)}.")
        undisturbed.check_unsharded(model)
        self.every, self.at_end = int(every), at_end
        """How often it measures, and whether `finish()` measures the last epoch."""
        self._rule = UntilLaw(every=self.every)
        self._unseen: list[tuple[Record, Curve]] = []  # the records that it has not seen
        self.records: list[Record] = []
        """What was measured, in the order of the epochs; each has its epoch as settings["step"].

        With the first one those of earlier epochs come in that lay in the folder.
        """
        self.unit = "epoch"
        """What is counted: settings["step_unit"]."""
        self._model, self._text = model, is_text(data)
        self._seed = probe.get("seed", 0)
        check_seed(self._seed)
        self._data = data if self._text else undisturbed.reread(data, seed=self._seed)
        self._test = None if test is None else undisturbed.reread(test, where="test", seed=self._seed)
        if self._text and test is not None:
            raise InputError("test: expected none for a language model, whose residual is held out by document.")
        check_options(probe, text=self._text, caller=Monitor)
        if not self._text:
            check_sites(model, probe.get("sites", "auto"))
        usual: dict[str, Any] = {"progress": False} if self._text else {"progress": False, "uncertainty": False}
        if probe.get("batchnorm", "running") == "running" and _are_small(data):
            usual["batch_size"] = SMALL_BATCH
        self._probe, self._plans = usual | probe, KeptPlans()
        self.trackers: list[Tracker] = trackers_of(to)
        """Where numbers, pictures and the page go."""
        self._folder = None if folder is None else made_folder(folder)
        self._earlier = [] if self._folder is None else records_in(self._folder, model)
        self._of_another_run: set[int] = set()  # epochs in the folder that this run had not come to when it began
        self._warned: set[str] = set()
        self._no_law, self._failed = "", ""
        self._called, self._tried, self._tries, self._made = -1, -1, 0, 0
        self._drawn_anew: bool | None = None
        self._finished = False

    def __call__(self, epoch: int) -> Record | None:
        """Measure if this epoch is one of those; the record, or `None` where none was made."""
        check_whole(0, kind=Integral, epoch=epoch)
        self._called = int(epoch)
        return self.measure(self._called) if self._called % self.every == 0 else None

    @on_cpu
    def measure(self, epoch: int) -> Record | None:
        """Measure now; `None` where that fails, which a warning tells, the first time."""
        check_whole(0, kind=Integral, epoch=epoch)
        epoch = int(epoch)  # also of NumPy
        if self.records and epoch <= self.records[-1].settings["step"]:
            last = self.records[-1].settings["step"]
            self._warn(
                "order", f"expected one {self.unit} after the other, got {epoch} after {last}: not measured again"
            )
            return None
        if self._finished:
            self._finished = False
            told = f"{self.unit} {epoch} is measured after finish(), which wrote page and movie without it"
            self._warn("finished", f"{told}: call finish() again at the end")
        self._tried, self._tries = epoch, self._tries + (epoch != self._tried)
        self._plans.curve = None
        try:
            record = self._measured()
        except Exception as error:  # whatever goes wrong here, the training must not end by it
            self._plans.forget()
            self._failed = f"{type(error).__name__}: {error}"
            self._warn("measure", f"{self.unit} {epoch} could not be measured ({self._failed})")
            return None
        self._made += 1
        record.notes += self._about_data()
        self._take_up_earlier(epoch, record)
        record.settings |= {"step": epoch, "step_unit": self.unit}
        record.name = f"{self.unit} {epoch}"
        self.records.append(record)
        self._unseen.append((record, self._plans.curve))
        if len(self._unseen) > MOST_UNSEEN:  # so that they are not kept where somebody drops them
            _ = self.rule
        if rank() == 0:
            self._write(record)
            self._send(record)
        return record

    @property
    def record(self) -> Record | None:
        """The last one."""
        return self.records[-1] if self.records else None

    @property
    def rule(self) -> UntilLaw:
        """The rule of `should_stop`, which has seen all records."""
        unseen, self._unseen = self._unseen, []
        for record, curve in unseen:
            points = list[float | None]()
            if curve is not None and all(waits(site, "values") for site in record.sites):  # nobody has looked yet
                points = [D for site, D in zip(record.sites, curve(), strict=True) if site.in_fit]
            try:
                self._rule.update(record.settings["step"], points if len(points) > 1 else record)
            except InputError as error:  # too few layers to speak of a law
                self._no_law = str(error)
        return self._rule

    @rule.setter
    def rule(self, rule: UntilLaw) -> None:
        _, self._rule = self.rule, rule  # what was measured before is the old one's

    @property
    def should_stop(self) -> bool:
        """Whether the law has held at as many measurements in a row as the `rule` wants (three).

        That is early: ask for what else you need, such as fitted training data, before you stop.
        """
        rule = self.rule
        if self._no_law:
            self._warn("law", f"should_stop never becomes True ({self._no_law})")
        return rule.stopped is not None

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one page about all records, along the training."""
        if not self.records:
            raise InputError(f"page: expected at least one measured {self.unit}, got none: call monitor({self.unit}).")
        return report(self.records, path, title=f"The law during training, {type(self._model).__name__}")

    def movie(self, path: str | os.PathLike[str]) -> Path:
        """Write the page that plays all records, with a slider over the training."""
        if not self.records:
            raise InputError(f"movie: expected at least one measured {self.unit}, got none: call monitor({self.unit}).")
        return movie(self.records, path, title=f"{type(self._model).__name__} in training")

    def finish(self) -> None:
        """At the end of a training: measure the last epoch, if that was not done; write the page layerlaw.html and, of two
        records or more, movie.html into the folder, and hand the page to the trackers.

        A training that goes on may call the monitor as before (which a warning tells, once), and finish() again."""
        if self.at_end and self._called > self._tried:
            self.measure(self._called)
        self._finished = True
        if self._failed and "end" not in self._warned and rank() == 0:
            self._warned.add("end")
            told = f"{self._made} of {self._tries} measurements were made"
            warnings.warn(f"layerlaw monitor: {told}; the last that failed: {self._failed}", stacklevel=2)
        if rank() != 0 or not self.records or not (self._folder or self.trackers):
            return
        left = sorted(step for step in self._of_another_run if step > self.records[-1].settings["step"])
        if left and "longer" not in self._warned:
            self._warned.add("longer")
            told = f"{self._folder} still holds {len(left)} of the records of an earlier run, from {self.unit} {left[0]} on"
            warnings.warn(f"layerlaw monitor: {told}: move them away before you read all of it", stacklevel=2)
        with tempfile.TemporaryDirectory() as scratch:
            path = (self._folder or Path(scratch)) / PAGE
            if self._folder and len(self.records) > 1:
                self._guarded("movie", "the movie could not be written", partial(self.movie, self._folder / MOVIE))
            if self._guarded("page", "the page could not be written", lambda: self.page(path)):
                for number, tracker in enumerate(self.trackers):
                    self._guarded(
                        f"page {number}", f"{tracker.name} did not take the page", partial(tracker.page, path)
                    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # the weights may be those of half an epoch more
            self._called = -1
        self.finish()

    def __repr__(self) -> str:
        rule = self.rule
        stop = f", the law has held since {self.unit} {rule.since}" if rule.stopped is not None else ""
        return f"Monitor(every={self.every}): {len(self.records)} measured{stop}"

    def _measured(self) -> Record:
        try:
            return self._probed(self._test)
        except Exception as error:
            if self._test is None:
                raise
            record = self._probed(None)  # raises, too, unless it is the test data alone
            why = f"the test data could not be measured ({type(error).__name__}: {error})"
        self._warn("test", f"{why}, the training data were")
        record.notes.append(f"{why[0].upper()}{why[1:]}.")
        return record

    def _probed(self, test: Any) -> Record:
        with undisturbed.seeded(self._seed, self._data, test), keeping(self._plans):
            if self._text:
                from layerlaw.lm import probe_lm

                return probe_lm(self._model, self._data, **self._probe)
            try:
                return probe(self._model, self._data, test=test, **self._probe)
            except LayerlawError:
                if not self._plans.used:
                    raise
                self._plans.forget()  # the network may call its layers otherwise than it did
                return probe(self._model, self._data, test=test, **self._probe)

    def _about_data(self) -> list[str]:
        """A note on data that differ whenever they are read: looked at once, by a few samples."""
        if self._drawn_anew is None:
            self._drawn_anew = not self._text and undisturbed.drawn_anew(self._data, seed=self._seed)
        return [AUGMENTED.format(seed=self._seed)] if self._drawn_anew else []

    def _take_up_earlier(self, epoch: int, first: Record) -> None:
        """Put the records of earlier epochs that lay in the folder in front of the first one of this run."""
        before, self._earlier = self._earlier, []
        self._of_another_run |= {r.settings["step"] for r in before if r.settings["step"] > epoch}
        before = [r for r in before if r.settings["step"] < epoch and r.settings.get("step_unit") == self.unit]
        same = [record for record in before if is_like(record, first)]
        if len(same) < len(before):
            left_out = f"{len(before) - len(same)} of {len(before)} earlier records in {self._folder}"
            self._warn("earlier", f"{left_out} are of other sites and are left out of page and movie")
        here = [record for record in same if not other_data([record, first])]
        if len(here) < len(same):
            left_out = f"{len(same) - len(here)} of {len(before)} earlier records in {self._folder}"
            self._warn("other data", f"{left_out} were measured on other data and are left out of page and movie")
        self.records[:0] = here

    def _write(self, record: Record) -> None:
        folder, step = self._folder, record.settings["step"]
        if folder is not None:
            path = folder / f"{self.unit}-{step:06d}.json"
            self._guarded("write", f"{path.name} could not be written, the record is kept", lambda: record.save(path))

    def _send(self, record: Record) -> None:
        if not self.trackers:
            return
        values, step = scalars(record), record.settings["step"]
        drawn: list[Any] = []
        if any(type(tracker).picture is not Tracker.picture for tracker in self.trackers):
            self._guarded("draw", "the law could not be drawn", lambda: drawn.append(law_figure(record)))
        for number, tracker in enumerate(self.trackers):

            def send(to: Tracker = tracker) -> None:
                to.numbers(values, step)
                for figure in drawn:
                    to.picture(figure, step)

            self._guarded(f"send {number}", f"{tracker.name} did not take {self.unit} {step}, the record is kept", send)

    def _guarded(self, key: str, what: str, action: Callable[[], object]) -> bool:
        """Whether an action worked; where it did not, that is told once."""
        try:
            users_device()(action)()
        except Exception as error:  # trackers and disks raise anything
            self._warn(key, f"{what} ({type(error).__name__}: {error})")
            return False
        return True

    def _warn(self, key: str, words: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warn(f"layerlaw monitor: {words}. The training goes on; this is told once.")


def _are_small(data: Any) -> bool:
    """Whether data are a pair of tensors with samples of so few numbers that large batches cost no memory."""
    pair = isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
    return pair and 0 < data[0][:1].nbytes <= SMALL_SAMPLE


def stopping_rule(stop: bool | int | UntilLaw | None) -> UntilLaw | None:
    """The rule that a callback stops by: none, the usual one (`True`), one of so many measurements, or the user's own."""
    if stop is None or stop is False:
        return None
    if isinstance(stop, UntilLaw):
        return stop
    if not isinstance(stop, int):
        raise InputError(f"stop: expected True, a number of measurements, or UntilLaw(…), got {shown(stop)}.")
    return UntilLaw() if stop is True else UntilLaw(patience=stop)


def check_options(given: Mapping[str, Any], *, text: bool, caller: type) -> None:
    """Raise where `probe` (or `probe_lm`) does not know an argument: before the training, not in it.

    The `caller` was given it, and has arguments of its own, one of which may have been meant.
    """
    measures: Callable[..., Record] = probe
    if text:
        from layerlaw.lm import probe_lm as measures
    known = set(inspect.signature(measures).parameters) - {"model", "data", "text", "test", "old"}
    for name in given:
        if name not in known:
            own = {one.name for one in inspect.signature(caller).parameters.values() if one.kind is not one.VAR_KEYWORD}
            near = difflib.get_close_matches(name, sorted(known | own), n=1)
            near = near or [one for one in sorted(known | own) if one.startswith(name)]
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{caller.__name__}() got an unexpected keyword argument '{name}'.{hint}")


def is_text(data: Any) -> bool:
    """Whether data are of a language model: a text, documents, or what `lm.pieces_of` makes."""
    words = isinstance(data, (list, tuple)) and bool(data) and all(isinstance(one, str) for one in data)
    return isinstance(data, (str, Text)) or words or type(data).__name__ == "UncutText"
