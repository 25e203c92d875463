"""Statistics over the ranks of a torchrun job, or of a process group in it: one flat all-reduce per pass; an error on one
rank reaches all of them, and so does that one of them never came."""

from __future__ import annotations

import atexit
import os
import pickle
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from threading import Timer
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from layerlaw.errors import InputError, LayerlawError, PassError, RankError
from layerlaw.wording import error_in_words

T = TypeVar("T")
P = ParamSpec("P")
Told: TypeAlias = tuple[bool, int, int, Any]  # STATE of a rank, and what it has or the beginning of it
Ranks: TypeAlias = Any  # a process group of torch.distributed; where torch was built without, there is no such class
THE_SAME = "Call it on all of them with the same model and arguments"
LONGEST = 2000  # bytes of an error that other ranks are told
# Of a rank that comes to a meeting: whether it failed, numbers that it will add up, bytes that it has.
STATE = struct.Struct("<?qq")
TOLD = 512  # bytes that a rank brings to a meeting: what it has is mostly short, and needs no further call
SMALL = 2**20  # bytes of all ranks that are sent to all and added up there: gloo takes half the processor time for it
LOOK_EVERY = 1.0  # seconds between looks at whether another rank failed, during a pass
TOLD_AFTER = 5.0  # seconds after which a rank that failed says so, where the others do not come
LET_GO = 10.0  # seconds to wait at exit for threads of the group
MEETING, PATIENCE = 45.0, "LAYERLAW_RANK_TIMEOUT"  # seconds within which all ranks come, and what says others
_group: Ranks = None  # the processes that measure together; `None`: all of the job


def is_ready() -> bool:
    """Whether this process is one of a job of torch.distributed, and knows of it."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """How many processes measure together."""
    return dist.get_world_size(_group) if is_ready() else 1


def rank() -> int:
    """The number of this process among those that measure together."""
    return dist.get_rank(_group) if world_size() > 1 else 0


def place(ranks: Ranks = None) -> tuple[int, int]:
    """The number of this process in a group, and how many it has; by default in that which measures, or the whole job."""
    _check_group(ranks)
    return (rank(), world_size()) if ranks is None else (dist.get_rank(ranks), dist.get_world_size(ranks))


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


def is_alone() -> bool:
    """Whether there is nobody to add up with, so that an all-reduce does nothing."""
    return not _exchanges.get() and world_size() == 1


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
    marks, parts = ([t.reshape(-1).to(device) for t in given] for given in (digests, tensors))
    everybody = torch.zeros(world_size(), sum(map(len, marks)), dtype=torch.float64, device=device)
    if marks:  # each rank fills its own row, so that all see all and decide alike
        torch.cat(marks, out=everybody[rank()])
    if _nothing and not always:
        parts = [torch.zeros_like(part) for part in parts]
    flat = _sum_of_all(torch.cat([*parts, everybody.reshape(-1)]))
    at = 0
    for t in tensors:
        t.copy_(flat[at : at + t.numel()].reshape(t.shape))
        at += t.numel()
    everybody = flat[at:].reshape(everybody.shape)
    if not torch.allclose(everybody, everybody[:1].expand_as(everybody), rtol=1e-9, atol=1e-12):
        raise PassError("the ranks measured around different class means: all must probe the same model and sites.")


def _sum_of_all(flat: Tensor) -> Tensor:
    """The sum of numbers (n,) over all ranks; few of them are brought to the meeting itself."""
    if _job is not None:
        few = flat.cpu().numpy().tobytes() if flat.nbytes <= TOLD - STATE.size else b""
        known = _job.meet(flat.numel(), content=few)
        if few:
            rows = [torch.from_numpy(row[: len(few)].copy()).view(flat.dtype) for *_, row in known]
            return torch.stack(rows).sum(0).to(flat.device)
    if flat.nbytes * world_size() <= SMALL:
        return torch.stack(_of_all(flat)).sum(0)
    _call(lambda: dist.all_reduce(flat, group=_group), flat)
    return flat


def gathered(mine: T) -> list[T]:
    """What every rank has, in their order; small things, since all of them are sent to all."""
    if world_size() == 1:
        return [mine]
    content = pickle.dumps(mine)  # read by processes of the same job
    known = _told(content) if _job is None else _job.meet(content=content)
    sizes = [n for _, _, n, _ in known]
    if 0 in sizes:
        raise PassError(f"expected all ranks to do the same, but rank {sizes.index(0)} brings nothing. {THE_SAME}.")
    whole = [row for *_, row in known] if max(sizes) <= TOLD - STATE.size else _rows(content, max(sizes))
    return [pickle.loads(row) for row in whole]  # zeros behind it are not read


def dealt_out(mine: Tensor, there: Sequence[int], here: Sequence[int]) -> list[Tensor]:
    """Of numbers (n,) so many go to each rank, in their order; so many of each rank come here."""
    mine = mine.to(_device())
    came = mine.new_empty(sum(here))
    if _job is not None:
        _job.meet()
    _call(lambda: dist.all_to_all_single(came, mine, list(here), list(there), group=_group), came, mine)
    return list(torch.split(came.cpu(), list(here)))


def _told(content: bytes, size: int = 0, *, failed: bool = False) -> list[Told]:
    """How every rank is, and what it has; of long contents the beginning."""
    rows = _rows(STATE.pack(failed, size, len(content)) + content, TOLD)
    return [(*STATE.unpack_from(row), row[STATE.size :]) for row in rows]


def _rows(mine: bytes, width: int) -> list[Any]:
    """So many first bytes of what every rank has, in one collective call; zeros fill the rest."""
    own = torch.frombuffer(bytearray(mine[:width].ljust(width, b"\0")), dtype=torch.uint8)
    return [row.cpu().numpy() for row in _of_all(own.to(_device()))]


def from_first(tensor: Tensor) -> Tensor:
    """The tensor of rank 0, bit by bit; those of all ranks have one shape and one dtype."""
    if world_size() == 1:
        return tensor
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).to(_device(), copy=True)
    if _job is not None:
        _job.meet(content.numel())
    _call(lambda: dist.broadcast(content, dist.get_process_group_ranks(_group)[0], group=_group), content)
    return content.to(tensor.device).view(tensor.dtype).reshape(tensor.shape)


def _device() -> torch.device:
    cuda = dist.get_backend(_group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


_held: list[Tensor] = []


def _of_all(mine: Tensor) -> list[Tensor]:
    """The tensors of all ranks, of one shape."""
    every = [torch.empty_like(mine) for _ in range(world_size())]
    _call(lambda: dist.all_gather(every, mine, group=_group), mine, *every)
    return every


def _call(collective: Callable[[], Any], *tensors: Tensor) -> None:
    """Exchange tensors; that another process is gone, or does not answer, is an error of ours.

    Threads of gloo let go of them some time after the call. Whoever lets go last deletes one, for which a thread needs the
    interpreter: one that comes while the interpreter ends would abort the process. So the tensors are held until then.
    """
    _held[:] = [*filter(_in_use, _held), *tensors]
    try:
        collective()
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

    They meet in the store of the job first, which needs no collective call: where some do not come, nobody waits for them
    for ever. Before every collective call all tell how they are, in a call of fixed size: a rank that failed comes to that
    meeting and to no other, so that nobody waits for it. So that ranks in the middle of a pass hear of it too, it leaves a
    word in the store, where they look from batch to batch.
    """

    def __init__(self) -> None:
        members = dist.get_process_group_ranks(_group)
        who = f"{getattr(_group, 'group_name', '')} {members}"  # two groups may share the store
        self._looked, self.over = time.monotonic(), False
        self._store: Any = None
        with suppress(Exception):  # without one, ranks hear of errors at their next meeting
            self._store = dist.distributed_c10d._get_default_store()
        name = f"layerlaw {who} {_meetings[who]}"
        self._key = f"{name} error"
        if self._store is not None:
            try:
                self._gather_at(name, members)
            except RuntimeError as error:  # of the store
                said = " ".join(str(error).split())[:300]
                raise RankError(f"rank {rank()}: expected the store of this job to answer, got {said}.") from error
            with suppress(Exception):  # not every store deletes
                self._store.delete_key(f"{name} {rank()}")
        _meetings[who] += 1  # by now all have come: those who did not would otherwise count differently

    def _gather_at(self, name: str, members: list[int]) -> None:
        """Wait until all ranks have come; some that do not come in time are an error."""
        store, size, me = self._store, world_size(), rank()
        patience, pause = _patience(), 0.001
        until = time.monotonic() + patience
        store.set(f"{name} {me}", "here")
        if store.add(f"{name} came", 1) == size:
            store.set(f"{name} all", "here")
        while not store.check([f"{name} all"]):
            if time.monotonic() > until:
                here = [store.check([f"{name} {r}"]) and store.get(f"{name} {r}") == b"here" for r in range(size)]
                store.set(f"{name} {me}", "gone")
                if store.add(f"{name} came", -1) == size - 1:
                    return  # the last one came in this very moment
                missing = [str(members[r]) for r in range(size) if not here[r]]
                which = f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} did not come" if missing else "some left"
                cure = "Call it on all of them (one may save what all get), or name those that measure (`ranks`)"
                raise RankError(
                    f"rank {members[me]}: expected all {size} ranks to measure together, but {which} within "
                    f"{patience:g} seconds. {cure}; {PATIENCE}=600 waits longer."
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def meet(self, size: int = 0, error: BaseException | None = None, content: bytes = b"") -> list[Told]:
        """Tell all ranks how this one is; raises where another failed, or is about to send something of another size."""
        known = _told(content, size, failed=error is not None)
        if failed := [r for r, (bad, *_) in enumerate(known) if bad]:
            self.over = True
            mine = (
                b"" if error is None or isinstance(error, RankError) else error_in_words(error).encode(errors="replace")
            )
            said = [row.tobytes().rstrip(b"\0").decode("utf-8", "ignore") for row in _rows(mine, LONGEST)]
            if error is None:
                told = [f"rank {r}: {said[r]}" for r in failed if said[r]] or [f"rank {failed[0]}"]
                raise RankError(f"expected all {world_size()} ranks to go on, but some failed. {' '.join(told)}")
        elif set(sizes := [numbers for _, numbers, *_ in known]) != {size}:
            came = f"got statistics of different sizes ({', '.join(map(str, sizes))} numbers)"
            raise PassError(f"expected the same model, sites, classes and options on all ranks, {came}. {THE_SAME}.")
        return known

    def tell(self, error: BaseException) -> None:
        """Let the others know that this rank failed."""
        if self._store is not None and not isinstance(error, RankError):
            with suppress(Exception):
                self._store.set(self._key, f"rank {rank()}: {error_in_words(error)}")
        # Others that wait for this one inside a forward (FSDP) come when their own time is up, or never.
        words = f"layerlaw: rank {rank()} failed and waits for the others to hear of it. {error_in_words(error)}"
        late = Timer(TOLD_AFTER, print, (words,), {"file": sys.stderr, "flush": True})
        late.daemon = True
        late.start()
        with suppress(LayerlawError):
            self.meet(error=error)
        late.cancel()

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
_meetings: Counter[str] = Counter()  # by group, how often its ranks have met


def _patience() -> float:
    given, found = os.environ.get(PATIENCE) or str(MEETING), -1.0
    with suppress(ValueError):
        found = float(given)
    if not found > 0:
        raise InputError(f"{PATIENCE}: expected a number of seconds, got {given!r}.")
    return found


def look_at_others() -> None:
    """Raise a `RankError` if another rank of the same measurement has failed."""
    if _job is not None:
        _job.look()


@contextmanager
def together(ranks: Ranks = None) -> Iterator[None]:
    """Ranks that measure together: an error that one of them raises in here is raised on all of them, as a `RankError`.

    `ranks` is their process group, by default all ranks of the job. All of them must come in, as often as each other. Nobody
    leaves before all are done.
    """
    global _job, _group
    _check_group(ranks)
    if _job is not None:
        yield
        return
    before, _group = _group, ranks
    try:
        if world_size() == 1:
            yield
            return
        _job = job = _Job()
        try:
            yield
            job.meet()
        except BaseException as error:
            if not job.over:
                job.tell(error)
            raise
        finally:
            _job = None
    finally:
        _group = before


def measured_together(function: Callable[P, T]) -> Callable[P, T]:
    """A function that all ranks of its argument `ranks` call at once (see `together`)."""

    @wraps(function)
    def measured(*args: P.args, **kwargs: P.kwargs) -> T:
        with together(kwargs.get("ranks")):
            return function(*args, **kwargs)

    return measured


def _check_group(ranks: Ranks) -> None:
    """`None`, or a process group that this process is in."""
    if ranks is None:
        return
    expected = "ranks: expected a process group of torch.distributed such as mesh['data'].get_group()"
    if not is_ready():
        raise InputError(f"{expected}, got {type(ranks).__name__} in a job without process groups.")
    if ranks is dist.GroupMember.NON_GROUP_MEMBER:
        cure = "Only its members measure: leave the call out here"
        raise InputError(f"{expected}, got one that rank {dist.get_rank()} is not in. {cure}.")
    if not isinstance(ranks, dist.ProcessGroup):
        raise InputError(f"{expected}, got {type(ranks).__name__}.")
