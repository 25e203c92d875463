"""What SVSL costs: a plain training step, one with SVSL at all six sites of ResNet18, and the published way.

    python benchmarks/svsl.py --size 16 --rounds 7

The published way runs the network once more for every site. The three kinds of steps take turns within one run; ratios are
medians of paired rounds, of the time by the clock and of the processor's (which other programs disturb less).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import layerlaw as ll
from layerlaw.lab import Architecture

SITES = ("stage1", "stage2", "stage3", "stage4", "average", "classifier")
ALPHA = 1e-5


def published_penalty(network: nn.Module, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """One forward per site, class by class."""
    total = x.new_zeros(())
    for name in SITES:
        found: list[Tensor] = []
        handle = network.get_submodule(name).register_forward_hook(lambda m, a, o, found=found: found.append(o))
        network(x)
        handle.remove()
        features = found[0].flatten(1)
        for c in range(classes):
            rows = features[y == c]
            if len(rows):
                total = total + (rows - rows.mean(0)).square().sum() / len(rows)
    return ALPHA * total / (classes * len(SITES))


def steps(name: str, size: int, batch: int, device: str) -> dict[str, Callable[[], None]]:
    x, y = torch.randn(batch, 3, size, size, device=device), torch.randint(10, (batch,), device=device)

    def step(make: Callable[[nn.Module], Callable[[], Tensor]]) -> Callable[[], None]:
        torch.manual_seed(0)
        network = Architecture.named(name).build().to(device)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        loss_of = make(network)

        def run() -> None:
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()
            if device != "cpu":
                torch.cuda.synchronize()

        return run

    def with_svsl(network: nn.Module) -> Callable[[], Tensor]:
        loss = ll.SVSL(network, alpha=ALPHA, sites=list(SITES), reduction="authors")
        return lambda: loss(network(x), y)

    return {
        "plain": step(lambda network: lambda: F.cross_entropy(network(x), y)),
        "svsl": step(with_svsl),
        "published": step(
            lambda network: lambda: F.cross_entropy(network(x), y) + published_penalty(network, x, y, 10)
        ),
    }


def measured(name: str, size: int, batch: int, rounds: int, device: str, only: set[str]) -> dict[str, object]:
    kinds = {kind: run for kind, run in steps(name, size, batch, device).items() if kind in only}
    for run in kinds.values():
        run()  # the dry run, and memory
    wall: dict[str, list[float]] = {kind: [] for kind in kinds}
    work: dict[str, list[float]] = {kind: [] for kind in kinds}
    for i in range(rounds):
        order = list(kinds) if i % 2 else list(reversed(kinds))
        for kind in order:
            start, begun = time.perf_counter(), time.process_time()
            kinds[kind]()
            wall[kind].append(time.perf_counter() - start)
            work[kind].append(time.process_time() - begun)

    def over_plain(times: dict[str, list[float]]) -> dict[str, float]:
        others = [kind for kind in kinds if kind != "plain"]
        pairs = {kind: zip(times[kind], times["plain"], strict=True) for kind in others}
        return {kind: round(statistics.median(a / b for a, b in pair), 4) for kind, pair in pairs.items()}

    about = {"network": name, "size": size, "batch": batch, "rounds": rounds, "device": device}
    about |= {"threads": torch.get_num_threads(), "plain_seconds": round(statistics.median(wall["plain"]), 4)}
    return about | {"time_over_plain": over_plain(wall), "processor_time_over_plain": over_plain(work)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet18", help="resnet18 (3×3 stem) or resnet18_7x7")
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="plain,svsl,published", help="the kinds of steps to compare")
    given = parser.parse_args()
    kinds = set(given.only.split(","))
    print(json.dumps(measured(given.network, given.size, given.batch, given.rounds, given.device, kinds), indent=1))
