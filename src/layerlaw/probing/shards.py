"""One network and its data on several processes: the same weights, and samples of which one process may have none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from layerlaw.capture.batches import Batch, Batches
from layerlaw.capture.fingerprint import row_sums
from layerlaw.capture.hooks import unobserved
from layerlaw.capture.plan import Plan
from layerlaw.errors import DataError, InputError, PassError
from layerlaw.files import sha256
from layerlaw.probing.classes import Classes
from layerlaw.probing.targets import Targets
from layerlaw.stats.ranks import all_reduce, from_first, gathered, rank, world_size
from layerlaw.threads import users_device
from layerlaw.wording import first_other

T = TypeVar("T")
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}|(?<=cuda:)\d+")  # what a printed network has of its own on every rank
SAME_ARGUMENTS = "Give all of them the same model and arguments: only the data are dealt"
ENOUGH = 3  # samples, for a dry run


@dataclass(frozen=True)
class Step:
    """One batch: its labels as 0 … K−1 (or targets (n, q)), and the rows that are of measured classes (`None`: all).

    `start`: how many samples came to this rank before; `borrowed`: they are another rank's, and not counted here.
    """

    batch: Batch
    labels: Tensor
    rows: Tensor | None
    where: str
    start: int = 0
    borrowed: bool = False


@contextmanager
def same_network(
    network: nn.Module, batchnorm: str = "running", *, null: bool = False, asked: Mapping[str, Any] | None = None
) -> Iterator[list[str]]:
    """The same network on all ranks: other weights are an error, of other buffers those of rank 0 are used in here.

    Gives notes on what was done. Statistics of different networks would be those of no network. `asked` are arguments, which
    must be the same too; they come first, since some of them say what the ranks exchange behind them.
    """
    if null and is_sharded(network):
        why = "got one that is sharded over the ranks (FSDP, tensor parallel), whose parts cannot be drawn anew alone"
        cure = "Shard a freshly made network in the same way, and measure that by itself"
        raise InputError(f"null=True: expected a model that is whole on every rank, {why}. {cure}.")
    if world_size() == 1:
        yield []
        return
    printed = ADDRESS.sub("", repr(network)).splitlines()  # activations, eps: what no parameter tells
    every = dict(network.named_buffers())
    of_model = {"modules as printed": tuple(map(str.strip, printed)), "buffers": tuple(sorted(every))}
    unused = () if batchnorm == "running" else tuple(_running_statistics(network))
    buffers = {name: b for name, b in every.items() if name not in unused and not _elsewhere(b)}
    marks = _marks({name: p for name, p in network.named_parameters() if not _elsewhere(p)}, buffers)
    alike = check_alike({**(asked or {}), **of_model}, beside=marks)  # a call takes a millisecond of the processor
    weights, differ = ([], []) if alike else _different(marks)
    _check_same_weights(weights, network)
    with ExitStack() as stack:
        for name in differ:
            buffer = buffers.get(name)
            shapes = gathered(None if buffer is None else f"{buffer.dtype} {tuple(buffer.shape)}")
            if buffer is None or len(set(shapes)) > 1:
                got = ", ".join(f"{shape or 'none that is whole'} on rank {r}" for r, shape in enumerate(shapes))
                raise PassError(f"buffer '{name}': expected one dtype and shape on all ranks, got {got}.")
            own = buffer.detach().clone()
            stack.callback(_set, buffer, own)
            _set(buffer, from_first(own))
        normal = set(differ) <= set(_running_statistics(network))
        which = "running statistics of BatchNorm differ" if normal else f"buffers ({_some(differ)}) differ"
        yield [f"The {which} between the {world_size()} ranks: those of rank 0 were used on all."] if differ else []


def check_alike(facts: Mapping[str, Any], beside: Any = None) -> bool:
    """Raise, on all ranks, where one of these is not the same on all of them: the first, with what two of them have.

    They are compared as printed, by checksums. Gives whether what is `beside` them, asked in the same call, is the same too.
    """

    def checksum(value: Any) -> str:
        return sha256([repr(value).encode()])

    known = gathered((checksum(facts), checksum(beside)))
    differ = any(of_rank[0] != known[0][0] for of_rank in known)
    marks = gathered({name: checksum(value) for name, value in facts.items()}) if differ else []
    for name, mine in facts.items():
        other = next((r for r, of_rank in enumerate(marks) if of_rank[name] != marks[0][name]), None)
        if other is not None:
            values = gathered(mine)  # before, checksums: some are long
            here, there, at = first_other(values[0], values[other])
            got = f"got {here} on rank 0 and {there} on rank {other}{at}"
            raise InputError(f"{name}: expected the same on all {world_size()} ranks, {got}. {SAME_ARGUMENTS}.")
    return all(of_rank[1] == known[0][1] for of_rank in known)


def check_same_plan(plan: Plan, classes: Classes | Targets) -> None:
    """Raise where ranks measure other sites or classes: sums of one size would be added up, and mean nothing."""
    if world_size() > 1:
        facts = {
            "sites": tuple(site.name for site in plan.sites),
            "features of the sites": tuple(f"{site.features} at '{site.name}'" for site in plan.sites),
            "labels": type(classes).__name__.lower(),
            "classes": classes.ids,
            "names of the classes": classes.names,
            "scores": classes.undecided or str(classes.scores),
        }
        check_alike(facts)


def is_sharded(network: nn.Module) -> bool:
    """Whether a forward needs other ranks, because they hold parts of the weights (FSDP, tensor parallel)."""
    for module in network.modules():
        own = module._parameters.values()  # `network.parameters()` would go through all modules once more
        away = any(one is not None and _elsewhere(one) and not one.is_meta for one in own)
        if away or type(module).__name__ == "FullyShardedDataParallel":
            return True
    return False


def forward_along(network: nn.Module, *args: Any, **kwargs: Any) -> None:
    """A forward for the sake of other ranks, where they need this one inside of theirs; nothing of it is counted."""
    if world_size() > 1 and is_sharded(network):
        with unobserved(), users_device():
            network(*args, **kwargs)


def own_share(batches: Sequence[tuple[int, T]], network: nn.Module) -> list[tuple[int | None, T]]:
    """Of batches that all ranks know, those of this one, with their groups.

    Where a forward needs all ranks, one that has a batch less gets one without a group, to forward without counting it.
    """
    mine: list[tuple[int | None, T]] = list(batches[rank() :: world_size()])
    if len(mine) < -(-len(batches) // world_size()) and is_sharded(network):
        mine.append((None, batches[0][1]))
    return mine


def check_same_text(checksum: str) -> None:
    """Raise where ranks that share a text have different ones."""
    if len(set(gathered(checksum))) > 1:
        cure = "Each takes its share of the batches: give the whole text to all"
        raise InputError(f"text: expected the same text on all {world_size()} ranks, got different ones. {cure}.")


def _check_same_weights(differ: list[str], network: nn.Module) -> None:
    if differ:
        kinds = gathered([str(p.dtype).removeprefix("torch.") for n, p in network.named_parameters() if n == differ[0]])
        other = next((r for r, kind in enumerate(kinds) if kind != kinds[0]), None)
        likely = "seeded otherwise, or loaded from another checkpoint"
        cure = "Load, seed (torch.manual_seed) or broadcast the same weights on all ranks"
        if other is not None and all(kinds):
            likely = f"{kinds[0][0]} on rank 0, {kinds[other][0]} on rank {other}"
            cure = "Convert the model to one dtype on all ranks, e.g. by model.float()"
        parts = "ranks that hold parts of one model pass `ranks`, the group over which the data are dealt"
        raise PassError(
            f"expected the same weights on all {world_size()} ranks, got different ones in {_some(differ)} ({likely}). "
            f"{cure}; {parts}."
        )


def _marks(*kinds: Mapping[str, Tensor]) -> list[dict[str, str]]:
    """Of each kind of tensors a mark of every one, by its name: dtype, shape and an exact sum of all of its numbers."""
    tensors = [tensor for kind in kinds for tensor in kind.values()]
    sums = [_sum_of(tensor) for tensor in tensors]
    places = {one.device for one in sums if one is not None}  # each of which is waited for once
    told = {at: iter(torch.cat([s for s in sums if s is not None and s.device == at]).tolist()) for at in places}
    numbers = ("" if one is None else next(told[one.device]) for one in sums)
    marks = (f"{t.dtype} {tuple(t.shape)} {number}" for t, number in zip(tensors, numbers, strict=True))
    return [{name: next(marks) for name in kind} for kind in kinds]


def _different(mine: list[dict[str, str]]) -> list[list[str]]:
    """Of each kind the names of the tensors whose marks are not the same on all ranks, or not there on all."""
    found = []
    for known in zip(*gathered(mine), strict=True):
        names = dict.fromkeys(name for of_rank in known for name in of_rank)
        found.append([name for name in names if len({of_rank.get(name) for of_rank in known}) > 1])
    return found


def _sum_of(tensor: Tensor) -> Tensor | None:
    """An exact sum (1,) of a tensor, on its own device; `None` where there are no numbers to be read."""
    try:
        return row_sums(tensor.detach().reshape(1, tensor.numel()), keep=False)
    except (NotImplementedError, RuntimeError, TypeError, ValueError):  # some quantized weights
        return None


def _elsewhere(tensor: Tensor) -> bool:
    """Whether a tensor is put away, or only a part of it is here."""
    return tensor.is_meta or hasattr(tensor, "full_tensor") or type(tensor).__name__ == "FlatParameter"


def _running_statistics(network: nn.Module) -> Iterator[str]:
    """The names of BatchNorm's buffers."""
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm):
            yield from (f"{name}.{key}".lstrip(".") for key in module._buffers)


def _set(buffer: Tensor, content: Tensor) -> None:
    with torch.no_grad():
        buffer.copy_(content)


def _some(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)


def first_batch(data: Batches) -> Batch:
    """The first batch; samples of another rank, where this one has too few to see how shapes grow with them."""
    first = next(iter(data), None)
    if world_size() > 1:
        sizes = gathered(0 if first is None else len(first.labels))
        if max(sizes) == 0:
            raise DataError(f"{data.where}: expected samples, got none on all {world_size()} ranks.")
        few = None if first is None else first.first(ENOUGH)
        if min(sizes) < ENOUGH:  # some rank needs those of another one
            giver = sizes.index(max(sizes))
            sent = None if few is None or rank() != giver else replace(few._each(Tensor.cpu), labels=few.labels.cpu())
            few = gathered(sent)[giver]
        data.spare = few
        data.labels = data.labels if sizes[rank()] else None  # there are none to be known
        first = data.spare if sizes[rank()] < ENOUGH else first
    assert first is not None
    return first


def looked_up(classes: Classes | Targets, given: Tensor, batch: Batch, where: str) -> tuple[Tensor, Tensor | None]:
    """Labels of a batch as 0 … K−1 on its device, and the rows to keep; `given` may be on the CPU: no GPU is waited for."""
    labels, rows = classes.positions(given, f"labels of {where}")
    device = batch.labels.device
    return batch.labels if labels is given else labels.to(device, non_blocking=labels.is_cpu), rows


def borrowed(data: Batches, classes: Classes | Targets, device: torch.device | None) -> Step | None:
    """A few samples for a rank that has none to count: its statistics have the same shapes then, and add nothing."""
    if data.spare is None:
        return None
    # They may be its own, of classes that are not measured, whose NaN one process would not look at.
    batch, where = data.spare.to(device).finite(), f"{data.where}, samples that are not counted"
    if isinstance(classes, Targets):
        labels = classes.positions(batch.labels, where)[0]
    else:
        labels = torch.arange(len(batch.labels), device=batch.labels.device) % classes.K  # theirs may not be measured
    return Step(batch, labels, None, where, borrowed=True)


class Pace:
    """Ranks that must forward equally often, because each holds a part of the weights: one that has nothing more to count
    forwards as long as others do. Other networks go on alone."""

    def __init__(self, network: nn.Module, data: Batches, device: torch.device | None) -> None:
        self.network, self.data, self.device = network, data, device
        self.together = world_size() > 1 and is_sharded(network)

    def go_on(self, mine: bool) -> bool:
        """Whether there is another forward: this rank's own, or any other's where they keep pace."""
        if not self.together:
            return mine
        going = torch.tensor([float(mine)], dtype=torch.float64)
        all_reduce([going], always=True)
        return float(going) > 0

    def forward_only(self) -> None:
        """A forward for the sake of the others, of which nothing is counted."""
        if self.together and self.data.spare is not None:
            here = self.data.spare.to(self.device).copy()
            forward_along(self.network, *here.args, **here.kwargs)
