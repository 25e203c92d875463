"""Numbers of sites, computed from their statistics: those of sites of one shape as one, also of several measurements.

A network that is trained is measured again and again, and nobody looks at most records before the end: their numbers wait,
and are then computed together, since many calls on small matrices cost more than the work.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from layerlaw.measures.columns import OURS, REGISTRY, ROW_NEEDS, Column, Columns
from layerlaw.measures.site import Needs, SiteStatistics, is_apart
from layerlaw.measures.variability import brought_centers
from layerlaw.stats import Scatter
from layerlaw.stats.around import Around
from layerlaw.stats.scatter import NearestCenter
from layerlaw.threads import one_thread

SiteColumns = tuple[Columns, dict[str, list[float | None]]]
"""Numbers of one site and one split, and the numbers per class; `None` where a number does not exist."""


def site_columns(
    around: Around, scatter: Scatter, near: NearestCenter | None = None, weight: Tensor | None = None
) -> SiteColumns:
    """Numbers of one site and one split.

    `near` are nearest-center decisions by other centers (those of the training data, for a test set), `weight` (K, d) the
    rows of the classifier that reads this site.
    """
    return all_columns([(around, scatter, near)], {} if weight is None else {0: weight})[0]


def all_columns(
    sites: Sequence[tuple[Around, Scatter, NearestCenter | None]], weights: Mapping[int, Tensor]
) -> list[SiteColumns]:
    """The same of many sites, those of one shape together; `weights` are rows of classifiers by the place of their site."""
    return columns_of([Unread.of(sites, weights)])[0]


class Unread(NamedTuple):
    """What the numbers of many sites are computed from: statistics of sites of one shape, with the places of these and what
    is needed of them; and sites whose nearest centers are not to be trusted. `columns` are those to compute."""

    sites: int
    parts: list[tuple[list[int], SiteStatistics, set[Needs]]]
    untrusted: list[int]
    columns: list[Column]

    @classmethod
    def of(cls, sites: Sequence[tuple[Around, Scatter, NearestCenter | None]], weights: Mapping[int, Tensor]) -> Unread:
        """As for `all_columns`."""
        around, scatters, near = zip(*sites, strict=True) if sites else ((), (), ())
        doubted = [site.doubt(scatter) is not None for site, scatter in zip(around, scatters, strict=True)]
        kinds: dict[Hashable, list[int]] = defaultdict(list)
        parts: list[tuple[list[int], SiteStatistics, set[Needs]]] = []
        for i, site in enumerate(around):  # where they differ in what is known of them, they are computed apart
            known = site.believed(), site.rank > 0, doubted[i], near[i] is None, i if site.within is not None else -1
            kinds[id(site.alike), known].append(i)
        for places in kinds.values():
            one, alike = around[places[0]], around[places[0]].alike.some([around[i].index for i in places])
            left_out, permuted = one.believed()
            lent = [decided.sums for i in places if (decided := near[i]) is not None]
            statistics = SiteStatistics(
                alike.centers,
                Scatter.stack([scatters[i] for i in places]),
                near=NearestCenter(torch.stack(lent)) if lent else None,
                left_out=alike.left_out if left_out else None,
                permuted=alike.permuted if permuted else None,
                undefined=one.rank == 0 or doubted[places[0]],
                within=None if one.within is None else one.within.matrix().unsqueeze(0),
            )
            parts.append((places, statistics, statistics.available))
        for i, weight in weights.items():
            decided = near[i] or scatters[i].near
            own = around[i].alike.centers.at(slice(around[i].index, around[i].index + 1))
            read = SiteStatistics(own, Scatter.stack([scatters[i]]),
                                  near=NearestCenter(decided.sums.unsqueeze(0)), weight=weight)  # fmt: skip
            parts.append(([i], read, read.available & ROW_NEEDS))
        # Residuals around a mean that outliers carry far away lose digits.
        far = [i for i, site in enumerate(around) if doubted[i] and site.rank > 0 and site.centers.middle is not None]
        return cls(len(sites), parts, far, [column for column in REGISTRY.values() if column.compute is not None])

    def put_together(self, found: Sequence[Sequence[SiteColumns]]) -> list[SiteColumns]:
        """The numbers of every site from those of the parts."""
        sites: list[SiteColumns] = [({}, {}) for _ in range(self.sites)]
        for (places, _, _), columns in zip(self.parts, found, strict=True):
            for place, (values, by_class) in zip(places, columns, strict=True):
                sites[place] = sites[place][0] | values, sites[place][1] | by_class
        for place in self.untrusted:
            values, by_class = sites[place]
            values |= {name: None for name in values if name.startswith("ncc_")}
            sites[place] = values, {name: each for name, each in by_class.items() if not name.startswith("ncc_")}
        return sites

    def only(self, name: str) -> Unread:
        """The same for one column."""
        return self._replace(columns=[column for column in self.columns if column.name == name])

    @property
    def held(self) -> int:
        """How many bytes it holds, about."""
        return sum(4 * statistics.centers.means.nbytes for _, statistics, _ in self.parts)


def bring_ahead(sites: Iterable[Around]) -> None:
    """Bring the centers of sites to the CPU, where they will be wanted there: while pass 2 goes around them, say."""
    for alike in {id(site.alike): site.alike for site in sites}.values():
        if is_apart(alike.centers):
            brought_centers(alike.centers)


def columns_of(measurements: Sequence[Unread]) -> list[list[SiteColumns]]:
    """The numbers of the sites of several measurements, those of one kind together: many calls cost more than the work."""
    kinds: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)  # which measurements, and which of their parts
    given: dict[tuple[int, int], SiteStatistics] = {}
    for i, one in enumerate(measurements):
        computed = tuple(map(id, one.columns))
        for turn, (_, statistics, needs) in enumerate(one.parts):
            ours = all(id(column) in OURS for column in one.columns if column.needs in needs)
            given[i, turn] = here = statistics.brought() if ours else statistics
            kind = here.kind if len(measurements) > 1 or here is not statistics else None
            kinds[(i, turn) if kind is None else (kind, frozenset(needs), computed)].append((i, turn))
    of_part: dict[tuple[int, int], list[SiteColumns]] = {}
    for parts in kinds.values():
        first, turn = parts[0]
        _, there, needs = measurements[first].parts[turn]
        with one_thread() if given[first, turn] is not there else nullcontext():  # few classes, on the CPU
            whole = SiteStatistics.joined([given[part] for part in parts])
            each = iter(_computed(whole, needs, measurements[first].columns))
        of_part |= {(i, part): list(islice(each, len(measurements[i].parts[part][0]))) for i, part in parts}
    return [
        one.put_together([of_part[i, part] for part in range(len(one.parts))]) for i, one in enumerate(measurements)
    ]


def _computed(site: SiteStatistics, needs: Container[Needs], columns: Sequence[Column]) -> list[SiteColumns]:
    """Every number that these needs allow, of each entry of the leading dimension."""
    chosen = [column for column in columns if column.needs in needs]
    S, K = len(site.centers.rank), site.K
    whole = {c.name: c.compute(site) for c in chosen if c.compute is not None}
    classwise = {c.name: c.by_class(site) for c in chosen if c.by_class is not None}
    nothing = torch.full((S, K), math.nan, dtype=torch.float64, device=site.centers.rank.device)
    parts = [torch.stack([_shaped(value, nothing[:, 0]) for value in whole.values()], -1)] if whole else []
    parts += [_shaped(value, nothing) for value in classwise.values()]
    found: list[SiteColumns] = []
    for numbers in torch.cat(parts, -1).tolist() if parts else [[]] * S:
        known = [value if math.isfinite(value) else None for value in numbers]
        classes = {name: known[len(whole) + K * i :][:K] for i, name in enumerate(classwise)}
        found.append((dict(zip(whole, known, strict=False)), classes))
    return found


def _shaped(value: Tensor | float | None, nothing: Tensor) -> Tensor:
    """A number of every site, or one of all of them, in float64 and of the shape of `nothing`, which it may be."""
    if not isinstance(value, Tensor):
        return nothing
    wide = value if value.dtype == torch.float64 else value.double()
    return wide if wide.shape == nothing.shape else wide.reshape(-1, *nothing.shape[1:]).expand(nothing.shape)
