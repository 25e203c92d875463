"""`layerlaw reproduce`: a figure of the papers, beside its numbers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer import Argument, Option

from layerlaw.cli.app import JsonFlag, app, check_folder, conclude, console, save_figure
from layerlaw.cli.training import EngineName
from layerlaw.errors import InputError
from layerlaw.experiments import NAMES, find, reproduce, title
from layerlaw.files import made_folder
from layerlaw.lab.engines import check_engine
from layerlaw.lab.trainer import check_device
from layerlaw.outcome import Outcome
from layerlaw.pages import draw_sheet, outcome_page, print_outcome

DRAWINGS = Path("sweeps", "drawings")  # beside what else a later run needs


@app.command("reproduce")
def reproduce_command(
    figures: Annotated[list[str] | None, Argument(help="Figures (see --list), or all.")] = None,
    quick: Annotated[bool, Option("--quick", help="Few epochs, one seed: does everything work?")] = False,
    seeds: Annotated[
        int | None,
        Option(help="Seeds (666, 1, 2, …): 3, or 1 in a quick run; paired comparisons take at least 5 or 10."),
    ] = None,
    device: Annotated[str, Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    workers: Annotated[
        int | None, Option(help="Processes that train: one per core, or 1 on a GPU (where MPS lets several share it).")
    ] = None,
    engine: EngineName = "processes",
    out: Annotated[Path, Option(help="Folder for records, figures and pages.")] = Path("layerlaw-reproduce"),
    listed: Annotated[bool, Option("--list", help="List the figures and leave.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train the networks of a paper's figure, and print the paper's numbers beside ours.

    Leaves the record, the figure as PNG and PDF and a page in the folder, those of quick runs in its folder quick; all.html
    shows every figure there. An interrupted run goes on where it was when it is started again.
    """
    screen = console(as_json)
    if listed and figures:
        raise InputError(f"--list: expected no figure beside it, got {', '.join(figures)}.")
    if listed:
        known, table = {name: title(name) for name in NAMES}, Table(box=None, show_header=False)
        for row in known.items():
            table.add_row(*row)
        screen.print(table)
        return conclude(screen, as_json, {"figures": known})
    if not figures:
        raise InputError(f"expected a figure to reproduce: some of {', '.join(NAMES)}, or all.")
    names = NAMES if figures == ["all"] else tuple(dict.fromkeys(figures))
    for name in names:
        find(name)
    check_device(device)
    check_engine(engine)
    check_folder(out)
    place = out / "quick" if quick else out  # a trial must not take the place of a result
    outcomes = []
    for name in names:
        try:
            how: dict[str, Any] = {"seeds": seeds, "device": device, "workers": workers, "engine": engine}
            outcome = reproduce(name, quick=quick, folder=place / "sweeps", **how)
        except KeyboardInterrupt:
            screen.print(f"Stopped; what was trained is kept in {place}. Start it again to go on.", soft_wrap=True)
            raise typer.Exit(130) from None
        print_outcome(outcome, screen)
        page = leave(outcome, place)
        screen.print(f"Record, figures and page: {page.parent}/{name}*", markup=False, highlight=False, soft_wrap=True)
        outcomes.append(outcome)
    everything = [Outcome.load(place / f"{name}.json") for name in NAMES if (place / f"{name}.json").exists()]
    page = outcome_page(everything, place / "all.html", drawings=place / DRAWINGS)
    if len(everything) > 1:
        told = f"All {len(everything)} experiments of this folder on one page: {page}"
        screen.print(told, markup=False, highlight=False, soft_wrap=True)
    conclude(screen, as_json, summary(outcomes))


def leave(outcome: Outcome, out: Path) -> Path:
    """Write record, figures and page of an outcome; returns the page."""
    made_folder(out)
    outcome.save(out / f"{outcome.name}.json")
    for i, sheet in enumerate(outcome.sheets):
        if sheet.panels:
            drawn = draw_sheet(sheet)
            for kind in ("png", "pdf"):
                save_figure(drawn, out / f"{outcome.name}{f'-{i + 1}' * (i > 0)}.{kind}")
    return outcome_page([outcome], out / f"{outcome.name}.html", drawings=out / DRAWINGS)


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Rows for scripts; with several figures their names carry the figure's."""
    rows = [(f"{outcome.name}/" if len(outcomes) > 1 else "", row) for outcome in outcomes for row in outcome.rows]
    return {
        "rows": [{**asdict(row), "name": f"{figure}{row.name}"} for figure, row in rows],
        "notes": [note for outcome in outcomes for note in outcome.notes],
        "provenance": [outcome.provenance for outcome in outcomes],
    }
