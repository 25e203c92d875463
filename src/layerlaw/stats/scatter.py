"""Pass 2: what the residuals do inside the span of the class means, and which centre is nearest."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerlaw.errors import PassError
from layerlaw.stats.centres import Span
from layerlaw.stats.labels import one_hot
from layerlaw.stats.precision import at_least_float32, double, row_chunks, take_rows


@dataclass(frozen=True)
class Frame:
    """Class means (…, K, d) and basis rows (…, P, d) in the dtype of the products, made once and used for every batch.

    `rounding` (…, K) is the squared distance of the rounded means from the exact ones, `expected` (…, K, P) the mean
    residual that this rounding causes.
    """

    means: Tensor
    basis: Tensor
    rounding: Tensor
    expected: Tensor

    @classmethod
    def of(cls, means: Tensor, basis: Tensor, features: torch.dtype, device: torch.device | None = None) -> Frame:
        """For features of this dtype (products run in at least float32)."""
        dtype = torch.float64 if features == torch.float64 else torch.float32
        rounded = means.to(dtype)
        gap = means - rounded.double()
        device = device or means.device
        return cls(rounded.to(device), basis.to(device, dtype), gap.square().sum(-1), gap @ basis.mT)


def project(features: Tensor, labels: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
    """Residuals R = x − (mean of its class), as coordinates R·basisᵀ and squared lengths.

    features (…, n, d), labels (…, n) → coordinates (…, n, P) and squared lengths (…, n), both float64.
    """
    *batch, n, d = features.shape
    coordinates, lengths = [], []
    for rows in row_chunks(n, 4 * d * max(1, torch.Size(batch).numel())):
        centre = take_rows(frame.means, labels[..., rows])
        residual = torch.sub(at_least_float32(features[..., rows, :]), centre, out=centre)
        coordinates.append(residual @ frame.basis.mT)
        lengths.append(torch.linalg.vector_norm(residual, dim=-1))
    squared = double(torch.cat(lengths, -1)).square()
    # Σ‖x − rounded mean‖² exceeds Σ‖x − mean‖² by n‖rounding‖² (the cross term sums to zero over a class).
    squared -= torch.take_along_dim(frame.rounding, labels.to(frame.rounding.device), -1)
    return double(torch.cat(coordinates, -2)), squared


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Index of the nearest row of `centres` (…, K, r) for each of `points` (…, n, r).

    ‖a − c‖² is least where a·c − ‖c‖²/2 is largest.
    """
    scores = points @ centres.mT - centres.square().sum(-1).unsqueeze(-2) / 2
    return scores.argmax(-1)


@dataclass
class NearestCentre:
    """Nearest-class-center decisions: counts, hits (nearest is own class) and mismatches (nearest ≠ decision), (…, K)."""

    counts: Tensor
    hits: Tensor
    mismatches: Tensor

    @classmethod
    def of(cls, points: Tensor, centres: Tensor, labels: Tensor, decision: Tensor | None) -> NearestCentre:
        """Points (…, n, r) and centres (…, K, r) in one basis; labels and decisions of the network (…, n)."""
        hot = one_hot(labels, centres.shape[-2], torch.float64)  # (…, K, n)
        found = nearest(points, centres)
        hits = _per_class(hot, found == labels)
        misses = torch.full_like(hits, torch.nan) if decision is None else _per_class(hot, found != decision)
        return cls(hot.sum(-1).expand_as(hits).clone(), hits, misses)

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
        """From what `project` gave: coordinates (…, n, r), squared lengths (…, n), labels and decisions (…, n)."""
        hot = one_hot(labels, span.counts.shape[-1], torch.float64)  # (…, K, n)
        own = _per_class(hot, (coordinates * span.inverse_scales.unsqueeze(-2)).square().sum(-1))
        if span.weighting == "classes" or span.balanced:
            equal = own.clone()
        else:
            equal = _per_class(hot, (coordinates @ span.equal_whitener.mT).square().sum(-1))
        place = torch.take_along_dim(span.coordinates, labels.expand(coordinates.shape[:-1]).unsqueeze(-1), -2)
        return cls(
            residuals=hot @ coordinates,
            fuzziness=own,
            fuzziness_equal=equal,
            lengths=_per_class(hot, lengths),
            near=NearestCentre.of(coordinates + place, span.coordinates, labels, decision),
            digest=span.digest,
        )

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
        if self.digest.shape != other.digest.shape or not torch.allclose(self.digest, other.digest, rtol=1e-9, atol=0):
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


def _per_class(hot: Tensor, values: Tensor) -> Tensor:
    """Sum (…, n) values over the samples of each class: (…, K)."""
    return (hot @ values.to(hot.dtype).unsqueeze(-1)).squeeze(-1)
