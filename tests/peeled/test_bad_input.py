"""What cannot be solved is answered with what was expected, what came, and what to do."""

import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

import layerlaw.peeled as lp
from layerlaw.errors import InputError, LabelError


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([5, 0, 3], r"counts\[1\]: expected at least 1, got 0. Drop classes without samples"),
        ([5, -2], r"counts\[1\]: expected at least 1, got -2"),
        ([5, 2.5], r"counts\[1\]: expected a whole number, got 2.5. Count samples, do not weigh them"),
        ([5, math.nan], r"counts\[1\]: expected a whole number, got nan"),
        ([math.inf, 2], r"counts\[0\]: expected a whole number, got inf"),
        ([True, True], "expected a sequence of whole numbers, one per class, got shape"),
        ([[1, 2], [3, 4]], r"got shape \(2, 2\)"),
        (["a", "b"], "expected a sequence of whole numbers"),
        ([2**60, 1], r"expected at most 2\^53"),
        ([2**80, 1], r"expected at most 2\^53"),
        ([7], "expected at least 2 classes, got 1. One class has nothing to be separated from"),
        ([], "expected at least 2 classes, got 0"),
        ({}, "expected at least 2 classes, got 0"),
        ({5: 1}, "expected at least 2 classes, got 1"),
        ({5: 1.5, 2: 1}, r"number of such classes}, at 5: expected a whole number, got 1\.5"),
        ({0: 3}, "a mapping {samples in a class: number of such classes}: expected at least 1, got 0"),
        (None, "expected a sequence of whole numbers"),
        (5, "expected a sequence of whole numbers"),
        ([1 + 2j, 3], "expected a sequence of whole numbers, one per class, got shape"),
    ],
)
def test_counts(counts, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        lp.solve(counts, E_W=1, E_H=1)


@pytest.mark.parametrize(
    "counts",
    [
        Counter({1: 3, 2: 2}),
        [3.0, 2.0],
        np.array([3, 2], np.int8),
        (3, 2),
        np.array([3.0, 2.0], np.float32),
        {3: 1, 2: 1},
    ],
)
def test_counts_in_every_form(counts) -> None:
    assert lp.solve(counts, E_W=1, E_H=1).loss == lp.solve([3, 2], E_W=1, E_H=1).loss


@pytest.mark.parametrize("budget", [0, -1, math.nan, math.inf, "5", None, True])
@pytest.mark.parametrize("name", ["E_W", "E_H"])
def test_budgets(name: str, budget) -> None:
    budgets = {"E_W": 1, "E_H": 1, name: budget}
    for call in (
        lambda: lp.solve([2, 1], **budgets),
        lambda: lp.collapse_ratio(2, 2, **budgets),
        lambda: lp.vanish_ratio(2, 2, **budgets),
        lambda: lp.collapse_curve(2, 2, [1], **budgets),
        lambda: lp.oversampling([2, 1], **budgets),
        lambda: lp.solve_direct([2, 1], **budgets),
    ):
        with pytest.raises(InputError, match=f"{name}: expected a positive, finite budget, got {budget!r}"):
            call()


def test_budgets_out_of_reach() -> None:
    with pytest.raises(InputError, match="between 1e-8 and 1e8"):
        lp.solve([2, 1], E_W=1e300, E_H=1e300)
    for counts in ([2, 1], [1, 1], [3, 2, 1]):
        with pytest.raises(InputError, match="less than a double can hold"):
            lp.solve(counts, E_W=2000, E_H=2000)


def test_numbers_of_classes_and_ratios() -> None:
    with pytest.raises(LabelError, match="K_A: expected at least 1, got 0"):
        lp.collapse_ratio(0, 5, E_W=1, E_H=1)
    with pytest.raises(LabelError, match=r"K_B: expected a whole number, got 2\.5"):
        lp.vanish_ratio(3, 2.5, E_W=1, E_H=1)
    with pytest.raises(LabelError, match=r"K_B: expected a whole number, got 2\.5\. Count classes"):
        lp.collapse_ratio(3, 2.5, E_W=1, E_H=1)
    with pytest.raises(InputError, match=r"ratios: expected a sequence of ratios n_A/n_B, got 3\. Put it in brackets"):
        lp.collapse_curve(5, 5, 3, E_W=1, E_H=1)
    for ratio in (0, -1, math.nan):
        with pytest.raises(InputError, match=r"ratios\[1\]: expected a positive, finite ratio"):
            lp.collapse_curve(3, 3, [1.0, ratio], E_W=1, E_H=1)


def test_each_budget_is_told_how_to_be_measured() -> None:
    with pytest.raises(InputError, match=r"E_W: .*mean of ‖w_k‖² over the rows"):
        lp.solve([2, 1], E_W=0, E_H=1)
    with pytest.raises(InputError, match=r"E_H: .*mean of ‖h‖² over the samples of a class, then over the classes"):
        lp.solve([2, 1], E_W=1, E_H=0)


@pytest.mark.parametrize("bias", ["yes", None, 1])
def test_a_flag_is_true_or_false(bias) -> None:
    budgets = {"E_W": 1, "E_H": 1, "bias": bias}
    for call in (
        lambda: lp.solve([2, 1], **budgets),
        lambda: lp.solve_penalized([2, 1], lambda_W=0.1, lambda_H=0.1, bias=bias),
        lambda: lp.collapse_ratio(2, 2, **budgets),
        lambda: lp.vanish_ratio(2, 2, **budgets),
        lambda: lp.collapse_curve(2, 2, [1], **budgets),
        lambda: lp.critical_budget([2, 1], bias=bias),
        lambda: lp.oversampling([2, 1], **budgets),
        lambda: lp.solve_direct([2, 1], **budgets),
    ):
        with pytest.raises(InputError, match=f"bias: expected True or False, got {bias!r}"):
            call()


def test_seeds_and_simplices() -> None:
    for call in (
        lambda: lp.solve_direct([2, 1], E_W=1, E_H=1, seed=-1),
        lambda: lp.solve_two_layers([2, 1], E_W=1, E_V=1, E_H=1, seed=-1),
        lambda: lp.best_simplex(3, 3, E_W=1, E_H=1, q=2, seed=-1),
    ):
        with pytest.raises(InputError, match="seed: expected a whole number of at least 0, got -1"):
            call()
    with pytest.raises(InputError, match="K: expected a whole number of at least 2, got 1"):
        lp.best_simplex(1, 2, E_W=1, E_H=1, q=2)


def test_an_unknown_loss_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"loss: expected one of ce, mse, got 'hinge'"):
        lp.solve([2, 1], E_W=1, E_H=1, loss="hinge")


def test_scipy_is_loaded_when_needed_and_missed_politely() -> None:
    code = """
import sys
import layerlaw.peeled as lp
lp.solve({100: 5, 10: 5}, E_W=1, E_H=5).to_dict(), lp.collapse_ratio(5, 5, E_W=1, E_H=5), lp.phase_sheet()
lp.solve([3, 2, 1], E_W=9, E_H=9, bias=True), lp.solve([3, 2, 1], E_W=1, E_H=1, loss="mse")
lp.oversampling({9: 2, 1: 2}, E_W=1, E_H=1)
print("scipy" in sys.modules, "matplotlib" in sys.modules)
sys.modules["scipy"] = sys.modules["scipy.optimize"] = None
try:
    lp.solve([3, 2, 1], E_W=1, E_H=1)
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "False False"
    assert second.startswith("MissingExtraError")
    assert "pip install 'layerlaw[peeled]'" in second


@pytest.mark.parametrize(
    ("q", "words"), [(0.5, "above 1 and at most 20, got 0.5"), (1, "above 1 .* got 1"), (1000, "at most 20, got 1000")]
)
def test_exponents_whose_norm_has_corners(q: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        lp.best_simplex(4, 4, E_W=1, E_H=1, q=q)
    with pytest.raises(InputError, match=words):
        lp.solve_direct([1] * 4, E_W=1, E_H=1, q=q)


def test_a_start_is_an_optimum() -> None:
    with pytest.raises(InputError, match="near: expected what solve_two_layers returned, got int"):
        lp.solve_two_layers([1, 1], E_W=1, E_V=1, E_H=4, starts=1, near=3)  # type: ignore[arg-type]
