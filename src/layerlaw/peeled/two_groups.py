"""Two groups of classes, exactly: one unknown, whatever the number of classes.

K_A majority classes of n_A samples, K_B minority classes of n_B, R = n_A/n_B ≥ 1. The optimal logits are four numbers: a
and e, the parts within the groups, and (t_A, t_B), the part between them, with (K_A−1) a + (K_B−1) e + r = K c and
r = √(t_A² + t_B²). Written in δ = log(t_B/t_A · √(K_B/K_A)), which is 0 for balanced classes and falls with R, everything
is explicit (docs/peeled.md, "Two groups"):

    E = e^{2δ} − 1,  F = e^{−2δ} − 1,  P = √(1 + E K_A/K),  Q = √(1 + F K_B/K)
    ρ_A = 1 + E/(1+P),  ρ_B = 1 + F/(1+Q)               probability of a class of one's own group over one of the other's
    α = (K c + (K_A−1) K_A ln ρ_A + (K_B−1) K_B ln ρ_B) / (K_A−1 + (K_B−1) e^δ + P)
    a = α − K_A ln ρ_A,  e = e^δ α − K_B ln ρ_B,  r = P α
    λ/π_A = (K_A + K_B/ρ_A) / (e^a + K_A − 1 + K_B/ρ_A),  and alike for B
    R = (λ/π_B) / (λ/π_A)

Where e comes out negative the minority is collapsed: e = 0, the terms with (K_B−1) drop out, and with m = e^δ α/K_B,
λ/π_B = K Q/(K_A + K_B e^m). So R is an explicit, monotone function of δ and one bracketed root finds the optimum. Nothing
overflows: at c = 300 the multiplier is 1e-130 and no digit is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from layerlaw.errors import InputError
from layerlaw.peeled.roots import root

LEAST = -1e9  # of δ


@dataclass(frozen=True)
class TwoGroups:
    """The optimal logits of K_A classes against K_B, the multiplier, and the ratio R they belong to."""

    K_A: int
    K_B: int
    a: float
    """Within the majority: logit of the own class minus that of another majority class."""
    e: float
    """The same within the minority; 0 in collapse, and where it is a single class."""
    t_A: float
    t_B: float
    log_multiplier: float
    log_R: float
    bias: float = 0.0
    """Bias of a majority class minus that of a minority class."""

    @property
    def r(self) -> float:
        """The singular value of the part between the groups; 0 when the minority has vanished."""
        return math.hypot(self.t_A, self.t_B)

    @property
    def minority_cosine(self) -> float | None:
        """Cosine between two minority classifiers; exactly 1 in collapse, `None` where they are 0 or there is only one."""
        u2 = self.r * self.K_A / ((self.K_A + self.K_B) * self.K_B)
        own, other = self.e * (1 - 1 / self.K_B) + u2, u2 - self.e / self.K_B
        return None if self.K_B == 1 or own == 0 else other / own

    @property
    def phase(self) -> str:
        """What has become of the minority: separated, confused (a single class outvoted by a bias), collapsed, vanished."""
        if self.r == 0 and self.e == 0:
            return "vanished"
        if self.e == 0 and self.K_B > 1:
            return "collapsed"
        margin = self.e * (1 - 1 / self.K_B) + self.t_B * math.sqrt((self.K_A + self.K_B) / self.K_A) / self.K_B
        return "separated" if margin > self.bias else "confused"


def solve_pair(K_A: int, K_B: int, log_R: float, c: float) -> TwoGroups:
    """The optimum under ‖Z‖_* ≤ K c for R ≥ 1.

    >>> pair = solve_pair(5, 5, math.log(10), math.sqrt(5))
    >>> round(pair.minority_cosine, 6), pair.phase
    (0.517496, 'separated')
    """
    K = K_A + K_B
    if log_R >= log_vanish_ratio(K_A, K_B, c):
        a = K * c / (K_A - 1)
        return TwoGroups(K_A, K_B, a, 0.0, 0.0, 0.0, _log_multiplier_alone(K_A, K_B, log_R, a), log_R)

    def beyond(delta: float) -> float:
        return _Point.at(K_A, K_B, delta, c).log_R - log_R

    return _Point.at(K_A, K_B, _root_below(beyond, _least_delta(K_A, K_B, c), log_R, c), c).solution(log_R)


def threshold(K_A: int, K_B: int, m: float) -> tuple[float, float]:
    """(c, log R0) at which the minority begins to collapse with the margin m > 0 towards the majority: e = 0, λ = n_B/N.

    Both grow with m from (0, 0), so either determines the other. m = ln ρ_B, hence K Q = K_A + K_B e^m.

    >>> c, log_R = threshold(5, 5, 0.5)
    >>> round(c, 6), round(math.exp(log_R), 6)
    (2.70801, 31.545651)
    """
    K = K_A + K_B
    Q = (K_A + K_B * math.exp(m)) / K
    delta = -0.5 * math.log1p((Q - 1) * (Q + 1) * K / K_B)
    E = math.expm1(2 * delta)
    P = math.sqrt(1 + E * K_A / K)
    log_rho_A = math.log1p(E / (1 + P))
    alpha = K_B * m * math.exp(-delta)
    a = alpha - K_A * log_rho_A
    return ((K_A - 1) * a + P * alpha) / K, -_log_q(K_A, K_B, a, log_rho_A)


class _Point(NamedTuple):
    """The optimum that belongs to a δ, before it is known which R it is for. (A tuple: thousands are built in a sweep.)"""

    K_A: int
    K_B: int
    delta: float
    alpha: float
    a: float
    e: float
    log_q_A: float
    """log λ/π_A."""
    log_q_B: float
    """log λ/π_B."""

    @classmethod
    def at(cls, K_A: int, K_B: int, delta: float, c: float) -> _Point:
        K = K_A + K_B
        E = math.expm1(2 * delta)
        P = math.sqrt(max(0.0, 1 + E * K_A / K))
        log_rho_A = math.log1p(E / (1 + P))
        top, bottom = K * c + (K_A - 1) * K_A * log_rho_A, K_A - 1 + P
        # e^δ and ρ_B; far below the collapse ρ_B ≈ e^{−2δ} would overflow, but there it is not needed
        shrink = math.exp(delta)
        e = -math.inf
        log_Q = math.log(P) - delta
        if delta > -300:
            F = math.expm1(-2 * delta)
            log_rho_B = math.log1p(F / (1 + math.exp(log_Q)))
            alpha = (top + (K_B - 1) * K_B * log_rho_B) / (bottom + (K_B - 1) * shrink)
            e = shrink * alpha - K_B * log_rho_B
        if K_B > 1 and e > 0:
            log_q_B = _log_q(K_B, K_A, e, log_rho_B)
        else:  # collapsed, or a single class, which has nothing within
            e, alpha = 0.0, top / bottom
            m = shrink * alpha / K_B
            log_q_B = math.log(K) + log_Q - _log_sum(math.log(K_A), math.log(K_B) + m)
        a = alpha - K_A * log_rho_A
        return cls(K_A, K_B, delta, alpha, a, e, _log_q(K_A, K_B, a, log_rho_A), log_q_B)

    @property
    def log_R(self) -> float:
        return self.log_q_B - self.log_q_A

    def solution(self, log_R: float) -> TwoGroups:
        """As four numbers; a single majority class has no part within."""
        K = self.K_A + self.K_B
        alpha = max(0.0, self.alpha)
        t_A = math.sqrt(self.K_B / K) * alpha  # r cosθ, cosθ = √(K_B/K)/P
        t_B = math.sqrt(self.K_A / K) * math.exp(self.delta) * alpha
        log_multiplier = self.log_q_A + log_share(self.K_A, self.K_B, log_R)
        a = self.a if self.K_A > 1 else 0.0
        return TwoGroups(self.K_A, self.K_B, a, self.e, t_A, t_B, log_multiplier, log_R)


def log_vanish_ratio(K_A: int, K_B: int, c: float) -> float:
    """log R_vanish = ½ log(K_A/(K d)) + log(e^{a(1−1/K_A)} + (K_A−1) e^{−a/K_A} + K_B); ∞ where there is none.

    a = K c/(K_A−1), d = (K_A e^{−a/K_A} + K_B)² − K K_B; there is none when d ≤ 0 or K_A = 1.
    """
    if K_A == 1:
        return math.inf
    K = K_A + K_B
    a = K * c / (K_A - 1)
    shrunk = math.exp(-a / K_A)
    d = (K_A * shrunk + K_B) ** 2 - K * K_B
    if d <= 0:
        return math.inf
    return 0.5 * (math.log(K_A) - math.log(K * d)) + _log_sum(a * (1 - 1 / K_A), math.log((K_A - 1) * shrunk + K_B))


def log_share(K_A: int, K_B: int, log_R: float) -> float:
    """log n_A/N = −log(K_A + K_B/R)."""
    return -_log_sum(math.log(K_A), math.log(K_B) - log_R)


def _least_delta(K_A: int, K_B: int, c: float) -> float:
    """The δ at which the minority vanishes (ln ρ_A = −c K/((K_A−1) K_A)), −∞ where it does not."""
    if not math.isfinite(log_vanish_ratio(K_A, K_B, c)):
        return -math.inf
    K = K_A + K_B
    P = 1 + math.expm1(-K * c / ((K_A - 1) * K_A)) * K_A / K
    E = (P - 1) * (P + 1) * K / K_A
    return 0.5 * math.log1p(E) if E > -1 else -math.inf


def _root_below(f: Callable[[float], float], least: float, log_R: float, c: float) -> float:
    """The zero in [least, 0] of a function that falls; where there is no end, it is found by doubling."""
    if log_R == 0:
        return 0.0
    low = -max(1e-3, min(1.0, 0.1 * log_R))
    while low > least and f(low) < 0:
        low *= 2
        if low < LEAST:
            raise InputError(f"solve: no optimum found for R = exp({log_R:.3g}) and c = {c:.3g}. Please report this.")
    return root(f, max(low, least), 0.0)


def _log_multiplier_alone(K_A: int, K_B: int, log_R: float, a: float) -> float:
    """log λ, λ = π_A (K_A e^{−a} + K_B e^{−a(1−1/K_A)}) / D, when nothing lies between the groups."""
    cross = math.log(K_B) - a * (1 - 1 / K_A)
    D = _log_sum(_log_sum(0.0, math.log(K_A - 1) - a), cross)
    return log_share(K_A, K_B, log_R) + _log_sum(math.log(K_A) - a, cross) - D


def _log_q(k: int, others: int, within: float, log_rho: float) -> float:
    """log λ/π = log(k + others/ρ) − log(e^within + k − 1 + others/ρ)."""
    cross = math.log(others) - log_rho
    rest = _log_sum(math.log(k - 1), cross) if k > 1 else cross
    return _log_sum(math.log(k), cross) - _log_sum(within, rest)


def _log_sum(u: float, v: float) -> float:
    high, low = (u, v) if u >= v else (v, u)
    return high + math.log1p(math.exp(low - high))
