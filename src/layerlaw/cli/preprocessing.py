"""Which of a model's outputs are which classes, and which options fit images to its first layer."""

from __future__ import annotations

import json
import math
import os.path
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.data.prepared import Prepared
from layerlaw.errors import DataError, InputError
from layerlaw.probing.sources import first_layer
from layerlaw.wording import counted


def misfit(network: nn.Module | None, shape: tuple[int, ...], flat: bool, words: str) -> str:
    """Which options fit images of a shape (c, h, w) to the first layer of a model that failed on them with these words."""
    if (found := first_layer(network)) is None:
        return ""
    (name, layer), (c, h, w) = found, shape
    if isinstance(layer, nn.Conv2d):
        takes = f"'{name}', the model's first convolution, takes images of {counted(layer.in_channels, 'channel')}"
        if flat:
            return f"{takes}, not vectors: leave --flat out."
        if layer.in_channels == c:
            return ""
        cure = (
            f"use --channels {layer.in_channels}" if layer.in_channels in (1, 3) else "hand over data of your own code"
        )
        return f"{takes}, these have {c}: {cure}."
    d = layer.in_features
    if f"and {d}x" not in words:  # it is not this layer that failed
        return ""
    takes = f"'{name}', the model's first linear layer, takes {d:,} numbers"
    if d == c * h * w:
        return f"{takes}, as many as an image has: use --flat."
    for channels in (c, 4 - c):
        side = math.isqrt(d // channels)
        if channels * side**2 == d:
            options = [f"--channels {channels}"] * (channels != c) + [f"--size {side}"] * ((h, w) != (side, side))
            options += ["--flat"] * (not flat and f"x{w} and {d}x" in words)  # it got the rows of images
            return f"{takes}, an image has {c}×{h}×{w} = {c * h * w:,}: use {' '.join(options)}."
    return f"{takes}, an image has {c}×{h}×{w} = {c * h * w:,}."


def class_map(
    text: str | None, names: tuple[str, ...] | None, network: nn.Module, known_as: Sequence[str] | None = None
) -> tuple[dict[int, int], str]:
    """By the number of a folder's class the number of the model's output, and who said so; empty where nobody does.

    `text` is "cat=3,dog=5" or a JSON file of such pairs; without it, the `id2label` of the model, or what its outputs are
    `known_as`, where it knows all names.
    """
    if text is None:
        labels = getattr(getattr(network, "config", None), "id2label", None)
        labels = dict(enumerate(known_as)) if known_as is not None else labels
        if not isinstance(labels, dict) or names is None:
            return {}, ""
        known = {
            word: int(k) for k, label in labels.items() for word in (_plain(label), *map(_plain, str(label).split(",")))
        }
        found = {i: known[_plain(name)] for i, name in enumerate(names) if _plain(name) in known}
        by = "id2label of the model" if known_as is None else "class names of the model's weights"
        return (found, by) if len(found) == len(names) else ({}, "")
    if names is None:
        raise InputError(
            "--class-map: expected with --data, whose folders it names; here the data come from your own code."
        )
    if Path(text).suffix == ".json" or os.path.isfile(text):
        try:
            pairs: Any = json.loads(Path(text).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f'{text}: expected a JSON file such as {{"cat": 3}} ({type(error).__name__}).') from None
    else:
        pairs = dict(part.partition("=")[::2] for part in re.split(r"[,;]+", text) if part.strip())
    such_as = "--class-map: expected names of classes with numbers of the model's outputs such as cat=3,dog=5"
    if not isinstance(pairs, dict) or not pairs:
        raise InputError(f"{such_as}, got {text!r}.")
    if all(str(key).isdecimal() and not str(value).isdecimal() for key, value in pairs.items()):
        pairs = {value: key for key, value in pairs.items()}  # {"3": "cat"}
    chosen = {}
    for name, value in pairs.items():
        number = str(value).strip()
        if not number.isdecimal():
            raise InputError(f"{such_as}, got {name}={value}.")
        if str(name).strip() not in names:
            raise InputError(f"--class-map: expected names among {', '.join(names[:20])}, got {str(name).strip()!r}.")
        chosen[names.index(str(name).strip())] = int(number)
    if len(chosen) < 2 or len(set(chosen.values())) < len(chosen):
        raise InputError(f"{such_as}, at least two and each with a number of its own, got {text!r}.")
    return chosen, "--class-map"


def _plain(name: Any) -> str:
    return re.sub(r"[\s_-]+", " ", str(name)).strip().lower()


def relabeled(pair: tuple[Tensor, Tensor] | Prepared, numbers: dict[int, int]) -> tuple[Tensor, Tensor] | Prepared:
    """The samples of the classes that are named, with the model's numbers for them."""
    if isinstance(pair, Prepared):
        return pair.relabeled(numbers)
    x, y = pair
    table = torch.full((int(y.max()) + 1,), -1)
    for old, new in numbers.items():
        if old < len(table):
            table[old] = new
    found = table[y]
    return x[found >= 0], found[found >= 0]
