"""Class counts as few groups of like sizes, and which of them are rare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.peeled import Groups
from layerlaw.peeled.counts import Counts, grouped

MOST_SIZES = 6  # distinct sizes kept as they are; the cost of the exact optimum grows with their number
MOST_BINS = 8
NARROWEST = math.log(1.25)  # sizes within a quarter of each other are one


@dataclass(frozen=True)
class ClassGroup:
    """Classes of one size, or of sizes between `low` and `high` taken as their mean."""

    classes: tuple[int, ...]
    low: int
    high: int
    size: float
    rare: bool

    @property
    def words(self) -> str:
        """How many classes of how many samples."""
        one = "class" if len(self.classes) == 1 else "classes"
        sizes = f"{self.low:,}" if self.low == self.high else f"{self.low:,}–{self.high:,}"
        return f"{len(self.classes):,} {one} of {sizes}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"classes": list(self.classes), "low": self.low, "high": self.high, "size": self.size, "rare": self.rare}


def class_groups(counts: Counts) -> tuple[ClassGroup, ...]:
    """Groups of classes, the largest first.

    Up to 6 distinct sizes each are a group. More are put into at most 8 bins of equal width in the logarithm (no narrower
    than a factor of 1.25), each taken as its mean size, so that the number of samples stays the same. Rare are the groups
    below the geometric middle of the smallest and the largest size; none when all sizes are equal.

    >>> [g.words for g in class_groups([100, 5000, 100, 5000, 5000])]
    ['3 classes of 5,000', '2 classes of 100']
    """
    whole = grouped(counts)
    member = bins(whole.sizes)[whole.members]
    sizes = whole.sizes[whole.members]  # (K,) samples of every class
    means = [float(sizes[member == b].mean()) for b in range(int(member.max()) + 1)]
    middle = math.sqrt(means[0]) * math.sqrt(means[-1])
    return tuple(
        ClassGroup(
            classes=tuple(np.flatnonzero(member == b).tolist()),
            low=int(sizes[member == b].min()),
            high=int(sizes[member == b].max()),
            size=mean,
            rare=len(means) > 1 and mean < middle,
        )
        for b, mean in enumerate(means)
    )


def bins(sizes: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """The bin of each of these falling, distinct sizes; bins without any are left out."""
    if len(sizes) <= MOST_SIZES:
        return np.arange(len(sizes))
    fall = np.log(sizes[0] / sizes)
    width = max(fall[-1] / MOST_BINS, NARROWEST)
    return np.unique(np.minimum((fall / width + 1e-12).astype(np.intp), MOST_BINS - 1), return_inverse=True)[1]


def as_sizes(groups: tuple[ClassGroup, ...]) -> Groups:
    """The groups as the Layer-Peeled Model takes them."""
    classes = np.array([len(g.classes) for g in groups], dtype=np.float64)
    return Groups(np.array([g.size for g in groups]), classes)
