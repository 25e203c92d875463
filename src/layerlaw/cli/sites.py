"""`layerlaw sites`: the dry-run table."""

from __future__ import annotations

from typing import Annotated, Any

import torch
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
from layerlaw.cli.model_file import load_model
from layerlaw.errors import InputError
from layerlaw.probing import sites as find


@app.command()
def sites(
    model: Model,
    data: DataName = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one random input instead of data, e.g. 3,32,32.")] = None,
    sites: Sites = ["auto"],  # noqa: B006
    reduce: Reduction = "flatten",
    size: Size = None,
    flat: Flat = False,
    normalize: Normalize = "half",
    as_json: JsonFlag = False,
) -> None:
    """Show where a probe of MODEL would look, without measuring: names, types, shapes, features, memory.

    MODEL names your own Python code, and that code is run.
    """
    network, given, _ = load_model(model)
    example: Any
    if shape is not None:
        example = torch.randn(3, *_shape(shape))
    else:
        example, _, _ = chosen_data(
            data, given, None, test=False, size=size, per_class=None, normalize=normalize, flat=flat
        )
    how: Any = {"reduce": reduce}
    with explained_inputs():
        plan = find(network, example, sites=site_choice(sites), **how)
    console(as_json).print(str(plan), markup=False, highlight=False, soft_wrap=True)
    if as_json:
        emit({"sites": plan.rows(), "why": plan.why, "left_out": list(plan.dropped), "classifier": plan.classifier})


def _shape(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(f"shape: expected positive whole numbers separated by commas, got {text!r}.")
    return numbers
