"""Class counts as few groups of like sizes to be shown, and as the sizes the model is solved for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.peeled import Groups
from layerlaw.peeled.counts import Counts, grouped
from layerlaw.wording import counted

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
MOST_GROUPS = 8  # rows of a table that are still read; a power of 2, so that the rare half begins at a border
MOST_SOLVED = 40  # distinct sizes solved as they are, some seconds; the cost grows with their cube and more
MOST_BINS = 24  # for more sizes; a multiple of the groups shown
NARROWEST = math.log(1.25)  # sizes within a quarter of each other are shown as one group
MOST_LISTED = 10**6  # classes whose numbers are listed; a mapping may stand for any number


@dataclass(frozen=True)
class ClassGroup:
    """Classes of one size, or of sizes between `low` and `high`, shown together."""

    number: int
    """How many classes."""
    classes: tuple[int, ...] | None
    """Which, in the order of the counts; `None` where they are too many to list."""
    low: int
    high: int
    size: float
    """Mean number of samples."""
    rare: bool

    @property
    def words(self) -> str:
        """How many classes of how many samples."""
        sizes = f"{self.low:,}" if self.low == self.high else f"{self.low:,}–{self.high:,}"
        return f"{counted(self.number, 'class', 'classes')} of {sizes}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        listed = None if self.classes is None else list(self.classes)
        sizes = {"low": self.low, "high": self.high, "size": self.size}
        return {"number": self.number, "classes": listed, **sizes, "rare": self.rare, "words": self.words}


@dataclass(frozen=True)
class Sizes:
    """Sizes for which the model is solved, and the group each is shown in."""

    groups: Groups
    shown: Index
    """(G,) place among the groups that are shown."""
    of: int
    """Distinct sizes there are; more than `len(groups)` where they were binned."""

    @property
    def binned(self) -> bool:
        """Whether some sizes were taken as larger than they are."""
        return len(self.groups) < self.of


def shown_groups(counts: Counts) -> tuple[ClassGroup, ...]:
    """Groups of classes to be shown, the largest first.

    Up to 8 distinct sizes each are a group. More are put into 2, 4 or 8 bins of equal width in the logarithm, as wide as
    a factor of 1.25 at least; all within that are one. Rare are the classes below the geometric middle of the smallest and
    the largest size; none when there is one group.

    >>> [g.words for g in shown_groups([100, 5000, 100, 5000, 5000])]
    ['3 classes of 5,000', '2 classes of 100']
    """
    whole = grouped(counts)
    shown = _shown(whole.sizes)
    several = int(shown[-1]) > 0
    middle = math.sqrt(whole.sizes[0]) * math.sqrt(whole.sizes[-1])
    members = whole.members if whole.K <= MOST_LISTED else None
    found = []
    for b in range(int(shown[-1]) + 1):
        own = np.flatnonzero(shown == b)
        sizes, classes = whole.sizes[own], whole.classes[own]
        found.append(
            ClassGroup(
                number=int(classes.sum()),
                classes=None if members is None else tuple(np.flatnonzero(np.isin(members, own)).tolist()),
                low=int(sizes[-1]),
                high=int(sizes[0]),
                size=float(sizes @ classes / classes.sum()),
                rare=several and bool(sizes[0] < middle),
            )
        )
    return tuple(found)


def exact_sizes(counts: Counts) -> Sizes:
    """Every distinct size as it is."""
    whole = grouped(counts)
    return Sizes(whole, _shown(whole.sizes), len(whole))


def solved_sizes(counts: Counts, most: int = MOST_SOLVED, bins: int = MOST_BINS) -> Sizes:
    """The sizes as they are, or, where they are more than `most`, in bins, each taken as its largest.

    The smallest size stays what it is. So every class is at least as frequent as in truth and the rarest is not: the budget
    that separates all can only come out larger. (With a bias its closed form says so; without, no exception was found in
    400 random lists.)
    """
    exact = exact_sizes(counts)
    if exact.of <= most:
        return exact
    sizes, classes = exact.groups.sizes, exact.groups.classes
    fine = _bins(sizes, bins)  # borders of the groups shown are borders here too
    fine[-1] += 1
    place = np.unique(fine, return_inverse=True)[1]
    first = np.flatnonzero(np.diff(place, prepend=-1))
    return Sizes(
        Groups(sizes[first], np.bincount(place, weights=classes).astype(np.float64)), exact.shown[first], exact.of
    )


def _shown(sizes: Array) -> Index:
    """The group of each of these falling, distinct sizes."""
    if len(sizes) <= MOST_GROUPS:
        return np.arange(len(sizes))
    steps = math.log(sizes[0] / sizes[-1]) / NARROWEST
    many = 1 if steps <= 1 else min(MOST_GROUPS, 2 ** max(1, math.floor(math.log2(steps))))
    return np.unique(_bins(sizes, many), return_inverse=True)[1]  # without the empty ones


def _bins(sizes: Array, many: int) -> Index:
    """The bin of each size among `many` of equal width in the logarithm; a border belongs to the larger sizes."""
    fall = np.log(sizes[0] / sizes)
    return np.asarray(np.clip(np.ceil(fall / fall[-1] * many - 1e-9).astype(np.intp) - 1, 0, many - 1))
