"""Ink: everything here reads records and draws them.

    reading     a record prepared for ink: fit, verdict, series without holes in the logic
    numbers     how numbers, sentences and names are written
    theme       colors, the Plotly template, the style sheet
    axes        ticks: sites along x, decades along y
    drawing     the one door to Plotly
    charts      Plotly figures of one record
    classes     the heat map class × site
    planes      small multiples of principal components, as SVG
    layers      the per-layer HTML table
    words       verdict, key numbers, method: the written sections
    comparison  several records side by side
    sections    a section of a page, the box of a chart
    page        one self-contained HTML file
    figures     matplotlib, in the style of the papers
    terminal    tables of rich

for language models:

    lm_columns  what a table says of a block
    lm_charts   the residual along depth, what the line leaves, what each block takes
    lm_targets  other targets, the separation of frequent tokens
    lm_words    key numbers, captions, definitions
    lm_page     the sections of the page

and, for reproductions of a paper's figures:

    outcome           numbers beside the paper's, sheets of panels, tables: plain data in one JSON file
    outcome_words     how an outcome is written, the same everywhere
    sheets            a sheet on paper: the arrangement of its panels
    scales            what the axes of a panel span, and their ticks
    curves            each style of series
    corners           where a note covers no data
    inline_svg        a figure inside a page
    outcome_page      one self-contained HTML file without a script
    outcome_terminal  the same numbers in the terminal
    ledger_index      a line per figure as Markdown
    ledger_page       the numbers of a figure as Markdown

matplotlib, plotly and rich (extra "pages") are imported when first needed, not before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages.ledger import ledger_index, ledger_page
from layerlaw.pages.outcome_page import outcome_page  # the same
from layerlaw.pages.outcome_terminal import print_outcome
from layerlaw.pages.sheets import draw_sheet
from layerlaw.record import Record
from layerlaw.sheet import Panel, PlanePanel, Series, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table as RichTable

__all__ = [
    "Outcome",
    "Panel",
    "PlanePanel",
    "Row",
    "Series",
    "Sheet",
    "Table",
    "draw_sheet",
    "ledger_index",
    "ledger_page",
    "outcome_page",
    "plot",
    "plot_planes",
    "print_outcome",
    "print_record",
    "report",
    "table",
]


def report(records: Record | Sequence[Record], path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write one self-contained HTML page (no network, about 5 MB) about a record, or comparing several."""
    from layerlaw.pages.page import write_page

    return write_page(records, path, title=title)


def plot(record: Record, column: str | None = None, *, ax: Axes | None = None) -> Figure:
    """One column against depth, in the style of the papers: log axis, points, fitted dashed line, ρ and r.

    Without a column the leading one: the separation of a classifier, the (held-out) residual of a language model.
    """
    from layerlaw.pages.figures import draw_column

    return draw_column(record, column, ax=ax)


def plot_planes(record: Record, *, columns: int | None = None) -> Figure:
    """The first two principal components at every site, colored by class, as small multiples."""
    from layerlaw.pages.figures import draw_planes

    return draw_planes(record, columns=columns)


def table(record: Record, *, width: int = 100) -> RichTable:
    """A compact per-layer table for the terminal that fits `width` columns."""
    from layerlaw.pages.terminal import layer_table

    return layer_table(record, width=width)


def print_record(record: Record, console: Console | None = None) -> None:
    """Print the per-layer table and the verdict to a rich console (standard output unless told)."""
    from layerlaw.pages.terminal import write_record

    write_record(record, console)
