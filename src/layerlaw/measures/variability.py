"""Further measures of within-class against between-class spread: CDNV, compression, discrimination."""

import torch
from torch import Tensor

from layerlaw.stats import Centers, Scatter


def class_variances(centers: Centers, scatter: Scatter) -> Tensor:
    """Mean squared distance of the samples of each class to their mean (…, K).

    Around the rounded mean it comes out larger by the squared rounding.
    """
    return (scatter.lengths / scatter.counts - centers.rounding.square().sum(-1)).clamp_min(0)


def class_distance_variance(centers: Centers, variances: Tensor) -> Tensor:
    """CDNV: (Var_c + Var_c') / (2‖μ_c − μ_c'‖²) averaged over pairs of classes (…); 0 at collapse (Galanti et al.).

    Infinite where two class means coincide.
    """
    K = variances.shape[-1]
    c = centers.coordinates
    # Differences of coordinates, not a Gram matrix: close centers keep their digits.
    distances = torch.cdist(c, c, compute_mode="donot_use_mm_for_euclid_dist").square()
    distances.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)  # a class is no pair with itself
    pairs = (variances.unsqueeze(-1) + variances.unsqueeze(-2)) / distances
    return pairs.sum((-2, -1)) / (2 * K * (K - 1))


def compression(centers: Centers, variances: Tensor) -> Tensor:
    """Tr SS_w / Tr SS_b (…); lower is more compressed (Wang et al. 2023)."""
    within = (centers.weights * variances).sum(-1)
    return within / (centers.weights * centers.coordinates.square().sum(-1)).sum(-1)


def discrimination(centers: Centers) -> Tensor:
    """1 − the largest cosine between two class means, not centered (…); higher is better (Wang et al. 2023)."""
    gram = centers.means @ centers.means.mT
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    cosines = gram / (norms.unsqueeze(-1) * norms.unsqueeze(-2))
    cosines.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    return 1 - cosines.amax((-2, -1))
