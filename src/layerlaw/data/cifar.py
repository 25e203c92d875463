"""CIFAR-10: 50,000 training and 10,000 test images of 3×32×32, in the official binary or python layout.

The python layout is pickled, and a pickle may name any function to be called. Here only five names are known, and each
stands for an inert class written below, so that not even NumPy's own constructors run on numbers from the file.
"""

import io
import pickle
import pickletools
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerlaw.data.labeled import Labeled
from layerlaw.data.official import AGAIN, check, data_folder, download, read_bytes
from layerlaw.errors import DataError
from layerlaw.packed import BoundedGzip, whole_archive
from layerlaw.progress import Progress

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HOME = "https://www.cs.toronto.edu/~kriz/"
PLACES = ("cifar10", "cifar-10", "CIFAR10", ".")
PIXELS = 3 * 32 * 32

CifarBatch = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # images (n, 3, 32, 32), labels (n,)


def parse_binary(content: bytes, where: str) -> CifarBatch:
    """Read records of 3073 bytes: a label, then 32×32 red, green and blue values.

    >>> images, labels = parse_binary(bytes([9]) + bytes(3072), "one.bin")
    >>> images.shape, labels.tolist()
    ((1, 3, 32, 32), [9])
    """
    if not content or len(content) % (1 + PIXELS):
        raise DataError(
            f"{where}: expected a whole number of records of {1 + PIXELS} bytes, got {len(content)} bytes; {AGAIN}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return records[:, 1:].reshape(-1, 3, 32, 32), _labels(records[:, 0].tolist(), where)


def parse_python(content: bytes, where: str) -> CifarBatch:
    """Read a pickled dictionary with "data" (n, 3072) and "labels" (a list of n); nothing in the pickle is run."""
    batch = unpickle(content, where)
    if isinstance(batch, dict):
        named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
        data, labels = named.get("data"), named.get("labels")
        if isinstance(data, ArrayDouble) and isinstance(labels, list):
            pixels = data.numpy(where)
            if pixels.shape == (len(labels), PIXELS):
                return pixels.reshape(-1, 3, 32, 32), _labels(labels, where)
            raise DataError(f"{where}: expected data of shape ({len(labels)}, {PIXELS}), got {pixels.shape}; {AGAIN}")
    raise DataError(f"{where}: expected a dictionary with an array 'data' and a list 'labels', got neither; {AGAIN}")


def _labels(labels: list[object], where: str) -> NDArray[np.uint8]:
    wrong = next((label for label in labels if not (isinstance(label, int) and 0 <= label <= 9)), None)
    if wrong is not None:
        raise DataError(f"{where}: expected labels 0..9, got {wrong!r}; {AGAIN}")
    return np.array(labels, np.uint8)


@dataclass(frozen=True)
class CifarLayout:
    """One way the files are laid out, what they must be, and how to read one."""

    folder: str
    archive: str
    archive_md5: str
    parse: Callable[[bytes, str], CifarBatch]
    train: dict[str, str]  # file name → digest of its content
    test: dict[str, str]


BINARY = CifarLayout(
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    parse=parse_binary,
    train={
        "data_batch_1.bin": "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628",
    },
    test={"test_batch.bin": "sha1:67eb016db431130d61cd03c7ad570b013799c88c"},
)

PYTHON = CifarLayout(
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    parse=parse_python,
    train={
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "md5:40351d587109b95175f43aff81a1287e"},
)


def load_cifar10(split: str, progress: bool | Progress = True) -> Labeled:
    """Load one split from LAYERLAW_DATA (either layout, unpacked or as the archive), else from its home."""
    layout, place = _locate(split) or (
        BINARY,
        download(HOME + BINARY.archive, "md5:" + BINARY.archive_md5, cache="cifar10", progress=progress),
    )
    batches = []
    for file, content in _contents(layout, place, split):
        where = f"{place}: {file}"
        check(content, _files(layout, split)[file], where)  # before anything in it is read
        batches.append(layout.parse(content, where))
    return Labeled(
        images=torch.from_numpy(np.concatenate([images for images, _ in batches])),
        labels=torch.from_numpy(np.concatenate([labels for _, labels in batches])).long(),
        class_names=CLASS_NAMES,
        name="cifar10",
    )


def _files(layout: CifarLayout, split: str) -> dict[str, str]:
    return layout.train if split == "train" else layout.test


def _locate(split: str) -> tuple[CifarLayout, Path] | None:
    """Find a folder with all files of the split, or an archive, at most two folders below a place of LAYERLAW_DATA."""
    folder = data_folder()
    if folder is None:
        return None
    roots = [folder / place for place in PLACES if (folder / place).is_dir()]
    for layout in (BINARY, PYTHON):
        for root in roots:
            for candidate in (root, root / layout.folder, *sorted(root.glob(f"*/{layout.folder}"))):
                if all((candidate / file).is_file() for file in _files(layout, split)):
                    return layout, candidate
    archives = ((layout, root / layout.archive) for layout in (BINARY, PYTHON) for root in roots)
    return next(((layout, archive) for layout, archive in archives if archive.is_file()), None)


def _contents(layout: CifarLayout, place: Path, split: str) -> Iterator[tuple[str, bytes]]:
    """Yield (file name, content) in official order; an archive is read in memory, nothing is unpacked on disk."""
    files = _files(layout, split)
    if place.is_dir():
        yield from ((file, read_bytes(place / file)) for file in files)
        return
    found: dict[str, bytes] = {}
    wanted = {f"{layout.folder}/{file}": file for file in files}
    with (
        whole_archive(place, "a whole .tar.gz archive", AGAIN),
        BoundedGzip(place) as unpacked,
        tarfile.open(fileobj=unpacked) as archive,
    ):
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() and member.name in wanted else None
            if stream is not None:
                found[wanted[member.name]] = stream.read()
    missing = [file for file in files if file not in found]
    if missing:
        raise DataError(f"{place}: expected {', '.join(wanted)}, got no {', '.join(missing)}; {AGAIN}")
    yield from ((file, found[file]) for file in files)


class ArrayDouble:
    """What the file says about an array; `numpy()` makes one of unsigned bytes out of it, after checks."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def numpy(self, where: str) -> NDArray[np.uint8]:
        """Make the array of unsigned bytes."""
        match self.state:
            case (_, tuple(shape), DtypeDouble(code="u1"), bool(fortran), bytes(raw)):
                if all(isinstance(side, int) and side >= 0 for side in shape) and prod(shape) == len(raw):
                    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C").copy()
        raise DataError(f"{where}: expected an array of unsigned bytes, got a malformed one; {AGAIN}")


class DtypeDouble:
    """The number type of an array, by its code."""

    def __init__(self, code: object = "", *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: without meaning for single bytes."""


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise DataError(f"expected bytes written as latin1 text, got the encoding {encoding!r}; {AGAIN}")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): ArrayDouble,
    ("numpy._core.multiarray", "_reconstruct"): ArrayDouble,
    ("numpy", "ndarray"): ArrayDouble,
    ("numpy", "dtype"): DtypeDouble,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise DataError(
                f"the pickle names {module}.{name}, which is refused: only lists, dicts, strings, numbers and "
                "byte arrays are expected; do not use this file, fetch it again from its official home"
            ) from None


def unpickle(content: bytes, where: str) -> object:
    """Read a pickle of plain values; arrays come back as `ArrayDouble`, Python 2 strings as bytes.

    >>> unpickle(pickle.dumps({"labels": [3, 1]}), "batch")
    {'labels': [3, 1]}
    """
    try:
        for operation, argument, _ in pickletools.genops(content):
            # A memory of places is made as large as the largest number of one.
            if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
                raise DataError(f"expected at most {len(content)} remembered values, got a place {argument}; {AGAIN}")
        value: object = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except Exception as error:  # a broken pickle raises nearly anything
        raise DataError(f"{where}: expected a whole pickle, got {type(error).__name__}: {error}; {AGAIN}") from error
    return value
