"""Any number of groups: the reduced problem in factors, without a semidefinite program.

T = H Wᵀ and z_g = A_g²/(K_g−1) turn the nuclear norm into ½(‖H‖² + ‖W‖²) + ΣA², and dividing by that sum puts every point on
the constraint: a smooth problem without constraints. It is not convex, but with square factors every point that is
stationary to second order is a global optimum of the convex problem, and the certificate (`logits.gap`) says so for the
point found. L-BFGS finds the face of the optimum (its rank and the collapsed groups), Newton's method its last digits.
Where two faces are nearly as good, rounding decides which one L-BFGS points to. If it is the wrong one, the certificate is
above `CERTIFIED`, and the search goes on: Newton's method that leaves saddles, on faces that grow where the gradient says
so and shrink where factors die out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.errors import needed
from layerlaw.peeled.counts import Array, Groups
from layerlaw.peeled.logits import CERTIFIED, Logits, gap, gap_penalized, inner, slope, with_best_bias

Mask = npt.NDArray[np.bool_]
Objective = Callable[[Array], tuple[float, Array]]
Minimizer = Callable[[Objective, Array], Array]
PURPOSE = "Solving the Layer-Peeled Model for more than two groups"
NULLS = (1e-7, 1e-5, 1e-3)  # singular values below this share of the largest belong to no direction
TRACE = 1e-12  # a squared norm below this share of the mean is none
SOLVED = 1e-11  # norm of the gradient at which Newton has nothing left to do, unless the certificate says otherwise
TURNS = 12  # times that the search goes on where the certificate is not enough
DEAD = 1e-10  # share of the largest singular value below which a factor has died out
SEED = 1e-4  # share of the largest singular value that a new direction begins with
DENSE = 1000  # variables up to which the Hessian is built


@dataclass(frozen=True)
class Factors:
    """One point: parts within the groups that have any, factors of T, bias."""

    A: Array  # (G,) roots of (K_g−1) z_g; 0 where a group is collapsed or one class
    H: Array  # (G, p), as W
    W: Array
    b: Array  # (G,) bias in units of `Search.unit`, or empty

    def flat(self, free: Mask) -> Array:
        """All numbers in one vector; of A only the `free` ones."""
        return np.concatenate([self.A[free], self.H.ravel(), self.W.ravel(), self.b])

    @classmethod
    def shaped(cls, v: Array, free: Mask, p: int) -> Factors:
        """The inverse of `flat` for factors of p columns."""
        G, n = len(free), int(free.sum())
        A = np.zeros(G)
        A[free] = v[:n]
        return cls(A, v[n : n + G * p].reshape(G, p), v[n + G * p : n + 2 * G * p].reshape(G, p), v[n + 2 * G * p :])

    @property
    def size(self) -> float:
        """What the nuclear norm of their product cannot exceed."""
        return float((self.A**2).sum() + 0.5 * ((self.H**2).sum() + (self.W**2).sum()))


def solve_groups(groups: Groups, c: float | None = None, *, penalty: float | None = None, bias: bool = False) -> Logits:
    """The optimal logits under ‖Z‖_* ≤ K c, or of loss + penalty·‖Z‖_*, for any class sizes.

    BLAS with one thread: of thousands of small products, several spend their time waiting for each other.
    """
    with _blas().limit(limits=1, user_api="blas"):
        return Search(groups, None if c is None else groups.K * c, penalty, bias).solved()


@cache
def _blas() -> Any:
    needed("scipy.optimize", "peeled", PURPOSE)  # brings a BLAS of its own, which must be there to be found
    return needed("threadpoolctl", "peeled", PURPOSE).ThreadpoolController()


@dataclass(frozen=True)
class Search:
    """One problem: either the total nuclear norm or the penalty is given."""

    groups: Groups
    total: float | None
    penalty: float | None
    bias: bool

    def solved(self) -> Logits:
        """L-BFGS, then Newton on the face it points to; where that is not certified, on other faces."""
        point, tried = self.start(), []
        for turn in range(TURNS):
            for null in NULLS:
                sharp = self.face(point, null)
                for enough in (SOLVED, 0.0) if turn == 0 else (0.0,):
                    sharp = self.on_face(sharp, partial(newton, enough=enough), best_bias=turn > 0)
                    tried.append(self.certified(sharp))
                    if tried[-1][0] <= CERTIFIED:
                        return tried[-1][1]
            if turn and (unsharp := self.certified(point))[0] <= CERTIFIED:
                return unsharp[1]
            onward = lbfgs if turn == 0 else leave_saddles
            point = self.on_face(self.face(self.grown(point), DEAD, sharp=False), onward, best_bias=True)
        return min(tried, key=lambda one: one[0])[1]

    def logits(self, point: Factors, size: float | None = None) -> Logits:
        """The logits a point stands for, on the constraint if there is one; `size` is that of the point, if known."""
        scale = self.scale(point.size if size is None else size)
        z = scale * point.A**2 / np.maximum(self.groups.classes - 1, 1)
        b = point.b * self.unit if self.bias else np.zeros(len(z))
        return Logits(z, scale * point.H @ point.W.T, b - self.groups.classes @ b / self.groups.K)

    def scale(self, size: float) -> float:
        """What puts a point of this size on the constraint."""
        return 1.0 if self.total is None else self.total / size

    @cached_property
    def unit(self) -> Array:
        """Biases of rare classes hardly change the loss; in these units all change it alike (ten times fewer steps)."""
        return 0.1 / np.sqrt(self.groups.shares * self.groups.classes)

    def start(self) -> Factors:
        """L-BFGS from balanced classes: all directions but the common one."""
        groups = self.groups
        G, root = len(groups), np.sqrt(groups.classes)
        rng = np.random.default_rng(0)  # a trace of asymmetry, so that no direction is missed
        H, W = np.eye(G) - np.outer(root, root) / groups.K + 1e-3 * rng.standard_normal((2, G, G))
        b = np.log(groups.shares) / self.unit if self.bias else np.zeros(0)
        return self.on_face(Factors(np.sqrt(groups.classes - 1), H, W, b), lbfgs)

    def on_face(self, point: Factors, minimize: Minimizer, *, best_bias: bool = False) -> Factors:
        """Where `minimize` takes a point, without the groups whose part within is 0.

        `best_bias`: the bias is none of its variables but the best one everywhere: slower, and better conditioned.
        """
        free, p = point.A != 0, point.H.shape[1]
        f, v, b = self.objective(free, p), point.flat(free), point.b
        if not (best_bias and self.bias):
            return Factors.shaped(minimize(f, v), free, p)

        def g(v: Array) -> tuple[float, Array]:
            nonlocal b  # the next search begins where this one ends
            at = Factors.shaped(np.concatenate([v, b]), free, p)
            b = with_best_bias(self.groups, self.logits(at)).b / self.unit
            value, gradient = f(np.concatenate([v, b]))
            return value, gradient[: len(v)]

        v = minimize(g, v[: len(v) - len(b)])
        g(v)
        return Factors.shaped(np.concatenate([v, b]), free, p)

    def face(self, point: Factors, null: float, *, sharp: bool = True) -> Factors:
        """The same point in balanced factors, without directions of T below a share `null` of the largest singular value.

        Nor parts within groups: where sharp, of those with n_g/N ≤ λ, which have none at the optimum; else below `null`.
        """
        groups, logits = self.groups, self.logits(point)
        U, S, Vt = np.linalg.svd(logits.T)
        largest = max(float(S[0]), float(logits.z.max()))
        nothing = self.total is None and largest < null  # which a penalty may leave
        p = 0 if nothing else int((largest * null < S).sum())
        kept = logits.z > null * largest
        if sharp:
            kept = groups.shares > (slope(groups, logits).norm(groups) if self.penalty is None else self.penalty)
        A = np.where(kept, np.sqrt((groups.classes - 1) * logits.z), 0.0)
        return Factors(A, U[:, :p] * np.sqrt(S[:p]), Vt[:p].T * np.sqrt(S[:p]), point.b)

    def grown(self, point: Factors) -> Factors:
        """With a trace of every direction and group in which the loss falls faster than the multiplier allows."""
        groups, logits = self.groups, self.logits(point)
        s, nuclear = slope(groups, logits), logits.nuclear(groups)
        allowed = (self.penalty or -inner(groups, logits, s) / nuclear) + 0.1 * CERTIFIED / max(nuclear, CERTIFIED)
        U, S, Vt = np.linalg.svd(s.between)
        p = int((allowed < S).sum())
        begin = np.sqrt(SEED * max(float(np.abs(logits.T).max()), float(logits.z.max())) / self.scale(point.size))
        A = np.where((groups.classes > 1) & (s.within > allowed) & (point.A == 0), begin, point.A)
        return Factors(A, np.hstack([point.H, -begin * U[:, :p]]), np.hstack([point.W, begin * Vt[:p].T]), point.b)

    def certified(self, point: Factors) -> tuple[float, Logits]:
        """The certificate and the logits; vanished groups exactly at 0 where that costs nothing."""
        groups, logits = self.groups, self.logits(point)
        if self.bias and self.defect(logits) > CERTIFIED:
            logits = with_best_bias(groups, logits)
        # Vanished groups, so that their logits tie instead of being ranked by rounding
        U, S, Vt = np.linalg.svd(logits.T)
        least = TRACE * logits.nuclear(groups) / groups.K
        largest = np.maximum(S @ Vt**2, U**2 @ S) / groups.classes  # squared norms of classifiers and features
        gone = (logits.z == 0) & (largest <= least)
        bare = Logits(logits.z, np.where(gone[:, None] | gone, 0.0, logits.T), logits.b)
        defect, bare_defect = self.defect(logits), self.defect(bare)
        return (bare_defect, bare) if bare_defect <= max(defect, CERTIFIED) else (defect, logits)

    def defect(self, logits: Logits) -> float:
        """The certificate at the budget the logits use, and of the penalized loss."""
        c = logits.nuclear(self.groups) / self.groups.K
        budget = gap(self.groups, logits, c, bias=self.bias)
        if self.penalty is None:
            return budget
        return max(budget, gap_penalized(self.groups, logits, self.penalty, bias=self.bias))

    def objective(self, free: Mask, p: int) -> Objective:
        """Value and gradient in the factors: log loss on the constraint, or loss + penalty·size."""
        groups, penalty = self.groups, self.penalty
        weight, unit = np.maximum(groups.classes - 1, 1), self.unit * groups.classes

        def f(v: Array) -> tuple[float, Array]:
            point = Factors.shaped(v, free, p)
            size = point.size
            scale, logits = self.scale(size), self.logits(point, size)
            s = slope(groups, logits)
            within = -s.within * (groups.classes - 1)  # derivative in z
            if penalty is not None:
                value, shrink, factor = s.loss + penalty * size, penalty, 1.0
            else:  # the derivative through the scale: as the size grows, everything shrinks
                along = float((s.between * logits.T).sum() + within @ logits.z)
                value, shrink, factor = float(np.log(s.loss)), -along / size, 1 / s.loss
            gradient = Factors(
                2 * point.A * (scale * within / weight + shrink),
                scale * s.between @ point.W + shrink * point.H,
                scale * s.between.T @ point.H + shrink * point.W,
                s.bias(groups) * unit if len(point.b) else point.b,
            )
            return value, factor * gradient.flat(free)

        return f


def lbfgs(f: Objective, start: Array, *, steps: int = 3000) -> Array:
    """Where L-BFGS takes `start`, for a function that returns its value and its gradient; needs SciPy."""
    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 20, "ftol": 1e-16, "gtol": 1e-14}
    found = needed("scipy.optimize", "peeled", PURPOSE).minimize(f, start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x, dtype=np.float64)


def newton(f: Objective, v: Array, *, enough: float = SOLVED, steps: int = 30) -> Array:
    """Newton's method near a minimum: conjugate gradients with differences of the gradient for the Hessian.

    Differences suffice: each step need not be exact, only the gradient, which is what has to become zero.
    """
    g = f(v)[1]
    for _ in range(steps):
        size = float(np.linalg.norm(g))
        if size <= enough:
            break
        step = _conjugate(lambda d, v=v: _curve(f, v, d), g, min(0.1, np.sqrt(size)))  # type: ignore[misc]
        for shrink in (1.0, 0.5, 0.1):
            then = f(v + shrink * step)[1]
            if np.linalg.norm(then) < 0.9 * size:
                break
        else:
            break
        v, g = v + shrink * step, then
    return v


def leave_saddles(f: Objective, v: Array, *, steps: int = 60) -> Array:
    """Newton's method with the whole Hessian and the absolute values of its eigenvalues: away from saddles, too.

    A step is taken when the value falls, or, where rounding hides that, when the gradient does. Of more than `DENSE`
    variables L-BFGS and `newton` from here.
    """
    if len(v) > DENSE:
        return newton(f, lbfgs(f, v), enough=0.0)
    value, g = f(v)
    for _ in range(steps):
        hessian = np.stack([_curve(f, v, d) for d in np.eye(len(v))])
        e, Q = np.linalg.eigh(0.5 * (hessian + hessian.T))
        e = np.abs(e)
        step = -Q @ ((g @ Q) / np.maximum(e, 1e-10 * e.max(initial=1e-300)))
        size, noise = float(np.linalg.norm(g)), 1e-14 * max(1.0, abs(value))
        for shrink in 0.5 ** np.arange(12):
            then, there = f(v + shrink * step)
            if then < value - noise or (then <= value + noise and np.linalg.norm(there) < 0.9 * size):
                break
        else:
            break
        v, value, g = v + shrink * step, then, there
    return v


def _curve(f: Objective, v: Array, d: Array) -> Array:
    """The Hessian times d, by central differences."""
    h = 1e-5 * max(1.0, float(np.linalg.norm(v))) / max(float(np.linalg.norm(d)), 1e-300)
    return (f(v + h * d)[1] - f(v - h * d)[1]) / (2 * h)


def _conjugate(hessian: Callable[[Array], Array], g: Array, tolerance: float, most: int = 400) -> Array:
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
