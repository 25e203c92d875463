"""The penalized form is the constrained one at its multiplier."""

import math

import numpy as np
import pytest
from peeled_oracle import dense_loss

import layerlaw.peeled as lp
from layerlaw.errors import InputError

CASES = [
    ([100] * 5 + [10] * 5, 0.02, 0.01, "ce", False),
    ([100] * 5 + [10] * 5, 0.06, 0.01, "ce", False),
    ([100] * 7 + [10] * 3, 0.05, 0.05, "ce", False),
    ([100] * 5 + [10] * 5, 0.02, 0.01, "ce", True),
    ([100] * 5 + [10] * 5, 0.06, 0.03, "ce", True),
    ([5, 5, 5], 0.02, 0.08, "ce", False),
    ([50, 20, 20, 6, 1], 0.02, 0.03, "ce", False),
    ([50, 20, 20, 6, 1], 0.02, 0.03, "ce", True),
    ([50, 20, 20, 6, 1], 0.02, 0.03, "mse", False),
    ([50, 20, 20, 6, 1], 0.02, 0.03, "mse", True),
]


@pytest.mark.parametrize(("counts", "lambda_W", "lambda_H", "kind", "bias"), CASES)
def test_the_optimum_is_that_of_the_budgets_it_uses(counts, lambda_W, lambda_H, kind, bias) -> None:
    s = lp.solve_penalized(counts, lambda_W=lambda_W, lambda_H=lambda_H, loss=kind, bias=bias)
    assert s.multiplier == pytest.approx(math.sqrt(lambda_W * lambda_H), rel=1e-7)
    assert s.certified
    again = lp.solve(counts, E_W=s.E_W, E_H=s.E_H, loss=kind, bias=bias)
    assert again.loss == pytest.approx(s.loss, abs=1e-9)
    assert again.phases == s.phases


@pytest.mark.parametrize(("counts", "lambda_W", "lambda_H", "kind", "bias"), CASES)
def test_its_gradient_is_zero_in_classifiers_and_features(counts, lambda_W, lambda_H, kind, bias) -> None:
    s = lp.solve_penalized(counts, lambda_W=lambda_W, lambda_H=lambda_H, loss=kind, bias=bias)
    G = dense_loss(np.array(counts), s.logits, kind)[1]
    W, H = s.W(), s.H()
    assert G.T @ H + lambda_W * W == pytest.approx(0, abs=1e-8)
    assert G @ W + lambda_H * H == pytest.approx(0, abs=1e-8)


def test_a_group_collapses_with_the_penalty_of_its_share() -> None:
    share = 10 / 550
    for factor, phase in ((0.999, "separated"), (1.001, "collapsed")):
        s = lp.solve_penalized([100] * 5 + [10] * 5, lambda_W=share * factor, lambda_H=share * factor)
        assert s.phases[1] == phase


def test_a_penalty_too_large_leaves_nothing() -> None:
    for bias in (False, True):
        for counts in ([10, 10], [10, 10, 1], [10, 5, 1]):
            s = lp.solve_penalized(counts, lambda_W=1, lambda_H=1, bias=bias)
            assert (s.c, s.rank) == (0, 0)
            assert set(s.phases) == {"vanished"}
            assert s.W().any() == s.H().any() == False  # noqa: E712
            share = np.array(counts) / sum(counts)
            assert s.loss == pytest.approx(-share @ np.log(share) if bias else math.log(len(counts)))


def test_bad_penalties_are_answered() -> None:
    with pytest.raises(InputError, match="lambda_H: expected a positive, finite penalty, got 0"):
        lp.solve_penalized([2, 1], lambda_W=1, lambda_H=0)
    with pytest.raises(InputError, match="above 1e-280"):
        lp.solve_penalized([2, 1], lambda_W=1e-300, lambda_H=1e-300)
