"""What the fleet saves on a CPU: `python benchmarks/fleet_cpu.py` (ratios of one run; threads stated).

Per member of 600 epochs on Fashion-MNIST 10×10 with Adam, interleaved, the least of several rounds:

- plain: one `nn.Module` with `torch.optim.Adam` as it comes and the data as one resident tensor, one thread (two are
  slower);
- listed: the same with the data as a list of single samples, collated by a DataLoader in every epoch, as published scripts
  do it, with one thread and with the default number of them;
- fleet: `sweep` over the members, one process per core.

Times per epoch are measured on a few epochs, so that all three see the same neighbors on a shared machine.
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

from layerlaw.data import load
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep
from layerlaw.lab.processes import cores

WANTED = {8: {"plain": 5.0, "listed": 10.0, "listed, default threads": 10.0}, 20: {"plain": 3.5}}


def plain(recipe: Recipe, samples: Samples, epochs: int) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    network = recipe.network.build()
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    loss_of = nn.CrossEntropyLoss()
    x, y = samples.inputs, samples.labels
    began = time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(recipe.batch_size):
            loss = loss_of(network(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return (time.perf_counter() - began) / epochs


def listed(recipe: Recipe, samples: Samples, epochs: int, threads: int) -> float:
    torch.set_num_threads(threads)
    torch.manual_seed(recipe.seed)
    network = recipe.network.build()
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    loss_of = nn.CrossEntropyLoss()
    began = time.perf_counter()
    for _ in range(epochs):
        pairs = [(x, int(y)) for x, y in zip(samples.inputs, samples.labels, strict=True)]
        for x, y in DataLoader(pairs, recipe.batch_size, shuffle=True):
            loss = loss_of(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
    return (time.perf_counter() - began) / epochs


def fleet(recipes: list[Recipe], samples: Samples) -> float:
    """Seconds of `sweep` for these recipes, start-up of its processes included."""
    began = time.perf_counter()
    sweep(recipes, samples, schedule=Schedule(batchnorm=("batch",)), workers=cores(), progress=False)
    return time.perf_counter() - began


def measure(depth: int, members: int, rounds: int, samples: Samples) -> dict[str, float]:
    base = Recipe(Shape.even(depth), epochs=600)
    seeds = range(members)
    best = dict.fromkeys(("plain", "listed", "listed, default threads", "fleet"), float("inf"))
    for _ in range(rounds):
        best["plain"] = min(best["plain"], plain(base, samples, 10))
        best["listed"] = min(best["listed"], listed(base, samples, 6, 1))
        best["listed, default threads"] = min(best["listed, default threads"], listed(base, samples, 3, cores()))
        # Two lengths: their difference is free of what a sweep of 600 epochs pays once.
        times = [fleet(Recipe(base.network, epochs=e).grid(seed=seeds), samples) for e in (20, 60)]
        best["fleet"] = min(best["fleet"], (times[1] - times[0]) / 40 / members)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--depths", type=int, nargs="+", default=[8, 20])
    arguments = parser.parse_args()
    samples = Samples.of(load(split="train").balanced(100).resized(10).tensors(flat=True))
    print(f"{cores()} cores, {arguments.members} members, torch {torch.__version__}")
    for depth in arguments.depths:
        best = measure(depth, arguments.members, arguments.rounds, samples)
        for other, wanted in WANTED.get(depth, {"plain": 0.0}).items():
            ratio = best[other] / best["fleet"]
            met = "met" if ratio >= wanted else "MISSED"
            print(f"depth {depth}: fleet against {other}: {ratio:.2f} times per member (wanted ≥ {wanted:g}: {met})")
        print(json.dumps({"depth": depth, **{k: round(600 * v, 2) for k, v in best.items()}}), flush=True)


if __name__ == "__main__":
    main()
