"""A loss that leaves a trace of who trained what, for tests in which workers of a Ray cluster are lost."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.lab import Loss


@dataclass(frozen=True)
class TracedEntropy(Loss):
    """Cross-entropy that takes `pause` seconds per batch and notes process and node after every epoch.

    It fails where the folder holds a file `fail`, ends its own process where it holds a file `die`, and while it holds a
    file `slow` takes long for all epochs but the first few, so that the test comes in between also on a busy machine.
    """

    kind: ClassVar[str] = "traced_entropy"
    folder: str = ""
    pause: float = 0.01

    def build(self) -> nn.Module:
        return _Traced(Path(self.folder), self.pause)


class _Traced(nn.Module):
    def __init__(self, folder: Path, pause: float) -> None:
        super().__init__()
        self._folder, self._pause, self._epochs = folder, pause, 0

    def forward(self, logits: Tensor, labels: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        time.sleep(10 * self._pause if self._epochs > 2 and (self._folder / "slow").exists() else self._pause)
        if (self._folder / "fail").exists():
            raise ArithmeticError("the test wants a failure")
        if (self._folder / "die").exists():
            os._exit(1)
        return F.cross_entropy(logits, labels)

    def end_epoch(self) -> None:
        import ray

        self._epochs += 1
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        with open(self._folder / "trace", "a") as file:
            file.write(f"{os.getpid()} {node}\n")
