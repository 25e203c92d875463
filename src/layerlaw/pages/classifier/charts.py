"""Plotly figures of a classifier. Each function returns a figure, or a sentence that says why there is none."""

from __future__ import annotations

import html
import math
from typing import Any

from layerlaw.measures.columns import REGISTRY, describe
from layerlaw.pages import theme
from layerlaw.pages.classifier import parts
from layerlaw.pages.html import escaped, for_plotly, plotly
from layerlaw.pages.record_view import RecordView
from layerlaw.pages.sheets.scales import log_ticks
from layerlaw.record import SiteRow
from layerlaw.wording import beginning, finite, number, percent

MOST_NAMES_IN_HALF_WIDTH = 12
MOST_CLASSES = 40
COLLAPSE = {  # color and symbol of the measures of collapse; others take what is left
    "nc1": (theme.QUALITATIVE[0], "circle"),
    "cdnv": (theme.QUALITATIVE[1], "square"),
    "compression": (theme.QUALITATIVE[3], "diamond"),
    "nc2_norms": (theme.QUALITATIVE[2], "triangle-up"),
    "nc2_angles": (theme.QUALITATIVE[8], "triangle-down"),
}
NEAREST = (  # name, column, color, dash and symbol
    ("error, train", "ncc_accuracy", theme.TRAIN, "solid", "circle"),
    ("error, test", "test_ncc_accuracy", theme.TEST, "solid", "diamond"),
    ("mismatch, train", "ncc_mismatch", theme.TRAIN, "dash", "circle-open"),
    ("mismatch, test", "test_ncc_mismatch", theme.TEST, "dash", "diamond-open"),
)


def law_figure(view: RecordView) -> Any:
    """D (or D_reg) against depth on a log axis: points with jackknife bars, the line, test data, and the two nulls."""
    lead, about = view.column, describe(view.column)
    train = view.series(lead)
    if not any(v is not None and v > 0 for v in train):
        return f"No separation {about.symbol} was measured, so there is nothing to draw."
    traces: list[Any] = []
    untrained, test, floor = map(view.series, (f"{lead}_untrained", f"test_{lead}", f"{lead}_permuted"))
    every = [*train, *untrained, *test]
    if chance := [v for v in floor if v is not None]:
        name = f"permuted {'labels' if view.record.kind.of_classes else 'targets'} (chance)"
        if min(chance) > 3 * max(v for v in every if v is not None):  # within the axis it would press the rest flat
            name += f", above: {number(min(chance))} to {number(max(chance))}"
        else:
            every += floor
        traces.append(plotly.line(name, floor, theme.NULL, dash="dot", symbol=None, width=1.5))
    if view.has(f"{lead}_untrained"):
        traces.append(plotly.untrained_line("untrained network", untrained))
    if view.has(f"test_{lead}"):
        traces.append(plotly.line("test data", test, theme.TEST, symbol="diamond", width=1.2))
    if view.fit is not None:
        traces.append(plotly.fitted_line(view, view.fit, f"law: ρ = {number(view.fit.rho)} per layer"))
    traces.append(plotly.law_points(view, "training data", thickness=1.2, width=4))
    yaxis = plotly.log_axis([*every, *(end for pair in view.ends for end in pair or ())], about.label)
    return plotly.new_figure(traces, view, height=440, xaxis=plotly.site_axis(view), yaxis=yaxis)


def shares_figure(view: RecordView) -> Any:
    """Each layer's share of the drop of ln D, with the even share as a line."""
    symbol = describe(view.column).symbol
    if view.fit is None:
        return "Without a fit there are no shares to show."
    shares = parts(view)
    if not shares.values:
        return f"{symbol} does not fall from the first site to the last by more than a tenth, so there is no drop to share."
    bars = plotly.work_bars(shares, [f"{percent(share)} of the drop" for share in shares.values.values()])
    yaxis = {
        "tickformat": ".0%",
        "title": {"text": f"share of the drop of ln {symbol}"},
        "rangemode": "tozero",
        "nticks": 6,
    }
    layout = {"height": 320, "xaxis": plotly.site_axis(view), "yaxis": yaxis, "showlegend": False}
    return plotly.new_figure([bars], view, level=shares.even, **layout)


def nearest_figure(view: RecordView) -> Any:
    """Nearest class center against depth: how often it is wrong, and how often it disagrees with the network."""
    traces = []
    for name, column, color, dash, symbol in NEAREST:
        y = view.series(column)
        if column.endswith("accuracy"):
            y = [None if v is None else 1 - v for v in y]
        if any(v is not None for v in y):
            traces.append(plotly.line(name, y, color, dash=dash, symbol=symbol, written=[percent(v, 2) for v in y]))
    if not traces:
        return "The nearest class center was not measured."
    yaxis = {"tickformat": ".0~%", "title": {"text": "share of samples"}, "rangemode": "tozero", "nticks": 7}
    xaxis = plotly.site_axis(view, most=MOST_NAMES_IN_HALF_WIDTH)
    return plotly.new_figure(traces, view, height=400, xaxis=xaxis, yaxis=yaxis)


def collapse_figure(view: RecordView) -> Any:
    """Measures of neural collapse against depth, on a log axis."""
    traces: list[Any] = []
    for i, column in enumerate(column for column in REGISTRY.values() if column.panel == "collapse"):
        color, symbol = COLLAPSE.get(column.name, (theme.QUALITATIVE[(4 + i) % 10], "star"))
        drawn = [(column.name, column.label, "solid", symbol)]
        if column.head:  # on test data only what stands in tables too
            drawn.append((f"test_{column.name}", f"{column.label}, test", "dot", f"{symbol}-open"))
        for name, label, dash, mark in drawn:
            y = [v if v is not None and v > 0 else None for v in view.series(name)]  # no zero on a log axis
            if any(v is not None for v in y):
                traces.append(plotly.line(label, y, color, dash=dash, symbol=mark, size=6, width=1.6))
    if not traces:
        return "No measure of neural collapse was taken along depth."
    xaxis = plotly.site_axis(view, most=MOST_NAMES_IN_HALF_WIDTH)
    yaxis = plotly.log_axis([v for trace in traces for v in trace.y], "0 at collapse")
    return plotly.new_figure(traces, view, height=400, xaxis=xaxis, yaxis=yaxis)


def worst_classes(view: RecordView) -> list[int]:
    """Classes by D_k at the deepest site of the fit that has them, worst first, at most `MOST_CLASSES`."""
    deepest = _deepest(view)
    values = [] if deepest is None else deepest.by_class["separation"]
    known = [(-value, k) for k, v in enumerate(values) if (value := finite(v)) is not None]
    return [k for _, k in sorted(known)][:MOST_CLASSES]


def classes_note(view: RecordView) -> str:
    """What the heat map leaves out, and its order."""
    if (deepest := _deepest(view)) is None:
        return ""
    K, where = len(deepest.by_class["separation"]), escaped(deepest.name)
    of = f"The {MOST_CLASSES} worst of {K:,} classes" if K > MOST_CLASSES else "Classes"
    return f"{of}, ordered by D<sub>k</sub> at '{where}', the worst separated on top. Darker is fuzzier."


def classes_figure(view: RecordView) -> Any:
    """ln D_k by class and site; light is well separated."""
    order = worst_classes(view)
    if not order:
        return "No class-wise separation was recorded."
    columns = [site.by_class.get("separation", []) for site in view.sites]
    rows = [[finite(values[k]) if k < len(values) else None for values in columns] for k in order]
    logs = [[round(math.log(v), 3) if v and v > 0 else None for v in row] for row in rows]
    seen = [v for row in logs for v in row if v is not None]
    if not seen:
        return "Every class is collapsed exactly (D_k = 0): there is no logarithm to draw."
    ticks = log_ticks(min(seen) / math.log(10), max(seen) / math.log(10) + 1e-9)
    known = view.record.classes
    names = [known[k] if k < len(known) else f"class {k}" for k in order]  # a number where the record names fewer
    height = 110 + (28 if len(order) <= 20 else 20) * max(len(order), 4)
    heat = plotly.go.Heatmap(
        z=logs, xgap=1 if len(view.sites) <= 40 else 0, ygap=1, colorscale=[list(stop) for stop in theme.SEQUENTIAL],
        text=[[number(v, 2 if v and v < 100 else 3) for v in row] for row in rows],
        texttemplate="%{text}" if len(view.sites) <= 14 and len(order) <= 20 else "", textfont={"size": 12},
        meta="grid", hovertemplate="%{customdata}<br>D<sub>k</sub> = %{text}<extra></extra>",
        colorbar={
            "title": {"text": "D<sub>k</sub>", "side": "top"},
            "tickvals": [plotly.rounded(math.log(t)) for t in ticks], "ticktext": [number(t, 1) for t in ticks],
            "tickfont": {"size": 11, "color": theme.MUTED}, "thickness": 10, "outlinewidth": 0,
            "lenmode": "pixels", "len": min(240, height - 60), "y": 1, "yanchor": "top",
        },
    )  # fmt: skip
    yaxis = {
        "tickvals": list(range(len(order))),
        "ticktext": [html.escape(beginning(name, 22), quote=False) for name in names],
        "autorange": "reversed", "showgrid": False, "ticks": "outside", "ticklen": 8, "tickcolor": "rgba(0,0,0,0)",
    }  # fmt: skip
    xaxis = {**plotly.site_axis(view), "showline": False, "ticks": ""}
    figure = plotly.new_figure([heat], view, height=height, xaxis=xaxis, yaxis=yaxis)
    figure.layout.meta["rows"] = [for_plotly(name, 60) for name in names]
    return figure


def _deepest(view: RecordView) -> SiteRow | None:
    """The deepest site with class-wise numbers, of the fit if there is one."""
    having = [s for s in view.sites if any(finite(v) is not None for v in s.by_class.get("separation", []))]
    return max(reversed(having), key=lambda site: site.in_fit, default=None)
