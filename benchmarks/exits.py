"""Early exits measured on two trained networks: what they cost in accuracy and save in time, at batch 1 and 256.

    python benchmarks/exits.py fnn          # the 20-layer network of Figure 1 on 10×10 images
    python benchmarks/exits.py resnet       # ResNet18 on 16×16 images

Both are trained on the embedded sample of Fashion-MNIST (100 images per class), and judged on half of its test images.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from svsl import ResNet18
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.data import load
from layerlaw.lab import Recipe, Shape, train


def images(size: int, *, flat: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    parts = (load().balanced(100), load(split="test"))
    data, test = (part.resized(size).tensors(flat=flat) for part in parts)
    return data, test


def trained(kind: str, epochs: int) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    if kind == "fnn":
        data, test = images(10, flat=True)
        network, recipe = Shape.even(20).build(), Recipe(epochs=epochs, learning_rate=1e-3)
    else:
        data, test = images(16, flat=False)
        network, recipe = ResNet18(channels=1), Recipe(epochs=epochs, learning_rate=1e-3, batch_size=64)
    train(network, *data, recipe, progress=False)
    return network.eval(), data, test


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=("fnn", "resnet"))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    started = time.perf_counter()
    network, data, test = trained(given.network, given.epochs or {"fnn": 200, "resnet": 6}[given.network])
    print(f"trained in {time.perf_counter() - started:.0f} s, {torch.get_num_threads()} threads", flush=True)
    found = ll.early_exit(network, data, test=test, tolerance=given.tolerance)
    print(found.report, *found.report.notes, sep="\n")
    if given.out is not None:
        found.report.save(given.out)
