"""The order in which each member sees its samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Orders:
    """A new random order of n samples for every epoch, drawn from each member's seed as the plain loop draws it.

    >>> Orders([1, 2, 1], 4).next().shape
    torch.Size([3, 4])
    """

    def __init__(self, seeds: Sequence[int], samples: int) -> None:
        self.samples = samples
        self._seeds = list(dict.fromkeys(seeds))
        self._generators = [torch.Generator().manual_seed(seed) for seed in self._seeds]
        self._member = torch.tensor([self._seeds.index(seed) for seed in seeds])
        self._drawn = torch.empty((len(self._seeds), samples), dtype=torch.int64)

    def next(self) -> Tensor:
        """(E, n); members of one seed share it."""
        for generator, row in zip(self._generators, self._drawn, strict=True):
            torch.randperm(self.samples, generator=generator, out=row)
        return self._drawn[self._member]

    def skip(self, epochs: int) -> None:
        """Go on as after this many epochs."""
        for _ in range(epochs):
            self.next()
