"""What a feed-forward network looks like: widths, BatchNorm or not, activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from layerlaw.errors import InputError

Activation = Literal["relu", "tanh", "gelu", "none"]


@dataclass(frozen=True)
class Shape:
    """A feed-forward network: per hidden layer Linear → BatchNorm → activation, then a linear classifier.

    `widths` are those of the hidden layers, from the input on. Depth counts all linear layers, as the papers do.

    >>> Shape.even(8).depth, Shape.even(8).widths[:2]
    (8, (100, 100))
    """

    inputs: int
    widths: tuple[int, ...]
    classes: int = 10
    norm: bool = True
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        widths: Any = self.widths
        if isinstance(widths, int):
            raise InputError(
                f"widths: expected the widths of the hidden layers, ({widths}, …), got {widths}. "
                "Shape.even(depth, width=…) makes them all alike."
            )
        object.__setattr__(self, "widths", tuple(self.widths))
        if not self.widths:
            raise InputError("depth: expected at least 2 (one hidden layer and the classifier), got 1.")
        for name, value, least in (
            ("inputs", self.inputs, 1),
            ("width", min(self.widths), 1),
            ("classes", self.classes, 2),
        ):
            if value < least:
                raise InputError(f"{name}: expected at least {least}, got {value}.")
        if self.activation not in get_args(Activation):
            raise InputError(f"activation: expected one of {', '.join(get_args(Activation))}, got {self.activation!r}.")

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
        if depth < 2:
            raise InputError(f"depth: expected at least 2 (one hidden layer and the classifier), got {depth}.")
        return cls(inputs, (width,) * (depth - 1), classes, norm, activation)

    @property
    def depth(self) -> int:
        """Number of linear layers, the classifier included."""
        return len(self.widths) + 1

    @property
    def sides(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of every linear layer."""
        ends: Sequence[int] = (self.inputs, *self.widths, self.classes)
        return tuple(pairwise(ends))

    def __str__(self) -> str:
        same = len(set(self.widths)) == 1
        widths = f"width {self.widths[0]}" if same else f"widths {', '.join(map(str, self.widths))}"
        extras = ("" if self.norm else ", no BatchNorm") + ("" if self.activation == "relu" else f", {self.activation}")
        return f"depth {self.depth}, {widths}{extras}"
