"""The per-layer table: one row per site, a sticky first column, an inline bar for the share of the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from layerlaw.pages.html.escaping import escaped
from layerlaw.pages.lm_columns import GAIN, LEAST_SCALE, even_gain, kind, lm_columns
from layerlaw.pages.record_view import RecordView
from layerlaw.record import SiteRow
from layerlaw.verdict import IDLE_SHARE
from layerlaw.verdict.targets import is_shuffled, targets
from layerlaw.wording import ABSENT, finite, interval_factor, number, percent, shortened

RANK_MARK = "†"
LONGEST_BLOCK = 17
MANY_COLUMNS = 8  # of a language model: more stand closer together under shorter heads
MANY_SITES = 60  # more than that scroll in a box of their own
KIND_HEADS = (
    '<th scope="col" class="text">type</th><th scope="col" title="numbers per sample at this site">features</th>'
)


@dataclass(frozen=True)
class Column:
    """A heading (and a shorter one, for room), what it means (shown on hover), and how a site fills it."""

    head: str
    meaning: str
    cell: Callable[[SiteRow], str]
    short: str = ""


COLUMNS = (
    Column("D", "separation fuzziness; lower is better", lambda s: _separation(s)),
    Column("±", "95% interval of D by jackknife, relative", lambda s: _interval(s)),
    Column("D / D<sub>perm</sub>", "D over what permuted labels give; near 1 is noise", lambda s: _against_floor(s)),
    Column("share", "share of the total drop of ln D", lambda s: ABSENT),  # filled from the fit
    Column("NC1", "within- over between-class variability; 0 at collapse", lambda s: number(s.values.get("nc1"))),
    Column("NCC acc.", "nearest class center is right, training data", lambda s: percent(s.values.get("ncc_accuracy"))),
    Column(
        "mismatch", "nearest class center disagrees with the network", lambda s: percent(s.values.get("ncc_mismatch"))
    ),
    Column("CDNV", "class-distance normalized variance; 0 at collapse", lambda s: number(s.values.get("cdnv"))),
    Column("test D", "D on test data", lambda s: number(s.values.get("test_separation"))),
    Column(
        "test NCC", "nearest class center is right, test data", lambda s: percent(s.values.get("test_ncc_accuracy"))
    ),
)


def layers_html(view: RecordView) -> str:
    """The table; columns that are empty at every site are left out."""
    columns = _lm_columns(view) if view.language_model else COLUMNS
    cells = {column.head: [column.cell(site) for site in view.sites] for column in columns}
    cells |= {GAIN: gain_cells(view)} if view.language_model else {"share": share_cells(view)}
    shown = [column for column in columns if any(cell != ABSENT for cell in cells[column.head])]
    many = view.language_model and len(shown) > MANY_COLUMNS
    heads = "".join(
        f'<th scope="col" title="{escaped(c.meaning)}">{c.short if many and c.short else c.head}</th>' for c in shown
    )
    alike, numbers = _alike(view), view.numbers
    body = "".join(
        ("<tr>" if site.in_fit else '<tr class="aside">')
        + (_block_cell(site, numbers[i]) if alike else _site_cells(site, numbers[i]))
        + "".join(f"<td>{cells[column.head][i]}</td>" for column in shown)
        + "</tr>"
        for i, site in enumerate(view.sites)
    )
    tall = " tall" if len(view.sites) > MANY_SITES else ""
    return (
        f'<div class="scroll{tall}" tabindex="0" role="region" aria-label="per-layer table">'
        f'<table class="layers{" many" if many else ""}"><thead><tr>'
        f'<th scope="col" class="site">{"block" if alike else "site"}</th>{"" if alike else KIND_HEADS}{heads}'
        f"</tr></thead><tbody>{body}</tbody></table></div>{_footnotes(view)}"
    )


def share_cells(view: RecordView) -> list[str]:
    """A bar and a percentage per site; the longest bar is the largest share."""
    shares = view.shares
    return _bars(shares, len(view.sites), 1 / len(shares) if shares else 0.0)


def gain_cells(view: RecordView) -> list[str]:
    """The same for what each block takes off the residual."""
    return _bars(view.gains, len(view.sites), even_gain(view) or 0.0, digits=2, least=LEAST_SCALE)


def _lm_columns(view: RecordView) -> tuple[Column, ...]:
    return tuple(Column(c.head, c.meaning, c.cell, c.short) for c in lm_columns(view))


def _bars(parts: dict[int, float], count: int, even: float, *, digits: int = 1, least: float = 0.0) -> list[str]:
    """A bar of full length is the largest part, but at least `least`."""
    largest = max([least, *(abs(s) for s in parts.values())])
    out = []
    for i in range(count):
        if i not in parts or largest == 0:
            out.append(ABSENT)
            continue
        s = parts[i]
        kind = "rise" if s < 0 else "idle" if s < IDLE_SHARE * even else "work"
        out.append(
            f'<span class="share"><span class="bar {kind}" style="width:{100 * abs(s) / largest:.0f}%"></span></span>'
            f'<span class="num">{percent(s, digits)}</span>'
        )
    return out


def _site_cells(site: SiteRow, count: str) -> str:
    name = escaped(site.name)
    return (
        f'<th scope="row" class="site" title="{name}"><span class="index">{count}</span>{name}</th>'
        f'<td class="text">{escaped(site.type)}</td><td>{site.features:,}</td>'
    )


def _block_cell(site: SiteRow, count: str) -> str:
    """A name ends in its number, so its middle goes for room."""
    return (
        f'<th scope="row" class="site" title="{escaped(site.name)}"><span class="index">{count}</span>'
        f"{escaped(shortened(site.name, LONGEST_BLOCK))}</th>"
    )


def _alike(view: RecordView) -> bool:
    """Whether all blocks of a language model are of one kind, so that a line below the table says it once."""
    kinds = {(view.sites[p].type, view.sites[p].features) for p in view.fit_positions}
    return view.language_model and len(kinds) == 1


def _separation(site: SiteRow) -> str:
    mark = RANK_MARK if site.values.get("full_rank") == 0.0 else ""
    return number(site.values.get("separation")) + (f'<span class="mark">{mark}</span>' if mark else "")


def _interval(site: SiteRow) -> str:
    error = finite(site.values.get("separation_log_se"))
    return ABSENT if error is None else f"±{percent(interval_factor(error) - 1, 1 if error < 0.05 else 0)}"


def _against_floor(site: SiteRow) -> str:
    value, floor = finite(site.values.get("separation")), finite(site.values.get("separation_permuted"))
    return number(value / floor, 2) if value is not None and floor else ABSENT


def _footnotes(view: RecordView) -> str:
    notes = []
    if _alike(view):
        block = view.sites[view.fit_positions[0]]
        notes.append(f"Every block: {escaped(block.type)}, {block.features:,} features.")
    if view.language_model and (others := targets(view.record)):
        shuffled = sum(map(is_shuffled, others))
        mean = f"; shuffled ids: the mean of {shuffled} vocabularies" if shuffled > 1 else ""
        notes.append(f"Columns of other targets are {kind(view)}{mean}.")
    if any(site.values.get("full_rank") == 0.0 for site in view.sites):
        notes.append(f"{RANK_MARK} the class means span fewer than K−1 dimensions here; D jumps at such sites.")
    if any(not site.in_fit for site in view.sites):
        notes.append("Sites in gray are shown but are no points of the law.")
    return "".join(f'<p class="note">{note}</p>' for note in notes)
