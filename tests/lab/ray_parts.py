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

    It fails where the folder holds a file `fail`, and ends its own process where it holds a file `die`.
    """

    kind: ClassVar[str] = "traced_entropy"
    folder: str = ""
    pause: float = 0.01

    def build(self) -> nn.Module:
        return _Traced(Path(self.folder), self.pause)


class _Traced(nn.Module):
    def __init__(self, folder: Path, pause: float) -> None:
        super().__init__()
        self._folder, self._pause = folder, pause

    def forward(self, logits: Tensor, labels: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        time.sleep(self._pause)
        if (self._folder / "fail").exists():
            raise ArithmeticError("the test wants a failure")
        if (self._folder / "die").exists():
            os._exit(1)
        return F.cross_entropy(logits, labels)

    def end_epoch(self) -> None:
        import ray

        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        with open(self._folder / "trace", "a") as file:
            file.write(f"{os.getpid()} {node}\n")
