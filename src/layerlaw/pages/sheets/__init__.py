"""A sheet on paper: panels in the paper's arrangement (matplotlib without pyplot, so nothing global changes)."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layerlaw.errors import needed
from layerlaw.pages import theme
from layerlaw.pages.sheets import curves
from layerlaw.pages.sheets.curves import Corner, Spot, draw_panel, draw_points, emptiest, spots
from layerlaw.pages.sheets.scales import Scale, together, x_scale, y_scale
from layerlaw.sheet import ImagePanel, Panel, PlanePanel, Sheet
from layerlaw.wording import clean, sentence

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text

WIDTHS = {1: 5.2, 2: 3.7, 3: 3.0, 4: 2.45, 5: 2.05}  # inches of a panel, by columns
NARROWEST = 1.78
MOST_IN_A_PANEL = 5  # labels; more go below the panels
MOST_CLASSES = 20  # named in a legend
MANY_PANELS = 4  # where one panel explains the curves, it explains them for all
MOST_VECTOR_POINTS = 3000  # of planes; beyond, an SVG of them would be larger than a picture
MOST_Y = 7  # ticks
NOTE = 7.4  # points
CHARACTER = 0.56  # width of an average character, in font sizes
STRETCHES = tuple(
    (below, above) for f in (0.0, 0.08, 0.16, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4) for below, above in ((0, f), (f, 0))
)


@dataclass
class Place:
    """A panel on the sheet: its axes and scales, its colors, its legend's entries, and the words to put inside."""

    panel: Panel
    ax: Axes
    x: Scale
    y: Scale
    shades: list[str]
    handles: dict[str, Artist] = field(default_factory=dict)
    words: list[Text | Legend] = field(default_factory=list)


def draw_sheet(sheet: Sheet, *, heading: bool = True) -> Figure:
    """One figure: panels row by row, labels once where they repeat, notes in the emptiest corner of their panel."""
    number = max(1, len(sheet.panels))
    down = math.ceil(number / sheet.columns)
    across = math.ceil(number / down)  # rows as even as can be: four panels of three columns are two and two
    width, size = WIDTHS.get(across, NARROWEST), 1.0 if across <= 3 else 0.92 if across == 4 else 0.84
    planes = [panel for panel in sheet.panels if isinstance(panel, PlanePanel)]
    tallness = 0.68 if across == 1 else 0.82 if across <= 4 else 0.92  # small panels need some height
    squares = [panel for panel in sheet.panels if not isinstance(panel, Panel)]
    if squares and len(squares) == len(sheet.panels):
        named = any(isinstance(panel, ImagePanel) and panel.note for panel in sheet.panels)
        tallness = 1.28 if named else 1.08  # squares under their titles, some with a line below
    figure = new_figure(width * across, width * tallness * down + 0.3, "draw_sheet()")
    if heading and sheet.title:
        figure.suptitle(sentence(clean(sheet.title)), fontsize=11, parse_math=False)
    known = curves.palette(sheet)
    classes = theme.class_colors(max([1, *(k + 1 for plane in planes for k in plane.labels)]))
    raster = sum(len(plane.points) for plane in planes) > MOST_VECTOR_POINTS
    places: dict[int, Place] = {}
    for i, panel in enumerate(sheet.panels):
        ax = figure.add_subplot(down, across, i + 1)
        ax.set_title(_wrapped(panel.title, 0.86 * width, 9 * size), fontsize=9 * size, parse_math=False)
        if isinstance(panel, PlanePanel):
            draw_points(ax, panel.points, [classes[k % len(classes)] for k in panel.labels], rasterized=raster)
        elif isinstance(panel, ImagePanel):
            ax.imshow(panel.pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set_xlabel(_wrapped(panel.note, 0.9 * width, 7.5 * size), fontsize=7.5 * size, parse_math=False)
            curves.bare(ax)
        elif (x := x_scale(panel)) is not None and (y := y_scale(panel)) is not None:
            shades = curves.colors(panel, known)
            places[i] = Place(panel, ax, x, y, shades)
            for series, shade in zip(panel.series, shades, strict=True):
                if series.label:
                    places[i].handles.setdefault(clean(series.label), curves.handle(series, shade, size))
        else:
            ax.text(0.5, 0.5, "nothing to draw", ha="center", va="center", color=theme.MUTED, fontsize=8 * size)
            curves.bare(ax)
    drawn = list(places.values())
    for log in (True, False) if sheet.share_y else ():  # one vertical scale for all panels of a kind
        alike = [place for place in drawn if place.panel.log_y is log]
        scales = [place.y for place in alike]
        for place in alike:
            place.y = together(scales)
    for place in drawn:
        draw_panel(place.ax, place.panel, place.shades, place.y, size)
        _dress(place, across, size)
    _label(sheet, places, across, size)
    shared = _shared_labels(drawn)
    explained = {label: next(p.handles[label] for p in drawn if label in p.handles) for label in shared}
    _legend_below(figure, explained, size)
    _legend_below(figure, _class_handles(planes, classes), size)
    _place_words(figure, drawn, shared, together=sheet.share_y, size=size)
    return figure


def new_figure(width: float, height: float, purpose: str) -> Figure:
    """An empty figure of so many inches; `purpose` is the call that needs matplotlib."""
    drawn = needed("matplotlib.figure", "pages", purpose).Figure
    figure: Figure = drawn(figsize=(width, height), dpi=150, layout="constrained")
    return figure


def _dress(place: Place, across: int, size: float) -> None:
    ax = place.ax
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_linewidth(0.7)
    ax.tick_params(labelsize=8 * size, width=0.7, length=3 * size, pad=2.5)
    ax.tick_params(which="minor", width=0.5, length=1.6 * size)
    whole = all(v == round(v) for series in place.panel.series for v in series.x)
    most = (6 if across <= 3 else 4) if place.x.log else 12 if across == 1 else 8 if across <= 3 else 5
    _set_scale(ax, "x", place.x, most=most, whole=whole, infinity=place.panel.infinity)
    _set_scale(ax, "y", place.y, most=MOST_Y if across <= 4 else MOST_Y - 2)


def _set_scale(
    ax: Axes, which: str, scale: Scale, *, most: int, whole: bool = False, infinity: float | None = None
) -> None:
    """Limits and readable ticks: left alone, matplotlib labels nothing between decades, or everything."""
    axis, ticks = ax.xaxis if which == "x" else ax.yaxis, scale.ticks(most, whole=whole)
    end = [] if infinity is None else [infinity]
    ticks = [tick for tick in ticks if not end or tick < end[0]]
    if scale.log:
        ax.set(**{f"{which}scale": "log"})
    ax.set(**{f"{which}lim": (scale.low, scale.high)})
    axis.set_ticks([*ticks, *end], [*scale.words(ticks), *("∞" for _ in end)])
    axis.set_minor_formatter("")
    if scale.zero is not None:  # no marks of numbers beside that of zeros
        axis.set_ticks(scale.between_ticks(), minor=True)
    if most < MOST_Y:  # a small panel
        axis.set_ticks([], minor=True)


def _label(sheet: Sheet, places: dict[int, Place], across: int, size: float) -> None:
    """Axis labels: at the left and below, or on every panel where they differ."""
    one_x = len({place.panel.xlabel for place in places.values()}) == 1
    one_y = len({place.panel.ylabel for place in places.values()}) == 1
    for i, place in places.items():
        lowest, leftmost = i + across not in places, i % across == 0 or i - 1 not in places
        if lowest or not one_x:
            place.ax.set_xlabel(clean(place.panel.xlabel), fontsize=8.5 * size, parse_math=False)
        if leftmost or not one_y:
            place.ax.set_ylabel(clean(place.panel.ylabel), fontsize=8.5 * size, parse_math=False)
        if sheet.share_y and not leftmost and len({p.panel.log_y for p in places.values()}) == 1:
            place.ax.tick_params(labelleft=False)


def _shared_labels(places: Sequence[Place]) -> list[str]:
    """The labels explained once, below the panels: those that repeat, or are too many for the one panel they are in."""
    count = Counter(label for place in places for label in place.handles)
    naming = [place for place in places if place.handles]
    alone = len(naming) == 1 and len(places) >= MANY_PANELS
    crowded = any(len(place.handles) > MOST_IN_A_PANEL for place in places)
    return [label for label, n in count.items() if n > 1 or alone or crowded]


def _class_handles(planes: Sequence[PlanePanel], colors: Sequence[str]) -> dict[str, Artist]:
    """A dot per class that has a name, for all planes of a sheet."""
    from matplotlib.lines import Line2D

    names = max((plane.classes for plane in planes), key=len, default=())
    if len(names) > MOST_CLASSES:
        return {}
    seen = sorted({k for plane in planes for k in plane.labels if k < len(names)})
    return {clean(names[k]): Line2D([], [], ls="", marker="o", ms=4, mec="none", color=colors[k]) for k in seen}


def _legend_below(figure: Figure, handles: dict[str, Artist], size: float) -> None:
    if not handles:
        return
    fitting = int(72 * figure.get_figwidth() / (8 * size * CHARACTER * max(map(len, handles)) + 40))
    rows = math.ceil(len(handles) / max(1, fitting))  # as even as can be
    _legend(figure, handles, loc="outside lower center", ncols=math.ceil(len(handles) / rows), fontsize=8 * size)


def _legend(owner: Figure | Axes, handles: dict[str, Artist], **options: Any) -> Legend:
    """A legend whose labels are shown as they are written; matplotlib hides those that begin with "_"."""
    labels = [f" {label}" if label.startswith("_") else label for label in handles]
    legend: Legend = owner.legend(list(handles.values()), labels, frameon=False, handlelength=1.9, **options)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return legend


def _place_words(figure: Figure, places: Sequence[Place], shared: list[str], *, together: bool, size: float) -> None:
    """Notes and the legends of single panels, each where it covers no data; if it must, the y axis makes room."""
    if not any(place.panel.note or set(place.handles) - set(shared) for place in places):
        return
    _lay_out(figure)  # so that sizes are known
    for place in places:
        if place.panel.note:
            place.words.append(_note(place, place.ax.get_window_extent().width / figure.dpi, size))
        if own := {label: artist for label, artist in place.handles.items() if label not in shared}:
            options = {"fontsize": NOTE * size, "borderpad": 0, "borderaxespad": 0.4, "labelspacing": 0.35}
            place.words.append(_legend(place.ax, own, loc="upper right", **options))
            place.words[-1].set_in_layout(False)
    for group in [list(places)] if together else [[place] for place in places]:
        stretch = _least_covering(group)
        for place in group if any(stretch) else ():
            place.y = place.y.stretched(*stretch)
            _set_scale(place.ax, "y", place.y, most=MOST_Y if size > 0.9 else MOST_Y - 2)
    _lay_out(figure)  # again: other ticks may be wider
    for place in places:
        chosen = _corners(_sizes(place), spots(place.panel, place.x, place.y)) if place.words else []
        for what, corner in zip(place.words, chosen, strict=True):
            _move(what, corner)


def _lay_out(figure: Figure) -> None:
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)


def _sizes(place: Place) -> list[tuple[float, float]]:
    """Widths and heights of a panel's words, in fractions of its axes."""
    whole = place.ax.get_window_extent()
    extents = [what.get_window_extent() for what in place.words]
    return [(extent.width / whole.width, extent.height / whole.height) for extent in extents]


def _least_covering(group: Sequence[Place]) -> tuple[float, float]:
    """The least stretch of the y axis under which the words of all these panels cover no data, or the fewest."""
    wanted = [(_sizes(place), spots(place.panel, place.x, place.y)) for place in group if place.words]
    tried: dict[tuple[float, float], int] = {}
    for stretch in STRETCHES:
        tried[stretch] = sum(corner.covers for sizes, spots in wanted for corner in _corners(sizes, spots, stretch))
        if not tried[stretch]:
            break
    return min(tried, key=lambda stretch: tried[stretch])


def _corners(
    sizes: Sequence[tuple[float, float]], covered: Sequence[Spot], stretch: tuple[float, float] = (0, 0)
) -> list[Corner]:
    """Where words of these sizes would go if the y axis were stretched so."""
    below, above = stretch
    moved = [(x, (y + below) / (1 + below + above)) for x, y in covered]
    out: list[Corner] = []
    for width, height in sizes:
        out.append(emptiest(width, height, moved, [corner.box for corner in out]))
    return out


def _note(place: Place, inches: float, size: float) -> Text:
    style: Any = {"fontsize": NOTE * size, "color": theme.TEXT, "linespacing": 1.3, "zorder": 5, "parse_math": False}
    text = place.ax.text(0.5, 0.5, "", transform=place.ax.transAxes, in_layout=False, **style)
    for share in (0.94, 0.84, 0.74, 0.64, 0.54):  # characters are counted first, then measured
        text.set_text(_wrapped(place.panel.note, share * inches, NOTE * size, most=6))
        if text.get_window_extent().width <= 0.9 * place.ax.get_window_extent().width:
            break
    return text


def _move(what: Text | Legend, corner: Corner) -> None:
    from matplotlib.text import Text

    if not isinstance(what, Text):
        what.set_loc(corner.name)  # type: ignore[arg-type]  # one of CORNERS, spelt as matplotlib does
        return
    # Flush left in every corner: in an SVG whose text is text, a browser's font sets lines of another length.
    upper = corner.name.startswith("upper")
    what.set_position((corner.box.x0, corner.box.y1 if upper else corner.box.y0))
    what.set(ha="left", va="top" if upper else "bottom")


def _wrapped(text: str, inches: float, points: float, *, most: int = 2) -> str:
    """The text in lines that fit so many inches; lines beyond `most` are left out."""
    fitting = max(8, int(72 * inches / (CHARACTER * points)))
    lines = [part for line in str(text).split("\n") for part in textwrap.wrap(sentence(clean(line)), fitting) or [""]]
    return "\n".join(lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: fitting - 1] + "…"])
