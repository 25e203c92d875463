"""Greenwood's test: against simulation, against the volume of a ball, and at its ends."""

import math
from itertools import pairwise

import numpy as np
import pytest

from layerlaw.law import greenwood_p


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
