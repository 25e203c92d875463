"""The page of one record, or of several with a comparison first: which panels it has, and how they are put together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from layerlaw.errors import Demand, InputError, demand
from layerlaw.pages import classifier, html, language_model, regression
from layerlaw.pages.classifier import charts
from layerlaw.pages.html import Markup, fill, plotly
from layerlaw.pages.html.compared import along_relative_depth, compare_figure, compare_table
from layerlaw.pages.html.planes import plane_positions, planes_html, planes_note
from layerlaw.pages.html.series import MOST_CURVES, drawn_alone, paired_section, training_sections
from layerlaw.pages.kinds import filled, presentation
from layerlaw.pages.language_model import charts as lm_charts
from layerlaw.pages.law_numbers import law_tiles, together
from layerlaw.pages.record_view import Parts, RecordView, read_all
from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, REGRESSION, Kind, Record, SiteRow
from layerlaw.verdict.checks import other_data
from layerlaw.wording import ABSENT, clean, percent, sentence, setting, short_names, shortened

PLANE_POINTS = 20_000  # on the whole page, about ten bytes each: Plotly itself takes 4.8 of the 6 MB
LONGEST_BLOCK, LONGEST_SITE = 17, (22, 17)  # characters in a table; of a site, on a desk and on a telephone
MANY_SITES = 60  # more than that scroll in a box of their own
TYPE_HEADS = fill(
    '<th scope="col" class="site">site</th><th scope="col" class="text">type</th>'
    '<th scope="col" title="numbers per sample at this site">features</th>'
)
RANK_MARK = fill('<span class="mark">{}</span>', classifier.RANK_MARK)


class PagePanel(NamedTuple):
    """A section of a page: its name, its heading, a figure of a record, HTML `above` or `below` it, and a caption.

    Two `half` panels in a row stand side by side; one that is not `shown` is left out.
    """

    name: str
    heading: str
    figure: Callable[[RecordView], object] | None = None
    above: Callable[[RecordView], Markup] | None = None
    below: Callable[[RecordView], Markup] | None = None
    caption: Callable[[RecordView], str] | str = ""
    half: bool = False
    shown: Callable[[RecordView], object] = lambda view: True

    def section(self, view: RecordView, key: str) -> Markup:
        """The panel as a section of HTML; `key` makes its ids unique on the page."""
        drawn = html.chart(f"{key}-{self.name}", self.figure(view)) if self.figure is not None else ""
        above, below = (part(view) if part is not None else "" for part in (self.above, self.below))
        caption = self.caption if isinstance(self.caption, str) else self.caption(view)
        return html.section(self.name, key, self.heading, fill("{}{}{}", above, drawn, below), caption)


def verdict_html(view: RecordView) -> Markup:
    """The headline large, its numbers below; findings, advice, and the record's notes in gray."""
    (headline, numbers), verdict = view.headline, view.verdict
    notes = [note for note in view.record.notes if note not in verdict.findings]
    advice = fill("<h3>What to do</h3>{}", html.sentences(verdict.advice, "advice")) if verdict.advice else ""
    return fill(
        '<p class="headline">{}</p>{}{}{}{}',
        html.symbols(sentence(headline)),
        fill('<p class="facts">{}</p>', html.unbroken(numbers)) if numbers else "",
        html.sentences(verdict.findings, "findings"),
        advice,
        html.sentences(notes, "notes"),
    )


def method_html(view: RecordView) -> Markup:
    """Settings and provenance of one record."""
    parts = [
        fill("<h3>{}</h3>{}", head, html.settings((k.replace("_", " "), setting(v)) for k, v in values.items()))
        for head, values in (("Settings", view.record.settings), ("Provenance", view.record.provenance))
        if values
    ]
    return fill("{}", parts) if parts else html.empty("The record holds no settings and no provenance.")


def key_numbers(view: RecordView) -> Markup:
    """The numbers of the law as cards: those that decide whether it holds, and below the others."""
    if view.fit is None:
        return html.empty("No law could be fitted, for the reason given above.")
    shows = presentation(view)
    return fill("{}{}", html.cards(law_tiles(view, view.fit)), html.cards(shows.key_numbers(view, view.fit)))


def layers_html(view: RecordView) -> Markup:
    """The table; columns that are empty at every site are left out."""
    shows = presentation(view)
    parts = shows.parts(view)
    cells = filled(view, (column for column in shows.table_columns(view) if column.on_page), parts, _bars(parts, view))
    long_names = not view.alike and max(len(site.name) for site in view.sites) > LONGEST_SITE[1]
    many = len(cells) + long_names > shows.CROWDED  # long names take the room of a column
    titled = [(c.meaning, c.short if many and c.short else c.head) for c in cells]
    heads = [fill('<th scope="col" title="{}">{}</th>', meaning, html.symbols(head)) for meaning, head in titled]
    rows, names = [], _table_names(view)
    for i, (site, count) in enumerate(zip(view.sites, view.record.numbers, strict=True)):
        mark = RANK_MARK if site.values.get("full_rank") == 0.0 else ""
        measured = [
            fill("<td>{}{}</td>", texts[i], mark if c.head in ("D", "D_reg") else "") for c, texts in cells.items()
        ]
        opened = fill("<tr>") if site.in_fit else fill('<tr class="aside">')
        about = _site_cells(site, count, names[i], short=view.alike)
        rows.append(fill("{}{}{}</tr>", opened, about, measured))
    first = fill('<th scope="col" class="site">block</th>') if view.alike else TYPE_HEADS
    gray = ["Sites in gray are shown but are no points of the law."] * any(not site.in_fit for site in view.sites)
    far = bool(view.shares) and any(b > a + 1 for a, b in pairwise(view.fit_positions))
    gray += ["Where gray rows lie between two points of the law, a share is that of all layers between the two."] * far
    enters = ["Each row is what enters the module of that name."] * all(site.at == "input" for site in view.sites)
    notes = [*enters, *shows.table_notes(view), *gray]
    below = [fill('<p class="note">{}</p>', html.symbols(note)) for note in notes]
    kind, tall = "many" if many else "", len(view.sites) > MANY_SITES
    return fill("{}{}", html.table("per-layer table", [first, *heads], rows, kind=kind, tall=tall), below)


def _bars(parts: Parts, view: RecordView) -> list[str]:
    out: list[str] = [ABSENT] * len(view.sites)
    largest = max([parts.least, *map(abs, parts.values.values())])
    for (i, part), kind in zip(parts.values.items(), parts.kinds(), strict=True):
        if largest > 0:
            bar = fill('<span class="bar {}" style="width:{}%"></span>', kind, f"{100 * abs(part) / largest:.0f}")
            share = percent(part, parts.digits)
            out[i] = fill('<span class="share">{}</span><span class="num">{}</span>', bar, share)
    return out


def _table_names(view: RecordView) -> list[str]:
    """Names that differ on a desk and on a telephone; of blocks all alike without the middle: they end in their number."""
    if view.alike:
        inner = [site.name[site.name.rfind("after ") :] if not site.in_fit else site.name for site in view.sites]
        names = [part if part.startswith("after ") else site.name for part, site in zip(inner, view.sites, strict=True)]
        return [shortened(name, LONGEST_BLOCK) for name in names]
    wide, narrow = (short_names([site.name for site in view.sites], longest) for longest in LONGEST_SITE)
    return [
        long
        if long == brief
        else fill('<span class="on-desk">{}</span><span class="on-telephone">{}</span>', long, brief)
        for long, brief in zip(wide, narrow, strict=True)
    ]


def _site_cells(site: SiteRow, count: str, name: str, *, short: bool) -> Markup:
    """Name, type and features; of blocks all alike the name alone, and beside one that is a number no other stands."""
    index = "" if short and site.name.isdecimal() else fill('<span class="index">{}</span>', count)
    head = fill('<th scope="row" class="site" title="{}">{}{}</th>', site.name, index, name)
    kind, features = shortened(site.type, 28), f"{site.features:,}"
    return head if short else fill('{}<td class="text">{}</td><td>{}</td>', head, kind, features)


VERDICT = PagePanel("verdict", "", below=verdict_html)
LAW = PagePanel("law", "Separation along depth", charts.law_figure, key_numbers, caption=classifier.law_caption)
SHARES = PagePanel("shares", "Who does the work", charts.shares_figure, caption=classifier.shares_caption)
MODULES = PagePanel(
    "modules", charts.MODULES, charts.modules_figure, below=charts.modules_table, caption=charts.modules_words,
    shown=lambda view: view.modules,
)  # fmt: skip
PARTS = PagePanel(
    "parts", "What a layer is made of", charts.parts_figure, below=classifier.parts_table,
    caption=classifier.parts_caption, shown=lambda view: view.record.parts,
)  # fmt: skip
LAYERS = PagePanel("table", "Layer by layer", below=layers_html)
METHOD = PagePanel("method", "How it was measured", below=method_html)
PANELS: dict[Kind, tuple[PagePanel, ...]] = {
    CLASSIFIER: (
        VERDICT,
        LAW,
        SHARES,
        MODULES,
        PARTS,
        LAYERS,
        PagePanel("classes", "Class by class", charts.classes_figure, caption=charts.classes_note),
        PagePanel(
            "ncc", "Nearest class center", charts.nearest_figure, half=True,
            caption="Error: the nearest class mean is not the sample’s own. Mismatch: it is not what the network decides.",
        ),
        PagePanel(
            "collapse", "Neural collapse", charts.collapse_figure, below=classifier.collapse_cards, half=True,
            caption="How far each site is from collapse; everything tends to 0 there.",
        ),
        PagePanel("plane", "In the plane", below=planes_html, caption=planes_note),
        METHOD,
    ),
    REGRESSION: (
        VERDICT,
        LAW,
        SHARES,
        MODULES,
        PARTS,
        LAYERS,
        PagePanel("residual", "The targets, read linearly", regression.residual_figure, caption=regression.residual_caption),
        PagePanel("plane", "In the plane", below=planes_html, caption=planes_note),
        METHOD,
    ),
    LANGUAGE_MODEL: (
        VERDICT,
        PagePanel(
            "law", "Prediction residual along depth", lm_charts.residual_figure, key_numbers,
            caption=language_model.residual_caption,
        ),
        PagePanel(
            "deviations", "Off the line", lm_charts.deviations_figure, half=True,
            caption=language_model.deviations_caption,
        ),
        PagePanel("gains", "Who does the work", lm_charts.gains_figure, half=True, caption=language_model.gains_caption),
        PagePanel(
            "lens", "If the model ended here", lm_charts.lens_figure, half=True, caption=language_model.lens_caption,
            shown=lambda view: view.has("lens_loss"),
        ),
        PagePanel(
            "predictions", "Predictions already made", lm_charts.predictions_figure, half=True,
            caption="Made: the most probable token at this block is that of the last block; for good: at every later block, "
            "too. Right: it is the token that comes.",
            shown=lambda view: view.has("lens_loss"),
        ),
        PagePanel(
            "branches", "Attention and MLP", lm_charts.branches_figure, shown=lambda view: view.record.parts,
            caption=language_model.branches_caption,
        ),
        PagePanel("table", "Block by block", below=layers_html),
        PagePanel(
            "codes", "Other codes of the next token", lm_charts.codes_figure, half=True, shown=lm_charts.codes,
            caption="The residual of each target over its value at the first block: only the shapes compare.",
        ),
        PagePanel(
            "tokens", "Other tokens", lm_charts.other_tokens_figure, half=True, shown=lm_charts.other_tokens,
            caption="The residual of the ids of tokens around: what a block keeps of the past and knows of the future.",
        ),
        PagePanel(
            "separation", "Separation of frequent tokens", lm_charts.separation_figure, half=True,
            caption="Fuzziness D with the most frequent predicted tokens as classes. Lower is better separated.",
            shown=lambda view: view.has("separation"),
        ),
        PagePanel("plane", "Words in the plane", below=planes_html, caption=planes_note, shown=plane_positions),
        METHOD,
    ),
}  # fmt: skip


def page_html(records: Record | Sequence[Record], *, title: str | None = None) -> str:
    """The page as text."""
    demand(title=(title, Demand("a text", lambda value: isinstance(value, str)).or_none))
    chosen = html.listed(records, Record, "report")
    first = chosen[0]
    for record in chosen:
        if not record.sites:
            raise InputError(f"report: expected at least one site, record '{record.name}' has none.")
        if record.kind != first.kind:  # D and PR have no axis in common
            both = " and ".join(f"a {one.kind.name} ('{one.name}')" for one in (first, record))
            raise InputError(f"report: expected records of one kind, got {both}. Write a page for each kind.")
    views, alone = read_all(chosen), len(chosen) == 1
    heading = clean(title or "") or (views[0].label if alone else f"{len(views)} records compared")
    labels = [view.label for view in (views if len(views) <= MOST_CURVES else (views[0], views[-1]))]
    under = _facts(views[0]) if alone else (" · " if len(views) <= MOST_CURVES else " … ").join(labels)
    planes = sum(len(plane_positions(view)) for view in views)
    views = [replace(view, points=min(view.points, PLANE_POINTS // max(1, planes))) for view in views]
    main = [
        fill(
            '<noscript><p class="empty">The charts need JavaScript; verdict, tables and drawings do not.</p></noscript>'
        ),
        _panels(views[0], "r0") if alone else _several(views),
        html.section("definitions", "all", "Definitions and sources", presentation(views[0]).formulas(views)),
    ]
    template = html.inert(json.dumps(plotly.plotly_template()))
    data = fill('<script type="application/json" id="template">{}</script>\n', template)
    drawing = str(plotly.offline.get_plotlyjs()).replace(
        "\r\n", "\n"
    )  # as a browser reads it, or its hash would differ
    return html.document(heading, under, _lines(main), data=[data], scripts=(drawing, html.source("page.js")))


def _lines(parts: Sequence[Markup]) -> Markup:
    return fill("{}", [fill("{}\n", part) for part in parts])


def _facts(view: RecordView) -> Markup:
    first, *others = presentation(view).facts(view)
    return fill('<span class="fact">{}</span>{}', first, [fill(' · <span class="fact">{}</span>', o) for o in others])


def _panels(view: RecordView, key: str) -> Markup:
    """All panels of a record, half ones in pairs."""
    out: list[Markup] = []
    waiting: list[Markup] = []
    for panel in [*(p for p in PANELS[view.record.kind] if p.shown(view)), None]:
        if waiting and (len(waiting) == 2 or panel is None or not panel.half):
            out.append(fill('<div class="pair">{}</div>', waiting) if len(waiting) == 2 else waiting[0])
            waiting = []
        if panel is not None:
            (waiting if panel.half else out).append(panel.section(view, key))
    return _lines(out)


def _several(views: Sequence[RecordView]) -> Markup:
    all_of_them = fill('<p class="together">{}</p>', html.unbroken(said)) if (said := together(views)) else ""
    alone = drawn_alone(views)
    drawn = html.chart("all-compare", compare_figure(alone))
    body = fill("{}{}{}{}", drawn, along_relative_depth(alone), all_of_them, compare_table(views))
    told = other_data([view.record for view in views])
    caption = presentation(views[0]).compared_caption(views) + (f" The records {told}." if told else "")
    records = [
        fill(
            '<details class="record"><summary><b>{}</b><span>{}</span></summary><p class="subtitle">{}</p>{}</details>',
            view.label,
            html.symbols(sentence(view.headline[0])),
            _facts(view),
            _panels(view, f"r{i}"),
        )
        for i, view in enumerate(alone)
    ]
    some = (
        f" Of {len(views)} records {len(alone)}, evenly chosen, are drawn one by one."
        if len(alone) < len(views)
        else ""
    )
    compared = html.section("compare", "all", "Side by side", body, caption + some)
    together_first = [training_sections(views), compared, paired_section(views)]
    return _lines([*filter(None, together_first), *charts.pooled_modules(views), *records])
