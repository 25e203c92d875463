"""Σ_i w_i ‖x_i − mean of its class in the batch‖² and its gradient, one GPU kernel each, in Triton; imported on a GPU only.

A program holds all samples of the batch and some of their features, so that the features are read once and nothing but the
answer is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

MOST_SAMPLES, MOST_CLASSES = 512, 64  # of a batch: what one program holds, and how often it looks at it
HELD = 4096  # numbers of a program


class _AroundBatchMeans(torch.autograd.Function):
    """The weights w (n,) are in the dtype that is computed in."""

    @staticmethod
    def forward(ctx: Any, labels: Tensor, weights: Tensor, classes: int, *features: Tensor) -> Tensor:
        features = tuple(x.contiguous() for x in features)
        ctx.save_for_backward(labels, weights, *features)
        ctx.classes = classes
        return _run(features, labels, weights, classes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        labels, weights, *features = ctx.saved_tensors
        slopes = [torch.empty_like(x) for x in features]
        _run(features, labels, 2 * above[0].to(weights.dtype) * weights, ctx.classes, slopes)
        return None, None, None, *slopes


def around_batch_means(features: Sequence[Tensor], labels: Tensor, weights: Tensor, classes: int) -> Tensor:
    """The sum over several sites (n, d), all on one device, with its gradient."""
    found: Tensor = _AroundBatchMeans.apply(labels, weights, classes, *features)  # type: ignore[no-untyped-call]
    return found


def _run(
    features: Sequence[Tensor], labels: Tensor, weights: Tensor, classes: int, slopes: Sequence[Tensor] | None = None
) -> Tensor:
    """The sum; or, with `slopes`, fill these with w_i times the residuals."""
    n, sums = len(labels), []
    rows = max(16, 1 << (n - 1).bit_length())
    columns = HELD // rows
    with torch.cuda.device_of(weights):  # type: ignore[no-untyped-call]  # Triton starts kernels on the current device
        for i, x in enumerate(features):
            programs = -(-x.shape[1] // columns)
            out = weights.new_empty(programs) if slopes is None else slopes[i]
            _around_means[(programs,)](
                x, labels, weights, out, n, x.shape[1], classes, ROWS=rows, COLUMNS=columns, SLOPES=slopes is not None
            )
            sums.append(out)
    return torch.cat(sums).sum() if slopes is None else weights


@triton.jit(do_not_specialize=["n", "d", "classes"])
def _around_means(  # type: ignore[no-untyped-def]
    x, labels, weights, out, n, d, classes, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOPES: tl.constexpr
):
    i, j = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    label, weight = tl.load(labels + i, i < n, -1), tl.load(weights + i, i < n, 0.0)
    at = i.to(tl.int64)[:, None] * d + j[None, :]
    there = (i < n)[:, None] & (j < d)[None, :]
    values = tl.load(x + at, there, 0.0).to(weights.dtype.element_ty)
    residuals = values
    for c in range(classes):
        own = (label == c)[:, None]
        count = tl.maximum(tl.sum((label == c).to(tl.int32), 0), 1)
        mean = tl.sum(tl.where(own, values, 0.0), 0) / count
        residuals = tl.where(own, values - mean[None, :], residuals)
    if SLOPES:
        tl.store(out + at, (residuals * weight[:, None]).to(out.dtype.element_ty), there)
    else:
        tl.store(out + tl.program_id(0), tl.sum(tl.sum(residuals * residuals, 1) * weight, 0))
