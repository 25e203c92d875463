"""Solve random problems of the Layer-Peeled Model and report how well the solver certifies itself.

    OMP_NUM_THREADS=1 python scripts/peeled_certificates.py --problems 10000 --out certificates.jsonl

Problem i depends on i alone, and each result is one line of the file: a run that was stopped goes on where it ended, and
two machines (or two `OPENBLAS_CORETYPE`s) can be compared line by line. Prints Markdown: per kind of problem the worst
certificate, how many are above 1e-10, and the time.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import layerlaw.peeled as lp

ENOUGH = 1e-10


def problem(i: int) -> dict:
    """Counts, budgets, loss and bias of problem i: two groups or many, constrained or penalized, sizes of all ratios."""
    rng = np.random.default_rng([20, i])
    G = 2 if i % 4 == 0 else 40 if i % 100 == 1 else int(rng.choice([3, 3, 4, 5, 6, 8, 12, 20]))
    spread = 10 ** rng.uniform(0.3, 6)
    if rng.random() < 0.25:  # nearly equal sizes: every phase lies close to the next
        sizes = int(10 ** rng.uniform(1, 5)) + rng.choice(4 * G, G, replace=False)
    else:
        sizes = np.unique(np.round(10 ** rng.uniform(0, np.log10(spread + G), 4 * G)).astype(int))
        sizes = rng.permutation(sizes)[:G]
    most = rng.choice([1, 3, 8, 50, 1000])
    classes = rng.integers(1, most + 1, len(sizes))
    if classes.sum() < 2:
        classes = classes + 1
    counts = {int(n): int(k) for n, k in zip(sizes, classes, strict=True)}
    K = int(classes.sum())
    out = {"counts": counts, "loss": "mse" if rng.random() < 0.1 else "ce", "bias": bool(rng.random() < 0.5)}
    if rng.random() < 0.25:  # a multiplier between a thousandth of the rarest class's share and that of the largest one
        shares = sizes / (sizes @ classes)
        penalty = float(np.exp(rng.uniform(np.log(shares.min() / 1e3), np.log(shares.max()))))
        return {**out, "lambda_W": penalty, "lambda_H": penalty}
    c = float(10 ** rng.uniform(-2, 1.5)) * (K - 1) / K
    return {**out, "E_W": c, "E_H": c}


def solved(i: int) -> dict:
    """Problem i and what the solver says about its own result."""
    given = problem(i)
    counts = given.pop("counts")
    penalized = "lambda_W" in given
    start = time.perf_counter()
    s = (lp.solve_penalized if penalized else lp.solve)(counts, **given)
    took = time.perf_counter() - start
    sizes = "two sizes" if len(counts) == 2 else "one size" if len(counts) == 1 else "many sizes"
    kind = [sizes, given["loss"], "bias" if given["bias"] else "no bias", "penalized" if penalized else "budget"]
    said = {"gap": s.gap, "loss": s.loss, "c": s.c, "phases": s.phases}
    return {"i": i, "kind": ", ".join(kind), **said, "seconds": round(took, 4)}


def report(rows: list[dict]) -> None:
    print("\n| problems | number | worst gap | not certified (gap > 1e-10) | median time | longest |")
    print("|---|---|---|---|---|---|")
    kinds = sorted({row["kind"] for row in rows})
    for kind in [*kinds, "all"]:
        of = [row for row in rows if kind in ("all", row["kind"])]
        times = [1e3 * row["seconds"] for row in of]
        worst, above = max(row["gap"] for row in of), sum(not row["gap"] <= ENOUGH for row in of)
        print(f"| {kind} | {len(of):,} | {worst:.1e} | {above} | {np.median(times):.1f} ms | {max(times):,.0f} ms |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000, help="how many in all")
    parser.add_argument("--out", type=Path, default=Path("certificates.jsonl"), help="results, one per line")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; start again to go on")
    options = parser.parse_args()
    options.out.touch()
    done = {row["i"]: row for row in map(json.loads, options.out.read_text().splitlines())}
    end = time.perf_counter() + options.seconds
    with options.out.open("a") as file:
        for i in range(options.problems):
            if i not in done and time.perf_counter() < end:
                done[i] = solved(i)
                file.write(json.dumps(done[i]) + "\n")
                file.flush()
    report([row for i, row in done.items() if i < options.problems])
