"""How a network is trained: one frozen, validated description, and grids of them."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from layerlaw.errors import InputError, check_choice, check_seed, check_whole, shown
from layerlaw.lab.losses import CrossEntropy, Loss
from layerlaw.lab.networks import Architecture, Precision
from layerlaw.lab.networks.feed_forward import Shape
from layerlaw.lab.samples import Samples
from layerlaw.wording import shortened

Optimizer = Literal["sgd", "momentum", "adam"]
MOMENTUM = 0.9
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


@dataclass(frozen=True)
class Recipe:
    """How one network is trained; the defaults are those of the law's authors (He & Su), 8 layers with Adam.

    `network` and `loss` are descriptions; a network that has a name may be given by it ("resnet18"), a loss without
    settings by its kind. `data` names the samples it is trained on. The learning rate is divided by ten at the shares
    `drops` of the training. `layers=(a, b)` trains the layers a … b−1 (from 0; of a feed-forward network each linear layer
    with its BatchNorm) and leaves the others as they are; `decay_frozen` steps them too, with gradients of 0, as torch did
    up to 1.13 with layers that had been trained before (weight decay then moves them; fleets only). Weight decay is coupled
    L2 on all trained parameters, BatchNorm's too, as the authors had it. `precision` is that of products on a GPU:
    "float32", "tf32", or "bf16" (autocast; parameters, BatchNorm and loss stay float32); `None` is what the network says:
    TF32, of feed-forward networks float32. On a CPU all is float32.
    """

    network: Architecture = field(default_factory=lambda: Shape.even(8))
    data: str = "data"
    optimizer: Optimizer = "adam"
    learning_rate: float = 1e-3
    epochs: int = 600
    batch_size: int = 128
    weight_decay: float = 5e-4
    drops: tuple[float, ...] = (1 / 3, 2 / 3)
    layers: tuple[int, int] | None = None
    decay_frozen: bool = False
    seed: int = 666
    loss: Loss = field(default_factory=CrossEntropy)
    precision: Precision | None = None

    def __post_init__(self) -> None:
        given: Any = self.drops
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise InputError(f"drops: expected shares of the training such as (0.5,), got {shown(given)}.")
        object.__setattr__(self, "drops", tuple(given))
        if isinstance(self.network, str):
            object.__setattr__(self, "network", Architecture.named(self.network))
        if isinstance(self.loss, str):
            object.__setattr__(self, "loss", Loss.of_kind(self.loss)())
        for name, base, such in (
            ("network", Architecture, "Shape.even(8), or a name such as 'resnet18'"),
            ("loss", Loss, "CrossEntropy()"),
        ):
            if not isinstance(value := getattr(self, name), base):
                came = f"a {type(value).__name__}" if isinstance(value, nn.Module) else shown(value)
                cure = f"One of your own is a subclass of layerlaw.lab.{base.__name__} with build(); see docs/lab.md"
                raise InputError(f"{name}: expected a description such as {such}, got {came}. {cure}.")
        check_choice("optimizer", self.optimizer, get_args(Optimizer))
        check_choice("precision", self.precision, (*get_args(Precision), None))
        check_whole(1, epochs=self.epochs, batch_size=self.batch_size)
        check_seed(self.seed)
        check_positive(self, "learning_rate")
        check_positive(self, "weight_decay", or_zero=True)
        if any(not 0 < share < 1 for share in self.drops):
            raise InputError(f"drops: expected shares of the training between 0 and 1, got {self.drops}.")
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(self.layers))
            if not self.network.depth:
                raise InputError(f"layers: expected None for {self.network}, which has no numbered layers.")
            check_layers("layers", self.layers, self.network.depth)

    @property
    def trained(self) -> tuple[int, int]:
        """The linear layers that learn, as (first, beyond the last)."""
        return self.layers or (0, self.network.depth)

    def rate_at(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 0; the first one always has the whole rate.

        >>> [Recipe(epochs=6).rate_at(epoch) for epoch in range(6)]
        [0.001, 0.001, 0.0001, 0.0001, 1e-05, 1e-05]
        """
        dropped = sum(epoch >= max(1, int(share * self.epochs + 1e-9)) for share in self.drops)
        return float(f"{self.learning_rate / 10**dropped:.12g}")

    def grid(self, **choices: Iterable[Any]) -> list[Recipe]:
        """All combinations of these choices, the last one varying fastest.

        >>> [(r.learning_rate, r.seed) for r in Recipe().grid(learning_rate=(0.1, 0.3), seed=(1, 2))]
        [(0.1, 1), (0.1, 2), (0.3, 1), (0.3, 2)]
        """
        known = [f.name for f in fields(self)]
        for name, values in choices.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.4)
                hint = "learning_rate" if name == "lr" else near[0] if near else ""
                hint = f" Did you mean {hint}?" if hint else ""
                raise InputError(f"grid: expected some of {', '.join(known)}, got {name!r}.{hint}")
            if isinstance(values, str) or not isinstance(values, Iterable):
                write = f"Write {name}=({values!r},)"
                raise InputError(f"grid: expected several values of {name}, got {values!r}. {write}.")
        combinations = itertools.product(*choices.values())
        return [replace(self, **dict(zip(choices, values, strict=True))) for values in combinations]

    @property
    def words(self) -> str:
        """The recipe in short: not every field of it.

        >>> Recipe(Shape.even(4), learning_rate=0.01, seed=1).words
        'depth 4, width 100; adam, learning rate 0.01, seed 1'
        """
        trained = f"{self.optimizer}, learning rate {self.learning_rate:g}, seed {self.seed}"
        loss = [] if self.loss == CrossEntropy() else [str(self.loss)]
        data = [] if self.data == "data" else [f"data {self.data}"]
        return "; ".join(shortened(part, 100) for part in (str(self.network), trained, *loss, *data))

    def precision_on(self, device: torch.device) -> Precision:
        """In which products are computed there."""
        if device.type == "cuda":
            return self.precision or self.network.precision
        if self.precision == "bf16":  # some CPUs die of it
            cure = "Train it on a GPU, or leave the precision out"
            raise InputError(f"precision: expected 'float32' on the device '{device}', got 'bf16'. {cure}.")
        return "float32"

    def optimizer_for(self, *modules: nn.Module, capturable: bool = False) -> torch.optim.Optimizer:
        """The same rule for the parameters of any modules; `capturable`: in a CUDA graph."""
        parameters = [parameter for module in modules for parameter in module.parameters()]
        how: Any = {"lr": self.learning_rate, "weight_decay": self.weight_decay, "fused": True}
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, capturable=capturable, **how)
        return torch.optim.SGD(parameters, momentum=MOMENTUM if self.optimizer == "momentum" else 0.0, **how)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {
            field.name: getattr(self, field.name) for field in fields(self)
        }  # not asdict, which is slow on thousands
        plain |= {"network": self.network.to_dict(), "loss": self.loss.to_dict()}
        if self.precision is None:  # as recipes were before they had one: their files are still theirs
            del plain["precision"]
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """The inverse of `to_dict`, also after a trip through JSON."""
        parts = {"network": Architecture.from_dict(data["network"]), "loss": Loss.from_dict(data["loss"])}
        return cls(**{**data, **parts})


@dataclass(frozen=True, eq=False)
class Member:
    """One network of a sweep. `key` is what makes it what it is: recipe, data, schedule and start."""

    recipe: Recipe
    samples: Samples
    key: str
    start: Mapping[str, Tensor] | None = None


def check_positive(recipe: Any, name: str, *, or_zero: bool = False) -> None:
    """Raise unless a field is a finite number above 0."""
    value = getattr(recipe, name)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name}: expected a number, got {value!r}.")
    if not (0 < float(value) < float("inf") or (or_zero and value == 0)):
        raise InputError(f"{name}: expected a {'number ≥ 0' if or_zero else 'positive number'}, got {value}.")


def check_layers(name: str, layers: tuple[int, ...], depth: int) -> None:
    """Raise unless (first, beyond the last) are layers of a network of this depth."""
    if len(layers) != 2 or not 0 <= layers[0] < layers[1] <= depth:
        raise InputError(f"{name}: expected (first, beyond the last) within 0 … {depth}, got {layers}.")
