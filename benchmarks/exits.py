"""Early exits measured on two trained networks: what they cost in accuracy and save in time, at batch 1 and 256.

    python benchmarks/exits.py fnn          # the 20-layer network of Figure 1 on 10×10 images
    python benchmarks/exits.py resnet       # ResNet18 on 16×16 images; --size 32 --epochs 30 --device cuda

Both are trained on the embedded sample of Fashion-MNIST (100 images per class), and judged on half of its test images.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.data import load
from layerlaw.lab import Architecture, Recipe, Shape, train


def images(size: int, device: str, *, flat: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    parts = (load().balanced(100), load(split="test"))
    data, test = (part.resized(size).tensors(flat=flat) for part in parts)
    return tuple(t.to(device) for t in data), tuple(t.to(device) for t in test)


def trained(
    kind: str, epochs: int, size: int, device: str
) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    data, test = images(size, device, flat=kind == "fnn")
    if kind == "fnn":
        network, recipe = Shape.even(20).build(), Recipe(epochs=epochs, learning_rate=1e-3)
    else:
        network = Architecture.named("resnet18", inputs=1, side=size).build()
        recipe = Recipe(epochs=epochs, learning_rate=1e-3, batch_size=64)
    train(network.to(device), *data, recipe, progress=False)
    return network.eval(), data, test


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=("fnn", "resnet"))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--size", type=int, help="pixels; default: 10 for the network of Figure 1, 16 for ResNet18")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    started = time.perf_counter()
    epochs, size = {"fnn": (200, 10), "resnet": (6, 16)}[given.network]
    network, data, test = trained(given.network, given.epochs or epochs, given.size or size, given.device)
    print(f"trained in {time.perf_counter() - started:.0f} s, {torch.get_num_threads()} threads", flush=True)
    found = ll.early_exit(network, data, test=test, tolerance=given.tolerance)
    print(found.report, *found.report.notes, sep="\n")
    if given.out is not None:
        found.report.save(given.out)
