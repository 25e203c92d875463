"""Two passes over one data set, for all sites."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from layerlaw.capture import Batch, Batches, Capture, Checksum, Plan, Randomness, Site, capturing
from layerlaw.errors import DataError, LabelError, PassError
from layerlaw.probing.budget import GROUPS, WHY_NOT, Extras
from layerlaw.probing.classes import Classes
from layerlaw.probing.kept import KeptFeatures
from layerlaw.probing.options import Options
from layerlaw.stats.centers import Centers
from layerlaw.stats.labels import check_counts
from layerlaw.stats.passes import Around, Dealer, FirstPass, SecondPass
from layerlaw.stats.plane import PlaneSample
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import world_size
from layerlaw.stats.scatter import NearestCenter, Scatter


@dataclass
class Split:
    """What the passes over one data set leave, by site."""

    around: dict[Site, Around] = field(default_factory=dict)
    scatters: dict[Site, Scatter] = field(default_factory=dict)
    near: dict[Site, NearestCenter] = field(default_factory=dict)
    planes: dict[Site, list[list[float]]] = field(default_factory=dict)
    plane_labels: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    accuracy: float | None = None
    checksum: str = ""
    one_forward: bool = False
    no_extras_why: str = ""


@dataclass
class Step:
    """One batch: its labels as 0 … K−1 (those of classes that are not measured are gone), and its forward to come."""

    labels: Tensor
    where: str
    _rows: Tensor | None
    _batch: Batch
    _capture: Capture
    _classes: Classes

    def forward(self) -> Tensor | None:
        """Run the batch, which hands over the features of every site; gives the network's decisions."""
        output = self._capture.run(self._batch, rows=self._rows, where=self.where)
        return self._classes.decide(output, self._rows)


@dataclass(frozen=True)
class Run:
    """One network, its plan and the options, ready to go over data."""

    network: nn.Module
    plan: Plan
    classes: Classes
    options: Options
    randomness: Randomness
    device: torch.device | None

    def measure(
        self, data: Batches, label: str, *, reference: Split | None = None, plane: bool = False, extras: bool = False
    ) -> Split:
        """Both passes over one data set, for all sites, in groups that fit the memory budget.

        `reference` (the training data) lends its centers to the nearest-center decisions; `extras` allows standard
        errors and permuted labels.
        """
        options, sites, K = self.options, self.plan.sites, self.classes.K
        jackknife, permuted = (options.jackknife, options.permuted) if extras else (False, False)
        fitting = Extras.that_fit(sites, data.samples, K, options.memory, jackknife=jackknife, permuted=permuted)
        split = Split()
        for group in fitting.groups(sites, K, options.memory):
            self.randomness.rewind()
            _GroupRun(self, group, data, label, reference, plane, fitting).into(split)
        return split

    @contextmanager
    def stepping(
        self,
        sites: Sequence[Site],
        data: Batches,
        label: str,
        consume: Callable[[Site, Tensor], None],
        checksum: Checksum | None,
    ) -> Iterator[Iterator[Step]]:
        """Hooks in place, and the steps over the data; the bytes of the data are added to the checksum."""
        alone = self.options.batchnorm == "batch" and any(isinstance(m, _BatchNorm) for m in self.network.modules())

        def steps(capture: Capture) -> Iterator[Step]:
            for i, batch in enumerate(self.options.progress(data, label, data.length)):
                where = f"{data.where}, batch {i}"
                if checksum is not None:
                    batch.feed(checksum)
                batch = batch.to(self.device)
                labels, rows = self.classes.positions(batch.labels, f"labels of {where}")
                if alone:
                    _check_normalized_alone(batch.labels, where)
                if len(labels) > 0:
                    yield Step(labels, where, rows, batch, capture, self.classes)

        with capturing(self.network, self.plan, sites, reduce=self.options.reduce, consume=consume) as capture:
            yield steps(capture)


class _GroupRun:
    """The two passes for one group of sites."""

    def __init__(
        self,
        run: Run,
        sites: Sequence[Site],
        data: Batches,
        label: str,
        reference: Split | None,
        plane: bool,
        extras: Extras,
    ) -> None:
        self.run, self.sites, self.data, self.label = run, sites, data, label
        self.reference, self.why_not = reference, extras.why_not
        K = run.classes.K
        keeps = extras.keep if len(sites) == len(run.plan.sites) else 0
        self.kept = KeptFeatures(sites, keeps, data.samples)
        known = None if data.labels is None else run.classes.positions(data.labels, f"labels of {label}")[0].cpu()
        groups = GROUPS if extras.jackknife else 0
        self.dealer = Dealer(K, groups=groups, permuted=extras.permuted, seed=run.options.seed, all_labels=known)
        self.first = FirstPass(K, groups)
        self.sample = PlaneSample(K) if plane else None
        self.checksum = Checksum()

    def into(self, split: Split) -> None:
        """Run both passes and leave the results."""
        self._pass_one()
        with full_precision():
            self.first.all_reduce()
            counts = self.first.total(self.sites[0].name).counts
            check_counts(counts, where=self.label)
            lent: dict[Hashable, Centers] | None
            lent = {site.name: self.reference.around[site].centers for site in self.sites} if self.reference else None
            around = Around.all_of(self.first, self.run.options.weighting, lent)
        second = SecondPass(around)
        self.first = FirstPass(self.run.classes.K)  # its sums are no longer needed
        self.dealer.restart()
        split.one_forward = self.kept.whole
        if self.kept.whole:
            self._pass_two_from_memory(second)
        else:
            self._pass_two(second)
        with full_precision():
            second.all_reduce()
            scatters = second.scatters()
            planes = self.sample.planes() if self.sample is not None else {}
        for site in self.sites:
            split.around[site], split.scatters[site] = around[site.name], scatters[site.name]
            if site.name in second.near_reference:
                split.near[site] = second.near_reference[site.name]
        split.planes |= {site: planes[site.name] for site in self.sites if site.name in planes}
        split.plane_labels = self.sample.labels if self.sample is not None else []
        decided = scatters[self.sites[0].name].near.mismatches is not None
        split.counts = [int(c) for c in counts]
        split.accuracy = float(second.right) / float(counts.sum()) if decided else None
        split.checksum, split.no_extras_why = self.checksum.hexdigest(), self.why_not

    def _pass_one(self) -> None:
        def consume(site: Site, features: Tensor) -> None:
            if self.kept.whole:
                self.kept.add(site, features)
                return
            self.first.update(site.name, features)
            if self.sample is not None:
                self.sample.update(site.name, features)

        title = f"{self.label}, pass 1"
        empty = True
        with self.run.stepping(self.sites, self.data, title, consume, self.checksum) as steps:
            for step in steps:
                empty = False
                if self.kept.whole and not self.kept.has_room_for(len(step.labels)):
                    self._go_on_streaming()
                if self.kept.whole:
                    self.kept.close(step.labels, step.forward(), step.where)
                else:
                    self._begin(step.labels)
                    step.forward()
                    self.first.end(lambda _, where=step.where: where)  # type: ignore[misc]
        if empty:
            raise LabelError(f"{self.label}: expected samples of the classes {self.run.classes.ids[:10]}, got none.")
        if self.kept.whole:
            self._pass_one_from_memory()

    def _begin(self, labels: Tensor) -> None:
        self.dealt = self.dealer.deal(labels)
        self.first.begin(self.dealt)
        if self.sample is not None:
            self.sample.begin(labels)

    def _pass_one_from_memory(self) -> None:
        labels = self.kept.labels
        self.dealer.all_labels = labels.cpu()  # known now: permuted labels are a permutation
        self.dealer.restart()
        with full_precision():
            self._begin(labels)
            self._take(self.kept.features())
            self.first.end(lambda name: self.kept.where_bad(str(name)))

    def _go_on_streaming(self) -> None:
        """The features do not fit: pass 1 of what was kept, batch by batch, then on without keeping."""
        self._let_go_of_extras()
        with full_precision():
            for labels, rows, where in self.kept.batches():
                self._begin(labels)
                self._take(self.kept.features(rows))
                self.first.end(lambda _, where=where: where)  # type: ignore[misc]
        self.kept.drop()

    def _take(self, features: Iterator[tuple[str, Tensor]]) -> None:
        for name, x in features:
            self.first.update(name, x)
            if self.sample is not None:
                self.sample.update(name, x)

    def _let_go_of_extras(self) -> None:
        """The features turned out not to fit (a stream of unknown length, say): what nobody asked for is not measured."""
        options = self.run.options
        if world_size() > 1 or True in (options.jackknife, options.permuted):  # ranks must add up the same things
            return
        if self.dealer.groups or self.dealer.permuted:
            self.first.drop_extras()
            self.dealer.groups, self.dealer.permuted, self.why_not = 0, False, WHY_NOT

    def _pass_two_from_memory(self, second: SecondPass) -> None:
        with full_precision():
            for rows in self.kept.blocks(self.run.classes.K):
                second.begin(self.dealt.rows(rows), self.kept.decisions(rows))
                for name, x in self.kept.features(rows):
                    second.update(name, x)
                second.end()
        self.kept.drop()

    def _pass_two(self, second: SecondPass) -> None:
        self.run.randomness.rewind()
        ordered = bool(self.dealer.groups) or self.dealer.permuted
        again = Checksum() if ordered else None
        title = f"{self.label}, pass 2"
        with self.run.stepping(self.sites, self.data, title, lambda s, x: second.update(s.name, x), again) as steps:
            for step in steps:
                second.begin(self.dealer.deal(step.labels), None)
                second.decision = step.forward()
                with full_precision():
                    second.end()
        if again is not None and again.hexdigest() != self.checksum.hexdigest():
            raise PassError(
                f"{self.label}: the samples or their order changed between the two passes, and standard errors and "
                "permuted labels need the same samples in the same order: pass data that do not change, or "
                "jackknife=False, permuted=False."
            )


def _check_normalized_alone(labels: Tensor, where: str) -> None:
    """In train mode BatchNorm normalizes each batch by itself: one sample or one class would be no fair batch."""
    if len(labels) == 1:
        raise DataError(
            f"{where}: a batch of one sample has no batch statistics for BatchNorm (batchnorm='batch'). "
            "Choose a batch size that leaves no single sample at the end, or drop_last=True."
        )
    if bool((labels == labels[0]).all()):
        raise DataError(
            f"{where}: all {len(labels)} samples are of one class, and batchnorm='batch' normalizes each batch by itself. "
            "Mix the classes (shuffle once, with a fixed seed), or use larger batches."
        )
