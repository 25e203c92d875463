"""Networks of one seed side by side, on numbers made by hand."""

import math

import pytest
from experiments_recorded import made_run

from layerlaw.experiments.numbers import above, below, holds, paired_rows, standard_error
from layerlaw.experiments.runs import LAW, Runs, number
from layerlaw.experiments.separation.fig5 import lowest, one_standard_error
from layerlaw.lab import Run


def run_of(last: float, seed: int, rate: float = 1e-3, middle: float = 4.0) -> Run:
    return made_run({1: (16.0, middle, last)}, seed=seed, learning_rate=rate)


def test_ratios_are_of_equal_seeds() -> None:
    above, below = Runs([run_of(2.0, 666), run_of(3.0, 1)]), Runs([run_of(1.0, 1), run_of(8.0, 666)])
    assert above.over(below, "final-D") == [0.25, 3.0]
    assert above.over(Runs(below[:1]), "final-D") == [3.0]
    assert above.over(below, "final-D", lambda run: 1.0) == [0.125, 1.0]
    assert above.minus(below, "final-D") == [-6.0, 2.0]
    assert above.minus(Runs(below[:1]), lambda run: run.recipe.seed) == [0.0]


def test_a_difference_is_judged_by_a_t_test_over_seeds() -> None:
    row, error = paired_rows("d", [2.0, 3.0, 4.0], above(0, 2.0))
    assert row.ours == pytest.approx(3.0)
    assert error.ours == pytest.approx(1 / math.sqrt(3))  # of 2, 3, 4
    assert row.reproduced is True  # 3 standard errors are 5.2; t of 2 degrees of freedom is 2.92
    assert paired_rows("d", [2.0, 3.0, 4.0], above(1.5))[0].reproduced is False  # 1.5 is 2.6 standard errors
    assert paired_rows("d", [2.0, 3.0, 4.0], below(0))[0].reproduced is False
    assert paired_rows("d", [-1.0, 2.0], above(0))[0].reproduced is False  # 0.5 ± 1.5


def test_one_pair_proves_nothing() -> None:
    row, error = paired_rows("d", [2.0], above(0, 2.0))
    assert (row.ours, row.reproduced, row.kind) == (2.0, None, "direction")
    assert (error.ours, error.reason) == (None, "one seed has no standard error")


def test_a_pair_without_a_number_is_told() -> None:
    row, _ = paired_rows("d", [2.0, None, 4.0])
    assert row.ours == 3.0
    assert "1 of 3 runs gave no number" in row.tolerance


def test_one_standard_error_takes_the_smallest_that_is_not_clearly_worse() -> None:
    values = {3: [2.0, 2.1, 2.2], 6: [1.0, 1.4, 1.2], 9: [1.1, 1.1, 1.1]}
    assert lowest(values) == 9
    assert one_standard_error(values) == 6  # differences −0.1, 0.3, 0.1: mean 0.1, error 0.115
    assert one_standard_error({6: [1.2, 1.3, 1.25], 9: [1.1, 1.1, 1.1]}) == 9  # mean 0.15, error 0.029
    assert one_standard_error({3: [2.0], 4: [1.0]}) == 4


def test_standard_error_of_four() -> None:
    assert standard_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx(math.sqrt(5 / 3) / 2)


def test_the_rate_is_chosen_for_every_seed_by_r() -> None:
    straight, bent = run_of(1.0, 666, 1e-3), run_of(1.0, 666, 3e-3, middle=2.0)
    other = run_of(1.0, 1, 3e-3)
    lost = made_run({1: (16.0, 4.0, 1.0)}, seed=2, diverged=1)
    assert Runs([bent, straight, other, lost]).best() == (straight, other)


def test_an_untrained_network_is_not_chosen_for_its_straight_line() -> None:
    straight, bent = run_of(1.0, 666, 1e-3), run_of(1.0, 666, 3e-3, middle=2.0)
    untrained = made_run({1: (16.0, 4.0, 1.0)}, seed=666, learning_rate=3e-5, loss=1.3)
    worse = made_run({1: (16.0, 4.0, 1.0)}, seed=666, learning_rate=1e-5, loss=2.0)
    assert Runs([untrained, bent]).best() == (bent,)
    assert Runs([untrained, bent]).best(trained=False) == (untrained,)
    assert Runs([bent, straight]).best() == (straight,)
    assert Runs([worse, untrained]).best() == (untrained,)  # the least untrained


def test_law_rows_of_a_straight_line() -> None:
    run = made_run({1: (8.0, 4.0, 2.0, 1.0)}, modes=("batch", "shuffled", "balanced", "running", "whole"))
    found = {row.name: row for row in Runs([run]).rows("x", LAW, {"holds": holds()})}
    assert (found["x/holds"].ours, found["x/holds"].reproduced) == (1, True)
    assert found["x/pearson"].ours == pytest.approx(-1.0)
    assert found["x/rho"].ours == pytest.approx(0.5)
    assert found["x/evenness"].ours == pytest.approx(1.0)
    assert found["x/trend"].ours == pytest.approx(1.0)
    assert (found["x/below-chance"].ours, found["x/equal-steps"].ours, found["x/holds-balanced"].ours) == (1, 1, 1)
    assert found["x/pearson-eval"].ours == pytest.approx(-1.0)
    (rises,) = Runs([run_of(32.0, 666)]).rows("x", ["evenness"])
    assert (rises.ours, rises.reason) == (None, "D does not fall with depth")


def test_the_best_of_several_rates_must_be_more_even() -> None:
    run = made_run({1: (36.8, 11.0, 4.1, 1.3)})
    assert Runs([run]).values("holds") == [1.0]
    assert Runs([run]).values("holds", choices=7) == [0.0]


def test_above_floor_needs_the_permuted_reading() -> None:
    run = run_of(2.0, 666)
    floor = made_run({1: (16.0, 16.0, 8.0)}).measurements[0]
    run.measurements += (type(floor)(1, "batch", "permuted", floor.separation, floor.nearest),)
    assert number(run, "final-D-over-permuted") == 0.25
