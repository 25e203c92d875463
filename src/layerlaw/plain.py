"""Plain data from outside: JSON read under limits, then checked whole against a table of rules, before anything is built.

A rule is a function of a value and of where it stands; it raises `Misfit` unless the value fits. What a file may hold is a
table of such rules beside the class that it becomes: `fields`, `several`, `named` and `either` put larger ones together.

Also what a pickle would call, found without running it: torch's own reader of weights calls nothing but what is on its list,
but that has types on it which take memory for any number in the file (`torch.Tensor(10**9)`, `bytearray`, storages).
"""

from __future__ import annotations

import json
import math
import pickletools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from layerlaw.errors import DataError

DEEPEST = 50  # lists and objects inside each other
MOST_DIGITS = 400  # of one number
LARGEST_FILE = 256 * 2**20  # bytes
MOST_VALUES = 10_000_000  # of one file
MOST_MEMORY, MORE_MEMORY = 3, 300_000_000  # bytes that the values of a file may take: 3 times its size and so many more
LARGEST_WHOLE = 2**63 - 1
PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")

Rule = Callable[[Any, str], None]


def log_ratio(a: float, b: float) -> float:
    """ln(a/b) of positive numbers, also where their ratio is too large or too small for a number.

    >>> round(log_ratio(5e-324, 1e300), 3), log_ratio(2.0, 1.0) == math.log(2)
    (-1435.216, True)
    """
    ratio = a / b
    return math.log(ratio) if 0 < ratio < math.inf else math.log(a) - math.log(b)


class Misfit(DataError):
    """A value that its rule refuses; the message says where it stands."""


def misfit(where: str, expected: str, *came: Any) -> Misfit:
    """The error: where, what was expected, and what came."""
    return Misfit(f"{where}: expected {expected}" + "".join(f", got {json_words(value)}" for value in came))


def parse(content: bytes) -> Any:
    """JSON as plain data, with every name once in its object; `DataError` where limits are passed, else `ValueError`."""
    if len(content) > LARGEST_FILE:
        raise DataError(f"expected at most {LARGEST_FILE // 2**20} MiB, got {len(content) // 2**20} MiB or more")
    text = content.decode("utf-8")
    values = sum(text.count(mark) for mark in ",[{")
    if values > MOST_VALUES:
        raise DataError(f"expected at most {MOST_VALUES:,} values, got about {values:,}")
    check_taken(text, len(content))
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_whole, parse_constant=_constant)
    except RecursionError:
        raise DataError(_too_deep("")) from None


def check_taken(text: str | bytes, size: int) -> None:
    """Raise where the values of JSON would take far more memory than its `size`, which is that of the file.

    About what Python takes for a text, an object, a list and a number; short ones are many.
    """
    marks: Any = ('"', "{", "[", ",") if isinstance(text, str) else (b'"', b"{", b"[", b",")
    quotes, objects, lists, others = (text.count(mark) for mark in marks)
    taken = sys.getsizeof(text) + 45 * quotes + 120 * objects + 80 * lists + 32 * others
    if taken > (most := MOST_MEMORY * size + MORE_MEMORY):
        raise DataError(f"expected values that take at most {most:,} bytes of memory, got about {taken:,}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise DataError(f"expected every name once in an object, got {json_words(twice)} twice")
    return found


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise DataError(f"expected numbers of at most {MOST_DIGITS} digits, got one of {len(digits):,}")
    return int(digits)


def _constant(name: str) -> Any:
    raise DataError(f"expected finite numbers (or null where one does not exist), got {name}")


def check_plain(value: Any, where: str = "", depth: int = 0) -> None:
    """Raise unless everything is what JSON can hold and every output can show: finite numbers, whole text, not too deep."""
    if depth > DEEPEST:
        raise DataError(_too_deep(where))
    if isinstance(value, Mapping):
        for name, inner in value.items():
            check_text(name, f"a name in {where or 'the file'}")
            check_plain(inner, _inside(where, name), depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            check_plain(inner, f"{where}[{i}]", depth + 1)
    elif isinstance(value, str):
        check_text(value, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        check_number(value, where)
    elif value is not None and not isinstance(value, bool):
        raise misfit(where, "plain data (text, a number, a list, an object, true, false or null)", value)


def check_text(value: Any, where: str) -> None:
    """Text that can be written to a file: no half of a surrogate pair."""
    if not isinstance(value, str):
        raise misfit(where, "text", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise misfit(where, "text of whole characters", value) from None


def text_of(most: int) -> Rule:
    """Text of at most so many characters."""

    def check(value: Any, where: str) -> None:
        check_text(value, where)
        if len(value) > most:
            raise misfit(where, f"text of at most {most:,} characters, got {len(value):,}", value)

    return check


def check_number(value: Any, where: str) -> None:
    """A number of Python that is finite as a float, and no boolean."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise misfit(where, "a number", value)
    try:
        finite = math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        finite = False
    if not finite:
        raise misfit(where, "a finite number", value)


def check_truth(value: Any, where: str) -> None:
    """True or false, and not a word or number that stands for it."""
    if not isinstance(value, bool):
        raise misfit(where, "true or false", value)


def anything(value: Any, where: str) -> None:
    """Whatever plain data are."""


def nothing_or(rule: Rule) -> Rule:
    """Null, or what the rule asks for."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            rule(value, where)

    return check


def number_from(least: float = -math.inf, most: float = math.inf, *, slack: float = 1e-6) -> Rule:
    """A number between two ends; rounding may pass them by a little."""
    ends = f"a number from {least:g} to {most:g}" if most < math.inf else f"a number of at least {least:g}"
    ends = f"a number of at most {most:g}" if least == -math.inf else ends

    def check(value: Any, where: str) -> None:
        check_number(value, where)
        if not least - slack <= value <= most + slack:
            raise misfit(where, ends, value)

    return check


coordinate = number_from(-1e150, 1e150, slack=0)  # beyond that no axis can be made


def whole_from(least: int, most: int = LARGEST_WHOLE) -> Rule:
    """A whole number between two ends."""
    ends = f"a whole number from {least} to {most}" if most < LARGEST_WHOLE else f"a whole number of at least {least}"

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise misfit(where, ends, value)

    return check


def one_of(*choices: Any) -> Rule:
    """One of these."""
    listed = ", ".join(map(repr, choices))

    def check(value: Any, where: str) -> None:
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise misfit(where, f"one of {listed}", value)

    return check


def several(rule: Rule, least: int = 0, most: int = MOST_VALUES) -> Rule:
    """A list of things that follow one rule."""
    length = f"{least}" if least == most else f"{least} to {most:,}"

    def check(value: Any, where: str) -> None:
        if not isinstance(value, (list, tuple)):
            raise misfit(where, "a list", value)
        if not least <= len(value) <= most:
            raise misfit(where, f"a list of {length} entries", value)
        for i, inner in enumerate(value):
            rule(inner, f"{where}[{i}]")

    return check


def named(rule: Rule | Callable[[str], Rule], *, by_name: bool = False, plain: bool = False) -> Rule:
    """An object whose entries all follow a rule; `by_name`: the one that `rule` gives for their name.

    `plain`: names are those of columns, of letters, digits and underscores.
    """

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise misfit(where, "an object", value)
        for name, inner in value.items():
            check_text(name, f"a name in {where}")
            if plain and not PLAIN_NAME.fullmatch(name):
                raise misfit(where, "names of at most 100 letters, digits and underscores", name)
            follow: Any = rule(name) if by_name else rule  # type: ignore[call-arg]
            follow(inner, _inside(where, name))

    return check


def either(*rules: Rule) -> Rule:
    """What fits any of these; the last one speaks where none does."""

    def check(value: Any, where: str) -> None:
        for rule in rules[:-1]:
            try:
                return rule(value, where)
            except Misfit:
                continue
        return rules[-1](value, where)

    return check


def fields(needed: Mapping[str, Rule], others: Mapping[str, Rule]) -> Rule:
    """An object with these fields, of which `others` may be missing; fields of a newer version are let pass."""
    rules = {**needed, **others}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise misfit(where or "the file", "an object", value)
        for name in needed:
            if name not in value:
                raise misfit(_inside(where, name), "this field, which is missing")
        for name, inner in value.items():
            if name in rules:
                rules[name](inner, _inside(where, name))

    return check


def _inside(where: str, name: object) -> str:
    short = f"{name:.40}" if isinstance(name, str) else json_words(name)
    return f"{where}.{short}" if where else short


def _too_deep(where: str) -> str:
    beginning = f"{where[:60]}…: " if where else ""
    return f"{beginning}expected lists and objects at most {DEEPEST} deep inside each other, got deeper ones"


def json_words(value: Any) -> str:
    """What came, in a few words whatever its size."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else f"{value[:40]}…")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"a whole number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"an object of {len(value)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return "null" if value is None else type(value).__name__


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

    >>> import io, pickle
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
