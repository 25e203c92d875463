"""From one site to the next: who does the work of a step, who is idle, where it rises, runs of steps that do little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

import numpy as np

from layerlaw.law import UNCHANGED, LawErrors, LawFit
from layerlaw.law.words import FOLD
from layerlaw.record import LANGUAGE_MODEL, Record, SiteRow
from layerlaw.wording import joined

IDLE_SHARE = 0.25  # a layer is idle when it does less than a quarter of an even share
SHORTEST = 3  # blocks: one or two that do little are no plateau
NOISE_RATIO = 0.5  # a separation above half of what random labels give says little
HARDLY = 0.01  # a change of ln PR over all blocks below this is little, and nothing where errors are as large


def noise_ratios(record: Record) -> list[float]:
    """At each point of the law, D over what permuted labels (or targets) give; where that was measured."""
    pairs = (
        (site.values.get(record.leading), site.values.get(f"{record.leading}_permuted"))
        for site in record.sites
        if site.in_fit
    )
    return [value / floor for value, floor in pairs if value is not None and floor]


def samples_needed(record: Record) -> float | None:
    """How many samples would do, where D is mostly that of chance (`math.inf`: no telling); `None` where these do.

    Of n samples D is about 1/(1/D_∞ + 1/F), where F is what permuted labels give and grows in proportion to n. So a site at
    q = D/F comes down to one half with n·q/(1 − q) samples; given is the median over the points of the law.
    """
    ratios = [] if record.kind == LANGUAGE_MODEL else noise_ratios(record)
    if 2 * sum(ratio > NOISE_RATIO for ratio in ratios) <= len(ratios):
        return None
    middle = median(ratios)
    return sum(record.counts) * middle / (1 - middle) if middle < 1 else math.inf


def workers(sites: list[SiteRow]) -> list[str]:
    """Who does the work of each step."""
    return [sites[i].name for i in working_sites(sites)]


def working_sites(sites: list[SiteRow]) -> list[int]:
    """Which site's module does the work of each step: between the inputs of two layers the first, else the second.

    Between the input of the last layer and the model's output it is that layer.
    """
    inputs = [site.at == "input" and site.type != "input" for site in sites]
    ends = [reads or site.type == "output" for reads, site in zip(inputs, sites, strict=True)]
    return [i if inputs[i] and ends[i + 1] else i + 1 for i in range(len(sites) - 1)]


def step_places(record: Record) -> list[str]:
    """Where each step of the law is: at the module that does its work; between two points where other rows lie there too.

    Rows between two points are side branches, or set aside: the layers there work together, and none gets the credit alone.
    """
    at = [i for i, site in enumerate(record.sites) if site.in_fit]
    points = [record.sites[i] for i in at]
    alone = [f"at {with_what_leads(record, name)}" for name in workers(points)]
    across = [f"between '{a.name}' and '{b.name}'" for a, b in pairwise(points)]
    return [across[k] if j > i + 1 else alone[k] for k, (i, j) in enumerate(pairwise(at))]


def with_what_leads(record: Record, name: str) -> str:
    """The module that does a step's work; in a record by blocks with the layers in no block, such as a stem, before it.

    No row lies between a stem and the first block, so that their step is one.
    """
    layers = record.settings.get("in_front", {}).get(name, ())
    shown = f"'{layers[0]}' … '{layers[-1]}'" if len(layers) > 2 else " and ".join(f"'{layer}'" for layer in layers)
    return f"{shown} together with '{name}'" if layers else f"'{name}'"


def listed_places(places: Sequence[str]) -> str:
    """The first four places, and how many more there are.

    >>> listed_places(["at 'a'", "at 'b'", "between 'b' and 'd'", "at 'e'"])
    "at 'a', 'b', between 'b' and 'd' and at 'e'"
    """
    shown = list(places[:4])
    again = [place.startswith("at ") and before.startswith("at ") for before, place in pairwise(["", *shown])]
    words = [place.removeprefix("at ") if same else place for place, same in zip(shown, again, strict=True)]
    return joined([*words, f"{len(places) - 4} more"] if len(places) > 4 else words)


def idle_steps(fit: LawFit) -> list[int]:
    """The steps by which D is hardly lower than before, and not higher either."""
    least, rising = IDLE_SHARE / fit.layers, set(fit.rising)
    return [i for i, share in enumerate(fit.shares or ()) if share < least and i not in rising]


def largest_step(record: Record, fit: LawFit) -> list[str]:
    """Where most of the work is done, and where hardly any."""
    if fit.shares is None or fit.layers < 2:
        return []
    places, most = step_places(record), fit.shares.index(max(fit.shares))
    sentence = f"The largest step is {places[most]}, by a factor of {fit.values[most] / fit.values[most + 1]:.2f}"
    if not fit.rising:  # with rises the shares no longer are parts of a whole
        sentence += f": {fit.shares[most]:.0%} of the drop, where an even share would be {1 / fit.layers:.0%}"
    idle = [places[i] for i in idle_steps(fit)]
    return [f"{sentence}." + (f" Hardly anything happens {listed_places(idle)}." if idle else "")]


def rises_named(record: Record, fit: LawFit) -> list[str]:
    """Where D rises and by how much."""
    if not fit.rising or fit.shares is None:
        return []
    places, ratios = step_places(record), {i: fit.values[i + 1] / fit.values[i] for i in fit.rising}
    shown = [
        f"{places[i]} ({f'{ratio:.3g}-fold' if ratio >= FOLD else f'by {ratio - 1:.1%}'})"
        for i, ratio in ratios.items()
    ]
    each = "each " * (len(shown) > 1)
    within = f", {each}within two standard errors" if fit.rises_within_errors else ""
    return [f"{fit.quantity} rises {listed_places(shown)}{within}."]


@dataclass(frozen=True)
class StepRun:
    """The steps first … last (counted from 0, both included) and the share of the drop they take together."""

    first: int
    last: int
    share: float
    even: float

    @property
    def length(self) -> int:
        """How many steps it has."""
        return self.last - self.first + 1


def spread(fit: LawFit) -> float:
    """How far apart the values are: ln of the largest over the smallest."""
    return math.log(max(fit.values) / min(fit.values))


def same_everywhere(fit: LawFit, errors: LawErrors | None) -> bool:
    """Whether the values are the same to a thousandth, or little apart and not by more than their errors.

    >>> from layerlaw.law import fit_law
    >>> same_everywhere(fit_law([1.0149, 1.0149, 1.0151]), None), same_everywhere(fit_law([0.9, 0.89, 0.88]), None)
    (True, False)
    """
    if spread(fit) < UNCHANGED:
        return True
    if errors is None or spread(fit) >= HARDLY:  # errors that hide much do not make it the same
        return False
    low, high = errors.rho_interval
    return low <= 1 <= high and spread(fit) < 2 * max(errors.steps)


def plateau(fit: LawFit) -> StepRun | None:
    """The longest run of at least three steps that together take less than a quarter of an even share.

    A run, not single steps: of thirty blocks some always take little by chance.

    >>> from layerlaw.law import fit_law
    >>> run = plateau(fit_law([8.0, 8.0, 8.0, 8.0, 4.0, 2.0, 1.0]))
    >>> run.first, run.last, run.share, run.even
    (0, 2, 0.0, 0.5)
    """
    if fit.shares is None:
        return None
    m = fit.layers
    taken = np.array(list(accumulate(fit.shares, initial=0.0)))  # of the drop, after so many steps
    for length in range(m - 1, SHORTEST - 1, -1):
        limit = IDLE_SHARE * length / m
        # All runs of this length at once, by where they begin: there are as many as sites, squared.
        before, middle, after = (taken[at : at + m - length + 1] for at in (0, length // 2, length))
        # Neither half may work: a fall and a rise that cancel are no plateau.
        idle = (abs(after - before) < limit) & (np.maximum(middle - before, after - middle) < limit)
        if idle.any():
            first = int(idle.argmax())
            return StepRun(first, first + length - 1, float(after[first] - before[first]), length / m)
    return None


def is_early(run: StepRun, fit: LawFit) -> bool:
    """Whether a run begins in the first quarter of the steps and ends in their first half."""
    return run.first <= fit.layers / 4 and run.last < fit.layers / 2


def final_rise(fit: LawFit) -> StepRun | None:
    """The steps from the lowest value to a last one that is higher; `None` where the values end at their lowest."""
    lowest = min(range(fit.points), key=lambda i: fit.values[i])
    if lowest == 0 or fit.values[-1] <= fit.values[lowest] * (1 + UNCHANGED):
        return None
    total = sum(fit.shares[lowest:]) if fit.shares is not None else 0.0
    return StepRun(lowest, fit.layers - 1, total, (fit.layers - lowest) / fit.layers)


def beyond_error(fit: LawFit, errors: LawErrors | None, steps: list[int]) -> list[int] | None:
    """Which of these steps are larger than two standard errors; `None` where no errors are known."""
    if errors is None:
        return None
    return [i for i in steps if abs(math.log(fit.values[i + 1] / fit.values[i])) > 2 * errors.steps[i]]
