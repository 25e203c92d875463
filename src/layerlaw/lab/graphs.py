"""One epoch of a fleet as one CUDA graph: thousands of small kernels, launched by one call."""

from __future__ import annotations

import torch
from torch import Tensor

from layerlaw.lab.fleet import Fleet


class EpochGraph:
    """Captures an epoch once and replays it with new orders; learning rates are read from the rules' tensors.

    Capturing runs a few epochs to warm up; everything they change is put back.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._orders = torch.arange(fleet.rows.shape[1], device=fleet.device).repeat(len(fleet), 1)
        kept = {name: tensor.clone() for name, tensor in fleet.state().items()}
        side = torch.cuda.Stream(fleet.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(fleet.device))
        with torch.cuda.stream(side):
            for _ in range(2):
                fleet.train_epoch(self._orders)
        torch.cuda.current_stream(fleet.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._losses = fleet.train_epoch(self._orders)
        for name, tensor in fleet.state().items():
            tensor.copy_(kept[name])

    def __call__(self, orders: Tensor) -> Tensor:
        """Train one epoch; returns the losses (E,), which the next call overwrites."""
        self._orders.copy_(orders, non_blocking=True)
        self._graph.replay()
        return self._losses
