"""Labeled images: an embedded Fashion-MNIST sample, the official data sets, and folders of pictures; and texts.

Pillow and pooch (extra "data") and datasets (extra "datasets") are imported when first needed, not before.
"""

import difflib
import os
from collections.abc import Callable
from typing import Literal, TypeAlias

from layerlaw.data.cifar import load_cifar10
from layerlaw.data.folder import load_folder
from layerlaw.data.labeled import Labeled
from layerlaw.data.mnist import FASHION_MNIST, MNIST, load_idx_set, load_sample
from layerlaw.data.sharding import UnpaddedSampler
from layerlaw.data.texts import Text, load_text, text_names
from layerlaw.errors import DataError, shown
from layerlaw.files import as_path
from layerlaw.progress import Progress

__all__ = ["DEFAULT", "Labeled", "Text", "UnpaddedSampler", "load", "load_text", "names", "text_names"]

DEFAULT = "fashion_mnist_sample"
Split: TypeAlias = Literal["train", "test"]

_LOADERS: dict[str, Callable[[str, bool | Progress], Labeled]] = {
    DEFAULT: lambda split, progress: load_sample(split),
    "fashion_mnist": lambda split, progress: load_idx_set(FASHION_MNIST, split, progress),
    "mnist": lambda split, progress: load_idx_set(MNIST, split, progress),
    "cifar10": load_cifar10,
}


def names() -> tuple[str, ...]:
    """List the data sets that `load` knows by name.

    >>> names()
    ('fashion_mnist_sample', 'fashion_mnist', 'mnist', 'cifar10')
    """
    return tuple(_LOADERS)


def load(
    source: str | os.PathLike[str] = DEFAULT,
    *,
    split: Split = "train",
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    progress: bool | Progress = True,
) -> Labeled:
    """Load labeled images by name, or from the path of a folder of class folders.

    `fashion_mnist_sample` is embedded: 500 training and 200 test images per class. The official data sets are looked
    for in the folder that the environment variable LAYERLAW_DATA names, then downloaded once into the user's cache;
    content is checked in both cases. `size` resizes (a number or (height, width)); `channels` is 1 (gray) or 3 (color);
    default: as the data set has them, and 3 for a folder.

    >>> load("fashion_mnist_sample", split="test")
    Labeled('fashion_mnist_sample', 2000 images of 1×28×28, 10 classes)
    """
    if not isinstance(split, str) or split not in ("train", "test"):
        raise DataError(f"expected split 'train' or 'test', got {shown(split)}")
    if not (isinstance(source, str) and source in _LOADERS):
        path = as_path(source, "pictures")
        if isinstance(source, str) and not path.exists() and "/" not in source and os.sep not in source:
            near = difflib.get_close_matches(source.lower().replace("-", "_").replace(" ", "_"), names(), cutoff=0.5)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            known = ", ".join(names())
            raise DataError(f"expected one of {known}, or the path of a folder of class folders, got {source!r}{hint}")
        return load_folder(path, split=split, size=size, channels=channels, progress=progress)
    data = _LOADERS[source](split, progress)
    if channels is not None:
        data = data.with_channels(channels)
    return data if size is None else data.resized(size)
