"""`layerlaw imbalance`: which classes keep a classifier of their own, by the Layer-Peeled Model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from layerlaw.advice import forecast
from layerlaw.advice.imbalance import MeasuredClassifier, measured_classifier
from layerlaw.cli.app import JsonFlag, check_folder, command, conclude, console, saved
from layerlaw.cli.inputs import ImageOptions, explained_inputs, load_model, whole_numbers
from layerlaw.data import load
from layerlaw.errors import DataError, InputError
from layerlaw.pages.advice_terminal import print_forecast


@command
def imbalance(
    images: ImageOptions,
    counts: Annotated[str | None, Option(help="Samples per class, e.g. 5000,5000,50 or 5000x3,50x7.")] = None,
    counts_file: Annotated[Path | None, Option(help="A text file of numbers, one per class.")] = None,
    model: Annotated[str | None, Option(help="file.py:make or package.module:make. This runs your own code.")] = None,
    weights: Annotated[Path | None, Option(help="A .safetensors or .pt file of weights.")] = None,
    e_w: Annotated[float | None, Option("--E-W", help="Mean squared norm of the classifier's rows.")] = None,
    e_h: Annotated[float | None, Option("--E-H", help="Mean squared norm of the features it reads.")] = None,
    bias: Annotated[bool, Option("--bias", help="The model with a free bias.")] = False,
    out: Annotated[Path | None, Option(help="Folder for forecast.json and forecast.png.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Will rare classes lose their classifiers? A forecast from class counts and norms (Layer-Peeled Model).

    Norms come from --model, measured on its data or --data, or from --E-W and --E-H. Counts given with --model are
    those of its training; else the classes are counted in the data. More than 40 distinct sizes are put into bins.
    """
    given = class_counts(counts, counts_file)
    check_folder(out)
    network, measured = None, {}
    if model is not None:
        network = _measured(model, weights, images)
        measured = {"classifier": network.rows, "record": network.record, "accuracy": network.accuracy}
    elif weights is not None:
        raise InputError("--weights: expected with --model, whose weights they are, got no model.")
    elif given is None:
        if images.data is None:
            raise InputError("counts: expected --counts, --counts-file, --data or --model, got none of them.")
        given = list(load(images.data).counts())
    how: Any = measured
    found = forecast(given, E_W=e_w, E_H=e_h, bias=bias, **how)
    screen, written = console(as_json), saved(found, "forecast", out)
    print_forecast(found.to_dict(), screen)
    if network is not None and network.bias is not None and network.bias != bias:
        has, which = ("has a", "without one (--bias: with one)") if network.bias else ("has no", "with one")
        screen.print(f"The classifier {has} bias; this forecast is that of the model {which}.", markup=False)
    conclude(screen, as_json, found.to_dict(), written)


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
    such_as = "counts: expected whole numbers such as 5000,5000,50 or 5000x2,50"
    return None if text is None else whole_numbers(text, such_as)


def _measured(reference: str, weights: Path | None, images: ImageOptions) -> MeasuredClassifier:
    """What a forecast takes from the model that was named."""
    network, given, _ = load_model(reference, weights)
    if images.data is None and given is None:
        raise InputError(
            "--model: expected data to find its classifier and measure its norms on, from `make` or --data, got none. Give "
            "--data; or leave out --model and give --counts, --E-W and --E-H."
        )
    train, _, names = images.chosen(given)
    with explained_inputs():
        return measured_classifier(network, train, classes=names)
