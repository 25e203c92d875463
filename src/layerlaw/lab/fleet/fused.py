"""A training step of a fleet in one GPU kernel per layer and direction, written in Triton; imported on a GPU only.

Forward: product, statistics of the batch and normalization. Backward: the gradients of one layer's weights and, through
ReLU and BatchNorm below, of what that layer's product gave. Of every hidden layer only the normalized x̂ (E, W, B) is kept,
from which its activations relu(γ·x̂ + β) follow; γ, β and their gradients are read and written where the rows have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from layerlaw.lab.fleet.norms import EPS, MOMENTUM

if TYPE_CHECKING:
    from layerlaw.lab.fleet import Fleet

WIDEST = 128  # units, samples of a batch, classes: what one program holds
# Of products: three of tf32 parts on tensor cores keep the digits of float32. Six of bf16 parts ("bf16x6", triton 3.6) give
# losses as near to those of a CPU, in a quarter more time.
PRECISION = "tf32x3"
UNITS, STAGES, HEAD_WARPS = 32, 3, 8
MANY = 100  # members that keep an H200 busy: smaller programs then take less time, of few members they take more
TILES = {False: (32, 4), True: (16, 2)}  # by whether there are so many: terms that a program adds at a time, its warps


class FusedStep:
    """The gradients of a fleet's networks; buffers are made once and serve every length of batch."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        precision: str = PRECISION,
        units: int = UNITS,
        piece: int | None = None,
        warps: int | None = None,
        split: bool = True,
        stages: int = STAGES,
    ) -> None:
        assert fleet.norms is not None
        E, widths, device = len(fleet), fleet.shape.widths, fleet.device
        # Not the fleet itself: in a circle their memory would wait for the garbage collector.
        self._shape, self._norms, self._pool, self._step = (
            fleet.shape,
            fleet.norms,
            fleet.pool,
            fleet.parameters.stride(0),
        )
        self._weights, self._biases, self._weight_slopes = fleet.weights, fleet.biases, fleet.slopes
        self._bias_slope = fleet.gradients[:, fleet.layout.biases[-1]]
        self._columns = _power_of_2(fleet.recipes[0].batch_size)
        self._normed = [torch.zeros((E, w, self._columns), device=device) for w in widths]
        self._inverse = [torch.zeros((E, w), device=device) for w in widths]
        two = torch.zeros((2, E * max(widths) * self._columns), device=device)  # one is read, the other one written
        self._slope = [two[i % 2, : E * w * self._columns].view(E, w, -1) for i, w in enumerate(widths)]
        self._losses = torch.zeros(E, device=device)
        usual = TILES[E >= MANY]
        self._units, self._piece, self._split = units, piece or usual[0], split
        layout, gradients = fleet.layout, fleet.gradients
        self._gains, self._shifts = ([fleet.parameters[:, c] for c in cs] for cs in (layout.gains, layout.shifts))
        self._gain_slopes, self._shift_slopes = ([gradients[:, c] for c in cs] for cs in (layout.gains, layout.shifts))
        self._how: dict[str, Any] = {"PRECISION": precision, "num_warps": warps or usual[1], "num_stages": stages}

    @classmethod
    def tried(cls, fleet: Fleet) -> FusedStep | None:
        """Where it can train the fleet: BatchNorm and ReLU, all layers, narrow, small batches, a GPU that takes it."""
        shape, first, norms = fleet.shape, fleet.recipes[0], fleet.norms
        narrow = max(*shape.widths, shape.classes, first.batch_size) <= WIDEST
        if norms is None or not narrow or shape.activation != "relu" or first.trained != (0, shape.depth):
            return None
        if torch.cuda.get_device_capability(fleet.device) < (8, 0):
            return None
        running = norms.running_means, norms.running_variances
        before = [statistic.clone() for statistic in running]
        made = cls(fleet)
        try:
            made.gradients_of(fleet.rows[:, : first.batch_size], fleet.labels)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # too little shared memory, no compiler, …: the plain path is always there
            return None
        for statistic, old in zip(running, before, strict=True):
            statistic.copy_(old)
        fleet.gradients.zero_()
        return made

    def gradients_of(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Write the gradients for the samples in these rows of the pool (E, B), with labels; returns the losses (E,)."""
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # Triton starts kernels on the current device
            self._run(rows, labels)
        return self._losses

    def _run(self, rows: Tensor, labels: Tensor) -> None:
        shape, norms, (E, B) = self._shape, self._norms, rows.shape
        sizes: dict[str, Any] = {"P": self._step, "B": B, "BS": self._columns, "PIECE": self._piece}
        pool = self._pool, rows, rows.stride(0)
        last = len(shape.widths) - 1
        for i, (inward, outward) in enumerate(shape.sides[:-1]):
            units, below = self._block(outward), max(0, i - 1)
            _forward[(-(-outward // units), E)](
                self._weights[i], self._normed[below], self._gains[below], self._shifts[below], *pool, self._biases[i],
                self._normed[i], self._inverse[i], norms.means[i], norms.variances[i],
                IN=inward, OUT=outward, UNITS=units, FIRST=i == 0, EPS=EPS, MOMENTUM=MOMENTUM, **sizes, **self._how,
            )  # fmt: skip
        _head[(E,)](
            self._weights[-1], self._biases[-1], labels, labels.stride(0),
            self._normed[last], self._inverse[last], self._gains[last], self._shifts[last],
            self._weight_slopes[-1], self._bias_slope,
            self._slope[last], self._gain_slopes[last], self._shift_slopes[last], self._losses,
            P=sizes["P"], B=B, BS=self._columns, IN=shape.widths[last], CLASSES=shape.classes,
            UNITS=_power_of_2(shape.widths[last]), SLOTS=_power_of_2(shape.classes),
            **self._how | {"num_warps": HEAD_WARPS},
        )  # fmt: skip
        for i in range(last, -1, -1):
            inward, outward = shape.sides[i]
            units, below = self._block(inward), max(0, i - 1)
            _backward[(-(-inward // units), E, 2 if self._split and i else 1)](
                self._slope[i], self._weights[i], *pool,
                self._normed[below], self._inverse[below], self._gains[below], self._shifts[below],
                self._weight_slopes[i], self._slope[i - 1], self._gain_slopes[below], self._shift_slopes[below],
                IN=inward, OUT=outward, UNITS=units, FIRST=i == 0, SPLIT=self._split, **sizes, **self._how,
            )  # fmt: skip

    def _block(self, width: int) -> int:
        return min(self._units, _power_of_2(width))


def _power_of_2(size: int) -> int:
    """The next one; tensor cores take no fewer than 16."""
    return max(16, 1 << (size - 1).bit_length())


@triton.jit
def _behind_batchnorm(slope, normed, y, gain, inverse, B):  # type: ignore[no-untyped-def]
    """Of a gradient (units, samples) at relu(y), y = γ·x̂ + β: that in front of BatchNorm, and those of γ and β (units,)."""
    slope = tl.where(y > 0, slope, 0.0)
    shift_slope, gain_slope = tl.sum(slope, 1), tl.sum(slope * normed, 1)
    rest = slope - (shift_slope[:, None] + normed * gain_slope[:, None]) / B
    return rest * (gain * inverse)[:, None], gain_slope, shift_slope


@triton.jit(do_not_specialize=["B"])
def _forward(  # type: ignore[no-untyped-def]
    weight, below, gain, shift, pool, rows, rows_step, bias, normed, inverse, running_mean, running_variance,
    P, B, BS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, UNITS: tl.constexpr, PIECE: tl.constexpr,
    FIRST: tl.constexpr, EPS: tl.constexpr, MOMENTUM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x̂ (units, samples) of a block of units, and their running statistics; a bias only moves the running mean."""
    e = tl.program_id(1).to(tl.int64)
    u = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    b = tl.arange(0, BS)
    there = u < OUT
    z = tl.zeros((UNITS, BS), tl.float32)
    if FIRST:
        row = tl.load(rows + e * rows_step + b, b < B, 0)
    for start in range(0, IN, PIECE):
        k = start + tl.arange(0, PIECE)
        w = tl.load(weight + e * P + u[:, None] * IN + k[None, :], there[:, None] & (k < IN)[None, :], 0.0)
        if FIRST:
            a = tl.load(pool + row[None, :] * IN + k[:, None], (k < IN)[:, None], 0.0)
        else:
            a = tl.load(below + e * (IN * BS) + k[:, None] * BS + b[None, :], (k < IN)[:, None], 0.0)
            g, s = tl.load(gain + e * P + k, k < IN, 0.0), tl.load(shift + e * P + k, k < IN, 0.0)
            a = tl.maximum(a * g[:, None] + s[:, None], 0.0)
        z = tl.dot(w, a, z, input_precision=PRECISION)
    inside = (b < B)[None, :]
    mean = tl.sum(tl.where(inside, z, 0.0), 1) / B
    z = tl.where(inside, z - mean[:, None], 0.0)
    squares = tl.sum(z * z, 1)
    scale = 1.0 / tl.sqrt_rn(squares / B + EPS)
    tl.store(normed + e * (OUT * BS) + u[:, None] * BS + b[None, :], z * scale[:, None], there[:, None])
    at = e * OUT + u
    tl.store(inverse + at, scale, there)
    mean += tl.load(bias + e * P + u, there, 0.0)
    old_mean, old_variance = tl.load(running_mean + at, there, 0.0), tl.load(running_variance + at, there, 0.0)
    tl.store(running_mean + at, old_mean + MOMENTUM * (mean - old_mean), there)
    tl.store(running_variance + at, old_variance + MOMENTUM * (squares / (B - 1) - old_variance), there)


@triton.jit(do_not_specialize=["B"])
def _head(  # type: ignore[no-untyped-def]
    weight, bias, labels, labels_step, normed, inverse, gain, shift,
    weight_slope, bias_slope, slope, gain_slope, shift_slope, losses,
    P, B, BS: tl.constexpr, IN: tl.constexpr, CLASSES: tl.constexpr, UNITS: tl.constexpr, SLOTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The classifier of one member: its mean cross-entropy, its gradients, and the gradient below it."""
    e = tl.program_id(0).to(tl.int64)
    u, b, c = tl.arange(0, UNITS), tl.arange(0, BS), tl.arange(0, SLOTS)
    there, real, inside = u < IN, (c < CLASSES)[:, None], (b < B)[None, :]
    at = u[:, None] * BS + b[None, :]
    xhat = tl.load(normed + e * (IN * BS) + at, there[:, None], 0.0)
    g, s = tl.load(gain + e * P + u, there, 0.0), tl.load(shift + e * P + u, there, 0.0)
    y = xhat * g[:, None] + s[:, None]
    a = tl.maximum(y, 0.0)
    w = tl.load(weight + e * P + c[:, None] * IN + u[None, :], real & there[None, :], 0.0)
    logits = tl.dot(w, a, input_precision=PRECISION) + tl.load(bias + e * P + c, c < CLASSES, 0.0)[:, None]
    logits = tl.where(real, logits, float("-inf"))
    logits -= tl.max(logits, 0)[None, :]
    exponents = tl.exp(logits)
    total = tl.sum(exponents, 0)
    own = c[:, None] == tl.load(labels + e * labels_step + b, b < B, 0)[None, :]
    loss = tl.log(total) - tl.sum(tl.where(own, logits, 0.0), 0)
    tl.store(losses + e, tl.sum(tl.where(b < B, loss, 0.0), 0) / B)
    d = tl.where(real & inside, (exponents / total[None, :] - tl.where(own, 1.0, 0.0)) / B, 0.0)
    tl.store(bias_slope + e * P + c, tl.sum(d, 1), c < CLASSES)
    change = tl.dot(d, tl.trans(a), input_precision=PRECISION)
    tl.store(weight_slope + e * P + c[:, None] * IN + u[None, :], change, real & there[None, :])
    dx = tl.dot(tl.trans(w), d, input_precision=PRECISION)
    scale = tl.load(inverse + e * IN + u, there, 0.0)
    dz, of_gain, of_shift = _behind_batchnorm(dx, xhat, y, g, scale, B)
    tl.store(slope + e * (IN * BS) + at, tl.where(inside, dz, 0.0), there[:, None])
    tl.store(gain_slope + e * P + u, of_gain, there)
    tl.store(shift_slope + e * P + u, of_shift, there)


@triton.jit
def _weight_slopes(  # type: ignore[no-untyped-def]
    above, a, weight_slope, u, b, OUT: tl.constexpr, IN: tl.constexpr, BS: tl.constexpr, PIECE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights that read a block of units, from their activations (units, samples)."""
    for start in range(0, OUT, PIECE):
        k = start + tl.arange(0, PIECE)
        known = (k < OUT)[:, None]
        dz = tl.load(above + k[:, None] * BS + b[None, :], known, 0.0)
        change = tl.dot(dz, tl.trans(a), input_precision=PRECISION)
        tl.store(weight_slope + k[:, None] * IN + u[None, :], change, known & (u < IN)[None, :])


@triton.jit(do_not_specialize=["B"])
def _backward(  # type: ignore[no-untyped-def]
    above, weight, pool, rows, rows_step, normed, inverse, gain, shift, weight_slope, slope, gain_slope, shift_slope,
    P, B, BS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, UNITS: tl.constexpr, PIECE: tl.constexpr,
    FIRST: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of the weights that read a block of units, the gradient; and the gradient in front of these units' BatchNorm."""
    e = tl.program_id(1).to(tl.int64)
    u = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    b = tl.arange(0, BS)
    there = u < IN
    above += e * (OUT * BS)
    weight_slope += e * P
    if FIRST:
        row = tl.load(rows + e * rows_step + b, b < B, 0)
        a = tl.load(pool + row[None, :] * IN + u[:, None], there[:, None], 0.0)
        _weight_slopes(above, a, weight_slope, u, b, OUT, IN, BS, PIECE, PRECISION)
    else:
        at = u[:, None] * BS + b[None, :]
        xhat = tl.load(normed + e * (IN * BS) + at, there[:, None], 0.0)
        g, s = tl.load(gain + e * P + u, there, 0.0), tl.load(shift + e * P + u, there, 0.0)
        y = xhat * g[:, None] + s[:, None]
        a = tl.maximum(y, 0.0)
        if SPLIT:  # two programs per block of units: half as long, twice as many
            weights_too = tl.program_id(2) == 1
            below_too = not weights_too
        else:
            weights_too = True
            below_too = True
        if weights_too:
            _weight_slopes(above, a, weight_slope, u, b, OUT, IN, BS, PIECE, PRECISION)
        if below_too:
            dx = tl.zeros((UNITS, BS), tl.float32)
            for start in range(0, OUT, PIECE):
                k = start + tl.arange(0, PIECE)
                dz = tl.load(above + k[:, None] * BS + b[None, :], (k < OUT)[:, None], 0.0)
                w = tl.load(weight + e * P + k[None, :] * IN + u[:, None], (k < OUT)[None, :] & there[:, None], 0.0)
                dx = tl.dot(w, dz, dx, input_precision=PRECISION)
            scale = tl.load(inverse + e * IN + u, there, 0.0)
            below, of_gain, of_shift = _behind_batchnorm(dx, xhat, y, g, scale, B)
            tl.store(slope + e * (IN * BS) + at, tl.where((b < B)[None, :], below, 0.0), there[:, None])
            tl.store(gain_slope + e * P + u, of_gain, there)
            tl.store(shift_slope + e * P + u, of_shift, there)
