"""Class means of features at hand, where those that a stream gives would lose digits: far from 0, or beside outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from layerlaw.errors import FeatureError
from layerlaw.stats.centers import Centers, find_centers
from layerlaw.stats.closer import UNEVEN, CloserLook, narrow, rounding_of
from layerlaw.stats.limits import doubt_of, doubtful
from layerlaw.stats.precision import double
from layerlaw.stats.regression import SiteRegression
from layerlaw.stats.sums import ClassSums

CENTERED = 1e5  # times their spread: float64 features farther from 0 are centered first; nearer, it would not show
OUTLIER = 1e3  # times the median distance from the mean


def careful_centers(x: Tensor, y: Tensor, centers: Centers) -> tuple[Tensor, Centers]:
    """Centers to measure features (…, n, d) with labels (…, n) around, and these features, from the `centers` of their sums.

    All are the same ones, unless digits would be lost: float64 far from 0 has a sample subtracted, which is exact;
    float32 of which few numbers are so large that directions of the others vanish in the sums becomes float64. Raises
    where the features themselves are rounded too much.
    """
    away, weighting = _far(centers), centers.weighting
    doubt = doubt_of(centers)
    if doubt and not doubt.out_of_range:  # of sums, whose rounding depends on the processor
        away = torch.ones_like(away)
    if x.dtype == torch.float64 and bool(away.any()):
        origin = x[..., :1, :] * away[..., None, None]
        x = x - origin
        centers = find_centers(ClassSums.of(x, y, centers.counts.shape[-1]), weighting, origin)
        doubt = doubt_of(centers)
    if doubt:
        raise FeatureError(f"features: {doubt}")
    if x.dtype == torch.float64 or not bool(narrow(centers, 0.0).any()):
        return x, centers
    K, wide = centers.counts.shape[-1], double(x)
    exact = find_centers(ClassSums.of(wide, y, K), weighting)
    return (wide, exact) if _more_digits(wide, y, exact, centers.rank) else (x, centers)


def not_believed(x: Tensor, y: Tensor, centers: Centers, outliers: Tensor) -> Tensor:
    """Which of several sets of features (…, n, d) have a D that would look right and may be wrong (…).

    `centers` are those of their sums, on the CPU; `outliers` (…): where few samples are most of the spread.
    """
    few = outliers.cpu()
    wrong, closely = doubtful(centers, few), narrow(centers)
    for i in closely.nonzero().tolist():
        at = tuple(i)
        one, wide, labels = centers.at(at), double(x[at]).cpu(), y[at].cpu()
        look = CloserLook.start(one)
        look.update(wide, labels)
        wrong[at] |= look.doubt(bool(few[at])) is not None
    return wrong.to(x.device)


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
    if found.hidden:
        raise FeatureError(_HIDDEN)
    return found


def _far(centers: Centers) -> Tensor:
    """Whether the features are farther from 0 than from each other (…), by so much that it costs digits."""
    around = centers.spread / centers.counts.sum(-1) + centers.scales.square().sum(-1)
    return centers.mean.square().sum(-1) > CENTERED**2 * around


def _more_digits(x: Tensor, y: Tensor, exact: Centers, rank: Tensor) -> bool:
    """Whether `exact`, of the float32 features made float64 (…, n, d), is to be believed instead of the float32 `rank` (…).

    Raises where float32 hides directions.
    """
    rounding = rounding_of(x, y, exact)
    if rounding.all_real(exact) and x.dim() == 2:
        return True
    if bool(rounding.hidden(rank, exact, _outliers(x)).any()):
        raise FeatureError(_HIDDEN)
    return False


_HIDDEN = f"features: {UNEVEN}. Take their digits as they are: features.double(). Or leave outliers out."


def _outliers(x: Tensor) -> Tensor:
    """Whether some sample lies much farther from the mean than most (…)."""
    lengths = torch.linalg.vector_norm(x - x.median(-2, keepdim=True).values, dim=-1)
    found: Tensor = lengths.amax(-1) > OUTLIER * lengths.median(-1).values
    return found
