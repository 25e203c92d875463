"""Samples in the plane of the first two principal components of each site, drawn as static SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layerlaw.measures.columns import describe
from layerlaw.pages import html, theme
from layerlaw.pages.html import Markup, fill
from layerlaw.pages.record_view import RecordView
from layerlaw.record import SiteRow
from layerlaw.wording import beginning, number, short_names

SIDE = 300  # a plane is a square of so many units: whole numbers, at most three digits
MARGIN = 14
MOST_PLANES, LONGEST_UNDER_PLANE = 24, 24
MOST_IN_LEGEND = 24


def plane_positions(view: RecordView) -> list[int]:
    """Positions of the sites that are drawn: all with coordinates, or an even choice of them."""
    having = _drawable(view)
    if len(having) <= MOST_PLANES:
        return having
    return [having[round(i * (len(having) - 1) / (MOST_PLANES - 1))] for i in range(MOST_PLANES)]


def planes_html(view: RecordView) -> Markup:
    """The grid of drawings (static SVG) with its legend, or a sentence that says why there is none."""
    chosen = plane_positions(view)
    if not chosen:
        return html.empty("No plane coordinates were recorded.")
    names, labels = view.record.plane_names, view.record.plane_labels
    colors = theme.class_colors(max([len(names), 1, *(k + 1 for k in labels)]))
    pairs = zip(colors, (beginning(name, 24) for name in names[: MOST_IN_LEGEND + 1]), strict=False)
    items = [fill('<li><i style="background:{}"></i>{}</li>', color, name) for color, name in pairs]
    legend = fill('<ul class="legend">{}</ul>', items) if names else ""
    if len(names) > MOST_IN_LEGEND:
        legend = fill('<p class="note">{} classes, colored by hue.</p>', f"{len(names):,}")
    short = short_names([site.name for site in view.sites], LONGEST_UNDER_PLANE)
    drawings = [_drawing(view, i, short[i], colors) for i in chosen]
    return fill('{}<div class="planes">{}</div>', legend, drawings)


def planes_note(view: RecordView) -> str:
    """What is drawn, and what is left out."""
    chosen, total = plane_positions(view), len(_drawable(view))
    some = f" {len(chosen)} of {total} sites are shown, evenly chosen." if len(chosen) < total else ""
    thinned = any(_step(view, view.sites[i]) > 1 for i in chosen)
    fewer = f" Of the samples at most {view.points} are drawn, to keep the file small." if thinned else ""
    return f"The first two principal components at each site; each drawing has its own scale.{some}{fewer}"


def svg_paths(plane: Sequence[Sequence[float]], labels: list[int], colors: list[str]) -> Markup:
    """One stroke-only path per color; both axes share one scale, so shapes are not distorted."""
    points = [(p[0], p[1], k) for p, k in zip(plane, labels or [0] * len(plane), strict=False) if _is_point(p)]
    if not points:
        return fill("")
    xs, ys, _ = zip(*points, strict=True)
    scale = (SIDE - 2 * MARGIN) / (max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0)
    x0, y0 = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    strokes: dict[str, list[str]] = {}
    for x, y, k in points:
        where = f"M{round(SIDE / 2 + scale * (x - x0))} {round(SIDE / 2 - scale * (y - y0))}h0"
        strokes.setdefault(colors[k % len(colors)], []).append(where)
    return fill("{}", [fill('<path stroke="{}" d="{}"/>', color, d) for color, d in sorted(strokes.items())])


def _drawing(view: RecordView, position: int, short: str, colors: list[str]) -> Markup:
    site = view.sites[position]
    step, value = _step(view, site), site.values.get(view.column)
    known = value is not None and not view.record.words  # PR has nothing to do with the words
    symbol = html.symbols(describe(view.column).symbol)
    measured = fill('<span class="num">{} = {}</span>', symbol, number(value)) if known else ""
    return fill(
        '<figure><svg viewBox="0 0 {} {}" role="img" aria-label="principal components at {}">{}</svg>'
        '<figcaption title="{}"><b>{}</b> {}{}</figcaption></figure>',
        SIDE, SIDE, short, svg_paths(site.plane[::step], view.record.plane_labels[::step], colors),
        site.name, view.record.numbers[position], short, measured,
    )  # fmt: skip


def _step(view: RecordView, site: SiteRow) -> int:
    return max(1, math.ceil(len(site.plane) / max(1, view.points)))


def _drawable(view: RecordView) -> list[int]:
    return [i for i, site in enumerate(view.sites) if any(_is_point(p) for p in site.plane)]


def _is_point(point: Sequence[float]) -> bool:
    return len(point) >= 2 and all(isinstance(v, (int, float)) and math.isfinite(v) for v in point[:2])
