"""The page of a training run that moves: a slider over its steps, and all pictures with it.

It needs no Plotly: movie.js draws everything itself, so a page of 50 steps and 20 sites takes less than 4 MB.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from layerlaw.errors import InputError
from layerlaw.measures.columns import describe
from layerlaw.pages import html, theme
from layerlaw.pages.along_training import TrainingSeries, step_text, training_words
from layerlaw.pages.html import Markup, fill
from layerlaw.pages.html.frames import frames
from layerlaw.pages.kinds import presentation
from layerlaw.pages.law_numbers import ASKED, LAW_COLUMNS
from layerlaw.pages.record_view import read_all
from layerlaw.record import Record
from layerlaw.wording import ABSENT, clean, joined, number, percent, sentence

MOST_STEPS = 2_000
MANY_PLANES, MOST_IN_LEGEND = 12, 24
DEFAULT_TITLE = "Training, layer by layer"


def movie_html(records: Record | Sequence[Record], *, title: str | None = None) -> str:
    """The page as text."""
    series = run_of(html.listed(records, Record, "movie"))
    data = frames(series)
    shown = html.inert(json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    held = fill('<script type="application/json" id="movie">{}</script>\n', shown)
    heading = clean(title or "") or DEFAULT_TITLE
    main = fill('<div class="movie">{}</div>', [*_parts(series, data)])
    style = html.source("movie.css")
    return html.document(heading, _facts(series), main, data=[held], scripts=[html.source("movie.js")], style=style)


def run_of(records: Sequence[Record]) -> TrainingSeries:
    """The records in the order of their steps, if they are of one run: one kind, the same sites, each step once."""
    first = records[0]
    if len(records) > MOST_STEPS:
        raise InputError(f"movie: expected at most {MOST_STEPS:,} records, got {len(records):,}. Leave some out.")
    steps: dict[float, Record] = {}
    for record in records:
        step = record.settings.get("step")
        if isinstance(step, bool) or not isinstance(step, (int, float)) or not math.isfinite(step):
            cure = "Set record.settings['step'] (and ['step_unit'], such as 'epoch')"
            raise InputError(f"movie: expected the training step of each record, '{record.name}' tells none. {cure}.")
        if (other := steps.setdefault(float(step), record)) is not record:
            both = f"'{other.name}' and '{record.name}'"
            raise InputError(f"movie: expected one record of each step, got two of step {step}: {both}.")
        for what, one, its in (
            ("of one kind", first.kind.name, record.kind.name),
            ("whose steps count the same", _unit(first), _unit(record)),
            ("of the same sites", _names(first), _names(record)),
        ):
            if one != its:
                came = f"got {_differs(one, its)} in '{first.name}' and '{record.name}'"
                raise InputError(f"movie: expected records {what}, {came}.")
    if not first.sites:
        raise InputError(f"movie: expected at least one site, record '{first.name}' has none.")
    order = sorted(steps)
    return TrainingSeries(tuple(read_all([steps[step] for step in order])), tuple(order), _unit(first))


def _unit(record: Record) -> str:
    return clean(str(record.settings.get("step_unit") or "step"))[:20]


def _names(record: Record) -> list[str]:
    return [site.name for site in record.sites]


def _differs(one: str | list[str], other: str | list[str]) -> str:
    """What two records do not have in common, in a few words."""
    if isinstance(one, str) or isinstance(other, str):
        return f"{one} and {other}"
    apart = [f"'{name}'" for name in [*one, *other] if (name in one) != (name in other)]
    return joined(apart[:3]) if apart else "another order"


def _facts(series: TrainingSeries) -> Markup:
    """Name, samples, classes and sites; what changes in training is in the tiles."""
    last = series.views[-1]
    facts = [fact for fact in presentation(last).facts(last) if "accuracy" not in fact and "R²" not in fact]
    many, ends = len(series.views), [step_text(series.steps[i]) for i in (0, -1)]
    span = f"measured {many} times from {series.unit} {' to '.join(ends)}" if many > 1 else f"{series.unit} {ends[0]}"
    model = last.record.provenance.get("model")
    parts = [*([clean(str(model))] if model else []), *facts, span]
    first, *others = parts
    return fill('<span class="fact">{}</span>{}', first, [fill(' · <span class="fact">{}</span>', o) for o in others])


def _parts(series: TrainingSeries, data: dict[str, Any]) -> list[Markup]:
    """The bar, the tiles, and a section for everything that the records hold."""
    last = series.views[-1]
    symbol, step = describe(last.column).symbol, last.record.step_name
    title = presentation(last).AXIS
    orange = "Orange: test data."
    caption = html.paragraph(
        f"Straight: every {step} improves {symbol} by one factor.",
        "Dashed: the law.",
        all(last.sites[p].at == "input" for p in last.fit_positions) and f"Points: what enters each {step}.",
        bool(data["curve"]["test"]) and orange,
    )
    hero = [
        _section(
            "law", html.symbols(title[0].upper() + title[1:]), _figure("curve", f"{symbol} of every site"), caption
        )
    ]
    hero += [_collapse(data["view"])] if data["view"] else []
    lower = []
    if data["shares"]:
        caption = html.paragraph(
            f"Each {step}’s share of the whole drop of ln {symbol}. Dashed: an even share.",
            data["shares"]["cut"] and "A triangle: the bar goes on beyond the axis, to the number beside it.",
        )
        lower.append(_section("shares", "Who does the work", _figure("shares", "share of each site"), caption))
    if data["mismatch"]:
        caption = html.paragraph(
            "How often the nearest class mean is not what the network decides.",
            bool(data["mismatch"]["test"]) and orange,
        )
        figure = _figure("mismatch", "mismatch of each site")
        lower.append(_section("ncc", "Nearest class center mismatch", figure, caption))
    return [
        fill('<noscript><p class="empty">The movie needs JavaScript; the table below does not.</p></noscript>'),
        _player(series),
        fill('<p class="headline" id="words">{}</p>', sentence(last.headline[0])),
        _tiles(series, step),
        _side_by_side(hero),
        _planes(data, series.unit) if data["planes"] else fill(""),
        _side_by_side(lower),
        _heat(series, symbol) if data["curve"]["axis"] else fill(""),
        _all_numbers(series),
    ]


def _section(panel: str, heading: str, body: Markup, caption: str) -> Markup:
    return html.section(panel, "movie", heading, body, caption)


def _player(series: TrainingSeries) -> Markup:
    last = len(series.views) - 1
    return fill(
        '<div class="player" data-panel="player"><button id="play" type="button" aria-pressed="false" aria-label="play">'
        '<svg viewBox="0 0 20 20" class="start"><path d="M5 2.5v15l12-7.5z"/></svg>'
        '<svg viewBox="0 0 20 20" class="pause"><path d="M4 3h4.5v14H4zM11.5 3H16v14h-4.5z"/></svg></button>'
        '<div class="now"><span>{}</span><output id="now">{}</output></div>'
        '<div class="track"><input id="slider" type="range" min="0" max="{}" value="{}" step="1" aria-label="{}">'
        '<svg id="strip" role="img" aria-label="at which steps the law holds: filled dots"></svg></div>'
        '<button id="speed" type="button" aria-label="speed 1×">1×</button></div>',
        series.unit, step_text(series.steps[-1]), last, last, series.unit,
    )  # fmt: skip


def _tiles(series: TrainingSeries, step: str) -> Markup:
    last = series.views[-1]
    tiles = [
        ("holds", "law holds", "if all three are as asked for"),
        ("evenness", "evenness", f"asked for: {ASKED['evenness']}"),
        ("trend", "trend", f"asked for: {ASKED['trend']}"),
        ("chance", "chance (p)", f"asked for: {ASKED['chance']}"),
        ("rho", "ρ", f"factor of {describe(last.column).symbol} per {step}"),
    ]
    out = [_tile(key, what, html.symbols(tail)) for key, what, tail in tiles]
    tested = all(view.record.test_accuracy is not None for view in series.views)
    test = last.record.test_accuracy if tested else None
    if last.record.accuracy is not None:
        below = (
            fill("of the network") if test is None else fill('test <span id="test-accuracy">{}</span>', percent(test))
        )
        out.append(_tile("accuracy", "accuracy" if test is None else "train accuracy", below))
    return fill('<dl class="cards">{}</dl>', out)


def _tile(key: str, what: str, tail: Markup) -> Markup:
    return fill(
        '<div id="tile-{}"><dt>{}</dt><dd class="value">{}</dd><dd class="tail">{}</dd></div>', key, what, ABSENT, tail
    )


def _side_by_side(sections: Sequence[Markup]) -> Markup:
    return fill('<div class="pair">{}</div>', sections) if len(sections) == 2 else fill("{}", sections)


def _figure(key: str, label: str) -> Markup:
    return fill('<div class="figure" id="{}" data-label="{}"></div>', key, label)


def _collapse(view: dict[str, Any]) -> Markup:
    """The canvas of three classes, and what its shapes are."""
    caption = "Three classes where the classifier reads them. Drag to turn."
    features = fill('<circle cx="8" cy="6" r="2.6" fill="{}" opacity=".6"/>', theme.MUTED)
    mean = fill('<circle cx="8" cy="6" r="5.4" fill="{}"/>', theme.MUTED)
    row = fill('<path d="M8 0l6 6-6 6-6-6z" fill="#fff" stroke="{}" stroke-width="2"/>', theme.MUTED)
    corner = fill('<circle cx="8" cy="6" r="5.4" fill="#fff" stroke="{}" stroke-width="1.4"/>', theme.MUTED)
    shapes = [(features, "feature"), (mean, "class mean"), (row, "classifier row"), (corner, "corner of a simplex")]
    items = [
        fill('<li><svg viewBox="0 0 16 12">{}</svg>{}</li>', drawn, name)
        for drawn, name in shapes
        if view["rows"] or drawn is not row
    ]
    label = f"{joined(view['names'])} in three dimensions"
    canvas = fill('<canvas id="collapse" role="img" aria-label="{}"></canvas>', label)
    return _section("collapse", "Neural collapse", fill('{}<ul class="legend shapes">{}</ul>', canvas, items), caption)


def _planes(data: dict[str, Any], unit: str) -> Markup:
    """A canvas per site, with what stands below it."""
    planes = data["planes"]
    pairs = zip(data["colors"], planes["legend"], strict=False)
    items = [fill('<li><i style="background:{}"></i>{}</li>', color, name) for color, name in pairs]
    legend = fill('<ul class="legend">{}</ul>', items) if 0 < len(planes["legend"]) <= MOST_IN_LEGEND else ""
    drawings = [
        fill(
            '<figure><canvas role="img" aria-label="principal components at {}"></canvas>'
            '<figcaption><b>{}</b> {}<span class="num"></span></figcaption></figure>',
            name, count, name,
        )
        for name, count in zip(planes["sites"], planes["numbers"], strict=True)
    ]  # fmt: skip
    kind = "planes many" if len(drawings) > MANY_PLANES else "planes"
    caption = html.paragraph(
        "Samples in the first two principal components of each site, turned to move as little as they can.",
        "Each drawing has its own scale.",
        not planes["same"] and f"The samples are not the same at every {unit}.",
    )
    return _section("plane", "In the plane", fill('{}<div class="{}">{}</div>', legend, kind, drawings), caption)


def _heat(series: TrainingSeries, symbol: str) -> Markup:
    caption = html.paragraph(
        len(series.views) > 1 and training_words(series),
        f"{symbol} of every site (upwards) at every {series.unit} that was measured. Light is better.",
    )
    label = f"{symbol} of every site at every {series.unit}"
    canvas = fill('<canvas id="heat" role="img" aria-label="{}"></canvas>', label)
    keys = fill(
        '<p class="keys"><b>space</b> play or pause · <b>←</b> <b>→</b> one step · <b>Home</b> <b>End</b> first, last</p>'
    )
    return _section("heat", "All of training", fill("{}{}", canvas, keys), caption)


def _all_numbers(series: TrainingSeries) -> Markup:
    """The numbers of every step as a table, for those who cannot or will not watch."""
    symbol = describe(series.views[-1].column).symbol
    heads = [series.unit, *(column.head for column in LAW_COLUMNS), f"final {symbol}", "accuracy"]
    kinds = ["site", *[""] * (len(heads) - 1)]
    head = [
        fill('<th scope="col" class="{}">{}</th>', *pair) for pair in zip(kinds, map(html.symbols, heads), strict=True)
    ]
    rows = []
    for view, step in zip(series.views, series.steps, strict=True):
        final = view.series(view.column)[view.fit_positions[-1]] if view.fit_positions else None
        cells = [*(column.cell(view) for column in LAW_COLUMNS), number(final), percent(view.record.accuracy)]
        first = fill('<th scope="row" class="site">{}</th>', step_text(step))
        rows.append([first, *(fill("<td>{}</td>", cell) for cell in cells)])
    table = html.table("the law at every step", head, rows)
    return fill('<details class="table all"><summary>The numbers of every {}</summary>{}</details>', series.unit, table)
