"""The embedded sample: the first 500 training and 200 test images of each Fashion-MNIST class, in file order.

Made by `scripts/embed_sample.py`; license beside the file (MIT, Zalando SE).
"""

import hashlib
import io
from importlib.resources import files

import numpy as np
import torch

from layerlaw.data.labeled import Labeled
from layerlaw.data.mnist import FASHION_MNIST
from layerlaw.errors import DataError

FILE = "fashion_mnist_sample.npz"
SHA256 = "5b7307679860148565a23d736f51f026cab51441481a227b69c7b308bb0174be"
PER_CLASS = {"train": 500, "test": 200}


def load_sample(split: str) -> Labeled:
    """Load one split of the sample, 5000 or 2000 images of 1×28×28.

    >>> len(load_sample("test"))
    2000
    """
    content = files("layerlaw.data").joinpath("sample", FILE).read_bytes()
    got = hashlib.sha256(content).hexdigest()
    if got != SHA256:
        raise DataError(f"{FILE}: expected sha256 {SHA256}, got {got}; the installation is damaged, install it again")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    return Labeled(
        images=torch.from_numpy(images)[:, None],  # (n, h, w) → (n, 1, h, w)
        labels=torch.from_numpy(labels).long(),
        class_names=FASHION_MNIST.class_names,
        name="fashion_mnist_sample",
    )
