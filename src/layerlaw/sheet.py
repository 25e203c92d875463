"""A drawing described as plain data: panels of curves, of points in the plane or of an image, row by row.

Everything is checked and made plain when it is built (tuples, floats, `None` for what is not finite), so what is drawn
right after a run and what is drawn from its file a year later are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, get_args

from layerlaw.errors import InputError
from layerlaw.files import from_plain
from layerlaw.notebook import Shown, View
from layerlaw.plain import (
    Rule,
    check_number,
    check_text,
    check_truth,
    coordinate,
    either,
    fields,
    nothing_or,
    one_of,
    several,
    whole_from,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_LABEL = 52  # characters below a panel: longer ones run into the next
Style = Literal["points", "line", "fit", "faint", "null", "bars"]


@dataclass(frozen=True)
class Series:
    """One curve of a panel; a `None` in y is a gap, `low` and `high` are a range over seeds.

    points: markers joined by a thin line; line: no markers; fit: a dashed straight line; faint: one of many runs in the
    background; null: a floor (permuted labels, an untrained network); bars: from the axis up. `color` counts colors
    of the palette; series of one label share a color, so it is rarely needed.
    """

    x: Sequence[float]
    y: Sequence[float | None]
    label: str = ""
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    style: Style = "points"
    color: int | None = None

    def __post_init__(self) -> None:
        x = tuple(float(v) for v in self.x)
        if not all(map(math.isfinite, x)):
            raise InputError(f"series '{self.label}': expected finite x, got {x}. Holes belong in y, as None.")
        if self.style not in get_args(Style):
            raise InputError(f"series '{self.label}': expected a style of {get_args(Style)}, got {self.style!r}.")
        ends = {name: values for name in ("low", "high") if (values := getattr(self, name)) is not None}
        holed = {name: tuple(map(number_or_none, values)) for name, values in {"y": self.y, **ends}.items()}
        for name, values in holed.items():
            if len(values) != len(x):
                raise InputError(f"series '{self.label}': expected as many {name} as x ({len(x)}), got {len(values)}.")
        set_fields(self, x=x, **holed)


def spread_series(
    label: str,
    x: Iterable[float],
    values: Iterable[Iterable[float | None]],
    *,
    several: bool,
    middle: Callable[[list[float]], float] = fmean,
    style: Style = "points",
) -> Series:
    """At every x the mean and the range of the numbers that are known; the range only where there are several seeds.

    >>> spread_series("a", [1, 2], [[1.0, 3.0], [None, None]], several=True)
    Series(x=(1.0, 2.0), y=(2.0, None), label='a', low=(1.0, None), high=(3.0, None), style='points', color=None)
    """
    columns = [[v for v in column if v is not None] for column in values]
    mean, low, high = ([f(column) if column else None for column in columns] for f in (middle, min, max))
    return Series(tuple(x), mean, label, low if several else None, high if several else None, style)


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `note` is a short text inside, `marked` an x with a vertical line through it, `shaded` a range of x.

    `tight`: a log axis keeps close to numbers that move little; otherwise a nearly flat curve is drawn flat. `zeros`: a log
    axis shows zeros too, below all other numbers at a tick of their own; otherwise they are gaps. `infinity`: the x at which
    infinity is drawn, right of all other numbers.
    """

    title: str
    series: Sequence[Series]
    xlabel: str = "layer"
    ylabel: str = "D"
    log_y: bool = True
    log_x: bool = False
    note: str = ""
    marked: float | None = None
    tight: bool = False
    shaded: tuple[float, float] | None = None
    zeros: bool = False
    infinity: float | None = None
    kind: Literal["axes"] = field(default="axes", init=False, repr=False)

    def __post_init__(self) -> None:
        set_fields(
            self, series=tuple(self.series), marked=number_or_none(self.marked), infinity=number_or_none(self.infinity)
        )
        if self.shaded is not None:
            low, high = map(float, self.shaded)
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise InputError(f"panel '{self.title}': expected a range of finite x, got {self.shaded}.")
            set_fields(self, shaded=(low, high))


def along_sites(names: Sequence[str], first: int = 0) -> str:
    """The label of an axis that counts sites: the names of both ends, where they are short.

    >>> along_sites(["stem", "block1", "block2"], 1)
    "site, counted from 1: 'stem' to 'block2'"
    """
    said = f"site, counted from {first}"
    ends = f"{said}: '{names[0]}' to '{names[-1]}'"
    return ends if len(names) > 1 and len(ends) <= LONGEST_LABEL else said


@dataclass(frozen=True)
class PlanePanel:
    """The samples of one layer in the plane (principal components), colored by class. Only finite points are kept.

    `classes` are the names of the classes, in the order of the labels; a sheet explains its colors once.
    """

    title: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[int]
    classes: Sequence[str] = ()
    kind: Literal["plane"] = field(default="plane", init=False, repr=False)

    def __post_init__(self) -> None:
        points = [(number_or_nan(x), number_or_nan(y)) for x, y in self.points]
        labels = [int(k) for k in self.labels]
        if len(points) != len(labels):
            raise InputError(f"panel '{self.title}': expected a label per point, got {len(labels)} for {len(points)}.")
        kept = [i for i, point in enumerate(points) if all(map(math.isfinite, point))]
        points, labels = [points[i] for i in kept], [labels[i] for i in kept]
        set_fields(self, points=tuple(points), labels=tuple(labels), classes=tuple(map(str, self.classes)))


@dataclass(frozen=True)
class ImagePanel:
    """An image: rows of pixels from 0 (black) to 1, or of (red, green, blue); `note` stands below it."""

    title: str
    pixels: Sequence[Sequence[Any]]
    note: str = ""
    kind: Literal["image"] = field(default="image", init=False, repr=False)

    def __post_init__(self) -> None:
        rows = tuple(
            tuple(tuple(map(float, p)) if isinstance(p, Sequence) else float(p) for p in row) for row in self.pixels
        )
        if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise InputError(f"panel '{self.title}': expected rows of equally many pixels, got {len(rows)} rows.")
        if len({isinstance(p, tuple) for row in rows for p in row}) > 1:
            raise InputError(
                f"panel '{self.title}': expected pixels that are all gray or all of three colors, got both."
            )
        set_fields(self, pixels=rows)


@dataclass(frozen=True)
class Sheet(Shown):
    """One figure in the paper's arrangement: panels row by row, so many columns."""

    title: str
    panels: Sequence[Panel | PlanePanel | ImagePanel]
    columns: int = 3
    caption: str = ""
    share_y: bool = False

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise InputError(f"sheet '{self.title}': expected at least 1 column, got {self.columns}.")
        set_fields(self, panels=tuple(self.panels), columns=int(self.columns))

    def plot(self) -> Figure:
        """Draw it: a matplotlib figure, to be shown or saved (`sheet.plot().savefig("figure.pdf")`)."""
        from layerlaw.pages import draw_sheet

        return draw_sheet(self)

    def _view(self) -> View:
        return View(self.title, lines=[self.caption] if self.caption else ())


MOST_PANELS, MOST_COLUMNS, MOST_COLORS = 400, 40, 100_000
HOLED = several(nothing_or(coordinate))
COLOR = nothing_or(whole_from(0, MOST_COLORS))
SERIES = fields(
    {"x": several(coordinate), "y": HOLED},
    {
        "label": check_text, "low": nothing_or(HOLED), "high": nothing_or(HOLED), "style": one_of(*get_args(Style)),
        "color": COLOR, "colour": COLOR,  # as earlier versions spelled it
    },
)  # fmt: skip
PIXELS = several(several(either(several(check_number, 3, 3), check_number)))
PANELS: dict[str, Rule] = {  # by their kind
    "axes": fields({"title": check_text, "series": several(SERIES)}, {
        "xlabel": check_text, "ylabel": check_text, "log_y": check_truth, "log_x": check_truth, "note": check_text,
        "marked": nothing_or(coordinate), "tight": check_truth, "shaded": nothing_or(several(coordinate, 2, 2)),
        "zeros": check_truth, "infinity": nothing_or(coordinate),
    }),
    "plane": fields(
        {"title": check_text, "points": several(several(nothing_or(coordinate), 2, 2)),
         "labels": several(whole_from(0, MOST_COLORS))}, {"classes": several(check_text)}
    ),
    "image": fields({"title": check_text, "pixels": PIXELS}, {"note": check_text}),
}  # fmt: skip
KIND = fields({"kind": one_of(*PANELS)}, {})


def check_panel(data: Any, where: str) -> None:
    """The rule of a panel: that of its kind."""
    KIND(data, where)
    PANELS[data["kind"]](data, where)


SHEET = fields({"title": check_text, "panels": several(check_panel, 0, MOST_PANELS)}, {
    "columns": whole_from(1, MOST_COLUMNS), "caption": check_text, "share_y": check_truth,
})  # fmt: skip


def sheet_from_dict(data: Mapping[str, Any]) -> Sheet:
    """A sheet from plain data."""
    return from_plain(Sheet, data, panels=[_panel_from_dict(panel) for panel in data["panels"]])


def _panel_from_dict(panel: Mapping[str, Any]) -> Panel | PlanePanel | ImagePanel:
    if panel["kind"] in ("plane", "image"):
        return from_plain(PlanePanel, panel) if panel["kind"] == "plane" else from_plain(ImagePanel, panel)
    return from_plain(Panel, panel, series=[from_plain(Series, series) for series in panel["series"]])


def set_fields(frozen: object, **values: Any) -> None:
    """Fields of a frozen dataclass, set while it is being built."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def number_or_nan(value: float | None) -> float:
    """A float of Python's; NaN where a file, which knows none, has null in its place."""
    return math.nan if value is None else float(value)


def number_or_none(value: float | None) -> float | None:
    """A float of Python's, from anything that can be one; `None` for what is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)
