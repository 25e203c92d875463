"""What the fleet does on a GPU: `python benchmarks/fleet_gpu.py` (absolute times, after a warm-up).

All 57 networks of Figure 1 trained and measured, and 1000 members of depth 20; losses against the CPU.
"""

import argparse
import json
import time

import torch

from layerlaw.data import load
from layerlaw.lab import Fleet, Recipe, Samples, Schedule, Shape, sweep
from layerlaw.lab.fleet.engine import Orders

RATES = {"sgd": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "adam": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)}
RATES["momentum"] = RATES["sgd"]


def figure1(epochs: int) -> list[Recipe]:
    return [
        recipe
        for kind, rates in RATES.items()
        for recipe in Recipe(optimizer=kind, epochs=epochs).grid(
            network=[Shape.even(depth) for depth in (4, 8, 20)], learning_rate=rates
        )
    ]


def timed(recipes: list[Recipe], samples: Samples, schedule: Schedule, device: str) -> tuple[float, list]:
    torch.cuda.synchronize()
    began = time.perf_counter()
    runs = sweep(recipes, samples, schedule=schedule, device=device, progress=False)
    torch.cuda.synchronize()
    return time.perf_counter() - began, runs


def first_losses(device: str, samples: Samples, kind: str, rate: float) -> list[float]:
    fleet = Fleet(Recipe(optimizer=kind, learning_rate=rate).grid(seed=(1, 2, 3)), [samples] * 3, device)
    orders = Orders([1, 2, 3], len(samples.labels))
    with torch.no_grad():
        losses = []
        for epoch in range(3):
            fleet.start_epoch(epoch)
            losses.append(fleet.train_epoch(orders.next().to(device)).cpu())
    return torch.stack(losses).flatten().tolist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=600)
    arguments = parser.parse_args()
    images = load(split="train").balanced(100).resized(10)
    samples = Samples.of(images.tensors(flat=True), load(split="test").resized(10).tensors(flat=True))
    found: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for kind, rate in (("sgd", 0.03), ("momentum", 0.01), ("adam", 1e-3)):
        here, there = (first_losses(device, samples, kind, rate) for device in ("cpu", "cuda"))
        gap = max(abs(a - b) / a for a, b in zip(here, there, strict=True))
        print(f"{kind}: losses of 3 epochs differ from the CPU by at most {gap:.1e}", flush=True)
    schedule = Schedule(test=True, permuted=True)
    seconds, _ = timed(figure1(6), samples, schedule, "cuda")
    print(f"warm-up: {seconds:.1f} s", flush=True)
    seconds, runs = timed(figure1(arguments.epochs), samples, schedule, "cuda")
    found["figure1_s"] = seconds
    print(f"57 networks of Figure 1, {arguments.epochs} epochs: {seconds:.1f} s", flush=True)
    for run in runs:
        law = run.law()
        r = "diverged" if law is None else f"r {law.pearson:.4f} rho {law.rho:.3f}"
        print("  ", run.recipe.optimizer, run.recipe.network.depth, run.recipe.learning_rate, r, flush=True)
    many = Recipe(Shape.even(20), learning_rate=3e-4, epochs=6).grid(seed=range(arguments.members))
    seconds, _ = timed(many, samples, Schedule(), "cuda")
    print(f"warm-up: {seconds:.1f} s", flush=True)
    many = Recipe(Shape.even(20), learning_rate=3e-4, epochs=arguments.epochs).grid(seed=range(arguments.members))
    seconds, runs = timed(many, samples, Schedule(), "cuda")
    found["members_s"] = seconds
    print(f"{arguments.members} members of depth 20, {arguments.epochs} epochs: {seconds:.1f} s", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
