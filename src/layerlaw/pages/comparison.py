"""Several records side by side: their curves in one figure, their law numbers in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerlaw.pages import theme
from layerlaw.pages.axes import block_index_axis, index_axis, log_axis
from layerlaw.pages.drawing import go, new_figure, rounded
from layerlaw.pages.html.escaping import escaped, for_plotly
from layerlaw.pages.lm_charts import bar_ends, interval_bars, with_intervals
from layerlaw.pages.record_view import RecordView
from layerlaw.pages.words import task_name
from layerlaw.wording import ABSENT, correlation, number, p_value, percent, shortened

LM_HEADS = (
    "record", "blocks", "ρ", "r", "r without last", "eff. layers", "p", "first PR", "lowest", "final", "task", "tokens",
    "length", "text",
)  # fmt: skip
HEADS = ("record", "layers", "ρ", "half-life", "r", "effective layers", "p", "final D", "train acc.", "test acc.")
MOST_ASIDE, MOST_SPREAD = 0.08, 0.4  # blocks: between the points of two records, and of all
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")


def compare_figure(views: Sequence[RecordView]) -> Any:
    """D or PR along the fit of every record: points, and its line dashed."""
    drawn = [(i, view) for i, view in enumerate(views) if any(v is not None and v > 0 for v in _curve(view))]
    lm = any(view.language_model for view in views)
    if not drawn:
        return f"None of the records holds a {'prediction residual' if lm else 'separation D'}."
    traces: list[Any] = []
    every: list[float | None] = []
    for place, (i, view) in enumerate(drawn):
        aside = min(MOST_ASIDE, MOST_SPREAD / len(drawn)) * (place - (len(drawn) - 1) / 2) if lm else 0.0
        traces.append(_points(view, i, aside))
        every += [*_curve(view), *(end for pair in _ends(view) for end in pair or ())]
        if view.fit:
            traces.append(_line(view, i))
    longest = max(len(view.fit_positions) for _, view in drawn)
    if lm:
        xaxis, yaxis = block_index_axis(longest), log_axis(every, "prediction residual PR", least_pad=0.004, parts=7)
    else:
        xaxis, yaxis = index_axis(longest), log_axis(every, "separation fuzziness D")
    return new_figure(traces, height=460, xaxis=xaxis, yaxis=yaxis, showlegend=True)


def _points(view: RecordView, i: int, aside: float) -> Any:
    """The points of record i with their 95% bars, a little `aside`: those of records at the same block would coincide."""
    curve, ends, first = _curve(view), _ends(view), int(view.language_model)
    color = _color(i)
    what = "PR" if view.language_model else "D"
    points = go.Scatter(
        name=for_plotly(view.label, 32),
        legendgroup=str(i),
        x=[rounded(first + k + aside) for k in range(len(curve))],
        y=[rounded(v) for v in curve],
        mode="markers" if view.fit else "lines+markers",
        marker={"color": color, "size": 8, "symbol": SYMBOLS[i // len(theme.QUALITATIVE) % len(SYMBOLS)]},
        line={"color": color, "width": 1.2},
        text=[f"{first + k} · {for_plotly(view.sites[p].name, 40)}" for k, p in enumerate(view.fit_positions)],
        customdata=with_intervals(curve, ends) if view.language_model else [number(v) for v in curve],
        hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{text}}<br>{what} = %{{customdata}}<extra></extra>",
    )
    if any(pair is not None for pair in ends):
        points.error_y = {**interval_bars(curve, ends), "color": color, "thickness": 1, "width": 0}
    return points


def _line(view: RecordView, i: int) -> Any:
    fitted = view.fit.line if view.fit is not None else ()
    first = int(view.language_model)
    return go.Scatter(
        x=[first + k for k in range(len(fitted))],
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


def _ends(view: RecordView) -> list[tuple[float, float] | None]:
    """95% intervals of a language model's residuals, where it has them."""
    if not view.language_model:
        return [None] * len(view.fit_positions)
    ends = bar_ends(view.series(view.column), view)
    return [ends[p] for p in view.fit_positions]


def _color(i: int) -> str:
    return theme.QUALITATIVE[i % len(theme.QUALITATIVE)]


def compare_table(views: Sequence[RecordView]) -> str:
    """ρ, half-life, r, effective layers, p, final D and accuracies, one row per record."""
    lm = views[0].language_model
    names = LM_HEADS if lm else HEADS
    heads = "".join(f'<th scope="col"{" class=site" if head == "record" else ""}>{head}</th>' for head in names)
    rows = "".join(f"<tr>{_row(view, i)}</tr>" for i, view in enumerate(views))
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="law numbers per record">'
        f'<table class="layers{" many" if lm else ""}"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _row(view: RecordView, i: int) -> str:
    fit, record = view.fit, view.record
    name = (
        f'<th scope="row" class="site" title="{escaped(view.label)}"><i class="dot" style="background:{_color(i)}"></i>'
        f"{escaped(shortened(view.label, 40))}</th>"
    )
    if view.language_model:
        return name + "".join(f"<td>{cell}</td>" for cell in _lm_cells(view))
    numbers = (
        ["–"] * 6
        if fit is None
        else [
            str(fit.layers),
            number(fit.rho),
            number(fit.half_life),
            correlation(fit.pearson),
            number(fit.effective_layers, 2),
            p_value(fit.greenwood_p),
        ]
    )
    final = fit.values[-1] if fit else view.last("separation")
    cells = [*numbers, number(final), percent(record.accuracy), percent(record.test_accuracy)]
    return name + "".join(f"<td>{escaped(cell)}</td>" for cell in cells)


def _lm_cells(view: RecordView) -> list[str]:
    """Cells as HTML: intervals stand small below their numbers."""
    fit, errors, record = view.fit, view.errors, view.record
    if fit is None:
        return [ABSENT] * 9 + _measured_on(view)
    rho = None if errors is None else "{:.4f} … {:.4f}".format(*errors.rho_interval)
    interval = None if errors is None else errors.pearson_interval
    r = None if interval is None else f"{correlation(interval[0])} … {correlation(interval[1])}"
    short = record.law(view.column, drop_last=1).pearson if fit.points > 2 else None
    return [
        str(fit.points),
        _over(f"{fit.rho:.4f}", rho),
        _over(correlation(fit.pearson), r),
        correlation(short),
        number(fit.effective_layers, 2),
        escaped(p_value(fit.greenwood_p)),
        *(f"{value:.3f}" for value in (fit.values[0], min(fit.values), fit.values[-1])),
        *_measured_on(view),
    ]


def _measured_on(view: RecordView) -> list[str]:
    """What tells two records of one model apart: task, tokens, length of a piece, text."""
    settings, text = view.record.settings, view.record.provenance.get("text")
    each, length = settings.get("tokens_per_feature"), settings.get("length")
    name = str(text.get("name") or "") if isinstance(text, dict) else ""
    return [
        task_name(view) or ABSENT,
        _over(f"{sum(view.record.counts):,}", f"{each:.0f} per feature" if isinstance(each, (int, float)) else None),
        f"{length:,}" if isinstance(length, int) else ABSENT,
        f'<span title="{escaped(name)}">{escaped(shortened(name, 20))}</span>' if name else ABSENT,
    ]


def _over(value: str, below: str | None) -> str:
    """A number with a small line below it."""
    return value if below is None else f'{value}<span class="below">{below}</span>'
