"""The 2-Layer-Peeled Model: the last two layers' weights and the features before them are free under three norm budgets.

    min (1/N) Σ_k Σ_i CE(W σ(V h_ki), k)  over W (K×d), V (d×p) and all h_ki, σ = ReLU or nothing, subject to
    (1/K)‖W‖² ≤ E_W,   (1/K)‖V‖² ≤ E_V,   (1/K) Σ_k (1/n_k) Σ_i ‖h_ki‖² ≤ E_H

W is the last layer of the network, V the one before. There is no exact solution here: L-BFGS from random starts, the best
of which is an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError
from layerlaw.peeled.counts import (
    Counts,
    Groups,
    checked_budgets,
    checked_flag,
    checked_whole,
    grouped,
    positive,
)
from layerlaw.peeled.directly import Labels, _on_sphere, cosines, log_cross_entropy
from layerlaw.peeled.scipy_door import lbfgs

Array = npt.NDArray[np.float64]
SHAKE = 0.02


@dataclass(frozen=True)
class TwoLayers:
    """The best of several starts."""

    groups: Groups
    loss: float
    W: Array = field(repr=False)
    """(K, d) last layer."""
    V: Array = field(repr=False)
    """(d, p) the layer before."""
    H: Array = field(repr=False)
    """(n, p) features before it, `per_class` of each class."""
    labels: Labels = field(repr=False)
    relu: bool
    losses: Array = field(repr=False)
    """(starts,) where each start ended."""

    @cached_property
    def X(self) -> Array:
        """(n, d) features after the layer, what the last layer reads."""
        return self.H @ self.V.T if not self.relu else np.maximum(self.H @ self.V.T, 0.0)

    def means(self, features: Array) -> Array:
        """(K, …) class means."""
        return np.stack([features[self.labels == k].mean(0) for k in range(len(self.W))])

    def variability(self, features: Array) -> float:
        """Σ‖x − class mean‖² / Σ‖x‖² (NC1)."""
        return float(((features - self.means(features)[self.labels]) ** 2).sum() / (features**2).sum())

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
    """Minimize over both layers and all features from random starts; d and p are 2K unless told.

    `near`: an optimum of the same shape for other counts or budgets, as one more start (its end comes first in `losses`). In
    a sweep over ratios that is worth hundreds of random starts: near a change of phase few of them find the better minimum.
    Budgets are active at the minimum (a positive factor on any of the three scales all logits), so they are kept by scaling.

    >>> found = solve_two_layers([1, 1], E_W=1, E_V=1, E_H=4, starts=3, relu=False)
    >>> round(found.loss, 6)  # rank 1: the logits' one singular value is √2·√2·√8, the loss log(1 + e^{−4√2})
    0.003487
    """
    groups = grouped(counts)
    checked_budgets(E_W, E_H)
    positive(E_V, "E_V", "budget")
    K = groups.K
    d, p = 2 * K if d is None else d, 2 * K if p is None else p
    for name, value in (("d", d), ("p", p), ("per_class", per_class), ("starts", starts)):
        checked_whole(value, name)
    checked_whole(seed, "seed", 0)
    checked_flag(relu, "relu")
    labels: Labels = np.repeat(np.arange(K), per_class)
    weight = (groups.shares[groups.members] / per_class)[labels]
    n = len(labels)
    cut = (K * d, K * d + d * p)

    def f(v: Array) -> tuple[float, Array]:
        W, back_W = _on_sphere(v[: cut[0]].reshape(K, d), K * E_W)
        V, back_V = _on_sphere(v[cut[0] : cut[1]].reshape(d, p), K * E_V)
        H, back_H = _on_sphere(v[cut[1] :].reshape(n, p), K * E_H * per_class)
        before = H @ V.T
        X = np.maximum(before, 0.0) if relu else before
        value, G = log_cross_entropy(X @ W.T, labels, weight)
        inner = G @ W * (before > 0) if relu else G @ W  # (n, d)
        return value, np.concatenate([back_W(G.T @ X).ravel(), back_V(inner.T @ H).ravel(), back_H(inner @ V).ravel()])

    rng = np.random.default_rng(seed)
    size = cut[1] + n * p
    begin = [rng.standard_normal(size) for _ in range(starts)]
    if near is not None:
        begin.insert(0, _begin(near, size) + SHAKE * rng.standard_normal(size))
    ends = [(math.exp(f(v)[0]), v) for v in (lbfgs(f, v) for v in begin)]
    losses = np.array([value for value, _ in ends])
    v = ends[int(losses.argmin())][1]
    W, _ = _on_sphere(v[: cut[0]].reshape(K, d), K * E_W)
    V, _ = _on_sphere(v[cut[0] : cut[1]].reshape(d, p), K * E_V)
    H, _ = _on_sphere(v[cut[1] :].reshape(n, p), K * E_H * per_class)
    return TwoLayers(groups, float(losses.min()), W, V, H, labels, relu, losses)


def _begin(near: TwoLayers, size: int) -> Array:
    """Another optimum as a start, each part at unit scale as the random ones."""
    # It is shaken by the caller: at an optimum some units of the ReLU sit at their corner, where L-BFGS stands still.
    if not isinstance(near, TwoLayers):
        raise InputError(f"near: expected what solve_two_layers returned, got {type(near).__name__}.")
    parts = [part.ravel() / np.sqrt((part**2).mean()) for part in (near.W, near.V, near.H)]
    v = np.concatenate(parts)
    if len(v) != size:
        raise InputError(
            f"near: expected an optimum with the same classes, d, p and per_class, got {len(v)} numbers for {size}."
        )
    return v
