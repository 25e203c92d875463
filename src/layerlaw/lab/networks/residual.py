"""Residual networks for images, and one whose blocks share their weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import Demand, InputError, check_choice, check_whole, demand
from layerlaw.lab.networks import is_nested, is_tuple
from layerlaw.lab.networks.convolutional import ImageNetwork, PlainNetwork, check_kernel

Stem = Literal["none", "3x3", "7x7"]
Shortcut = Literal["convolution", "zeros"]
StepNorm = Literal["batch", "group"]


@dataclass(frozen=True, kw_only=True)
class ResidualNetwork(ImageNetwork):
    """Stages of residual blocks: x → relu(x + convolutions(x)), with BatchNorm behind every convolution.

    Per stage `blocks` (how many), `widths` (channels), `kernels` (the sizes of a block's convolutions, two or three) and
    `strides` (of its first block; 1 everywhere by default). The last convolution of a block has `expansion` times as many
    channels. Where shapes differ the `shortcut` is a 1×1 convolution with BatchNorm, or every other pixel with zero
    channels added ("zeros"). `stem`: none, a 3×3 convolution, or that of ImageNet networks (7×7 and a pool, each halving
    the image). Without `pooled` the classifier sees every pixel of images of `side` pixels.
    """

    kind: ClassVar[str] = "residual"
    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    kernels: tuple[tuple[int, ...], ...]
    strides: tuple[int, ...] = ()
    expansion: int = 1
    shortcut: Shortcut = "convolution"
    stem: Stem = "3x3"
    pooled: bool = True
    side: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        per_stage = Demand("a value per stage, (2, 2, 2, 2) for example", is_tuple)
        demand(blocks=(self.blocks, per_stage), widths=(self.widths, per_stage), strides=(self.strides, per_stage))
        sizes = Demand("sizes of the convolutions of a block, per stage, ((3, 3),) * 4 for example", is_nested)
        demand(kernels=(self.kernels, sizes))
        object.__setattr__(self, "strides", self.strides or (1,) * len(self.blocks))
        check_choice("stem", self.stem, get_args(Stem))
        check_choice("shortcut", self.shortcut, get_args(Shortcut))
        check_whole(1, expansion=self.expansion, side=self.side)
        for name in ("widths", "kernels", "strides"):
            if not self.blocks or len(getattr(self, name)) != len(self.blocks):
                came = f"{getattr(self, name)!r} for blocks={self.blocks!r}"
                raise InputError(f"{name}: expected one per stage, got {came}.")
        for count, width, stride in zip(self.blocks, self.widths, self.strides, strict=True):
            check_whole(1, blocks=count, widths=width, strides=stride)
        for kernels in self.kernels:
            if len(kernels) not in (2, 3):
                raise InputError(f"kernels: expected two or three convolutions per block, got {kernels!r}.")
            for kernel in kernels:
                check_kernel(kernel)
        if self.shortcut == "zeros" and any(b < a for a, b in pairwise(self._channels)):
            raise InputError(
                f"widths: expected channels that do not fall for shortcut='zeros', got {self.widths} behind "
                f"{self._channels[0]}. Use shortcut='convolution'."
            )

    @classmethod
    def presets(cls) -> dict[str, Self]:
        """The CIFAR forms (3×3 stem), ImageNet's stem, and the law's authors' networks of four blocks."""
        wide: dict[str, Any] = {"widths": (64, 128, 256, 512), "strides": (1, 2, 2, 2)}
        plain: dict[str, Any] = {"blocks": (2, 2, 2, 2), "kernels": ((3, 3),) * 4, **wide}
        deep: dict[str, Any] = {"blocks": (3, 4, 6, 3), "kernels": ((1, 3, 1),) * 4, "expansion": 4, **wide}
        thin: dict[str, Any] = {"blocks": (3, 3, 3), "widths": (16, 32, 64), "strides": (1, 2, 2)}
        four: dict[str, Any] = {"repeat": 8, "stem": "none", "pooled": False}
        return {
            "resnet18": cls(**plain),
            "resnet20": cls(kernels=((3, 3),) * 3, shortcut="zeros", **thin),
            "resnet50": cls(**deep),
            "resnet18_7x7": cls(stem="7x7", **plain),
            "resnet50_7x7": cls(stem="7x7", **deep),
            "resnet_2layer": cls(blocks=(4,), widths=(8,), kernels=((3, 3),), **four),
            "resnet_3layer": cls(blocks=(4,), widths=(8,), kernels=((5, 5, 5),), **four),
            "resnet_mixed": cls(blocks=(2, 2), widths=(8, 8), kernels=((5, 5, 5), (3, 3)), **four),
        }

    @property
    def sides(self) -> tuple[int, int | None]:
        """Any size where all pixels are averaged at the end."""
        return (1, None) if self.pooled else (self.side, self.side)

    @property
    def _channels(self) -> tuple[int, ...]:
        """In front of the first block, and behind each stage."""
        first = self.inputs * self.repeat if self.stem == "none" else self.widths[0]
        return first, *(width * self.expansion for width in self.widths)

    @property
    def words(self) -> str:
        """Blocks and channels."""
        layers = sorted({len(kernels) for kernels in self.kernels})
        of = " and ".join(map(str, layers))
        widths = ", ".join(map(str, self.widths))
        return f"{sum(self.blocks)} residual blocks of {of} layers, widths {widths}, stem {self.stem}"

    def build(self) -> nn.Module:
        """As PyTorch initializes it."""
        return PlainNetwork(OrderedDict(self._parts()), repeat=self.repeat)

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        before, side = self._channels[0], self.side
        if self.stem != "none":
            kernel, stride = (3, 1) if self.stem == "3x3" else (7, 2)
            inputs = self.inputs * self.repeat
            yield "conv", nn.Conv2d(inputs, before, kernel, stride, padding=kernel // 2, bias=False)
            yield "norm", nn.BatchNorm2d(before)
            yield "relu", nn.ReLU()
        if self.stem == "7x7":
            yield "pool", nn.MaxPool2d(3, 2, padding=1)
            side = (side + 3) // 4
        per_stage = zip(self.blocks, self.widths, self.kernels, self.strides, strict=True)
        for stage, (count, width, kernels, stride) in enumerate(per_stage, 1):
            parts = []
            for block in range(count):
                shape = (before, width, width * self.expansion)
                parts.append(ResidualBlock(shape, kernels, 1 if block else stride, self.shortcut))
                before = shape[-1]
            yield f"stage{stage}", nn.Sequential(*parts)
            side = -(-side // stride)
        if self.pooled:
            yield "average", nn.AdaptiveAvgPool2d(1)
        yield "flatten", nn.Flatten()
        yield "classifier", nn.Linear(before if self.pooled else before * side**2, self.classes)


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + convolutions(x)); of three convolutions the second has the stride, of two the first."""

    def __init__(
        self, channels: tuple[int, int, int], kernels: tuple[int, ...], stride: int, shortcut: Shortcut
    ) -> None:
        super().__init__()
        before, inner, after = channels
        widths = (before, *(inner,) * (len(kernels) - 1), after)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for i, ((a, b), kernel) in enumerate(zip(pairwise(widths), kernels, strict=True), 1):
            step = stride if i == len(kernels) - 1 else 1
            parts[f"conv{i}"] = nn.Conv2d(a, b, kernel, step, padding=kernel // 2, bias=False)
            parts[f"norm{i}"] = nn.BatchNorm2d(b)
            if i < len(kernels):
                parts[f"relu{i}"] = nn.ReLU()
        self.branch = nn.Sequential(parts)
        self.shortcut: nn.Module = nn.Identity()
        if (stride != 1 or before != after) and shortcut == "convolution":
            convolution = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=convolution, norm=nn.BatchNorm2d(after)))
        elif stride != 1 or before != after:
            self.shortcut = PaddedShortcut(stride, after - before)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(n, before, h, w) → (n, after, h / stride, w / stride)."""
        return self.relu(self.shortcut(x) + self.branch(x))  # type: ignore[no-any-return]


class PaddedShortcut(nn.Module):
    """A shortcut without parameters: every so many pixels, and channels of zeros on both sides."""

    def __init__(self, stride: int, added: int) -> None:
        super().__init__()
        self.stride, self.pads = stride, (added // 2, added - added // 2)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) → (n, c + added, h / stride, w / stride)."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *self.pads))


@dataclass(frozen=True, kw_only=True)
class TiedNetwork(ImageNetwork):
    """One residual block applied again and again, as an ODE is solved: x → x + (time / steps) · f(x), `steps` times.

    f is relu → convolution → relu → convolution with norms in between; its convolutions are the same at every step. With
    `norms="batch"` every step has a BatchNorm of its own (one for all steps would mix their statistics), with "group" a
    GroupNorm is shared as well, and f is the same function at every step. A 3×3 convolution comes before, an average over
    all pixels and a linear classifier behind.
    """

    kind: ClassVar[str] = "tied"
    channels: int = 32
    steps: int = 8
    time: float = 4.0
    kernel: int = 3
    norms: StepNorm = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(1, channels=self.channels, steps=self.steps)
        check_kernel(self.kernel)
        check_choice("norms", self.norms, get_args(StepNorm))
        if not 0 < self.time < float("inf"):
            raise InputError(f"time: expected a positive number, got {self.time!r}.")

    @classmethod
    def presets(cls) -> dict[str, Self]:
        """Eight steps, with norms of their own or shared."""
        return {"tied_resnet": cls(), "tied_resnet_group": cls(norms="group")}

    @property
    def words(self) -> str:
        """Steps and channels."""
        return f"{self.steps} steps of one residual block, {self.channels} channels, {self.norms} norms"

    def build(self) -> nn.Module:
        """As PyTorch initializes it."""
        return TiedSteps(self)


class TiedSteps(nn.Module):
    """The network of a `TiedNetwork`."""

    def __init__(self, shape: TiedNetwork) -> None:
        super().__init__()
        C, self.repeat, self.steps = shape.channels, shape.repeat, shape.steps
        self.conv = nn.Conv2d(shape.inputs * shape.repeat, C, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(C) if shape.norms == "batch" else nn.GroupNorm(1, C)
        self.change = StepChange(shape)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(C, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) → (n, classes)."""
        x = self.norm(self.conv(x.repeat(1, self.repeat, 1, 1)))
        for step in range(self.steps):
            x = self.change(x, step)
        return self.classifier(self.average(x).flatten(1))  # type: ignore[no-any-return]


class StepChange(nn.Module):
    """x → x + h·f(x): the same convolutions at every step, norms as described; what it gives is the state of the ODE."""

    def __init__(self, shape: TiedNetwork) -> None:
        super().__init__()
        C, k, self.size = shape.channels, shape.kernel, shape.time / shape.steps
        self.conv1 = nn.Conv2d(C, C, k, padding=k // 2, bias=False)
        self.conv2 = nn.Conv2d(C, C, k, padding=k // 2, bias=False)
        own = shape.norms == "batch"
        self.norms1, self.norms2 = (
            nn.ModuleList(nn.BatchNorm2d(C) if own else nn.GroupNorm(1, C) for _ in range(shape.steps if own else 1))
            for _ in range(2)
        )

    def forward(self, x: Tensor, step: int) -> Tensor:
        """(n, c, h, w) → the same shape."""
        step = step if len(self.norms1) > 1 else 0
        y = self.norms1[step](self.conv1(F.relu(x)))
        return x + self.size * self.norms2[step](self.conv2(F.relu(y)))  # type: ignore[no-any-return]
