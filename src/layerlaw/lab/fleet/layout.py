"""Where each parameter of a network lies in one flat row of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from layerlaw.lab.networks.feed_forward import Shape


@dataclass(frozen=True)
class RowLayout:
    """Columns of a row of P parameters: W₁ b₁ … W_L b_L, then the gains γ and the shifts β of BatchNorm.

    BatchNorm's parameters lie together so that all of them are copied at once; each linear layer's columns are one piece,
    so that a frozen part is a slice.
    """

    shape: Shape

    @cached_property
    def weights(self) -> tuple[slice, ...]:
        """Columns of every weight, (out, in) row by row."""
        return tuple(slice(a, a + i * o) for a, (i, o) in zip(self._starts, self.shape.sides, strict=True))

    @cached_property
    def biases(self) -> tuple[slice, ...]:
        """Columns of every bias."""
        return tuple(slice(w.stop, w.stop + o) for w, (_, o) in zip(self.weights, self.shape.sides, strict=True))

    @cached_property
    def gains(self) -> tuple[slice, ...]:
        """Columns of every γ; empty without BatchNorm."""
        return self._norms(self.linear)

    @cached_property
    def shifts(self) -> tuple[slice, ...]:
        """Columns of every β; empty without BatchNorm."""
        return self._norms(self.linear + sum(self.shape.widths))

    @cached_property
    def linear(self) -> int:
        """How many parameters are weights and biases."""
        stop: int = self.biases[-1].stop
        return stop

    @property
    def size(self) -> int:
        """P."""
        return self.linear + (2 * sum(self.shape.widths) if self.shape.norm else 0)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(i * o + o for i, o in self.shape.sides)][:-1]

    def _norms(self, start: int) -> tuple[slice, ...]:
        if not self.shape.norm:
            return ()
        ends = list(accumulate(self.shape.widths, initial=start))
        return tuple(slice(a, b) for a, b in pairwise(ends))

    def columns(self, layers: tuple[int, int]) -> list[slice]:
        """The pieces of a row that belong to the linear layers a … b−1 and their BatchNorms."""
        a, b = layers
        pieces = [slice(self.weights[a].start, self.biases[b - 1].stop)]
        norms = [part for part in (self.gains[a:b], self.shifts[a:b]) if part]
        pieces += [slice(part[0].start, part[-1].stop) for part in norms]
        joined = [pieces[0]]
        for piece in pieces[1:]:
            if piece.start == joined[-1].stop:
                joined[-1] = slice(joined[-1].start, piece.stop)
            else:
                joined.append(piece)
        return joined

    def names(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Name in `FeedForward.state_dict()` → columns and shape."""
        found: dict[str, tuple[slice, tuple[int, ...]]] = {}
        for i, (inward, outward) in enumerate(self.shape.sides):
            name = self.shape.layer_names[i]
            found[f"{name}.weight"] = (self.weights[i], (outward, inward))
            found[f"{name}.bias"] = (self.biases[i], (outward,))
            if self.shape.norm and i < len(self.shape.widths):
                found[f"norm{i + 1}.weight"] = (self.gains[i], (outward,))
                found[f"norm{i + 1}.bias"] = (self.shifts[i], (outward,))
        return found

    def initial(self, seed: int) -> Tensor:
        """One row (P,) as PyTorch initializes the module after `torch.manual_seed(seed)`, drawn without building it."""
        generator = torch.Generator().manual_seed(seed)
        row = torch.zeros(self.size)
        for weight, bias, (inward, _) in zip(self.weights, self.biases, self.shape.sides, strict=True):
            bound = inward**-0.5
            row[weight].uniform_(-bound, bound, generator=generator)
            row[bias].uniform_(-bound, bound, generator=generator)
        for gain in self.gains:
            row[gain] = 1.0
        return row
