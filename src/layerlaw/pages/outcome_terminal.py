"""An outcome in the terminal (rich): numbers beside the paper's, then notes and how it was run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from layerlaw.errors import MissingExtraError
from layerlaw.outcome import Outcome
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
from layerlaw.pages.terminal import _hanging
from layerlaw.wording import ABSENT, clean, sentence

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDE = 100  # columns of the terminal; below, what was accepted is told only where it was missed
NARROW = 72  # below, the range stands under the mean
NARROWEST = 52  # below, it is left out
LEAST = 8  # columns of a name, whatever the rest takes
GAP = "  "
_PIECE = re.compile(r"(?:[^\s/-]|(?<=\de)-(?=\d))+[/-]*|[/-]+|\s+")  # 3e-4 is one word
STYLES = {MARKS[True]: "green", MARKS[False]: "bold red", MARKS[None]: "dim"}


def print_outcome(outcome: Outcome, console: Console | None = None) -> None:
    """Print paper, ours, range over seeds and verdict per row, then notes (to standard output unless told)."""
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
    room = max(LEAST, width - sum(wide.values()) - len(GAP) * len(kinds))
    names = [_folded(row.name, room) for row in rows]
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
    return GAP.join(parts).rstrip()


def _total(wide: Mapping[str, int]) -> int:
    return sum(wide.values()) + len(GAP) * (len(wide) - 1)
