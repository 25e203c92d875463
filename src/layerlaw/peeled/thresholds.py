"""When do minority classifiers collapse, when do they vanish, and how large a budget keeps them apart?

All of it depends on c = √(E_W E_H) only, and is computed in logarithms: R0 grows like e^{K c/…}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError
from layerlaw.peeled.biased import biased_pair, log_biased_collapse_ratio, log_biased_vanish_ratio
from layerlaw.peeled.counts import Counts, checked_budgets, checked_classes, grouped, positive
from layerlaw.peeled.roots import root_above
from layerlaw.peeled.solving import optimum_penalised
from layerlaw.peeled.two_groups import log_vanish_ratio, solve_pair, threshold

Array = npt.NDArray[np.float64]
LARGEST = math.log(1.7e308)


def collapse_ratio(K_A: int, K_B: int, *, E_W: float, E_H: float, bias: bool = False, log: bool = False) -> float:
    """R0: from this ratio n_A/n_B on, all minority classifiers coincide (minority collapse).

    Between 1 and ∞, larger is safer. Always finite: some imbalance collapses any number of classes. The threshold is
    λ = n_B/N, explicit in the margin m of the minority towards the majority (docs/peeled.md, "The threshold"); with a bias
    R0 = 1 + (e^{K²c/(K_A(K−1))} − 1)/K. With `log` its natural logarithm, which does not overflow.

    >>> round(collapse_ratio(5, 5, E_W=1, E_H=5), 6), round(collapse_ratio(3, 7, E_W=1, E_H=10), 4)
    (12.192447, 6350.8465)
    >>> round(collapse_ratio(5, 5, E_W=100, E_H=1000, log=True), 3)
    669.592
    """
    K_A, K_B, c = _checked(K_A, K_B, E_W, E_H)
    if K_B == 1:
        raise InputError(
            "collapse_ratio: expected at least 2 minority classes, got K_B = 1: one classifier has nothing to coincide "
            "with. vanish_ratio says when it becomes 0."
        )
    return _plain(log_collapse_ratio(K_A, K_B, c, bias=bias), log, "collapse_ratio")


def vanish_ratio(K_A: int, K_B: int, *, E_W: float, E_H: float, bias: bool = False, log: bool = False) -> float:
    """R_vanish: from this ratio n_A/n_B on, all minority classifiers are exactly 0 and their angles undefined; ∞ if none is.

    Without a bias: a = K c/(K_A−1), d = (K_A e^{−a/K_A} + K_B)² − K K_B,
    R_vanish = √(K_A/(K d)) (e^{a(1−1/K_A)} + (K_A−1) e^{−a/K_A} + K_B), ∞ when d ≤ 0 or K_A = 1. With a bias it is finite
    for K_A > 1: (e^a + K − 1)/(K_A + K_B e^{−a/K_A}).

    >>> round(vanish_ratio(7, 3, E_W=1, E_H=5), 4), vanish_ratio(5, 5, E_W=1, E_H=5)
    (5.7053, inf)
    """
    K_A, K_B, c = _checked(K_A, K_B, E_W, E_H)
    value = log_biased_vanish_ratio(K_A, K_B, c) if bias else log_vanish_ratio(K_A, K_B, c)
    return math.inf if value == math.inf else _plain(value, log, "vanish_ratio")


def log_collapse_ratio(K_A: int, K_B: int, c: float, *, bias: bool = False) -> float:
    """log R0 at c."""
    if bias:
        return log_biased_collapse_ratio(K_A, K_B, c)
    m = root_above(lambda m: threshold(K_A, K_B, m)[0] - c, 0.0, 1e-3)
    return threshold(K_A, K_B, m)[1]


def critical_budget(counts: Counts, *, bias: bool = False) -> float:
    """The budget c = √(E_W E_H) above which no group of equal-size classes is collapsed; 0 for balanced classes.

    Smaller is safer. At this c the multiplier equals n_g/N of the smallest size that several classes share, so it is the
    nuclear norm over K of the penalised optimum at that multiplier; two groups: the inverse of `collapse_ratio`.

    >>> round(critical_budget([12192447] * 5 + [1000000] * 5) ** 2, 6)  # R = R0 at E_W = 1, E_H = 5
    5.0
    """
    groups = grouped(counts)
    several = np.flatnonzero(groups.classes > 1)
    if len(groups) == 1 or not len(several):
        return 0.0
    if len(groups) == 2 and groups.classes[1] > 1 and not bias:
        K_A, K_B = (int(k) for k in groups.classes)
        log_R = math.log(groups.sizes[0]) - math.log(groups.sizes[1])
        return threshold(K_A, K_B, root_above(lambda m: threshold(K_A, K_B, m)[1] - log_R, 0.0, 1e-3))[0]
    at = float(groups.shares[several[-1]])
    return optimum_penalised(groups, at, bias=bias).nuclear(groups) / groups.K


@dataclass(frozen=True)
class CollapseCurve:
    """Minority cosines along a sweep of ratios R."""

    ratios: Array
    cosines: Array
    """Cosine between two minority classifiers; exactly 1 in collapse, NaN where they have vanished."""
    phases: tuple[str, ...]
    swapped: npt.NDArray[np.bool_]
    """Where R < 1: the K_A classes are the smaller ones there, and cosine and phase are theirs."""
    collapse: float
    """log R0."""
    vanish: float
    """log R_vanish, ∞ where there is none."""

    @property
    def note(self) -> str:
        """What a reader must know about the values, in a sentence; empty when nothing."""
        said, many = [], len(self.phases)
        if self.swapped.any():
            said.append(f"Below R = 1 the groups are swapped ({int(self.swapped.sum())} of {many} ratios).")
        if (gone := sum(phase == "vanished" for phase in self.phases)) > 0:
            said.append(f"At {gone} of {many} ratios the minority classifiers are 0 and have no angle.")
        return " ".join(said)


def collapse_curve(
    K_A: int, K_B: int, ratios: Sequence[float] | Array, *, E_W: float, E_H: float, bias: bool = False
) -> CollapseCurve:
    """Cosine between minority classifiers against the ratio R = n_A/n_B: the paper's main curve.

    From −1/(K−1) at R = 1 up to exactly 1 from R0 on. A ratio below 1 makes the K_A classes the minority: the groups are
    swapped for it, and `swapped` says so.

    >>> collapse_curve(5, 5, [1, 2, 5, 10, 20], E_W=1, E_H=5).cosines.round(6)
    array([-0.111111, -0.067283,  0.072527,  0.517496,  1.      ])
    """
    K_A, K_B, c = _checked(K_A, K_B, E_W, E_H)
    values = [positive(R, f"ratios[{i}]", "ratio n_A/n_B") for i, R in enumerate(np.asarray(ratios).tolist())]
    best = biased_pair if bias else solve_pair
    pairs = [best(K_A, K_B, math.log(R), c) if R >= 1 else best(K_B, K_A, -math.log(R), c) for R in values]
    cosines = [math.nan if pair.minority_cosine is None else pair.minority_cosine for pair in pairs]
    vanish = (log_biased_vanish_ratio if bias else log_vanish_ratio)(K_A, K_B, c)
    return CollapseCurve(
        ratios=np.array(values),
        cosines=np.array(cosines),
        phases=tuple(pair.phase for pair in pairs),
        swapped=np.array([R < 1 for R in values], dtype=bool),
        collapse=log_collapse_ratio(K_A, K_B, c, bias=bias) if K_B > 1 else math.inf,
        vanish=vanish,
    )


def _checked(K_A: object, K_B: object, E_W: object, E_H: object) -> tuple[int, int, float]:
    return checked_classes(K_A, "K_A"), checked_classes(K_B, "K_B"), checked_budgets(E_W, E_H)


def _plain(value: float, log: bool, name: str) -> float:
    if log:
        return value
    if value > LARGEST:
        raise InputError(f"{name}: exp({value:.6g}) is more than a double can hold. Ask for {name}(…, log=True).")
    return math.exp(value)
