"""Pass 2: what the residuals do inside the span of the class means, and which centre is nearest."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerlaw.errors import PassError
from layerlaw.stats.centres import Centres, Span
from layerlaw.stats.labels import one_hot
from layerlaw.stats.precision import at_least_float32, double, row_chunks, take_rows


@dataclass(frozen=True)
class Frame:
    """Class means (…, K, d) and basis rows (…, P, d) in the dtype of the products, made once and used for every batch."""

    means: Tensor
    basis: Tensor

    @classmethod
    def of(cls, centres: Centres, *others: Tensor, device: torch.device | None = None) -> Frame:
        """Around these centres, on their basis and below it on `others`."""
        means = centres.rounded_means.to(device or centres.means.device)
        basis = torch.cat([centres.basis, *others], -2) if others else centres.basis
        return cls(means, basis.to(means))


def project(features: Tensor, labels: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
    """Residuals R = x − (mean of its class), as coordinates basis·Rᵀ and squared lengths.

    features (…, n, d), labels (…, n) → coordinates (…, P, n) in the dtype of the product, squared lengths (…, n) in
    float64. The samples come last: that is the layout in which the small products that follow are fast.
    """
    *batch, n, d = features.shape
    coordinates, lengths = [], []
    for rows in row_chunks(n, 4 * d * torch.Size(batch).numel()):
        centre = take_rows(frame.means, labels[..., rows])
        residual = torch.sub(at_least_float32(features[..., rows, :]), centre, out=centre)
        coordinates.append(frame.basis @ residual.mT)
        size = torch.linalg.vector_norm(residual, dim=-1)
        if bool(size.isinf().any()):  # the squares of large numbers leave the range of float32
            size = torch.linalg.vector_norm(residual, dim=-1, dtype=torch.float64)
        lengths.append(size)
    if len(lengths) == 1:
        return coordinates[0], double(lengths[0]).square_()
    return torch.cat(coordinates, -1), double(torch.cat(lengths, -1)).square_()


def agreement(points: Tensor, centres: Tensor, *choices: Tensor) -> list[Tensor]:
    """1 where the chosen centre is the nearest, 1/t where it is one of t equally near, else 0; for several choices.

    points (…, r, n), centres (…, K, r), choices (…, n) → (…, n). ‖a − c‖² is least where a·c − ‖c‖²/2 is largest.
    """
    scores = (centres @ points).sub_(centres.square().sum(-1, keepdim=True) / 2)  # (…, K, n)
    best = scores.amax(-2, keepdim=True)
    share = 1 / (scores == best).sum(-2, keepdim=True, dtype=torch.float64)
    found = [scores.gather(-2, choice.unsqueeze(-2).expand(best.shape)) == best for choice in choices]
    return [(hit * share).squeeze(-2) for hit in found]


@dataclass
class NearestCentre:
    """Nearest-class-center decisions: counts, hits (nearest is own class) and mismatches (nearest ≠ decision), (…, K).

    Among centres at exactly the same distance the decision counts as drawn by lot. Without decisions of the network the
    mismatches are NaN.
    """

    counts: Tensor
    hits: Tensor
    mismatches: Tensor

    @classmethod
    def of(cls, points: Tensor, centres: Tensor, labels: Tensor, decision: Tensor | None) -> NearestCentre:
        """Points (…, r, n) and centres (…, K, r) in one basis; labels and decisions of the network (…, n)."""
        hot = one_hot(labels, centres.shape[-2], torch.float64)  # (…, K, n)
        values = torch.stack(cls.compared(points, centres, labels, decision), -2) @ hot.mT
        counts = hot.sum(-1).expand(values.shape[:-2] + values.shape[-1:]).clone()
        return cls(counts, values[..., 0, :], values[..., 1, :])

    @staticmethod
    def compared(points: Tensor, centres: Tensor, labels: Tensor, decision: Tensor | None) -> list[Tensor]:
        """For each sample 1 for a hit, and 1 for a mismatch: two of (…, n)."""
        if decision is None:
            (hit,) = agreement(points, centres, labels)
            return [hit, torch.full_like(hit, torch.nan)]
        hit, agreed = agreement(points, centres, labels, decision)
        return [hit, 1 - agreed]

    @property
    def tensors(self) -> list[Tensor]:
        """What an all-reduce adds up."""
        return [self.counts, self.hits, self.mismatches]


@dataclass
class Scatter:
    """Sums over the samples of each class, under fixed centres; every tensor float64.

    residuals (…, K, r): Σ z, zero up to rounding when the data are those of pass 1;
    fuzziness (…, K): Σ ‖z/s‖², under the centres' own weighting;
    fuzziness_equal (…, K): the same with equally weighted classes;
    lengths (…, K): Σ ‖R‖²; near: decisions of the nearest centre; digest (…): of the centres.
    """

    residuals: Tensor
    fuzziness: Tensor
    fuzziness_equal: Tensor
    lengths: Tensor
    near: NearestCentre
    digest: Tensor

    @classmethod
    def of(
        cls, coordinates: Tensor, lengths: Tensor, labels: Tensor, span: Span, decision: Tensor | None = None
    ) -> Scatter:
        """From what `project` gave: coordinates (…, r, n), squared lengths (…, n), labels and decisions (…, n)."""
        z = double(coordinates)
        hot = one_hot(labels, span.counts.shape[-1], torch.float64)  # (…, K, n)
        own = (z * span.inverse_scales.unsqueeze(-1)).square_().sum(-2)
        simple = span.weighting == "classes" or span.balanced
        equal = own if simple else (span.equal_whitener @ z).square().sum(-2)
        places = (span.coordinates.mT @ hot).add_(z)  # (…, r, n): where the samples are, relative to the global mean
        compared = NearestCentre.compared(places, span.coordinates, labels, decision)
        values = torch.cat([z, torch.stack([own, equal, lengths, *compared], -2)], -2)  # (…, r + 5, n)
        sums = (values @ hot.mT).mT.contiguous()  # (…, K, r + 5)
        r = z.shape[-2]
        fuzziness, fuzziness_equal, size, hits, mismatches = sums[..., r:].unbind(-1)
        counts = hot.sum(-1).expand(hits.shape).clone()
        near = NearestCentre(counts, hits.clone(), mismatches.clone())
        return cls(sums[..., :r].clone(), fuzziness.clone(), fuzziness_equal.clone(), size.clone(), near, span.digest)

    @property
    def counts(self) -> Tensor:
        """Samples of each class (…, K)."""
        return self.near.counts

    @property
    def tensors(self) -> list[Tensor]:
        """What an all-reduce adds up."""
        return [self.residuals, self.fuzziness, self.fuzziness_equal, self.lengths, *self.near.tensors]

    def add(self, other: Scatter) -> None:
        """Add another part of the same data under the same centres, in place."""
        if self.digest.shape != other.digest.shape or not torch.allclose(
            self.digest, other.digest, rtol=1e-9, atol=1e-12
        ):
            raise PassError(
                "scatters merge only under equal centres, and these were taken around different class means. "
                "Merge (or all-reduce) the class sums of pass 1 first, then take every scatter around the merged centres."
            )
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine += theirs

    def at(self, index: int) -> Scatter:
        """One entry of the leading dimension."""
        near = NearestCentre(*(t[index] for t in self.near.tensors))
        residuals, fuzziness, equal, lengths = (t[index] for t in self.tensors[:4])
        return Scatter(residuals, fuzziness, equal, lengths, near, self.digest[index])

    @classmethod
    def merge(cls, parts: Sequence[Scatter]) -> Scatter:
        """One statistic from several parts of the same data."""
        whole = copy.deepcopy(parts[0])
        for part in parts[1:]:
            whole.add(part)
        return whole
