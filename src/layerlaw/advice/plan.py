"""What is about to be trained, said before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from layerlaw.lab import Recipe, Samples
from layerlaw.lab.workers import WORTH_PROCESSES, cores, work
from layerlaw.wording import counted

PER_SECOND = 1e10  # multiplications on one core of 2024, in layers of 100 units; a third of that in layers of 20


@dataclass(frozen=True)
class Plan:
    """How many networks, of how many layers, for how long; `seconds` is a rough guess, `None` on a GPU."""

    networks: int
    depths: tuple[int, int]
    epochs: int
    samples: int
    inputs: int
    seconds: float | None
    processes: int

    @classmethod
    def of(cls, recipes: Sequence[Recipe], samples: Samples, device: str) -> Plan:
        """Of a sweep over these recipes, as if nothing of it were done yet."""
        depths = [recipe.network.depth for recipe in recipes]
        load, seconds = work(recipes, [samples] * len(recipes)), None
        processes = cores() if load > WORTH_PROCESSES else 1
        if torch.device(device).type == "cpu":
            seconds = load / PER_SECOND / processes
        n, inputs = samples.inputs.shape
        return cls(len(recipes), (min(depths), max(depths)), recipes[0].epochs, n, inputs, seconds, processes)

    def __str__(self) -> str:
        low, high = self.depths
        layers = counted(low, "layer") if low == high else f"{low}–{high} layers"
        text = (
            f"{counted(self.networks, 'network')} of {layers}, {counted(self.epochs, 'epoch')} each, on {self.samples:,} "
            f"samples of {self.inputs:,} numbers"
        )
        if self.seconds is None:
            return text
        return f"{text}: roughly {rough(self.seconds)} on {counted(self.processes, 'core')}"


def rough(seconds: float) -> str:
    """A time in words, no more exact than a guess deserves.

    >>> rough(3), rough(47), rough(1935), rough(20000)
    ('10 seconds', '50 seconds', '30 minutes', '6 hours')
    """
    if seconds < 55:
        return f"{max(1, round(seconds / 10)) * 10} seconds"
    if seconds < 570:
        return counted(max(1, round(seconds / 60)), "minute")
    if seconds < 5400:
        return f"{round(seconds / 600) * 10} minutes"
    return counted(max(2, round(seconds / 3600)), "hour")
