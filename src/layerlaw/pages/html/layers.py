"""The table of sites: one row per site, a sticky first column, an inline bar for the share of the work."""

from __future__ import annotations

from layerlaw.pages.classifier import RANK_MARK
from layerlaw.pages.html import escaped, table
from layerlaw.pages.kinds import presentation
from layerlaw.pages.record_view import Parts, RecordView
from layerlaw.record import SiteRow
from layerlaw.verdict import IDLE_SHARE
from layerlaw.wording import ABSENT, percent, shortened

LONGEST_BLOCK = 17
MANY_SITES = 60  # more than that scroll in a box of their own
TYPE_HEADS = (
    '<th scope="col" class="text">type</th><th scope="col" title="numbers per sample at this site">features</th>'
)


def layers_html(view: RecordView) -> str:
    """The table; columns that are empty at every site are left out."""
    shows = presentation(view)
    columns = [column for column in shows.columns(view) if column.on_page]
    parts = shows.parts(view)
    cells = {column.head: [column.cell(site) for site in view.sites] for column in columns}
    cells[parts.head] = bar_cells(parts, len(view.sites))
    if "D" in cells:
        cells["D"] = [cell + _mark(site) for cell, site in zip(cells["D"], view.sites, strict=True)]
    shown = [column for column in columns if any(cell != ABSENT for cell in cells[column.head])]
    many = len(shown) > shows.crowded
    heads = "".join(
        f'<th scope="col" title="{escaped(c.meaning)}">{c.short if many and c.short else c.head}</th>' for c in shown
    )
    alike = view.alike
    rows = (
        ("<tr>" if site.in_fit else '<tr class="aside">')
        + (_block_cell(site, number) if alike else _site_cells(site, number))
        + "".join(f"<td>{cells[column.head][i]}</td>" for column in shown)
        + "</tr>"
        for i, (site, number) in enumerate(zip(view.sites, view.numbers, strict=True))
    )
    first = f'<th scope="col" class="site">{"block" if alike else "site"}</th>{"" if alike else TYPE_HEADS}'
    notes = shows.notes(view)
    if any(not site.in_fit for site in view.sites):
        notes = [*notes, "Sites in gray are shown but are no points of the law."]
    kind, tall = "many" if many else "", len(view.sites) > MANY_SITES
    return table("per-layer table", first + heads, rows, kind=kind, tall=tall) + "".join(
        f'<p class="note">{note}</p>' for note in notes
    )


def bar_cells(parts: Parts, count: int) -> list[str]:
    """A bar and a percentage per site."""
    out = [ABSENT] * count
    for i, part in parts.values.items():
        if parts.largest == 0:
            continue
        kind = "rise" if part < 0 else "idle" if part < IDLE_SHARE * parts.even else "work"
        width = 100 * abs(part) / parts.largest
        out[i] = (
            f'<span class="share"><span class="bar {kind}" style="width:{width:.0f}%"></span></span>'
            f'<span class="num">{percent(part, parts.digits)}</span>'
        )
    return out


def _site_cells(site: SiteRow, count: str) -> str:
    name = escaped(site.name)
    return (
        f'<th scope="row" class="site" title="{name}"><span class="index">{count}</span>{name}</th>'
        f'<td class="text">{escaped(site.type)}</td><td>{site.features:,}</td>'
    )


def _block_cell(site: SiteRow, count: str) -> str:
    """A name ends in its number, so its middle is left out."""
    return (
        f'<th scope="row" class="site" title="{escaped(site.name)}"><span class="index">{count}</span>'
        f"{escaped(shortened(site.name, LONGEST_BLOCK))}</th>"
    )


def _mark(site: SiteRow) -> str:
    return f'<span class="mark">{RANK_MARK}</span>' if site.values.get("full_rank") == 0.0 else ""
