"""What the SVSL experiments draw and list: mismatch, accuracy, collapse over the epochs; trainings; counter-examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layerlaw.experiments.drawing import spread_series
from layerlaw.experiments.runs import Runs
from layerlaw.lab import Run
from layerlaw.lab.schedule import COLLAPSE
from layerlaw.measures.columns import REGISTRY
from layerlaw.outcome import Cell, Table
from layerlaw.sheet import Panel, Series, Sheet
from layerlaw.verdict.conjectures import ConjectureVerdict, TrainingCourse, training_course

SITES = ("stage1", "stage2", "stage3", "stage4", "average", "classifier")
PLAIN, SVSL, FOUND = "plain", "svsl", "svsl-searched"
LABELS = {PLAIN: "plain", SVSL: "SVSL", FOUND: "SVSL, α searched"}


def at_threshold(run: Run) -> float | None:
    """Test accuracy at the interpolation threshold."""
    epoch = training_course(run).interpolation
    return None if epoch is None else run.measurement(epoch=epoch, batchnorm="running", split="test").accuracy


def best_epoch(run: Run) -> int:
    """The measured epoch with the best test accuracy, the first of equals."""
    course = training_course(run)
    return max(course.epochs, key=lambda e: (course.accuracy["test"][course.epochs.index(e)] or 0.0, -e))


def course_sheets(arms: Mapping[str, Runs]) -> list[Sheet]:
    """Figure 2: mismatch over the epochs; Figure 1: accuracy; then D and NC1 to NC4 where the classifier reads."""
    sound = {label: runs.sound for label, runs in arms.items() if runs.sound}
    mismatch = [
        _panel(f"{label}, {split}", runs, {s: _of("ncc_mismatch", i, split) for i, s in enumerate(SITES)}, "mismatch")
        for label, runs in sound.items()
        for split in ("train", "test")
    ]
    accuracy = []
    for split in ("train", "test"):
        series = [
            s
            for label, runs in sound.items()
            for s in _panel("", runs, {label: lambda run, e, sp=split: _at(run, e, sp).accuracy}, "").series
        ]
        first = next(iter(sound.values()), None)
        accuracy.append(
            Panel(
                f"{split} accuracy",
                series,
                "epoch",
                "share right",
                False,
                shaded=_shaded(training_course(first[0])) if first else None,
            )
        )
    numbers = {"D": None, **{n: n for n in COLLAPSE if n not in ("ncc_mismatch", "nc2_angles")}}
    collapse = []
    for name, column in numbers.items():
        title = "D" if column is None else REGISTRY[name].label
        series = [
            s for label, runs in sound.items() for s in _panel("", runs, {label: _of(column, 4, "train")}, "").series
        ]
        collapse.append(Panel(title, series, "epoch", title, name != "nc4"))
    shade = "Shaded: the terminal phase, from 99.5 % train accuracy on, of the first seed."
    return [
        Sheet("Mismatch of the nearest class center over training (Figure 2)", mismatch, 2, shade, share_y=True),
        Sheet("Accuracy over training (Figure 1)", accuracy, 2, shade),
        Sheet("D and NC1 to NC4 where the classifier reads, training images", collapse, 3),
    ]


def _at(run: Run, epoch: int, split: Any) -> Any:
    return run.measurement(epoch=epoch, batchnorm="running", split=split)


def _of(column: str | None, site: int, split: str) -> Any:
    def value(run: Run, epoch: int) -> float | None:
        found = _at(run, epoch, split)
        one: float | None = found.separation[site] if column is None else found.collapse[column][site]
        return one

    return value


def _panel(title: str, runs: Runs, curves: Mapping[str, Any], ylabel: str) -> Panel:
    return course_panel(title, runs, training_course(runs[0]), curves, ylabel)


def course_panel(
    title: str, trainings: Sequence[Any], first: TrainingCourse, curves: Mapping[str, Any], ylabel: str
) -> Panel:
    """Curves over the epochs of the trainings, functions (training, epoch) → number; `first` is the first one's course."""
    series: list[Series] = [
        spread_series(
            label,
            first.epochs,
            [[value(training, e) for training in trainings] for e in first.epochs],
            several=len(trainings) > 1,
            style="line",
        )
        for label, value in curves.items()
    ]
    return Panel(title, series, "epoch", ylabel, False, shaded=_shaded(first))


def _shaded(course: TrainingCourse) -> tuple[float, float] | None:
    return None if course.interpolation is None else (course.interpolation, course.epochs[-1])


def course_tables(arms: Mapping[str, Runs], verdicts: Mapping[str, Sequence[ConjectureVerdict]]) -> list[Table]:
    """Every training, the mismatch at its end, and what contradicts a conjecture."""
    every: list[tuple[Cell, ...]] = []
    ends: list[tuple[Cell, ...]] = []
    for arm, runs in arms.items():
        for run in runs:
            about = (LABELS.get(arm, arm.replace("-", " ")), str(run.recipe.loss), run.recipe.seed)
            if run.diverged is not None:
                every.append((*about, None, None, None, None, f"diverged in epoch {run.diverged}"))
                continue
            course, last = training_course(run), run.measurement(batchnorm="running", split="test")
            best = best_epoch(run)
            every.append(
                (*about, course.interpolation, at_threshold(run), _at(run, best, "test").accuracy, best, last.accuracy)
            )
            ends += [(*about, split, *_at(run, run.epoch, split).mismatch) for split in ("train", "test")]
    examples = [
        (LABELS.get(arm, arm.replace("-", " ")), v.number, e.split, e.layer, e.epoch, e.size, e.standard_error)
        for arm, some in verdicts.items()
        for v in some
        for e in v.counter_examples[:10]
    ]
    names = ("training", "loss", "seed")
    numbers = ("interpolation epoch", "test acc. there", "best test acc.", "best epoch", "test acc. at the end")
    columns = ("training", "conjecture", "split", "layer", "epoch", "size", "standard error")
    note = "Differences beyond the noise that contradict a conjecture, at most ten of each, largest first."
    return [
        Table("Every training", (*names, *numbers), every),
        Table("Mismatch at the end", (*names, "split", *SITES), ends),
        *([Table("Counter-examples", columns, examples, note)] if examples else []),
    ]
