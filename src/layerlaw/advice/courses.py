"""The course of a training in pictures: the mismatch of every layer and the accuracy over the epochs.

Ben-Shaul & Dekel's Figure 2 (mismatch of the nearest class center, the terminal phase shaded) and Figure 1 (accuracy), for
trainings of your own; `layerlaw reproduce svsl_…` draws its own by the same functions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from layerlaw.errors import SHARE, InputError, demand, visible
from layerlaw.files import json_safe, write_json
from layerlaw.notebook import Shown, View
from layerlaw.outcome import Cell, Table
from layerlaw.sheet import Panel, Series, Sheet, Style, spread_series
from layerlaw.verdict.conjectures import (
    INTERPOLATED,
    ConjectureVerdict,
    Course,
    TrainingCourse,
    check_conjectures,
    several_courses,
)
from layerlaw.wording import counted, joined, percent, short_names

Arms = Mapping[str, Sequence[TrainingCourse]]  # trainings of one recipe, by the recipe's name
SPLITS = ("train", "test")
ALONE = "training"  # the name of an arm that was given none
ENDS = ("interpolation epoch", "test acc. there", "best test acc.", "best epoch", "test acc. at the end")
MOST_CURVES = 10  # layers in one panel: as many as there are colors
MOST_MARKED = 16  # epochs; of more, single measurements are not marked
LONGEST = 24  # characters of a layer's name in a legend
MOST_EXAMPLES = 10
MISMATCH = (
    "Mismatch: the share of samples whose nearest class mean (of the training samples) is not the network's decision."
)


class CourseEnds(NamedTuple):
    """The interpolation threshold, and the test accuracy there, at the best epoch and at the end, under the heads `ENDS`."""

    interpolation: int | None
    at_threshold: float | None
    best: float | None
    best_epoch: int | None
    end: float | None


@dataclass(frozen=True)
class CourseReport(Shown):
    """Trainings over their epochs: what the conjectures come to, the pictures, the tables.

    `arms` are courses by name, those of an arm (seeds of one recipe) drawn as their mean and range.
    """

    arms: Mapping[str, tuple[TrainingCourse, ...]]
    verdicts: Mapping[str, tuple[ConjectureVerdict, ...]]

    @property
    def sentence(self) -> str:
        """How many checks of conjectures hold, fail, are open."""
        every = [verdict.holds for some in self.verdicts.values() for verdict in some]
        fail, open_ = every.count(False), every.count(None)
        words = [f"{every.count(True)} of {len(every)} checks of the conjectures hold"]
        words += [f"{fail} {'fails' if fail == 1 else 'fail'}"] if fail else []
        words += [f"{open_} {'is' if open_ == 1 else 'are'} open"] if open_ else []
        return f"{', '.join(words)}."

    @property
    def findings(self) -> list[str]:
        """When the terminal phase begins, and each verdict, arm by arm; those without a comparison together."""
        found = []
        for name, courses in self.arms.items():
            about = f"{name}: " if len(self.arms) > 1 else ""
            idle: dict[str, list[int]] = {}
            for verdict in self.verdicts[name]:
                idle.setdefault("" if verdict.checked else verdict.why, []).append(verdict.number)
            said = [v.sentence for v in self.verdicts[name] if v.checked]
            for why, numbers in idle.items():
                which = joined([str(number) for number in sorted(set(numbers))])
                said += [f"Open: {'conjectures' if len(set(numbers)) > 1 else 'conjecture'} {which}, {why}."] * bool(
                    why
                )
            found += [f"{about}{line}" for line in (_phase(courses), *said)]
        return [visible(line) for line in found]

    @property
    def notes(self) -> list[str]:
        """What the verdicts do not allow for."""
        single = "A single training shows nothing of the noise of training itself: train several seeds."
        among = "The threshold is looked for among the measured epochs alone."
        return [*([single] if any(len(some) == 1 for some in self.arms.values()) else []), among]

    @property
    def sheets(self) -> list[Sheet]:
        """The mismatch of every layer over the epochs, and the accuracy."""
        return course_sheets(self.arms)

    @property
    def tables(self) -> list[Table]:
        """Every training, the mismatch of every layer, and what contradicts a conjecture."""
        several = len(self.arms) > 1
        every: list[tuple[Cell, ...]] = []
        layers: list[tuple[Cell, ...]] = []
        splits = [split for split in SPLITS if any(split in _splits(some) for some in self.arms.values())]
        for name, some in self.arms.items():
            for i, course in enumerate(some, 1):
                ends = [percent(v) if isinstance(v, float) else v for v in course_ends(course)]
                every.append((f"{name} {i}" if len(some) > 1 else name, *ends))
            for i, site in enumerate(some[0].sites):
                shares = [percent(share) for split in splits for share in _mean_mismatch(some, split, i)]
                layers.append((*((name,) if several else ()), site, *shares))
        heads = (*(("training",) if several else ()), "layer")
        heads += tuple(f"{split}, {when}" for split in splits for when in ("at the threshold", "at the end"))
        mean = "Means over the trainings." if any(len(some) > 1 for some in self.arms.values()) else ""
        return [
            Table("Every training", ("training", *ENDS), every),
            Table("Mismatch of every layer", heads, layers, mean),
            *example_tables(self.verdicts),
        ]

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.findings, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        courses = {name: [asdict(course) for course in some] for name, some in self.arms.items()}
        verdicts = {name: [asdict(verdict) for verdict in some] for name, some in self.verdicts.items()}
        said = {"sentence": self.sentence, "findings": self.findings, "notes": self.notes}
        return dict(json_safe({**said, "arms": courses, "verdicts": verdicts}))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def plot(self, which: int = 0) -> Any:
        """Draw the mismatch (0) or the accuracy (1): a matplotlib figure."""
        if which not in (0, 1):
            raise InputError(f"plot: expected 0 (the mismatch) or 1 (the accuracy), got {which!r}.")
        return self.sheets[which].plot()

    def _view(self) -> View:
        table = self.tables[1]
        rows = [list(table.columns), *(list(map(str, row)) for row in table.rows)]
        return View(self.sentence, rows, [*self.findings, *self.notes])

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained page: the verdicts, both drawings, the tables."""
        from layerlaw.pages.html.outcomes import finding_page  # needs matplotlib

        every = [course for some in self.arms.values() for course in some]
        facts = {
            "measured epochs": {", ".join(map(str, course.epochs)) for course in every},
            "samples": {joined([f"{n:,} {split}" for split, n in course.samples.items()]) for course in every},
            "threshold": {f"{percent(course.threshold)} train accuracy" for course in every},
        }
        about = {name: "; ".join(sorted(values)) for name, values in facts.items()}
        how: Any = {"sheets": self.sheets, "tables": self.tables, "notes": self.notes, "provenance": about}
        return finding_page(path, "Nearest class centers over training", [self.sentence, *self.findings], **how)


def course_report(
    courses: Course | Sequence[Course] | Mapping[str, Course | Sequence[Course]],
    *,
    plain: str | None = None,
    threshold: float = INTERPOLATED,
) -> CourseReport:
    """The course of one training, of several (seeds of one recipe), or of several recipes by name, in pictures and verdicts.

        course_report(monitor).page("course.html")
        course_report({"plain": runs, "SVSL": others}, plain="plain").page("courses.html")

    A training is whatever `training_course` takes ({epoch: record}, a Monitor or its records, a run of `sweep`), or its
    result; `threshold`, the train accuracy at which interpolation begins, is passed on to it (its result has its own).
    Conjectures 7 and 8 are checked for each recipe; with `plain`, the name of the one without SVSL, also 11 and 12 for every
    other one, in pairs of trainings.

    >>> course = TrainingCourse((1, 2, 3), ("a", "b"), {"train": ((0.6, 0.4), (0.4, 0.2), (0.2, 0.0))},
    ...                         {"train": (0.9, 1.0, 1.0)}, {"train": 1000})
    >>> report = course_report(course)
    >>> report.sentence
    '2 of 2 checks of the conjectures hold.'
    >>> [series.label for series in report.sheets[0].panels[0].series], report.sheets[0].panels[0].shaded
    (['a', 'b'], (2.0, 3.0))
    """
    demand(InputError, "", threshold=(threshold, SHARE))
    named = isinstance(courses, Mapping) and bool(courses) and all(isinstance(name, str) for name in courses)
    given: dict[str, Any] = dict(courses) if named else {ALONE: courses}  # type: ignore[arg-type]
    arms = {name: tuple(several_courses(some, threshold)) for name, some in given.items()}
    if plain is not None and (plain not in arms or len(arms) < 2):
        names = ", ".join(map(repr, arms)) if named else "one without a name"
        raise InputError(visible(f"plain: expected one of several named trainings, got {plain!r} of {names}."))
    verdicts = {}
    for name, some in arms.items():
        verdicts[name] = tuple(check_conjectures(some))
        if plain is not None and name != plain:
            pairs = check_conjectures(arms[plain], some)
            verdicts[name] += tuple(verdict for verdict in pairs if verdict.number in (11, 12))
    return CourseReport(arms, verdicts)


def course_sheets(arms: Arms) -> list[Sheet]:
    """Figure 2: the mismatch over the epochs, a panel per arm and split; Figure 1: the accuracy, a curve per arm."""
    several, every = len(arms) > 1, [course for some in arms.values() for course in some]
    mismatch = [
        _mismatch_panel(f"{name}, {split}" if several else f"{split} samples", some, split)
        for name, some in arms.items()
        for split in _splits(some)
    ]
    curves = {
        split: [
            course_series(name if several else f"{split} samples", some, [course.accuracy[split] for course in some])
            for name, some in arms.items()
            if split in _splits(some)
        ]
        for split in SPLITS
    }
    panels = {f"{split} accuracy": found for split, found in curves.items() if found}
    if not several:
        panels = {"": [series for found in panels.values() for series in found]}
    accuracy = [course_panel(title, every, found) for title, found in panels.items()]
    left_out = max((len(some[0].sites) for some in arms.values()), default=0) - MOST_CURVES
    few = f"{MOST_CURVES} of {MOST_CURVES + left_out} layers are drawn." if left_out > 0 else ""
    how = spread_words(every, mismatch, len(every) > len(arms))
    return [
        Sheet(
            "Mismatch of the nearest class center over training",
            mismatch,
            min(2, max(1, len(mismatch))),
            " ".join(filter(None, (MISMATCH, zero_words(mismatch), few, how))),
            share_y=True,
        ),
        Sheet(
            "Accuracy over training",
            accuracy,
            max(1, len(accuracy)),
            spread_words(every, accuracy, len(every) > len(arms)),
        ),
    ]


def spread_words(courses: Sequence[TrainingCourse], panels: Sequence[Panel], seeds: bool) -> str:
    """What is shaded, and what the curves are where there are several seeds."""
    limits = {course.threshold for course in courses}
    limit = f"{percent(min(limits))} train accuracy" if len(limits) == 1 else "the threshold"
    of_all = " in all trainings of a panel" * (len(courses) > 1)
    phase = f"Shaded: the terminal phase, from {limit} on{',' * bool(of_all)}{of_all}."
    if courses and not any(panel.shaded for panel in panels):
        phase = f"Nothing is shaded: no epoch after {limit} was measured{of_all}."
    return f"Curves: the mean over the trainings, with their range. {phase}" if seeds else phase


def zero_words(panels: Sequence[Panel]) -> str:
    """Where zeros are on a log axis, if there are any."""
    any_zero = any(0 in (*series.y, *(series.low or ())) for panel in panels for series in panel.series)
    return "The axis is logarithmic; zeros are drawn below all other numbers, at the mark 0." * any_zero


def course_series(label: str, courses: Sequence[TrainingCourse], values: Sequence[Sequence[float | None]]) -> Series:
    """A number over the epochs, of each training: their mean and range."""
    epochs = courses[0].epochs
    style: Style = "points" if len(epochs) <= MOST_MARKED and len(courses) == 1 else "line"
    return spread_series(label, epochs, zip(*values, strict=True), several=len(courses) > 1, style=style)


def course_panel(
    title: str,
    courses: Sequence[TrainingCourse],
    series: Sequence[Series],
    ylabel: str = "accuracy",
    *,
    log_y: bool = False,
) -> Panel:
    """Curves over the epochs, with the terminal phase of all these trainings shaded; a log axis shows zeros too."""
    starts = [course.interpolation for course in courses]
    known, end = [start for start in starts if start is not None], max((c.epochs[-1] for c in courses), default=0)
    shaded = (max(known), end) if known and len(known) == len(starts) and max(known) < end else None
    return Panel(title, series, "epoch", ylabel, log_y, shaded=shaded, zeros=True)


def course_ends(course: TrainingCourse) -> CourseEnds:
    """What a training comes to; of equally good epochs the first is the best.

    >>> right = {"train": (0.9, 1.0, 1.0), "test": (0.7, 0.9, 0.8)}
    >>> course_ends(TrainingCourse((1, 2, 4), ("layer",), {}, right, {}))
    CourseEnds(interpolation=2, at_threshold=0.9, best=0.9, best_epoch=2, end=0.8)
    """
    right = dict(zip(course.epochs, course.accuracy.get("test", ()), strict=False))
    known = {epoch: value for epoch, value in right.items() if value is not None}
    best = max(known, key=lambda epoch: (known[epoch], -epoch), default=None)
    start = course.interpolation
    there = None if start is None else known.get(start)
    return CourseEnds(start, there, None if best is None else known[best], best, known.get(course.epochs[-1]))


def example_tables(verdicts: Mapping[str, Sequence[ConjectureVerdict]]) -> list[Table]:
    """A table of the counter-examples, the largest of each verdict; none where there are none."""
    rows = [
        (name, v.number, e.split, e.layer, e.epoch, e.size, e.standard_error)
        for name, some in verdicts.items()
        for v in some
        for e in v.counter_examples[:MOST_EXAMPLES]
    ]
    columns = ("training", "conjecture", "split", "layer", "epoch", "size", "standard error")
    note = "Differences beyond the noise that contradict a conjecture, at most ten of each, largest first."
    return [Table("Counter-examples", columns, rows, note)] if rows else []


def _splits(courses: Sequence[TrainingCourse]) -> list[str]:
    return [split for split in SPLITS if all(split in course.mismatch for course in courses)]


def _mismatch_panel(title: str, courses: Sequence[TrainingCourse], split: str) -> Panel:
    """A curve per layer; of many layers some, evenly along depth, with the first and the last."""
    sites = courses[0].sites
    n = min(len(sites), MOST_CURVES)
    chosen = sorted({round(i * (len(sites) - 1) / max(1, n - 1)) for i in range(n)})
    names = [f"site {name}" if name.isdigit() else name for name in short_names(sites, LONGEST)]
    curves = [
        course_series(names[i], courses, [[row[i] for row in course.mismatch[split]] for course in courses])
        for i in chosen
    ]
    return course_panel(title, courses, curves, "mismatch", log_y=True)


def _mean_mismatch(courses: Sequence[TrainingCourse], split: str, site: int) -> tuple[float | None, float | None]:
    """At the threshold and at the end, the mean over the trainings; `None` where one of them lacks it."""
    if split not in _splits(courses):
        return None, None
    starts = [None if c.interpolation is None else c.at(split, c.interpolation)[site] for c in courses]
    ends = [course.at(split, course.epochs[-1])[site] for course in courses]
    first, last = ([v for v in values if v is not None] for values in (starts, ends))
    return fmean(first) if len(first) == len(courses) else None, fmean(last) if len(last) == len(courses) else None


def _phase(courses: Sequence[TrainingCourse]) -> str:
    """When the terminal phase begins."""
    limit = f"{percent(courses[0].threshold)} train accuracy"
    starts = [course.interpolation for course in courses]
    reached = sorted({start for start in starts if start is not None})
    if not reached:
        return f"The interpolation threshold, {limit}, was not reached at any measured epoch."
    when = f"epoch {reached[0]}" if len(reached) == 1 else f"epochs {reached[0]} to {reached[-1]}"
    missing = starts.count(None)
    not_all = f" in {counted(len(starts) - missing, 'training')} of {len(starts)}" if missing else ""
    return f"The interpolation threshold, {limit}, was reached at {when} of {courses[0].epochs[-1]}{not_all}."
