"""What tests of training networks for images share: small networks of every family, a loop with nothing of the lab in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from seam_parts import pictures
from torch import nn
from torch.nn import functional as F

from layerlaw.lab import Architecture, Recipe, Samples

NETWORKS = {
    "convolutional": Architecture.named(
        "vgg13_5x5", stages=((4, 4), (6,)), hidden=(12,), side=8, repeat=2, inputs=1, classes=4
    ),
    "residual": Architecture.named("resnet_mixed", side=8, inputs=1, classes=4),
    "strided": Architecture.named("resnet18", widths=(4, 6, 8, 8), inputs=1, classes=4),
    "bottleneck": Architecture.named(
        "resnet50", blocks=(1, 1), widths=(4, 6), kernels=((1, 3, 1),) * 2, strides=(1, 2), inputs=1, classes=4
    ),
    "padded": Architecture.named("resnet20", blocks=(1, 1, 1), widths=(4, 6, 8), inputs=1, classes=4),
    "tied": Architecture.named("tied_resnet", channels=6, steps=3, inputs=1, classes=4),
    "dense": Architecture.named("densenet161", layers=(2, 2), growth=4, inputs=1, classes=4),
}
IMAGES = pictures(92, side=8)  # batches of 20 leave 12
RECIPE = Recipe(NETWORKS["residual"], epochs=4, batch_size=20, learning_rate=0.01, seed=5)


def image_sweep() -> tuple[list[Recipe], Samples]:
    """Two networks, five steps to an epoch."""
    return [
        replace(RECIPE, epochs=6),
        replace(RECIPE, network=NETWORKS["dense"], epochs=6, optimizer="momentum"),
    ], IMAGES


def plain_losses(recipe: Recipe, samples: Samples, epochs: int, device: str = "cpu") -> tuple[list[float], nn.Module]:
    """The first epochs of a recipe the way anybody would write them."""
    torch.manual_seed(recipe.seed)
    network = recipe.network.build().to(device).train()
    x, y = samples.inputs.to(device), samples.labels.to(device)
    how: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    optimizer: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD(network.parameters(), **how),
        "momentum": lambda: torch.optim.SGD(network.parameters(), momentum=0.9, **how),
        "adam": lambda: torch.optim.Adam(network.parameters(), **how),
    }[recipe.optimizer]()
    milestones = [recipe.epochs // 3, 2 * recipe.epochs // 3]
    drops = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    generator, losses = torch.Generator().manual_seed(recipe.seed), []
    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(y), generator=generator).split(recipe.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x[rows.to(device)]), y[rows.to(device)])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        drops.step()
        losses.append(total / len(y))
    return losses, network
