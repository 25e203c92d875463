"""Is every class told apart? One answer for `solve`, `critical_budget` and `oversampling`.

A group is separated when each of its samples has its largest logit at its own class and nowhere else: accuracy 1.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from layerlaw.peeled.biased import log_biased_collapse_ratio
from layerlaw.peeled.counts import Groups
from layerlaw.peeled.reduced import Logits, slope
from layerlaw.peeled.roots import root_above
from layerlaw.peeled.solving import optimum
from layerlaw.peeled.two_groups import log_vanish_ratio, threshold

Array = npt.NDArray[np.float64]


def separated(groups: Groups, c: float, *, bias: bool = False) -> bool:
    """Whether `solve` reports every group of the optimum at c separated.

    >>> from layerlaw.peeled.counts import grouped
    >>> separated(grouped([100, 100, 10, 10]), 2.0), separated(grouped([100, 100, 1, 1]), 1.0)
    (True, False)
    """
    return bool((margins(groups, optimum(groups, c, bias=bias)) > 0).all())


def room(groups: Groups, c: float, *, bias: bool = False) -> float:
    """How far the optimum at c is from losing a class, for finding where it does: positive where all are separated.

    The smaller of the least margin between logits of different groups and of the least log(n_g/(Nλ)) over groups of several
    classes, which passes through 0 evenly where the margin within them just ends. With a bias c less what is needed.
    """
    if bias:
        return c - biased_critical_budget(groups)
    logits = optimum(groups, c)
    between = margins(groups, logits)
    np.fill_diagonal(between, np.inf)
    log_slack = np.log(groups.shares[groups.classes > 1]) - math.log(slope(groups, logits).norm(groups))
    least = min(float(between.min()), float(log_slack.min(initial=np.inf)))
    return least if least != 0 else -1.0  # a tie: a single class that has vanished


def margins(groups: Groups, logits: Logits) -> Array:
    """(G, G) logit of the own class minus that of a class of group h; ∞ where there is no other class in it."""
    own, same, between = logits.rows(groups)
    out = own[:, None] - between
    np.fill_diagonal(out, np.where(groups.classes > 1, own - same, np.inf))
    return np.asarray(out)


def biased_critical_budget(groups: Groups) -> float:
    """With a bias, in closed form: every margin a_k = log(K n_k/(Nλ) − (K−1)) is positive iff λ < n/N of the smallest.

    So c = (K−1)/K² Σ_k log(1 + K (n_k/n_min − 1)).

    >>> from layerlaw.peeled.counts import grouped
    >>> round(biased_critical_budget(grouped([15288868] * 5 + [10**6] * 5)) ** 2, 6)  # R0 at E_W = 1, E_H = 5
    5.0
    """
    K = groups.K
    return (K - 1) / K**2 * float(groups.classes @ np.log1p(K * (groups.sizes / groups.sizes[-1] - 1)))


def log_separation_ratio(K_A: int, K_B: int, c: float, *, bias: bool = False) -> float:
    """log of the ratio n_A/n_B from which on the minority is no longer separated, ∞ if there is none.

    Several classes: R0. A single one cannot collapse: without a bias it is separated until it vanishes, with a bias its
    samples are given to the majority from the same formula on, before it vanishes.
    """
    if bias:
        return log_biased_collapse_ratio(K_A, K_B, c)
    if K_B == 1:
        return log_vanish_ratio(K_A, K_B, c)
    m = root_above(lambda m: threshold(K_A, K_B, m)[0] - c, 0.0, 1e-3)
    return threshold(K_A, K_B, m)[1]
