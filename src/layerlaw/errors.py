"""Everything layerlaw raises. Each message says what was expected, what came, where, and what to do."""

import importlib
from collections.abc import Collection, Mapping
from typing import Any


class LayerlawError(Exception):
    """Root of all errors of this package."""


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

    `new` says for each old name what took its place: a name, then words of explanation if any.

    >>> renamed("probe", {"mode": "train"}, {"mode": "batchnorm ('train' → 'batch', 'eval' → 'running')"})
    Traceback (most recent call last):
    TypeError: probe: 'mode' is now 'batchnorm' ('train' → 'batch', 'eval' → 'running').
    """
    unknown = [name for name in given if name not in new]
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument '{unknown[0]}'")
    if given:
        parts = {name: new[name].partition(" ") for name in given}
        moved = [f"'{old}' is now '{name}'{space}{words}" for old, (name, space, words) in parts.items()]
        raise TypeError(f"{function}: {'; '.join(moved)}.")


def check_choice(name: str, value: object, choices: Collection[object], error: type[Exception] = InputError) -> None:
    """Raise unless a value is one of the choices."""
    if value not in list(choices):  # a list takes what has no hash, too
        raise error(f"{name}: expected one of {', '.join(map(str, choices))}, got {value!r}.")


def check_seed(seed: object) -> None:
    """Raise unless random generators take this as a seed."""
    check_whole(0, seed=seed)
    if seed >= 2**63:  # type: ignore[operator]
        raise InputError(f"seed: expected a whole number below 2⁶³, got {seed!r}.")


def check_whole(least: int, *, kind: type = int, **values: object) -> None:
    """Raise unless these arguments are whole numbers of at least so much."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind) or value < least:  # type: ignore[operator]
            raise InputError(f"{name}: expected a whole number of at least {least}, got {value!r}.")
