"""Several threads in one process: who works on which model, switches of the whole process that all of them share, and the
default device that each has for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch._C import _len_torch_function_stack
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from layerlaw.errors import BusyError, check_choice
from layerlaw.module_tree import walk

P = ParamSpec("P")
T = TypeVar("T")
WhenBusy = Literal["wait", "raise"]
"""What a thread does whose model another thread is measuring: wait until it is free, or raise a `BusyError`."""


class Counted:
    """A context that many threads may be inside of: the first one in makes and enters it, the last one out leaves it.

    A switch of the whole process that each thread saved and put back by itself would be put back to what another thread
    had set it to; or be put back while another thread still needs it.

    >>> where = []
    >>> @contextmanager
    ... def note():
    ...     where.append("in")
    ...     yield
    ...     where.append("out")
    >>> switch = Counted(note)
    >>> with switch, switch:
    ...     pass
    >>> where
    ['in', 'out']
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self.users = make, threading.RLock(), 0
        self._entered: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self.users == 0:
                context = self._make()
                context.__enter__()
                self._entered = context
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.users -= 1
            if self.users == 0 and self._entered is not None:
                entered, self._entered = self._entered, None
                entered.__exit__(None, None, None)


@contextmanager
def _without_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


_alone: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def _synchronized_where_not_alone() -> Iterator[None]:
    synchronized = nn.SyncBatchNorm.forward

    def forward(self: nn.SyncBatchNorm, input: Tensor) -> Tensor:
        return (_BatchNorm.forward if _alone.get() else synchronized)(self, input)

    nn.SyncBatchNorm.forward = forward  # type: ignore[method-assign]  # of the class: that of subclasses calls it
    try:
        yield
    finally:
        nn.SyncBatchNorm.forward = synchronized  # type: ignore[method-assign]


no_fast_path = Counted(_without_fast_path)
eager_calls = Counted(lambda: torch.compiler.set_stance("force_eager"))
_own_statistics = Counted(_synchronized_where_not_alone)


@contextmanager
def alone() -> Iterator[None]:
    """SyncBatchNorm is a BatchNorm for this thread: it takes the statistics of its own process, and waits for no other."""
    with _own_statistics:
        before = _alone.set(True)
        try:
            yield
        finally:
            _alone.reset(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations of the calling thread on one core: on small matrices, waking the others costs more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_free = threading.Condition()
_users: dict[int, tuple[int, int]] = {}  # by the id of a module: the thread that works on it, and how often it said so


@contextmanager
def claimed(network: nn.Module, busy: WhenBusy = "wait") -> Iterator[None]:
    """The network for this thread alone, with all its modules: those that two networks share are held for both.

    Where another thread has it, this one waits, or with `busy="raise"` raises. A thread may claim again what it has.
    """
    check_choice("busy", busy, get_args(WhenBusy))
    me = threading.get_ident()
    # What this thread has claimed it has with all that is inside. They are held, so that no other module gets their ids.
    modules = [network] if _users.get(id(network), (None, 0))[0] == me else walk(network)

    def taken() -> bool:
        return any(_users.get(id(module), mine)[0] != me for module in modules)

    mine = me, 0
    with _free:
        if busy == "raise" and taken():
            what = f"the {type(network).__name__}, or a part of it, is being measured by another thread"
            raise BusyError(f"busy: expected a model that is free, but {what}. busy='wait' waits for it.")
        while taken():
            _free.wait(0.2)  # with a time, so that Ctrl-C is heard
        for module in modules:
            _users[id(module)] = me, _users.get(id(module), mine)[1] + 1
    try:
        yield
    finally:
        with _free:
            for module in modules:
                depth = _users[id(module)][1] - 1
                if depth:
                    _users[id(module)] = me, depth
                else:
                    del _users[id(module)]
            _free.notify_all()


CPU = torch.device("cpu")

_theirs: ContextVar[torch.device | None] = ContextVar("layerlaw default device of the user", default=None)
"""Where our own code runs under somebody's default device: which one that was."""


def default_mode() -> DeviceContext | None:
    """What gives this thread a default device, the innermost one; `None`: nothing does, which is found out at once."""
    if not _len_torch_function_stack():
        return None
    modes = reversed(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
    return next((mode for mode in modes if isinstance(mode, DeviceContext)), None)


@contextmanager
def _told(there: DeviceContext, device: torch.device, users: torch.device | None) -> Iterator[None]:
    # The mode itself is told, and none is put above it, which would be asked in every call as well. Its own device is
    # put back, not that of `torch.get_default_device()`: "cuda" means whichever is current.
    before, token = there.device, _theirs.set(users)
    there.device = device
    try:
        yield
    finally:
        there.device = before
        _theirs.reset(token)


def on_cpu(function: Callable[P, T]) -> Callable[P, T]:
    """Our own function, called from the user's code: what it makes without a device is made on the CPU.

    >>> @on_cpu
    ... def made():
    ...     return torch.zeros(1).device.type
    >>> with torch.device("meta"):
    ...     made(), torch.zeros(1).device.type
    ('cpu', 'meta')
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        there = default_mode()
        if there is None or there.device.type == "cpu":
            return function(*args, **kwargs)
        with _told(there, CPU, there.device):
            return function(*args, **kwargs)

    return run


@contextmanager
def users_device() -> Iterator[None]:
    """The user's code, called from our own: their default device is there again."""
    users, there = _theirs.get(), default_mode()
    if users is None or there is None:
        yield
        return
    with _told(there, users, None):
        yield
