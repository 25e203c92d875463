"""How an experiment is run: quickly or in full, over which seeds, where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerlaw.errors import InputError
from layerlaw.lab import Recipe, Run, Samples, Schedule, sweep
from layerlaw.progress import Progress

PAPER_SEED = 666


@dataclass
class Setting:
    """Quick or full, seeds, device, folder for the sweeps (to go on after an interruption), progress.

    Every sweep of an experiment goes through `train`, which notes what the outcome's provenance needs.
    """

    quick: bool = False
    seed_count: int | None = None
    device: str = "cpu"
    folder: Path | None = None
    progress: bool | Progress = True
    checksums: dict[str, str] = field(default_factory=dict)
    used_seeds: set[int] = field(default_factory=set)
    networks: int = 0

    def __post_init__(self) -> None:
        if self.seed_count is not None and self.seed_count < 1:
            raise InputError(f"seeds: expected at least 1, got {self.seed_count}.")

    def seeds(self, least: int = 1) -> tuple[int, ...]:
        """The authors' seed, then 1, 2, …; `least` where a claim needs more than a few (not in a quick run)."""
        count = self.seed_count or 1 if self.quick else max(self.seed_count or 3, least)
        return (PAPER_SEED, *range(1, count))

    def epochs(self, full: int = 600, quick: int = 60) -> int:
        """Epochs of training."""
        return quick if self.quick else full

    def train(
        self,
        name: str,
        recipes: Sequence[Recipe],
        data: Mapping[str, Samples],
        schedule: Schedule,
        *,
        start: Sequence[dict[str, Any]] | None = None,
        copied: tuple[int, int] | None = None,
    ) -> list[Run]:
        """Train and measure; `name` tells the sweeps of one experiment apart in its folder."""
        used = {recipe.data for recipe in recipes}
        which = " (embedded Fashion-MNIST)" if self.quick else ""
        self.checksums |= {key + which: samples.checksum for key, samples in data.items() if key in used}
        self.used_seeds |= {recipe.seed for recipe in recipes}
        self.networks += len(recipes)
        folder = None if self.folder is None else self.folder / name
        how: dict[str, Any] = {"schedule": schedule, "start": start, "copied": copied}
        return sweep(recipes, data, folder=folder, device=self.device, progress=self.progress, **how)
