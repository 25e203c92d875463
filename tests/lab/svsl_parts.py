"""What tests of SVSL share: a network, a batch, and the loss written down directly."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NAMES = ("conv1", "conv2", "fc")


class SmallNet(nn.Module):
    """Two convolutions, the second with an in-place ReLU behind it, and a classifier."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 5, 3), nn.Conv2d(5, 6, 3)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.conv2(self.relu(self.conv1(x))))
        return self.fc(h.flatten(1))


def features_of(network: SmallNet, x: Tensor) -> list[Tensor]:
    """The outputs of conv1, conv2 and fc by a forward written out."""
    a = network.conv1(x)
    b = network.conv2(F.relu(a))
    return [a.flatten(1), b.flatten(1), network.fc(F.relu(b).flatten(1))]


def batch(n: int = 12, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Class 2 has one sample, class 3 none."""
    g = torch.Generator().manual_seed(seed)
    y = torch.tensor([0, 1, 0, 1, 1, 0, 2, 0, 1, 1, 0, 0])[torch.arange(n) % 12]
    y[(y == 2).nonzero().flatten()[1:]] = 0
    return torch.randn(n, 1, 8, 8, generator=g).to(dtype), y


def penalty(features: list[Tensor], y: Tensor, alpha: float, classes: int, means: list[Tensor] | None = None) -> Tensor:
    """α/(C·m) Σ_j Σ_c (1/n_c) Σ_{i∈c} ‖g − μ_c‖², class by class and sample by sample; gradients through batch means."""
    total = features[0].new_zeros(())
    for j, g in enumerate(features):
        for c in y.unique().tolist():
            rows = g[y == c]
            center = rows.mean(0) if means is None else means[j][c]
            total = total + (rows - center).square().sum() / len(rows)
    return alpha * total / (classes * len(features))


def direct(features: list[Tensor], y: Tensor, alpha: float, reduction: str, **how) -> Tensor:
    """The whole loss."""
    logits = features[-1]
    found = penalty(features, y, alpha, logits.shape[1], **how)
    return F.cross_entropy(logits, y) + (found / len(y) if reduction == "paper" else found)


def gradients(value: Tensor, network: nn.Module) -> list[Tensor]:
    """Of all parameters."""
    return list(torch.autograd.grad(value, list(network.parameters())))
