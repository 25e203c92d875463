"""With a free bias: closed forms while nothing is collapsed, one root for two groups in collapse.

Stationarity in the bias makes the columns of the gradient sum to zero as the rows do, so where all directions are in use the
gradient is −λ (I − J/K), and the probabilities follow: Z = C diag(a) C with C = I − J/K and

    a_k = log(K n_k/(N λ) − (K−1)),   Σ a_k = K² c/(K−1)

(docs/peeled.md, "With a bias").
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from layerlaw.peeled.counts import Groups
from layerlaw.peeled.reduced import Logits
from layerlaw.peeled.roots import root
from layerlaw.peeled.two_groups import TwoGroups, log_share

Array = npt.NDArray[np.float64]


def log_biased_collapse_ratio(K_A: int, K_B: int, c: float) -> float:
    """log R0, R0 = 1 + (e^{K²c/(K_A(K−1))} − 1)/K.

    >>> round(math.exp(log_biased_collapse_ratio(5, 5, math.sqrt(5))), 6)
    15.288868
    """
    K = K_A + K_B
    x = K * K * c / (K_A * (K - 1))
    return x - math.log(K) + math.log1p((K - 1) * math.exp(-x))


def log_biased_vanish_ratio(K_A: int, K_B: int, c: float) -> float:
    """log R_vanish, R_vanish = (e^a + K − 1)/(K_A + K_B e^{−a/K_A}) with a = K c/(K_A−1); ∞ for one majority class.

    With a bias there always is such a ratio: the bias alone can say "majority".
    """
    if K_A == 1:
        return math.inf
    K = K_A + K_B
    a = K * c / (K_A - 1)
    return a + math.log1p((K - 1) * math.exp(-a)) - math.log(K_A + K_B * math.exp(-a / K_A))


def biased_at(groups: Groups, log_multiplier: float) -> Logits | None:
    """Z = C diag(a) C and b at a multiplier, or `None` where that is not optimal (something is collapsed)."""
    K = groups.K
    excess = K * np.expm1(np.log(groups.shares) - log_multiplier)
    if (excess <= -1).any():
        return None
    a = np.log1p(excess)
    top = np.sqrt(groups.classes / K)
    centered = np.eye(len(a)) - np.outer(top, top)
    T = centered @ (a[:, None] * centered)
    alone = groups.classes == 1
    if (a[~alone] < 0).any() or (alone.any() and np.linalg.eigvalsh(T)[0] < -1e-12 * np.abs(a).max()):
        return None
    b = a / K
    return Logits(np.where(alone, 0.0, np.maximum(a, 0.0)), T, b - groups.classes @ b / K)


def biased(groups: Groups, c: float) -> Logits | None:
    """The optimal logits under ‖Z‖_* ≤ K c in closed form, or `None` where something is collapsed."""
    K, shares = groups.K, groups.shares
    total = K * K * c / (K - 1)

    def excess(log_l: float) -> float:
        x = K * np.expm1(np.log(shares) - log_l)
        return float(groups.classes @ np.log1p(x)) - total if (x > -1).all() else -math.inf

    high = math.log(shares[-1] * K / (K - 1)) + 1e-9  # beyond the end of the logarithms
    low = math.log(shares[-1]) - total / K - math.log(K) - 1  # here even the smallest a is above the mean
    return biased_at(groups, root(excess, low, high))


def biased_pair(K_A: int, K_B: int, log_R: float, c: float) -> TwoGroups:
    """Two groups with a bias, also in collapse and beyond: everything is explicit in λ."""
    K = K_A + K_B
    if log_R >= log_biased_vanish_ratio(K_A, K_B, c):
        return _vanished(K_A, K_B, log_R, K * c / (K_A - 1))

    def excess(log_l: float) -> float:
        pair = biased_pair_at(K_A, K_B, log_R, log_l)
        return (K_A - 1) * pair.a + (K_B - 1) * pair.e + _between(pair) - K * c

    log_A = log_share(K_A, K_B, log_R)
    high = log_A + math.log(K / (K - 1)) + 1e-9  # beyond the end of the logarithms
    low = log_A - log_R - K * c / (K - 1) - math.log(K) - 1  # here even the minority's a is above its mean
    return biased_pair_at(K_A, K_B, log_R, root(excess, low, high))


def biased_pair_at(K_A: int, K_B: int, log_R: float, log_l: float) -> TwoGroups:
    """The optimum of loss + λ‖Z‖_* while something lies between the groups; t_A < 0 says that nothing does."""
    K = K_A + K_B
    log_A = log_share(K_A, K_B, log_R)
    a = _log1p(K * math.expm1(log_A - log_l))  # margin of a majority sample, the same towards every class
    x = K * math.expm1(log_A - log_R - log_l)
    e = math.log1p(x) if K_B > 1 and x > 0 else 0.0
    m = e if e else _log1p(x / K_B)  # of a minority sample towards the majority
    t = (K_B * a + K_A * K_B * (m - e * (1 - 1 / K_B))) / K
    bias = a / K_A - t / K_A  # what the margin a has beyond a (1−1/K_A) + t/K_A
    within, bias = (a, bias) if K_A > 1 else (0.0, a - t)
    # T = t v vᵀ with v = (√K_B, −√K_A)/√K
    return TwoGroups(K_A, K_B, within, e, t * math.sqrt(K_B / K), t * math.sqrt(K_A / K), log_l, log_R, bias)


def _between(pair: TwoGroups) -> float:
    """t, with its sign."""
    return pair.t_A * math.sqrt((pair.K_A + pair.K_B) / pair.K_B)


def _vanished(K_A: int, K_B: int, log_R: float, a: float) -> TwoGroups:
    """Nothing but the bias speaks for the minority: one root makes the columns of the gradient sum to zero."""
    within = a * (1 - 1 / K_A)

    def others(bias: float) -> float:
        """log Σ over the other classes of e^{logit − own}, for a majority sample."""
        return float(np.logaddexp(math.log(K_A - 1) - a, math.log(K_B) - within - bias))

    def excess(bias: float) -> float:
        y_A = -within - bias - np.logaddexp(0.0, others(bias))
        y_B = bias - np.logaddexp(math.log(K_B), math.log(K_A) + bias)
        return float(y_A + log_R - y_B)

    reach = abs(log_R) + a + math.log(K_A + K_B) + 1
    bias = root(excess, -reach, reach)
    top = np.logaddexp(math.log(K_A) - a, math.log(K_B) - within - bias)
    log_l = log_share(K_A, K_B, log_R) + float(top - np.logaddexp(0.0, others(bias)))
    return TwoGroups(K_A, K_B, a, 0.0, 0.0, 0.0, log_l, log_R, bias)


def _log1p(x: float) -> float:
    return math.log1p(x) if x > -1 else -math.inf
