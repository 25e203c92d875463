"""Networks to measure the cost of a probe on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3×3 convolutions with a parameter-free shortcut (every second pixel, zero channels added)."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.pad = stride, (channels - inputs) // 2

    def shortcut_of(self, x: Tensor) -> Tensor:
        return x if self.stride == 1 else F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut_of(x)
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + shortcut)


class ResNet20(nn.Module):
    """The CIFAR ResNet-20: three stages of three blocks, 16/32/64 channels."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        stages = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(Block(a, b, s), Block(b, b, 1), Block(b, b, 1)) for a, b, s in stages
        )
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def separated(n: int, *shape: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gaussian clouds around random class means."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    means = torch.randn(classes, *shape, generator=generator)
    return means[y] + torch.randn(n, *shape, generator=generator), y
