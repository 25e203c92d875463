"""solve: from class counts and budgets to the global optimum, by the shortest exact way.

One size of classes, the squared loss, a bias without collapse: closed forms. Two sizes: one root. More: `many_groups`.
"""

from __future__ import annotations

import math
from typing import get_args

import numpy as np

from layerlaw.errors import InputError
from layerlaw.peeled.biased import biased, biased_at, biased_pair, biased_pair_at
from layerlaw.peeled.counts import Counts, Groups, checked_budgets, checked_flag, grouped, positive
from layerlaw.peeled.many_groups import solve_groups, solve_groups_penalized
from layerlaw.peeled.reduced import Logits, Loss, gap, slope
from layerlaw.peeled.roots import root
from layerlaw.peeled.solution import Solution
from layerlaw.peeled.squares import squares, squares_at
from layerlaw.peeled.two_groups import TwoGroups, solve_pair

LOWEST = -650.0  # of log λ: beyond, the loss is below what a double can hold


def solve(counts: Counts, *, E_W: float, E_H: float, loss: Loss = "ce", bias: bool = False) -> Solution:
    """The global minimum of the Layer-Peeled Model for the given class counts.

    min (1/N) Σ_k Σ_i ℓ(W h_ki + b, k) over W (K×p), all features h_ki, and b where `bias` is set, subject to
    (1/K) Σ‖w_k‖² ≤ E_W and (1/K) Σ_k (1/n_k) Σ_i ‖h_ki‖² ≤ E_H, for any p ≥ K−1. ℓ is the cross-entropy ("ce") or half the
    squared distance to the one-hot label ("mse").

    `counts`: samples per class, or {samples in a class: number of such classes}.

    >>> s = solve([100] * 5 + [10] * 5, E_W=1, E_H=5)
    >>> s.phases, round(s.minority_cosine, 6), s.accuracy
    (('separated', 'separated'), 0.517496, array([1., 1.]))
    >>> s = solve({1000: 5, 10: 5}, E_W=1, E_H=5)
    >>> s.phases, s.minority_cosine, s.accuracy, s.rank
    (('separated', 'collapsed'), 1.0, array([1. , 0.2]), 5)
    """
    groups, c = grouped(counts), checked_budgets(E_W, E_H)
    _checked(loss, bias)
    return _certified(groups, float(E_W), float(E_H), optimum(groups, c, loss=loss, bias=bias), loss, bias)


def solve_penalized(
    counts: Counts, *, lambda_W: float, lambda_H: float, loss: Loss = "ce", bias: bool = False
) -> Solution:
    """The penalized form: loss + (λ_W/2) Σ‖w_k‖² + (λ_H/2) Σ‖h_k‖² over classifiers and class means.

    Its optimum is that of `solve` with multiplier √(λ_W λ_H); the budgets E_W, E_H of the result are what the optimum uses.
    A group is collapsed iff √(λ_W λ_H) ≥ n_g/N; with √(λ_W λ_H) ≥ ‖∇f(0)‖₂ everything is 0.

    >>> s = solve_penalized([100] * 5 + [10] * 5, lambda_W=0.02, lambda_H=0.02)  # n_B/N = 10/550 < 0.02
    >>> s.phases, round(s.c, 4)
    (('separated', 'collapsed'), 2.0698)
    """
    groups = grouped(counts)
    _checked(loss, bias)
    root_W = math.sqrt(positive(lambda_W, "lambda_W", "penalty"))
    root_H = math.sqrt(positive(lambda_H, "lambda_H", "penalty"))
    penalty = root_W * root_H
    if not penalty > math.exp(LOWEST):
        raise InputError(
            f"lambda_W, lambda_H: expected √(λ_W λ_H) above 1e-280, got {penalty:.3g}. Raise the penalties."
        )
    logits = optimum_penalized(groups, penalty, loss=loss, bias=bias)
    c = logits.nuclear(groups) / groups.K
    ratio = root_H / root_W  # ‖W‖/‖H‖ at the optimum
    return _certified(groups, c * ratio, c / ratio, logits, loss, bias, penalty if c == 0 else None)


def optimum(groups: Groups, c: float, *, loss: Loss = "ce", bias: bool = False) -> Logits:
    """The optimal logits under ‖Z‖_* ≤ K c."""
    if loss == "mse":
        return squares(groups, c, bias=bias)[0]
    K = groups.K
    if len(groups) == 1:  # a simplex; a bias adds nothing
        _representable(-K * c / (K - 1), c)
        return Logits(np.array([K * c / (K - 1)]), np.zeros((1, 1)), np.zeros(1))
    if len(groups) == 2:
        K_A, K_B = (int(k) for k in groups.classes)
        log_R = math.log(groups.sizes[0]) - math.log(groups.sizes[1])
        pair = (biased_pair if bias else solve_pair)(K_A, K_B, log_R, c)
        _representable(pair.log_multiplier, c)
        return of_pair(pair)
    _representable(-K * c / (K - 1), c)
    closed = biased(groups, c) if bias else None
    return closed or solve_groups(groups, c, bias=bias)


def optimum_penalized(groups: Groups, penalty: float, *, loss: Loss = "ce", bias: bool = False) -> Logits:
    """The optimal logits of loss + penalty·‖Z‖_*."""
    nothing = Logits(np.zeros(len(groups)), np.zeros((len(groups),) * 2), np.zeros(len(groups)))
    if loss == "mse":
        return squares_at(groups, penalty, bias=bias)
    if bias:
        closed = biased_at(groups, math.log(penalty))
        if closed is not None:
            return closed
        nothing = Logits(
            nothing.z, nothing.T, np.log(groups.shares) - groups.classes @ np.log(groups.shares) / groups.K
        )
    if slope(groups, nothing).norm(groups) <= penalty:
        return nothing
    if len(groups) == 1:
        return Logits(np.array([math.log(1 / penalty - groups.K + 1)]), nothing.T, nothing.b)
    if len(groups) == 2 and not bias:
        K_A, K_B = (int(k) for k in groups.classes)
        log_R, target = math.log(groups.sizes[0] / groups.sizes[1]), math.log(penalty)

        def excess(log_c: float) -> float:  # λ falls as the budget grows
            return target - solve_pair(K_A, K_B, log_R, math.exp(log_c)).log_multiplier

        low, high = -1.0, 1.0
        while excess(low) > 0 and low > -600:
            low *= 2
        while excess(high) < 0:
            high += 1
        return of_pair(solve_pair(K_A, K_B, log_R, math.exp(root(excess, low, high))))
    if len(groups) == 2:
        K_A, K_B = (int(k) for k in groups.classes)
        pair = biased_pair_at(K_A, K_B, math.log(groups.sizes[0] / groups.sizes[1]), math.log(penalty))
        if pair.t_A > 0:
            return of_pair(pair)
    return solve_groups_penalized(groups, penalty, bias=bias)


def of_pair(pair: TwoGroups) -> Logits:
    """Two groups in the form of any number of groups: T = (t_A, −t_B) ⊗ (√K_B, −√K_A)/√K."""
    K_A, K_B = pair.K_A, pair.K_B
    direction = np.array([math.sqrt(K_B), -math.sqrt(K_A)]) / math.sqrt(K_A + K_B)
    T = np.outer([pair.t_A, -pair.t_B], direction)
    b = np.array([K_B, -K_A]) * (pair.bias / (K_A + K_B))
    return Logits(np.array([pair.a, pair.e]), T, b)


def _certified(
    groups: Groups, E_W: float, E_H: float, logits: Logits, loss: Loss, bias: bool, multiplier: float | None = None
) -> Solution:
    s = slope(groups, logits, loss)
    multiplier = s.norm(groups) if multiplier is None else multiplier
    c = math.sqrt(E_W) * math.sqrt(E_H)
    return Solution(groups, E_W, E_H, loss, bias, logits, s.loss, multiplier, max(0.0, gap(groups, logits, c, loss)))


def _checked(loss: object, bias: object) -> None:
    checked_flag(bias, "bias")
    if loss not in get_args(Loss):
        raise InputError(f"loss: expected one of {get_args(Loss)}, got {loss!r}.")


def _representable(log_multiplier: float, c: float) -> None:
    if log_multiplier < LOWEST:
        raise InputError(
            f"solve: at c = √(E_W E_H) = {c:.4g} the loss is about exp({log_multiplier:.0f}), less than a double can hold. "
            "Scale the budgets down; collapse_ratio(…, log=True) and vanish_ratio(…, log=True) work at any budget."
        )
