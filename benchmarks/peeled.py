"""The Layer-Peeled Model: times of the exact ways, and their ratio to the paper's semidefinite program in one run.

    OMP_NUM_THREADS=1 python benchmarks/peeled.py          # all six sweeps of the paper; needs cvxpy and clarabel
    OMP_NUM_THREADS=1 python benchmarks/peeled.py --quick  # one sweep

Prints Markdown. Times are medians of repeated calls, in one thread. The program is built once per sweep and given each
ratio as a parameter, which is faster than building it anew; it is solved by CLARABEL.
"""

import argparse
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import layerlaw.peeled as lp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "peeled"))
from peeled_oracle import PAPER_RATIOS, SWEEPS, Relaxation


def median(job: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def everything(s: lp.Solution) -> lp.Solution:
    _ = s.phases, s.rank, s.cosines, s.accuracy, s.neural_collapse
    return s


def sweeps(which: list[tuple[int, float]]) -> None:
    print(
        "\n| sweep of 41 ratios, K = 10 | exact | SDP | ratio | its largest error in the cosine | in the loss "
        "| its cosine past R_vanish |"
    )
    print("|---|---|---|---|---|---|---|")
    for K_A, E_H in which:
        K_B = 10 - K_A
        relaxation = Relaxation(K_A, K_B, 1, E_H)
        relaxation.solve(2.0)  # the compilation is not counted
        start = time.perf_counter()
        found = [relaxation.solve(float(R)) for R in PAPER_RATIOS]
        theirs = time.perf_counter() - start
        ours = median(lambda k=(K_A, K_B), E=E_H: lp.collapse_curve(*k, PAPER_RATIOS, E_W=1, E_H=E), 15)
        curve = lp.collapse_curve(K_A, K_B, PAPER_RATIOS, E_W=1, E_H=E_H)
        loss = [lp.solve([round(R * 1e9)] * K_A + [10**9] * K_B, E_W=1, E_H=E_H).loss for R in PAPER_RATIOS]
        cosine = max(abs(c - f[1]) for c, f in zip(curve.cosines, found, strict=True) if not math.isnan(c))
        values = max(abs(a - f[0]) for a, f in zip(loss, found, strict=True))
        noise = [f[1] for c, f in zip(curve.cosines, found, strict=True) if math.isnan(c)]
        spread = f"{min(noise):.2f} … {max(noise):.2f}" if noise else "–"
        print(
            f"| K_A = {K_A}, E_H = {E_H} | {1e3 * ours:.2f} ms | {theirs:.1f} s | {theirs / ours:,.0f} | {cosine:.1e} "
            f"| {values:.1e} | {spread} |",
            flush=True,
        )


def sizes() -> None:
    tail = np.unique(np.round(np.geomspace(10, 10**6, 100)).astype(int))
    jobs: list[tuple[str, Callable[[], lp.Solution], int]] = [
        ("K = 10 in two groups", lambda: lp.solve({100: 5, 10: 5}, E_W=1, E_H=5), 50),
        ("K = 1,000 in two groups, counts as a list", lambda: lp.solve([100] * 500 + [10] * 500, E_W=1, E_H=50), 50),
        (
            "K = 1,000,000 in two groups, as a mapping",
            lambda: lp.solve({100: 500_000, 10: 500_000}, E_W=1, E_H=300),
            50,
        ),
        ("four sizes, 10,000 classes", lambda: lp.solve({1000: 1000, 100: 2000, 10: 3000, 1: 4000}, E_W=2, E_H=8), 5),
        ("100 distinct sizes from 10 to 1,000,000", lambda: lp.solve(tail, E_W=1, E_H=5), 3),
        ("the same with a bias", lambda: lp.solve(tail, E_W=1, E_H=5, bias=True), 3),
        ("the same, squared loss", lambda: lp.solve(tail, E_W=0.5, E_H=0.5, loss="mse"), 5),
    ]
    print("\n| problem (all phases, angles, accuracy, NC1–NC4 included) | time | certificate |")
    print("|---|---|---|")
    for name, job, rounds in jobs:
        gap = everything(job()).gap
        print(f"| {name} | {1e3 * median(lambda job=job: everything(job()), rounds):.4g} ms | {gap:.0e} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one sweep instead of six")
    quick = parser.parse_args().quick
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, one thread")
    sizes()
    sweeps(SWEEPS[2:3] if quick else SWEEPS)
