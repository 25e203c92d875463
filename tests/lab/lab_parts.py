"""What the tests of the lab share: clouds of samples, a training loop with nothing of the lab in it, tables to compare."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerlaw.lab
from layerlaw.lab import FeedForward, Recipe, Run, Samples, Schedule, Shape, sweep
from layerlaw.lab.jobs import Checkpoint

EVERYTHING = Schedule(
    epochs=(0, 3),
    batchnorm=("batch", "shuffled", "balanced", "running", "whole"),
    test=True,
    permuted=True,
    by_class=True,
)
SCHEDULE = Schedule(epochs=(0, 17), batchnorm=("batch", "running"), test=True, by_class=True)


def clouds(n: int, d: int = 12, classes: int = 4, *, seed: int = 0, test: int = 0, spread: float = 1.0) -> Samples:
    """Gaussian clouds around random class means, the classes mixed."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.arange(n + test) % classes)[torch.randperm(n + test, generator=generator)]
    means = torch.randn(classes, d, generator=generator)
    x = means[y] + spread * torch.randn(n + test, d, generator=generator)
    return Samples.of((x[:n], y[:n]), (x[n:], y[n:]) if test else None)


def small_sweep() -> tuple[list[Recipe], Samples]:
    """Five recipes that make three fleets of two, two and one when at most two go together."""
    shape = Shape(12, (16, 10), 4)
    base = Recipe(network=shape, epochs=30, batch_size=32, learning_rate=0.01)
    recipes = base.grid(optimizer=("adam", "momentum"), seed=(1, 2))
    return [*recipes, Recipe(network=Shape.even(2, inputs=12, width=6, classes=4), epochs=30, batch_size=32)], clouds(
        150, test=41
    )


@cache
def uninterrupted() -> list[Run]:
    """What the small sweep gives when nothing comes between."""
    recipes, samples = small_sweep()
    return sweep(recipes, samples, schedule=SCHEDULE, members=2, workers=1, progress=False)


def slow_worker() -> str:
    """The program of a worker that takes its time with every epoch: what happens meanwhile finds it at work."""
    slowly = [
        "import time, layerlaw.lab",
        "fleet = layerlaw.lab.Fleet",
        "train_epoch = fleet.train_epoch",
        "fleet.train_epoch = lambda *given: (time.sleep(0.05), train_epoch(*given))[1]",
    ]
    return "\n".join([*slowly, layerlaw.lab.processes._PROGRAM])


def numbers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every number of a sweep."""
    return [run.to_dict() for run in runs]


def same_networks(first: Sequence[Run], second: Sequence[Run]) -> bool:
    """Whether all parameters and running statistics are the same, bit for bit."""
    pairs = [(a.network().state_dict(), b.network().state_dict()) for a, b in zip(first, second, strict=True)]
    return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in pairs)


def processes_with(mark: str) -> list[int]:
    """Processes that have this text in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def kill_on_the_way(folder: Path, workers: int, steps: int, *how: str) -> list[Checkpoint]:
    """What a sweep left behind that was killed after so many steps."""
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    command = [
        sys.executable,
        str(Path(__file__).with_name("killed_sweep.py")),
        str(folder),
        str(workers),
        str(steps),
        *how,
    ]
    ended = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=100
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    deadline = time.monotonic() + 30
    while processes_with(str(scratch)):
        assert time.monotonic() < deadline, "the workers go on without their parent"
        time.sleep(0.05)
    return [Checkpoint.from_file(file)[0] for file in sorted(folder.glob("*-*.pt"))]


@dataclass
class Plain:
    """What the plain loop gives: the losses of the epochs, and the network after them."""

    losses: list[float]
    network: FeedForward


def fresh(recipe: Recipe) -> FeedForward:
    torch.manual_seed(recipe.seed)
    return recipe.network.build()


def parts_of_layer(network: FeedForward, layer: int) -> list[nn.Module]:
    """The linear layer of this number, from 0, and its BatchNorm where there is one."""
    linear = [part for part in network.children() if isinstance(part, nn.Linear)]
    norms = [part for part in network.children() if isinstance(part, nn.BatchNorm1d)]
    return [linear[layer], *norms[layer : layer + 1]]


def plain_loop(recipe: Recipe, x: Tensor, y: Tensor, epochs: int) -> Plain:
    """The first epochs of a recipe the way anybody would write them."""
    network = fresh(recipe).train()
    first, beyond = recipe.layers or (0, recipe.network.depth)
    for layer in range(recipe.network.depth):
        for part in parts_of_layer(network, layer):
            part.requires_grad_(first <= layer < beyond)
    trained = [p for p in network.parameters() if p.requires_grad]
    how = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    optimizer: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD(trained, **how),
        "momentum": lambda: torch.optim.SGD(trained, momentum=0.9, **how),
        "adam": lambda: torch.optim.Adam(trained, **how),
    }[recipe.optimizer]()
    milestones = [recipe.epochs // 3, 2 * recipe.epochs // 3] if recipe.drops else []
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    generator = torch.Generator().manual_seed(recipe.seed)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(y), generator=generator).split(recipe.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        schedule.step()
        losses.append(total / len(y))
    return Plain(losses, network)


class Told:
    """A progress that remembers what it was told: (label, total), then every item."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, items: Iterable[Any], label: str, total: int | None) -> Iterator[Any]:
        self.all.append((label, total))
        for item in items:
            self.all.append(item)
            yield item


def watched_rates(monkeypatch: pytest.MonkeyPatch, optimizer: type[torch.optim.Optimizer]) -> list[float]:
    """The learning rate of every step that is made from now on."""
    rates: list[float] = []
    step = optimizer.step

    def watched(self: torch.optim.Optimizer, *given: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *given)

    monkeypatch.setattr(optimizer, "step", watched)
    return rates
