"""Plotly figures of a classifier. Each function returns a figure, or a sentence that says why there is none."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from layerlaw.measures.columns import REGISTRY, describe
from layerlaw.pages import theme
from layerlaw.pages.classifier import PART_NAMES, chance_is_far, law_span, parts
from layerlaw.pages.html import Markup, chart, fill, for_plotly, plotly, section, table, unbroken
from layerlaw.pages.record_view import RecordView, strided
from layerlaw.pages.sheets.scales import log_ticks
from layerlaw.record import SiteRow
from layerlaw.verdict.levels import ModuleFinding, pooled_finding
from layerlaw.verdict.parts import layer_changes
from layerlaw.wording import beginning, clean, finite, number, p_value, percent, short_names, shortened, signed

MOST_NAMES_IN_HALF_WIDTH = 12
MOST_CLASSES = 40
MODULES = "Which module obeys the law"
LEVEL_HEADS = (  # what the columns of the table of levels mean
    "the finest that passes is the answer", "so many modules along depth",
    "chance that random splits of the drop are as even; several networks: of the sum of their statistics",
    "the middle of the p of single networks", "chance that shuffled steps in groups of these sizes are as even",
    "effective modules over modules, median over networks", "modules at which it rises",
    "networks in which the law holds at this level",
)  # fmt: skip
COLLAPSE = {  # color and symbol of the measures of collapse; others take what is left
    "nc1": (theme.QUALITATIVE[0], "circle"),
    "cdnv": (theme.QUALITATIVE[1], "square"),
    "compression": (theme.QUALITATIVE[3], "diamond"),
    "nc2_norms": (theme.QUALITATIVE[2], "triangle-up"),
    "nc2_angles": (theme.QUALITATIVE[8], "triangle-down"),
}
PART_COLORS = {
    "map": theme.QUALITATIVE[3],
    "normalization": theme.QUALITATIVE[4],
    "nonlinearity": theme.TRAIN,
    "branches": theme.QUALITATIVE[1],
    "other": theme.NULL,
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
    if chance := [v for v in floor if v is not None]:
        name = f"permuted {'labels' if view.record.kind.of_classes else 'targets'} (chance)"
        if chance_is_far(view):
            name += f", above: {number(min(chance))} to {number(max(chance))}"
        traces.append(plotly.line(name, floor, theme.NULL, dash="dot", symbol=None, width=1.5))
    if view.has(f"{lead}_untrained"):
        traces.append(plotly.untrained_line("untrained network", untrained))
    if view.has(f"test_{lead}"):
        traces.append(plotly.line("test data", test, theme.TEST, symbol="diamond", width=1.2))
    if view.has("separation_linear"):
        linear = view.series("separation_linear")
        traces.append(
            plotly.line("best linear map", linear, theme.QUALITATIVE[2], symbol="triangle-up", width=1, size=6)
        )
    front, behind = law_span(view)
    yaxis = plotly.log_axis(front, about.label, behind=behind)
    traces = [plotly.along_trunk(view, trace) for trace in traces]
    traces += [plotly.at_the_edge(points, yaxis) for points in plotly.branch_points(view)]
    if view.fit is not None:
        traces.append(plotly.fitted_line(view, view.fit, f"law: ρ = {number(view.fit.rho)} per {view.fit.step}"))
    points = plotly.law_points(view, shortened(view.record.data_name, 40), thickness=1.2, width=4)
    traces.append(plotly.at_the_edge(points, yaxis))
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


def modules_figure(of: RecordView | ModuleFinding) -> Any:
    """The step of each module in units of the even one, level beside level; a dot per network."""
    if (finding := of.modules if isinstance(of, RecordView) else of) is None:
        return "The record has a single level of modules."
    traces, ticks, names, start = [], [], [], 0.0
    for level, color in zip(finding.levels, theme.QUALITATIVE, strict=False):
        points = [
            (start + i, share * len(shares or ()), f"<b>{level.name[:-1]} {i + 1}</b> · {for_plotly(network, 40)}")
            for network, shares in zip(finding.networks, level.shares, strict=True)
            for i, share in enumerate(shares or ())
        ]
        dots = plotly.line(level.name, [y for _, y, _ in points], color, size=8)
        hover = "%{text}<br>%{customdata} of the even step<extra></extra>"
        dots.update(x=[x for x, _, _ in points], text=[text for *_, text in points], meta=None, hovertemplate=hover)
        dots.update(
            mode="lines+markers" if len(finding.networks) == 1 else "markers", line={"width": 1, "color": color}
        )
        traces.append(dots)
        ticks.append(start + (max(level.modules) - 1) / 2)
        names.append(f"{level.counted}<br>p {html.escape(p_value(level.p, relation=True))}")
        start += max(level.modules) + 1
    if not any(len(trace.x) for trace in traces):
        return "Nothing falls along depth, so there are no steps to compare."
    xaxis = {"tickvals": ticks, "ticktext": names, "tickangle": 0, "range": [-1, start - 1], "ticks": ""}
    yaxis = {"title": {"text": f"step of ln {finding.quantity} / even step"}, "rangemode": "tozero", "nticks": 6}
    return plotly.new_figure(traces, None, level=1.0, height=300, xaxis=xaxis, yaxis=yaxis, showlegend=False)


def modules_words(view: RecordView) -> str:
    """The answer."""
    return "" if view.modules is None else unbroken(view.modules.sentence)


def pooled_modules(views: Sequence[RecordView]) -> list[Markup]:
    """A section on which module obeys the law in all of these records, where they have several levels in common."""
    if (found := pooled_finding(*(view.record for view in views))) is None:
        return []
    pooled = fill(
        "{} Pooled as networks that were trained independently, say from several seeds.", unbroken(found.sentence)
    )
    body = fill("{}{}", chart("all-modules", modules_figure(found)), modules_table(found))
    return [section("modules", "all", MODULES, body, pooled)]


def modules_table(of: RecordView | ModuleFinding) -> Markup:
    """The numbers of every level, the answer with a mark."""
    if (finding := of.modules if isinstance(of, RecordView) else of) is None:
        return fill("")
    heads, *rows = finding.rows
    titles = dict(zip(heads, LEVEL_HEADS, strict=True))
    head = [
        fill('<th scope="col" class="{}" title="{}">{}</th>', "" if i else "site", titles[text], text)
        for i, text in enumerate(heads)
    ]
    body = [
        [
            fill('<th scope="row" class="site">{}{}</th>', name, " ✓" * (name == finding.level)),
            *(fill("<td>{}</td>", cell) for cell in cells),
        ]
        for name, *cells in rows
    ]
    return table("levels of modules", head, body)


def parts_figure(view: RecordView) -> Any:
    """How much the linear map, the normalization and the nonlinearity of every layer change ln D."""
    changes = layer_changes(view.record)
    layers = list(changes)
    names = short_names(layers, plotly.LONGEST_NAME)
    traces = [
        plotly.go.Bar(
            name=PART_NAMES[kind], x=list(range(len(layers))), marker={"color": color}, width=0.62,
            y=[plotly.rounded(changes[layer].get(kind)) for layer in layers],
            customdata=[f"<b>{for_plotly(layer, 60)}</b><br>{PART_NAMES[kind]}: {signed(changes[layer].get(kind), 3)}"
                        for layer in layers],
            hovertemplate="%{customdata}<extra></extra>",
        )
        for kind, color in PART_COLORS.items()
        if any(kind in change for change in changes.values())
    ]  # fmt: skip
    if not traces:
        return "D is missing before or after every part, so there is no change to show."
    shown = strided(len(layers), 18)
    texts = [for_plotly(names[i], plotly.LONGEST_NAME) for i in shown]
    xaxis = {"tickvals": shown, "ticktext": texts, "tickangle": -45, "range": [-0.5, len(layers) - 0.5]}
    yaxis = {
        "title": {"text": f"change of ln {describe(view.column).symbol}"},
        "zeroline": True,
        "zerolinecolor": theme.TEXT,
        "nticks": 7,
    }
    return plotly.new_figure(traces, None, height=360, xaxis=xaxis, yaxis=yaxis, barmode="relative", showlegend=True)


def nearest_figure(view: RecordView) -> Any:
    """Nearest class center against depth: how often it is wrong, and how often it disagrees with the network."""
    traces = []
    data = "train" if view.record.test_counts else ""
    data = shortened(view.record.data_name, 24) if view.record.settings.get("data_name") else data
    for what, column, color, dash, symbol in NEAREST:
        y, name = view.series(column), what.replace(", train", f", {data}" if data else "")
        if column.endswith("accuracy"):
            y = [None if v is None else 1 - v for v in y]
        if any(v is not None for v in y):
            traces.append(plotly.line(name, y, color, dash=dash, symbol=symbol, written=[percent(v, 2) for v in y]))
    if not traces:
        return "The nearest class center was not measured."
    yaxis = {"tickformat": ".0~%", "title": {"text": "share of samples"}, "rangemode": "tozero", "nticks": 7}
    xaxis = plotly.site_axis(view, most=MOST_NAMES_IN_HALF_WIDTH)
    return plotly.new_figure([plotly.along_trunk(view, t) for t in traces], view, height=400, xaxis=xaxis, yaxis=yaxis)


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
    traces = [plotly.along_trunk(view, trace) for trace in traces]
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
    K, where = len(deepest.by_class["separation"]), clean(deepest.name)
    of = f"The {MOST_CLASSES} worst of {K:,} classes" if K > MOST_CLASSES else "Classes"
    aside = " Colors span the points of the law; other sites may lie beyond." * (
        len(view.fit_positions) < len(view.sites)
    )
    return f"{of}, ordered by D_k at '{where}', the worst separated on top. Darker is fuzzier.{aside}"


def classes_figure(view: RecordView) -> Any:
    """ln D_k by class and site; light is well separated."""
    order = worst_classes(view)
    if not order:
        return "No class-wise separation was recorded."
    columns = [site.by_class.get("separation", []) for site in view.sites]
    rows = [[finite(values[k]) if k < len(values) else None for values in columns] for k in order]
    logs = [[round(math.log(v), 3) if v and v > 0 else None for v in row] for row in rows]
    if not (seen := _class_span(view, logs)):
        return "Every class is collapsed exactly (D_k = 0): there is no logarithm to draw."
    low, high = min(seen), max(seen)
    ticks = log_ticks(low / math.log(10), high / math.log(10) + 1e-9)
    known = view.record.classes
    names = [known[k] if k < len(known) else f"class {k}" for k in order]  # a number where the record names fewer
    height = 110 + (28 if len(order) <= 20 else 20) * max(len(order), 4)
    heat = plotly.go.Heatmap(
        z=logs, zmin=low, zmax=high, xgap=1 if len(view.sites) <= 40 else 0, ygap=1,
        colorscale=[list(stop) for stop in theme.SEQUENTIAL],
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
    xaxis = {**plotly.site_axis(view, grid=True), "showline": False, "ticks": ""}
    figure = plotly.new_figure([heat], view, height=height, xaxis=xaxis, yaxis=yaxis)
    figure.layout.meta["rows"] = [for_plotly(name, 60) for name in names]
    return figure


def _class_span(view: RecordView, logs: list[list[float | None]]) -> list[float]:
    """What the colors span: ln D_k at the points of the law; other rows, some of too few features, would wash them out."""
    inside = set(view.fit_positions)
    points = [v for row in logs for i, v in enumerate(row) if v is not None and i in inside]
    return points or [v for row in logs for v in row if v is not None]


def _deepest(view: RecordView) -> SiteRow | None:
    """The deepest site with class-wise numbers, of the fit if there is one."""
    having = [s for s in view.sites if any(finite(v) is not None for v in s.by_class.get("separation", []))]
    return max(reversed(having), key=lambda site: site.in_fit, default=None)
