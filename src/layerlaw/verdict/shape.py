"""The shape of a language model's curve: what other text would change, curvature, rises, plateaus, and how to read them.

Blocks are named by their number, 1 … L, as in the table and on every drawing.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from layerlaw.errors import InputError
from layerlaw.law import FEWEST_POINTS, UNCHANGED, LawErrors, LawFit, fit_law
from layerlaw.record import Record
from layerlaw.verdict.sentences import blocks
from layerlaw.verdict.steps import StepRun, beyond_error, final_rise, is_early, plateau
from layerlaw.verdict.targets import column_of
from layerlaw.wording import number, signed

SHOWN = 5e-5  # a rise below this is 0.00% on the page
NOT_RANDOM = 2.0  # a lag-1 correlation of noise about a fitted line is within about 2/√points of −2/points


def curve_shape(record: Record, fit: LawFit, errors: LawErrors | None) -> list[str]:
    """What is to be said of the curve beside r."""
    return [
        *intervals(errors, shape_intervals(record)),
        *_curve(fit, errors),
        *_rises(fit, errors),
        *_too_small_to_count(record, fit),
        *_plateau(plateau(fit)),
    ]


def on_the_shape(record: Record, fit: LawFit) -> list[str]:
    """How not to misread a plateau and a rise at the end."""
    out = []
    run = plateau(fit)
    if run is not None and is_early(run, fit):
        out.append(
            f"The early blocks from {_worker(run.first)} to {_worker(run.last)} bring the target hardly nearer to a linear "
            "reader. That does not make them idle: what they prepare may be read later. Before leaving one out, measure "
            "the loss without it."
        )
    rise = final_rise(fit)
    if rise is not None:
        out.append(
            f"PR is lowest at block {rise.first + 1} and higher at the end, as is often seen in last blocks. The output "
            "layer compares features with every token's embedding, and an id is a poor stand-in for that: "
            + _where_to_look(record)
            + " before reading it as an early exit."
        )
    return out


def _where_to_look(record: Record) -> str:
    """What says more than the id: the embedding, where it was measured or could be, and the loss."""
    if "residual_embedding" in record.columns:
        try:
            values = record.law(column_of(record, "embedding")).values
        except InputError:
            return "measure the loss"
        lowest = min(range(len(values)), key=lambda i: values[i]) + 1
        where = "the last block" if lowest == len(values) else f"block {lowest}"
        return f"with the output embedding as target PR is lowest at {where}. Measure the loss there"
    return (
        "look at the target 'embedding', and measure the loss,"
        if record.settings.get("head", True)
        else "measure the loss"
    )


class ShapeIntervals(NamedTuple):
    """95 % intervals of evenness and trend over groups of documents, this model being given; `None` where there is none."""

    evenness: tuple[float, float] | None
    trend: tuple[float, float] | None


NO_INTERVALS = ShapeIntervals(None, None)


def shape_intervals(record: Record, column: str | None = None) -> ShapeIntervals:
    """How far evenness and trend of a column's law would move with other text through this same model.

    Delete-group jackknife of their logarithms, with Student's t. Noise makes steps uneven, so that the interval is about the
    evenness of as much text as this; in simulated curves of 5 to 29 steps it held the median at this length in 95 % or more.
    """
    column = column or record.leading
    errors = record.law_errors(column)
    if errors is None:
        return NO_INTERVALS
    curves = [site.left_out[column] for site in record.sites if site.in_fit]
    fits = [fit_law([row[i] for row in curves]) for i in range(errors.groups)]
    whole = record.law(column)
    even = _log_interval(whole.evenness, [fit.evenness for fit in fits], errors.t)
    trend = _log_interval(whole.trend, [fit.trend for fit in fits], errors.t)
    return ShapeIntervals(None if even is None else (even[0], min(even[1], 1.0)), trend)


def _log_interval(value: float | None, without: list[float | None], t: float) -> tuple[float, float] | None:
    """`None` where the value, or that without some group, has no logarithm: such as a trend of 0 or ∞."""
    logs = [math.log(x) for x in (value, *without) if x is not None and 0 < x < math.inf]
    if len(logs) < 1 + len(without):
        return None
    center, *others = logs
    g, mean = len(others), fmean(others)
    half = t * math.sqrt((g - 1) / g * sum((x - mean) ** 2 for x in others))
    return math.exp(center - half), math.exp(min(center + half, 700.0))


def ends_written(ends: tuple[float, float]) -> list[str]:
    """Both ends of an interval of evenness or trend, to two decimals.

    >>> ends_written((0.923, 1.1)), ends_written((0.5, 1234.5))
    (['0.92', '1.10'], ['0.50', '1,234'])
    """
    return [f"{end:.2f}" if end < 100 else number(end, 2) for end in ends]


def intervals(errors: LawErrors | None, shape: ShapeIntervals) -> list[str]:
    """What other text of this kind would change."""
    if errors is None:
        return []
    low, high = errors.rho_interval
    parts = [f"ρ between {low:.4f} and {high:.4f}"]
    if len(errors.residuals) >= FEWEST_POINTS:  # of fewer points the others say nothing anyway
        if errors.pearson_interval is not None:
            low, high = errors.pearson_interval
            parts.append(f"r between {signed(low)} and {signed(high)}")
        known = {"evenness": shape.evenness, "trend": shape.trend}
        parts += [f"{name} between {' and '.join(ends_written(ends))}" for name, ends in known.items() if ends]
    return [
        f"With other text of this kind and length through this same model (jackknife over {errors.groups} groups, 95 %): "
        f"{', '.join(parts)}."
    ]


def _curve(fit: LawFit, errors: LawErrors | None) -> list[str]:
    lag = fit.autocorrelation
    if lag is None or abs(lag - fit.noise_autocorrelation) < NOT_RANDOM / fit.points**0.5:
        return []
    sentence = f"The residuals of the line are not random: lag-1 correlation {signed(lag, 2)}"
    if lag < 0:
        return [sentence + ", they go up and down by turns."]
    if errors is None:
        return [sentence + ", as of a curve beside the line."]
    off = sum(abs(e) > errors.t * se for e, se in zip(fit.residuals, errors.residuals, strict=True))
    where = f"{off} of {fit.points} blocks are off it by more than their 95 % interval"
    # Neighbors see the same tokens, so noise too is alike in them: the errors of the residuals decide.
    if off > fit.points / 10:
        return [f"{sentence}. It is a curve, not noise: {where}."]
    return [f"{sentence}; but neighboring blocks see the same tokens, and {where}: it may be noise."]


def _rises(fit: LawFit, errors: LawErrors | None) -> list[str]:
    steps = fit.rising
    if not steps:
        return []
    clear = beyond_error(fit, errors, steps)
    shown = sorted(steps, key=lambda i: fit.values[i] / fit.values[i + 1])[:4]  # the largest rises
    where = ", ".join(f"block {_worker(i)} (by {fit.values[i + 1] / fit.values[i] - 1:.2%})" for i in sorted(shown))
    sentence = f"PR rises at {where}" + (f" and, less, at {len(steps) - 4} more" if len(steps) > 4 else "")
    return [sentence + ("." if clear is None else f"; {_how_clear(clear, steps)}.")]


def _how_clear(clear: list[int], steps: list[int]) -> str:
    """How many of these rises are more than error."""
    share = f"{len(clear)} of {len(steps)}" if clear else "none" if len(steps) > 1 else "not"
    return f"{share} by more than two standard errors"


def _too_small_to_count(record: Record, fit: LawFit) -> list[str]:
    """Rises that the table shows and the headline does not count: tiny ones, and that from the embedded input."""
    rises, counted = [b / a - 1 for a, b in pairwise(fit.values)], set(fit.rising)
    tiny = [_worker(i) for i, rise in enumerate(rises) if rise > SHOWN and i not in counted]
    out = [f"Rises of {UNCHANGED:.1%} or less are not counted: at {blocks(tiny)}."] if tiny else []
    before = None if record.sites[0].in_fit else record.sites[0].values.get(record.leading)
    if before is not None and before > 0 and fit.values[0] / before - 1 > SHOWN:
        rise = fit.values[0] / before - 1
        out.append(
            f"Before the fit, from the embedded input to block 1, PR rises by {rise:.2%}; that is no step of the law."
        )
    return out


def _plateau(run: StepRun | None) -> list[str]:
    if run is None:
        return []
    together = f"take {run.share:.0%} of the drop" if run.share > 0.005 else "take nothing of the drop"
    return [
        f"A plateau: the {run.length} blocks from {_worker(run.first)} to {_worker(run.last)} {together}, where "
        f"an even share is {run.even:.0%}."
    ]


def _worker(step: int) -> int:
    """The number of the block that does the work of a step; step 0 leads from block 1 to block 2."""
    return step + 2
