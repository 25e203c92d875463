"""Inputs that a network cannot take are answered with how it would take them."""

import pytest
import torch
from torch import nn

import layerlaw as ll
from layerlaw.capture.arguments import other_size


def pooled(side: int = 32) -> nn.Module:
    """Two poolings, and a classifier that sees every pixel that is left."""
    torch.manual_seed(0)
    pool = nn.MaxPool2d(2)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), pool, pool, nn.Flatten(), nn.Linear(4 * (side // 4) ** 2, 3)
    )


LABELS = torch.arange(12) % 3


@pytest.mark.parametrize("side", [3, 28, 224])
def test_a_dry_run_names_the_size_that_would_do(side: int) -> None:
    network = pooled().eval()
    with pytest.raises(ll.LayerlawError, match=rf"It takes images of 32 × 32 pixels, not of {side} × {side}: resize"):
        ll.probe(network, (torch.randn(12, 1, side, side), LABELS), progress=False)
    with pytest.raises(ll.LayerlawError, match="It takes images of 32 × 32 pixels"):
        ll.sites(network, (torch.randn(12, 1, side, side), LABELS))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.randn(12, 32, 32, 1), r"images whose channels come first: pass x\.permute\(0, 3, 1, 2\)\.$"),
        (torch.randn(12, 32, 32), r"images with an axis of channels: pass x\.unsqueeze\(1\)\.$"),
        (
            torch.zeros(12, 1, 32, 32, dtype=torch.uint8),
            r"inputs of float32: pass x\.float\(\), scaled as in training \(x\.float\(\) / 255, say\)\.$",
        ),
        (torch.zeros(12, 1, 32, 32, dtype=torch.float64), r"inputs of float32: pass x\.float\(\)\.$"),
        (torch.zeros(12, 3, 32, 32), r"images of 1 channel: pass x\.mean\(1, keepdim=True\)\.$"),
    ],
    ids=["channels last", "no channels", "bytes", "double", "three channels"],
)
def test_a_dry_run_says_how_inputs_would_pass(images: torch.Tensor, words: str) -> None:
    with pytest.raises(ll.LayerlawError, match=f"It takes {words}"):
        ll.probe(pooled().eval(), (images, LABELS), progress=False)


def test_an_image_too_small_for_its_poolings_is_told_the_nearest_size() -> None:
    network = nn.Sequential(
        *(nn.MaxPool2d(2) for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 3)
    )
    assert "16 × 16 pixels, not of 9 × 9" in other_size(network, torch.randn(4, 1, 9, 9))


def test_trying_sizes_leaves_a_network_as_it_was() -> None:
    network = pooled().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert "32 × 32" in other_size(network, torch.randn(4, 1, 28, 28))
    assert network.training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    "images", [torch.randn(4, 3, 32, 32), torch.randn(4, 20), torch.zeros(4, 1, 28, 28, dtype=torch.long), None]
)
def test_other_mistakes_are_not_blamed_on_the_size(images: torch.Tensor | None) -> None:
    assert other_size(pooled(), images) == ""
