"""From numbers to rows beside the paper's: claims of four kinds, tests over seeds, and how often chance would pass them.

A claim that the law holds (or that it does not) is judged by `LawFit.holds` in every seed; a direction by a one-sided t
test over seeds at the 5 % level; a number by a tolerance that was written before. Beside each stands `chance`: how
often something without the claimed property would pass. Rows that chance passes more often than once in five are not
counted.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any

import numpy as np

from layerlaw.law import CHANCE, LawFit, fit_law, t_quantile
from layerlaw.outcome import Kind, Row

SIMULATIONS = 2_000
NOISE = (
    0.2  # coefficient of variation of the steps of a network that is taken to obey the law, where power is asked for
)
Paper = float | str | None
Values = Sequence[float | None]


@dataclass(frozen=True)
class Claim:
    """What the paper says of a number, when our seeds agree with it, how that is written, and how often chance does.

    `agrees` gets the values of the seeds. `chance` is a rate, or gives one for so many seeds; of a number with a tolerance
    it is the share of other networks that would pass, which `row(…, among=…)` counts.
    """

    paper: Paper = None
    agrees: Callable[[Sequence[float]], bool] | None = None
    tolerance: str = ""
    kind: Kind = "direction"
    chance: float | Callable[[int], float] | None = None
    single: bool = True
    """Whether one seed can be judged."""

    def of(self, kind: Kind) -> "Claim":
        """The same of another kind: on another model than the paper's, or a check of our own."""
        return replace(self, kind=kind)


UNCLAIMED = Claim()


def within(target: float, by: float, paper: Paper = None) -> Claim:
    """A number of the paper: the mean over seeds agrees up to a tolerance."""
    words = f"{target:g} ± {by:g}".replace("-", "−")
    return Claim(target if paper is None else paper, lambda v: abs(fmean(v) - target) <= by, words, "number")


def between(low: float, high: float, paper: Paper) -> Claim:
    """A number of the paper: the mean over seeds lies inside a range."""
    words = f"{low:g} to {high:g}".replace("-", "−")
    return Claim(paper, lambda v: low <= fmean(v) <= high, words, "number")


def above(limit: float, paper: Paper = None, *, ratio: bool = False) -> Claim:
    """A direction: the mean over seeds is above a limit, by a one-sided t test at the 5 % level; of logs for a ratio."""
    return _tested(1, limit, paper, ratio)


def below(limit: float, paper: Paper = None, *, ratio: bool = False) -> Claim:
    """A direction: the mean over seeds is below a limit, by a one-sided t test at the 5 % level; of logs for a ratio."""
    return _tested(-1, limit, paper, ratio)


def _tested(sign: int, limit: float, paper: Paper, ratio: bool) -> Claim:
    def agrees(values: Sequence[float]) -> bool:
        gaps = [sign * (math.log(v / limit) if ratio else v - limit) for v in values]
        error = standard_error(gaps)
        return fmean(gaps) > 0 and error is not None and fmean(gaps) > t_quantile(len(gaps) - 1, 1 - CHANCE) * error

    words = f"{'>' if sign > 0 else '<'} {limit:g} (t test{' of logs' * ratio} over seeds, 5 %)".replace("-", "−")
    return Claim(paper, agrees, words, "direction", CHANCE, single=False)


def holds(paper: Paper = "law", *, kind: Kind = "direction", best_of: int = 1) -> Claim:
    """The law holds in more than half of the seeds; values are 1 and 0. Chance: random splits of the drop.

    `best_of`: in every seed the best of so many networks was taken, which the values themselves do not allow for.
    """
    rate = CHANCE if best_of == 1 else 1 - (1 - CHANCE) ** best_of
    words = "> half of the seeds" + f", each the best of {best_of}" * (best_of > 1)
    return Claim(paper, lambda v: fmean(v) > 0.5, words, kind, lambda n: _majority(n, rate))


def does_not_hold(steps: int, choices: int = 1, paper: Paper = "no law", *, kind: Kind = "direction") -> Claim:
    """The law holds in at most half of the seeds. Chance: networks with equal steps up to noise of 20 % that are missed."""

    def missed(n: int) -> float:
        return 1 - _majority(n, power(steps, choices))

    return Claim(paper, lambda v: fmean(v) <= 0.5, "≤ half of the seeds", kind, missed)


def _majority(n: int, rate: float) -> float:
    """P(more than half of n succeed)."""
    return sum(math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n // 2 + 1, n + 1))


@cache
def power(steps: int, choices: int = 1) -> float:
    """How often the law is found to hold where it does: steps that are equal up to a noise of 20 %.

    >>> power(19) > 0.99, 0.7 < power(3) < 0.9
    (True, True)
    """
    drops = np.random.default_rng(0).gamma(1 / NOISE**2, NOISE**2, size=(SIMULATIONS, steps))
    curves = np.exp(-np.cumsum(np.pad(drops, ((0, 0), (1, 0))), 1))
    return fmean(fit_law(curve, chosen_from=choices).holds is True for curve in curves)


def row(name: str, values: Values, claim: Claim = UNCLAIMED, *, among: Values = (), reason: str = "") -> Row:
    """The mean over seeds with its range, whether they agree with the claim, and how often chance would.

    `among` are the same number of other networks (other learning rates, say): the chance of a number with a tolerance.

    >>> row("rho", [0.81, 0.83], within(0.818, 0.03), among=[0.6, 0.7, 0.8, 0.9]).chance
    0.25
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    judged = claim.agrees is not None and (claim.single or len(known) > 1)
    chance = claim.chance(max(1, len(known))) if callable(claim.chance) else claim.chance
    others = [v for v in among if v is not None and math.isfinite(v)]
    if claim.agrees is not None and chance is None and others:
        chance = fmean(claim.agrees([v]) for v in others)
    kind = claim.kind if claim.agrees is not None else None
    about: dict[str, Any] = {"kind": kind, "chance": chance if kind else None}
    if not known:
        verdict = False if claim.agrees is not None else None
        why = reason or "no run gave a number"
        return Row(name, claim.paper, None, reproduced=verdict, tolerance=claim.tolerance, reason=why, **about)
    lost = f"{len(values) - len(known)} of {len(values)} runs gave no number" if len(known) < len(values) else ""
    verdict = claim.agrees(known) if judged and claim.agrees is not None else None
    tolerance = "; ".join(filter(None, [claim.tolerance, lost]))
    return Row(name, claim.paper, fmean(known), min(known), max(known), verdict, tolerance, **about)


def paired_rows(name: str, differences: Values, claim: Claim = UNCLAIMED, *, reason: str = "") -> list[Row]:
    """The mean difference of pairs, and its standard error."""
    error = standard_error([d for d in differences if d is not None])
    why = "" if error is not None else reason if not differences else "one seed has no standard error"
    return [row(name, differences, claim, reason=reason), row(f"{name}-standard-error", [error], reason=why)]


def law_along(values: Values, choices: int = 1) -> LawFit | None:
    """The law of numbers along depth, as the best of `choices`; `None` where one of them is missing."""
    known = [value for value in values if value is not None and value > 0]
    return fit_law(known, chosen_from=choices) if len(known) == len(values) else None


def of_laws(laws: Iterable[LawFit | None], what: str) -> list[float | None]:
    """One number (pearson, rho, evenness, trend, greenwood-p, …) of each law.

    "holds", "equal-steps" and "below-chance" (Greenwood's p < .05) are 1 or 0, also where there is no law.
    """
    if what == "below-chance":
        return [float((p := law.greenwood_p if law else None) is not None and p < CHANCE) for law in laws]
    if what in ("holds", "equal-steps"):
        return [float(law is not None and getattr(law, what.replace("-", "_")) is True) for law in laws]
    return [None if law is None else getattr(law, what.replace("-", "_")) for law in laws]


@cache
def random_split_r(layers: int) -> float:
    """Median r when the same drop of log D is split at random over the layers: what any falling curve gives.

    >>> round(random_split_r(7), 2)
    -0.97
    """
    drops = np.random.default_rng(0).exponential(size=(SIMULATIONS, layers))
    curves = -np.cumsum(np.pad(drops, ((0, 0), (1, 0))), 1)  # (simulations, layers + 1)
    return float(np.median([np.corrcoef(np.arange(layers + 1), curve)[0, 1] for curve in curves]))


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known.

    >>> mean_of([1.0, None, 2.0]), mean_of([None])
    (1.5, None)
    """
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def minus(a: float | None, b: float | None) -> float | None:
    """a − b where both are known."""
    return None if a is None or b is None else a - b


def over(a: float | None, b: float | None) -> float | None:
    """a / b where both are known."""
    return None if a is None or not b else a / b


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of some numbers, one per seed; `None` for fewer than two.

    >>> standard_error([1.0, 3.0]), standard_error([1.0])
    (1.0, None)
    """
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
