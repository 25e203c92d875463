"""`layerlaw report`: one page from one or several records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerlaw.cli.app import JsonFlag, app, console, emit
from layerlaw.pages import print_record
from layerlaw.pages import report as write_page
from layerlaw.record import Record
from layerlaw.verdict import judge


@app.command()
def report(
    records: Annotated[list[Path], typer.Argument(help="Record files (JSON); several are compared on one page.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("layerlaw.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write one self-contained HTML page about one record, or comparing several."""
    loaded = [Record.load(path) for path in records]
    page = write_page(loaded if len(loaded) > 1 else loaded[0], out, title=title)  # before a reader may turn away
    screen = console(as_json)
    if len(loaded) == 1:
        print_record(loaded[0], screen)
    else:
        for record in loaded:
            screen.print(f"{record.name}: {judge(record).headline}", markup=False, highlight=False)
    screen.print(f"page: {page}", markup=False, highlight=False)
    if as_json:
        emit({"page": str(page), "records": [record.name for record in loaded]})
