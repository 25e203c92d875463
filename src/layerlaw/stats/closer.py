"""A closer look at float32 features some of which are so much larger than others that these may vanish in float32.

Pass 1 adds up float32 numbers, and what it takes for rounding is of the size of all features together. Where it left
something out, or hardly did not, the class means are found once more in float64: a direction is real where it is more than
the rounding of the features along it can be, and large features say nothing against directions of small ones.

Of features that were kept on a CPU, pass 1 takes sums in float64 at once: they are the same on any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from layerlaw.stats.centers import FLOAT32_RESOLUTION, Centers, FeatureFit, Whitened, find_centers
from layerlaw.stats.labels import Labelings
from layerlaw.stats.limits import OFFSET, TRACE, Doubt, Extent
from layerlaw.stats.precision import at_least_float32, double, row_chunks, take_rows
from layerlaw.stats.sums import Assignment, ClassSums

NARROW = 1e3  # times the cutoff: above, float32 sums have digits enough for every direction
MOVED = 1e-3  # of a scale: class means of pass 1 that are farther off give D less than three digits

UNEVEN = "some features or samples are so much larger than others that these vanish in float32"
_CURE = "Measure in float64 (probe: model and inputs in float64), scale the features, or leave outliers out"
UNEVEN_DOUBT = Doubt(UNEVEN, _CURE, False)


def narrow(site: Centers | FeatureFit, trace: float = TRACE) -> Tensor:
    """Whether scales of float32 features count as rounding, or nearly (…); a `trace` of the cutoff was exactly 0.

    Not where an offset is the reason, which `doubt_of` judges. On the CPU, wherever the site is.
    """
    if site.dtype == torch.float64:
        return torch.zeros(site.rank.shape, dtype=torch.bool)
    seen = Extent.of(site)
    near = seen.offset <= OFFSET * seen.spread
    small: Tensor = (seen.cut > trace * seen.cutoff) | (seen.least < NARROW * seen.cutoff)
    return small & near & seen.told


@dataclass(frozen=True)
class Rounding:
    """What the rounding of float32 features does along a direction: by the sizes (…, K, d) of every feature in K parts.

    `spreads` (…, K, d): how far a feature varies within its part, as a root of a mean of squares; where that is more than
    its rounding, errors are as good as random, and the mean of n samples (…, K) has fewer of them.
    """

    sizes: Tensor
    spreads: Tensor
    counts: Tensor
    weights: Tensor

    def real(self, exact: Centers | FeatureFit) -> Tensor:
        """Which directions of features whose digits were taken as exact are more than rounding can be (…, r)."""
        along = (self.sizes @ exact.basis.abs().mT).square()  # (…, K, r)
        return (exact.scales > 0) & (exact.scales > FLOAT32_RESOLUTION * self._weighted(along))

    def all_real(self, exact: Centers | FeatureFit) -> bool:
        """Whether all are."""
        return bool((self.real(exact) == (exact.scales > 0)).all())

    def hidden(self, found: Tensor, exact: Centers | FeatureFit, outliers: Tensor | bool = False) -> Tensor:
        """Whether float32 hides directions (…): more are real than were `found` (…), or another one may be.

        It may be where it is more than random rounding makes, or beside outliers, whose rounding is not random.
        """
        real, (K, d) = self.real(exact), self.sizes.shape[-2:]
        random = self.spreads > 4 * FLOAT32_RESOLUTION * self.sizes
        errors = self.sizes.square() * torch.where(random, 1 / self.counts.unsqueeze(-1), 1.0)
        chance = 3 * FLOAT32_RESOLUTION * (1 + (d / K) ** 0.5) * self._weighted(errors @ exact.basis.square().mT)
        perhaps = (exact.scales > 0) & ~real
        seen: Tensor = (real.sum(-1) > found) | (perhaps & (exact.scales > chance)).any(-1)
        return seen | perhaps.any(-1) & outliers

    def _weighted(self, squares: Tensor) -> Tensor:
        """Root of the mean over parts: (…, K, r) → (…, r)."""
        return (self.weights.unsqueeze(-1) * squares).sum(-2).sqrt()


def rounding_of(x: Tensor, y: Tensor, exact: Centers) -> Rounding:
    """Of float32 features at hand, made float64 (…, n, d), with labels (…, n), around the centers that they have so."""
    K, n = exact.counts.shape[-1], exact.counts.unsqueeze(-1)
    squares = (x - take_rows(exact.means, y)).square_()
    sizes, spreads = ClassSums.of(x.abs(), y, K).sums / n, ClassSums.of(squares, y, K).sums / n
    return Rounding(sizes, spreads.clamp_min(0).sqrt(), exact.counts, exact.weights)


def exact_sums(features: Tensor, to: Assignment, under: Labelings | None = None) -> tuple[ClassSums, ClassSums | None]:
    """Sums of (S, n, d) float32 features on a CPU as they are, in float64, and those under other labelings.

    Takes longer than float32, but hardly a bit is lost: sums are the same ones however samples are put together.
    """
    (S, _, d), K, N = features.shape, to.counts.shape[-1], to.own.numel()
    rows = features.reshape(N, d)
    reference = at_least_float32(rows.index_select(0, to.first))  # (S·K, d)
    lengths = reference.new_empty(N)
    into = [(to.spreads * K + to.labels.reshape(N), to.counts.numel()), *([] if under is None else under.cells(S, d))]
    found = [torch.zeros((number, d), dtype=torch.float64) for _, number in into]
    parts = list(row_chunks(N, 16 * d, rows.device))
    room = torch.empty((parts[0].stop, d), dtype=torch.float64)
    for part in parts:
        near = reference.index_select(0, to.own[part])
        torch.linalg.vector_norm(torch.sub(rows[part], near, out=near), dim=-1, out=lengths[part])
        wide = room[: part.stop - part.start].copy_(rows[part])
        for (cells, _), sums in zip(into, found, strict=True):
            sums.index_add_(0, cells[part], wide)
    own = ClassSums(to.counts.clone(), found[0].view(*to.counts.shape, d), to.spread(lengths), features.dtype)
    return own, None if under is None else permuted_sums(under, under.apart(found[1:], S), features.dtype)


def permuted_sums(under: Labelings, sums: Tensor, dtype: torch.dtype) -> ClassSums:
    """Of sums (…, P, K, d) under other labelings, all that there is: what was added up is the spread of the true classes."""
    counts = under.counts.expand(sums.shape[:-1]).clone()
    return ClassSums(counts, sums, torch.zeros_like(counts[..., 0]), dtype)


def off_by(centers: Centers, exact: Centers) -> Tensor:
    """How far the class means of pass 1 are from those found in float64, in units of the scale of each direction (…)."""
    away = (exact.means - centers.means) @ centers.basis.mT * centers.inverse_scales.unsqueeze(-2)  # (…, K, r)
    return away.abs().amax((-2, -1))


@dataclass
class CloserLook:
    """Class means and sizes of the features of one site in float64, added up during pass 2 of a stream.

    Around the class means of pass 1: sums of the features (K, d) and of their squares; and sums of their magnitudes. `exact`
    are the centers by sums in float64, where they are known beforehand.
    """

    centers: Centers
    shifts: Tensor
    squares: Tensor
    sizes: Tensor
    exact: Centers | None = None
    _lost: tuple[bool, bool] | None = None

    @classmethod
    def start(cls, centers: Centers) -> CloserLook:
        """Ready for pass 2."""
        shifts, squares, sizes = (torch.zeros_like(centers.means) for _ in range(3))
        return cls(centers, shifts, squares, sizes)

    @property
    def tensors(self) -> list[Tensor]:
        """What an all-reduce adds up."""
        return [self.shifts, self.squares, self.sizes]

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add the features (n, d) of one batch."""
        home = self.shifts.device
        labels = labels.to(home)
        for part in row_chunks(len(features), 8 * features.shape[-1], features.device):
            wide, own = double(features[part]).to(home), labels[part]
            self.sizes.index_add_(0, own, wide.abs())
            near = wide - self.centers.means[own]
            self.shifts.index_add_(0, own, near)
            self.squares.index_add_(0, own, near.square_())

    def doubt(self, outliers: bool) -> Doubt | None:
        """Why D of both passes would look right and may be wrong; `None` where it has its digits. Once all is added up."""
        if self._lost is None:
            centers, n = self.centers, self.centers.counts.unsqueeze(-1)
            exact = self.exact
            if exact is None:
                wide = ClassSums(centers.counts, n * centers.means + self.shifts, centers.spread, torch.float64)
                exact = find_centers(wide, centers.weighting)
            spreads = (self.squares / n - (self.shifts / n).square()).clamp_min(0).sqrt()
            rounding = Rounding(self.sizes / n, spreads, centers.counts, exact.weights)
            off = bool(off_by(centers, exact) > MOVED)
            hidden = [bool(rounding.hidden(centers.rank, exact, few)) for few in (False, True)]
            self._lost = off or hidden[0], off or hidden[1]
        return UNEVEN_DOUBT if self._lost[outliers] else None


@dataclass(frozen=True)
class ClosestFit:
    """A fit to features (…), which has all directions that the rounding of each feature leaves.

    `exact` takes the digits of float32 features as they are, and is the fit where all of it is real; `None` where nothing is
    doubted. `sizes` (…, d) are those of the features.
    """

    fit: FeatureFit
    exact: FeatureFit | None = None
    sizes: Tensor | None = None

    @classmethod
    def of(cls, targets: Whitened, cross: Tensor, squares: Tensor, dtype: torch.dtype) -> ClosestFit:
        """As `FeatureFit.of`, of float64 sums; but `squares` (d,) are those of each feature."""
        size = squares.sum()
        fit = FeatureFit.of(targets, cross, size, dtype)
        if not bool(narrow(fit).any()):
            return cls(fit)
        exact = FeatureFit.of(targets, cross, size, torch.float64)
        found = cls(fit, exact, (squares / fit.targets.n.unsqueeze(-1)).sqrt())
        if not found._rounding().all_real(exact):
            return found
        moved = torch.where(exact.scales > 0, fit.cutoff.unsqueeze(-1) / exact.scales, 0.0)  # features are as rounded
        return replace(found, fit=replace(exact, dtype=dtype, resolution=moved))

    def _rounding(self, left: Tensor | None = None) -> Rounding:
        """By what the fit has `left` (d,) of the squares of each feature; without it nothing counts as random."""
        assert self.sizes is not None
        sizes, n = self.sizes.unsqueeze(-2), self.fit.targets.n.unsqueeze(-1)
        spreads = torch.zeros_like(sizes) if left is None else (left / n).sqrt().unsqueeze(-2)
        return Rounding(sizes, spreads, n, torch.ones_like(n))

    def hidden(self, left: Tensor | None = None, outliers: bool = False) -> bool:
        """Whether float32 hides directions from some entry of the leading dimension; `left` (d,) are squared residuals."""
        if self.exact is None:
            return False
        return bool(self._rounding(left).hidden(self.fit.rank, self.exact, outliers).any())
