"""One self-contained HTML file: every byte it needs is in it, and its policy forbids it to ask for more.

The content security policy names the two scripts by their hashes: no other script runs, whatever a record is called.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from layerlaw.errors import InputError
from layerlaw.files import write_whole
from layerlaw.pages import charts, theme
from layerlaw.pages.classes import classes_figure, classes_note
from layerlaw.pages.comparison import compare_figure, compare_table
from layerlaw.pages.drawing import plotly_source
from layerlaw.pages.html.escaping import escaped
from layerlaw.pages.layers import layers_html
from layerlaw.pages.lm_page import lm_sections
from layerlaw.pages.lm_words import lm_formulas_html
from layerlaw.pages.planes import plane_positions, planes_html, planes_note
from layerlaw.pages.record_view import RecordView, read_all
from layerlaw.pages.sections import chart, inert, section
from layerlaw.pages.words import (
    collapse_cards,
    formulas_html,
    law_cards,
    method_html,
    split_headline,
    subtitle,
    verdict_html,
)
from layerlaw.record import Record
from layerlaw.verdict import IDLE_SHARE
from layerlaw.wording import clean, percent, sentence

PLANE_POINTS = 20_000  # on the whole page, about ten bytes each: Plotly itself takes 4.8 of the 6 MB


def write_page(records: Record | Sequence[Record], path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write the page of one record, or of several with a comparison first."""
    return write_whole(path, page_html(records, title=title))


def page_html(records: Record | Sequence[Record], *, title: str | None = None) -> str:
    """The page as text."""
    views = read_all(_checked(records))
    alone = len(views) == 1
    heading = clean(title or "") or (views[0].label if alone else f"{len(views)} records compared")
    under = subtitle(views[0]) if alone else escaped(" · ".join(view.label for view in views))
    planes = sum(len(plane_positions(view)) for view in views)
    points = min(500, PLANE_POINTS // max(1, planes))
    main = _sections(views[0], "r0", points) + _definitions(views) if alone else _several(views, points)
    plotly, own = plotly_source(), theme.script()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(plotly, own)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="layerlaw">
<link rel="icon" href="data:,">
<title>{escaped(heading)}</title>
<style>{theme.style_sheet()}</style>
</head>
<body>
<header>
<h1>{escaped(heading)}</h1>
<p class="subtitle">{under}</p>
</header>
<main>
<noscript><p class="empty">The charts need JavaScript; verdict, tables and drawings do not.</p></noscript>
{main}
</main>
<script type="application/json" id="template">{_json(theme.plotly_template())}</script>
<script>{plotly}</script>
<script>{own}</script>
</body>
</html>
"""


def _several(views: Sequence[RecordView], points: int) -> str:
    """The comparison, then every record, folded; each drawing of a plane has at most `points` dots."""
    parts = [
        section(
            "compare",
            "all",
            "Side by side",
            chart("all-compare", compare_figure(views)) + compare_table(views),
            _comparison_caption(views),
        )
    ]
    for i, view in enumerate(views):
        parts.append(
            f'<details class="record"><summary><b>{escaped(view.label)}</b>'
            f"<span>{escaped(sentence(split_headline(view)[0]))}</span></summary>"
            f'<p class="subtitle">{subtitle(view)}</p>{_sections(view, f"r{i}", points)}</details>'
        )
    return "\n".join([*parts, _definitions(views)])


def _sections(view: RecordView, key: str, points: int) -> str:
    return lm_sections(view, key, points) if view.language_model else _record(view, key, points)


def _record(view: RecordView, key: str, points: int) -> str:
    """All sections of a classifier; `key` makes element ids unique on the page."""
    pair = (
        section(
            "ncc", key, "Nearest class center", chart(f"{key}-ncc", charts.nearest_figure(view)),
            "Error: the nearest class mean is not the sample’s own. Mismatch: it is not what the network decides.",
        )
        + section(
            "collapse", key, "Neural collapse",
            chart(f"{key}-collapse", charts.collapse_figure(view)) + collapse_cards(view),
            "How far each site is from collapse; everything tends to 0 there.",
        )
    )  # fmt: skip
    return "\n".join(
        [
            section("verdict", key, "", verdict_html(view)),
            section(
                "law", key, "Separation along depth",
                law_cards(view) + chart(f"{key}-law", charts.law_figure(view)), _law_caption(view),
            ),
            section(
                "shares", key, "Who does the work", chart(f"{key}-shares", charts.shares_figure(view)),
                _shares_caption(view),
            ),
            section("table", key, "Layer by layer", layers_html(view)),
            section("classes", key, "Class by class", chart(f"{key}-classes", classes_figure(view)),
                     escaped(classes_note(view)).replace("D_k", "D<sub>k</sub>")),
            f'<div class="pair">{pair}</div>',
            section("plane", key, "In the plane", planes_html(view, points), planes_note(view, points)),
            section("method", key, "How it was measured", method_html(view)),
        ]
    )  # fmt: skip


def _comparison_caption(views: Sequence[RecordView]) -> str:
    if not views[0].language_model:
        return "D along the layers of each fit; dashed, the fitted law." + _other_data(views)
    held_out = " held out" if views[0].column == "residual_held_out" else " in-sample"
    return (
        f"PR{held_out} along the blocks of each fit; dashed, the fitted law. Models with different tokenizers predict "
        f"different ids: compare their shapes rather than their heights.{_intervals(views)}" + _other_data(views)
    )


def _intervals(views: Sequence[RecordView]) -> str:
    if not any(view.has(f"{view.column}_log_se") for view in views):
        return ""
    return " Bars: 95% intervals by jackknife; those of one record move together."


def _other_data(views: Sequence[RecordView]) -> str:
    known = {view.record.provenance.get("data_sha256") for view in views} - {None}
    return " The records were measured on different data." if len(known) > 1 else ""


def _definitions(views: Sequence[RecordView]) -> str:
    written = lm_formulas_html(views) if views[0].language_model else formulas_html()
    return section("definitions", "all", "Definitions and sources", written)


def _law_caption(view: RecordView) -> str:
    parts = ["A straight line on this axis means that every layer improves D by the same factor."]
    if view.of_inputs:
        parts.append("Each point is what enters the named layer.")
    if view.has("separation_log_se"):
        parts.append("Bars: 95% intervals by jackknife.")
    if any(not site.in_fit for site in view.sites):
        parts.append("Hollow points are not part of the fit.")
    return " ".join(parts)


def _shares_caption(view: RecordView) -> str:
    if not view.shares:
        return ""
    even = 1 / len(view.shares)
    parts = [f"Each layer’s share of the whole drop of ln D. Dashed: an even share, {percent(even)}."]
    if any(0 <= share < IDLE_SHARE * even for share in view.shares.values()):
        parts.append("Pale: less than a quarter of it.")
    if any(share < 0 for share in view.shares.values()):
        parts.append("Red: D rises.")
    return " ".join(parts)


def _json(data: Any) -> str:
    return inert(json.dumps(data))


def _checked(records: Record | Sequence[Record]) -> list[Record]:
    if not isinstance(records, (Record, Iterable)):
        raise InputError(f"report: expected a Record or a list of them, got {type(records).__name__}.")
    out = [records] if isinstance(records, Record) else list(records)
    for record in out:
        if not isinstance(record, Record):
            raise InputError(f"report: expected a Record or a list of them, got {type(record).__name__}.")
        if not record.sites:
            raise InputError(f"report: expected at least one site, record '{record.name}' has none.")
    if not out:
        raise InputError("report: expected at least one record, got an empty list.")
    other = next((record for record in out if record.kind != out[0].kind), None)
    if other is not None:  # D and PR have no axis in common
        raise InputError(
            f"report: expected records of one kind, got a {out[0].kind.name} ('{out[0].name}') and a {other.kind.name} "
            f"('{other.name}'). Write a page for each kind."
        )
    return out


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
