"""Prediction residual: the share of a target's variance that a linear regression on the features leaves unexplained.

PR = Σ‖y − ŷ‖² / Σ‖y − ȳ‖² = 1 − R², between 0 (predicted exactly) and 1 (not at all); lower is better. ŷ is the
least-squares fit with an intercept (He & Su, arXiv 2408.13442). Everything comes from second moments in groups of rows:
in-sample from their sum, held out by fitting on the other groups, the jackknife by leaving one group out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerlaw.errors import FeatureError
from layerlaw.stats.moments import CrossMoments, Moments, TargetMoments

Array = npt.NDArray[np.float64]
ROUNDING = 1e-12  # of a sum of squares
SMALL_PIVOT = 1e-9  # of a scatter scaled to 1 on its diagonal: below it Cholesky's digits are not to be trusted
CUT = 1e-11  # eigenvalues below this share of the largest are no directions of the features


@dataclass(frozen=True)
class Residual:
    """PR of every target at one site.

    `in_sample` is the papers'; `adjusted` corrects it for d fitted coefficients; `held_out` fits on all groups but one and
    predicts that one, all groups in turn. `left_out` (g,) and `held_out_left_out` (g,) are the same with one group missing:
    their spread gives standard errors. `None` where there is one group only.
    """

    in_sample: float
    adjusted: float | None
    held_out: float | None
    left_out: tuple[float, ...] | None
    held_out_left_out: tuple[float, ...] | None
    rank: int

    @property
    def log_error(self) -> float | None:
        """Standard error of ln PR by the delete-group jackknife."""
        return log_error(self.left_out)

    @property
    def held_out_log_error(self) -> float | None:
        """Standard error of ln PR held out: over the predicted groups, given what was fitted."""
        return log_error(self.held_out_left_out)


def log_error(left_out: tuple[float, ...] | None) -> float | None:
    """Standard error of a logarithm from its values with one of g groups left out; `None` where one of them is 0.

    >>> round(log_error((1.0, 1.1, 0.9, 1.0)), 4)
    0.123
    """
    if left_out is None or min(left_out) <= 0:
        return None
    g, logs = len(left_out), [math.log(value) for value in left_out]
    mean = sum(logs) / g
    return math.sqrt((g - 1) / g * sum((v - mean) ** 2 for v in logs))


def prediction_residuals(
    moments: Moments, targets: TargetMoments, columns: dict[str, slice], *, where: str, null_direction: bool = False
) -> dict[str, Residual]:
    """PR of every named target, whose columns of Y are added up (a vector target is one target).

    `null_direction`: the features of every row add up to 0 (LayerNorm), so one of them says nothing new and is left out.
    """
    own = _Scatter.of(moments, targets, null_direction)
    whole = own.total()
    if not (bool(whole.xx.isfinite().all()) and bool(whole.xy.isfinite().all())):
        raise FeatureError(
            f"{where}: expected finite features, got NaN or infinity. Are the weights whole? Half precision may "
            "overflow: then measure in float32."
        )
    g = len(own.n)
    solution, rank = whole.solve()
    others = [own.without(k, whole) for k in range(g)] if g > 1 else []
    fits = [other.solve(whole)[0] for other in others]
    predicted = [own.predicted(k, others[k], fits[k]) for k in range(len(others))]
    inside = whole.spread(solution)
    without = [other.spread(fit) for other, fit in zip(others, fits, strict=True)]
    n = float(own.n.sum())
    found = {}
    for name, chosen in columns.items():
        total, left = inside.of(chosen)
        if total <= 0:
            raise FeatureError(f"{where}: the target '{name}' is the same for every token: nothing to predict.")
        held = held_left = left_out = None
        if g > 1:
            pairs = [(float(errors[chosen].sum()), float(spreads[chosen].sum())) for errors, spreads in predicted]
            errors, spreads = (sum(pair[i] for pair in pairs) for i in (0, 1))
            varied = [spread.of(chosen) for spread in without]
            several = all(spreads - s > ROUNDING * spreads for _, s in pairs)  # else one group alone varies
            if min(total for total, _ in varied) > 0 and several:
                held = errors / spreads
                held_left = tuple((errors - e) / (spreads - s) for e, s in pairs)
                left_out = tuple(rest / total for total, rest in varied)
        value = max(0.0, left / total)
        adjusted = value * (n - 1) / (n - rank - 1) if n > rank + 1 else None
        found[name] = Residual(value, adjusted, held, left_out, held_left, rank)
    return found


def carried_over(moments: Moments, targets: TargetMoments, onto: Moments, there: TargetMoments) -> list[float]:
    """PR of every target on other data, fitted to these: Σ (y − ŷ)² / Σ (y − ȳ)², ŷ and ȳ as here."""
    here = _Scatter.of(moments, targets).total()
    errors, spreads = _Scatter(*(t.unsqueeze(0) for t in _Scatter.of(onto, there).total())).predicted(
        0, here, here.solve()[0]
    )
    return [float(error / spread) for error, spread in zip(errors, spreads, strict=True)]


def target_residuals(moments: Moments, targets: TargetMoments, where: str) -> tuple[Residual, list[Residual | None]]:
    """PR of targets that count equally, whatever their units: each in units of its deviation; then of each alone.

    `None` where a target is the same everywhere.
    """
    n = targets.counts.sum()
    about_zero, mean = targets.squares.sum(0), targets.sums.sum(0) / n
    variation = about_zero - n * mean.square()
    varies = variation > ROUNDING * about_zero
    unit = (variation[varies] / n).sqrt()
    scaled = TargetMoments(targets.counts, targets.sums[:, varies] / unit, targets.squares[:, varies] / unit.square())
    by_target, sums = moments.cross[..., :-1][..., varies.to(moments.device)], moments.cross[..., -1:]
    cross = torch.cat([by_target / unit.to(moments.device), sums], -1)
    single = {str(j): slice(j, j + 1) for j in range(len(unit))}
    together = {"": slice(0, None)} if len(unit) > 1 else {}
    found = prediction_residuals(Moments(moments.packed, cross), scaled, {**together, **single}, where=where)
    places = varies.cumsum(0) - 1
    return found["" if together else "0"], [
        found[str(int(j))] if seen else None for j, seen in zip(places, varies, strict=True)
    ]


def linear_map(moments: Moments, cross: CrossMoments, *, null_direction: bool = False) -> tuple[Tensor, Tensor]:
    """Coefficients (d, q) and intercepts (q,) of the least-squares fit of other features to these.

    `moments` are those of the very rows of `cross`, in any groups. `null_direction`: as in `prediction_residuals`.
    """
    squares = Moments(moments.packed.sum(0, keepdim=True), moments.cross[:1]).squares()[0]
    used = slice(0, -1) if null_direction else slice(None)
    n, x, z, xz = cross.n, cross.x[used], cross.z, cross.product[used]
    scatter = _Scatter(n, x, squares[used, used], xz, z, z)  # squares of Z are not needed to solve
    B = torch.zeros_like(cross.product)
    B[used] = scatter.solve()[0]
    return B, (z - B[used].mT @ x) / n


class _Scatter(NamedTuple):
    """Sums over the rows of each group (g, …) or of all (…): counts, Xᵀ1, Xᵀ[X], Xᵀ[Y], 1ᵀY, and squares of Y."""

    n: Tensor
    x: Tensor
    xx: Tensor
    xy: Tensor
    y: Tensor
    yy: Tensor

    @classmethod
    def of(cls, moments: Moments, targets: TargetMoments, null_direction: bool = False) -> _Scatter:
        squares, cross = moments.squares(), moments.cross
        if null_direction:
            squares, cross = squares[:, :-1, :-1], cross[:, :-1]
        n, y, yy = (t.to(cross.device) for t in targets.tensors)
        return cls(n, cross[:, :, -1], squares, cross[:, :, :-1], y, yy)

    def total(self) -> _Scatter:
        return _Scatter(*(t.sum(0) for t in self))

    def without(self, k: int, whole: _Scatter) -> _Scatter:
        return _Scatter(*(a - b[k] for a, b in zip(whole, self, strict=True)))

    @property
    def centered(self) -> tuple[Tensor, Tensor]:
        """Scatter of X (d, d) and of X with Y (d, q), about the means."""
        return self.xx - torch.outer(self.x, self.x) / self.n, self.xy - torch.outer(self.x, self.y) / self.n

    def solve(self, whole: _Scatter | None = None) -> tuple[Tensor, int]:
        """Coefficients (d, q) of the least-squares fit, the smallest ones where they are not unique, and the rank.

        A feature that varies by no more than what rounding leaves of its squares is none; where these are a part of the
        `whole`, of its squares there, from which they were subtracted.
        """
        C, b = self.centered
        scale = C.diagonal().clamp(min=0).sqrt()
        left_over = ROUNDING * (self if whole is None else whole).xx.diagonal()
        alive = (scale > 1e-12 * scale.max()) & (C.diagonal() > left_over)
        inverse = torch.where(alive, 1 / torch.where(alive, scale, 1.0), 0.0)
        R = C * inverse[:, None] * inverse  # correlations; rows of dead features are 0
        R.diagonal().masked_fill_(~alive, 1.0)
        factor, failed = torch.linalg.cholesky_ex(R)
        if int(failed) == 0 and float(factor.diagonal().min()) ** 2 > SMALL_PIVOT:
            half = torch.cholesky_solve(b * inverse[:, None], factor)
            return half * inverse[:, None], int(alive.sum())
        values, vectors = torch.linalg.eigh(R)
        kept = values > CUT * values[-1]
        V = vectors[:, kept]
        half = V @ ((V.mT @ (b * inverse[:, None])) / values[kept, None])
        return half * inverse[:, None], int(kept.sum()) - int((~alive).sum())

    def spread(self, beta: Tensor) -> _Spread:
        """How every target varies, and what this very fit explains of it."""
        b = self.xy - torch.outer(self.x, self.y) / self.n
        return _Spread(*(_array(v) for v in (self.yy - self.y.square() / self.n, self.yy, (beta * b).sum(0))))

    def predicted(self, k: int, fitted: _Scatter, beta: Tensor) -> tuple[Array, Array]:
        """Σ (y − ŷ)² and Σ (y − ȳ)² of every target in group k (q,), with ŷ and ȳ as fitted on the others."""
        n, x, xx, xy, y, yy = (t[k] for t in self)
        mean_x, mean_y = fitted.x / fitted.n, fitted.y / fitted.n
        # Moments of the group about the means of the others.
        C = xx - torch.outer(x, mean_x) - torch.outer(mean_x, x) + n * torch.outer(mean_x, mean_x)
        b = xy - torch.outer(x, mean_y) - torch.outer(mean_x, y) + n * torch.outer(mean_x, mean_y)
        spread = yy - 2 * y * mean_y + n * mean_y.square()
        return _array(spread - 2 * (beta * b).sum(0) + (beta * (C @ beta)).sum(0)), _array(spread)


class _Spread(NamedTuple):
    """Of every target (q,): Σ(y − ȳ)², Σy² and what a fit explains."""

    about_mean: Array
    about_zero: Array
    explained: Array

    def of(self, chosen: slice) -> tuple[float, float]:
        """Σ‖y − ȳ‖², 0 where it is no more than rounding, and Σ‖y − ŷ‖² of some columns together."""
        about_mean, about_zero, explained = (float(values[chosen].sum()) for values in self)
        total = about_mean if about_mean > ROUNDING * about_zero else 0.0
        return total, total - explained


def _array(values: Tensor) -> Array:
    """Small numbers of the host: they are added up in many ways."""
    return values.cpu().numpy()
