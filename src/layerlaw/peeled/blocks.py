"""Matrices over classes that only know groups: a number on the diagonal, one within each group, one between any two.

Grams of classifiers and features have this form at the optimum, so a million classes are a handful of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerlaw.errors import MemoryBudgetError
from layerlaw.peeled.counts import Groups

Array = npt.NDArray[np.float64]
ROUNDING = 1e-14
MOST = 2**28  # entries of a dense matrix: 2 GiB


@dataclass(frozen=True)
class Blocks:
    """A Gram matrix of K vectors in blocks."""

    groups: Groups
    own: Array
    """(G,) squared norms."""
    within: Array
    """(G,) inner product of two different classes of a group."""
    between: Array
    """(G, G) inner product of a class of g with one of h; the diagonal is not used."""

    @classmethod
    def of(cls, groups: Groups, z: Array, A: Array) -> Blocks:
        """The Gram with z_g (I − J/K_g) within each group and A between the groups' unit vectors 1_g/√K_g."""
        k, root = groups.classes, np.sqrt(groups.classes)
        level = np.diagonal(A) / k
        return cls(groups, level + z * (1 - 1 / k), level - z / k, A / np.outer(root, root))

    def centered(self) -> Blocks:
        """The Gram of the vectors around their plain mean."""
        k, K = self.groups.classes, self.groups.K
        sums = self.own + (k - 1) * self.within + self.between @ k - np.diagonal(self.between) * k
        mean = sums / K  # (G,) inner product with the mean
        shift = float(k @ mean) / K
        own, within = self.own - 2 * mean + shift, self.within - 2 * mean + shift
        own = np.where(own > ROUNDING * self.own.max(), own, 0.0)  # else the root of a rounding error would be a norm
        return Blocks(self.groups, own, within, self.between - mean[:, None] - mean + shift)

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
        if mean == 0:
            return None, None
        variation = float(np.sqrt(k @ (norm - mean) ** 2 / K)) / mean
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
    if rows * columns > MOST:
        raise MemoryBudgetError(
            f"{what} of {rows:,} × {columns:,} numbers would take {rows * columns * 8 / 2**30:,.0f} GiB. "
            "The group-wise numbers (cosines, norms, accuracy) hold the same."
        )
