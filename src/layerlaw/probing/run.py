"""Two passes over one data set, for all sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from layerlaw.capture.arguments import out_of_memory
from layerlaw.capture.batches import Batches, Pair, check_normalized_alone
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.capture.hooks import Capture, Consume, failed
from layerlaw.capture.network import BatchNormMode, Randomness, has_batchnorm, recalibrating, untrained
from layerlaw.capture.plan import Plan, Reduce, Site, sites_in_words
from layerlaw.capture.replay import Replays
from layerlaw.errors import CaptureError, InputError, LayerlawError, MemoryBudgetError, check_choice, check_seed
from layerlaw.measures.unread import bring_ahead
from layerlaw.probing.classes import Classes, foreign_scores
from layerlaw.probing.dealt import deals_alone
from layerlaw.probing.kept_plans import about_model, went_through
from layerlaw.probing.memory import Budget, Extras, KeptFeatures, linear_sites, one_batch, scatter_bytes, views_of
from layerlaw.probing.pictures import Share
from layerlaw.probing.shards import Pace, Step, borrowed, looked_up
from layerlaw.probing.slices import NO_LINEAR, SlicedProbe, tell_forwards, wide_sites
from layerlaw.probing.state import Split, State, among_ranks, first_pass, second_pass, taken_over
from layerlaw.probing.targets import Targets
from layerlaw.progress import Progress
from layerlaw.stats.centers import Weighting
from layerlaw.stats.design import Dealer
from layerlaw.stats.passes import SecondPass, check_finite
from layerlaw.stats.plane import Plane
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import adding_nothing, all_reduce, gathered, look_at_others, world_size
from layerlaw.stats.regression import SecondRegression
from layerlaw.threads import users_device

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

    def measure(self, data: Batches, label: str, *, whole: bool = False, **how: bool) -> Split:
        """Both passes, in groups of sites that fit memory; `how` as for `GroupedProbe`.

        `whole`: the statistics of all sites are needed afterwards, whatever memory they take.
        """
        one = GroupedProbe(self, data, label, **how)  # type: ignore[arg-type]
        one.tell_forwards()
        one.go(let_go=not whole)
        return one.split

    def measure_both(self, data: Batches, test: Batches | None) -> tuple[Split, Split | None]:
        """Training data, and test data around their centers: a group of sites at a time, whose memory the next one takes.

        What cannot be measured of the test data is found out before the first pass over the training data.
        """
        train = GroupedProbe(self, data, "data", plane=True, extras=True)
        # Of targets, what is measured of test data depends on what was found of the others.
        ahead = isinstance(self.classes, Classes) and self.options.batchnorm != "whole"
        held_out = GroupedProbe(self, test, "test", before=train, extras=True) if ahead and test is not None else None
        train.tell_forwards(held_out)
        if test is None or (held_out is not None and held_out.groups == train.groups):
            train.go(held_out)
            return train.split, held_out.split if held_out else None
        train.go(let_go=False)
        if held_out is None:
            held_out = GroupedProbe(self, self.prepared(test), "test", before=train, extras=True)
            held_out.tell_forwards()
        held_out.go(let_go=False)
        return train.split, held_out.split

    def measure_untrained(self, data: Batches) -> Split:
        """The null: the same network with fresh parameters, BatchNorm recalibrated on the data, measured in the same way."""
        fresh = untrained(self.network, seed=self.options.seed)
        one = GroupedProbe(replace(self, network=fresh), data, "untrained")
        calibrated = self.options.batchnorm == "running" and has_batchnorm(fresh)  # otherwise these are not used
        one.tell_forwards(besides=int(calibrated))
        if calibrated:
            self.randomness.rewind()
            with recalibrating(fresh):
                for batch in self.options.progress(data, "untrained, calibration", data.length):
                    if len(batch.labels) > 1:  # one sample has no statistics
                        here = batch.to(self.device).copy()
                        with users_device():
                            fresh(*here.args, **here.kwargs)
        one.go()
        return one.split

    def steps(self, data: Batches, title: str, fingerprint: Fingerprint | None) -> Iterator[Step]:
        """The batches with samples of measured classes; all data are added to the fingerprint."""
        self.randomness.rewind()
        alone = self.options.batchnorm == "batch" and has_batchnorm(self.network)
        none, pace, came = world_size() > 1, Pace(self.network, data, self.device), 0
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
                yield Step(batch, labels, rows, where, came)
            else:
                pace.forward_only()
            came += len(given)
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
        output = run_batch(capture, step)
        if (free := self.classes.decide_freely(output, step.rows)) is not None:
            state.free += torch.stack([(free == step.labels.to(free.device)).sum(), (free >= -1).sum()]).cpu()
        decision = self.classes.decide(output, step.rows)
        if decision is not None:
            state.decided(decision, step.where)  # told after the sites, which may know more
        return decision


class GroupedProbe:
    """One data set: what fits of it, its sites in groups whose statistics fit memory together, and what is found of them.

    The centers of the one `before` are lent to test data, `plane` keeps samples for pictures, `extras` allows uncertainty.
    With `forgive` a site that cannot be trusted is named in the split instead of an error. All that may not fit raises here,
    before the first pass.
    """

    def __init__(
        self,
        prober: Prober,
        data: Batches,
        label: str,
        *,
        before: GroupedProbe | None = None,
        plane: bool = False,
        extras: bool = False,
        forgive: bool = False,
    ) -> None:
        self.prober, self.data, self.label, self.plane = prober, data, label, plane
        self.before, self.extras = before, extras
        self.reference: Split | None = None if before is None else before.split
        options, classes, sites = prober.options, prober.classes, prober.plan.sites
        wanted = UNCERTAINTY[options.uncertainty if extras else False]
        linear, why_not = frozenset[str](), dict[str, list[str]]()
        if options.linear and extras:
            linear, why_not = linear_sites(sites, data.samples, classes.K, options.memory)
        self.moments, taken = classes.moments(sites, data.samples, options.memory, self.reference)
        self.memory = Budget(options.memory, taken + scatter_bytes(sites, linear))
        self.fitting = fitting = Extras.that_fit(sites, data.samples, classes.K, self.memory, wanted)
        self.known = None if data.labels is None else classes.positions(data.labels, f"labels of {label}")[0].cpu()
        self._shares: list[tuple[Tensor | None, Share]] | None = None  # labels of all ranks, and whose they are
        if world_size() > 1 and (isinstance(classes, Targets) or (extras and options.uncertainty is not False)):
            self._shares = gathered(self._in_order())
        self.split: Split = Split(untrusted={} if forgive else None, no_linear_why=why_not)
        self.split.own_batches = options.batchnorm == "batch" and has_batchnorm(prober.network)
        shards = taken_over.get() is not None
        allowed = prober.slices and isinstance(classes, Classes) and not shards
        views = views_of(fitting.jackknife, fitting.permuted)
        self.wide = wide_sites(sites, classes.K, views, self.memory) if allowed else []
        if before is not None:  # whose centers are sliced
            self.wide = before.wide
        if cut := [site.name for site in self.wide if site.name in linear]:
            linear -= set(cut)
            why_not.setdefault(NO_LINEAR, []).extend(cut)
        self.linear = self.split.linear = linear
        what = "targets" if isinstance(classes, Targets) else f"classes{' in shards' * shards}"
        whole = [site for site in sites if site not in self.wide]
        self.slices: SlicedProbe | None = None
        try:
            groups = fitting.groups(whole, classes.K, self.memory, reduce=options.reduce, of=what)
            self.groups = [group for group in groups if group]
            if self.wide:
                how = (prober, self.wide, data, label, self.split, self.reference)
                self.slices = SlicedProbe(*how, self._dealer(), self.memory, plane=plane)
        except MemoryBudgetError as error:
            raise error if label == "data" else MemoryBudgetError(f"{label}: {error}") from None

    def _in_order(self) -> tuple[Tensor | None, Share]:
        """The labels in the order in which samples come, where they are known beforehand, and which of these have them."""
        given, order = self.data.labels, self.data.source.order if isinstance(self.data.source, Pair) else None
        if given is None:
            return None, Share(0, None, self.data.places)
        given = given if order is None else given[order.to(given.device)]
        labels, rows = self.prober.classes.positions(given, self.label)
        return labels.cpu(), Share(len(given), rows if rows is None else rows.cpu(), self.data.places)

    def _dealer(self) -> Dealer:
        dealer = self.prober.classes.dealer(*self.fitting.views, self.prober.options.seed, self.known)
        return dealer if self._shares is None else among_ranks(dealer, self._shares)

    @property
    def forwards(self) -> int:
        """How often the data are gone through: twice for each group of sites; once if all is kept, or in a shard's round."""
        kept = self.fitting.keep > 0 and len(self.groups) == 1 and self.slices is None
        once = kept or taken_over.get() is not None
        return (2 - once) * len(self.groups) + (self.slices.planned if self.slices else 0)

    def within(self, memory_gib: float, before: GroupedProbe | None) -> GroupedProbe:
        """The same within another memory budget, and around the centers of another one."""
        prober = replace(self.prober, options=replace(self.prober.options, memory_gib=memory_gib))
        return GroupedProbe(prober, self.data, self.label, before=before, extras=self.extras)

    def tell_forwards(self, test: GroupedProbe | None = None, *, besides: int = 0) -> None:
        """Say how many forwards these data take, `besides` others, and the test data measured with them; of many, warn."""
        measured = [self] if test is None else [self, test]
        for one in measured:
            if one.slices is not None:
                one.slices.measured = measured

        def planned(memory_gib: float) -> int:
            before = self.before.within(memory_gib, None) if self.before and self.slices else self.before
            first = self.within(memory_gib, before)
            return besides + first.forwards + (0 if test is None else test.within(memory_gib, first).forwards)

        names = {"data": "the data", "test": "the test data"}
        over = " and ".join(names.get(one.label, f"the data ({one.label})") for one in measured)
        told = (besides + sum(one.forwards for one in measured), over, self.prober.options.memory_gib, planned)
        if (shard := taken_over.get()) is None:
            tell_forwards(*told)
        else:  # tells it when it knows its round
            shard.forwards = told

    def go(self, test: GroupedProbe | None = None, *, let_go: bool = True) -> None:
        """Measure all of it, and of every group of sites the test data right behind.

        Where several groups share the memory, each is let go of (`let_go`) when its numbers are known.
        """
        both = [self] if test is None else [self, test]
        several = len(self.groups) + bool(self.wide) > 1
        for turn, group in enumerate(self.groups):
            for one in both:
                one._measure_group(group, turn)
            if several and let_go:
                for one in reversed(both):  # test data are measured around the others
                    one._let_go(group)
        for one in both:
            one._measure_slices()

    def _state(self, group: Sequence[Site], turn: int) -> State:
        """What both passes over a group of sites share."""
        prober, data, fitting, sites = self.prober, self.data, self.fitting, self.prober.plan.sites
        keep = fitting.keep if len(group) == len(sites) else 0
        kept = KeptFeatures(group, keep, data.samples, data.length)
        sample = prober.classes.sample() if self.plane else None
        first = prober.classes.first(fitting.views[0], self.moments)
        shared = (group, data, self.label, prober.classes, self._dealer(), first, kept, sample, fitting.why_not)
        state = State(*shared, self.linear, room=fitting.room(group, prober.classes.K, self.memory))
        state.at_hand = self._in_order()[0]
        if len(group) < len(sites):
            state.turn = f", {sites_in_words(group, sites)}, group {turn + 1} of {len(self.groups) + bool(self.wide)}"
        return state

    def _measure_group(self, group: Sequence[Site], turn: int) -> None:
        prober, split, state = self.prober, self.split, self._state(group, turn)
        if (instead := taken_over.get()) is not None:
            instead(prober, state, split, self.reference)
            return
        first_pass(prober, state)
        network = prober.network if self.plane else None  # of which the training data tell, and no others
        _leave(state, second_pass(prober, state, self.reference), split, network)
        if state.sample is not None and (read := state.sample.features(prober.plan.reads)) is not None:
            split.read = read

    def _let_go(self, group: Sequence[Site]) -> None:
        if taken_over.get() is None:
            let_go(self.prober, group, self.split, self.reference)
            return
        for site in group:  # the files of a shard have all of it
            self.split.around.pop(site, None)

    def _measure_slices(self) -> None:
        split, sites = self.split, self.prober.plan.sites
        if self.slices is None:
            return
        self.slices.measure()
        split.around = {site: split.around[site] for site in sites}  # in the order of depth
        split.scatters = {site: split.scatters[site] for site in sites}
        split.no_extras_why, split.one_forward = self.fitting.why_not, False
        split.dealt_alone |= deals_alone(self.slices.dealer)


def let_go(prober: Prober, group: Sequence[Site], split: Split, reference: Split | None) -> None:
    """Compute the numbers of a group of sites, which is all that is kept: the next group needs the memory."""
    if not isinstance(prober.classes, Classes):
        return
    foreign = foreign_scores((reference or split).free_accuracy, prober.plan.classes)
    with full_precision():
        seen = split.without_decisions() if foreign else split
        split.let_go(group, prober.classes.columns(seen, group, reference=reference), prober.plan.reads)


def run_batch(capture: Capture, step: Step, sums: Mapping[Any, Tensor] | None = None) -> Any:
    """The model's output for a batch, which may be unlike the one of the dry run.

    `sums`: what those who look at the features fill by site, numbers or whether all are; NaN and infinity raise.
    """
    try:
        output = went_through(capture.run(step.batch, rows=step.rows, where=step.where), len(step.batch.labels))
    except LayerlawError:
        raise
    except torch.OutOfMemoryError as error:
        raise out_of_memory(capture.network, step.batch, step.where) from error
    except Exception as error:  # a user's model raises anything
        raise CaptureError(failed(f"in {step.where}", step.batch, error)) from error
    if sums:
        check_finite(sums, lambda _: step.where)
    return output


def _leave(state: State, second: SecondPass | SecondRegression, split: Split, network: nn.Module | None = None) -> None:
    split.plane_labels = state.sample.labels if state.sample is not None else []
    with full_precision(), nullcontext() if state.meanwhile is None else state.meanwhile.here():
        planes: dict[object, Plane] = {}
        if state.sample is not None:  # whose memory the next group needs, where there are several
            planes = state.sample.planes() if state.turn else state.sample.planes_later()
        state.fingerprint.all_reduce()
        split.fingerprint, split.samples = state.fingerprint.text(), state.fingerprint.samples_text()
        if state.meanwhile is not None:
            split.about_model = {} if network is None else about_model(network)
            bring_ahead(second.around.values() if isinstance(second, SecondPass) else ())
    split.planes |= {site: planes[site.name] for site in state.sites if site.name in planes}
    with full_precision():
        state.classes.leave(second, state.sites, split)  # type: ignore[arg-type]
    if split.accuracy is not None:
        with adding_nothing(state.borrowed):
            all_reduce([state.free])
        split.free_accuracy = float(state.free[0] / state.free[1]) if state.free[1] else None
    split.no_extras_why, split.one_forward = state.why_not, state.kept.whole
    split.dealt_alone |= deals_alone(state.dealer)
    state.kept.drop()
