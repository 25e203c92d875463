"""The figure of a forecast, as plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from layerlaw.advice.imbalance_words import ratio_words
from layerlaw.advice.outlook import LARGEST_C
from layerlaw.peeled import collapse_curve
from layerlaw.peeled.figures import vanishing
from layerlaw.sheet import Panel, Series, Sheet

if TYPE_CHECKING:
    from layerlaw.advice.imbalance import Forecast

POINTS = 121
FURTHEST = math.log(1e6)


def imbalance_sheet(found: Forecast) -> Sheet:
    """Predicted margin of each size; of two sizes also the cosine between rare classes against R, this place marked."""
    panels = [_classes(found)]
    if found.ratio is not None and sum(g.number for g in found.groups if g.rare) > 1:
        panels.insert(0, _curve(found, found.ratio))
    title = "Forecast of minority collapse" if found.sizes <= 2 else "Forecast of classes that are lost"
    return Sheet(title, tuple(panels), columns=1, caption=found.headline)


def _curve(found: Forecast, R: float) -> Panel:
    K_A, K_B = (sum(g.number for g in found.groups if g.rare is rare) for rare in (False, True))
    ends = [o.log_collapse for o in found.outlooks if o.log_collapse is not None]
    reach = [log_R0 + 0.5 for log_R0 in ends if log_R0 < FURTHEST]
    end = max([math.log(R) + 1.0, math.log(100), *reach])
    ratios = np.exp(np.linspace(0, end, POINTS))
    series, curves = [], []
    names = ("predicted by the norms", "predicted by the norm in use")
    for at, name in zip(found.outlooks, names, strict=False):
        c = min(at.c, LARGEST_C)
        curve = collapse_curve(K_A, K_B, ratios, E_W=c, E_H=c, bias=found.bias)
        series.append(Series(ratios.tolist(), curve.cosines.tolist(), name, style="line"))
        curves.append(curve)
    series += vanishing(curves)
    if found.rare is not None and found.rare.cosine is not None:
        series.append(Series((R,), (found.rare.cosine,), "measured", color=3))
    R0 = " and ".join(ratio_words(log_R0) for log_R0 in ends)
    return Panel(
        "cosine between rows of rare classes",
        series,
        xlabel="imbalance ratio R",
        ylabel="cosine",
        log_x=True,
        log_y=False,
        note=f"dotted: here, R = {ratio_words(math.log(R))}\nR0 = {R0}",
        marked=R,
    )


def _classes(found: Forecast) -> Panel:
    """Margin of each size; at 0 and below its samples are not told apart."""
    series = []
    for at, name in zip(found.outlooks, ("by the norms", "by the norm in use"), strict=False):
        told = [(size.samples, size.margin) for size in at.sizes if size.margin is not None]
        if told:
            series.append(Series([n for n, _ in told], [m for _, m in told], name))
    ends = (found.groups[-1].low * 0.8, found.groups[0].high * 1.25)
    series.append(Series(ends, (0.0, 0.0), "lost at 0 and below", style="fit", color=7))
    bins = any(at.binned for at in found.outlooks)
    return Panel(
        f"predicted margin of each {'bin of sizes, at its largest' if bins else 'class size'}",
        series,
        xlabel="samples of a class",
        ylabel="own logit − best other",
        log_x=True,
        log_y=False,
    )
