"""The view of three classes in a record: of what the classifier reads, small, and absent where it means nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import layerlaw as ll


def data(K: int, n: int = 240) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % K
    return torch.randn(K, 8, generator=g)[y] + 0.3 * torch.randn(n, 8, generator=g), y


def net(K: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, K))


@pytest.mark.parametrize("K", [3, 5])
def test_it_shows_what_the_classifier_reads(K: int, tmp_path: Path) -> None:
    model, (x, y) = net(K), data(K)
    record = ll.probe(model, (x, y), progress=False)
    view = record.collapse_view
    assert view["classes"] == [0, 1, 2]
    counts = [view["labels"].count(k) for k in range(3)]
    assert counts == [33] * 3  # of 66 or 40 that the planes have of each class
    with torch.no_grad():
        read = model[:4](x).double()
    means = torch.stack([read[y == k].mean(0) for k in range(3)])
    apart = torch.cdist(means, means)
    seen = torch.cdist(torch.tensor(view["means"]), torch.tensor(view["means"])).double()
    assert torch.allclose(seen / seen.max(), apart / apart.max(), atol=1e-3)  # their triangle is not distorted
    assert len(view["rows"]) == 3
    assert np.square(view["rows"]).sum(1).mean() <= 1.001  # shadows of rows of length 1
    record.save(tmp_path / "r.json")
    assert ll.Record.load(tmp_path / "r.json").collapse_view == view


def test_two_classes_and_targets_have_none() -> None:
    assert ll.probe(net(2), data(2), progress=False).collapse_view == {}
    x, _ = data(3)
    assert ll.probe(net(1), (x, x[:, :1].clone()), progress=False).collapse_view == {}


def test_without_decisions_there_are_no_rows() -> None:
    record = ll.probe(net(4), data(4), scores=None, progress=False)
    assert record.collapse_view.get("rows", []) == []
