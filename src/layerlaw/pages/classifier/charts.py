"""Plotly figures of a classifier. Each function returns a figure, or a sentence that says why there is none."""

from __future__ import annotations

import html
import math
from typing import Any

from layerlaw.measures.columns import REGISTRY
from layerlaw.pages import theme
from layerlaw.pages.axes import log_axis, log_ticks, site_axis
from layerlaw.pages.html import escaped, for_plotly
from layerlaw.pages.html.plotly import (
    Values,
    error_bars,
    fitted_line,
    go,
    line,
    new_figure,
    rounded,
    site_names,
    with_intervals,
)
from layerlaw.pages.record_view import RecordView
from layerlaw.verdict import IDLE_SHARE
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


def law_figure(view: RecordView) -> Any:
    """D against depth on a log axis: points with jackknife bars, the line, test data, and the two nulls."""
    train = view.series("separation")
    if not any(v is not None and v > 0 for v in train):
        return "No separation D was measured, so there is nothing to draw."
    traces: list[Any] = []
    columns = ("separation_untrained", "separation_permuted", "test_separation")
    others = {column: view.series(column) for column in columns}
    if view.has("separation_permuted"):
        floor = others.pop("separation_permuted")
        name = "permuted labels (chance)"
        shown = [v for s in (train, *others.values()) for v in s if v is not None]
        chance = [v for v in floor if v is not None]
        if min(chance) > 3 * max(shown):  # drawn within the axis it would press everything else flat
            name += f", above: {number(min(chance))} to {number(max(chance))}"
        else:
            others["separation_permuted"] = floor
        traces.append(line(name, floor, theme.NULL, dash="dot", symbol=None, width=1.5))
    if view.has("separation_untrained"):
        null = others["separation_untrained"]
        traces.append(line("untrained network", null, theme.NULL, symbol="square-open", width=1, size=6))
    if view.has("test_separation"):
        traces.append(line("test data", others["test_separation"], theme.TEST, symbol="diamond", width=1.2))
    if view.fit is not None:
        name = f"law: ρ = {number(view.fit.rho)} per layer"
        traces.append(fitted_line(view, view.fit, name))
    traces.append(_train_points(view, train))
    every = [*train, *(end for pair in view.ends for end in pair or ()), *(v for s in others.values() for v in s)]
    return new_figure(
        traces,
        meta=site_names(view),
        height=440,
        xaxis=site_axis(view),
        yaxis=log_axis(every, "separation fuzziness D"),
    )


def _train_points(view: RecordView, train: Values) -> Any:
    written = with_intervals(view, train, view.ends)
    points = line("training data", train, theme.TRAIN, size=9, written=written)
    points.mode = "markers"
    points.marker.color = [theme.TRAIN if site.in_fit else "white" for site in view.sites]
    points.marker.line = {"color": theme.TRAIN, "width": 1.8}
    points.legendrank = 1
    if view.has("separation_log_se"):
        points.error_y = error_bars(train, view.ends, thickness=1.2, width=4)
    return points


def shares_figure(view: RecordView) -> Any:
    """Each layer's share of the drop of ln D, with the even share as a line."""
    if view.fit is None:
        return "Without a fit there are no shares to show."
    if not view.shares:
        return "D does not fall from the first site to the last by more than a tenth, so there is no drop to share."
    even = 1 / view.fit.layers
    positions, shares = list(view.shares), list(view.shares.values())
    colors = [theme.RISE if s < 0 else theme.PALE if s < IDLE_SHARE * even else theme.TRAIN for s in shares]
    bars = go.Bar(
        x=positions,
        y=[rounded(s) for s in shares],
        marker={"color": colors},
        width=0.62,
        meta="sites",
        textposition="none",
        customdata=[percent(s) for s in shares],
        hovertemplate="%{text}<br>%{customdata} of the drop<extra></extra>",
    )
    yaxis = {"tickformat": ".0%", "title": {"text": "share of the drop of ln D"}, "rangemode": "tozero", "nticks": 6}
    figure = new_figure([bars], meta=site_names(view), height=320, xaxis=site_axis(view), yaxis=yaxis, showlegend=False)
    figure.add_hline(y=even, line={"color": theme.TEXT, "width": 1, "dash": "dash"})
    return figure


def nearest_figure(view: RecordView) -> Any:
    """Nearest class center against depth: how often it is wrong, and how often it disagrees with the network."""
    wanted = [
        ("error, train", "ncc_accuracy", theme.TRAIN, "solid", "circle"),
        ("error, test", "test_ncc_accuracy", theme.TEST, "solid", "diamond"),
        ("mismatch, train", "ncc_mismatch", theme.TRAIN, "dash", "circle-open"),
        ("mismatch, test", "test_ncc_mismatch", theme.TEST, "dash", "diamond-open"),
    ]
    traces = []
    for name, column, color, dash, symbol in wanted:
        if not view.has(column):
            continue
        y = view.series(column)
        if column.endswith("accuracy"):
            y = [None if v is None else 1 - v for v in y]
        written = [percent(v, 2) for v in y]
        traces.append(line(name, y, color, dash=dash, symbol=symbol, written=written))
    if not traces:
        return "The nearest class center was not measured."
    yaxis = {"tickformat": ".0~%", "title": {"text": "share of samples"}, "rangemode": "tozero", "nticks": 7}
    return new_figure(
        traces,
        meta=site_names(view),
        height=400,
        xaxis=site_axis(view, most=MOST_NAMES_IN_HALF_WIDTH),
        yaxis=yaxis,
    )


def collapse_figure(view: RecordView) -> Any:
    """Measures of neural collapse against depth, on a log axis."""
    wanted = [column for column in REGISTRY.values() if column.panel == "collapse"]
    traces, every = [], []
    for i, column in enumerate(wanted):
        color, symbol = COLLAPSE.get(column.name, (theme.QUALITATIVE[(4 + i) % 10], "star"))
        drawn = [(column.name, column.label, "solid", symbol)]
        if column.head:  # on test data only what stands in tables too
            drawn.append((f"test_{column.name}", f"{column.label}, test", "dot", f"{symbol}-open"))
        for name, label, dash, mark in drawn:
            y = [v if v is not None and v > 0 else None for v in view.series(name)]  # no zero on a log axis
            if any(v is not None for v in y):
                every += y
                traces.append(line(label, y, color, dash=dash, symbol=mark, size=6, width=1.6))
    if not traces:
        return "No measure of neural collapse was taken along depth."
    xaxis = site_axis(view, most=MOST_NAMES_IN_HALF_WIDTH)
    return new_figure(traces, meta=site_names(view), height=400, xaxis=xaxis, yaxis=log_axis(every, "0 at collapse"))


def class_name(view: RecordView, k: int) -> str:
    """The name of class k, or its number where the record names fewer."""
    return view.record.classes[k] if k < len(view.record.classes) else f"class {k}"


def worst_classes(view: RecordView) -> list[int]:
    """Classes by D_k at the deepest site of the fit that has them, worst first, at most `MOST_CLASSES`."""
    deepest = _deepest(view)
    if deepest is None:
        return []
    values = view.sites[deepest].by_class["separation"]
    known = [(value, k) for k, v in enumerate(values) if (value := finite(v)) is not None]
    return [k for _, k in sorted(known, key=lambda pair: (-pair[0], pair[1]))][:MOST_CLASSES]


def classes_note(view: RecordView) -> str:
    """What the heat map leaves out, and its order."""
    deepest = _deepest(view)
    if deepest is None:
        return ""
    K = len(view.sites[deepest].by_class["separation"])
    of = f"The {MOST_CLASSES} worst of {K:,} classes" if K > MOST_CLASSES else "Classes"
    where = escaped(view.sites[deepest].name)
    return f"{of}, ordered by D<sub>k</sub> at '{where}', the worst separated on top. Darker is fuzzier."


def classes_figure(view: RecordView) -> Any:
    """ln D_k by class and site; light is well separated."""
    order = worst_classes(view)
    if not order:
        return "No class-wise separation was recorded."
    rows = [[_value(site.by_class.get("separation", []), k) for site in view.sites] for k in order]
    logs = [[round(math.log(v), 3) if v and v > 0 else None for v in row] for row in rows]
    seen = [v for row in logs for v in row if v is not None]
    if not seen:
        return "Every class is collapsed exactly (D_k = 0): there is no logarithm to draw."
    ticks = log_ticks(min(seen) / math.log(10), max(seen) / math.log(10) + 1e-9)
    names = [for_plotly(class_name(view, k), 60) for k in order]
    height = 110 + (28 if len(order) <= 20 else 20) * max(len(order), 4)
    heat = go.Heatmap(
        z=logs,
        xgap=1 if len(view.sites) <= 40 else 0,
        ygap=1,
        colorscale=[list(stop) for stop in theme.SEQUENTIAL],
        text=[[number(v, 2 if v and v < 100 else 3) for v in row] for row in rows],
        texttemplate="%{text}" if len(view.sites) <= 14 and len(order) <= 20 else "",
        textfont={"size": 12},
        meta="grid",
        hovertemplate="%{customdata}<br>D<sub>k</sub> = %{text}<extra></extra>",
        colorbar={
            "title": {"text": "D<sub>k</sub>", "side": "top"},
            "tickvals": [rounded(math.log(t)) for t in ticks],
            "ticktext": [number(t, 1) for t in ticks],
            "thickness": 10,
            "lenmode": "pixels",
            "len": min(240, height - 60),
            "y": 1,
            "yanchor": "top",
            "outlinewidth": 0,
            "tickfont": {"size": 11, "color": theme.MUTED},
        },
    )
    yaxis = {
        "tickvals": list(range(len(order))),
        "ticktext": [html.escape(beginning(class_name(view, k), 22), quote=False) for k in order],
        "autorange": "reversed",
        "showgrid": False,
        "ticks": "outside",
        "ticklen": 8,
        "tickcolor": "rgba(0,0,0,0)",
    }
    return new_figure(
        [heat],
        meta={**site_names(view), "rows": names},
        height=height,
        xaxis={**site_axis(view), "showline": False, "ticks": ""},
        yaxis=yaxis,
    )


def _deepest(view: RecordView) -> int | None:
    """The deepest site with class-wise numbers, of the fit if there is one."""
    having = [
        i
        for i, site in enumerate(view.sites)
        if any(finite(v) is not None for v in site.by_class.get("separation", []))
    ]
    in_fit = [i for i in having if view.sites[i].in_fit]
    chosen = in_fit or having
    return chosen[-1] if chosen else None


def _value(values: list[float | None], k: int) -> float | None:
    return finite(values[k]) if k < len(values) else None
