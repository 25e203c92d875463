"""`layerlaw probe | sites | report`: measure a model layer by layer, show where it would be measured, write its page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from layerlaw.cli.app import JsonFlag, command, conclude, console
from layerlaw.cli.inputs import ImageOptions, SiteOptions, explained_inputs
from layerlaw.cli.model_file import load_model, load_weights
from layerlaw.data import DEFAULT
from layerlaw.errors import DataError, InputError
from layerlaw.files import check_place
from layerlaw.pages import print_record
from layerlaw.pages import report as write_page
from layerlaw.probing import probe as run_probe
from layerlaw.probing import sites as find_sites
from layerlaw.record import Record
from layerlaw.verdict import judge


@command
def probe(
    where: SiteOptions,
    images: ImageOptions,
    weights: Annotated[
        Path | None, typer.Option(help="A .safetensors or .pt file of weights (never unpickled).")
    ] = None,
    batchnorm: Annotated[
        str, typer.Option(help="BatchNorm: running statistics, or those of each batch, or of the whole data.")
    ] = "running",
    weighting: Annotated[str, typer.Option(help="samples (as in the paper) or classes.")] = "samples",
    classes: Annotated[str | None, typer.Option(help="Class numbers to measure, e.g. 0,3,7.")] = None,
    logits: Annotated[bool, typer.Option("--logits", help="Also measure the logits.")] = False,
    null: Annotated[bool, typer.Option("--null", help="Also measure an untrained copy of the network.")] = False,
    test: Annotated[bool, typer.Option(help="Also measure the test split.")] = True,
    per_class: Annotated[int | None, typer.Option(help="Use this many training images of each class.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per forward.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …")] = None,
    memory_gib: Annotated[float, typer.Option(help="Memory for statistics and kept features.")] = 2.0,
    out: Annotated[Path | None, typer.Option(help="Write the record here (JSON).")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the report here (HTML).")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the record.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure MODEL layer by layer: does every layer take its share of separating the classes?

    MODEL names your own Python code, and that code is run.
    """
    check_places(out, page)
    network, given, given_test = load_model(where.model)
    if weights is not None:
        load_weights(network, weights)
    train, held_out, class_names = images.chosen(given, given_test, test=test, per_class=per_class)
    options: Any = {"batchnorm": batchnorm, "weighting": weighting, **where.how(logits=logits)}
    with explained_inputs():
        record = run_probe(
            network,
            train,
            test=held_out,
            classes=_chosen(_numbers(classes, "classes"), class_names),
            null=null,
            batch_size=batch_size,
            device=device,
            memory_gib=memory_gib,
            **options,
        )
    record.name = name or record.name
    record.provenance["command"] = {
        "model": where.model,
        "weights": str(weights) if weights else None,
        "data": images.data or ("from the model file" if given is not None else DEFAULT),
        "per_class": per_class,
        "size": images.size,
        "flat": images.flat,
        "normalize": images.normalize,
    }
    written = write(record, out, page)
    screen = console(as_json)
    if images.data is None and given is None:
        screen.print(f"data: {DEFAULT} (embedded; --data names another)", markup=False, highlight=False)
    print_record(record, screen)
    conclude(screen, as_json, written, summary(record))


@command
def sites(
    where: SiteOptions,
    images: ImageOptions,
    shape: Annotated[str | None, typer.Option(help="Shape of one random input instead of data, e.g. 3,32,32.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show where a probe would measure MODEL, as a dry run: names, types, shapes, features, memory.

    MODEL names your own Python code, and that code is run.
    """
    network, given, _ = load_model(where.model)
    sizes = _numbers(shape, "shape", least=1)
    example: Any = images.chosen(given)[0] if sizes is None else torch.randn(3, *sizes)
    with explained_inputs():
        plan = find_sites(network, example, **where.how())
    screen = console(as_json)
    screen.print(str(plan), markup=False, highlight=False, soft_wrap=True)
    found = {"sites": plan.rows(), "why": plan.why, "left_out": list(plan.dropped), "classifier": plan.classifier}
    conclude(screen, as_json, {}, found)


@command
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
    conclude(screen, as_json, {"page": str(page)}, {"records": [record.name for record in loaded]})


def check_places(out: Path | None, page: Path | None) -> None:
    """Before minutes of measuring, not after."""
    if out is not None and page is not None and out.resolve() == page.resolve():
        raise DataError(f"{out}: expected one file for the record (--out) and another for the page (--page).")
    for path in (out, page):
        if path is not None:
            check_place(path)


def write(record: Record, out: Path | None, page: Path | None) -> dict[str, str]:
    """Record and report where they were requested."""
    written = {}
    if out is not None:
        written["record"] = str(record.save(out))
    if page is not None:
        written["page"] = str(write_page(record, page))
    return written


def summary(record: Record) -> dict[str, Any]:
    """What a script wants to know of a record."""
    verdict = judge(record)
    law = record.law().to_dict() if all(s.values.get("separation") for s in record.sites if s.in_fit) else None
    rows = [{"site": s.name, "type": s.type, "features": s.features, **s.values} for s in record.sites]
    return {
        "name": record.name,
        "accuracy": record.accuracy,
        "test_accuracy": record.test_accuracy,
        "law": law,
        "verdict": [verdict.headline, *verdict.findings, *verdict.advice],
        "rows": rows,
        "settings": record.settings,
        "provenance": record.provenance,
        "notes": record.notes,
    }


def _chosen(numbers: list[int] | None, names: tuple[str, ...] | None) -> Any:
    """Class numbers with their names, where they have some."""
    if numbers is None or names is None:
        return names if numbers is None else numbers
    return {i: names[i] if 0 <= i < len(names) else str(i) for i in numbers}


def _numbers(text: str | None, name: str, least: int | None = None) -> list[int] | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or (least is not None and min(numbers) < least):
        which = "numbers" if least is None else "positive whole numbers"
        raise InputError(f"{name}: expected {which} separated by commas, got {text!r}.")
    return numbers
