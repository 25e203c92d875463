"""What is refused because its numbers would look right and be wrong: out of range, or lost beside an offset."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import islice

import torch
from torch import Tensor

from layerlaw.errors import FeatureError
from layerlaw.stats.centers import FLOAT32_RESOLUTION, Centers, FeatureFit

OFFSET = 1e3  # times its spread: nearer to 0, what rounding hides is smaller than what few samples hide
SMALLEST = {torch.float64: 1e-140}  # below, squares are 0
SMALLEST_FLOAT32 = 1e-36  # below, the features themselves have lost digits
TOO_LARGE = "Numbers too large to be added up show as infinity: float64 reaches further"

_NO_SCALE = "No measure depends on the scale of the features"


def check_measurable(sites: Mapping[Hashable, Centers | FeatureFit], what: str = "") -> list[Hashable]:
    """Raise where a site's numbers leave the range of their dtype, or where rounding beside an offset hides directions.

    `what` errors begin with, by default the site. Gives the sites that lie far from 0, whose views need a look too.
    """
    looked_at = [_looked_at(site).reshape(-1, 5) for site in sites.values()]
    home, far = looked_at[0].device, list[Hashable]()
    rows = iter(torch.cat([part.to(home) for part in looked_at]).tolist())  # one transfer, not one per site
    for (key, site), part in zip(sites.items(), looked_at, strict=True):
        where = what or f"site '{key}'"
        for size, offset, spread, cut, chance in islice(rows, len(part)):
            if not size < float("inf"):
                raise FeatureError(
                    f"{where}: expected features whose squares {_kind(site)} can hold, got larger ones. {_NO_SCALE}: "
                    "divide them by a constant."
                )
            if 0 < size < SMALLEST.get(site.dtype, SMALLEST_FLOAT32):
                raise FeatureError(
                    f"{where}: expected features with all digits of {_kind(site)}, got the size {size:.2g}. {_NO_SCALE}: "
                    "multiply them by a constant."
                )
            if _hidden(offset, spread, cut, chance):
                raise FeatureError(
                    f"{where}: {offset:.2g} away from 0, features of a spread of {spread:.2g} lose to the rounding of "
                    f"{_kind(site)}: differences of {cut:.2g} may be real or not, and D depends on them. Subtract the mean "
                    "before they are rounded, or take their digits as they are: features.double() (probe: a model and "
                    "inputs in float64)."
                )
            far += [key] if offset > OFFSET * spread and key not in far else []
    return far


def hides_directions(centers: Centers | FeatureFit) -> bool:
    """Whether rounding beside an offset may hide directions from some entry of the leading dimension."""
    return any(_hidden(*row[1:]) for row in _looked_at(centers).reshape(-1, 5).tolist())


def _hidden(offset: float, spread: float, cut: float, chance: float) -> bool:
    return offset > OFFSET * spread and cut > chance


def _looked_at(site: Centers | FeatureFit) -> Tensor:
    """Size of a sample, of the mean, of what is around the mean, largest scale taken for rounding, what chance gives (…, 5).

    The rounding errors of n samples are as good as random where they vary: their mean is smaller by √n, so that a larger
    scale is likely to be real.
    """
    n, mean, scales, between = site.looked_at
    *_, d = mean.shape
    offset = torch.linalg.vector_norm(mean, dim=-1)
    differences = scales.square().sum(-1)
    within = torch.where((site.spread / n).isfinite() | (site.dtype == torch.float64), site.spread / n, 0.0)
    size = (offset.square() + differences + within).sqrt()
    size = torch.where(size > 0, size, torch.maximum(mean.abs().amax(-1), scales.amax(-1)))  # squares may vanish
    unit = 2.2e-16 if site.dtype == torch.float64 else FLOAT32_RESOLUTION
    chance = 2 * unit * offset * (1 + (between / d) ** 0.5) / n.sqrt()
    return torch.stack([size, offset, (differences + within).sqrt(), site.cut, chance.expand_as(offset)], -1)


def _kind(site: Centers | FeatureFit) -> str:
    return str(site.dtype).removeprefix("torch.")


def finite(sums: Iterable[Tensor]) -> bool:
    """Whether all of these are numbers; one transfer."""
    return bool(torch.stack([tensor.isfinite().all().cpu() for tensor in sums]).all())
