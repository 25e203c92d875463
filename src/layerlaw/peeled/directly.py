"""The models as they are written, not convex: L-BFGS from random starts over classifiers and the features of single samples.

Slow and without a certificate, but independent of every formula in this package, and able to do what they cannot: fewer
dimensions than classes, features that differ within a class, a q-norm on the features, two layers. Fang et al. prove that
for K ≥ 3, p ≥ K and q ≠ 2 no minimizer is a simplex with h_k ∝ w_k ∝ m_k; `best_simplex` says how much the best one loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError, check_whole
from layerlaw.peeled.counts import Array, Counts, Groups, check_budgets, check_exponent, check_flag, grouped, positive
from layerlaw.peeled.many_groups import Objective, lbfgs

Labels = npt.NDArray[np.intp]
Back = Callable[[Array], Array]
Part = tuple[int, int, float, float]
"""Rows, columns, total and q of a matrix that is kept at Σ|entry|^q = total."""
# Of a start near a known optimum, where some units of the ReLU sit at their corner and L-BFGS stands still
SHAKE = 0.02


@dataclass(frozen=True)
class Direct:
    """The best of several starts."""

    loss: float
    W: Array = field(repr=False)  # (K, p) classifiers
    H: Array = field(repr=False)  # (n, p) features, `per_class` of each class
    labels: Labels = field(repr=False)  # (n,) class of each feature
    b: Array = field(repr=False)  # (K,) bias, zero without one
    losses: Array = field(repr=False)
    """(starts,) where each start ended; many equal values speak for a global minimum, they do not prove it."""

    @property
    def means(self) -> Array:
        """(K, p) class means of the features."""
        return _means(self.H, self.labels)

    @property
    def variability(self) -> float:
        """Σ‖h − class mean‖² / Σ‖h‖²: 0 when the features of each class are one point (NC1)."""
        return _variability(self.H, self.labels)

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
    has corners that L-BFGS cannot turn); p is K by default.

    >>> found = solve_direct([1, 1, 1], E_W=1, E_H=4, starts=2)
    >>> round(found.loss, 6), round(float(found.cosines[0, 1]), 4)  # log(1 + 2 e^{−3·2/2}), −1/(K−1)
    (0.094923, -0.5)
    """
    groups = grouped(counts)
    check_budgets(E_W, E_H)
    K = groups.K
    p = K if p is None else p
    labels, weight = _samples(groups, per_class, starts, seed, p=p)
    check_flag(bias, "bias")
    check_exponent(q)
    parts = ((K, p, K * E_W, 2.0), (len(labels), p, K * E_H * per_class, q))
    rng, free = np.random.default_rng(seed), np.zeros(K if bias else 0)
    begin = [np.concatenate([rng.standard_normal(_size(parts)), free]) for _ in range(starts)]
    losses, (W, H), b = _best(one_layer(parts, labels, weight, bias), parts, begin)
    return Direct(float(losses.min()), W, H, labels, b if bias else np.zeros(K), losses)


def one_layer(parts: Sequence[Part], labels: Labels, weight: Array, bias: bool) -> Objective:
    """log loss and gradient of W hᵀ + b in the free numbers of W, H and b."""

    def f(v: Array) -> tuple[float, Array]:
        (W, back_W), (H, back_H) = _kept(v, parts)
        b = v[_size(parts) :]
        value, G = log_cross_entropy(H @ W.T + (b if bias else 0.0), labels, weight)
        return value, np.concatenate([back_W(G.T @ H).ravel(), back_H(G @ W).ravel(), G.sum(0) if bias else b])

    return f


def best_simplex(K: int, p: int, *, E_W: float, E_H: float, q: float, starts: int = 20, seed: int = 0) -> float:
    """The least loss of any simplex h_k ∝ w_k ∝ m_k in p dimensions, balanced classes, Σ‖h_k‖_q^q ≤ K E_H.

    The loss log(1 + (K−1) e^{−√E_W s K/(K−1)}) falls with the length s of the features, and s is largest where the
    simplex is turned to have the least Σ‖m_k‖_q^q: a search over rotations, from random ones and, where K is a power of
    2, from the corners of the cube, which are best for large q. 1 < q ≤ 20.

    >>> round(best_simplex(4, 4, E_W=1, E_H=1, q=2, starts=1), 6)  # every rotation is as good
    0.582658
    """
    check_budgets(E_W, E_H)
    check_exponent(q)
    check_whole(2, kind=Integral, K=K)
    check_whole(1, kind=Integral, p=p, starts=starts)
    check_whole(0, kind=Integral, seed=seed)
    if p < K - 1:
        raise InputError(f"p: expected at least K − 1 = {K - 1} dimensions for a simplex of K = {K}, got {p}.")
    B = math.sqrt(K / (K - 1)) * np.linalg.eigh(np.eye(K) - 1 / K)[1][:, 1:]  # (K, K−1) rows m_k in their own space

    def f(v: Array) -> tuple[float, Array]:
        X = v.reshape(K - 1, p)
        # Nearest frame: U = (X Xᵀ)^{-1/2} X by an SVD; its derivative in that basis divides by sums of singular values
        A, s, Ct = np.linalg.svd(X, full_matrices=False)
        rows = B @ (A @ Ct)  # (K, p)
        # ‖·‖_q in logarithms and over its largest entry: neither flat nor unbounded
        most, power, size = _powers(rows, q)
        G = B.T @ (power * np.sign(rows) / (size * most))  # derivative in U of log ‖rows‖_q
        inner = A.T @ G @ Ct.T
        skew = (inner - inner.T) / (s[:, None] + s)
        rest = (A / s) @ (A.T @ G @ (np.eye(p) - Ct.T @ Ct))
        return math.log(most) + math.log(size) / q, (A @ skew @ Ct + rest).ravel()

    rng = np.random.default_rng(seed)
    begin = [rng.standard_normal((K - 1) * p) for _ in range(starts)]
    if K & (K - 1) == 0:  # corners of a cube that are a simplex: a Hadamard matrix without its constant column
        H = np.ones((1, 1))
        while len(H) < K:
            H = np.block([[H, H], [H, -H]])
        corners = np.hstack([H[:, 1:], np.zeros((K, p - K + 1))])
        # The frame that takes the simplex to the corners, shaken a little: they may be stationary without being best
        begin.append((B.T @ corners + 1e-3 * rng.standard_normal((K - 1, p))).ravel())
    least = min(f(lbfgs(f, v, steps=500))[0] for v in begin)
    length = math.exp(math.log(K * E_H) / q - least)
    return math.log1p((K - 1) * math.exp(-math.sqrt(E_W) * length * K / (K - 1)))


@dataclass(frozen=True)
class TwoLayers:
    """The best of several starts."""

    groups: Groups
    loss: float
    W: Array = field(repr=False)  # (K, d) last layer
    V: Array = field(repr=False)  # (d, p) the layer before
    H: Array = field(repr=False)  # (n, p) features before it, `per_class` of each class
    labels: Labels = field(repr=False)
    relu: bool
    losses: Array = field(repr=False)  # (starts,) where each start ended

    @cached_property
    def X(self) -> Array:
        """(n, d) features after the layer, what the last layer reads."""
        return np.maximum(self.H @ self.V.T, 0.0) if self.relu else self.H @ self.V.T

    def means(self, features: Array) -> Array:
        """(K, …) class means."""
        return _means(features, self.labels)

    def variability(self, features: Array) -> float:
        """Σ‖x − class mean‖² / Σ‖x‖² (NC1)."""
        return _variability(features, self.labels)

    @property
    def classifier_cosines(self) -> Array:
        """(K, K) between rows of the last layer."""
        return cosines(self.W)

    @property
    def feature_cosines(self) -> tuple[Array, Array]:
        """(K, K) between class means before and after the layer, not centered."""
        return cosines(self.means(self.H)), cosines(self.means(self.X))

    @property
    def minority_cosine(self) -> float:
        """Mean cosine between classifiers of the rarest size."""
        rare = np.flatnonzero(self.groups.members == len(self.groups) - 1)
        block = self.classifier_cosines[np.ix_(rare, rare)]
        return float((block.sum() - np.trace(block)) / (len(rare) * (len(rare) - 1))) if len(rare) > 1 else float("nan")

    @property
    def rank(self) -> int:
        """Dimensions of the logits (singular values above a thousandth of the largest)."""
        s = np.linalg.svd(self.means(self.X) @ self.W.T, compute_uv=False)
        return int((s > 1e-3 * s[0]).sum())


def solve_two_layers(
    counts: Counts,
    *,
    E_W: float,
    E_V: float,
    E_H: float,
    d: int | None = None,
    p: int | None = None,
    relu: bool = True,
    per_class: int = 1,
    starts: int = 20,
    seed: int = 0,
    near: TwoLayers | None = None,
) -> TwoLayers:
    """The 2-Layer-Peeled Model: the last two layers' weights and the features before them, under three norm budgets.

        min (1/N) Σ_k Σ_i CE(W σ(V h_ki), k)  over W (K×d), V (d×p) and all h_ki, σ = ReLU or nothing, subject to
        (1/K)‖W‖² ≤ E_W,   (1/K)‖V‖² ≤ E_V,   (1/K) Σ_k (1/n_k) Σ_i ‖h_ki‖² ≤ E_H

    W is the last layer of the network, V the one before; d and p are 2K by default. There is no exact solution here: the
    best of the random starts is an upper bound. Budgets are active at the minimum (a positive factor on any of the three
    scales all logits), so they are kept by scaling. `near`: an optimum of the same shape for other counts or budgets, as one
    more start (its end comes first in `losses`). In a sweep over ratios that is worth hundreds of random starts: near a
    change of phase few of them find the better minimum.

    >>> found = solve_two_layers([1, 1], E_W=1, E_V=1, E_H=4, starts=3, relu=False)
    >>> round(found.loss, 6)  # rank 1: the logits' one singular value is √2·√2·√8, the loss log(1 + e^{−4√2})
    0.003487
    """
    groups = grouped(counts)
    check_budgets(E_W, E_H)
    positive(E_V, "E_V", "budget")
    K = groups.K
    d, p = 2 * K if d is None else d, 2 * K if p is None else p
    labels, weight = _samples(groups, per_class, starts, seed, d=d, p=p)
    check_flag(relu, "relu")
    parts = ((K, d, K * E_W, 2.0), (d, p, K * E_V, 2.0), (len(labels), p, K * E_H * per_class, 2.0))

    def f(v: Array) -> tuple[float, Array]:
        (W, back_W), (V, back_V), (H, back_H) = _kept(v, parts)
        before = H @ V.T
        X = np.maximum(before, 0.0) if relu else before
        value, G = log_cross_entropy(X @ W.T, labels, weight)
        inner = G @ W * (before > 0) if relu else G @ W  # (n, d)
        return value, np.concatenate([back_W(G.T @ X).ravel(), back_V(inner.T @ H).ravel(), back_H(inner @ V).ravel()])

    rng, size = np.random.default_rng(seed), _size(parts)
    begin = [rng.standard_normal(size) for _ in range(starts)]
    if near is not None:
        if not isinstance(near, TwoLayers):
            raise InputError(f"near: expected what solve_two_layers returned, got {type(near).__name__}.")
        # Each part at unit scale, as the random ones
        v = np.concatenate([part.ravel() / np.sqrt((part**2).mean()) for part in (near.W, near.V, near.H)])
        if len(v) != size:
            same = "the same classes, d, p and per_class"
            raise InputError(f"near: expected an optimum with {same}, got {len(v)} numbers for {size}.")
        begin.insert(0, v + SHAKE * rng.standard_normal(size))
    losses, (W, V, H), _ = _best(f, parts, begin)
    return TwoLayers(groups, float(losses.min()), W, V, H, labels, relu, losses)


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


def _samples(groups: Groups, per_class: int, starts: int, seed: int, **dimensions: int) -> tuple[Labels, Array]:
    """Labels of the free features and their weights in the loss, after the whole numbers have been checked."""
    check_whole(1, kind=Integral, **dimensions, per_class=per_class, starts=starts)
    check_whole(0, kind=Integral, seed=seed)
    labels: Labels = np.repeat(np.arange(groups.K), per_class)
    return labels, (groups.shares[groups.members] / per_class)[labels]


def _best(f: Objective, parts: Sequence[Part], begin: Sequence[Array]) -> tuple[Array, list[Array], Array]:
    """The losses at which all starts end; of the best end the matrices, and the numbers that belong to none."""
    ends = [lbfgs(f, v) for v in begin]
    losses = np.array([math.exp(f(v)[0]) for v in ends])
    v = ends[int(losses.argmin())]
    return losses, [matrix for matrix, _ in _kept(v, parts)], v[_size(parts) :]


def _means(features: Array, labels: Labels) -> Array:
    return np.stack([features[labels == k].mean(0) for k in range(int(labels[-1]) + 1)])


def _variability(features: Array, labels: Labels) -> float:
    return float(((features - _means(features, labels)[labels]) ** 2).sum() / (features**2).sum())


def _size(parts: Sequence[Part]) -> int:
    return sum(rows * columns for rows, columns, *_ in parts)


def _kept(v: Array, parts: Sequence[Part]) -> list[tuple[Array, Back]]:
    """The matrices, each scaled to its total, and how a gradient there becomes one in the free numbers."""
    ends = np.cumsum([rows * columns for rows, columns, *_ in parts])
    pieces = np.split(v[: ends[-1]], ends[:-1])
    return [_on_norm(x.reshape(n, d), total, q) for x, (n, d, total, q) in zip(pieces, parts, strict=True)]


def _on_norm(free: Array, total: float, q: float) -> tuple[Array, Back]:
    most, power, size = _powers(free, q)
    scale = (total / size) ** (1 / q) / most
    there = scale * free
    slope = power * np.sign(free) / (size * most)  # d log size / q
    return there, lambda G: scale * G - (G * there).sum() * slope


def _powers(matrix: Array, q: float) -> tuple[float, Array, float]:
    """The largest entry, and over it |entry|^{q−1} and Σ|entry|^q: no power overflows."""
    most = float(np.abs(matrix).max())
    unit = np.abs(matrix) / most
    power = unit if q == 2 else unit ** (q - 1)
    return most, power, float((power * unit).sum())
