"""`layerlaw imbalance`: which classes keep a classifier of their own, by the Layer-Peeled Model."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layerlaw.advice import Forecast, forecast
from layerlaw.advice.imbalance_words import signed
from layerlaw.capture import classifier_weight, modules_of, network_of
from layerlaw.cli.app import JsonFlag, app, console, emit, made_folder
from layerlaw.cli.inputs import DataName, Flat, Normalise, Size, chosen_data, explained_inputs
from layerlaw.cli.model_file import load_model, load_weights
from layerlaw.data import load
from layerlaw.errors import DataError, InputError
from layerlaw.pages import draw_sheet
from layerlaw.pages.numbers import ABSENT, number
from layerlaw.probing import probe, sites
from layerlaw.record import Record


@app.command()
def imbalance(
    counts: Annotated[str | None, typer.Option(help="Samples per class, e.g. 5000,5000,50 or 5000x3,50x7.")] = None,
    counts_file: Annotated[Path | None, typer.Option(help="A text file of numbers, one per class.")] = None,
    data: DataName = None,
    model: Annotated[
        str | None, typer.Option(help="file.py:make or package.module:make. This runs your own code.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A .safetensors or .pt file of weights.")] = None,
    e_w: Annotated[float | None, typer.Option("--E-W", help="Mean squared norm of the classifier's rows.")] = None,
    e_h: Annotated[float | None, typer.Option("--E-H", help="Mean squared norm of the features it reads.")] = None,
    bias: Annotated[bool, typer.Option("--bias", help="The model with a free bias.")] = False,
    size: Size = None,
    flat: Flat = False,
    normalise: Normalise = "half",
    out: Annotated[Path | None, typer.Option(help="Folder for forecast.json and forecast.png.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Will rare classes lose their classifiers? A forecast from class counts and norms (Layer-Peeled Model).

    Norms come from --model, measured on its data or --data, or from --E-W and --E-H. Counts given with --model are
    those of its training; else the classes are counted in the data.
    """
    given = class_counts(counts, counts_file)
    if out is not None and out.exists() and not out.is_dir():
        raise DataError(f"{out}: expected a folder, got a file.")
    record, rows = None, None
    if model is not None:
        record, rows = _measured(model, weights, data, size=size, flat=flat, normalise=normalise)
    elif weights is not None:
        raise InputError("--weights: expected with --model, whose weights they are, got no model.")
    if given is None and record is None:
        if data is None:
            raise InputError("counts: expected --counts, --counts-file, --data or --model, got none of them.")
        given = list(load(data).counts())
    found = forecast(given, E_W=e_w, E_H=e_h, classifier=rows, record=record, bias=bias)
    screen, written = console(as_json), {}
    if out is not None:
        made_folder(out)
        figure = out / "forecast.png"
        draw_sheet(found.sheet()).savefig(figure, dpi=160)
        written = {"forecast": str(found.save(out / "forecast.json")), "figure": str(figure)}
    print_forecast(found, screen)
    for what, path in written.items():
        screen.print(f"{what}: {path}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        emit(found.to_dict() | written)


def class_counts(text: str | None, file: Path | None) -> list[int] | None:
    """'5000x2,50' → [5000, 5000, 50]; a file holds the same, separated by anything that is no number.

    >>> class_counts("5000x2, 50", None)
    [5000, 5000, 50]
    """
    if text is not None and file is not None:
        raise InputError("counts: expected --counts or --counts-file, got both.")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: expected a text file of class counts ({type(error).__name__}).") from None
    if text is None:
        return None
    found: list[int] = []
    for part in re.split(r"[\s,;]+", text.strip(" \t\r\n,;")):
        one, times, many = part.replace("×", "x").partition("x")
        try:
            n, repeated = int(one), int(many) if times else 1
        except ValueError:
            raise InputError(
                f"counts: expected whole numbers such as 5000,5000,50 or 5000x2,50, got {part!r}."
            ) from None
        if not 1 <= repeated <= 10**6:
            raise InputError(f"counts: expected a number of classes from 1 to a million after 'x', got {part!r}.")
        found += [n] * repeated
    return found


def _measured(reference: str, weights: Path | None, data: str | None, **how: Any) -> tuple[Record, Any]:
    """A record of the model, and the rows of its classifier."""
    network, given, _ = load_model(reference)
    if weights is not None:
        load_weights(network, weights)
    if data is None and given is None:
        raise InputError(
            "--model: expected data to find its classifier and measure its norms on, from `make` or --data, got none. Give "
            "--data; or leave out --model and give --counts, --E-W and --E-H."
        )
    train, _, names = chosen_data(data, given, None, test=False, per_class=None, **how)
    with explained_inputs():
        record = probe(network, train, class_names=names, jackknife=False, permuted=False)
        name = sites(network, train).classifier
    rows = None if name is None else classifier_weight(modules_of(network_of(network))[name])
    return record, rows


def print_forecast(found: Forecast, screen: Console) -> None:
    """Headline, one row per group, findings, caveats."""
    screen.print(Text(found.headline, style="bold"))
    screen.print()
    screen.print(forecast_table(found))
    screen.print()
    for line in found.sentences[1:]:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(" ·", Text(line, style="dim" if line in found.caveats else ""))
        screen.print(grid)


def forecast_table(found: Forecast) -> Table:
    """Per group one row as predicted by the norms, one by the norm in use, one as measured; fits into 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    several = found.by_use is not None or found.measured is not None
    for head in ["classes", *(["by"] if several else []), "phase", "slack", "cosine", "norm", "repeat"]:
        table.add_column(head, justify="left" if head in ("classes", "by", "phase") else "right", no_wrap=True)
    for i, group in enumerate(found.groups):
        rows = []
        for at, name in zip(found.outlooks, ("norms", "in use"), strict=False):
            copies = 1 if at.copies is None else at.copies[i]
            often = f"{copies:,}×" if copies > 1 else f"{number(at.factors[i])}×" if at.factors[i] > 1 else ABSENT
            norm = number(at.norms[i] * math.sqrt(found.E_W))
            rows.append([name, at.phases[i], number(at.slack[i]), _cosine(at.cosines[i]), norm, often])
        if found.measured is not None:
            own = found.measured[i]
            rows.append(["measured", "", "", _cosine(own.cosine), number(own.norm), ""])
        for j, cells in enumerate(rows):
            table.add_row("" if j else group.words, *(cells if several else cells[1:]))
    return table


def _cosine(value: float | None) -> str:
    return ABSENT if value is None else signed(value)
