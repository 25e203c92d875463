"""How far a law would move: with other documents (jackknife), or with other networks and images (seeds)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from layerlaw.errors import InputError
from layerlaw.law.chance import t_quantile
from layerlaw.law.fit import CHANCE, FACTOR, LawFit, fit_law


@dataclass(frozen=True)
class LawErrors:
    """How far a fit would move with other documents: delete-group jackknife over g groups, 95 % intervals with t of g−1.

    It says nothing on whether a line is the right curve. Noise pulls r towards 0: its interval is about the r of as much
    text as this, not of endless text (simulated). `None` where the points allow no number.
    """

    groups: int
    log_rho: float
    """Standard error of ln ρ."""
    rho_interval: tuple[float, float]
    fisher_z: float | None
    """Standard error of artanh r."""
    pearson_interval: tuple[float, float] | None
    residuals: tuple[float, ...]
    """Standard error of each residual of the line."""
    steps: tuple[float, ...]
    """Standard error of each step ln D_l − ln D_{l−1}: smaller than those of its ends, which see the same tokens."""

    @property
    def t(self) -> float:
        """Half the width of a 95 % interval, in standard errors."""
        return t_quantile(self.groups - 1)


def law_errors(fit: LawFit, left_out: Sequence[Sequence[float | None]]) -> LawErrors | None:
    """Standard errors of a fit from its values with one group missing, `left_out` (points, groups).

    With θ the number in question and θ_i the same without group i: se² = (g−1)/g · Σ (θ_i − mean θ_i)².
    `None` with fewer than two groups, or where a value has no logarithm.

    >>> fit = fit_law([4.0, 2.0, 1.0])
    >>> errors = law_errors(fit, [[4.0, 4.0], [2.0, 2.0], [1.1, 0.9]])  # slopes ln(1.1/4)/2 and ln(0.9/4)/2
    >>> round(errors.log_rho, 4), errors.groups
    (0.0502, 2)
    """
    g = min((len(row) for row in left_out), default=0)
    if g < 2 or len(left_out) != fit.points or any(len(row) != g for row in left_out):
        return None
    if any(v is None or not math.isfinite(v) or v <= 0 for row in left_out for v in row):
        return None
    fits = [fit_law([row[i] for row in left_out], quantity=fit.quantity) for i in range(g)]
    t = t_quantile(g - 1)
    log_rho = jackknife_error([f.slope for f in fits])
    with np.errstate(over="ignore"):
        low, high = (float(np.exp(fit.slope + sign * t * log_rho)) for sign in (-1, 1))
    correlations = [f.pearson for f in (fit, *fits)]
    fisher_z = pearson_interval = None
    known = [r for r in correlations if r is not None and abs(r) < 1 - 1e-12]  # artanh 1 is infinite
    if len(known) == g + 1:
        z, *others = (math.atanh(r) for r in known)
        fisher_z = jackknife_error(others)
        pearson_interval = (math.tanh(z - t * fisher_z), math.tanh(z + t * fisher_z))
    logs = np.log(np.array(left_out, dtype=np.float64))  # (points, g)
    return LawErrors(
        groups=g,
        log_rho=log_rho,
        rho_interval=(low, high),
        fisher_z=fisher_z,
        pearson_interval=pearson_interval,
        residuals=tuple(jackknife_error([f.residuals[l] for f in fits]) for l in range(fit.points)),  # noqa: E741
        steps=tuple(jackknife_error(row) for row in np.diff(logs, axis=0).tolist()),
    )


def jackknife_error(without: Sequence[float]) -> float:
    """Standard error of a number from its values with one of g groups left out.

    >>> round(jackknife_error([0.0, 0.1, -0.1, 0.0]), 4)
    0.1225
    """
    values = np.array(without)
    g = len(values)
    return float(np.sqrt((g - 1) / g * ((values - values.mean()) ** 2).sum()))


class Interval(NamedTuple):
    """A mean over networks and the t interval around it; both ends are `None` for a single network."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LawsAcross:
    """Several networks of one kind, each with its own seed and, where it was resampled, its own images.

    Intervals are about the mean over such networks (95 %, Student's t). `None` where a network has no such number.
    """

    networks: int
    holds: int
    """In how many of them the law holds."""
    below_chance: int
    """In how many Greenwood's p is below .05: p-values are counted, never averaged."""
    rho: Interval
    pearson: Interval | None
    evenness: Interval | None
    trend: Interval | None
    steps: tuple[Interval, ...] | None
    """Each step of ln D in units of the even one, with 90 % intervals: two one-sided tests at 5 % each."""

    @property
    def equal_steps(self) -> bool | None:
        """Whether every mean step is within a factor of 2 of the even one, shown at the 5 % level (no correction is needed:
        all steps must pass). `None` with fewer than two networks, or where ln D does not fall."""
        if self.steps is None or self.networks < 2:
            return None
        return all(
            low is not None and low >= 1 / FACTOR and high is not None and high <= FACTOR for _, low, high in self.steps
        )

    @property
    def sentence(self) -> str:
        """What holds of these networks together."""
        known = [("ρ", self.rho), ("evenness", self.evenness), ("trend", self.trend)]
        numbers = ", ".join(f"{name} {interval_words(found)}" for name, found in known if found is not None)
        law = f"The law holds in {self.holds} of {self.networks} networks ({numbers})."
        if self.steps is None or self.networks < 2:
            return law
        low, high = min(step.mean for step in self.steps), max(step.mean for step in self.steps)
        shown = "every one is" if self.equal_steps else "not every one is shown to be"
        return (
            f"{law} Mean steps are {low:.2f} to {high:.2f} of the even one; {shown} within a factor of 2 (5 % level)."
        )


def laws_across(fits: Sequence[LawFit]) -> LawsAcross:
    """One summary of several networks' laws over the same number of points.

    ρ and trend are averaged as logarithms.

    >>> across = laws_across([fit_law([8, 4, 2, 1]), fit_law([9, 4, 2, 1]), fit_law([7, 4, 2, 1])])
    >>> across.holds, [round(step.mean, 2) for step in across.steps], across.equal_steps
    (3, [0.99, 1.01, 1.01], True)
    """
    if not fits or len({fit.points for fit in fits}) > 1:
        points = sorted({fit.points for fit in fits})
        raise InputError(f"laws_across: expected laws over the same number of points, got {len(fits)} over {points}.")
    shares = [fit.shares for fit in fits]
    steps = None
    if all(shares):
        columns = zip(*(s for s in shares if s is not None), strict=True)
        steps = tuple(_interval([fits[0].layers * share for share in column], 0.95) for column in columns)
    trends = [fit.trend for fit in fits]
    usable = all(trend is not None and 0 < trend < math.inf for trend in trends)
    return LawsAcross(
        networks=len(fits),
        holds=sum(fit.holds is True for fit in fits),
        below_chance=sum(fit.greenwood_p is not None and fit.greenwood_p < CHANCE for fit in fits),
        rho=_exponentiated(_interval([fit.slope for fit in fits])),
        pearson=_known([fit.pearson for fit in fits]),
        evenness=_known([fit.evenness for fit in fits]),
        trend=_exponentiated(_interval([math.log(trend) for trend in trends if trend])) if usable else None,
        steps=steps,
    )


def _known(values: Sequence[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return _interval(known) if known and len(known) == len(values) else None


def _interval(values: Sequence[float], probability: float = 0.975) -> Interval:
    mean, n = fmean(values), len(values)
    if n < 2:
        return Interval(mean, None, None)
    half = t_quantile(n - 1, probability) * stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def _exponentiated(logs: Interval) -> Interval:
    mean, low, high = (None if x is None else math.exp(min(x, 700.0)) for x in logs)
    assert mean is not None
    return Interval(mean, low, high)


def interval_words(found: Interval, digits: int = 3) -> str:
    """The mean, and the interval in brackets."""
    ends = "" if found.low is None or found.high is None else f" [{found.low:.{digits}g}, {found.high:.{digits}g}]"
    return f"{found.mean:.{digits}g}{ends}"
