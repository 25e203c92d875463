"""Tables for the terminal (rich): one row per site, then the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerlaw.errors import MissingExtraError
from layerlaw.pages.lm_columns import GAIN, LEAST_SCALE, UNTRAINED, kind, lm_columns
from layerlaw.pages.record_view import RecordView, read
from layerlaw.pages.words import facts
from layerlaw.record import Record, SiteRow
from layerlaw.wording import ABSENT, clean, number, percent, sentence, shortened

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

SHARE = "share of drop"
BAR_WIDTH = 8
GAP = 2
BLOCKS = " ▏▎▍▌▋▊▉█"
LONGEST_SITE = 28
SHORTEST_SITE = 10
SHORTEST_BLOCK = 16  # 'model.layers.27' whole: what tells blocks apart is the end of a long name


@dataclass(frozen=True)
class Column:
    """A heading, how a site fills it, and how soon it goes when room is short (higher goes first, 0 stays)."""

    head: str
    cell: Callable[[SiteRow], str]
    goes: int = 0


COLUMNS = (
    Column("features", lambda s: f"{s.features:,}", 5),
    Column("D", lambda s: number(s.values.get("separation"))),
    Column(SHARE, lambda s: ABSENT),  # filled from the fit
    Column("NC1", lambda s: number(s.values.get("nc1")), 4),
    Column("NCC", lambda s: percent(s.values.get("ncc_accuracy")), 1),
    Column("mismatch", lambda s: percent(s.values.get("ncc_mismatch")), 6),
    Column("test D", lambda s: number(s.values.get("test_separation")), 2),
    Column("test NCC", lambda s: percent(s.values.get("test_ncc_accuracy")), 3),
)


def layer_table(record: Record, *, width: int = 100) -> Table:
    """A table that fits `width` columns: empty columns are left out, then the least telling ones."""
    return _table(read(record), width)


def write_record(record: Record, console: Console | None = None) -> None:
    """Table, then headline, findings, advice and notes."""
    try:
        from rich.console import Console
        from rich.padding import Padding
        from rich.text import Text
    except ImportError:
        raise MissingExtraError("rich", "pages", "print_record()") from None
    console = console or Console()
    view = read(record)
    verdict = view.verdict
    console.print(Text(view.label, style="bold"))
    console.print(Text(" · ".join(facts(view)), style="dim"))
    console.print()
    console.print(_table(view, console.width))
    console.print()
    console.print(Text(sentence(clean(verdict.headline)), style="bold"))
    notes = [note for note in record.notes if note not in verdict.findings]
    for lines, style in ((verdict.findings, ""), (verdict.advice, "cyan"), (notes, "dim")):
        for line in lines:
            mark = "→" if style == "cyan" else "·"
            text = Text(sentence(clean(line)), style=style)
            console.print(Padding(_hanging(mark, text), (0, 0, 0, 1)))


def share_bar(share: float, largest: float, width: int = BAR_WIDTH) -> str:
    """A bar of block characters in eighths of a column.

    >>> share_bar(0.5, 0.5, 4), share_bar(0.2, 0.5, 4), share_bar(-0.1, 0.5, 4)
    ('████', '█▋  ', '▲   ')
    """
    if share < 0:
        return "▲".ljust(width)
    eighths = round(8 * width * share / largest) if largest > 0 else 0
    full, rest = divmod(min(eighths, 8 * width), 8)
    return ("█" * full + (BLOCKS[rest] if rest else "")).ljust(width)


def _table(view: RecordView, width: int) -> Table:
    try:
        from rich import box
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        raise MissingExtraError("rich", "pages", "table()") from None
    cells = _cells(view)
    numbers = view.numbers
    room = width - max(map(len, numbers), default=1) - GAP
    longest = min(LONGEST_SITE, max([len("site"), *(cell_len(clean(site.name)) for site in view.sites)]))
    least = SHORTEST_BLOCK if view.language_model else SHORTEST_SITE
    shown = _fitting(view, cells, room - min(longest, least))
    longest = max(SHORTEST_SITE, min(longest, room - _width(cells, shown)))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    table.add_column("#", justify="right", style="dim", no_wrap=True, min_width=max(map(len, numbers), default=1))
    table.add_column("site", no_wrap=True, overflow="ellipsis", max_width=longest)
    for head in shown:
        table.add_column(head, justify="left" if head in (SHARE, GAIN) else "right", no_wrap=True)
    for i, site in enumerate(view.sites):
        row = [Text(cells[head][i]) for head in shown]
        table.add_row(numbers[i], Text(shortened(site.name, longest)), *row, style=None if site.in_fit else "dim")
    if view.language_model and (legend := _legend(view, shown, [head for head in cells if head not in shown])):
        table.caption, table.caption_justify, table.caption_style = legend, "left", "dim"
    return table


def _legend(view: RecordView, shown: list[str], hidden: list[str]) -> str:
    """What the heads of a language model's table leave unsaid."""
    parts = ["±: 95% interval of PR"] * ("±" in shown)
    parts += ["gain: by how much of itself PR falls, ▲ where it rises"] * (GAIN in shown)
    parts += [f"untrained: {kind(view)}, as the first column"] * (UNTRAINED in shown)
    parts += [f"no room here, but on the page: {', '.join(hidden)}"] * bool(hidden)
    return "; ".join(parts)


def _cells(view: RecordView) -> dict[str, list[str]]:
    """The columns that say anything, by heading."""
    cells = {column.head: [column.cell(site) for site in view.sites] for column in _columns(view)}
    parts, digits = (view.gains, 1) if view.language_model else (view.shares, 0)
    largest = max([LEAST_SCALE if view.language_model else 0.0, *parts.values()])
    room = max((1 + len(percent(part, digits)) for part in parts.values()), default=0) if view.language_model else 5
    cells[GAIN if view.language_model else SHARE] = [
        f"{share_bar(_seen(parts[i], digits), largest)}{percent(parts[i], digits):>{room}}" if i in parts else ABSENT
        for i in range(len(view.sites))
    ]
    return {head: column for head, column in cells.items() if any(cell != ABSENT for cell in column)}


def _seen(part: float, digits: int) -> float:
    """A part as far as its percentage shows it: no mark beside a zero."""
    return 0.0 if not percent(part, digits).strip("−0.%") else part


def _columns(view: RecordView) -> tuple[Column, ...]:
    if not view.language_model:
        return COLUMNS
    return tuple(Column(column.short, column.cell, column.goes) for column in lm_columns(view))


def _fitting(view: RecordView, cells: dict[str, list[str]], room: int) -> list[str]:
    """The headings that fit, in order."""
    goes = {column.head: column.goes for column in _columns(view)}
    shown = list(cells)
    while _width(cells, shown) > room and any(goes[head] for head in shown):
        shown.remove(max(shown, key=lambda head: goes[head]))
    return shown


def _width(cells: dict[str, list[str]], heads: list[str]) -> int:
    """Columns of the terminal taken by these, with the gaps before them."""
    return sum(GAP + max(len(head), *(len(cell) for cell in cells[head])) for head in heads)


def _hanging(mark: str, text: Text) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(mark, text)
    return grid
