"""What the tests of the training figures share: a setting that keeps its runs, runs made by hand, features of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerlaw.experiments import find
from layerlaw.experiments.setting import PAPER_SEED, Setting
from layerlaw.lab import FeedForward, Measurement, Recipe, Run, Samples, Shape
from layerlaw.outcome import Outcome, Row, Table


@dataclass
class Recording(Setting):
    """A quick setting that remembers what was trained, and the data of the authors' seed."""

    quick: bool = True
    progress: bool = False
    most: int = 60
    """No network is trained for more epochs than that."""
    runs: dict[str, list[Run]] = field(default_factory=dict)
    data: dict[str, Samples] = field(default_factory=dict)

    def epochs(self, full: int = 600, quick: int = 60) -> int:
        return min(quick, self.most)

    def train(self, name: str, recipes: Any, data: Any, schedule: Any, **how: Any) -> list[Run]:
        self.data |= {key: some if isinstance(some, Samples) else some(PAPER_SEED) for key, some in data.items()}
        self.runs[name] = super().train(name, recipes, data, schedule, **how)
        return self.runs[name]


@dataclass
class Quick:
    """A quick experiment and what it was made of."""

    outcome: Outcome
    setting: Recording

    def row(self, name: str) -> Row:
        (found,) = [row for row in self.outcome.rows if row.name == name]
        return found

    def table(self, title: str) -> Table:
        (found,) = [table for table in self.outcome.tables if table.title == title]
        return found


def quick_fixture(name: str, most: int = 60, called: str = "quick") -> Any:
    """A fixture for all tests of a module: the quick experiment, run once; its outcome survives JSON."""

    @pytest.fixture(scope="module", name=called)
    def quick(tmp_path_factory: pytest.TempPathFactory) -> Quick:
        setting = Recording(most=most)
        outcome = find(name).run(setting)
        assert Outcome.load(outcome.save(tmp_path_factory.mktemp(name) / "outcome.json")) == outcome
        return Quick(outcome, setting)

    return quick


def made_run(
    curves: Mapping[int, Sequence[float | None]],
    *,
    accuracy: Mapping[int, float] | None = None,
    modes: Sequence[Any] = ("batch", "running"),
    splits: Sequence[Any] = ("train",),
    loss: float = 0.1,
    diverged: int | None = None,
    **recipe: Any,
) -> Run:
    """A run whose D along depth is given for every probed epoch, alike in every mode and of all samples."""
    last = max(curves)
    depth = len(curves[last])
    shape = recipe.pop("network", Shape.even(depth))
    measurements = [
        Measurement(
            epoch, batchnorm, split, tuple(D), (1.0,) * len(D), loss=loss, accuracy=(accuracy or {}).get(epoch, 0.5)
        )
        for epoch, D in curves.items()
        for batchnorm in modes
        for split in splits
    ]
    return Run(
        Recipe(shape, epochs=max(last, 1), **recipe), (loss,) * max(last, 1), tuple(measurements), last, diverged
    )


def hidden(network: FeedForward, x: Tensor, *, full: bool = False) -> list[Tensor]:
    """The input and the output of every hidden layer; `full` normalizes by the statistics of all samples."""
    found, kinds = [x], (nn.ReLU, nn.Identity)
    network = network.train() if full else network.eval()
    for part in network.children():
        if part is network.classifier:
            break
        x = part(x)
        found += [x] if isinstance(part, kinds) else []
    return [f.detach().to(torch.float64) for f in found]
