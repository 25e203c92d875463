"""Files that hold more than meets the eye: gzip, npz, torch, safetensors, GGUF. Checked before memory is taken.

A header may claim any size, and a gzip of a megabyte unpack to gigabytes: what is claimed is compared with the size of the
file first. A file that ends early is said to be cut short. What layerlaw writes has a checksum inside, which is compared.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerlaw.errors import DataError, needed, shown, without_colors
from layerlaw.files import as_path, replace_whole, write_whole
from layerlaw.plain import foreign_call, json_words

MOST_RATIO, MOST_SMALL = 24, 16 * 2**20  # what a file may unpack to: 24 times its size, and 16 MiB more
LONGEST_HEADER = 100_000_000  # bytes of the header of a safetensors file, as its makers decided
DOWNLOAD = ": download it again, or save it again"  # a cure for what came from elsewhere, not for what was written here
AGAIN = "cut short: download it again, or save it again"
CHECKSUM = "sha256"
LEGACY_PICKLES = 5  # in a row, in front of the numbers: magic number, protocol, system, content, names of storages


def unpacked_limit(size: int) -> int:
    """How many bytes a file of this size may unpack to."""
    return MOST_RATIO * size + MOST_SMALL


def too_large(path: object, size: int) -> DataError:
    """That a file unpacks to more than it may."""
    most = f"at most {unpacked_limit(size):,} bytes ({MOST_RATIO} times the file and {MOST_SMALL:,})"
    return DataError(f"{path}: expected it to unpack to {most}, got more. If that is right, unpack it yourself.")


class BoundedGzip(gzip.GzipFile):
    """A gzip file that raises a `DataError` instead of giving more than its size allows; for reading."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._path, self._size = path, path.stat().st_size
        self._left = unpacked_limit(self._size)

    def read(self, size: int | None = -1) -> bytes:
        """As of any file."""
        left = unpacked_limit(self._size) - self.tell()
        content = super().read(left + 1 if size is None or size < 0 else min(size, left + 1))
        return self._bounded(content, left)

    def readline(self, size: int | None = -1) -> bytes:
        """As of any file."""
        left = self._left  # counted here: lines are many and short
        content = super().readline(left + 1 if size is None or size < 0 else min(size, left + 1))
        self._left -= len(content)
        return self._bounded(content, left)

    def _bounded(self, content: bytes, left: int) -> bytes:
        if len(content) > left:
            raise too_large(self._path, self._size)
        return content


@contextmanager
def whole_archive(path: Path, what: str, again: str) -> Iterator[None]:
    """What goes wrong with an archive that is read in here, said of it."""
    try:
        yield
    except DataError:
        raise
    except (EOFError, OSError, ValueError, OverflowError, zlib.error, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: expected {what}, got one that is damaged or cut short ({reason}); {again}") from error


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file, whose headers must agree with what is there; no pickled object is ever read."""
    try:
        return _read_npz(path)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: expected arrays (.npz), found nothing there.") from None
    except Exception as error:  # numpy and zipfile raise a different one for every way in which a file can be wrong
        got = f"another or a damaged file ({type(error).__name__}: {str(error)[:200]})"
        raise DataError(f"{path}: expected arrays (.npz), got {got}.") from None


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    size, found = path.stat().st_size, {}
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > unpacked_limit(size):
            raise too_large(path, size)
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if name in found:
                raise DataError(f"{path}: expected every array once, got '{name}' twice.")
            content = archive.read(entry)  # compares its checksum
            file = io.BytesIO(content)
            version = np.lib.format.read_magic(file)
            header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in header:
                raise DataError(f"{path}: expected arrays of numbers, got '{name}' in the format {version}.")
            shape, fortran, dtype = header[version](file)
            if dtype.hasobject:
                raise DataError(f"{path}: expected arrays of numbers, got objects in '{name}', which are not read.")
            if any(side < 0 for side in shape):
                raise DataError(f"{path}: expected sides of at least 0 for '{name}', got the shape {shape}.")
            if (rest := len(content) - file.tell()) != prod(shape) * dtype.itemsize:
                due = f"{prod(shape) * dtype.itemsize:,} bytes for '{name}' of the shape {shape}"
                raise DataError(f"{path}: expected {due}, got {rest:,}.")
            flat = np.frombuffer(content, dtype, offset=file.tell()).copy()
            found[name] = flat.reshape(shape, order="F" if fortran else "C")
    return found


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Arrays as a compressed .npz file, with a checksum of all of them inside."""
    sealed = {**arrays, CHECKSUM: np.array(digest_of(dict(arrays)))}
    return replace_whole(path, lambda part: _savez(part, sealed), wanted=sum(array.nbytes for array in arrays.values()))


def _savez(part: Path, arrays: Mapping[str, Any]) -> None:
    with open(part, "wb") as file:  # numpy would put .npz behind the name
        np.savez_compressed(file, **arrays)


def read_sealed_npz(path: Path) -> dict[str, NDArray[Any]]:
    """What `write_npz` wrote, if it is still that; older files have no checksum."""
    arrays = read_npz(path)
    checksum = arrays.pop(CHECKSUM, None)
    if checksum is not None and str(checksum) != digest_of(arrays):
        raise DataError(f"{path}: expected the arrays that were written, got others: their checksum differs.")
    return arrays


def digest_of(value: Any, most: int | None = None) -> str:
    """A sha256 of plain data: dictionaries, lists, numbers, words, tensors and arrays; `most`: so many of them.

    >>> digest_of({"a": [1, torch.ones(2)]}) == digest_of({"a": [1, torch.ones(2)]}) != digest_of({"a": [1, torch.zeros(2)]})
    True
    """
    digest, waiting, seen = hashlib.sha256(), [value], 0
    while waiting:
        seen += 1
        one = waiting.pop()
        if most is not None and seen > most:  # lists that hold one another many times over
            raise DataError(f"expected at most {most:,} values in a file of this size, got more.")
        if isinstance(one, np.ndarray):
            digest.update(f"array {one.dtype.str} {one.shape}".encode())
            digest.update(np.ascontiguousarray(one).view(np.uint8).data if one.size else b"")
        elif isinstance(one, Tensor):
            if one.numel() * one.element_size() > one.untyped_storage().nbytes():  # numbers that stand for many
                raise DataError(f"expected tensors with all their numbers, got one of the shape {tuple(one.shape)}.")
            digest.update(f"tensor {one.dtype} {tuple(one.shape)}".encode())
            digest.update(one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(one, dict):
            digest.update(f"dict {len(one)}".encode())
            waiting += [part for pair in one.items() for part in pair]
        elif isinstance(one, list | tuple):
            digest.update(f"list {len(one)}".encode())
            waiting += one
        else:
            digest.update(f"{type(one).__name__} {one!r}".encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()


def write_torch(path: str | os.PathLike[str], content: dict[str, Any]) -> Path:
    """Plain data and tensors as a torch file with a checksum inside, whole or not at all."""
    file = io.BytesIO()  # torch itself says nothing of use where a disk is full
    torch.save({**content, CHECKSUM: digest_of(content)}, file)
    return write_whole(path, file.getbuffer())


def read_torch(path: str | os.PathLike[str], *, what: str, sealed: bool = False) -> Any:
    """Tensors and plain data of a torch file; no pickled code is ever run.

    `what` is expected there; with `sealed` it is of `write_torch`, and a checksum inside must be that of the rest.
    """
    path = as_path(path)
    expected = f"{path}: expected {what}"
    try:
        size = path.stat().st_size
        check_torch(path, what, again="" if sealed else DOWNLOAD)
        found = torch.load(path, map_location="cpu", weights_only=True)
        checksum = found.pop(CHECKSUM, None) if sealed and isinstance(found, dict) else None
        if checksum is not None and checksum != digest_of(found, most=size):
            raise DataError(f"{expected}, got other content than was written: its checksum differs.")
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{expected}, found nothing there.") from None
    except (IsADirectoryError, PermissionError) as error:
        raise DataError(f"{expected} that can be read ({error.strerror}).") from None
    except Exception as error:  # torch raises a different one for every way in which a file can be wrong
        said = next(iter(without_colors(str(error)).splitlines()), "")[:200]
        cannot = "it is damaged or holds other objects, which are not loaded for safety"
        raise DataError(f"{expected}; {cannot} ({type(error).__name__}: {said}).") from None
    return found


def check_torch(path: Path, what: str = "a file of torch", *, content: bool = True, again: str = DOWNLOAD) -> None:
    """Whether a torch file is whole and no larger inside than outside; with `content` its checksums are compared.

    `again` ends the errors of a damaged one.
    """
    if path.is_dir():
        raise DataError(f"{path}: expected {what}, got a folder.")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(4)
        if head[:2] == b"PK" or (size and zipfile.is_zipfile(file)):
            _check_torch_zip(path, size, what, content, again)
        elif not size or not head.startswith((b"\x80", b"}", b"(", b"]")):  # an old one is a row of pickles
            got = "another or a damaged file" if size else "an empty file, cut short"
            raise DataError(f"{path}: expected {what}, got {got}{again}.")
        else:
            file.seek(0)
            _refuse_calls(path, what, foreign_call(file, LEGACY_PICKLES))


def _refuse_calls(path: Path, what: str, called: str) -> None:
    if called:
        raise DataError(f"{path}: expected {what}, got objects that are not loaded for safety ({shown(called)}).")


def _check_torch_zip(path: Path, size: int, what: str, content: bool, again: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
            if packed or sum(entry.file_size for entry in entries) > size:
                raise DataError(f"{path}: expected {what}, got one that claims to hold more than its {size:,} bytes.")
            for entry in entries:
                if entry.filename.endswith("data.pkl"):
                    _refuse_calls(path, what, foreign_call(io.BytesIO(archive.read(entry))))
            if content and (damaged := archive.testzip()):
                raise DataError(f"{path}: expected {what}, got one that is damaged at '{damaged}'{again}.")
    except DataError:
        raise
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        # A zip ends with its table: where that is there, bytes in front of it have changed.
        how = "damaged" if zipfile.is_zipfile(path) else "damaged or cut short"
        raise DataError(f"{path}: expected {what}, got one that is {how}{again} ({error}).") from None


def check_safetensors(path: Path) -> None:
    """Whether a safetensors file is as long as its header says."""
    safetensors_header(path)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by their names."""
    names = ("safetensors", "safetensors.torch")
    safetensors, reader = (needed(name, "weights", "Reading .safetensors") for name in names)
    check_safetensors(path)
    try:
        return dict(reader.load_file(path))
    except safetensors.SafetensorError as error:
        raise DataError(f"{path}: expected a safetensors file, got another or a damaged one ({error}).") from None


def safetensors_header(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file by their names, as its header has them; the file is as long as that says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(head := file.read(8), "little")
        if not size:
            raise DataError(f"{path}: expected a safetensors file, got an empty one; {AGAIN}.")
        if len(head) < 8 or size < 8 + length <= LONGEST_HEADER:
            raise DataError(f"{path}: expected a header of {length:,} bytes, got {size:,} in all; {AGAIN}.")
        if length > LONGEST_HEADER:
            raise DataError(f"{path}: expected a safetensors file, got another or a damaged one (no header).")
        expected = f"{path}: expected a safetensors file, got another or a damaged one"
        try:
            header = json.loads(file.read(length))
            if not isinstance(header, dict):
                raise DataError(f"{expected}: its header is {json_words(header)}, not an object.")
            header.pop("__metadata__", None)
            ends = [entry["data_offsets"][1] for entry in header.values()]
            due = 8 + length + max(ends, default=0)
        except DataError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise DataError(f"{expected}: its header cannot be read ({type(error).__name__}).") from None
    if size < due:
        raise DataError(f"{path}: expected {due:,} bytes, as its header says, got {size:,}: it is {AGAIN}.")
    return header


GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a number, by its kind
GGUF_TEXT, GGUF_ARRAY = 8, 9


def check_gguf(path: Path, blocks: Mapping[int, tuple[int, int]]) -> None:
    """Whether a GGUF file is as long as its header says; `blocks`: numbers and bytes of a block, by the kind of tensor."""
    size = path.stat().st_size
    with path.open("rb") as file:

        def number(kind: str = "Q") -> int:
            got = file.read(struct.calcsize(kind))
            return int(struct.unpack(f"<{kind}", got)[0])

        def skip(length: int) -> None:
            if length > size - file.tell():
                raise EOFError
            file.seek(length, os.SEEK_CUR)

        try:
            if file.read(4) != b"GGUF":
                raise DataError(f"{path}: expected a GGUF file, got another or an empty one; {AGAIN}.")
            version, tensors, fields = number("I"), number(), number()
            if version in (2 << 24, 3 << 24):  # of a machine that writes numbers the other way round
                return
            if version not in (2, 3):
                raise DataError(f"{path}: expected a GGUF file of version 2 or 3, got version {version}.")
            alignment = 32
            for _ in range(fields):
                name = _gguf_text(file, number, size)
                kind = number("I")
                if name == "general.alignment" and kind == 4:
                    alignment = max(1, number("I"))
                else:
                    _skip_gguf_value(kind, number, skip)
            end = 0
            for _ in range(tensors):
                skip(number())
                sides = [number() for _ in range(min(number("I"), 8))]
                kind, at = number("I"), number()
                count, taken = blocks.get(kind, (1, 0))  # of a kind that is not known only the start is
                end = max(end, at + prod(sides) // count * taken)
            due = -(-file.tell() // alignment) * alignment + end
        except (EOFError, struct.error):
            raise DataError(f"{path}: expected a whole header, got {size:,} bytes in all: it is {AGAIN}.") from None
    if size < due:
        raise DataError(f"{path}: expected {due:,} bytes, as its header says, got {size:,}: it is {AGAIN}.")


def _gguf_text(file: Any, number: Callable[..., int], size: int) -> str:
    length = number()
    if length > size - file.tell():
        raise EOFError
    return str(file.read(length), "utf-8", "replace")


def _skip_gguf_value(kind: int, number: Callable[..., int], skip: Callable[[int], None], depth: int = 0) -> None:
    if kind == GGUF_TEXT:
        skip(number())
    elif kind == GGUF_ARRAY and depth < 4:
        inner, count = number("I"), number()
        if inner in GGUF_SIZES:
            skip(GGUF_SIZES[inner] * count)
        else:
            for _ in range(count):
                _skip_gguf_value(inner, number, skip, depth + 1)
    elif kind in GGUF_SIZES:
        skip(GGUF_SIZES[kind])
    else:
        raise EOFError


def check_weight_files(folder: Path) -> None:
    """Whether the weights in a model's folder are whole; only their headers are looked at."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.endswith(".index.json"):
            _check_index(path)
        elif path.is_file() and path.suffix == ".safetensors":
            check_safetensors(path)
        elif path.is_file() and path.suffix == ".bin" and "model" in path.name:
            check_torch(path, "a file of weights", content=False)


def _check_index(path: Path) -> None:
    """Whether an index of weights names files of its own folder alone."""
    try:
        named = json.loads(path.read_bytes())["weight_map"].values()
        files = {name for name in named if isinstance(name, str)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError):
        raise DataError(f"{path}: expected an index of weights with a weight_map, got another file.") from None
    for name in sorted(files):
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or "" in parts or ":" in parts[0]:  # an absolute path begins with an empty part
            raise DataError(f"{path}: expected files in this folder, got {shown(name)} in its weight_map.")
