"""What a model says of its inputs: how images are prepared for it, and which of its outputs are which classes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.data.labeled import Normalize
from layerlaw.errors import DataError, InputError
from layerlaw.wording import counted


@dataclass(frozen=True)
class Preprocessing:
    """What a model says of how its images are to be prepared, and where it says so."""

    normalize: Normalize | None = None
    size: tuple[int, int] | None = None
    source: str = ""


MOMENT_NAMES = (("mean", "std"), ("pixel_mean", "pixel_std"), ("image_mean", "image_std"), ("norm_mean", "norm_std"))


def preprocessing_of(network: nn.Module | None) -> Preprocessing:
    """Mean, deviation and size as timm keeps them with the model, or transformers beside its weights; a model that holds a
    mean and a deviation itself, in a module that does nothing else, needs no other."""
    if network is None:
        return Preprocessing()
    for name, module in network.named_modules():
        pair = next((p for p in MOMENT_NAMES if all(_few_numbers(getattr(module, part, None)) for part in p)), None)
        if pair is not None and not any(True for _ in module.parameters(recurse=False)):
            return Preprocessing("none", source=f"'{'.'.join(filter(None, (name, pair[0])))}'")
    kept = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None)  # of timm
    folder = getattr(getattr(network, "config", None), "_name_or_path", None)
    beside = Path(folder) / "preprocessor_config.json" if isinstance(folder, str) and folder else None
    if kept is not None:
        read = kept if isinstance(kept, dict) else vars(kept)
        found = {"mean": read.get("mean"), "std": read.get("std"), "size": (read.get("input_size") or ())[-2:]}
        return _stated(found, "pretrained_cfg")
    if beside is not None and beside.is_file():
        try:
            read = json.loads(beside.read_text(encoding="utf-8"))
            size = read.get("crop_size") or read.get("size") or {}
        except (OSError, ValueError, AttributeError):
            return Preprocessing()
        sides = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
        return _stated({"mean": read.get("image_mean"), "std": read.get("image_std"), "size": sides}, beside.name)
    return Preprocessing()


def first_layer(network: nn.Module | None) -> tuple[str, nn.Conv2d | nn.Linear] | None:
    """The convolution or linear layer that a network defines first, which most often is the one that reads the images."""
    modules = () if network is None else network.named_modules()
    return next(((name, m) for name, m in modules if isinstance(m, (nn.Conv2d, nn.Linear))), None)


def channels_read(network: nn.Module | None, pixels: int) -> tuple[int, str] | None:
    """1 or 3, where the first layer of a network takes so many channels of so many `pixels`, and what says so."""
    if (found := first_layer(network)) is None:
        return None
    name, layer = found
    takes = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.in_features / pixels
    return (int(takes), f"'{name}' of the model") if takes in (1, 3) else None


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


def _stated(found: dict[str, Any], source: str) -> Preprocessing:
    mean, std, size = found["mean"], found["std"], tuple(found["size"])
    sides = size if len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size) else None
    if not (_few_numbers(mean) and _few_numbers(std)):
        return Preprocessing(None, sides, source)
    return Preprocessing((tuple(map(float, mean)), tuple(map(float, std))), sides, source)


def _few_numbers(value: Any) -> bool:
    """One number per channel."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.numel() in (1, 3)
    return isinstance(value, (tuple, list)) and len(value) in (1, 3) and all(isinstance(v, (int, float)) for v in value)


def class_map(text: str | None, names: tuple[str, ...] | None, network: nn.Module) -> tuple[dict[int, int], str]:
    """By the number of a folder's class the number of the model's output, and who said so; empty where nobody does.

    `text` is "cat=3,dog=5" or a JSON file of such pairs; without it, the `id2label` of the model where it knows all names.
    """
    if text is None:
        labels = getattr(getattr(network, "config", None), "id2label", None)
        if not isinstance(labels, dict) or names is None:
            return {}, ""
        known = {
            word: int(k) for k, label in labels.items() for word in (_plain(label), *map(_plain, str(label).split(",")))
        }
        found = {i: known[_plain(name)] for i, name in enumerate(names) if _plain(name) in known}
        return (found, "id2label of the model") if len(found) == len(names) else ({}, "")
    if names is None:
        raise InputError(
            "--class-map: expected with --data, whose folders it names; here the data come from your own code."
        )
    if Path(text).suffix == ".json" or Path(text).is_file():
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


def relabeled(pair: tuple[Tensor, Tensor], numbers: dict[int, int]) -> tuple[Tensor, Tensor]:
    """The samples of the classes that are named, with the model's numbers for them."""
    x, y = pair
    table = torch.full((int(y.max()) + 1,), -1)
    for old, new in numbers.items():
        if old < len(table):
            table[old] = new
    found = table[y]
    return x[found >= 0], found[found >= 0]
