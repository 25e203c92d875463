"""Pass 1: how many samples each class has, and the sum of their features."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerlaw.stats.labels import Assignment
from layerlaw.stats.precision import add_rows, at_least_float32, double, row_chunks, take_rows

ROWS_IN_FLOAT32 = 1024  # partial sums of more rows go on in float64


@dataclass
class ClassSums:
    """Class counts (…, K) and class sums (…, K, d), in float64.

    `spread` (…) is the sum of ‖x − reference of its class‖², the size of what was added: it bounds the rounding.
    `dtype` is the coarsest dtype the features came in; the rank rule of the centres depends on it.
    Groups of a jackknife are a leading dimension: `sums` (g, K, d); `total` adds them up.
    """

    counts: Tensor
    sums: Tensor
    spread: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> ClassSums:
        """Sums of (…, n, d) features with (…, n) labels."""
        return cls.assigned(features, Assignment.of(labels, classes))

    @classmethod
    def assigned(cls, features: Tensor, to: Assignment) -> ClassSums:
        """Sums of (…, n, d) features into the cells of an assignment.

        One sample of each class is subtracted before the sum and added back in float64: what is rounded to float32 is
        then of the size of the within-class spread, whatever the offset and the distance of the classes.
        """
        reference = at_least_float32(take_rows(features, to.first))  # (…, K, d)
        *batch, n, d = features.shape
        whole = reference.new_zeros((*to.counts.shape, d), dtype=torch.float64)
        spread = whole.new_zeros(to.counts.shape[:-1])
        sums = reference.new_zeros(whole.shape)
        for block in row_chunks(n, 1, ROWS_IN_FLOAT32):
            for rows in row_chunks(block.stop, 4 * d * torch.Size(batch).numel(), start=block.start):
                near = take_rows(reference, to.labels[..., rows])
                near = torch.sub(at_least_float32(features[..., rows, :]), near, out=near)
                add_rows(sums, to.cells[..., rows], near)
                size = double(torch.linalg.vector_norm(near, dim=-1)).square()  # (…, n)
                if to.groups:
                    spread.index_add_(0, to.cells[rows] // len(reference), size)
                else:
                    spread += size.sum(-1)
            whole += double(sums)
            sums.zero_()
        whole.addcmul_(to.counts.unsqueeze(-1), double(reference))
        return cls(to.counts.clone(), whole, spread, features.dtype)

    @property
    def tensors(self) -> list[Tensor]:
        """What an all-reduce adds up."""
        return [self.counts, self.sums, self.spread]

    def add(self, other: ClassSums) -> None:
        """Add another part of the same data, in place."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine += theirs
        if other.dtype.itemsize < self.dtype.itemsize:
            self.dtype = other.dtype

    @classmethod
    def merge(cls, parts: Sequence[ClassSums]) -> ClassSums:
        """One statistic from several parts of the same data."""
        whole = copy.deepcopy(parts[0])
        for part in parts[1:]:
            whole.add(part)
        return whole

    def total(self) -> ClassSums:
        """Add up the groups of the leading dimension."""
        return ClassSums(self.counts.sum(0), self.sums.sum(0), self.spread.sum(0), self.dtype)

    def left_out(self) -> ClassSums:
        """Everything but group i, for each group i of the leading dimension."""
        all_ = self.total()
        return ClassSums(all_.counts - self.counts, all_.sums - self.sums, all_.spread - self.spread, self.dtype)
