"""Several records side by side: their curves in one figure, their law numbers in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerlaw.pages import theme
from layerlaw.pages.axes import block_index_axis, index_axis, log_axis
from layerlaw.pages.drawing import go, new_figure, rounded
from layerlaw.pages.html.escaping import escaped, for_plotly
from layerlaw.pages.lm_charts import bar_ends, interval_bars, with_intervals
from layerlaw.pages.reading import Reading
from layerlaw.pages.words import task_name
from layerlaw.wording import ABSENT, correlation, number, p_value, percent, shortened

LM_HEADS = (
    "record", "blocks", "ρ", "r", "r without last", "eff. layers", "p", "first PR", "lowest", "final", "task", "tokens",
    "length", "text",
)  # fmt: skip
HEADS = ("record", "layers", "ρ", "half-life", "r", "effective layers", "p", "final D", "train acc.", "test acc.")
MOST_ASIDE, MOST_SPREAD = 0.08, 0.4  # blocks: between the points of two records, and of all
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")


def compare_figure(readings: Sequence[Reading]) -> Any:
    """D or PR along the fit of every record: points, and its line dashed."""
    drawn = [
        (i, reading) for i, reading in enumerate(readings) if any(v is not None and v > 0 for v in _curve(reading))
    ]
    lm = any(reading.language_model for reading in readings)
    if not drawn:
        return f"None of the records holds a {'prediction residual' if lm else 'separation D'}."
    traces: list[Any] = []
    every: list[float | None] = []
    for place, (i, reading) in enumerate(drawn):
        aside = min(MOST_ASIDE, MOST_SPREAD / len(drawn)) * (place - (len(drawn) - 1) / 2) if lm else 0.0
        traces.append(_points(reading, i, aside))
        every += [*_curve(reading), *(end for pair in _ends(reading) for end in pair or ())]
        if reading.fit:
            traces.append(_line(reading, i))
    longest = max(len(reading.fit_positions) for _, reading in drawn)
    if lm:
        xaxis, yaxis = block_index_axis(longest), log_axis(every, "prediction residual PR", least_pad=0.004, parts=7)
    else:
        xaxis, yaxis = index_axis(longest), log_axis(every, "separation fuzziness D")
    return new_figure(traces, height=460, xaxis=xaxis, yaxis=yaxis, showlegend=True)


def _points(reading: Reading, i: int, aside: float) -> Any:
    """The points of record i with their 95% bars, a little `aside`: those of records at the same block would coincide."""
    curve, ends, first = _curve(reading), _ends(reading), int(reading.language_model)
    color = _color(i)
    what = "PR" if reading.language_model else "D"
    points = go.Scatter(
        name=for_plotly(reading.label, 32),
        legendgroup=str(i),
        x=[rounded(first + k + aside) for k in range(len(curve))],
        y=[rounded(v) for v in curve],
        mode="markers" if reading.fit else "lines+markers",
        marker={"color": color, "size": 8, "symbol": SYMBOLS[i // len(theme.QUALITATIVE) % len(SYMBOLS)]},
        line={"color": color, "width": 1.2},
        text=[f"{first + k} · {for_plotly(reading.sites[p].name, 40)}" for k, p in enumerate(reading.fit_positions)],
        customdata=with_intervals(curve, ends) if reading.language_model else [number(v) for v in curve],
        hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{text}}<br>{what} = %{{customdata}}<extra></extra>",
    )
    if any(pair is not None for pair in ends):
        points.error_y = {**interval_bars(curve, ends), "color": color, "thickness": 1, "width": 0}
    return points


def _line(reading: Reading, i: int) -> Any:
    fitted = reading.fit.line if reading.fit is not None else ()
    first = int(reading.language_model)
    return go.Scatter(
        x=[first + k for k in range(len(fitted))],
        y=[rounded(v) for v in fitted],
        mode="lines",
        line={"color": _color(i), "width": 1.3, "dash": "dash"},
        legendgroup=str(i),
        showlegend=False,
        hoverinfo="skip",
    )


def _curve(reading: Reading) -> list[float | None]:
    values = reading.series(reading.column)
    return [values[p] for p in reading.fit_positions]


def _ends(reading: Reading) -> list[tuple[float, float] | None]:
    """95% intervals of a language model's residuals, where it has them."""
    if not reading.language_model:
        return [None] * len(reading.fit_positions)
    ends = bar_ends(reading.series(reading.column), reading)
    return [ends[p] for p in reading.fit_positions]


def _color(i: int) -> str:
    return theme.QUALITATIVE[i % len(theme.QUALITATIVE)]


def compare_table(readings: Sequence[Reading]) -> str:
    """ρ, half-life, r, effective layers, p, final D and accuracies, one row per record."""
    lm = readings[0].language_model
    names = LM_HEADS if lm else HEADS
    heads = "".join(f'<th scope="col"{" class=site" if head == "record" else ""}>{head}</th>' for head in names)
    rows = "".join(f"<tr>{_row(reading, i)}</tr>" for i, reading in enumerate(readings))
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="law numbers per record">'
        f'<table class="layers{" many" if lm else ""}"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _row(reading: Reading, i: int) -> str:
    fit, record = reading.fit, reading.record
    name = (
        f'<th scope="row" class="site" title="{escaped(reading.label)}"><i class="dot" style="background:{_color(i)}"></i>'
        f"{escaped(shortened(reading.label, 40))}</th>"
    )
    if reading.language_model:
        return name + "".join(f"<td>{cell}</td>" for cell in _lm_cells(reading))
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
    final = fit.values[-1] if fit else reading.last("separation")
    cells = [*numbers, number(final), percent(record.accuracy), percent(record.test_accuracy)]
    return name + "".join(f"<td>{escaped(cell)}</td>" for cell in cells)


def _lm_cells(reading: Reading) -> list[str]:
    """Cells as HTML: intervals stand small below their numbers."""
    fit, errors, record = reading.fit, reading.errors, reading.record
    if fit is None:
        return [ABSENT] * 9 + _measured_on(reading)
    rho = None if errors is None else "{:.4f} … {:.4f}".format(*errors.rho_interval)
    interval = None if errors is None else errors.pearson_interval
    r = None if interval is None else f"{correlation(interval[0])} … {correlation(interval[1])}"
    short = record.law(reading.column, drop_last=1).pearson if fit.points > 2 else None
    return [
        str(fit.points),
        _over(f"{fit.rho:.4f}", rho),
        _over(correlation(fit.pearson), r),
        correlation(short),
        number(fit.effective_layers, 2),
        escaped(p_value(fit.greenwood_p)),
        *(f"{value:.3f}" for value in (fit.values[0], min(fit.values), fit.values[-1])),
        *_measured_on(reading),
    ]


def _measured_on(reading: Reading) -> list[str]:
    """What tells two records of one model apart: task, tokens, length of a piece, text."""
    settings, text = reading.record.settings, reading.record.provenance.get("text")
    each, length = settings.get("tokens_per_feature"), settings.get("length")
    name = str(text.get("name") or "") if isinstance(text, dict) else ""
    return [
        task_name(reading) or ABSENT,
        _over(f"{sum(reading.record.counts):,}", f"{each:.0f} per feature" if isinstance(each, (int, float)) else None),
        f"{length:,}" if isinstance(length, int) else ABSENT,
        f'<span title="{escaped(name)}">{escaped(shortened(name, 20))}</span>' if name else ABSENT,
    ]


def _over(value: str, below: str | None) -> str:
    """A number with a small line below it."""
    return value if below is None else f'{value}<span class="below">{below}</span>'
