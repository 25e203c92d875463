"""An outcome in the terminal (rich): numbers beside the paper's, then notes and how it was run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerlaw.errors import MissingExtraError
from layerlaw.pages.numbers import ABSENT, clean, sentence
from layerlaw.pages.outcome import Outcome
from layerlaw.pages.outcome_words import (
    MARKS,
    QUICK,
    Written,
    heading,
    provenance_items,
    run_facts,
    verdict_line,
    written_row,
)
from layerlaw.pages.terminal import _hanging

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 100  # columns of the terminal; below, what was accepted is told only where it was missed
NARROW = 72  # below, the range stands under the mean
NARROWEST = 52  # below, it is left out
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
    console.print(Text(verdict_line(outcome.reproduced)))
    if outcome.provenance.get("quick"):
        console.print(Text(f"This is {QUICK}.", style="yellow"))
    if outcome.rows:
        console.print()
        console.print(_table([written_row(row) for row in outcome.rows], console.width))
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


def _table(rows: list[Written], width: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    ranged, bounded = any(row.range for row in rows), any(row.tolerance for row in rows)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("what", overflow="fold", min_width=10)
    table.add_column("paper", justify="right", overflow="fold", max_width=max(8, width // 5))
    table.add_column("ours", justify="right", no_wrap=True)
    if ranged and width >= NARROW:
        table.add_column("range", justify="right", no_wrap=True)
    if bounded and width >= WIDE:
        table.add_column("accepted", justify="right", overflow="fold", max_width=width // 5)
    table.add_column("reproduced?" if width >= NARROW else "?", justify="center", no_wrap=True)
    for row in rows:
        name = Text(row.name, overflow="fold")
        if row.tolerance and row.mark == MARKS[False] and width < WIDE:
            name.append(f"\naccepted: {row.tolerance}", style="dim")
        if row.reason:
            name.append(f"\n{row.reason}", style="yellow" if row.ours == ABSENT else "dim")
        cells = [Text(row.paper), Text(row.ours)]
        if ranged and width >= NARROW:
            cells.append(Text(row.range))
        elif row.range and width >= NARROWEST:
            cells[1].append(f"\n{row.range}", style="dim")
        if bounded and width >= WIDE:
            cells.append(Text(row.tolerance, style="dim"))
        table.add_row(name, *cells, Text(row.mark, style=STYLES[row.mark]))
    return table
