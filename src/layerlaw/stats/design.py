"""The design of a regression on targets, batch by batch."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from layerlaw.stats.passes import Dealt
from layerlaw.stats.precision import double


class DesignRows:
    """The design of one batch: T (n, 1+q), permuted ones (P, 1+q, n), the rows of every group; on any device."""

    def __init__(self, dealt: Dealt, shift: Tensor, groups: int) -> None:
        self.T = _design(double(dealt.labels).cpu() - shift)
        self.groups = torch.zeros(len(self.T), dtype=torch.long) if dealt.groups is None else dealt.groups.cpu()
        self.permuted = None if dealt.permuted is None else _design((dealt.permuted.mT - shift).cpu()).mT
        self._count = groups
        self._placed: dict[torch.device, tuple[Tensor, Tensor, Tensor | None]] = {}

    @cached_property
    def of_groups(self) -> list[tuple[int, Tensor]]:
        """Every group that is there, and its rows."""
        found = ((k, (self.groups == k).nonzero().flatten()) for k in range(self._count))
        return [(k, rows) for k, rows in found if len(rows)]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """T, groups and permuted designs on a device."""
        if device not in self._placed:
            permuted = None if self.permuted is None else self.permuted.to(device)
            self._placed[device] = self.T.to(device), self.groups.to(device), permuted
        return self._placed[device]


def _design(targets: Tensor) -> Tensor:
    """[1, Y] in float64."""
    return torch.cat([torch.ones_like(targets[..., :1]), targets], -1)
