"""The reduced problem: what is left of K×K logits when classes of one size are interchangeable.

With G groups of K_g classes of n_g samples each, averaging over permutations within the groups leaves

    Z = Σ_g z_g (I − J/K_g) on group g  +  Σ_{g,h} T_gh 1_g 1_hᵀ / √(K_g K_h)

one number z_g per group and a G×G matrix T, with ‖Z‖_* = Σ (K_g−1)|z_g| + ‖T‖_*. Everything of size G or G×G.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from layerlaw.peeled.counts import Groups

Array = npt.NDArray[np.float64]
Loss = Literal["ce", "mse"]


@dataclass(frozen=True)
class Logits:
    """The optimal logits in reduced form."""

    z: Array
    """(G,) own class minus another class of the same group; 0 where the group is collapsed."""
    T: Array
    """(G, G) the part between the groups."""
    b: Array
    """(G,) bias of the classes of each group, zero without a bias."""

    def nuclear(self, groups: Groups) -> float:
        """‖Z‖_* = Σ (K_g−1) z_g + ‖T‖_*."""
        return float((groups.classes - 1) @ self.z + np.linalg.svd(self.T, compute_uv=False).sum())

    def rows(self, groups: Groups) -> tuple[Array, Array, Array]:
        """Logits of a sample of each group: own class (G,), another of its group (G,), a class of group h (G, G)."""
        root = np.sqrt(groups.classes)
        between = self.T / np.outer(root, root) + self.b
        level = np.diagonal(between)
        return level + self.z * (1 - 1 / groups.classes), level - self.z / groups.classes, between


@dataclass(frozen=True)
class Slope:
    """Loss and gradient G of the loss in the logits, in reduced form."""

    loss: float
    within: Array
    """(G,) −G within each group: the derivative in z_g is −(K_g−1) times this."""
    between: Array
    """(G, G) the derivative in T."""

    def norm(self, groups: Groups) -> float:
        """‖G‖₂, the largest singular value; at the optimum the multiplier."""
        inner = self.within[groups.classes > 1]
        outer = float(np.linalg.norm(self.between, 2)) if np.isfinite(self.between).all() else np.inf
        return max(outer, float(inner.max(initial=0.0)))

    def bias(self, groups: Groups) -> Array:
        """(G,) the derivative in the bias of one class of each group: the column sums of G."""
        root = np.sqrt(groups.classes)
        return np.asarray(root @ self.between / root)


def slope(groups: Groups, logits: Logits, loss: Loss = "ce") -> Slope:
    """Loss Σ_k (n_k/N) ℓ(z_k, k) and its gradient; ℓ is the cross-entropy or half the squared distance to one-hot."""
    return _cross_entropy(groups, logits) if loss == "ce" else _squares(groups, logits)


def _cross_entropy(groups: Groups, logits: Logits) -> Slope:
    k, share = groups.classes, groups.shares
    own, _, between = logits.rows(groups)
    odds = between - own[:, None] + np.log(k)  # log Σ over a group of e^{logit − own}
    np.fill_diagonal(odds, np.log(np.maximum(k - 1, 1e-300)) - logits.z)  # other classes of the own group
    top = odds.max(1)
    others = top + np.log(np.exp(odds - top[:, None]).sum(1))
    loss = np.logaddexp(0.0, others)  # (G,) log(1 + Σ e^{…}), exact when it is tiny
    mass = np.exp(odds - loss[:, None])  # (G, G) probability that goes to each group
    same = np.exp(-logits.z - loss)  # to one other class of the own group
    np.fill_diagonal(mass, 0.0)
    cross = mass.sum(1)
    root = np.sqrt(k)
    gradient = share[:, None] * mass * root[:, None] / root
    np.fill_diagonal(gradient, -share * cross)  # 1 − own − (K_g−1) same, without the cancellation
    return Slope(float(share * k @ loss), share * (k * same + cross), gradient)


def _squares(groups: Groups, logits: Logits) -> Slope:
    k, share = groups.classes, groups.shares
    root = np.sqrt(k)
    rest = logits.T - np.eye(len(k)) + np.outer(root, root * logits.b)
    value = 0.5 * float(share @ ((k - 1) * (logits.z - 1) ** 2 + (rest**2).sum(1)))
    return Slope(value, share * (1 - logits.z), share[:, None] * rest)


def gap(groups: Groups, logits: Logits, c: float, loss: Loss = "ce") -> float:
    """Certificate: the loss is at most this far above the minimum, whichever solver found the logits.

    ⟨G, Z⟩ + K c ‖G‖₂ ≥ f(Z) − f* for convex f and ‖Z‖_* ≤ K c (Frank–Wolfe); with a bias, for the bias's optimum.
    """
    s = slope(groups, logits, loss)
    inner = float((s.between * logits.T).sum() - ((groups.classes - 1) * s.within) @ logits.z)
    return inner + groups.K * c * s.norm(groups)
