"""Features in memory: one forward serves both passes, and each site is worked through as one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from layerlaw.capture import Site

BLOCK_BYTES = 8 * 2**20  # of what is held per sample and site in float64 while a block of rows is worked through


class KeptFeatures:
    """The features of all sites (n, d), copied batch by batch as long as they fit the budget."""

    def __init__(self, sites: Sequence[Site], budget: int, samples: int | None) -> None:
        self.whole = budget > 0
        self._row_bytes = sum(site.features * site.itemsize for site in sites)
        self._budget, self._capacity = budget, samples or 0
        self._matrices: dict[str, Tensor] = {}
        self._labels: list[Tensor] = []
        self._decisions: list[Tensor | None] = []
        self._wheres: list[str] = []
        self.rows = 0

    def has_room_for(self, rows: int) -> bool:
        """Whether so many more samples fit."""
        return (self.rows + rows) * self._row_bytes <= self._budget

    def add(self, site: Site, features: Tensor) -> None:
        """Copy: what follows in the forward may overwrite the features in place."""
        end = self.rows + len(features)
        matrix = self._matrices.get(site.name)
        if matrix is None or end > len(matrix):
            most = self._budget // self._row_bytes
            grown = features.new_empty((max(end, min(most, max(self._capacity, 2 * self.rows))), features.shape[1]))
            if matrix is not None:
                grown[: self.rows] = matrix[: self.rows]
            self._matrices[site.name] = matrix = grown
        matrix[self.rows : end] = features

    def close(self, labels: Tensor, decision: Tensor | None, where: str) -> None:
        """End a batch."""
        self._labels.append(labels)
        self._decisions.append(decision)
        self._wheres.append(where)
        self.rows += len(labels)

    @property
    def labels(self) -> Tensor:
        """Labels of all kept samples (n,)."""
        return torch.cat(self._labels)

    def decisions(self, rows: slice) -> Tensor | None:
        """Decisions of the network for some of the samples."""
        found = [d for d in self._decisions if d is not None]
        return torch.cat(found)[rows] if len(found) == len(self._decisions) else None

    def features(self, rows: slice | None = None) -> Iterator[tuple[str, Tensor]]:
        """Every site's features, all or some rows of them."""
        for name, matrix in self._matrices.items():
            yield name, matrix[: self.rows] if rows is None else matrix[rows]

    def batches(self) -> Iterator[tuple[Tensor, slice, str]]:
        """Labels, rows and names of the batches as they came."""
        start = 0
        for labels, where in zip(self._labels, self._wheres, strict=True):
            yield labels, slice(start, start + len(labels)), where
            start += len(labels)

    def blocks(self, classes: int) -> Iterator[slice]:
        """Blocks of rows small enough for the float64 work on all sites together."""
        step = max(256, BLOCK_BYTES // (32 * classes * max(1, len(self._matrices))))
        for start in range(0, self.rows, step):
            yield slice(start, min(start + step, self.rows))

    def where_bad(self, name: str) -> str:
        """Name of the first batch in which a site has NaN or infinite features."""
        bad = (where for _, rows, where in self.batches() if not bool(self._matrices[name][rows].isfinite().all()))
        return next(bad, "the sum over all batches")

    def drop(self) -> None:
        """Let go of everything."""
        self.whole, self._matrices, self.rows = False, {}, 0
        self._labels, self._decisions, self._wheres = [], [], []
