"""Tables for the terminal (rich): a record site by site with its verdict, an outcome beside the paper's numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from layerlaw.errors import MissingExtraError, visible
from layerlaw.law.words import law_numbers
from layerlaw.outcome import Outcome
from layerlaw.outcome import Table as Results
from layerlaw.pages import outcome_words as said
from layerlaw.pages.kinds import filled, presentation
from layerlaw.pages.law_numbers import RULE, together
from layerlaw.pages.record_view import BRANCH, Parts, RecordView, read, read_all
from layerlaw.record import Record
from layerlaw.verdict.changes import paired_differences
from layerlaw.wording import ABSENT, clean, counted, percent, sentence, shortened

try:
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text
except ImportError:
    raise MissingExtraError("rich", "pages", "printing to the terminal") from None


class PlainTable(Table):
    """A table whose heads and cells are text as it is: what a record is called is never read as markup."""

    def add_column(self, header: Any = "", footer: Any = "", **options: Any) -> None:
        """A column; its head is text."""
        super().add_column(plain(header), footer, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """A row; what is no renderable of rich's yet is text."""
        super().add_row(*(plain(cell) if isinstance(cell, str) else cell for cell in cells), **options)


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
FEW_ROWS = 20  # further numbers of an outcome that are still printed
_PIECE = re.compile(r"(?:[^\s/-]|(?<=\de)-(?=\d))+[/-]*|[/-]+|\s+")  # 3e-4 is one word
STYLES = {"✓": "green", "✗": "bold red", ABSENT: "dim", "(✓)": "dim", "(✗)": "dim"}


def plain(text: str, style: str = "") -> Text:
    """Text for the terminal, with no markup in it and nothing that steers it."""
    return Text(visible(text), style=style)


def table(record: Record, *, width: int = 100) -> PlainTable:
    """A table of the sites that fits `width` columns: empty columns are left out, then the least telling ones."""
    return _site_table(read(record), width)


def print_record(record: Record, console: Console | None = None, *, words: Callable[[str], str] = str) -> None:
    """Print the table of the sites and the verdict to a rich console (standard output unless another is given).

    `words` puts what is said of arguments into those of another way to call, such as a command's options.
    """
    console, view = console or Console(), read(record)
    verdict = view.verdict
    console.print(plain(view.label, style="bold"))
    console.print(plain(" · ".join(presentation(view).facts(view)), style="dim"))
    console.print()
    console.print(_site_table(view, console.width))
    console.print()
    console.print(plain(sentence(clean(words(verdict.headline))), style="bold"))
    if view.fit is not None and law_numbers(view.fit):
        console.print(plain(RULE, style="dim"))
    notes = [note for note in record.notes if note not in verdict.findings]
    for mark, style, lines in (("·", "", verdict.findings), ("→", "cyan", verdict.advice), ("·", "dim", notes)):
        for line in lines:
            console.print(Padding(point(mark, sentence(clean(words(line))), style), (0, 0, 0, 1)))


def print_comparison(records: Sequence[Record], console: Console | None = None) -> None:
    """Print the numbers of several records' laws side by side, what holds of them together, and each one's verdict.

    Of language models that read the same tokens, also their difference.
    """
    console, views = console or Console(), read_all(records)
    if said := together(views):
        console.print(plain(sentence(clean(said)), style="bold"))
        console.print()
    console.print(_comparison(views, console.width))
    console.print()
    for view in views:
        console.print(point("·", f"{view.label}: {sentence(clean(view.headline[0]))}"))
    for pair in paired_differences([replace(view.record, name=view.label) for view in views]):
        console.print(point("·", sentence(clean(pair.sentence()))))


def _comparison(views: Sequence[RecordView], width: int) -> PlainTable:
    """One row per record; what has no room gives way, the least telling first."""
    columns = {column.head: column for column in presentation(views[0]).COMPARED if column.yields is not None}
    cells = {head: [column.cell(view) for view in views] for head, column in columns.items()}
    cells = {head: texts for head, texts in cells.items() if any(text != ABSENT for text in texts)}
    longest = min(LONGEST_SITE, max([len("record"), *(cell_len(view.label) for view in views)]))
    yields = {head: column.yields or 0 for head, column in columns.items()}
    shown = fitting(cells, width - min(longest, SHORTEST_BLOCK), yields)
    longest = max(SHORTEST_SITE, min(longest, width - _width(cells, shown)))
    table = new_table()
    table.add_column("record", no_wrap=True, overflow="ellipsis", max_width=longest)
    for head in shown:
        table.add_column(head, justify="right", no_wrap=True)
    for i, view in enumerate(views):
        table.add_row(plain(shortened(view.label, longest)), *(cells[head][i] for head in shown))
    table.caption, table.caption_justify = plain(RULE, "dim"), "left"
    return table


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


def new_table(heads: Sequence[str] = (), left: Sequence[str] = ()) -> PlainTable:
    """A table without a frame; numbers stand flush right but for the columns named `left`."""
    new = PlainTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for head in heads:
        new.add_column(head, justify="left" if head in left else "right", no_wrap=True)
    return new


def fitting(cells: Mapping[str, Sequence[str]], room: int, yields: Mapping[str, int]) -> list[str]:
    """The heads that fit so many columns of the terminal; those that yield most give way first, others never."""
    shown = list(cells)
    while _width(cells, shown) > room and any(yields.get(head) for head in shown):
        shown.remove(max(shown, key=lambda head: yields.get(head, 0)))
    return shown


def _width(cells: Mapping[str, Sequence[str]], heads: Sequence[str]) -> int:
    return sum(GAP + max(len(head), *(len(cell) for cell in cells[head])) for head in heads)


def point(mark: str, words: str, style: str = "") -> Table:
    """A paragraph that hangs from its mark."""
    grid = PlainTable.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(mark, plain(words, style=style))
    return grid


def _site_table(view: RecordView, width: int) -> PlainTable:
    shows, numbers = presentation(view), view.record.numbers
    parts = shows.parts(view)
    columns = (column for column in shows.table_columns(view) if column.yields is not None)
    found = filled(view, columns, parts, _bars(parts, len(view.sites)))
    named = {column.short or column.head: column for column in found}
    cells = {head: found[column] for head, column in named.items()}
    yields = {head: column.yields or 0 for head, column in named.items()}
    count = max(map(len, numbers), default=1)
    space = width - count - GAP
    names = [BRANCH * (i in view.beside) + clean(site.name) for i, site in enumerate(view.sites)]
    longest = min(LONGEST_SITE, max([len("site"), *map(cell_len, names)]))
    least = SHORTEST_BLOCK if view.record.kind.first else SHORTEST_SITE
    different = len(set(names))
    apart = (size for size in range(least, longest) if len({shortened(name, size) for name in names}) == different)
    least = next(apart, longest)  # a column gives way before names look alike
    shown = fitting(cells, space - min(longest, least), yields)
    longest = max(SHORTEST_SITE, min(longest, space - _width(cells, shown)))
    table = new_table()
    table.add_column("#", justify="right", style="dim", no_wrap=True, min_width=count)
    table.add_column("site", no_wrap=True, overflow="ellipsis", max_width=longest)
    for head in shown:
        table.add_column(head, justify="left" if named[head].head == parts.head else "right", no_wrap=True)
    for i, site in enumerate(view.sites):
        row = [plain(cells[head][i]) for head in shown]
        table.add_row(numbers[i], plain(shortened(names[i], longest)), *row, style=None if site.in_fit else "dim")
    if legend := shows.legend(view, shown, [head for head in cells if head not in shown]):
        table.caption, table.caption_justify = plain(legend, "dim"), "left"
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


def print_outcome(outcome: Outcome, console: Console | None = None) -> None:
    """Print paper, ours, range over seeds and verdict per row, then notes (to standard output unless another is given).

    Many numbers of ours that the paper says nothing about are left to the page.
    """
    console = console or Console()
    rows, further, tables = said.standing_open(outcome)
    if len(further) <= FEW_ROWS:
        rows, further = list(outcome.rows), []
    more = f"{counted(len(further), 'more number' if rows else 'number')} of ours: in the page and in the record"
    head = {said.heading(outcome): "bold", said.verdict_line([outcome]): "", said.quick_words(outcome): "yellow"}
    command = [f"$ {words}" for what, words in said.provenance_items(outcome) if what == "command"]
    last = [line for line in (*command[-1:], said.run_facts(outcome)) if line]
    blocks: list[list[Text | Table]] = [
        [plain(line, style=style) for line, style in head.items() if line],
        [*_lines([said.written_row(row) for row in rows], console.width)] if rows else [],
        [
            part
            for one in outcome.tables[:tables]
            for part in (plain(sentence(clean(one.title)), style="bold"), _result(one, console.width))
        ],
        [plain(f"… {more}" if rows else more, style="dim")] if further else [],
        [point(" ·", sentence(clean(note)), "dim") for note in outcome.notes],
        [plain(line, style="dim") for line in last],
    ]
    for i, block in enumerate(blocks):
        if block and i:
            console.print()
        whole: Any = {"no_wrap": True, "crop": False, "overflow": "ignore"} if i == 1 else {}
        for part in block:
            console.print(part, **whole)


def _result(result: Results, width: int) -> PlainTable:
    """The first columns of an outcome's table that fit, with heads that are broken at spaces."""
    cells = [[said.written(row[i], name) for row in result.rows] for i, name in enumerate(map(clean, result.columns))]
    heads = [max(clean(name).split(), key=cell_len, default="") for name in result.columns]
    wide = [max(map(cell_len, (head, *column))) for head, column in zip(heads, cells, strict=True)]
    shown = max(1, sum(sum(wide[: i + 1]) + GAP * i <= width for i in range(len(wide))))
    table = new_table()
    for i, column in enumerate(result.columns[:shown]):
        table.add_column(column, justify="right" if i else "left", width=wide[i])
    for row in zip(*cells[:shown], strict=True):
        table.add_row(*map(plain, row))
    if left := len(wide) - shown:
        table.caption, table.caption_justify = plain(f"{counted(left, 'more column')}: in the page", "dim"), "left"
    return table


def _lines(rows: list[said.Written], width: int) -> list[Text]:
    """A table whose reasons take the whole width below their row, which none of rich's can do."""
    judged = any(row.mark != said.MARKS[None] for row in rows)
    kinds = ["paper", "ours", *["range"] * (width >= NARROW and any(row.range for row in rows))]
    kinds += ["accepted"] * (width >= WIDE and any(row.tolerance for row in rows))
    kinds += ["reproduced?" if width >= NARROW else "?"] * judged
    most = {"paper": max(8, width // 5), "accepted": width // 5}
    table = [{kind: _folded(_cell(row, kind, kinds, width), most.get(kind, width)) for kind in kinds} for row in rows]
    wide = {kind: max(len(kind), *(len(line) for cells in table for line in cells[kind])) for kind in kinds}
    space = max(LEAST, width - sum(wide.values()) - GAP * len(kinds))
    names = [_folded(row.name, space) for row in rows]
    wide = {"what": max(len("what"), *(len(line) for lines in names for line in lines))} | wide
    total = sum(wide.values()) + GAP * (len(wide) - 1)
    out = [plain(_joined({kind: kind for kind in wide}, wide), style="bold"), plain("─" * min(width, total))]
    for row, name, cells in zip(rows, names, table, strict=True):
        cells = {"what": name, **cells}
        for i in range(max(map(len, cells.values()))):
            line = plain(_joined({kind: lines[i] if i < len(lines) else "" for kind, lines in cells.items()}, wide))
            if i == 0 and judged:
                line.stylize(STYLES[row.mark], len(line) - len(line.plain.split(" ")[-1]))
            out.append(line)
        missed = row.tolerance and row.mark == said.MARKS[False] and "accepted" not in kinds
        below = [(f"accepted: {row.tolerance}", "dim")] if missed else []
        below += [(row.reason, "yellow" if row.ours == ABSENT else "dim")] if row.reason else []
        out += [plain(f"  {part}", style=style) for text, style in below for part in _folded(text, width - 2)]
    return out


def _cell(row: said.Written, kind: str, kinds: Sequence[str], width: int) -> str:
    """What stands in a column; without a column of its own the range goes with the mean, or is left out."""
    beside = f"\n{row.range}" if row.range and "range" not in kinds and width >= NARROWEST else ""
    known = {"paper": row.paper, "ours": row.ours + beside, "range": row.range, "accepted": row.tolerance}
    return known.get(kind, row.mark)


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
    ways = {kind: "<" if kind == "what" else "^" if kind.endswith("?") else ">" for kind in wide}
    return (" " * GAP).join(f"{cells[kind]:{ways[kind]}{n}}" for kind, n in wide.items()).rstrip()
