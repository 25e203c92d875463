"""Figures for papers: matplotlib without pyplot, so nothing global changes and nothing is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layerlaw.errors import InputError
from layerlaw.law import RESIDUAL, LawFit
from layerlaw.measures.columns import describe
from layerlaw.pages import theme
from layerlaw.pages.html import listed
from layerlaw.pages.record_view import RecordView, read_all, site_places, site_ticks
from layerlaw.pages.sheets import new_figure
from layerlaw.pages.sheets.curves import draw_points
from layerlaw.pages.sheets.scales import Scale, close_scale, tick_text
from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, Record
from layerlaw.wording import clean, correlation, finite, number, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BELOW = 44  # characters of names, with two between them, that fit below the axis of one picture
NUMBERED = re.compile(r"[\d.]+")  # a site of a Sequential: its name is a number that says less than counting


def plot(records: Record | Iterable[Record], column: str | None = None, *, ax: Axes | None = None) -> Figure:
    """One column against depth, in the style of the papers: log axis, points, fitted dashed line, ρ and r.

    Without a column the leading one: the separation of a classifier, the (held-out) residual of a language model. Several
    records are drawn into one picture, each in its color, with a legend that names them.
    """
    views = read_all(listed(records, Record, "plot"))
    if column is not None and not isinstance(column, str):
        raise InputError(f"plot: expected the name of a column, got {column!r}.")
    if ax is not None and not hasattr(ax, "set_yscale"):
        raise InputError(f"plot: expected ax to be axes of matplotlib, got {type(ax).__name__}.")
    one = views[0].record
    if any(view.record.kind != one.kind for view in views):
        raise InputError("plot: expected records of one kind, got a classifier and a language model: plot each alone.")
    column = column or views[0].column
    about, curves = describe(column), [_Curve.of(view, column) for view in views]
    of_our_size = ax is None
    ax = ax or new_figure(4.2, 3.4, "plot()").add_subplot()
    several, scale = len(curves) > 1, None
    known, behind = ([v for curve in curves for v in curve.of_sites(in_fit)] for in_fit in (True, False))
    fitted = [v for curve in curves if curve.fit is not None for v in curve.fit.line]
    if min([*known, *behind]) > 0 and about.log:
        flat = bool(fitted) and about.format == "residual"  # it hardly moves: its line and ticks need every digit
        margin = (LANGUAGE_MODEL if flat else CLASSIFIER).margin
        scale, levels = close_scale([*known, *fitted] or behind, margin, behind)
        ax.set_yscale("log")
        ax.set_ylim(scale.low, scale.high)
        ax.set_yticks(levels, [tick_text(level) for level in levels])
        ax.yaxis.set_minor_formatter("")  # matplotlib would label everything between decades
    for i, curve in enumerate(curves):
        color = theme.QUALITATIVE[i % len(theme.QUALITATIVE)] if several else theme.TRAIN
        curve.draw(ax, color, theme.RISE if not several else color, scale)
    deepest = max(curves, key=lambda curve: curve.places[-1])
    shown = any(curve.values[0] is not None for curve in curves)
    ticks, names, counted, first = site_ticks(deepest.record, with_input=shown)
    if any(curve.counted.items() - deepest.counted.items() for curve in curves if curve is not deepest):
        names, counted = [f"{tick:.0f}" for tick in ticks], f"{one.step_name}, side branches not counted"
    if of_our_size and not several and (called := _site_names(one, ticks)):
        names, counted = called, one.step_name
    ax.set_ylabel(clean(about.label), parse_math=False)
    ax.set_xlabel(counted)
    ax.set_xticks(ticks, names, parse_math=False)
    ax.set_xlim(first - 0.4, deepest.places[-1] + 0.4)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)
    if several:
        for text in ax.legend(fontsize=8, frameon=False).get_texts():
            text.set_parse_math(False)
    else:
        numbers = curves[0].numbers()
        ax.set_title(shortened(one.name, 48) + (f"\n{numbers}" if numbers else ""), fontsize=10, parse_math=False)
    figure: Figure = ax.figure.figure  # of a sub-figure, the whole
    return figure


def _site_names(record: Record, ticks: Sequence[float]) -> list[str]:
    """What the sites are called, where all of them have a tick, the names fit below the axis and are more than numbers."""
    by_place = dict(zip(site_places(record.sites), record.sites, strict=True))
    whole = [place for place in by_place if place.is_integer()]
    names = [clean(by_place[tick].name) for tick in ticks if tick in by_place]
    if record.kind.first or len(names) < len(whole) or all(NUMBERED.fullmatch(name) for name in names):
        return []
    return names if sum(len(name) + 2 for name in names) <= BELOW else []


@dataclass(frozen=True)
class _Curve:
    """One column of one record, and its law where it has one."""

    record: Record
    label: str
    values: list[float | None]
    fit: LawFit | None

    @property
    def places(self) -> list[float]:
        """Where each site stands on the horizontal axis."""
        return site_places(self.record.sites)

    @property
    def counted(self) -> dict[float, str]:
        """How the sites that a tick may name are counted, by their places; of several records those they share."""
        return {place: n for place, n in zip(self.places, self.record.numbers, strict=True) if place.is_integer()}

    def of_sites(self, in_fit: bool) -> list[float]:
        """The values at the points of the law, or at all other sites."""
        pairs = zip(self.values, self.record.sites, strict=True)
        return [v for v, site in pairs if v is not None and site.in_fit is in_fit]

    @classmethod
    def of(cls, view: RecordView, column: str) -> _Curve:
        record, fit = view.record, None
        values = [finite(v) for v in record.column(column)]
        if not any(v is not None for v in values):
            raise InputError(f"plot: record '{record.name}' holds no finite number in column {column!r}.")
        if describe(column).log:
            with suppress(InputError):  # a hole, a zero, fewer than two points: points without a line
                fit = record.law(column)
        return cls(record, view.label, values, fit)

    def draw(self, ax: Axes, color: str, line: str, scale: Scale | None) -> None:
        """Points, hollow where they are no point of the law, as triangles at the edge where beyond it; the fitted line."""
        size, label = (5.5 if len(self.values) <= 24 else 3.5), ", ".join(filter(None, (self.label, self.numbers())))
        low, high = (scale.low, scale.high) if scale is not None else (-math.inf, math.inf)
        groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for site, place, value in zip(self.record.sites, self.places, self.values, strict=True):
            if value is not None:
                role = "point" if site.in_fit else "branch" if site.branch else "aside"
                mark = "^" if value > high else "v" if value < low else "o"
                groups.setdefault((role, mark), []).append((place, min(max(value, low), high)))
        for (role, mark), chosen in sorted(groups.items(), key=lambda group: group[0][0] != "point"):
            style: Any = {"color": color, "mfc": color if role == "point" else "white", "ms": size, "zorder": 3}
            if role == "branch":
                style |= {"color": theme.NULL, "ms": 0.6 * size, "zorder": 1}
            elif label:  # on what comes first: the points of the law, where there are any
                style["label"], label = shortened(label, 60), ""
            ax.plot(*zip(*chosen, strict=True), mark, clip_on=False, **style)
        if self.fit is not None:
            at = [place for place, site in zip(self.places, self.record.sites, strict=True) if site.in_fit]
            ax.plot(at, self.fit.line, "--", color=line, lw=1.4, zorder=2)

    def numbers(self) -> str:
        """ρ and r of its law."""
        if (fit := self.fit) is None:
            return ""
        rho = f"ρ = {number(fit.rho, self.record.kind.digits if fit.quantity == RESIDUAL else 3)}"
        return rho + (f",  r = {correlation(fit.pearson)}" if fit.pearson is not None else "")


def plot_planes(record: Record, *, columns: int | None = None) -> Figure:
    """The first two principal components at every site that has them, colored by class, as small multiples."""
    sites = [(i, site) for i, site in enumerate(record.sites) if site.plane]
    if not sites:
        raise InputError(f"plot_planes: record '{record.name}' holds no plane coordinates.")
    across = columns or min(len(sites), 4 if len(sites) <= 12 else 6)
    if across < 1:
        raise InputError(f"plot_planes: expected at least 1 column, got {columns}.")
    down = math.ceil(len(sites) / across)
    figure = new_figure(1.7 * across, 1.95 * down, "plot_planes()")
    labels = record.plane_labels
    colors = theme.class_colors(max([len(record.plane_names), 1, *(k + 1 for k in labels)]))
    for place, (index, site) in enumerate(sites, start=1):
        ax = figure.add_subplot(down, across, place)
        points = list(zip(site.plane, labels or [0] * len(site.plane), strict=False))
        draw_points(ax, [(p[0], p[1]) for p, _ in points], [colors[k] for _, k in points])
        value = None if record.words else site.values.get(record.leading)  # PR has nothing to do with the words
        measured = "" if value is None else f"\nD = {number(value)}"
        title = f"{record.numbers[index]} · {shortened(site.name, 20)}{measured}"
        ax.set_title(title, fontsize=7.5, parse_math=False)
    return figure
