"""What a q-norm on the features does to neural collapse: the best simplex under it, to compare with the best of all.

Fang et al. prove: for K ≥ 3, p ≥ K and q ≠ 2 no minimiser is a simplex with h_k ∝ w_k ∝ m_k. So the best simplex
has a strictly larger loss than `solve_direct(…, q=q)` finds; here is how much.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError
from layerlaw.peeled.counts import checked_budgets, checked_whole, positive
from layerlaw.peeled.scipy_door import lbfgs

Array = npt.NDArray[np.float64]


def best_simplex(K: int, p: int, *, E_W: float, E_H: float, q: float, starts: int = 20, seed: int = 0) -> float:
    """The least loss of any simplex h_k ∝ w_k ∝ m_k in p dimensions, balanced classes, Σ‖h_k‖_q^q ≤ K E_H.

    The loss log(1 + (K−1) e^{−√E_W s K/(K−1)}) falls with the length s of the features, and s is largest where the
    simplex is turned to have the least Σ‖m_k‖_q^q: a search over rotations.

    >>> round(best_simplex(4, 4, E_W=1, E_H=1, q=2, starts=1), 6)  # every rotation is as good
    0.582658
    """
    checked_budgets(E_W, E_H)
    positive(q, "q", "exponent")
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
        power = np.abs(rows) ** (q - 1)
        G = B.T @ (q * power * np.sign(rows))  # derivative in U
        inner = A.T @ G @ Ct.T
        skew = (inner - inner.T) / (s[:, None] + s)
        rest = (A / s) @ (A.T @ G @ (np.eye(p) - Ct.T @ Ct))
        return float((power * np.abs(rows)).sum()), (A @ skew @ Ct + rest).ravel()

    rng = np.random.default_rng(seed)
    least = min(f(lbfgs(f, rng.standard_normal((K - 1) * p), steps=500))[0] for _ in range(starts))
    length = (K * E_H / least) ** (1 / q)
    return math.log1p((K - 1) * math.exp(-math.sqrt(E_W) * length * K / (K - 1)))
