"""One plain training loop: data resident, cross-entropy, learning rate divided by ten at one and two thirds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from layerlaw.errors import InputError, LayerlawError
from layerlaw.progress import Progress, choose

Optimiser = Literal["sgd", "momentum", "adam"]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained; the defaults are those of the law's authors (He & Su)."""

    optimiser: Optimiser = "adam"
    learning_rate: float = 1e-3
    epochs: int = 600
    batch_size: int = 128
    weight_decay: float = 5e-4
    seed: int = 666

    def __post_init__(self) -> None:
        if self.optimiser not in ("sgd", "momentum", "adam"):
            raise InputError(f"optimiser: expected 'sgd', 'momentum' or 'adam', got {self.optimiser!r}.")
        for name in ("learning_rate", "epochs", "batch_size"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: expected a positive number, got {getattr(self, name)}.")

    def optimiser_for(self, network: nn.Module) -> torch.optim.Optimizer:
        """Weight decay is coupled L2 on all parameters, BatchNorm's too."""
        lr, decay = self.learning_rate, self.weight_decay
        if self.optimiser == "adam":
            return torch.optim.Adam(network.parameters(), lr=lr, weight_decay=decay, fused=True)
        momentum = 0.9 if self.optimiser == "momentum" else 0.0
        return torch.optim.SGD(network.parameters(), lr=lr, momentum=momentum, weight_decay=decay, fused=True)


def train(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    *,
    at_epochs: Collection[int] = (),
    visit: Callable[[int], None] | None = None,
    progress: bool | Progress = True,
) -> list[float]:
    """Train in place; returns the mean loss of each epoch. `visit(epoch)` is called at the chosen epochs (0: before)."""
    generator = torch.Generator().manual_seed(recipe.seed)
    optimiser = recipe.optimiser_for(network)
    milestones = [recipe.epochs // 3, 2 * recipe.epochs // 3]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    cross_entropy = nn.CrossEntropyLoss()
    losses: list[float] = []
    if visit is not None and 0 in at_epochs:
        visit(0)
    for epoch in choose(progress)(range(1, recipe.epochs + 1), "training", recipe.epochs):
        network.train()
        total = torch.zeros(())
        for rows in torch.split(torch.randperm(len(y), generator=generator), recipe.batch_size):
            loss = cross_entropy(network(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.detach() * len(rows)
        schedule.step()
        losses.append(float(total) / len(y))
        if losses[-1] != losses[-1]:
            raise LayerlawError(f"training diverged in epoch {epoch} (the loss is NaN): use a lower learning rate.")
        if visit is not None and epoch in at_epochs:
            visit(epoch)
    network.eval()
    return losses
