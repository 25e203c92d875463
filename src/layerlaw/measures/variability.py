"""Further measures of within-class against between-class spread: CDNV, compression, discrimination."""

import torch
from torch import Tensor

from layerlaw.stats import Centres, Scatter


def class_variances(centres: Centres, scatter: Scatter) -> Tensor:
    """Mean squared distance of the samples of each class to their mean (…, K).

    Around the rounded mean it comes out larger by the squared rounding.
    """
    return (scatter.lengths / scatter.counts - centres.rounding.square().sum(-1)).clamp_min(0)


def class_distance_variance(centres: Centres, variances: Tensor) -> Tensor:
    """CDNV: (Var_c + Var_c') / (2‖μ_c − μ_c'‖²) averaged over pairs of classes (…); 0 at collapse (Galanti et al.).

    Infinite where two class means coincide.
    """
    K = variances.shape[-1]
    c = centres.coordinates
    # Differences of coordinates, not a Gram matrix: close centres keep their digits.
    distances = torch.cdist(c, c, compute_mode="donot_use_mm_for_euclid_dist").square()
    pair = (variances.unsqueeze(-1) + variances.unsqueeze(-2)) / (2 * distances)
    off = ~torch.eye(K, dtype=torch.bool, device=pair.device)
    return torch.where(off, pair, 0.0).sum((-2, -1)) / (K * (K - 1))


def compression(centres: Centres, variances: Tensor) -> Tensor:
    """Tr SS_w / Tr SS_b (…); lower is more compressed (Wang et al. 2023)."""
    within = (centres.weights * variances).sum(-1)
    return within / (centres.weights * centres.coordinates.square().sum(-1)).sum(-1)


def discrimination(centres: Centres) -> Tensor:
    """1 − the largest cosine between two class means, not centred (…); higher is better (Wang et al. 2023)."""
    norms: Tensor = torch.linalg.vector_norm(centres.means, dim=-1, keepdim=True)
    m = centres.means / norms
    cosines = m @ m.mT
    K = cosines.shape[-1]
    cosines = cosines.masked_fill(torch.eye(K, dtype=torch.bool, device=m.device), -torch.inf)
    return 1 - cosines.amax((-2, -1))
