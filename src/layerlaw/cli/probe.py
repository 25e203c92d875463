"""`layerlaw probe`: measure a model layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from layerlaw.cli.app import JsonFlag, app, console, emit
from layerlaw.cli.inputs import (
    DataName,
    Flat,
    Model,
    Normalize,
    Reduction,
    Sites,
    Size,
    chosen_data,
    explained_inputs,
    site_choice,
)
from layerlaw.cli.model_file import load_model, load_weights
from layerlaw.data import DEFAULT
from layerlaw.errors import DataError, InputError
from layerlaw.files import check_place
from layerlaw.pages import print_record, report
from layerlaw.probing import probe as run_probe
from layerlaw.record import Record
from layerlaw.verdict import judge


@app.command()
def probe(
    model: Model,
    data: DataName = None,
    weights: Annotated[
        Path | None, typer.Option(help="A .safetensors or .pt file of weights (never unpickled).")
    ] = None,
    sites: Sites = ["auto"],  # noqa: B006  (typer reads it as the default, nobody changes it)
    reduce: Reduction = "flatten",
    batchnorm: Annotated[
        str, typer.Option(help="BatchNorm: running statistics, or those of each batch, or of the whole data.")
    ] = "running",
    weighting: Annotated[str, typer.Option(help="samples (as in the paper) or classes.")] = "samples",
    classes: Annotated[str | None, typer.Option(help="Class numbers to measure, e.g. 0,3,7.")] = None,
    logits: Annotated[bool, typer.Option("--logits", help="Also measure the logits.")] = False,
    null: Annotated[bool, typer.Option("--null", help="Also measure an untrained copy of the network.")] = False,
    test: Annotated[bool, typer.Option(help="Also measure the test split.")] = True,
    size: Size = None,
    flat: Flat = False,
    normalize: Normalize = "half",
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
    network, given, given_test = load_model(model)
    if weights is not None:
        load_weights(network, weights)
    train, held_out, class_names = chosen_data(
        data, given, given_test, test=test, size=size, per_class=per_class, normalize=normalize, flat=flat
    )
    options: Any = {"reduce": reduce, "batchnorm": batchnorm, "weighting": weighting}
    with explained_inputs():
        record = run_probe(
            network,
            train,
            test=held_out,
            sites=site_choice([*sites, *(["logits"] if logits else [])]),
            classes=_chosen(_numbers(classes), class_names),
            null=null,
            batch_size=batch_size,
            device=device,
            memory_gib=memory_gib,
            **options,
        )
    record.name = name or record.name
    record.provenance["command"] = {
        "model": model,
        "weights": str(weights) if weights else None,
        "data": data or ("from the model file" if given is not None else DEFAULT),
        "per_class": per_class,
        "size": size,
        "flat": flat,
        "normalize": normalize,
    }
    written = write(record, out, page)
    screen = console(as_json)
    if data is None and given is None:
        screen.print(f"data: {DEFAULT} (embedded; --data names another)", markup=False, highlight=False)
    print_record(record, screen)
    for what, path in written.items():
        screen.print(f"{what}: {path}", markup=False, highlight=False)
    if as_json:
        emit(summary(record) | written)


def check_places(out: Path | None, page: Path | None) -> None:
    """Told before minutes of measuring, not after."""
    if out is not None and page is not None and out.resolve() == page.resolve():
        raise DataError(f"{out}: expected one file for the record (--out) and another for the page (--page).")
    for path in (out, page):
        if path is not None:
            check_place(path)


def write(record: Record, out: Path | None, page: Path | None) -> dict[str, str]:
    """Record and report where they were asked for."""
    written = {}
    if out is not None:
        written["record"] = str(record.save(out))
    if page is not None:
        written["page"] = str(report(record, page))
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


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"classes: expected numbers separated by commas, got {text!r}.") from None
