"""Leaving out one group at a time, against doing it by hand."""

import numpy as np
import pytest
import torch
from statistics_parts import group_sums, left_out_of

import oracle
from layerlaw.stats import LeftOut, deal_groups, find_centers


def dealt(counts: list[int], d: int, g: int, **kwargs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = oracle.blobs(counts, d, **kwargs)
    return x, y, deal_groups(y, torch.zeros(len(counts), dtype=torch.long), g)


def by_hand(x: torch.Tensor, y: torch.Tensor, groups: torch.Tensor, K: int, g: int, weighting: str) -> list[float]:
    return [
        oracle.separation(x[groups != i], y[groups != i], K, weighting=weighting, number=np.longdouble)
        for i in range(g)
    ]


@pytest.mark.parametrize("weighting", ["samples", "classes"])
@pytest.mark.parametrize(
    ("counts", "d"),
    [([30, 30, 30], 6), ([40, 25, 13], 6), ([30, 20, 25, 15], 2), ([20, 31], 5), ([20, 30], 1), ([7, 6, 8], 25)],
)
def test_leaving_out_equals_deleting_and_measuring_again(weighting: str, counts: list[int], d: int) -> None:
    g, K = 5, len(counts)
    x, y, groups = dealt(counts, d, g, seed=1)
    found = left_out_of(x, y, groups, K, g, weighting).separation()
    np.testing.assert_allclose(found, by_hand(x, y, groups, K, g, weighting), rtol=1e-9)


@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_a_class_smaller_than_the_number_of_groups(weighting: str) -> None:
    g = 10
    x, y, groups = dealt([40, 30, 4], 6, g, seed=1)
    found = left_out_of(x, y, groups, 3, g, weighting).separation()
    np.testing.assert_allclose(found, by_hand(x, y, groups, 3, g, weighting), rtol=1e-9)


def test_an_empty_group_leaves_everything_in() -> None:
    g = 4
    x, y, _ = dealt([20, 15, 10], 6, g, seed=1)
    groups = deal_groups(y, torch.zeros(3, dtype=torch.long), g - 1)  # nothing in the last group
    found = left_out_of(x, y, groups, 3, g).separation()
    assert float(found[-1]) == pytest.approx(oracle.separation(x, y, 3), rel=1e-9)
    np.testing.assert_allclose(found, by_hand(x, y, groups, 3, g, "samples"), rtol=1e-9)


@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_a_class_that_vanishes_with_its_group_leaves_a_number_of_the_other_classes(weighting: str) -> None:
    """One sample of class 2: without its group only classes 0 and 1 are left."""
    g = 5
    x, y, groups = dealt([30, 20, 1], 6, g, seed=1)
    found = left_out_of(x, y, groups, 3, g, weighting).separation()
    gone = int(groups[y == 2][0])
    rest = (groups != gone) & (y != 2)
    assert float(found[gone]) == pytest.approx(oracle.separation(x[rest], y[rest], 2, weighting=weighting), rel=1e-9)
    assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_float32_features_give_the_left_out_values_to_six_digits(offset: float, spread: float) -> None:
    g = 5
    x, y, groups = dealt([40, 25, 15], 6, g, seed=1, offset=offset, spread=spread)
    x = x.float()
    found = left_out_of(x, y, groups, 3, g).separation()
    np.testing.assert_allclose(found, by_hand(x, y, groups, 3, g, "samples"), rtol=1e-6)


def test_the_left_out_centers_are_those_of_the_rest() -> None:
    g = 4
    x, y, groups = dealt([20, 15, 10], 6, g)
    sums = group_sums(x, y, groups, 3, g)
    left_out = LeftOut.start(sums, find_centers(sums.total()))
    for i in range(g):
        means = oracle.class_means(x[groups != i].numpy(), y[groups != i].numpy(), 3)
        np.testing.assert_allclose(left_out.centers.means[i], means, rtol=1e-9, atol=1e-12)
    assert left_out.basis.shape == (g * 2, 6)
