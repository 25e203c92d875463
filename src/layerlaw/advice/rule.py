"""Which candidate: the lowest final D, and the smallest that is as good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from layerlaw.advice.paired import difference
from layerlaw.advice.trial import Candidate
from layerlaw.errors import LayerlawError


def decide(candidates: Sequence[Candidate]) -> tuple[Candidate, Candidate]:
    """(best, recommended) by final D over paired seeds.

    With d_s = log D_s − log D_s(best) for every seed s, a candidate is as good as the best when mean d ≤ sd(d)/√seeds;
    the smallest such candidate is recommended. One seed has no standard error: then the best is.
    """
    sound = [candidate for candidate in candidates if candidate.comparable]
    if not sound:
        raise LayerlawError(
            f"no candidate could be compared: at every learning rate a run diverged or left D undefined "
            f"({sum(c.failed for c in candidates)} runs in all). Use lower learning rates."
        )
    logs = {candidate.label: [math.log(D) for D in candidate.trial.finals] for candidate in sound}
    best = min(sound, key=lambda c: fmean(logs[c.label]))

    def as_good(candidate: Candidate) -> bool:
        mean, error = difference(logs[candidate.label], logs[best.label])
        return candidate is best or (error is not None and mean <= error)

    recommended = min(filter(as_good, sound), key=lambda c: (c.parameters, fmean(logs[c.label])))
    return best, recommended


def by_rate(candidates: Sequence[Candidate]) -> dict[float, Candidate]:
    """What would be recommended if all candidates had one learning rate, for every rate that is chosen by one of them.

    When these disagree, the rate decides as much as the size does.
    """
    found = {}
    for rate in sorted({candidate.trial.rate for candidate in candidates}):
        alike = [replace(c, trials=tuple(t for t in c.trials if t.rate == rate)) for c in candidates]
        if all(c.trials for c in alike) and any(c.comparable for c in alike):
            label = decide(alike)[1].label
            found[rate] = next(c for c in candidates if c.label == label)
    return found
