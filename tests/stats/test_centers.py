"""Class means, the basis of their span, and the rank."""

import math

import numpy as np
import pytest
import torch

import oracle
from layerlaw.stats import ClassSums, centers, find_centers
from layerlaw.stats.centers import class_weights, helmert_contrasts

CASES = [([20, 20, 20], 7), ([40, 10, 3, 1], 9), ([10, 12, 9, 8, 11], 2), ([10, 30], 5), ([10, 30], 1)]


@pytest.mark.parametrize("weighting", ["samples", "classes"])
@pytest.mark.parametrize(("counts", "d"), CASES)
def test_basis_and_scales_rebuild_the_between_class_scatter(counts: list[int], d: int, weighting: str) -> None:
    x, y = oracle.blobs(counts, d, offset=2.0)
    K = len(counts)
    centers = find_centers(ClassSums.of(x, y, K), weighting)
    _, between = oracle.scatters(x.numpy(), y.numpy(), K, weighting)
    V, s = centers.basis.numpy(), centers.scales.numpy()
    np.testing.assert_allclose(V.T @ np.diag(s**2) @ V, between, atol=1e-12 * np.abs(between).max() * 10)
    np.testing.assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-12)
    assert V.shape == (min(K - 1, d), d)
    assert int(centers.rank) == min(K - 1, d)


@pytest.mark.parametrize(("counts", "d"), CASES)
def test_means_and_global_mean(counts: list[int], d: int) -> None:
    x, y = oracle.blobs(counts, d, offset=2.0)
    K = len(counts)
    means = oracle.class_means(x.numpy(), y.numpy(), K)
    by_samples, by_classes = (find_centers(ClassSums.of(x, y, K), w) for w in ("samples", "classes"))
    np.testing.assert_allclose(by_samples.means, means, rtol=1e-12)
    np.testing.assert_allclose(by_samples.mean, x.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(by_classes.mean, means.mean(0), rtol=1e-12)


def test_weights_sum_to_one_and_pass_over_empty_classes() -> None:
    counts = torch.tensor([30.0, 0.0, 10.0], dtype=torch.float64)
    assert class_weights(counts, "samples").tolist() == [0.75, 0.0, 0.25]
    assert class_weights(counts, "classes").tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize(
    "weights", [[0.2, 0.3, 0.5], [0.0, 0.4, 0.6], [0.4, 0.0, 0.6], [0.4, 0.6, 0.0], [0.0, 0.0, 1.0]]
)
def test_contrasts_hold_the_weighted_scatter_of_the_points(weights: list[float]) -> None:
    points = np.random.default_rng(0).normal(size=(3, 5)) + 4
    w = np.array(weights)
    centered = points - w @ points
    A = helmert_contrasts(torch.from_numpy(points), torch.tensor(weights, dtype=torch.float64)).numpy()
    assert A.shape == (2, 5)
    np.testing.assert_allclose(A.T @ A, centered.T @ np.diag(w) @ centered, atol=1e-13)


@pytest.mark.parametrize("empty", [0, 1, 2])
@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_an_empty_class_leaves_the_centers_of_the_others(empty: int, weighting: str) -> None:
    """It happens when a jackknife group takes the only samples of a class along."""
    x, y = oracle.blobs([20, 15], 6, offset=3.0)
    names = torch.tensor([k for k in range(3) if k != empty])
    with_gap = find_centers(ClassSums.of(x, names[y], 3), weighting)
    without = find_centers(ClassSums.of(x, y, 2), weighting)
    assert int(with_gap.rank) == 1
    assert not bool(with_gap.full_rank)
    np.testing.assert_allclose(with_gap.scales[:1], without.scales, rtol=1e-12)
    np.testing.assert_allclose(with_gap.mean, without.mean, rtol=1e-12)


def test_full_rank_is_flagged() -> None:
    x, y = oracle.blobs([20, 15, 10], 6)
    assert bool(find_centers(ClassSums.of(x, y, 3)).full_rank)
    x[:, 1:] = 0.0
    low = find_centers(ClassSums.of(x, y, 3))
    assert int(low.rank) == 1
    assert not bool(low.full_rank)


def test_all_equal_features_have_rank_zero() -> None:
    y = torch.arange(30) % 3
    for dtype in (torch.float64, torch.float32):
        for value in (0.0, 1.0, 0.1, 1e3 / 3):
            centers = find_centers(ClassSums.of(torch.full((30, 4), value, dtype=dtype), y, 3))
            assert int(centers.rank) == 0
            assert float(centers.scales.abs().sum()) == 0


def test_one_leading_index_does_not_disturb_another() -> None:
    x, y = oracle.blobs([20, 15, 10], 6)
    both = find_centers(ClassSums.of(torch.stack([x, 1e6 * x + 1e8]), torch.stack([y, y]), 3))
    alone = find_centers(ClassSums.of(x, y, 3))
    np.testing.assert_allclose(both.scales[0], alone.scales, rtol=1e-12)
    assert both.rank.tolist() == [2, 2]


@pytest.mark.parametrize("least", [1.0, 1e-2])
def test_the_spectrum_of_many_classes_by_eigenvalues_has_the_digits_of_the_exact_one(
    monkeypatch: pytest.MonkeyPatch, least: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(30, 50, dtype=torch.float64, generator=generator) * torch.logspace(0, math.log10(least), 50)
    exact_s, exact_basis = centers._spectrum(means)
    monkeypatch.setattr(centers, "FEW_CLASSES", 10)
    monkeypatch.setattr(torch.linalg, "qr", None)  # not even called
    s, basis = centers._spectrum(means)
    torch.testing.assert_close(s, exact_s, rtol=1e-10, atol=0)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(30, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(basis.mT @ basis, exact_basis.mT @ exact_basis, rtol=0, atol=1e-9)  # of the same span


@pytest.mark.parametrize("least", [1e-5, 0.0])
def test_small_scales_of_many_classes_are_found_in_the_exact_way(monkeypatch: pytest.MonkeyPatch, least: float) -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(30, 50, dtype=torch.float64, generator=generator)
    means[-1] = means[0] + least * means[-1]
    exact_s, exact_basis = centers._spectrum(means)
    monkeypatch.setattr(centers, "FEW_CLASSES", 10)
    s, basis = centers._spectrum(means)
    assert torch.equal(s, exact_s)
    assert torch.equal(basis, exact_basis)
