"""Claims, and how often chance would pass them."""

import numpy as np
import pytest

from layerlaw.experiments.numbers import Claim, above, between, does_not_hold, holds, power, row, within
from layerlaw.law import fit_law


def test_a_missing_number_has_a_reason() -> None:
    lost = row("r", [None, None], above(0, -0.99), reason="diverged in epoch 3")
    assert (lost.ours, lost.reproduced, lost.reason) == (None, False, "diverged in epoch 3")
    part = row("r", [None, -1.0], within(-1.0, 0.1))
    assert (part.ours, part.reproduced) == (-1.0, True)
    assert "1 of 2" in part.tolerance


def test_the_chance_of_a_tolerance_is_the_share_of_other_networks_that_pass() -> None:
    found = row("rho", [0.5, 0.52], within(0.5, 0.05), among=[0.5, 0.54, 0.6, 0.9, None])
    assert (found.reproduced, found.kind, found.chance, found.counted) == (True, "number", 0.5, False)
    assert row("rho", [0.5], within(0.5, 0.05), among=[0.5, 0.6, 0.7, 0.8, 0.9]).counted
    assert row("loss", [1.0], between(0.5, 2.0, 1.0)).chance is None


def test_a_t_test_passes_by_chance_in_five_percent() -> None:
    rng = np.random.default_rng(0)
    passed = [row("d", rng.normal(size=5).tolist(), above(0)).reproduced for _ in range(2000)]
    assert np.mean(passed) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("n", [1, 3, 10])
def test_random_splits_are_taken_for_a_law_no_more_often_than_said(n: int) -> None:
    rng = np.random.default_rng(n)
    claim, passed = holds(), []
    for _ in range(300):
        curves = np.exp(-np.cumsum(rng.exponential(size=(n, 4)), 1))
        passed.append(row("law", [float(fit_law([1.0, *curve]).holds) for curve in curves], claim).reproduced)
    chance = row("law", [1.0] * n, claim).chance
    assert chance == pytest.approx({1: 0.05, 3: 0.00725, 10: 0.0}[n], abs=1e-3)
    assert np.mean(passed) <= chance + 0.03


def test_that_a_law_is_missed_is_the_chance_of_a_claim_of_none() -> None:
    assert row("x", [0.0], does_not_hold(19)).chance < 0.01
    few = row("x", [0.0], does_not_hold(3)).chance
    assert few == pytest.approx(1 - power(3))
    assert row("x", [0.0, 0.0, 1.0], does_not_hold(19)).reproduced is True
    assert row("x", [1.0, 0.0, 1.0], does_not_hold(19)).reproduced is False
    assert power(3, 7) < power(3)


def test_another_kind_of_the_same_claim() -> None:
    assert row("x", [1.0], holds().of("other model")).kind == "other model"
    assert row("x", [1.0], Claim("words")).kind is None


def test_the_chance_of_a_best_network_counts_every_network_it_was_chosen_from() -> None:
    rate = 1 - 0.95**5
    assert holds(best_of=5).chance(3) == pytest.approx(3 * rate**2 * (1 - rate) + rate**3)
    generator = np.random.default_rng(3)
    curves = np.exp(-np.cumsum(np.pad(generator.exponential(size=(5_000, 3)), ((0, 0), (1, 0))), 1))
    passed = np.array([fit_law(curve).holds is True for curve in curves]).reshape(-1, 5).any(1)
    assert passed.mean() <= rate + 0.03  # random splits, three steps
