"""Numbers along depth: does log D fall by equal steps, and is that more than any falling curve would do?

A Pearson correlation near −1 is nearly automatic for a curve that falls: a random split of the same total drop has a
median r of −.97 at 8 points. So three other numbers say whether the law holds: *evenness* (do all layers work?), *trend*
(do the late steps have the size of the early ones?) and *chance* (Greenwood's test: would a random split share the drop
as evenly?). How often each kind of curve passes is in docs/law.md, simulated by scripts/calibration.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.errors import MOST_WHOLE, Demand, InputError, demand, shown, visible
from layerlaw.law.chance import greenwood_p
from layerlaw.notebook import Shown, View

Array = npt.NDArray[np.float64]
UNCHANGED = 1e-3  # a relative change below this is no rise
LITTLE = 0.9  # when the last value is more than this share of the first, hardly anything has happened
RESIDUAL = "PR"  # of language models: that of a token's id falls from .90 to .82 where D falls to a hundredth
# When a law holds (`LawFit.holds`):
FEWEST_POINTS = 4  # fewer say nothing, for or against
CHANCE = 0.05  # Greenwood's p, below
EVEN = 0.8  # evenness, at least
BENT = 1.75  # trend, at most, and at least 1/1.75
FACTOR = 2.0  # beside it: is every step within this factor of the even one?


@dataclass(frozen=True)
class LawFit(Shown):
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
    trend: float | None
    """Last step over first step of the parabola through ln D_l: 1 = straight, above 1 the late layers do more; 0 or ∞ where
    only one of the two falls, `None` where neither does."""
    greenwood_p: float | None
    """Probability that a random split of the drop is at least as even; where the curve is the best of k, that one of k
    random splits is: 1 − (1 − p)^k. Small: the layers really share the work."""
    chord_deviation: float | None
    """Largest distance of ln D_l from the straight line between its ends, as a share of the total drop."""
    sensitivity: float
    """Σ D_{l−1}/D_l of Proposition 1: how strongly an error ε in every ratio changes D_last/D_first."""
    inefficiency: float
    """Arithmetic over geometric mean of D_{l−1}/D_l, ≥ 1; 1 when all ratios are equal (Proposition 1)."""
    chosen_from: int = 1
    """Of how many curves (learning rates, …) this one is the best."""
    step: str = "layer"
    """What a step from one value to the next is called in a sentence."""
    log_errors: tuple[float | None, ...] = ()
    """Standard error of each ln D, as far as a record knows them."""

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

    @cached_property
    def rising(self) -> list[int]:
        """Layers (counted from 0) at which the value rises by more than a thousandth: less is rounding."""
        return [i for i, (a, b) in enumerate(pairwise(self.values)) if b > a * (1 + UNCHANGED)]

    @property
    def rises_within_errors(self) -> bool:
        """Whether it rises, and nowhere by more than two standard errors; those of neighbors are taken as independent."""
        errors = [
            math.inf if error is None else error for error in self.log_errors
        ]  # what is not known excuses nothing
        return bool(errors and self.rising) and all(
            math.log(self.values[i + 1] / self.values[i]) < 2 * math.hypot(*errors[i : i + 2]) < math.inf
            for i in self.rising
        )

    @property
    def line(self) -> tuple[float, ...]:
        """The fitted values exp(intercept + slope·l)."""
        return tuple(float(np.exp(self.intercept + self.slope * l)) for l in range(self.points))  # noqa: E741

    @property
    def evenness(self) -> float | None:
        """Effective layers ÷ layers: 1 when all steps are equal, 1/m when one layer does it all."""
        return None if self.effective_layers is None else self.effective_layers / self.layers

    @property
    def steps(self) -> tuple[float, float] | None:
        """The smallest and the largest step of ln D in units of the even one; negative where D rises."""
        return None if self.shares is None else (min(self.shares) * self.layers, max(self.shares) * self.layers)

    @property
    def equal_steps(self) -> bool | None:
        """Whether every step is within a factor of 2 of the even one: stricter than `holds`, which sees no hump 1→3→1."""
        return None if self.steps is None else self.steps[0] >= 1 / FACTOR and self.steps[1] <= FACTOR

    @property
    def holds(self) -> bool | None:
        """Whether the law holds: the one definition that verdicts, stopping rules, experiments and advice use.

        ln D falls in steps that are more even than chance would have them (Greenwood's p < .05), even (evenness ≥ .8) and
        without a trend (last over first step within a factor of 1.75), by more than a tenth in all (except prediction
        residuals, which never fall much). `None` below 4 points, which say nothing.

        >>> fit_law([32, 16, 8, 4, 2, 1]).holds, fit_law([32, 31, 30, 4, 2, 1]).holds, fit_law([4, 2, 1]).holds
        (True, False, None)
        """
        return not self.objections if self.points >= FEWEST_POINTS else None

    @property
    def objections(self) -> list[str]:
        """What speaks against the law, strongest first; empty where it holds."""
        p, even, trend = self.greenwood_p, self.evenness, self.trend
        if p is None or even is None:
            return [f"{self.quantity} does not fall with depth"]
        found = []
        if self.little:
            found.append(f"{self.quantity} falls by only {1 - self.values[-1] / self.values[0]:.2g} of its first value")
        if p >= CHANCE:
            found.append(f"the {self.step}s share the drop no more evenly than a random split would")
        if trend is None or not 1 / BENT <= trend <= BENT:
            found.append(f"the steps {'grow' if trend is not None and trend > 1 else 'shrink'} with depth")
        if even < EVEN:
            found.append(f"the steps are uneven (evenness {even:.2g})")
        return found

    @property
    def verdict(self) -> str:
        """One sentence that does not claim more than the points allow, in the words of `layerlaw.law.words`."""
        from layerlaw.law.words import law_sentence  # words are about fits

        return law_sentence(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        plain = {**asdict(self), "points": self.points, "verdict": self.verdict}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()}

    def __str__(self) -> str:
        return self.verdict

    def plot(self) -> Any:
        """The points and the fitted line against depth, drawn by matplotlib."""
        from layerlaw.sheet import Panel, Series, Sheet  # drawn by those above

        at, name = range(self.points), self.quantity
        series = [
            Series(at, self.values, name),
            Series(at, self.line, f"ρ = {self.rho:.3g} per {self.step}", style="fit"),
        ]
        return Sheet("", [Panel("", series, xlabel=self.step, ylabel=name)], columns=1).plot()

    def _view(self) -> View:
        """What a notebook shows of it: the sentence, and the value, the line and the share of every step."""
        shares = [""] * self.points if self.shares is None else ["", *(f"{100 * share:.0f}%" for share in self.shares)]
        rows = zip(range(self.points), self.values, self.line, shares, strict=True)
        body = [[str(i), f"{value:.4g}", f"{line:.4g}", share.replace("-", "−")] for i, value, line, share in rows]
        return View(self.verdict, [[self.step, self.quantity, "fitted", "share of the drop"], *body])


def fit_law(values: Sequence[float] | Array | Any, *, quantity: str = "D", chosen_from: int = 1) -> LawFit:
    """Fit D_l ≐ ρ^l D_0 to positive numbers along depth (He & Su, Eq. 2).

    `chosen_from` says of how many curves this is the best, say of 7 learning rates: the best of 7 random splits is straight
    more often than one.

    >>> fit = fit_law([8.0, 4.0, 2.0, 1.0])
    >>> round(fit.rho, 12), round(fit.half_life, 12), round(fit.pearson, 12), round(fit.effective_layers, 12)
    (0.5, 1.0, -1.0, 3.0)
    """
    if not isinstance(chosen_from, int) or not 1 <= chosen_from <= MOST_WHOLE:
        raise InputError(
            f"fit_law: chosen_from: expected the number of curves this is the best of, got {shown(chosen_from)}."
        )
    demand(
        InputError, "fit_law", quantity=(quantity, Demand("a name, such as 'D'", lambda v: isinstance(v, str) and v))
    )
    D = _checked(values)
    y = np.log(D)
    m = len(y) - 1
    l = np.arange(m + 1.0)  # noqa: E741
    middle, mean = l.mean(), y.mean()
    square = ((l - middle) ** 2).sum()
    slope = float(((l - middle) * (y - mean)).sum() / square)
    intercept = float(mean - slope * middle)
    residuals = y - intercept - slope * l
    variation = float(((y - mean) ** 2).sum())
    pearson: float | None = None
    if m >= 2 and variation > 1e-24 * max(1.0, float((y**2).sum())):
        pearson = max(-1.0, min(1.0, float(slope * math.sqrt(square / variation))))
    shares, effective, p, chord = _sharing(y)
    ratios = -np.diff(y)  # ln D_{l−1}/D_l
    with np.errstate(over="ignore"):  # infinite where the values span more than a float can hold
        rho, end_to_end = float(np.exp(slope)), float(np.exp((y[-1] - y[0]) / m))
        sensitivity = float(np.exp(ratios).sum())
        inefficiency = float(np.exp(ratios - ratios.mean()).mean())
    return LawFit(
        quantity=visible(quantity),  # it is printed
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
        trend=_trend(l, y),
        greenwood_p=None if p is None else -math.expm1(chosen_from * math.log1p(-p)) if p < 1 else 1.0,
        chord_deviation=chord,
        sensitivity=sensitivity,
        inefficiency=inefficiency,
        chosen_from=chosen_from,
    )


def _checked(values: Any) -> Array:
    if isinstance(values, np.ma.MaskedArray) and (hidden := int(np.ma.getmaskarray(values).sum())):
        raise InputError(
            f"fit_law: expected numbers everywhere, got {hidden} that are masked. Drop these sites before."
        )
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu().double()
        D = np.asarray(values, dtype=np.float64)
    except OverflowError:
        raise InputError(f"fit_law: expected numbers up to 1.8e308, got larger ones: {shown(values)}.") from None
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"fit_law: expected a sequence of numbers along depth, got {shown(values)}.") from None
    if D.ndim != 1 or len(D) < 2:
        raise InputError(f"fit_law: expected at least 2 numbers along depth, got an array of shape {D.shape}.")
    bad = np.flatnonzero(~(np.isfinite(D) & (D > 0)))
    if len(bad):
        raise InputError(
            f"fit_law: expected positive, finite numbers, got {D[bad[0]]} at index {bad[0]}. The law speaks of log D: "
            "drop sites that are collapsed exactly (0) or could not be measured."
        )
    return D


def _trend(l: Array, y: Array) -> float | None:  # noqa: E741
    """Last over first step of the least-squares parabola a + b·l + c·l², whose step l−1 → l is b + c(2l − 1)."""
    if len(y) < 3:
        return None
    center = l.mean()
    square = (l - center) ** 2  # orthogonal to l − center: each coefficient alone
    b = ((l - center) * y).sum() / square.sum()
    c = ((square - square.mean()) * y).sum() / ((square - square.mean()) ** 2).sum()
    first, last = (-(b + c * (2 * (at - center) - 1)) for at in (1, l[-1]))
    if first <= 0 and last <= 0:
        return None
    return float(max(last, 0.0) / first) if first > 0 else math.inf


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
