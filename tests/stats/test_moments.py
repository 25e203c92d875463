"""Second moments whose sums grow in parts: the same numbers."""

import pytest
import torch

from layerlaw.stats import moments as module
from layerlaw.stats.moments import Columns, Moments, PartialSums, TargetMoments, worth_growing


def features(sites: int, n: int, d: int, device: str = "cpu") -> torch.Tensor:
    return torch.randn(sites, n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


def with_ones(Y: torch.Tensor) -> torch.Tensor:
    return torch.cat([Y, torch.ones_like(Y[:, :1])], 1)


@pytest.mark.parametrize("products", [1, 3, 64])
@pytest.mark.parametrize("room", [1 << 20, 3 * 8 * 12**2, 1], ids=["all parts", "three parts", "one part"])
@pytest.mark.parametrize("longest", [2, 7, 1024])
def test_sums_that_grow_in_parts_become_the_moments_of_all_batches(monkeypatch, products, room, longest) -> None:
    monkeypatch.setattr(module, "PRODUCTS", products)
    monkeypatch.setattr(module, "LONGEST", longest)
    monkeypatch.setattr(module, "ROOM", 5 * room)
    targets, one, other = TargetMoments.empty(2, 2), Moments.empty(2, 12, 2), Moments.empty(2, 12, 2)
    for group, n in ((0, 50), (0, 3), (1, 1), (0, 64), (1, 200), (1, 17)):
        X, Y = features(2, n, 14)
        T = Columns(with_ones(Y[:, :2]))
        targets.update(group, Y[:, :2])
        one.update(group, X[:, :12], T)
        other.grow(group, X[:, :12], T, sites=5)
    for moments in (one, other):
        moments.settle(targets)
    assert other.growing is None  # its memory is free again
    torch.testing.assert_close(other.packed, one.packed, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(other.cross, one.cross, rtol=1e-12, atol=1e-12)


def test_rows_that_are_not_used_are_zero_in_features_and_targets() -> None:
    X, rows = features(1, 50, 12)[0], torch.arange(50)[torch.arange(50) % 5 != 4]
    T = Columns(with_ones(features(1, 40, 1)[0]))
    one, other = Moments.empty(1, 12, 1), Moments.empty(1, 12, 1)
    one.grow(0, X[rows], T)
    other.grow(0, X.index_fill(0, torch.arange(4, 50, 5), 0), T.among(rows, 50))
    for moments in (one, other):
        moments.settle(TargetMoments.empty(1, 1))
    torch.testing.assert_close(other.squares()[0], X[rows].mT @ X[rows])
    torch.testing.assert_close(other.cross, one.cross)


def test_room_is_shared_by_the_sites() -> None:
    X, T = features(1, 5, 12)[0], Columns(torch.ones(5, 1, dtype=torch.float64))
    assert [len(PartialSums.empty(X, T, parts * 8 * 12**2).squares) for parts in (0, 1, 5, 100)] == [1, 1, 5, 16]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n", [599, 32_768, 33_000])
def test_half_precision_features_on_a_gpu_keep_their_digits(n: int) -> None:
    X = (features(1, n, 64, "cuda")[0] + 6).bfloat16()
    T = Columns(with_ones(features(1, n, 1)[0]), "cuda")
    assert worth_growing(X)
    found = Moments.empty(2, 64, 1, "cuda")
    for _ in range(20):
        found.grow(1, X, T)
    found.settle(TargetMoments.empty(2, 1))
    torch.testing.assert_close(found.squares()[1] / 20, X.double().mT @ X.double(), rtol=5e-5, atol=0)
    torch.testing.assert_close(found.cross[1] / 20, X.double().mT @ T.plain, rtol=1e-5, atol=1e-5 * n)
    assert not found.packed[0].any()  # the other group


def test_on_a_cpu_nothing_grows() -> None:
    assert not worth_growing(torch.zeros(3, 8, dtype=torch.bfloat16))
