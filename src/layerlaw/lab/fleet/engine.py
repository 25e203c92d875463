"""Epochs of a fleet in a sweep: orders of the samples, CUDA graphs, measurements, state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from layerlaw.lab.fleet import Fleet
from layerlaw.lab.fleet.measuring import measure_fleet
from layerlaw.lab.losses import CrossEntropy
from layerlaw.lab.networks.feed_forward import Shape
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Measurement, Schedule

GRAPH_FROM = 5  # epochs: fewer are not worth a capture


def fleet_takes(recipe: Recipe, schedule: Schedule) -> bool:
    """Whether a member can be trained as part of a fleet: feed-forward, cross-entropy, measured layer by layer."""
    plain = isinstance(recipe.network, Shape) and recipe.loss == CrossEntropy()
    return plain and schedule.sites in ("auto", "layers")


class FleetEngine:
    """Members of one fleet, an epoch at a time; on CUDA as a graph, where there are epochs enough for capturing it."""

    @torch.no_grad()
    def __init__(
        self,
        recipes: Sequence[Recipe],
        samples: Sequence[Samples],
        schedule: Schedule,
        *,
        start: Sequence[Mapping[str, Tensor]] | None = None,
        copied: tuple[int, int] | None = None,
        device: str = "cpu",
    ) -> None:
        self._fleet, self._schedule = Fleet(recipes, samples, device), schedule
        for member, state in enumerate(start or []):
            self._fleet.load_state_dict(member, state, copied)
        self._orders = Orders([r.seed for r in recipes], len(samples[0].labels))
        self._epoch: Callable[[Tensor], Tensor] | None = None

    @torch.no_grad()
    def train_epoch(self, epoch: int) -> Tensor:
        """The losses (E,) of an epoch, counted from 0; still on the device."""
        fleet = self._fleet
        if self._epoch is None and fleet.device.type == "cuda" and fleet.recipes[0].epochs - epoch >= GRAPH_FROM:
            fleet.start_epoch(0)
            self._epoch = EpochGraph(fleet)
        elif self._epoch is None:
            self._epoch = lambda orders: fleet.train_epoch(orders.to(fleet.device))
        fleet.start_epoch(epoch)
        return self._epoch(self._orders.next()).clone()

    @torch.no_grad()
    def measure(self, epoch: int) -> list[list[Measurement]]:
        """Of every member."""
        return measure_fleet(self._fleet, self._schedule, epoch)

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        return self._fleet.state()

    def resume(self, state: Mapping[str, Any], epoch: int) -> None:
        """Go on as after so many epochs."""
        for name, tensor in self._fleet.state().items():
            tensor.copy_(state[name])
        self._orders.skip(epoch)

    def state_dict(self, member: int) -> dict[str, Tensor]:
        """One member as the state of a `FeedForward`."""
        return self._fleet.state_dict(member)


class Orders:
    """A new random order of n samples for every epoch, drawn from each member's seed as the plain loop draws it.

    >>> Orders([1, 2, 1], 4).next().shape
    torch.Size([3, 4])
    """

    def __init__(self, seeds: Sequence[int], samples: int) -> None:
        self.samples = samples
        self._seeds = list(dict.fromkeys(seeds))
        self._generators = [torch.Generator().manual_seed(seed) for seed in self._seeds]
        self._member = torch.tensor([self._seeds.index(seed) for seed in seeds])
        self._drawn = torch.empty((len(self._seeds), samples), dtype=torch.int64)

    def next(self) -> Tensor:
        """(E, n); members of one seed share it."""
        for generator, row in zip(self._generators, self._drawn, strict=True):
            torch.randperm(self.samples, generator=generator, out=row)
        return self._drawn[self._member]

    def skip(self, epochs: int) -> None:
        """Go on as after this many epochs."""
        for _ in range(epochs):
            self.next()


class EpochGraph:
    """An epoch as one CUDA graph, replayed with new orders; what its epochs of warm-up change is put back."""

    def __init__(self, fleet: Fleet) -> None:
        self._orders = torch.arange(fleet.rows.shape[1], device=fleet.device).repeat(len(fleet), 1)
        kept = {name: tensor.clone() for name, tensor in fleet.state().items()}
        side = torch.cuda.Stream(fleet.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(fleet.device))
        with torch.cuda.stream(side):
            for _ in range(2):
                fleet.train_epoch(self._orders)
        torch.cuda.current_stream(fleet.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._losses = fleet.train_epoch(self._orders)
        for name, tensor in fleet.state().items():
            tensor.copy_(kept[name])

    def __call__(self, orders: Tensor) -> Tensor:
        """Train one epoch; returns the losses (E,), which the next call overwrites."""
        self._orders.copy_(orders, non_blocking=True)
        self._graph.replay()
        return self._losses


def member_bytes(recipe: Recipe, samples: Samples) -> int:
    """About what one more member needs: parameters, gradients, optimizer, activations of a batch, of a measurement."""
    assert isinstance(recipe.network, Shape)
    sides = recipe.network.sides
    parameters = sum(i * o + 3 * o for i, o in sides)
    batch = recipe.batch_size * sum(3 * o + i for i, o in sides)
    return 4 * (parameters * 6 + batch) + 16 * len(samples.labels)


def members_that_fit(recipe: Recipe, samples: Samples, device: str) -> int:
    """How many members would fit the device, with a fifth of its memory to spare."""
    where = torch.device(device)
    memory = torch.cuda.get_device_properties(where).total_memory if where.type == "cuda" else 4 * 2**30
    return int(0.8 * memory) // member_bytes(recipe, samples)
