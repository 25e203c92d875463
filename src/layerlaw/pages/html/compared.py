"""Several records side by side: their curves in one chart, and one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from layerlaw.measures.columns import describe
from layerlaw.pages import html, theme
from layerlaw.pages.html import Markup, fill, plotly
from layerlaw.pages.html.series import drawn_alone
from layerlaw.pages.kinds import presentation
from layerlaw.pages.law_numbers import RULE, ComparedColumn
from layerlaw.pages.record_view import RecordView
from layerlaw.record import LANGUAGE_MODEL
from layerlaw.wording import shortened

MOST_ASIDE, MOST_SPREAD = 0.08, 0.4  # blocks: between the points of two records, and of all
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")


def along_relative_depth(views: Sequence[RecordView]) -> Markup:
    """The same curves along block / number of blocks, where language models are not equally deep."""
    deep = {len(view.fit_positions) for view in views}
    if views[0].record.kind is not LANGUAGE_MODEL or len(deep) < 2 or min(deep) < 2:
        return fill("")
    return html.chart("all-compare-relative", compare_figure(views, relative=True))


def compare_figure(views: Sequence[RecordView], *, relative: bool = False) -> Any:
    """D or PR along the fit of every record: points, and its line dashed; `relative`: all end at depth 1."""
    kind, axis, symbol = (
        views[0].record.kind,
        presentation(views[0]).AXIS,
        html.plotly_symbols(describe(views[0].column).symbol),
    )
    curves = [[values[p] for p in view.fit_positions] for view in views for values in [view.series(view.column)]]
    drawn = [i for i, curve in enumerate(curves) if any(v is not None and v > 0 for v in curve)]
    if not drawn:
        return f"None of the records holds a {axis}."
    with_bars = any(views[i].errors is not None for i in drawn)
    aside = min(MOST_ASIDE, MOST_SPREAD / len(drawn)) if with_bars else 0.0  # at one block they would coincide
    traces: list[Any] = []
    every: list[float | None] = []
    for place, i in enumerate(drawn):
        view, curve, color = views[i], curves[i], _color(i)
        # those of a classifier would hide its curve
        ends = [view.ends[p] if view.errors is not None else None for p in view.fit_positions]
        every += [*curve, *(end for pair in ends for end in pair or ())]
        counts, names = [kind.first + k for k in range(len(curve))], [view.sites[p].name for p in view.fit_positions]
        unit = counts[-1] if relative else 1
        points = plotly.line(view.label, curve, color, width=1.2, written=plotly.with_intervals(view, curve, ends))
        points.update(
            name=html.for_plotly(view.label, 32),
            legendgroup=str(i),
            x=[plotly.rounded((k + aside * (place - (len(drawn) - 1) / 2)) / unit) for k in counts],
            mode="markers" if view.fit else "lines+markers",
            marker={"size": 8, "symbol": SYMBOLS[i // len(theme.QUALITATIVE) % len(SYMBOLS)]},
            meta=None,
            text=[
                f"{f'{k} of {unit}' if relative else k} · {html.for_plotly(name, 40)}"
                for k, name in zip(counts, names, strict=True)
            ],
            hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{text}}<br>{symbol} = %{{customdata}}<extra></extra>",
        )
        if any(pair is not None for pair in ends):
            points.error_y = plotly.error_bars(curve, ends, color=color, thickness=1, width=0)
        traces.append(points)
        if view.fit:
            every += view.fit.line
            law = plotly.fitted_line(view, view.fit, "", 1.3)
            law.update(
                x=[plotly.rounded(k / unit) for k in counts],
                line={"color": color},
                legendgroup=str(i),
                showlegend=False,
            )
            traces.append(law)
    xaxis = plotly.index_axis([views[i] for i in drawn])
    if relative:
        xaxis = {"title": {"text": "relative depth (block / number of blocks)"}, "range": [0, 1.03], "dtick": 0.2}
    yaxis = plotly.log_axis(every, axis, margin=kind.margin)
    return plotly.new_figure(traces, None, height=460, xaxis=xaxis, yaxis=yaxis, showlegend=True)


def _color(i: int) -> str:
    return theme.QUALITATIVE[i % len(theme.QUALITATIVE)]


def compare_table(views: Sequence[RecordView]) -> Markup:
    """The numbers of each law, one row per record."""
    columns, crowded = presentation(views[0]).COMPARED, presentation(views[0]).CROWDED
    named = [fill('<th scope="col">{}</th>', html.symbols(c.head)) for c in columns]
    heads = [fill('<th scope="col" class="site">record</th>'), *named]
    colors = {id(view): _color(i) for i, view in enumerate(drawn_alone(views))}
    rows = [
        [
            fill(
                '<th scope="row" class="site" title="{}"><i class="dot" style="background:{}"></i>{}</th>',
                view.label, colors.get(id(view), theme.RULE), shortened(view.label, 40),
            ),
            *(_compared_cell(column, view) for column in columns),
        ]
        for view in views
    ]  # fmt: skip
    kind = "many records" if 1 + len(columns) > crowded else ""
    bent = any(view.fit is not None and view.fit.trend == math.inf for view in views)
    infinite = " Trend ∞: a curve fitted to all steps does not fall at its first one." * bent
    rule = fill('<p class="note">{}.{}</p>', RULE[0].upper() + RULE[1:], infinite)
    return fill("{}{}", html.table("law numbers per record", heads, rows, kind=kind), rule)


def _compared_cell(column: ComparedColumn, view: RecordView) -> Markup:
    """A number, and small below it its interval."""
    text, below, title = column.cell(view), column.below(view), column.title(view)
    named = fill('<span title="{}">{}</span>', title, text) if title else text
    return fill("<td>{}{}</td>", named, fill('<span class="below">{}</span>', below) if below else "")
