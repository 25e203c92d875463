"""Separation fuzziness D = Tr(SS_w SS_b⁺) (He & Su, Eq. 1), from the residuals in the span of the class means.

SS_b = Vᵀ diag(s²) V with orthonormal rows V (r, d), so SS_b⁺ = Vᵀ diag(s⁻²) V.
SS_w = (1/n) Σ r_i r_iᵀ with the residual r_i = x_i − mean of its class, so Tr(SS_w SS_b⁺) = (1/n) Σ r_iᵀ Vᵀ diag(s⁻²) V r_i.
With z_i = V r_i this is D = (1/n) Σ_i Σ_j z_ij²/s_j² = Σ_k (n_k/n) D_k: only z, of length r ≤ K−1, is ever needed.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from layerlaw.stats import Centers, LeftOut, Scatter

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


def separation_from_scatter(centers: Centers, within: Tensor) -> Tensor:
    """D from the within-class scatter SS_w (…, d, d) itself: Tr(SS_w SS_b⁺) = Σ_r v_r SS_w v_rᵀ / s_r² (…)."""
    spread = (centers.basis @ within * centers.basis).sum(-1)  # (…, r)
    return (spread * centers.inverse_scales.square()).sum(-1)


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
    g = len(without)
    if not (0 < value < math.inf and bool(((without > 0) & (without < math.inf)).all())):
        return None
    logs = without.log()
    bias = (g - 1) * (float(logs.mean()) - math.log(value))
    error = math.sqrt((g - 1) / g * float((logs - logs.mean()).square().sum()))
    corrected = value * math.exp(-bias) if abs(bias) <= REFUSE_ABOVE else None
    return Jackknife(corrected, error, bias)
