"""Between the passes: class means, or a fit to targets, and an orthonormal basis of their span."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from layerlaw.stats.precision import beyond_float32
from layerlaw.stats.spectrum import FEW, marks, right_singular, turned
from layerlaw.stats.sums import ClassSums

Weighting = Literal["samples", "classes"]
FLOAT32_RESOLUTION = 1.2e-7
CONSTANT, COLLINEAR = 1e-12, 1e-12  # shares of a target's squares, of the largest eigenvalue, that are rounding
CARRIED = 1e4  # times as far as most class means lie from each other: so far an outlier carries one
UNEQUAL = 1e6  # times as many samples in a class as in another: a Gram matrix of their contrasts has lost six digits
ADDED_UP = 0.1  # of √n: what float64 sums of so many samples round, in units of the last digit of their offset


@dataclass(frozen=True)
class Span:
    """Where the class means lie inside their span: everything of size K and r, nothing of size d.

    counts (…, K); coordinates (…, K, r) of the class means relative to the global mean, `places` (…, K, r) of those that
    pass 2 subtracts, which are rounded; scales s (…, r) with SS_b = Vᵀ diag(s²) V, zero beyond the rank; rank (…); digest
    (…, 3), numbers that identify the centers: scatters merge only under equal ones.
    """

    counts: Tensor
    coordinates: Tensor
    places: Tensor
    scales: Tensor
    rank: Tensor
    digest: Tensor
    weighting: Weighting

    @cached_property
    def weights(self) -> Tensor:
        """Weight of each class in SS_b and SS_w (…, K), summing to one."""
        return class_weights(self.counts, self.weighting)

    @cached_property
    def inverse_scales(self) -> Tensor:
        """1/s, zero beyond the rank (…, r): the square root of the pseudo-inverse of SS_b."""
        return torch.where(self.scales > 0, 1 / self.scales, 0.0)

    @cached_property
    def middle(self) -> Tensor | None:
        """Where most class means lie (…, 1, r), where an outlier has carried one, and the global mean, far away from them.

        Distances around the global mean would lose digits there; `None` where nothing is that far.
        """
        median = self.coordinates.median(-2, keepdim=True).values
        apart = (self.coordinates - median).square().sum(-1)  # (…, K)
        far = apart.amax(-1) > CARRIED**2 * apart.median(-1).values  # (…)
        return median * far[..., None, None] if bool(far.any()) else None

    @cached_property
    def corners(self) -> Tensor:
        """The class means (…, K, r) that samples are compared with, around their `middle`.

        Where they differ by no more than rounding (rank 0: a dead layer) they are one place, and no center is nearest.
        """
        around = self.coordinates if self.middle is None else self.coordinates - self.middle
        return around * (self.rank > 0)[..., None, None]

    @cached_property
    def starts(self) -> Tensor:
        """Those that pass 2 subtracts (…, K, r), around the same place."""
        return self.places if self.middle is None else self.places - self.middle

    @cached_property
    def half_norms(self) -> Tensor:
        """‖c‖²/2 of every class mean (…, K, 1), around the same place."""
        return self.corners.square().sum(-1, keepdim=True) / 2

    @cached_property
    def full_rank(self) -> Tensor:
        """Whether the K class means span K−1 dimensions (…)."""
        return self.rank == self.counts.shape[-1] - 1

    @cached_property
    def balanced(self) -> bool:
        """Whether all classes have the same number of samples."""
        return bool((self.counts == self.counts[..., :1]).all())

    @cached_property
    def equal_whitener(self) -> Tensor:
        """T (…, r, r) so that the trace of SS_w SS_b⁺ with equally weighted classes is the mean of ‖T z‖².

        Both weightings share the span of the class means. Over their scales the contrasts A of equally weighted classes are
        as far from orthonormal as the counts are unequal, however small a scale is: so AᵀA = LLᵀ keeps its digits, and T is
        L⁻¹ over the scales. The directions beyond the rank stay 0.
        """
        if self.weighting == "classes" or self.balanced:
            return torch.diag_embed(self.inverse_scales)
        inside = self.coordinates * self.inverse_scales.unsqueeze(-2)
        A = helmert_contrasts(inside, class_weights(self.counts, "classes"))  # (…, K−1, r)
        beyond = torch.diag_embed((self.scales == 0).to(A.dtype))
        L, failed = torch.linalg.cholesky_ex(A.mT @ A + beyond)
        least = torch.where(self.counts > 0, self.counts, torch.inf).amin(-1)
        if bool(((failed != 0) | (self.counts.amax(-1) > UNEQUAL * least)).any()):
            L = torch.linalg.qr(torch.cat([A, beyond], -2), mode="r")[1].mT
        T: Tensor = torch.linalg.solve_triangular(L, torch.diag_embed(self.inverse_scales), upper=False)
        return T

    def look(self, *, nearest: bool = True) -> None:
        """Work out what a scatter asks for, now: behind the products of the samples a GPU would be waited for."""
        _ = self.weighting == "classes" or self.balanced or self.equal_whitener, nearest and self.middle

    @staticmethod
    def stack(spans: Sequence[Span]) -> Span:
        """Several spans of the same r as one with a new leading dimension."""
        names = ("counts", "coordinates", "places", "scales", "rank", "digest")
        stacked = {name: torch.stack([getattr(span, name) for span in spans]) for name in names}
        return Span(**stacked, weighting=spans[0].weighting)


@dataclass(frozen=True)
class Centers(Span):
    """Class means (…, K, d), their global mean (…, d) and the singular directions of SS_b = Vᵀ diag(s²) V.

    basis V (…, r, d) has r = min(K−1, d) orthonormal rows; `spread` (…) is that of the sums; `cut` (…) is the largest scale
    that was taken for rounding, 0 where none was, as all below the `cutoff` (…) are. `origin` (…, 1, d) was subtracted from
    the features before: they have the rounding of where they were.
    """

    means: Tensor
    mean: Tensor
    basis: Tensor
    spread: Tensor
    cut: Tensor
    cutoff: Tensor
    dtype: torch.dtype  # of the features: what they are multiplied with is rounded accordingly
    origin: Tensor | None = None

    def at(self, index: int | tuple[int, ...] | list[int] | slice | None) -> Centers:
        """One entry of the leading dimension, or some of them; `None`: a new leading dimension."""
        return self._each(lambda tensor: tensor[index])

    def each(self) -> list[Centers]:
        """Every entry of the leading dimension."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        held = {name: part.unbind() for name, part in parts.items() if isinstance(part, Tensor)}
        shared = {name: part for name, part in parts.items() if name not in held}
        return [Centers(**shared, **dict(zip(held, entry, strict=True))) for entry in zip(*held.values(), strict=True)]

    def to(self, device: torch.device | str) -> Centers:
        """The same on another device."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Centers:
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        parts |= {name: change(part) for name, part in parts.items() if isinstance(part, Tensor)}
        return Centers(**parts)

    @property
    def extreme(self) -> Tensor:
        """Whether squared lengths of the features, less their origin, leave the range of float32 (…)."""
        sizes = self.spread / self.counts.sum(-1) + self.mean.square().sum(-1) + self.scales.square().sum(-1)
        return beyond_float32(sizes)

    @property
    def looked_at(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """How many samples (…), their mean (…, d), the scales (…, r), how many directions there could be."""
        return self.counts.sum(-1), self.original_mean, self.scales, self.counts.shape[-1] - 1

    @property
    def original_mean(self) -> Tensor:
        """The mean (…, d) of the features as they came."""
        return self.mean if self.origin is None else self.mean + self.origin.squeeze(-2)

    @property
    def original_means(self) -> Tensor:
        """Class means (…, K, d) of the features as they came."""
        return self.means if self.origin is None else self.means + self.origin

    @cached_property
    def rounded_means(self) -> Tensor:
        """The class means as pass 2 subtracts them: in float32, unless the features are float64."""
        return self.means if self.dtype == torch.float64 else self.means.float()

    @cached_property
    def rounding(self) -> Tensor:
        """Exact minus rounded class means (…, K, d)."""
        return self.means - self.rounded_means.double()

    @cached_property
    def expected_residuals(self) -> Tensor:
        """Mean residual of each class that the rounding of its mean causes, in the basis (…, K, r)."""
        return self.rounding @ self.basis.mT

    @property
    def resolution(self) -> Tensor:
        """How far rounding alone may move a class mean along a direction of the basis (…)."""
        if not bool(self.cut.any()):  # then it was found out from the very same scales
            return self.cutoff
        near = self.origin is not None
        return rounding_scale(self.counts, self.spread, self.original_mean, self.scales, self.dtype, near=near)


def class_weights(counts: Tensor, weighting: Weighting) -> Tensor:
    """Weights summing to one: by samples (Eq. 1) or equal for every non-empty class."""
    raw = counts if weighting == "samples" else (counts > 0).to(counts.dtype)
    return raw / raw.sum(-1, keepdim=True)


def helmert_contrasts(points: Tensor, weights: Tensor) -> Tensor:
    """K−1 contrasts A of K weighted points with AᵀA = Σ w_k (x_k − x̄)(x_k − x̄)ᵀ: (…, K, d) → (…, K−1, d).

    Row j compares point j+1 with the mean of those before it. The direction in which every between-class scatter is
    zero never enters, so no rounding can make it look like a signal.
    """
    return centered_contrasts(points - (weights.unsqueeze(-1) * points).sum(-2, keepdim=True), weights)


def centered_contrasts(points: Tensor, weights: Tensor) -> Tensor:
    """The same of points around their weighted mean, as exactly as that may be."""
    w = weights.unsqueeze(-1)  # (…, K, 1)
    W = w.cumsum(-2)
    least = W.clamp_min(torch.finfo(w.dtype).tiny)
    along = points.is_cuda and points.shape[-2] > FEW["cuda"]  # memory: there a GPU adds up many numbers faster
    sums = (w * points).mT.contiguous().cumsum(-1).mT if along else (w * points).cumsum(-2)
    before = sums[..., :-1, :].div_(least[..., :-1, :])
    factor = (w[..., 1:, :] * W[..., :-1, :] / least[..., 1:, :]).sqrt()
    return (points[..., 1:, :] - before).mul_(factor)  # in place: of a wide site each copy is a fifth of its memory


def find_centers(
    sums: ClassSums, weighting: Weighting = "samples", origin: Tensor | None = None, *, view: bool = False
) -> Centers:
    """Class means, and the span of their differences by the singular values of contrasts.

    Not through a Gram matrix where that would halve the digits of small scales (`right_singular`). A scale counts when it is
    above what the rounding of the features can produce (the cut-off follows the dtype the features came in, not the one we
    compute in). `origin` (…, 1, d) is what was subtracted from the features before. Of a `view`, from which standard errors
    or a chance level follow, nine digits are enough; no pass goes around its means, so it has no `digest`.
    """
    counts = sums.counts
    means = sums.sums / counts.clamp_min(1).unsqueeze(-1)
    weights = class_weights(counts, weighting)
    mean = (weights.unsqueeze(-2) @ means).squeeze(-2)
    centered = means - mean.unsqueeze(-2)
    place, A, floor = mean if origin is None else mean + origin.squeeze(-2), centered_contrasts(centered, weights), None
    cut_off = partial(rounding_scale, counts, sums.spread, place, dtype=sums.dtype, near=origin is not None)
    if A.device.type != "cpu" and sums.dtype != torch.float64 and min(A.shape[-2:]) > FEW["cuda"]:  # or it is not used
        floor = cut_off(torch.linalg.vector_norm(A, dim=-1)) / 2  # lengths, whose squares add up to those of the scales
    s, basis = right_singular(A, nine_digits=view, floor=floor)
    basis = basis if view else turned(basis)  # nothing is added up along that of a view
    del A  # before what follows takes memory
    kept = s > (cutoff := cut_off(s)).unsqueeze(-1)
    scales = torch.where(kept, s, 0.0)
    coordinates, rounded = centered @ basis.mT, means if sums.dtype == torch.float64 else means.float()
    found = Centers(
        counts=counts,
        coordinates=coordinates,
        places=coordinates if view or rounded is means else rounded.double().sub_(mean.unsqueeze(-2)) @ basis.mT,
        scales=scales,
        rank=kept.sum(-1),
        digest=scales[..., :0] if view else _digest(centered, mean, scales),
        weighting=weighting,
        means=means,
        mean=mean,
        basis=basis,
        spread=sums.spread,
        cut=torch.where(kept, 0.0, s).amax(-1),
        cutoff=cutoff,
        dtype=sums.dtype,
        origin=origin,
    )
    vars(found).update(weights=weights, rounded_means=rounded)  # what these properties would find
    return found


def rounding_scale(
    counts: Tensor, spread: Tensor, mean: Tensor, s: Tensor, dtype: torch.dtype, *, near: bool = False
) -> Tensor:
    """What rounding alone can produce as a scale, or as a shift of class means (…): Σ‖x − reference‖² is the `spread`.

    `near`: a sample was subtracted before anything was added up, so that sums do not round beside the offset.
    """
    n, d = counts.sum(-1), mean.shape[-1]
    size: Tensor = torch.linalg.vector_norm(mean, dim=-1)
    spread = (spread / n).sqrt()
    spread = spread.nan_to_num(0.0, 0.0, 0.0)  # a squared length may overflow float32 where D does not
    if dtype == torch.float64:
        units = torch.full_like(n, 4.0) if near else (ADDED_UP * n.sqrt()).clamp_min(4)
        return torch.finfo(torch.float64).eps * torch.maximum(n.clamp_min(d) * s[..., 0], units * (size + spread))
    # The last term: what float32 sums leave behind when the spread dwarfs both the mean and the differences.
    rounding = 4 * spread
    return FLOAT32_RESOLUTION * (size.square() + s.square().sum(-1) + rounding.square()).sqrt()


def _digest(centered: Tensor, mean: Tensor, scales: Tensor) -> Tensor:
    """Three numbers (…, 3); the global mean apart, so that an offset does not drown the differences.

    Rows have other marks than columns: with the same ones a matrix and its transpose would be one.
    """
    K, d = centered.shape[-2:]
    rows, columns = marks(K, mean.device, step=2**0.5), marks(d, mean.device)
    return torch.stack([mean @ columns, rows @ centered @ columns, scales.sum(-1)], -1)


@dataclass(frozen=True)
class Whitened:
    """Targets made uncorrelated: (Y − mean)·H has the unit covariance in `rank` dimensions; H (…, q, q) is 0 beyond them."""

    n: Tensor
    mean: Tensor
    deviations: Tensor
    H: Tensor
    rank: Tensor

    @classmethod
    def of(cls, gram: Tensor) -> Whitened:
        """From TᵀT (…, 1+q, 1+q); constant and collinear targets add no dimension."""
        n = gram[..., 0, 0]
        mean = gram[..., 0, 1:] / n.unsqueeze(-1)
        about_zero = gram[..., 1:, 1:].diagonal(dim1=-2, dim2=-1)
        S = gram[..., 1:, 1:] - n[..., None, None] * mean.unsqueeze(-1) * mean.unsqueeze(-2)
        squares = S.diagonal(dim1=-2, dim2=-1)
        squares = torch.where(squares > CONSTANT * about_zero, squares, 0.0)
        deviations = (squares / n.unsqueeze(-1)).sqrt()
        inverse = torch.where(deviations > 0, 1 / torch.where(deviations > 0, deviations, 1.0), 0.0)
        values, vectors = torch.linalg.eigh(S / n[..., None, None] * inverse.unsqueeze(-1) * inverse.unsqueeze(-2))
        kept = (values > COLLINEAR * values[..., -1:]) & (values > 0)
        root = torch.where(kept, 1 / torch.where(kept, values, 1.0).sqrt(), 0.0)
        return cls(n, mean, deviations, inverse.unsqueeze(-1) * vectors * root.unsqueeze(-2), kept.sum(-1))

    def to(self, device: torch.device) -> Whitened:
        """The same on another device."""
        return Whitened(*(getattr(self, part.name).to(device) for part in fields(self)))


@dataclass(frozen=True)
class FeatureFit:
    """The least-squares fit T·Θ of the features, and the singular directions of SS_b = Vᵀ diag(s²) V.

    coefficients Θ (…, 1+q, d); basis V (…, r, d) with r = min(q, d); scales s (…, r), zero beyond the rank; resolution
    (…, r), what rounding alone may do to the mean of a scaled coordinate; mean (…, d) of the features, `spread` (…) their
    squares around it, `cut` (…) the largest scale below the `cutoff` (…), which is taken for rounding; 0 where none is.
    """

    targets: Whitened
    coefficients: Tensor
    basis: Tensor
    scales: Tensor
    rank: Tensor
    resolution: Tensor
    mean: Tensor
    spread: Tensor
    cut: Tensor
    cutoff: Tensor
    dtype: torch.dtype
    origin: Tensor | None = None

    @property
    def looked_at(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """How many samples (…), their mean (…, d), the scales (…, r), how many directions there could be."""
        place = self.mean if self.origin is None else self.mean + self.origin.squeeze(-2)
        return self.targets.n, place, self.scales, self.targets.H.shape[-1]

    @classmethod
    def of(cls, targets: Whitened, cross: Tensor, squares: Tensor, dtype: torch.dtype) -> FeatureFit:
        """From the targets, TᵀX (…, 1+q, d), and Σ‖x‖² (…), which together with the dtype bounds the rounding."""
        white = targets.to(cross.device)
        n = white.n[..., None, None]
        mean = cross[..., :1, :] / n
        A = white.H.mT @ (cross[..., 1:, :] / n - white.mean.unsqueeze(-1) * mean)  # (…, q, d): SS_b = AᵀA
        s, basis = right_singular(A)
        turned(basis)
        rounding = _rounding(white.n, mean, squares, s, dtype).unsqueeze(-1)
        kept = s > rounding
        B = white.H @ A
        constant = mean - white.mean.unsqueeze(-2) @ B
        resolution = torch.where(kept, rounding / torch.where(kept, s, 1.0), 0.0)
        theta = torch.cat([constant, B], -2)
        scales, cut = torch.where(kept, s, 0.0), torch.where(kept, 0.0, s).amax(-1)
        around = (squares - white.n * mean.square().sum((-2, -1))).clamp_min(0)
        about = (mean.squeeze(-2), around.expand_as(cut), cut, rounding.squeeze(-1), dtype)
        return cls(white, theta, basis, scales, kept.sum(-1), resolution, *about)

    @property
    def scaled(self) -> Tensor:
        """Rows of the basis over their scales, 0 beyond the rank: ‖scaled·R‖² is what D adds up."""
        inverse = torch.where(self.scales > 0, 1 / torch.where(self.scales > 0, self.scales, 1.0), 0.0)
        return self.basis * inverse.unsqueeze(-1)


def _rounding(n: Tensor, mean: Tensor, squares: Tensor, s: Tensor, dtype: torch.dtype) -> Tensor:
    """What the rounding of the features alone can produce as a scale (…)."""
    size = (squares / n).sqrt()  # of a sample, its mean included
    if dtype == torch.float64:
        return torch.finfo(torch.float64).eps * torch.maximum(n.clamp_min(mean.shape[-1]) * s[..., 0], 4 * size)
    return FLOAT32_RESOLUTION * 4 * size
