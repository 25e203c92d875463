"""The idx file format of MNIST: two zero bytes, a type byte, the number of dimensions, the dimensions, the numbers."""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerlaw.data.official import AGAIN, check, read_bytes
from layerlaw.errors import DataError

UNSIGNED_BYTE = 8


def read_idx(path: Path, *, ndim: int, digest: str | None = None) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or plain, as an array of `ndim` dimensions.

    `digest` ("md5:…") is that of the uncompressed content, because gzip containers of the same data differ.
    """
    content = uncompressed(read_bytes(path), str(path))
    array = parse_idx(content, ndim=ndim, where=str(path))
    if digest is not None:
        check(content, digest, str(path))
    return array


def uncompressed(content: bytes, where: str) -> bytes:
    """Unpack gzip content; anything else is returned as it is."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{where}: expected a whole gzip file, got {len(content)} bytes ({error}); {AGAIN}") from error


def parse_idx(content: bytes, *, ndim: int, where: str) -> NDArray[np.uint8]:
    """Turn the content of an idx file into an array; magic number and length must agree.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), ndim=1, where="labels")
    array([7, 8, 9], dtype=uint8)
    """
    magic, expected = content[:4], bytes([0, 0, UNSIGNED_BYTE, ndim])
    if magic != expected:
        raise DataError(
            f"{where}: expected an idx file of unsigned bytes with {ndim} dimension(s), magic {expected.hex()}, "
            f"got {magic.hex() or 'an empty file'}; {AGAIN}"
        )
    start = 4 + 4 * ndim
    if len(content) < start:
        raise DataError(f"{where}: expected a header of {start} bytes, got {len(content)} bytes in all; {AGAIN}")
    shape = tuple(int(side) for side in np.frombuffer(content, ">u4", count=ndim, offset=4))
    if len(content) - start != prod(shape):
        raise DataError(
            f"{where}: expected {prod(shape)} bytes after the header, for the shape {shape} it names, "
            f"got {len(content) - start}; {AGAIN}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()  # a copy, because bytes are read-only
