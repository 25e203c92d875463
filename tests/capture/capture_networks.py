"""Small networks of every kind a probe may meet, and data for them."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from networks import Block
from torch import Tensor, nn


def seeded(make, *args, **kwargs):
    """A network with weights of its own seed."""
    torch.manual_seed(0)
    return make(*args, **kwargs)


def clouds(n: int, *shape: int, classes: int = 3, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Gaussian clouds around random class means, the classes mixed: (n, *shape) float32 and labels (n,)."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.arange(n) % classes)[torch.randperm(n, generator=generator)]
    means = torch.randn(classes, *shape, generator=generator)
    return means[y] + spread * torch.randn(n, *shape, generator=generator), y


class FNN(nn.Module):
    """Linear layers with functional ReLU; flattens its inputs itself."""

    def __init__(self, widths: tuple[int, ...] = (12, 8, 8, 8, 3)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class Beside(FNN):
    """The same, with a module that is called beside its layers."""

    def __init__(self, **beside: nn.Module) -> None:
        super().__init__()
        for name, module in beside.items():
            self.add_module(name, module)
        self.beside = tuple(beside)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.beside:
            getattr(self, name)(x)
        return super().forward(x)


class Pair(nn.Module):
    """The smallest block: two linear layers."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).relu())


class ShortcutBlock(Block):
    """A basic residual block; the shortcut is free of parameters or a 1×1 convolution, called before the rest."""

    def __init__(self, inputs: int, channels: int, stride: int, shortcut: str) -> None:
        super().__init__(inputs, channels, stride)
        self.shortcut = nn.Conv2d(inputs, channels, 1, stride) if shortcut == "conv" and stride > 1 else None

    def shortcut_of(self, x: Tensor) -> Tensor:
        return super().shortcut_of(x) if self.shortcut is None else self.shortcut(x)


class ResNet20(nn.Module):
    """Three stages of three blocks, narrow."""

    def __init__(self, shortcut: str = "free", classes: int = 3, width: int = 4) -> None:
        super().__init__()
        w = width
        self.conv1 = nn.Conv2d(3, w, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(w)
        stages = [(w, w, 1), (w, 2 * w, 2), (2 * w, 4 * w, 2)]
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(
                ShortcutBlock(a, b, s, shortcut), ShortcutBlock(b, b, 1, shortcut), ShortcutBlock(b, b, 1, shortcut)
            )
            for a, b, s in stages
        )
        self.linear = nn.Linear(4 * w, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class InPlaceBlock(nn.Module):
    """As in torchvision: in-place ReLU, `out += identity`, downsampling defined and called last."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or inputs != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class InPlaceResNet(nn.Module):
    """Stem, two stages of two in-place blocks, average pool, classifier."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(InPlaceBlock(4, 4), InPlaceBlock(4, 4))
        self.layer2 = nn.Sequential(InPlaceBlock(4, 8, 2), InPlaceBlock(8, 8))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.fc(torch.flatten(self.avgpool(self.layer2(self.layer1(x))), 1))


class DenseLayer(nn.Module):
    """Norm, ReLU, 1×1, norm, ReLU, 3×3, on the list of everything before it."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 2 * growth, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, padding=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(F.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(F.relu(self.norm2(x)))


class DenseNet(nn.Module):
    """One dense block of three layers with concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList(DenseLayer(4 + 2 * i, 2) for i in range(3))
        self.classifier = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(features))
        return self.classifier(torch.cat(features, 1).mean((2, 3)))


class Encoder(nn.Module):
    """A TransformerEncoder classifier on (n, T, d), or on (T, n, d) where `batch_first` is off."""

    def __init__(self, *, batch_first: bool, layers: int = 3, width: int = 8) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=batch_first)
        self.head = nn.Linear(width, 3)
        self.batch_first = batch_first

    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        x = self.encoder(src, src_key_padding_mask=src_key_padding_mask)
        return self.head(x[:, 0] if self.batch_first else x[0])


class Twice(nn.Module):
    """Calls one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.shared(F.relu(self.shared(F.relu(self.first(x)))))))


class Window(nn.Module):
    """Cuts (n, T, d) into windows folded into axis 0; `mixed` puts the windows before the samples."""

    def __init__(self, *, mixed: bool = False) -> None:
        super().__init__()
        self.embed, self.inner, self.mixed = nn.Linear(4, 6), nn.Linear(6, 6), mixed
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        x = self.embed(x)
        w = x.reshape(n, 4, 2, 6)  # 8 tokens as 4 windows of 2
        w = w.transpose(0, 1).reshape(4 * n, 2, 6) if self.mixed else w.reshape(4 * n, 2, 6)
        w = self.inner(w).relu()
        w = w.reshape(4, n, 2, 6).transpose(0, 1) if self.mixed else w.reshape(n, 4, 2, 6)
        return self.head(w.mean((1, 2)))


class Gated(nn.Module):
    """A squeeze-and-excitation network: with a skip connection around each block, or without."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.skip, self.stem = skip, nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "conv": nn.Conv2d(16, 16, 3, padding=1), "act": nn.ReLU(),
            "fc1": nn.Linear(16, 4), "fc1_act": nn.ReLU(), "fc2": nn.Linear(4, 16), "gate": nn.Sigmoid(),
        }) for _ in range(2))  # fmt: skip
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            y = block["act"](block["conv"](x))
            gate = block["gate"](block["fc2"](block["fc1_act"](block["fc1"](y.mean((2, 3))))))
            y = y * gate[:, :, None, None]
            x = x + y if self.skip else y
        return self.fc(x.mean((2, 3)))
