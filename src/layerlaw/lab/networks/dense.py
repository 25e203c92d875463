"""Dense networks for images: every layer sees all that came before."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import Demand, check_whole, demand
from layerlaw.lab.networks import is_tuple
from layerlaw.lab.networks.convolutional import ImageNetwork, PlainNetwork


@dataclass(frozen=True, kw_only=True)
class DenseNetwork(ImageNetwork):
    """Dense blocks: every layer adds `growth` channels to all that came before; between blocks half of them are kept.

    `layers` per block; a layer is BatchNorm → ReLU → 1×1 convolution to 4·growth channels → BatchNorm → ReLU → 3×3
    convolution. The first convolution (3×3, the CIFAR form) gives 2·growth channels. The modules stage1, stage2, … are the
    dense blocks, transition1, … what is between them: a 1×1 convolution and an average over 2×2 pixels.
    """

    kind: ClassVar[str] = "dense"
    layers: tuple[int, ...] = (6, 12, 36, 24)
    growth: int = 48

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(1, growth=self.growth)
        blocks = Demand(
            "numbers of layers of the dense blocks, (6, 12, 24, 16) for example", lambda v: is_tuple(v) and v
        )
        demand(layers=(self.layers, blocks))
        for count in self.layers:
            check_whole(1, layers=count)

    @classmethod
    def presets(cls) -> dict[str, Self]:
        """The CIFAR forms of DenseNet121 and DenseNet161."""
        return {"densenet161": cls(), "densenet121": cls(layers=(6, 12, 24, 16), growth=32)}

    @property
    def sides(self) -> tuple[int, int | None]:
        """Every transition halves the image."""
        return 2 ** (len(self.layers) - 1), None

    @property
    def words(self) -> str:
        """Blocks and growth."""
        return f"dense blocks of {', '.join(map(str, self.layers))} layers, growth {self.growth}"

    def build(self) -> nn.Module:
        """As PyTorch initializes it."""
        return PlainNetwork(OrderedDict(self._parts()), repeat=self.repeat)

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        width = 2 * self.growth
        yield "conv", nn.Conv2d(self.inputs * self.repeat, width, 3, padding=1, bias=False)
        for stage, count in enumerate(self.layers, 1):
            if stage > 1:
                yield f"transition{stage - 1}", _transition(width)
                width //= 2
            yield (
                f"stage{stage}",
                DenseBlock(*(DenseLayer(width + i * self.growth, self.growth) for i in range(count))),
            )
            width += count * self.growth
        yield "norm", nn.BatchNorm2d(width)
        yield "relu", nn.ReLU()
        yield "average", nn.AdaptiveAvgPool2d(1)
        yield "flatten", nn.Flatten()
        yield "classifier", nn.Linear(width, self.classes)


def _transition(width: int) -> nn.Module:
    convolution = nn.Conv2d(width, width // 2, 1, bias=False)
    parts: dict[str, nn.Module] = {"norm": nn.BatchNorm2d(width), "relu": nn.ReLU(), "conv": convolution}
    return nn.Sequential(OrderedDict(**parts, average=nn.AvgPool2d(2)))


class DenseLayer(nn.Module):
    """(n, c, h, w) → (n, c + growth, h, w): what came in, with `growth` channels more."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(4 * growth)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """All channels so far and the new ones."""
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat((x, self.conv2(F.relu(self.norm2(y)))), 1)


class DenseBlock(nn.Sequential):
    """Dense layers one after the other; trained on CUDA, with images channels last, as one operation (`dense_kernels`)."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) → all channels of the block."""
        kernels = _kernels() if not torch.compiler.is_compiling() and self._as_one(x) else None
        if kernels is None:
            return super().forward(x)  # type: ignore[no-any-return,no-untyped-call]
        layers: list[Any] = list(self)
        parts = [part for layer in layers for part in ((layer.norm1, layer.conv1), (layer.norm2, layer.conv2))]
        parameters = [one for norm, convolution in parts for one in (norm.weight, norm.bias, convolution.weight)]
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        y: Tensor
        y, *statistics = kernels.dense_block(x, dtype, layers[0].norm1.eps, parameters)
        self._follow(statistics, x.numel() // x.shape[1])
        return y

    def _as_one(self, x: Tensor) -> bool:
        """Whether it is trained there, its layers are as they were built, and nothing is wanted of its inside."""
        if not (x.is_cuda and self.training and torch.is_grad_enabled() and x.dtype != torch.float64):
            return False
        if torch.cuda.get_device_capability(x.device) < (8, 0):  # Triton may not know older ones
            return False
        inside = [module for module in self.modules() if module is not self]
        return x.is_contiguous(memory_format=torch.channels_last) and all(map(_as_built, inside)) and len(self) > 0

    @torch.no_grad()
    def _follow(self, statistics: list[Tensor], count: int) -> None:
        """Running statistics go on, as BatchNorm has them: by a tenth, of the unbiased variance."""
        layers: list[Any] = list(self)
        before, inside = [layer.norm1 for layer in layers], [layer.norm2 for layer in layers]
        widths = [norm.num_features for norm in inside]

        def apart(channels: Tensor, inner: Tensor) -> list[Tensor]:
            return [*(channels[: norm.num_features] for norm in before), *torch.split(inner, widths)]

        mean, variance, inner_mean, inner_variance = statistics
        unbiased = count / max(1, count - 1)
        every = [*before, *inside]
        torch._foreach_lerp_([norm.running_mean for norm in every], apart(mean, inner_mean), every[0].momentum)
        variances = apart(variance * unbiased, inner_variance * unbiased)
        torch._foreach_lerp_([norm.running_var for norm in every], variances, every[0].momentum)
        torch._foreach_add_([norm.num_batches_tracked for norm in every], 1)


def _as_built(module: nn.Module) -> bool:
    """Whether a part of a block does what it did when it was built, and nobody looks: not so with BatchNorm over ranks."""
    if type(module) not in (DenseLayer, nn.BatchNorm2d, nn.Conv2d):
        return False
    looked_at = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    follows = not isinstance(module, nn.BatchNorm2d) or (module.track_running_stats and module.momentum == 0.1)
    return module.training and follows and not looked_at


@cache
def _kernels() -> Any:
    """The kernels; `None` where Triton is not installed."""
    try:
        return importlib.import_module("layerlaw.lab.dense_kernels")
    except ImportError:
        return None
