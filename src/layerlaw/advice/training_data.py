"""Data in any form → flat training samples with a validation part, and test data that nothing is chosen by."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from layerlaw.data import Labeled, load, names
from layerlaw.errors import InputError
from layerlaw.lab import Samples

SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What candidates are compared on: `samples` hold the training part, and the validation part as held-out samples."""

    samples: Samples
    test: tuple[Tensor, Tensor] | None
    name: str
    checksum: str  # of everything that was given, test data included
    share: float  # of every class, held back for validation
    counts: tuple[int, ...]  # how many samples every class has, validation part included

    @classmethod
    def of(cls, data: Any, test: Any = None, *, validation: float = 0.2) -> TrainingData:
        """From a pair of tensors or arrays, `Samples`, `Labeled`, the name of a data set or the path of a folder.

        A share `validation` of every class is held back (the same one every time); test samples that `Samples` bring
        along are kept as test data. `TrainingData` are taken as they are.
        """
        if isinstance(data, TrainingData):
            if test is not None:
                raise InputError("test: expected in TrainingData.of(data, test), which was given, got other test data.")
            return data
        if isinstance(validation, bool) or not isinstance(validation, (int, float)) or not 0 < validation < 1:
            raise InputError(f"validation: expected a share between 0 and 1, such as 0.2, got {validation!r}.")
        whole = flat_samples(data, test)
        x, y = whole.test_inputs, whole.test_labels
        held_out = None if x is None or y is None else (x, y)
        parts = whole.held_back(validation, seed=SPLIT_SEED)
        name = data.name if isinstance(data, Labeled) else "tensors"
        if isinstance(data, (str, os.PathLike)):
            name = os.fspath(data)
        return cls(parts, held_out, name, whole.checksum, validation, whole.counts)

    @property
    def validation(self) -> int:
        """How many samples the validation part has."""
        return sum(self.counts) - len(self.samples.labels)


def flat_samples(data: Any, test: Any = None) -> Samples:
    """Samples, one vector each, from any form of data."""
    if isinstance(data, (str, os.PathLike)):
        data = pictures(data)
    if isinstance(data, Labeled):
        held_out = _pair(test, channels=data.images.shape[1])
        return Samples.of(data.tensors(flat=True), held_out, class_names=data.class_names)
    if isinstance(data, Samples):
        if test is None:
            return data.flat()
        return Samples.of((data.inputs, data.labels), _pair(test), class_names=data.class_names).flat()
    return Samples.of(data, _pair(test)).flat()


def pictures(source: str | os.PathLike[str], size: int | None = None) -> Labeled:
    """The training images of a data set or a folder; a folder in which all are gray has one channel.

    A folder is resized to `size` pixels at once, as its pictures may differ; a data set is left as it is.
    """
    if source in names():
        return load(source)
    data = load(source, size=size)
    gray = data.images[:, :1]
    return replace(data, images=gray.clone()) if bool((data.images == gray).all()) else data


def _pair(data: Any, channels: int | None = None) -> Any:
    if isinstance(data, (str, os.PathLike)):
        data = load(data, split="test", channels=None if data in names() else channels)
    return data.tensors(flat=True) if isinstance(data, Labeled) else data
