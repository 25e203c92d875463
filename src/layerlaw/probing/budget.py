"""The memory budget: sites in groups that fit, and what is measured beyond the plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from layerlaw.capture import Site, statistic_bytes
from layerlaw.errors import MemoryBudgetError
from layerlaw.stats.ranks import all_reduce, world_size

GROUPS = 10  # of the delete-group jackknife


@dataclass(frozen=True)
class Extras:
    """What is measured beyond the plain numbers, and how many bytes of features are kept for the second pass."""

    jackknife: bool
    permuted: bool
    keep: int
    why_not: str = ""

    @classmethod
    def that_fit(
        cls,
        sites: Sequence[Site],
        samples: int | None,
        classes: int,
        memory: int,
        *,
        jackknife: bool | None,
        permuted: bool | None,
    ) -> Extras:
        """`None` for jackknife and permuted means: if features and statistics fit the budget together.

        Data of unknown length are taken to fit until they do not.
        """
        plain = sum(statistic_bytes(classes, site.features) for site in sites)
        features = sum(site.features * site.itemsize for site in sites) * (samples or 0)
        wanted = plain * _views(jackknife is not False, permuted is not False)
        fits = features + wanted <= memory
        if world_size() > 1:  # every rank must add up the same things
            votes = torch.tensor([float(fits and samples is not None)], dtype=torch.float64)
            all_reduce([votes])
            fits = float(votes) == world_size()
        why_not = WHY_NOT if not fits and None in (jackknife, permuted) else ""
        jackknife, permuted = (fits if wish is None else wish for wish in (jackknife, permuted))
        room = memory - plain * _views(jackknife, permuted)
        return cls(jackknife, permuted, room if features <= room else 0, why_not)

    def groups(self, sites: Sequence[Site], classes: int, memory: int) -> list[list[Site]]:
        """Sites in groups whose statistics fit the memory budget; each group costs its own forwards."""
        groups: list[list[Site]] = [[]]
        used = 0
        for site in sites:
            need = statistic_bytes(classes, site.features) * _views(self.jackknife, self.permuted)
            if need > memory:
                raise MemoryBudgetError(
                    f"site '{site.name}' has {site.features} features: with {classes} classes its statistics need "
                    f"{_gib(need)} GiB, the budget is {_gib(memory)} GiB. Use reduce='mean', fewer classes "
                    "(classes=[…]), other sites, or a larger memory_gib."
                )
            if used + need > memory:
                groups.append([])
                used = 0
            groups[-1].append(site)
            used += need
        return groups


WHY_NOT = "the features do not fit the memory budget; ask with jackknife=True, permuted=True"


def _views(jackknife: bool, permuted: bool) -> int:
    """How often the statistics of a site are held: once, and once more for each view of them."""
    return 1 + GROUPS * jackknife + permuted


def _gib(size: int) -> str:
    return f"{size / 2**30:.2g}"
