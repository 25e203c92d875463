"""The memory budget: sites in groups that fit, features kept as long as they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerlaw.capture import Plan, Site
from layerlaw.capture.sites import statistic_bytes
from layerlaw.errors import MemoryBudgetError
from layerlaw.stats.ranks import all_reduce, world_size

GROUPS = 10  # of the delete-group jackknife


def site_groups(plan: Plan, classes: int, memory: int) -> list[list[Site]]:
    """Sites in groups whose statistics fit the memory budget; each group costs its own forwards."""
    groups: list[list[Site]] = [[]]
    used = 0
    for site in plan.sites:
        need = statistic_bytes(classes, site.features)
        if need > memory:
            raise MemoryBudgetError(
                f"site '{site.name}' has {site.features} features: with {classes} classes its statistics need "
                f"{need / 2**30:.2f} GiB, the budget is {memory / 2**30:.2f} GiB. Use reduce='mean', fewer classes "
                "(classes=[…]), other sites, or a larger memory_gib."
            )
        if used + need > memory:
            groups.append([])
            used = 0
        groups[-1].append(site)
        used += need
    return groups


@dataclass(frozen=True)
class Extras:
    """What is measured beyond the plain numbers, and whether the features are kept for the second pass."""

    jackknife: bool
    permuted: bool
    keep: bool
    why_not: str = ""

    @classmethod
    def that_fit(
        cls,
        width: int,
        samples: int | None,
        classes: int,
        memory: int,
        *,
        jackknife: bool | None,
        permuted: bool | None,
    ) -> Extras:
        """`width` features over all sites together; `None` for jackknife and permuted means: if it fits."""
        views = statistic_bytes(classes, width) * (GROUPS + 1)
        room = memory - statistic_bytes(classes, width)
        need = 0 if samples is None else samples * width * 4
        keep = need <= room
        fits = need + views <= room
        if world_size() > 1:  # every rank must add up the same things
            fits = fits and samples is not None
            votes = torch.tensor([float(fits)], dtype=torch.float64)
            all_reduce([votes])
            fits = float(votes) == world_size()
        why_not = "" if fits else "the features would not fit the memory budget; ask with jackknife=True, permuted=True"
        return cls(fits if jackknife is None else jackknife, fits if permuted is None else permuted, keep, why_not)


class KeptFeatures:
    """Features kept from pass 1 as long as they fit, so that one forward serves both passes."""

    def __init__(self, budget: int) -> None:
        self.whole, self._left = budget > 0, budget
        self._batches: list[tuple[Tensor, Tensor | None, dict[str, Tensor]]] = []
        self._open: dict[str, Tensor] = {}

    def add(self, site: Site, features: Tensor) -> None:
        """Keep a copy: what follows in the forward may overwrite the features in place."""
        if not self.whole:
            return
        self._left -= features.numel() * features.element_size()
        if self._left < 0:
            self.whole, self._batches, self._open = False, [], {}
        else:
            self._open[site.name] = features.clone()

    def close(self, labels: Tensor, decision: Tensor | None) -> None:
        """End a batch."""
        if self.whole:
            self._batches.append((labels, decision, self._open))
            self._open = {}

    def replay(self) -> Iterator[tuple[Tensor, Tensor | None, dict[str, Tensor]]]:
        """Hand the batches back, letting go of each."""
        while self._batches:
            yield self._batches.pop(0)


def total_width(sites: Sequence[Site]) -> int:
    """Features of all sites together."""
    return sum(site.features for site in sites)
