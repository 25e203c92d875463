"""The samples of the papers' feed-forward experiments.

10×10 pixels by Pillow's bilinear resize, the first so many images of every class in file order. In a quick run the
embedded Fashion-MNIST sample stands in for every data set, so that it needs no download.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerlaw.data import DEFAULT, Labeled, load
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Samples

TITLES = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST", "cifar10": "CIFAR-10"}
EMBEDDED = 500  # training images per class that the embedded sample has
PREPARED = "LAYERLAW_PREPARED"
"""Environment variable: a folder in which prepared samples are kept, for machines without the official files."""


def samples(
    setting: Setting, name: str, counts: int | Sequence[int] = 100, *, size: int = 10, tests: int = 200
) -> Samples:
    """`counts` training images of every class (or one count per class) and `tests` test images of every class, or all.

    CIFAR-10 at 10×10 keeps channel 1, as the authors did; larger images keep all channels and are normalized by the data
    set's mean and deviation.
    """
    each = (counts,) * 10 if isinstance(counts, int) else tuple(counts)
    return _samples(DEFAULT if setting.quick else name, each, size, min(tests, 200) if setting.quick else tests)


def stand_in(setting: Setting, *names: str) -> list[str]:
    """A note when a quick run does not use the data it should."""
    absent = [TITLES[name] for name in names if name != "fashion_mnist"]
    return [f"Quick run: Fashion-MNIST stands in for {' and '.join(absent)}."] if setting.quick and absent else []


@cache
def _samples(name: str, counts: tuple[int, ...], size: int, tests: int) -> Samples:
    if name == "fashion_mnist" and max(counts) <= EMBEDDED and tests <= 200:
        name = DEFAULT  # the same images
    folder = os.environ.get(PREPARED)
    if not folder:
        return _prepared(name, counts, size, tests)
    digits = "-".join(str(c) for c in counts) if len(set(counts)) > 1 else str(counts[0])
    file = Path(folder) / f"{name}_{digits}_{size}_{tests}.npz"
    if file.exists():
        with np.load(file) as arrays:
            kept = {key: torch.from_numpy(arrays[key]) for key in ("x", "y", "test_x", "test_y")}
            names = tuple(str(name) for name in arrays["names"])
        return Samples(kept["x"], kept["y"], kept["test_x"], kept["test_y"], len(counts), names)
    made = _prepared(name, counts, size, tests)
    assert made.test_inputs is not None
    assert made.test_labels is not None
    parts = {"x": made.inputs, "y": made.labels, "test_x": made.test_inputs, "test_y": made.test_labels}
    file.parent.mkdir(parents=True, exist_ok=True)
    plain: dict[str, Any] = {key: part.numpy() for key, part in parts.items()}
    np.savez_compressed(file, names=np.array(made.class_names), **plain)
    return made


def _prepared(name: str, counts: tuple[int, ...], size: int, tests: int) -> Samples:
    train = load(name, split="train").imbalanced(counts).resized(size)
    held_out = load(name, split="test")
    test = held_out.imbalanced([min(tests, count) for count in held_out.counts()]).resized(size)
    return Samples.of(_flat(train, size), _flat(test, size), class_names=train.class_names)


def _flat(images: Labeled, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if size > 10:
        return images.tensors("dataset" if images.name == "cifar10" else (0.2860, 0.3530), flat=True)
    if images.name == "cifar10":
        return images.tensors("dataset", flat=True, channel=1)
    return images.tensors("half", flat=True)
