"""solve: from class counts and budgets to the global optimum, by the shortest exact way.

One size of classes, the squared loss, a bias without collapse: closed forms (docs/peeled.md). Two sizes: one root. More:
`many_groups`.

Bias: stationarity makes the columns of the gradient sum to zero as the rows do, so where all directions are in use it is
−λ (I − J/K), and the probabilities follow: Z = C diag(a) C with C = I − J/K, a_k = log(K n_k/(N λ) − (K−1)) and
Σ a_k = K² c/(K−1).

Squared loss without a bias: Z = diag((1 − λN/n_k)_+), Σ = K c. With one: the bias is eliminated, the gradient is Σ_π (Z − I)
with Σ_π = diag(π) − ππᵀ, so Z has the eigenvectors of Σ_π and eigenvalues (1 − λ/s)_+; the common direction has s = 0.
"""

from __future__ import annotations

import math
from typing import get_args

import numpy as np

from layerlaw.errors import InputError, check_choice
from layerlaw.peeled.counts import Array, Counts, Groups, check_budgets, check_flag, grouped, positive
from layerlaw.peeled.logits import Logits, Loss, gap, gap_penalized, slope
from layerlaw.peeled.many_groups import solve_groups
from layerlaw.peeled.solution import Solution
from layerlaw.peeled.two_groups import TwoGroups, biased_pair, biased_pair_at, root, solve_pair, solve_pair_at

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
    groups, c = grouped(counts), check_budgets(E_W, E_H)
    check_flag(bias, "bias")
    check_choice("loss", loss, get_args(Loss))
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
    check_flag(bias, "bias")
    check_choice("loss", loss, get_args(Loss))
    root_W = math.sqrt(positive(lambda_W, "lambda_W", "penalty"))
    root_H = math.sqrt(positive(lambda_H, "lambda_H", "penalty"))
    penalty = root_W * root_H
    if not penalty > math.exp(LOWEST):
        raise InputError(f"lambda_W, lambda_H: expected √(λ_W λ_H) above 1e-280, got {penalty:.3g}. Raise them.")
    logits = optimum_penalized(groups, penalty, loss=loss, bias=bias)
    c = logits.nuclear(groups) / groups.K
    ratio = root_H / root_W  # ‖W‖/‖H‖ at the optimum
    return _certified(groups, c * ratio, c / ratio, logits, loss, bias, penalty)


def optimum(groups: Groups, c: float, *, loss: Loss = "ce", bias: bool = False) -> Logits:
    """The optimal logits under ‖Z‖_* ≤ K c."""
    if loss == "mse":
        return squares(groups, c, bias=bias)[0]
    if len(groups) == 2:
        pair = (biased_pair if bias else solve_pair)(*groups.pair, c)
        _representable(pair.log_multiplier, c)
        return of_pair(pair)
    simplex = groups.K * c / (groups.K - 1)
    _representable(-simplex, c)
    if len(groups) == 1:  # a bias adds nothing
        return Logits(np.array([simplex]), np.zeros((1, 1)), np.zeros(1))
    return (biased(groups, c) if bias else None) or solve_groups(groups, c, bias=bias)


def optimum_penalized(groups: Groups, penalty: float, *, loss: Loss = "ce", bias: bool = False) -> Logits:
    """The optimal logits of loss + penalty·‖Z‖_*."""
    if loss == "mse":
        return squares_at(groups, penalty, bias=bias)
    if bias and (closed := biased_at(groups, math.log(penalty))) is not None:
        return closed
    b = np.log(groups.shares) - groups.classes @ np.log(groups.shares) / groups.K if bias else np.zeros(len(groups))
    nothing = Logits(np.zeros(len(groups)), np.zeros((len(groups),) * 2), b)
    if slope(groups, nothing).norm(groups) <= penalty:
        return nothing
    if len(groups) == 1:
        return Logits(np.array([math.log(1 / penalty - groups.K + 1)]), nothing.T, nothing.b)
    if len(groups) == 2:
        pair = (biased_pair_at if bias else solve_pair_at)(*groups.pair, math.log(penalty))
        if not bias or pair.t_A > 0:
            return of_pair(pair)
    return solve_groups(groups, penalty=penalty, bias=bias)


def of_pair(pair: TwoGroups) -> Logits:
    """Two groups in the form of any number of groups: T = (t_A, −t_B) ⊗ (√K_B, −√K_A)/√K."""
    K_A, K_B = pair.K_A, pair.K_B
    T = np.outer([pair.t_A, -pair.t_B], [math.sqrt(K_B), -math.sqrt(K_A)]) / math.sqrt(K_A + K_B)
    b = np.array([K_B, -K_A]) * (pair.bias / (K_A + K_B))
    return Logits(np.array([pair.a, pair.e]), T, b)


def biased_at(groups: Groups, log_multiplier: float) -> Logits | None:
    """Z = C diag(a) C and b at a multiplier, or `None` where that is not optimal (something is collapsed)."""
    K = groups.K
    excess = K * np.expm1(np.log(groups.shares) - log_multiplier)
    if (excess <= -1).any():
        return None
    a = np.log1p(excess)
    top = np.sqrt(groups.classes / K)
    centered = np.eye(len(a)) - np.outer(top, top)
    T = centered @ (a[:, None] * centered)
    alone = groups.classes == 1
    if (a[~alone] < 0).any() or (alone.any() and np.linalg.eigvalsh(T)[0] < -1e-12 * np.abs(a).max()):
        return None
    b = a / K
    return Logits(np.where(alone, 0.0, np.maximum(a, 0.0)), T, b - groups.classes @ b / K)


def biased(groups: Groups, c: float) -> Logits | None:
    """The optimal logits under ‖Z‖_* ≤ K c in closed form, or `None` where something is collapsed."""
    K, shares = groups.K, groups.shares
    total = K * K * c / (K - 1)

    def excess(log_l: float) -> float:
        x = K * np.expm1(np.log(shares) - log_l)
        return float(groups.classes @ np.log1p(x)) - total if (x > -1).all() else -math.inf

    high = math.log(shares[-1] * K / (K - 1)) + 1e-9  # beyond the end of the logarithms
    low = math.log(shares[-1]) - total / K - math.log(K) - 1  # here even the smallest a is above the mean
    return biased_at(groups, root(excess, low, high))


def squares(groups: Groups, c: float, *, bias: bool = False) -> tuple[Logits, float]:
    """The optimal logits under ‖Z‖_* ≤ K c, and the multiplier; 0 where the budget is more than the loss can use.

    >>> from layerlaw.peeled.counts import grouped
    >>> logits, multiplier = squares(grouped([6, 2]), 0.25)  # K c = 0.5 = 1 − λ/0.75: the small class gets nothing
    >>> logits.T.diagonal().round(12), round(multiplier, 12)
    (array([0.5, 0. ]), 0.375)
    """
    spread = _spread(groups, bias)[0]
    several = groups.classes > 1
    values = np.concatenate([groups.shares[several], spread[spread > 1e-15 * spread.max()]])
    counts = np.append(groups.classes[several] - 1, np.ones(len(values) - several.sum()))
    multiplier = 0.0
    if groups.K * c < counts.sum():  # Σ counts (1 − λ/values)_+ = K c, by filling from the largest value down
        order = np.argsort(-values)
        v, n = values[order], counts[order]
        level = (np.cumsum(n) - groups.K * c) / np.cumsum(n / v)  # λ if the first i are in use
        multiplier = float(level[level < v][-1])
    return squares_at(groups, multiplier, bias=bias), multiplier


def squares_at(groups: Groups, multiplier: float, *, bias: bool = False) -> Logits:
    """The optimal logits of loss + λ‖Z‖_*."""
    spread, Q = _spread(groups, bias)
    top = np.where(spread > 1e-15 * spread.max(), np.maximum(0.0, 1 - multiplier / np.maximum(spread, 1e-300)), 0.0)
    T = (Q * top) @ Q.T
    z = np.where(groups.classes > 1, np.maximum(0.0, 1 - multiplier / groups.shares), 0.0)
    root = np.sqrt(groups.classes)
    b = groups.shares * root @ (np.eye(len(groups)) - T) / root  # b_j = Σ_k π_k (δ_kj − z_kj)
    return Logits(z, T, b if bias else np.zeros(len(groups)))


def _spread(groups: Groups, bias: bool) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of the loss's curvature between the groups: diag(π), less π πᵀ with a bias."""
    if not bias:
        return groups.shares, np.eye(len(groups))
    part = groups.shares * np.sqrt(groups.classes)
    values, Q = np.linalg.eigh(np.diag(groups.shares) - np.outer(part, part))
    return np.maximum(values, 0.0), Q


def _certified(
    groups: Groups, E_W: float, E_H: float, logits: Logits, loss: Loss, bias: bool, penalty: float | None = None
) -> Solution:
    """The solution with its certificate: at the budgets, and of the penalized loss where a penalty was given."""
    s, c = slope(groups, logits, loss), math.sqrt(E_W) * math.sqrt(E_H)
    multiplier = s.norm(groups) if penalty is None or c > 0 else penalty
    gaps = [0.0, gap(groups, logits, c, loss, bias=bias)]
    if penalty is not None and loss == "ce":
        gaps.append(gap_penalized(groups, logits, penalty, bias=bias))
    return Solution(groups, E_W, E_H, loss, bias, logits, s.loss, multiplier, max(gaps))


def _representable(log_multiplier: float, c: float) -> None:
    if log_multiplier < LOWEST:
        loss = f"at c = √(E_W E_H) = {c:.4g} the loss is about exp({log_multiplier:.0f}), less than a double can hold"
        ratios = "collapse_ratio(…, log=True) and vanish_ratio(…, log=True) work at any budget"
        raise InputError(f"solve: {loss}. Scale the budgets down; {ratios}.")
