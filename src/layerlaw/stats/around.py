"""What pass 2 measures around, site by site, and the sites of one shape that are worked through as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerlaw.stats.centers import Centers, Weighting, find_centers
from layerlaw.stats.closer import CloserLook, Rounding, narrow
from layerlaw.stats.limits import Doubt, check_range, doubt_of, doubtful, finite, hidden_directions
from layerlaw.stats.scatter import Frame, LeftOut, Permuted, Scatter, WithinScatter
from layerlaw.stats.stacking import Key
from layerlaw.stats.sums import ClassSums

if TYPE_CHECKING:
    from layerlaw.stats.passes import FirstPass

TOGETHER = 100_000  # class means of more numbers than this are worked through site by site


@dataclass(frozen=True)
class Alike:
    """Sites of one shape, side by side: the statistics of each are an entry of the leading dimension.

    `reference` are the bases of the centers of the training data (S, r, d), where test data are measured around those too.
    """

    centers: Centers
    left_out: LeftOut | None = None
    permuted: Permuted | None = None
    reference: Tensor | None = None

    @cached_property
    def frames(self) -> list[Frame]:
        """What the features of each site are multiplied with: its basis, and below it those of the views."""
        views = [view.basis for view in (self.left_out, self.permuted) if view is not None]
        views += [] if self.reference is None else [self.reference]
        means = self.centers.rounded_means
        basis = torch.cat([self.centers.basis, *views], -2).to(means.dtype)
        wide = self.centers.extreme.tolist()
        return [Frame(means[i], basis[i], wide[i]) for i in range(len(means))]

    def some(self, indices: list[int]) -> Alike:
        """Some of the sites."""
        if indices == list(range(len(self.ranks))):
            return self
        left_out, permuted = (None if view is None else view.at(indices) for view in (self.left_out, self.permuted))
        return Alike(self.centers.at(indices), left_out, permuted)

    @cached_property
    def ranks(self) -> list[int]:
        """Dimensions of the class means of each site."""
        found: list[int] = self.centers.rank.tolist()
        return found

    @cached_property
    def believed(self) -> list[tuple[bool, bool]]:
        """Of each site, whether the views without a group and under permuted labels have all directions left to them."""
        S, found = len(self.ranks), []
        for view in (self.left_out, self.permuted):
            hidden = [True] * S if view is None else hidden_directions(view.centers).any(-1).tolist()
            found.append([not one for one in hidden])
        return list(zip(*found, strict=True))


@dataclass
class Around:
    """What pass 2 measures around at one site: its centers, and the optional views that share its product.

    All of it are entries `index` of those of the sites `among` which it is worked through.
    """

    centers: Centers
    left_out: LeftOut | None = None
    permuted: Permuted | None = None
    reference: Centers | None = None  # centers of the training data, for nearest-center decisions on test data
    within: WithinScatter | None = None  # the whole within-class scatter, where it was requested
    closer: CloserLook | None = None  # where float32 sums may have lost directions
    among: Alike | None = None
    index: int = 0
    _judged: tuple[Scatter, Doubt | None] | None = None

    @classmethod
    def all_of(
        cls,
        first: FirstPass,
        weighting: Weighting,
        references: Mapping[Key, Centers] | None = None,
        within: Container[Key] = (),
    ) -> dict[Key, Around]:
        """Everything that pass 1 allows, for all sites; those of equal shape are worked through together.

        `within` are the sites of which the whole within-class scatter is kept.
        """
        shapes: dict[tuple[object, ...], list[Key]] = defaultdict(list)
        for number, (key, sums) in enumerate(first.sums.items()):
            alone = sums.sums.shape[-2:].numel() > TOGETHER  # large ones gain nothing
            shapes[sums.sums.shape, sums.dtype, sums.sums.device, number if alone else -1].append(key)
        found: dict[Key, Around] = {}
        for keys in shapes.values():
            stacked = ClassSums.stack([first.sums[key] for key in keys])
            centers = find_centers(stacked.total() if first.groups else stacked, weighting)
            left_out = permuted = None
            if first.groups and bool((stacked.left_out().counts > 0).all()):
                left_out = LeftOut.start(stacked, centers)
            if first.permuted and finite(
                first.permuted[key].sums for key in keys
            ):  # over all classes, they may overflow
                drawn = ClassSums.stack([first.permuted[key] for key in keys])
                permuted = Permuted.start(drawn, centers) if bool((drawn.counts > 0).all()) else None
            lent = torch.stack([references[key].basis for key in keys]) if references else None
            among = Alike(centers, left_out, permuted, lent)
            closely = narrow(centers).tolist()
            for i, key in enumerate(keys):
                own = centers.at(i)
                found[key] = cls(
                    own,
                    left_out.at(i) if left_out else None,
                    permuted.at(i) if permuted else None,
                    references[key] if references else None,
                    WithinScatter.start(own) if key in within else None,
                    CloserLook.start(own) if closely[i] else None,
                    among,
                    i,
                )
        return {key: found[key] for key in first.sums}

    @cached_property
    def alike(self) -> Alike:
        """The sites that it is worked through among; it alone where there are none."""
        if self.among is not None:
            return self.among
        left_out, permuted = (None if view is None else view.at(None) for view in (self.left_out, self.permuted))
        lent = None if self.reference is None else self.reference.basis.unsqueeze(0)
        return Alike(self.centers.at(None), left_out, permuted, lent)

    @property
    def frame(self) -> Frame:
        """What its features are multiplied with."""
        return self.alike.frames[self.index]

    @property
    def rank(self) -> int:
        """Dimensions of its class means."""
        return self.alike.ranks[self.index]

    def with_digits(self, wide: Around, sizes: Tensor) -> Around:
        """The same by sums in float64, `wide`, where these have real directions only; `sizes` (K, d) of each feature."""

        def real(centers: Centers) -> bool:
            return Rounding(sizes, torch.zeros_like(sizes), centers.counts, centers.weights).all_real(centers)

        if not real(wide.centers):
            return self
        left_out = wide.left_out if wide.left_out and real(wide.left_out.centers) else None
        permuted = wide.permuted if wide.permuted and real(wide.permuted.centers) else None
        return replace(wide, left_out=left_out, permuted=permuted, among=None, index=0)

    def judge(self, scatter: Scatter, doubted: bool) -> None:
        """Remember that nothing is `doubted` at its centers, where that was found out for all sites at once."""
        if not doubted and self.closer is None:
            self._judged = scatter, None

    def doubt(self, scatter: Scatter) -> Doubt | None:
        """Why D would look right and may be wrong; `None` where nothing says so."""
        if self._judged is None or self._judged[0] is not scatter:
            few = scatter.few
            found = doubt_of(self.centers, few) or (None if self.closer is None else self.closer.doubt(few))
            self._judged = scatter, found
        return self._judged[1]

    def believed(self) -> tuple[bool, bool]:
        """Whether the views without a group and under permuted labels have all directions that rounding leaves to them."""
        left_out, permuted = self.alike.believed[self.index]
        return left_out and self._as_many(self.left_out), permuted and self._as_many(self.permuted)

    def _as_many(self, view: LeftOut | Permuted | None) -> bool:
        """Whether a view has as many directions as there are: asked where float32 sums may have lost some."""
        if view is None:
            return False
        return self.closer is None or bool((view.centers.rank >= self.centers.rank).all())


def by_kin(sites: Sequence[Around]) -> list[tuple[Alike, list[int]]]:
    """The sites side by side with those of their shape, and the places of each of these in the sequence."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, site in enumerate(sites):
        found[id(site.alike)].append(place)
    return [(sites[places[0]].alike.some([sites[i].index for i in places]), places) for places in found.values()]


def check_ranges(around: Mapping[Key, Around]) -> None:
    """Raise where the features of a site leave the range of their dtype."""
    keys = list(around)
    for alike, places in by_kin(list(around.values())):
        if bool(doubtful(alike.centers).any()):
            check_range({keys[place]: around[keys[place]].centers for place in places})
