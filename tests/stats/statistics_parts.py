"""The way of the two passes, written once for the tests of the statistics."""

import torch
from torch import Tensor

from layerlaw.stats import Centers, ClassSums, Frame, LeftOut, Scatter, find_centers, one_hot, project


def scatter_of(x: Tensor, y: Tensor, centers: Centers, decision: Tensor | None = None) -> Scatter:
    coordinates, lengths = project(x, y, Frame.of(centers))
    return Scatter.of(coordinates, lengths, y, centers, decision)


def group_sums(x: Tensor, y: Tensor, groups: Tensor, K: int, g: int) -> ClassSums:
    """Class sums with the groups as leading dimension; a group may be empty."""
    parts = []
    for i in range(g):
        mine = groups == i
        if bool(mine.any()):
            parts.append(ClassSums.of(x[mine], y[mine], K))
        else:
            nothing = ClassSums.of(x[:1], y[:1], K)
            parts.append(ClassSums(*(torch.zeros_like(t) for t in nothing.tensors), nothing.dtype))
    return ClassSums(
        counts=torch.stack([p.counts for p in parts]),
        sums=torch.stack([p.sums for p in parts]),
        spread=torch.stack([p.spread for p in parts]),
        dtype=parts[0].dtype,
    )


def started(
    x: Tensor, y: Tensor, groups: Tensor, K: int, g: int, weighting: str = "samples"
) -> tuple[LeftOut, Centers]:
    """Pass 1: the left-out statistic ready for pass 2, and the centers of everything."""
    sums = group_sums(x, y, groups, K, g)
    centers = find_centers(sums.total(), weighting)
    return LeftOut.start(sums, centers), centers


def feed(left_out: LeftOut, centers: Centers, x: Tensor, y: Tensor, groups: Tensor) -> None:
    """Pass 2 over one batch."""
    coordinates, _ = project(x, y, Frame(centers.rounded_means, left_out.basis.to(centers.rounded_means)))
    g, K = left_out.fuzziness.shape
    left_out.fuzziness += LeftOut.added(coordinates, one_hot(groups, g, torch.bool), one_hot(y, K, torch.float64))


def left_out_of(x: Tensor, y: Tensor, groups: Tensor, K: int, g: int, weighting: str = "samples") -> LeftOut:
    left_out, centers = started(x, y, groups, K, g, weighting)
    feed(left_out, centers, x, y, groups)
    return left_out
