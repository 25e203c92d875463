"""How a language model is trained: one frozen, validated description."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import nn

from layerlaw.errors import InputError

Task = Literal["next", "masked"]
FINAL_SHARE = 0.1


@dataclass(frozen=True)
class TextRecipe:
    """How one language model is trained: AdamW, linear warm-up, then a cosine down to a tenth of the learning rate.

    A step sees `batch_size` windows of `context` tokens. `task` is "next" (predict the next token) or "masked" (BERT's
    scheme on `mask_share` of the tokens). Weight decay acts on the matrices alone. `clip` bounds the norm of the
    gradient (`math.inf`: no bound).
    """

    steps: int = 2000
    batch_size: int = 64
    context: int = 256
    learning_rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    task: Task = "next"
    mask_share: float = 0.15
    seed: int = 666

    def __post_init__(self) -> None:
        if self.task not in get_args(Task):
            raise InputError(f"task: expected 'next' or 'masked', got {self.task!r}.")
        for name, least in (("steps", 1), ("batch_size", 1), ("context", 1), ("warmup", 0), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name}: expected a whole number of at least {least}, got {value!r}.")
        for name in ("learning_rate", "weight_decay", "clip", "mask_share"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise InputError(f"{name}: expected a number, got {value!r}.")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate: expected a positive number, got {self.learning_rate}.")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay: expected a number ≥ 0, got {self.weight_decay}.")
        if not self.clip > 0:
            raise InputError(f"clip: expected a positive number (math.inf: no clipping), got {self.clip}.")
        if not 0 < self.mask_share < 1:
            raise InputError(f"mask_share: expected a share between 0 and 1, got {self.mask_share}.")
        if self.seed >= 2**63:
            raise InputError(f"seed: expected a number from 0 to 2**63 − 1, got {self.seed}.")
        if self.warmup >= self.steps:
            raise InputError(
                f"warmup: expected fewer than the {self.steps} steps, got {self.warmup}. Train longer or warm up less."
            )
        betas: Any = self.betas
        if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(_is_share(b) for b in betas):
            raise InputError(f"betas: expected two numbers from 0 to below 1, got {betas!r}.")
        object.__setattr__(self, "betas", tuple(betas))

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0: full after the warm-up, a tenth at the last step.

        >>> [round(TextRecipe(steps=7, warmup=2, learning_rate=1.0).rate_at(step), 3) for step in range(7)]
        [0.333, 0.667, 1.0, 0.868, 0.55, 0.232, 0.1]
        """
        if step < self.warmup:
            return self.learning_rate * (step + 1) / (self.warmup + 1)
        done = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        return self.learning_rate * (FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * done)) / 2)

    def optimizer_for(self, model: nn.Module) -> torch.optim.AdamW:
        """AdamW with decay on the weights of linear and embedding layers only: not on norms, filters, rates, biases."""
        matrices = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)}
        decayed = [p for p in model.parameters() if id(p) in matrices]
        others = [p for p in model.parameters() if id(p) not in matrices]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas, fused=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `TextRecipe(**data)` is the way back."""
        return asdict(self)


def _is_share(beta: Any) -> bool:
    return not isinstance(beta, bool) and isinstance(beta, Real) and 0 <= float(beta) < 1
