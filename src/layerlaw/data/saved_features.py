"""Features that were saved to files: a folder of .npy or safetensors files, one array per layer, beside their labels."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerlaw.errors import DataError
from layerlaw.files import as_path
from layerlaw.packed import read_safetensors
from layerlaw.wording import shortened

LABELS, LOGITS, CLASSIFIER = "labels", "logits", "classifier"
OTHERS = (LABELS, LOGITS, CLASSIFIER)  # arrays that are no layer
NAMES = "classes.txt"
SUFFIXES = (".npy", ".safetensors")
LONGEST = 1_000_000  # bytes of class names


@dataclass(frozen=True)
class SavedFeatures:
    """What a folder holds: features by layer, in the order of their names (layer2 before layer10), labels, and the rest."""

    features: dict[str, Any]
    labels: Any
    logits: Any = None
    classifier: Any = None
    class_names: tuple[str, ...] | None = None
    test: SavedFeatures | None = None
    name: str = ""


def load_features(folder: str | os.PathLike[str], *, labels: bool = True) -> SavedFeatures:
    """Read a folder of arrays, each with a row per sample: `layer1.npy`, …, `labels.npy`.

    Or tensors in .safetensors files, under the same names. Beside them there may be `logits`, `classifier` (the weight of
    the last layer), `classes.txt` (a name of a class per line) and a folder `test` with the same for test data. A .npy file
    stays on the disk until its rows are needed; pickled objects are refused. Without `labels` they may be missing.
    """
    path = as_path(folder, "features/")
    expected = f"{path}: expected a folder of features, layer1.npy, … (or .safetensors) and labels.npy"
    if not path.is_dir():
        raise DataError(f"{expected}, found {'a file' if path.exists() else 'nothing there'}.")
    found: dict[str, Any] = {}
    for file in sorted(path.iterdir()):
        arrays = _arrays(file) if file.suffix in SUFFIXES and file.is_file() else {}
        if twice := sorted(found.keys() & arrays.keys()):
            raise DataError(f"{file}: expected each name once in {path}, got '{twice[0]}' again.")
        found |= arrays
    layers = {name: found[name] for name in sorted(found, key=_in_order) if name not in OTHERS}
    if not layers or (labels and LABELS not in found):
        lacks = "no features" if not layers else "no labels"
        raise DataError(f"{expected}, got {lacks}: there are {', '.join(sorted(found)[:10]) or 'no such files'}.")
    test = load_features(path / "test") if (path / "test").is_dir() else None
    others = {name: found.get(name) for name in (LABELS, LOGITS, CLASSIFIER)}
    return SavedFeatures(layers, **others, class_names=_class_names(path / NAMES), test=test, name=path.resolve().name)


def _in_order(name: str) -> list[tuple[int, int, str]]:
    """Names as people count: layer2 before layer10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _arrays(path: Path) -> dict[str, Any]:
    if path.suffix == ".npy":
        return {path.stem: _npy(path)}
    return dict(read_safetensors(path))


def _npy(path: Path) -> NDArray[Any]:
    """An array that is read from the disk where it is needed; it may be written to in memory, never in the file."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # a header may hold anything
        why = f"{type(error).__name__}: {shortened(str(error), 120)}"
        raise DataError(f"{path}: expected an array as numpy.save writes it, of numbers ({why}).") from None
    if found.dtype.kind not in "biufc":
        raise DataError(f"{path}: expected an array of numbers, got one of {found.dtype}.")
    return found


def _class_names(path: Path) -> tuple[str, ...] | None:
    if not path.is_file():
        return None
    try:
        if (size := path.stat().st_size) > LONGEST:
            raise DataError(f"{path}: expected a name of a class per line, at most {LONGEST:,} bytes, got {size:,}.")
        return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a text file, a name of a class per line ({type(error).__name__}).") from None
