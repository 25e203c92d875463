"""Options that several commands share, and the data they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from torch import Tensor

from layerlaw.data import DEFAULT, Labeled, load, names
from layerlaw.errors import CaptureError, DataError, InputError

Model = Annotated[
    str,
    typer.Argument(
        help="file.py:make or package.module:make. This runs your own code: `make` returns a model, (model, data) or "
        "(model, data, test)."
    ),
]
DataName = Annotated[
    str | None, typer.Option("--data", help=f"{', '.join(names())}, or a folder of class folders of images.")
]
Sites = Annotated[
    list[str], typer.Option("--sites", help="auto, layers, blocks, or module names and globs (repeat the option).")
]
Reduction = Annotated[str, typer.Option("--reduce", help="flatten, mean, max, first or last.")]
Size = Annotated[int | None, typer.Option(help="Resize images to this many pixels a side.")]
Flat = Annotated[bool, typer.Option("--flat", help="Hand each image over as one vector.")]
Normalize = Annotated[str, typer.Option(help="half ((x−0.5)/0.5), dataset (its mean and deviation) or none.")]


def images(source: str, split: str, *, size: int | None, per_class: int | None) -> Labeled:
    """A named data set or a folder, cut and resized."""
    data = load(source, split="train" if split == "train" else "test", size=size)
    if per_class is not None:
        data = data.balanced(min(per_class, min(data.counts())) if split == "test" else per_class)
    return data


def pair(data: Labeled, *, normalize: str, flat: bool) -> tuple[Tensor, Tensor]:
    """Tensors as the model takes them."""
    if normalize not in ("half", "dataset", "none"):
        raise InputError(f"normalize: expected half, dataset or none, got {normalize!r}.")
    return data.tensors(normalize, flat=flat)  # type: ignore[arg-type]


def chosen_data(
    source: str | None, given: Any, given_test: Any, *, test: bool, size: int | None, per_class: int | None, **how: Any
) -> tuple[Any, Any, tuple[str, ...] | None]:
    """(data, test data, class names): what `make` returned, unless --data names something else."""
    if source is None and given is not None:
        if size is not None or per_class is not None or how != {"normalize": "half", "flat": False}:
            raise InputError(
                "--size, --flat, --normalize and --per-class shape the images of --data; here the data come from your own "
                "code. Shape them there, or name a data set with --data."
            )
        return given, given_test if test else None, None
    source = source or DEFAULT
    train = images(source, "train", size=size, per_class=per_class)
    held_out = None
    if test:
        try:
            held_out = pair(images(source, "test", size=size, per_class=None), **how)
        except DataError:
            if source in names():
                raise
            held_out = None  # a flat folder of classes has no test split
    return pair(train, **how), held_out, train.class_names


def site_choice(patterns: list[str]) -> Any:
    """One of the rules, or a list of names and globs."""
    return patterns[0] if len(patterns) == 1 else patterns


@contextmanager
def explained_inputs() -> Iterator[None]:
    """A model that fails on the images gets to know the options that change them."""
    try:
        yield
    except CaptureError as error:
        if "dry run" not in str(error):
            raise
        raise CaptureError(f"{error} --flat, --size, --normalize and --data change what the model is given.") from error
