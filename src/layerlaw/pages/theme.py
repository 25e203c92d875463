"""Colors and the font, for all drawings and pages."""

from __future__ import annotations

import colorsys
import itertools

TEXT = "#1c2733"
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
    """One color per class: ten that differ at once, more by hue (neighbors a golden angle apart)."""
    if count <= len(QUALITATIVE):
        return list(QUALITATIVE[:count])
    lightness = itertools.cycle((0.42, 0.56, 0.36))
    mixed = [colorsys.hls_to_rgb(i * 0.381966 % 1, next(lightness), 0.55) for i in range(min(count, MOST_HUES))]
    hues = ["#" + "".join(f"{round(255 * part):02x}" for part in color) for color in mixed]
    return [hues[k % len(hues)] for k in range(count)]


def variables() -> str:
    """The colors and the font as variables of CSS."""
    colors = {"text": TEXT, "muted": MUTED, "rule": RULE, "train": TRAIN, "pale": PALE, "test": TEST, "rise": RISE}
    named = "".join(f"--{name}:{value};" for name, value in colors.items())
    return f":root{{{named}--font:{FONT};}}\n"
