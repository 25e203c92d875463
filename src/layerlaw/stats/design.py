"""How labels and targets are dealt batch by batch; the design of a regression on targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from layerlaw.errors import PassError
from layerlaw.stats.centers import FeatureFit
from layerlaw.stats.labels import deal_groups, shuffled_groups
from layerlaw.stats.limits import hides_directions
from layerlaw.stats.passes import Dealt
from layerlaw.stats.precision import double
from layerlaw.stats.ranks import rank, world_size


class Dealer:
    """Deals batches in the same way in both passes: stratified groups, labels permuted so many times with a fixed seed.

    Ranks that do not know each other's labels take turns in dealing groups, and draw labels instead of permuting their own:
    a rank may have samples of few classes.
    """

    def __init__(self, classes: int, *, groups: int, permuted: int, seed: int, all_labels: Tensor | None) -> None:
        self.classes, self.groups, self.permuted = classes, groups, permuted
        self.seed, self.all_labels = seed, all_labels
        self.turn = rank(), world_size()
        self.shared = False  # whether the labels of all ranks are known, also where this one has none
        self.restart()

    def restart(self) -> None:
        """Begin a pass."""
        self._seen = torch.zeros(self.classes, dtype=torch.long)
        self._order = self._turns(self.groups) if self.groups else None
        self._generator = torch.Generator().manual_seed(self.seed + self.turn[0])
        self._shuffled = None
        if self.permuted and self.all_labels is not None and self.turn[1] == 1:
            n = len(self.all_labels)
            orders = [torch.randperm(n, generator=self._generator) for _ in range(self.permuted)]
            self._shuffled = self.all_labels[torch.stack(orders)]  # (P, n)
        self._at = 0

    def _turns(self, groups: int) -> Tensor:
        """The group numbers that this rank deals."""
        order, (first, step) = shuffled_groups(groups, self.seed), self.turn
        return order if step == 1 else order[(first + step * torch.arange(len(order))) % len(order)]

    def deal(self, labels: Tensor) -> Dealt:
        """Labels (n,) of the next batch, already numbered 0 … K−1."""
        dealt = Dealt(labels)
        n = len(labels)
        if self.groups:
            dealt.groups = deal_groups(labels.cpu(), self._seen, self.groups, self._order).to(labels.device)
        if self._shuffled is not None:
            dealt.permuted = self._shuffled[:, self._at : self._at + n].to(labels.device)
        elif self.permuted:  # a stream whose labels are not known beforehand: drawn, not permuted
            drawn = torch.randint(self.classes, (self.permuted, n), generator=self._generator)
            dealt.permuted = drawn.to(labels.device)
        self._at += n
        return dealt


class TargetDealer(Dealer):
    """Deals targets (n, q): the groups of held-out fits, permuted rows (P, q, n) where they are requested.

    The targets of a stream are not known beforehand; there noise of the size of the first batch takes the place of permuted
    ones: D_reg knows nothing of the targets but the space that they span.
    """

    def __init__(self, always: int, *, groups: int, permuted: int, seed: int, all_labels: Tensor | None) -> None:
        self.always = always
        super().__init__(1, groups=groups, permuted=permuted, seed=seed, all_labels=all_labels)

    def restart(self) -> None:
        """Begin a pass."""
        super().restart()
        self._order = self._turns(self.always)
        self._noise: tuple[Tensor, Tensor] | None = None

    def deal(self, labels: Tensor) -> Dealt:
        """Targets (n, q) of the next batch."""
        n, q = labels.shape
        one = torch.zeros(n, dtype=torch.long)
        dealt = Dealt(labels, deal_groups(one, self._seen, self.always, self._order))
        if self._shuffled is not None:
            dealt.permuted = self._shuffled[:, self._at : self._at + n].mT  # (P, q, n)
        elif self.permuted:
            if self._noise is None:
                self._noise = labels.mean(0).cpu(), labels.std(0, correction=0).clamp_min(1e-3).cpu()
            drawn = torch.randn(self.permuted, n, q, generator=self._generator, dtype=torch.float64)
            dealt.permuted = (self._noise[0] + self._noise[1] * drawn).mT
        self._at += n
        return dealt


class RankDealer(Dealer):
    """Deals the samples of one rank as one process would deal those of all: `labels` are theirs, `mine` (n,) its places."""

    def __init__(self, one: Dealer, labels: Tensor, mine: Tensor) -> None:
        self.classes, self.groups, self.permuted, self.shared = one.classes, one.groups, one.permuted, True
        one.turn, one.all_labels = (0, 1), labels
        one.restart()
        dealt = one.deal(labels)
        self._groups = None if dealt.groups is None else dealt.groups[mine]
        self._permuted = None if dealt.permuted is None else dealt.permuted[..., mine]
        self.restart()

    def restart(self) -> None:
        """Begin a pass."""
        self._at = 0

    def deal(self, labels: Tensor) -> Dealt:
        """The labels of the next batch."""
        rows = slice(self._at, self._at + len(labels))
        self._at = rows.stop
        both = (self._groups, self._permuted)
        groups, permuted = (None if t is None else t[..., rows].to(labels.device) for t in both)
        return Dealt(labels, groups, permuted)


class DealerFrom(Dealer):
    """Deals as the one that would have dealt the batches `before` first; remembers what it dealt itself.

    `due` are the labels that must come, where they are known; `changed` says of others that they do not.
    """

    def __init__(self, whole: Dealer, before: Sequence[Tensor], due: Sequence[Tensor] | None, changed: str) -> None:
        self.whole, self.before, self.due, self.changed = whole, before, due, changed
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
        self.dealt.append(mine := labels.cpu())
        if self.due is not None:  # at once: of more labels than are known, permuted ones would run out
            due = self.due[len(self.dealt) - 1 : len(self.dealt)]
            if not due or due[0].shape != mine.shape or not bool((due[0] == mine).all()):
                raise PassError(self.changed)
        return self.whole.deal(labels)


class DesignRows:
    """The design of one batch: T (n, 1+q), permuted ones (P, 1+q, n), the rows of every group; on any device."""

    def __init__(self, dealt: Dealt, shift: Tensor, groups: int) -> None:
        self.T = _design(double(dealt.labels).cpu() - shift)
        self.groups = torch.zeros(len(self.T), dtype=torch.long) if dealt.groups is None else dealt.groups.cpu()
        self.permuted = None if dealt.permuted is None else _design(dealt.permuted.cpu().mT - shift).mT
        self._count = groups
        self._placed: dict[torch.device, tuple[Tensor, Tensor, Tensor | None]] = {}

    @cached_property
    def of_groups(self) -> list[tuple[int, Tensor]]:
        """Every group that is there, and its rows."""
        found = ((k, (self.groups == k).nonzero().flatten()) for k in range(self._count))
        return [(k, rows) for k, rows in found if len(rows)]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """T, groups and permuted designs on a device."""
        if device not in self._placed:
            permuted = None if self.permuted is None else self.permuted.to(device)
            self._placed[device] = self.T.to(device), self.groups.to(device), permuted
        return self._placed[device]


def _design(targets: Tensor) -> Tensor:
    """[1, Y] in float64."""
    return torch.cat([torch.ones_like(targets[..., :1]), targets], -1)


@dataclass
class FitViews:
    """The same regression seen v times: without each group, or under permuted targets.

    `basis` (v·r, d) takes residuals of the fit to all data to coordinates, `moves` (v, r, w) adds what the views' own fits
    differ by, as a function of w columns of the design. `fuzziness` (v,) adds up squares, `counts` (v,) the samples.
    `hidden`: whether rounding beside an offset may hide directions from a view.
    """

    basis: Tensor
    moves: Tensor
    counts: Tensor
    fuzziness: Tensor
    hidden: bool = False

    @classmethod
    def left_out(cls, fits: FeatureFit, whole: FeatureFit, short: bool = False) -> FitViews:
        """Without each group: `fits` have g as their leading dimension; `short`: they are known to lack directions."""
        scaled = fits.scaled
        moves = scaled @ (whole.coefficients - fits.coefficients).mT  # (g, r, 1+q)
        n, hidden = fits.targets.n, short or hides_directions(fits)
        return cls(scaled.flatten(0, 1), moves, n, torch.zeros_like(n), hidden)

    @classmethod
    def permuted(cls, fits: FeatureFit, whole: FeatureFit, short: bool = False) -> FitViews:
        """Under permuted targets: `fits` have P as their leading dimension."""
        scaled, both = fits.scaled, fits.coefficients
        constant, fitted = whole.coefficients[:1] - both[:, :1], whole.coefficients[1:]
        moves = torch.cat([scaled @ constant.mT, scaled @ fitted.mT, -scaled @ both[:, 1:].mT], -1)  # (P, r, 1+2q)
        n, hidden = fits.targets.n, short or hides_directions(fits)
        return cls(scaled.flatten(0, 1), moves, n, torch.zeros_like(n), hidden)

    def update(self, coordinates: Tensor, columns: Tensor, absent: Tensor | None = None) -> None:
        """Add samples: coordinates (v·r, n), columns of the design (…, w, n); `absent` (v, n) where one does not count."""
        z = coordinates.double().view(len(self.counts), -1, coordinates.shape[-1]) + self.moves @ columns
        lengths = z.square_().sum(-2)  # (v, n)
        self.fuzziness += (lengths if absent is None else lengths.masked_fill_(absent, 0.0)).sum(-1)

    @property
    def separation(self) -> Tensor:
        """D_reg of every view (v,)."""
        return self.fuzziness / self.counts
