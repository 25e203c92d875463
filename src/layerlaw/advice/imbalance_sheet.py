"""The figure of a forecast, as plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from layerlaw.advice.imbalance_words import ratio_words
from layerlaw.advice.outlook import LARGEST_C
from layerlaw.pages.outcome import Panel, Series, Sheet
from layerlaw.peeled import collapse_curve
from layerlaw.peeled.figures import vanishing

if TYPE_CHECKING:
    from layerlaw.advice.imbalance import Forecast

POINTS = 121
FURTHEST = math.log(1e6)


def imbalance_sheet(found: Forecast) -> Sheet:
    """Predicted cosine between rare classes against R, this place marked; and each class's distance to collapse."""
    panels = [_classes(found)]
    if sum(len(g.classes) for g in found.groups if g.rare) > 1:
        panels.insert(0, _curve(found))
    return Sheet("Forecast of minority collapse", tuple(panels), columns=1, caption=found.headline)


def _curve(found: Forecast) -> Panel:
    R = found.ratio
    K_A, K_B = (sum(len(g.classes) for g in found.groups if g.rare is rare) for rare in (False, True))
    reach = [o.log_collapse + 0.5 for o in found.outlooks if o.log_collapse < FURTHEST]
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
        series.append(Series((R,), (found.rare.cosine,), "measured", colour=3))
    R0 = " and ".join(ratio_words(o.log_collapse) for o in found.outlooks)
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
    """Slack against the size of the classes; at 1 and below nothing is left."""
    sizes = [g.size for g in found.groups]
    series = []
    for at, name in zip(found.outlooks, ("by the norms", "by the norm in use"), strict=False):
        series.append(Series(sizes, at.slack, name))
    ends = (min(sizes) * 0.8, max(sizes) * 1.25)
    series.append(Series(ends, (1.0, 1.0), "classes of one size coincide at 1 and below", style="fit", colour=7))
    return Panel(
        "distance to collapse of each group of classes",
        series,
        xlabel="samples of a class",
        ylabel="slack n/(Nλ)",
        log_x=True,
    )
