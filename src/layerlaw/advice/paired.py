"""Numbers over paired seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float | None]:
    """Mean of a − b over paired seeds, and its standard error (`None` for one seed).

    >>> mean, error = difference([1.0, 2.0, 3.0], [0.5, 1.5, 3.5])
    >>> round(mean, 6), round(error, 6)  # differences .5, .5, −.5
    (0.166667, 0.333333)
    """
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    return fmean(gaps), standard_error(gaps)


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean: s/√n; `None` for fewer than two values."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
