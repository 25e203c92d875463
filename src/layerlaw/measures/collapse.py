"""Neural collapse: NC2 (equal norms, equal angles), NC3 (self-duality), and the rows of a linear classifier.

NC1 is in `separation`, NC4 in the scatter. Rows of rare and of frequent classes apart show minority collapse: those of rare
classes turn towards each other (cosine → 1) and shrink.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layerlaw.stats.spectrum import singular_values

VIEWED = 33  # samples of each of the three classes that are looked at in three dimensions
UNBALANCED = 2  # the largest class has so many times the samples of the smallest, or none is rare


def geometry(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """NC2 of centered class means or of classifier rows (…, K, d), all 0 at collapse.

    The coefficient of variation of the norms; the mean of |cos + 1/(K−1)| over pairs; and the standard deviation of cos over
    pairs, the equiangularity of Papyan et al., 0 for any equal angles.

    >>> norms, angles, equal = geometry(torch.eye(3))  # right angles: equal, though not those of a simplex
    >>> float(norms), float(angles), float(equal)
    (0.0, 0.5, 0.0)
    """
    K = rows.shape[-2]
    norms = torch.linalg.vector_norm(rows, dim=-1)  # (…, K)
    variation = norms.std(-1, correction=0) / norms.mean(-1)
    directions = rows / norms.unsqueeze(-1)
    cosines = directions @ directions.mT  # (…, K, K)
    # Without the diagonal: behind the first number, every (K+1)-th one is on it.
    off = cosines.flatten(-2)[..., 1:].reshape(*rows.shape[:-2], K - 1, K + 1)[..., :-1].flatten(-2)  # (…, K(K−1))
    return variation, (off + 1 / (K - 1)).abs().mean(-1), off.std(-1, correction=0)


def self_duality(means: Tensor, weight: Tensor) -> Tensor:
    """NC3 = ‖W/‖W‖ − M/‖M‖‖² in Frobenius norm, M the centered class means; 0 at collapse, at most 4."""
    return (_unit(weight) - _unit(means)).square().sum((-2, -1))


def _unit(matrix: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(matrix, dim=(-2, -1), keepdim=True)
    return matrix / size


def mean_cosine(rows: Tensor) -> Tensor:
    """Mean cosine over all pairs of rows (…, m, d), not centered; −1/(K−1) for a simplex of K, 1 when all are parallel.

    Not a number for fewer than two rows or where a row is 0. ‖Σ u‖² = m + Σ_{k≠j} u_kᵀu_j for unit rows u, so no m×m matrix
    is needed.

    >>> round(float(mean_cosine(torch.eye(3) - 1 / 3)), 6)
    -0.5
    """
    m = rows.shape[-2]
    units: Tensor = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    if m < 2:
        return units.sum((-2, -1)) * math.nan
    return (units.sum(-2).square().sum(-1) - m) / (m * (m - 1))


def mean_norm(rows: Tensor) -> Tensor:
    """Mean of ‖w_k‖ over the rows (…, m, d)."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return norms.mean(-1)


def mean_square(rows: Tensor) -> Tensor:
    """Mean of ‖w_k‖² over the rows (…, m, d): E_W of the Layer-Peeled Model, as it was used."""
    return rows.square().sum(-1).mean(-1)


def used_budget(means: Tensor, rows: Tensor) -> Tensor:
    """c_used = ‖M Wᵀ‖_*/K, M and W centered: the least budget √(E_W E_H) that gives these class means these logits.

    At most √(E_W E_H) of the same network; equal where features coincide with their class means, have mean 0, and
    classifier and features are as well aligned as they can be. Constants per sample and per class are left out of the
    logits: the softmax does not see the former, a bias takes the latter. (…, K, d) twice → (…).
    """
    K = rows.shape[-2]
    both = torch.stack(torch.broadcast_tensors(means, rows))  # type: ignore[no-untyped-call]
    M, W = torch.linalg.qr(both - both.mean(-2, keepdim=True), mode="r")[1]  # (…, min(K, d), d)
    product = M @ W.mT  # MWᵀ = Q_M (R_M R_Wᵀ) Q_Wᵀ: the same singular values in at most min(K, d) dimensions
    return singular_values(product).sum(-1) / K


def rare_classes(counts: Sequence[float]) -> list[int] | None:
    """Which classes are rare: those below the geometric middle of the smallest and the largest count.

    With two sizes these are the classes of the smaller size. `None` where the largest has less than twice the samples of the
    smallest: such differences are those of any sample.

    >>> rare_classes([5000, 50, 4000, 60]), rare_classes([98, 104])
    ([1, 3], None)
    """
    low, high = min(counts), max(counts)
    if high < UNBALANCED * low or not high:
        return None
    middle = math.sqrt(low) * math.sqrt(high)
    return [k for k, n in enumerate(counts) if n < middle]


def collapse_view(means: Tensor, rows: Tensor | None, features: Tensor, labels: Sequence[int]) -> dict[str, Any]:
    """Three classes in three dimensions: their means and classifier rows (3, d), and samples (n, d) labeled 0 to 2.

    Means and rows are centered among the three, so at collapse both are the corners (0, 1), (±√3/2, −1/2) of a regular
    triangle, whatever the number of all classes. The first two dimensions are the plane of the means, turned so that they
    are as near to these corners as they can be; the third is the direction out of it in which samples lie farthest from
    their own class means. A length of 1 is the root mean square of the means', or of the rows'. Empty where the means
    coincide.

    >>> view = collapse_view(torch.eye(3), 2 * torch.eye(3), torch.eye(3), [0, 1, 2])
    >>> view["means"] == view["rows"], view["means"][0]
    (True, [0.0, 1.0, 0.0])
    """
    means, features = means.double(), features.double()
    middle = means.mean(0)
    M, X = means - middle, features - middle
    size = M.square().sum(1).mean().sqrt()
    if not bool(size > 0) or not bool(X.isfinite().all()) or M.shape[1] < 2:
        return {}
    corners = M.new_tensor([[0.0, 1.0], [-math.sqrt(0.75), -0.5], [math.sqrt(0.75), -0.5]])
    plane = torch.linalg.svd(M, full_matrices=False).Vh[:2]  # (2, d)
    left, _, right = torch.linalg.svd((M @ plane.mT).mT @ corners)
    basis = (left @ right).mT @ plane
    residuals = X - M[list(labels)]
    residuals = residuals - (residuals @ basis.mT) @ basis
    third = torch.linalg.eigh(residuals @ residuals.mT).eigenvectors[:, -1:].mT @ residuals  # (1, d)
    basis = torch.cat([basis, third / third.norm().clamp_min(1e-9 * size)])

    def seen(points: Tensor, unit: Tensor) -> list[list[float]]:
        found = (points @ basis.mT / unit).cpu()
        return [[round(number, 4) + 0.0 for number in point] for point in found.tolist()]

    view = {"labels": list(labels), "features": seen(X, size), "means": seen(M, size), "rows": []}
    if rows is not None:
        W = rows.double() - rows.double().mean(0)
        unit = W.square().sum(1).mean().sqrt()
        view["rows"] = seen(W, unit) if bool(unit > 0) and bool(unit.isfinite()) else []
    return view
