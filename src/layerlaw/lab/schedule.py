"""Measuring networks while they train: when and how, what is found, and the measurement of any network but a fleet's."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.capture.modules import classifier_weight, modules_of
from layerlaw.capture.network import has_batchnorm
from layerlaw.capture.plan import Plan
from layerlaw.errors import FeatureError, InputError, MemoryBudgetError, PassError
from layerlaw.lab.forwards import Forwards
from layerlaw.lab.samples import Samples
from layerlaw.law.words import step_called
from layerlaw.measures.columns import REGISTRY
from layerlaw.measures.separation import class_separation
from layerlaw.measures.site import SiteStatistics
from layerlaw.measures.site import number as plain_number
from layerlaw.stats import Centers
from layerlaw.stats.around import Around
from layerlaw.stats.labels import one_hot
from layerlaw.stats.passes import Dealt, FirstPass, SecondPass
from layerlaw.stats.precision import full_precision
from layerlaw.wording import finite

BatchNormMode = Literal["batch", "shuffled", "balanced", "running", "whole"]
SplitName = Literal["train", "test", "permuted"]
CHUNK = 100  # of the law's authors
LARGEST = 1e15  # of features, in float32
AT_ONCE = 500  # samples of a forward where it does not matter how many


@dataclass(frozen=True)
class Schedule:
    """When, where and how networks are measured while they train.

    `epochs`: after which epochs (0: before the first); the last one is always among them. `batchnorm`: "batch"
    normalizes chunks of 100 samples by themselves in the order of the data (the law's authors' way), "shuffled" chunks
    in a random order, "balanced" chunks in which every class has its share, "running" takes the running statistics,
    "whole" the statistics of all samples at once (what recalibrated running statistics would be). `permuted` also
    measures with shuffled labels: the level that noise alone reaches. `by_class` keeps D of each class, `keep` the
    networks themselves, so that they can be probed afterwards as they were then (with `batchnorm=()` nothing is
    measured now). `collapse` adds the mismatch between
    nearest class center and network, and NC1 to NC4. `sites` are those of `probe`: "auto", "layers", "blocks", or names and
    globs of modules (the classifier, or "logits", only by its name); `branches` takes in those on side branches, such as
    the layers inside a residual block.
    """

    epochs: tuple[int, ...] = ()
    batchnorm: tuple[BatchNormMode, ...] = ("batch", "running")
    test: bool = False
    permuted: bool = False
    by_class: bool = False
    keep: bool = False
    sites: str | tuple[str, ...] = "auto"
    branches: bool = False
    collapse: bool = False

    def __post_init__(self) -> None:
        epochs: Any = self.epochs
        if isinstance(epochs, int) or any(not isinstance(epoch, int) for epoch in epochs):
            raise InputError(f"epochs: expected whole numbers, (0, 100, …), got {epochs!r}.")
        object.__setattr__(self, "epochs", tuple(sorted(set(self.epochs))))
        object.__setattr__(self, "batchnorm", tuple(self.batchnorm))
        sites: Any = self.sites
        if not isinstance(sites, str):
            object.__setattr__(self, "sites", tuple(sites))
            if not sites or any(not isinstance(site, str) for site in sites):
                raise InputError(f"sites: expected 'auto', 'layers', 'blocks' or names of modules, got {sites!r}.")
        modes = get_args(BatchNormMode)
        if not (self.batchnorm or self.keep) or not set(self.batchnorm) <= set(modes):
            raise InputError(f"batchnorm: expected some of {', '.join(modes)}, got {list(self.batchnorm)}.")
        if any(epoch < 0 for epoch in self.epochs):
            raise InputError(f"epochs: expected numbers ≥ 0, got {min(self.epochs)}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = asdict(self)
        for later in ("branches", "collapse"):
            if not plain[later]:  # as schedules were before they had it: files of their sweeps are still theirs
                del plain[later]
        return plain

    @property
    def splits(self) -> tuple[SplitName, ...]:
        """What is measured in each mode."""
        wanted: dict[SplitName, bool] = {"train": True, "test": self.test, "permuted": self.permuted}
        return tuple(split for split, measured in wanted.items() if measured)


@dataclass(frozen=True)
class Measurement:
    """What was measured of one network at one time: numbers along depth, one per site.

    `separation` is D (`None` where it is not defined; of the classes that have samples), `nearest` the share of samples
    nearest to their own class mean (for test samples: among the class means of the training samples; `None` where a class
    of the classifier has no training sample, so no mean); `rank` is the number of dimensions the class means span
    (where it falls below the others', D falls without anything being separated better); `by_class` D of every class;
    `sites` and `widths` are the names of the sites and their numbers of features. Of a feed-forward network the sites are
    the input and the output of each hidden layer. Loss (cross-entropy) and accuracy are those of the network on these
    samples; `None` for permuted labels. `collapse` has the columns of `COLLAPSE` along depth, where the schedule wants them:
    `ncc_mismatch` by the class means of the training samples, NC3 and NC4 at the site that the classifier reads;
    `samples` is how many there are; `step` is what lies between two sites: "layer", or "block" where blocks are measured.
    """

    epoch: int
    batchnorm: BatchNormMode
    split: SplitName
    separation: tuple[float | None, ...]
    nearest: tuple[float | None, ...]
    rank: tuple[int, ...] = ()
    loss: float | None = None
    accuracy: float | None = None
    by_class: tuple[tuple[float | None, ...], ...] | None = None
    sites: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    collapse: dict[str, tuple[float | None, ...]] | None = None
    samples: int = 0
    step: str = "layer"

    @property
    def mismatch(self) -> tuple[float | None, ...]:
        """At every site: share of samples whose nearest class mean (of training samples) is not the network's decision."""
        if self.collapse is None:
            raise InputError("mismatch: expected a measurement with it, got one without. Use Schedule(collapse=True).")
        return self.collapse["ncc_mismatch"]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measurement:
        """The inverse of `asdict`, also after a trip through JSON."""
        lists: dict[str, Any] = {
            k: tuple(data.get(k, ())) for k in ("separation", "nearest", "rank", "sites", "widths")
        }
        by_class, collapse = data.get("by_class"), data.get("collapse")
        lists["by_class"] = None if by_class is None else tuple(map(tuple, by_class))
        lists["collapse"] = None if collapse is None else {name: tuple(values) for name, values in collapse.items()}
        return cls(**{**data, **lists})


COLLAPSE = ("ncc_mismatch", "nc1", "nc2_norms", "nc2_angles", "nc2_equiangularity", "nc3", "nc4")
"""Columns of the registry that `Schedule(collapse=True)` adds."""


def collapse_columns(site: SiteStatistics) -> dict[str, Tensor | float | None]:
    """Those that the statistics allow, also with leading dimensions; NC3 and NC4 where the classifier reads."""
    read = ("classes", "decision") if site.rows is None else ("classes", "decision", "classifier", "network")
    columns = ((name, REGISTRY[name]) for name in COLLAPSE)
    return {name: c.compute(site) for name, c in columns if c.compute is not None and c.needs in read}


def held_out(samples: Samples) -> tuple[Tensor, Tensor]:
    """Inputs and labels that are not trained on."""
    if samples.test_inputs is None or samples.test_labels is None:
        raise InputError("schedule: expected held-out samples to measure on, got samples without any.")
    return samples.test_inputs, samples.test_labels


def permuted_order(n: int) -> Tensor:
    """The order that labels are shuffled into: the same for every network."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))


def chunk_order(batchnorm: BatchNormMode, labels: Tensor, classes: int) -> Tensor | None:
    """The order (…, n) in which samples with these labels are cut into chunks; `None`: as they are."""
    if batchnorm == "balanced":
        return balanced_order(labels, classes)
    if batchnorm == "shuffled":
        order = torch.randperm(labels.shape[-1], generator=torch.Generator().manual_seed(1))
        return order.to(labels.device).expand(labels.shape)
    return None


def balanced_order(labels: Tensor, classes: int) -> Tensor:
    """Orders (…, n) of samples with these labels in which every chunk has its share of every class.

    >>> labels = torch.tensor([0, 0, 1, 1, 0, 1])
    >>> labels[balanced_order(labels, 2)].tolist()
    [0, 1, 0, 1, 0, 1]
    """
    hot = one_hot(labels, classes, torch.int32)  # (…, K, n)
    rank = hot.cumsum(-1).gather(-2, labels.unsqueeze(-2)).squeeze(-2)  # how many of its class, itself included
    count = hot.sum(-1).gather(-1, labels)
    return ((rank - 0.5) / count).argsort(dim=-1, stable=True)


def measure_network(
    network: nn.Module, plan: Plan, samples: Samples, schedule: Schedule, epoch: int
) -> list[Measurement]:
    """What the schedule wants to know of one network, at the sites of the plan; the network is left as it was.

    At a site whose features are not finite or huge, in a network that has diverged, nothing is defined.
    """
    named = () if isinstance(schedule.sites, str) else schedule.sites
    sites = [s for s in plan.sites if s.in_fit or s.name in named or (s.branch and schedule.branches)]
    classifier = None if plan.classifier is None else classifier_weight(modules_of(network)[plan.classifier])
    readers = {plan.reads: classifier} if schedule.collapse and plan.reads and classifier is not None else {}
    names, widths = tuple(site.name for site in sites), tuple(site.features for site in sites)
    step = step_called(plan.rule == "blocks", [s for s in sites if s.in_fit], plan.sites)
    normalized = has_batchnorm(network)
    found: list[Measurement] = []
    for batchnorm in schedule.batchnorm:
        if not normalized and found:  # all modes are the same
            found += [replace(m, batchnorm=batchnorm) for m in found if m.batchnorm == schedule.batchnorm[0]]
            continue
        trained: Mapping[Hashable, Centers] = {}
        seen: dict[bool, Forwards] = {}  # of training samples, permuted labels included, and of test samples
        for split in schedule.splits:
            x, true = held_out(samples) if split == "test" else (samples.inputs, samples.labels)
            y = true[permuted_order(len(true)).to(true.device)] if split == "permuted" else true
            if (order := chunk_order(batchnorm, true, samples.classes)) is not None:
                x, y = x[order], y[order]
            size = {"running": AT_ONCE, "whole": len(y)}.get(batchnorm, CHUNK)
            forwards = seen.setdefault(
                split == "test",
                Forwards(network, plan, sites, x, size, "running" if batchnorm == "running" else "batch"),
            )
            real, known = split != "permuted", trained if split == "test" else None
            asked = readers if schedule.collapse and real else None
            how: dict[str, Any] = {"mode": batchnorm, "references": known, "readers": asked}
            try:
                values, centers, *scores = _in_memory(forwards, names, y, samples.classes, **how)
            except (FeatureError, PassError):
                sound = _sound(forwards, names)
                values, centers, *scores = _in_memory(forwards, sound, y, samples.classes, **how)
            trained = centers if split == "train" else trained
            nothing: _Values = None, None, 0, (None,) * samples.classes, {}
            along = [values.get(name, nothing) for name in names]
            separation, nearest, rank, by_class, extra = zip(*along, strict=True)
            collapse = {n: tuple(one.get(n) for one in extra) for n in COLLAPSE} if schedule.collapse and real else None
            loss, accuracy = scores if real and finite(scores[0]) is not None else (None, None)
            each = by_class if schedule.by_class and real else None
            about = epoch, batchnorm, split, separation, nearest, rank
            found.append(Measurement(*about, loss, accuracy, each, names, widths, collapse, len(y), step))
    return found


_Values = tuple[float | None, float | None, int, tuple[float | None, ...], dict[str, float | None]]


def _in_memory(forwards: Forwards, *given: Any, mode: BatchNormMode, **how: Any) -> Any:
    """`_two_passes`, in smaller batches where a device has no room for these and they make no difference."""
    while True:
        try:
            return _two_passes(forwards, *given, **how)
        except torch.OutOfMemoryError as error:
            size, forwards.size = forwards.size, max(1, forwards.size // 2)
            if forwards.state == "running" and size > 1:
                continue
            what = f"measuring batches of {size} (batchnorm={mode!r}) ran out of memory on {forwards.device}"
            why = (
                "Their statistics are what is measured, so they cannot be smaller: leave this mode out of the schedule"
            )
            cure = "Choose a smaller network" if forwards.state == "running" else why
            raise MemoryBudgetError(f"{what}. {cure}.") from error


def _two_passes(
    forwards: Forwards,
    names: Sequence[str],
    labels: Tensor,
    K: int,
    *,
    references: Mapping[Hashable, Centers] | None,
    readers: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, _Values], dict[Hashable, Centers], float, float]:
    """At every site D, share nearest (to the reference), rank, D of each class, collapse; the centers; loss and accuracy.

    `readers` are the rows of the classifier by the site it reads; `None`: no measures of collapse.
    """
    names = names if references is None else [name for name in names if name in references]
    first = FirstPass(K)
    with full_precision():
        for given in forwards if names else ():
            first.begin(Dealt(labels[given.rows]))
            for name in names:
                first.update(name, given.features[name])
            first.end(lambda _: "measuring")
        around = Around.all_of(first, "samples", references)
    second, device = SecondPass(around), labels.device
    total, right = torch.zeros((), dtype=torch.float64, device=device), torch.zeros((), device=device)
    for given in forwards:
        y, logits = labels[given.rows], given.logits
        second.begin(Dealt(y), None if readers is None else logits.argmax(1))
        with full_precision():
            for name in names:
                second.update(name, given.features[name])
            second.end()
        total += F.cross_entropy(logits, y, reduction="sum")  # not fetched: a GPU would wait
        right += (logits.argmax(1) == y).sum()
    values: dict[str, _Values] = {}
    for site, scatter in second.scatters().items():
        centers = around[site].centers
        near = scatter.near if references is None else second.near_reference[site]
        means = centers if references is None else references[site]
        nearest = None if bool((means.counts == 0).any()) else float(near.hits.sum() / scatter.counts.sum())
        rank, per_class = int(centers.rank), class_separation(centers, scatter)
        D = float((centers.weights * per_class.nan_to_num()).sum()) if rank else math.nan
        each = tuple(finite(value) if rank else None for value in per_class.tolist())
        extra: dict[str, float | None] = {}
        if readers is not None and nearest is not None:
            rows = readers.get(str(site))
            whole = SiteStatistics(centers, scatter, near=near, weight=rows, undefined=not rank)
            extra = {n: plain_number(value) for n, value in collapse_columns(whole).items()}
        values[str(site)] = finite(D), nearest, rank, each, extra
    centers_of = {name: each.centers for name, each in around.items()}
    return values, centers_of, float(total) / len(labels), float(right) / len(labels)


def _sound(forwards: Forwards, names: Sequence[str]) -> list[str]:
    """Sites whose features can be squared and added up."""
    sound = set(names)
    for given in forwards:  # NaN is not smaller either
        sound = {name for name in sound if bool(given.features[name].abs().amax() < LARGEST)}
    return [name for name in names if name in sound]
