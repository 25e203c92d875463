"""The model as written, from random starts: the balanced theorem, the q ≠ 2 proposition, few dimensions."""

import math

import numpy as np
import pytest

import layerlaw.peeled as lp
from layerlaw.errors import InputError
from layerlaw.peeled.directly import log_cross_entropy, one_layer


def test_balanced_classes_end_in_a_simplex_and_features_collapse() -> None:
    for K, p in ((2, 2), (3, 5), (5, 4)):
        found = lp.solve_direct([6] * K, E_W=1, E_H=5, p=p, per_class=3, starts=3)
        assert found.loss == pytest.approx(math.log1p((K - 1) * math.exp(-K * math.sqrt(5) / (K - 1))), rel=1e-10)
        assert found.etf_deviation < 1e-5
        assert found.variability < 1e-9
        assert found.means == pytest.approx(math.sqrt(5) * found.W, abs=1e-3)  # h = √(E_H/E_W) w


NORMS = [(2, 0.58265765, 0.58265765), (1.5, 0.625625, 0.637902), (3, 0.448897, 0.452420), (4, 0.381919, 0.390741)]


@pytest.mark.parametrize(("q", "least", "simplex"), NORMS)
def test_no_collapse_under_another_norm(q: float, least: float, simplex: float) -> None:
    found = lp.solve_direct([1] * 4, E_W=1, E_H=1, p=4, q=q, starts=12)
    best = lp.best_simplex(4, 4, E_W=1, E_H=1, q=q, starts=8)
    assert found.loss == pytest.approx(least, abs=1e-5)
    assert best == pytest.approx(simplex, abs=1e-5)
    if q == 2:
        assert found.etf_deviation < 1e-6
    else:
        assert found.loss < best - 1e-3
        assert found.etf_deviation > 0.1


def test_both_budgets_are_used_up() -> None:
    found = lp.solve_direct([5, 3, 1], E_W=2, E_H=3, q=3, per_class=2, starts=1)
    assert (found.W**2).sum() / 3 == pytest.approx(2)
    assert (np.abs(found.H) ** 3).sum() / 2 / 3 == pytest.approx(3)
    loss, _ = log_cross_entropy(found.H @ found.W.T, found.labels, np.array([5, 5, 3, 3, 1, 1]) / 18)
    assert math.exp(loss) == pytest.approx(found.loss)


def test_fewer_dimensions_than_the_rank_cost_loss() -> None:
    exact = lp.solve([4] * 4, E_W=1, E_H=2)
    few = lp.solve_direct([4] * 4, E_W=1, E_H=2, p=2, starts=6)
    enough = lp.solve_direct([4] * 4, E_W=1, E_H=2, p=exact.rank, starts=6)
    assert few.loss > exact.loss + 1e-3
    assert enough.loss == pytest.approx(exact.loss, rel=1e-9)


@pytest.mark.parametrize("q", [2.0, 1.5, 3.0])
def test_the_gradient_is_the_slope(q: float) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 2)
    f = one_layer(((3, 4, 3 * 1.5, 2.0), (6, 4, 6 * 2.5, q)), labels, rng.uniform(0.1, 1, 6), True)
    v, h = rng.normal(size=3 * 4 + 6 * 4 + 3), 1e-6
    gradient = f(v)[1]
    for i in range(len(v)):
        e = h * np.eye(len(v))[i]
        assert (f(v + e)[0] - f(v - e)[0]) / (2 * h) == pytest.approx(gradient[i], abs=1e-7)


def test_bad_settings_are_answered() -> None:
    with pytest.raises(InputError, match="q: expected an exponent above 1 and at most 20, got 1"):
        lp.solve_direct([1, 1], E_W=1, E_H=1, q=1)
    with pytest.raises(InputError, match="p: expected a whole number of at least 1, got 0"):
        lp.solve_direct([1, 1], E_W=1, E_H=1, p=0)
    with pytest.raises(InputError, match="expected at least K − 1 = 3 dimensions"):
        lp.best_simplex(4, 2, E_W=1, E_H=1, q=3)


@pytest.mark.parametrize("q", [10, 20])
def test_large_exponents_find_the_corners_of_the_cube_from_any_seed(q: float) -> None:
    found = [lp.best_simplex(4, 4, E_W=1, E_H=1, q=q, starts=1, seed=seed) for seed in range(3)]
    cube = (1 / 3) ** (1 / 2)  # entries of the tetrahedron in three of the four dimensions
    length = (1 / (3 * cube**q)) ** (1 / q)
    assert found == pytest.approx([found[0]] * 3, abs=1e-6)
    assert found[0] <= np.log1p(3 * np.exp(-length * 4 / 3)) + 1e-9
    assert lp.solve_direct([1] * 4, E_W=1, E_H=1, q=q, starts=4).loss < found[0]
