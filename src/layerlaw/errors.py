"""Everything layerlaw raises. Each message says what was expected, what came, where, and what to do."""

import importlib
import operator
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

COLORS = re.compile(r"\x1b\[[0-9;]*m")
MOST_WHOLE = 2**48  # of a count or a size: no memory holds more


def visible(text: str) -> str:
    """Text for a terminal, in lines: characters that would steer it, or turn the direction of writing, are written out.

    >>> print(visible("a\\x1b[31mb\\u202e"))
    a\\x1b[31mb\\u202e
    """
    text = text.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair has no bytes
    if text.isprintable():
        return text
    kept = (c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" for c in text)
    return "".join(c if keep else c.encode("unicode_escape").decode() for c, keep in zip(text, kept, strict=True))


def without_colors(text: str) -> str:
    """What another library says, without the codes by which it colors a terminal.

    >>> without_colors("do \\x1b[1mnot\\x1b[0m load")
    'do not load'
    """
    return COLORS.sub("", text)


class LayerlawError(Exception):
    """Root of all errors of this package. A message may quote files of strangers: nothing in it steers a terminal."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(visible(part) if isinstance(part, str) else part for part in args))


class InputError(LayerlawError, ValueError):
    """What came in cannot be measured."""


class LabelError(InputError):
    """An empty class, one class, labels out of range or not whole numbers."""


class FeatureError(InputError):
    """NaN or infinite features, features of the wrong shape."""


class DataError(InputError):
    """A data set, record file or image folder that cannot be read or written."""


class CaptureError(LayerlawError):
    """Sites that match nothing, never fire, or fire a varying number of times."""


class PassError(LayerlawError):
    """The data changed between the two passes."""


class BusyError(LayerlawError):
    """Another thread is measuring the same model."""


class RankError(LayerlawError):
    """Another process of the same measurement failed, or is gone."""


class MemoryBudgetError(LayerlawError):
    """The statistics would not fit the memory budget."""


class MissingExtraError(LayerlawError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'layerlaw[{extra}]'")


def needed(module: str, extra: str, purpose: str, *, package: str = "") -> Any:
    """Import an optional module, or say which extra brings it; `package`: what it is called where it is installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(package or module.partition(".")[0], extra, purpose) from None


def renamed(function: str, given: Mapping[str, object], new: Mapping[str, str]) -> None:
    """Answer keyword arguments that a function no longer has, collected as `**given`, with a TypeError; fine when empty.

    `new` says for each old name what took its place: a name, then words of explanation if any. A name that stays is an
    argument of something else, which the words tell.

    >>> renamed("probe", {"mode": "train"}, {"mode": "batchnorm ('train' → 'batch', 'eval' → 'running')"})
    Traceback (most recent call last):
    TypeError: probe: 'mode' is now 'batchnorm' ('train' → 'batch', 'eval' → 'running').
    """
    unknown = [name for name in given if name not in new]
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument '{unknown[0]}'")
    if given:
        parts = {name: new[name].partition(" ") for name in given}
        moved = [
            f"'{old}' {'is an argument' if name == old else f'is now {name!r}'}{space}{words}"
            for old, (name, space, words) in parts.items()
        ]
        raise TypeError(f"{function}: {'; '.join(moved)}.")


@dataclass(frozen=True)
class Demand:
    """What an argument must be: in words, and a question asked of the value, which counts as no where it fails."""

    words: str
    asked: Callable[[Any], object]

    def met_by(self, value: object) -> bool:
        """Whether this is such a value."""
        try:
            return bool(self.asked(value))
        except Exception:  # a value that cannot even be asked is none
            return False

    @property
    def or_none(self) -> "Demand":
        """The same, or `None`."""
        return Demand(f"{self.words}, or None", lambda value: value is None or self.met_by(value))

    @property
    def each(self) -> "Demand":
        """A list of such values."""
        return Demand(
            f"a list, each {self.words}",
            lambda values: not isinstance(values, (str, bytes)) and all(self.met_by(value) for value in list(values)),
        )


def demand(error: type[Exception] = InputError, where: str = "", /, **arguments: tuple[object, Demand]) -> None:
    """Raise unless every argument, given as name=(value, demand), is what it must be; `where` errors begin with.

    >>> demand(size=(2.5, whole(1)))
    Traceback (most recent call last):
    layerlaw.errors.InputError: size: expected a whole number of at least 1, got 2.5.
    """
    for name, (value, wanted) in arguments.items():
        if not wanted.met_by(value):
            raise error(f"{where}{': ' * bool(where)}{name}: expected {wanted.words}, got {shown(value)}.")


def whole_number(value: object) -> int | None:
    """A whole number, also one of NumPy or a tensor of one entry; `None` where something is none.

    >>> whole_number(3), whole_number(True), whole_number(2.0), whole_number(int)
    (3, None, None, None)
    """
    if isinstance(value, (bool, type)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:  # arrays of several entries, tensors without content
        return None


def shown(value: object) -> str:
    """A value in an error: its beginning, however long it is, and whatever its own text does."""
    try:
        text = ascii(value) if isinstance(value, (str, bytes)) else repr(value)
    except Exception:  # a whole number of too many digits, an object without a working text
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:80]}…"


def whole(least: int, most: int | None = None, *, kind: type = int) -> Demand:
    """A whole number of at least so much; numbers beyond what any memory could hold are none."""
    top = "" if most is None else f" and at most {most:,}"
    highest = MOST_WHOLE if most is None else most

    def asked(value: Any) -> bool:
        return isinstance(value, kind) and not isinstance(value, bool) and least <= value <= highest  # type: ignore[operator]

    return Demand(f"a whole number of at least {least}{top}", asked)


def one_of(choices: Collection[object]) -> Demand:
    """One of these."""
    return Demand(f"one of {', '.join(map(str, choices))}", lambda value: value in list(choices))


SEED = Demand(
    "a whole number of at least 0 and below 2⁶³",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63,
)
SHARE = Demand(
    "a share above 0 and at most 1 (98 % is 0.98)",
    lambda value: not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) <= 1,
)


def check_choice(name: str, value: object, choices: Collection[object], error: type[Exception] = InputError) -> None:
    """Raise unless a value is one of the choices."""
    demand(error, "", **{name: (value, one_of(choices))})


def check_seed(seed: object) -> None:
    """Raise unless random generators take this as a seed."""
    demand(seed=(seed, SEED))


def check_whole(least: int, *, kind: type = int, most: int | None = None, **values: object) -> None:
    """Raise unless these arguments are whole numbers of at least so much."""
    demand(InputError, "", **{name: (value, whole(least, most, kind=kind)) for name, value in values.items()})
