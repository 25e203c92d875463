"""Networks and data that are probed on a GPU, by one process or by one of two ranks (see test_gpu)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.lab import FeedForward

Data = tuple[Tensor, Tensor]
Case = tuple[nn.Module, Data, Data | None, dict[str, Any]]


def clouds(n: int, d: int, K: int, *, even: bool = True, seed: int = 0) -> Data:
    """Features around class means, with equally many samples of each class or not."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, K, (n - K,), generator=generator)
    y = torch.arange(n) % K if even else torch.cat([torch.arange(K), drawn])
    means = torch.randn(K, d, generator=torch.Generator().manual_seed(0))
    return means[y] + 0.6 * torch.randn(n, d, generator=generator), y


def images(n: int) -> Data:
    x, y = clouds(n, 3 * 6 * 6, 4)
    return x.view(n, 3, 6, 6), y


def on(data: Data, device: str) -> Data:
    x, y = data
    return x.to(device), y.to(device)


def _cases() -> dict[str, Case]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dense = FeedForward(depth=4, inputs=30, width=24, classes=5).eval()
        wide = FeedForward(depth=3, inputs=60, width=80, classes=70).eval()
        fitted = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 3)).eval()
        convolution = nn.Sequential(
            *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
            *(nn.Conv2d(6, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4)),
        ).eval()
    few, uneven, many, pictures = clouds(300, 30, 5), clouds(300, 30, 5, even=False), clouds(840, 60, 70), images(160)
    numbers = few[0], few[0][:, :3] + torch.randn(300, 3, generator=torch.Generator().manual_seed(1))
    labels = few[0], (numbers[1] > 0).float()
    double = FeedForward(depth=4, inputs=30, width=24, classes=5).double().eval()
    test, targets = clouds(100, 30, 5, seed=1), (numbers[0][:100] + 0.1, numbers[1][:100])
    return {
        "kept": (dense, few, None, {}),
        "uneven classes": (dense, uneven, None, {"uncertainty": False, "batch_size": 64}),
        "test data": (dense, few, test, {}),
        "streamed": (dense, few, None, {"batch_size": 50, "memory_gib": 6e-5}),
        "uncertainty": (dense, uneven, None, {"uncertainty": True}),
        "uncertainty, streamed": (dense, few, None, {"batch_size": 50, "memory_gib": 2e-4, "uncertainty": True}),
        "linear": (dense, few, None, {"linear": True}),
        "many small batches": (dense, few, None, {"batch_size": 7}),
        "some classes": (dense, few, None, {"classes": [0, 2, 4]}),
        "double": (double, (few[0].double(), few[1]), None, {}),
        "uneven features": (dense, (few[0] * torch.logspace(0, -7, 30), few[1]), None, {}),
        "many classes": (wide, many, clouds(420, 60, 70, seed=3), {}),
        "flattened": (convolution, pictures, None, {"reduce": "flatten"}),
        "mean, own statistics": (convolution, pictures, None, {"reduce": "mean", "batch_size": 40, "batchnorm": "batch"}),
        "in slices": (convolution, pictures, images(60), {"reduce": "flatten", "memory_gib": 2e-5, "batch_size": 40}),
        "regression": (fitted, numbers, None, {}),
        "regression, test data": (fitted, numbers, targets, {}),
        "regression, uncertainty": (fitted, numbers, None, {"uncertainty": True}),
        "regression, streamed": (fitted, numbers, None, {"batch_size": 50, "memory_gib": 3e-4, "uncertainty": True}),
        "several labels": (fitted, labels, None, {}),
    }  # fmt: skip


CASES = _cases()


def assert_same(found: ll.Record, expected: ll.Record) -> None:
    """All numbers of all sites."""
    assert [site.name for site in found.sites] == [site.name for site in expected.sites]
    for one, other in zip(found.sites, expected.sites, strict=True):
        assert one.values.keys() == other.values.keys()
        for key, value in other.values.items():
            near = value if value is None else pytest.approx(value, rel=1e-4, abs=1e-7)
            assert one.values[key] == near, (one.name, key)
    assert (found.counts, found.accuracy) == (expected.counts, expected.accuracy)
