"""The data and the randomness of a training, read and put back so that the training goes on bit by bit as it would have."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from layerlaw.capture.network import Randomness, seeding
from layerlaw.errors import InputError
from layerlaw.threads import users_device

FEW = 16  # samples that are read twice, to see whether they stay the same
LONGEST = 100  # entries of a list or dictionary in which generators are looked for
DEEPEST = 10


def reread(data: Any, *, where: str = "data", seed: int = 0) -> Any:
    """Data that can be read between two steps of a training, in the same order whenever they are read.

    Of a DataLoader a second one is made over the same samples: the order, the batches in flight and the workers of the
    first are the training's own. Under several processes each reads its own share, as a DistributedSampler deals it.
    """
    if isinstance(data, Iterator):
        came = f"got a one-shot iterator ({type(data).__name__})"
        raise InputError(f"{where}: expected data that can be read again and again, {came}. Pass the loader itself.")
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset) and not _has_length(dataset):
        why = "reading from it would take samples away from the training"
        cure = f"Pass a fixed part of it: {where}=list(itertools.islice(loader, 20))"
        raise InputError(
            f"{where}: expected data of known length, got an IterableDataset without length: {why}. {cure}."
        )
    if not isinstance(data, DataLoader):
        return data
    workers = data.num_workers
    how: dict[str, Any] = {
        "collate_fn": data.collate_fn,
        "num_workers": workers,
        "worker_init_fn": data.worker_init_fn,
        "timeout": data.timeout,
        "generator": _generator(seed),
    }
    if workers:
        how |= {"multiprocessing_context": data.multiprocessing_context, "prefetch_factor": data.prefetch_factor}
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size=data.batch_size, drop_last=data.drop_last, **how)
    batches = data.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:  # it decides what is in a batch
        return DataLoader(dataset, batch_sampler=_drawn(batches, f"{where}: its batch sampler", seed), **how)
    chosen = _samples(data.sampler, where, seed)
    samples: Dataset[Any] = dataset if chosen is None else Subset(dataset, chosen)
    return DataLoader(samples, batch_size=data.batch_size or 1, drop_last=data.drop_last, **how)


def _samples(sampler: Any, where: str, seed: int) -> Sequence[int] | None:
    """Which samples a sampler deals, each once, in an order that stays; `None`: all as they lie.

    What is shuffled for the training is shuffled here, once: data sorted by class would give batches of one class.
    """
    if isinstance(sampler, SequentialSampler):
        return None
    if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(sampler.data_source):
        return _shuffled(len(sampler), seed)
    if type(sampler) is SubsetRandomSampler:
        return [sampler.indices[i] for i in _shuffled(len(sampler), seed)]
    if isinstance(sampler, DistributedSampler):  # without those it repeats to deal equally many
        n = len(sampler.dataset)  # type: ignore[arg-type]
        order = _shuffled(n, seed) if sampler.shuffle else list(range(n))
        return order[sampler.rank :: sampler.num_replicas]
    return list(_drawn(sampler, f"{where}: its sampler", seed))


def _shuffled(n: int, seed: int) -> list[int]:
    found: list[int] = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def _generator(seed: int) -> torch.Generator:
    """For a loader, which draws from it where the user's default device is."""
    with users_device():
        return torch.Generator(torch.empty(0).device).manual_seed(seed)


def _drawn(sampler: Any, what: str, seed: int) -> list[Any]:
    """What a copy of somebody's own sampler gives; the training's own one does not notice."""
    try:
        twin = copy.deepcopy(sampler)
    except Exception as error:  # somebody's own class may hold anything
        why = f"a {type(sampler).__name__} cannot be copied ({type(error).__name__}: {error})"
        raise InputError(f"{what}: {why}, and must not be used between steps. Pass the samples by data=.") from None
    with seeded(seed):
        return list(twin)


@contextmanager
def seeded(seed: int, *data: Any) -> Iterator[None]:
    """Every generator of the process set to the seed; afterwards as it was, and so are those that the data hold."""
    put_back = [restore for one in data for restore in _generators(one)]
    with Randomness():
        try:
            with seeding(seed):
                yield
        finally:
            for restore in put_back:
                restore()


def drawn_anew(data: Any, *, seed: int = 0) -> bool:
    """Whether samples of a data set differ when they are read again, as by augmentation; `False` where that is not seen.

    A few are read twice, one time after the other: in a worker, where the loader has workers, since some data sets open
    files with the first reading that a later process must not share.
    """
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if not isinstance(dataset, Dataset) or isinstance(dataset, IterableDataset):
        return False
    how: dict[str, Any] = {"generator": _generator(seed)}
    if isinstance(data, DataLoader):
        how |= {"collate_fn": data.collate_fn, "worker_init_fn": data.worker_init_fn, "timeout": data.timeout}
        if data.num_workers:
            how |= {"num_workers": 1, "multiprocessing_context": data.multiprocessing_context}
    batches = getattr(data, "batch_sampler", None)
    try:
        own = batches is not None and type(batches) is not BatchSampler
        few = list(next(iter(batches)))[:FEW] if own else list(range(min(FEW, len(dataset))))  # type: ignore[arg-type]
        with seeded(seed, data):
            once, again = DataLoader(dataset, batch_sampler=[few, few], **how)
        return not _same(once, again)
    except Exception:  # data that fail are told of by the measurement
        return False


def _same(a: Any, b: Any) -> bool:
    """Whether two batches hold the same numbers; what is no tensor or array is not looked at."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is as NaN
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype.kind in "biufc":
        return _same(torch.as_tensor(a), torch.as_tensor(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return True


def _generators(root: Any) -> list[Callable[[], object]]:
    """What puts back the random generators that a data set, its transforms or its collate function hold."""
    found: list[Callable[[], object]] = []
    seen: set[int] = set()

    def look(value: Any, depth: int) -> None:
        if id(value) in seen or depth > DEEPEST or isinstance(value, (Tensor, np.ndarray, nn.Module, str, bytes, type)):
            return
        seen.add(id(value))
        if isinstance(value, torch.Generator):
            found.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            found.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.RandomState):
            found.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, np.random.Generator):
            found.append(partial(setattr, value.bit_generator, "state", value.bit_generator.state))
        else:
            for one in _inside(value):
                look(one, depth + 1)

    look(root, 0)
    return found


def _inside(value: Any) -> list[Any]:
    """What a container, a partial function or an object holds, the first so many."""
    if isinstance(value, (list, tuple)):
        return list(value[:LONGEST])
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return list(itertools.islice(held.values(), LONGEST))


def _has_length(data: Any) -> bool:
    try:
        return len(data) >= 0
    except (TypeError, NotImplementedError):
        return False


def check_unsharded(model: nn.Module) -> None:
    """Raise where the weights of a model are dealt to several processes: none of them could run it for a measurement."""
    how = ""
    if any("FullyShardedDataParallel" in type(module).__name__ for module in model.modules()):
        how = "FSDP"
    elif any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        how = "DTensor, as by fully_shard or tensor parallelism"
    elif any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        how = "DeepSpeed ZeRO-3"
    if how:
        cure = "Save checkpoints with whole weights and measure those with layerlaw.probe"
        raise InputError(f"model: expected whole weights in every process, got a sharded model ({how}). {cure}.")
