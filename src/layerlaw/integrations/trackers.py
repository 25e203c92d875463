"""Trackers by what they can do: a TensorBoard SummaryWriter, a wandb run, mlflow, or a function; none is imported here."""

from __future__ import annotations

import importlib
import inspect
import io
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError, needed, shown
from layerlaw.measures.columns import describe
from layerlaw.pages import plot
from layerlaw.record import Record
from layerlaw.verdict import law_holds

PREFIX = "layerlaw"
LEFT_OUT = re.compile(r"(_log_se|_low|_high|_corrected)$|^(test_)?(rank|full_rank)$")  # about a number, no number
NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")
PAGE = "layerlaw.html"
Scalars = dict[str, float]


def scalars(record: Record) -> Scalars:
    """The numbers of a record as trackers name them: layerlaw/<measure>/<site>, and those of its law.

    >>> from layerlaw.record import SiteRow
    >>> sites = [SiteRow(f"fc{i}", "Linear", (4,), 4, values={"separation": 4.0 / 2**i}) for i in range(3)]
    >>> found = scalars(Record(name="toy", classes=["a", "b"], sites=sites))
    >>> found["layerlaw/separation/fc2"], round(found["layerlaw/rho"], 6)
    (1.0, 0.5)
    """
    law: dict[str, float | None] = {"accuracy": record.accuracy, "test_accuracy": record.test_accuracy}
    law |= {"r_squared": record.r_squared, "test_r_squared": record.test_r_squared}
    with suppress(InputError):  # too few points, or a D that has no logarithm
        fit = record.law()
        holds = law_holds(record, fit, record.law_errors())
        trend = None if fit.evenness is None else fit.trend  # D does not fall in all: there are no steps to compare
        law |= {"rho": fit.rho, "evenness": fit.evenness, "trend": trend}
        law |= {"holds": None if holds is None else float(holds)}
    named = {f"{PREFIX}/{name}": value for name, value in law.items()}
    for name in record.columns:
        if not LEFT_OUT.search(name) and describe(name).kind is float:
            named |= {f"{PREFIX}/{name}/{site.name}": site.values.get(name) for site in record.sites}
    return {name: float(value) for name, value in named.items() if value is not None and math.isfinite(value)}


class Tracker:
    """Where numbers, pictures and pages go; `given` is what the user handed over, of which only methods are used."""

    def __init__(self, given: Any) -> None:
        self.given = given

    @property
    def name(self) -> str:
        """What it is called in a warning."""
        return getattr(self.given, "__name__", type(self.given).__name__)

    def numbers(self, values: Scalars, step: int) -> None:
        """Take the numbers of one measurement."""
        raise NotImplementedError

    def picture(self, figure: Any, step: int) -> None:
        """Take a figure of matplotlib."""

    def page(self, path: Path) -> None:
        """Take a file."""


class TensorBoardTracker(Tracker):
    """A `SummaryWriter`; the page is copied beside its event files."""

    def numbers(self, values: Scalars, step: int) -> None:
        """One scalar each."""
        for name, value in values.items():
            self.given.add_scalar(name, value, step)

    def picture(self, figure: Any, step: int) -> None:
        """An image."""
        self.given.add_image(f"{PREFIX}/law", pixels(figure), step, dataformats="HWC")

    def page(self, path: Path) -> None:
        """A file in the folder of the writer."""
        folder = Path(self.given.log_dir)
        if path.resolve() != (folder / PAGE).resolve():
            shutil.copyfile(path, folder / PAGE)


class WandbTracker(Tracker):
    """A wandb run (or the module itself): numbers over `layerlaw/epoch`, since the run's own steps are the user's."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._defined = False

    def numbers(self, values: Scalars, step: int) -> None:
        """All in one row."""
        if not self._defined:
            self._defined = True
            self.given.define_metric(f"{PREFIX}/step")
            self.given.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
        self.given.log({**values, f"{PREFIX}/step": step})

    def picture(self, figure: Any, step: int) -> None:
        """An image."""
        image = importlib.import_module("wandb").Image(pixels(figure))
        self.given.log({f"{PREFIX}/law": image, f"{PREFIX}/step": step})

    def page(self, path: Path) -> None:
        """An artifact."""
        artifact = importlib.import_module("wandb").Artifact(f"{PREFIX}-page", type="report")
        artifact.add_file(str(path), name=PAGE)
        self.given.log_artifact(artifact)


class MlflowTracker(Tracker):
    """The module mlflow, which logs to the active run; or a client with the id of a run."""

    def __init__(self, given: Any, run_id: str | None = None) -> None:
        super().__init__(given)
        self._run = () if run_id is None else (run_id,)

    def numbers(self, values: Scalars, step: int) -> None:
        """All at once where that is possible; mlflow knows fewer letters in names than modules have."""
        known = {NOT_IN_MLFLOW.sub("_", name): value for name, value in values.items()}
        if not self._run:
            self.given.log_metrics(known, step=step)
        for name, value in known.items() if self._run else ():
            self.given.log_metric(*self._run, name, value, step=step)

    def picture(self, figure: Any, step: int) -> None:
        """A PNG among the artifacts."""
        self.given.log_figure(*self._run, figure, f"{PREFIX}/law-{step:06d}.png")

    def page(self, path: Path) -> None:
        """A file among the artifacts."""
        self.given.log_artifact(*self._run, str(path), PREFIX)


class FunctionTracker(Tracker):
    """A function of the numbers, by name, and the step."""

    def numbers(self, values: Scalars, step: int) -> None:
        """Call it."""
        self.given(values, step)


def tracker_of(given: Any) -> Tracker:
    """The tracker that an object is, by its methods."""
    if isinstance(given, Tracker):
        return given
    kinds: Mapping[tuple[str, ...], Callable[[Any], Tracker]] = {
        ("add_scalar", "add_image"): TensorBoardTracker,
        ("log_metrics", "log_figure", "log_artifact"): MlflowTracker,
        ("log", "log_artifact", "define_metric"): WandbTracker,
    }
    for methods, made in kinds.items():
        if not isinstance(given, type) and all(callable(getattr(given, method, None)) for method in methods):
            return made(given)
    if callable(given) and not isinstance(given, type):
        _check_takes_two(given)
        return FunctionTracker(given)
    expected = "expected a SummaryWriter, a wandb run, the module mlflow, or a function of (numbers, step)"
    raise InputError(f"to: {expected}, got {shown(given)}.")


def _check_takes_two(function: Callable[..., object]) -> None:
    """Raise where a function cannot be called with numbers and step; what does not tell what it takes is called and seen."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind({}, 0)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(f"to: expected a function of (numbers, step), got {name}{signature}.") from None


def trackers_of(to: Any) -> list[Tracker]:
    """One tracker, or several."""
    several = isinstance(to, Iterable) and isinstance(to, (list, tuple))
    return [tracker_of(one) for one in (to if several else [to])]


def law_figure(record: Record) -> Any:
    """The law along depth, as papers draw it."""
    return plot(record)


def pixels(figure: Any) -> npt.NDArray[np.uint8]:
    """A figure of matplotlib as an image (height, width, 3), by way of a PNG."""
    image = needed("PIL.Image", "data", "A picture for a tracker", package="pillow")
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return np.asarray(image.open(png).convert("RGB"))
