"""Networks of the papers."""

from collections import OrderedDict

from torch import Tensor, nn

from layerlaw.errors import InputError


class FeedForward(nn.Module):
    """Linear → BatchNorm → ReLU per hidden layer, then a linear classifier; `depth` counts all linear layers.

    >>> net = FeedForward(depth=8, inputs=100, width=100, classes=10)
    >>> sum(isinstance(m, nn.Linear) for m in net.modules())
    8
    """

    def __init__(self, *, depth: int, inputs: int, width: int = 100, classes: int = 10) -> None:
        super().__init__()
        for name, value, least in (
            ("depth", depth, 2),
            ("inputs", inputs, 1),
            ("width", width, 1),
            ("classes", classes, 2),
        ):
            if value < least:
                raise InputError(f"{name}: expected at least {least}, got {value}.")
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for i in range(1, depth):
            parts[f"linear{i}"] = nn.Linear(inputs if i == 1 else width, width)
            parts[f"norm{i}"] = nn.BatchNorm1d(width)
            parts[f"relu{i}"] = nn.ReLU()
        parts["classifier"] = nn.Linear(width if depth > 1 else inputs, classes)
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """(n, …) images or vectors → (n, classes)."""
        x = x.flatten(1)
        for part in self.children():
            x = part(x)
        return x
