"""What a measure may use at one site: the statistics of one split, and what several measures share."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Literal, TypeVar

import torch
from torch import Tensor

from layerlaw.measures.collapse import geometry, rare_classes
from layerlaw.measures.separation import Jackknives, class_separation, jackknives, linear_separation
from layerlaw.measures.variability import ALIKE, brought_centers, class_variances, discrimination, span_at_hand
from layerlaw.stats import Centers, LeftOut, Scatter
from layerlaw.stats.scatter import NearestCenter, Permuted

S = TypeVar("S", Centers, Scatter)
Needs = Literal[
    "classes", "decision", "groups", "permuted", "classifier", "network", "imbalance", "small", "untrained", "tokens",
    "within", "targets", "lens",
]  # fmt: skip
APART = {"cuda"}  # devices on which a call on small matrices takes longer than on the CPU
FEW_CLASSES = 64  # so that matrices are small
OF_MEANS = ("variances", "discrimination")  # what measures of classes use of the class means themselves
MOST_SINGULAR = 2048  # of class means against rows: beyond, their singular values take longer than the probe


class SiteStatistics:
    """Statistics of one split at one site; what several measures share is computed once."""

    def __init__(
        self,
        centers: Centers,
        scatter: Scatter,
        *,
        near: NearestCenter | None = None,
        left_out: LeftOut | None = None,
        permuted: Permuted | None = None,
        weight: Tensor | None = None,
        undefined: bool = False,
        within: Tensor | None = None,
    ) -> None:
        self.centers, self.scatter, self.near = centers, scatter, near or scatter.near
        self.left_out, self.permuted, self.undefined = left_out, permuted, undefined
        self.rows = None if weight is None else weight.to(centers.means.device)
        self.K = centers.counts.shape[-1]
        self.within = within  # SS_w (…, d, d)

    @property
    def kind(self) -> Hashable:
        """What those have in common that may be computed as one; `None` where this one is computed alone."""
        parts, centers = (self.left_out, self.permuted, self.within, self.centers.origin), self.centers
        if any(part is not None for part in parts) or centers.means.dim() != 3 or not centers.means.is_cpu:
            return None
        rows = None if self.rows is None else (self.rows.shape, self.rows.dtype)
        counts, shape = tuple(centers.counts[0].tolist()), (centers.means.shape[1:], centers.scales.shape[1:])
        about = (centers.dtype, centers.weighting, centers.balanced, self.undefined)
        return counts, shape, rows, self.scatter.sums.shape[1:], self.near.sums.shape[1:], *about

    @classmethod
    def joined(cls, parts: Sequence[SiteStatistics]) -> SiteStatistics:
        """Several of one kind along the leading dimension; rows of a classifier belong to one site each."""
        if len(parts) == 1:
            return parts[0]
        rows = [part.rows for part in parts if part.rows is not None]
        whole = cls(
            _joined([part.centers for part in parts]),
            _joined([part.scatter for part in parts]),
            near=NearestCenter(torch.cat([part.near.sums for part in parts])),
            weight=torch.stack(rows) if rows else None,
            undefined=parts[0].undefined,
        )
        for name in OF_MEANS if all(set(OF_MEANS) <= set(vars(part)) for part in parts) else ():
            vars(whole)[name] = torch.cat([getattr(part, name) for part in parts])
        return whole

    def brought(self) -> SiteStatistics:
        """The same on the CPU, where calls on few classes take less time, for what needs no class means, only their span.

        What is used of the means themselves has been worked out before: sites of all widths have one kind then.
        """
        if not is_apart(self.centers) or self.rows is not None or self.within is not None:
            return self
        out, permuted = self.left_out, self.permuted
        small = SiteStatistics(
            brought_centers(self.centers),
            replace(self.scatter, sums=self.scatter.sums.cpu(), digest=self.scatter.digest.cpu()),
            near=NearestCenter(self.near.sums.cpu()),
            left_out=out and LeftOut(span_at_hand(out.centers)[0], out.shift.cpu(), out.fuzziness.cpu()),
            permuted=permuted and replace(
                permuted, centers=span_at_hand(permuted.centers)[0], moves=None, fuzziness=permuted.fuzziness.cpu(),
                apart=None if permuted.apart is None else permuted.apart.cpu(),
            ),
            undefined=self.undefined,
        )  # fmt: skip
        alike = vars(small.centers)[ALIKE]
        vars(small).update(variances=class_variances(small.centers, small.scatter), discrimination=alike)
        return small

    @cached_property
    def samples(self) -> Tensor:
        """How many there are (…)."""
        return self.near.counts.sum(-1)

    @cached_property
    def class_separation(self) -> Tensor:
        """D of every class (…, K)."""
        return class_separation(self.centers, self.scatter)

    @cached_property
    def separation(self) -> Tensor:
        """D (…)."""
        return (self.centers.weights * self.class_separation).sum(-1)

    @cached_property
    def variances(self) -> Tensor:
        """Those of every class (…, K)."""
        return class_variances(self.centers, self.scatter)

    @cached_property
    def discrimination(self) -> Tensor:
        """1 − the largest cosine between two class means (…)."""
        return discrimination(self.centers)

    @cached_property
    def geometry(self) -> tuple[Tensor, Tensor, Tensor]:
        """NC2 of the centered class means, in the fewer dimensions of their span."""
        return geometry(self.centers.coordinates)

    @property
    def available(self) -> set[Needs]:
        """What there is to compute from."""
        found: set[Needs] = {"classes", "decision"}
        if self.left_out is not None and not self.undefined:
            found.add("groups")
        if self.permuted is not None:
            found.add("permuted")
        if self.within is not None and not self.undefined and enough_samples(self.centers):
            found.add("within")
        if self.rows is not None:
            found |= {"classifier", "network"}
            found |= {"imbalance"} if self.rare is not None else set()
            found |= {"small"} if min(self.rows.shape) <= MOST_SINGULAR else set()
        return found

    @cached_property
    def jackknife(self) -> Jackknives:
        """Bias and standard error of ln D (…)."""
        assert self.left_out is not None
        return jackknives(self.separation, self.left_out.separation())

    @cached_property
    def floor(self) -> Tensor:
        """D under each permutation of the labels (…, P)."""
        assert self.permuted is not None
        return self.permuted.separation()

    @cached_property
    def weight(self) -> Tensor:
        """Rows of the classifier (…, K, d)."""
        assert self.rows is not None
        return self.rows

    @cached_property
    def classifier_geometry(self) -> tuple[Tensor, Tensor, Tensor]:
        """NC2 of the classifier's rows."""
        return geometry(self.weight)

    @cached_property
    def rare(self) -> list[int] | None:
        """The classes that are rare; `None` where all are as large."""
        return rare_classes(self.centers.counts.reshape(-1, self.K)[0].tolist())  # the same at all sites

    @cached_property
    def minority(self) -> Tensor:
        """Rows of the rare classes."""
        return self.weight[..., self.rare, :]

    @cached_property
    def majority(self) -> Tensor:
        """Rows of the frequent classes."""
        return self.weight[..., sorted(set(range(self.K)) - set(self.rare or ())), :]

    @cached_property
    def linear_separation(self) -> Tensor:
        """D_lin."""
        assert self.within is not None
        return linear_separation(self.centers, self.within)

    def unless_undefined(self, value: Tensor) -> Tensor | None:
        """Nothing where all class means coincide: there nothing is separated, and D has no meaning."""
        return None if self.undefined else value


def is_apart(centers: Centers) -> bool:
    """Whether measures of them are computed on the CPU, though they are elsewhere."""
    return centers.means.device.type in APART and centers.counts.shape[-1] <= FEW_CLASSES


def _joined(parts: Sequence[S]) -> S:
    """Statistics that differ in nothing but numbers as one, along the leading dimension."""
    one = {each.name: getattr(parts[0], each.name) for each in fields(parts[0])}
    held = [name for name, part in one.items() if isinstance(part, Tensor)]
    return type(parts[0])(**one | {name: torch.cat([getattr(part, name) for part in parts]) for name in held})


def enough_samples(centers: Centers) -> bool:
    """Whether n ≥ d + K: with fewer samples SS_w is singular, and some linear map separates any classes perfectly."""
    return bool((centers.counts.sum(-1) >= centers.means.shape[-1] + centers.means.shape[-2]).all())


def number(value: Tensor | float | None) -> float | None:
    """A finite float, or `None`."""
    plain = math.nan if value is None else float(value)
    return plain if math.isfinite(plain) else None
