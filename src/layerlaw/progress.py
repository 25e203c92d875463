"""Progress as a callable: `progress(iterable, label, total)` yields the same items and tells how far it is."""

import inspect
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, TypeVar

from layerlaw.errors import Demand, InputError, shown

T = TypeVar("T")
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")  # as frames name files
EXPECTED = "progress: expected True, False or a function (items, label, total)"


class Progress(Protocol):
    """What a long loop is wrapped in."""

    def __call__(self, items: Iterable[T], label: str, total: int | None) -> Iterator[T]:
        """Yield the items, reporting on the way."""


def bar(items: Iterable[T], label: str, total: int | None) -> Iterator[T]:
    """Show a progress bar with the time left, on a terminal's standard error or in a notebook; gone when done."""
    yield from _tqdm(items, label, total)


def warn(words: str) -> None:
    """Warn at the line of the user's that called this package, however deep in it the warning comes up."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(words, stacklevel=level)


def notebook() -> Literal["jupyter", "marimo", ""]:
    """In which kind of notebook this runs, if in any; nothing is imported for it."""
    marimo, shell = sys.modules.get("marimo"), getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(marimo, "running_in_notebook", lambda: False)():
        return "marimo"
    return "jupyter" if hasattr(shell, "kernel") else ""


def _tqdm(items: Iterable[T] | None, label: str, total: int | None) -> Any:
    where = notebook()
    if where == "marimo":  # whose bars know how many items there are, and are not moved by hand
        if items is None or total is None:
            return items if items is not None else _NoBar()
        shown = sys.modules["marimo"].status.progress_bar
        return shown(items, title=label, total=total, remove_on_exit=True)
    how: Any = {"desc": label, "total": total, "leave": False, "delay": 0.5}
    if where == "jupyter":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that without ipywidgets the bar is one of text
            from tqdm.auto import tqdm as widget

            return widget(items, **how, disable=False)
    from tqdm import tqdm

    return tqdm(items, **how, dynamic_ncols=True, disable=None)


class _NoBar:
    """A bar that is not there."""

    def set_postfix_str(self, *_: Any, **__: Any) -> None: ...

    def update(self) -> None: ...

    def close(self) -> None: ...


def silent(items: Iterable[T], label: str, total: int | None) -> Iterator[T]:
    """Say nothing."""
    yield from items


def choose(progress: bool | Progress) -> Progress:
    """Turn `True`, `False` or a callable into a callable.

    >>> list(choose(False)([1, 2], "pass 1", 2))
    [1, 2]
    """
    if progress is bar or progress is silent:
        return progress
    if callable(progress) and _takes_items(progress):
        return _giving_items(progress)
    if not Demand("True, False or None", lambda value: value in (True, False, None)).met_by(progress):
        raise InputError(f"{EXPECTED}, got {shown(progress)}.")
    return bar if progress else silent


def _takes_items(progress: Any) -> bool:
    """Whether it can be called with (items, label, total), as far as its signature tells; a network is no progress."""
    network: Any = getattr(sys.modules.get("torch.nn"), "Module", ())  # nothing is imported for it
    if isinstance(progress, network) or (isinstance(progress, type) and issubclass(progress, network)):
        return False
    try:
        inspect.signature(progress).bind((), "label", None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature: of a class as `int`, none makes items
        return not isinstance(progress, type)
    return True


def _giving_items(progress: Progress) -> Progress:
    """The same, but an error of ours where what it gives cannot be gone through."""

    def checked(items: Iterable[T], label: str, total: int | None) -> Iterator[T]:
        found: Any = progress(items, label, total)
        try:
            return iter(found)
        except TypeError:
            raise InputError(f"{EXPECTED} that gives the items, got {shown(found)} from it.") from None

    return checked


class Counter:
    """Progress that is moved by hand, with a word on where it stands.

    >>> counter = Counter(False, 3, "training")
    >>> counter.step("epoch 1")
    >>> counter.close()
    """

    def __init__(self, progress: bool | Progress, total: int, label: str) -> None:
        self._bar = _tqdm(None, label, total) if progress is True else None
        self._items = choose(progress)(range(total), label, total) if not isinstance(progress, bool) else iter(())

    def step(self, where: str = "") -> None:
        """One more is done."""
        next(self._items, None)
        if self._bar is not None:
            self._bar.set_postfix_str(where, refresh=False)
            self._bar.update()

    def close(self) -> None:
        """Take the bar off the screen."""
        next(self._items, None)  # lets a generator that has given all its items end
        getattr(self._items, "close", lambda: None)()  # there may have been fewer than were expected
        if self._bar is not None:
            self._bar.close()
