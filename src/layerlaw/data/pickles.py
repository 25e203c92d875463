"""Unpickling that runs nothing: plain Python values and byte arrays, everything else is refused.

A pickle may name any function to be called. Here only five names are known, and each stands for an inert double
written below, so that not even NumPy's own constructors run on numbers from the file.
"""

import io
import pickle
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerlaw.data.official import AGAIN
from layerlaw.errors import DataError


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
                f"the pickle asks for {module}.{name}, which is refused: only lists, dicts, strings, numbers and "
                "byte arrays are expected; do not use this file, fetch it again from its official home"
            ) from None


def unpickle(content: bytes, where: str) -> object:
    """Read a pickle of plain values; arrays come back as `ArrayDouble`, Python 2 strings as bytes.

    >>> unpickle(pickle.dumps({"labels": [3, 1]}), "batch")
    {'labels': [3, 1]}
    """
    try:
        value: object = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except Exception as error:  # a broken pickle raises nearly anything
        raise DataError(f"{where}: expected a whole pickle, got {type(error).__name__}: {error}; {AGAIN}") from error
    return value
