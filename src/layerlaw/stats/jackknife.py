"""Delete-group jackknife: the centers without group i, and the scatter of the samples that are left around them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from layerlaw.stats.centers import Centers, find_centers
from layerlaw.stats.labels import one_hot
from layerlaw.stats.precision import double
from layerlaw.stats.sums import ClassSums


@dataclass
class LeftOut:
    """For each group i of g: the centers without it (leading dimension g) and the fuzziness of what is left.

    `shift` (g, K, r) is how far the class means move when group i leaves, in the basis without it;
    `fuzziness` (g, K) is Σ ‖z/s‖² over the samples not in group i, with z the residual around the *full* class mean.
    """

    centers: Centers
    shift: Tensor
    fuzziness: Tensor

    @classmethod
    def start(cls, groups: ClassSums, full: Centers) -> LeftOut:
        """Ready for pass 2; `groups` are the sums (…, g, K, d) and `full` the centers (…, K, d) of all."""
        centers = find_centers(groups.left_out(), full.weighting)
        shift = (centers.means - full.rounded_means.double().unsqueeze(-3)) @ centers.basis.mT
        return cls(centers, shift, torch.zeros_like(centers.counts))

    def at(self, index: int) -> LeftOut:
        """One entry of the leading dimension."""
        return LeftOut(self.centers.at(index), self.shift[index], self.fuzziness[index])

    @property
    def basis(self) -> Tensor:
        """All g bases below each other (g·r, d), for one product; each row divided by its scale."""
        return (self.centers.basis * self.centers.inverse_scales.unsqueeze(-1)).flatten(0, 1)

    def update(self, coordinates: Tensor, labels: Tensor, groups: Tensor) -> None:
        """Add samples: coordinates (g·r, n) of their residuals in `basis`, labels and groups (n,)."""
        g, K = self.fuzziness.shape
        q = double(coordinates.square().view(g, -1, coordinates.shape[-1]).sum(-2))  # (g, n)
        q.masked_fill_(one_hot(groups, g, torch.bool), 0.0)  # a sample is absent from its own group's view
        self.fuzziness += q @ one_hot(labels, K, q.dtype).mT

    def separation(self) -> Tensor:
        """Separation fuzziness without each group (g,)."""
        moved = (self.shift * self.centers.inverse_scales.unsqueeze(-2)).square().sum(-1)  # (g, K)
        per_class = self.fuzziness / self.centers.counts.clamp_min(1) - moved
        return (self.centers.weights * per_class).sum(-1)
