"""BatchNorm for all members at once: biases, gains and shifts as flat rows, statistics of the batch, running ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerlaw.lab.fleet.rows import RowLayout, compiles

if TYPE_CHECKING:
    from layerlaw.lab.fleet import Space

Kernel = Callable[..., tuple[Tensor, Tensor, Tensor]]
EPS, MOMENTUM = 1e-5, 0.1


class BatchNorms:
    """Flat vectors of E·ΣW numbers, layer by layer, (member, unit) within a layer; views (E, W) of each layer beside.

    Parameters live in the fleet's rows; they are fetched before and their gradients delivered after a step, by one call.
    """

    def __init__(self, layout: RowLayout, parameters: Tensor, gradients: Tensor) -> None:
        E = len(parameters)
        widths, device = layout.shape.widths, parameters.device
        start = parameters.stride(0) * torch.arange(E).unsqueeze(-1)
        places = [
            torch.cat([(start + torch.arange(c.start, c.stop)).flatten() for c in columns[: len(widths)]])
            for columns in (layout.biases, layout.gains, layout.shifts)
        ]
        size = len(places[0])
        size_with_gaps = (E * parameters.stride(0),)
        self._parameters, self._gradients = (t.as_strided(size_with_gaps, (1,)) for t in (parameters, gradients))
        self._places = torch.cat(places).to(device)
        self._slopes_at = self._places[size:].view(2, size)
        self._small = torch.zeros(3 * size, device=device)
        self._zeros = torch.zeros(size, device=device)
        self.running_means, self.running_variances = torch.zeros(size, device=device), torch.ones(size, device=device)
        self._batch_means, self._lengths = torch.zeros(size, device=device), torch.zeros(size, device=device)
        ends = torch.tensor([0, *widths]).cumsum(0).mul(E).tolist()
        self._blocks = [slice(a, b) for a, b in pairwise(ends)]
        self._slopes: dict[int, list[Tensor]] = {}

        def layers(flat: Tensor) -> list[Tensor]:
            return [flat[block].view(E, -1) for block in self._blocks]

        biases, gains, shifts = self._small.view(3, size)
        self._biases, self._gains, self._shifts = biases, layers(gains), layers(shifts)
        self.means, self.variances = layers(self.running_means), layers(self.running_variances)
        self._mean, self._length = layers(self._batch_means), layers(self._lengths)

    def fetch(self) -> None:
        """Copy biases, gains and shifts out of the rows of parameters."""
        torch.index_select(self._parameters, 0, self._places, out=self._small)

    def forward(self, i: int, z: Tensor, space: Space) -> Tensor:
        """BatchNorm of (E, W, B) with the statistics of the batch."""
        E, W, B = z.shape
        if z.device.type != "cpu":
            running = self.means[i].view(-1), self.variances[i].view(-1)
            small = self._gains[i].view(-1), self._shifts[i].view(-1)
            if not compiles():
                how = *small, *running, True, MOMENTUM, EPS
                out, space.mean[i], space.inverse[i] = torch.native_batch_norm(z.view(1, E * W, B), *how)
                return out.view_as(z)
            rows = z.view(E * W, B)
            torch._dynamo.maybe_mark_dynamic(rows, 0)
            out, space.mean[i], space.inverse[i] = _compiled(_forward)(rows, *small, *running)
            return out.view_as(z)
        mean, length = self._mean[i].unsqueeze(-1), self._length[i].unsqueeze(-1)
        _center(z, mean, length)
        inverse = torch.addcmul(z.new_full((1, 1, 1), EPS), length, length, value=1 / B).rsqrt_()
        space.mean[i], space.inverse[i] = self._zeros[: E * W], inverse.view(-1)
        return torch.mul(z, inverse * self._gains[i].unsqueeze(-1), out=space.a[i]).add_(self._shifts[i].unsqueeze(-1))

    def follow(self, B: int) -> None:
        """Move the running statistics: of all layers in a few calls."""
        if self.running_means.device.type != "cpu":  # there the kernel has moved them, without the bias
            self.running_means.add_(self._biases, alpha=MOMENTUM)
            return
        self.running_means.lerp_(self._batch_means + self._biases, MOMENTUM)
        self.running_variances.lerp_(self._lengths.square().mul_(1 / (B - 1)), MOMENTUM)

    def backward(self, i: int, g: Tensor, space: Space) -> Tensor:
        """The gradient in front of BatchNorm (E, W, B); those of γ and β are kept for `deliver`."""
        E, W, B = g.shape
        if g.device.type != "cpu" and compiles():
            two = g.view(E * W, B), space.z[i].view(E * W, B)
            for rows in two:
                torch._dynamo.maybe_mark_dynamic(rows, 0)
            gain = self._gains[i].view(-1)
            slope, *self._slopes[i] = _compiled(_backward)(*two, gain, space.mean[i], space.inverse[i])
            return slope.view_as(g)
        three = g.view(1, E * W, B), space.z[i].view(1, E * W, B), self._gains[i].view(-1)
        known = None, None, space.mean[i], space.inverse[i], True, EPS, [True, True, True]
        out, *self._slopes[i] = torch.ops.aten.native_batch_norm_backward(*three, *known)
        return torch.Tensor.view_as(out, g)

    def deliver(self, layers: range) -> None:
        """Write the gradients of γ and β of these layers into the rows of gradients."""
        if not layers:
            return
        part = slice(self._blocks[layers[0]].start, self._blocks[layers[-1]].stop)
        for which, at in enumerate(self._slopes_at):
            self._gradients.index_copy_(0, at[part], torch.cat([self._slopes[i][which] for i in layers]))

    def measure(self, i: int, h: Tensor, chunk: int | None, members: slice) -> Tensor:
        """BatchNorm of (E, W, n), changed in place: running statistics, or each chunk of samples by its own."""
        self.fetch()
        gain, shift = (v[i][members].unsqueeze(-1) for v in (self._gains, self._shifts))
        if chunk is None:
            mean, variance = (v[i][members].unsqueeze(-1) for v in (self.means, self.variances))
            return h.sub_(mean).mul_((variance + EPS).rsqrt_() * gain).add_(shift)
        return torch.cat([_normalized(part) for part in _chunks(h, chunk)], -1).mul_(gain).add_(shift)


@cache
def _compiled(plain: Kernel) -> Kernel:
    """BatchNorm as one GPU kernel: for rows this short torch's own takes ten times as long."""
    return torch.compile(plain)


def _forward(
    z: Tensor, gain: Tensor, shift: Tensor, running_mean: Tensor, running_variance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (C, B) by their mean and variance; returns the result, mean and inverse deviation (C,)."""
    B = z.shape[1]
    mean = z.mean(1)
    centered = z - mean.unsqueeze(1)
    squares = centered.square().sum(1)
    inverse = (squares / B + EPS).rsqrt()
    running_mean.lerp_(mean, MOMENTUM)
    running_variance.lerp_(squares / (B - 1), MOMENTUM)
    return centered * (inverse * gain).unsqueeze(1) + shift.unsqueeze(1), mean, inverse


def _backward(g: Tensor, z: Tensor, gain: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the rows (C, B), of γ and of β (C,)."""
    B = g.shape[1]
    normed = (z - mean.unsqueeze(1)) * inverse.unsqueeze(1)
    shift_slope, gain_slope = g.sum(1), (g * normed).sum(1)
    rest = g - (shift_slope.unsqueeze(1) + normed * gain_slope.unsqueeze(1)) / B
    return rest * (gain * inverse).unsqueeze(1), gain_slope, shift_slope


def _center(z: Tensor, mean: Tensor, length: Tensor) -> None:
    """Subtract the mean over the last dimension in place; mean and remaining length go into (…, 1).

    Two passes: far from zero a sum of squares would lose the digits. torch.var would take ten times as long.
    """
    torch.mean(z, -1, keepdim=True, out=mean)
    z.sub_(mean)
    torch.linalg.vector_norm(z, dim=-1, keepdim=True, out=length)


def _normalized(z: Tensor) -> Tensor:
    """Each batch of (…, B) by its own mean and variance, flat: (E, W, batches, B) → (E, W, batches·B)."""
    mean, length = z.new_empty((*z.shape[:-1], 1)), z.new_empty((*z.shape[:-1], 1))
    _center(z, mean, length)
    return z.mul_((length.square_().mul_(1 / z.shape[-1]) + EPS).rsqrt_()).flatten(2)


def _chunks(h: Tensor, size: int) -> list[Tensor]:
    """(E, W, n) → (E, W, batches, size), and the rest as a batch of its own; a single sample joins the last batch."""
    n = h.shape[-1]
    whole, rest = n // size * size, n % size
    if rest == 1:
        whole -= size if whole else 0
    parts = [h[..., :whole].reshape(*h.shape[:2], -1, size)] if whole else []
    return parts + ([h[..., whole:].unsqueeze(2).contiguous()] if whole < n else [])
