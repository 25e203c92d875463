"""The pieces a page is put together from: a section with its heading, and the box of a chart."""

from __future__ import annotations

from typing import Any

from layerlaw.pages.html.escaping import escaped


def section(panel: str, key: str, heading: str, body: str, caption: str = "") -> str:
    """A section; `key` makes its id unique on the page, `caption` stands below the heading."""
    head = f"<h2>{heading}</h2>" if heading else ""
    note = f'<p class="caption">{caption}</p>' if caption else ""
    return f'<section id="{key}-{panel}-panel" data-panel="{panel}">{head}{note}{body}</section>'


def chart(key: str, figure: Any) -> str:
    """A Plotly figure as an empty box and its JSON, drawn by page.js; or the sentence that stands in its place."""
    if isinstance(figure, str):
        return f'<p class="empty">{escaped(figure)}</p>'
    data = inert(figure.to_json())
    height = int(figure.layout.height)
    return (
        f'<div class="chart" id="{key}" style="height:{height}px"></div>'
        f'<script type="application/json" data-figure="{key}">{data}</script>'
    )


def inert(text: str) -> str:
    """JSON in which no tag, no comment and no end of a script can stand."""
    return text.replace("<", "\\u003c")
