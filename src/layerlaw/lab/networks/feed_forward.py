"""Feed-forward networks, those of the law's authors: Linear → BatchNorm → activation, then a linear classifier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor, nn

from layerlaw.errors import InputError, check_choice, demand, whole
from layerlaw.lab.networks import Architecture, Precision

Activation = Literal["relu", "tanh", "gelu", "none"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "none": nn.Identity}
DEPTH = replace(whole(2, 10**6), words="at least 2 (one hidden layer and the classifier)")
SOME, SEVERAL = replace(whole(1), words="at least 1"), replace(whole(2), words="at least 2")


@dataclass(frozen=True)
class Shape(Architecture):
    """A feed-forward network: per hidden layer Linear → BatchNorm → activation, then a linear classifier.

    `widths` are those of the hidden layers, from the input on. Depth counts all linear layers, as the papers do.

    >>> Shape.even(8).depth, Shape.even(8).widths[:2]
    (8, (100, 100))
    """

    kind: ClassVar[str] = "feed_forward"
    precision: ClassVar[Precision] = "float32"  # as in a fleet
    inputs: int
    widths: tuple[int, ...]
    classes: int = 10
    norm: bool = True
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        widths: Any = self.widths
        if isinstance(widths, int):
            alike = "Shape.even(depth, width=…) makes them all alike"
            raise InputError(f"widths: expected the widths of the hidden layers, ({widths}, …), got {widths}. {alike}.")
        object.__setattr__(self, "widths", tuple(self.widths))
        if not self.widths:
            raise InputError("depth: expected at least 2 (one hidden layer and the classifier), got 1.")
        demand(inputs=(self.inputs, SOME), classes=(self.classes, SEVERAL))
        for width in self.widths:
            demand(width=(width, SOME))
        check_choice("activation", self.activation, get_args(Activation))

    @classmethod
    def even(
        cls,
        depth: int,
        *,
        inputs: int = 100,
        width: int = 100,
        classes: int = 10,
        norm: bool = True,
        activation: Activation = "relu",
    ) -> Shape:
        """All hidden layers of one width; the defaults are the network of He & Su on 10×10 images."""
        demand(depth=(depth, DEPTH))
        return cls(inputs, (width,) * (depth - 1), classes, norm, activation)

    @property
    def depth(self) -> int:
        """Number of linear layers, the classifier included."""
        return len(self.widths) + 1

    @property
    def sides(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every linear layer."""
        return tuple(pairwise((self.inputs, *self.widths, self.classes)))

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the linear layers; what they receive is what is measured."""
        return (*(f"linear{i + 1}" for i in range(len(self.widths))), "classifier")

    def layer_modules(self, layers: tuple[int, int]) -> set[str]:
        """The linear layers a … b−1, and their BatchNorms."""
        return {*self.layer_names[slice(*layers)], *(f"norm{i + 1}" for i in range(*layers))}

    def build(self) -> FeedForward:
        """As PyTorch initializes it."""
        return FeedForward(**vars(self))

    def multiplications(self, sample: tuple[int, ...]) -> int:
        """One per weight."""
        return sum(i * o for i, o in self.sides)

    def check_inputs(self, sample: tuple[int, ...]) -> None:
        """Any shape will do that has as many numbers; it is flattened."""
        if math.prod(sample) != self.inputs:
            came = " × ".join(map(str, sample))
            raise InputError(f"network: expected {self.inputs} numbers per sample ({self}), got {came}.")

    def __str__(self) -> str:
        one = len(set(self.widths)) == 1
        widths = f"width {self.widths[0]}" if one else f"widths {', '.join(map(str, self.widths))}"
        extras = ("" if self.norm else ", no BatchNorm") + ("" if self.activation == "relu" else f", {self.activation}")
        return f"depth {self.depth}, {widths}{extras}"


class FeedForward(nn.Module):
    """Linear → BatchNorm → ReLU per hidden layer, then a linear classifier; `depth` counts all linear layers.

    `widths` gives every hidden layer its own width and takes the place of `depth` and `width`; `norm=False` leaves
    BatchNorm out; `activation` is "relu", "tanh", "gelu" or "none" (a linearized network).

    >>> net = FeedForward(depth=8, inputs=100, width=100, classes=10)
    >>> sum(isinstance(m, nn.Linear) for m in net.modules())
    8
    """

    def __init__(
        self,
        *,
        inputs: int,
        depth: int = 0,
        width: int = 100,
        widths: Sequence[int] | None = None,
        classes: int = 10,
        norm: bool = True,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        hidden = Shape.even(depth, width=width).widths if widths is None else tuple(widths)
        self.shape = Shape(inputs, hidden, classes, norm, activation)
        for i, (before, after) in enumerate(self.shape.sides[:-1], start=1):
            self.add_module(f"linear{i}", nn.Linear(before, after))
            if norm:
                self.add_module(f"norm{i}", nn.BatchNorm1d(after))
            self.add_module(f"{'act' if activation == 'none' else activation}{i}", _ACTIVATIONS[activation]())
        self.classifier = nn.Linear(*self.shape.sides[-1])

    def forward(self, x: Tensor) -> Tensor:
        """(n, …) images or vectors → (n, classes)."""
        x = x.flatten(1)
        for part in self.children():
            x = part(x)
        return x
