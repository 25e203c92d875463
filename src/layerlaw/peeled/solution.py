"""What an optimum of the Layer-Peeled Model says: phases, angles, logits, accuracy, neural collapse."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, Literal

import numpy as np

from layerlaw.errors import InputError, check_whole
from layerlaw.peeled.counts import Array, Groups
from layerlaw.peeled.logits import CERTIFIED, GroupMatrix, Logits, Loss, fits
from layerlaw.wording import counted, finite

Phase = Literal["separated", "confused", "collapsed", "vanished"]
ZERO = 1e-12  # a squared norm or singular value below this share of the mean is none


@dataclass(frozen=True)
class NeuralCollapse:
    """NC1–NC4 at the optimum, named as the columns of a record; 0 is perfect collapse, `None` where a vector is 0.

    Features are equal within a class (the loss is convex), so NC1 is always 0; what imbalance destroys is NC2 and NC3.
    """

    nc1: float
    nc2_norms: float | None  # coefficient of variation of the centered class means' norms
    nc2_angles: float | None  # mean of |cos + 1/(K−1)| between centered class means
    nc2_norms_classifier: float | None
    nc2_angles_classifier: float | None
    nc3: float | None  # ‖W/‖W‖ − M/‖M‖‖², M the centered class means
    nc4: float
    """Share of samples whose best logits belong to other classes than the nearest class means (ties compared as sets)."""


@dataclass(frozen=True, repr=False)
class Solution:
    """A global minimizer, in numbers per group of equal-size classes (the largest first).

    The loss is the minimum up to `gap`. `E_W` and `E_H` only fix the lengths; angles, loss and phases depend on
    c = √(E_W E_H) alone.
    """

    groups: Groups
    E_W: float
    E_H: float
    kind: Loss
    bias: bool
    value: Logits
    loss: float
    multiplier: float  # λ, what a unit of nuclear norm is worth: −d loss/d(K c)
    gap: float
    """Certificate: loss − minimum ≤ gap, by convex duality, whichever way the optimum was found (`certified`)."""

    @property
    def c(self) -> float:
        """√(E_W E_H)."""
        return math.sqrt(self.E_W) * math.sqrt(self.E_H)

    @property
    def K(self) -> int:
        """Number of classes."""
        return self.groups.K

    @property
    def certified(self) -> bool:
        """Whether the gap is at most 1e-10. If not, the solver found nothing better, and the words of the result say so."""
        return self.gap <= CERTIFIED

    @property
    def slack(self) -> Array:
        """(G,) n_g/(N λ), the distance to collapse: classes that share a size coincide at 1 and below."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.groups.shares / np.float64(self.multiplier))

    @property
    def _stretch(self) -> float:
        """√(E_W/E_H), how much of the logits' size the classifiers carry."""
        return math.sqrt(self.E_W / self.E_H) if self.E_H > 0 else 1.0

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Per group: separated exactly where its accuracy is 1; else what has become of it.

        vanished: its classifiers are 0. collapsed: the classifiers of its classes coincide. confused: they are neither, but
        its samples are given to a class of another size. That happens to a size with one class only, which cannot coincide
        with itself: it loses its own direction and lies more or less beside others (`cosines`). Two sizes without a bias
        know no confusion.
        """
        gone = self.classifier_blocks.own <= ZERO * self.c * self._stretch
        together = (self.groups.classes > 1) & (self.value.z == 0)
        right = (self.accuracy == 1) & (self.c > 0)  # without any norm a bias alone may be right
        names = ("separated", "vanished", "collapsed")
        return tuple(np.select([right, gone, together], names, "confused").tolist())

    @property
    def separated(self) -> bool:
        """Whether every group is: all training samples are recognized."""
        return set(self.phases) == {"separated"}

    @property
    def angles_unique(self) -> bool:
        """Whether angles and norms are determined: not where the squared loss leaves budget over (c > 1, with a bias
        c > (K−1)/K). There Z is unique, but not W and H with H Wᵀ = Z; those given use the least norm."""
        return self.multiplier > 0

    @cached_property
    def rank(self) -> int:
        """Dimensions the classifiers span: what p must at least be; K−1 when nothing is collapsed."""
        inner = int((self.groups.classes - 1)[self.value.z > 0].sum())
        return inner + int(self._factors[0].shape[1])

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        """(G, p) H and W of equal size with T = H Wᵀ, without directions that are 0."""
        U, S, Vt = np.linalg.svd(self.value.T)
        used = int((ZERO * max(float(S[0]), float(self.value.z.max())) < S).sum())
        return U[:, :used] * np.sqrt(S[:used]), Vt[:used].T * np.sqrt(S[:used])

    @cached_property
    def classifier_blocks(self) -> GroupMatrix:
        """W Wᵀ per group; `.dense()` is (K, K), in the order the classes came in."""
        W, size = self._factors[1], self._stretch
        return GroupMatrix.of(self.groups, size * self.value.z, size * (W @ W.T))

    @cached_property
    def feature_blocks(self) -> GroupMatrix:
        """H Hᵀ of the class means of the features, per group; `.cosines()` are theirs, not centered."""
        H, size = self._factors[0], self._stretch
        return GroupMatrix.of(self.groups, self.value.z / size, H @ H.T / size)

    @cached_property
    def cosines(self) -> Array:
        """(G, G) cosines between classifiers, within a group on the diagonal; NaN: undefined (vanished, or one class).

        Of the least norm, where they are not unique (`angles_unique`).
        """
        return self.classifier_blocks.cosines()

    @property
    def minority_cosine(self) -> float | None:
        """Cosine between classifiers of the rarest size; 1 in collapse, `None` where undefined."""
        return finite(float(self.cosines[-1, -1]))

    @property
    def norms(self) -> Array:
        """(G,) norms of the classifiers."""
        return np.sqrt(np.maximum(self.classifier_blocks.own, 0.0))

    @property
    def feature_norms(self) -> Array:
        """(G,) norms of the features."""
        return np.sqrt(np.maximum(self.feature_blocks.own, 0.0))

    @property
    def biases(self) -> Array:
        """(G,) bias of the classes of each group, with mean 0 over the classes."""
        return self.value.b

    def W(self, p: int | None = None) -> Array:
        """(K, p) classifiers; p at least the rank (the default), further columns are 0. Any rotation is as good."""
        return self._vectors(p, self._factors[1], math.sqrt(self._stretch))

    def H(self, p: int | None = None) -> Array:
        """(K, p) class means of the features, in the coordinates of `W(p)`; every sample lies on its class mean."""
        return self._vectors(p, self._factors[0], 1 / math.sqrt(self._stretch))

    def _vectors(self, p: int | None, between: Array, size: float) -> Array:
        p = max(1, self.rank) if p is None else p
        check_whole(1, kind=Integral, p=p)
        if p < self.rank:
            other = "In fewer dimensions the optimum is another one: solve_direct(counts, p=…) finds it."
            raise InputError(f"W, H: expected p ≥ {self.rank}, the rank of this optimum, got p = {p}. {other}")
        fits(self.K, p, "W or H")
        out, member, at = np.zeros((self.K, p)), self.groups.members, between.shape[1]
        out[:, :at] = (between / np.sqrt(self.groups.classes)[:, None])[member]
        for g, (k, z) in enumerate(zip(self.groups.classes.astype(int), self.value.z, strict=True)):
            if k > 1 and z > 0:
                out[np.flatnonzero(member == g), at : at + k - 1] = math.sqrt(z) * helmert(k)
                at += k - 1
        return size * out

    @property
    def logits(self) -> Array:
        """(K, K) logits of a sample of each class (row) for each class, bias included; built when asked for."""
        return GroupMatrix(self.groups, *self.value.rows(self.groups)).dense()

    @cached_property
    def accuracy(self) -> Array:
        """(G,) expected share of correct training samples, ties broken fairly.

        1 while separated. Without a bias 1/K_g in collapse unless another size takes the samples, 1/K when vanished; with a
        bias 0 there, and 0 when confused.
        """
        margins = self.value.margins(self.groups)
        return np.where(margins.min(1) >= 0, 1 / (1 + (self._others * (margins == 0)).sum(1)), 0.0)

    @property
    def total_accuracy(self) -> float:
        """Over all training samples."""
        return float(self.groups.sizes * self.groups.classes @ self.accuracy / self.groups.N)

    @property
    def _others(self) -> Array:
        """(G, G) how many classes of h there are beside one of g."""
        return np.asarray(self.groups.classes - np.eye(len(self.groups)))

    @cached_property
    def neural_collapse(self) -> NeuralCollapse:
        """NC1–NC4 of this optimum."""
        means, rows = self.feature_blocks.centered(), self.classifier_blocks
        spread, size = float(self.groups.classes @ means.own), float(self.groups.classes @ rows.own)
        root, T = np.sqrt(self.groups.classes), self.value.T
        # ⟨W, M⟩ = tr Z − 1ᵀZ1/K
        inner = float((self.groups.classes - 1) @ self.value.z + np.trace(T) - root @ T @ root / self.K)
        nc3 = 2 - 2 * inner / math.sqrt(spread * size) if spread > 0 and size > 0 else None
        margins = self.value.margins(self.groups)
        chosen = margins <= np.minimum(margins.min(1, keepdims=True), 0)  # (G, G) groups of the best logits
        zero = self.feature_blocks.own <= ZERO * self.c / self._stretch
        nearest = np.outer(zero, zero) | np.diag(self.value.z == 0)  # features of a collapsed group coincide
        differ = (margins.min(1) < 0) | ((chosen != nearest) & (self._others > 0)).any(1)
        nc4 = float(self.groups.sizes * self.groups.classes @ differ / self.groups.N)
        return NeuralCollapse(0.0, *means.norms_and_angles(), *rows.norms_and_angles(), nc3, nc4)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: the whole, and one entry per group; `None` where undefined."""
        same = ("E_W", "E_H", "c", "loss", "gap", "certified", "kind", "bias", "multiplier", "angles_unique", "rank")
        return {
            "classes": self.K,
            **{name: getattr(self, name) for name in same},
            "accuracy": self.total_accuracy,
            "neural_collapse": asdict(self.neural_collapse),
            "groups": [
                {
                    "samples": float(self.groups.sizes[g]),
                    "classes": int(self.groups.classes[g]),
                    "phase": self.phases[g],
                    "slack": finite(float(self.slack[g])),
                    "cosine": finite(float(self.cosines[g, g])),
                    "norm": float(self.norms[g]),
                    "feature_norm": float(self.feature_norms[g]),
                    "accuracy": float(self.accuracy[g]),
                }
                for g in range(len(self.groups))
            ],
        }

    def __repr__(self) -> str:
        return (
            f"Solution({self.K:,} classes of {counted(len(self.groups), 'size')}, c={self.c:.4g}, kind={self.kind!r}, "
            f"bias={self.bias}, loss={self.loss:.4g}, gap={self.gap:.1e}, {'' if self.separated else 'not '}separated)"
        )

    def __str__(self) -> str:
        said = [f"{self.K:,} classes, c = {self.c:.4g}: loss {self.loss:.4g}, rank {self.rank}."]
        for g in range(min(len(self.groups), 4)):
            classes = counted(int(self.groups.classes[g]), "class", "classes")
            cosine = self.cosines[g, g]
            angle = "" if math.isnan(cosine) else f", cosine {cosine:.3f}".replace("-", "−")
            state = f"{self.phases[g]}{angle}, accuracy {self.accuracy[g]:.3g}"
            said.append(f"{classes} of {self.groups.sizes[g]:,.6g}: {state}.")
        if len(self.groups) > 4:
            said.append(f"… {len(self.groups)} sizes in all.")
        if not self.angles_unique:
            said.append("Budget is left over: angles are those of the least norm, not the only ones.")
        if not self.certified:
            said.append(f"Not certified: the loss may be up to {self.gap:.1e} above the minimum.")
        return " ".join(said)


def helmert(k: int) -> Array:
    """(k, k−1) orthonormal columns that sum to 0.

    >>> helmert(2).round(4).T
    array([[ 0.7071, -0.7071]])
    """
    j = np.arange(1, k)
    out = np.triu(np.ones((k, k - 1)))
    out[j, j - 1] = -j
    return out / np.sqrt(j * (j + 1.0))
