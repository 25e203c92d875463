"""Data dealt to the ranks of a job: every sample to one of them, none twice."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
from collections.abc import Iterable, Iterator, Sized
from contextvars import ContextVar
from io import BytesIO
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
)

from layerlaw.data.prepared import Prepared
from layerlaw.errors import DataError
from layerlaw.files import sha256
from layerlaw.measures.at_hand import as_tensor
from layerlaw.stats.ranks import Ranks, gathered, is_ready, place

FIRST = 16  # samples by which data of several processes are told apart
MOST_STATE, MOST_OF_TENSOR, ONE_TENSOR = 2**28, 2**24, 2**12  # bytes of a data set; what a tensor counts for at least


class UnpaddedSampler(Sampler[int]):
    """Deals a data set to the ranks of a job, every sample to one of them: rank r of n gets the samples r, r + n, r + 2n, …

    A `DistributedSampler` repeats some samples, or leaves some out, so that all ranks have equally many: good for training,
    wrong for measuring. Here some ranks have one sample less. In a single process it gives all of them.

    dataset     what is dealt; its length is all that matters
    ranks       the process group that it is dealt to; default: all ranks of the job

    >>> list(UnpaddedSampler(range(5)))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, dataset: Sized, *, ranks: Ranks = None) -> None:
        if not hasattr(dataset, "__len__"):
            raise DataError(f"dataset: expected one of known length, got {type(dataset).__name__}.")
        at, size = self.places = place(ranks)
        self._mine = range(at, len(dataset), size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._mine)

    def __len__(self) -> int:
        return len(self._mine)


def dealt_to_others(parts: Iterable[Any]) -> str:
    """In words, that a sampler among the parts of a loader deals to other ranks than those that measure; else nothing."""
    _, size = place()
    first = "Call torch.distributed.init_process_group first, and make the sampler after it"
    cure, started = ("" if is_ready() else first), os.environ.get("WORLD_SIZE", "1")
    for part in parts:
        replicas = replicas_of(part)
        if replicas is not None and replicas != size:
            missing = "some samples are not measured" if replicas > size else "some samples count several times"
            measures = f"{size} measure" if size > 1 else "one process measures alone"
            deals = f"the loader's {type(part).__name__} deals to {replicas} rank{'s' * (replicas > 1)}, but {measures}"
            return f"{deals}: {missing}. {cure or 'Make a sampler for the ranks that measure'}"
        if replicas is not None and cure and started.isdecimal() and int(started) > 1:
            alone = f"each of the {started} processes (WORLD_SIZE) measures all samples alone"
            return f"torch.distributed is not initialized, so {alone}. {cure}"
    return ""


def replicas_of(part: Any) -> int | None:
    """To how many ranks a sampler deals, if it is one that does."""
    replicas = part.num_replicas if isinstance(part, DistributedSampler) else None
    return part.places[1] if isinstance(part, UnpaddedSampler) else replicas


def left_over(loader: Any) -> tuple[int, int]:
    """How many samples a loader with drop_last leaves out, and of how many."""
    batches: Any = getattr(loader, "batch_sampler", None)
    own: Any = batches.sampler if type(batches) is BatchSampler and batches.drop_last else None
    return (len(own) % batches.batch_size, len(own)) if hasattr(own, "__len__") else (0, 0)


made_apart: ContextVar[frozenset[str]] = ContextVar("made_apart", default=frozenset())
"""Which of "data" and "test" a user's own code gave to a command that deals, others on each rank: shares, which must not
overlap."""


class DealtTensors(tuple[Tensor, ...]):
    """Tensors of which a rank has every so many-th sample: `places` are the first one, and how many."""

    places: tuple[int, int]


class DealtSubset(Subset[Any]):
    """The same of a data set."""

    places: tuple[int, int]


def dealt(data: Any) -> Any:
    """The share of this process of data that all processes have whole: a pair of tensors or arrays, or a data set.

    Those that already differ from process to process are given back as they are, and so are loaders, streams and other
    kinds: they deal for themselves, and where they do not, `probe` says so.

    >>> dealt((torch.zeros(3, 2), torch.arange(3)))[1]
    tensor([0, 1, 2])
    """
    at, size = place()
    pair, placed = can_deal(data)
    if size == 1 or len(set(gathered(_beginning(data) if pair or placed else None))) > 1:
        return data
    share: Any = data
    if pair:
        share = DealtTensors(as_tensor(one[at::size], where="data") for one in data)
    elif placed:
        mine = list(UnpaddedSampler(data))
        share = data.at(torch.tensor(mine)) if isinstance(data, Prepared) else DealtSubset(data, mine)
    if share is not data:
        share.places = at, size
    return share


def can_deal(data: Any) -> tuple[bool, bool]:
    """Whether `dealt` knows how: these are tensors or arrays, or a data set."""
    pair = isinstance(data, (tuple, list)) and bool(data) and all(map(_is_rows, data))
    return pair, isinstance(data, Dataset) and hasattr(data, "__len__")


def _is_rows(value: Any) -> bool:
    """A tensor, an array or a table of numbers, with a row for every sample."""
    if isinstance(value, Tensor):
        return value.dim() > 0
    array = isinstance(value, np.ndarray) or hasattr(value, "to_numpy")
    return (
        array and value.ndim > 0 and np.asarray(value[:1]).dtype.kind in "biufc"
    )  # of others `probe` says what they are


def _beginning(data: Any) -> tuple[int, str]:
    """How many samples there are, and a checksum of the first, left out where they are another time others."""
    if isinstance(data, (tuple, list)):
        return len(data[0]), _checksum([as_tensor(one[:FIRST], where="data") for one in data])
    once, again = (_checksum([data[i] for i in range(min(FIRST, len(data)))]) for _ in range(2))
    return len(data), once if once == again else ""


def dealt_whole(parts: list[Any]) -> Any:
    """The data set that a loader, given with its parts, deals to all ranks, which must have it alike; else `None`."""
    of, size = getattr(parts[0], "dataset", None), place()[1]
    if isinstance(of, DealtSubset):
        return of.dataset
    return of if hasattr(of, "__len__") and any(replicas_of(part) == size for part in parts) else None


def mark_of_set(of: Any) -> tuple[int, str] | None:
    """How many samples a data set has, and a checksum of its state."""
    return None if of is None else (len(of), state_of(of))


def same_sets(sets: list[tuple[int, str] | None]) -> bool:
    """Whether these marks of all ranks are surely of one data set, or none has any."""
    return len(set(sets)) == 1 and all(one is None or one[1] for one in sets)


def unlike_sets(of: Any, sets: list[tuple[int, str] | None], *, suspect: bool) -> str | None:
    """In words, how data sets of these marks differ; nothing where they are the same, `None` where that is not known.

    All ranks call it. Other states may be of one set (a cache, the number of the rank): then some samples are read. Where
    states are not known, that is done for a set that is `suspect` only, since to read may change it.
    """
    sizes, states = zip(*(one for one in sets if one is not None), strict=True)
    if other := next((r for r, n in enumerate(sizes) if n != sizes[0]), 0):
        return f"got {sizes[0]} samples on rank 0 and {sizes[other]} on rank {other}"
    every = gathered(_some_of(of, 4 * FIRST if suspect else FIRST)) if suspect or all(states) else [[]]
    unlike = [any(a and b and a != b for a, b in zip(every[0], marks, strict=False)) for marks in every]
    if any(unlike):
        return f"got other samples, or another order, on rank {unlike.index(True)} than on rank 0"
    return "" if all(map(any, every)) else None


def _some_of(of: Any, count: int) -> list[str]:
    """Checksums of some samples, entry by entry (inputs, labels, …); left out where they are another time others."""
    try:
        places = sorted({len(of) * i // count for i in range(count)})
        reads = [[tree_leaves(of[i]) for i in places] for _ in range(3)]  # what is rare, may be the same twice
        marks = [[_checksum(list(entry)) for entry in zip(*read, strict=False)] for read in reads]
        return [same[0] if len(set(same)) == 1 else "" for same in zip(*marks, strict=True)]
    except Exception:  # what a data set gives may be anything
        return []


def _checksum(items: list[Any]) -> str:
    content = BytesIO()
    try:
        torch.save(tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, items), content)
    except Exception:  # what a data set gives may be anything
        return ""
    return sha256([content.getvalue()])


def whole_state(loader: Any) -> tuple[Any, ...] | None:
    """Of a loader that goes through all of its data set: how many samples, whether shuffled, and a checksum of its state."""
    if type(loader) is not DataLoader or type(loader.batch_sampler) is not BatchSampler:
        return None
    sampler, of = loader.sampler, loader.dataset
    known = type(sampler) in (SequentialSampler, RandomSampler) and bool(getattr(of, "__dict__", None))
    if not known or getattr(sampler, "replacement", False) or len(sampler) != len(of):  # type: ignore[arg-type]
        return None
    state = state_of(of)
    return (len(sampler), type(sampler) is RandomSampler, state) if state else None  # type: ignore[arg-type]


def state_of(of: Any) -> str:
    """A checksum of what a data set is made of; nothing where that is not known."""
    state = _State()
    try:
        _StatePickler(state).dump(of)
    except Exception:  # not every data set can be pickled, and not one of any size in time
        return ""
    return state.digest.hexdigest()


class _State:
    """Takes what a pickler writes."""

    def __init__(self) -> None:
        self.digest, self.size = hashlib.sha256(), 0

    def write(self, content: Any) -> None:
        """Add it to the checksum."""
        self.digest.update(content)
        self.count(len(content))

    def count(self, size: int) -> None:
        """Raise where it is too much."""
        self.size += size
        if self.size > MOST_STATE:
            raise OverflowError


class _StatePickler(pickle.Pickler):
    """Of tensors it writes a checksum, of functions and classes the name: transforms may be lambdas."""

    def __init__(self, to: _State) -> None:
        super().__init__(to, 4)
        self.to = to

    def reducer_override(self, value: Any) -> Any:
        """What is written instead of a value."""
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self.to.count(ONE_TENSOR)
            start = value.flat[: MOST_OF_TENSOR // max(1, value.itemsize)]
            return str, (f"{value.dtype} {value.shape} {sha256([start.tobytes()])}",)
        if isinstance(value, Tensor):
            self.to.count(ONE_TENSOR)
            return str, (_beginning_of(value),)
        if isinstance(value, torch.Generator | random.Random | np.random.Generator | np.random.RandomState):
            return str, ("random numbers",)  # others on every rank
        if isinstance(value, type | FunctionType) and value is not str:
            return str, (f"{value.__module__} {value.__qualname__}",)
        return NotImplemented


def _beginning_of(tensor: Tensor) -> str:
    """Its dtype, shape and a checksum of its first bytes, which is left out where there are none to be read."""
    kind = f"{tensor.dtype} {tuple(tensor.shape)}"
    try:
        start = tensor.detach().reshape(-1)[: MOST_OF_TENSOR // tensor.element_size()]
        return f"{kind} {sha256([start.cpu().contiguous().view(torch.uint8).numpy()])}"
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return kind
