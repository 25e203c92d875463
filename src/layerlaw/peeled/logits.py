"""The reduced problem: what is left of K×K matrices when classes of one size are interchangeable.

With G groups of K_g classes of n_g samples each, averaging over permutations within the groups leaves

    Z = Σ_g z_g (I − J/K_g) on group g  +  Σ_{g,h} T_gh 1_g 1_hᵀ / √(K_g K_h)

one number z_g per group and a G×G matrix T, with ‖Z‖_* = Σ (K_g−1)|z_g| + ‖T‖_*. Gram matrices of classifiers and features
have the same form, so a million classes are a handful of numbers. Everything here has size G or G×G.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from layerlaw.errors import MemoryBudgetError
from layerlaw.peeled.counts import Array, Groups

Loss = Literal["ce", "mse"]
ROUNDING = 1e-14
MOST_ENTRIES = 2**28  # of a dense matrix: 2 GiB
FARTHEST = 30.0  # that a bias moves in one step
CERTIFIED = 1e-10  # what the certificate of a solved problem must not exceed


@dataclass(frozen=True)
class Logits:
    """The optimal logits in reduced form."""

    z: Array  # (G,) own class minus another class of the same group; 0 where the group is collapsed
    T: Array  # (G, G) the part between the groups
    b: Array  # (G,) bias of the classes of each group, zero without a bias

    def nuclear(self, groups: Groups) -> float:
        """‖Z‖_* = Σ (K_g−1) z_g + ‖T‖_*."""
        return float((groups.classes - 1) @ self.z + np.linalg.svd(self.T, compute_uv=False).sum())

    def rows(self, groups: Groups) -> tuple[Array, Array, Array]:
        """Logits of a sample of each group: own class (G,), another of its group (G,), a class of group h (G, G)."""
        root = np.sqrt(groups.classes)
        between = self.T / np.outer(root, root) + self.b
        level = np.diagonal(between)
        return level + self.z * (1 - 1 / groups.classes), level - self.z / groups.classes, between

    def margins(self, groups: Groups) -> Array:
        """(G, G) logit of the own class minus that of a class of group h; ∞ where there is no other class in it."""
        own, same, between = self.rows(groups)
        out = own[:, None] - between
        np.fill_diagonal(out, np.where(groups.classes > 1, own - same, np.inf))
        return np.asarray(out)


@dataclass(frozen=True)
class Slope:
    """Loss and gradient G of the loss in the logits, in reduced form."""

    loss: float
    within: Array  # (G,) −G within each group: the derivative in z_g is −(K_g−1) times this
    between: Array  # (G, G) the derivative in T

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
    k, share, root = groups.classes, groups.shares, np.sqrt(groups.classes)
    if loss == "mse":
        rest = logits.T - np.eye(len(k)) + np.outer(root, root * logits.b)
        value = 0.5 * float(share @ ((k - 1) * (logits.z - 1) ** 2 + (rest**2).sum(1)))
        return Slope(value, share * (1 - logits.z), share[:, None] * rest)
    own, _, between = logits.rows(groups)
    odds = between - own[:, None] + np.log(k)  # log Σ over a group of e^{logit − own}
    np.fill_diagonal(odds, np.log(np.maximum(k - 1, 1e-300)) - logits.z)  # other classes of the own group
    top = odds.max(1)
    others = top + np.log(np.exp(odds - top[:, None]).sum(1))
    each = np.logaddexp(0.0, others)  # (G,) log(1 + Σ e^{…}), exact when it is tiny
    mass = np.exp(odds - each[:, None])  # (G, G) probability that goes to each group
    same = np.exp(-logits.z - each)  # to one other class of the own group
    np.fill_diagonal(mass, 0.0)
    cross = mass.sum(1)
    gradient = share[:, None] * mass * root[:, None] / root
    np.fill_diagonal(gradient, -share * cross)  # 1 − own − (K_g−1) same, without the cancellation
    return Slope(float(share * k @ each), share * (k * same + cross), gradient)


def gap(groups: Groups, logits: Logits, c: float, loss: Loss = "ce", *, bias: bool = False) -> float:
    """Certificate: the loss is at most this far above the minimum, whichever solver found the logits.

    ⟨G, Z⟩ + K c ‖G‖₂ ≥ f(Z) − f* for convex f and ‖Z‖_* ≤ K c (Frank–Wolfe), and what the bias leaves undone (`_bias_gap`).
    """
    s = slope(groups, logits, loss)
    rest = _bias_gap(groups, logits, s, groups.K * c, loss) if bias else 0.0
    return inner(groups, logits, s) + groups.K * c * s.norm(groups) + rest


def gap_penalized(groups: Groups, logits: Logits, penalty: float, *, bias: bool = False) -> float:
    """The same certificate for loss + penalty·‖Z‖_*, the loss being the cross-entropy.

    With ‖G‖₂ ≤ λ it is ⟨G, Z⟩ + λ‖Z‖_*. Else the dual point P, the probabilities, is moved towards the identity, where its
    gradient is 0, by the share t = 1 − λ/‖G‖₂, which costs t times the entropy Σ_k (n_k/N) H(P_k).
    """
    s, nuclear = slope(groups, logits), logits.nuclear(groups)
    shrink = 1 - penalty / max(penalty, s.norm(groups))
    rest = _bias_gap(groups, logits, s, nuclear, "ce") if bias else 0.0
    return inner(groups, logits, s) + penalty * nuclear + shrink * _entropy(groups, logits, s) + rest


def inner(groups: Groups, logits: Logits, s: Slope) -> float:
    """⟨G, Z⟩ without the bias."""
    return float((s.between * logits.T).sum() - ((groups.classes - 1) * s.within) @ logits.z)


def _entropy(groups: Groups, logits: Logits, s: Slope) -> float:
    """Σ_k (n_k/N) H(P_k) = f − ⟨G, Z + b⟩."""
    return s.loss - inner(groups, logits, s) - float((groups.classes * s.bias(groups)) @ logits.b)


def _bias_gap(groups: Groups, logits: Logits, s: Slope, nuclear: float, loss: Loss) -> float:
    """What a gradient in the bias, g, adds to the certificate; it is 0 at the optimum.

    Squared loss: the step −g ends it, gains ‖g‖²/2 and changes G by ‖n/N‖‖g‖ at most. Cross-entropy: the dual point P must
    have the columns' means n_j/N; (1−t) P + 1 qᵀ has, with the least t that leaves q ≥ 0, at the price of t times what
    entropy and ‖G‖₂ can change by.
    """
    k, share, g = groups.classes, groups.shares, s.bias(groups)
    length = float(np.sqrt(k @ share**2))
    if loss == "mse":
        size = float(np.sqrt(k @ g**2))
        return 0.5 * size**2 + 2 * nuclear * length * size
    t = max(0.0, float((g / (share + g)).max()))  # share + g: mean probability of a class, over all samples
    return abs(float((k * g) @ logits.b)) + t * (_entropy(groups, logits, s) + nuclear * (length + float(share.max())))


def with_best_bias(groups: Groups, logits: Logits) -> Logits:
    """The same logits with the bias that is best for them under the cross-entropy, to the last digit of the rarest class.

    Newton's method; where a step does not help, one that sets b to b + log(n/N over the mean probability of the class),
    which always lowers the loss.
    """
    k, share, root = groups.classes, groups.shares, np.sqrt(groups.classes)
    unit = np.sqrt(share * k)  # on this scale the diagonal of the Hessian is the probability of being wrong

    def at(b: Array) -> tuple[Logits, Slope, float]:
        moved = Logits(logits.z, logits.T, b - k @ b / groups.K)
        s = slope(groups, moved)
        return moved, s, float(np.abs(s.bias(groups) / share).max())

    now, s, rest = at(logits.b)
    for _ in range(100):
        mass = s.between / share[:, None] * (root / root[:, None])  # (G, G) probability that goes to each group
        np.fill_diagonal(mass, 0.0)
        np.fill_diagonal(mass, 1 - mass.sum(1))
        joint = (unit[:, None] * mass).T @ (unit[:, None] * mass)
        np.fill_diagonal(joint, 0.0)
        hessian = (np.diag(joint.sum(1)) - joint) / np.outer(unit, unit)
        step = np.linalg.lstsq(hessian, -k * s.bias(groups) / unit, rcond=1e-14)[0] / unit
        then = at(now.b + step.clip(-FARTHEST, FARTHEST))
        if not then[2] < 0.9 * rest:
            then = at(now.b - np.log(np.maximum(1 + s.bias(groups) / share, np.exp(-FARTHEST))))
            if not then[1].loss < s.loss * (1 - 1e-14):
                break
        now, s, rest = then
    return now


@dataclass(frozen=True)
class GroupMatrix:
    """A K×K matrix that only knows groups: a number on the diagonal, one within each group, one between any two.

    Of a Gram matrix the entries are inner products of vectors, of logits those of a sample (row) for a class (column).
    """

    groups: Groups
    own: Array  # (G,) the diagonal; of a Gram matrix, squared norms
    within: Array  # (G,) the entry of two different classes of a group
    between: Array  # (G, G) the entry of a class of g and one of h; the diagonal is not used

    @classmethod
    def of(cls, groups: Groups, z: Array, A: Array) -> GroupMatrix:
        """The Gram with z_g (I − J/K_g) within each group and A between the groups' unit vectors 1_g/√K_g."""
        k, root = groups.classes, np.sqrt(groups.classes)
        level = np.diagonal(A) / k
        return cls(groups, level + z * (1 - 1 / k), level - z / k, A / np.outer(root, root))

    def centered(self) -> GroupMatrix:
        """The Gram of the vectors around their plain mean."""
        k, K = self.groups.classes, self.groups.K
        sums = self.own + (k - 1) * self.within + self.between @ k - np.diagonal(self.between) * k
        mean = sums / K  # (G,) inner product with the mean
        shift = float(k @ mean) / K
        own, within = self.own - 2 * mean + shift, self.within - 2 * mean + shift
        own = np.where(own > ROUNDING * self.own.max(), own, 0.0)  # else the root of a rounding error would be a norm
        return GroupMatrix(self.groups, own, within, self.between - mean[:, None] - mean + shift)

    def cosines(self) -> Array:
        """(G, G) cosines: on the diagonal between two different classes of a group, NaN where a vector is 0 or alone."""
        with np.errstate(divide="ignore", invalid="ignore"):
            norm = np.sqrt(np.maximum(self.own, 0.0))
            cosines = np.clip(self.between / np.outer(norm, norm), -1.0, 1.0)
            inner = np.where(self.groups.classes > 1, self.within / self.own, np.nan)  # exactly 1 in collapse
        np.fill_diagonal(cosines, np.clip(inner, -1.0, 1.0))
        gone = self.own <= 0
        cosines[gone] = cosines[:, gone] = np.nan
        return np.asarray(cosines)

    def norms_and_angles(self) -> tuple[float | None, float | None]:
        """NC2: std/mean of the norms, and the mean of |cos + 1/(K−1)| over pairs; `None` where a vector is 0."""
        k, K = self.groups.classes, self.groups.K
        norm = np.sqrt(np.maximum(self.own, 0.0))
        mean = float(k @ norm) / K
        variation = float(np.sqrt(k @ (norm - mean) ** 2 / K)) / mean if mean else None
        if (norm == 0).any():
            return variation, None
        pairs = np.outer(k, k)
        np.fill_diagonal(pairs, k * (k - 1))
        off = np.where(pairs > 0, np.abs(self.cosines() + 1 / (K - 1)), 0.0)
        return variation, float((pairs * off).sum() / (K * (K - 1)))

    def dense(self) -> Array:
        """(K, K), in the order the classes came in."""
        K, member = self.groups.K, self.groups.members
        fits(K, K, "a Gram matrix")
        out = self.between[np.ix_(member, member)]
        same = member[:, None] == member
        out[same] = np.broadcast_to(self.within[member][:, None], (K, K))[same]
        np.fill_diagonal(out, self.own[member])
        return out


def fits(rows: int, columns: int, what: str) -> None:
    """Whether a dense matrix is worth building."""
    if rows * columns > MOST_ENTRIES:
        size = f"{what} of {rows:,} × {columns:,} numbers would take {rows * columns * 8 / 2**30:,.0f} GiB"
        raise MemoryBudgetError(f"{size}. The group-wise numbers (cosines, norms, accuracy) hold the same.")
