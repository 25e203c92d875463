"""With a free bias: closed forms, thresholds, and that a bias never hurts."""

import math

import numpy as np
import pytest

import layerlaw.peeled as lp
from layerlaw.peeled.counts import grouped
from layerlaw.peeled.logits import gap, slope
from layerlaw.peeled.many_groups import solve_groups
from layerlaw.peeled.solving import biased, of_pair
from layerlaw.peeled.two_groups import biased_pair


def test_the_logits_are_a_centered_diagonal() -> None:
    counts = np.array([70, 60, 60, 40, 40, 40])
    s = lp.solve(counts, E_W=2, E_H=2, bias=True)
    K, N = len(counts), counts.sum()
    C = np.eye(K) - 1 / K
    a = np.log(K * counts / (N * s.multiplier) - (K - 1))
    assert s.H() @ s.W().T == pytest.approx(C @ np.diag(a) @ C, abs=1e-10)
    assert a.sum() == pytest.approx(K**2 * s.c / (K - 1))
    assert s.classifier_blocks.dense() == pytest.approx(
        s.feature_blocks.dense(), abs=1e-10
    )  # Z is symmetric: features and classifiers align
    assert s.gap < 1e-13


@pytest.mark.parametrize(("K_A", "K_B", "c"), [(5, 5, 2.2), (3, 7, 1.0), (7, 3, 2.0), (1, 4, 0.7), (2, 2, 3.0)])
def test_collapse_begins_at_the_closed_form(K_A: int, K_B: int, c: float) -> None:
    K = K_A + K_B
    R0 = lp.collapse_ratio(K_A, K_B, E_W=c, E_H=c, bias=True)
    assert pytest.approx(1 + (math.exp(K * K * c / (K_A * (K - 1))) - 1) / K) == R0
    curve = lp.collapse_curve(K_A, K_B, [R0 * (1 - 1e-9), R0 * (1 + 1e-9)], E_W=c, E_H=c, bias=True)
    assert curve.phases == ("separated", "collapsed")
    assert curve.cosines[1] == 1


@pytest.mark.parametrize(("K_A", "K_B", "c"), [(5, 5, 2.2), (3, 7, 1.0), (7, 3, 2.0), (2, 2, 1.0), (4, 1, 1.0)])
def test_vanishing_begins_where_an_independent_solver_says(K_A: int, K_B: int, c: float) -> None:
    gone = lp.vanish_ratio(K_A, K_B, E_W=c, E_H=c, bias=True)
    for factor, zero in ((0.99, False), (1.01, True)):
        groups = grouped({round(gone * factor * 10**6): K_A, 10**6: K_B})
        numeric = solve_groups(groups, c, bias=True)
        assert bool(np.linalg.norm(numeric.T) < 1e-6) is zero
        exact = lp.solve({round(gone * factor * 10**6): K_A, 10**6: K_B}, E_W=c, E_H=c, bias=True)
        assert (exact.phases[1] == "vanished") is zero
        assert exact.loss == pytest.approx(slope(groups, numeric).loss, abs=1e-10)


def test_two_groups_with_a_bias_are_optimal_in_every_phase() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        K_A, K_B = (int(10 ** rng.uniform(0, 3)) for _ in range(2))
        n, c = int(10 ** rng.uniform(0.3, 5)), 10 ** rng.uniform(-2, 1.3)
        pair = biased_pair(K_A, K_B, math.log(n), c)
        groups, logits = grouped({n: K_A, 1: K_B}), of_pair(pair)
        s = slope(groups, logits)
        assert gap(groups, logits, c) < 1e-10
        assert np.abs(s.bias(groups) * groups.classes).max() < 1e-12
        assert math.log(s.norm(groups)) == pytest.approx(pair.log_multiplier, abs=1e-7)
        closed = biased(groups, c)
        if closed is not None:
            assert slope(groups, closed).loss == pytest.approx(s.loss, abs=1e-12)
        seen.add(pair.phase)
    assert seen == {"separated", "confused", "collapsed", "vanished"}


def test_a_bias_never_hurts_and_balanced_classes_need_none() -> None:
    for counts in ([9, 9, 3, 3], [100, 10, 1], [1000] * 4 + [1] * 4):
        assert lp.solve(counts, E_W=1, E_H=2, bias=True).loss <= lp.solve(counts, E_W=1, E_H=2).loss
    s = lp.solve([5] * 4, E_W=1, E_H=2, bias=True)
    assert s.loss == lp.solve([5] * 4, E_W=1, E_H=2).loss
    assert not s.biases.any()


def test_a_vanished_minority_is_left_to_the_bias() -> None:
    s = lp.solve([5000] * 3 + [1] * 2, E_W=1, E_H=1, bias=True)
    assert s.phases[1] == "vanished"
    assert s.accuracy.tolist() == [1, 0]
    assert s.biases[0] > s.biases[1]
