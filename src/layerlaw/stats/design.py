"""The design of a regression on targets: how they are dealt batch by batch, and the views that share a product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from layerlaw.stats.centers import FeatureFit
from layerlaw.stats.labels import deal_groups, shuffled_groups
from layerlaw.stats.limits import hides_directions
from layerlaw.stats.passes import Dealer, Dealt
from layerlaw.stats.precision import double


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
        self._order = shuffled_groups(self.always, self.seed)
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


class DesignRows:
    """The design of one batch: T (n, 1+q), permuted ones (P, 1+q, n), the rows of every group; on any device."""

    def __init__(self, dealt: Dealt, shift: Tensor, groups: int) -> None:
        self.T = _design(double(dealt.labels).cpu() - shift)
        self.groups = torch.zeros(len(self.T), dtype=torch.long) if dealt.groups is None else dealt.groups.cpu()
        self.permuted = None if dealt.permuted is None else _design((dealt.permuted.mT - shift).cpu()).mT
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
