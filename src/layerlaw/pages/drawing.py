"""The one door to Plotly: graph objects, a new figure in the house style, numbers as it needs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from layerlaw.errors import MissingExtraError
from layerlaw.pages.html.escaping import for_plotly
from layerlaw.pages.record_view import RecordView

try:
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs
except ImportError:
    raise MissingExtraError("plotly", "pages", "report()") from None

__all__ = ["go", "new_figure", "plotly_source", "rounded", "site_names"]


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
