"""Greenwood's test, and the binomial's: against simulation, against the volume of a ball, and at its ends."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest

from layerlaw.law import binomial_p, greenwood_p, pooled_greenwood_p, shuffled_p


def simulated(m: int, draws: int = 40_000, seed: int = 0) -> np.ndarray:
    gaps = np.random.default_rng((m, seed)).standard_exponential(size=(draws, m))
    return (gaps**2).sum(1) / gaps.sum(1) ** 2


@pytest.mark.parametrize(
    ("m", "tolerance"), [(2, 0.01), (3, 0.01), (7, 0.01), (19, 0.01), (60, 0.01), (150, 0.01), (290, 0.02), (400, 0.03)]
)
def test_greenwood_agrees_with_simulation(m: int, tolerance: float) -> None:
    G = simulated(m)
    for level in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95):
        assert greenwood_p(float(np.quantile(G, level)), m) == pytest.approx(level, abs=tolerance)


def test_greenwood_does_not_jump_where_the_approximation_begins() -> None:
    """The p-value of the mean of the null is about the same for 300 and for 301 layers."""
    for z in (-1.5, 0.0, 1.0):
        below, above = (greenwood_p(_standard(m, z), m) for m in (300, 301))
        assert above == pytest.approx(below, abs=0.02)


def _standard(m: int, z: float) -> float:
    return 2 / (m + 1) + z * 2 * math.sqrt((m - 1) / ((m + 2) * (m + 3))) / (m + 1)


def ball(G: float, m: int) -> float:
    """Volume of the (m−1)-ball of radius² G − 1/m over the volume √m/(m−1)! of the simplex."""
    log_ball = (m - 1) / 2 * math.log(math.pi * (G - 1 / m)) - math.lgamma((m + 1) / 2)
    return math.exp(log_ball + math.lgamma(m) - math.log(m) / 2)


@pytest.mark.parametrize("m", [2, 3, 4, 7, 10, 19, 60, 100])
@pytest.mark.parametrize("part", [1e-3, 0.1, 0.5, 0.99])
def test_greenwood_is_the_volume_of_a_ball_while_the_ball_fits(m: int, part: float) -> None:
    G = 1 / m + part * (1 / (m - 1) - 1 / m)
    assert greenwood_p(G, m) == pytest.approx(ball(G, m), rel=1e-4)


@pytest.mark.parametrize("m", [2, 3, 5, 19, 60, 150])
def test_greenwood_grows_from_zero_to_one(m: int) -> None:
    p = [greenwood_p(G, m) for G in np.linspace(1 / m, 1, 400)]
    assert p[0] == 0
    assert p[-1] == 1
    assert all(b >= a - 1e-12 for a, b in pairwise(p))
    assert all(0 <= v <= 1 for v in p)


@pytest.mark.parametrize("m", [2, 7, 150])
def test_greenwood_beyond_its_range(m: int) -> None:
    """Shares that are negative somewhere can have Σp² above 1; rounding can bring it just below 1/m."""
    assert greenwood_p(1.7, m) == 1
    assert greenwood_p(1 / m - 1e-17, m) == 0


@pytest.mark.parametrize("m", [19, 150, 290])
def test_greenwood_is_right_far_in_the_tail(m: int) -> None:
    """A thousandth, where the lognormal approximation is off by a factor of two."""
    G = np.concatenate([simulated(m, 50_000, seed) for seed in range(6)])
    assert greenwood_p(float(np.quantile(G, 1e-3)), m) == pytest.approx(1e-3, rel=0.2)


def test_one_network_pooled_is_that_network() -> None:
    assert pooled_greenwood_p([0.3], [7]) == greenwood_p(0.3, 7)


def test_pooled_p_is_uniform_under_random_splits_of_unequal_lengths() -> None:
    layers = (4, 7, 19)
    sums = sum(simulated(m, 4000, seed=1) for m in layers)
    p = np.array([pooled_greenwood_p([G / 3] * 3, layers) for G in sums])
    for level in (0.05, 0.25, 0.5, 0.9):
        assert (p <= level).mean() == pytest.approx(level, abs=0.02)


def test_pooled_p_does_not_depend_on_the_order_of_networks() -> None:
    assert pooled_greenwood_p([0.3, 0.5, 0.2], [7, 4, 9]) == pooled_greenwood_p([0.2, 0.3, 0.5], [9, 7, 4])


def test_pooled_p_of_even_and_of_falling_curves_is_at_its_ends() -> None:
    assert pooled_greenwood_p([1 / 4] * 5, [4] * 5) < 1e-4
    assert pooled_greenwood_p([math.inf, 0.25], [4, 4]) == 1.0


def test_averaged_random_splits_would_pass_and_pooled_ones_do_not() -> None:
    """Why curves are not averaged: eight random splits of seven steps."""
    rng, averaged, pooled = np.random.default_rng(0), 0, 0
    for _ in range(400):
        parts = rng.exponential(size=(8, 7))
        shares = parts / parts.sum(1, keepdims=True)
        averaged += greenwood_p(float((shares.mean(0) ** 2).sum()), 7) < 0.05
        pooled += pooled_greenwood_p((shares**2).sum(1), [7] * 8) < 0.05
    assert averaged > 0.6 * 400
    assert pooled < 0.08 * 400


def test_shuffled_p_is_that_of_all_orders() -> None:
    """By enumeration: three groups of two."""
    steps = np.array([1.0, 0.2, 0.9, 0.4, 0.3, 0.8])

    def statistic(order: tuple[int, ...]) -> float:
        sums = steps[list(order)].reshape(3, 2).sum(1)
        return float((sums**2).sum() / steps.sum() ** 2)

    every = np.array([statistic(order) for order in permutations(range(6))])
    expected = float((every <= every[0] + 1e-12).mean())
    assert shuffled_p([steps], [[2, 2, 2]]) == pytest.approx(expected, abs=0.01)


def test_shuffled_p_of_equal_steps_is_one_and_of_alternating_ones_is_small() -> None:
    assert shuffled_p([[1.0] * 8], [[2] * 4]) == 1.0
    assert shuffled_p([[1.9, 0.1] * 6], [[2] * 6]) < 0.1
    assert shuffled_p([[1.9, 0.1] * 6] * 3, [[2] * 6] * 3) < 0.001
    assert shuffled_p([[1.0, -2.0, 0.5, 0.1]], [[2, 2]]) == 1.0


@pytest.mark.parametrize(("n", "share"), [(1, 0.5), (10, 0.1), (250, 0.112), (1000, 0.9), (1_000_000, 0.1)])
def test_the_tail_of_the_binomial_is_that_of_scipy(n: int, share: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    spread = math.sqrt(n * share * (1 - share))
    for k in {0, n, *(max(0, min(n, round(n * share + z * spread))) for z in (-30, -4, -1, 0, 1, 2, 6, 30))}:
        expected = float(stats.binom.sf(k - 1, n, share))
        assert binomial_p(k, n, share) == pytest.approx(expected, rel=1e-7, abs=1e-300), k
    assert (binomial_p(1, n, 0.0), binomial_p(n + 1, n, share)) == (0.0, 0.0)
