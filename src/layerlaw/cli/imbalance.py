"""`layerlaw imbalance`: which classes keep a classifier of their own, by the Layer-Peeled Model."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from layerlaw.advice import Forecast, forecast
from layerlaw.advice.imbalance_words import signed
from layerlaw.advice.outlook import Outlook
from layerlaw.capture import Batches, Plan, Randomness, classifier_weight, modules_of, network_of, probing_state
from layerlaw.capture.network import device_of
from layerlaw.cli.app import JsonFlag, app, console, emit, made_folder
from layerlaw.cli.inputs import DataName, Flat, Normalize, Size, chosen_data, explained_inputs
from layerlaw.cli.model_file import load_model, load_weights
from layerlaw.data import Labeled, load
from layerlaw.errors import DataError, FeatureError, InputError
from layerlaw.pages import draw_sheet
from layerlaw.probing import probe, sites
from layerlaw.probing.classes import Classes
from layerlaw.record import Record
from layerlaw.wording import ABSENT, number, percent


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
    normalize: Normalize = "half",
    out: Annotated[Path | None, typer.Option(help="Folder for forecast.json and forecast.png.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Will rare classes lose their classifiers? A forecast from class counts and norms (Layer-Peeled Model).

    Norms come from --model, measured on its data or --data, or from --E-W and --E-H. Counts given with --model are
    those of its training; else the classes are counted in the data. More than 40 distinct sizes are put into bins.
    """
    given = class_counts(counts, counts_file)
    if out is not None and out.exists() and not out.is_dir():
        raise DataError(f"{out}: expected a folder, got a file.")
    record, rows, right, biased = None, None, None, None
    if model is not None:
        record, rows, right, biased = _measured(model, weights, data, size=size, flat=flat, normalize=normalize)
    elif weights is not None:
        raise InputError("--weights: expected with --model, whose weights they are, got no model.")
    if given is None and record is None:
        if data is None:
            raise InputError("counts: expected --counts, --counts-file, --data or --model, got none of them.")
        given = list(load(data).counts())
    found = forecast(given, E_W=e_w, E_H=e_h, classifier=rows, record=record, accuracy=right, bias=bias)
    screen, written = console(as_json), {}
    if out is not None:
        made_folder(out)
        figure = out / "forecast.png"
        draw_sheet(found.sheet()).savefig(figure, dpi=160)
        written = {"forecast": str(found.save(out / "forecast.json")), "figure": str(figure)}
    print_forecast(found, screen)
    if biased is not None and biased != bias:
        has, told = ("has a", "without one: --bias asks for it") if biased else ("has no", "with one")
        screen.print(f"The classifier {has} bias; this forecast is that of the model {told}.", markup=False)
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


def _measured(
    reference: str, weights: Path | None, data: str | None, **how: Any
) -> tuple[Record, Tensor | None, list[float] | None, bool | None]:
    """A record of the model, the rows of its classifier, the share of right samples per class, whether it has a bias."""
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
        plan = sites(network, train)
        last = None if plan.classifier is None else modules_of(network_of(network))[plan.classifier]
        rows = None if last is None else classifier_weight(last)
        if rows is not None and not bool(rows.isfinite().all()):
            raise FeatureError(
                f"'{plan.classifier}': expected finite weights, got NaN or infinity. Did training diverge?"
            )
        record = probe(network, train, classes=names, uncertainty=False)
    biased = None if last is None else getattr(last, "bias", None) is not None
    return record, rows, class_accuracy(network, train, plan), biased


def class_accuracy(network: nn.Module, data: Any, plan: Plan) -> list[float] | None:
    """Share of right samples per class; `None` where the output holds no class scores."""
    source = data.tensors() if isinstance(data, Labeled) else data
    batches = Batches(source, batch_size=None, batchnorm="running", where="data")
    classes = Classes.of(None, plan, batches.labels)
    right, seen = torch.zeros(2, classes.K)
    with Randomness(source), probing_state(network_of(network), "running"), torch.no_grad():
        for i, batch in enumerate(batches):
            batch = batch.to(device_of(network))
            labels = classes.positions(batch.labels, f"labels of data, batch {i}")[0].cpu()
            told = classes.decide(network(*batch.args, **batch.kwargs), None)
            if told is None:
                return None
            seen += torch.bincount(labels, minlength=classes.K)
            right += torch.bincount(labels[told.cpu() == labels], minlength=classes.K)
    return [float(share) for share in right / seen] if bool((seen > 0).all()) else None


def print_forecast(found: Forecast, screen: Console) -> None:
    """Headline, one row per group, findings, caveats."""
    screen.print(Text(found.headline, style="bold"))
    screen.print()
    screen.print(forecast_table(found))
    told = "margin: own logit minus the best other, lost at 0 and below"
    screen.print(Text(told + ("" if found.accuracy is None else "; right: share of these data"), style="dim"))
    screen.print()
    for line in found.sentences[1:]:
        grid = Table.grid(padding=(0, 1))
        grid.add_row(" ·", Text(line, style="dim" if line in found.caveats else ""))
        screen.print(grid)


def forecast_table(found: Forecast) -> Table:
    """Per group one row as predicted by the norms, one by the norm in use, one as measured; fits into 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    several = found.by_use is not None or found.measured is not None or found.accuracy is not None
    for head in ["classes", *(["by"] if several else []), "phase", "margin", "cosine", "norm", "repeat"]:
        table.add_column(head, justify="left" if head in ("classes", "by", "phase") else "right", no_wrap=True)
    for i, group in enumerate(found.groups):
        rows = []
        for at, name in zip(found.outlooks, ("norms", "in use"), strict=False):
            norm = number(at.norms[i] * math.sqrt(found.E_W))
            margin = _decimals(at.margins[i])
            rows.append([name, _phase(at, i, group.number), margin, _decimals(at.cosines[i]), norm, _repeat(at, i)])
        if found.measured is not None or found.accuracy is not None:
            own = None if found.measured is None else found.measured[i]
            cells = ["", ""] if own is None else [_decimals(own.cosine), number(own.norm)]
            right = "" if found.accuracy is None else f"{percent(found.accuracy[i], 0)} right"
            rows.append(["measured", right, "", *cells, ""])
        for j, cells in enumerate(rows):
            table.add_row("" if j else group.words, *(cells if several else cells[1:]))
    return table


def _phase(at: Outlook, i: int, classes: int) -> str:
    """The worst phase in a group, and how many classes are lost where not all are."""
    some = f" {at.lost[i]:,}/{classes:,}" if 0 < at.lost[i] < classes else ""
    return f"{at.phases[i]}{some}"


def _repeat(at: Outlook, i: int) -> str:
    """How often to show the samples of a group: whole copies, as a range where its sizes differ; else a factor."""
    copies = [size.copies for size in at.of_group(i) if size.copies is not None]
    if copies and not at.binned:
        low, high = min(copies), max(copies)
        return ABSENT if high == 1 else f"{high:,}×" if low == high else f"{low:,}–{high:,}×"
    return f"{'≈' if at.binned else ''}{number(at.factors[i])}×" if at.factors[i] > 1 else ABSENT


def _decimals(value: float | None) -> str:
    return ABSENT if value is None else signed(value)
