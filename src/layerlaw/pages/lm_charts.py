"""Plotly figures of a language model's residuals along its blocks: the law, what it leaves, and what each block takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from layerlaw.pages import theme
from layerlaw.pages.axes import block_axis, log_axis
from layerlaw.pages.charts import Series, fitted_line, line, marker_size
from layerlaw.pages.drawing import go, new_figure, rounded, site_names
from layerlaw.pages.lm_columns import LEAST_SCALE, even_gain
from layerlaw.pages.record_view import RecordView
from layerlaw.verdict import IDLE_SHARE
from layerlaw.wording import percent, residual

LEAST_PAD = 0.004  # decades: residuals differ in their third digit
PRESSING = 1.6  # a null that would stretch the axis more than this would press the curve flat


def residual_figure(view: RecordView) -> Any:
    """PR against depth on a log axis: points with jackknife bars, the line, in-sample, and the untrained model."""
    lead = view.series(view.column)
    if not any(v is not None and v > 0 for v in lead):
        return "No prediction residual was measured, so there is nothing to draw."
    ends = bar_ends(lead, view)
    every: list[float | None] = [*lead, *(v for pair in ends for v in pair or ())]
    traces: list[Any] = []
    inside: Series = view.series("residual") if view.column != "residual" else []
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
    yaxis = log_axis(every, "prediction residual PR", least_pad=LEAST_PAD, parts=7)
    return new_figure(
        traces, meta=site_names(view), height=440, xaxis=block_axis(view, lead, inside, null), yaxis=yaxis
    )


def _points(view: RecordView, lead: Series, ends: Sequence[tuple[float, float] | None], *, in_fit: bool) -> Any:
    """The points of the law, solid, or those beside it, hollow: apart, since a legend shows the first point of a trace."""
    name = "held out" if view.column == "residual_held_out" else "in-sample"
    where = [i for i, site in enumerate(view.sites) if site.in_fit is in_fit]
    values, pairs = [lead[i] for i in where], [ends[i] for i in where]
    points = line(name, values, theme.TRAIN, size=9, written=with_intervals(values, pairs))
    points.update(x=where, mode="markers", legendgroup="lead", legendrank=1, showlegend=in_fit)
    points.marker.update(
        size=marker_size(9, len(lead)),
        color=theme.TRAIN if in_fit else "white",
        line={"color": theme.TRAIN, "width": 1.8},
    )
    if any(pair is not None for pair in ends):
        points.error_y = interval_bars(values, pairs)
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
        points.error_y = _bars(wide, wide)
    yaxis = {"tickformat": ".3~%", "title": {"text": "PR above its line"}, "nticks": 6}
    figure = _plain(view, [points], yaxis, 340)
    figure.add_hline(y=0, line={"color": theme.INK, "width": 1, "dash": "dash"})
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
        bars.error_y = {**_bars(wide, wide), "color": theme.MUTED, "width": 0}
    yaxis = {"tickformat": ".3~%", "title": {"text": "PR falls by"}, "nticks": 6}
    if max(abs(g) + w for g, w in zip(gains.values(), wide, strict=True)) < LEAST_SCALE:  # noise has to look like noise
        yaxis["range"] = [-1.1 * LEAST_SCALE, 1.1 * LEAST_SCALE]
    figure = _plain(view, [bars], yaxis, 340)
    if even is not None and even > 0:
        figure.add_hline(y=even, line={"color": theme.INK, "width": 1, "dash": "dash"})
    return figure


def bar_ends(values: Series, view: RecordView) -> list[tuple[float, float] | None]:
    """Ends of the 95% interval at each site, with Student's t of the groups."""
    t = view.errors.t if view.errors is not None else 1.96
    errors = view.series(f"{view.column}_log_se")
    factors = [None if e is None else math.exp(min(t * abs(e), 100.0)) for e in errors]
    return [(v / f, v * f) if v and v > 0 and f else None for v, f in zip(values, factors, strict=True)]


def interval_bars(values: Series, ends: Sequence[tuple[float, float] | None]) -> dict[str, Any]:
    """Bars from the values to the ends of their intervals."""
    return _bars(
        [0.0 if p is None or v is None else p[1] - v for p, v in zip(ends, values, strict=True)],
        [0.0 if p is None or v is None else v - p[0] for p, v in zip(ends, values, strict=True)],
    )


def with_intervals(values: Series, ends: Sequence[tuple[float, float] | None]) -> list[str]:
    """Residuals as words, each with its interval where it has one."""
    return [
        text if pair is None else f"{text} ({residual(pair[0])} … {residual(pair[1])})"
        for text, pair in zip(_digits(values), ends, strict=True)
    ]


def _plain(view: RecordView, traces: list[Any], yaxis: dict[str, Any], height: int) -> Any:
    return new_figure(
        traces, meta=site_names(view), height=height, xaxis=block_axis(view), yaxis=yaxis, showlegend=False
    )


def _bars(up: Sequence[float], down: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [rounded(v) for v in up],
        "arrayminus": [rounded(v) for v in down],
        "color": theme.TRAIN,
        "thickness": 1.1,
        "width": 3,
    }


def _digits(values: Series) -> list[str]:
    return [residual(v) for v in values]


def _log_span(values: Sequence[float | None]) -> float:
    known = [math.log(v) for v in values if v is not None and v > 0]
    return max(known) - min(known) if known else 0.0
