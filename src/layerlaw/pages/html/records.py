"""The page of one record, or of several with a comparison first: which panels it has, and how they are put together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from layerlaw.errors import InputError
from layerlaw.measures.columns import describe
from layerlaw.pages import classifier, html, language_model, regression, theme
from layerlaw.pages.classifier import charts
from layerlaw.pages.html import plotly
from layerlaw.pages.html.planes import plane_positions, planes_html, planes_note
from layerlaw.pages.html.series import MOST_CURVES, drawn_alone, paired_section, training_sections
from layerlaw.pages.kinds import filled, presentation
from layerlaw.pages.language_model import charts as lm_charts
from layerlaw.pages.law_numbers import RULE, ComparedColumn, law_tiles, together
from layerlaw.pages.record_view import Parts, RecordView, read_all
from layerlaw.record import CLASSIFIER, LANGUAGE_MODEL, REGRESSION, Kind, Record, SiteRow
from layerlaw.wording import ABSENT, clean, percent, sentence, setting, short_names, shortened

PLANE_POINTS = 20_000  # on the whole page, about ten bytes each: Plotly itself takes 4.8 of the 6 MB
MOST_ASIDE, MOST_SPREAD = 0.08, 0.4  # blocks: between the points of two records, and of all
LONGEST_BLOCK, LONGEST_SITE = 17, (22, 17)  # characters in a table; of a site, on a desk and on a telephone
MANY_SITES = 60  # more than that scroll in a box of their own
TYPE_HEADS = (
    '<th scope="col" class="site">site</th><th scope="col" class="text">type</th>'
    '<th scope="col" title="numbers per sample at this site">features</th>'
)
RANK_MARK = f'<span class="mark">{classifier.RANK_MARK}</span>'
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")


class PagePanel(NamedTuple):
    """A section of a page: its name, its heading, a figure of a record, HTML `above` or `below` it, and a caption.

    Two `half` panels in a row stand side by side; one that is not `shown` is left out.
    """

    name: str
    heading: str
    figure: Callable[[RecordView], object] | None = None
    above: Callable[[RecordView], str] | None = None
    below: Callable[[RecordView], str] | None = None
    caption: Callable[[RecordView], str] | str = ""
    half: bool = False
    shown: Callable[[RecordView], object] = lambda view: True

    def section(self, view: RecordView, key: str) -> str:
        """The panel as a section of HTML; `key` makes its ids unique on the page."""
        drawn = html.chart(f"{key}-{self.name}", self.figure(view)) if self.figure is not None else ""
        above, below = (part(view) if part is not None else "" for part in (self.above, self.below))
        caption = self.caption if isinstance(self.caption, str) else self.caption(view)
        return html.section(self.name, key, self.heading, above + drawn + below, caption)


def verdict_html(view: RecordView) -> str:
    """The headline large, its numbers below; findings, advice, and the record's notes in gray."""
    (headline, numbers), verdict = view.headline, view.verdict
    notes = [note for note in view.record.notes if note not in verdict.findings]
    return (
        f'<p class="headline">{html.symbols(html.escaped(sentence(headline)))}</p>'
        + (f'<p class="facts">{html.unbroken(numbers)}</p>' if numbers else "")
        + html.sentences(verdict.findings, "findings")
        + (f"<h3>What to do</h3>{html.sentences(verdict.advice, 'advice')}" if verdict.advice else "")
        + html.sentences(notes, "notes")
    )


def method_html(view: RecordView) -> str:
    """Settings and provenance of one record."""
    parts = [
        f"<h3>{head}</h3>{html.settings((str(key).replace('_', ' '), setting(value)) for key, value in values.items())}"
        for head, values in (("Settings", view.record.settings), ("Provenance", view.record.provenance))
        if values
    ]
    return "".join(parts) or html.empty("The record holds no settings and no provenance.")


def key_numbers(view: RecordView) -> str:
    """The numbers of the law as cards: those that decide whether it holds, and below the others."""
    if view.fit is None:
        return html.empty("No law could be fitted, for the reason given above.")
    shows = presentation(view)
    return html.cards(law_tiles(view, view.fit)) + html.cards(shows.key_numbers(view, view.fit))


def layers_html(view: RecordView) -> str:
    """The table; columns that are empty at every site are left out."""
    shows = presentation(view)
    parts = shows.parts(view)
    cells = filled(view, (column for column in shows.table_columns(view) if column.on_page), parts, _bars(parts, view))
    long_names = not view.alike and max(len(site.name) for site in view.sites) > LONGEST_SITE[1]
    many = len(cells) + long_names > shows.CROWDED  # long names take the room of a column
    titled = [(html.escaped(c.meaning), c.short if many and c.short else c.head) for c in cells]
    heads = "".join(f'<th scope="col" title="{meaning}">{html.symbols(head)}</th>' for meaning, head in titled)
    rows, names = [], _table_names(view)
    for i, (site, count) in enumerate(zip(view.sites, view.record.numbers, strict=True)):
        mark = RANK_MARK if site.values.get("full_rank") == 0.0 else ""
        measured = "".join(
            f"<td>{texts[i]}{mark if c.head in ('D', 'D_reg') else ''}</td>" for c, texts in cells.items()
        )
        opened = "<tr>" if site.in_fit else '<tr class="aside">'
        rows.append(f"{opened}{_site_cells(site, count, names[i], short=view.alike)}{measured}</tr>")
    first = '<th scope="col" class="site">block</th>' if view.alike else TYPE_HEADS
    gray = ["Sites in gray are shown but are no points of the law."] * any(not site.in_fit for site in view.sites)
    far = bool(view.shares) and any(b > a + 1 for a, b in pairwise(view.fit_positions))
    gray += ["Where gray rows lie between two points of the law, a share is that of all layers between the two."] * far
    below = "".join(f'<p class="note">{html.symbols(note)}</p>' for note in [*shows.table_notes(view), *gray])
    kind, tall = "many" if many else "", len(view.sites) > MANY_SITES
    return html.table("per-layer table", first + heads, rows, kind=kind, tall=tall) + below


def _bars(parts: Parts, view: RecordView) -> list[str]:
    out = [ABSENT] * len(view.sites)
    largest = max([parts.least, *map(abs, parts.values.values())])
    for (i, part), kind in zip(parts.values.items(), parts.kinds(), strict=True):
        if largest > 0:
            bar = f'<span class="bar {kind}" style="width:{100 * abs(part) / largest:.0f}%"></span>'
            out[i] = f'<span class="share">{bar}</span><span class="num">{percent(part, parts.digits)}</span>'
    return out


def _table_names(view: RecordView) -> list[str]:
    """Names that differ on a desk and on a telephone; of blocks all alike without the middle: they end in their number."""
    if view.alike:
        inner = [site.name[site.name.rfind("after ") :] if not site.in_fit else site.name for site in view.sites]
        names = [part if part.startswith("after ") else site.name for part, site in zip(inner, view.sites, strict=True)]
        return [html.escaped(shortened(name, LONGEST_BLOCK)) for name in names]
    wide, narrow = (short_names([site.name for site in view.sites], longest) for longest in LONGEST_SITE)
    both = '<span class="on-desk">{}</span><span class="on-telephone">{}</span>'
    pairs = zip(map(html.escaped, wide), map(html.escaped, narrow), strict=True)
    return [long if long == brief else both.format(long, brief) for long, brief in pairs]


def _site_cells(site: SiteRow, count: str, name: str, *, short: bool) -> str:
    """Name, type and features; of blocks all alike the name alone. Beside a name that is a number no other stands."""
    title, index = html.escaped(site.name), "" if site.name.isdecimal() else f'<span class="index">{count}</span>'
    head = f'<th scope="row" class="site" title="{title}">{index}{name}</th>'
    return (
        head
        if short
        else f'{head}<td class="text">{html.escaped(shortened(site.type, 28))}</td><td>{site.features:,}</td>'
    )


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
    under = _facts(views[0]) if alone else html.escaped((" · " if len(views) <= MOST_CURVES else " … ").join(labels))
    planes = sum(len(plane_positions(view)) for view in views)
    views = [replace(view, points=min(view.points, PLANE_POINTS // max(1, planes))) for view in views]
    main = [
        '<noscript><p class="empty">The charts need JavaScript; verdict, tables and drawings do not.</p></noscript>',
        _panels(views[0], "r0") if alone else _several(views),
        html.section("definitions", "all", "Definitions and sources", presentation(views[0]).formulas(views)),
    ]
    template = html.inert(json.dumps(plotly.plotly_template()))
    data = f'<script type="application/json" id="template">{template}</script>\n'
    drawing = str(plotly.offline.get_plotlyjs()).replace(
        "\r\n", "\n"
    )  # as a browser reads it, or its hash would differ
    return html.document(heading, under, "\n".join(main), data=data, scripts=(drawing, html.source("page.js")))


def _facts(view: RecordView) -> str:
    return " · ".join(f'<span class="fact">{html.escaped(part)}</span>' for part in presentation(view).facts(view))


def _panels(view: RecordView, key: str) -> str:
    """All panels of a record, half ones in pairs."""
    out: list[str] = []
    waiting: list[str] = []
    for panel in [*(p for p in PANELS[view.record.kind] if p.shown(view)), None]:
        if waiting and (len(waiting) == 2 or panel is None or not panel.half):
            out.append(f'<div class="pair">{"".join(waiting)}</div>' if len(waiting) == 2 else waiting[0])
            waiting = []
        if panel is not None:
            (waiting if panel.half else out).append(panel.section(view, key))
    return "\n".join(out)


def _several(views: Sequence[RecordView]) -> str:
    all_of_them = f'<p class="together">{html.unbroken(said)}</p>' if (said := together(views)) else ""
    alone = drawn_alone(views)
    body = html.chart("all-compare", compare_figure(alone)) + _along_relative_depth(alone) + all_of_them
    body += compare_table(views)
    known = {view.record.provenance.get("data_sha256") for view in views} - {None}
    drawn = any("shuffled" in str(record.settings.get("order")) for record in (view.record for view in views))
    told = "may be of the same data: one was shuffled by its loader" if drawn else "were measured on different data"
    texts = {(view.record.provenance.get("text") or {}).get("sha256") for view in views}
    if len(texts) == 1 and None not in texts:
        told = "are of one text, cut into other tokens or pieces"
    other_data = f" The records {told}." if len(known) > 1 else ""
    caption = presentation(views[0]).compared_caption(views) + other_data
    records = [
        f'<details class="record"><summary><b>{html.escaped(view.label)}</b>'
        f"<span>{html.symbols(html.escaped(sentence(view.headline[0])))}</span></summary>"
        f'<p class="subtitle">{_facts(view)}</p>{_panels(view, f"r{i}")}</details>'
        for i, view in enumerate(alone)
    ]
    some = (
        f" Of {len(views)} records {len(alone)}, evenly chosen, are drawn one by one."
        if len(alone) < len(views)
        else ""
    )
    compared = html.section("compare", "all", "Side by side", body, caption + some)
    together_first = [training_sections(views), compared, paired_section(views)]
    return "\n".join([*filter(None, together_first), *charts.pooled_modules(views), *records])


def _along_relative_depth(views: Sequence[RecordView]) -> str:
    """The same curves along block / number of blocks, where language models are not equally deep."""
    deep = {len(view.fit_positions) for view in views}
    if views[0].record.kind is not LANGUAGE_MODEL or len(deep) < 2 or min(deep) < 2:
        return ""
    return html.chart("all-compare-relative", compare_figure(views, relative=True))


def compare_figure(views: Sequence[RecordView], *, relative: bool = False) -> Any:
    """D or PR along the fit of every record: points, and its line dashed; `relative`: all end at depth 1."""
    kind, axis, symbol = (
        views[0].record.kind,
        presentation(views[0]).AXIS,
        html.symbols(describe(views[0].column).symbol),
    )
    curves = [[view.series(view.column)[p] for p in view.fit_positions] for view in views]
    drawn = [i for i, curve in enumerate(curves) if any(v is not None and v > 0 for v in curve)]
    if not drawn:
        return f"None of the records holds a {axis}."
    with_bars = any(views[i].errors is not None for i in drawn)
    aside = min(MOST_ASIDE, MOST_SPREAD / len(drawn)) if with_bars else 0.0  # at one block they would coincide
    traces: list[Any] = []
    every: list[float | None] = []
    for place, i in enumerate(drawn):
        view, curve, color = views[i], curves[i], _color(i)
        # those of a classifier would hide its curve
        ends = [view.ends[p] if view.errors is not None else None for p in view.fit_positions]
        every += [*curve, *(end for pair in ends for end in pair or ())]
        counts, names = [kind.first + k for k in range(len(curve))], [view.sites[p].name for p in view.fit_positions]
        unit = counts[-1] if relative else 1
        points = plotly.line(view.label, curve, color, width=1.2, written=plotly.with_intervals(view, curve, ends))
        points.update(
            name=html.for_plotly(view.label, 32),
            legendgroup=str(i),
            x=[plotly.rounded((k + aside * (place - (len(drawn) - 1) / 2)) / unit) for k in counts],
            mode="markers" if view.fit else "lines+markers",
            marker={"size": 8, "symbol": SYMBOLS[i // len(theme.QUALITATIVE) % len(SYMBOLS)]},
            meta=None,
            text=[
                f"{f'{k} of {unit}' if relative else k} · {html.for_plotly(name, 40)}"
                for k, name in zip(counts, names, strict=True)
            ],
            hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{text}}<br>{symbol} = %{{customdata}}<extra></extra>",
        )
        if any(pair is not None for pair in ends):
            points.error_y = plotly.error_bars(curve, ends, color=color, thickness=1, width=0)
        traces.append(points)
        if view.fit:
            every += view.fit.line
            law = plotly.fitted_line(view, view.fit, "", 1.3)
            law.update(
                x=[plotly.rounded(k / unit) for k in counts],
                line={"color": color},
                legendgroup=str(i),
                showlegend=False,
            )
            traces.append(law)
    xaxis = plotly.index_axis([views[i] for i in drawn])
    if relative:
        xaxis = {"title": {"text": "relative depth (block / number of blocks)"}, "range": [0, 1.03], "dtick": 0.2}
    yaxis = plotly.log_axis(every, axis, margin=kind.margin)
    return plotly.new_figure(traces, None, height=460, xaxis=xaxis, yaxis=yaxis, showlegend=True)


def _color(i: int) -> str:
    return theme.QUALITATIVE[i % len(theme.QUALITATIVE)]


def compare_table(views: Sequence[RecordView]) -> str:
    """The numbers of each law, one row per record."""
    columns, crowded = presentation(views[0]).COMPARED, presentation(views[0]).CROWDED
    named = "".join(f'<th scope="col">{html.symbols(c.head)}</th>' for c in columns)
    heads = f'<th scope="col" class=site>record</th>{named}'
    colors = {id(view): _color(i) for i, view in enumerate(drawn_alone(views))}
    rows = (
        f'<th scope="row" class="site" title="{html.escaped(view.label)}">'
        f'<i class="dot" style="background:{colors.get(id(view), theme.RULE)}"></i>'
        f"{html.escaped(shortened(view.label, 40))}</th>" + "".join(_compared_cell(column, view) for column in columns)
        for view in views
    )
    kind = "many" if 1 + len(columns) > crowded else ""
    bent = any(view.fit is not None and view.fit.trend == math.inf for view in views)
    infinite = " Trend ∞: a curve fitted to all steps does not fall at its first one." * bent
    rule = f'<p class="note">{html.escaped(RULE[0].upper() + RULE[1:])}.{infinite}</p>'
    return html.table("law numbers per record", heads, rows, kind=kind) + rule


def _compared_cell(column: ComparedColumn, view: RecordView) -> str:
    """A number, and small below it its interval."""
    text, below, title = map(html.escaped, (column.cell(view), column.below(view), column.title(view)))
    named = f'<span title="{title}">{text}</span>' if title else text
    return f"<td>{named}" + (f'<span class="below">{below}</span>' if below else "") + "</td>"
