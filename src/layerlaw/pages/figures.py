"""Figures for papers: matplotlib without pyplot, so nothing global changes and nothing is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layerlaw.errors import InputError, MissingExtraError
from layerlaw.law import RESIDUAL, LawFit
from layerlaw.measures.columns import describe
from layerlaw.pages import theme
from layerlaw.pages.axes import block_ticks, block_title, even_parts, log_ticks, strided, tick_text
from layerlaw.record import CLASSIFIER, INPUT, LANGUAGE_MODEL, Record, SiteRow
from layerlaw.wording import clean, correlation, finite, number, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TICKS = 12


def plot(record: Record, column: str | None = None, *, ax: Axes | None = None) -> Figure:
    """One column against depth, in the style of the papers: log axis, points, fitted dashed line, ρ and r.

    Without a column the leading one: the separation of a classifier, the (held-out) residual of a language model.
    """
    if not isinstance(record, Record):
        raise InputError(
            f"plot: expected one record, got {type(record).__name__}; ll.report compares several on a page."
        )
    column = column or record.leading
    values = [finite(v) for v in record.column(column)]
    known = [v for v in values if v is not None]
    if not known:
        raise InputError(f"plot: record '{record.name}' holds no finite number in column {column!r}.")
    about = describe(column)
    fit = _fit(record, column) if about.log else None
    if ax is None:
        ax = _new_figure(4.2, 3.4).add_subplot()
    size = 5.5 if len(values) <= 24 else 3.5
    for in_fit in (True, False):
        chosen = [(i, v) for i, v in enumerate(values) if v is not None and record.sites[i].in_fit is in_fit]
        if chosen:
            face = theme.TRAIN if in_fit else "white"
            ax.plot(*zip(*chosen, strict=True), "o", ms=size, color=theme.TRAIN, mfc=face, zorder=3, clip_on=False)
    if fit is not None:
        positions = [i for i, site in enumerate(record.sites) if site.in_fit]
        ax.plot(positions, fit.line, "--", color=theme.RISE, lw=1.4, zorder=2)
    if min(known) > 0 and about.log:
        ax.set_yscale("log")
        flat = fit is not None and about.format == "residual"  # it hardly moves: its line and ticks need every digit
        spanned = [*known, *fit.line] if flat and fit is not None else known
        _plain_log_ticks(ax, spanned, (LANGUAGE_MODEL if flat else CLASSIFIER).margin)
    _dress(ax, clean(about.label))
    _count_sites(ax, record, values)
    ax.set_title(_title(record, fit), fontsize=10, parse_math=False)
    figure: Figure = ax.figure.figure  # of a sub-figure, the whole
    return figure


def plot_planes(record: Record, *, columns: int | None = None) -> Figure:
    """The first two principal components at every site that has them, colored by class, as small multiples."""
    sites = [(i, site) for i, site in enumerate(record.sites) if site.plane]
    if not sites:
        raise InputError(f"plot_planes: record '{record.name}' holds no plane coordinates.")
    across = columns or min(len(sites), 4 if len(sites) <= 12 else 6)
    if across < 1:
        raise InputError(f"plot_planes: expected at least 1 column, got {columns}.")
    down = math.ceil(len(sites) / across)
    figure = _new_figure(1.7 * across, 1.95 * down)
    labels = record.plane_labels
    colors = theme.class_colors(max([len(record.plane_names), 1, *(k + 1 for k in labels)]))
    numbers = record.numbers
    for place, (index, site) in enumerate(sites, start=1):
        ax = figure.add_subplot(down, across, place)
        points = [(p[0], p[1], k) for p, k in zip(site.plane, labels or [0] * len(site.plane), strict=False)]
        xs, ys, ks = zip(*points, strict=True) if points else ((), (), ())
        ax.scatter(xs, ys, s=3.5, c=[colors[k] for k in ks], linewidths=0, alpha=0.8)
        ax.set_aspect("equal", adjustable="datalim")
        ax.set_xticks([])
        ax.set_yticks([])
        for spine in ax.spines.values():
            spine.set_color(theme.RULE)
        ax.set_title(
            f"{numbers[index]} · {shortened(site.name, 20)}{_measured(record, site)}", fontsize=7.5, parse_math=False
        )
    return figure


def _measured(record: Record, site: SiteRow) -> str:
    value = site.values.get(record.leading)
    if value is None or record.words:  # PR has nothing to do with the words
        return ""
    return f"\nD = {number(value)}"


def _new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "pages", "plot()") from None
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _fit(record: Record, column: str) -> LawFit | None:
    try:
        return record.law(column)
    except InputError:  # a hole, a zero, fewer than two points: points without a line
        return None


def _title(record: Record, fit: LawFit | None) -> str:
    name = shortened(record.name, 48)
    if fit is None:
        return name
    numbers = f"ρ = {number(fit.rho, record.kind.digits if fit.quantity == RESIDUAL else 3)}"
    if fit.pearson is not None:
        numbers += f",  r = {correlation(fit.pearson)}"
    return f"{name}\n{numbers}"


def _count_sites(ax: Axes, record: Record, values: Sequence[float | None]) -> None:
    """Layers from 0, blocks from 1; the embedded input has a place where it has a value."""
    names = record.numbers
    first = int(names[0] == INPUT and values[0] is None)
    shown = block_ticks(names[first:], MOST_TICKS) if record.kind.first else strided(len(names), MOST_TICKS)
    ticks = [first + i for i in shown]
    ax.set_xlabel(block_title(names[first:]) if record.kind.first else "layer index")
    ax.set_xticks(ticks, [names[i] for i in ticks])
    ax.set_xlim(first - 0.4, len(names) - 0.6)


def _dress(ax: Axes, label: str) -> None:
    ax.set_ylabel(label, parse_math=False)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)


def _plain_log_ticks(ax: Axes, values: Sequence[float], margin: float) -> None:
    """Readable numbers on the log axis: matplotlib labels nothing between decades, or everything."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    bottom, top = math.log10(min(values)), math.log10(max(values))
    pad = max(0.06 * (top - bottom), margin)
    ticks = log_ticks(bottom - pad, top + pad, even_parts(margin))
    ax.set_ylim(10 ** (bottom - pad), 10 ** (top + pad))
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_major_formatter(lambda value, _: tick_text(value))
    ax.yaxis.set_minor_formatter(NullFormatter())
