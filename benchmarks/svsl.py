"""What SVSL costs: a plain training step, one with SVSL at all six sites of ResNet18, and the published way.

    python benchmarks/svsl.py --size 16 --rounds 7
    python benchmarks/svsl.py --device cuda --size 32 --rounds 30 --recorded   # steps as CUDA graphs, as sweeps have them
    python benchmarks/svsl.py --device cuda --course                           # how long 350 epochs take, from a few of them

The published way runs the network once more for every site. The three kinds of steps take turns within one run; ratios are
medians of paired rounds, of the time by the clock and of the processor's (which other programs disturb less). A course is
that of `layerlaw reproduce svsl_cifar10` or `svsl_mnist`: so many images (random ones), measured 30 times on the way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import layerlaw as ll
from layerlaw.experiments.collapse.svsl import EPOCHS, MEASURED, PUBLISHED
from layerlaw.lab import Architecture, CrossEntropy, Recipe, Samples, Schedule
from layerlaw.lab.training import SingleEngine
from layerlaw.lab.variability import VariabilityCrossEntropy

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
            waited(device)

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


def waited(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def random_images(n: int, channels: int, size: int) -> Samples:
    x, y = torch.randn(n, channels, size, size), torch.arange(n) % 10
    return Samples.of((x, y), (x[: n // 6], y[: n // 6]))


def recorded_steps(name: str, size: int, batch: int, device: str) -> dict[str, Callable[[], None]]:
    """Ten steps of the lab's trainer at a time, which records them on CUDA."""
    samples = random_images(10 * batch, 3, size)

    def epoch(loss: CrossEntropy | VariabilityCrossEntropy) -> Callable[[], None]:
        recipe = Recipe(Architecture.named(name), optimizer="momentum", batch_size=batch, loss=loss, learning_rate=0.01)
        engine = SingleEngine(recipe, samples, Schedule(), device=device)

        def run() -> None:
            engine.train_epoch(0)
            waited(device)

        return run

    penalty = VariabilityCrossEntropy(ALPHA, reduction="authors", where=SITES)
    return {"plain": epoch(CrossEntropy()), "svsl": epoch(penalty)}


def course(data: str, epochs: int, device: str, images: int, precision: str | None) -> dict[str, object]:
    """Seconds of a whole training with its measurements, from a few epochs and one measurement."""
    about = PUBLISHED[data]
    channels, n = (3, 50_000) if data == "cifar10" else (1, 60_000)
    samples = random_images(images or n, channels, about.size)
    network = Architecture.named(about.network, inputs=channels)
    found: dict[str, object] = {"data": data, "images": len(samples.labels), "device": device}
    penalty = VariabilityCrossEntropy(about.alpha, first=about.first, reduction="authors", where=SITES)
    for kind, loss in (("plain", CrossEntropy()), ("svsl", penalty)):
        recipe = Recipe(network, optimizer="momentum", loss=loss, learning_rate=1e-4, precision=precision)
        schedule = Schedule(batchnorm=("running",), test=True, collapse=True, sites=SITES)
        began = waited(device)
        engine = SingleEngine(recipe, samples, schedule, device=device)
        engine.train_epoch(0)
        start = waited(device)
        for _ in range(epochs):
            engine.train_epoch(0)
        trained = waited(device)
        engine.measure(0)
        first = waited(device)
        engine.measure(0)
        ended = waited(device)
        each, measuring = (trained - start) / epochs, ended - first
        whole = start - began + EPOCHS * each + len(MEASURED) * measuring
        found[kind] = {
            "start_s": round(start - began, 1),
            "epoch_s": round(each, 3),
            "measurement_s": round(measuring, 2),
        }
        found[kind] |= {"whole_s": round(whole, 1), "how": engine.how}
    return found


def measured(
    name: str, size: int, batch: int, rounds: int, device: str, only: set[str], recorded: bool
) -> dict[str, object]:
    some = (recorded_steps if recorded else steps)(name, size, batch, device)
    kinds = {kind: run for kind, run in some.items() if kind in only}
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
    parser.add_argument("--recorded", action="store_true", help="steps of the lab's trainer, recorded on CUDA")
    parser.add_argument("--course", action="store_true", help="the whole training of CIFAR-10 and of 28×28 images")
    parser.add_argument("--epochs", type=int, default=4, help="of a course, timed")
    parser.add_argument("--images", type=int, help="of a course", default=0)
    parser.add_argument(
        "--data", default="cifar10,mnist", help="of courses: cifar10 has the 7×7 stem, mnist 28×28 images"
    )
    parser.add_argument("--precisions", default="tf32,bf16", help="of courses on CUDA")
    given = parser.parse_args()
    if given.course:
        ways = [None] if given.device == "cpu" else [None if p == "tf32" else p for p in given.precisions.split(",")]
        for data, how in product(given.data.split(","), ways):
            print(json.dumps(course(data, given.epochs, given.device, given.images, how)), flush=True)
    else:
        about = (given.network, given.size, given.batch, given.rounds, given.device)
        print(json.dumps(measured(*about, set(given.only.split(",")), given.recorded), indent=1))
