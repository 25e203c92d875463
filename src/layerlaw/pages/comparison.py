"""Several records side by side: their curves in one figure, their law numbers in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerlaw.pages import theme
from layerlaw.pages.axes import index_axis, log_axis
from layerlaw.pages.drawing import go, new_figure, rounded
from layerlaw.pages.numbers import correlation, escaped, for_plotly, number, p_value, percent, shortened
from layerlaw.pages.reading import Reading

LM_HEADS = (
    "record", "blocks", "ρ", "r", "95% of r", "without the last", "effective layers", "p", "first PR", "lowest PR",
    "final PR", "tokens", "per feature",
)  # fmt: skip
HEADS = ("record", "layers", "ρ", "half-life", "r", "effective layers", "p", "final D", "train acc.", "test acc.")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")


def compare_figure(readings: Sequence[Reading]) -> Any:
    """D along the fit of every record: points, and its line dashed."""
    traces: list[Any] = []
    every: list[float | None] = []
    longest = 0
    for i, reading in enumerate(readings):
        positions = reading.fit_positions
        train = reading.series(reading.column)
        D = [train[p] for p in positions]
        if not any(v is not None and v > 0 for v in D):
            continue
        colour = theme.QUALITATIVE[i % len(theme.QUALITATIVE)]
        what = "PR" if reading.language_model else "D"
        symbol = SYMBOLS[i // len(theme.QUALITATIVE) % len(SYMBOLS)]
        traces.append(
            go.Scatter(
                name=for_plotly(reading.label, 32),
                legendgroup=str(i),
                y=[rounded(v) for v in D],
                mode="markers" if reading.fit else "lines+markers",
                marker={"color": colour, "size": 8, "symbol": symbol},
                line={"color": colour, "width": 1.2},
                text=[f"{k} · {for_plotly(reading.sites[p].name, 40)}" for k, p in enumerate(positions)],
                customdata=[number(v, 4 if reading.language_model else 3) for v in D],
                hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{text}}<br>{what} = %{{customdata}}<extra></extra>",
            )
        )
        if reading.fit:
            traces.append(
                go.Scatter(
                    y=[rounded(v) for v in reading.fit.line],
                    mode="lines",
                    line={"color": colour, "width": 1.3, "dash": "dash"},
                    legendgroup=str(i),
                    showlegend=False,
                    hoverinfo="skip",
                )
            )
        every += D
        longest = max(longest, len(D))
    if any(reading.language_model for reading in readings):
        if not traces:
            return "None of the records holds a prediction residual."
        yaxis = log_axis(every, "prediction residual PR", least_pad=0.004, parts=7)
        xaxis = {**index_axis(longest), "title": {"text": "block, counted along the fit"}}
        return new_figure(traces, height=460, xaxis=xaxis, yaxis=yaxis, showlegend=True)
    if not traces:
        return "None of the records holds a separation D."
    yaxis = log_axis(every, "separation fuzziness D")
    return new_figure(traces, height=460, xaxis=index_axis(longest), yaxis=yaxis, showlegend=True)


def compare_table(readings: Sequence[Reading]) -> str:
    """ρ, half-life, r, effective layers, p, final D and accuracies, one row per record."""
    names = LM_HEADS if readings[0].language_model else HEADS
    heads = "".join(f'<th scope="col"{" class=site" if head == "record" else ""}>{head}</th>' for head in names)
    rows = "".join(f"<tr>{_row(reading, i)}</tr>" for i, reading in enumerate(readings))
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="law numbers per record">'
        f'<table class="layers"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _row(reading: Reading, i: int) -> str:
    fit, record = reading.fit, reading.record
    colour = theme.QUALITATIVE[i % len(theme.QUALITATIVE)]
    name = (
        f'<th scope="row" class="site" title="{escaped(reading.label)}"><i class="dot" style="background:{colour}"></i>'
        f"{escaped(shortened(reading.label, 40))}</th>"
    )
    if reading.language_model:
        return name + "".join(f"<td>{escaped(cell)}</td>" for cell in _lm_cells(reading))
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
    fit, errors, record = reading.fit, reading.errors, reading.record
    each = record.settings.get("tokens_per_feature")
    size = [f"{sum(record.counts):,}", number(each, 2) if isinstance(each, (int, float)) else "–"]
    if fit is None:
        return ["–"] * 10 + size
    interval = None if errors is None else errors.pearson_interval
    short = record.law(reading.column, drop_last=1).pearson if fit.points > 2 else None
    return [
        str(fit.points),
        f"{fit.rho:.4f}",
        correlation(fit.pearson),
        "–" if interval is None else f"{correlation(interval[0])} … {correlation(interval[1])}",
        correlation(short),
        number(fit.effective_layers, 2),
        p_value(fit.greenwood_p),
        *(f"{value:.3f}" for value in (fit.values[0], min(fit.values), fit.values[-1])),
        *size,
    ]
