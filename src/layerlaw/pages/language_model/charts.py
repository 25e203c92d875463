"""Plotly figures of a language model: the law, what it leaves, what each block takes, other targets, the separation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from layerlaw.errors import InputError
from layerlaw.pages import theme
from layerlaw.pages.axes import block_axis, log_axis
from layerlaw.pages.html.plotly import (
    Ends,
    Values,
    error_bars,
    fitted_line,
    go,
    line,
    marker_size,
    new_figure,
    rounded,
    site_names,
    with_intervals,
)
from layerlaw.pages.language_model import LEAST_SCALE, even_gain, measured_how
from layerlaw.pages.record_view import RecordView
from layerlaw.verdict import IDLE_SHARE
from layerlaw.verdict.targets import SHUFFLED, column_of, is_shuffled, pearson_of, target_name, targets
from layerlaw.wording import NOTHING, correlation, number, percent, residual, signed

PRESSING = 1.6  # a null that would stretch the axis more than this would press the curve flat
OTHER_TOKENS = ("previous", "current", "next2")  # not the next token: their residuals may rise, and lie elsewhere
SYMBOLS = ("square", "diamond", "triangle-up", "cross", "x", "star")


def residual_figure(view: RecordView) -> Any:
    """PR against depth on a log axis: points with jackknife bars, the line, in-sample, and the untrained model."""
    lead = view.series(view.column)
    if not any(v is not None and v > 0 for v in lead):
        return "No prediction residual was measured, so there is nothing to draw."
    ends = view.ends
    every: list[float | None] = [*lead, *(v for pair in ends for v in pair or ())]
    traces: list[Any] = []
    inside: Values = view.series("residual") if view.column != "residual" else []
    if any(v is not None for v in inside):
        traces.append(line("in-sample", inside, theme.TEST, symbol="diamond", width=1.2, written=_digits(inside)))
        every += inside
    null = view.series(f"{view.column}_untrained")
    if any(v is not None for v in null):
        fits = _log_span([*every, *null]) <= PRESSING * _log_span(every)
        known = [v for v in null if v is not None]
        name = "untrained" if fits else f"untrained, off the axis: {min(known):.3f} to {max(known):.3f}"
        traces.insert(0, line(name, null, theme.NULL, symbol="square-open", width=1, size=6, written=_digits(null)))
        every += null if fits else []
    if view.fit is not None:
        every += view.fit.line
        traces.append(fitted_line(view, view.fit, f"law: ρ = {view.fit.rho:.4f} per block"))
    aside = any(not site.in_fit for site in view.sites)
    traces += [_points(view, lead, ends, in_fit=which) for which in ((False, True) if aside else (True,))]
    yaxis = log_axis(every, "prediction residual PR", margin=view.record.kind.margin)
    return new_figure(
        traces, meta=site_names(view), height=440, xaxis=block_axis(view, lead, inside, null), yaxis=yaxis
    )


def _points(view: RecordView, lead: Values, ends: Ends, *, in_fit: bool) -> Any:
    """The points of the law, solid, or those beside it, hollow: apart, since a legend shows the first point of a trace."""
    name = measured_how(view)
    where = [i for i, site in enumerate(view.sites) if site.in_fit is in_fit]
    values, pairs = [lead[i] for i in where], [ends[i] for i in where]
    points = line(name, values, theme.TRAIN, size=9, written=with_intervals(view, values, pairs))
    points.update(x=where, mode="markers", legendgroup="lead", legendrank=1, showlegend=in_fit)
    points.marker.update(
        size=marker_size(9, len(lead)),
        color=theme.TRAIN if in_fit else "white",
        line={"color": theme.TRAIN, "width": 1.8},
    )
    if any(pair is not None for pair in ends):
        points.error_y = error_bars(values, pairs)
    return points


def deviations_figure(view: RecordView) -> Any:
    """How far PR lies from its line, in percent, with 95% bars where documents were grouped."""
    fit = view.fit
    if fit is None:
        return "Without a fit there is nothing to be off."
    off = [math.exp(e) - 1 for e in fit.residuals]
    points = go.Scatter(
        x=view.fit_positions,
        y=[rounded(v) for v in off],
        mode="lines+markers",
        line={"color": theme.PALE, "width": 1.2},
        marker={"color": theme.TRAIN, "size": 7 if len(off) <= 40 else 4},
        meta="sites",
        customdata=[percent(v, 2) for v in off],
        hovertemplate="%{text}<br>%{customdata} off the line<extra></extra>",
    )
    if view.errors is not None:
        wide = [view.errors.t * se for se in view.errors.residuals]
        points.error_y = _whiskers(off, wide)
    yaxis = {"tickformat": ".3~%", "title": {"text": "PR above its line"}, "nticks": 6}
    figure = _plain(view, [points], yaxis, 340)
    figure.add_hline(y=0, line={"color": theme.TEXT, "width": 1, "dash": "dash"})
    return figure


def gains_figure(view: RecordView) -> Any:
    """By how much of itself PR falls at each block; hollow, the first one, from the embedded input."""
    gains = view.gains
    if not gains:
        return "Without two neighboring residuals there is no gain to show."
    even = even_gain(view)
    bar = 0.0 if even is None else IDLE_SHARE * even
    first = view.fit_positions[0]
    colors = [theme.RISE if g < 0 else theme.PALE if g < bar else theme.TRAIN for g in gains.values()]
    bars = go.Bar(
        x=list(gains),
        y=[rounded(g) for g in gains.values()],
        marker={
            "color": ["white" if i == first else c for i, c in zip(gains, colors, strict=True)],
            "line": {"color": colors, "width": [1.5 if i == first else 0 for i in gains]},
        },
        width=0.62,
        meta="sites",
        textposition="none",
        customdata=[f"falls by {percent(g, 2)}" if g >= 0 else f"rises by {percent(-g, 2)}" for g in gains.values()],
        hovertemplate="%{text}<br>PR %{customdata}<extra></extra>",
    )
    wide = [0.0] * len(gains)
    if view.errors is not None:
        steps = dict(zip(view.fit_positions[1:], view.errors.steps, strict=True))
        wide = [view.errors.t * steps.get(i, 0.0) for i in gains]
        bars.error_y = _whiskers(list(gains.values()), wide, color=theme.MUTED, width=0)
    yaxis = {"tickformat": ".3~%", "title": {"text": "PR falls by"}, "nticks": 6}
    if max(abs(g) + w for g, w in zip(gains.values(), wide, strict=True)) < LEAST_SCALE:  # noise has to look like noise
        yaxis["range"] = [-1.1 * LEAST_SCALE, 1.1 * LEAST_SCALE]
    figure = _plain(view, [bars], yaxis, 340)
    if even is not None and even > 0:
        figure.add_hline(y=even, line={"color": theme.TEXT, "width": 1, "dash": "dash"})
    return figure


def _plain(view: RecordView, traces: list[Any], yaxis: dict[str, Any], height: int) -> Any:
    return new_figure(
        traces, meta=site_names(view), height=height, xaxis=block_axis(view), yaxis=yaxis, showlegend=False
    )


def _whiskers(values: Sequence[float], wide: Sequence[float], **style: Any) -> dict[str, Any]:
    """Bars of so much on either side."""
    return error_bars(values, [(v - w, v + w) for v, w in zip(values, wide, strict=True)], **style)


def _digits(values: Values) -> list[str]:
    return [residual(v) for v in values]


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
    traces: list[Any] = []
    every: list[float | None] = []
    shuffled = [target for target in codes(view) if is_shuffled(target)]
    if shuffled:
        traces.append(_shuffled_lines(view, shuffled))
        every += traces[0].y
    for i, target in enumerate(target for target in codes(view) if not is_shuffled(target)):
        y = _relative(view, column_of(view.record, target))
        name = _with_r(target_name(target), pearson_of(view.record, target))
        traces.append(
            line(name, y, theme.QUALITATIVE[(i + 1) % 10], symbol=SYMBOLS[i % len(SYMBOLS)], size=6, width=1.4)
        )
        every += y
    y = _relative(view, view.column)
    r = view.fit.pearson if view.fit is not None else None
    identity = line(_with_r("id", r), y, theme.TRAIN, size=6, width=2.2)
    identity.legendrank = 1
    traces.append(identity)
    yaxis = log_axis([*every, *y], "PR over PR at the first block", margin=view.record.kind.margin)
    return new_figure(traces, meta=site_names(view), height=420, xaxis=block_axis(view), yaxis=yaxis)


def other_tokens_figure(view: RecordView) -> Any:
    """PR of tokens around, as it is: how information on the past goes and on the future comes."""
    own = view.fit.pearson if view.fit is not None else None
    series = [("next token", view.column, own)]
    series += [(target_name(t), column_of(view.record, t), pearson_of(view.record, t)) for t in other_tokens(view)]
    traces: list[Any] = []
    drawn: list[Values] = []
    for i, (name, column, r) in enumerate(series):
        # what is predicted exactly has no logarithm
        y = [v if v is not None and v > NOTHING else None for v in view.series(column)]
        color = theme.QUALITATIVE[i] if i else theme.TRAIN
        traces.append(line(_with_r(name, r), y, color, symbol=("circle", *SYMBOLS)[i], size=6, width=1.6))
        drawn.append(y)
    yaxis = log_axis([v for y in drawn for v in y], "PR", margin=view.record.kind.margin)
    return new_figure(traces, meta=site_names(view), height=420, xaxis=block_axis(view, *drawn), yaxis=yaxis)


def separation_figure(view: RecordView) -> Any:
    """D of the most frequent tokens as classes, its line, and the untrained model."""
    D, null = view.series("separation"), view.series("separation_untrained")
    traces = [line("D", D, theme.TRAIN, size=7, width=1.2)]
    traces[0].legendrank = 1
    if any(v is not None for v in null):
        traces.insert(0, line("untrained", null, theme.NULL, symbol="square-open", width=1, size=6))
    try:
        fit = view.record.law("separation")
    except InputError:
        fit = None
    if fit is not None:
        name = f"law: ρ = {number(fit.rho)}, r = {correlation(fit.pearson)}"
        traces.append(fitted_line(view, fit, name, width=1.3))
    yaxis = log_axis([*D, *null], "separation fuzziness D", margin=0.02)
    return new_figure(traces, meta=site_names(view), height=420, xaxis=block_axis(view, D, null), yaxis=yaxis)


def _relative(view: RecordView, column: str) -> Values:
    values = view.series(column)
    first = next((values[p] for p in view.fit_positions if values[p]), None)
    inside = set(view.fit_positions)
    return [v / first if v is not None and first and i in inside else None for i, v in enumerate(values)]


def _with_r(name: str, r: float | None) -> str:
    return name if r is None else f"{name}, r = {signed(r)}"


def _shuffled_lines(view: RecordView, shuffled: list[str]) -> Any:
    """All shuffled vocabularies as one faint trace with breaks: one entry of the legend, which shows or hides them all."""
    inside = view.fit_positions
    x: list[int | None] = []
    y: list[float | None] = []
    for target in shuffled:
        values = _relative(view, column_of(view.record, target))
        x += [*inside, None]
        y += [*(values[p] for p in inside), None]
    lines = line(_shuffled_name(view, shuffled), y, theme.NULL, symbol=None, width=1)
    lines.update(x=x, opacity=0.7, connectgaps=False, legendrank=2000)
    return lines


def _shuffled_name(view: RecordView, shuffled: list[str]) -> str:
    known = [r for target in shuffled if (r := pearson_of(view.record, target)) is not None]
    if len(known) < 2:
        return _with_r(SHUFFLED, known[0] if known else None)
    return f"{SHUFFLED} ({len(known)}), r = {signed(min(known))} … {signed(max(known))}"
