"""Tables for the terminal (rich): a record site by site with its verdict, an outcome beside the paper's numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from layerlaw.errors import MissingExtraError
from layerlaw.outcome import Outcome
from layerlaw.pages.kinds import presentation
from layerlaw.pages.outcome_words import (
    MARKS,
    Written,
    heading,
    provenance_items,
    quick_words,
    run_facts,
    verdict_line,
    written_row,
)
from layerlaw.pages.record_view import Parts, RecordView, read
from layerlaw.record import Record
from layerlaw.wording import ABSENT, clean, percent, sentence, shortened

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

BAR_WIDTH = 8
GAP = 2
BLOCKS = " ▏▎▍▌▋▊▉█"
LONGEST_SITE = 28
SHORTEST_SITE = 10
SHORTEST_BLOCK = 16  # 'model.layers.27' whole: what tells blocks apart is the end of a long name
WIDE = 100  # columns of the terminal; below, what was accepted is shown only where it was missed
NARROW = 72  # below, the range stands under the mean
NARROWEST = 52  # below, it is left out
LEAST = 8  # columns of a name, whatever the rest takes
_PIECE = re.compile(r"(?:[^\s/-]|(?<=\de)-(?=\d))+[/-]*|[/-]+|\s+")  # 3e-4 is one word
STYLES = {MARKS[True]: "green", MARKS[False]: "bold red", MARKS[None]: "dim"}


def table(record: Record, *, width: int = 100) -> Table:
    """A table of the sites that fits `width` columns: empty columns are left out, then the least telling ones."""
    return _table(read(record), width)


def print_record(record: Record, console: Console | None = None) -> None:
    """Print the table of the sites and the verdict to a rich console (standard output unless another is given)."""
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
    console.print(Text(" · ".join(presentation(view).facts(view)), style="dim"))
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
    shows = presentation(view)
    columns = {column.short or column.head: column for column in shows.columns(view) if column.yields is not None}
    parts = shows.parts(view)
    bars = next(head for head, column in columns.items() if column.head == parts.head)
    cells = {head: [column.cell(site) for site in view.sites] for head, column in columns.items()}
    cells[bars] = _bars(parts, len(view.sites))
    cells = {head: column for head, column in cells.items() if any(cell != ABSENT for cell in column)}
    numbers = view.numbers
    space = width - max(map(len, numbers), default=1) - GAP
    longest = min(LONGEST_SITE, max([len("site"), *(cell_len(clean(site.name)) for site in view.sites)]))
    shown = list(cells)  # the headings that fit, in order
    least = SHORTEST_BLOCK if view.record.kind.first else SHORTEST_SITE
    while _width(cells, shown) > space - min(longest, least) and any(columns[head].yields for head in shown):
        shown.remove(max(shown, key=lambda head: columns[head].yields or 0))
    longest = max(SHORTEST_SITE, min(longest, space - _width(cells, shown)))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    table.add_column("#", justify="right", style="dim", no_wrap=True, min_width=max(map(len, numbers), default=1))
    table.add_column("site", no_wrap=True, overflow="ellipsis", max_width=longest)
    for head in shown:
        table.add_column(head, justify="left" if head == bars else "right", no_wrap=True)
    for i, site in enumerate(view.sites):
        row = [Text(cells[head][i]) for head in shown]
        table.add_row(numbers[i], Text(shortened(site.name, longest)), *row, style=None if site.in_fit else "dim")
    if legend := shows.legend(view, shown, [head for head in cells if head not in shown]):
        table.caption, table.caption_justify, table.caption_style = legend, "left", "dim"
    return table


def _bars(parts: Parts, count: int) -> list[str]:
    """A bar and a percentage per site, with a decimal less than on the page."""
    digits = parts.digits - 1
    wide = max([5, *(1 + len(percent(part, digits)) for part in parts.values.values())])
    out = [ABSENT] * count
    for i, part in parts.values.items():
        seen = 0.0 if not percent(part, digits).strip("−0.%") else part  # no mark beside a zero
        out[i] = f"{share_bar(seen, max(parts.least, *parts.values.values(), 0.0))}{percent(part, digits):>{wide}}"
    return out


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


def print_outcome(outcome: Outcome, console: Console | None = None) -> None:
    """Print paper, ours, range over seeds and verdict per row, then notes (to standard output unless another is given)."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        raise MissingExtraError("rich", "pages", "print_outcome()") from None
    console = console or Console()
    console.print(Text(heading(outcome), style="bold"))
    if line := verdict_line([outcome]):
        console.print(Text(line))
    if quick := quick_words(outcome):
        console.print(Text(quick, style="yellow"))
    if outcome.rows:
        console.print()
        for text in _lines([written_row(row) for row in outcome.rows], console.width):
            console.print(text, no_wrap=True, crop=False, overflow="ignore")
    if outcome.notes:
        console.print()
    for note in outcome.notes:
        console.print(_hanging(" ·", Text(sentence(clean(note)), style="dim")))
    known = dict(provenance_items(outcome))
    facts = run_facts(outcome)
    if facts or "command" in known:
        console.print()
    if "command" in known:
        console.print(Text(f"$ {known['command']}", style="dim"))
    if facts:
        console.print(Text(facts, style="dim"))


def _lines(rows: list[Written], width: int) -> list[Text]:
    """A table whose reasons take the whole width below their row, which none of rich's can do."""
    from rich.text import Text

    judged = any(row.mark != MARKS[None] for row in rows)
    kinds = ["paper", "ours"]
    kinds += ["range"] if width >= NARROW and any(row.range for row in rows) else []
    kinds += ["accepted"] if width >= WIDE and any(row.tolerance for row in rows) else []
    kinds += ["reproduced?" if width >= NARROW else "?"] if judged else []
    most = {"paper": max(8, width // 5), "accepted": width // 5}
    table = [{kind: _folded(_cell(row, kind, kinds, width), most.get(kind, width)) for kind in kinds} for row in rows]
    wide = {kind: max(len(kind), *(len(line) for cells in table for line in cells[kind])) for kind in kinds}
    space = max(LEAST, width - sum(wide.values()) - GAP * len(kinds))
    names = [_folded(row.name, space) for row in rows]
    wide = {"what": max(len("what"), *(len(line) for lines in names for line in lines))} | wide
    out = [Text(_joined({kind: kind for kind in wide}, wide), style="bold"), Text("─" * min(width, _total(wide)))]
    for row, name, cells in zip(rows, names, table, strict=True):
        cells = {"what": name, **cells}
        for i in range(max(map(len, cells.values()))):
            line = Text(_joined({kind: lines[i] if i < len(lines) else "" for kind, lines in cells.items()}, wide))
            if i == 0 and judged:
                line.stylize(STYLES[row.mark], len(line) - len(line.plain.split(" ")[-1]))
            out.append(line)
        out += [
            Text(f"  {part}", style=style) for text, style in _below(row, kinds) for part in _folded(text, width - 2)
        ]
    return out


def _cell(row: Written, kind: str, kinds: Sequence[str], width: int) -> str:
    """What stands in a column; without a column of its own the range goes with the mean, or is left out."""
    beside = f"\n{row.range}" if row.range and "range" not in kinds and width >= NARROWEST else ""
    return {"paper": row.paper, "ours": row.ours + beside, "range": row.range, "accepted": row.tolerance}.get(
        kind, row.mark
    )


def _below(row: Written, kinds: Sequence[str]) -> list[tuple[str, str]]:
    """What stands below a row, with its style: what was accepted where it was missed, and the reason."""
    missed = row.tolerance and row.mark == MARKS[False] and "accepted" not in kinds
    out = [(f"accepted: {row.tolerance}", "dim")] if missed else []
    return out + ([(row.reason, "yellow" if row.ours == ABSENT else "dim")] if row.reason else [])


def _folded(text: str, width: int) -> list[str]:
    """Lines of at most this width, broken at spaces, after "/" or after "-"; inside a word only where it has to be.

    >>> _folded("epoch-100/effective-layers", 16)
    ['epoch-100/', 'effective-layers']
    """
    out = []
    for line in text.split("\n"):
        out.append("")
        for piece in _PIECE.findall(line):
            if len((out[-1] + piece).rstrip()) > width and out[-1]:
                out[-1] = out[-1].rstrip()
                out.append("")
            out[-1] += piece if out[-1] else piece.lstrip()
            while len(out[-1].rstrip()) > width:
                out[-1:] = [out[-1][:width], out[-1][width:]]
        out[-1] = out[-1].rstrip()
    return out


def _joined(cells: Mapping[str, str], wide: Mapping[str, int]) -> str:
    """One line: names flush left, marks in the middle, numbers flush right."""
    parts = []
    for kind, n in wide.items():
        middle = kind.endswith("?")
        parts.append(
            cells[kind].ljust(n) if kind == "what" else cells[kind].center(n) if middle else cells[kind].rjust(n)
        )
    return (" " * GAP).join(parts).rstrip()


def _total(wide: Mapping[str, int]) -> int:
    return sum(wide.values()) + GAP * (len(wide) - 1)
