"""The result of comparing candidates: which to take and why, what speaks against it, and the figure."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from layerlaw.advice import candidates as rule
from layerlaw.advice.candidates import Candidate, Guess, Trial, by_rate, difference, mean, standard_error
from layerlaw.files import json_safe, write_json
from layerlaw.notebook import Shown, View
from layerlaw.sheet import Panel, Series, Sheet
from layerlaw.wording import counted, number, percent, with_error

Kind = Literal["depth", "width", "shape"]
FORMAT, VERSION = "layerlaw choice", 1
FITTED = 0.99  # training accuracy below which D is that of a network under way
FEW_SEEDS = 3
ACCURACY = "validation accuracy"
LONGEST = 60  # characters of a title, which is not broken into lines


@dataclass(frozen=True)
class Choice(Shown):
    """Which candidate to take, and everything it was decided by.

    `best` has the lowest mean log D after the last hidden layer (over its noise floor where last widths differ);
    `recommended` is the one with the fewest parameters that is no more than one standard error of the paired difference
    behind it, or `None` where nothing was learned or D does not fall. `by_accuracy` is the candidate of best validation
    accuracy where it is ahead of the recommended one by more than one standard error. `test_accuracies`
    are those of the recommended candidate, one per seed.
    """

    kind: Kind
    candidates: tuple[Candidate, ...]
    best: Candidate
    recommended: Candidate | None
    by_accuracy: Candidate | None = None
    objection: str | None = None  # why nothing is recommended
    validation: int = 0  # samples behind every validation accuracy
    test_accuracies: tuple[float, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: Kind, candidates: Sequence[Candidate], guess: Guess | None = None, **more: Any) -> Choice:
        """Decide among candidates; without `guess`, what guessing reaches, nobody checks whether anything was learned.

        `more` are other fields: the number of `validation` samples, test accuracies, provenance.
        """
        best, chosen = rule.decide(candidates)
        against = rule.objection(candidates, chosen, guess)
        top = None if against else rule.more_accurate(candidates, chosen, more.get("validation", 0))
        return cls(kind, tuple(candidates), best, None if against else chosen, top, against, **more)

    @property
    def over_floor(self) -> bool:
        """Whether candidates are compared by D over its noise floor (D with shuffled labels), not by D itself."""
        return rule.relative(self.candidates)

    @cached_property
    def headline(self) -> str:
        """Which to take and why; by accuracy too, where that says otherwise."""
        if self.recommended is None:
            return f"No recommendation: {self.objection}."
        label, trial, top = self.recommended.label, self.recommended.trial, self.by_accuracy
        values = trial.compared(self.over_floor)
        what = "D over its noise floor (the last widths differ)" if self.over_floor else "final D"
        spread = f" [{number(min(values))}, {number(max(values))}] over {len(values)} seeds" if len(values) > 1 else ""
        value = f"{number(trial.middle(self.over_floor))}{spread}"
        why = f"has the lowest {what}, {value}"
        if self.recommended is not self.best:
            lowest = f"{number(self.best.trial.middle(self.over_floor))} at {self.best.label}"
            why = f"is the smallest whose {what}, {value}, is within one standard error of the lowest ({lowest})"
        if top is None:
            accuracy = with_error(trial.accuracy, standard_error(trial.accuracies))
            return f"Take {label}: it {why}; validation accuracy {accuracy}, learning rate {trial.rate:g}."
        against = f"{percent(top.trial.accuracy)[:-1]} against {percent(trial.accuracy)}"
        both = f"By {_compared(self.over_floor)} take {label}; by validation accuracy take {top.label} ({against})"
        return f"{both}. {label[0].upper()}{label[1:]} {why}; learning rate {trial.rate:g}."

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        """What else speaks against it, the weightiest first."""
        return tuple(_caveats(self))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The recommendation, then the caveats, then the accuracy on test data."""
        last = "Without test data: the validation part also chose the learning rates, so its accuracies flatter."
        if self.recommended is None:
            last = "Nothing was tried on test data: train longer, try other learning rates, or look at the data first."
        elif self.test_accuracies:
            score = with_error(self.test_accuracy, standard_error(self.test_accuracies))
            last = f"On the test data, which nothing was chosen by, {self.recommended.label} is right in {score}."
        return (self.headline, *self.caveats, last)

    @property
    def test_accuracy(self) -> float | None:
        """Mean accuracy of the recommended candidate on test data, which nothing was chosen by."""
        return mean(self.test_accuracies)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "recommended": None if self.recommended is None else self.recommended.label,
            "recommended_by_accuracy": None if self.by_accuracy is None else self.by_accuracy.label,
            "best": self.best.label,
            "compared_by": "separation_over_permuted" if self.over_floor else "separation",
            "recommended_by_rate": {f"{rate:g}": c.label for rate, c in by_rate(self.candidates).items()},
            "sentences": self.sentences,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "test_accuracy": self.test_accuracy,
            "test_accuracy_error": standard_error(self.test_accuracies),
            "provenance": self.provenance,
        }
        return {key: json_safe(value) for key, value in plain.items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    def sheet(self) -> Sheet:
        """The figure as plain data: final D with its range over seeds, accuracy below; for shapes D along depth instead."""
        panels = _by_shape(self) if self.kind == "shape" else _by_size(self)
        return Sheet(_title(self), panels, columns=1, caption=self.headline)

    def plot(self) -> Any:
        """That figure, drawn by matplotlib: `choice.plot().savefig("choice.png")`."""
        return self.sheet().plot()

    def _view(self) -> View:
        """What a notebook shows of it: the candidates, and what else is to be said."""
        heads = [self.kind, "parameters", f"final {_compared(self.over_floor)}", ACCURACY, "learning rate", ""]
        marks = {id(self.recommended): "recommended", id(self.by_accuracy): "by accuracy"}
        rows = [
            [c.label, f"{c.parameters:,}", number(c.trial.middle(self.over_floor)), percent(c.trial.accuracy),
             f"{c.trial.rate:g}", marks.get(id(c), "")]
            for c in self.candidates
        ]  # fmt: skip
        return View(self.headline, [heads, *rows], self.sentences[1:])

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"· {line}" for line in self.sentences[1:])])


def _compared(over_floor: bool) -> str:
    return "D over its noise floor" if over_floor else "D"


def _caveats(choice: Choice) -> Iterator[str]:
    candidates, best, recommended, top = choice.candidates, choice.best, choice.recommended, choice.by_accuracy
    if recommended is None:
        yield from _failures(candidates)
        return
    label, trial = recommended.label, recommended.trial
    if top is not None:
        ahead, error = difference(top.trial.accuracies, trial.accuracies)
        by = f"{100 * ahead:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
        own, samples = (
            rule.sampling_error(recommended, choice.validation),
            counted(choice.validation, "validation sample"),
        )
        noise = "" if own is None else f" ({samples} alone leave an accuracy open to ±{percent(own)[:-1]})"
        accuracy = f"the best validation accuracy, {percent(top.trial.accuracy)}, {by} points above {label}{noise}"
        yield f"D and accuracy disagree: {top.label} has {accuracy}."
    # Low rates and high rates leave different D: the choice may be one of rates in disguise
    found = by_rate(candidates)
    if any(candidate is not recommended for candidate in found.values()):
        each = ", ".join(f"{candidate.label} at {rate:g}" for rate, candidate in found.items())
        yield f"The learning rate decides too: with one for all, the choice would be {each}."
    ordered = sorted(candidates, key=lambda c: c.parameters)
    if choice.kind != "shape" and len(ordered) > 1 and best in (ordered[0], ordered[-1]):
        what = _compared(choice.over_floor)
        end, further = ("upper", "larger") if best is ordered[-1] else ("lower", "smaller")
        yield f"The lowest {what} lies at the {end} end of the range, {best.label}: try {further} ones."
    if trial.train_accuracy is not None and trial.train_accuracy < FITTED:
        behind = sum((c.trial.train_accuracy or 0.0) < FITTED for c in candidates)
        below = f"{behind} of {len(candidates)} candidates are below {percent(FITTED, 0)}"
        fitted = f"Only {percent(trial.train_accuracy)} of the training data are fitted at {label} ({below})"
        yield f"{fitted}: D still falls, and the comparison is one of speed. Train longer."
    if trial.seeds == 1:
        yield "One seed has no standard error: the lowest D was taken, and the next seed may name another one."
    elif trial.seeds < FEW_SEEDS:
        yield f"{trial.seeds} seeds give a poor standard error: use at least {FEW_SEEDS}."
    if choice.over_floor:  # wide layers look separated from noise alone, so their D has a floor of its own
        floors = [floor for c in candidates if (floor := c.trial.floor) is not None]
        ends = dict.fromkeys((number(min(floors)), number(max(floors))))
        shuffled = f"(D with shuffled labels: {' to '.join(ends)})"
        words = f"Last layers of different widths have different noise floors {shuffled}"
        falling = [c for c in candidates if c.comparable and c.trial.falls]
        lowest = min(falling, key=lambda c: c.trial.separation or math.inf)
        values = f"{number(lowest.trial.separation)} against {number(best.trial.separation)} at {best.label}"
        itself = f"D itself is lowest at {lowest.label}, {values}"
        itself = f"{best.label} has the lowest D itself too" if lowest is best else itself
        yield f"{words}, so D is compared over its floor; {itself}."
    rising = [c.label for c in candidates if c.comparable and not c.trial.falls]
    if rising:
        yield f"D does not fall along depth at {', '.join(rising)}: left out of the choice."
    yield from _failures(candidates)
    rates = sorted(t.rate for t in recommended.trials)
    if len(rates) > 1 and trial.rate in (rates[0], rates[-1]):
        end, further = ("highest", "higher") if trial.rate == rates[-1] else ("lowest", "lower")
        yield f"The learning rate of {label}, {trial.rate:g}, is the {end} tried: {further} ones may do better."


def _failures(candidates: Sequence[Candidate]) -> Iterator[str]:
    failed = sum(c.failed for c in candidates)
    if failed:
        runs = sum(t.seeds for c in candidates for t in c.trials)
        left_out = ", ".join(c.label for c in candidates if not c.comparable)
        rest = f"; {left_out} could not be compared" if left_out else ""
        yield f"{failed} of {counted(runs, 'run')} diverged or left D undefined{rest}."


def _title(choice: Choice) -> str:
    data = choice.provenance.get("data", {}).get("name")
    found = "no recommendation" if choice.recommended is None else choice.recommended.label
    if choice.by_accuracy is not None:
        found += f" by D, {choice.by_accuracy.label} by accuracy"
    what = f"Choosing the {choice.kind}"
    titles = (f"{what} on {data}: {found}" if data else "", f"{what}: {found}")
    return next((title for title in titles if 0 < len(title) <= LONGEST), what)


def _by_size(choice: Choice) -> tuple[Panel, ...]:
    """Against depth or width; every learning rate faintly behind, the recommended candidate marked."""
    shown, kind, over_floor = choice.candidates, choice.kind, choice.over_floor

    def size(candidate: Candidate) -> float:
        return candidate.depth if kind == "depth" else candidate.widths[0]

    x, trials = tuple(map(size, shown)), [c.trial for c in shown]
    values = [t.compared(over_floor) for t in trials]
    low, high = (tuple(end(each, default=None) for each in values) for end in (min, max))
    middle, label = tuple(t.middle(over_floor) for t in trials), "learning rate by validation accuracy"
    separation = Series(x, middle, label, low=low, high=high, color=0)
    other: list[Series] = []
    also: list[Series] = []
    rates = sorted({t.rate for c in shown for t in c.trials})
    for rate in rates if len(rates) > 1 else ():
        row = [[t for t in c.trials if t.rate == rate] for c in shown]
        label = "" if other else "other learning rates"
        other.append(Series(x, tuple(t[0].middle(over_floor) if t else None for t in row), label, style="faint"))
        also.append(Series(x, tuple(t[0].accuracy if t else None for t in row), style="faint"))
    note = ""
    axis: dict[str, Any] = {"xlabel": kind, "log_x": kind == "width"}
    if choice.recommended is not None:
        by = "" if choice.by_accuracy is None else " by D"
        note, axis["marked"] = f"dotted: {choice.recommended.label}, recommended{by}", size(choice.recommended)
    what = f"final {_compared(over_floor)}"
    above, below = (*_span(other), *other, separation), (*_span(also), *also, _accuracies(x, trials, color=1))
    first = Panel(f"{what} on the training data, range over seeds", above, ylabel=what, note=note, **axis)
    return first, Panel("held-out accuracy, ± 1 standard error", below, ylabel=ACCURACY, log_y=False, **axis)


def _accuracies(x: tuple[float, ...], trials: Sequence[Trial], label: str = "", *, color: int) -> Series:
    shares = [(t.accuracy, standard_error(t.accuracies) or 0.0) for t in trials]
    low, high = (tuple(None if a is None else a + sign * error for a, error in shares) for sign in (-1, 1))
    return Series(x, tuple(a for a, _ in shares), label, low=low, high=high, color=color)


def _span(behind: list[Series]) -> list[Series]:
    """An invisible range, so that the axis spans all curves behind: it would cut them off where they go far."""
    heights = [v for series in behind for v in series.y if v is not None]
    return [Series(behind[0].x[:1], (None,), low=(min(heights),), high=(max(heights),))] if heights else []


def _by_shape(choice: Choice) -> tuple[Panel, ...]:
    curves, points = [], []
    what = f"final {_compared(choice.over_floor)}"
    for i, candidate in enumerate(choice.candidates):
        trial, label = candidate.trial, candidate.label
        value = trial.middle(choice.over_floor)
        if trial.curve is None or value is None or trial.accuracy is None:
            continue
        columns = list(zip(*trial.curves, strict=True))
        low, high = (tuple(map(end, columns)) for end in (min, max))
        curves.append(Series(range(len(trial.curve)), trial.curve, label, low=low, high=high, color=i))
        points.append(_accuracies((value,), [trial], label, color=i))
    title = f"held-out accuracy against {what}, ± 1 standard error"
    first = Panel("D on the training data along depth, range over seeds", tuple(curves))
    return first, Panel(title, tuple(points), xlabel=what, ylabel=ACCURACY, log_x=True, log_y=False)
