"""The figure of a choice, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerlaw.advice.rule import compared, middle
from layerlaw.advice.trial import Candidate
from layerlaw.sheet import Panel, Series, Sheet

if TYPE_CHECKING:
    from layerlaw.advice.choice import Choice

ACCURACY = "validation accuracy"
LONGEST = 60  # characters of a title, which is not broken into lines


def choice_sheet(choice: Choice) -> Sheet:
    """Final D with its range over seeds, accuracy with its standard error below; for shapes D along depth instead."""
    panels = _by_shape(choice) if choice.kind == "shape" else _by_size(choice)
    return Sheet(_title(choice), panels, columns=1, caption=choice.headline)


def _title(choice: Choice) -> str:
    data = choice.provenance.get("data", {}).get("name")
    found = "no recommendation" if choice.recommended is None else choice.recommended.label
    if choice.by_accuracy is not None:
        found += f" by D, {choice.by_accuracy.label} by accuracy"
    what = f"Choosing the {choice.kind}"
    titles = (f"{what} on {data}: {found}" if data else f"{what}: {found}", f"{what}: {found}", what)
    return next(title for title in titles if len(title) <= LONGEST or title is what)


def _by_size(choice: Choice) -> tuple[Panel, ...]:
    """Against depth or width; every learning rate faintly behind, the recommended candidate marked."""
    shown, kind, over_floor = choice.candidates, choice.kind, choice.over_floor
    x = tuple(_size(c, kind) for c in shown)
    rates = sorted({t.rate for c in shown for t in c.trials})
    rows = [[next((t for t in c.trials if t.rate == rate), None) for c in shown] for rate in rates if len(rates) > 1]
    trials = [c.trial for c in shown]
    separation = Series(
        x,
        tuple(middle(t, over_floor) for t in trials),
        "learning rate by validation accuracy",
        low=tuple(min(compared(t, over_floor), default=None) for t in trials),
        high=tuple(max(compared(t, over_floor), default=None) for t in trials),
        color=0,
    )
    errors = [(t.accuracy, t.accuracy_error or 0.0) for t in trials]
    accuracy = Series(
        x,
        tuple(t.accuracy for t in trials),
        "",
        low=tuple(None if a is None else a - e for a, e in errors),
        high=tuple(None if a is None else a + e for a, e in errors),
        color=1,
    )
    grid = [[(None, None) if t is None else (middle(t, over_floor), t.accuracy) for t in row] for row in rows]
    other = [
        Series(x, tuple(D for D, _ in row), "" if i else "other learning rates", style="faint")
        for i, row in enumerate(grid)
    ]
    also = [Series(x, tuple(a for _, a in row), style="faint") for row in grid]
    note = ""
    axis: dict[str, Any] = {"xlabel": kind, "log_x": kind == "width"}
    if choice.recommended is not None:
        by = "recommended" if choice.by_accuracy is None else "recommended by D"
        note, axis["marked"] = f"dotted: {choice.recommended.label}, {by}", _size(choice.recommended, kind)
    what = _what(over_floor)
    above, below = (*_room(other), *other, separation), (*_room(also), *also, accuracy)
    return (
        Panel(f"{what} on the training data, range over seeds", above, ylabel=what, note=note, **axis),
        Panel("held-out accuracy, ± 1 standard error", below, ylabel=ACCURACY, log_y=False, **axis),
    )


def _room(behind: list[Series]) -> list[Series]:
    """No ink, but room on the axis for all curves behind: the axis would cut them off where they go far."""
    heights = [v for series in behind for v in series.y if v is not None]
    return [Series(behind[0].x[:1], (None,), low=(min(heights),), high=(max(heights),))] if heights else []


def _what(over_floor: bool) -> str:
    return "final D over its noise floor" if over_floor else "final D"


def _by_shape(choice: Choice) -> tuple[Panel, ...]:
    curves, points = [], []
    over_floor = choice.over_floor
    for i, candidate in enumerate(choice.candidates):
        trial = candidate.trial
        value = middle(trial, over_floor)
        if trial.curve is None or value is None or trial.accuracy is None:
            continue
        known = [curve for curve in trial.curves if curve is not None]
        lows, highs = ([pick(column) for column in zip(*known, strict=True)] for pick in (min, max))
        layers = tuple(range(len(trial.curve)))
        curves.append(Series(layers, trial.curve, candidate.label, low=tuple(lows), high=tuple(highs), color=i))
        error = trial.accuracy_error or 0.0
        low, high = (trial.accuracy - error,), (trial.accuracy + error,)
        points.append(Series((value,), (trial.accuracy,), candidate.label, low=low, high=high, color=i))
    return (
        Panel("D on the training data along depth, range over seeds", tuple(curves)),
        Panel(
            f"held-out accuracy against {_what(over_floor)}, ± 1 standard error",
            tuple(points),
            xlabel=_what(over_floor),
            ylabel=ACCURACY,
            log_x=True,
            log_y=False,
        ),
    )


def _size(candidate: Candidate, kind: str) -> float:
    return candidate.depth if kind == "depth" else candidate.widths[0]
