"""Separation fuzziness D = Tr(SS_w SS_b⁺) (He & Su, Eq. 1), from the residuals in the span of the class means.

SS_b = Vᵀ diag(s²) V with orthonormal rows V (r, d), so SS_b⁺ = Vᵀ diag(s⁻²) V.
SS_w = (1/n) Σ r_i r_iᵀ with the residual r_i = x_i − mean of its class, so Tr(SS_w SS_b⁺) = (1/n) Σ r_iᵀ Vᵀ diag(s⁻²) V r_i.
With z_i = V r_i this is D = (1/n) Σ_i Σ_j z_ij²/s_j² = Σ_k (n_k/n) D_k: only z, of length r ≤ K−1, is ever needed.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from layerlaw.stats import Centers, ClassSums, Frame, LeftOut, Scatter, project
from layerlaw.stats.centers import Weighting, class_weights, helmert_contrasts, rounding_scale
from layerlaw.stats.closer import NARROW
from layerlaw.stats.precision import beyond_float32, double
from layerlaw.stats.spectrum import NEARLY_EQUAL, right_singular
from layerlaw.stats.sums import MANY, sums_by_class

TINY = 1e-300
MOST_CUT = 1e-6  # a direction of so much variance is never left out as rounding
SQUARED = 3  # times, for the norm of a matrix: of n rows its bound is at most n^(1/16) times as large as that
FAR_FIRST = 16  # times the mean square of the residuals of a class: so far the first one of a class is no usual one
REFUSE_ABOVE = math.log(1.3)  # beyond a bias of about 30 % the correction itself is not to be trusted (simulated)


def class_separation(centers: Centers, scatter: Scatter) -> Tensor:
    """Class-wise D_k = Tr(SS_w^k SS_b⁺), one value per class (…, K); lower is better separated.

    The mean residual is subtracted once more (Σz² − n z̄²): the class mean of pass 1 is a rounded number, and near
    collapse its rounding would show.
    """
    mean = scatter.residuals / scatter.counts.unsqueeze(-1)  # (…, K, r)
    moved = (mean * centers.inverse_scales.unsqueeze(-2)).square().sum(-1)
    return (scatter.fuzziness / scatter.counts - moved).clamp_min(0)


def separation(centers: Centers, scatter: Scatter) -> Tensor:
    """D = Σ_k w_k D_k (…), ≥ 0, lower is better separated; w_k = n_k/n (Eq. 1) or 1/K, as the centers say."""
    return (centers.weights * class_separation(centers, scatter)).sum(-1)


def equal_separation(centers: Centers, scatter: Scatter) -> Tensor:
    """D with every class weighted equally in both scatters (…); NC1 is this over K."""
    if centers.balanced or centers.weighting == "classes":
        return separation(centers, scatter)
    mean = scatter.residuals / scatter.counts.unsqueeze(-1)
    moved = (mean @ centers.equal_whitener.mT).square().sum(-1)
    return (scatter.fuzziness_equal / scatter.counts - moved).clamp_min(0).mean(-1)


def separation_by_inverse(x: Tensor, y: Tensor, sums: ClassSums, weighting: Weighting) -> float | None:
    """D of features (n, d) of many classes with labels (n,) and these class sums; `None` where it takes singular values.

    These take far longer than an inverse. SS_b = AᵀA with the contrasts A = U S V (K−1, d) of the class means; where these
    span K−1 dimensions, W = (AAᵀ)⁻¹A = U S⁻¹ V, so SS_b⁺ = WᵀW, and D is the mean of ‖W r‖² over the residuals r.
    An inverse has the digits where the scales S are not too different, and no scale may be rounding: both are certain by
    bounds, the least s² from below by the norm of (AAᵀ)⁻¹ from above.
    """
    counts, K = sums.counts, sums.counts.shape[-1]
    if sums.sums.dim() > 2 or sums.dtype == torch.float64 or not MANY <= K <= x.shape[-1]:
        return None
    weights, means = class_weights(counts, weighting), sums.sums / counts.clamp_min(1).unsqueeze(-1)
    A = helmert_contrasts(means, weights)
    gram = A @ A.mT
    L, failed = torch.linalg.cholesky_ex(gram)
    # A factor that broke off may have zeros on its diagonal, of which there is no inverse; it is not used, here or on a GPU.
    inverse = torch.cholesky_inverse(torch.where(failed == 0, L, torch.eye(K - 1).to(L)))
    W = inverse @ A
    mean, least, largest = weights @ means, 1 / _norm_at_most(inverse), _norm_at_most(gram)
    cutoff = rounding_scale(counts, sums.spread, mean, torch.linalg.vector_norm(A, dim=-1), sums.dtype)
    size = sums.spread / counts.sum() + mean.square().sum() + gram.trace()
    certain = (least > NEARLY_EQUAL * largest) & (least > (NARROW * cutoff).square()) & ~beyond_float32(size)
    if not bool(certain & (failed == 0)):
        return None

    rounded = means.float()
    coordinates, lengths = project(x, y, Frame(rounded, W.float()))
    values = torch.stack([torch.linalg.vector_norm(coordinates, dim=0, dtype=torch.float64), double(lengths)]).square_()
    within, squares = (sums_by_class(values, y, K) / counts.unsqueeze(-1)).unbind(-1)
    moved = ((means - double(rounded)) @ W.mT).square().sum(-1)
    D = (weights * (within - moved).clamp_min(0)).sum()
    found, far = torch.stack([D, some_first_far(values[1], squares, y).to(D)]).tolist()  # one transfer from the device
    return None if far or found != found else found


def some_first_far(squares: Tensor, usual: Tensor, y: Tensor) -> Tensor:
    """Whether the first row of some class lies far from its mean: by squares (n,), and their mean (K,) in each class.

    Sums are taken around these rows: means are then off by more than the rounding to float32.
    """
    n = len(y)
    first = y.new_full(usual.shape, n).scatter_reduce_(0, y, torch.arange(n, device=y.device), "amin")
    return (squares[first.clamp_max(n - 1)] > FAR_FIRST * usual).any()


def _norm_at_most(M: Tensor) -> Tensor:
    """A number that the largest eigenvalue of a symmetric matrix of no negative ones does not exceed, and hardly misses.

    >>> float(_norm_at_most(torch.diag(torch.tensor([3.0, 1.0, 1.0])).double()))  # (3¹⁶ + 1 + 1)^(1/16)
    3.0000000...
    """
    size = M.abs().amax()
    power = M / size
    for _ in range(SQUARED):
        power = power @ power
    bound: Tensor = size * torch.linalg.matrix_norm(power) ** 0.5**SQUARED
    return bound


def separation_from_scatter(centers: Centers, within: Tensor) -> Tensor:
    """D from the within-class scatter SS_w (…, d, d) itself: Tr(SS_w SS_b⁺) = Σ_r v_r SS_w v_rᵀ / s_r² (…)."""
    spread = (centers.basis @ within * centers.basis).sum(-1)  # (…, r)
    return (spread * centers.inverse_scales.square()).sum(-1)


def linear_separation(centers: Centers, within: Tensor) -> Tensor:
    """D_lin = Σ_i 1/λ_i(SS_w⁻¹ SS_b) (…): the least D that any linear map of the features reaches that keeps the rank.

    ≥ 0, ≤ D, and the same for all invertible linear maps of the features. No shrinkage, which would break that. `within` is
    SS_w (…, d, d). Whitened by the total scatter SS_b has eigenvalues μ = λ/(1+λ), and SS_w, along the same directions p,
    1−μ = pᵀ SS_w p: taken as such, not as a difference, it keeps its digits near collapse. Directions in which the features
    vary no more than their rounding are left out.
    """
    # From the means themselves, SS_b = AAᵀ: an SVD would lose features in small units beside those in large ones.
    A = ((centers.means - centers.mean.unsqueeze(-2)) * centers.weights.sqrt().unsqueeze(-1)).mT  # (…, d, K)
    total = within + A @ A.mT
    variance = total.diagonal(dim1=-2, dim2=-1)
    eps = max(torch.finfo(centers.dtype).eps, 1e-15)
    # Of the rounding, per variance (…, d).
    noise = eps**2 * (1 + centers.original_mean.square() / variance.clamp_min(TINY))
    live = (variance > TINY) & (noise < 0.1)
    unit = torch.where(live, variance.clamp_min(TINY).rsqrt(), 0.0).unsqueeze(-1)  # (…, d, 1)
    sizes, axes = torch.linalg.eigh(unit * total * unit.mT)
    # In float32 a layer's own sums of d products are rounded too; half precision is added up in float32.
    products = total.shape[-1] if centers.dtype.itemsize >= 4 else 1
    usual = torch.where(live, noise, torch.nan).nanmedian(-1).values.nan_to_num(0.0)
    cut = (4 * products * usual).clamp(64 * total.shape[-1] * 2.2e-16, MOST_CUT)
    inverse = torch.where(sizes > cut.unsqueeze(-1), sizes.clamp_min(TINY).rsqrt(), 0.0)
    whitener = unit * axes * inverse.unsqueeze(-2)  # (…, d, d)
    root, p = right_singular(A.mT @ whitener)  # √μ (…, k), (…, k, d)
    back = whitener @ p.mT
    ratios = (back * (within @ back)).sum(-2) / root.square()
    counted = torch.arange(root.shape[-1], device=root.device) < centers.rank.unsqueeze(-1)
    return torch.where(counted, ratios.clamp_min(0), 0.0).sum(-1)


@dataclass(frozen=True)
class Jackknife:
    """D corrected for finite samples (`None` where the bias is too large to correct) and the standard error of log D."""

    corrected: float | None
    standard_error: float
    bias: float


def jackknife(value: float, left_out: LeftOut) -> Jackknife | None:
    """Stratified delete-group jackknife: log D_J = g·log D − (g−1)·mean log D_(−i).

    `None` where a D is 0 or does not exist.
    """
    return jackknifed(value, left_out.separation())


def jackknifed(value: float, without: Tensor) -> Jackknife | None:
    """The same from D without each group (g,)."""
    corrected, error, bias = map(float, jackknives(torch.tensor(value, dtype=torch.float64), without))
    return None if math.isnan(error) else Jackknife(None if math.isnan(corrected) else corrected, error, bias)


class Jackknives(NamedTuple):
    """The same of several sites, as tensors (…): NaN where it does not exist."""

    corrected: Tensor
    standard_error: Tensor
    bias: Tensor


def jackknives(values: Tensor, without: Tensor) -> Jackknives:
    """From D (…) and D without each group (…, g)."""
    g = without.shape[-1]
    every = torch.cat([values.to(without).unsqueeze(-1), without], -1)
    exists = ((every > 0) & (every < math.inf)).all(-1)
    logs = torch.where(exists.unsqueeze(-1), every, torch.nan).log()
    value, logs = logs[..., 0], logs[..., 1:]
    bias = (g - 1) * (logs.mean(-1) - value)
    error = ((g - 1) / g * (logs - logs.mean(-1, keepdim=True)).square().sum(-1)).sqrt()
    corrected = torch.where(bias.abs() <= REFUSE_ABOVE, (value - bias).exp(), torch.nan)
    return Jackknives(corrected, error, bias)


def _ranks(values: Tensor) -> Tensor:
    """Mean ranks (n,), equal for equal values."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    mean: Tensor = counts.cumsum(0).double() - (counts - 1) / 2
    return mean[place]


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Chance that a positive sample scores higher than another one, ties counted half; NaN where one kind is absent.

    >>> auroc(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([False, False, True, True]))
    0.875
    """
    P = int(positive.sum())
    N = len(scores) - P
    if not P or not N or bool(scores.isnan().any()):
        return math.nan
    return float((_ranks(scores)[positive].sum() - P * (P + 1) / 2) / (P * N))


def cross_fitted(x: Tensor, y: Tensor) -> Tensor:
    """Scores (n,) of y by logistic regression on x (n, d), each half by the other one's fit; NaN where that has one kind."""
    x = (x - x.mean(0)) / x.std(0, correction=0).clamp_min(1e-12)
    x, y = torch.cat([x, torch.ones_like(x[:, :1])], 1), y.double()
    scores = torch.full_like(y, math.nan)
    for own in (slice(0, None, 2), slice(1, None, 2)):
        other = slice(1 - (own.start or 0), None, 2)
        if not 0 < float(y[other].sum()) < len(y[other]):
            continue
        w, ridge = x.new_zeros(x.shape[1]), 1e-3 * torch.eye(x.shape[1]).to(x)
        for _ in range(30):  # Newton
            p = (x[other] @ w).sigmoid()
            slope = x[other].T @ (p - y[other]) + ridge @ w
            w = w - torch.linalg.solve((x[other] * (p * (1 - p)).unsqueeze(1)).T @ x[other] + ridge, slope)
        scores[own] = x[own] @ w
    return scores
