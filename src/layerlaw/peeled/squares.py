"""Squared loss: closed forms, with and without a bias.

Without: Z = diag((1 − λN/n_k)_+), Σ = K c. With: the bias is eliminated, the gradient is Σ_π (Z − I) with
Σ_π = diag(π) − ππᵀ, so Z has the eigenvectors of Σ_π and eigenvalues (1 − λ/s)_+; the common direction has s = 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from layerlaw.peeled.counts import Groups
from layerlaw.peeled.reduced import Logits

Array = npt.NDArray[np.float64]


def squares(groups: Groups, c: float, *, bias: bool = False) -> tuple[Logits, float]:
    """The optimal logits under ‖Z‖_* ≤ K c, and the multiplier; 0 where the budget is more than the loss can use.

    >>> from layerlaw.peeled.counts import grouped
    >>> logits, multiplier = squares(grouped([6, 2]), 0.25)  # K c = 0.5 = 1 − λ/0.75: the small class gets nothing
    >>> logits.T.diagonal().round(12), round(multiplier, 12)
    (array([0.5, 0. ]), 0.375)
    """
    spread = _spread(groups, bias)[0]
    values = np.concatenate([groups.shares[groups.classes > 1], spread[spread > 1e-15 * spread.max()]])
    counts = np.concatenate(
        [(groups.classes - 1)[groups.classes > 1], np.ones(len(values) - (groups.classes > 1).sum())]
    )
    multiplier = _water(values, counts, groups.K * c)
    return squares_at(groups, multiplier, bias=bias), multiplier


def squares_at(groups: Groups, multiplier: float, *, bias: bool = False) -> Logits:
    """The optimal logits of loss + λ‖Z‖_*."""
    spread, Q = _spread(groups, bias)
    top = np.where(spread > 1e-15 * spread.max(), np.maximum(0.0, 1 - multiplier / np.maximum(spread, 1e-300)), 0.0)
    T = (Q * top) @ Q.T
    z = np.where(groups.classes > 1, np.maximum(0.0, 1 - multiplier / groups.shares), 0.0)
    if not bias:
        return Logits(z, T, np.zeros(len(groups)))
    root = np.sqrt(groups.classes)
    b = groups.shares * root @ (np.eye(len(groups)) - T) / root  # b_j = Σ_k π_k (δ_kj − z_kj)
    return Logits(z, T, b)


def _spread(groups: Groups, bias: bool) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of the loss's curvature between the groups: diag(π), less π πᵀ with a bias."""
    if not bias:
        return groups.shares, np.eye(len(groups))
    part = groups.shares * np.sqrt(groups.classes)
    values, Q = np.linalg.eigh(np.diag(groups.shares) - np.outer(part, part))
    return np.maximum(values, 0.0), Q


def _water(values: Array, counts: Array, total: float) -> float:
    """λ ≥ 0 with Σ counts (1 − λ/values)_+ = total, by filling from the largest value down."""
    if total >= counts.sum():
        return 0.0
    order = np.argsort(-values)
    v, n = values[order], counts[order]
    level = (np.cumsum(n) - total) / np.cumsum(n / v)  # λ if the first i are in use
    used = int(np.flatnonzero(level < v)[-1])
    return float(level[used])
