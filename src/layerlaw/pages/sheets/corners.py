"""Where a note or a legend covers least: the corners of a panel, tried against the data in it.

Everything is in fractions of the axes: (0, 0) is the lower left corner, (1, 1) the upper right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.transforms import Bbox

MARGIN = 0.025
CLEARANCE = 0.03
STEP = 0.025  # between neighboring spots of a line: less than a clearance
MOST_STEPS = 200
# A curve that falls leaves the upper right free, so it is tried first; equal corners are taken in this order.
CORNERS = ("upper right", "lower left", "upper left", "lower right", "upper center", "lower center")
Spot = tuple[float, float]


class Corner(NamedTuple):
    """A place for something: its name as matplotlib spells it, its box, and how many spots of data it covers."""

    name: str
    box: Bbox
    covers: int


def emptiest(width: float, height: float, spots: Sequence[Spot], taken: Sequence[Bbox] = ()) -> Corner:
    """The corner that covers the fewest spots, or comes too near to them, and no box already taken if that can be.

    >>> falling = along([(0.0, 1.0), (1.0, 0.0)])
    >>> emptiest(0.3, 0.2, falling).name, emptiest(0.3, 0.2, [(1.0, 1.0)]).name
    ('upper right', 'lower left')
    """
    tried = []
    for name in CORNERS:
        box = corner_box(name, width, height)
        covers = int(box.padded(CLEARANCE).count_contains(spots)) if spots else 0
        crowded = box.count_overlaps(taken) > 0  # worse than any data
        tried.append(Corner(name, box, covers + (len(spots) + 1) * crowded))
    return min(tried, key=lambda corner: corner.covers)


def corner_box(name: str, width: float, height: float) -> Bbox:
    """The box of this size in that corner."""
    from matplotlib.transforms import Bbox

    vertical, horizontal = name.split()
    left = {"left": MARGIN, "right": 1 - MARGIN - width, "center": (1 - width) / 2}[horizontal]
    return Bbox.from_bounds(left, 1 - MARGIN - height if vertical == "upper" else MARGIN, width, height)


def along(spots: Iterable[Spot | None]) -> list[Spot]:
    """The spots and what lies on the straight lines between them; a `None` breaks the line."""
    out: list[Spot] = []
    last: Spot | None = None
    for spot in spots:
        if spot is not None:
            if last is not None:
                (x0, y0), (x1, y1) = last, spot
                n = min(MOST_STEPS, math.ceil(max(abs(x1 - x0), abs(y1 - y0)) / STEP))
                out += [(x0 + (x1 - x0) * t / n, y0 + (y1 - y0) * t / n) for t in range(1, n)]
            out.append(spot)
        last = spot
    return out
