"""Options that several commands share: the model, where to measure it, and images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from torch import Tensor

from layerlaw.data import DEFAULT, Labeled, load, names
from layerlaw.errors import CaptureError, DataError, InputError

Size = Annotated[int | None, typer.Option(help="Resize images to this many pixels a side.")]


@dataclass(frozen=True)
class SiteOptions:
    """A model of one's own code, and where it is measured."""

    model: Annotated[
        str,
        typer.Argument(
            help="file.py:make or package.module:make. This runs your own code: `make` returns a model, (model, data) or "
            "(model, data, test)."
        ),
    ]
    sites: Annotated[
        list[str], typer.Option("--sites", help="auto, layers, blocks, or module names and globs (repeat the option).")
    ] = field(default_factory=lambda: ["auto"])
    reduce: Annotated[str, typer.Option("--reduce", help="flatten, mean, max, first or last.")] = "flatten"

    def how(self, *, logits: bool = False) -> dict[str, Any]:
        """Arguments of `probe` and `sites`: one of the rules, or a list of names and globs; and the reduction."""
        names = [*self.sites, *(["logits"] if logits else [])]
        return {"sites": names[0] if len(names) == 1 else names, "reduce": self.reduce}


@dataclass(frozen=True)
class ImageOptions:
    """A data set or a folder, and how its images are handed to the model."""

    data: Annotated[str | None, typer.Option(help=f"{', '.join(names())}, or a folder of class folders of images.")] = (
        None
    )
    size: Size = None
    flat: Annotated[bool, typer.Option("--flat", help="Hand each image over as one vector.")] = False
    normalize: Annotated[str, typer.Option(help="half ((x−0.5)/0.5), dataset (its mean and deviation) or none.")] = (
        "half"
    )

    def chosen(
        self, given: Any, given_test: Any = None, *, test: bool = False, per_class: int | None = None
    ) -> tuple[Any, Any, tuple[str, ...] | None]:
        """(data, test data, class names): what `make` returned, unless --data names something else."""
        if self.data is None and given is not None:
            if self != ImageOptions() or per_class is not None:
                raise InputError(
                    "--size, --flat, --normalize and --per-class shape the images of --data; here the data come from your "
                    "own code. Shape them there, or name a data set with --data."
                )
            return given, given_test if test else None, None
        source = self.data or DEFAULT
        train = load(source, split="train", size=self.size)
        if per_class is not None:
            train = train.balanced(per_class)
        held_out = None
        if test:
            try:
                held_out = self._pair(load(source, split="test", size=self.size))
            except DataError:
                if source in names():
                    raise  # a flat folder of classes has no test split
        return self._pair(train), held_out, train.class_names

    def _pair(self, data: Labeled) -> tuple[Tensor, Tensor]:
        """Tensors as the model takes them."""
        if self.normalize not in ("half", "dataset", "none"):
            raise InputError(f"normalize: expected half, dataset or none, got {self.normalize!r}.")
        return data.tensors(self.normalize, flat=self.flat)  # type: ignore[arg-type]


@contextmanager
def explained_inputs() -> Iterator[None]:
    """When a model fails on the images, name the options that change them."""
    try:
        yield
    except CaptureError as error:
        if "dry run" not in str(error):
            raise
        raise CaptureError(f"{error} --flat, --size, --normalize and --data change what the model is given.") from error
