"""Against the paper's semidefinite relaxation on a general solver, within what that solver can do.

A few ratios of each of the six sweeps; LAYERLAW_FULL=1 runs all 41 of each (minutes). `benchmarks/peeled.py` compares times.
"""

import os

import numpy as np
import pytest
from peeled_oracle import PAPER_RATIOS, SWEEPS, Relaxation

import layerlaw.peeled as lp

pytest.importorskip("cvxpy", reason="the oracle needs cvxpy and clarabel: pip install cvxpy clarabel")
pytest.importorskip("clarabel", reason="the oracle needs cvxpy and clarabel: pip install cvxpy clarabel")


@pytest.mark.parametrize(("K_A", "E_H"), SWEEPS)
def test_six_sweeps_agree_with_the_semidefinite_program(K_A: int, E_H: float) -> None:
    K_B = 10 - K_A
    R0 = lp.collapse_ratio(K_A, K_B, E_W=1, E_H=E_H)
    few = np.array([np.sqrt(R0), 3 * R0])
    ratios = PAPER_RATIOS if os.environ.get("LAYERLAW_FULL") else few
    relaxation = Relaxation(K_A, K_B, 1, E_H)
    curve = lp.collapse_curve(K_A, K_B, ratios, E_W=1, E_H=E_H)
    for R, cosine, phase in zip(ratios, curve.cosines, curve.phases, strict=True):
        exact = lp.solve([round(R * 10**9)] * K_A + [10**9] * K_B, E_W=1, E_H=E_H)
        loss, found = relaxation.solve(float(R))
        assert loss == pytest.approx(exact.loss, abs=1e-7)
        if phase != "vanished":  # where classifiers are 0 the program's cosine is noise
            assert found == pytest.approx(cosine, abs=2e-3)
        assert exact.gap < 1e-12


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["ce", "mse"])
def test_any_counts_agree_with_the_nuclear_norm_program(kind, bias: bool) -> None:
    import cvxpy as cp

    counts, c = np.array([60, 40, 40, 10, 4, 4]), 0.6 if kind == "mse" else 1.8
    K = len(counts)
    Z, b = cp.Variable((K, K)), cp.Variable((1, K))
    logits = Z + np.ones((K, 1)) @ b if bias else Z
    if kind == "ce":
        each = [cp.log_sum_exp(logits[k]) - logits[k, k] for k in range(K)]
    else:
        each = [0.5 * cp.sum_squares(logits[k] - np.eye(K)[k]) for k in range(K)]
    problem = cp.Problem(cp.Minimize((counts / counts.sum()) @ cp.hstack(each)), [cp.normNuc(Z) <= K * c])
    problem.solve(solver="CLARABEL")
    exact = lp.solve(counts, E_W=c, E_H=c, loss=kind, bias=bias)
    assert exact.loss == pytest.approx(problem.value, abs=1e-6)
    assert exact.H() @ exact.W().T == pytest.approx(Z.value, abs=2e-2)
