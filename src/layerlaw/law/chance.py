"""How often chance would do as well: Greenwood's test of equal shares, of one network and of several; the binomial's; t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LONGEST = 300  # layers: up to here p is exact; beyond, its tail at 1e-4 is about three times too large
DRAWS = 20_000  # of the sums of several networks: a p of .05 is then known to ±.003
BLOCK = 2_000_000  # numbers drawn at a time
TIE = 1e-12  # two statistics that differ by less are the same but for rounding


def greenwood_p(statistic: float, layers: int) -> float:
    """P(Σ p² ≤ statistic) for m uniform spacings: the chance that a random split is at least as even.

    >>> round(greenwood_p(0.625, 2), 6)  # two spacings: √(2G − 1)
    0.5
    """
    m = layers
    w = (statistic - 1 / m) / (1 - 1 / m)  # 0: all equal, 1: one spacing takes all
    if not 0 < w < 1:
        return float(w > 0)
    if m > LONGEST:  # w has mean 1/(m+1) and is close to lognormal
        spread = math.log1p(4 * m * m / ((m - 1) * (m + 2) * (m + 3)))  # variance of ln w when w is taken as lognormal
        return 0.5 * math.erfc((-math.log(m + 1) - spread / 2 - math.log(w)) / math.sqrt(2 * spread))
    grid, root = _greenwood_table(m)
    return float(min(1.0, np.interp(w, grid, root) ** ((m - 1) / 2)))


def pooled_greenwood_p(statistics: Sequence[float], layers: Sequence[int]) -> float:
    """P(Σ_i G_i ≤ sum of these statistics), G_i of independent random splits: several networks as one test.

    Each network keeps its own split. Averaged curves or shares would not do: unequal steps cancel in them, so that random
    splits pass. Of one network this is `greenwood_p`; of several the sums are drawn, with a fixed seed.

    >>> pooled_greenwood_p([0.625], [2]) == greenwood_p(0.625, 2)
    True
    """
    if len(statistics) == 1:
        return greenwood_p(statistics[0], layers[0])
    null = _greenwood_sums(tuple(sorted(layers)))
    within = int(np.searchsorted(null, sum(statistics) + TIE, side="right"))
    return (1 + within) / (1 + len(null))


@cache
def _greenwood_sums(layers: tuple[int, ...]) -> Array:
    """Sums of Greenwood's statistic over independent random splits into so many parts, sorted."""
    rng, sums = np.random.default_rng(len(layers)), np.zeros(DRAWS)
    for m in layers:
        for part in np.array_split(sums, math.ceil(DRAWS * m / BLOCK)):
            parts = rng.exponential(size=(len(part), m))
            part += (parts**2).sum(1) / parts.sum(1) ** 2
    return np.sort(sums)


def shuffled_p(steps: Sequence[Sequence[float]], sizes: Sequence[Sequence[int]], *, draws: int = DRAWS) -> float:
    """How often the steps of each network, shuffled and then added up in groups of these sizes, are at least as even.

    Groups of several steps are evener than single ones whatever the order: what remains is whether *these* neighbors belong
    together. Steps that do not fall in all have no shares: 1.
    """
    rng, observed, sums = np.random.default_rng(len(steps)), 0.0, np.zeros(draws)
    for row, groups in zip(steps, sizes, strict=True):
        drops = np.asarray(row, dtype=np.float64)
        starts = np.cumsum([0, *groups[:-1]])
        if drops.sum() <= 0:
            return 1.0
        observed += float((np.add.reduceat(drops, starts) ** 2).sum() / drops.sum() ** 2)
        for part in np.array_split(sums, math.ceil(draws * len(drops) / BLOCK)):
            shuffled = rng.permuted(np.tile(drops, (len(part), 1)), axis=1)
            part += (np.add.reduceat(shuffled, starts, axis=1) ** 2).sum(1) / drops.sum() ** 2
    return float((1 + (sums <= observed + TIE * max(1.0, observed)).sum()) / (1 + draws))


@cache
def _greenwood_table(m: int) -> tuple[Array, Array]:
    """Grid of w and P(w)^(2/(m−1)), which is linear in w near 0 (there P is the volume of a ball).

    One spacing at a time: given the first spacing t, of density (m−1)(1−t)^(m−2), the others are (1−t) times m−1
    uniform spacings, so P_m(G) = ∫ (m−1)(1−t)^(m−2) P_{m−1}((G−t²)/(1−t)²) dt.
    """
    grid = min(1.0, 16 / m) * np.linspace(0, 1, 1201 + 4 * m) ** 2  # dense where the mass is; P is 1 beyond
    G = 1 / m + (1 - 1 / m) * grid
    if m == 2:
        return grid, 2 * G - 1  # P² with P = √(2G − 1)
    below, root = _greenwood_table(m - 1)
    # The others can have the rest only if (G − t²)/(1−t)² ≥ 1/(m−1): between the roots of m t² − 2t + 1 − (m−1)G.
    half = np.sqrt(np.maximum(1 - m * (1 - (m - 1) * G), 0.0)) / m
    low, high = np.maximum(1 / m - half, 0.0), np.minimum(1 / m + half, 1 - 1e-12)
    nodes, weights = np.polynomial.legendre.leggauss(64)
    t = low[:, None] + (high - low)[:, None] * (nodes + 1) / 2  # (grid, nodes)
    w = ((G[:, None] - t**2) / (1 - t) ** 2 - 1 / (m - 1)) / (1 - 1 / (m - 1))
    P = np.interp(np.clip(w, 0, 1), below, root) ** ((m - 2) / 2)
    integral = ((m - 1) * (1 - t) ** (m - 2) * P * weights).sum(-1) * (high - low) / 2
    return grid, np.minimum(integral, 1.0) ** (2 / (m - 1))


def binomial_p(successes: int, trials: int, probability: float) -> float:
    """P(X ≥ successes) for so many trials of this probability: the chance that guessing is right at least as often.

    >>> round(binomial_p(8, 10, 0.5), 6), binomial_p(0, 10, 0.5), binomial_p(3, 10, 1.0)
    (0.054688, 1.0, 1.0)
    """
    k, n, p = successes, trials, probability
    if k <= 0 or p >= 1:
        return 1.0
    if p <= 0 or k > n:
        return 0.0
    above = k > n * p  # the sum goes away from the mean, where terms fall
    k -= not above
    logs = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    total, term = 0.0, math.exp(logs)
    while term > 1e-17 * total:
        total += term
        term *= (n - k) / (k + 1) * p / (1 - p) if above else k / (n - k + 1) * (1 - p) / p
        k += 1 if above else -1
    return total if above else max(0.0, 1 - total)


@cache
def t_quantile(freedom: int, probability: float = 0.975) -> float:
    """The point that Student's t with so many degrees of freedom stays below with this probability.

    >>> round(t_quantile(1), 3), round(t_quantile(7), 3), round(t_quantile(1000), 2)
    (12.706, 2.365, 1.96)
    """
    low, high = 0.0, 1e6
    for _ in range(100):  # bisection: sixty halvings give every digit
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return high


def _t_within(t: float, freedom: int) -> float:
    """P(|T| ≤ t): the finite sums of Abramowitz & Stegun 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    total, term = 0.0, math.cos(angle) if odd else 1.0
    for k in range(odd, freedom - 1, 2):
        total += term
        term *= square * (k + 1) / (k + 2)
    return (2 / math.pi) * (angle + sine * total) if odd else sine * total
