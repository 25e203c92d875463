"""Class means of features at hand, where those that a stream gives would lose digits: far from 0, or beside outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from layerlaw.errors import FeatureError
from layerlaw.stats.centers import FLOAT32_RESOLUTION, Centers, FeatureFit, Weighting, find_centers
from layerlaw.stats.limits import OFFSET, doubt_of
from layerlaw.stats.precision import double
from layerlaw.stats.regression import SiteRegression
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
    away = _far(centers)
    if (doubt := doubt_of(centers)) and not doubt.out_of_range:  # of sums, whose rounding depends on the processor
        away = torch.ones_like(away)
    if x.dtype == torch.float64 and bool(away.any()):
        origin = x[..., :1, :] * away[..., None, None]
        x = x - origin
        centers = find_centers(ClassSums.of(x, y, centers.counts.shape[-1]), weighting, origin)
    if doubt := doubt_of(centers):
        raise FeatureError(f"features: {doubt}")
    if x.dtype == torch.float64 or not bool(narrow(centers).any()):
        return x, centers
    K, wide = centers.counts.shape[-1], double(x)
    exact = find_centers(ClassSums.of(wide, y, K), weighting)
    sizes = ClassSums.of(wide.abs(), y, K).sums / exact.counts.unsqueeze(-1)  # (…, K, d): mean |x| of each feature
    return (wide, exact) if more_digits(wide, exact, sizes, exact.weights, centers.rank) else (x, centers)


def careful_fit(x: Tensor, regressed: Callable[[Tensor], SiteRegression]) -> SiteRegression:
    """The same of features (n, d) regressed on targets; `regressed` does that."""
    origin = None
    if x.dtype == torch.float64:
        near = x - x[:1]
        if bool(x[0].square().sum() > CENTERED**2 * near.square().sum(-1).mean()):
            x, origin = near, x[:1]
    found = regressed(x)
    if doubt := doubt_of(replace(found.fit, origin=origin)):
        raise FeatureError(f"features: {doubt}")
    if x.dtype == torch.float64 or not bool(narrow(found.fit)):
        return found
    wide = double(x)
    exact = regressed(wide)
    sizes = wide.square().mean(0, keepdim=True).sqrt()
    return exact if more_digits(wide, exact.fit, sizes, sizes.new_ones(1), found.fit.rank) else found


def _far(centers: Centers) -> Tensor:
    """Whether the features are farther from 0 than from each other (…), by so much that it costs digits."""
    around = centers.spread / centers.counts.sum(-1) + centers.scales.square().sum(-1)
    return centers.mean.square().sum(-1) > CENTERED**2 * around


def narrow(site: Centers | FeatureFit) -> Tensor:
    """Whether the spread of the features, and not their offset, makes scales count as rounding, or nearly (…)."""
    n, mean, scales, _ = site.looked_at
    within = (site.spread / n).sqrt()
    least = torch.where(scales > 0, scales, torch.inf).amin(-1)
    small = (site.cut > 0) | (least < NARROW * site.cutoff)
    small &= (torch.linalg.vector_norm(mean, dim=-1) <= OFFSET * within) & within.isfinite() & (site.rank > 0)
    return small


def more_digits(x: Tensor, exact: Centers | FeatureFit, sizes: Tensor, weights: Tensor, rank: Tensor) -> bool:
    """Whether `exact`, of the float32 features made float64 (…, n, d), is to be believed instead of the float32 `rank` (…).

    A direction is real where it is more than the rounding of the features can be; `sizes` (…, K, d) are those of every
    feature, in K parts of these weights: large features say nothing against directions of small ones. Raises where float32
    hides directions.
    """
    along = (sizes @ exact.basis.abs().mT).square()  # (…, K, r)
    rounding = FLOAT32_RESOLUTION * (weights.unsqueeze(-1) * along).sum(-2).sqrt()  # (…, r)
    kept = exact.scales > 0
    real = kept & (exact.scales > rounding)
    if bool((real == kept).all()) and x.dim() == 2:
        return True
    hidden = (real.sum(-1) > rank) | (_outliers(x) & (kept & ~real).any(-1))
    if bool(hidden.any()):
        why = "some features or samples are so much larger than others that these vanish in float32"
        raise FeatureError(f"features: {why}. Take their digits as they are: features.double(). Or leave outliers out.")
    return False


def _outliers(x: Tensor) -> Tensor:
    """Whether some sample lies much farther from the mean than most (…)."""
    lengths = torch.linalg.vector_norm(x - x.median(-2, keepdim=True).values, dim=-1)
    found: Tensor = lengths.amax(-1) > OUTLIER * lengths.median(-1).values
    return found
