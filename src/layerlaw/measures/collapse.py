"""Neural collapse: NC2 (equal norms, equal angles) and NC3 (self-duality). NC1 is in `separation`, NC4 in the scatter."""

import torch
from torch import Tensor


def means_geometry(means: Tensor) -> tuple[Tensor, Tensor]:
    """NC2 of class means (…, K, d) around their plain average: (norm variation, angle deviation), both 0 at collapse."""
    return _norms_and_angles(means - means.mean(-2, keepdim=True))


def classifier_geometry(weight: Tensor) -> tuple[Tensor, Tensor]:
    """NC2 of classifier rows (…, K, d), not centered: (norm variation, angle deviation), both 0 at collapse."""
    return _norms_and_angles(weight)


def self_duality(means: Tensor, weight: Tensor) -> Tensor:
    """NC3 = ‖W/‖W‖ − M/‖M‖‖² in Frobenius norm, M the centered class means; 0 at collapse, at most 4."""
    M = means - means.mean(-2, keepdim=True)
    return (_unit(weight) - _unit(M)).square().sum((-2, -1))


def _unit(matrix: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(matrix, dim=(-2, -1), keepdim=True)
    return matrix / size


def _norms_and_angles(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficient of variation of the norms, and the mean of |cos + 1/(K−1)| over pairs."""
    K = rows.shape[-2]
    norms = torch.linalg.vector_norm(rows, dim=-1)  # (…, K)
    variation = norms.std(-1, correction=0) / norms.mean(-1)
    directions = rows / norms.unsqueeze(-1)
    cosines = directions @ directions.mT  # (…, K, K)
    off = (cosines + 1 / (K - 1)).abs()
    deviation = (off.sum((-2, -1)) - off.diagonal(dim1=-2, dim2=-1).sum(-1)) / (K * (K - 1))
    return variation, deviation
