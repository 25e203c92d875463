"""Class means, the basis of their span, and the rank."""

import numpy as np
import pytest
import torch

import oracle
from layerlaw.stats import Centers, ClassSums, find_centers
from layerlaw.stats.centers import _digest, class_weights, helmert_contrasts

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


def whitened_by_singular_values(centers: Centers) -> torch.Tensor:
    """TᵀT of equally weighted classes (…, r, r), in the plain way."""
    inside = centers.coordinates * (centers.scales > 0).unsqueeze(-2)
    _, s, V = torch.linalg.svd(helmert_contrasts(inside, class_weights(centers.counts, "classes")), full_matrices=False)
    kept = torch.arange(s.shape[-1]) < centers.rank.unsqueeze(-1)
    T = torch.where(kept, 1 / torch.where(kept, s, 1.0), 0.0).unsqueeze(-1) * V
    return T.mT @ T


def unequal_sites(counts: list[int], d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of three sites (3, n, d): ordinary ones, some with a dead feature twice, some of uneven scales."""
    x, y = oracle.blobs(counts, d, offset=2.0)
    twice, uneven = x.clone(), x * torch.logspace(0, -4, d, dtype=torch.float64)
    twice[:, -1], twice[:, -2] = twice[:, 0], 0.0
    return torch.stack([x, twice, uneven]), y


@pytest.mark.parametrize("counts", [[40, 10, 3, 1, 7, 9], [5, 3, 2_000, 2, 4, 2]])
@pytest.mark.parametrize("d", [4, 9])
def test_equally_weighted_classes_are_whitened_at_all_sites_as_by_singular_values(counts: list[int], d: int) -> None:
    x, y = unequal_sites(counts, d)
    centers = find_centers(ClassSums.of(x, y.expand(3, -1), len(counts)))
    T, expected = centers.equal_whitener, whitened_by_singular_values(centers)
    assert T.shape == (3, min(len(counts) - 1, d), min(len(counts) - 1, d))
    assert centers.rank.tolist() == [5, 5, 5] if d == 9 else [4, 2, 4]
    s = centers.scales
    units = torch.where(s > 0, s, 1.0)  # entries belong to directions of very different scales
    both = units.unsqueeze(-1) * (T.mT @ T - expected) * units.unsqueeze(-2)
    assert float(both.abs().max()) < 1e-9 * max(counts) / min(counts)
    beyond = torch.where(s > 0, 0.0, 1.0).unsqueeze(-2)
    assert bool((T * beyond == 0).all()), "directions beyond the rank count for nothing"


def test_hugely_unequal_classes_are_whitened_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of 10⁷ to 1 are contrasts whose Gram matrix has lost seven digits: these come by QR."""
    x, y = oracle.blobs([30, 20, 10, 10], 8, offset=1.0)
    sums = ClassSums.of(x, y, 4)
    many = torch.tensor([1e7, 1.0, 3.0, 2.0], dtype=torch.float64)
    sums.sums *= (many / sums.counts).unsqueeze(-1)
    sums.counts = many
    centers = find_centers(sums)
    product = torch.linalg.qr
    called = []
    monkeypatch.setattr(torch.linalg, "qr", lambda *a, **k: called.append(a) or product(*a, **k))
    T, expected = centers.equal_whitener, whitened_by_singular_values(centers)
    assert called
    torch.testing.assert_close(T.mT @ T, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


def test_digests_tell_centers_apart() -> None:
    """A class mean that moved, two that changed places, a feature or an offset: scatters around such do not merge."""
    x, y = oracle.blobs([20, 20, 20], 6)
    swapped = torch.tensor([1, 0, 2])[y]
    moved, turned = x + 1e-6 * (y == 1).unsqueeze(-1), x.roll(1, -1)
    own, *others = (
        find_centers(ClassSums.of(features, labels, 3)).digest
        for features, labels in ((x, y), (x, swapped), (moved, y), (turned, y), (x + 1e-6, y))
    )
    assert torch.equal(own, find_centers(ClassSums.of(x, y, 3)).digest)
    for other in others:
        assert not torch.allclose(own, other, rtol=1e-9, atol=1e-12)


def test_digests_tell_means_from_their_transpose_and_classes_that_are_moved_on() -> None:
    """Their global means and scales are the same ones."""
    y = torch.arange(30) % 3
    on = torch.eye(3, dtype=torch.float64)[[1, 2, 0]]
    uneven = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, 2.0], [2.0, 1.0, 0.0]], dtype=torch.float64)  # rows, columns: 3
    for means, others in ((on, on.T), (on, on[[2, 0, 1]]), (uneven, uneven.T)):
        one, other = (find_centers(ClassSums.of(points[y], y, 3)) for points in (means, others))
        assert not torch.equal(one.means, other.means)
        torch.testing.assert_close(one.mean, other.mean)
        torch.testing.assert_close(one.scales, other.scales)
        assert not torch.allclose(one.digest, other.digest, rtol=1e-9, atol=1e-12)


def test_a_digest_is_the_same_beside_others_and_of_a_single_class() -> None:
    sites = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = _digest(sites, sites.mean(-2), sites[..., 0])
    alone = [_digest(site, site.mean(-2), site[..., 0]) for site in sites]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-13, atol=1e-13)
    for shape in ((1, 5), (0, 3, 5), (2, 4, 3, 5)):
        points = torch.ones(shape, dtype=torch.float64)
        assert _digest(points, points.mean(-2), points[..., 0]).shape == (*shape[:-2], 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_contrasts_of_many_classes_are_the_same_on_a_gpu() -> None:
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 70, 5)))
    weights = class_weights(torch.arange(140.0, dtype=torch.float64).view(2, 70), "samples")
    on_gpu = helmert_contrasts(points.cuda(), weights.cuda())
    np.testing.assert_allclose(on_gpu.cpu(), helmert_contrasts(points, weights), atol=1e-13)
