"""When things happen, and the numbers around a law: hand-computed answers."""

from dataclasses import replace

import numpy as np
import pytest
from experiments_recorded import made_run

from layerlaw.experiments.drawing import epoch_series, law_panel
from layerlaw.experiments.moments import (
    emergence,
    interpolation,
    measured_epochs,
    scaled,
    settling,
    since,
    spearman,
)
from layerlaw.experiments.numbers import Claim, random_split_r, row
from layerlaw.experiments.runs import NO_RUN, Runs, holds, number
from layerlaw.law import fit_law

STRAIGHT, BENT = (16.0, 8.0, 4.0, 2.0, 1.0), (16.0, 15.9, 15.8, 7.8, 1.0)
RISING = (1.0, 2.0, 3.0, 4.0, 5.0)


def test_epochs_are_scaled_to_the_length_of_training() -> None:
    assert scaled((600, 0, 100, 101), 600) == (0, 100, 101, 600)
    assert scaled((0, 10, 20, 30, 50, 100, 200, 300, 600), 60) == (0, 1, 2, 3, 5, 10, 20, 30, 60)
    assert scaled((0, 10, 20, 30), 6) == (0,)  # they fall together, and come once


def test_something_holds_since_its_last_interruption() -> None:
    assert since([0, 1, 2, 3], [True, False, True, True]) == 2
    assert since([0, 1, 2], [True, True, True]) == 0
    assert since([0, 1, 2], [True, True, False]) is None
    assert since([], []) is None


def test_a_value_settles_when_it_stays_near_its_last_value() -> None:
    assert settling([0, 5, 9], [3.0, 1.05, 1.0], 0.05) == 5
    assert settling([0, 5, 9], [3.0, 1.06, 1.0], 0.05) == 9
    assert settling([0, 5, 9], [0.96, 1.2, 1.0], 0.05) == 9  # passing by is not staying
    assert settling([0, 5], [None, 1.0], 0.05) == 5
    assert settling([0, 5], [1.0, None], 0.05) is None


def test_the_law_emerges_after_its_last_bend() -> None:
    run = made_run({0: RISING, 10: STRAIGHT, 20: BENT, 30: STRAIGHT, 40: STRAIGHT})
    assert emergence(run) == 30
    assert emergence(made_run({0: STRAIGHT, 10: BENT})) is None
    assert emergence(made_run({0: STRAIGHT, 10: STRAIGHT}, diverged=3)) is None
    assert measured_epochs(run) == [0, 10, 20, 30, 40]
    assert measured_epochs(run, batchnorm="whole") == []


def test_interpolation_is_the_first_probe_without_a_mistake() -> None:
    run = made_run(dict.fromkeys((0, 5, 9, 12), STRAIGHT), accuracy={5: 0.999, 9: 1.0, 12: 0.999})
    assert interpolation(run) == 9
    assert interpolation(made_run({0: STRAIGHT})) is None


def test_spearman_equals_pearson_of_the_ranks() -> None:
    assert spearman([1, 2, 3], [5, 1, -4]) == pytest.approx(-1)
    x, y = [3.0, 1.0, 4.0, 1.0, 5.0], [2.0, 7.0, 1.0, 8.0, 2.0]
    ranks = [2.0, 0.5, 3.0, 0.5, 4.0], [1.5, 3.0, 0.0, 4.0, 1.5]
    assert spearman(x, y) == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert spearman([1, 2, 3], [4, 4, 4]) is None


def test_the_law_holds_in_a_run_beyond_choosing() -> None:
    even = made_run({0: [0.7**layer for layer in range(8)]})
    assert holds(even)
    assert holds(even, 5)
    assert not holds(made_run({0: BENT}))
    assert not holds(made_run({0: RISING}))
    assert not holds(made_run({0: STRAIGHT}, diverged=3))
    nearly = made_run({0: [1.0, 0.42, 0.25, 0.14, 0.0625]})  # five points: even, but choosing among nine does as well
    assert holds(nearly)
    assert not holds(nearly, 9)


def test_a_random_split_is_nearly_straight() -> None:
    for layers, known in ((3, -0.956), (7, -0.968), (19, -0.985)):
        assert random_split_r(layers) == pytest.approx(known, abs=0.002)


def test_trouble_tells_who_and_why() -> None:
    fine, dead = made_run({0: STRAIGHT}, seed=1), made_run({0: (8.0, None, None, 1.0)}, seed=2, learning_rate=0.3)
    lost = made_run({4: STRAIGHT}, seed=3, diverged=2)
    assert Runs([fine]).trouble() == ""
    assert Runs([fine, dead, lost]).trouble() == (
        "lr 0.3, seed 2: D is not defined at layer 1 (of 2 such): the class means coincide; "
        "lr 0.001, seed 3: diverged in epoch 2"
    )


def test_rows_say_why_there_is_no_number() -> None:
    (r,) = Runs([made_run({0: STRAIGHT})]).rows("x", ["pearson"])
    assert (r.name, r.ours) == ("x/pearson", pytest.approx(-1))
    assert Runs([made_run({0: RISING})]).rows("x", ["greenwood-p"])[0].reason == "D does not fall with depth"
    assert Runs().rows("x", ["pearson"])[0].reason == NO_RUN
    (lost,) = Runs([made_run({4: STRAIGHT}, diverged=2)]).rows(
        "x", ["pearson"], {"pearson": Claim("law", lambda r: True)}
    )
    assert (lost.ours, lost.reproduced) == (None, False)
    assert "diverged in epoch 2" in lost.reason
    assert row("x", [None]).reason == "no run gave a number"


def test_a_number_is_found_by_its_name_in_the_ledger() -> None:
    run = made_run({0: BENT, 4: STRAIGHT}, accuracy={4: 0.75}, modes=("batch",))
    evals = made_run({4: (9.0, 3.0, 1.0, 1 / 3)}, accuracy={4: 0.25}, modes=("running",)).measurements
    tests = [replace(m, split="test", separation=(4.0, 3.0, 2.0, 1.5)) for m in run.measurements]
    floor = replace(run.measurements[-1], split="permuted", separation=(8.0, 8.0, 8.0, 4.0))
    run.measurements += (*evals, *tests, floor)
    assert number(run, "rho") == number(run, "train-rho") == pytest.approx(0.5)
    assert number(run, "rho-eval") == pytest.approx(1 / 3)
    assert number(run, "half-life") == pytest.approx(1)
    assert number(run, "pearson", epoch=0) == pytest.approx(fit_law(BENT).pearson)
    assert number(run, "test-pearson") == pytest.approx(fit_law((4.0, 3.0, 2.0, 1.5)).pearson)
    assert (number(run, "final-D"), number(run, "last-D-eval")) == (1.0, pytest.approx(1 / 3))
    assert (number(run, "final-D-permuted"), number(run, "final-D-over-permuted")) == (4.0, 0.25)
    assert number(run, "train-accuracy") == 0.25  # in eval mode
    assert number(made_run({4: STRAIGHT}, diverged=2), "rho") is None
    with pytest.raises(AttributeError):
        number(run, "person")


def test_a_course_has_mean_and_range_and_leaves_out_the_diverged() -> None:
    runs = [
        made_run({0: STRAIGHT, 10: BENT}),
        made_run({0: BENT, 10: BENT}),
        made_run({0: RISING, 10: RISING}, diverged=1),
    ]
    series = epoch_series("D", Runs(runs), [0, 10], lambda run, epoch: run.measurement(epoch=epoch).separation[1])
    assert (series.y, series.low, series.high) == ((11.95, 15.9), (8.0, 15.9), (15.9, 15.9))


def test_a_panel_without_a_law_still_shows_where_d_is_known() -> None:
    panel = law_panel("dead", Runs([made_run({0: (8.0, 4.0, None, 1.0)})]))
    assert [series.y for series in panel.series] == [(8.0, 4.0, None, 1.0)]
    assert panel.note == "no law can be fitted"
    assert law_panel("lost", Runs([made_run({4: STRAIGHT}, diverged=2)])).note == "diverged in epoch 2"
