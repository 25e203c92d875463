"""Separation fuzziness D = Tr(SS_w SS_b⁺) (He & Su, Eq. 1) from the residuals in the span of the class means."""

from torch import Tensor

from layerlaw.stats import Centers, Scatter


def class_separation(centers: Centers, scatter: Scatter) -> Tensor:
    """Class-wise D_k = Tr(SS_w^k SS_b⁺), one value per class (…, K); lower is better separated.

    The mean residual is subtracted once more (Σz² − n z̄²): the class mean of pass 1 is a rounded number, and near
    collapse its rounding would show.
    """
    return _trace_per_class(scatter.fuzziness, scatter, centers.inverse_scales)


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


def _trace_per_class(fuzziness: Tensor, scatter: Scatter, inverse_scales: Tensor) -> Tensor:
    mean = scatter.residuals / scatter.counts.unsqueeze(-1)  # (…, K, r)
    moved = (mean * inverse_scales.unsqueeze(-2)).square().sum(-1)
    return (fuzziness / scatter.counts - moved).clamp_min(0)
