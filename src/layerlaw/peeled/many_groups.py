"""Any number of groups: the reduced problem in factors, without a semidefinite program.

T = H Wᵀ and z_g = A_g²/(K_g−1) turn the nuclear norm into ½(‖H‖² + ‖W‖²) + ΣA², and dividing by that sum puts every point on
the constraint: a smooth problem without constraints. It is not convex, but with square factors every point that is
stationary to second order is a global optimum of the convex problem, and the certificate (`reduced.gap`) says so for the
point found. L-BFGS finds the face of the optimum (its rank and the collapsed groups), Newton's method its last digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerlaw.peeled.counts import Groups
from layerlaw.peeled.reduced import Logits, gap, slope
from layerlaw.peeled.scipy_door import lbfgs

Array = npt.NDArray[np.float64]
Objective = Callable[[Array], tuple[float, Array]]
NULLS = (1e-7, 1e-5, 1e-3)  # singular values below this share of the largest belong to no direction
ENOUGH = 1e-10  # certificate with which no smaller face is tried
TRACE = 1e-12  # a squared norm below this share of the mean is none
SOLVED = 1e-11  # norm of the gradient at which Newton has nothing left to do


@dataclass(frozen=True)
class Factors:
    """One point: parts within the groups that have any, factors of T, bias."""

    A: Array
    """(G,) roots of (K_g−1) z_g; 0 where a group is collapsed or one class."""
    H: Array
    """(G, p)."""
    W: Array
    """(G, p)."""
    b: Array
    """(G,) bias in units of `_bias_unit`, or empty."""

    def flat(self, free: npt.NDArray[np.bool_]) -> Array:
        """All numbers in one vector; of A only the `free` ones."""
        return np.concatenate([self.A[free], self.H.ravel(), self.W.ravel(), self.b])

    @classmethod
    def shaped(cls, v: Array, free: npt.NDArray[np.bool_], p: int) -> Factors:
        """The inverse of `flat` for factors of p columns."""
        G, n = len(free), int(free.sum())
        A = np.zeros(G)
        A[free] = v[:n]
        return cls(A, v[n : n + G * p].reshape(G, p), v[n + G * p : n + 2 * G * p].reshape(G, p), v[n + 2 * G * p :])

    @property
    def size(self) -> float:
        """What the nuclear norm of their product cannot exceed."""
        return float((self.A**2).sum() + 0.5 * ((self.H**2).sum() + (self.W**2).sum()))

    def logits(self, groups: Groups, scale: float = 1.0) -> Logits:
        """The logits they stand for, the products times `scale`."""
        z = scale * self.A**2 / np.maximum(groups.classes - 1, 1)
        b = self.b * _bias_unit(groups) if len(self.b) else np.zeros(len(z))
        return Logits(z, scale * self.H @ self.W.T, b - groups.classes @ b / groups.K)


def solve_groups(groups: Groups, c: float, *, bias: bool = False) -> Logits:
    """The optimal logits under ‖Z‖_* ≤ K c for any class sizes."""
    return _solved(groups, groups.K * c, None, bias)


def solve_groups_penalized(groups: Groups, penalty: float, *, bias: bool = False) -> Logits:
    """The optimal logits of loss + penalty·‖Z‖_*."""
    return _solved(groups, None, penalty, bias)


def _bias_unit(groups: Groups) -> Array:
    """Biases of rare classes hardly change the loss; in these units all change it alike (ten times fewer steps)."""
    return 0.1 / np.sqrt(groups.shares * groups.classes)


def _solved(groups: Groups, total: float | None, penalty: float | None, bias: bool) -> Logits:
    """L-BFGS, then Newton on the face it points to; where that is not optimal, on a smaller face."""
    start = _from_start(groups, total, penalty, bias)
    tried: list[tuple[float, Logits]] = []
    for null in NULLS:
        point = _face(groups, start, total, penalty, null)
        free, p = point.A > 0, point.H.shape[1]
        f = _objective(groups, total, penalty, free, p)
        point = Factors.shaped(newton(f, point.flat(free)), free, p)
        logits = point.logits(groups, 1.0 if total is None else total / point.size)
        tried.append((_defect(groups, logits), logits))
        if tried[-1][0] <= ENOUGH:
            break
    return _without_traces(groups, min(tried, key=lambda one: one[0])[1])


def _without_traces(groups: Groups, logits: Logits) -> Logits:
    """Vanished groups exactly at 0, so that their logits tie instead of being ranked by rounding."""
    U, S, Vt = np.linalg.svd(logits.T)
    least = TRACE * logits.nuclear(groups) / groups.K
    bare = logits.z == 0
    classifiers, features = (S @ Vt**2) / groups.classes, (U**2 @ S) / groups.classes  # squared norms, on equal budgets
    gone = bare & (classifiers <= least) & (features <= least)
    T = np.where(gone[:, None] | gone, 0.0, logits.T)
    return Logits(logits.z, T, logits.b)


def _defect(groups: Groups, logits: Logits) -> float:
    """The certificate at the budget the logits use, and what the bias leaves undone."""
    rest = np.abs(slope(groups, logits).bias(groups) * groups.classes) @ np.abs(logits.b)
    return gap(groups, logits, logits.nuclear(groups) / groups.K) + float(rest)


def _from_start(groups: Groups, total: float | None, penalty: float | None, bias: bool) -> Factors:
    """L-BFGS from balanced classes: all directions but the common one."""
    G, root = len(groups), np.sqrt(groups.classes)
    rng = np.random.default_rng(0)  # a trace of asymmetry, so that no direction is missed
    H, W = np.eye(G) - np.outer(root, root) / groups.K + 1e-3 * rng.standard_normal((2, G, G))
    b = np.log(groups.shares) / _bias_unit(groups) if bias else np.zeros(0)
    free = groups.classes > 1
    point = Factors(np.sqrt(groups.classes - 1), H, W, b)
    return Factors.shaped(lbfgs(_objective(groups, total, penalty, free, G), point.flat(free)), free, G)


def _face(groups: Groups, point: Factors, total: float | None, penalty: float | None, null: float) -> Factors:
    """The same point without what is zero at the optimum: groups with n_g/N ≤ λ, directions of T that are not used."""
    logits = point.logits(groups, 1.0 if total is None else total / point.size)
    multiplier = slope(groups, logits).norm(groups) if penalty is None else penalty
    U, S, Vt = np.linalg.svd(logits.T)
    largest = max(float(S[0]), float(logits.z.max()))
    p = int((largest * null < S).sum())
    if total is None and largest < null:  # a penalty that leaves nothing
        p = 0
    A = np.sqrt((groups.classes - 1) * logits.z)
    return Factors(
        np.where(groups.shares > multiplier, A, 0.0), U[:, :p] * np.sqrt(S[:p]), Vt[:p].T * np.sqrt(S[:p]), point.b
    )


def _objective(
    groups: Groups, total: float | None, penalty: float | None, free: npt.NDArray[np.bool_], p: int
) -> Objective:
    """Value and gradient in the factors: log loss on the constraint, or loss + penalty·size."""
    weight = np.maximum(groups.classes - 1, 1)
    unit = _bias_unit(groups) * groups.classes

    def f(v: Array) -> tuple[float, Array]:
        point = Factors.shaped(v, free, p)
        size = point.size
        scale = 1.0 if total is None else total / size
        logits = point.logits(groups, scale)
        s = slope(groups, logits)
        within = -s.within * (groups.classes - 1)  # derivative in z
        if total is None:
            assert penalty is not None
            value, shrink, factor = s.loss + penalty * size, penalty, 1.0
        else:  # the derivative through the scale: as the size grows, everything shrinks
            inner = float((s.between * logits.T).sum() + within @ logits.z)
            value, shrink, factor = float(np.log(s.loss)), -inner / size, 1 / s.loss
        gradient = Factors(
            2 * point.A * (scale * within / weight + shrink),
            scale * s.between @ point.W + shrink * point.H,
            scale * s.between.T @ point.H + shrink * point.W,
            s.bias(groups) * unit if len(point.b) else point.b,
        )
        return value, factor * gradient.flat(free)

    return f


def newton(f: Objective, v: Array, *, steps: int = 30, inner: int = 400) -> Array:
    """Newton's method near a minimum: conjugate gradients with differences of the gradient for the Hessian.

    Differences suffice: each step need not be exact, only the gradient, which is what has to become zero.
    """
    g = f(v)[1]
    for _ in range(steps):
        size = float(np.linalg.norm(g))
        if size <= SOLVED:
            break
        step = _conjugate(lambda d, v=v: _curve(f, v, d), g, inner, min(0.1, np.sqrt(size)))  # type: ignore[misc]
        for shrink in (1.0, 0.5, 0.1):
            then = f(v + shrink * step)[1]
            if np.linalg.norm(then) < 0.9 * size:
                break
        else:
            break
        v, g = v + shrink * step, then
    return v


def _curve(f: Objective, v: Array, d: Array) -> Array:
    """The Hessian times d, by central differences."""
    h = 1e-5 * max(1.0, float(np.linalg.norm(v))) / max(float(np.linalg.norm(d)), 1e-300)
    return (f(v + h * d)[1] - f(v - h * d)[1]) / (2 * h)


def _conjugate(hessian: Callable[[Array], Array], g: Array, most: int, tolerance: float) -> Array:
    """The step that solves H·step = −g as far as the tolerance asks and the curvature is positive."""
    step, rest, direction = np.zeros_like(g), -g, -g
    square, enough = float(g @ g), tolerance**2 * float(g @ g)
    for _ in range(most):
        bent = hessian(direction)
        curvature = float(direction @ bent)
        if curvature <= 1e-14 * float(direction @ direction):
            break
        length = square / curvature
        step = step + length * direction
        rest = rest - length * bent
        before, square = square, float(rest @ rest)
        if square <= enough:
            break
        direction = rest + (square / before) * direction
    return step
