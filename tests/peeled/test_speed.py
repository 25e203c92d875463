"""Fast enough, with much room for a busy machine; `benchmarks/peeled.py` gives the real times."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

import layerlaw.peeled as lp


def best_of(job: Callable[[], object], rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)


def everything(s: lp.Solution) -> None:
    _ = s.phases, s.rank, s.cosines, s.accuracy, s.neural_collapse, s.gap


def test_a_sweep_of_41_ratios_takes_milliseconds() -> None:
    assert best_of(lambda: lp.collapse_curve(5, 5, lp.figures.PAPER_RATIOS, E_W=1, E_H=5)) < 0.1  # 0.006


def test_a_thousand_classes_in_two_groups_take_milliseconds() -> None:
    counts = np.repeat([100, 10], 500)
    assert best_of(lambda: everything(lp.solve(counts, E_W=1, E_H=50))) < 0.025  # 0.001


def test_a_million_classes_in_two_groups() -> None:
    assert best_of(lambda: everything(lp.solve({100: 500_000, 10: 500_000}, E_W=1, E_H=300))) < 0.025


@pytest.mark.parametrize("bias", [False, True])
def test_a_hundred_distinct_sizes_take_seconds(bias: bool) -> None:
    sizes = np.unique(np.round(np.geomspace(10, 10**6, 100)).astype(int))
    assert len(sizes) == 100
    start = time.perf_counter()
    s = lp.solve(sizes, E_W=1, E_H=5, bias=bias)
    assert time.perf_counter() - start < 15  # about 1
    assert s.certified


def test_the_number_of_threads_changes_nothing() -> None:
    code = (
        "import layerlaw.peeled as lp; s = lp.solve(range(10, 400, 15), E_W=1, E_H=5, bias=True); print(s.loss, s.gap)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": threads}, capture_output=True, check=True
        ).stdout
        for threads in ("1", "4")
    }
    assert len(printed) == 1
