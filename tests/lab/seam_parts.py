"""A network family and losses as anybody would add them: nothing of layerlaw knows of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.lab import Architecture, Loss, Recipe, Samples


@dataclass(frozen=True)
class TinyConv(Architecture):
    """Convolutions with BatchNorm and ReLU, a pool, a linear classifier."""

    kind: ClassVar[str] = "tiny_conv"
    channels: tuple[int, ...] = (4, 6)
    classes: int = 4
    batchnorm: bool = True
    dropout: float = 0.0

    def build(self) -> nn.Module:
        parts: list[nn.Module] = []
        for before, after in zip((1, *self.channels), self.channels, strict=False):
            parts.append(nn.Conv2d(before, after, 3, padding=1))
            parts += [nn.BatchNorm2d(after)] if self.batchnorm else []
            parts.append(nn.ReLU())
        end = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(self.dropout)]
        return nn.Sequential(*parts, *end, nn.Linear(4 * self.channels[-1], self.classes))

    def __str__(self) -> str:
        return f"tiny conv {self.channels}"


@dataclass(frozen=True)
class SameEntropy(Loss):
    """Cross-entropy under another name: the way of any loss but the first, with the numbers of the first."""

    kind: ClassVar[str] = "same_entropy"

    def build(self) -> nn.Module:
        class Same(nn.Module):
            def forward(self, logits: Tensor, labels: Tensor, features: Mapping[str, Tensor]) -> Tensor:
                assert not features
                return F.cross_entropy(logits, labels)

        return Same()


@dataclass(frozen=True)
class Pull(Loss):
    """Cross-entropy, and at the chosen sites the distance from a moving mean, with a weight that is learned."""

    kind: ClassVar[str] = "pull"
    sites: tuple[str, ...] = ("2", "5")
    alpha: float = 0.1

    def build(self) -> nn.Module:
        return Pulling(self.alpha)


class Pulling(nn.Module):
    """Has a parameter, buffers and a count of steps: all a criterion may have."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(alpha))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("level", torch.zeros(()))
        self.seen: list[list[str]] = []

    def forward(self, logits: Tensor, labels: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        self.seen.append(list(features))
        spread = torch.stack([(x - x.mean(0)).square().mean() for x in features.values()]).mean()
        self.steps += 1
        self.level.lerp_(spread.detach(), 0.5)
        return F.cross_entropy(logits, labels) + self.weight * (spread - self.level).square()


def pictures(n: int = 90, *, test: int = 40, classes: int = 4, side: int = 6, seed: int = 0) -> Samples:
    """Noisy pictures around a pattern per class, (n, 1, side, side), the classes mixed."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.arange(n + test) % classes)[torch.randperm(n + test, generator=generator)]
    patterns = torch.randn(classes, 1, side, side, generator=generator)
    x = patterns[y] + torch.randn(n + test, 1, side, side, generator=generator)
    return Samples.of((x[:n], y[:n]), (x[n:], y[n:]))


def conv_sweep() -> tuple[list[Recipe], Samples]:
    """Three convolutional networks, one with dropout, one with a loss that looks inside."""
    base = Recipe(TinyConv(), epochs=8, batch_size=20, learning_rate=0.01, seed=1)
    others = [Recipe(TinyConv(dropout=0.3), epochs=8, batch_size=20, seed=2, optimizer="momentum")]
    return [base, *others, Recipe(TinyConv(), epochs=8, batch_size=20, seed=3, loss=Pull())], pictures()
