"""The squared loss: closed forms."""

import numpy as np
import pytest

import layerlaw.peeled as lp


def test_the_logits_are_diagonal_and_fill_up_from_the_largest_class() -> None:
    counts = np.array([60, 30, 30, 5])
    s = lp.solve(counts, E_W=0.5, E_H=0.5, loss="mse")
    expected = np.maximum(0, 1 - s.multiplier * counts.sum() / counts)
    assert s.logits == pytest.approx(np.diag(expected), abs=1e-14)
    assert expected.sum() == pytest.approx(4 * 0.5)
    assert s.phases == ("separated", "separated", "vanished")
    assert s.accuracy == pytest.approx([1, 1, 1 / 4])
    assert s.gap < 1e-14
    assert s.cosines[0, 1] == 0  # an orthogonal frame, no simplex


def test_a_budget_beyond_need_leaves_nothing_to_pay() -> None:
    s = lp.solve([60, 30, 5], E_W=3, E_H=2, loss="mse")
    assert (s.loss, s.multiplier, s.gap) == (0, 0, 0)
    assert s.logits == pytest.approx(np.eye(3))
    assert s.slack.tolist() == [np.inf] * 3


@pytest.mark.parametrize("bias", [False, True])
def test_random_counts_are_solved_to_rounding(bias: bool) -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        G = int(rng.integers(1, 6))
        sizes = rng.choice(1000, G, replace=False) + 1
        counts = {int(n): int(k) for n, k in zip(sizes, rng.integers(1, 6, G) + (G == 1), strict=True)}
        c = 10 ** rng.uniform(-2, 0.3)
        s = lp.solve(counts, E_W=c, E_H=c, loss="mse", bias=bias)
        assert s.gap < 1e-13
        assert s.value.nuclear(s.groups) <= s.K * c * (1 + 1e-12)
        if bias:
            member = s.groups.members
            G_ = (s.groups.shares[member])[:, None] * (s.logits - np.eye(s.K))
            assert G_.sum(0) == pytest.approx(0, abs=1e-13)


def test_with_a_bias_balanced_classes_are_a_simplex_again() -> None:
    s = lp.solve([4] * 5, E_W=0.5, E_H=0.5, loss="mse", bias=True)
    assert s.minority_cosine == pytest.approx(-1 / 4)
    assert s.rank == 4


def test_budget_left_over_leaves_the_angles_open() -> None:
    tight, loose = (lp.solve([6, 2], E_W=c, E_H=c, loss="mse") for c in (0.5, 2.0))
    assert tight.angles_unique
    assert not loose.angles_unique
    assert "not the only ones" in str(loose)
    assert loose.to_dict()["angles_unique"] is False
    W = np.array([[1.0, 0.5], [0.0, 1.0]])  # other angles, the same logits within the budgets
    assert np.linalg.norm(W) ** 2 <= 2 * 2
    assert np.linalg.norm(np.linalg.inv(W)) ** 2 <= 2 * 2
