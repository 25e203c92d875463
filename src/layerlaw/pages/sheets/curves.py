"""How a panel is drawn: each style of series, its color, how a legend shows it, and where words cover least of it.

Places are fractions of the axes: (0, 0) is the lower left corner, (1, 1) the upper right.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from layerlaw.pages import theme
from layerlaw.pages.sheets.scales import Scale, smallest_gap
from layerlaw.sheet import Panel, Series, Sheet

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

COLORS = (theme.TRAIN, theme.TEST, *(theme.QUALITATIVE[i] for i in (1, 2, 6, 5, 4, 7, 8, 9)))
BACKGROUND = {"faint": "#c3cbd3", "null": theme.NULL, "fit": theme.RISE}
LONG = 48  # points; beyond, markers melt into one another
GRID = 60  # places along an axis that a note may cover
FOREGROUND = ("points", "line", "bars")
LINES: dict[str, dict[str, Any]] = {
    "points": {"ls": "-", "lw": 0.9, "marker": "o", "zorder": 3.0},
    "line": {"ls": "-", "lw": 1.3, "zorder": 2.8},
    "fit": {"ls": (0, (4, 2.2)), "lw": 1.2, "zorder": 2.6},
    "faint": {"ls": "-", "lw": 0.7, "zorder": 1.0},
    "null": {"ls": (0, (1, 1.6)), "lw": 1.2, "zorder": 2.0},
}


def palette(sheet: Sheet) -> dict[str, str]:
    """A color per label that several panels share, in the order they first appear."""
    panels = [panel for panel in sheet.panels if isinstance(panel, Panel)]
    labels = [dict.fromkeys(s.label for s in panel.series if s.label and s.style in FOREGROUND) for panel in panels]
    count = Counter(label for named in labels for label in named)
    shared = [label for label, n in count.items() if n > 1]
    return {label: COLORS[i % len(COLORS)] for i, label in enumerate(shared)}


def colors(panel: Panel, known: dict[str, str]) -> list[str]:
    """A color per series of a panel; where several curves have a fit, a fit takes the color of the curve before it."""
    front = [series for series in panel.series if series.style in FOREGROUND]
    used = {known[series.label] for series in front if series.label in known}
    free = [color for color in COLORS if color not in used] or list(COLORS)
    own: dict[str, str] = {}  # labels of this panel alone
    out: list[str] = []
    taken, last = 0, theme.RISE
    for series in panel.series:
        if series.color is not None:
            color = COLORS[series.color % len(COLORS)]
        elif series.style not in FOREGROUND:
            color = last if series.style == "fit" and len(front) > 1 else BACKGROUND[series.style]
        elif series.label in known or series.label in own:
            color = known.get(series.label) or own[series.label]
        else:
            color, taken = free[taken % len(free)], taken + 1
            own |= {series.label: color} if series.label else {}
        out.append(color)
        last = color if series.style in FOREGROUND else last
    return out


def draw_panel(ax: Axes, panel: Panel, shades: Sequence[str], y: Scale, size: float) -> None:
    """All series, the shaded range and the marked x."""
    bars = itertools.count()
    if y.zero is not None:
        ax.axhline(y.zero, color=theme.RULE, lw=0.8, zorder=0.8)
    if panel.shaded is not None and (panel.shaded[0] > 0 or not panel.log_x):
        ax.axvspan(*panel.shaded, color=theme.MUTED, alpha=0.12, lw=0, zorder=0.5)
    for series, color in zip(panel.series, shades, strict=True):
        if series.style == "bars":
            _draw_bars(ax, series, color, y, next(bars), panel)
        else:
            _draw_line(ax, series, color, y, size, panel.log_x)
    if panel.marked is not None and (panel.marked > 0 or not panel.log_x):
        ax.axvline(panel.marked, color=theme.MUTED, lw=0.8, ls=(0, (2, 2)), zorder=0.9)


def draw_points(ax: Axes, points: Sequence[tuple[float, float]], colors: Sequence[str], **options: Any) -> None:
    """Points of a plane on one scale for both axes, so shapes are not distorted."""
    if points:
        xs, ys = zip(*points, strict=True)
        ax.scatter(xs, ys, s=3.5, c=list(colors), linewidths=0, alpha=0.8, **options)
    ax.set_aspect("equal", adjustable="datalim")
    bare(ax)


def bare(ax: Axes) -> None:
    """Leave nothing of the axes but a light frame."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_color(theme.RULE)


def handle(series: Series, color: str, size: float) -> Artist:
    """What stands for the series in a legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if series.style == "bars":
        return Patch(facecolor=color)
    options = {key: value for key, value in LINES[series.style].items() if key != "zorder"}
    return Line2D([], [], color=color, ms=3.6 * size, **options)


def spots(panel: Panel, x: Scale, y: Scale) -> list[Spot]:
    """What the data cover, in fractions of the axes; on a grid, so that long series do not count a place twice."""
    out: list[Spot] = []
    for series in panel.series:
        for values in (series.y, series.low, series.high):
            if values is not None:
                placed = [(x.place(p), y.place(v)) for p, v in zip(series.x, values, strict=True)]
                pairs = [None if p is None or v is None else (p, v) for p, v in placed]
                out += along(pairs) if series.style != "bars" else _under(pairs)
    if panel.marked is not None and (at := x.place(panel.marked)) is not None:
        out += along([(at, 0.0), (at, 1.0)])
    return sorted({(round(GRID * p) / GRID, round(GRID * h) / GRID) for p, h in out})


def _draw_line(ax: Axes, series: Series, color: str, y: Scale, size: float, log_x: bool) -> None:
    heights = [
        shown if (shown := y.shown(v)) is not None and (x > 0 or not log_x) else math.nan
        for x, v in zip(series.x, series.y, strict=True)
    ]
    options = dict(LINES[series.style])
    if series.style == "points":
        options |= {"ms": (4.2 if len(heights) <= 12 else 3.2 if len(heights) <= LONG else 1.6) * size, "mec": "none"}
    known = [not math.isnan(v) for v in heights]
    if series.low is not None or series.high is not None:
        _draw_range(ax, series, color, y, known)
    ax.plot(series.x, heights, color=color, **options)
    if "marker" not in options:  # a point without neighbors would not be seen
        alone = [i for i, k in enumerate(known) if k and not any(known[max(0, i - 1) : i] + known[i + 1 : i + 2])]
        ax.plot([series.x[i] for i in alone], [heights[i] for i in alone], "o", color=color, ms=2.6 * size, mec="none")


def _draw_range(ax: Axes, series: Series, color: str, y: Scale, known: Sequence[bool]) -> None:
    """Whiskers at points, a band along lines; what falls below a log axis is cut off there."""
    lows, highs = (
        [next((w for w in pair if w is not None), math.nan) for pair in zip(ends or series.y, series.y, strict=True)]
        for ends in (series.low, series.high)
    )
    if y.log:
        floor = y.stretched(1, 0).low if y.zero is None else y.zero
        lows, highs = ([v if math.isnan(v) else max(v, floor) for v in ends] for ends in (lows, highs))
    drawn = [i for i, k in enumerate(known) if k]
    if series.style == "points" and len(drawn) <= LONG:
        xs, bottoms, tops = ([values[i] for i in drawn] for values in (series.x, lows, highs))
        ax.vlines(xs, bottoms, tops, color, lw=1.0, zorder=2.9)
    else:
        ax.fill_between(series.x, lows, highs, where=list(known), color=color, alpha=0.2, lw=0, zorder=1.8)


def _draw_bars(ax: Axes, series: Series, color: str, y: Scale, which: int, panel: Panel) -> None:
    """One series of bars, the `which`-th beside others at the same x; where none share an x, each stands over its own."""
    bars = [s for s in panel.series if s.style == "bars"]
    places = [v for s in bars for v in s.x]
    beside = len(bars) if len(set(places)) < len(places) else 1
    which = which if beside > 1 else 0
    floor = y.stretched(1, 0).low if y.log else 0.0
    gap = smallest_gap(places)
    for i, (x, v) in enumerate(zip(series.x, series.y, strict=True)):
        if v is None or y.place(v) is None or (panel.log_x and x <= 0):
            continue
        whole = 0.3 * x if panel.log_x else 0.78 * gap
        at = x + whole * ((which + 0.5) / beside - 0.5)
        ax.bar(at, v - floor, whole / beside, bottom=floor, color=color, zorder=1.9)
        low, high = (series.low or series.y)[i], (series.high or series.y)[i]
        if low is not None and high is not None and low < high:
            ax.vlines(at, max(low, floor) if y.log else low, high, theme.TEXT, lw=0.9, zorder=2.9)


def _under(tops: Sequence[Spot | None]) -> list[Spot]:
    """Bars, each as wide as a panel has room for: from the axis to their tops."""
    half = 0.4 / max(1, len(tops))
    edges = [(x + dx, y) for x, y in filter(None, tops) for dx in (-half, 0.0, half)]
    return [spot for x, y in edges for spot in along([(x, 0.0), (x, y)])]


MARGIN = 0.025
CLEARANCE = 0.03
STEP = 0.025  # between neighboring spots of a line: less than a clearance
MOST_STEPS = 200
# A curve that falls leaves the upper right free, so it is tried first; equal corners are taken in this order.
CORNERS = ("upper right", "lower left", "upper left", "lower right", "upper center", "lower center")
Spot = tuple[float, float]


class Corner(NamedTuple):
    """A place for something: its name as matplotlib spells it, its box, and how many spots of data it covers."""

    name: str
    box: Bbox
    covers: int


def emptiest(width: float, height: float, spots: Sequence[Spot], taken: Sequence[Bbox] = ()) -> Corner:
    """The corner that covers the fewest spots, or comes too near to them, and no box already taken if that can be.

    >>> falling = along([(0.0, 1.0), (1.0, 0.0)])
    >>> emptiest(0.3, 0.2, falling).name, emptiest(0.3, 0.2, [(1.0, 1.0)]).name
    ('upper right', 'lower left')
    """
    tried = []
    for name in CORNERS:
        box = corner_box(name, width, height)
        covers = int(box.padded(CLEARANCE).count_contains(spots)) if spots else 0
        crowded = box.count_overlaps(taken) > 0  # worse than any data
        tried.append(Corner(name, box, covers + (len(spots) + 1) * crowded))
    return min(tried, key=lambda corner: corner.covers)


def corner_box(name: str, width: float, height: float) -> Bbox:
    """The box of this size in that corner."""
    from matplotlib.transforms import Bbox

    vertical, horizontal = name.split()
    left = {"left": MARGIN, "right": 1 - MARGIN - width, "center": (1 - width) / 2}[horizontal]
    return Bbox.from_bounds(left, 1 - MARGIN - height if vertical == "upper" else MARGIN, width, height)


def along(spots: Iterable[Spot | None]) -> list[Spot]:
    """The spots and what lies on the straight lines between them; a `None` breaks the line."""
    out: list[Spot] = []
    last: Spot | None = None
    for spot in spots:
        if spot is not None:
            if last is not None:
                (x0, y0), (x1, y1) = last, spot
                n = min(MOST_STEPS, math.ceil(max(abs(x1 - x0), abs(y1 - y0)) / STEP))
                out += [(x0 + (x1 - x0) * t / n, y0 + (y1 - y0) * t / n) for t in range(1, n)]
            out.append(spot)
        last = spot
    return out
