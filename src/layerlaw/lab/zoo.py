"""Networks of the papers."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from layerlaw.lab.shape import Activation, Shape

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "none": nn.Identity}


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
        if widths is None:
            even = {"inputs": inputs, "width": width, "classes": classes}
            self.shape = Shape.even(depth, **even, norm=norm, activation=activation)
        else:
            self.shape = Shape(inputs, tuple(widths), classes, norm, activation)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for i, (before, after) in enumerate(self.shape.sides[:-1], start=1):
            parts[f"linear{i}"] = nn.Linear(before, after)
            if norm:
                parts[f"norm{i}"] = nn.BatchNorm1d(after)
            parts[f"{'act' if activation == 'none' else activation}{i}"] = _ACTIVATIONS[activation]()
        parts["classifier"] = nn.Linear(*self.shape.sides[-1])
        for name, part in parts.items():
            self.add_module(name, part)

    @classmethod
    def of(cls, shape: Shape) -> "FeedForward":
        """A network of this shape, freshly initialized."""
        how = {"norm": shape.norm, "activation": shape.activation}
        return cls(inputs=shape.inputs, widths=shape.widths, classes=shape.classes, **how)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(n, …) images or vectors → (n, classes)."""
        x = x.flatten(1)
        for part in self.children():
            x = part(x)
        return x
