"""What the Layer-Peeled Model says of class groups at one norm budget."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from layerlaw.advice.class_groups import ClassGroup, as_sizes
from layerlaw.peeled import Solution, collapse_ratio, oversampling, solve, vanish_ratio
from layerlaw.peeled.separation import log_separation_ratio
from layerlaw.peeled.solution import Phase
from layerlaw.peeled.thresholds import LARGEST

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
    """By how much samples must weigh more for every class to be separated."""
    copies: tuple[int, ...] | None
    """The same in whole numbers, solved again; `None` where none were found."""
    beside: tuple[float | None, ...]
    """Of confused groups: cosine between their rows and the row that takes their samples."""
    cosine: float | None
    log_collapse: float
    log_vanish: float
    log_lost: float
    """ln of the ratio from which on the rare classes are not all separated: R0, or what ends a single rare class."""

    @property
    def collapses(self) -> bool:
        """Whether any group is collapsed, vanished or confused."""
        return any(phase != "separated" for phase in self.phases)

    @property
    def repeats(self) -> float:
        """The largest of the factors."""
        return max(self.factors)

    def to_dict(self, E_W: float) -> dict[str, Any]:
        """Plain data for JSON. Norms in the units of the classifier's rows; R0 and R_vanish plain and as logarithms.

        A plain ratio is `None` where there is none (its logarithm is `None` too) or where it is more than a double holds.
        """
        plain = asdict(self)
        norms = plain.pop("norms")
        return plain | {
            "predicted_row_norms": [norm * math.sqrt(E_W) for norm in norms],
            "R0": _plain(self.log_collapse),
            "R_vanish": _plain(self.log_vanish),
        }


def outlook(groups: tuple[ClassGroup, ...], c: float, *, bias: bool = False) -> Outlook:
    """The forecast at c. Angles and phases depend on nothing else (docs/peeled.md)."""
    sizes, at = as_sizes(groups), min(c, LARGEST_C)
    found = solve(sizes, E_W=at, E_H=at, bias=bias)  # type: ignore[arg-type]  # grouped() takes Groups
    plan = oversampling(sizes, E_W=at, E_H=at, bias=bias, progress=False)  # type: ignore[arg-type]
    K_A, K_B = (sum(len(g.classes) for g in groups if g.rare is rare) for rare in (False, True))
    log_collapse = collapse_ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True) if K_B else math.inf
    log_vanish = vanish_ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True) if K_B else math.inf
    return Outlook(
        c=c,
        phases=found.phases,
        slack=tuple(found.slack.tolist()),
        cosines=tuple(None if math.isnan(v) else v for v in np.diagonal(found.cosines).tolist()),
        norms=tuple((found.norms / math.sqrt(at)).tolist()),
        factors=tuple(plan.factors.tolist()),
        copies=None if plan.copies is None else tuple(plan.copies.tolist()),
        beside=_beside(found),
        cosine=_rare_cosine(found, [i for i, g in enumerate(groups) if g.rare]),
        log_collapse=log_collapse,
        log_vanish=log_vanish,
        log_lost=log_separation_ratio(K_A, K_B, c, bias=bias) if K_B else math.inf,
    )


def _beside(found: Solution) -> tuple[float | None, ...]:
    """Of each confused group the cosine between its rows and those of the group whose logits are largest for its samples."""
    others = found.value.rows(found.groups)[2].copy()
    np.fill_diagonal(others, -np.inf)
    winner = others.argmax(1)
    return tuple(
        float(found.cosines[g, winner[g]]) if phase == "confused" else None for g, phase in enumerate(found.phases)
    )


def _rare_cosine(found: Solution, rare: list[int]) -> float | None:
    """Mean cosine over all pairs of rare classes."""
    k = found.groups.classes[rare]
    pairs = np.outer(k, k) - np.diag(k)  # (g, g) ordered pairs between and within groups
    cosines = np.where(pairs > 0, found.cosines[np.ix_(rare, rare)], 0.0)
    if pairs.sum() == 0 or np.isnan(cosines).any():
        return None
    return float((pairs * cosines).sum() / pairs.sum())


def _plain(log_ratio: float) -> float | None:
    return math.exp(log_ratio) if log_ratio <= LARGEST else None
