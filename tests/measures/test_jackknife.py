"""Bias and standard error of log D."""

import math

import numpy as np
import pytest
import torch

import oracle
from layerlaw.measures import Jackknife, jackknife
from layerlaw.stats import ClassSums, Frame, LeftOut, deal_groups, find_centers, one_hot, project


class Given:
    """Stands for a `LeftOut` whose values are known."""

    def __init__(self, *values: float) -> None:
        self.values = torch.tensor(values, dtype=torch.float64)

    def separation(self) -> torch.Tensor:
        return self.values


def test_the_formula() -> None:
    D, without = 2.0, [1.9, 2.1, 2.05, 1.98]
    g, logs = 4, np.log([1.9, 2.1, 2.05, 1.98])
    found = jackknife(D, Given(*without))
    assert found is not None
    assert found.corrected is not None
    assert math.log(found.corrected) == pytest.approx(g * math.log(D) - (g - 1) * logs.mean(), rel=1e-12)
    assert found.bias == pytest.approx((g - 1) * (logs.mean() - math.log(D)), rel=1e-9)
    assert found.standard_error == pytest.approx(math.sqrt((g - 1) / g * ((logs - logs.mean()) ** 2).sum()), rel=1e-12)


def test_values_that_do_not_move_need_no_correction() -> None:
    found = jackknife(3.0, Given(3.0, 3.0, 3.0))
    assert found is not None
    assert found.corrected == pytest.approx(3.0)
    assert found.standard_error == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("bias", "corrected"), [(0.25, True), (-0.25, True), (0.28, False), (-0.28, False), (2.0, False)]
)
def test_a_bias_above_thirty_percent_is_not_corrected(bias: float, corrected: bool) -> None:
    g = 10
    found = jackknife(5.0, Given(*[5.0 * math.exp(bias / (g - 1))] * g))
    assert found is not None
    assert found.bias == pytest.approx(bias)
    assert (found.corrected is not None) == corrected
    if corrected:
        assert found.corrected == pytest.approx(5.0 * math.exp(-bias))


def test_collapsed_features_have_no_logarithm() -> None:
    assert jackknife(0.0, Given(0.0, 0.0)) is None
    assert jackknife(1e-9, Given(0.0, 1e-9)) is None


def test_a_fuzziness_that_does_not_exist_is_not_corrected() -> None:
    assert jackknife(math.nan, Given(1.0, 1.0)) is None
    assert jackknife(2.0, Given(1.0, math.nan)) is None
    assert jackknife(2.0, Given(1.0, math.inf)) is None


def test_the_result_is_a_plain_value() -> None:
    assert Jackknife(1.0, 0.1, 0.02) == Jackknife(1.0, 0.1, 0.02)


def measured(x: torch.Tensor, y: torch.Tensor, K: int, g: int = 10) -> tuple[float, Jackknife]:
    groups = deal_groups(y, torch.zeros(K, dtype=torch.long), g)
    parts = [ClassSums.of(x[groups == i], y[groups == i], K) for i in range(g)]
    sums = ClassSums(
        torch.stack([p.counts for p in parts]),
        torch.stack([p.sums for p in parts]),
        torch.stack([p.spread for p in parts]),
        x.dtype,
    )
    centers = find_centers(sums.total())
    left_out = LeftOut.start(sums, centers)
    coordinates, _ = project(x, y, Frame(centers.rounded_means, left_out.basis.to(centers.rounded_means)))
    left_out.fuzziness += LeftOut.added(coordinates, one_hot(groups, g, torch.bool), one_hot(y, K, torch.float64))
    value = oracle.separation(x, y, K)
    found = jackknife(value, left_out)
    assert found is not None
    return value, found


def test_the_correction_takes_most_of_the_bias_away_and_the_error_bar_is_of_the_right_size() -> None:
    """Gaussian classes with isotropic noise: D = σ²·Σ 1/s² is known. 60 data sets of 40 samples per class."""
    K, d, n = 4, 20, 40
    rng = np.random.default_rng(0)
    means = 0.6 * rng.normal(size=(K, d))
    s = np.linalg.svd((means - means.mean(0)) / math.sqrt(K), compute_uv=False)[: K - 1]
    truth = math.log((1 / s**2).sum())
    y = np.arange(K * n) % K
    plain, corrected, errors = [], [], []
    for _ in range(60):
        x = means[y] + rng.normal(size=(K * n, d))
        value, found = measured(torch.from_numpy(x), torch.from_numpy(y), K)
        assert found.corrected is not None
        plain.append(math.log(value))
        corrected.append(math.log(found.corrected))
        errors.append(found.standard_error)
    bias, rest = np.mean(plain) - truth, np.mean(corrected) - truth
    assert bias < -0.05
    assert abs(rest) < abs(bias) / 2
    assert 0.6 < np.mean(errors) / np.std(corrected) < 1.6
