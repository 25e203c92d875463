"""Measuring a fleet while it trains: separation fuzziness of every member at every layer, without leaving the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from layerlaw.errors import InputError
from layerlaw.lab.fleet import Fleet
from layerlaw.measures.separation import class_separation
from layerlaw.stats import Centers, ClassSums, Frame, NearestCenter, Scatter, find_centers, project
from layerlaw.stats.precision import double, full_precision

BatchNormMode = Literal["batch", "running", "whole"]
Split = Literal["train", "test", "permuted"]
CHUNK = 100  # of the law's authors
SCRATCH = {"cpu": 2**28, "cuda": 2**34}  # bytes of features worked on at once


@dataclass(frozen=True)
class Schedule:
    """When and how the members are measured.

    `epochs`: after which epochs (0: before the first); the last one is always among them. `modes` of BatchNorm: "train"
    normalizes chunks of 100 samples by themselves in the order of the data (the law's authors' way), "running" takes the
    running statistics, "whole" the statistics of all samples at once (what recalibrated running statistics would be).
    `permuted` also measures with shuffled labels: the level that noise alone reaches. `by_class` keeps D of each class,
    `keep` the networks themselves, so that they can be probed afterwards as they were then.
    """

    epochs: tuple[int, ...] = ()
    batchnorm: tuple[BatchNormMode, ...] = ("batch", "running")
    test: bool = False
    permuted: bool = False
    by_class: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        epochs: Any = self.epochs
        if isinstance(epochs, int) or any(not isinstance(epoch, int) for epoch in epochs):
            raise InputError(f"epochs: expected whole numbers, (0, 100, …), got {epochs!r}.")
        object.__setattr__(self, "epochs", tuple(sorted(set(self.epochs))))
        object.__setattr__(self, "modes", tuple(self.batchnorm))
        unknown = [batchnorm for batchnorm in self.batchnorm if batchnorm not in get_args(BatchNormMode)]
        if unknown or not self.batchnorm:
            raise InputError(
                f"batchnorm: expected some of {', '.join(get_args(BatchNormMode))}, got {list(self.batchnorm)}."
            )
        if any(epoch < 0 for epoch in self.epochs):
            raise InputError(f"epochs: expected numbers ≥ 0, got {min(self.epochs)}.")

    @property
    def splits(self) -> tuple[Split, ...]:
        """What is measured in each mode."""
        wanted: tuple[tuple[Split, bool], ...] = (("train", True), ("test", self.test), ("permuted", self.permuted))
        return tuple(split for split, wish in wanted if wish)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Measurement:
    """What was measured of one member at one time: numbers along depth, the input first.

    `separation` is D at the input and after each hidden layer (`None` where it is not defined), `nearest` the share of
    samples nearest to their own class mean (for test samples: among the class means of the training samples); `rank` is
    the number of dimensions the class means span (where it falls below the others', D falls without anything being
    separated better); `by_class` D of every class at each place. Loss and accuracy are those of the network on these
    samples; `None` for permuted labels.
    """

    epoch: int
    batchnorm: BatchNormMode
    split: Split
    separation: tuple[float | None, ...]
    nearest: tuple[float | None, ...]
    rank: tuple[int, ...] = ()
    loss: float | None = None
    accuracy: float | None = None
    by_class: tuple[tuple[float | None, ...], ...] | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measurement:
        """The inverse of `asdict`, also after a trip through JSON."""
        lists = {k: tuple(data.get(k, ())) for k in ("separation", "nearest", "rank")}
        by_class = data.get("by_class")
        return cls(**{**data, **lists, "by_class": None if by_class is None else tuple(map(tuple, by_class))})


def measure_fleet(fleet: Fleet, schedule: Schedule, epoch: int) -> list[list[Measurement]]:
    """The readings of every member: [member][mode and split]."""
    found: list[list[Measurement]] = [[] for _ in range(len(fleet))]
    with full_precision():
        for batchnorm in schedule.batchnorm:
            known: dict[int, list[Centers]] = {}
            for split in schedule.splits:
                for member, measurement in _read(fleet, schedule, batchnorm, split, epoch, known):
                    found[member].append(measurement)
    return found


def _read(
    fleet: Fleet,
    schedule: Schedule,
    batchnorm: BatchNormMode,
    split: Split,
    epoch: int,
    known: dict[int, list[Centers]],
) -> Iterator[tuple[int, Measurement]]:
    """Readings of one mode and split. `known` keeps the training samples' class means, the test samples' references."""
    n, most = _length(fleet, split), max(_length(fleet, each) for each in schedule.splits)
    wide = max(fleet.shape.inputs, *fleet.shape.widths)
    held = 6 * (2 if fleet.device.type == "cpu" else fleet.shape.depth)  # copies of a site's features
    step = max(1, SCRATCH.get(fleet.device.type, SCRATCH["cuda"]) // (4 * held * most * wide))
    chunk = {"batch": CHUNK, "running": None, "whole": n}[batchnorm]
    for members in _blocks(fleet, step):
        K = fleet.samples[members.start].classes
        x, labels = _samples(fleet, split, members)
        inputs = x.mT  # (E, d, n)
        *features, logits = [inputs, *fleet.site_features(inputs, chunk=chunk, members=members)]
        columns = []
        for i, run in enumerate(_alike(features)):
            found, centers = _measured(run, labels, K, known[members.start][i] if split == "test" else None)
            columns += found
            if split == "train" and schedule.test:
                known.setdefault(members.start, []).append(centers)
        D, nearest, rank, per_class = (
            torch.stack(c, -1) for c in zip(*columns, strict=True)
        )  # (E, sites), (E, K, sites)
        log_p = torch.log_softmax(logits, 1)
        at = labels.unsqueeze(1)
        loss, hits = -log_p.gather(1, at).mean((1, 2)), (logits.argmax(1) == labels).double().mean(-1)
        plain = [t.cpu().tolist() for t in (D, nearest, rank, loss, hits, per_class.mT)]
        for i, (separation, near, ranks, losses, right, classes) in enumerate(zip(*plain, strict=True)):
            real = split != "permuted"
            yield (
                members.start + i,
                Measurement(
                    epoch=epoch,
                    batchnorm=batchnorm,
                    split=split,
                    separation=_numbers(separation),
                    nearest=_numbers(near),
                    rank=tuple(ranks),
                    loss=_number(losses) if real else None,
                    accuracy=right if real and _number(losses) is not None else None,
                    by_class=tuple(_numbers(c) for c in classes) if schedule.by_class and real else None,
                ),
            )


def _blocks(fleet: Fleet, step: int) -> Iterator[slice]:
    """Neighboring members with equally many classes, at most `step` at once: a class without samples has no mean."""
    start = 0
    for _, run in groupby(fleet.samples, key=lambda s: s.classes):
        stop = start + len(list(run))
        yield from (slice(at, min(at + step, stop)) for at in range(start, stop, step))
        start = stop


def _length(fleet: Fleet, split: Split) -> int:
    held_out = fleet.samples[0].test_labels
    return len(held_out) if split == "test" and held_out is not None else fleet.labels.shape[1]


def _samples(fleet: Fleet, split: Split, members: slice) -> tuple[Tensor, Tensor]:
    """Inputs (E, n, d) and labels (E, n) of these members."""
    if split == "train":
        return fleet.pool[fleet.rows[members]], fleet.labels[members]
    if split == "permuted":
        order = torch.randperm(fleet.labels.shape[1], generator=torch.Generator().manual_seed(0))
        return fleet.pool[fleet.rows[members]], fleet.labels[members][:, order.to(fleet.device)]
    tests = [(s.test_inputs, s.test_labels) for s in fleet.samples[members]]
    if any(x is None or y is None for x, y in tests):
        raise InputError("schedule: expected held-out samples to measure on, got samples without any.")
    x = torch.stack([x for x, _ in tests if x is not None]).to(fleet.device)
    return x, torch.stack([y for _, y in tests if y is not None]).to(fleet.device)


def _alike(features: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighboring sites of one width, measured at once on a GPU, where calls are dear; one by one on a CPU."""
    if features[0].device.type == "cpu":
        yield from ([site] for site in features)
    else:
        for _, run in groupby(features, key=lambda site: site.shape[1]):
            yield list(run)


def _measured(
    sites: list[Tensor], labels: Tensor, classes: int, reference: Centers | None
) -> tuple[list[tuple[Tensor, ...]], Centers]:
    """At each site (E, d, n): D, share nearest to the own class mean, rank (E,), D of each class (E, K); and the centers.

    The nearest class mean is looked for among those of the reference, where there is one.
    """
    E = len(labels)
    features = sites[0].mT if len(sites) == 1 else torch.stack(sites).flatten(0, 1).mT  # (sites·E, n, d)
    labels = labels.repeat(len(sites), 1)
    sound = features.isfinite().all(-1).all(-1)  # (E,)
    features = torch.where(sound[:, None, None], features, 0.0)  # a diverged member must not stop the others
    sums = ClassSums.of(features, labels, classes)
    # Thousands of small factorizations: a GPU would do them one after the other, slower than the CPU.
    centers = find_centers(sums.to("cpu")).to(features.device)
    coordinates, lengths = project(features, labels, Frame.of(centers))
    scatter = Scatter.of(coordinates, lengths, labels, centers)
    per_class = class_separation(centers, scatter)
    D = (centers.weights * per_class.nan_to_num()).sum(-1)
    defined = sound & (centers.rank > 0)
    near = scatter.near
    if reference is not None:
        points = reference.basis.to(features) @ (features - reference.mean.to(features).unsqueeze(-2)).mT  # (…, r, n)
        near = NearestCenter.of(double(points), reference, labels, None)
    nearest = near.hits.sum(-1) / scatter.counts.sum(-1)
    nan = D.new_tensor(float("nan"))
    columns = (
        torch.where(defined, D, nan),
        torch.where(sound, nearest, nan),
        torch.where(sound, centers.rank, 0),
        torch.where(defined.unsqueeze(-1), per_class, nan),
    )
    found = list(zip(*(column.view(len(sites), E, *column.shape[1:]) for column in columns), strict=True))
    return found, centers


def _number(value: float) -> float | None:
    return value if abs(value) < float("inf") else None  # also False for NaN


def _numbers(values: list[float]) -> tuple[float | None, ...]:
    return tuple(_number(value) for value in values)
