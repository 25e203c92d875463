"""Plotly figures of a language model: the law, what it leaves, what each block takes, other targets, the separation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from layerlaw.errors import InputError
from layerlaw.pages import theme
from layerlaw.pages.html import plotly
from layerlaw.pages.language_model import AXIS, LEAST_SCALE, measured_how, parts
from layerlaw.pages.record_view import RecordView, block_ticks
from layerlaw.verdict.changes import branch_rows, log_change
from layerlaw.verdict.targets import SHUFFLED, column_of, is_shuffled, pearson_of, target_name, targets
from layerlaw.wording import NOTHING, correlation, number, percent, residual, signed

PRESSING = 1.6  # a null that would stretch the axis more than this would press the curve flat
OTHER_TOKENS = ("previous", "current", "next2")  # not the next token: their residuals may rise, and lie elsewhere
BRANCHES = {
    "attention": ("attention", theme.QUALITATIVE[1]),
    "mlp": ("MLP", theme.TRAIN),
    "other": ("other branches", theme.NULL),
}
SYMBOLS = ("square", "diamond", "triangle-up", "cross", "x", "star")


def residual_figure(view: RecordView) -> Any:
    """PR against depth on a log axis: points with jackknife bars, the line, in-sample, and the untrained model."""
    lead = view.series(view.column)
    if not any(v is not None and v > 0 for v in lead):
        return "No prediction residual was measured, so there is nothing to draw."
    inside: plotly.Values = view.series("residual") if view.column != "residual" else []
    every: list[float | None] = [*lead, *(v for pair in view.ends for v in pair or ()), *inside]
    traces: list[Any] = []
    if any(v is not None for v in inside):
        written = [residual(v) for v in inside]
        traces.append(plotly.line("in-sample", inside, theme.TEST, symbol="diamond", width=1.2, written=written))
    null = view.series(f"{view.column}_untrained")
    if known := [v for v in null if v is not None]:
        fits = _log_span([*every, *null]) <= PRESSING * _log_span(every)
        name = "untrained" if fits else f"untrained, off the axis: {min(known):.3f} to {max(known):.3f}"
        traces.insert(0, plotly.untrained_line(name, null, [residual(v) for v in null]))
        every += null if fits else []
    if view.fit is not None:
        every += view.fit.line
        traces.append(plotly.fitted_line(view, view.fit, f"law: ρ = {view.fit.rho:.4f} per block"))
    traces.append(plotly.law_points(view, measured_how(view)))
    yaxis = plotly.log_axis(every, AXIS, margin=view.record.kind.margin)
    return plotly.new_figure(traces, view, height=440, xaxis=plotly.block_axis(view, lead, inside, null), yaxis=yaxis)


def deviations_figure(view: RecordView) -> Any:
    """How far PR lies from its line, in percent, with 95% bars where documents were grouped."""
    fit = view.fit
    if fit is None:
        return "Without a fit there is nothing to be off."
    off = [math.exp(e) - 1 for e in fit.residuals]
    points = plotly.line("", off, theme.PALE, width=1.2, written=[percent(v, 2) for v in off])
    points.update(x=view.fit_positions, hovertemplate="%{text}<br>%{customdata} off the line<extra></extra>")
    points.marker.update(color=theme.TRAIN, size=7 if len(off) <= 40 else 4)
    if view.errors is not None:
        points.error_y = _whiskers(off, [view.errors.t * se for se in view.errors.residuals])
    yaxis = {"tickformat": ".3~%", "title": {"text": "PR above its line"}, "nticks": 6}
    layout = {"height": 340, "xaxis": plotly.block_axis(view), "yaxis": yaxis, "showlegend": False}
    return plotly.new_figure([points], view, level=0, **layout)


def gains_figure(view: RecordView) -> Any:
    """By how much of itself PR falls at each block; hollow, the first one, from the embedded input."""
    taken = parts(view)
    gains = list(taken.values.values())
    if not gains:
        return "Without two neighboring residuals there is no gain to show."
    words = [f"PR falls by {percent(g, 2)}" if g >= 0 else f"PR rises by {percent(-g, 2)}" for g in gains]
    bars = plotly.work_bars(taken, words, hollow=view.fit_positions[0])
    wide = [0.0] * len(gains)
    if view.errors is not None:
        steps = dict(zip(view.fit_positions[1:], view.errors.steps, strict=True))
        wide = [view.errors.t * steps.get(i, 0.0) for i in taken.values]
        bars.error_y = _whiskers(gains, wide, color=theme.MUTED, width=0)
    yaxis = {"tickformat": ".3~%", "title": {"text": "PR falls by"}, "nticks": 6}
    if max(abs(g) + w for g, w in zip(gains, wide, strict=True)) < LEAST_SCALE:  # noise has to look like noise
        yaxis["range"] = [-1.1 * LEAST_SCALE, 1.1 * LEAST_SCALE]
    layout = {"height": 340, "xaxis": plotly.block_axis(view), "yaxis": yaxis, "showlegend": False}
    return plotly.new_figure([bars], view, level=taken.even if taken.even > 0 else None, **layout)


def branches_figure(view: RecordView) -> Any:
    """By how much ln PR changes at attention and at the MLP of each block, with 95% bars where documents were grouped."""
    rows, layers = branch_rows(view.record), [view.sites[p].name for p in view.fit_positions]
    traces = []
    for kind, (name, color) in BRANCHES.items():
        # a decoder may have attention twice
        own = {layer: [(a, b) for part, a, b in rows if (part.layer, part.kind) == (layer, kind)] for layer in layers}
        found = {i: c for i, layer in enumerate(layers, 1) if (c := log_change(own[layer], view.column)) is not None}
        if not found:
            continue
        values = [change.change for change in found.values()]
        ends = [change.interval for change in found.values()]
        words = [f"<b>block {i}</b><br>{name}: ln PR {change}" for i, change in found.items()]
        bars = {"x": list(found), "y": [plotly.rounded(v) for v in values], "marker": {"color": color}, "name": name}
        trace = plotly.go.Bar(**bars, customdata=words, hovertemplate="%{customdata}<extra></extra>")
        if any(ends):
            trace.error_y = plotly.error_bars(values, ends, color=theme.MUTED, width=0)
        traces.append(trace)
    if not traces:
        return "PR is missing before or after every branch, so there is no change to show."
    shown = block_ticks([str(i) for i in range(1, len(layers) + 1)])
    limits = [0.5, len(layers) + 0.5]
    xaxis = {"tickvals": [1 + i for i in shown], "tickangle": 0, "range": limits, "title": {"text": "block"}}
    yaxis = {"title": {"text": "change of ln PR"}, "zeroline": True, "zerolinecolor": theme.TEXT, "nticks": 7}
    return plotly.new_figure(traces, None, height=380, xaxis=xaxis, yaxis=yaxis, barmode="group", showlegend=True)


def _whiskers(values: Sequence[float], wide: Sequence[float], **style: Any) -> dict[str, Any]:
    """Bars of so much on either side."""
    return plotly.error_bars(values, [(v - w, v + w) for v, w in zip(values, wide, strict=True)], **style)


def _log_span(values: Sequence[float | None]) -> float:
    known = [math.log(v) for v in values if v is not None and v > 0]
    return max(known) - min(known) if known else 0.0


def codes(view: RecordView) -> list[str]:
    """Targets that are other codes of the next token."""
    return [target for target in targets(view.record) if target not in OTHER_TOKENS]


def other_tokens(view: RecordView) -> list[str]:
    """Targets that are other tokens."""
    return [target for target in targets(view.record) if target in OTHER_TOKENS]


def codes_figure(view: RecordView) -> Any:
    """PR of every code of the next token over its value at the first block: shapes side by side."""
    shuffled = [target for target in codes(view) if is_shuffled(target)]
    traces = [_shuffled_lines(view, shuffled)] if shuffled else []
    for i, target in enumerate(target for target in codes(view) if not is_shuffled(target)):
        y, name = _relative(view, column_of(view.record, target)), _with_r(target_name(target), [_r(view, target)])
        color, symbol = theme.QUALITATIVE[(i + 1) % 10], SYMBOLS[i % len(SYMBOLS)]
        traces.append(plotly.line(name, y, color, symbol=symbol, size=6, width=1.4))
    own = plotly.line(_with_r("id", [_r(view)]), _relative(view, view.column), theme.TRAIN, size=6, width=2.2)
    own.legendrank = 1
    return _targets_figure(view, [*traces, own], "PR over PR at the first block")


def other_tokens_figure(view: RecordView) -> Any:
    """PR of tokens around, as it is: how information on the past goes and on the future comes."""
    series = [("next token", view.column, _r(view))]
    series += [(target_name(t), column_of(view.record, t), _r(view, t)) for t in other_tokens(view)]
    traces: list[Any] = []
    for i, (name, column, r) in enumerate(series):
        # what is predicted exactly has no logarithm
        y = [v if v is not None and v > NOTHING else None for v in view.series(column)]
        color = theme.QUALITATIVE[i] if i else theme.TRAIN
        traces.append(plotly.line(_with_r(name, [r]), y, color, symbol=("circle", *SYMBOLS)[i], size=6, width=1.6))
    return _targets_figure(view, traces, "PR", *(trace.y for trace in traces))


def _targets_figure(view: RecordView, traces: list[Any], title: str, *drawn: plotly.Values) -> Any:
    yaxis = plotly.log_axis([v for trace in traces for v in trace.y], title, margin=view.record.kind.margin)
    return plotly.new_figure(traces, view, height=420, xaxis=plotly.block_axis(view, *drawn), yaxis=yaxis)


def _r(view: RecordView, target: str | None = None) -> float | None:
    if target is not None:
        return pearson_of(view.record, target)
    return view.fit.pearson if view.fit is not None else None


def separation_figure(view: RecordView) -> Any:
    """D of the most frequent tokens as classes, its line, and the untrained model."""
    D, null = view.series("separation"), view.series("separation_untrained")
    own = plotly.line("D", D, theme.TRAIN, size=7, width=1.2)
    own.legendrank = 1
    traces = [plotly.untrained_line("untrained", null), own] if view.has("separation_untrained") else [own]
    with suppress(InputError):
        fit = view.record.law("separation")
        name = f"law: ρ = {number(fit.rho)}, r = {correlation(fit.pearson)}"
        traces.append(plotly.fitted_line(view, fit, name, width=1.3))
    yaxis = plotly.log_axis([*D, *null], "separation fuzziness D", margin=0.02)
    return plotly.new_figure(traces, view, height=420, xaxis=plotly.block_axis(view, D, null), yaxis=yaxis)


def lens_figure(view: RecordView) -> Any:
    """The loss where the head reads each block; dashed, that of frequencies alone."""
    logit, linear = _near_the_blocks(view, "lens_loss"), _near_the_blocks(view, "linear_lens_loss")
    traces = [plotly.line("logit lens", logit, theme.TRAIN, size=6)]
    if view.has("linear_lens_loss"):
        traces.append(plotly.line("linear lens", linear, theme.QUALITATIVE[2], symbol="diamond", size=6, width=1.6))
    about = view.record.settings.get("lens")
    alone = about.get("frequency_loss") if isinstance(about, dict) else None
    yaxis = plotly.log_axis([*logit, *linear, alone], "loss (nats)", margin=0.04)
    return plotly.new_figure(
        traces,
        view,
        level=alone,
        height=380,
        xaxis=plotly.block_axis(view, logit, linear),
        yaxis=yaxis,
        showlegend=True,
    )


def _near_the_blocks(view: RecordView, column: str) -> plotly.Values:
    """A loss along depth; the embedded input, which no head was made to read, where it would not press all else flat."""
    values, inside = view.series(column), set(view.fit_positions)
    highest = max((v for i, v in enumerate(values) if v is not None and i in inside), default=0.0)
    return [v if v is None or i in inside or v <= PRESSING * highest else None for i, v in enumerate(values)]


def predictions_figure(view: RecordView) -> Any:
    """The share of predictions that are the last block's at each block, and those that come true."""
    linear = view.series("linear_lens_agreement")
    series = [
        ("made", "lens_agreement", theme.TRAIN, "circle"),
        ("made for good", "lens_settled", theme.QUALITATIVE[4], "square"),
        ("right", "lens_accuracy", theme.NULL, "triangle-up"),
        ("made, linear lens", "linear_lens_agreement", theme.QUALITATIVE[2], "diamond"),
    ]
    traces = [
        plotly.line(name, view.series(column), color, symbol=symbol, size=6, width=1.6,
                    written=[percent(v) for v in view.series(column)])
        for name, column, color, symbol in series
        if view.has(column)
    ]  # fmt: skip
    yaxis = {"tickformat": ".0%", "title": {"text": "share of the predictions"}, "range": [-0.02, 1.04]}
    xaxis = plotly.block_axis(view, view.series("lens_loss"), linear)
    return plotly.new_figure(traces, view, height=380, xaxis=xaxis, yaxis=yaxis, showlegend=True)


def _relative(view: RecordView, column: str) -> plotly.Values:
    values = view.series(column)
    first = next((values[p] for p in view.fit_positions if values[p]), None)
    inside = set(view.fit_positions)
    return [v / first if v is not None and first and i in inside else None for i, v in enumerate(values)]


def _with_r(name: str, rs: Sequence[float | None]) -> str:
    known = [r for r in rs if r is not None]
    if len(known) > 1:
        return f"{name} ({len(known)}), r = {signed(min(known))} … {signed(max(known))}"
    return f"{name}, r = {signed(known[0])}" if known else name


def _shuffled_lines(view: RecordView, shuffled: list[str]) -> Any:
    """All shuffled vocabularies as one faint trace with breaks: one entry of the legend, which shows or hides them all."""
    y: list[float | None] = []
    for target in shuffled:
        values = _relative(view, column_of(view.record, target))
        y += [*(values[p] for p in view.fit_positions), None]
    name = _with_r(SHUFFLED, [_r(view, target) for target in shuffled])
    lines = plotly.line(name, y, theme.NULL, symbol=None, width=1)
    lines.update(x=[*view.fit_positions, None] * len(shuffled), opacity=0.7, connectgaps=False, legendrank=2000)
    return lines
