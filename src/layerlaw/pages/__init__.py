"""Drawing: reads records, sheets and outcomes, and shows them in the terminal, as figures, and as HTML pages.

What is said and drawn of each kind of record is in classifier/ and language_model/, and `html.records` lists its panels;
matplotlib, plotly and rich (extra "pages") are imported when first needed, not before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlaw.files import write_whole
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages.figures import plot, plot_planes
from layerlaw.pages.html.outcomes import outcome_page
from layerlaw.pages.markdown import ledger_index, ledger_page
from layerlaw.pages.sheets import draw_sheet
from layerlaw.record import Record
from layerlaw.sheet import Panel, PlanePanel, Series, Sheet

if TYPE_CHECKING:
    from layerlaw.pages.terminal import print_comparison, print_outcome, print_record, table

__all__ = [
    "Outcome", "Panel", "PlanePanel", "Row", "Series", "Sheet", "Table", "draw_sheet", "ledger_index", "ledger_page",
    "movie", "outcome_page", "plot", "plot_planes", "print_comparison", "print_outcome", "print_record", "report", "table",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in ("print_comparison", "print_outcome", "print_record", "table"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from layerlaw.pages import terminal  # needs rich

    return getattr(terminal, name)


def movie(records: Record | Sequence[Record], path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write one self-contained HTML page that plays a training run: records of its steps, as `settings["step"]` tells them.

    D along depth, the law's numbers, shares, mismatch, planes, and three classes on their way to collapse move together.
    """
    from layerlaw.pages.html.movies import movie_html

    return write_whole(path, movie_html(records, title=title))


def report(records: Record | Sequence[Record], path: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write one self-contained HTML page (no network, about 5 MB) about a record, or comparing several."""
    from layerlaw.pages.html.records import page_html  # needs Plotly

    return write_whole(path, page_html(records, title=title))
