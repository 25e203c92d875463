"""One plain training loop for any module: data resident, cross-entropy, the recipe's optimizer and schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from layerlaw.errors import LayerlawError
from layerlaw.lab.recipe import Recipe
from layerlaw.progress import Progress, choose


def train(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    *,
    at_epochs: Collection[int] = (),
    visit: Callable[[int], object] | None = None,
    progress: bool | Progress = True,
) -> list[float]:
    """Train in place; returns the mean loss of each epoch. `visit(epoch)` is called at the chosen epochs (0: before).

    Training stops early when `visit` returns `True` (that very object: a record, say, does not stop it).
    The network may be any; of the recipe, shape and layers are not used.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    optimizer = recipe.optimizer_for(network)
    cross_entropy = nn.CrossEntropyLoss()
    losses: list[float] = []
    if visit is not None and 0 in at_epochs and visit(0) is True:
        network.eval()
        return losses
    for epoch in choose(progress)(range(1, recipe.epochs + 1), "training", recipe.epochs):
        network.train()
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(epoch - 1)
        total = torch.zeros((), device=y.device)
        for rows in torch.split(torch.randperm(len(y), generator=generator), recipe.batch_size):
            loss = cross_entropy(network(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
        losses.append(float(total) / len(y))
        if losses[-1] != losses[-1]:
            raise LayerlawError(f"training diverged in epoch {epoch} (the loss is NaN): use a lower learning rate.")
        if visit is not None and epoch in at_epochs and visit(epoch) is True:
            break
    network.eval()
    return losses
