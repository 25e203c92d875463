"""Second moments of several sites at once: one product, the same numbers."""

import pytest
import torch

from layerlaw.stats import moments as module
from layerlaw.stats.moments import Columns, Moments, TargetMoments, WaitingSites


def features(sites: int, n: int, d: int, device: str = "cpu") -> torch.Tensor:
    return torch.randn(sites, n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


def one_by_one(X: torch.Tensor, rows: torch.Tensor, T: Columns, group: int = 1) -> list[Moments]:
    found = [Moments.empty(2, X.shape[2], T.width - 1, X.device) for _ in X]
    for site, states in zip(found, X, strict=True):
        site.update(group, states[rows], T)
    return found


@pytest.mark.parametrize("longest", [7, 1024], ids=["rows in parts", "all rows"])
@pytest.mark.parametrize("room", [1 << 29, 40_000, 1], ids=["all at once", "some at a time", "one at a time"])
def test_sites_that_wait_for_one_product_get_the_numbers_of_products_of_their_own(monkeypatch, room, longest) -> None:
    monkeypatch.setattr(module, "ROOM", room)
    monkeypatch.setattr(module, "LONGEST", longest)
    X, rows = features(7, 50, 12), torch.arange(0, 50)[torch.arange(50) % 5 != 4]
    T = Columns(torch.cat([features(1, 40, 1)[0], torch.ones(40, 1, dtype=torch.float64)], 1))
    targets = TargetMoments.empty(2, 1)
    targets.update(1, T.plain[:, :1])
    expected = one_by_one(X, rows, T)
    found = [Moments.empty(2, 12, 1) for _ in X]
    waiting = WaitingSites(1, T, len(X))
    for site, states in zip(found, X, strict=True):
        assert torch.equal(waiting.add(site, states, rows), states[rows])
    waiting.finish()
    waiting.finish()  # nothing is added twice
    for mine, theirs in zip(found, expected, strict=True):
        theirs.settle(targets)
        mine.settle(targets)
        torch.testing.assert_close(mine.packed, theirs.packed, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(mine.cross, theirs.cross, rtol=1e-12, atol=1e-12)
        assert not mine.packed[0].any()  # the other group


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_half_precision_sites_on_a_gpu_get_the_numbers_of_products_of_their_own() -> None:
    X, rows = features(5, 600, 64, "cuda").bfloat16(), torch.arange(599, device="cuda")
    T = Columns(torch.cat([features(1, 599, 1)[0], torch.ones(599, 1, dtype=torch.float64)], 1), "cuda")
    found = [Moments.empty(2, 64, 1, "cuda") for _ in X]
    assert WaitingSites.worth(X[0])
    waiting = WaitingSites(1, T, len(X))
    for site, states in zip(found, X, strict=True):
        waiting.add(site, states, rows)
    waiting.finish()
    for mine, theirs in zip(found, one_by_one(X, rows, T), strict=True):
        torch.testing.assert_close(mine.packed, theirs.packed, rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(mine.cross, theirs.cross, rtol=1e-5, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_many_rows_far_from_zero_keep_their_digits_on_a_gpu() -> None:
    X, rows = (features(3, 32_768, 64, "cuda") + 6).bfloat16(), torch.arange(32_768, device="cuda")
    T = Columns(torch.ones(32_768, 1, dtype=torch.float64), "cuda")
    found = [Moments.empty(1, 64, 0, "cuda") for _ in X]
    waiting = WaitingSites(0, T, len(X))
    for site, states in zip(found, X, strict=True):
        waiting.add(site, states, rows)
    waiting.finish()
    for site, states in zip(found, X.double(), strict=True):
        torch.testing.assert_close(site.squares()[0], states.mT @ states, rtol=5e-6, atol=0)


def test_on_a_cpu_nothing_waits() -> None:
    assert not WaitingSites.worth(torch.zeros(3, 8, dtype=torch.bfloat16))
