"""Pass 1: how many samples each class has, and the sum of their features."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerlaw.stats.labels import one_hot
from layerlaw.stats.precision import at_least_float32, double, row_chunks, take_rows


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
    def of(cls, features: Tensor, labels: Tensor, classes: int, hot: Tensor | None = None) -> ClassSums:
        """Sums of (…, n, d) features with (…, n) labels.

        `hot` (…, K, n) are the indicator rows when the caller has them; a column of zeros leaves its sample out.
        The first sample of each class is subtracted before the product and added back in float64: what is rounded to
        float32 is then of the size of the within-class spread, whatever the offset and the distance of the classes.
        """
        if hot is None:
            hot = one_hot(labels, classes, at_least_float32(features[..., :0, :]).dtype)
        first = hot.argmax(-1)  # (…, K)
        reference = at_least_float32(take_rows(features, first))  # (…, K, d)
        *batch, n, d = features.shape
        sums, spread = None, None
        for rows in row_chunks(n, 4 * d * max(1, torch.Size(batch).numel())):
            near = take_rows(reference, labels[..., rows])
            near = torch.sub(at_least_float32(features[..., rows, :]), near, out=near)
            part = double(hot[..., rows] @ near)  # (…, K, d)
            size = double(torch.linalg.vector_norm(near, dim=(-2, -1))).square()
            sums, spread = (part, size) if sums is None or spread is None else (sums + part, spread + size)
        assert sums is not None
        assert spread is not None
        counts = double(hot.sum(-1))
        sums += counts.unsqueeze(-1) * double(reference)
        return cls(counts, sums, spread, features.dtype)

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
