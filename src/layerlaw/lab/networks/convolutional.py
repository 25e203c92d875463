"""Networks for images, layer after layer: VGG, the law's authors' variants of AlexNet and VGG13, and "pure" convolutions."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from layerlaw.errors import Demand, InputError, check_whole, demand
from layerlaw.lab.networks import Architecture, is_nested, is_tuple
from layerlaw.wording import counted

_VGG = {  # channels of the convolutions of each stage
    "vgg11": ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    "vgg13": ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    "vgg16": ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    "vgg19": ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}


@dataclass(frozen=True, kw_only=True)
class ImageNetwork(Architecture):
    """What descriptions of networks for images share: color channels, classes, and answers to images that do not fit.

    The input may be repeated along its channels, as the law's authors did: `repeat` times.
    """

    inputs: int = 3
    classes: int = 10
    repeat: int = 1

    def __post_init__(self) -> None:
        check_whole(1, inputs=self.inputs, repeat=self.repeat)
        check_whole(2, classes=self.classes)

    @property
    def sides(self) -> tuple[int, int | None]:
        """The least and the greatest number of pixels that an image may be high and wide; `None`: any."""
        return 1, None

    @property
    @abstractmethod
    def words(self) -> str:
        """What it is made of, in a few words."""

    def check_inputs(self, sample: tuple[int, ...]) -> None:
        """Images of its channels, large enough for its poolings, and of one size where it does not pool them all."""
        came = f"got samples of {' × '.join(map(str, sample))}"
        if len(sample) != 3:
            flat = "Pass images that are not flattened: Samples.of((images, labels)) keeps their shape"
            cure = "Add the axis of their channel: images.unsqueeze(1)" if len(sample) == 2 else flat
            raise InputError(f"network: expected images (channels, height, width) for {self}, {came}. {cure}.")
        channels, *pixels = sample
        if channels != self.inputs:
            last = "Put their channels first: images.permute(0, 3, 1, 2)"  # height × width × channels
            cure = last if sample[-1] < min(sample[:-1]) else f"Describe it with inputs={channels}"
            raise InputError(f"network: expected images of {self.inputs} channels for {self}, {came}. {cure}.")
        least, most = self.sides
        if min(pixels) < least or max(pixels) > (most or max(pixels)):
            size = f"{least} × {least} pixels" + ("" if most else " at least")
            cure = self._other_size(*pixels)
            raise InputError(f"network: expected images of {size} for {self}, {came}. {cure}.")
        super().check_inputs(sample)

    def _other_size(self, height: int, width: int) -> str:
        """What to do about images of another size."""
        size = f"Resize them to {self.sides[0]} × {self.sides[0]}" + ("" if self.sides[1] else " or more")
        few = f"{size}: {min(height, width)} pixels are too few for its poolings"
        if self.sides[1] is None:
            return few
        try:
            replace(self, side=height)  # type: ignore[call-arg]
        except InputError:
            return few
        return f"{size}, or describe it with side={height}" if height == width else size

    def __str__(self) -> str:
        for name, preset in self.presets().items():
            if replace(preset, inputs=self.inputs, classes=self.classes) == self:
                return name
        return self.words


@dataclass(frozen=True, kw_only=True)
class ConvolutionalNetwork(ImageNetwork):
    """Convolution → BatchNorm → ReLU per layer, a max-pool at the end of every stage, then linear layers.

    `stages` are the channels of the convolutions. They keep the size of the image (`side` pixels), a pool halves it: over
    windows of 2, or with `pool=3` over windows of 3 that overlap; `pool=0` is none. `hidden` are the widths of the linear
    layers before the classifier, each with BatchNorm and ReLU. Names of modules: conv1, norm1, relu1, pool1, …, linear1,
    …, classifier; `sites=("input", "relu*")` is every layer before it is pooled, as the law's authors measured.

    >>> ConvolutionalNetwork.named("vgg13").stages[0], str(ConvolutionalNetwork.named("vgg13", inputs=1))
    ((64, 64), 'vgg13')
    """

    kind: ClassVar[str] = "convolutional"
    stages: tuple[tuple[int, ...], ...]
    side: int = 32
    kernel: int = 3
    pool: Literal[0, 2, 3] = 2
    hidden: tuple[int, ...] = ()
    batchnorm: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kernel(self.kernel)
        demand(pool=(self.pool, Demand("2, 3 (windows that overlap) or 0 (none)", (0, 2, 3).__contains__)))
        demand(stages=(self.stages, Demand("channels per stage, ((64,), (128, 128), …)", is_nested)))
        demand(hidden=(self.hidden, Demand("widths of linear layers, (4096, 4096) or ()", is_tuple)))
        for width in (*sum(self.stages, ()), *self.hidden):
            check_whole(1, channels=width)
        check_whole(1, side=self.side)
        if not self.end_side:
            least = f"{2 ** len(self.stages)} pixels for {len(self.stages)} poolings"
            raise InputError(f"side: expected at least {least}, got {self.side}. Resize the images.")

    @classmethod
    def presets(cls) -> dict[str, Self]:
        """VGG for 32×32 images (one linear layer), the law's authors' variants, VGG11's convolutions alone."""
        found = {name: cls(stages=stages) for name, stages in _VGG.items()}
        wide: dict[str, Any] = {"kernel": 5, "hidden": (4096, 4096)}
        found["vgg13_5x5"] = replace(found["vgg13"], repeat=16, **wide)
        found["alexnet_5x5"] = cls(stages=((64,), (192,), (384, 256, 256)), pool=3, repeat=32, **wide)
        layers = len(sum(_VGG["vgg11"], ()))
        return found | {f"pure_cnn_{n}": cls(stages=((n,) * layers,), pool=0) for n in (64, 16)}

    @property
    def sides(self) -> tuple[int, int | None]:
        """Images of one size only: the first linear layer sees every pixel that is left."""
        return self.side, self.side

    @property
    def end_side(self) -> int:
        """Pixels left after all poolings, along one side."""
        side = self.side
        for _ in self.stages if self.pool else ():
            side = side // 2 if self.pool == 2 else (side + 1) // 2
        return side

    @property
    def words(self) -> str:
        """Layers, channels, and what is unusual."""
        channels = sum(self.stages, ())
        pools = f"{len(self.stages) if self.pool else 'no'} pools" + ("" if self.batchnorm else ", no BatchNorm")
        few, many = min(channels), max(channels)
        size = f"{self.kernel}×{self.kernel}, {few} {f'to {many} ' * (many > few)}channels"
        return f"{len(channels)} convolutions of {size}, {pools}, {counted(len(self.hidden) + 1, 'linear layer')}"

    def build(self) -> nn.Module:
        """As PyTorch initializes it."""
        return PlainNetwork(OrderedDict(self._parts()), repeat=1)

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        before, number = self.inputs * self.repeat, 0
        for stage, widths in enumerate(self.stages, 1):
            for width in widths:
                number += 1
                yield f"conv{number}", CopiedConv2d(before, width, self.kernel, self.repeat if number == 1 else 1)
                if self.batchnorm:
                    yield f"norm{number}", nn.BatchNorm2d(width)
                yield f"relu{number}", nn.ReLU()
                before = width
            if self.pool:
                yield f"pool{stage}", nn.MaxPool2d(self.pool, 2, padding=self.pool // 3)
        yield "flatten", nn.Flatten()
        before *= self.end_side**2
        for layer, width in enumerate(self.hidden, 1):
            yield f"linear{layer}", nn.Linear(before, width)
            if self.batchnorm:
                yield f"norm{number + layer}", nn.BatchNorm1d(width)
            yield f"relu{number + layer}", nn.ReLU()
            before = width
        yield "classifier", nn.Linear(before, self.classes)


class CopiedConv2d(nn.Conv2d):
    """A convolution of an image whose channels are repeated so many times, computed without making the copies.

    Copies of a channel have weights of their own, and W₁x + W₂x = (W₁ + W₂)x: the weights are added before the
    convolution, which has `copies` times fewer products then. Gradients and numbers of parameters are the same.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, copies: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs / copies, height, width) → (n, outputs, height, width)."""
        weight = self.weight
        if self.copies > 1:  # (outputs, copies, inputs / copies, kernel, kernel)
            weight = weight.view(len(weight), self.copies, -1, *weight.shape[2:]).sum(1)
        return self._conv_forward(x, weight, self.bias)  # type: ignore[no-any-return]


class PlainNetwork(nn.Sequential):
    """Layers one after the other, behind an input that is repeated along its channels."""

    def __init__(self, parts: OrderedDict[str, nn.Module], *, repeat: int) -> None:
        super().__init__(parts)
        self.repeat = repeat

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) → (n, classes)."""
        x = x if self.repeat == 1 else x.repeat(1, self.repeat, 1, 1)
        for part in self:
            x = part(x)
        return x


def check_kernel(kernel: int) -> None:
    """Raise unless a convolution of this size can keep the size of the image."""
    check_whole(1, kernel=kernel)
    if kernel % 2 == 0:
        raise InputError(f"kernel: expected an odd size, which keeps the size of the image, got {kernel}.")
