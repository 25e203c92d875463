"""What a monitor costs: the demo's training with and without one at every 5th epoch, in turns.

    python benchmarks/monitor.py            # one CPU thread, processor time, medians of 5 pairs of 50 epochs
    python benchmarks/monitor.py --pairs 9 --epochs 100

On a machine that others use, too, whole trainings differ by more than a monitor costs. A second number is taken inside of
trainings with one, over all of them: the median of a measurement, and of what the epoch behind it takes more, over five
median epochs.

Both contain what is computed when somebody looks: whether the training should stop is asked once at its end, which
computes the numbers of all records.

Two loops: the lab's own (tensors in memory, fused Adam), which is as fast as such a network can be trained in PyTorch, and
the usual one (DataLoader, torch.optim.Adam).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll
from layerlaw.data import load
from layerlaw.lab import Recipe, Shape, train

EVERY = 5
Visit = Callable[[int], object]


def lab_loop(network: nn.Module, data: tuple[torch.Tensor, torch.Tensor], recipe: Recipe, visit: Visit | None) -> None:
    train(network, *data, recipe, at_epochs=range(1, recipe.epochs + 1), visit=visit, progress=False)


def plain_loop(
    network: nn.Module, data: tuple[torch.Tensor, torch.Tensor], recipe: Recipe, visit: Visit | None
) -> None:
    loader = DataLoader(TensorDataset(*data), batch_size=recipe.batch_size, shuffle=True)
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    for epoch in range(1, recipe.epochs + 1):
        network.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        if visit is not None:
            visit(epoch)


def seconds(loop: Callable[..., None], recipe: Recipe, data: tuple[torch.Tensor, torch.Tensor], watched: bool) -> float:
    """Processor time of one training."""
    torch.manual_seed(recipe.seed)
    network = recipe.network.build()
    monitor = ll.Monitor(network, data, every=EVERY) if watched else None
    started = time.process_time()
    loop(network, data, recipe, monitor)
    _ = monitor is not None and monitor.should_stop  # the numbers of all records
    taken = time.process_time() - started
    assert monitor is None or len(monitor.records) == recipe.epochs // EVERY
    return taken


def within(
    loop: Callable[..., None], recipe: Recipe, data: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, list[float]]:
    """Processor times inside of one training: of epochs, of those behind a measurement (which are slower), of
    measurements, and of the look at the numbers of all records, as a share of each."""
    torch.manual_seed(recipe.seed)
    network = recipe.network.build()
    monitor = ll.Monitor(network, data, every=EVERY)
    found: dict[str, list[float]] = {"epoch": [], "behind": [], "measured": [], "looked": []}
    last = time.process_time()

    def visit(epoch: int) -> None:
        nonlocal last
        now = time.process_time()
        found["behind" if epoch > 1 and (epoch - 1) % EVERY == 0 else "epoch"].append(now - last)
        monitor(epoch)
        last = time.process_time()
        if epoch % EVERY == 0:
            found["measured"].append(last - now)

    loop(network, data, recipe, visit)
    started = time.process_time()
    _ = monitor.should_stop  # the numbers of all records
    found["looked"].append((time.process_time() - started) / len(found["measured"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load(split="train").balanced(100).resized(10).tensors(flat=True)
    recipe = Recipe(Shape.even(8), optimizer="adam", learning_rate=1e-3, epochs=given.epochs, seed=666)
    for name, loop in (("the lab's loop", lab_loop), ("a plain loop with a DataLoader", plain_loop)):
        for watched in (False, True):
            seconds(loop, recipe, data, watched)  # what is done once: imports, caches
        pairs = [(seconds(loop, recipe, data, False), seconds(loop, recipe, data, True)) for _ in range(given.pairs)]
        alone = statistics.median(without for without, _ in pairs)
        share = statistics.median(watched / without - 1 for without, watched in pairs)
        each = statistics.median(watched - without for without, watched in pairs) / (given.epochs // EVERY)
        print(f"{name}: {1e3 * alone / given.epochs:.1f} ms per epoch alone; {1e3 * each:.1f} ms per measurement;")
        print(f"  a monitor at every {EVERY}th epoch costs {share:.1%}")
        inside = [within(loop, recipe, data) for _ in range(given.pairs)]
        typical = {name: statistics.median(t for one in inside for t in one[name]) for name in inside[0]}
        epoch, cost = typical["epoch"], typical["measured"] + typical["looked"] + typical["behind"] - typical["epoch"]
        share = cost / (EVERY * epoch)
        print(
            f"  inside of trainings: {1e3 * epoch:.1f} ms per epoch, {1e3 * cost:.1f} ms per measurement: {share:.1%}"
        )


if __name__ == "__main__":
    main()
