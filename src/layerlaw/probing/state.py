"""What both passes over one group of sites share, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from layerlaw.capture.batches import Batches
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.capture.plan import Site
from layerlaw.capture.replay import Features, Replays
from layerlaw.errors import FeatureError, LabelError, PassError
from layerlaw.measures.unread import SiteColumns
from layerlaw.probing.classes import Classes
from layerlaw.probing.dealt import check_dealt
from layerlaw.probing.memory import WHY_NOT, KeptFeatures
from layerlaw.probing.pictures import PictureSample, Share, choose_among_ranks, places_among
from layerlaw.probing.shard_words import changed_data
from layerlaw.probing.shards import Pace, Step
from layerlaw.probing.targets import Targets
from layerlaw.probing.waiting import Meanwhile, Waiting, add_second
from layerlaw.stats.around import Around, Finished
from layerlaw.stats.design import Dealer, RankDealer, TargetDealer
from layerlaw.stats.passes import Dealt, FirstPass, SecondPass, SumsAgain
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import adding_nothing, gathered, rank, world_size
from layerlaw.stats.regression import FirstRegression, SecondRegression, SiteRegression
from layerlaw.stats.scatter import NearestCenter, Scatter
from layerlaw.stats.slices import Reference

if TYPE_CHECKING:
    from layerlaw.probing.run import Prober

T = TypeVar("T")
BATCHES = 64  # whose decisions are looked at together


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
    about_model: dict[str, Any] = field(default_factory=dict)  # where it was found out while a GPU was busy
    one_forward: bool = False
    own_batches: bool = False  # whether BatchNorm used the statistics of batches
    dealt_alone: bool = False  # whether each rank dealt its samples into the groups of standard errors by itself
    no_extras_why: str = ""
    no_linear_why: dict[str, list[str]] = field(default_factory=dict)  # by reason, the sites without D_lin
    linear: frozenset[str] = frozenset()  # those whose within-class scatter was kept for it
    slices_why: str = ""  # which sites were measured in slices of their features, and by how many forwards
    lent: dict[Site, Reference] = field(default_factory=dict)  # of such sites, what test data need
    slice_data: Batches | None = None  # to be gone through again for them
    finished: dict[Site, SiteColumns] = field(default_factory=dict)  # numbers of sites whose statistics were let go
    views: frozenset[str] = frozenset()  # of these there were: "left_out", "permuted"
    untrusted: dict[Hashable, str] | None = None  # names of sites that moved between the passes, and how; `None`: raise

    def without_decisions(self) -> Split:
        """The same without what the network itself decided."""
        near = {site: NearestCenter(near.sums[..., :2]) for site, near in self.near.items()}
        scatters = {site: replace(s, sums=s.sums[..., : s.rank + 6]) for site, s in self.scatters.items()}
        return replace(self, near=near, scatters=scatters, accuracy=None)

    def has(self, view: str) -> bool:
        """Whether some site was measured without each group ("left_out") or under permuted labels ("permuted")."""
        found = (*self.around.values(), *self.regressions.values())
        return view in self.views or any(getattr(one, view) is not None for one in found)

    def numbers(self, sites: Sequence[Site], found: Mapping[Site, SiteColumns]) -> dict[Site, SiteColumns]:
        """Those of sites that are finished, and behind them what else was `found`."""
        both: dict[Site, SiteColumns] = {}
        for site in sites:
            (values, by_class), (more, more_by_class) = (part.get(site, ({}, {})) for part in (self.finished, found))
            both[site] = values | _others(more, values), by_class | _others(more_by_class, by_class)
        return both

    def let_go(self, sites: Sequence[Site], found: Mapping[Site, SiteColumns], reads: str | None) -> None:
        """Keep the numbers `found` at some sites and no more of their statistics than is asked for beside them."""
        self.views |= {view for view in ("left_out", "permuted") if self.has(view)}
        self.finished |= found
        for site in sites:
            scatter, read = self.scatters[site], site.name == reads
            self.around[site], r = Finished(self.around[site], scatter, read=read), 0 if read else scatter.rank
            self.scatters[site] = Scatter(scatter.sums[..., r:].clone(), scatter.rank - r, scatter.digest.clone())


def _others(found: Mapping[str, T], known: Container[str]) -> dict[str, T]:
    return {name: value for name, value in found.items() if name not in known}


@dataclass
class State:
    """What both passes over one group of sites share: how labels are dealt, sums, kept features, and the plane's sample."""

    sites: Sequence[Site]
    data: Batches
    label: str
    classes: Classes | Targets
    dealer: Dealer
    first: FirstPass | FirstRegression
    kept: KeptFeatures
    sample: PictureSample | None
    why_not: str
    linear: frozenset[str] = frozenset()  # sites whose within-class scatter is kept
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    spoilt: str = ""  # which scores are no numbers, and in which batch first
    free: Tensor = field(
        default_factory=lambda: torch.zeros(2, dtype=torch.float64)
    )  # right, and all, of free decisions

    borrowed: bool = False  # whether all samples are another rank's, which adds them up
    counted: list[tuple[int, int, Tensor | None]] = field(
        default_factory=list
    )  # of several ranks: of every batch of this one where it starts, how many samples are counted, and which (`None`: all)
    dealt: Dealt | None = None  # how the labels of all kept samples were dealt for pass 1
    at_hand: Tensor | None = None  # the labels of all samples on the CPU, where they were known beforehand
    meanwhile: Meanwhile | None = None  # for work that a GPU need not finish pass 2 for
    room: int = 0  # bytes of the memory budget that the statistics leave for features which wait for others
    turn: str = ""  # which of several groups of sites this is, in words
    replays: Replays | None = None  # forwards that a GPU runs by itself, for both passes
    _decided: list[tuple[Tensor, str]] | None = field(default_factory=list)  # decisions nobody has looked at yet

    def title(self, number: int) -> str:
        """What the progress calls a pass."""
        return f"{self.label}{self.turn}, pass {number}"

    def decided(self, decision: Tensor, where: str) -> None:
        """The network's decisions of a batch, which are looked at with those of others: a GPU would be waited for."""
        if self._decided is None:
            return
        self._decided.append((decision, where))
        if len(self._decided) >= BATCHES:
            self._look()

    def _look(self) -> None:
        waiting, self._decided = self._decided or [], []
        if waiting and not self.spoilt and self.classes.unreadable(torch.cat([decision for decision, _ in waiting])):
            found = ((self.classes.unreadable(decision), where) for decision, where in waiting)
            what, where = next(one for one in found if one[0])
            self.spoilt = f"{what}: expected numbers, got NaN in {where}"

    def raise_spoilt(self) -> None:
        """Raise where class scores were no numbers; later passes show the same ones."""
        self._look()
        self._decided = None
        if self.spoilt:
            cure = "Look at the last layers, or pass scores=None to leave the network's decisions out"
            raise FeatureError(f"{self.spoilt}. {cure}.")

    def forget_replays(self) -> None:
        """Let go of their memory."""
        if self.replays is not None:
            self.replays.drop()

    def saw(self, step: Step) -> None:
        """Remember of a batch of pass 1 which samples of all that came to this rank are counted."""
        self.borrowed = step.borrowed
        if world_size() > 1 and not step.borrowed:
            self.counted.append((step.start, len(step.labels), step.rows))

    def share(self) -> Share:
        """Which samples of this rank are counted, behind pass 1; where these are all of them it takes no numbers."""
        self.fingerprint.settle()
        came = self.fingerprint.streams[0].rows if self.fingerprint.streams else 0
        rows = None
        if sum(n for _, n, _ in self.counted) < came:
            parts = [start + (torch.arange(n) if some is None else some.cpu()) for start, n, some in self.counted]
            rows = torch.cat([torch.zeros(0, dtype=torch.long), *parts])
        return Share(came, rows, self.data.places)

    def begin(self, labels: Tensor) -> None:
        """Start a batch of pass 1."""
        self._begin(self.dealer.deal(labels))

    def _begin(self, dealt: Dealt, labels: Tensor | None = None) -> None:
        self.first.begin(dealt)
        if self.sample is not None:
            self.sample.begin(self.classes.pictured(dealt.labels if labels is None else labels))

    def update(self, name: str, features: Tensor) -> None:
        """Add the features of one site."""
        self.first.update(name, features)
        if self.sample is not None:
            self.sample.update(name, features)

    def end(self, where: str) -> None:
        """End a batch of pass 1, which is named where it is spoilt."""
        with full_precision():
            self.first.end(lambda _: where)

    def add_kept(self, labels: Tensor, rows: slice | None, where: Callable[[Hashable], str]) -> None:
        """Add the kept features of some rows (`None`: all)."""
        with full_precision():
            dealt = self.dealer.deal(labels)
            self.dealt = dealt if rows is None else None
            self._add(self.kept, dealt, rows, where, self.dealer.all_labels if rows is None else None)

    def dealt_again(self) -> Dealt:
        """The labels of all kept samples, dealt as for pass 1."""
        if self.dealt is None:
            self.dealer.restart()
            self.dealt = self.dealer.deal(self.kept.labels)
        return self.dealt

    def add_waiting(self, waiting: KeptFeatures, dealt: Dealt) -> None:
        """Add features that waited for others."""
        with full_precision():
            self._add(waiting, dealt, None, lambda name: waiting.where_bad(str(name)))

    def _add(
        self,
        kept: KeptFeatures,
        dealt: Dealt,
        rows: slice | None,
        where: Callable[[Hashable], str],
        labels: Tensor | None = None,
    ) -> None:
        self._begin(dealt, labels)
        kept.hand_over(self.first, rows)
        if self.sample is not None:
            for names, features in kept.together(rows):
                self.sample.update_all(names, features)
        self.first.end(where)

    def sums_again(self) -> SumsAgain | None:
        """Adds up the kept features of some sites in float64, and their magnitudes; `None` where they are not all here."""
        here = self.kept.whole and "mps" not in self.kept.devices
        if not isinstance(self.first, FirstPass) or (world_size() == 1 and not here):
            return None
        K, groups = self.first.classes, self.first.groups

        def again(names: Container[Hashable]) -> tuple[FirstPass, FirstPass] | None:
            if not all(gathered(here)):  # ranks know only of their own, and all of them ask
                return None
            sums, magnitudes = FirstPass(K, groups), FirstPass(K)
            dealt = self.dealt_again()
            for rows in self.kept.blocks(32 * self.kept.widest):
                part = dealt.rows(rows)
                sums.begin(part)
                magnitudes.begin(Dealt(part.labels))
                for name, features in self.kept.features(rows):
                    if name in names:
                        sums.update(name, features.double())
                        magnitudes.update(name, features.double().abs())
                for part_sums in (sums, magnitudes):
                    part_sums.end(lambda name: self.kept.where_bad(str(name)))
            for part_sums in (sums, magnitudes):
                part_sums.all_reduce()
            return sums, magnitudes

        return again


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
        for step in prober.steps(state.data, state.title(1), state.fingerprint):
            empty = False
            state.saw(step)
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
    check_dealt(prober.network, state.fingerprint, state.data, state.label)
    deals = state.dealer.groups or state.dealer.permuted or isinstance(state.dealer, TargetDealer)
    if world_size() > 1 and deals and not state.dealer.shared:
        mine = kept.labels.cpu()[: 0 if state.borrowed else None] if kept.whole else None
        state.dealer = among_ranks(state.dealer, gathered((mine, state.share())))
    if kept.whole:
        known = state.at_hand if state.at_hand is not None and len(state.at_hand) == kept.rows else kept.labels.cpu()
        state.dealer.all_labels = known  # permuted labels are a permutation
        state.fingerprint.settle()  # while a GPU is at the forwards
        state.dealer.restart()
        state.add_kept(kept.labels, None, lambda name: kept.where_bad(str(name)))
    state.raise_spoilt()
    choose_among_ranks(state, prober.plan.reads)


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
        state.meanwhile = Meanwhile.on(kept.places)
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
        for step in prober.steps(state.data, state.title(2), again):
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
            raise PassError(changed_data(state.data.where))
        why = "changed between the two passes, which standard errors and permuted labels do not allow"
        cure = "pass data that do not change, or uncertainty=False"
        raise PassError(f"{state.label}: the samples or their order {why}: {cure}.")


taken_over: ContextVar[Any] = ContextVar("taken_over", default=None)
"""Called with a prober, a state, its split and the reference instead of both passes: a shard does one, on its samples.

It is given `forwards`, what `tell_forwards` takes: it alone knows whether this round has any.
"""


def among_ranks(dealer: Dealer, shares: Sequence[tuple[Tensor | None, Share]]) -> Dealer:
    """One that deals by the places of samples among those of all ranks, whose labels and shares are given.

    Where a rank does not know its labels (`None`) each deals by itself. Samples without known places stand rank by rank.
    """
    known = [labels for labels, _ in shares if labels is not None]
    dealer.shared = len(known) == len(shares)
    if not dealer.shared or not len(known[rank()]):
        return dealer
    order = torch.cat(places_among([share for _, share in shares])).argsort()  # samples that are not counted leave gaps
    mine = torch.split(order.argsort(), [len(labels) for labels in known])[rank()]
    return RankDealer(dealer, torch.cat(known)[order], mine)
