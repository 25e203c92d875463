"""What a language model would predict at every block: losses and predictions of some tokens, as sums and as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class LensSums:
    """Of all sites, added up over tokens (S,): losses, right predictions, those that are the last site's, and those that
    stay so from here on; beside them what the error of losses needs, in pieces of text.

    `excess` (S, 2): over pieces c, Σ e_c² and Σ n_c e_c, where e_c is by how much the losses of the n_c tokens of a piece
    exceed those at the last site; `size` (3,): tokens, pieces, Σ n_c².
    """

    losses: Tensor
    right: Tensor
    final: Tensor
    settled: Tensor
    excess: Tensor
    size: Tensor

    @classmethod
    def of(cls, losses: Tensor, predicted: Tensor, told: Tensor, pieces: Tensor) -> LensSums:
        """From the losses (S, n) and predictions (S, n) of tokens (n,) that stand in pieces of these numbers (n,)."""
        losses = losses.double()
        final = predicted == predicted[-1:]
        settled = final.flip(0).cumprod(0).flip(0)  # at this site and at all behind it
        _, places, counts = torch.unique(pieces, return_inverse=True, return_counts=True)
        by_piece = torch.zeros(len(losses), len(counts), dtype=torch.float64)
        by_piece.index_add_(1, places, losses - losses[-1:])
        n = counts.double()
        return cls(
            losses.sum(1),
            (predicted == told).sum(1).double(),
            final.sum(1).double(),
            settled.sum(1).double(),
            torch.stack([by_piece.square().sum(1), by_piece @ n], 1),
            torch.stack([n.sum(), torch.tensor(float(len(n)), dtype=torch.float64), n.square().sum()]),
        )

    @classmethod
    def empty(cls, sites: int, value: float = 0.0) -> LensSums:
        """Nothing seen yet; with NaN, something that makes every sum it is added to unknown."""
        shapes = ((sites,), (sites,), (sites,), (sites,), (sites, 2), (3,))
        return cls(*(torch.full(shape, value, dtype=torch.float64) for shape in shapes))

    @property
    def tensors(self) -> list[Tensor]:
        """What is added up over ranks."""
        return [self.losses, self.right, self.final, self.settled, self.excess, self.size]

    @property
    def tokens(self) -> int:
        """How many were read; 0 also where that is unknown."""
        return int(self.size[0]) if math.isfinite(float(self.size[0])) else 0

    @property
    def pieces(self) -> int:
        """In so many pieces."""
        return int(self.size[1]) if self.tokens else 0

    @property
    def excess_errors(self) -> list[float | None]:
        """Standard error of (loss − loss at the last site), tokens of a piece taken together; `None` for one piece."""
        n, count, squares = self.size.tolist()
        if not count > 1:
            return [None] * len(self.losses)
        m = (self.losses - self.losses[-1]) / n
        # Σ_c (e_c − n_c m)²
        spread = self.excess[:, 0] - 2 * m * self.excess[:, 1] + m.square() * squares
        return [math.sqrt(max(0.0, s) * count / (count - 1)) / n for s in spread.tolist()]


def lens_columns(sums: LensSums, sites: Sequence[str], lens: str = "lens") -> dict[str, dict[str, float | None]]:
    """The columns of every site, whose names begin with that of the lens; `None` where a loss is not finite.

    >>> losses = torch.tensor([[2.0, 4.0], [1.0, 3.0]])
    >>> sums = LensSums.of(losses, torch.tensor([[7, 8], [7, 9]]), torch.tensor([7, 7]), torch.tensor([0, 1]))
    >>> lens_columns(sums, ["a", "b"])["a"]
    {'lens_loss': 3.0, 'lens_accuracy': 0.5, 'lens_agreement': 0.5, 'lens_settled': 0.5, 'lens_excess_se': 0.0}
    """
    found: dict[str, dict[str, float | None]] = {}
    errors = sums.excess_errors
    for s, site in enumerate(sites):
        known = sums.tokens > 0 and math.isfinite(float(sums.losses[s]))  # of what is not finite nothing was predicted
        parts = {"loss": sums.losses, "accuracy": sums.right, "agreement": sums.final, "settled": sums.settled}
        values = {f"{lens}_{name}": float(part[s]) / sums.tokens if known else None for name, part in parts.items()}
        error = errors[s] if known else None
        values[f"{lens}_excess_se"] = None if error is None or not math.isfinite(error) else error
        found[site] = values
    return found
