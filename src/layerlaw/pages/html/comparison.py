"""Several records side by side: their curves in one figure, their law numbers in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerlaw.measures.columns import describe
from layerlaw.pages import theme
from layerlaw.pages.axes import index_axis, log_axis
from layerlaw.pages.html import escaped, for_plotly, table
from layerlaw.pages.html.plotly import Ends, error_bars, go, new_figure, rounded, with_intervals
from layerlaw.pages.kinds import presentation
from layerlaw.pages.record_view import RecordView
from layerlaw.wording import shortened

MOST_ASIDE, MOST_SPREAD = 0.08, 0.4  # blocks: between the points of two records, and of all
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")


def compare_figure(views: Sequence[RecordView]) -> Any:
    """D or PR along the fit of every record: points, and its line dashed."""
    kind, axis = views[0].record.kind, presentation(views[0]).axis
    drawn = [(i, view) for i, view in enumerate(views) if any(v is not None and v > 0 for v in _curve(view))]
    if not drawn:
        return f"None of the records holds a {axis}."
    with_bars = any(view.errors is not None for _, view in drawn)
    traces: list[Any] = []
    every: list[float | None] = []
    for place, (i, view) in enumerate(drawn):
        aside = min(MOST_ASIDE, MOST_SPREAD / len(drawn)) * (place - (len(drawn) - 1) / 2) if with_bars else 0.0
        traces.append(_points(view, i, aside))
        every += [*_curve(view), *(end for pair in _ends(view) for end in pair or ())]
        if view.fit:
            traces.append(_line(view, i))
    xaxis = index_axis(max(len(view.fit_positions) for _, view in drawn), kind)
    return new_figure(traces, height=460, xaxis=xaxis, yaxis=log_axis(every, axis, margin=kind.margin), showlegend=True)


def _points(view: RecordView, i: int, aside: float) -> Any:
    """The points of record i with their 95% bars, a little `aside`: those of records at the same block would coincide."""
    curve, ends, first, color = _curve(view), _ends(view), view.record.kind.first, _color(i)
    what = describe(view.column).symbol
    points = go.Scatter(
        name=for_plotly(view.label, 32),
        legendgroup=str(i),
        x=[rounded(first + k + aside) for k in range(len(curve))],
        y=[rounded(v) for v in curve],
        mode="markers" if view.fit else "lines+markers",
        marker={"color": color, "size": 8, "symbol": SYMBOLS[i // len(theme.QUALITATIVE) % len(SYMBOLS)]},
        line={"color": color, "width": 1.2},
        text=[f"{first + k} · {for_plotly(view.sites[p].name, 40)}" for k, p in enumerate(view.fit_positions)],
        customdata=with_intervals(view, curve, ends),
        hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{text}}<br>{what} = %{{customdata}}<extra></extra>",
    )
    if any(pair is not None for pair in ends):
        points.error_y = error_bars(curve, ends, color=color, thickness=1, width=0)
    return points


def _line(view: RecordView, i: int) -> Any:
    fitted = view.fit.line if view.fit is not None else ()
    return go.Scatter(
        x=[view.record.kind.first + k for k in range(len(fitted))],
        y=[rounded(v) for v in fitted],
        mode="lines",
        line={"color": _color(i), "width": 1.3, "dash": "dash"},
        legendgroup=str(i),
        showlegend=False,
        hoverinfo="skip",
    )


def _curve(view: RecordView) -> list[float | None]:
    values = view.series(view.column)
    return [values[p] for p in view.fit_positions]


def _ends(view: RecordView) -> Ends:
    """95% intervals where they come from groups of documents; those of a classifier would hide its curve."""
    return [view.ends[p] if view.errors is not None else None for p in view.fit_positions]


def _color(i: int) -> str:
    return theme.QUALITATIVE[i % len(theme.QUALITATIVE)]


def compare_table(views: Sequence[RecordView]) -> str:
    """The numbers of each law, one row per record."""
    shows = presentation(views[0])
    heads = "".join(f'<th scope="col"{" class=site" if head == "record" else ""}>{head}</th>' for head in shows.heads)
    rows = (
        f'<th scope="row" class="site" title="{escaped(view.label)}"><i class="dot" style="background:{_color(i)}"></i>'
        f"{escaped(shortened(view.label, 40))}</th>" + "".join(f"<td>{cell}</td>" for cell in shows.compared(view))
        for i, view in enumerate(views)
    )
    return table("law numbers per record", heads, rows, kind="many" if len(shows.heads) > shows.crowded else "")
