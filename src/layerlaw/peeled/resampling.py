"""How often must minority samples be repeated so that their classifiers no longer coincide?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerlaw.peeled.counts import Counts, Groups, checked_budgets, grouped
from layerlaw.peeled.reduced import slope
from layerlaw.peeled.roots import root
from layerlaw.peeled.solving import optimum
from layerlaw.peeled.thresholds import log_collapse_ratio

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Oversampling:
    """Fill up: every class with fewer than `level` samples is repeated until it has that many."""

    groups: Groups
    level: float
    """Samples per class that just suffice; the smallest count where nothing is collapsed."""
    factors: Array
    """(G,) level over size for the smaller classes, 1 for the others."""

    @property
    def needed(self) -> bool:
        """Whether anything has to be done."""
        return bool((self.factors > 1).any())

    @property
    def copies(self) -> npt.NDArray[np.intp]:
        """(G,) whole number of times to show each sample, enough to be clear of collapse."""
        return np.where(self.factors > 1, np.floor(self.factors) + 1, 1).astype(np.intp)

    def __str__(self) -> str:
        if not self.needed:
            return "No class group is collapsed: nothing to oversample."
        few, most = int(self.groups.classes[self.factors > 1].sum()), self.factors.max()
        return f"Repeat the samples of {few:,} classes up to {self.level:,.6g} each, the rarest {most:.4g} times."


def oversampling(counts: Counts, *, E_W: float, E_H: float, bias: bool = False) -> Oversampling:
    """The least oversampling of the smaller classes that leaves collapse.

    All classes below a common level are repeated up to it; at the level sought the multiplier equals level/N. In two groups
    the factor is R/R0: it is what brings n_A/n_B down to R0.

    >>> plan = oversampling({6000: 5, 6: 5}, E_W=1, E_H=10)  # R = 1000, R0 = 81.102…
    >>> round(float(plan.factors[1]), 6), plan.copies
    (12.330121, array([ 1, 13]))
    """
    groups, c = grouped(counts), checked_budgets(E_W, E_H)
    sizes = groups.sizes
    if len(groups) == 1 or (len(groups) == 2 and groups.classes[1] == 1):
        return Oversampling(groups, float(sizes[-1]), np.ones(len(groups)))
    if len(groups) == 2:
        K_A, K_B = (int(k) for k in groups.classes)
        log_R0 = log_collapse_ratio(K_A, K_B, c, bias=bias)
        level = max(float(sizes[1]), float(sizes[0]) * math.exp(-log_R0))
        return Oversampling(groups, level, np.maximum(1.0, level / sizes))

    def spare(log_level: float) -> float:
        """log of (level/N)/λ with everything below the level filled up; positive when nothing is collapsed."""
        filled = _filled(groups, math.exp(log_level))
        multiplier = slope(filled, optimum(filled, c, bias=bias)).norm(filled)
        return math.log(filled.shares[-1]) - math.log(multiplier)

    low, high = math.log(_second(groups)), math.log(sizes[0])
    level = float(sizes[-1]) if spare(low) > 0 else math.exp(root(spare, low, high, close=1e-9))
    return Oversampling(groups, level, np.maximum(1.0, level / sizes))


def _second(groups: Groups) -> float:
    """The size of the second smallest class: below it the smallest has no company it could coincide with."""
    return float(groups.sizes[-1] if groups.classes[-1] > 1 else groups.sizes[-2])


def _filled(groups: Groups, level: float) -> Groups:
    above = groups.sizes > level * (1 + 1e-12)
    below = float(groups.classes[~above].sum())
    return Groups(np.append(groups.sizes[above], level), np.append(groups.classes[above], below))
