"""From numbers to rows beside the paper's: claims, means over seeds, and what chance gives where the best was chosen."""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import fmean, stdev

import numpy as np

from layerlaw.law import STRAIGHT, LawFit, fit_law, law_holds
from layerlaw.outcome import Row

SIMULATIONS = 20_000
Paper = float | str | None


@dataclass(frozen=True)
class Claim:
    """What the paper says of a number: a number or words, when ours agrees with it, and how that is written."""

    paper: Paper = None
    holds: Callable[[float], bool] | None = None
    tolerance: str = ""


def within(target: float, by: float, paper: Paper = None) -> Claim:
    """Agreement up to a tolerance."""
    return Claim(target if paper is None else paper, lambda value: abs(value - target) <= by, f"{target:g} ± {by:g}")


def _limited(
    holds: Callable[[float, float], bool], sign: str, limit: float, paper: Paper = None, of: str = ""
) -> Claim:
    """Agreement on one side of a limit; `of` says what the number is a share of."""
    words = f"{sign} {limit:g}{of and f' of {of}'}".replace("-", "−")
    return Claim(paper, lambda value: holds(value, limit), words)


at_most, at_least = partial(_limited, operator.le, "≤"), partial(_limited, operator.ge, "≥")
below, above = partial(_limited, operator.lt, "<"), partial(_limited, operator.gt, ">")


def between(low: float, high: float, paper: Paper) -> Claim:
    """Agreement inside a range."""
    return Claim(paper, lambda value: low <= value <= high, f"{low:g} to {high:g}")


LAW_HOLDS = at_most(STRAIGHT, "holds")
UNCLAIMED = Claim()


def row(name: str, values: Sequence[float | None], claim: Claim = UNCLAIMED, *, reason: str = "") -> Row:
    """The mean over seeds with its range; the claim says of the mean whether it agrees with the paper.

    >>> row("r", [-0.99, -1.0], at_most(-0.99, paper=-0.997)).reproduced
    True
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        verdict = False if claim.holds else None
        why = reason or "no run gave a number"
        return Row(name, claim.paper, None, reproduced=verdict, tolerance=claim.tolerance, reason=why)
    lost = f"{len(values) - len(known)} of {len(values)} runs gave no number" if len(known) < len(values) else ""
    mean = fmean(known)
    verdict = claim.holds(mean) if claim.holds else None
    tolerance = "; ".join(filter(None, [claim.tolerance, lost]))
    return Row(name, claim.paper, mean, min(known), max(known), verdict, tolerance)


def paired_rows(
    name: str, differences: Sequence[float | None], *, paper: float | None = None, larger: bool | None = None
) -> list[Row]:
    """The mean difference of pairs, and its standard error.

    `larger` says what the paper claims of the sign; it holds when the mean lies more than two standard errors on that
    side of 0.
    """
    error = standard_error([d for d in differences if d is not None])
    claim = Claim(paper)
    if larger is not None:
        sign, side = (1, ">") if larger else (-1, "<")
        words = f"mean {side} 0 by more than two standard errors"
        claim = Claim(paper, lambda mean: error is not None and sign * mean > 2 * error, words)
    why = "" if error is not None else "one seed has no standard error"
    return [row(name, differences, claim), row(f"{name}-standard-error", [error], reason=why)]


def law_along(values: Sequence[float | None]) -> LawFit | None:
    """The law of numbers along depth; `None` where one of them is missing."""
    known = [value for value in values if value is not None and value > 0]
    return fit_law(known) if len(known) == len(values) else None


def of_laws(laws: Iterable[LawFit | None], what: str, choices: int | None = None) -> list[float | None]:
    """One number (pearson, rho, greenwood-p, …) of each law.

    `choices` is how many learning rates each is the best of: greenwood-p then repeats that choice inside the null.
    """
    if what == "greenwood-p" and choices is not None:
        return [None if law is None else selected_p(law.effective_layers, law.layers, choices) for law in laws]
    return [None if law is None else getattr(law, what.replace("-", "_")) for law in laws]


def is_clear(law: LawFit | None, choices: int = 1) -> bool:
    """Whether the law holds, as `law_holds` says.

    `choices` is how many runs it was the best of: with few layers a straight line comes out of choosing alone.
    """
    if law is None or law.effective_layers is None:
        return False
    p = law.greenwood_p if choices == 1 else selected_p(law.effective_layers, law.layers, choices)
    return law_holds(law, greenwood_p=p) is True


def selected_p(effective_layers: float | None, layers: int, choices: int) -> float | None:
    """Greenwood's p when the best r of several runs was picked: the same choice is made inside the null.

    Under the null every run splits its drop at random over the layers (uniform spacings), the one with the lowest r is
    taken, and p is how often its shares are at least as even as ours.

    >>> selected_p(19.0, 19, 7), selected_p(None, 19, 7)
    (0.0, None)
    """
    if effective_layers is None:
        return None
    r, squares = _random_splits(layers, choices)
    straightest = np.take_along_axis(squares, r.argmin(-1)[:, None], 1)
    return float((straightest <= 1 / effective_layers).mean())


def random_split_r(layers: int) -> float:
    """Median r when the same drop of log D is split at random over the layers: what any falling curve gives.

    >>> round(random_split_r(7), 2)
    -0.97
    """
    return float(np.median(_random_splits(layers, 1)[0]))


@cache
def _random_splits(layers: int, choices: int) -> tuple[np.ndarray, np.ndarray]:
    """r and Σ p² of drops split at random, (simulations, choices) each."""
    shares = np.random.default_rng(0).exponential(size=(SIMULATIONS, choices, layers))
    shares /= shares.sum(-1, keepdims=True)
    curve = 1 - np.concatenate([np.zeros((SIMULATIONS, choices, 1)), shares.cumsum(-1)], -1)  # from 1 down to 0
    x = np.arange(layers + 1.0)
    x -= x.mean()
    curve -= curve.mean(-1, keepdims=True)
    return (curve * x).sum(-1) / np.sqrt((curve**2).sum(-1) * (x**2).sum()), (shares**2).sum(-1)


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
