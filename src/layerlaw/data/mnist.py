"""Fashion-MNIST and MNIST: four official idx files each, 60,000 training and 10,000 test images of 28×28."""

from dataclasses import dataclass
from pathlib import Path

import torch

from layerlaw.data.idx import read_idx
from layerlaw.data.labeled import Labeled
from layerlaw.data.official import download, find
from layerlaw.errors import DataError
from layerlaw.progress import Progress

PREFIX = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class IdxSet:
    """Where the four files of a data set live and what they must be."""

    name: str
    home: str
    places: tuple[str, ...]  # folders under LAYERLAW_DATA
    class_names: tuple[str, ...]
    packed: dict[str, str]  # file name → md5 of the .gz file at the home
    content: dict[str, str]  # file name → md5 of the uncompressed content


FASHION_MNIST = IdxSet(
    name="fashion_mnist",
    home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    places=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    packed={
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    content={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)

MNIST = IdxSet(
    name="mnist",
    home="https://ossci-datasets.s3.amazonaws.com/mnist/",
    places=("mnist", "MNIST/raw"),
    class_names=tuple("0123456789"),
    packed={
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    content={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
)


def load_idx_set(which: IdxSet, split: str, progress: bool | Progress = True) -> Labeled:
    """Load one split: each file from LAYERLAW_DATA if it lies there, else from its home."""
    images_path = _locate(which, f"{PREFIX[split]}-images-idx3-ubyte", progress)
    labels_path = _locate(which, f"{PREFIX[split]}-labels-idx1-ubyte", progress)
    return read_pair(which, images_path, labels_path)


def read_pair(which: IdxSet, images_path: Path, labels_path: Path) -> Labeled:
    """Read and check an images file (n, h, w) and a labels file (n,), gzipped or plain."""
    images = read_idx(images_path, ndim=3, digest="md5:" + which.content[images_path.name.removesuffix(".gz")])
    labels = read_idx(labels_path, ndim=1, digest="md5:" + which.content[labels_path.name.removesuffix(".gz")])
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: expected {len(images)} labels, one for each image of {images_path.name}, "
            f"got {len(labels)}; take both files of one split"
        )
    return Labeled(
        images=torch.from_numpy(images)[:, None],  # (n, h, w) → (n, 1, h, w)
        labels=torch.from_numpy(labels).long(),
        class_names=which.class_names,
        name=which.name,
    )


def _locate(which: IdxSet, file: str, progress: bool | Progress) -> Path:
    found = find(which.places, (file + ".gz", file))
    if found is not None:
        return found
    return download(f"{which.home}{file}.gz", "md5:" + which.packed[file], cache=which.name, progress=progress)
