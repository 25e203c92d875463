"""The table of sites: one row per site, a sticky first column, an inline bar for the share of the work."""

from __future__ import annotations

from layerlaw.pages.classifier import RANK_MARK
from layerlaw.pages.html import escaped, table
from layerlaw.pages.kinds import filled, presentation
from layerlaw.pages.record_view import Parts, RecordView
from layerlaw.record import SiteRow
from layerlaw.wording import ABSENT, percent, shortened

LONGEST_BLOCK = 17
MANY_SITES = 60  # more than that scroll in a box of their own
TYPE_HEADS = (
    '<th scope="col" class="site">site</th><th scope="col" class="text">type</th>'
    '<th scope="col" title="numbers per sample at this site">features</th>'
)


def layers_html(view: RecordView) -> str:
    """The table; columns that are empty at every site are left out."""
    shows = presentation(view)
    parts = shows.parts(view)
    cells = filled(view, (column for column in shows.table_columns(view) if column.on_page), parts, _bars(parts, view))
    many = len(cells) > shows.CROWDED
    heads = "".join(
        f'<th scope="col" title="{escaped(c.meaning)}">{c.short if many and c.short else c.head}</th>' for c in cells
    )
    rows = (
        ("<tr>" if site.in_fit else '<tr class="aside">')
        + _site_cells(site, number, short=view.alike)
        + "".join(f"<td>{texts[i]}{_mark(site) if c.head == 'D' else ''}</td>" for c, texts in cells.items())
        + "</tr>"
        for i, (site, number) in enumerate(zip(view.sites, view.record.numbers, strict=True))
    )
    first = '<th scope="col" class="site">block</th>' if view.alike else TYPE_HEADS
    notes = [*shows.table_notes(view)]
    notes += ["Sites in gray are shown but are no points of the law."] * any(not site.in_fit for site in view.sites)
    kind, tall = "many" if many else "", len(view.sites) > MANY_SITES
    below = "".join(f'<p class="note">{note}</p>' for note in notes)
    return table("per-layer table", first + heads, rows, kind=kind, tall=tall) + below


def _bars(parts: Parts, view: RecordView) -> list[str]:
    """A bar and a percentage per site."""
    out = [ABSENT] * len(view.sites)
    largest = max([parts.least, *map(abs, parts.values.values())])
    for (i, part), kind in zip(parts.values.items(), parts.kinds(), strict=True):
        if largest > 0:
            out[i] = (
                f'<span class="share"><span class="bar {kind}" style="width:{100 * abs(part) / largest:.0f}%"></span></span>'
                f'<span class="num">{percent(part, parts.digits)}</span>'
            )
    return out


def _site_cells(site: SiteRow, count: str, *, short: bool) -> str:
    """Name, type and features; of blocks all alike the name alone, without its middle, since it ends in its number."""
    name = escaped(shortened(site.name, LONGEST_BLOCK) if short else site.name)
    head = f'<th scope="row" class="site" title="{escaped(site.name)}"><span class="index">{count}</span>{name}</th>'
    return head if short else f'{head}<td class="text">{escaped(site.type)}</td><td>{site.features:,}</td>'


def _mark(site: SiteRow) -> str:
    return f'<span class="mark">{RANK_MARK}</span>' if site.values.get("full_rank") == 0.0 else ""
