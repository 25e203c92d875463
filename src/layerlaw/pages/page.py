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
from layerlaw.pages.reading import Reading, read_all
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
    readings = read_all(_checked(records))
    alone = len(readings) == 1
    heading = clean(title or "") or (readings[0].label if alone else f"{len(readings)} records compared")
    under = subtitle(readings[0]) if alone else escaped(" · ".join(reading.label for reading in readings))
    planes = sum(len(plane_positions(reading)) for reading in readings)
    points = min(500, PLANE_POINTS // max(1, planes))
    main = _sections(readings[0], "r0", points) + _definitions(readings) if alone else _several(readings, points)
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


def _several(readings: Sequence[Reading], points: int) -> str:
    """The comparison, then every record, folded; each drawing of a plane has at most `points` dots."""
    parts = [
        section(
            "compare",
            "all",
            "Side by side",
            chart("all-compare", compare_figure(readings)) + compare_table(readings),
            _comparison_caption(readings),
        )
    ]
    for i, reading in enumerate(readings):
        parts.append(
            f'<details class="record"><summary><b>{escaped(reading.label)}</b>'
            f"<span>{escaped(sentence(split_headline(reading)[0]))}</span></summary>"
            f'<p class="subtitle">{subtitle(reading)}</p>{_sections(reading, f"r{i}", points)}</details>'
        )
    return "\n".join([*parts, _definitions(readings)])


def _sections(reading: Reading, key: str, points: int) -> str:
    return lm_sections(reading, key, points) if reading.language_model else _record(reading, key, points)


def _record(reading: Reading, key: str, points: int) -> str:
    """All sections of a classifier; `key` makes element ids unique on the page."""
    pair = (
        section(
            "ncc", key, "Nearest class center", chart(f"{key}-ncc", charts.nearest_figure(reading)),
            "Error: the nearest class mean is not the sample’s own. Mismatch: it is not what the network decides.",
        )
        + section(
            "collapse", key, "Neural collapse",
            chart(f"{key}-collapse", charts.collapse_figure(reading)) + collapse_cards(reading),
            "How far each site is from collapse; everything tends to 0 there.",
        )
    )  # fmt: skip
    return "\n".join(
        [
            section("verdict", key, "", verdict_html(reading)),
            section(
                "law", key, "Separation along depth",
                law_cards(reading) + chart(f"{key}-law", charts.law_figure(reading)), _law_caption(reading),
            ),
            section(
                "shares", key, "Who does the work", chart(f"{key}-shares", charts.shares_figure(reading)),
                _shares_caption(reading),
            ),
            section("table", key, "Layer by layer", layers_html(reading)),
            section("classes", key, "Class by class", chart(f"{key}-classes", classes_figure(reading)),
                     escaped(classes_note(reading)).replace("D_k", "D<sub>k</sub>")),
            f'<div class="pair">{pair}</div>',
            section("plane", key, "In the plane", planes_html(reading, points), planes_note(reading, points)),
            section("method", key, "How it was measured", method_html(reading)),
        ]
    )  # fmt: skip


def _comparison_caption(readings: Sequence[Reading]) -> str:
    if not readings[0].language_model:
        return "D along the layers of each fit; dashed, the fitted law." + _other_data(readings)
    held_out = " held out" if readings[0].column == "residual_held_out" else " in-sample"
    return (
        f"PR{held_out} along the blocks of each fit; dashed, the fitted law. Models with different tokenizers predict "
        f"different ids: compare their shapes rather than their heights.{_intervals(readings)}" + _other_data(readings)
    )


def _intervals(readings: Sequence[Reading]) -> str:
    if not any(reading.has(f"{reading.column}_log_se") for reading in readings):
        return ""
    return " Bars: 95% intervals by jackknife; those of one record move together."


def _other_data(readings: Sequence[Reading]) -> str:
    known = {reading.record.provenance.get("data_sha256") for reading in readings} - {None}
    return " The records were measured on different data." if len(known) > 1 else ""


def _definitions(readings: Sequence[Reading]) -> str:
    written = lm_formulas_html(readings) if readings[0].language_model else formulas_html()
    return section("definitions", "all", "Definitions and sources", written)


def _law_caption(reading: Reading) -> str:
    parts = ["A straight line on this axis means that every layer improves D by the same factor."]
    if reading.of_inputs:
        parts.append("Each point is what enters the named layer.")
    if reading.has("separation_log_se"):
        parts.append("Bars: 95% intervals by jackknife.")
    if any(not site.in_fit for site in reading.sites):
        parts.append("Hollow points are not part of the fit.")
    return " ".join(parts)


def _shares_caption(reading: Reading) -> str:
    if not reading.shares:
        return ""
    even = 1 / len(reading.shares)
    parts = [f"Each layer’s share of the whole drop of ln D. Dashed: an even share, {percent(even)}."]
    if any(0 <= share < IDLE_SHARE * even for share in reading.shares.values()):
        parts.append("Pale: less than a quarter of it.")
    if any(share < 0 for share in reading.shares.values()):
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
            f"report: expected records of one kind, got a {out[0].kind} ('{out[0].name}') and a {other.kind} "
            f"('{other.name}'). Write a page for each kind."
        )
    return out


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
