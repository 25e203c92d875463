"""The class-wise picture: a heat map of D_k, class × site, the worst separated classes on top."""

from __future__ import annotations

import html
import math
from typing import Any

from layerlaw.pages import theme
from layerlaw.pages.axes import log_ticks, site_axis
from layerlaw.pages.drawing import go, new_figure, rounded, site_names
from layerlaw.pages.html.escaping import for_plotly
from layerlaw.pages.record_view import RecordView
from layerlaw.wording import beginning, finite, number

MOST_CLASSES = 40


def class_name(view: RecordView, k: int) -> str:
    """The name of class k, or its number where the record names fewer."""
    return view.record.classes[k] if k < len(view.record.classes) else f"class {k}"


def worst_classes(view: RecordView) -> list[int]:
    """Classes by D_k at the deepest site of the fit that has them, worst first, at most `MOST_CLASSES`."""
    deepest = _deepest(view)
    if deepest is None:
        return []
    values = view.sites[deepest].by_class["separation"]
    known = [(value, k) for k, v in enumerate(values) if (value := finite(v)) is not None]
    return [k for _, k in sorted(known, key=lambda pair: (-pair[0], pair[1]))][:MOST_CLASSES]


def classes_note(view: RecordView) -> str:
    """What the heat map leaves out, and its order."""
    deepest = _deepest(view)
    if deepest is None:
        return ""
    K = len(view.sites[deepest].by_class["separation"])
    of = f"The {MOST_CLASSES} worst of {K:,} classes" if K > MOST_CLASSES else "Classes"
    return f"{of}, ordered by D_k at '{view.sites[deepest].name}', the worst separated on top. Darker is fuzzier."


def classes_figure(view: RecordView) -> Any:
    """ln D_k by class and site; light is well separated."""
    order = worst_classes(view)
    if not order:
        return "No class-wise separation was recorded."
    rows = [[_value(site.by_class.get("separation", []), k) for site in view.sites] for k in order]
    logs = [[round(math.log(v), 3) if v and v > 0 else None for v in row] for row in rows]
    seen = [v for row in logs for v in row if v is not None]
    if not seen:
        return "Every class is collapsed exactly (D_k = 0): there is no logarithm to draw."
    ticks = log_ticks(min(seen) / math.log(10), max(seen) / math.log(10) + 1e-9)
    names = [for_plotly(class_name(view, k), 60) for k in order]
    height = 110 + (28 if len(order) <= 20 else 20) * max(len(order), 4)
    heat = go.Heatmap(
        z=logs,
        xgap=1 if len(view.sites) <= 40 else 0,
        ygap=1,
        colorscale=[list(stop) for stop in theme.SEQUENTIAL],
        text=[[number(v, 2 if v and v < 100 else 3) for v in row] for row in rows],
        texttemplate="%{text}" if len(view.sites) <= 14 and len(order) <= 20 else "",
        textfont={"size": 12},
        meta="grid",
        hovertemplate="%{customdata}<br>D<sub>k</sub> = %{text}<extra></extra>",
        colorbar={
            "title": {"text": "D<sub>k</sub>", "side": "top"},
            "tickvals": [rounded(math.log(t)) for t in ticks],
            "ticktext": [number(t, 1) for t in ticks],
            "thickness": 10,
            "lenmode": "pixels",
            "len": min(240, height - 60),
            "y": 1,
            "yanchor": "top",
            "outlinewidth": 0,
            "tickfont": {"size": 11, "color": theme.MUTED},
        },
    )
    yaxis = {
        "tickvals": list(range(len(order))),
        "ticktext": [html.escape(beginning(class_name(view, k), 22), quote=False) for k in order],
        "autorange": "reversed",
        "showgrid": False,
        "ticks": "outside",
        "ticklen": 8,
        "tickcolor": "rgba(0,0,0,0)",
    }
    return new_figure(
        [heat],
        meta={**site_names(view), "rows": names},
        height=height,
        xaxis={**site_axis(view), "showline": False, "ticks": ""},
        yaxis=yaxis,
    )


def _deepest(view: RecordView) -> int | None:
    """The deepest site with class-wise numbers, of the fit if there is one."""
    having = [
        i
        for i, site in enumerate(view.sites)
        if any(finite(v) is not None for v in site.by_class.get("separation", []))
    ]
    in_fit = [i for i in having if view.sites[i].in_fit]
    chosen = in_fit or having
    return chosen[-1] if chosen else None


def _value(values: list[float | None], k: int) -> float | None:
    return finite(values[k]) if k < len(values) else None
