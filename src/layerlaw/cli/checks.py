"""`layerlaw check`: does a record meet what is demanded of it? One line per demand, and an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from layerlaw.cli.app import JsonFlag, command, console, print_json
from layerlaw.record import Record
from layerlaw.verdict.checks import WORSE, checked, other_data


@command
def check(
    records: Annotated[list[Path], Argument(help="Record files (JSON).")],
    holds: Annotated[list[str] | None, Option(help="The law of this column must hold, e.g. separation.")] = None,
    max_final_d: Annotated[float | None, Option(help="D (D_reg, PR) at the last layer must not be larger.")] = None,
    min_accuracy: Annotated[
        float | None, Option(help="Accuracy (of test data, if any) must not be lower: 0 to 1.")
    ] = None,
    against: Annotated[
        Path | None, Option(help="An earlier record: final D, law and accuracy must not be worse than there.")
    ] = None,
    worse: Annotated[float, Option(help="By which share the final D may lie above that of --against.")] = WORSE,
    as_json: JsonFlag = False,
) -> None:
    """Check records, for continuous integration: one line per demand.

    The exit code is 0 where every demand is met, 1 where one is not, and 2 for bad input.
    """
    base = None if against is None else Record.load(against)
    loaded = [(path, Record.load(path)) for path in records]
    demands = {"max_final": max_final_d, "min_accuracy": min_accuracy, "against": base, "worse": worse}
    found = [(path, checked(record, holds=holds or (), **demands)) for path, record in loaded]  # type: ignore[arg-type]
    passed = all(one.passed for _, answers in found for one in answers)
    told = {path: "" if base is None else other_data([record, base]) for path, record in loaded}
    screen = console(as_json)
    for path, answers in found:
        for one in answers:
            screen.print(f"{one}  ({path})" if len(found) > 1 else str(one), soft_wrap=True)
        if told[path]:
            screen.print(f"note  data: {path} and {against} {told[path]}", markup=False, soft_wrap=True)
    if as_json:
        rows = [{"record": str(path), **one.to_dict()} for path, answers in found for one in answers]
        notes = [{"record": str(path), "data": words} for path, words in told.items() if words]
        print_json({"passed": passed, "checks": rows, "notes": notes})
    raise typer.Exit(0 if passed else 1)
