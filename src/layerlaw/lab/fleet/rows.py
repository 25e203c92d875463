"""Rows of parameters: where each parameter lies, and SGD, momentum and Adam as torch.optim has them, a rate per row."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from layerlaw.lab.networks.feed_forward import Shape
from layerlaw.lab.recipe import ADAM, MOMENTUM, Recipe

FUSED = True  # kernels written for fleets, several fleets at once, orders drawn ahead; off, a GPU trains by plain operations
BETA1, BETA2, EPS = ADAM["beta1"], ADAM["beta2"], ADAM["eps"]
ADAM_RULE: dict[str, Any] = {**ADAM, "amsgrad": False, "maximize": False}
# A memory that starts at zero gives the same first step.
SGD_RULE: dict[str, Any] = {"dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}


class RowLayout:
    """Columns of a row of P (`size`) parameters: W₁ b₁ … W_L b_L, then the gains γ and the shifts β of BatchNorm.

    BatchNorm's parameters lie together so that all of them are copied at once; each linear layer's columns are one piece,
    so that a frozen part is a slice. Weights are (out, in) row by row; without BatchNorm gains and shifts are empty.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape, self.size = shape, 0
        sides = [self._piece(size) for i, o in shape.sides for size in (i * o, o)]
        self.weights, self.biases = sides[::2], sides[1::2]
        widths = shape.widths if shape.norm else ()
        self.gains, self.shifts = ([self._piece(width) for width in widths] for _ in range(2))

    def _piece(self, size: int) -> slice:
        self.size += size
        return slice(self.size - size, self.size)

    def columns(self, layers: tuple[int, int]) -> list[slice]:
        """The pieces of a row that belong to the linear layers a … b−1 and their BatchNorms."""
        a, b = layers
        pieces = [slice(self.weights[a].start, self.biases[b - 1].stop)]
        for part in filter(None, (self.gains[a:b], self.shifts[a:b])):
            start, stop = part[0].start, part[-1].stop
            if start == pieces[-1].stop:
                pieces[-1] = slice(pieces[-1].start, stop)
            else:
                pieces.append(slice(start, stop))
        return pieces

    def names(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Name in `FeedForward.state_dict()` → columns and shape."""
        found: dict[str, tuple[slice, tuple[int, ...]]] = {}
        for i, (inward, outward) in enumerate(self.shape.sides):
            name = self.shape.layer_names[i]
            found[f"{name}.weight"] = (self.weights[i], (outward, inward))
            found[f"{name}.bias"] = (self.biases[i], (outward,))
            if self.shape.norm and i < len(self.shape.widths):
                found[f"norm{i + 1}.weight"] = (self.gains[i], (outward,))
                found[f"norm{i + 1}.bias"] = (self.shifts[i], (outward,))
        return found

    def initial(self, seed: int) -> Tensor:
        """One row (P,) as PyTorch initializes the module after `torch.manual_seed(seed)`, drawn without building it."""
        generator = torch.Generator().manual_seed(seed)
        row = torch.zeros(self.size)
        for weight, bias, (inward, _) in zip(self.weights, self.biases, self.shape.sides, strict=True):
            bound = inward**-0.5
            row[weight].uniform_(-bound, bound, generator=generator)
            row[bias].uniform_(-bound, bound, generator=generator)
        for gain in self.gains:
            row[gain] = 1.0
        return row


class Rule:
    """The optimizer of neighboring members: their rows of parameters, and what it remembers.

    On the CPU each row goes through torch's fused kernel; on a GPU all rows are one program with a column of rates.
    """

    def __init__(self, recipes: Sequence[Recipe], rows: slice, parameters: Tensor, columns: Sequence[slice]) -> None:
        self.recipes, self.rows, self.columns = recipes, rows, columns
        self.kind = recipes[0].optimizer
        kept = {"sgd": 0, "momentum": 1, "adam": 2}[self.kind]
        self.memory = [torch.zeros_like(parameters[rows]) for _ in range(kept)]
        self.steps = torch.zeros((), device=parameters.device)
        self.rates = parameters.new_zeros((len(recipes), 1))
        self.decays = parameters.new_tensor([[recipe.weight_decay] for recipe in recipes])
        self._rates: list[float] = []

    def start_epoch(self, epoch: int) -> None:
        """Set the learning rates of an epoch, counted from 0."""
        known: dict[Any, float] = {}  # members differ in few rates, and rates seldom change
        rates = []
        for recipe in self.recipes:
            kind = recipe.learning_rate, recipe.drops
            if kind not in known:
                known[kind] = recipe.rate_at(epoch)
            rates.append(known[kind])
        if rates != self._rates:
            self._rates = rates
            self.rates.copy_(torch.tensor(rates).unsqueeze(-1))

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Move the rows against their gradients (which may be overwritten)."""
        self.steps += 1
        if parameters.device.type == "cpu":
            self._fused(parameters[self.rows], gradients[self.rows])
            return
        rule, rates, steps = STEPS[self.kind], self.rates, self.steps
        if self.kind == "adam" and fused_path():
            rule, (rates, steps) = _adam_corrected, _on_gpu(_corrected)(rates, steps)
        for c in self.columns:
            p, g = parameters[self.rows, c], gradients[self.rows, c]
            _on_gpu(rule)(p, g, [m[:, c] for m in self.memory], rates, self.decays, steps)

    def _fused(self, parameters: Tensor, gradients: Tensor) -> None:
        for row, (recipe, rate) in enumerate(zip(self.recipes, self._rates, strict=True)):
            p, g = [parameters[row, c] for c in self.columns], [gradients[row, c] for c in self.columns]
            memory = [[m[row, c] for c in self.columns] for m in self.memory]
            decay = recipe.weight_decay
            if self.kind == "adam":
                steps = [self.steps] * len(p)
                torch._fused_adam_(p, g, memory[0], memory[1], [], steps, lr=rate, weight_decay=decay, **ADAM_RULE)
            else:
                kept, momentum = (memory[0], MOMENTUM) if memory else ([], 0.0)
                torch._fused_sgd_(p, g, kept, lr=rate, weight_decay=decay, momentum=momentum, **SGD_RULE)


@cache
def _on_gpu(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function as one fused GPU kernel where torch.compile works, else as plain operations."""
    return torch.compile(plain, dynamic=True) if compiles() else plain


def fused_path() -> bool:
    """Whether a GPU trains fleets by kernels written for them, and several at once."""
    return FUSED


def compiles() -> bool:
    """Whether torch.compile can write GPU kernels here."""
    return importlib.util.find_spec("triton") is not None


def _sgd(p: Tensor, g: Tensor, memory: list[Tensor], rates: Tensor, decays: Tensor, steps: Tensor) -> None:
    p.sub_(rates * (g + decays * p))


def _momentum(p: Tensor, g: Tensor, memory: list[Tensor], rates: Tensor, decays: Tensor, steps: Tensor) -> None:
    memory[0].mul_(MOMENTUM).add_(g + decays * p)
    p.sub_(rates * memory[0])


def _adam(p: Tensor, g: Tensor, memory: list[Tensor], rates: Tensor, decays: Tensor, steps: Tensor) -> None:
    _adam_corrected(p, g, memory, rates / (1 - BETA1**steps), decays, (1 - BETA2**steps).sqrt())


def _adam_corrected(p: Tensor, g: Tensor, memory: list[Tensor], rates: Tensor, decays: Tensor, root: Tensor) -> None:
    g = g + decays * p
    memory[0].lerp_(g, 1 - BETA1)
    memory[1].mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
    p.sub_(rates * memory[0] / (memory[1].sqrt() / root + EPS))


def _corrected(rates: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Adam's rates (E, 1) and root of the second moment's share () after so many steps, once for all parameters.

    In float64 as torch has them: of 1 − 0.999 float32 would keep five digits.
    """
    t = steps.double()
    return (rates.double() / (1 - BETA1**t)).float(), (1 - BETA2**t).sqrt().float()


STEPS: dict[str, Callable[..., None]] = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}
