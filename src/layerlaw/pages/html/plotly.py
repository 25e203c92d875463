"""What all Plotly figures share: the template, axes, a new figure, series along the sites, the points and line of a law."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from layerlaw.errors import needed
from layerlaw.law import LawFit
from layerlaw.measures.columns import describe
from layerlaw.pages import theme
from layerlaw.pages.html import for_plotly, plotly_symbols
from layerlaw.pages.record_view import Parts, RecordView, block_ticks, site_ticks, strided
from layerlaw.pages.sheets.scales import close_scale, tick_text
from layerlaw.wording import number, short_names

go, offline = (needed(f"plotly.{part}", "pages", "report()") for part in ("graph_objects", "offline"))
Values = Sequence[float | None]
Ends = Sequence[tuple[float, float] | None]
Axis = dict[str, Any]
LONGEST_NAME = 22  # of a site below a chart
EDGE = 0.02  # of the axis: so far from its end what lies beyond is drawn
CLOSEST = 0.45  # two names stand no closer, in steps of the law
WORK = {"rise": theme.RISE, "idle": theme.PALE, "work": theme.TRAIN}  # colors of what a site contributes


def new_figure(traces: Sequence[Any], view: RecordView | None, *, level: float | None = None, **layout: Any) -> Any:
    """A figure without a template: the page holds the template once and hands it to all; dashed, a line at some level.

    Traces with `meta="sites"` count positions of sites, which here become places on the axis. The names of the sites, which
    page.js writes over the hover text of such traces, stand once in the figure.
    """
    figure = go.Figure(list(traces))
    if view is not None:
        for trace in figure.data:
            if trace.meta == "sites":  # positions so far
                positions = range(len(view.places)) if trace.x is None else trace.x
                trace.x = [None if i is None else view.places[i] for i in positions]
        pairs = zip(view.record.numbers, view.sites, strict=True)
        names = [f"<b>{count} · {for_plotly(site.name, 60)}</b>" for count, site in pairs]
        layout["meta"] = {"sites": names, "places": view.places}
    figure.update_layout(template=go.layout.Template(), **layout)
    if title := figure.layout.yaxis.title.text:
        figure.layout.yaxis.title.text = plotly_symbols(title)
    if level is not None:
        figure.add_hline(y=level, line={"color": theme.TEXT, "width": 1, "dash": "dash"})
    return figure


def rounded(value: float | None) -> float | None:
    """Five digits are more than any screen shows, and keep the file small."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def site_axis(view: RecordView, *, most: int = 18, grid: bool = False) -> Axis:
    """An x axis with site names; beyond `most` sites only some of them are named, and none on a side branch.

    Sites stand at their places; in a `grid` one beside the other.
    """
    places = [float(i) for i in range(len(view.sites))] if grid else view.places
    named = view.along
    if len(named) > most or any(places[b] - places[a] < CLOSEST for a, b in pairwise(named)):
        named = [i for i in named if places[i].is_integer()]
    shown = [named[i] for i in strided(len(named), most)]
    names = short_names([site.name for site in view.sites], LONGEST_NAME)
    texts = [for_plotly(names[i], LONGEST_NAME) for i in shown]
    limits = [-0.5, max(places, default=0.0) + 0.5]
    return {"tickvals": [places[i] for i in shown], "ticktext": texts, "tickangle": -45, "range": limits}


def block_axis(view: RecordView, *drawn: Values) -> Axis:
    """An x axis of blocks, counted 1 … L; the embedded input has a place where one of the series `drawn` has it."""
    with_input = any(series and (series[0] or 0) > 0 for series in drawn)
    ticks, names, title, first = site_ticks(view.record, with_input=with_input)
    limits = [first - 0.5, view.places[-1] + 0.5]
    return {"tickvals": ticks, "ticktext": names, "range": limits, "title": {"text": title}}


def index_axis(views: Sequence[RecordView]) -> Axis:
    """An x axis that counts the points of fits as their kind does: from 0, blocks of language models from 1."""
    first, count = views[0].record.kind.first, max(len(view.fit_positions) for view in views)
    steps = {view.record.step_name for view in views}
    counted = steps.pop() if len(steps) == 1 else "points"
    shown = block_ticks([str(first + i) for i in range(count)]) if first else strided(count, 13)
    title = {"text": counted if first else f"{counted}, counted along the fit"}
    limits = [first - 0.5, first + count - 0.5]
    return {"tickvals": [first + i for i in shown], "tickangle": 0, "range": limits, "title": title}


def log_axis(values: Iterable[float | None], title: str, *, margin: float = 0.08, behind: Values = ()) -> Axis:
    """A log axis that spans the positive values and at least a `margin` of decades about them, with round ticks.

    What is `behind` them moves its ends where it is near enough not to press them flat.
    """
    positive, back = ([v for v in some if v is not None and v > 0 and math.isfinite(v)] for some in (values, behind))
    scale, ticks = close_scale(positive or back or (0.1, 10.0), margin, back)
    limits = [round(math.log10(scale.low), 4), round(math.log10(scale.high), 4)]
    texts = [tick_text(t) for t in ticks]
    return {"type": "log", "range": limits, "tickvals": ticks, "ticktext": texts, "title": {"text": title}}


def line(
    name: str, y: Values, color: str, *, written: Sequence[str] | None = None, size: float = 7, **style: Any
) -> Any:
    """One series along the sites; on hover the site, the series and the number, in the words `written`.

    The style has a `width`, a `dash` and the `symbol` of its markers, `None` for a line without them.
    """
    size *= 1 if len(y) <= 24 else 0.7 if len(y) <= 80 else 0.5
    symbol = style.pop("symbol", "circle")
    return go.Scatter(
        name=for_plotly(name),
        y=[rounded(v) for v in y],
        mode="lines+markers" if symbol else "lines",
        line={"color": color, "dash": "solid", "width": 2} | style,
        marker={"color": color, "size": size, "symbol": symbol or "circle"},
        meta="sites",
        customdata=list(written or [number(v) for v in y]),
        hovertemplate=f"%{{text}}<br>{for_plotly(name)}: %{{customdata}}<extra></extra>",
    )


def untrained_line(name: str, y: Values, written: Sequence[str] | None = None) -> Any:
    """What the network gave before it was trained."""
    return line(name, y, theme.NULL, symbol="square-open", width=1, size=6, written=written)


def law_points(view: RecordView, name: str, **bars: Any) -> Any:
    """The fitted column with its intervals: solid the points of the law, hollow those beside it.

    The former come first, since a legend shows the first point of a trace.
    """
    order = sorted(view.along, key=lambda i: not view.sites[i].in_fit)
    column, all_ends = view.series(view.column), view.ends
    values, ends = [column[i] for i in order], [all_ends[i] for i in order]
    points = line(name, values, theme.TRAIN, size=9, written=with_intervals(view, values, ends))
    points.update(x=order, mode="markers", legendrank=1)
    points.marker.color = [theme.TRAIN if view.sites[i].in_fit else "white" for i in order]
    points.marker.line = {"color": theme.TRAIN, "width": 1.8}
    if any(pair is not None for pair in ends):
        points.error_y = error_bars(values, ends, **bars)
    return points


def along_trunk(view: RecordView, trace: Any) -> Any:
    """The same series without sites that do not compare with the others: between side branches and the trunk it would jump
    to and fro, and to what was set aside as another kind of features it would fall."""
    at = view.trunk
    if len(at) < len(view.sites):
        trace.update(x=at, y=[trace.y[i] for i in at], customdata=[trace.customdata[i] for i in at])
    return trace


def at_the_edge(trace: Any, axis: Axis) -> Any:
    """The points of a trace with those beyond a log axis as triangles at its edge; on hover they say their number."""
    (bottom, top), y = axis["range"], trace.y
    inside = [bottom + EDGE * (top - bottom), top - EDGE * (top - bottom)]
    beyond = {i: math.log10(v) > top for i, v in enumerate(y) if v and not bottom <= math.log10(v) <= top}
    if beyond:
        own = trace.marker.symbol
        pointing = [f"triangle-{'up' if beyond[i] else 'down'}" + "-open" * own.endswith("-open") if i in beyond else own
                    for i in range(len(y))]  # fmt: skip
        trace.marker.symbol = pointing
        trace.y = [rounded(10 ** inside[beyond[i]]) if i in beyond else v for i, v in enumerate(y)]
        for side in ("array", "arrayminus") if trace.error_y.array is not None else ():
            trace.error_y[side] = [0.0 if i in beyond else v for i, v in enumerate(trace.error_y[side])]
    return trace


def branch_points(view: RecordView) -> list[Any]:
    """The fitted column on side branches, small and gray, where there are any."""
    at, column = view.beside, view.series(view.column)
    if not any(column[i] is not None for i in at):
        return []
    points = line("side branches", [column[i] for i in at], theme.NULL, size=6)
    points.update(x=at, mode="markers", legendrank=3)
    points.marker.symbol = "circle-open"
    return [points]


def fitted_line(view: RecordView, fit: LawFit, name: str, width: float = 1.5) -> Any:
    """The line of a law, dashed."""
    style = {"color": theme.TRAIN, "dash": "dash", "width": width}
    y = [rounded(v) for v in fit.line]
    x = [view.places[i] for i in view.fit_positions]
    return go.Scatter(name=name, x=x, y=y, mode="lines", line=style, hoverinfo="skip", legendrank=2)


def work_bars(parts: Parts, words: Sequence[str], hollow: int | None = None) -> Any:
    """A bar for what each site contributes, in the color of its kind; one of them may be hollow."""
    colors = [WORK[kind] for kind in parts.kinds()]
    inner = ["white" if i == hollow else color for i, color in zip(parts.values, colors, strict=True)]
    marker = {"color": inner, "line": {"color": colors, "width": [1.5 if i == hollow else 0 for i in parts.values]}}
    y = [rounded(part) for part in parts.values.values()]
    hover = {"customdata": words, "hovertemplate": "%{text}<br>%{customdata}<extra></extra>", "meta": "sites"}
    return go.Bar(x=list(parts.values), y=y, marker=marker, width=0.62, textposition="none", **hover)


def error_bars(values: Values, ends: Ends, **style: Any) -> dict[str, Any]:
    """Bars from the values to the ends of their intervals."""
    pairs = zip(values, ends, strict=True)
    known = [(0.0, 0.0) if v is None or pair is None else (pair[1] - v, v - pair[0]) for v, pair in pairs]
    ups, downs = [rounded(up) for up, _ in known], [rounded(down) for _, down in known]
    style = {"color": theme.TRAIN, "thickness": 1.1, "width": 3} | style
    return {"type": "data", "symmetric": False, "array": ups, "arrayminus": downs, **style}


def with_intervals(view: RecordView, values: Values, ends: Ends) -> list[str]:
    """Values of the fitted column in words, each with its interval where it has one."""
    text = describe(view.column).text
    known = [f" ({text(pair[0])} … {text(pair[1])})" if pair is not None else "" for pair in ends]
    return [text(v) + interval for v, interval in zip(values, known, strict=True)]


def plotly_template() -> dict[str, Any]:
    """Layout defaults of every figure: white, no frame, light horizontal rules, static axes, words on hover."""
    font = {"family": theme.FONT, "size": 13, "color": theme.TEXT}
    axis = {
        "showgrid": False, "zeroline": False, "linecolor": theme.RULE, "automargin": True,
        "ticks": "outside", "ticklen": 4, "tickcolor": theme.RULE, "tickfont": {"size": 12, "color": theme.MUTED},
        "title": {"font": {"size": 13, "color": theme.MUTED}, "standoff": 12},
        "fixedrange": True,  # a finger on a chart scrolls the page
    }  # fmt: skip
    legend = {"orientation": "h", "x": 0, "y": 1.03, "xanchor": "left", "yanchor": "bottom", "itemclick": "toggle"}
    layout = {
        "font": font, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "dragmode": False,
        "margin": {"l": 56, "r": 12, "t": 12, "b": 40},
        "xaxis": {**axis, "showline": True},
        "yaxis": {**axis, "showgrid": True, "gridcolor": theme.RULE, "ticks": ""},
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "white", "bordercolor": theme.RULE, "font": font},
        "legend": {**legend, "font": {"size": 12, "color": theme.TEXT}},
    }  # fmt: skip
    return {"layout": layout}
