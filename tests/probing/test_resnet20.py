"""A real network: the CIFAR ResNet-20 of the shared folder on CIFAR-10 test images."""

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from networks import ResNet20
from torch import Tensor, nn

import layerlaw as ll
import oracle

WEIGHTS = Path(__file__).parents[3] / "shared" / "data" / "models" / "cifar10_resnet20" / "resnet20-12fca82f.th"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def network() -> nn.Module:
    if not WEIGHTS.exists():
        pytest.skip(f"no weights at {WEIGHTS}")
    saved = torch.load(WEIGHTS, map_location="cpu", weights_only=True)["state_dict"]
    network = ResNet20()
    network.load_state_dict({name.removeprefix("module."): value for name, value in saved.items()})
    return network.eval()


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    """The first thousand test images and their labels."""
    home = os.environ.get("LAYERLAW_DATA")
    found = sorted(Path(home).glob("**/test_batch.bin")) if home else []
    if not found:
        pytest.skip("LAYERLAW_DATA names no folder with CIFAR-10's test_batch.bin")
    rows = torch.frombuffer(bytearray(found[0].read_bytes()), dtype=torch.uint8).reshape(-1, 3073)[:1000]
    x = rows[:, 1:].reshape(-1, 3, 32, 32).float() / 255
    mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std, rows[:, 0].long()


@torch.no_grad()
def penultimate(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the classifier receives, and the scores."""
    parts = []
    for part in torch.split(x, 250):
        h = F.relu(network.bn1(network.conv1(part)))
        parts.append(network.layer3(network.layer2(network.layer1(h))).mean((2, 3)))
    features = torch.cat(parts)
    return features, network.linear(features)


@pytest.mark.parametrize("sites", ["blocks", "layers"])
def test_the_real_resnet20_is_measured_and_its_last_d_is_that_of_numpy(
    sites: str, network: nn.Module, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    record = ll.probe(network, (x, y), sites=sites, batch_size=250, uncertainty="permuted", progress=False)
    assert len(record.sites) == {"blocks": 11, "layers": 20}[sites]
    assert record.sites[-1].name == "linear"
    assert record.accuracy > 0.9
    features, scores = penultimate(network, x)
    expected = oracle.everything(features, y, 10, decision=scores.argmax(1), classifier=network.linear.weight.detach())
    last = record.sites[-1].values
    for column in ("separation", "nc1", "nc3", "nc2_norms", "ncc_accuracy", "ncc_mismatch", "cdnv"):
        assert last[column] == pytest.approx(expected[column], rel=1e-6), column
    separation = record.column("separation")
    assert separation[0] > 10 * separation[-1]
    assert record.law().rho < 1
    if sites == "blocks":
        assert record.sites[0].values["separation"] == pytest.approx(raw_separation(x, y), rel=1e-6)


def raw_separation(x: Tensor, y: Tensor) -> float:
    """D of the raw pixels, through the K×K form (3072 features are too many for the d×d one)."""
    flat = x.flatten(1).double()
    means = torch.stack([flat[y == k].mean(0) for k in range(10)])
    weights = torch.bincount(y).double() / len(y)
    between = (means - weights @ means) * weights.sqrt()[:, None]
    _left, s, basis = torch.linalg.svd(between, full_matrices=False)
    whitened = (flat - means[y]) @ basis[:9].T / s[:9]
    return float(whitened.square().sum(1).mean())
