"""What is not believed because it would look right and be wrong: numbers out of range, or lost beside an offset."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from layerlaw.errors import FeatureError
from layerlaw.stats.centers import FLOAT32_RESOLUTION, Centers, FeatureFit
from layerlaw.stats.precision import beyond_float32, on_host

NEAR = 10.0  # times the cutoff: where real scales reach down so far, more of them may lie below
OFFSET = 100.0  # times its spread: nearer to 0, what rounding hides is smaller than what few samples hide
FAR = 1e11  # times the least difference of class means: float64 sums of such features have lost the fifth digit
FARTHEST = 1e15  # the same where a sample was subtracted first: the features themselves are rounded by as much
TRACE = 1e-9  # of the cutoff: what is cut below was exactly 0
SMALLEST = {torch.float64: 1e-140}  # below, squares are 0
LOOKED_AT, DOUBTED = "_looked_at", "_doubted"  # where a site keeps its numbers, and whether they are doubted
SMALLEST_FLOAT32 = 1e-36  # below, the features themselves have lost digits
TOO_LARGE = "Numbers too large to be added up show as infinity: float64 reaches further"

NO_SCALE = "No measure depends on the scale of the features"


class Doubt(NamedTuple):
    """Why a site has no D, and what to do."""

    why: str
    cure: str
    out_of_range: bool = True

    def __str__(self) -> str:
        return f"{self.why}. {self.cure}."


def doubt_of(site: Centers | FeatureFit, outliers: bool = False) -> Doubt | None:
    """Why D of these features would look right and may be wrong, in any entry of the leading dimension; else `None`.

    They leave the range of their dtype; or they lie far from 0, and rounding there may hide directions: one was taken for
    rounding that is larger than the rounding of so many samples makes by chance, or others are hardly larger than what is.
    `outliers`: whether few samples are most of their spread, and of the rounding that follows from it.
    """
    seen = Extent.of(site)
    doubts = seen.doubts(site, outliers)
    kind = next((kind for kind, doubted in doubts.items() if bool(doubted.any())), None)
    return None if kind is None else seen.at(doubts[kind]).doubt(kind, site.dtype)


def doubtful(site: Centers | FeatureFit, outliers: Tensor | bool = False) -> Tensor:
    """The same for every entry of the leading dimension, as yes or no (…), on the CPU."""
    seen, known = Extent.of(site), vars(site).get(DOUBTED)
    if known is None:
        known = vars(site)[DOUBTED] = reduce(torch.logical_or, seen.doubts(site, False).values())
    found: Tensor = known if (beside := seen.vanish(site, outliers)) is None else known | beside
    return found


def _nearer(dtype: torch.dtype) -> str:
    """What to do about features far from 0."""
    cure = "Subtract the mean before they are rounded"
    if dtype == torch.float64:
        return cure
    return f"{cure}, or take their digits as they are: features.double() (probe: model and inputs in float64)"


def check_range(sites: Mapping[Hashable, Centers | FeatureFit]) -> None:
    """Raise where the features of a site leave the range of their dtype."""
    for key, site in sites.items():
        if (doubt := doubt_of(site)) and doubt.out_of_range:
            raise FeatureError(f"site '{key}': {doubt}")


def hides_directions(site: Centers | FeatureFit) -> bool:
    """Whether rounding beside an offset may hide directions from some entry of the leading dimension."""
    return bool(hidden_directions(site).any())


def hidden_directions(site: Centers | FeatureFit) -> Tensor:
    """The same for every entry of the leading dimension (…), on the CPU."""
    return Extent.of(site).hidden


def finite(sums: Iterable[Tensor]) -> bool:
    """Whether all of these are numbers."""
    found = [tensor.isfinite().all() for tensor in sums]
    return bool(found[0] if len(found) == 1 else torch.stack([flag.cpu() for flag in found]).all())


def all_true(flags: Iterable[Tensor]) -> bool:
    """Whether all of these (n,) are, by one transfer from a device."""
    found = list(flags)
    return (
        bool(found[0].all()) if len(found) == 1 else bool(torch.cat([one.to(found[0].device) for one in found]).all())
    )


class Extent(NamedTuple):
    """Size of a sample, of the mean, of what is around it; largest scale cut, what chance gives, least kept, cutoff: (…).

    And whether there are directions and their spread is a number (`told`), and whether squared lengths leave the range of
    float32 (`extreme`). All of it is on the CPU: it is small, and looked at by many calls, for which a GPU takes longer.
    """

    size: Tensor
    offset: Tensor
    spread: Tensor
    cut: Tensor
    chance: Tensor
    least: Tensor
    cutoff: Tensor
    told: Tensor
    extreme: Tensor

    @classmethod
    def of(cls, site: Centers | FeatureFit) -> Extent:
        """The rounding errors of n samples are as good as random where they vary: their mean is smaller by √n.

        A probe asks several times for each site: what was found is kept with it.
        """
        known: Extent | None = vars(site).get(LOOKED_AT)
        if known is not None:
            return known
        samples, mean, all_scales, between = site.looked_at
        sizes = torch.linalg.vector_norm(mean, dim=-1), mean.abs().amax(-1)
        small = (samples, *sizes, all_scales, site.spread, site.cut, site.cutoff, site.rank)
        n, offset, largest, scales, around, cut, cutoff, rank = on_host(small)
        differences, within = scales.square().sum(-1), around / n
        squares = offset.square() + differences + within
        extreme = beyond_float32(squares)
        if site.dtype != torch.float64:  # a squared length may overflow float32 where D does not
            within = torch.where(within.isfinite(), within, 0.0)
        size = (offset.square() + differences + within).sqrt()
        size = torch.where(size > 0, size, torch.maximum(largest, scales.amax(-1)))  # squares may vanish
        unit = 2.2e-16 if site.dtype == torch.float64 else FLOAT32_RESOLUTION
        chance = 2 * unit * offset * (1 + (between / mean.shape[-1]) ** 0.5) / n.sqrt()
        least = torch.where(scales > 0, scales, torch.inf).amin(-1)
        least = torch.where(least.isfinite(), least, 0.0)
        spread = (differences + within).sqrt()
        told = around.isfinite() & (rank > 0)
        found = cls(size, offset, spread, cut, chance, least, cutoff.expand_as(size), told, extreme)
        vars(site)[LOOKED_AT] = found
        return found

    def at(self, chosen: Tensor) -> Extent:
        """The first of the chosen entries."""
        return Extent(*(part[chosen][0] for part in self))

    @property
    def hidden(self) -> Tensor:
        """Of exact zeros (dead features, fewer features than classes) hardly a trace is left, of rounding there is."""
        far = self.offset > OFFSET * self.spread
        if not bool(far.any()):  # looking does not take longer than the rest
            return far
        little = (self.cut > self.chance / 30) & (self.least < NEAR * self.cutoff)
        return far & ((self.cut > 3 * self.chance) | little)

    def doubts(self, site: Centers | FeatureFit, outliers: Tensor | bool) -> dict[str, Tensor]:
        """By kind, where there is one (…)."""
        found = {
            "large": ~(self.size < torch.inf),
            "small": (self.size > 0) & (self.size < SMALLEST.get(site.dtype, SMALLEST_FLOAT32)),
            "hidden": self.hidden,
        }
        if site.dtype != torch.float64:
            return found if (beside := self.vanish(site, outliers)) is None else found | {"vanish": beside}
        far = (FAR if site.origin is None else FARTHEST) * self.least
        found["far"] = (self.offset > OFFSET * self.spread) & (self.offset > far) & (far > 0)
        return found

    def vanish(self, site: Centers | FeatureFit, outliers: Tensor | bool) -> Tensor | None:
        """Where differences vanish in float32 beside few samples far away (…); `None` where there are no such samples."""
        if site.dtype == torch.float64 or outliers is False:
            return None
        few = outliers.to(self.cut.device) if isinstance(outliers, Tensor) else outliers
        return (self.cutoff > self.cut) & (self.cut > TRACE * self.cutoff) & few

    def doubt(self, kind: str, dtype: torch.dtype) -> Doubt:
        """In words, of a single entry."""
        name, (size, offset, spread, cut, _, least, *_) = str(dtype).removeprefix("torch."), map(float, self)
        if kind == "large":
            return Doubt(f"features are too large for the squares of {name}", f"{NO_SCALE}: divide them by a constant")
        if kind == "small":
            why = f"features of the size {size:.2g} are too small for the digits of {name}"
            return Doubt(why, f"{NO_SCALE}: multiply them by a constant")
        if kind == "hidden":
            where = f"features of a spread of {spread:.2g}, {offset:.2g} away from 0,"
            lost = f"Differences of {cut:.2g} may be real or not, and D depends on them"
            return Doubt(f"{where} lose digits to the rounding of {name}", f"{lost}. {_nearer(dtype)}", False)
        if kind == "vanish":
            why = f"few samples lie so far from the others that differences of {cut:.2g} vanish in {name}"
            cure = "Leave these samples out, or measure in float64 (probe: model and inputs in float64)"
            return Doubt(why, cure, False)
        why = f"features {offset:.2g} away from 0 lose digits to the rounding of {name}"
        return Doubt(why, f"Of differences of {least:.2g} fewer than 4 are left. {_nearer(dtype)}", False)
