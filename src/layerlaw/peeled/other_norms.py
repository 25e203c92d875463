"""What a q-norm on the features does to neural collapse: the best simplex under it, to compare with the best of all.

Fang et al. prove: for K ≥ 3, p ≥ K and q ≠ 2 no minimizer is a simplex with h_k ∝ w_k ∝ m_k. So the best simplex
has a strictly larger loss than `solve_direct(…, q=q)` finds; here is how much.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError
from layerlaw.peeled.counts import checked_budgets, checked_exponent, checked_whole
from layerlaw.peeled.scipy_door import lbfgs

Array = npt.NDArray[np.float64]


def _corners(K: int, p: int) -> Array | None:
    """(K, p) corners of a cube that are a simplex (a Hadamard matrix without its constant column); `None` if unknown."""
    if K & (K - 1) or p < K - 1:
        return None
    H = np.ones((1, 1))
    while len(H) < K:
        H = np.block([[H, H], [H, -H]])
    return np.hstack([H[:, 1:], np.zeros((K, p - K + 1))])


def best_simplex(K: int, p: int, *, E_W: float, E_H: float, q: float, starts: int = 20, seed: int = 0) -> float:
    """The least loss of any simplex h_k ∝ w_k ∝ m_k in p dimensions, balanced classes, Σ‖h_k‖_q^q ≤ K E_H.

    The loss log(1 + (K−1) e^{−√E_W s K/(K−1)}) falls with the length s of the features, and s is largest where the
    simplex is turned to have the least Σ‖m_k‖_q^q: a search over rotations, from random ones and, where K is a power of
    2, from the corners of the cube, which are best for large q. 1 < q ≤ 20.

    >>> round(best_simplex(4, 4, E_W=1, E_H=1, q=2, starts=1), 6)  # every rotation is as good
    0.582658
    """
    checked_budgets(E_W, E_H)
    checked_exponent(q)
    checked_whole(K, "K", 2)
    checked_whole(p, "p")
    checked_whole(starts, "starts")
    checked_whole(seed, "seed", 0)
    if p < K - 1:
        raise InputError(f"p: expected at least K − 1 = {K - 1} dimensions for a simplex of K = {K}, got {p}.")
    B = math.sqrt(K / (K - 1)) * np.linalg.eigh(np.eye(K) - 1 / K)[1][:, 1:]  # (K, K−1) rows m_k in their own space

    def f(v: Array) -> tuple[float, Array]:
        X = v.reshape(K - 1, p)
        # Nearest frame: U = (X Xᵀ)^{-1/2} X by an SVD; its derivative in that basis divides by sums of singular values
        A, s, Ct = np.linalg.svd(X, full_matrices=False)
        U = A @ Ct
        rows = B @ U  # (K, p)
        most = float(np.abs(rows).max())
        unit = np.abs(rows) / most  # ‖·‖_q in logarithms and over its largest entry: neither flat nor without bounds
        power = unit ** (q - 1)
        size = float((power * unit).sum())
        G = B.T @ (power * np.sign(rows) / (size * most))  # derivative in U of log ‖rows‖_q
        inner = A.T @ G @ Ct.T
        skew = (inner - inner.T) / (s[:, None] + s)
        rest = (A / s) @ (A.T @ G @ (np.eye(p) - Ct.T @ Ct))
        return math.log(most) + math.log(size) / q, (A @ skew @ Ct + rest).ravel()

    rng = np.random.default_rng(seed)
    begin = [rng.standard_normal((K - 1) * p) for _ in range(starts)]
    if (corners := _corners(K, p)) is not None:
        # The frame that takes the simplex to the corners, shaken a little: they may be stationary without being best
        begin.append((B.T @ corners + 1e-3 * rng.standard_normal((K - 1, p))).ravel())
    least = min(f(lbfgs(f, v, steps=500))[0] for v in begin)
    length = math.exp(math.log(K * E_H) / q - least)
    return math.log1p((K - 1) * math.exp(-math.sqrt(E_W) * length * K / (K - 1)))
