"""Two passes over one data set, for all sites."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from layerlaw.capture import Batches, Mode, Plan, Reduce, Site, capturing
from layerlaw.capture.network import Randomness
from layerlaw.errors import DataError, InputError, LabelError, PassError
from layerlaw.probing.budget import GROUPS, Extras, KeptFeatures, site_groups, total_width
from layerlaw.probing.classes import Classes
from layerlaw.progress import Progress
from layerlaw.stats.centres import Weighting
from layerlaw.stats.labels import check_counts
from layerlaw.stats.passes import Around, Dealer, FirstPass, SecondPass
from layerlaw.stats.plane import PlaneSample
from layerlaw.stats.precision import full_precision
from layerlaw.stats.scatter import NearestCentre, Scatter


@dataclass(frozen=True)
class Options:
    """How to measure."""

    reduce: Reduce
    mode: Mode
    weighting: Weighting
    jackknife: bool | None
    permuted: bool | None
    memory: int
    seed: int
    progress: Progress

    @classmethod
    def checked(
        cls,
        reduce: Reduce,
        mode: Mode,
        weighting: Weighting,
        jackknife: bool | None,
        permuted: bool | None,
        memory_gib: float,
        seed: int,
        progress: Progress,
    ) -> Options:
        """Choices that exist."""
        choices = {"mode": (mode, ("eval", "train")), "weighting": (weighting, ("samples", "classes"))}
        for name, (value, allowed) in choices.items():
            if value not in allowed:
                raise InputError(f"{name}: expected {' or '.join(map(repr, allowed))}, got {value!r}.")
        if not memory_gib > 0:
            raise InputError(f"memory_gib: expected a positive number of GiB, got {memory_gib}.")
        return cls(reduce, mode, weighting, jackknife, permuted, int(memory_gib * 2**30), seed, progress)


@dataclass
class Split:
    """What the passes over one data set leave, by site."""

    around: dict[Site, Around] = field(default_factory=dict)
    scatters: dict[Site, Scatter] = field(default_factory=dict)
    near: dict[Site, NearestCentre] = field(default_factory=dict)
    planes: dict[Site, list[list[float]]] = field(default_factory=dict)
    plane_labels: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    accuracy: float | None = None
    checksum: str = ""
    one_forward: bool = False
    no_extras_why: str = ""


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

        `reference` (the training data) lends its centres to the nearest-center decisions; `extras` allows standard
        errors and permuted labels.
        """
        split = Split()
        for sites in site_groups(self.plan, self.classes.K, self.options.memory):
            self.randomness.rewind()
            _GroupRun(self, sites, data, label, reference, plane, extras).into(split)
        return split

    def forwards(
        self,
        sites: Sequence[Site],
        data: Batches,
        label: str,
        *,
        checksum: hashlib._Hash | None,
        begin: Callable[[Tensor, str], None],
        consume: Callable[[Site, Tensor], None],
        end: Callable[[Tensor, Tensor | None, str], None],
    ) -> None:
        """Run every batch: `begin` with its labels, `consume` each site's features, `end` with labels and decision."""
        rows: Tensor | None = None

        def hand_on(site: Site, features: Tensor) -> None:
            consume(site, features if rows is None else features.index_select(0, rows.to(features.device)))

        with capturing(self.network, self.plan, sites, reduce=self.options.reduce, consume=hand_on) as capture:
            for i, batch in enumerate(self.options.progress(data, label, data.length)):
                where = f"{data.where}, batch {i}"
                if checksum is not None:
                    batch.feed(checksum)
                batch = batch.to(self.device)
                labels, rows = self.classes.positions(batch.labels, f"labels of {where}")
                if rows is not None and len(rows) == 0:
                    continue
                begin(labels, where)
                output = capture.run(batch, number=i)
                end(labels, self.classes.decide(output, rows), where)


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
        extras: bool,
    ) -> None:
        self.run, self.sites, self.data, self.label, self.reference = run, sites, data, label, reference
        options, K = run.options, run.classes.K
        self.extras = Extras.that_fit(
            total_width(sites),
            data.samples,
            K,
            options.memory,
            jackknife=options.jackknife if extras else False,
            permuted=options.permuted if extras else False,
        )
        whole = len(sites) == len(run.plan.sites)
        self.kept = KeptFeatures(options.memory if self.extras.keep and whole else 0)
        known = None
        if data.labels is not None:
            known = run.classes.positions(data.labels, "labels")[0].cpu()
        groups = GROUPS if self.extras.jackknife else 0
        self.dealer = Dealer(K, groups=groups, permuted=self.extras.permuted, seed=options.seed, all_labels=known)
        self.first = FirstPass(K, groups)
        self.sample = PlaneSample(K) if plane else None
        self.checksum = hashlib.sha256()

    def into(self, split: Split) -> None:
        """Run both passes and leave the results."""
        self._pass_one()
        with full_precision():
            self.first.all_reduce()
            counts = self.first.total(self.sites[0].name).counts
            check_counts(counts, where=self.label)
            around = {site: self._around(site) for site in self.sites}
        second = SecondPass({site.name: around[site] for site in self.sites})
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
        for site in self.sites:
            split.around[site], split.scatters[site] = around[site], scatters[site.name]
            if site.name in second.near_reference:
                split.near[site] = second.near_reference[site.name]
            if self.sample is not None:
                split.planes[site], split.plane_labels = self.sample.coordinates(site.name), self.sample.labels
        decided = not bool(scatters[self.sites[0].name].near.mismatches.isnan().any())
        split.counts = [int(c) for c in counts]
        split.accuracy = float(second.right) / float(counts.sum()) if decided else None
        split.checksum, split.no_extras_why = self.checksum.hexdigest(), self.extras.why_not

    def _around(self, site: Site) -> Around:
        reference = self.reference.around[site].centres if self.reference else None
        return Around.of(self.first, site.name, self.run.options.weighting, reference)

    def _pass_one(self) -> None:
        normalised = any(isinstance(module, _BatchNorm) for module in self.run.network.modules())

        def begin(labels: Tensor, where: str) -> None:
            if normalised and self.run.options.mode == "train":
                _check_train_batch(labels, where)
            self.first.begin(self.dealer.deal(labels))
            if self.sample is not None:
                self.sample.begin(labels)

        def consume(site: Site, features: Tensor) -> None:
            self.first.update(site.name, features)
            self.kept.add(site, features)
            if self.sample is not None:
                self.sample.update(site.name, features)

        def end(labels: Tensor, decision: Tensor | None, where: str) -> None:
            self.first.end(where)
            self.kept.close(labels, decision)
            if not self.kept.whole:
                self._let_go_of_extras()

        title = f"{self.label}, pass 1"
        self.run.forwards(self.sites, self.data, title, checksum=self.checksum, begin=begin, consume=consume, end=end)
        if not self.first.sums:
            raise LabelError(
                f"{self.label}: expected samples of the classes {list(self.run.classes.ids)[:10]}, got none."
            )

    def _let_go_of_extras(self) -> None:
        """A stream of unknown length outgrew the budget: what was not asked for is not measured."""
        options = self.run.options
        if (self.dealer.groups and options.jackknife is None) or (self.dealer.permuted and options.permuted is None):
            self.first.drop_extras()
            self.dealer.groups, self.dealer.permuted = 0, False
            self.extras = Extras(False, False, False, "the features did not fit the memory budget")

    def _pass_two_from_memory(self, second: SecondPass) -> None:
        with full_precision():
            for labels, decision, features in self.kept.replay():
                second.begin(self.dealer.deal(labels), decision)
                for name, x in features.items():
                    second.update(name, x)
                second.end()

    def _pass_two(self, second: SecondPass) -> None:
        self.run.randomness.rewind()
        ordered = bool(self.dealer.groups) or self.dealer.permuted
        again = hashlib.sha256()

        def begin(labels: Tensor, where: str) -> None:
            second.begin(self.dealer.deal(labels), None)

        def consume(site: Site, features: Tensor) -> None:
            second.update(site.name, features)

        def end(labels: Tensor, decision: Tensor | None, where: str) -> None:
            second.decision = decision
            with full_precision():
                second.end()

        title = f"{self.label}, pass 2"
        self.run.forwards(
            self.sites, self.data, title, checksum=again if ordered else None, begin=begin, consume=consume, end=end
        )
        if ordered and again.digest() != self.checksum.digest():
            raise PassError(
                f"{self.label}: the order of the samples changed between the two passes, and standard errors and "
                "permuted labels need the same order: pass a loader that does not shuffle, or jackknife=False, permuted=False."
            )


def _check_train_batch(labels: Tensor, where: str) -> None:
    if len(labels) == 1:
        raise DataError(
            f"{where}: a batch of one sample has no batch statistics for BatchNorm (mode='train'). "
            "Choose a batch size that leaves no single sample at the end, or drop_last=True."
        )
    if bool((labels == labels[0]).all()):
        raise DataError(
            f"{where}: all {len(labels)} samples are of one class, and mode='train' normalises each batch by itself. "
            "Mix the classes (shuffle once, with a fixed seed), or pass a pair of tensors, which is mixed for you."
        )
