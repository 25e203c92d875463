"""Two layers peeled: what changes against one (docs/peeled.md)."""

import math

import numpy as np
import pytest

import layerlaw.peeled as lp
from layerlaw.errors import InputError


def off(cosines: np.ndarray) -> np.ndarray:
    return cosines[~np.eye(len(cosines), dtype=bool)]


def test_with_relu_features_are_orthogonal_and_classifiers_a_simplex() -> None:
    found = lp.solve_two_layers([1] * 4, E_W=2, E_V=2, E_H=2, per_class=2, starts=8)
    _, after = found.feature_cosines
    assert off(found.classifier_cosines) == pytest.approx(-1 / 3, abs=1e-3)
    assert off(after) == pytest.approx(0, abs=1e-3)
    assert found.variability(found.H) < 1e-8
    assert found.variability(found.X) < 1e-8
    assert found.X.min() >= 0
    # The last layer sees the centered features only: it is the one-layer optimum at their mean squared norm.
    X = found.means(found.X)
    centered = ((X - X.mean(0)) ** 2).sum() / 4
    assert found.loss == pytest.approx(lp.solve([1] * 4, E_W=2, E_H=centered).loss, rel=1e-5)


def test_linear_layers_prefer_a_lower_rank_than_the_simplex() -> None:
    found = lp.solve_two_layers([1] * 4, E_W=2, E_V=2, E_H=2, relu=False, starts=12)
    assert found.rank == 2
    cosines = np.sort(off(found.classifier_cosines))
    assert cosines[:4] == pytest.approx(-1, abs=1e-3)  # two pairs of opposite classifiers
    assert cosines[4:] == pytest.approx(0, abs=1e-3)
    simplex = math.log1p(3 * math.exp(-((8 / 3) ** 1.5)))  # three equal singular values (K E/3)^{3/2}
    assert found.loss < simplex - 1e-3


def test_minorities_collapse_at_a_smaller_ratio_than_one_layer_says() -> None:
    found = lp.solve_two_layers([30] * 2 + [1] * 2, E_W=1.5, E_V=1.5, E_H=1.5, starts=8)
    assert found.minority_cosine == pytest.approx(1, abs=1e-4)
    features = (found.means(found.X) ** 2).sum() / 4
    assert lp.collapse_ratio(2, 2, E_W=1.5, E_H=features) > 60
    assert found.rank == 2


def test_budgets_are_used_up_and_bad_ones_answered() -> None:
    found = lp.solve_two_layers([2, 1], E_W=1, E_V=3, E_H=2, d=3, p=2, per_class=2, starts=1)
    assert (found.W**2).sum() / 2 == pytest.approx(1)
    assert (found.V**2).sum() / 2 == pytest.approx(3)
    assert (found.H**2).sum() / 4 == pytest.approx(2)
    assert found.W.shape == (2, 3)
    assert found.V.shape == (3, 2)
    with pytest.raises(InputError, match="E_V: expected a positive, finite budget, got -1"):
        lp.solve_two_layers([2, 1], E_W=1, E_V=-1, E_H=2)


def test_an_optimum_nearby_is_one_more_start() -> None:
    first = lp.solve_two_layers([14] * 2 + [1] * 2, E_W=1.5, E_V=1.5, E_H=1.5, starts=4)
    alone = lp.solve_two_layers([16] * 2 + [1] * 2, E_W=1.5, E_V=1.5, E_H=1.5, starts=1)
    near = lp.solve_two_layers([16] * 2 + [1] * 2, E_W=1.5, E_V=1.5, E_H=1.5, starts=1, near=first)
    assert len(near.losses) == 2
    assert near.loss <= alone.loss
    with pytest.raises(InputError, match="near: expected an optimum with the same classes"):
        lp.solve_two_layers([2, 1], E_W=1, E_V=1, E_H=1, starts=1, near=first)
