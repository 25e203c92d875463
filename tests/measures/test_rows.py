"""Rows of a classifier: closed forms, the oracle, and what must not change the numbers."""

import math

import numpy as np
import pytest
import torch

import oracle
from layerlaw.measures.collapse import mean_cosine, mean_norm, mean_square, rare_classes, used_budget
from layerlaw.peeled import solve


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotation(d: int) -> torch.Tensor:
    return torch.linalg.qr(drawn(d, d, seed=9))[0]


@pytest.mark.parametrize("K", [2, 3, 10, 100])
def test_a_simplex_has_cosine_minus_one_over_k_minus_one(K: int) -> None:
    simplex = 3 * (torch.eye(K, dtype=torch.float64) - 1 / K)
    assert float(mean_cosine(simplex)) == pytest.approx(-1 / (K - 1))


def test_parallel_rows_have_cosine_one_whatever_their_norms() -> None:
    rows = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64) * drawn(1, 4)
    assert float(mean_cosine(rows)) == pytest.approx(1)
    assert float(mean_norm(rows)) == pytest.approx(8 / 3 * float(drawn(1, 4).norm()))


def test_one_row_and_a_row_of_zeros_have_no_cosine() -> None:
    assert math.isnan(float(mean_cosine(drawn(1, 4))))
    assert math.isnan(float(mean_cosine(torch.cat([drawn(2, 4), torch.zeros(1, 4)]))))


def test_rows_agree_with_the_oracle_also_in_batches() -> None:
    rows = drawn(5, 6, 4)
    expected = [oracle.mean_cosine(part.numpy()) for part in rows]
    np.testing.assert_allclose(mean_cosine(rows).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("d", [3, 12])
def test_the_used_budget_agrees_with_the_oracle(d: int) -> None:
    x, y = oracle.blobs([30, 20, 10, 5, 4], d)
    rows = drawn(5, d)
    means = torch.stack([x[y == k].double().mean(0) for k in range(5)])
    assert float(used_budget(means, rows)) == pytest.approx(oracle.used_budget(x, y, 5, rows), rel=1e-6)


def test_the_used_budget_is_at_most_the_norms_and_equal_at_the_models_optimum() -> None:
    means, rows = drawn(5, 7), drawn(5, 7, seed=1)
    assert float(used_budget(means, rows)) < math.sqrt(float(mean_square(means) * mean_square(rows)))
    balanced = solve([10] * 5, E_W=2, E_H=3)
    used = used_budget(torch.from_numpy(balanced.H(7)), torch.from_numpy(balanced.W(7)))
    assert float(used) == pytest.approx(math.sqrt(6))


def test_rotation_shift_and_scale_change_what_they_should() -> None:
    means, rows, Q = drawn(6, 8), drawn(6, 8, seed=1), rotation(8)
    used = float(used_budget(means, rows))
    assert float(used_budget(means @ Q, rows @ Q)) == pytest.approx(used)
    assert float(used_budget(means + drawn(8), rows - drawn(8, seed=5))) == pytest.approx(used)
    assert float(used_budget(3 * means, rows / 3)) == pytest.approx(used)
    assert float(used_budget(3 * means, rows)) == pytest.approx(3 * used)
    for one in (mean_norm, mean_square, mean_cosine):
        assert float(one(rows @ Q)) == pytest.approx(float(one(rows)))
    assert float(mean_cosine(7 * rows)) == pytest.approx(float(mean_cosine(rows)))
    assert float(mean_norm(7 * rows)) == pytest.approx(7 * float(mean_norm(rows)))


def test_rare_is_what_lies_below_the_geometric_middle() -> None:
    assert rare_classes([5000, 50, 5000, 50]) == [1, 3]
    assert rare_classes([1000, 900, 101, 10]) == [3]
    assert rare_classes([3, 3, 3]) is None


@pytest.mark.parametrize(("counts", "rare"), [([98, 104, 100], None), ([51, 100], None), ([50, 100], [0])])
def test_no_class_is_rare_unless_another_has_twice_its_samples(counts: list[int], rare: list[int] | None) -> None:
    assert rare_classes(counts) == rare
