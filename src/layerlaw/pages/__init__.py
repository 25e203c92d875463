"""Drawing: reads records, sheets and outcomes, and shows them in the terminal, as figures, and as HTML pages.

    record_view      a record prepared to be shown: fit, verdict, series in which every hole is a `None`
    kinds            how each kind of record is shown
    classifier/      what is said and drawn of a classifier
    language_model/  what is said and drawn of a language model
    html/            pages: one shell, one style sheet; `records` lists the panels of each kind
    sheets/          a sheet of panels on paper (matplotlib), and inside a page (SVG)
    figures          figures of a record, in the style of the papers (matplotlib)
    terminal         tables of rich
    outcome_words    how an outcome is written, the same everywhere
    markdown         the ledger of reproductions
    axes, theme      ticks; colors

matplotlib, plotly and rich (extra "pages") are imported when first needed, not before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages.html.outcomes import outcome_page
from layerlaw.pages.markdown import ledger
from layerlaw.pages.sheets import draw_sheet
from layerlaw.pages.terminal import print_outcome
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
    "ledger",
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
    from layerlaw.pages.html.records import write_page

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
    """Print the per-layer table and the verdict to a rich console (standard output unless another is given)."""
    from layerlaw.pages.terminal import write_record

    write_record(record, console)
