"""Sites whose statistics do not fit the memory budget are measured in slices of their feature axis.

A forward gives all features of a site, but of K classes their sums fit memory only in part. So the data are gone through
twice for every slice: once for its class sums, once for its residuals; what is left of them (see `stats.slices`) has the
sizes K² and K·n. One round of two forwards serves as many slices, of one site or several, as fit the budget together. Class
means are computed again rather than kept in host memory or on disk: for a ResNet-50 and 1000 classes these would be 44 GB.
Test data need the class means of the training data too: one more forward over those in each of their rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerlaw.capture.batches import Batches
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.capture.plan import Site, statistic_bytes
from layerlaw.errors import FeatureError, LabelError, MemoryBudgetError, PassError
from layerlaw.probing.classes import Classes
from layerlaw.probing.dealt import check_dealt
from layerlaw.probing.memory import (
    FEATURE_BYTES,
    MOST_ROUNDS,
    KeptFeatures,
    beside_the_budget,
    kept_bytes,
    too_small,
)
from layerlaw.probing.pictures import choose_among_ranks
from layerlaw.probing.state import Split, State
from layerlaw.progress import warn
from layerlaw.stats.design import Dealer
from layerlaw.stats.labels import check_counts
from layerlaw.stats.limits import TOO_LARGE, check_range, finite
from layerlaw.stats.passes import Dealt, check_finite
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import adding_nothing, all_reduce, gathered, rank
from layerlaw.stats.slices import Added, Slice, SlicedSite, Views
from layerlaw.wording import counted

if TYPE_CHECKING:
    from layerlaw.probing.run import GroupedProbe, Prober

LISTED = 5  # sites that a note names
MANY, FEW = 20, 16  # forwards: more are told beforehand, with budgets that take a tenth, and at most so few
LARGER = (1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024)  # times the given one
NO_LINEAR = "it is measured in slices of its features"
SINCE = "between two forwards. In slices data must not change: pass such, or a memory_gib that holds the site whole"
STEADY = "Random augmentation, or dropout left on by hand, does this; make the data deterministic, or raise memory_gib"


@dataclass(frozen=True)
class SiteSlice:
    """Some features of a site."""

    site: Site
    start: int
    stop: int


def rounds_of(
    sites: Sequence[Site], classes: int, views: int, samples: int | None, memory: int
) -> list[list[SiteSlice]]:
    """Which slices of which sites each round of forwards measures: as few rounds as the budget allows.

    Data of unknown length may take half of it for what is kept per sample.
    """
    each = FEATURE_BYTES * views * classes
    kept = memory // 2 if samples is None else kept_bytes(views, classes, samples)
    rounds: list[list[SiteSlice]] = [[]]
    left = memory
    for site in sites:
        at = 0
        while at < site.features:
            width = min(site.features - at, (left - kept) // each)
            if width > 0:
                rounds[-1].append(SiteSlice(site, at, at + width))
                at, left = at + width, left - kept - width * each
            if at < site.features:  # the next slice has the whole budget
                if (width <= 0 and left == memory) or len(rounds) == MOST_ROUNDS:
                    raise too_small(sites, classes, views, samples, memory)
                rounds.append([])
                left = memory
    return rounds


def tell_forwards(forwards: int, over: str, memory_gib: float, planned: Callable[[float], int], of: str = "") -> None:
    """Warn of many forwards before the first, with budgets that take far fewer; `planned`: those of another, `of` whom."""
    if forwards <= MANY:
        return
    cures: list[str] = []
    for times in LARGER:
        step = 10.0 ** (math.floor(math.log10(times * memory_gib)) - 1)
        larger = float(f"{math.ceil(times * memory_gib / step) * step:.2g}")  # two digits, rounded up
        with suppress(MemoryBudgetError):  # more may be set aside for matrices d×d
            if (fewer := planned(larger)) <= (FEW if cures else max(FEW, forwards // 10)):
                cures.append(f"; memory_gib={larger:g} takes {fewer}")
            if fewer <= FEW:
                break
    if rank() == 0:
        cure = "".join(cures) + of * bool(cures)
        warn(f"layerlaw: {forwards:,} forwards over {over} are needed within memory_gib={memory_gib:g}{cure}.")


def wide_sites(sites: Sequence[Site], classes: int, views: int, memory: int) -> list[Site]:
    """Those whose statistics do not fit the budget as a whole, and beside such ones what does not fit together.

    Without any there are none: sites are then measured in groups.
    """
    used, need, wide = 0, 0, set()
    for site in sorted(sites, key=lambda site: site.features):
        used += (need := statistic_bytes(classes, site.features) * views)
        if used > memory:
            wide.add(site.name)
    return [site for site in sites if site.name in wide and need > memory]  # that of the widest


@dataclass
class _FirstForward:
    """What the first forward over the data leaves; the later ones must find the same samples in the same order."""

    labels: Tensor
    dealt: Dealt
    decisions: Tensor | None
    counts: Tensor  # of every view (V, K)
    fingerprint: Fingerprint


@dataclass(frozen=True)
class _Batch:
    """One batch on its way: which rows of the table its samples are added to, and which samples of all they are."""

    added: Added
    labels: Tensor
    start: int

    @property
    def rows(self) -> slice:
        """Of all samples."""
        return slice(self.start, self.start + len(self.labels))


_Take = Callable[[Site, Tensor, _Batch], None]


class SlicedProbe:
    """One data set, some sites, slice after slice."""

    def __init__(
        self, prober: Prober, sites: Sequence[Site], data: Batches, label: str, split: Split, reference: Split | None,
        dealer: Dealer, memory: int, *, plane: bool,
    ) -> None:  # fmt: skip
        """Which slices there are; `dealer` says which views of them. Raises where even these do not fit the memory."""
        assert isinstance(prober.classes, Classes)
        self.prober, self.classes, self.sites = prober, prober.classes, list(sites)
        self.data, self.label, self.split, self.reference = data, label, split, reference
        self.seen: _FirstForward | None = None
        self.forwards = 0
        self.measured: Sequence[GroupedProbe] = ()  # these data, and test data that are measured with them
        self.dealer, self.memory, self.plane = dealer, memory, plane
        self.views = Views(dealer.groups, int(dealer.permuted), self.reference is not None)
        known = gathered(self.data.samples)  # ranks must cut the same slices
        self.samples = None if None in known else max(n for n in known if n is not None)
        self.rounds = self._rounds(self.sites)
        self.planned = len(self.rounds) * self._per_round

    def measure(self) -> None:
        """All of it, into the split."""
        self.split.slices_why = self._said()
        self.state = self._new_state(self.data)
        going: dict[Site, SlicedSite] = {}
        for pieces in self.rounds:
            self._round(pieces, going)
            for piece in pieces:
                if piece.stop == piece.site.features:
                    self._finish(piece.site, going.pop(piece.site))
        self._leave()

    @property
    def _per_round(self) -> int:
        return 2 + self.views.reference

    def _rounds(self, sites: Sequence[Site]) -> list[list[SiteSlice]]:
        return rounds_of(sites, self.classes.K, self.views.count, self.samples, self.memory)

    def _new_state(self, data: Batches) -> State:
        nothing = self.classes.first(0, ()), KeptFeatures(self.sites, 0, None)
        return State(self.sites, data, self.label, self.classes, self.dealer, *nothing, None, "")

    def _said(self) -> str:
        """How many forwards it takes, in words, before the first of them."""
        names = ", ".join(f"'{site.name}'" for site in self.sites[:LISTED]) + ", …" * (len(self.sites) > LISTED)
        widest = max(self.sites, key=lambda site: site.features)
        whole = statistic_bytes(self.classes.K, widest.features) * self.views.count
        why = f"the statistics of '{widest.name}' need {' GiB, '.join(beside_the_budget(whole, self.memory))}"
        extra = f", {self.planned // 3} of them over the training data" if self.views.reference else ""
        how = f"{counted(self.planned, 'forward')}{extra}"
        return f"Measured in slices of the features, {self.label}, by {how}: {names} ({why})."

    def _round(self, pieces: Sequence[SiteSlice], going: dict[Site, SlicedSite]) -> None:
        """Class sums of some slices, then their residuals."""
        parts = {piece.site: Slice(piece.start, piece.stop) for piece in pieces}
        new = [site for site, part in parts.items() if part.start == 0]
        for site in new:
            lent = None if self.reference is None else self.reference.lent[site]
            going[site] = SlicedSite(site.features, self.classes.K, self.views, self.prober.options.weighting, lent)
        self.state.sample = self.classes.sample() if self.plane and new else None
        dtypes: dict[Site, torch.dtype] = {}
        self._add_up(parts, dtypes)
        choose_among_ranks(self.state)
        assert self.seen is not None
        with full_precision():
            for site, part in parts.items():
                if site in new:
                    going[site].begin(self.seen.counts, len(self.seen.labels), part.table.device)
                if dtypes[site].itemsize < going[site].dtype.itemsize:
                    going[site].dtype = dtypes[site]
                going[site].center(part)
            if (sample := self.state.sample) is not None:
                planes, self.split.plane_labels = sample.planes(), sample.labels
                self.split.planes |= {site: planes[site.name] for site in new if site.name in planes}
        self.state.sample = None

        def take(site: Site, features: Tensor, batch: _Batch) -> None:
            going[site].add(parts[site], features, batch.labels, batch.rows)

        self._forward(list(parts), take)
        for part in parts.values():
            part.drop()

    def _add_up(self, parts: dict[Site, Slice], dtypes: dict[Site, torch.dtype]) -> None:
        """Class sums of slices under all views, of all ranks; `dtypes` are the coarsest of the features."""
        K, V, sample = self.classes.K, self.views.count, self.state.sample

        def take(site: Site, features: Tensor, batch: _Batch) -> None:
            parts[site].add(features, batch.added, V, K)
            if sample is not None and parts[site].start == 0:
                sample.update(site.name, features)
            if site not in dtypes or features.dtype.itemsize < dtypes[site].itemsize:
                dtypes[site] = features.dtype

        self._forward(list(parts), take)
        borrowed = [self.state.borrowed]
        if self.reference is not None:
            borrowed.append(self._add_up_reference(parts))
        for site, part in parts.items():
            part.meet()
            own = [part.table] if len(borrowed) == 1 else [part.table[:-1], part.table[-1:]]
            for tables, lent in zip(own, borrowed, strict=True):
                with adding_nothing(lent):
                    all_reduce([tables])
            check_finite({site.name: part.table}, lambda _: f"{self.label}, in some batch")

    def _add_up_reference(self, parts: dict[Site, Slice]) -> bool:
        """Class sums of the training data, for the last view; gives whether all samples are another rank's."""
        assert self.reference is not None
        assert self.reference.slice_data is not None
        state, K, V = self._new_state(self.reference.slice_data), self.classes.K, self.views.count
        added = Added(torch.empty(0))

        def consume(site: Site, features: Tensor) -> None:
            with full_precision():
                parts[site].add(features, added, V, K)

        with self.prober.capturing(list(parts), consume) as capture:
            for step in self.prober.steps(state.data, self._title("training data"), state.fingerprint):
                state.borrowed, added = step.borrowed, Added((step.labels + (V - 1) * K).unsqueeze(0))
                self.prober.decide(capture, step, state)
        state.fingerprint.all_reduce()
        if state.fingerprint.text() != self.reference.fingerprint:
            raise PassError(f"data: the samples or their order changed {SINCE}.")
        return state.borrowed

    def _title(self, what: str) -> str:
        self.forwards += 1
        here, in_all = max(self.planned, self.forwards), sum(one.forwards for one in self.measured)
        return f"{what}, slices, forward {self.forwards} of {here}{f' ({in_all} in all)' * (in_all > here)}"

    def _forward(self, sites: Sequence[Site], take: _Take) -> None:
        """One forward over the data; every one must see the same samples in the same order."""
        state = self.state
        state.fingerprint, state.counted = Fingerprint(), []
        dealt, decisions = list[Dealt](), list[Tensor | None]()
        batch: _Batch | None = None
        start = 0

        def consume(site: Site, features: Tensor) -> None:
            assert batch is not None
            with full_precision():
                take(site, features, batch)

        self.dealer.restart()
        with self.prober.capturing(sites, consume) as capture:
            for step in self.prober.steps(self.data, self._title(self.label), state.fingerprint):
                state.saw(step)
                here = self.dealer.deal(step.labels)
                batch = _Batch(Added(self.views.rows(here, self.classes.K)), step.labels, start)
                start += len(step.labels)
                if self.seen is None:
                    self._check_room(start)
                elif start > len(self.seen.labels):
                    break
                if state.sample is not None:
                    state.sample.begin(self.classes.pictured(step.labels))
                decisions.append(self.prober.decide(capture, step, state))
                dealt.append(here)
        if self.seen is None:
            check_dealt(self.prober.network, state.fingerprint, self.data, self.label)
            self.seen = self._first_seen(dealt, decisions, state.fingerprint)
        elif start != len(self.seen.labels) or state.fingerprint.text() != self.seen.fingerprint.text():
            raise PassError(f"{self.label}: the samples or their order changed {SINCE}.")

    def _check_room(self, samples: int) -> None:
        """Data of unknown length may have more samples than the budget holds coordinates of."""
        kept = kept_bytes(self.views.count, self.classes.K, samples)
        if self.samples is None and kept > self.memory // 2:
            raise too_small(self.sites, self.classes.K, self.views.count, samples, self.memory, known=False)

    def _first_seen(
        self, dealt: list[Dealt], decisions: list[Tensor | None], fingerprint: Fingerprint
    ) -> _FirstForward:
        if not dealt:
            raise LabelError(f"{self.label}: expected samples of the classes {self.classes.ids[:10]}, got none.")
        self.state.raise_spoilt()
        K, views = self.classes.K, self.views
        groups, permuted = (
            None if any(t is None for t in some) else torch.cat(some, -1)  # type: ignore[arg-type]
            for some in ([one.groups for one in dealt], [one.permuted for one in dealt])
        )
        whole = Dealt(torch.cat([one.labels for one in dealt]), groups, permuted)
        rows = views.rows(whole, K).cpu()
        counts = torch.bincount(rows.flatten(), minlength=views.count * K).double().reshape(views.count, K)
        with adding_nothing(self.state.borrowed):
            all_reduce([counts])
        if g := views.groups:
            counts[0] = counts[1 : 1 + g].sum(0)
            counts[1 : 1 + g] = counts[:1] - counts[1 : 1 + g]
        try:
            check_counts(counts[0], where=self.label)
        except LabelError as error:
            raise LabelError(f"{error}{self.classes.hint}") from None
        if self.reference is not None:
            counts[-1] = next(iter(self.reference.lent.values())).centers.counts.cpu()
        known = [one for one in decisions if one is not None]
        decided = torch.cat(known) if len(known) == len(decisions) else None
        return _FirstForward(whole.labels, whole, decided, counts, fingerprint)

    def _finish(self, site: Site, going: SlicedSite) -> None:
        """The numbers of a site all of whose slices are in; where small scales matter, by one more forward per slice."""
        assert self.seen is not None
        with full_precision():
            short = going.short_of_digits
        if short:
            rounds = self._rounds([site])
            self.planned += len(rounds) * (1 + self.views.reference)
            for (piece,) in rounds:
                part = Slice(piece.start, piece.stop)
                self._add_up({site: part}, {})
                with full_precision():
                    part.center(going.views.groups, going.counts, going.weights)
                    going.fold(part)
        with full_precision(), adding_nothing(self.state.borrowed):
            found = going.finish(self.seen.dealt, self.seen.decisions)
            assert found.scatter is not None
            check_range({site.name: found.around.centers})
            if not finite([found.scatter.sums]):
                expected = f"site '{site.name}': expected finite features"
                raise FeatureError(f"{expected}, got infinity in squares. {TOO_LARGE}.")
            if (moved := found.moved()) is not None:
                why = f"the data changed between the passes: the class means moved by {moved:.2g} of the spread"
                if self.split.untrusted is None:
                    raise PassError(f"site '{site.name}': {why}. {STEADY}.")
                self.split.untrusted[site.name] = why
        self.split.around[site], self.split.scatters[site] = found.around, found.scatter
        self.split.lent[site] = found.lent
        if found.near is not None:
            self.split.near[site] = found.near

    def _leave(self) -> None:
        split, seen, state = self.split, self.seen, self.state
        assert seen is not None
        split.slice_data = self.data
        self.planned, self.measured = self.forwards, ()  # which know of these slices
        split.slices_why = self._said()
        split.counts = [int(count) for count in seen.counts[0]]
        if seen.decisions is not None:
            right = (seen.decisions == seen.labels.to(seen.decisions.device)).sum().cpu().double().reshape(1)
            with adding_nothing(state.borrowed):
                all_reduce([right, state.free])
            split.accuracy = float(right) / float(seen.counts[0].sum())
            split.free_accuracy = float(state.free[0] / state.free[1]) if state.free[1] else None
        seen.fingerprint.all_reduce()
        split.fingerprint, split.samples = seen.fingerprint.text(), seen.fingerprint.samples_text()
