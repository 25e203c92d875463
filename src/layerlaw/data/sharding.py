"""Data dealt to the ranks of a job: every sample to one of them, none twice."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
from collections.abc import Iterable, Iterator, Sized
from io import BytesIO
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
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
        replicas = part.num_replicas if isinstance(part, DistributedSampler) else None
        replicas = part.places[1] if isinstance(part, UnpaddedSampler) else replicas
        if replicas is not None and replicas != size:
            missing = "some samples are not measured" if replicas > size else "some samples count several times"
            measures = f"{size} measure" if size > 1 else "one process measures alone"
            deals = f"the loader's {type(part).__name__} deals to {replicas} rank{'s' * (replicas > 1)}, but {measures}"
            return f"{deals}: {missing}. {cure or 'Make a sampler for the ranks that measure'}"
        if replicas is not None and cure and started.isdecimal() and int(started) > 1:
            alone = f"each of the {started} processes (WORLD_SIZE) measures all samples alone"
            return f"torch.distributed is not initialized, so {alone}. {cure}"
    return ""


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
    pair = isinstance(data, (tuple, list)) and bool(data) and all(map(_is_rows, data))
    placed = isinstance(data, Dataset) and hasattr(data, "__len__")
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
    state = _State()
    try:
        _StatePickler(state).dump(of)
    except Exception:  # not every data set can be pickled, and not one of any size in time
        return None
    return len(sampler), type(sampler) is RandomSampler, state.digest.hexdigest()  # type: ignore[arg-type]


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
            value = torch.from_numpy(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
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
