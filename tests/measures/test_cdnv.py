"""CDNV with many classes: one product for all pairs, differences for close ones, the same numbers."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from layerlaw.measures import class_distance_variance
from layerlaw.threads import one_thread


def directly(points: np.ndarray, variances: np.ndarray) -> float:
    """From the definition, pair by pair, in extended precision."""
    points, variances = points.astype(np.longdouble), variances.astype(np.longdouble)
    K = len(points)
    pairs = [
        (variances[a] + variances[b]) / (2 * np.square(points[a] - points[b]).sum()) for a in range(K) for b in range(a)
    ]
    return float(np.mean(pairs))


def cdnv_of(points: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    return class_distance_variance(SimpleNamespace(coordinates=points), variances)


def clusters(groups: int, each: int, r: int, distance: float, spread: float) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    far = distance * torch.randn(groups, r, dtype=torch.float64, generator=g)
    points = far.repeat_interleave(each, 0)
    return points + spread * torch.randn(points.shape, dtype=torch.float64, generator=g)


@pytest.mark.parametrize(
    ("groups", "each", "distance", "spread"),
    [(1, 60, 0.0, 1.0), (6, 10, 1.0, 1e-3), (6, 10, 1.0, 1e-7), (2, 30, 1e6, 1.0), (30, 2, 1.0, 0.1), (1, 2, 0.0, 1.0)],
)
def test_close_and_far_centers_keep_their_digits(groups: int, each: int, distance: float, spread: float) -> None:
    points = clusters(groups, each, 20, distance, spread)
    variances = torch.rand(len(points), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float(cdnv_of(points, variances)) == pytest.approx(directly(points.numpy(), variances.numpy()), rel=1e-12)


def test_leading_dimensions_equal_a_loop_also_with_close_pairs() -> None:
    points = torch.stack([clusters(3, 4, 5, 1.0, spread) for spread in (1.0, 1e-2, 1e-5)]).reshape(3, 1, 12, 5)
    variances = torch.linspace(0.1, 1, 12, dtype=torch.float64).expand(3, 1, 12)
    found = cdnv_of(points, variances)
    assert found.shape == (3, 1)
    for i in range(3):
        assert float(found[i, 0]) == pytest.approx(float(cdnv_of(points[i, 0], variances[i, 0])), rel=1e-14)


def test_coinciding_centers_give_infinity() -> None:
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    assert float(cdnv_of(points, torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64))) == float("inf")


def test_a_thousand_classes_take_less_than_two_seconds() -> None:
    for points in (clusters(1, 1000, 999, 0.0, 1.0), clusters(10, 100, 999, 1.0, 1e-4)):
        variances = torch.ones(1000, dtype=torch.float64)
        with one_thread():  # several count the time that they wait for each other
            started = time.process_time()
            found = cdnv_of(points, variances)
            assert time.process_time() - started < 2
        some = torch.randperm(1000, generator=torch.Generator().manual_seed(2))[:30]
        assert bool(found.isfinite())
        assert float(cdnv_of(points[some], variances[some])) == pytest.approx(
            directly(points[some].numpy(), variances[some].numpy()), rel=1e-12
        )
