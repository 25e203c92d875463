"""Two passes over one data set, for all sites."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batches, check_normalized_alone
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.capture.hooks import Capture, Consume, failed
from layerlaw.capture.network import BatchNormMode, Randomness, has_batchnorm, recalibrating, untrained
from layerlaw.capture.plan import Plan, Reduce, Site
from layerlaw.capture.replay import Features, Replays
from layerlaw.errors import (
    CaptureError,
    InputError,
    LabelError,
    LayerlawError,
    PassError,
    check_choice,
    check_seed,
)
from layerlaw.probing.classes import Classes
from layerlaw.probing.kept_plans import went_through
from layerlaw.probing.memory import (
    GROUPS,
    PERMUTATIONS,
    WHY_NOT,
    Extras,
    KeptFeatures,
    linear_sites,
    one_batch,
    out_of_memory,
    scatter_bytes,
    views_of,
)
from layerlaw.probing.shard_words import STEADY_SHARDS
from layerlaw.probing.shards import Pace, Step, borrowed, check_dealt, looked_up
from layerlaw.probing.slices import NO_LINEAR, SlicedProbe, wide_sites
from layerlaw.probing.state import State, taken_over
from layerlaw.probing.targets import Targets
from layerlaw.probing.waiting import Waiting, add_second
from layerlaw.progress import Progress
from layerlaw.stats.around import Around
from layerlaw.stats.centers import Weighting
from layerlaw.stats.passes import SecondPass
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import adding_nothing, all_reduce, look_at_others, world_size
from layerlaw.stats.regression import FirstRegression, SecondRegression, SiteRegression
from layerlaw.stats.scatter import NearestCenter, Scatter
from layerlaw.stats.slices import Reference

UNCERTAINTY = {  # standard errors (jackknife) and D under permuted labels; None: where they fit the memory budget
    True: (True, True),
    False: (False, False),
    "jackknife": (True, False),
    "permuted": (False, True),
    None: (None, None),
}

OLD_BATCHNORM = {"train": "batch", "eval": "running"}


@dataclass(frozen=True)
class Options:
    """How to measure, checked."""

    reduce: Reduce
    batchnorm: BatchNormMode
    weighting: Weighting
    uncertainty: bool | str | None
    memory_gib: float
    seed: int
    progress: Progress
    linear: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.batchnorm, str) and self.batchnorm in OLD_BATCHNORM:
            raise InputError(f"batchnorm: {self.batchnorm!r} is now {OLD_BATCHNORM[self.batchnorm]!r}.")
        check_choice("batchnorm", self.batchnorm, get_args(BatchNormMode))
        check_choice("weighting", self.weighting, get_args(Weighting))
        check_choice("uncertainty", self.uncertainty, UNCERTAINTY)
        check_choice("linear", self.linear, (True, False))
        number = isinstance(self.memory_gib, (int, float)) and not isinstance(self.memory_gib, bool)
        if not number or not self.memory_gib > 0:
            raise InputError(f"memory_gib: expected a positive number of GiB, got {self.memory_gib!r}.")
        check_seed(self.seed)

    @property
    def memory(self) -> int:
        """The memory budget in bytes."""
        return int(min(self.memory_gib, 2.0**30) * 2**30)


@dataclass
class Split:
    """What the passes over one data set leave, by site."""

    around: dict[Site, Around] = field(default_factory=dict)
    scatters: dict[Site, Scatter] = field(default_factory=dict)
    near: dict[Site, NearestCenter] = field(default_factory=dict)
    regressions: dict[Site, SiteRegression] = field(default_factory=dict)  # of targets, instead of the three above
    planes: dict[Site, list[tuple[float, ...]]] = field(default_factory=dict)
    plane_labels: list[int] = field(default_factory=list)
    read: Tensor | None = None  # what the classifier reads of the samples in the planes (n, d)
    counts: list[int] = field(default_factory=list)
    accuracy: float | None = None
    free_accuracy: float | None = None  # among all classes of the network, where fewer are measured
    r_squared: float | None = None
    targets: FirstRegression | None = None  # what pass 1 knows of targets
    fingerprint: str = ""
    samples: str = ""  # the fingerprint whatever their order
    one_forward: bool = False
    no_extras_why: str = ""
    no_linear_why: dict[str, list[str]] = field(default_factory=dict)  # by reason, the sites without D_lin
    slices_why: str = ""  # which sites were measured in slices of their features, and by how many forwards
    lent: dict[Site, Reference] = field(default_factory=dict)  # of such sites, what test data need
    slice_data: Batches | None = None  # to be gone through again for them
    untrusted: dict[Hashable, str] | None = None  # names of sites that moved between the passes, and how; `None`: raise

    def without_decisions(self) -> Split:
        """The same without what the network itself decided."""
        near = {site: NearestCenter(near.sums[..., :2]) for site, near in self.near.items()}
        scatters = {site: replace(s, sums=s.sums[..., : s.rank + 6]) for site, s in self.scatters.items()}
        return replace(self, near=near, scatters=scatters, accuracy=None)


@dataclass(frozen=True)
class Prober:
    """One network, its plan and the options, ready to go over data; `classes` says what the labels are, also targets."""

    network: nn.Module
    plan: Plan
    classes: Classes | Targets
    options: Options
    randomness: Randomness
    device: torch.device | None
    slices: bool = False  # whether sites too wide for the memory budget are measured in slices of their features

    def prepared(self, data: Batches) -> Batches:
        """The data as they are run: as one batch where BatchNorm normalizes by all samples at once."""
        whole = self.options.batchnorm == "whole" and has_batchnorm(self.network)
        return one_batch(data, self.plan.sites, self.options.memory) if whole else data

    def measure(
        self,
        data: Batches,
        label: str,
        *,
        reference: Split | None = None,
        plane: bool = False,
        extras: bool = False,
        forgive: bool = False,
    ) -> Split:
        """Both passes, in groups of sites that fit memory; `reference` lends its centers, `extras` allows uncertainty.

        With `forgive` a site that cannot be trusted is named in the split instead of an error.
        """
        options, sites, K = self.options, self.plan.sites, self.classes.K
        wanted = UNCERTAINTY[options.uncertainty if extras else False]
        linear, why_not = frozenset[str](), dict[str, list[str]]()
        if options.linear and extras:
            linear, why_not = linear_sites(sites, data.samples, K, options.memory)
        moments, taken = self.classes.moments(sites, data.samples, options.memory, reference)
        memory = options.memory - taken - scatter_bytes(sites, linear)
        fitting = Extras.that_fit(sites, data.samples, K, memory, wanted)
        known = None if data.labels is None else self.classes.positions(data.labels, f"labels of {label}")[0].cpu()
        split = Split(untrusted={} if forgive else None, no_linear_why=why_not)
        groups, permuted = GROUPS * fitting.jackknife, PERMUTATIONS * fitting.permuted
        shards = taken_over.get() is not None
        allowed = self.slices and isinstance(self.classes, Classes) and not shards
        wide = wide_sites(sites, K, views_of(fitting.jackknife, fitting.permuted), memory) if allowed else []
        if reference is not None:  # whose centers are sliced
            wide = [site for site in sites if site in reference.lent]
        if cut := [site.name for site in wide if site.name in linear]:
            linear -= set(cut)
            why_not.setdefault(NO_LINEAR, []).extend(cut)
        what = "targets" if isinstance(self.classes, Targets) else f"classes{' in shards' * shards}"
        whole = [site for site in sites if site not in wide]
        for group in filter(None, fitting.groups(whole, K, memory, reduce=options.reduce, of=what)):
            dealer = self.classes.dealer(groups, permuted, options.seed, known)
            kept = KeptFeatures(group, fitting.keep if len(group) == len(sites) else 0, data.samples, data.length)
            sample = self.classes.sample() if plane else None
            first = self.classes.first(groups, moments)
            shared = (group, data, label, self.classes, dealer, first, kept, sample, fitting.why_not, linear)
            state = State(*shared, room=fitting.room(group, K, memory))
            if (instead := taken_over.get()) is not None:
                instead(self, state, split, reference)
                continue
            first_pass(self, state)
            _leave(state, second_pass(self, state, reference), split)
            if state.sample is not None and (read := state.sample.features(self.plan.reads)) is not None:
                split.read = read
        if wide:
            dealer = self.classes.dealer(groups, permuted, options.seed, known)
            SlicedProbe(self, wide, data, label, split, reference).measure(dealer, memory, plane=plane)
            split.around = {site: split.around[site] for site in sites}  # in the order of depth
            split.scatters = {site: split.scatters[site] for site in sites}
            split.no_extras_why, split.one_forward = fitting.why_not, False
        return split

    def measure_untrained(self, data: Batches) -> Split:
        """The null: the same network with fresh parameters, BatchNorm recalibrated on the data, measured in the same way."""
        fresh = untrained(self.network, seed=self.options.seed)
        if self.options.batchnorm == "running":  # otherwise the running statistics are not used
            self.randomness.rewind()
            with recalibrating(fresh):
                for batch in self.options.progress(data, "untrained, calibration", data.length):
                    if len(batch.labels) > 1:  # one sample has no statistics
                        here = batch.to(self.device).copy()
                        fresh(*here.args, **here.kwargs)
        return replace(self, network=fresh).measure(data, "untrained")

    def not_finite(self, data: Batches) -> list[Site]:
        """The sites at which some feature is NaN or infinite, by one pass over the data."""
        bad: dict[Site, None] = {}

        def consume(site: Site, features: Tensor) -> None:
            if not bool(features.isfinite().all()):
                bad[site] = None

        with self.capturing(self.plan.sites, consume) as capture:
            for step in self.steps(data, "looking for NaN", None):
                _forward(capture, step)
        return list(bad)

    def steps(self, data: Batches, title: str, fingerprint: Fingerprint | None) -> Iterator[Step]:
        """The batches with samples of measured classes; all data are added to the fingerprint."""
        self.randomness.rewind()
        alone = self.options.batchnorm == "batch" and has_batchnorm(self.network)
        none, pace = world_size() > 1, Pace(self.network, data, self.device)
        for i, batch in enumerate(self.options.progress(data, title, data.length)):
            where = f"{data.where}, batch {i}"
            look_at_others()
            given, batch = batch.labels, batch.to(self.device)
            if fingerprint is not None:
                fingerprint.update(batch.labels, *batch.tensors(), places=data.places)
            labels, rows = looked_up(self.classes, given, batch, where)
            if alone:
                check_normalized_alone(given, where)
            pace.go_on(True)
            if len(labels) > 0:
                none = False
                yield Step(batch, labels, rows, where)
            else:
                pace.forward_only()
        while pace.go_on(none):
            if not none:
                pace.forward_only()
            elif (step := borrowed(data, self.classes, self.device)) is not None:
                yield step
            none = False

    def capturing(self, sites: Sequence[Site], consume: Consume, replays: Replays | None = None) -> Capture:
        """Hooks at the sites."""
        return Capture(self.network, self.plan, sites, reduce=self.options.reduce, consume=consume, replays=replays)

    def decide(self, capture: Capture, step: Step, state: State) -> Tensor | None:
        """Run a batch, which hands over the features of every site; gives the network's decisions."""
        output = _forward(capture, step)
        if (free := self.classes.decide_freely(output, step.rows)) is not None:
            state.free += torch.stack([(free == step.labels.to(free.device)).sum(), (free >= -1).sum()]).cpu()
        decision = self.classes.decide(output, step.rows)
        if decision is not None:
            state.decided(decision, step.where)  # told after the sites, which may know more
        return decision


def _forward(capture: Capture, step: Step) -> Any:
    """The model's output for a batch, which may be unlike the one of the dry run."""
    try:
        return went_through(capture.run(step.batch, rows=step.rows, where=step.where), len(step.batch.labels))
    except LayerlawError:
        raise
    except torch.OutOfMemoryError as error:
        raise out_of_memory(capture.network, step.batch, step.where) from error
    except Exception as error:  # a user's model raises anything
        raise CaptureError(failed(f"in {step.where}", step.batch, error)) from error


def first_pass(prober: Prober, state: State) -> None:
    """Class sums of every site; features are kept as long as they fit, and their sums taken at the end, all at once."""
    kept, waiting = state.kept, Waiting(state.sites, state.room, state.add_waiting)
    stream = waiting.or_at_once(state.update)

    def consume(site: Site, features: Tensor) -> None:
        (kept.add if kept.whole else stream)(site, features)

    def take_all(features: Features) -> bool:
        return (kept.add_all if kept.whole else waiting.add_all)(features)

    empty = True
    state.replays = Replays(prober.network, prober.plan, state.sites, state.data.length)
    state.replays.take_all = take_all
    with prober.capturing(state.sites, consume, state.replays) as capture:
        for step in prober.steps(state.data, f"{state.label}, pass 1", state.fingerprint):
            empty, state.borrowed = False, step.borrowed
            if kept.whole and not kept.fits(len(step.labels)):
                _stop_keeping(prober, state)
            if kept.whole:
                kept.close(step.labels, prober.decide(capture, step, state), step.where)
            elif waiting.takes(step.labels):
                dealt = state.dealer.deal(step.labels)
                waiting.close(dealt, prober.decide(capture, step, state), step.where)
            else:
                state.begin(step.labels)
                prober.decide(capture, step, state)
                state.end(step.where)
        waiting.finish()
    if empty:
        raise LabelError(f"{state.label}: expected samples of the classes {prober.classes.ids[:10]}, got none.")
    check_dealt(state.fingerprint, state.data, state.label)
    if kept.whole:
        state.dealer.all_labels = kept.labels.cpu()  # known now: permuted labels are a permutation
        state.dealer.restart()
        state.add_kept(kept.labels, None, lambda name: kept.where_bad(str(name)))
    if state.borrowed and state.sample is not None:
        state.sample = prober.classes.sample()  # those are pictured there
    state.raise_spoilt()


def _stop_keeping(prober: Prober, state: State) -> None:
    """The features do not fit after all: sums of what was kept, then on without, and without extras nobody requested."""
    # Ranks must add up the same things.
    if prober.options.uncertainty is None and world_size() == 1 and (state.dealer.groups or state.dealer.permuted):
        state.first.drop_extras()
        state.dealer.groups, state.dealer.permuted, state.why_not = 0, False, WHY_NOT
    for labels, rows, where in state.kept.batches():
        state.add_kept(labels, rows, lambda _, where=where: where)  # type: ignore[misc]
    state.kept.drop()


def second_pass(prober: Prober, state: State, reference: Split | None) -> SecondPass | SecondRegression:
    """What residuals do around what pass 1 found, from the kept features or from another forward."""
    second: SecondPass | SecondRegression
    with full_precision(), adding_nothing(state.borrowed):
        how = (state.label, prober.options.weighting, reference, state.linear, state.sums_again())
        second = prober.classes.second(state.first, *how)  # type: ignore[arg-type]
    state.first = prober.classes.first(0, ())  # its sums are no longer needed
    kept = state.kept
    if kept.whole:
        state.forget_replays()
        add_second(second, prober.classes.K, kept, state.dealt_again())
        pace = Pace(prober.network, state.data, prober.device)
        while pace.go_on(False):  # others may not have kept all of their features
            pace.forward_only()
    else:
        _second_forward(prober, state, second)
        state.forget_replays()
    with full_precision(), adding_nothing(state.borrowed):
        second.all_reduce()
    return second


def _second_forward(prober: Prober, state: State, second: SecondPass | SecondRegression) -> None:
    state.dealer.restart()
    shards = taken_over.get() is not None
    again = Fingerprint() if state.dealer.groups or state.dealer.permuted or shards else None
    waiting = Waiting(state.sites, state.room, partial(add_second, second, prober.classes.K))
    update = waiting.or_at_once(second.update)
    if state.replays is not None:
        state.replays.take_all = waiting.add_all
    with prober.capturing(state.sites, update, state.replays) as capture:
        for step in prober.steps(state.data, f"{state.label}, pass 2", again):
            waits, dealt = waiting.takes(step.labels), state.dealer.deal(step.labels)
            if waits:
                waiting.close(dealt, prober.decide(capture, step, state), step.where)
                continue
            second.begin(dealt, None)
            second.decision = prober.decide(capture, step, state)
            with full_precision():
                second.end()
        waiting.finish()
    if again is not None and again.text() != state.fingerprint.text():
        if shards:
            raise PassError(f"{state.data.where}: the samples or their order changed since round 1. {STEADY_SHARDS}.")
        why = "changed between the two passes, which standard errors and permuted labels do not allow"
        cure = "pass data that do not change, or uncertainty=False"
        raise PassError(f"{state.label}: the samples or their order {why}: {cure}.")


def _leave(state: State, second: SecondPass | SecondRegression, split: Split) -> None:
    split.plane_labels = state.sample.labels if state.sample is not None else []
    with full_precision():
        state.classes.leave(second, state.sites, split)  # type: ignore[arg-type]
        planes = state.sample.planes_later() if state.sample is not None else {}
    split.planes |= {site: planes[site.name] for site in state.sites if site.name in planes}
    if split.accuracy is not None:
        with adding_nothing(state.borrowed):
            all_reduce([state.free])
        split.free_accuracy = float(state.free[0] / state.free[1]) if state.free[1] else None
    state.fingerprint.all_reduce()
    split.fingerprint, split.samples = state.fingerprint.text(), state.fingerprint.samples_text()
    split.no_extras_why, split.one_forward = state.why_not, state.kept.whole
    state.kept.drop()
