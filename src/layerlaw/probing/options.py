"""How to measure: the choices of a probe, checked."""

from __future__ import annotations

from dataclasses import dataclass

from layerlaw.capture import BatchNormMode, Reduce
from layerlaw.errors import InputError
from layerlaw.progress import Progress
from layerlaw.stats.centers import Weighting


@dataclass(frozen=True)
class Options:
    """How to measure."""

    reduce: Reduce
    batchnorm: BatchNormMode
    weighting: Weighting
    jackknife: bool | None
    permuted: bool | None
    memory_gib: float
    seed: int
    progress: Progress

    def __post_init__(self) -> None:
        for name, allowed in {"batchnorm": ("running", "batch"), "weighting": ("samples", "classes")}.items():
            if (value := getattr(self, name)) not in allowed:
                raise InputError(f"{name}: expected {' or '.join(map(repr, allowed))}, got {value!r}.")
        if not self.memory_gib > 0:
            raise InputError(f"memory_gib: expected a positive number of GiB, got {self.memory_gib}.")

    @property
    def memory(self) -> int:
        """The memory budget in bytes."""
        return int(self.memory_gib * 2**30)
