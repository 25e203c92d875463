"""Figures for papers: matplotlib without pyplot, so nothing global changes and nothing is shown."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from layerlaw.errors import InputError
from layerlaw.law import RESIDUAL
from layerlaw.measures.columns import describe
from layerlaw.pages import theme
from layerlaw.pages.record_view import site_ticks
from layerlaw.pages.sheets import new_figure
from layerlaw.pages.sheets.curves import draw_points
from layerlaw.pages.sheets.scales import close_scale, tick_text
from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, Record
from layerlaw.wording import clean, correlation, finite, number, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(record: Record, column: str | None = None, *, ax: Axes | None = None) -> Figure:
    """One column against depth, in the style of the papers: log axis, points, fitted dashed line, ρ and r.

    Without a column the leading one: the separation of a classifier, the (held-out) residual of a language model.
    """
    if not isinstance(record, Record):
        raise InputError(f"plot: expected one record, got {type(record).__name__}; ll.report compares several.")
    column = column or record.leading
    values = [finite(v) for v in record.column(column)]
    known = [v for v in values if v is not None]
    if not known:
        raise InputError(f"plot: record '{record.name}' holds no finite number in column {column!r}.")
    about, fit = describe(column), None
    if about.log:
        with suppress(InputError):  # a hole, a zero, fewer than two points: points without a line
            fit = record.law(column)
    ax = ax or new_figure(4.2, 3.4, "plot()").add_subplot()
    size = 5.5 if len(values) <= 24 else 3.5
    for in_fit in (True, False):
        chosen = [(i, v) for i, v in enumerate(values) if v is not None and record.sites[i].in_fit is in_fit]
        if chosen:
            face = theme.TRAIN if in_fit else "white"
            ax.plot(*zip(*chosen, strict=True), "o", ms=size, color=theme.TRAIN, mfc=face, zorder=3, clip_on=False)
    title = shortened(record.name, 48)
    if fit is not None:
        positions = [i for i, site in enumerate(record.sites) if site.in_fit]
        ax.plot(positions, fit.line, "--", color=theme.RISE, lw=1.4, zorder=2)
        title += f"\nρ = {number(fit.rho, record.kind.digits if fit.quantity == RESIDUAL else 3)}"
        title += f",  r = {correlation(fit.pearson)}" if fit.pearson is not None else ""
    if min(known) > 0 and about.log:
        flat = fit is not None and about.format == "residual"  # it hardly moves: its line and ticks need every digit
        spanned = [*known, *fit.line] if flat and fit is not None else known
        scale, levels = close_scale(spanned, (LANGUAGE_MODEL if flat else CLASSIFIER).margin)
        ax.set_yscale("log")
        ax.set_ylim(scale.low, scale.high)
        ax.set_yticks(levels, [tick_text(level) for level in levels])
        ax.yaxis.set_minor_formatter("")  # matplotlib would label everything between decades
    ticks, names, counted, first = site_ticks(record, with_input=values[0] is not None)
    ax.set_ylabel(clean(about.label), parse_math=False)
    ax.set_xlabel(counted)
    ax.set_xticks(ticks, names)
    ax.set_xlim(first - 0.4, len(values) - 0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=9)
    ax.set_title(title, fontsize=10, parse_math=False)
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
