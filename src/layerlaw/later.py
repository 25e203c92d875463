"""Values that are worked out when they are first looked at: pictures of a record that may never be drawn."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from layerlaw.threads import on_cpu

T = TypeVar("T")
P = TypeVar("P")
C = TypeVar("C", bound=type)
MOST_HELD = 64 * 2**20  # bytes that all values of a process may wait with: beyond, the oldest are worked out

_lock = threading.Lock()
_waiting: deque[weakref.ref[Later[Any]]] = deque()
_held = 0  # what those would hold if none of them had been worked out or let go of


class Later(Generic[T]):
    """What `make` returns, called when it is first wanted; until then it holds so many bytes.

    A copy or a pickle of it is the value itself.

    >>> found = Later(lambda: [1, 2])
    >>> found.value(), found.value() is found.value()
    ([1, 2], True)
    """

    def __init__(self, make: Callable[[], T], held: int = 0) -> None:
        self._make: Callable[[], T] | None = make
        self._value: T | None = None
        self.held = held
        if held:
            _make_room(self)

    def value(self) -> T:
        """The value, worked out the first time."""
        make = self._make
        if make is not None:
            self._value = on_cpu(make)()
            self._make, self.held = None, 0  # and what it was made from can be let go of
        return cast(T, self._value)

    def __reduce__(self) -> tuple[Callable[[T], T], tuple[T]]:
        return _itself, (self.value(),)


class Together(Generic[P, T]):
    """Values of which all that wait are worked out when one of them is wanted: `make` gets their parts, and gives as many.

    >>> doubled = Together(lambda parts: [2 * part for part in parts])
    >>> first, second = doubled.later(1), doubled.later(2)
    >>> second.value(), first.value()
    (4, 2)
    """

    def __init__(self, make: Callable[[list[P]], list[T]]) -> None:
        self._make, self._lock = make, threading.RLock()
        self._waiting: list[weakref.ref[_Part[P, T]]] = []  # of those that nobody holds any more nothing is worked out

    def later(self, part: P, held: int = 0) -> Later[T]:
        """The value that is made of a part, which holds so many bytes."""
        waiting = _Part[P, T](part)
        with self._lock:
            self._waiting.append(weakref.ref(waiting))
        return Later(partial(self._value, waiting), held)

    def _value(self, wanted: _Part[P, T]) -> T:
        with self._lock:
            if not wanted.made:
                waiting = [one for known in self._waiting if (one := known()) is not None and not one.made]
                self._waiting = []
                for one, value in zip(waiting, self._make([one.part[0] for one in waiting]), strict=True):
                    one.made, one.part = [value], []
            return wanted.made[0]


class _Part(Generic[P, T]):
    """What a value is made of, until it is made."""

    def __init__(self, part: P) -> None:
        self.part: list[P] = [part]
        self.made: list[T] = []


def later(make: Callable[[], T], held: int = 0) -> T:
    """The same for an attribute that a class has by `looked_at`, of whose type it is there."""
    return cast(T, Later(make, held))


def looked_at(**attributes: Callable[[Any], Any] | None) -> Callable[[C], C]:
    """Attributes of a class that may be set to a `Later`, and are its value for whoever looks at them.

    Each with what is made of any other value that it is set to (`None`: it is taken as it is).
    """

    def with_them(cls: C) -> C:
        for name, taken in attributes.items():
            setattr(cls, name, _Attribute(name, taken))
        return cls

    return with_them


def waits(owner: object, name: str) -> bool:
    """Whether nobody has looked at such an attribute yet."""
    return isinstance(vars(owner).get(name), Later)


class _Attribute:
    def __init__(self, name: str, taken: Callable[[Any], Any] | None) -> None:
        self.name, self.taken = name, taken

    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            raise AttributeError(self.name)  # as of a field without a default
        try:
            found = vars(owner)[self.name]
        except KeyError:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {self.name!r}") from None
        if isinstance(found, Later):
            found = vars(owner)[self.name] = found.value()
        return found

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self.name] = value if self.taken is None or isinstance(value, Later) else self.taken(value)


def _make_room(new: Later[Any]) -> None:
    """Work out the oldest values until those that wait, with a new one, hold no more than they may."""
    global _held
    old: list[Later[Any]] = []
    with _lock:
        _waiting.append(weakref.ref(new))
        _held += new.held
        if _held <= MOST_HELD:
            return
        held = [one for reference in _waiting if (one := reference()) is not None and one.held]
        _held = sum(one.held for one in held)
        while len(held) > 1 and _held > MOST_HELD // 2:  # by halves, so that this is not done for each of them
            old.append(held.pop(0))
            _held -= old[-1].held
        _waiting.clear()
        _waiting.extend(weakref.ref(one) for one in held)
    for one in old:
        one.value()


def _itself(value: T) -> T:
    return value
