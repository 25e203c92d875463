"""Statistics over the ranks of a torchrun job: one flat all-reduce per pass; an error on one rank reaches all of them."""

from __future__ import annotations

import atexit
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from layerlaw.errors import LayerlawError, PassError, RankError

T = TypeVar("T")
LONGEST = 2000  # bytes of an error that other ranks are told
LOOK_EVERY = 1.0  # seconds between looks at whether another rank failed, during a pass
LET_GO = 10.0  # seconds to wait at exit for threads of the group


def world_size() -> int:
    """How many processes measure together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process."""
    return dist.get_rank() if world_size() > 1 else 0


_nothing = False


@contextmanager
def adding_nothing(really: bool = True) -> Iterator[None]:
    """What this rank brings to `all_reduce` in here counts nothing: it has no samples of its own."""
    global _nothing
    before, _nothing = _nothing, really
    try:
        yield
    finally:
        _nothing = before


Exchange = Callable[[Sequence[Tensor], Sequence[Tensor]], None]
_exchanges: ContextVar[list[Exchange] | None] = ContextVar("exchanges", default=None)


@contextmanager
def through(*exchanges: Exchange) -> Iterator[None]:
    """The next calls of `all_reduce` in here go to these, one after the other: to files, between the jobs of an array."""
    before = _exchanges.set(list(exchanges))
    try:
        yield
    finally:
        _exchanges.reset(before)


def all_reduce(tensors: Sequence[Tensor], digests: Sequence[Tensor] = (), *, always: bool = False) -> None:
    """Add the tensors up over all ranks, in place, in one collective call.

    The digests must be equal on all ranks (they tell that everybody measured around the same centers). `always`: also what
    is brought by a rank without samples of its own.
    """
    if exchanges := _exchanges.get():
        exchanges.pop(0)(tensors, digests)
        return
    if world_size() == 1:
        return
    device = _device()
    marks = torch.cat([t.reshape(-1).to(device) for t in digests]) if digests else torch.zeros(0, device=device)
    everybody = torch.zeros(world_size(), len(marks), dtype=torch.float64, device=device)
    everybody[rank()] = marks  # each rank fills its own row, so that all see all and decide alike
    parts = [t.reshape(-1).to(device) for t in tensors]
    if _nothing and not always:
        parts = [torch.zeros_like(part) for part in parts]
    flat = torch.cat([*parts, everybody.reshape(-1)])
    if _job is not None:
        _job.meet(flat.numel())
    _added_up(flat)
    at = 0
    for t in tensors:
        t.copy_(flat[at : at + t.numel()].reshape(t.shape))
        at += t.numel()
    everybody = flat[at:].reshape(everybody.shape)
    if not torch.allclose(everybody, everybody[:1].expand_as(everybody), rtol=1e-9, atol=1e-12):
        raise PassError("the ranks measured around different class means: all must probe the same model and sites.")


def gathered(mine: T) -> list[T]:
    """What every rank has, in their order; small things, since all of them are sent to all."""
    if world_size() == 1:
        return [mine]
    if _job is not None:
        _job.meet()
    content = pickle.dumps(mine)  # read by processes of the same job
    sizes = torch.zeros(world_size(), dtype=torch.int64, device=_device())
    sizes[rank()] = len(content)
    _added_up(sizes)
    rows = torch.zeros(world_size(), int(sizes.max()), dtype=torch.uint8, device=_device())
    rows[rank(), : len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    _added_up(rows)
    return [pickle.loads(row[:n].cpu().numpy().tobytes()) for row, n in zip(rows, sizes.tolist(), strict=True)]


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


_held: list[Tensor] = []


def _added_up(tensor: Tensor) -> None:
    """Add a tensor up over all ranks, in place; that another process is gone, or does not answer, is an error of ours.

    Threads of gloo let go of it some time after the call. Whoever lets go last deletes it, for which a thread needs the
    interpreter: one that comes while the interpreter ends would abort the process. So the tensor is held until then.
    """
    _held[:] = [*filter(_in_use, _held), tensor]
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        why = "another process of this job is gone or does not answer; look at what it said"
        raise RankError(f"rank {rank()}: expected all {world_size()} processes, but {why} ({said}).") from error


def _in_use(tensor: Tensor) -> bool:
    """Whether somebody beside Python holds a tensor; a version of torch that does not tell counts as no."""
    count: Any = getattr(tensor, "_use_count", None)
    return count is not None and count() > 1


@atexit.register
def _wait_until_let_go() -> None:
    """At exit: until no thread of the group has one of the last tensors any more."""
    until = time.monotonic() + LET_GO
    while any(map(_in_use, _held)) and time.monotonic() < until:
        time.sleep(0.002)


class _Job:
    """Ranks that measure together, from the first to the last collective call.

    Before every collective call all tell how they are, in a call of fixed size: a rank that failed comes to that meeting
    and to no other, so that nobody waits for it. So that ranks in the middle of a pass hear of it too, it leaves a word in
    the store of the job, where they look from batch to batch.
    """

    def __init__(self, number: int) -> None:
        self._key, self._looked, self.over = f"layerlaw error {number}", time.monotonic(), False
        self._store: Any = None
        with suppress(Exception):  # without one, ranks hear of errors at their next meeting
            self._store = dist.distributed_c10d._get_default_store()

    def meet(self, size: int = 0, error: BaseException | None = None) -> None:
        """Tell all ranks how this one is; raises where another failed, or is about to send something of another size."""
        states = torch.zeros(world_size(), 2, dtype=torch.int64, device=_device())
        states[rank()] = torch.tensor([error is not None, size])
        _added_up(states)
        failed = states[:, 0].nonzero().flatten().tolist()
        if failed:
            self.over = True
            said = self._texts("" if error is None or isinstance(error, RankError) else in_words(error))
            if error is None:
                told = [f"rank {r}: {said[r]}" for r in failed if said[r]] or [f"rank {failed[0]}"]
                raise RankError(f"expected all {world_size()} ranks to go on, but some failed. {' '.join(told)}")
        elif (states[:, 1] != size).any():
            came = ", ".join(map(str, states[:, 1].tolist()))
            expected = "expected the same model, sites, classes and options on all ranks"
            raise PassError(f"{expected}, got statistics of different sizes ({came} numbers).")

    def _texts(self, mine: str) -> list[str]:
        content = torch.zeros(world_size(), LONGEST, dtype=torch.int32, device=_device())
        encoded = mine.encode("utf-8", "replace")[:LONGEST]
        content[rank(), : len(encoded)] = torch.tensor(list(encoded), dtype=torch.int32)
        _added_up(content)
        return [bytes(row).rstrip(b"\0").decode("utf-8", "ignore") for row in content.tolist()]

    def tell(self, error: BaseException) -> None:
        """Let the others know that this rank failed."""
        if self._store is not None and not isinstance(error, RankError):
            with suppress(Exception):
                self._store.set(self._key, f"rank {rank()}: {in_words(error)}")
        with suppress(LayerlawError):
            self.meet(error=error)

    def look(self) -> None:
        """Raise if another rank failed in the meantime; cheap enough for every batch."""
        if self._store is None or time.monotonic() - self._looked < LOOK_EVERY:
            return
        self._looked, told = time.monotonic(), ""
        with suppress(Exception):
            told = self._store.get(self._key).decode("utf-8", "replace") if self._store.check([self._key]) else ""
        if told:
            raise RankError(f"expected all {world_size()} ranks to go on, but some failed. {told}")


_job: _Job | None = None
_numbers = count()


def in_words(error: BaseException) -> str:
    """An error in a line: its kind and what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def look_at_others() -> None:
    """Raise a `RankError` if another rank of the same measurement has failed."""
    if _job is not None:
        _job.look()


@contextmanager
def together() -> Iterator[None]:
    """Ranks that measure together: an error that one of them raises in here is raised on all of them, as a `RankError`.

    All ranks must come in, as often as each other. Nobody leaves before all are done.
    """
    global _job
    if world_size() == 1 or _job is not None:
        yield
        return
    _job = job = _Job(next(_numbers))
    try:
        yield
        job.meet()
    except BaseException as error:
        if not job.over:
            job.tell(error)
        raise
    finally:
        _job = None
