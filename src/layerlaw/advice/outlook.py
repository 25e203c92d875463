"""What the Layer-Peeled Model says of class groups at one norm budget."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from layerlaw.advice.class_groups import ClassGroup, as_sizes
from layerlaw.peeled import Solution, collapse_ratio, oversampling, solve, vanish_ratio
from layerlaw.peeled.solution import Phase

LARGEST_C = 200.0  # beyond, the loss underflows and nothing changes any more


@dataclass(frozen=True)
class Outlook:
    """At the budget c = √(E_W E_H): one entry per group, the largest classes first.

    `log_collapse` and `log_vanish` are ln R0 and ln R_vanish of the groups taken as two, rare and frequent (∞: no ratio
    does it); `cosine` is the mean over pairs of rare classes, `None` where there is no such pair or they have vanished.
    """

    c: float
    phases: tuple[Phase, ...]
    slack: tuple[float, ...]
    """n_g/(Nλ): no direction of its own is left to a class of this size at 1 and below."""
    cosines: tuple[float | None, ...]
    norms: tuple[float, ...]
    """Of the classifier's rows, per √E_W."""
    factors: tuple[float, ...]
    """How often samples must be shown for their classes to leave collapse."""
    cosine: float | None
    log_collapse: float
    log_vanish: float

    @property
    def collapses(self) -> bool:
        """Whether any group is collapsed or vanished."""
        return any(phase != "separated" for phase in self.phases)

    @property
    def repeats(self) -> float:
        """The largest of the factors."""
        return max(self.factors)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def outlook(groups: tuple[ClassGroup, ...], c: float, *, bias: bool = False) -> Outlook:
    """The forecast at c. Angles and phases depend on nothing else (docs/peeled.md)."""
    sizes, at = as_sizes(groups), min(c, LARGEST_C)
    found = solve(sizes, E_W=at, E_H=at, bias=bias)  # type: ignore[arg-type]  # grouped() takes Groups
    plan = oversampling(sizes, E_W=at, E_H=at, bias=bias)  # type: ignore[arg-type]
    K_A, K_B = (sum(len(g.classes) for g in groups if g.rare is rare) for rare in (False, True))
    log_collapse = collapse_ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True) if K_B > 1 else math.inf
    log_vanish = vanish_ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True) if K_B else math.inf
    factors = plan.factors.tolist()
    if len(groups) == 2 and K_B == 1:  # it cannot coincide with another, only become 0
        factors[1] = max(1.0, groups[0].size / groups[1].size * math.exp(-log_vanish))
    return Outlook(
        c=c,
        phases=found.phases,
        slack=tuple(found.slack.tolist()),
        cosines=tuple(None if math.isnan(v) else v for v in np.diagonal(found.cosines).tolist()),
        norms=tuple((found.norms / math.sqrt(at)).tolist()),
        factors=tuple(factors),
        cosine=_rare_cosine(found, [i for i, g in enumerate(groups) if g.rare]),
        log_collapse=log_collapse,
        log_vanish=log_vanish,
    )


def _rare_cosine(found: Solution, rare: list[int]) -> float | None:
    """Mean cosine over all pairs of rare classes."""
    k = found.groups.classes[rare]
    pairs = np.outer(k, k) - np.diag(k)  # (g, g) ordered pairs between and within groups
    cosines = np.where(pairs > 0, found.cosines[np.ix_(rare, rare)], 0.0)
    if pairs.sum() == 0 or np.isnan(cosines).any():
        return None
    return float((pairs * cosines).sum() / pairs.sum())
