"""Numbers along depth: does log D fall in a straight line, and is that more than any falling curve would do?

A Pearson correlation near −1 is nearly automatic for a curve that falls: a random split of the same total drop has a
median r of −.97 at 8 points. So with every fit go the shares of the drop, the number of effective layers and
Greenwood's test, which asks whether the layers share the work more evenly than a random split would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError
from layerlaw.wording import correlation, p_value

Array = npt.NDArray[np.float64]
UNCHANGED = 1e-3  # a relative change below this is no rise
LITTLE = 0.9  # when the last value is more than this share of the first, hardly anything has happened
RESIDUAL = "PR"  # of language models: that of a token's id falls from .90 to .82 where D falls to a hundredth
# When a law holds (`law_holds`):
FEWEST_POINTS = 4  # fewer say nothing, for or against
ENOUGH_POINTS = 5  # fewer are not called a law, however straight
STRAIGHT = -0.99  # Pearson correlation of log D with depth, at most
CHANCE = 0.05  # Greenwood's p, below


@dataclass(frozen=True)
class LawFit:
    """The line through log D_l against l, and how the drop is shared among the layers.

    `None` stands where a number does not exist: no half-life when ρ ≥ 1, no shares when nothing drops, no correlation
    of fewer than three points.
    """

    quantity: str
    """What the values are, for the sentence: D, or the name of another column."""
    values: tuple[float, ...]
    rho: float
    """Factor per layer: exp of the least-squares slope of ln D_l on l. Below 1 the data become better separated."""
    end_to_end: float
    """(D_last / D_first)^(1/m), the mean factor per layer from the end points alone."""
    half_life: float | None
    """Layers until D is halved: ln 2 / ln(1/ρ)."""
    pearson: float | None
    r_squared: float | None
    slope: float
    intercept: float
    residuals: tuple[float, ...]
    """ln D_l minus the line."""
    shares: tuple[float, ...] | None
    """Share of each layer in the total drop of ln D; they sum to 1, negative where D rises."""
    effective_layers: float | None
    """1 / Σ shares²: m when all m layers do equal work, 1 when one layer does it all."""
    greenwood_p: float | None
    """Probability that a random split of the drop is at least as even. Small: the layers really share the work."""
    chord_deviation: float | None
    """Largest distance of ln D_l from the straight line between its ends, as a share of the total drop."""
    sensitivity: float
    """Σ D_{l−1}/D_l of Proposition 1: how strongly an error ε in every ratio changes D_last/D_first."""
    inefficiency: float
    """Arithmetic over geometric mean of D_{l−1}/D_l, ≥ 1; 1 when all ratios are equal (Proposition 1)."""

    @property
    def points(self) -> int:
        """How many numbers the line was drawn through."""
        return len(self.values)

    @property
    def layers(self) -> int:
        """How many steps lie between the points."""
        return len(self.values) - 1

    @property
    def little(self) -> bool:
        """Whether the values fall by so little that there is nothing to share; never said of a prediction residual."""
        return self.quantity != RESIDUAL and self.values[-1] > LITTLE * self.values[0]

    @property
    def autocorrelation(self) -> float | None:
        """Lag-1 correlation of the residuals: near `noise_autocorrelation` for noise, near 1 for a curve beside the line."""
        e = np.array(self.residuals)
        square = float((e**2).sum())
        if len(e) < 5 or square <= 1e-24 * max(1.0, float((np.log(self.values) ** 2).sum())):
            return None  # of few points it is negative whatever they are; of an exact line it is rounding
        return float((e[1:] * e[:-1]).sum() / square)

    @property
    def noise_autocorrelation(self) -> float:
        """Lag-1 correlation to be expected of noise about a fitted line."""
        return -2 / self.points

    @property
    def rising(self) -> list[int]:
        """Layers (counted from 0) at which the value rises by more than a thousandth: less is rounding."""
        return [i for i, (a, b) in enumerate(pairwise(self.values)) if b > a * (1 + UNCHANGED)]

    @property
    def line(self) -> tuple[float, ...]:
        """The fitted values exp(intercept + slope·l)."""
        return tuple(float(np.exp(self.intercept + self.slope * l)) for l in range(self.points))  # noqa: E741

    @property
    def holds(self) -> bool | None:
        """Whether the law holds, as `law_holds` says; `None` below 4 points."""
        return law_holds(self)

    @property
    def verdict(self) -> str:
        """One sentence that does not claim more than the points allow."""
        return _verdict(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        plain = {**asdict(self), "points": self.points, "verdict": self.verdict}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}

    def __str__(self) -> str:
        return self.verdict


def fit_law(values: Sequence[float] | Array | Any, *, quantity: str = "D") -> LawFit:
    """Fit D_l ≐ ρ^l D_0 to positive numbers along depth (He & Su, Eq. 2).

    >>> fit = fit_law([8.0, 4.0, 2.0, 1.0])
    >>> round(fit.rho, 12), round(fit.half_life, 12), round(fit.pearson, 12), round(fit.effective_layers, 12)
    (0.5, 1.0, -1.0, 3.0)
    """
    D = _checked(values)
    y = np.log(D)
    m = len(y) - 1
    l = np.arange(m + 1.0)  # noqa: E741
    slope = float(((l - l.mean()) * (y - y.mean())).sum() / ((l - l.mean()) ** 2).sum())
    intercept = float(y.mean() - slope * l.mean())
    residuals = y - intercept - slope * l
    variation = float(((y - y.mean()) ** 2).sum())
    pearson: float | None = None
    if m >= 2 and variation > 1e-24 * max(1.0, float((y**2).sum())):
        pearson = max(-1.0, min(1.0, float(slope * math.sqrt(((l - l.mean()) ** 2).sum() / variation))))
    shares, effective, p, chord = _sharing(y)
    ratios = -np.diff(y)  # ln D_{l−1}/D_l
    with np.errstate(over="ignore"):  # infinite where the values span more than a float can hold
        rho, end_to_end = float(np.exp(slope)), float(np.exp((y[-1] - y[0]) / m))
        sensitivity = float(np.exp(ratios).sum())
        inefficiency = float(np.exp(ratios - ratios.mean()).mean())
    return LawFit(
        quantity=quantity,
        values=tuple(D.tolist()),
        rho=rho,
        end_to_end=end_to_end,
        half_life=math.log(2) / -slope if slope < 0 else None,
        pearson=pearson,
        r_squared=None if pearson is None else pearson**2,
        slope=slope,
        intercept=intercept,
        residuals=tuple(residuals.tolist()),
        shares=shares,
        effective_layers=effective,
        greenwood_p=p,
        chord_deviation=chord,
        sensitivity=sensitivity,
        inefficiency=inefficiency,
    )


def law_holds(
    fit: LawFit | None, *, r: float = STRAIGHT, p: float = CHANCE, greenwood_p: float | None = None
) -> bool | None:
    """Whether the law holds: the one definition that verdicts, stopping rules, experiments and advice use.

    log D falls on a line (Pearson ≤ `r`), more evenly than chance would have it (Greenwood's p < `p`), rises at no layer,
    and falls by more than a tenth in all (except prediction residuals, which never fall much), over at least 5 points.
    `None` below 4 points, which say nothing; `False` without a fit (D is not defined at every layer). `greenwood_p` takes
    the place of the fit's own where the curve was selected among several: the p that repeats the selection.

    >>> law_holds(fit_law([32, 16, 8, 4, 2, 1])), law_holds(fit_law([32, 31, 30, 4, 2, 1])), law_holds(fit_law([4, 2, 1]))
    (True, False, None)
    """
    if fit is None:
        return False
    if fit.points < FEWEST_POINTS:
        return None
    return fit.points >= ENOUGH_POINTS and _equal_steps(fit, r, p, greenwood_p)


def _equal_steps(fit: LawFit, r: float = STRAIGHT, p: float = CHANCE, greenwood_p: float | None = None) -> bool:
    chance = fit.greenwood_p if greenwood_p is None else greenwood_p
    known = fit.pearson is not None and chance is not None
    return known and fit.pearson <= r and chance < p and not fit.rising and not fit.little  # type: ignore[operator]


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
    log_rho = _jackknife_error([f.slope for f in fits])
    with np.errstate(over="ignore"):
        low, high = (float(np.exp(fit.slope + sign * t * log_rho)) for sign in (-1, 1))
    correlations = [f.pearson for f in (fit, *fits)]
    fisher_z = pearson_interval = None
    known = [r for r in correlations if r is not None and abs(r) < 1 - 1e-12]  # artanh 1 is infinite
    if len(known) == g + 1:
        z, *others = (math.atanh(r) for r in known)
        fisher_z = _jackknife_error(others)
        pearson_interval = (math.tanh(z - t * fisher_z), math.tanh(z + t * fisher_z))
    logs = np.log(np.array(left_out, dtype=np.float64))  # (points, g)
    return LawErrors(
        groups=g,
        log_rho=log_rho,
        rho_interval=(low, high),
        fisher_z=fisher_z,
        pearson_interval=pearson_interval,
        residuals=tuple(_jackknife_error([f.residuals[l] for f in fits]) for l in range(fit.points)),  # noqa: E741
        steps=tuple(_jackknife_error(row) for row in np.diff(logs, axis=0).tolist()),
    )


def _jackknife_error(without: Sequence[float]) -> float:
    values = np.array(without)
    g = len(values)
    return float(np.sqrt((g - 1) / g * ((values - values.mean()) ** 2).sum()))


@cache
def t_quantile(freedom: int, probability: float = 0.975) -> float:
    """The point that Student's t with so many degrees of freedom stays below with this probability.

    >>> round(t_quantile(1), 3), round(t_quantile(7), 3), round(t_quantile(1000), 2)
    (12.706, 2.365, 1.96)
    """
    low, high = 0.0, 1e6
    for _ in range(100):  # bisection: sixty halvings give every digit
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return high


def _t_within(t: float, freedom: int) -> float:
    """P(|T| ≤ t): the finite sums of Abramowitz & Stegun 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    total, term = 0.0, math.cos(angle) if odd else 1.0
    for k in range(odd, freedom - 1, 2):
        total += term
        term *= square * (k + 1) / (k + 2)
    return (2 / math.pi) * (angle + sine * total) if odd else sine * total


def _checked(values: Any) -> Array:
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    try:
        D = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"fit_law: expected a sequence of numbers along depth, got {values!r}.") from None
    if D.ndim != 1 or len(D) < 2:
        raise InputError(f"fit_law: expected at least 2 numbers along depth, got an array of shape {D.shape}.")
    bad = np.flatnonzero(~(np.isfinite(D) & (D > 0)))
    if len(bad):
        raise InputError(
            f"fit_law: expected positive, finite numbers, got {D[bad[0]]} at index {bad[0]}. The law speaks of log D: "
            "drop sites that are collapsed exactly (0) or could not be measured."
        )
    return D


def _sharing(y: Array) -> tuple[tuple[float, ...] | None, float | None, float | None, float | None]:
    """Shares of the drop, effective layers, Greenwood's p, largest deviation from the chord."""
    m = len(y) - 1
    drop = float(y[0] - y[-1])
    if drop <= 1e-12 * max(1.0, float(np.abs(y).max())):
        return None, None, None, None
    shares = -np.diff(y) / drop
    G = float((shares**2).sum())
    chord = float(np.abs(y - (y[0] - drop * np.arange(m + 1) / m)).max() / drop)
    return tuple(shares.tolist()), 1 / G, greenwood_p(G, m) if m >= 2 else None, chord


def greenwood_p(statistic: float, layers: int) -> float:
    """P(Σ p² ≤ statistic) for m uniform spacings: the chance that a random split is at least as even.

    >>> round(greenwood_p(0.625, 2), 6)  # two spacings: √(2G − 1)
    0.5
    """
    m = layers
    w = (statistic - 1 / m) / (1 - 1 / m)  # 0: all equal, 1: one spacing takes all
    if not 0 < w < 1:
        return float(w > 0)
    if m > 100:  # w has mean 1/(m+1) and is close to lognormal
        spread = math.log1p(4 * m * m / ((m - 1) * (m + 2) * (m + 3)))  # variance of ln w when w is taken as lognormal
        return 0.5 * math.erfc((-math.log(m + 1) - spread / 2 - math.log(w)) / math.sqrt(2 * spread))
    grid, root = _greenwood_table(m)
    return float(min(1.0, np.interp(w, grid, root) ** ((m - 1) / 2)))


@cache
def _greenwood_table(m: int) -> tuple[Array, Array]:
    """Grid of w and P(w)^(2/(m−1)), which is linear in w near 0 (there P is the volume of a ball).

    One spacing at a time: given the first spacing t, of density (m−1)(1−t)^(m−2), the others are (1−t) times m−1
    uniform spacings, so P_m(G) = ∫ (m−1)(1−t)^(m−2) P_{m−1}((G−t²)/(1−t)²) dt.
    """
    grid = min(1.0, 16 / m) * np.linspace(0, 1, 1201) ** 2  # dense where the mass is; P is 1 beyond
    G = 1 / m + (1 - 1 / m) * grid
    if m == 2:
        return grid, 2 * G - 1  # P² with P = √(2G − 1)
    below, root = _greenwood_table(m - 1)
    # The others can have the rest only if (G − t²)/(1−t)² ≥ 1/(m−1): between the roots of m t² − 2t + 1 − (m−1)G.
    half = np.sqrt(np.maximum(1 - m * (1 - (m - 1) * G), 0.0)) / m
    low, high = np.maximum(1 / m - half, 0.0), np.minimum(1 / m + half, 1 - 1e-12)
    nodes, weights = np.polynomial.legendre.leggauss(64)
    t = low[:, None] + (high - low)[:, None] * (nodes + 1) / 2  # (grid, nodes)
    w = ((G[:, None] - t**2) / (1 - t) ** 2 - 1 / (m - 1)) / (1 - 1 / (m - 1))
    P = np.interp(np.clip(w, 0, 1), below, root) ** ((m - 2) / 2)
    integral = ((m - 1) * (1 - t) ** (m - 2) * P * weights).sum(-1) * (high - low) / 2
    return grid, np.minimum(integral, 1.0) ** (2 / (m - 1))


def _verdict(fit: LawFit) -> str:
    m, r, Q = fit.layers, fit.pearson, fit.quantity
    first, last = fit.values[0], fit.values[-1]
    if fit.rho >= 1 or fit.shares is None:
        return f"No law: {Q} does not fall with depth (ρ = {_rho(fit)} over {fit.points} points)."
    half_life = f"{fit.half_life:.2f}" if fit.half_life is not None and fit.half_life < 100 else "over 100"
    facts = f"ρ = {_rho(fit)} per layer"
    if Q != RESIDUAL:  # no network is so deep that its residual is halved
        facts += f", half-life {half_life} layers"
    if r is None:
        return f"Two points make no law: {Q} falls from {first:.3g} to {last:.3g} ({facts})."
    if fit.little:
        return f"No law to speak of: {Q} falls by only {1 - last / first:.2g} of its first value over {m} layers ({facts})."
    assert fit.effective_layers is not None and fit.greenwood_p is not None  # noqa: PT018  (they go with the shares)
    rising = len(fit.rising)
    work = f"{fit.effective_layers:.1f} effective layers of {m}"
    numbers = f"{facts}, r = {correlation(r)}, {work}, Greenwood p {p_value(fit.greenwood_p, relation=True)}"
    even = fit.greenwood_p < CHANCE
    if fit.points < ENOUGH_POINTS:
        shape = "and evenly" if _equal_steps(fit) else "but not evenly"
        return f"Too few points to call it a law: {Q} falls over {fit.points} points {shape} ({numbers})."
    if fit.holds:
        return f"The law holds: every layer takes about the same share of log {Q} ({numbers})."
    if rising and r <= STRAIGHT and even:
        return f"Nearly a law: {Q} falls on a line as a whole, but rises at {rising} of {m} layers ({numbers})."
    if rising:
        return f"The law does not hold: {Q} rises at {rising} of {m} layers ({numbers})."
    if even:
        return f"The law holds roughly: the layers share the work more evenly than chance, with curvature ({numbers})."
    return f"{Q} falls, but no more evenly than a random split of the same drop would: no evidence for the law ({numbers})."


def _rho(fit: LawFit) -> str:
    """ρ with the same digits on both sides of 1; of a residual 1 − ρ is a few thousandths, so with one more."""
    return f"{fit.rho:.{4 if fit.quantity == RESIDUAL else 3}f}" if fit.rho < 1000 else f"{fit.rho:.3g}"
