"""Class means of features at hand, where those that a stream gives would lose digits: far from 0, or beside outliers."""

from __future__ import annotations

import torch
from torch import Tensor

from layerlaw.errors import FeatureError
from layerlaw.stats.centers import FLOAT32_RESOLUTION, Centers, Weighting, find_centers
from layerlaw.stats.limits import OFFSET, doubt_of
from layerlaw.stats.precision import double
from layerlaw.stats.sums import ClassSums

CENTERED = 1e5  # times their spread: float64 features farther from 0 are centered first; nearer, it would not show
NARROW = 1e3  # times the cutoff: above, float32 sums have digits enough for every direction
OUTLIER = 1e3  # times the median distance from the mean


def careful_centers(x: Tensor, y: Tensor, sums: ClassSums, weighting: Weighting) -> tuple[Tensor, Centers]:
    """Centers of features (…, n, d), labels (…, n) and their sums; and the features to be measured around them.

    These are the same ones, unless digits would be lost: float64 far from 0 has a sample subtracted, which is exact;
    float32 of which few numbers are so large that directions of the others vanish in the sums becomes float64. Raises
    where the features themselves are rounded too much.
    """
    centers = find_centers(sums, weighting)
    if x.dtype == torch.float64 and bool((away := _far(centers)).any()):
        origin = x[..., :1, :] * away[..., None, None]
        x = x - origin
        centers = find_centers(ClassSums.of(x, y, centers.counts.shape[-1]), weighting, origin)
    if doubt := doubt_of(centers):
        raise FeatureError(f"features: {doubt}")
    return _widened(x, y, centers) if x.dtype != torch.float64 and bool(_narrow(centers).any()) else (x, centers)


def _far(centers: Centers) -> Tensor:
    """Whether the features are farther from 0 than from each other (…), by so much that it costs digits."""
    around = centers.spread / centers.counts.sum(-1) + centers.scales.square().sum(-1)
    return centers.mean.square().sum(-1) > CENTERED**2 * around


def _narrow(centers: Centers) -> Tensor:
    """Whether the spread of the features, and not their offset, makes scales count as rounding, or nearly (…)."""
    within = (centers.spread / centers.counts.sum(-1)).sqrt()
    offset = torch.linalg.vector_norm(centers.mean, dim=-1)
    least = torch.where(centers.scales > 0, centers.scales, torch.inf).amin(-1)
    small = (centers.cut > 0) | (least < NARROW * centers.cutoff)
    return small & (offset <= OFFSET * within) & within.isfinite() & (centers.rank > 0)


def _widened(x: Tensor, y: Tensor, centers: Centers) -> tuple[Tensor, Centers]:
    """Float64 features and their centers, where all of their directions are more than the rounding of float32 features."""
    K = centers.counts.shape[-1]
    wide = double(x)
    exact = find_centers(ClassSums.of(wide, y, K), centers.weighting)
    sizes = ClassSums.of(wide.abs(), y, K).sums / exact.counts.unsqueeze(-1)  # (…, K, d): mean |x| of each feature
    # A feature's mean is off by at most the mean of its roundings; large features say nothing against small ones.
    along = (sizes @ exact.basis.abs().mT).square()  # (…, K, r)
    rounding = FLOAT32_RESOLUTION * (exact.weights.unsqueeze(-1) * along).sum(-2).sqrt()  # (…, r)
    kept = exact.scales > 0
    real = kept & (exact.scales > rounding)
    if bool((real == kept).all()) and x.dim() == 2:
        return wide, exact
    more = real.sum(-1) > centers.rank
    if bool((more | (_outliers(wide) & (kept & ~real).any(-1))).any()):
        why = "some features or samples are so much larger than others that these vanish in float32"
        raise FeatureError(f"features: {why}. Take their digits as they are: features.double(). Or leave outliers out.")
    return x, centers


def _outliers(x: Tensor) -> Tensor:
    """Whether some sample lies much farther from the mean than most (…)."""
    lengths = torch.linalg.vector_norm(x - x.median(-2, keepdim=True).values, dim=-1)
    return lengths.amax(-1) > OUTLIER * lengths.median(-1).values
