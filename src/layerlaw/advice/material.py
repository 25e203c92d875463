"""Data in any form → flat training samples with a validation part, and test data that nothing is chosen by."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from layerlaw.data import Labeled, load, names
from layerlaw.errors import InputError
from layerlaw.lab import Samples

SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class Material:
    """What candidates are compared on: `samples` hold the training part, and the validation part as held-out samples."""

    samples: Samples
    test: tuple[Tensor, Tensor] | None
    name: str
    checksum: str
    """Of everything that was given, test data included."""

    @classmethod
    def of(
        cls,
        data: Any,
        test: Any = None,
        *,
        validation: float = 0.2,
        size: int | None = None,
        per_class: int | None = None,
    ) -> Material:
        """From a pair of tensors or arrays, `Samples`, `Labeled`, the name of a data set or the path of a folder.

        A share `validation` of every class is held back (the same one every time); test samples that `Samples` bring
        along are kept as test data.
        """
        whole = flat_samples(data, test, size=size, per_class=per_class)
        x, y = whole.test_inputs, whole.test_labels
        parts = whole.held_back(validation, seed=SPLIT_SEED)
        return cls(parts, None if x is None or y is None else (x, y), _name(data), whole.checksum)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many samples every class has, validation part included."""
        held_out = [0] * self.samples.classes
        if self.samples.test_labels is not None:
            held_out = torch.bincount(self.samples.test_labels, minlength=self.samples.classes).tolist()
        return tuple(a + b for a, b in zip(self.samples.counts, held_out, strict=True))

    @property
    def validation(self) -> int:
        """How many samples the validation part has."""
        return 0 if self.samples.test_labels is None else len(self.samples.test_labels)


def flat_samples(data: Any, test: Any = None, *, size: int | None = None, per_class: int | None = None) -> Samples:
    """Samples from any form of data; `size` and `per_class` cut images, which tensors no longer are."""
    if isinstance(data, (str, os.PathLike)):
        data = pictures(data, size)
    if isinstance(data, Labeled):
        data = data if per_class is None else data.balanced(per_class)
        held_out = None if test is None else _pair(test, size, data.images.shape[1])
        return Samples.of(_flat(data, size), held_out, class_names=data.class_names).flat()
    if size is not None or per_class is not None:
        raise InputError(
            "size, per_class: expected with images (the name of a data set, a folder, Labeled), got tensors. "
            "Cut those before."
        )
    if isinstance(data, Samples):
        if test is None:
            return data.flat()
        return Samples.of((data.inputs, data.labels), _pair(test, None), class_names=data.class_names).flat()
    return Samples.of(data, None if test is None else _pair(test, None)).flat()


def pictures(source: str | os.PathLike[str], size: int | None) -> Labeled:
    """The training images of a data set or a folder; a folder in which all are gray has one channel.

    A folder is resized at once, as its pictures may differ in size; a data set later, when fewer are left.
    """
    if source in names():
        return load(source)
    data = load(source, size=size)
    gray = data.images[:, :1]
    return replace(data, images=gray.clone()) if bool((data.images == gray).all()) else data


def _pair(data: Any, size: int | None, channels: int | None = None) -> Any:
    if isinstance(data, (str, os.PathLike)):
        known = data in names()
        data = load(data, split="test", size=None if known else size, channels=None if known else channels)
    return _flat(data, size) if isinstance(data, Labeled) else data


def _flat(data: Labeled, size: int | None) -> tuple[Tensor, Tensor]:
    return (data if size is None else data.resized(size)).tensors(flat=True)


def _name(data: Any) -> str:
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data)
    return data.name if isinstance(data, Labeled) else "tensors"
