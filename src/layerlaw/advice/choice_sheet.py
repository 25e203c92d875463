"""The figure of a choice, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerlaw.advice.trial import Candidate
from layerlaw.pages.outcome import Panel, Series, Sheet

if TYPE_CHECKING:
    from layerlaw.advice.choice import Choice

ACCURACY = "validation accuracy"


def choice_sheet(choice: Choice) -> Sheet:
    """Final D with its range over seeds, accuracy with its standard error below; for shapes D along depth instead."""
    panels = _by_shape(choice) if choice.kind == "shape" else _by_size(choice)
    return Sheet(_title(choice), panels, columns=1, caption=choice.headline)


def _title(choice: Choice) -> str:
    data = choice.provenance.get("data", {}).get("name")
    return f"Choosing the {choice.kind}" + (f" on {data}" if data else "") + f": {choice.recommended.label}"


def _by_size(choice: Choice) -> tuple[Panel, ...]:
    """Against depth or width; every learning rate faintly behind, the recommended candidate marked."""
    shown, kind = choice.candidates, choice.kind
    x = tuple(_size(c, kind) for c in shown)
    rates = sorted({t.rate for c in shown for t in c.trials})
    rows = [[next((t for t in c.trials if t.rate == rate), None) for c in shown] for rate in rates if len(rates) > 1]
    trials = [c.trial for c in shown]
    separation = Series(
        x,
        tuple(t.separation for t in trials),
        "learning rate by validation accuracy",
        low=tuple(min(t.finals, default=None) for t in trials),
        high=tuple(max(t.finals, default=None) for t in trials),
    )
    errors = [(t.accuracy, t.accuracy_error or 0.0) for t in trials]
    accuracy = Series(
        x,
        tuple(t.accuracy for t in trials),
        "",
        low=tuple(None if a is None else a - e for a, e in errors),
        high=tuple(None if a is None else a + e for a, e in errors),
        colour=1,
    )
    grid = [[(None, None) if t is None else (t.separation, t.accuracy) for t in row] for row in rows]
    other = [
        Series(x, tuple(D for D, _ in row), "" if i else "other learning rates", style="faint")
        for i, row in enumerate(grid)
    ]
    also = [Series(x, tuple(a for _, a in row), style="faint") for row in grid]
    note = f"dotted: {choice.recommended.label}, recommended"
    axis: dict[str, Any] = {"xlabel": kind, "log_x": kind == "width", "marked": _size(choice.recommended, kind)}
    return (
        Panel(
            "final D on the training data, range over seeds", (*other, separation), ylabel="final D", note=note, **axis
        ),
        Panel("held-out accuracy, ± 1 standard error", (*also, accuracy), ylabel=ACCURACY, log_y=False, **axis),
    )


def _by_shape(choice: Choice) -> tuple[Panel, ...]:
    curves, points = [], []
    for i, candidate in enumerate(choice.candidates):
        trial = candidate.trial
        if trial.curve is None or trial.separation is None or trial.accuracy is None:
            continue
        known = [curve for curve in trial.curves if curve is not None]
        lows, highs = ([pick(column) for column in zip(*known, strict=True)] for pick in (min, max))
        layers = tuple(range(len(trial.curve)))
        curves.append(Series(layers, trial.curve, candidate.label, low=tuple(lows), high=tuple(highs), colour=i))
        error = trial.accuracy_error or 0.0
        low, high = (trial.accuracy - error,), (trial.accuracy + error,)
        points.append(Series((trial.separation,), (trial.accuracy,), candidate.label, low=low, high=high, colour=i))
    return (
        Panel("D on the training data along depth, range over seeds", tuple(curves)),
        Panel(
            "held-out accuracy against final D, ± 1 standard error",
            tuple(points),
            xlabel="final D",
            ylabel=ACCURACY,
            log_x=True,
            log_y=False,
        ),
    )


def _size(candidate: Candidate, kind: str) -> float:
    return candidate.depth if kind == "depth" else candidate.widths[0]
