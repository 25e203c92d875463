"""What both passes over one group of sites share."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layerlaw.capture.batches import Batches
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.capture.plan import Site
from layerlaw.capture.replay import Replays
from layerlaw.errors import FeatureError
from layerlaw.probing.classes import Classes
from layerlaw.probing.memory import KeptFeatures
from layerlaw.probing.targets import Targets
from layerlaw.stats.passes import Dealer, Dealt, FirstPass, SumsAgain
from layerlaw.stats.plane import PlaneSample
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import world_size
from layerlaw.stats.regression import FirstRegression

BATCHES = 64  # whose decisions are looked at together


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
    sample: PlaneSample | None
    why_not: str
    linear: frozenset[str] = frozenset()  # sites whose within-class scatter is kept
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    spoilt: str = ""  # which scores are no numbers, and in which batch first
    free: Tensor = field(
        default_factory=lambda: torch.zeros(2, dtype=torch.float64)
    )  # right, and all, of free decisions

    borrowed: bool = False  # whether all samples are another rank's, which adds them up
    dealt: Dealt | None = None  # how the labels of all kept samples were dealt for pass 1
    room: int = 0  # bytes of the memory budget that the statistics leave for features which wait for others
    replays: Replays | None = None  # forwards that a GPU runs by itself, for both passes
    _decided: list[tuple[Tensor, str]] | None = field(default_factory=list)  # decisions nobody has looked at yet

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

    def begin(self, labels: Tensor) -> None:
        """Start a batch of pass 1."""
        self._begin(self.dealer.deal(labels))

    def _begin(self, dealt: Dealt) -> None:
        self.first.begin(dealt)
        if self.sample is not None:
            self.sample.begin(self.classes.pictured(dealt.labels))

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
            self._add(self.kept, dealt, rows, where)

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

    def _add(self, kept: KeptFeatures, dealt: Dealt, rows: slice | None, where: Callable[[Hashable], str]) -> None:
        self._begin(dealt)
        kept.hand_over(self.first, rows)
        if self.sample is not None:
            for names, features in kept.together(rows):
                self.sample.update_all(names, features)
        self.first.end(where)

    def sums_again(self) -> SumsAgain | None:
        """Adds up the kept features of some sites in float64, and their magnitudes; `None` where they are not all here."""
        if (
            not self.kept.whole
            or world_size() > 1
            or "mps" in self.kept.devices
            or not isinstance(self.first, FirstPass)
        ):
            return None
        K, groups = self.first.classes, self.first.groups

        def again(names: Container[Hashable]) -> tuple[FirstPass, FirstPass]:
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
            return sums, magnitudes

        return again


taken_over: ContextVar[Callable[[Any, State, Any, Any], None] | None] = ContextVar("taken_over", default=None)
"""Called with a prober, a state, its split and the reference instead of both passes: a shard does one, on its samples."""


class DealerFrom(Dealer):
    """Deals as the one that would have dealt the batches `before` first; remembers what it dealt itself."""

    def __init__(self, whole: Dealer, before: Sequence[Tensor]) -> None:
        self.whole, self.before = whole, before
        self.classes, self.groups, self.permuted = whole.classes, whole.groups, whole.permuted
        self.restart()

    def restart(self) -> None:
        """Begin a pass."""
        self.dealt: list[Tensor] = []
        self.whole.restart()
        for labels in self.before:
            self.whole.deal(labels)

    def deal(self, labels: Tensor) -> Dealt:
        """The labels of the next batch."""
        self.dealt.append(labels.cpu())
        return self.whole.deal(labels)
