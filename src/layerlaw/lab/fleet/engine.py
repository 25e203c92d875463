"""Epochs of a fleet in a sweep: orders of the samples, CUDA graphs, state; and D of every member, on its device."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import groupby, product
from typing import Any

import torch
from torch import Tensor

from layerlaw.capture.recording import Mode, recording
from layerlaw.lab.fleet import Fleet
from layerlaw.lab.fleet.images import ImageFleet
from layerlaw.lab.fleet.rows import fused_path
from layerlaw.lab.losses import CrossEntropy
from layerlaw.lab.networks.feed_forward import Shape
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import (
    CHUNK,
    COLLAPSE,
    Measurement,
    Schedule,
    SplitName,
    chunk_order,
    collapse_columns,
    held_out,
    permuted_order,
)
from layerlaw.measures.collapse import self_duality
from layerlaw.measures.separation import class_separation
from layerlaw.measures.site import SiteStatistics
from layerlaw.stats import Centers, ClassSums, Frame, NearestCenter, Scatter, find_centers, project
from layerlaw.stats.careful import not_believed
from layerlaw.stats.precision import double, full_precision
from layerlaw.wording import finite

GRAPH_FROM = 5  # epochs: fewer are not worth a capture
SCRATCH = {"cpu": 2**28, "cuda": 2**34}  # bytes of features worked on at once while measuring
GPU_SHARE = 0.6  # of a GPU's memory, that members may take
MANY_CENTERS = 500  # sets of class means that are worth a thread
AHEAD = 4  # epochs whose orders may wait for the GPU
_starting = threading.Lock()  # kernels are compiled, and graphs recorded, by one thread at a time


def fleet_takes(recipe: Recipe, schedule: Schedule) -> bool:
    """Whether a member is trained as part of a fleet anywhere: feed-forward, cross-entropy, measured layer by layer."""
    plain = (
        isinstance(recipe.network, Shape) and recipe.loss == CrossEntropy() and recipe.precision in (None, "float32")
    )
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
        kind: type[Fleet | ImageFleet] = Fleet if isinstance(recipes[0].network, Shape) else ImageFleet
        self._schedule, self._orders = schedule, Orders([r.seed for r in recipes], len(samples[0].labels))
        self._epoch: EpochGraph | None = None
        with _starting:  # at once, so that the first fleet trains while others are made
            self._fleet = kind(recipes, samples, device)
            if self._fleet.device.type == "cuda" and recipes[0].epochs >= GRAPH_FROM:
                self._fleet.start_epoch(0)
                self._epoch = EpochGraph(self._fleet, self._orders)
        for member, state in enumerate(start or []):
            self._fleet.load_state_dict(member, state, copied)
        self.how = self._fleet.how

    @torch.no_grad()
    def train_epoch(self, epoch: int) -> Tensor:
        """The losses (E,) of an epoch, counted from 0; still on the device."""
        fleet = self._fleet
        fleet.start_epoch(epoch)
        if self._epoch is None:
            return fleet.train_epoch(self._orders.next().to(fleet.device)).clone()
        return self._epoch().clone()

    @torch.no_grad()
    def measure(self, epoch: int) -> list[list[Measurement]]:
        """Of every member."""
        if isinstance(self._fleet, ImageFleet):
            return self._fleet.measure(self._schedule, epoch)
        return measure_fleet(self._fleet, self._schedule, epoch)

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        return self._fleet.state()

    def resume(self, state: Mapping[str, Any], epoch: int) -> None:
        """Go on as after so many epochs."""
        for name, tensor in self._fleet.state().items():
            tensor.copy_(state[name])
        self._orders.skip(epoch)

    def state_dicts(self) -> list[dict[str, Tensor]]:
        """Of every member, on the CPU."""
        return list(self._fleet.state_dicts())


class Orders:
    """A new random order of n samples for every epoch, drawn from each member's seed as the plain loop draws it.

    >>> Orders([1, 2, 1], 4).next().shape
    torch.Size([3, 4])
    """

    def __init__(self, seeds: Sequence[int], samples: int) -> None:
        self.samples = samples
        places = {seed: i for i, seed in enumerate(dict.fromkeys(seeds))}
        self._generators = [torch.Generator().manual_seed(seed) for seed in places]
        self.member = torch.tensor([places[seed] for seed in seeds])
        self._drawn = self.empty()

    def empty(self, *, pinned: bool = False) -> Tensor:
        """Room for one order of every seed (S, n); pinned: to be copied to a GPU while it works."""
        return torch.empty((len(self._generators), self.samples), dtype=torch.int64, pin_memory=pinned)

    def draw(self, out: Tensor) -> None:
        """The next order of every seed (S, n); that of each member is in the row `member` says (E,)."""
        for generator, row in zip(self._generators, out.unbind(), strict=True):
            torch.randperm(self.samples, generator=generator, out=row)

    def next(self) -> Tensor:
        """(E, n); members of one seed share it."""
        self.draw(self._drawn)
        return self._drawn[self.member]

    def skip(self, epochs: int) -> None:
        """Go on as after this many epochs."""
        for _ in range(epochs):
            self.next()


class EpochGraph:
    """An epoch as one CUDA graph, replayed with new orders; what its epochs of warm-up change is put back.

    On the fused path nothing waits for the GPU: the orders of the next epochs are drawn and copied while it works, into
    buffers that are drawn into again only after an event has said that their copy is done.
    """

    def __init__(self, fleet: Fleet | ImageFleet, orders: Orders) -> None:
        self._orders, self._device = orders, fleet.device
        self._waiting = [orders.empty(pinned=True) for _ in range(AHEAD if fused_path() else 0)]
        self._copied = [torch.cuda.Event(blocking=True) for _ in self._waiting]  # type: ignore[no-untyped-call]
        self._epoch = 0
        many = len(self._waiting[0] if self._waiting else fleet)
        self._there = torch.arange(orders.samples, device=fleet.device).repeat(many, 1)  # (E, n), or (S, n) ahead
        self._member = orders.member.to(fleet.device)  # kept as long as the graph that reads it
        kept = {name: tensor.clone() for name, tensor in fleet.state().items()}
        side = torch.cuda.Stream(fleet.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(fleet.device))
        with torch.cuda.stream(side):
            for _ in range(2):
                fleet.train_epoch(self._there[self._member] if self._waiting else self._there)
        torch.cuda.current_stream(fleet.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(fleet.device)
        torch.cuda.empty_cache()
        mode: Mode = "thread_local" if self._waiting else "global"  # other threads may train other fleets
        with recording(self._graph, side, mode=mode):
            self._losses = fleet.train_epoch(self._there[self._member] if self._waiting else self._there)
        for name, tensor in fleet.state().items():
            tensor.copy_(kept[name])

    def __call__(self) -> Tensor:
        """Train one epoch; returns the losses (E,), which the next call overwrites."""
        if self._waiting:
            at = self._epoch % AHEAD
            self._copied[at].synchronize()
            self._orders.draw(self._waiting[at])
            self._there.copy_(self._waiting[at], non_blocking=True)
            self._copied[at].record(torch.cuda.current_stream(self._device))
        else:
            self._there.copy_(self._orders.next(), non_blocking=True)
        self._graph.replay()
        self._epoch += 1
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


def measure_fleet(fleet: Fleet, schedule: Schedule, epoch: int) -> list[list[Measurement]]:
    """The measurements of every member: [member][mode and split]."""
    found: list[list[Measurement]] = [[] for _ in range(len(fleet))]
    widths = fleet.shape.inputs, *fleet.shape.widths
    longest = max(_length(fleet, split) for split in schedule.splits)
    held = 6 * (2 if fleet.device.type == "cpu" else fleet.shape.depth)  # copies of a site's features
    step = max(1, SCRATCH.get(fleet.device.type, SCRATCH["cuda"]) // (4 * held * longest * max(widths)))
    with full_precision():
        for batchnorm in schedule.batchnorm:
            known: dict[int, list[Centers]] = {}  # the training samples' class means: the test samples' references
            for split, members in product(schedule.splits, list(_blocks(fleet, step))):
                chunk = {"running": None, "whole": _length(fleet, split)}.get(batchnorm, CHUNK)
                x, labels = _samples(fleet, split, members)
                K = fleet.samples[members.start].classes
                true = fleet.labels[members] if split == "permuted" else labels
                if (order := chunk_order(batchnorm, true, K)) is not None:
                    x, labels = x.gather(1, order.unsqueeze(-1).expand_as(x)), labels.gather(1, order)
                inputs = x.mT  # (E, d, n)
                *features, logits = [inputs, *fleet.site_features(inputs, chunk=chunk, members=members)]
                columns, real = [], split != "permuted"
                extras: list[dict[str, Tensor]] = []
                for i, run in enumerate(_alike(features)):
                    looked_up = known[members.start][i] if split == "test" else None
                    decision = logits.argmax(1) if schedule.collapse and real else None
                    read, centers, extra = _measured(run, labels, K, looked_up, decision)
                    columns += read
                    extras += extra
                    if split == "train" and schedule.test:
                        known.setdefault(members.start, []).append(centers)
                if extras:  # the last site is what the classifiers read, and the last rows of its group are theirs
                    E, rows = len(labels), fleet.weights[-1][members].double()
                    means = (centers.means - centers.mean.unsqueeze(-2))[-E:]
                    extras[-1] |= {"nc3": self_duality(means, rows), "nc4": extras[-1]["ncc_mismatch"]}
                D, nearest, rank, per_class = (torch.stack(c, -1) for c in zip(*columns, strict=True))  # (E, …, sites)
                losses = -torch.log_softmax(logits, 1).gather(1, labels.unsqueeze(1)).mean((1, 2))
                hits = (logits.argmax(1) == labels).double().mean(-1)
                plain = [t.cpu().tolist() for t in (D, nearest, rank, losses, hits, per_class.mT)]
                collapse = [_collapse_of(extras, member) for member in range(len(labels))]
                for member, (separation, near, ranks, loss, right, classes) in enumerate(zip(*plain, strict=True)):
                    loss = finite(loss) if real else None
                    by_class = tuple(map(_all_finite, classes)) if schedule.by_class and real else None
                    about = epoch, batchnorm, split, _all_finite(separation), _all_finite(near), tuple(ranks)
                    scores = loss, None if loss is None else right, by_class
                    size: dict[str, Any] = {"collapse": collapse[member], "samples": labels.shape[-1]}
                    measured = Measurement(*about, *scores, fleet.shape.layer_names, widths, **size)
                    found[members.start + member].append(measured)
    return found


def _blocks(fleet: Fleet, step: int) -> Iterator[slice]:
    """Neighboring members with equally many classes, at most `step` at once: a class without samples has no mean."""
    start = 0
    for _, run in groupby(fleet.samples, key=lambda s: s.classes):
        stop = start + len(list(run))
        yield from (slice(at, min(at + step, stop)) for at in range(start, stop, step))
        start = stop


def _length(fleet: Fleet, split: SplitName) -> int:
    return len(held_out(fleet.samples[0])[1]) if split == "test" else fleet.labels.shape[1]


def _samples(fleet: Fleet, split: SplitName, members: slice) -> tuple[Tensor, Tensor]:
    """Inputs (E, n, d) and labels (E, n) of these members."""
    if split == "train":
        return fleet.pool[fleet.rows[members]], fleet.labels[members]
    if split == "permuted":
        order = permuted_order(fleet.labels.shape[1])
        return fleet.pool[fleet.rows[members]], fleet.labels[members][:, order.to(fleet.device)]
    inputs, labels = zip(*map(held_out, fleet.samples[members]), strict=True)
    return torch.stack(inputs).flatten(2).to(fleet.device), torch.stack(labels).to(fleet.device)


def _alike(features: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighboring sites of one width, measured at once on a GPU, where calls are dear; one by one on a CPU."""
    if features[0].device.type == "cpu":
        yield from ([site] for site in features)
    else:
        for _, run in groupby(features, key=lambda site: site.shape[1]):
            yield list(run)


def _collapse_of(sites: Sequence[Mapping[str, Tensor]], member: int) -> dict[str, tuple[float | None, ...]] | None:
    """One member's columns along depth; `None` where they were not measured."""
    if not sites:
        return None
    return {n: tuple(finite(float(one[n][member])) if n in one else None for one in sites) for n in COLLAPSE}


def _measured(
    sites: list[Tensor],
    labels: Tensor,
    classes: int,
    reference: Centers | None,
    decision: Tensor | None,
) -> tuple[list[tuple[Tensor, ...]], Centers, list[dict[str, Tensor]]]:
    """At each site (E, d, n): D, share nearest (to the reference), rank (E,), D of each class (E, K); and the centers.

    With the `decision` (E, n) of the networks the columns of collapse too, but NC3 and NC4.
    """
    E = len(labels)
    decision = None if decision is None else decision.repeat(len(sites), 1)
    features = sites[0].mT if len(sites) == 1 else torch.stack(sites).flatten(0, 1).mT  # (sites·E, n, d)
    labels = labels.repeat(len(sites), 1)
    sound = features.isfinite().all(-1).all(-1)  # (E,)
    features = torch.where(sound[:, None, None], features, 0.0)  # a diverged member must not stop the others
    sums = ClassSums.of(features, labels, classes)
    at_hand = _centers_at_hand(sums.to("cpu"), at_once=features.device.type != "cpu")
    centers = at_hand.to(features.device)
    coordinates, lengths = project(features, labels, Frame.of(centers))
    scatter = Scatter.of(coordinates, lengths, labels, centers, decision)
    per_class = class_separation(centers, scatter)
    D = (centers.weights * per_class.nan_to_num()).sum(-1)
    defined = sound & (centers.rank > 0)
    believed = defined & ~not_believed(features, labels, at_hand, scatter.outliers)
    near = scatter.near
    if reference is not None:
        points = reference.basis.to(features) @ (features - reference.mean.to(features).unsqueeze(-2)).mT  # (…, r, n)
        near = NearestCenter.of(double(points), reference, labels, decision)
    nearest = near.hits.sum(-1) / scatter.counts.sum(-1)
    nan = D.new_tensor(float("nan"))
    columns = (
        torch.where(believed, D, nan),
        torch.where(sound, nearest, nan),
        torch.where(sound, centers.rank, 0),
        torch.where(believed.unsqueeze(-1), per_class, nan),
    )
    found = list(zip(*(column.view(len(sites), E, *column.shape[1:]) for column in columns), strict=True))
    if decision is None:
        return found, centers, []
    extra = collapse_columns(SiteStatistics(centers, scatter, near=near))
    known = {
        name: torch.where(believed if name == "nc1" else defined, value, nan).view(len(sites), E)
        for name, value in extra.items()
        if isinstance(value, Tensor)
    }
    return found, centers, [{name: values[i] for name, values in known.items()} for i in range(len(sites))]


def _centers_at_hand(sums: ClassSums, *, at_once: bool) -> Centers:
    """Thousands of small factorizations: a GPU would do them one after the other, slower than a CPU, on whose cores they
    are spread where these have nothing else to do."""
    step = MANY_CENTERS if at_once else len(sums.counts)
    cuts = [slice(at, at + step) for at in range(0, len(sums.counts), step)]
    some = [ClassSums(sums.counts[cut], sums.sums[cut], sums.spread[cut], sums.dtype) for cut in cuts]
    if len(some) == 1:
        return find_centers(some[0])
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(torch.no_grad()(find_centers), some))
    parts = {field.name: [getattr(one, field.name) for one in found] for field in fields(Centers)}
    joined: dict[str, Any] = {name: torch.cat(of) if isinstance(of[0], Tensor) else of[0] for name, of in parts.items()}
    return Centers(**joined)


def _all_finite(values: list[float]) -> tuple[float | None, ...]:
    return tuple(map(finite, values))
