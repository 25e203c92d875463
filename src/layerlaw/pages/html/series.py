"""Records that belong together: checkpoints of one training run along its steps, and models measured on the same tokens.

Nothing here is about language models alone but the difference on the same tokens: a series is records of one kind whose
settings tell a `step` (and what it counts, `step_unit`), measured at the same sites on the same data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from layerlaw.measures.columns import describe
from layerlaw.pages import html, theme
from layerlaw.pages.along_training import TrainingSeries, step_text, training_series, training_words
from layerlaw.pages.html import Markup, fill, plotly
from layerlaw.pages.kinds import presentation
from layerlaw.pages.record_view import RecordView, block_ticks, strided
from layerlaw.pages.sheets.scales import close_scale, tick_text
from layerlaw.verdict.changes import PairedDifference, paired_differences
from layerlaw.wording import percent, shortened, signed

MOST_CURVES = 16  # of a long series so many records are drawn and unfolded one by one, evenly chosen
MOST_PAIRS = 8
WIDE = 30  # the last step over the first from which on a log axis tells more
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")


def drawn_alone(views: Sequence[RecordView]) -> list[RecordView]:
    """The records that are drawn one by one: all, or of a long series some."""
    return [views[i] for i in strided(len(views), MOST_CURVES)] if len(views) > MOST_CURVES else list(views)


def training_sections(views: Sequence[RecordView]) -> Markup:
    """A section for every series of checkpoints: a sentence, the heat map, and the end of the network along the steps."""
    out = []
    several = training_series(views)
    for i, series in enumerate(several):
        symbol = html.symbols(describe(series.views[0].column).symbol)
        site = series.views[0].record.kind.site
        text = f": {_data(series.views[0])}" if len(several) > 1 and _data(series.views[0]) else ""
        words, heat = html.unbroken(training_words(series)), html.chart(f"training{i}-heat", heat_figure(series))
        body = fill('<p class="together">{}</p>{}', words, heat)
        halves = [
            html.section(
                "ends",
                f"training{i}",
                fill("{} at the first and the last {}", symbol, site),
                html.chart(f"training{i}-ends", ends_figure(series)),
            ),
            html.section(
                "shape", f"training{i}", "The shape of the law", html.chart(f"training{i}-shape", shape_figure(series))
            ),
        ]
        caption = fill(
            "{} of every {} (upwards) at every checkpoint (to the right, evenly spaced whatever the {}). Light is better.",
            symbol,
            site,
            series.unit,
        )
        out.append(html.section("training", f"training{i}", f"Over training{text}", body, caption))
        out.append(fill('<div class="pair">{}</div>', halves))
    return fill("{}", out)


def _data(view: RecordView) -> str:
    text = view.record.provenance.get("text")
    name = text.get("name") if isinstance(text, dict) else ""
    return shortened(str(name or view.record.settings.get("data_name") or ""), 40)


def heat_figure(series: TrainingSeries) -> Any:
    """The leading column of every point of the law (upwards) at every checkpoint (to the right); light is better."""
    first = series.views[0]
    column, kind = describe(first.column), first.record.kind
    values = [
        [view.series(view.column)[p] for view in series.views for p in [view.fit_positions[b]]]
        for b in range(series.blocks)
    ]
    logs = [[math.log(v) if v is not None and v > 0 else None for v in row] for row in values]
    known = [math.exp(v) for row in logs for v in row if v is not None]
    if not known:
        return f"None of the checkpoints holds a {presentation(first).AXIS}."
    _, ticks = close_scale(known, 0.0)
    ticks = [t for t in ticks if min(known) <= t <= max(known)] or [min(known), max(known)]
    numbers = [kind.first + b for b in range(series.blocks)]
    names = [first.sites[p].name for p in first.fit_positions]
    height = 130 + max(160, min(520, 16 * series.blocks))
    symbol = html.symbols(column.symbol)
    hover = [
        [
            f"<b>{series.unit} {step}</b><br>{number} · {html.for_plotly(name, 40)}<br>{symbol} = {column.text(v)}"
            for step, v in zip(map(step_text, series.steps), row, strict=True)
        ]
        for number, name, row in zip(numbers, names, values, strict=True)
    ]
    heat = plotly.go.Heatmap(
        z=[[plotly.rounded(v) for v in row] for row in logs], x=list(range(len(series.steps))), y=numbers,
        xgap=1 if len(series.steps) <= 40 else 0, ygap=1 if series.blocks <= 40 else 0,
        colorscale=[list(stop) for stop in theme.SEQUENTIAL], customdata=hover, hovertemplate="%{customdata}<extra></extra>",
        colorbar={
            "title": {"text": html.symbols(column.symbol), "side": "top"},
            "tickvals": [plotly.rounded(math.log(t)) for t in ticks], "ticktext": [tick_text(t) for t in ticks],
            "tickfont": {"size": 11, "color": theme.MUTED}, "thickness": 10, "outlinewidth": 0,
            "lenmode": "pixels", "len": min(240, height - 90), "y": 1, "yanchor": "top",
        },
    )  # fmt: skip
    shown = strided(len(series.steps), 18)
    xaxis = {
        "tickvals": shown, "ticktext": [step_text(series.steps[i]) for i in shown], "tickangle": 0, "showline": False,
        "ticks": "", "range": [-0.5, len(series.steps) - 0.5], "title": {"text": f"training {series.unit}"},
    }  # fmt: skip
    rows = block_ticks([str(n) for n in numbers]) if kind.first else strided(series.blocks, 13)
    yaxis = {
        "tickvals": [numbers[i] for i in rows], "title": {"text": first.record.step_name}, "showgrid": False,
        "range": [numbers[0] - 0.5, numbers[-1] + 0.5],
    }  # fmt: skip
    return plotly.new_figure([heat], None, height=height, xaxis=xaxis, yaxis=yaxis)


def ends_figure(series: TrainingSeries) -> Any:
    """The leading column at the first and at the last point of the law along the steps, with 95% intervals."""
    first = series.views[0]
    column, axis, x = describe(first.column), _step_axis(series), _places(series)
    traces, every = [], []
    for place, color, symbol in ((-1, theme.TRAIN, "circle"), (0, theme.NULL, "square")):
        at = [view.fit_positions[place] for view in series.views]
        values = [view.series(view.column)[p] for view, p in zip(series.views, at, strict=True)]
        ends = [view.ends[p] if view.errors is not None else None for view, p in zip(series.views, at, strict=True)]
        name = f"{'last' if place else 'first'} {first.record.kind.site}"
        line = plotly.line(
            name, values, color, symbol=symbol, width=1.6, written=plotly.with_intervals(first, values, ends)
        )
        _along_steps(line, series, x)
        if any(pair is not None for pair in ends):
            line.error_y = plotly.error_bars(values, ends, color=color, thickness=1, width=0)
        traces.append(line)
        every += [*values, *(end for pair in ends for end in pair or ())]
    if not any(v is not None and v > 0 for v in every):
        return f"None of the checkpoints holds a {presentation(first).AXIS}."
    yaxis = plotly.log_axis(every, html.symbols(column.symbol), margin=first.record.kind.margin)
    return plotly.new_figure(traces, None, height=340, xaxis=axis, yaxis=yaxis, showlegend=True)


def shape_figure(series: TrainingSeries) -> Any:
    """r and evenness along the steps; evenness is solid where the law holds."""
    x = _places(series)
    r = [None if view.fit is None else view.fit.pearson for view in series.views]
    even = [None if view.fit is None else view.fit.evenness for view in series.views]
    if all(v is None for v in (*r, *even)):
        return "No law could be fitted to any checkpoint."
    lines = [
        plotly.line("−r", [None if v is None else -v for v in r], theme.NULL, symbol="square", width=1.6,
                    written=[signed(None if v is None else -v) for v in r]),
        plotly.line("evenness (solid: the law holds)", even, theme.TRAIN, width=1.6,
                    written=["–" if v is None else f"{v:.2f}" for v in even]),
    ]  # fmt: skip
    for line in lines:
        _along_steps(line, series, x)
    lines[1].marker.color = [theme.TRAIN if view.holds else "white" for view in series.views]
    lines[1].marker.line = {"color": theme.TRAIN, "width": 1.6}
    low = min([0.0, *(-v for v in r if v is not None)])
    yaxis = {"range": [low - 0.05, 1.05], "nticks": 6, "title": {"text": "1: a straight line, equal steps"}}
    return plotly.new_figure(lines, None, height=340, xaxis=_step_axis(series), yaxis=yaxis, showlegend=True)


def _along_steps(line: Any, series: TrainingSeries, x: Sequence[float]) -> None:
    text = [f"<b>{series.unit} {step_text(step)}</b>" for step in series.steps]
    line.update(x=list(x), meta=None, text=text, connectgaps=False)


def _is_wide(series: TrainingSeries) -> bool:
    positive = [step for step in series.steps if step > 0]
    return len(positive) > 1 and positive[-1] > WIDE * positive[0]


def _places(series: TrainingSeries) -> list[float]:
    """Where each step stands: as it is, or its logarithm where they span much, with step 0 a little before all others."""
    if not _is_wide(series):
        return list(series.steps)
    least = min(step for step in series.steps if step > 0)
    return [round(math.log10(step) if step > 0 else math.log10(least) - 0.5, 4) for step in series.steps]


def _step_axis(series: TrainingSeries) -> plotly.Axis:
    x = _places(series)
    margin = 0.04 * (x[-1] - x[0])
    limits = [x[0] - margin, x[-1] + margin]
    title = {"text": f"training {series.unit}"}
    if not _is_wide(series):
        return {"range": limits, "nticks": 7, "title": title, "tickangle": 0}
    zero = [(x[0], "0")] if series.steps[0] == 0 else []
    powers = range(math.ceil(x[len(zero)] - 1e-9), math.floor(x[-1] + 1e-9) + 1)
    ticks = [*zero, *((float(k), step_text(10.0**k)) for k in powers)]
    return {
        "tickvals": [t for t, _ in ticks],
        "ticktext": [name for _, name in ticks],
        "range": limits,
        "title": title,
        "tickangle": 0,
    }


def paired_section(views: Sequence[RecordView]) -> Markup:
    """The differences block by block of models that were measured on the same tokens."""
    pairs = paired_differences([replace(view.record, name=view.label) for view in views])[:MOST_PAIRS]
    if not pairs:
        return fill("")
    said = html.sentences([pair.sentence() for pair in pairs], "findings")
    bars = any(change is not None and change.error is not None for pair in pairs for change in pair.blocks)
    caption = html.paragraph(
        "Both models read the same token ids. Below zero PR is lower than that of the first.",
        bars and "Bars: 95% intervals of the difference itself (jackknife over groups of documents), block by block.",
    )
    body = fill("{}{}", html.chart("all-paired", paired_figure(pairs)), said)
    return html.section("paired", "all", "On the same tokens", body, caption)


def paired_figure(pairs: Sequence[PairedDifference]) -> Any:
    """By how much PR differs at each block, in percent, with 95% intervals."""
    traces: list[Any] = []
    count = max(len(difference.blocks) for difference in pairs)
    for i, difference in enumerate(pairs):
        color = theme.QUALITATIVE[i % len(theme.QUALITATIVE)]
        values = [None if change is None else math.expm1(change.change) for change in difference.blocks]
        spans = [change.interval if change is not None else None for change in difference.blocks]
        ends = [None if span is None else (math.expm1(span[0]), math.expm1(span[1])) for span in spans]
        words = [
            percent(v, 2) + ("" if pair is None else f" ({percent(pair[0], 2)} … {percent(pair[1], 2)})")
            for v, pair in zip(values, ends, strict=True)
        ]
        name = f"{difference.other} against {difference.base}"
        line = plotly.line(name, values, color, written=words, symbol=SYMBOLS[i % len(SYMBOLS)], width=1.2)
        aside = 0.12 * (i - (len(pairs) - 1) / 2)
        line.update(x=[k + aside for k in range(1, len(values) + 1)], meta=None, name=html.for_plotly(name, 60))
        line.text = [f"<b>block {k}</b>" for k in range(1, len(values) + 1)]
        if any(pair is not None for pair in ends):
            line.error_y = plotly.error_bars(values, ends, color=color, thickness=1, width=0)
        traces.append(line)
    shown = block_ticks([str(k) for k in range(1, count + 1)])
    xaxis = {
        "tickvals": [1 + k for k in shown],
        "tickangle": 0,
        "range": [0.5, count + 0.5],
        "title": {"text": "block"},
    }
    yaxis = {"tickformat": ".3~%", "title": {"text": "difference of PR"}, "nticks": 6}
    return plotly.new_figure(traces, None, level=0, height=380, xaxis=xaxis, yaxis=yaxis, showlegend=True)
