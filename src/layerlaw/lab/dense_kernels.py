"""A dense block as one operation with its gradient, for training on a GPU; kernels in Triton, imported on a GPU only.

Every layer of a dense block normalizes all channels before it. Batch statistics of a channel are the same in all these
layers, so they are taken once; the channels of a block lie in one matrix (positions, channels) that layers write into, so
nothing is concatenated; and of the gradient of a BatchNorm, the two terms that go through its statistics are linear, so
they are added up per channel over all layers and applied once. That leaves less than half of the memory traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE: dict[str, int] = {"ROWS": 64, "COLUMNS": 64, "num_warps": 8}
PARTS = 512  # into so many parts of rows, at most, sums are split
ENDS: dict[str, int] = {"COLUMNS": 16, "PARTS": PARTS, "num_warps": 8}  # for adding up the parts
PER_LAYER = 6  # parameters: scale and shift of both BatchNorms, and both weights, in the order of the forward
CONVOLUTION = (
    [1, 1],
    [1, 1],
    [1, 1],
    False,
    [0, 0],
    1,
)  # stride, padding, dilation, transposed, output padding, groups


class _DenseBlock(torch.autograd.Function):
    """(n, c, h, w) → (n, c + L·g, h, w), channels last; and the batch statistics of all BatchNorms, for running ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, eps: float, *parameters: Tensor) -> tuple[Tensor, ...]:
        layers = [parameters[at : at + PER_LAYER] for at in range(0, len(parameters), PER_LAYER)]
        n, first, h, w = x.shape
        growth, inner = layers[0][-1].shape[:2]
        M, width = n * h * w, first + len(layers) * growth
        X = x.new_empty((M, width), dtype=dtype)
        own = _Statistics(width, x)
        within = _Statistics(len(layers) * inner, x)
        own.of(_rows(x), slice(0, first), eps, copy=X)
        saved = []
        for number, (scale1, shift1, weight1, scale2, shift2, weight2) in enumerate(layers):
            C = first + number * growth
            y = _normalized(X[:, :C], own.at(slice(0, C)), scale1, shift1)
            z = y @ weight1.to(dtype).flatten(1).mT
            here = slice(number * inner, (number + 1) * inner)
            within.of(z, here, eps)
            inside = _normalized(z, within.at(here), scale2, shift2)
            new = torch.conv2d(_image(inside, x.shape), weight2.to(dtype), padding=1)
            own.of(_rows(new), slice(C, C + growth), eps, copy=X)
            saved += [y, z, inside]
        ctx.save_for_backward(X, own.mean, own.scale, within.mean, within.scale, *saved, *parameters)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        found = _image(X, x.shape), own.mean, own.variance, within.mean, within.variance
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        X, mean, scale, mean2, rate2, *rest = ctx.saved_tensors
        L = len(rest) // (3 + PER_LAYER)
        saved, parameters = rest[: 3 * L], rest[3 * L :]
        first = ctx.shape[1]
        growth, inner = parameters[PER_LAYER - 1].shape[:2]
        G = torch.empty_like(X).copy_(_rows(above[0]))  # layers add to it
        late = X.new_zeros(
            (2, X.shape[1]), dtype=torch.float32
        )  # what goes through the statistics, still to be applied
        slopes: list[Tensor | None] = [None] * len(parameters)
        for number in reversed(range(L)):
            at, C = number * PER_LAYER, first + number * growth
            scale1, shift1, weight1, scale2, shift2, weight2 = parameters[at : at + PER_LAYER]
            y, z, inside = saved[3 * number : 3 * number + 3]
            here, new = slice(number * inner, (number + 1) * inner), slice(C, C + growth)
            above_new = _image(_settled(G, X, new, (mean, scale), late), ctx.shape)
            wanted = [True, True, False]
            into, slope2, _ = torch.ops.aten.convolution_backward(
                above_new, _image(inside, ctx.shape), weight2.to(X.dtype), None, *CONVOLUTION, wanted
            )
            norm2 = mean2[here], rate2[here], scale2, shift2
            sums2 = _slopes(_rows(into), z, norm2)
            into_z = _through_norm(_rows(into), z, norm2, sums2)
            slope1 = into_z.mT @ y
            into_y = into_z @ weight1.to(X.dtype).flatten(1)
            norm1 = mean[:C], scale[:C], scale1, shift1
            sums1 = _slopes(into_y, X[:, :C], norm1, G, late)
            slopes[at : at + PER_LAYER] = [
                *(sums1[1], sums1[0], slope1.view_as(weight1).to(weight1.dtype)),
                *(sums2[1], sums2[0], slope2.to(weight2.dtype)),
            ]
        into_x = _image(_settled(G, X, slice(0, first), (mean, scale), late), ctx.shape)
        return into_x.to(ctx.dtype), None, None, *slopes


def dense_block(x: Tensor, dtype: torch.dtype, eps: float, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """All channels behind the block, means and variances of its channels, those inside of its layers, end to end."""
    with torch.autocast("cuda", enabled=False), torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        found: tuple[Tensor, ...] = _DenseBlock.apply(x, dtype, eps, *parameters)  # type: ignore[no-untyped-call]
    return found


class _Statistics:
    """Mean, variance and 1/deviation of channels, filled as the channels come."""

    def __init__(self, channels: int, like: Tensor) -> None:
        self.mean, self.variance, self.scale = like.new_empty((3, channels), dtype=torch.float32)

    def at(self, channels: slice) -> tuple[Tensor, Tensor]:
        """Means and scales of some."""
        return self.mean[channels], self.scale[channels]

    def of(self, x: Tensor, channels: slice, eps: float, copy: Tensor | None = None) -> None:
        """Take those of x (M, c), and copy it to these columns of a matrix, in its dtype."""
        (M, c), (each, parts) = x.shape, _parts(len(x))
        partial = x.new_empty((parts, 2, c), dtype=torch.float32)
        there = x if copy is None else copy[:, channels]
        sizes = M, c, x.stride(0), there.stride(0), each
        _column_sums[_columns(c, TILE), parts](x, there, partial, *sizes, COPY=copy is not None, **TILE)
        found = self.mean[channels], self.variance[channels], self.scale[channels]
        _end_statistics[(_columns(c, ENDS),)](partial, x, *found, M, c, parts, eps, **ENDS)


def _parts(M: int) -> tuple[int, int]:
    """Rows of each part, and how many parts there are."""
    each = -(-M // (PARTS * TILE["ROWS"])) * TILE["ROWS"]
    return each, -(-M // each)


def _columns(c: int, tile: dict[str, int]) -> int:
    """How many tiles go over so many columns."""
    return -(-c // tile["COLUMNS"])


def _rows(x: Tensor) -> Tensor:
    """(n, c, h, w), channels last, as a matrix (n·h·w, c)."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _image(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse, for as many images of this height and width as a shape (n, …, h, w) has."""
    n, _, h, w = shape
    return rows.view(n, h, w, -1).permute(0, 3, 1, 2)


def _tiles(x: Tensor) -> tuple[int, int]:
    return -(-len(x) // TILE["ROWS"]), _columns(x.shape[1], TILE)


def _normalized(x: Tensor, of: tuple[Tensor, Tensor], scale: Tensor, shift: Tensor) -> Tensor:
    """relu of BatchNorm of (M, c)."""
    y = x.new_empty(x.shape)
    _norm_relu[_tiles(x)](x, y, *of, scale, shift, *x.shape, x.stride(0), **TILE)
    return y


def _slopes(
    above: Tensor, x: Tensor, norm: tuple[Tensor, ...], G: Tensor | None = None, late: Tensor | None = None
) -> Tensor:
    """Gradients (2, c) of shift and scale of a BatchNorm behind which a relu gets the gradient `above` (M, c).

    With G, what does not go through the statistics is added to it, and what does to `late`.
    """
    (M, c), (each, parts) = x.shape, _parts(len(x))
    partial = x.new_empty((parts, 2, c), dtype=torch.float32)
    sums = x.new_empty((2, c), dtype=torch.float32)
    add = G is not None
    to, later = (G, late) if G is not None and late is not None else (above, sums)
    strides = x.stride(0), to.stride(0)
    _slope_sums[_columns(c, TILE), parts](above, x, *norm, to, partial, M, c, *strides, each, ADD=add, **TILE)
    at = sums, later, c, later.stride(0), parts
    _end_slopes[(_columns(c, ENDS),)](partial, norm[1], norm[2], *at, ADD=add, **ENDS)
    return sums


def _through_norm(above: Tensor, x: Tensor, norm: tuple[Tensor, ...], sums: Tensor) -> Tensor:
    """The gradient (M, c) in front of BatchNorm and relu."""
    into = x.new_empty(x.shape)
    _norm_backward[_tiles(x)](above, x, *norm, sums, into, *x.shape, x.stride(0), **TILE)
    return into


def _settled(G: Tensor, X: Tensor, channels: slice, of: tuple[Tensor, Tensor], late: Tensor) -> Tensor:
    """The whole gradient of some channels, with what goes through their statistics."""
    x, g = X[:, channels], G[:, channels]
    into = x.new_empty(x.shape)
    one = (t[channels] for t in (*of, late[0], late[1]))
    _settle[_tiles(x)](g, x, *one, into, *x.shape, x.stride(0), **TILE)
    return into


@triton.jit
def _column_sums(  # type: ignore[no-untyped-def]
    x, copy, partial, M, C, stride, to_stride, each, ROWS: tl.constexpr, COLUMNS: tl.constexpr, COPY: tl.constexpr
):
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    # Around the first row: squares of large values would leave nothing of a small spread.
    first = tl.load(x + j, j < C, 0.0).to(tl.float32)
    sums, squares = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    start = tl.program_id(1) * each
    for block in range(0, each, ROWS):
        i = start + block + tl.arange(0, ROWS)
        there = (i < M)[:, None] & (j < C)[None, :]
        rows = i.to(tl.int64)[:, None]
        value = tl.load(x + rows * stride + j[None, :], there, 0.0)
        if COPY:
            tl.store(copy + rows * to_stride + j[None, :], value.to(copy.dtype.element_ty), there)
        near = tl.where(there, value.to(tl.float32) - first[None, :], 0.0)
        sums += tl.sum(near, 0)
        squares += tl.sum(near * near, 0)
    out = partial + tl.program_id(1) * 2 * C + j
    tl.store(out, sums, j < C)
    tl.store(out + C, squares, j < C)


@triton.jit
def _end_statistics(  # type: ignore[no-untyped-def]
    partial, x, mean, variance, scale, M, C, parts, eps, COLUMNS: tl.constexpr, PARTS: tl.constexpr
):
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums, squares = _added_up(partial, j, C, parts, PARTS)
    near = sums / M
    spread = tl.maximum(squares / M - near * near, 0.0)
    tl.store(mean + j, tl.load(x + j, j < C, 0.0).to(tl.float32) + near, j < C)
    tl.store(variance + j, spread, j < C)
    tl.store(scale + j, 1.0 / tl.sqrt(spread + eps), j < C)


@triton.jit
def _added_up(partial, j, C, parts, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    p = tl.arange(0, PARTS)
    at = partial + p[:, None] * 2 * C + j[None, :]
    there = (p < parts)[:, None] & (j < C)[None, :]
    return tl.sum(tl.load(at, there, 0.0), 0), tl.sum(tl.load(at + C, there, 0.0), 0)


@triton.jit
def _norm_relu(  # type: ignore[no-untyped-def]
    x, y, mean, rate, scale, shift, M, C, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there, rows = (i < M)[:, None] & (j < C)[None, :], i.to(tl.int64)[:, None]
    value = tl.load(x + rows * stride + j[None, :], there, 0.0).to(tl.float32)
    normal = (value - tl.load(mean + j, j < C, 0.0)[None, :]) * tl.load(rate + j, j < C, 0.0)[None, :]
    out = normal * tl.load(scale + j, j < C, 0.0)[None, :] + tl.load(shift + j, j < C, 0.0)[None, :]
    tl.store(y + rows * C + j[None, :], tl.maximum(out, 0.0).to(y.dtype.element_ty), there)


@triton.jit
def _slope_sums(  # type: ignore[no-untyped-def]
    above, x, mean, rate, scale, shift, to, partial, M, C, stride, to_stride, each,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    m, r = tl.load(mean + j, j < C, 0.0)[None, :], tl.load(rate + j, j < C, 0.0)[None, :]
    a, b = tl.load(scale + j, j < C, 0.0)[None, :], tl.load(shift + j, j < C, 0.0)[None, :]
    shifts, scales = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    start = tl.program_id(1) * each
    for block in range(0, each, ROWS):
        i = start + block + tl.arange(0, ROWS)
        there, rows = (i < M)[:, None] & (j < C)[None, :], i.to(tl.int64)[:, None]
        normal = (tl.load(x + rows * stride + j[None, :], there, 0.0).to(tl.float32) - m) * r
        slope = tl.load(above + rows * C + j[None, :], there, 0.0).to(tl.float32)
        slope = tl.where(there & (normal * a + b > 0), slope, 0.0)
        if ADD:
            at = to + rows * to_stride + j[None, :]
            value = tl.load(at, there, 0.0).to(tl.float32) + slope * (a * r)
            tl.store(at, value.to(to.dtype.element_ty), there)
        shifts += tl.sum(slope, 0)
        scales += tl.sum(slope * normal, 0)
    out = partial + tl.program_id(1) * 2 * C + j
    tl.store(out, shifts, j < C)
    tl.store(out + C, scales, j < C)


@triton.jit
def _end_slopes(  # type: ignore[no-untyped-def]
    partial, rate, scale, sums, late, C, to_stride, parts,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    shifts, scales = _added_up(partial, j, C, parts, PARTS)
    tl.store(sums + j, shifts, j < C)
    tl.store(sums + C + j, scales, j < C)
    if ADD:
        factor = tl.load(rate + j, j < C, 0.0) * tl.load(scale + j, j < C, 0.0)
        tl.store(late + j, tl.load(late + j, j < C, 0.0) + factor * shifts, j < C)
        after = late + to_stride + j
        tl.store(after, tl.load(after, j < C, 0.0) + factor * scales, j < C)


@triton.jit
def _norm_backward(  # type: ignore[no-untyped-def]
    above, x, mean, rate, scale, shift, sums, into, M, C, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there, rows = (i < M)[:, None] & (j < C)[None, :], i.to(tl.int64)[:, None]
    r, a = tl.load(rate + j, j < C, 0.0)[None, :], tl.load(scale + j, j < C, 0.0)[None, :]
    value = tl.load(x + rows * stride + j[None, :], there, 0.0).to(tl.float32)
    normal = (value - tl.load(mean + j, j < C, 0.0)[None, :]) * r
    slope = tl.load(above + rows * C + j[None, :], there, 0.0).to(tl.float32)
    slope = tl.where(normal * a + tl.load(shift + j, j < C, 0.0)[None, :] > 0, slope, 0.0)
    shifts, scales = tl.load(sums + j, j < C, 0.0)[None, :] / M, tl.load(sums + C + j, j < C, 0.0)[None, :] / M
    found = a * r * (slope - shifts - normal * scales)
    tl.store(into + rows * C + j[None, :], found.to(into.dtype.element_ty), there)


@triton.jit
def _settle(  # type: ignore[no-untyped-def]
    g, x, mean, rate, shifts, scales, into, M, C, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there, rows = (i < M)[:, None] & (j < C)[None, :], i.to(tl.int64)[:, None]
    value = tl.load(x + rows * stride + j[None, :], there, 0.0).to(tl.float32)
    normal = (value - tl.load(mean + j, j < C, 0.0)[None, :]) * tl.load(rate + j, j < C, 0.0)[None, :]
    slope = tl.load(g + rows * stride + j[None, :], there, 0.0).to(tl.float32)
    through = tl.load(shifts + j, j < C, 0.0)[None, :] + normal * tl.load(scales + j, j < C, 0.0)[None, :]
    tl.store(into + rows * C + j[None, :], (slope - through / M).to(into.dtype.element_ty), there)
