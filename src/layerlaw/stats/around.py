"""What pass 2 measures around, site by site, and the sites of one shape that are worked through as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from layerlaw.errors import PassError
from layerlaw.stats.centers import Centers, Span, Weighting, find_centers
from layerlaw.stats.closer import CloserLook, Rounding, narrow
from layerlaw.stats.limits import Doubt, Extent, check_range, doubt_of, doubtful, finite, hidden_directions
from layerlaw.stats.precision import double
from layerlaw.stats.scatter import Frame, LeftOut, NearestCenter, Permuted, Scatter, WithinScatter
from layerlaw.stats.stacking import Key
from layerlaw.stats.sums import ClassSums, by_label

if TYPE_CHECKING:
    from layerlaw.stats.passes import Dealt, FirstPass

CHANGED = 1e-4  # mean residual over its rms above which the data of pass 2 are not those of pass 1
FEW_MEANS = 2  # class means that stay of a site whose numbers are known: they tell its features from those of another
TOGETHER = {"cpu": 100_000, "cuda": 2**19}  # class means of more numbers than this are worked through site by site


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
    def frame(self) -> Frame:
        """What the features are multiplied with: the basis of each site, and below it those of the views."""
        views = [view.basis for view in (self.left_out, self.permuted) if view is not None]
        views += [] if self.reference is None else [self.reference]
        means = self.centers.rounded_means
        return Frame(means, torch.cat([self.centers.basis, *views], -2).to(means.dtype))

    @cached_property
    def wide(self) -> list[bool]:
        """Of which sites squared lengths are taken in float64."""
        found: list[bool] = Extent.of(self.centers).extreme.tolist()
        return found

    def some(self, indices: list[int]) -> Alike:
        """Some of the sites."""
        if indices == list(range(len(self.ranks))):
            return self
        left_out = None if self.left_out is None else self.left_out.at(indices)
        permuted = None if self.permuted is None else self.permuted.at(indices)
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


class Around:
    """What pass 2 measures around at one site: its centers, and the optional views that share its product.

    All of it are entries `index` of those of the sites `among` which it is worked through; where `centers` is `None` they
    are taken from there when somebody wants to know.
    """

    def __init__(
        self,
        centers: Centers | None,
        left_out: LeftOut | None = None,
        permuted: Permuted | None = None,
        reference: Centers | None = None,
        within: WithinScatter | None = None,
        closer: CloserLook | None = None,
        among: Alike | None = None,
        index: int = 0,
    ) -> None:
        if centers is not None:
            vars(self).update(centers=centers, left_out=left_out, permuted=permuted)
        self.reference = reference
        """Centers of the training data, for nearest-center decisions on test data."""
        self.within = within
        """The whole within-class scatter, where it was requested."""
        self.closer = closer
        """Where float32 sums may have lost directions."""
        self.among, self.index = among, index
        self._judged: tuple[Scatter, Doubt | None] | None = None

    @cached_property
    def centers(self) -> Centers:
        """Those of its class means."""
        assert self.among is not None
        return self.among.centers.at(self.index)

    @cached_property
    def left_out(self) -> LeftOut | None:
        """The views without each group."""
        view = None if self.among is None else self.among.left_out
        return None if view is None else view.at(self.index)

    @cached_property
    def permuted(self) -> Permuted | None:
        """The views under permuted labels."""
        view = None if self.among is None else self.among.permuted
        return None if view is None else view.at(self.index)

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
        by_site = first.sums
        for number, (key, sums) in enumerate(by_site.items()):
            most = TOGETHER.get(sums.sums.device.type, TOGETHER["cuda"])
            alone = sums.sums.shape[-2:].numel() > most  # large ones gain nothing
            shapes[sums.sums.shape, sums.dtype, sums.sums.device, number if alone else -1].append(key)
        found: dict[Key, Around] = {}
        for keys in shapes.values():
            stacked = ClassSums.stack([by_site[key] for key in keys])
            centers = find_centers(stacked.total() if first.groups else stacked, weighting)
            left_out = permuted = None
            if first.groups and bool((stacked.left_out().counts > 0).all()):
                left_out = LeftOut.start(stacked, centers)
            if first.permuted:
                drawn = ClassSums.stack([first.permuted[key] for key in keys])
                usable = finite([drawn.sums]) and bool((drawn.counts > 0).all())  # over all classes, they may overflow
                permuted = Permuted.start(drawn, centers) if usable else None
            lent = torch.stack([references[key].basis for key in keys]) if references else None
            among = Alike(centers, left_out, permuted, lent)
            closely = narrow(centers).tolist()
            for i, key in enumerate(keys):
                lender = references[key] if references else None
                found[key] = one = cls(None, reference=lender, among=among, index=i)
                one.within = WithinScatter.start(one.centers) if key in within else None
                one.closer = CloserLook.start(one.centers) if closely[i] else None
        return {key: found[key] for key in by_site}

    @cached_property
    def alike(self) -> Alike:
        """The sites that it is worked through among; it alone where there are none."""
        if self.among is not None:
            return self.among
        left_out = None if self.left_out is None else self.left_out.at(None)
        permuted = None if self.permuted is None else self.permuted.at(None)
        lent = None if self.reference is None else self.reference.basis.unsqueeze(0)
        return Alike(self.centers.at(None), left_out, permuted, lent)

    @property
    def kin(self) -> tuple[bool, bool, torch.dtype]:
        """What sites have in common whose features are multiplied as one."""
        dtype = torch.float64 if self.alike.centers.dtype == torch.float64 else torch.float32
        return self.alike.left_out is None, self.alike.permuted is None, dtype

    @property
    def rank(self) -> int:
        """Dimensions of its class means."""
        return self.alike.ranks[self.index]

    def with_digits(self, wide: Around, sizes: Tensor) -> Around:
        """The same by sums in float64, `wide`, where these have real directions only; `sizes` (K, d) of each feature."""

        def real(centers: Centers) -> bool:
            return Rounding(sizes, torch.zeros_like(sizes), centers.counts, centers.weights).all_real(centers)

        if not real(wide.centers):
            if self.closer is not None:
                self.closer.exact = wide.centers  # which it would find once more
            return self
        left_out = wide.left_out if wide.left_out and real(wide.left_out.centers) else None
        permuted = wide.permuted if wide.permuted and real(wide.permuted.centers) else None
        return Around(wide.centers, left_out, permuted, wide.reference, wide.within, wide.closer)

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
        if self.closer is None:
            return left_out, permuted
        return left_out and self._as_many(self.left_out), permuted and self._as_many(self.permuted)

    def _as_many(self, view: LeftOut | Permuted | None) -> bool:
        """Whether a view has as many directions as there are: asked where float32 sums may have lost some."""
        return view is not None and bool((view.centers.rank >= self.centers.rank).all())


class Finished(Around):
    """A site whose numbers are known, without its statistics: what else is asked of it, in memory of its own.

    All class means (K, d) stay where they are compared with the rows of a classifier (`read`), else a few of them.
    """

    def __init__(self, site: Around, scatter: Scatter, *, read: bool) -> None:
        centers = site.centers
        some = replace(centers, basis=centers.basis[..., :0])
        if not read:
            nothing = centers.coordinates[:0, :0]
            few, mean = centers.means[:FEW_MEANS], centers.mean[:0]
            some = replace(some, means=few, mean=mean, coordinates=nothing, places=nothing)
        super().__init__(some._each(torch.Tensor.clone))
        self._doubt = site.doubt(scatter)

    def doubt(self, scatter: Scatter) -> Doubt | None:
        """As it was before."""
        return self._doubt


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


def _span(sites: Sequence[Around]) -> Span:
    """Where the class means of several sites lie, side by side: sites that were worked through as one lie so already."""
    among = sites[0].among
    whole = among is not None and len(sites) == len(among.centers.rank)
    if among is not None and whole and all(site.among is among and site.index == i for i, site in enumerate(sites)):
        return among.centers
    return Span.stack([site.centers for site in sites])


Projected = tuple[list[Key], Tensor, Tensor, Tensor]
"""Sites, and what their samples are: coordinates (S, r, n), lengths (S, n), coordinates in another basis (S, r, n)."""


class OneRank:
    """Sites whose class means span equally many dimensions: their work of size n×K is one."""

    def __init__(self, keys: list[Key], sites: Sequence[Around]) -> None:
        self.keys, self.span = keys, _span(sites)
        self.span.look()
        self.scatter: Scatter | None = None
        self.near: NearestCenter | None = None
        """Decisions by the centers of the training data."""
        lent = [(site.centers, site.reference) for site in sites if site.reference is not None]
        self.reference = Span.stack([reference for _, reference in lent]) if lent else None
        places = [(own.rounded_means.double() - other.mean) @ other.basis.mT for own, other in lent]
        self.places = torch.stack(places) if places else None  # (sites, K, r)

    def _of(self, waiting: Sequence[Projected], part: int, device: torch.device) -> Tensor:
        """One part of what was projected, of these sites side by side."""
        if [key for keys, *_ in waiting for key in keys] == self.keys:
            found = [parts[part].to(device) for _, *parts in waiting]
            return found[0] if len(found) == 1 else torch.cat(found)
        by_key = {key: parts[part][i] for keys, *parts in waiting for i, key in enumerate(keys)}
        return torch.stack([by_key[key].to(device) for key in self.keys])

    def update(self, waiting: Sequence[Projected], dealt: Dealt, decision: Tensor | None) -> None:
        """Add the samples of a batch: own coordinates, lengths, coordinates in the basis of the reference."""
        here = dealt.to(self.span.scales.device)
        labels, device = here.labels, here.labels.device
        decision = None if decision is None else decision.to(device)
        own, lengths = (self._of(waiting, i, device) for i in (0, 1))
        part = Scatter.of(own, lengths, labels, self.span, decision)
        if self.scatter is None:
            self.scatter = part
        else:
            self.scatter.sums += part.sums
        if self.reference is None or self.places is None:
            return
        points = double(self._of(waiting, 2, device)) + by_label(self.places.mT, labels)
        near = NearestCenter.of(points, self.reference, labels, decision)
        if self.near is None:
            self.near = near
        else:
            self.near.sums += near.sums


def _side_by_side(sites: Sequence[Around]) -> slice | None:
    """Where sites lie among those of the first one, if they lie there one behind the other."""
    alike, at = sites[0].alike, sites[0].index
    if all(site.alike is alike and site.index == at + i for i, site in enumerate(sites)):
        return slice(at, at + len(sites))
    return None


def add_fuzziness(sites: Sequence[Around], view: Literal["left_out", "permuted"], added: Tensor) -> None:
    """What samples add to the fuzziness of a view of several sites (S, …): at once, where these lie side by side."""
    runs = [(sites, added)] if _side_by_side(sites) else [([site], added[i : i + 1]) for i, site in enumerate(sites)]
    for some, part in runs:
        found: LeftOut | Permuted | None = getattr(some[0].alike, view)
        assert found is not None
        home = found.fuzziness[_side_by_side(some)]
        home += part.to(home.device)


def frame_of(sites: Sequence[Around], device: torch.device) -> tuple[Frame, Tensor | None]:
    """What the features of several sites (S, n, d) are multiplied with, and the moves of their permuted labels, if any."""
    alike, place = sites[0].alike, _side_by_side(sites)
    frame, permuted, wide = alike.frame, alike.permuted, any(site.alike.wide[site.index] for site in sites)
    if place is not None:
        means, basis = frame.means[place], frame.basis[place]
        moves = None if permuted is None or permuted.moves is None else permuted.moves[place]
    else:
        means = torch.stack([site.alike.frame.means[site.index] for site in sites])
        basis = torch.stack([site.alike.frame.basis[site.index] for site in sites])
        moved = [site.permuted.moves for site in sites if site.permuted and site.permuted.moves is not None]
        moves = torch.stack(moved) if moved else None
    return Frame(means.to(device), basis.to(device), wide), None if moves is None else moves.to(device)


ONE_FORWARD = (
    ", or raise memory_gib so that one forward serves both"  # advice that jobs which never keep features leave out
)


def moved(keys: Sequence[Key], centers: Centers, scatter: Scatter) -> dict[Key, float]:
    """How far class means moved, in units of the spread, at the sites where it is more than rounding."""
    counts = scatter.counts
    if not torch.equal(counts, centers.counts):
        i = int((counts != centers.counts).any(-1).nonzero()[0])
        raise PassError(
            f"site '{keys[i]}': the data changed between the two passes: class counts {_numbers(centers.counts[i])} in "
            f"pass 1, {_numbers(counts[i])} in pass 2. Pass data that are the same each time they are gone through "
            "(no one-shot iterators, no sampling with replacement from an unseeded generator)."
        )
    mean = scatter.residuals / counts.unsqueeze(-1)  # (S, K, r)
    # A direction in which the class means hardly differ has a small scale: rounding is large beside it, and no change.
    off = ((mean - centers.expected_residuals).abs() - centers.resolution[:, None, None]).clamp_min(0)
    rms = (scatter.fuzziness.sum(-1) / counts.sum(-1)).sqrt()
    worst = torch.linalg.vector_norm(off * centers.inverse_scales.unsqueeze(-2), dim=-1).amax(-1)
    found: list[float] = torch.where(worst > CHANGED * rms + 1e-8, worst / rms, 0.0).tolist()
    return {key: by for key, by in zip(keys, found, strict=True) if by}


def _numbers(counts: Tensor) -> str:
    shown = [str(int(c)) for c in counts[:12]]
    return "[" + ", ".join(shown) + (", …]" if len(counts) > 12 else "]")
