"""Further measures of within-class against between-class spread: CDNV, compression, discrimination."""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from layerlaw.stats import Centers, Scatter
from layerlaw.stats.precision import on_host, row_chunks

ROUNDED = "_rounding_squares"  # where centers keep them
BROUGHT, ALIKE = "_brought", "_discrimination"  # where they keep those on the CPU, and these their discrimination
CLOSE = 0.01  # of ‖a‖² + ‖b‖²: below it ‖a − b‖² as a difference of products would lose more than two digits


def rounding_squares(centers: Centers) -> Tensor:
    """Squared length of what the rounding of each class mean takes off it (…, K); kept with the centers."""
    known: Tensor | None = vars(centers).get(ROUNDED)
    if known is None:
        known = vars(centers)[ROUNDED] = centers.rounding.square().sum(-1)
    return known


def class_variances(centers: Centers, scatter: Scatter) -> Tensor:
    """Mean squared distance of the samples of each class to their mean (…, K).

    Around the rounded mean it comes out larger by the squared rounding.
    """
    return (scatter.lengths / scatter.counts - rounding_squares(centers)).clamp_min(0)


def class_distance_variance(centers: Centers, variances: Tensor) -> Tensor:
    """CDNV: (Var_c + Var_c') / (2‖μ_c − μ_c'‖²) averaged over pairs of classes (…); 0 at collapse (Galanti et al.).

    Infinite where two class means coincide.
    """
    K = variances.shape[-1]
    distances = _squared_distances(centers.coordinates)
    distances.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)  # a class is no pair with itself
    pairs = (variances.unsqueeze(-1) + variances.unsqueeze(-2)) / distances
    return pairs.sum((-2, -1)) / (2 * K * (K - 1))


def _squared_distances(points: Tensor) -> Tensor:
    """‖a − b‖² between all points (…, K, r) → (…, K, K), to about 13 digits.

    ‖a‖² + ‖b‖² − 2 a·b is one product, but loses the digits of close pairs: those are worked out again by their difference.
    """
    lengths = points.square().sum(-1)  # (…, K)
    sizes = lengths.unsqueeze(-1) + lengths.unsqueeze(-2)
    distances = torch.sub(sizes, points @ points.mT, alpha=2)
    close = (distances < CLOSE * sizes).triu(1).nonzero()  # (m, … and two classes)
    width = points.element_size() * points.shape[-1]
    for rows in row_chunks(len(close), width, points.device):
        *lead, one, other = close[rows].unbind(-1)
        exact = (points[*lead, one] - points[*lead, other]).square().sum(-1)
        distances[*lead, one, other] = exact
        distances[*lead, other, one] = exact
    return distances


def compression(centers: Centers, variances: Tensor) -> Tensor:
    """Tr SS_w / Tr SS_b (…); lower is more compressed (Wang et al. 2023)."""
    within = (centers.weights * variances).sum(-1)
    return within / (centers.weights * centers.coordinates.square().sum(-1)).sum(-1)


def discrimination(centers: Centers) -> Tensor:
    """1 − the largest cosine between two class means, not centered (…); higher is better (Wang et al. 2023).

    As half the squared distance of the two unit vectors: of nearly parallel means the difference from 1 has few digits.
    """
    means = centers.original_means
    units = means / torch.linalg.vector_norm(means, dim=-1, keepdim=True)
    cosines = units @ units.mT
    cosines.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    nearest = cosines.flatten(-2).argmax(-1, keepdim=True)  # (…, 1)
    pair = torch.cat([nearest // cosines.shape[-1], nearest % cosines.shape[-1]], -1)
    one, other = units.gather(-2, pair.unsqueeze(-1).expand(*pair.shape, units.shape[-1])).unbind(-2)
    found: Tensor = (one - other).square().sum(-1) / 2
    return found


def brought_centers(centers: Centers) -> Centers:
    """Centers on the CPU without what is as wide as the features, but with what measures use of that; found once."""
    known: Centers | None = vars(centers).get(BROUGHT)
    if known is None:
        rounded, alike = rounding_squares(centers), discrimination(centers)
        known, (rounded, alike) = span_at_hand(centers, rounded, alike)
        vars(known).update({ROUNDED: rounded, ALIKE: alike})
        vars(centers)[BROUGHT] = known
    return known


def span_at_hand(centers: Centers, *more: Tensor) -> tuple[Centers, list[Tensor]]:
    """The same with nothing of that, and `more` numbers by the same transfer."""
    parts: dict[str, Any] = {each.name: getattr(centers, each.name) for each in fields(centers)}
    parts |= {name: parts[name][..., :0] for name in ("means", "mean", "basis")} | {"origin": None}
    names = [name for name, part in parts.items() if isinstance(part, Tensor)]
    found = on_host([*(parts[name] for name in names), *more])
    return Centers(**parts | dict(zip(names, found, strict=False))), found[len(names) :]
