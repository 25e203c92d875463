"""What all Plotly figures share: the template, a new figure, a series along the sites, the line of a law, error bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from layerlaw.errors import MissingExtraError
from layerlaw.law import LawFit
from layerlaw.measures.columns import describe
from layerlaw.pages import theme
from layerlaw.pages.html import for_plotly
from layerlaw.pages.record_view import RecordView
from layerlaw.wording import number

try:
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs
except ImportError:
    raise MissingExtraError("plotly", "pages", "report()") from None

__all__ = ["go"]

Values = Sequence[float | None]
Ends = Sequence[tuple[float, float] | None]


def new_figure(
    traces: Sequence[Any], *, height: int, xaxis: dict[str, Any], yaxis: dict[str, Any], **layout: Any
) -> Any:
    """A figure without a template: the page holds the template once and hands it to all."""
    figure = go.Figure(list(traces))
    figure.update_layout(template=go.layout.Template(), height=height, xaxis=xaxis, yaxis=yaxis, **layout)
    return figure


def site_names(view: RecordView) -> dict[str, list[str]]:
    """What page.js writes over the hover text of traces marked `meta="sites"`: once per figure, not once per trace."""
    pairs = zip(view.numbers, view.sites, strict=True)
    return {"sites": [f"<b>{count} · {for_plotly(site.name, 60)}</b>" for count, site in pairs]}


def plotly_source() -> str:
    """plotly.js, whole."""
    source: str = get_plotlyjs()
    return source.replace("\r\n", "\n")  # as a browser reads it, or its hash would differ


def rounded(value: float | None) -> float | None:
    """Five digits are more than any screen shows, and keep the file small."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def line(
    name: str,
    y: Values,
    color: str,
    *,
    dash: str = "solid",
    symbol: str | None = "circle",
    size: float = 7,
    width: float = 2,
    written: Sequence[str] | None = None,
) -> Any:
    """One series along the sites; on hover the site, the series and the number, in the words `written`."""
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


def fitted_line(view: RecordView, fit: LawFit, name: str, width: float = 1.5) -> Any:
    """The line of a law, dashed."""
    return go.Scatter(
        name=name,
        x=view.fit_positions,
        y=[rounded(v) for v in fit.line],
        mode="lines",
        line={"color": theme.TRAIN, "dash": "dash", "width": width},
        hoverinfo="skip",
        legendrank=2,
    )


def error_bars(values: Values, ends: Ends, **style: Any) -> dict[str, Any]:
    """Bars from the values to the ends of their intervals."""
    pairs = zip(values, ends, strict=True)
    known = [(0.0, 0.0) if v is None or pair is None else (pair[1] - v, v - pair[0]) for v, pair in pairs]
    return {
        "type": "data",
        "symmetric": False,
        "array": [rounded(up) for up, _ in known],
        "arrayminus": [rounded(down) for _, down in known],
        "color": theme.TRAIN,
        "thickness": 1.1,
        "width": 3,
    } | style


def with_intervals(view: RecordView, values: Values, ends: Ends) -> list[str]:
    """Values of the fitted column in words, each with its interval where it has one."""
    text = describe(view.column).text
    return [
        text(v) if pair is None else f"{text(v)} ({text(pair[0])} … {text(pair[1])})"
        for v, pair in zip(values, ends, strict=True)
    ]


def plotly_template() -> dict[str, Any]:
    """Layout defaults of every figure: white, no frame, light horizontal rules, static axes, words on hover."""
    font = {"family": theme.FONT, "size": 13, "color": theme.TEXT}
    axis = {
        "showgrid": False,
        "zeroline": False,
        "linecolor": theme.RULE,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": theme.RULE,
        "tickfont": {"size": 12, "color": theme.MUTED},
        "title": {"font": {"size": 13, "color": theme.MUTED}, "standoff": 12},
        "automargin": True,
        "fixedrange": True,  # a finger on a chart scrolls the page
    }
    return {
        "layout": {
            "font": font,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 56, "r": 12, "t": 12, "b": 40},
            "xaxis": {**axis, "showline": True},
            "yaxis": {**axis, "showgrid": True, "gridcolor": theme.RULE, "ticks": ""},
            "hovermode": "closest",
            "hoverlabel": {"bgcolor": "white", "bordercolor": theme.RULE, "font": font},
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.03,
                "xanchor": "left",
                "yanchor": "bottom",
                "font": {"size": 12, "color": theme.TEXT},
                "itemclick": "toggle",
            },
            "dragmode": False,
        }
    }
