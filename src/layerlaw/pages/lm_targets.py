"""Plotly figures of what else was predicted: other codes of the next token, other tokens; and the separation."""

from __future__ import annotations

from typing import Any

from layerlaw.errors import InputError
from layerlaw.pages import theme
from layerlaw.pages.axes import block_axis, log_axis
from layerlaw.pages.charts import Series, line
from layerlaw.pages.drawing import go, new_figure, rounded, site_names
from layerlaw.pages.lm_charts import LEAST_PAD
from layerlaw.pages.record_view import RecordView
from layerlaw.verdict.targets import SHUFFLED, column_of, is_shuffled, pearson_of, target_name, targets
from layerlaw.wording import NOTHING, correlation, number, signed

OTHER_TOKENS = ("previous", "current", "next2")  # not the next token: their residuals may rise, and lie elsewhere
SYMBOLS = ("square", "diamond", "triangle-up", "cross", "x", "star")


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
    yaxis = log_axis([*every, *y], "PR over PR at the first block", least_pad=LEAST_PAD, parts=7)
    return new_figure(traces, meta=site_names(view), height=420, xaxis=block_axis(view), yaxis=yaxis)


def other_tokens_figure(view: RecordView) -> Any:
    """PR of tokens around, as it is: how information on the past goes and on the future comes."""
    own = view.fit.pearson if view.fit is not None else None
    series = [("next token", view.column, own)]
    series += [(target_name(t), column_of(view.record, t), pearson_of(view.record, t)) for t in other_tokens(view)]
    traces: list[Any] = []
    drawn: list[Series] = []
    for i, (name, column, r) in enumerate(series):
        # what is predicted exactly has no logarithm
        y = [v if v is not None and v > NOTHING else None for v in view.series(column)]
        color = theme.QUALITATIVE[i] if i else theme.TRAIN
        traces.append(line(_with_r(name, r), y, color, symbol=("circle", *SYMBOLS)[i], size=6, width=1.6))
        drawn.append(y)
    yaxis = log_axis([v for y in drawn for v in y], "PR", least_pad=LEAST_PAD, parts=7)
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
        traces.append(
            go.Scatter(
                name=f"law: ρ = {number(fit.rho)}, r = {correlation(fit.pearson)}",
                x=view.fit_positions,
                y=[rounded(v) for v in fit.line],
                mode="lines",
                line={"color": theme.TRAIN, "dash": "dash", "width": 1.3},
                hoverinfo="skip",
            )
        )
    yaxis = log_axis([*D, *null], "separation fuzziness D", least_pad=0.02)
    return new_figure(traces, meta=site_names(view), height=420, xaxis=block_axis(view, D, null), yaxis=yaxis)


def _relative(view: RecordView, column: str) -> Series:
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
