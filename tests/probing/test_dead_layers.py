"""Layers that are the same for all samples, up to rounding: no D, and no center is nearest, however they are measured."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import layerlaw as ll
from layerlaw.measures import ncc_accuracy
from layerlaw.probing import merge, probe_shard
from layerlaw.stats import ClassSums, find_centers
from layerlaw.stats.passes import Dealt
from layerlaw.stats.slices import Added, Slice, Sliced, SlicedSite, Views

K = 5
GENERATOR = torch.Generator().manual_seed(0)
X, TEST = torch.randn(403, 12, generator=GENERATOR), torch.randn(107, 12, generator=GENERATOR)
Y, TEST_Y = torch.randint(0, K, (403,), generator=GENERATOR), torch.arange(107) % K
Y[:K] = torch.arange(K)
DEAD = ["2", "4"]  # the first to the last bit, the other as products of unlike batches round it
WAYS: dict[str, dict[str, Any]] = {
    "kept": {},
    "without standard errors": {"uncertainty": False},
    "streamed": {"uncertainty": False, "memory_gib": 1e-3},
    "in slices": {"uncertainty": False, "memory_gib": 7e-5},
}


def network(dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Linear(12, 100), nn.ReLU(), nn.Linear(100, 401), nn.Tanh(), nn.Linear(401, 402), nn.Tanh()]
        model = nn.Sequential(*layers, nn.Linear(402, K))
    nn.init.zeros_(model[2].weight)
    return model.to(dtype).eval()


def assert_nothing_is_near(record: ll.Record, names: tuple[str, ...]) -> None:
    for site in record.sites:
        assert site.values["rank"] == 0
        assert site.values["separation"] is None
        for name in names:
            assert site.values[name] == pytest.approx(1 - 1 / K if "mismatch" in name else 1 / K, rel=1e-12), name
    told = "No nearest class center at: 2, 4: the class means differ by no more than rounding"
    assert any(note.startswith(told) for note in record.notes)


NEAR = ("ncc_accuracy", "ncc_mismatch", "test_ncc_accuracy", "test_ncc_mismatch")


@pytest.mark.parametrize("batch_size", [403, 40])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_center_is_nearest_in_a_dead_layer(dtype: torch.dtype, way: str, batch_size: int) -> None:
    how = {"sites": DEAD, "batch_size": batch_size, "progress": False, **WAYS[way]}
    record = ll.probe(network(dtype), (X.to(dtype), Y), test=(TEST.to(dtype), TEST_Y), **how)
    assert any("Measured in slices" in note for note in record.notes) == (way == "in slices")
    assert_nothing_is_near(record, NEAR)


def test_nor_in_merged_shards(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    how = {"sites": DEAD, "batch_size": 40, "progress": False, "test": (TEST.double(), TEST_Y), "state": tmp_path}
    for i in (1, 2, 3) * 2:
        probe_shard(network(torch.float64), (X.double(), Y), shard=(i, 3), **how)
    assert_nothing_is_near(merge(tmp_path), NEAR)


def test_sums_of_many_batches_do_not_make_classes_of_a_constant() -> None:
    """3,000 additions of rounded numbers: their means differ by more than one rounding does."""
    labels = torch.randint(0, K, (30_000,), generator=GENERATOR)
    features = torch.rand(50, dtype=torch.float64, generator=GENERATOR).expand(30_000, 50)
    parts = [ClassSums.of(features[i : i + 10], labels[i : i + 10], K) for i in range(0, 30_000, 10)]
    assert int(find_centers(ClassSums.merge(parts)).rank) == 0


def sliced(features: torch.Tensor, labels: torch.Tensor, width: int) -> Sliced:
    n, d = features.shape
    site, dealt, views = SlicedSite(d, K, Views(), "samples", None), Dealt(labels), Views()
    for start in range(0, d, width):
        part = Slice(start, min(d, start + width))
        part.add(features, Added(views.rows(dealt, K)), 1, K)
        if start == 0:
            site.begin(torch.bincount(labels, minlength=K).double().unsqueeze(0), n, features.device)
        site.center(part)
        site.add(part, features, labels, slice(0, n))
    return site.finish(dealt, None)


def test_in_slices_many_samples_of_a_constant_are_no_change_of_the_data() -> None:
    labels = torch.randint(0, K, (30_000,), generator=GENERATOR)
    features = torch.rand(7, dtype=torch.float64, generator=GENERATOR).expand(30_000, 7)
    found = sliced(features, labels, 3)
    assert found.moved() is None
    assert int(found.around.centers.rank) == 0
    assert found.scatter is not None
    assert (found.scatter.near.hits / found.scatter.counts).tolist() == pytest.approx([1 / K] * K)


def test_small_real_differences_far_from_zero_still_count() -> None:
    """Ten thousand times what rounding makes of the offset."""
    labels = torch.arange(2000) % K
    features = torch.randn(2000, 8, dtype=torch.float64, generator=GENERATOR) * 1e-9 + 1
    features += 1e-8 * torch.randn(K, 8, dtype=torch.float64, generator=GENERATOR)[labels]
    assert float(ncc_accuracy(features, labels)) > 0.9
    centers = find_centers(ClassSums.of(features, labels, K))
    assert int(centers.rank) == K - 1
    found = sliced(features, labels, 3)
    assert found.scatter is not None
    assert float(found.scatter.near.hits.sum() / 2000) > 0.9
