"""Colors, the Plotly template and the style sheet: everything that decides how a page looks."""

from __future__ import annotations

import colorsys
from importlib import resources
from typing import Any

INK = "#1c2733"
MUTED = "#5a6876"
RULE = "#e2e7ec"
TRAIN = "#1f4e8c"
PALE = "#a9c0dd"
TEST = "#d4731c"
NULL = "#98a3ae"
RISE = "#b23a48"
FONT = (
    "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'Liberation Sans', Arial, system-ui, sans-serif"
)

QUALITATIVE = (  # Paul Tol's muted scheme (color-blind safe), with a gray for the tenth
    "#332288", "#44aa99", "#cc6677", "#ddaa33", "#88ccee", "#117733", "#aa4499", "#999933", "#882255", "#777777",
)  # fmt: skip
SEQUENTIAL = ((0.0, "#f4f7fb"), (0.35, "#b7cce6"), (0.7, "#4f7fb8"), (1.0, "#12325f"))  # light: well separated


MOST_HUES = 36  # no eye tells more apart


def class_colors(count: int) -> list[str]:
    """One color per class: ten told apart by eye, more by hue (neighbors a golden angle apart)."""
    if count <= len(QUALITATIVE):
        return list(QUALITATIVE[:count])
    hues = []
    for i in range(min(count, MOST_HUES)):
        lightness = (0.42, 0.56, 0.36)[i % 3]
        r, g, b = colorsys.hls_to_rgb(i * 0.381966 % 1, lightness, 0.55)
        hues.append(f"#{round(255 * r):02x}{round(255 * g):02x}{round(255 * b):02x}")
    return [hues[k % len(hues)] for k in range(count)]


def style_sheet() -> str:
    """The page's CSS, with the colors above as variables."""
    colors = {"ink": INK, "muted": MUTED, "rule": RULE, "train": TRAIN, "pale": PALE, "test": TEST, "rise": RISE}
    variables = "".join(f"--{name}:{value};" for name, value in colors.items())
    return f":root{{{variables}--font:{FONT};}}\n" + _read("page.css")


def script() -> str:
    """The page's own JavaScript: draws the figures, lazily where they are folded away."""
    return _read("page.js")


def plotly_template() -> dict[str, Any]:
    """Layout defaults of every figure: white, no frame, light horizontal rules, static axes, words on hover."""
    axis = {
        "showgrid": False,
        "zeroline": False,
        "linecolor": RULE,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": RULE,
        "tickfont": {"size": 12, "color": MUTED},
        "title": {"font": {"size": 13, "color": MUTED}, "standoff": 12},
        "automargin": True,
        "fixedrange": True,  # a finger on a chart scrolls the page
    }
    return {
        "layout": {
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 56, "r": 12, "t": 12, "b": 40},
            "xaxis": {**axis, "showline": True},
            "yaxis": {**axis, "showgrid": True, "gridcolor": RULE, "ticks": ""},
            "hovermode": "closest",
            "hoverlabel": {"bgcolor": "white", "bordercolor": RULE, "font": {"family": FONT, "size": 13, "color": INK}},
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.03,
                "xanchor": "left",
                "yanchor": "bottom",
                "font": {"size": 12, "color": INK},
                "itemclick": "toggle",
            },
            "dragmode": False,
        }
    }


def _read(name: str) -> str:
    return resources.files("layerlaw.pages").joinpath(name).read_text(encoding="utf-8")
