"""Plotly figures of one record. Each function returns a figure, or a sentence that says why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerlaw.law import LawFit
from layerlaw.pages import theme
from layerlaw.pages.axes import log_axis, site_axis
from layerlaw.pages.drawing import go, new_figure, rounded, site_names
from layerlaw.pages.html.escaping import for_plotly
from layerlaw.pages.record_view import RecordView
from layerlaw.verdict import IDLE_SHARE
from layerlaw.wording import interval_factor, number, percent

Series = Sequence[float | None]
MOST_NAMES_IN_HALF_WIDTH = 12


def line(
    name: str,
    y: Series,
    color: str,
    *,
    dash: str = "solid",
    symbol: str | None = "circle",
    size: float = 7,
    width: float = 2,
    written: Sequence[str] | None = None,
) -> Any:
    """One series along the sites; on hover the site, the series and the number, `written` as asked."""
    written = written or [number(v) for v in y]
    return go.Scatter(
        name=for_plotly(name),
        y=[rounded(v) for v in y],
        mode="lines+markers" if symbol else "lines",
        line={"color": color, "dash": dash, "width": width},
        marker={"color": color, "size": marker_size(size, len(y)), "symbol": symbol or "circle"},
        meta="sites",
        customdata=list(written),
        hovertemplate=f"%{{text}}<br>{for_plotly(name)}: %{{customdata}}<extra></extra>",
    )


def marker_size(size: float, count: int) -> float:
    """Smaller, the more of them there are."""
    return size * (1 if count <= 24 else 0.7 if count <= 80 else 0.5)


def law_figure(view: RecordView) -> Any:
    """D against depth on a log axis: points with jackknife bars, the line, test data, and the two nulls."""
    train = view.series("separation")
    if not any(v is not None and v > 0 for v in train):
        return "No separation D was measured, so there is nothing to draw."
    traces: list[Any] = []
    columns = ("separation_untrained", "separation_permuted", "test_separation")
    others = {column: view.series(column) for column in columns}
    if view.has("separation_permuted"):
        floor = others.pop("separation_permuted")
        name = "permuted labels (chance)"
        shown = [v for s in (train, *others.values()) for v in s if v is not None]
        chance = [v for v in floor if v is not None]
        if min(chance) > 3 * max(shown):  # drawn within the axis it would press everything else flat
            name += f", above: {number(min(chance))} to {number(max(chance))}"
        else:
            others["separation_permuted"] = floor
        traces.append(line(name, floor, theme.NULL, dash="dot", symbol=None, width=1.5))
    if view.has("separation_untrained"):
        null = others["separation_untrained"]
        traces.append(line("untrained network", null, theme.NULL, symbol="square-open", width=1, size=6))
    if view.has("test_separation"):
        traces.append(line("test data", others["test_separation"], theme.TEST, symbol="diamond", width=1.2))
    if view.fit is not None:
        name = f"law: ρ = {number(view.fit.rho)} per layer"
        traces.append(fitted_line(view, view.fit, name))
    traces.append(_train_points(view, train))
    bars = _bar_ends(train, view.series("separation_log_se"))
    every = [*train, *bars, *(v for s in others.values() for v in s)]
    return new_figure(
        traces,
        meta=site_names(view),
        height=440,
        xaxis=site_axis(view),
        yaxis=log_axis(every, "separation fuzziness D"),
    )


def fitted_line(view: RecordView, fit: LawFit, name: str) -> Any:
    """The line of the law, dashed."""
    return go.Scatter(
        name=name,
        x=view.fit_positions,
        y=[rounded(v) for v in fit.line],
        mode="lines",
        line={"color": theme.TRAIN, "dash": "dash", "width": 1.5},
        hoverinfo="skip",
        legendrank=2,
    )


def _train_points(view: RecordView, train: Series) -> Any:
    error = view.series("separation_log_se")
    points = line("training data", train, theme.TRAIN, size=9, written=_with_interval(train, error))
    points.mode = "markers"
    points.marker.color = [theme.TRAIN if site.in_fit else "white" for site in view.sites]
    points.marker.line = {"color": theme.TRAIN, "width": 1.8}
    points.legendrank = 1
    if view.has("separation_log_se"):
        points.error_y = {
            "type": "data",
            "symmetric": False,
            "array": [
                rounded(d * (interval_factor(e) - 1)) if d and e else 0 for d, e in zip(train, error, strict=True)
            ],
            "arrayminus": [
                rounded(d * (1 - 1 / interval_factor(e))) if d and e else 0 for d, e in zip(train, error, strict=True)
            ],
            "color": theme.TRAIN,
            "thickness": 1.2,
            "width": 4,
        }
    return points


def _bar_ends(values: Series, errors: Series) -> list[float]:
    pairs = [(d, e) for d, e in zip(values, errors, strict=True) if d and e]
    return [end for d, e in pairs for end in (d / interval_factor(e), d * interval_factor(e))]


def _with_interval(values: Series, errors: Series) -> list[str]:
    return [
        f"{number(d)} ({number(d / interval_factor(e))} … {number(d * interval_factor(e))})" if d and e else number(d)
        for d, e in zip(values, errors, strict=True)
    ]


def shares_figure(view: RecordView) -> Any:
    """Each layer's share of the drop of ln D, with the even share as a line."""
    if view.fit is None:
        return "Without a fit there are no shares to show."
    if not view.shares:
        return "D does not fall from the first site to the last by more than a tenth, so there is no drop to share."
    even = 1 / view.fit.layers
    positions, shares = list(view.shares), list(view.shares.values())
    colors = [theme.RISE if s < 0 else theme.PALE if s < IDLE_SHARE * even else theme.TRAIN for s in shares]
    bars = go.Bar(
        x=positions,
        y=[rounded(s) for s in shares],
        marker={"color": colors},
        width=0.62,
        meta="sites",
        textposition="none",
        customdata=[percent(s) for s in shares],
        hovertemplate="%{text}<br>%{customdata} of the drop<extra></extra>",
    )
    yaxis = {"tickformat": ".0%", "title": {"text": "share of the drop of ln D"}, "rangemode": "tozero", "nticks": 6}
    figure = new_figure([bars], meta=site_names(view), height=320, xaxis=site_axis(view), yaxis=yaxis, showlegend=False)
    figure.add_hline(y=even, line={"color": theme.INK, "width": 1, "dash": "dash"})
    return figure


def nearest_figure(view: RecordView) -> Any:
    """Nearest class center against depth: how often it is wrong, and how often it disagrees with the network."""
    wanted = [
        ("error, train", "ncc_accuracy", theme.TRAIN, "solid", "circle"),
        ("error, test", "test_ncc_accuracy", theme.TEST, "solid", "diamond"),
        ("mismatch, train", "ncc_mismatch", theme.TRAIN, "dash", "circle-open"),
        ("mismatch, test", "test_ncc_mismatch", theme.TEST, "dash", "diamond-open"),
    ]
    traces = []
    for name, column, color, dash, symbol in wanted:
        if not view.has(column):
            continue
        y = view.series(column)
        if column.endswith("accuracy"):
            y = [None if v is None else 1 - v for v in y]
        written = [percent(v, 2) for v in y]
        traces.append(line(name, y, color, dash=dash, symbol=symbol, written=written))
    if not traces:
        return "The nearest class center was not measured."
    yaxis = {"tickformat": ".0~%", "title": {"text": "share of samples"}, "rangemode": "tozero", "nticks": 7}
    return new_figure(
        traces,
        meta=site_names(view),
        height=400,
        xaxis=site_axis(view, most=MOST_NAMES_IN_HALF_WIDTH),
        yaxis=yaxis,
    )


def collapse_figure(view: RecordView) -> Any:
    """Measures of neural collapse against depth, on a log axis."""
    wanted = [
        ("NC1", "nc1", theme.QUALITATIVE[0], "solid", "circle"),
        ("NC1, test", "test_nc1", theme.QUALITATIVE[0], "dot", "circle-open"),
        ("CDNV", "cdnv", theme.QUALITATIVE[1], "solid", "square"),
        ("CDNV, test", "test_cdnv", theme.QUALITATIVE[1], "dot", "square-open"),
        ("compression", "compression", theme.QUALITATIVE[3], "solid", "diamond"),
        ("NC2 norms", "nc2_norms", theme.QUALITATIVE[2], "solid", "triangle-up"),
        ("NC2 angles", "nc2_angles", theme.QUALITATIVE[8], "solid", "triangle-down"),
    ]
    traces, every = [], []
    for name, column, color, dash, symbol in wanted:
        y = [v if v is not None and v > 0 else None for v in view.series(column)]  # no zero on a log axis
        if any(v is not None for v in y):
            every += y
            traces.append(line(name, y, color, dash=dash, symbol=symbol, size=6, width=1.6))
    if not traces:
        return "No measure of neural collapse was taken along depth."
    xaxis = site_axis(view, most=MOST_NAMES_IN_HALF_WIDTH)
    return new_figure(traces, meta=site_names(view), height=400, xaxis=xaxis, yaxis=log_axis(every, "0 at collapse"))
