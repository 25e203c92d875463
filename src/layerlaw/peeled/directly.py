"""The model as it is written, not convex: L-BFGS over classifiers and the features of single samples.

Slow and without a certificate, but independent of every formula in this room, and able to do what they cannot: fewer
dimensions than classes, features that differ within a class, another norm than ‖·‖₂ on the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from layerlaw.peeled.counts import Counts, checked_budgets, checked_exponent, checked_flag, checked_whole, grouped
from layerlaw.peeled.scipy_door import lbfgs

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Direct:
    """The best of several starts."""

    loss: float
    W: Array = field(repr=False)
    """(K, p) classifiers."""
    H: Array = field(repr=False)
    """(n, p) features, `per_class` of each class."""
    labels: Labels = field(repr=False)
    """(n,) class of each feature."""
    b: Array = field(repr=False)
    """(K,) bias, zero without one."""
    losses: Array = field(repr=False)
    """(starts,) where each start ended; many equal values speak for a global minimum, they do not prove it."""

    @cached_property
    def means(self) -> Array:
        """(K, p) class means of the features."""
        return np.stack([self.H[self.labels == k].mean(0) for k in range(len(self.W))])

    @property
    def variability(self) -> float:
        """Σ‖h − class mean‖² / Σ‖h‖²: 0 when the features of each class are one point (NC1)."""
        return float(((self.H - self.means[self.labels]) ** 2).sum() / (self.H**2).sum())

    @property
    def cosines(self) -> Array:
        """(K, K) cosines between classifiers."""
        return cosines(self.W)

    @property
    def etf_deviation(self) -> float:
        """How far h_k ∝ w_k ∝ m_k is from true, without centering: 0 for a simplex, at most 2.

        ‖X Xᵀ − Y Yᵀ‖ in Frobenius norm, where X stacks W/‖W‖ and the class means over theirs, and Y the simplex twice.
        """
        K = len(self.W)
        X = np.vstack([self.W / np.linalg.norm(self.W), self.means / np.linalg.norm(self.means)])
        simplex = (np.eye(K) - 1 / K) / (K - 1)
        return float(np.linalg.norm(X @ X.T - np.tile(simplex, (2, 2))))


def solve_direct(
    counts: Counts,
    *,
    E_W: float,
    E_H: float,
    p: int | None = None,
    q: float = 2.0,
    per_class: int = 1,
    bias: bool = False,
    starts: int = 8,
    seed: int = 0,
) -> Direct:
    """Minimize the cross-entropy over W and all features from random starts, under the model's own constraints.

    (1/K) Σ‖w_k‖² ≤ E_W and (1/K) Σ_k (1/n_k) Σ_i ‖h_ki‖_q^q ≤ E_H; both are active at every minimum, and kept by
    scaling. Each class has `per_class` free features, which stand for its n_k samples. 1 < q ≤ 20 (elsewhere the norm
    has corners that L-BFGS cannot turn); p is K unless told.

    >>> found = solve_direct([1, 1, 1], E_W=1, E_H=4, starts=2)
    >>> round(found.loss, 6), round(float(found.cosines[0, 1]), 4)  # log(1 + 2 e^{−3·2/2}), −1/(K−1)
    (0.094923, -0.5)
    """
    groups = grouped(counts)
    checked_budgets(E_W, E_H)
    K = groups.K
    p = K if p is None else p
    for value, name in ((p, "p"), (per_class, "per_class"), (starts, "starts")):
        checked_whole(value, name)
    checked_whole(seed, "seed", 0)
    checked_flag(bias, "bias")
    checked_exponent(q)
    member = groups.members
    labels: Labels = np.repeat(np.arange(K), per_class)
    weight = (groups.shares[member] / per_class)[labels]  # (n,) of each feature in the loss
    f = _objective(K, p, labels, weight, (E_W, E_H, q), bias)
    rng = np.random.default_rng(seed)
    size = K * p + len(labels) * p
    ends = []
    for _ in range(starts):
        v = lbfgs(f, np.concatenate([rng.standard_normal(size), np.zeros(K if bias else 0)]))
        ends.append((math.exp(f(v)[0]), v))
    losses = np.array([value for value, _ in ends])
    v = ends[int(losses.argmin())][1]
    W, _ = _on_sphere(v[: K * p].reshape(K, p), K * E_W)
    H, _ = _on_norm(v[K * p : size].reshape(-1, p), K * E_H, q, per_class)
    return Direct(float(losses.min()), W, H, labels, v[size:] if bias else np.zeros(K), losses)


def cosines(rows: Array) -> Array:
    """Cosines between all rows; NaN where a row is 0."""
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(norm > 1e-9 * norm.max(), norm, np.nan)
    return np.asarray(unit @ unit.T)


def log_cross_entropy(logits: Array, labels: Labels, weight: Array) -> tuple[float, Array]:
    """log Σ weight·CE over rows of logits, and its gradient; the logarithm, so that a tiny loss is minimized as well."""
    at = np.arange(len(labels))
    odds = logits - logits[at, labels][:, None]  # (n, K), 0 at the label
    odds[at, labels] = -np.inf
    top = odds.max(1, keepdims=True)
    each = np.exp(odds - top)
    rest = np.log(each.sum(1, keepdims=True)) + top  # log Σ over the other classes
    loss = np.logaddexp(0.0, rest)
    gradient = np.exp(odds - loss)
    gradient[at, labels] = -np.exp(rest - loss)[:, 0]  # p − 1, without the cancellation
    value = float(weight @ loss[:, 0])
    return math.log(value), weight[:, None] * gradient / value


def _objective(
    K: int, p: int, labels: Labels, weight: Array, budgets: tuple[float, float, float], bias: bool
) -> Callable[[Array], tuple[float, Array]]:
    E_W, E_H, q = budgets
    per_class, size = len(labels) // K, K * p + len(labels) * p

    def f(v: Array) -> tuple[float, Array]:
        W, back_W = _on_sphere(v[: K * p].reshape(K, p), K * E_W)
        H, back_H = _on_norm(v[K * p : size].reshape(-1, p), K * E_H, q, per_class)
        b = v[size:] if bias else 0.0
        value, G = log_cross_entropy(H @ W.T + b, labels, weight)
        return value, np.concatenate([back_W(G.T @ H).ravel(), back_H(G @ W).ravel(), G.sum(0) if bias else v[size:]])

    return f


def _on_sphere(free: Array, total: float) -> tuple[Array, Callable[[Array], Array]]:
    """The matrix scaled to ‖·‖² = total, and how a gradient there becomes one in the free matrix."""
    scale = np.sqrt(total) / np.linalg.norm(free)
    there = scale * free
    return there, lambda G: scale * (G - (G * there).sum() / total * there)


def _on_norm(free: Array, total: float, q: float, per_class: int) -> tuple[Array, Callable[[Array], Array]]:
    """The rows scaled to Σ‖h‖_q^q / per_class = total, and the way back for gradients."""
    if q == 2:
        return _on_sphere(free, total * per_class)
    most = float(np.abs(free).max())
    unit = np.abs(free) / most  # no power of it overflows
    power = unit ** (q - 1)
    size = float((power * unit).sum()) / per_class
    scale = (total / size) ** (1 / q) / most
    there = scale * free
    slope = power * np.sign(free) / (size * per_class * most)  # d log size / q
    return there, lambda G: scale * G - (G * there).sum() * slope
