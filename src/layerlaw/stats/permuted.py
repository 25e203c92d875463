"""The floor: what separation the same features show under permuted labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from layerlaw.stats.centers import Centers, find_centers
from layerlaw.stats.labels import one_hot
from layerlaw.stats.precision import double
from layerlaw.stats.sums import ClassSums


@dataclass
class Permuted:
    """Centers under permuted labels, and Σ ‖z/s‖² of each permuted class (K,).

    `true_places` (K, r) are the true class means (as rounded in pass 2) in the basis of the permuted ones: from the
    residual around the true mean they give the residual around the permuted one without another product.
    """

    centers: Centers
    true_places: Tensor
    fuzziness: Tensor

    @classmethod
    def start(cls, sums: ClassSums, true: Centers) -> Permuted:
        """Ready for pass 2."""
        centers = find_centers(sums, true.weighting)
        return cls(
            centers,
            (true.rounded_means.double() - centers.mean.unsqueeze(-2)) @ centers.basis.mT,
            torch.zeros_like(centers.counts),
        )

    def at(self, index: int) -> Permuted:
        """One entry of the leading dimension."""
        return Permuted(self.centers.at(index), self.true_places[index], self.fuzziness[index])

    @property
    def basis(self) -> Tensor:
        """Rows to project on (r, d)."""
        return self.centers.basis

    def update(self, coordinates: Tensor, labels: Tensor, permuted: Tensor) -> None:
        """Add samples: coordinates (r, n) of their residuals around the true means, true and permuted labels (n,)."""
        z = double(coordinates) + (self.true_places[labels] - self.centers.coordinates[permuted]).mT
        q = (z * self.centers.inverse_scales.unsqueeze(-1)).square().sum(-2)  # (n,)
        self.fuzziness += one_hot(permuted, len(self.fuzziness), q.dtype) @ q

    def separation(self) -> Tensor:
        """Separation fuzziness under the permuted labels."""
        return (self.centers.weights * self.fuzziness / self.centers.counts).sum(-1)
