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
overflows: at c = 300 the multiplier is 1e-130 and no digit is lost. With a free bias everything is explicit in λ
(docs/peeled.md, "With a bias").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from layerlaw.errors import InputError

LEAST_DELTA = -1e9
MOST_STEPS = 300
CLOSE = 4 * 2.0**-52


@dataclass(frozen=True)
class TwoGroups:
    """The optimal logits of K_A classes against K_B, the multiplier, and the ratio R they belong to."""

    K_A: int
    K_B: int
    a: float  # within the majority: logit of the own class minus that of another majority class
    e: float  # the same within the minority; 0 in collapse, and where it is a single class
    t_A: float
    t_B: float
    log_multiplier: float
    log_R: float
    bias: float = 0.0  # of a majority class minus that of a minority class

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
    log_vanish = log_vanish_ratio(K_A, K_B, c)
    if log_R >= log_vanish:  # nothing lies between the groups: λ = π_A (K_A e^{−a} + K_B e^{−a(1−1/K_A)}) / D
        a = K * c / (K_A - 1)
        cross = math.log(K_B) - a * (1 - 1 / K_A)
        D = _log_sum(_log_sum(0.0, math.log(K_A - 1) - a), cross)
        log_l = log_share(K_A, K_B, log_R) + _log_sum(math.log(K_A) - a, cross) - D
        return TwoGroups(K_A, K_B, a, 0.0, 0.0, 0.0, log_l, log_R)
    least = -math.inf  # δ at which the minority vanishes (ln ρ_A = −c K/((K_A−1) K_A)), where it does
    if math.isfinite(log_vanish):
        P = 1 + math.expm1(-K * c / ((K_A - 1) * K_A)) * K_A / K
        E = (P - 1) * (P + 1) * K / K_A
        least = 0.5 * math.log1p(E) if E > -1 else -math.inf

    def beyond(delta: float) -> float:
        *_, log_q_A, log_q_B = _point(K_A, K_B, delta, c)
        return log_q_B - log_q_A - log_R

    delta = 0.0
    if log_R != 0:  # a function that falls; where there is no least δ, an end is found by doubling
        low = -max(1e-3, min(1.0, 0.1 * log_R))
        while low > least and beyond(low) < 0:
            low *= 2
            if low < LEAST_DELTA:
                raise InputError(f"solve: no optimum found for R = e^{log_R:.3g} and c = {c:.3g}. Please report this.")
        delta = root(beyond, max(low, least), 0.0)
    alpha, a, e, log_q_A, _ = _point(K_A, K_B, delta, c)
    alpha = max(0.0, alpha)
    t_A = math.sqrt(K_B / K) * alpha  # r cosθ, cosθ = √(K_B/K)/P
    t_B = math.sqrt(K_A / K) * math.exp(delta) * alpha
    a = a if K_A > 1 else 0.0  # a single majority class has no part within
    return TwoGroups(K_A, K_B, a, e, t_A, t_B, log_q_A + log_share(K_A, K_B, log_R), log_R)


def solve_pair_at(K_A: int, K_B: int, log_R: float, log_l: float) -> TwoGroups:
    """The optimum of loss + λ‖Z‖_* for R ≥ 1; λ falls as the budget grows."""

    def excess(log_c: float) -> float:
        return log_l - solve_pair(K_A, K_B, log_R, math.exp(log_c)).log_multiplier

    return solve_pair(K_A, K_B, log_R, math.exp(root_near(excess, 0.0, -600.0, 30.0, step=1.0)))


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


def _point(K_A: int, K_B: int, delta: float, c: float) -> tuple[float, float, float, float, float]:
    """α, a, e, log λ/π_A and log λ/π_B of the optimum that belongs to a δ, before it is known which R it is for."""
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
    return alpha, a, e, _log_q(K_A, K_B, a, log_rho_A), log_q_B


def log_vanish_ratio(K_A: int, K_B: int, c: float, *, bias: bool = False) -> float:
    """log R_vanish = ½ log(K_A/(K d)) + log(e^{a(1−1/K_A)} + (K_A−1) e^{−a/K_A} + K_B); ∞ where there is none.

    a = K c/(K_A−1), d = (K_A e^{−a/K_A} + K_B)² − K K_B; there is none when d ≤ 0 or K_A = 1. With a bias, which alone can
    say "majority", log (e^a + K − 1)/(K_A + K_B e^{−a/K_A}): there always is one for K_A > 1.
    """
    if K_A == 1:
        return math.inf
    K = K_A + K_B
    a = K * c / (K_A - 1)
    shrunk = math.exp(-a / K_A)
    if bias:
        return a + math.log1p((K - 1) * math.exp(-a)) - math.log(K_A + K_B * shrunk)
    d = (K_A * shrunk + K_B) ** 2 - K * K_B
    if d <= 0:
        return math.inf
    return 0.5 * (math.log(K_A) - math.log(K * d)) + _log_sum(a * (1 - 1 / K_A), math.log((K_A - 1) * shrunk + K_B))


def log_share(K_A: int, K_B: int, log_R: float) -> float:
    """log n_A/N = −log(K_A + K_B/R)."""
    return -_log_sum(math.log(K_A), math.log(K_B) - log_R)


def _log_q(k: int, others: int, within: float, log_rho: float) -> float:
    """log λ/π = log(k + others/ρ) − log(e^within + k − 1 + others/ρ)."""
    cross = math.log(others) - log_rho
    rest = _log_sum(math.log(k - 1), cross) if k > 1 else cross
    return _log_sum(math.log(k), cross) - _log_sum(within, rest)


def _log_sum(u: float, v: float) -> float:
    high, low = (u, v) if u >= v else (v, u)
    return high + math.log1p(math.exp(low - high))


def log_separation_ratio(K_A: int, K_B: int, c: float, *, bias: bool = False) -> float:
    """log of the ratio n_A/n_B from which on the minority is no longer separated, ∞ if there is none.

    Several classes: R0, with a bias 1 + (e^{K²c/(K_A(K−1))} − 1)/K. A single one cannot collapse: without a bias it is
    separated until it vanishes, with a bias its samples are given to the majority from the same formula on, before it
    vanishes.

    >>> round(math.exp(log_separation_ratio(5, 5, math.sqrt(5), bias=True)), 6)
    15.288868
    """
    if bias:
        K = K_A + K_B
        x = K * K * c / (K_A * (K - 1))
        return x - math.log(K) + math.log1p((K - 1) * math.exp(-x))
    if K_B == 1:
        return log_vanish_ratio(K_A, K_B, c)
    return threshold(K_A, K_B, root_above_0(lambda m: threshold(K_A, K_B, m)[0] - c))[1]


def biased_pair(K_A: int, K_B: int, log_R: float, c: float) -> TwoGroups:
    """Two groups with a bias, also in collapse and beyond: everything is explicit in λ."""
    K = K_A + K_B
    if log_R >= log_vanish_ratio(K_A, K_B, c, bias=True):
        return _vanished(K_A, K_B, log_R, K * c / (K_A - 1))

    def excess(log_l: float) -> float:
        pair = biased_pair_at(K_A, K_B, log_R, log_l)
        between = pair.t_A * math.sqrt(K / K_B)  # with its sign
        return (K_A - 1) * pair.a + (K_B - 1) * pair.e + between - K * c

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
    bias = (a - t) / K_A  # what the margin a has beyond a (1−1/K_A) + t/K_A
    within = a if K_A > 1 else 0.0
    # T = t v vᵀ with v = (√K_B, −√K_A)/√K
    return TwoGroups(K_A, K_B, within, e, t * math.sqrt(K_B / K), t * math.sqrt(K_A / K), log_l, log_R, bias)


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


def root(f: Callable[[float], float], low: float, high: float, *, close: float = CLOSE) -> float:
    """The x in [low, high] with f(x) = 0, to a relative `close`; f must have opposite signs at the ends.

    Each step is an inverse quadratic interpolation through the last three points where that is safe, a bisection
    elsewhere (Chandrupatla, Advances in Engineering Software 28, 1997).

    >>> round(root(lambda x: x**2 - 2, 0.0, 2.0), 15)
    1.414213562373095
    """
    a, b = high, low
    fa, fb = f(a), f(b)
    if fa == 0 or fb == 0:
        return a if fa == 0 else b
    if (fa > 0) == (fb > 0) or math.isnan(fa) or math.isnan(fb):
        raise InputError(f"root: expected opposite signs at {low} and {high}, got {fb} and {fa}.")
    c, fc = a, fa
    t = 0.5
    for _ in range(MOST_STEPS):
        x = a + t * (b - a)
        fx = f(x)
        if (fx > 0) == (fa > 0):
            c, fc = a, fa
        else:
            c, b, fc, fb = b, a, fb, fa
        a, fa = x, fx
        best = a if abs(fa) < abs(fb) else b
        width = abs(b - a)
        least = (close * abs(best) + 1e-300) / width if width else 1.0
        if least > 0.5 or fa == 0:
            return best
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        if phi**2 < xi and (1 - phi) ** 2 < 1 - xi:
            t = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        else:
            t = 0.5
        t = min(1 - least, max(least, t))
    return best


def root_near(
    f: Callable[[float], float], guess: float, low: float, high: float, *, step: float, close: float = CLOSE
) -> float:
    """The zero of a function that rises through it in [low, high], looked for from a guess in steps that double.

    For functions that take long: with a good guess about six values suffice. An end of the interval is returned where
    there is no zero up to it; the upper one may be ∞.

    >>> round(root_near(lambda x: x - 3, 2.9, 0.0, 100.0, step=0.02), 9)
    3.0
    """
    f = cache(f)
    at = min(max(guess, low), high)
    up = f(at) < 0  # the way to the zero
    end = high if up else low
    while at != end:
        before, at = at, (min(at + step, end) if up else max(at - step, end))
        if (f(at) < 0) != up:
            return root(f, min(before, at), max(before, at), close=close)
        step *= 2
    return end


def root_above_0(f: Callable[[float], float]) -> float:
    """The positive zero of a function that rises through it."""
    return root_near(f, 0.1, 0.0, math.inf, step=0.1)
