"""Fashion-MNIST and MNIST: four official idx files each, 60,000 training and 10,000 test images of 28×28.

The idx format: two zero bytes, a type byte, the number of dimensions, the dimensions, the numbers. The embedded sample is
the first 500 training and 200 test images of each Fashion-MNIST class, in file order, made by `scripts/embed_sample.py`;
license beside the file (MIT, Zalando SE).
"""

import io
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from layerlaw.data.labeled import Labeled
from layerlaw.data.official import AGAIN, check, download, find, read_bytes
from layerlaw.errors import DataError
from layerlaw.files import sha256
from layerlaw.packed import BoundedGzip, whole_archive
from layerlaw.progress import Progress

PREFIX = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 8
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
SAMPLE_FILE = "fashion_mnist_sample.npz"
SAMPLE_SHA256 = "a8fdfcd50a6977a1255cb3746343b493e3d69321723411003e86cdff0a37c16c"
SAMPLE_PER_CLASS = {"train": 500, "test": 200}


@dataclass(frozen=True)
class IdxSet:
    """Where the four files of a data set live and what they must be."""

    name: str
    home: str
    places: tuple[str, ...]  # folders under LAYERLAW_DATA
    class_names: tuple[str, ...]
    digests: dict[str, tuple[str, str]]  # file name → md5 of the .gz file at the home, md5 of the uncompressed content


FASHION_MNIST = IdxSet(
    name="fashion_mnist",
    home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    places=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
    class_names=FASHION,
    digests={
        "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    },
)

MNIST = IdxSet(
    name="mnist",
    home="https://ossci-datasets.s3.amazonaws.com/mnist/",
    places=("mnist", "MNIST/raw"),
    class_names=tuple("0123456789"),
    digests={
        "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    },
)


def load_idx_set(which: IdxSet, split: str, progress: bool | Progress = True) -> Labeled:
    """Load one split: each file from LAYERLAW_DATA if it lies there, else from its home."""
    paths = []
    for file in (f"{PREFIX[split]}-images-idx3-ubyte", f"{PREFIX[split]}-labels-idx1-ubyte"):
        url, digest = f"{which.home}{file}.gz", "md5:" + which.digests[file][0]
        found = find(which.places, (file + ".gz", file))
        paths.append(found or download(url, digest, cache=which.name, progress=progress))
    return read_pair(which, *paths)


def read_pair(which: IdxSet, images_path: Path, labels_path: Path) -> Labeled:
    """Read and check an images file (n, h, w) and a labels file (n,), gzipped or plain."""
    images, labels = (
        read_idx(path, ndim=ndim, digest="md5:" + which.digests[path.name.removesuffix(".gz")][1])
        for path, ndim in ((images_path, 3), (labels_path, 1))
    )
    if len(images) != len(labels):
        expected = f"{len(images)} labels, one for each image of {images_path.name}"
        raise DataError(f"{labels_path}: expected {expected}, got {len(labels)}; take both files of one split")
    return _labeled(images, labels, which, which.name)


def load_sample(split: str) -> Labeled:
    """Load one split of the sample, 5000 or 2000 images of 1×28×28.

    >>> len(load_sample("test"))
    2000
    """
    content = files("layerlaw.data").joinpath("sample", SAMPLE_FILE).read_bytes()
    if (got := sha256([content])) != SAMPLE_SHA256:
        damaged = "the installation is damaged, install it again"
        raise DataError(f"{SAMPLE_FILE}: expected sha256 {SAMPLE_SHA256}, got {got}; {damaged}")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    return _labeled(images, labels, FASHION_MNIST, "fashion_mnist_sample")


def _labeled(images: NDArray[np.uint8], labels: NDArray[np.uint8], which: IdxSet, name: str) -> Labeled:
    pixels = torch.from_numpy(images)[:, None]  # (n, h, w) → (n, 1, h, w)
    return Labeled(pixels, torch.from_numpy(labels).long(), which.class_names, name)


def read_idx(path: Path, *, ndim: int, digest: str | None = None) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or plain; `digest` ("md5:…") is that of the uncompressed content."""
    content = read_bytes(path)
    if content.startswith(b"\x1f\x8b"):
        with whole_archive(path, "a whole gzip file", AGAIN), BoundedGzip(path) as file:
            content = file.read()
    array = parse_idx(content, ndim=ndim, where=str(path))
    if digest is not None:
        check(content, digest, str(path))
    return array


def parse_idx(content: bytes, *, ndim: int, where: str) -> NDArray[np.uint8]:
    """Turn the content of an idx file into an array; magic number and length must agree.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), ndim=1, where="labels")
    array([7, 8, 9], dtype=uint8)
    """
    magic, expected = content[:4], bytes([0, 0, UNSIGNED_BYTE, ndim])
    if magic != expected:
        idx, got = "an idx file of unsigned bytes", magic.hex() or "an empty file"
        raise DataError(f"{where}: expected {idx} with {ndim} dimension(s), magic {expected.hex()}, got {got}; {AGAIN}")
    start = 4 + 4 * ndim
    if len(content) < start:
        raise DataError(f"{where}: expected a header of {start} bytes, got {len(content)} bytes in all; {AGAIN}")
    shape = tuple(int(side) for side in np.frombuffer(content, ">u4", count=ndim, offset=4))
    if (rest := len(content) - start) != prod(shape):
        due = f"{prod(shape)} bytes after the header, for the shape {shape} it names"
        raise DataError(f"{where}: expected {due}, got {rest}; {AGAIN}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()  # a copy, because bytes are read-only
