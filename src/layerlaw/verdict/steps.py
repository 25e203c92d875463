"""From one site to the next: who does the work of a step, and who is idle."""

from __future__ import annotations

from layerlaw.law import LawFit
from layerlaw.record import SiteRow

IDLE_SHARE = 0.25  # a layer is idle when it does less than a quarter of an even share


def workers(sites: list[SiteRow]) -> list[str]:
    """Who does the work of each step."""
    return [sites[i].name for i in working_sites(sites)]


def working_sites(sites: list[SiteRow]) -> list[int]:
    """Which site's module does the work of each step: between the inputs of two layers the first, else the second."""
    inputs = [site.at == "input" and site.type != "input" for site in sites]
    return [i if inputs[i] and inputs[i + 1] else i + 1 for i in range(len(sites) - 1)]


def idle_layers(fit: LawFit, sites: list[SiteRow]) -> list[str]:
    """Names of the layers after which D is hardly lower than before, and not higher either."""
    if fit.shares is None:
        return []
    rising, names = fit.rising, workers(sites)
    return [names[i] for i, share in enumerate(fit.shares) if share < IDLE_SHARE / fit.layers and i not in rising]
