"""Update rules for rows of parameters: SGD, momentum and Adam as torch.optim has them, every row with its own rate."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from layerlaw.lab.recipe import ADAM, MOMENTUM, Recipe

BETA1, BETA2, EPS = ADAM["beta1"], ADAM["beta2"], ADAM["eps"]


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

    def start_epoch(self, epoch: int) -> None:
        """Set the learning rates of an epoch, counted from 0."""
        rates = [recipe.rate_at(epoch) for recipe in self.recipes]
        self._rates = rates
        self.rates.copy_(torch.tensor(rates).unsqueeze(-1))

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Move the rows against their gradients (which may be overwritten)."""
        self.steps += 1
        if parameters.device.type == "cpu":
            self._fused(parameters[self.rows], gradients[self.rows])
            return
        for c in self.columns:
            p, g = parameters[self.rows, c], gradients[self.rows, c]
            _rule(self.kind)(p, g, [m[:, c] for m in self.memory], self.rates, self.decays, self.steps)

    def _fused(self, parameters: Tensor, gradients: Tensor) -> None:
        for row, (recipe, rate) in enumerate(zip(self.recipes, self._rates, strict=True)):
            p, g = [parameters[row, c] for c in self.columns], [gradients[row, c] for c in self.columns]
            memory = [[m[row, c] for c in self.columns] for m in self.memory]
            if self.kind == "adam":
                torch._fused_adam_(
                    p,
                    g,
                    memory[0],
                    memory[1],
                    [],
                    [self.steps] * len(p),
                    lr=rate,
                    beta1=BETA1,
                    beta2=BETA2,
                    eps=EPS,
                    weight_decay=recipe.weight_decay,
                    amsgrad=False,
                    maximize=False,
                )
            else:
                torch._fused_sgd_(
                    p,
                    g,
                    memory[0] if memory else [],
                    lr=rate,
                    momentum=MOMENTUM if memory else 0.0,
                    weight_decay=recipe.weight_decay,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                    is_first_step=False,  # memory starts at zero, which gives the same first step
                )


_Step = Callable[[Tensor, Tensor, list[Tensor], Tensor, Tensor, Tensor], None]


@cache
def _rule(kind: str) -> _Step:
    """The rule as one fused GPU kernel where torch.compile works, else as plain operations."""
    plain: _Step = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}[kind]
    return torch.compile(plain, dynamic=True) if compiles() else plain


def compiles() -> bool:
    """Whether torch.compile can write GPU kernels here."""
    return importlib.util.find_spec("triton") is not None


def _sgd(p: Tensor, g: Tensor, memory: list[Tensor], rates: Tensor, decays: Tensor, steps: Tensor) -> None:
    p.sub_(rates * (g + decays * p))


def _momentum(p: Tensor, g: Tensor, memory: list[Tensor], rates: Tensor, decays: Tensor, steps: Tensor) -> None:
    memory[0].mul_(MOMENTUM).add_(g + decays * p)
    p.sub_(rates * memory[0])


def _adam(p: Tensor, g: Tensor, memory: list[Tensor], rates: Tensor, decays: Tensor, steps: Tensor) -> None:
    g = g + decays * p
    memory[0].lerp_(g, 1 - BETA1)
    memory[1].mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
    rate = rates / (1 - BETA1**steps)
    p.sub_(rate * memory[0] / (memory[1].sqrt() / (1 - BETA2**steps).sqrt() + EPS))
