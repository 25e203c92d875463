"""What a pickle would call, found without running it.

torch's own reader of weights calls nothing but what is on its list, but that has types on it which take memory for any
number that stands in the file (`torch.Tensor(10**9)`, `bytearray`, storages), filled with whatever was there before.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import BinaryIO

CALLED = frozenset(
    {
        "collections.OrderedDict",
        "collections.Counter",
        "torch.Size",
        "torch.device",
        "torch.serialization._get_layout",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.dtype",
        "_codecs.encode",
    }
)
"""What a file of plain data and tensors calls, beside `REBUILDING`: it puts together what is in the file."""
REBUILDING = ("torch._utils._rebuild_", "torch._tensor._rebuild_")

_STORES = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_FETCHES = ("GET", "BINGET", "LONG_BINGET")
_MARK = pickletools.markobject
_ENDED = ("exhausted", "not enough data", "bytes in a", "but only")  # what pickletools says of a file that is cut short


def foreign_call(file: BinaryIO, pickles: int = 1) -> str:
    """The first thing that a row of pickles calls and that does not belong to plain data and tensors; empty: there is none.

    A pickle that ends too early is left to whoever reads it, and cannot.

    >>> import io
    >>> foreign_call(io.BytesIO(pickle.dumps({"a": [1, 2.0]}))), foreign_call(io.BytesIO(pickle.dumps(bytearray(3), 2)))
    ('', 'bytearray')
    """
    for _ in range(pickles):
        try:
            names = (name for name in _calls(file) if name not in CALLED and not name.startswith(REBUILDING))
            name = next(names, "")
        except (ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError) as error:
            return "" if any(word in str(error) for word in _ENDED) else "a damaged pickle"
        if name:
            return name.removeprefix("builtins.").removeprefix("__builtin__.")
    return ""


def _calls(file: BinaryIO) -> Iterator[str]:
    """Names of what one pickle calls, by following its stack with names alone."""
    stack: list[object] = []
    memo: dict[object, object] = {}
    for op, argument, _ in pickletools.genops(file):
        if op.name in _STORES:
            memo[len(memo) if op.name == "MEMOIZE" else argument] = stack[-1]
        elif op.name in _FETCHES:
            stack.append(memo.get(argument))
        elif op.name == "GLOBAL":
            stack.append(str(argument).replace(" ", "."))
        elif op.name == "MARK":
            stack.append(_MARK)
        elif op.name in ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ_EX"):
            yield op.name
            return
        else:
            if op.name in ("REDUCE", "NEWOBJ"):
                called = stack[-2]
                yield called if isinstance(called, str) else "an object"
            _step(op, stack)


def _step(op: pickletools.OpcodeInfo, stack: list[object]) -> None:
    """What an operation does to the stack."""
    before = op.stack_before
    single = before[: before.index(_MARK)] if _MARK in before else before
    if _MARK in before:
        while stack.pop() is not _MARK:
            pass
    kept = stack[-1] if op.name == "DUP" else None
    del stack[len(stack) - len(single) :]
    stack += [kept] * len(op.stack_after)
