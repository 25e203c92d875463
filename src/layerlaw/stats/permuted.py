"""The floor: what separation the same features show under permuted labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from layerlaw.stats.centres import Centres, find_centres
from layerlaw.stats.labels import one_hot
from layerlaw.stats.precision import double
from layerlaw.stats.sums import ClassSums


@dataclass
class Permuted:
    """Centres under permuted labels, and Σ ‖z/s‖² of each permuted class (K,).

    `true_places` (K, r) are the true class means (as rounded in pass 2) in the basis of the permuted ones: from the
    residual around the true mean they give the residual around the permuted one without another product.
    """

    centres: Centres
    true_places: Tensor
    fuzziness: Tensor

    @classmethod
    def start(cls, sums: ClassSums, true: Centres) -> Permuted:
        """Ready for pass 2."""
        centres = find_centres(sums, true.weighting)
        return cls(
            centres,
            (true.rounded_means.double() - centres.mean.unsqueeze(-2)) @ centres.basis.mT,
            torch.zeros_like(centres.counts),
        )

    def at(self, index: int) -> Permuted:
        """One entry of the leading dimension."""
        return Permuted(self.centres.at(index), self.true_places[index], self.fuzziness[index])

    @property
    def basis(self) -> Tensor:
        """Rows to project on (r, d)."""
        return self.centres.basis

    def update(self, coordinates: Tensor, labels: Tensor, permuted: Tensor) -> None:
        """Add samples: coordinates (r, n) of their residuals around the true means, true and permuted labels (n,)."""
        z = double(coordinates) + (self.true_places[labels] - self.centres.coordinates[permuted]).mT
        q = (z * self.centres.inverse_scales.unsqueeze(-1)).square().sum(-2)  # (n,)
        self.fuzziness += one_hot(permuted, len(self.fuzziness), q.dtype) @ q

    def separation(self) -> Tensor:
        """Separation fuzziness under the permuted labels."""
        return (self.centres.weights * self.fuzziness / self.centres.counts).sum(-1)
