"""How long networks for images take to train on a GPU: `python benchmarks/conv_training.py [--steps 4800] [--only NAME …]`.

Seconds for so many steps of batch 128 (600 epochs of 1000 images; the last batch of an epoch has 104), in four ways: eager
TF32 as a plain loop has it, and through the lab's trainer as a graph with channels last in TF32, in bf16, in bf16 compiled.
The start (building, trying convolutions, recording, compiling) is given apart. Of `--steps` only `--timed` are made after
the start and the rest is computed from them: steps are alike (of DenseNet161 a quarter of `--timed`; it is compiled only
where `--ways` says so). Random images; `--device cpu --timed 1 --images 40` tries the script.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from layerlaw.lab import Architecture, Recipe, Samples, Schedule
from layerlaw.lab.training import SingleEngine

# what was measured before by hand: eager TF32, graph in TF32, bf16 compiled (DenseNet161: not compiled)
NETWORKS: dict[str, tuple[float, float, float]] = {
    "alexnet_5x5": (19, 12.8, 5.7),
    "vgg13_5x5": (25, 19, 9.3),
    "vgg19": (33, 16.6, 9),
    "resnet18": (45, 20.9, 11.4),
    "densenet161": (301, 214, 150),
}
LIMITS = {"alexnet_5x5": 15, "vgg13_5x5": 22, "vgg19": 19, "resnet18": 24, "densenet161": 240}
SLOW = {"densenet161": 4}  # so many times fewer steps are timed
WAYS = ("eager tf32", "graph tf32", "graph bf16", "compiled bf16")


def random_images(n: int = 1000) -> Samples:
    generator = torch.Generator().manual_seed(0)
    return Samples(torch.randn(n, 3, 32, 32, generator=generator), torch.arange(n) % 10, classes=10)


def waited(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def plain(recipe: Recipe, samples: Samples, device: str) -> Callable[[int], float]:
    """A loop with nothing of the lab in it; gives what trains so many epochs and returns the last loss."""
    torch.manual_seed(recipe.seed)
    network = recipe.network.build().to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate, weight_decay=5e-4, fused=True)
    x, y = samples.inputs.to(device), samples.labels.to(device)
    generator = torch.Generator().manual_seed(recipe.seed)

    def train(epochs: int) -> float:
        torch.set_float32_matmul_precision("high")
        for _ in range(epochs):
            for rows in torch.randperm(len(y), generator=generator).to(device).split(recipe.batch_size):
                loss = F.cross_entropy(network(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        torch.set_float32_matmul_precision("highest")
        return float(loss.detach())

    return train


def by_the_lab(recipe: Recipe, samples: Samples, device: str, compiled: bool) -> tuple[Callable[[int], float], Any]:
    engine = SingleEngine(recipe, samples, Schedule(), device=device, compile=compiled)

    def train(epochs: int) -> float:
        for _ in range(epochs):
            loss = engine.train_epoch(0)
        return float(loss)

    return train, engine


def timed(name: str, way: str, samples: Samples, steps: int, epochs: int, device: str) -> dict[str, Any]:
    recipe = Recipe(Architecture.named(name), epochs=600, learning_rate=1e-4, seed=1)
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began, engine = waited(device), None
    if way == "eager tf32":
        train = plain(recipe, samples, device)
    else:
        recipe = replace(recipe, precision="bf16" if way.endswith("bf16") else "tf32")
        if device == "cpu":  # to try the script
            recipe = replace(recipe, precision=None)
        train, engine = by_the_lab(recipe, samples, device, way.startswith("compiled") and device == "cuda")
    train(1)
    started = waited(device)
    loss = train(epochs)
    seconds = waited(device) - started
    per_epoch = -(-len(samples.labels) // recipe.batch_size)
    found: dict[str, Any] = {
        "network": name,
        "way": way,
        "seconds": round(seconds * steps / (epochs * per_epoch), 2),
        "start_s": round(started - began, 2),
        "timed_steps": epochs * per_epoch,
        "loss": round(loss, 4),
        "how": "plain loop" if engine is None else engine.how,
    }
    if engine is not None and device == "cuda":
        began = waited(device)
        engine.measure(0)
        found["measure_s"] = round(waited(device) - began, 2)
    if device == "cuda":
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4800, help="seconds are given for so many")
    parser.add_argument("--timed", type=int, default=400, help="so many are made")
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--ways", nargs="+", choices=WAYS)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", help="a file for the numbers")
    given = parser.parse_args()
    samples, device, rows = random_images(given.images), given.device, []
    where = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"{where}, torch {torch.__version__}; seconds for {given.steps} steps of batch 128", flush=True)
    for name in given.only:
        eager, graph, compiled = NETWORKS[name]
        print(f"\n{name} (before: {eager} / {graph} / {compiled}; at most {LIMITS[name]} as a TF32 graph)", flush=True)
        epochs = max(1, min(given.steps, given.timed) // SLOW.get(name, 1) // 8)
        for way in given.ways or (WAYS[:3] if name in SLOW else WAYS):
            try:
                row = timed(name, way, samples, given.steps, epochs, device)
            except Exception as error:  # one way that fails must not take the others along
                row = {"network": name, "way": way, "error": f"{type(error).__name__}: {str(error)[:300]}"}
            rows.append(row)
            print("  ", json.dumps(row), flush=True)
            if given.out:
                with open(given.out, "w") as file:
                    json.dump({"device": where, "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
