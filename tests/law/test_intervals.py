"""Errors over groups of documents, and one summary over several networks."""

import math

import numpy as np
import pytest

from layerlaw.errors import InputError
from layerlaw.law import fit_law, law_errors, laws_across


def test_jackknife_errors_agree_with_a_computation_by_hand() -> None:
    values = [0.9, 0.86, 0.85, 0.80, 0.79]
    without = np.array([values] * 4).T * np.exp(np.random.default_rng(1).normal(0, 0.01, (5, 4)))
    fit = fit_law(values, quantity="PR")
    errors = law_errors(fit, without.tolist())
    slopes = [np.polyfit(np.arange(5), np.log(column), 1)[0] for column in without.T]
    se = np.sqrt(3 / 4 * np.sum((slopes - np.mean(slopes)) ** 2))
    assert errors.log_rho == pytest.approx(se)
    t = 3.182446305  # Student's t with 3 degrees of freedom
    assert errors.t == pytest.approx(t)
    assert errors.rho_interval == pytest.approx((fit.rho * np.exp(-t * se), fit.rho * np.exp(t * se)))
    z = [np.arctanh(np.corrcoef(np.arange(5), np.log(column))[0, 1]) for column in without.T]
    assert errors.fisher_z == pytest.approx(np.sqrt(3 / 4 * np.sum((z - np.mean(z)) ** 2)))
    center = np.arctanh(fit.pearson)
    assert errors.pearson_interval == pytest.approx(
        np.tanh([center - t * errors.fisher_z, center + t * errors.fisher_z])
    )
    steps = np.diff(np.log(without), axis=0)
    assert errors.steps == pytest.approx(np.sqrt(3 / 4 * ((steps - steps.mean(1, keepdims=True)) ** 2).sum(1)))
    assert len(errors.residuals) == 5


def covered(ripple: float, noise: float, *, trials: int = 300) -> tuple[float, float]:
    """How often the intervals of ρ and r hold their true values, over groups with a common and an own error."""
    rng = np.random.default_rng(2)
    points, g = 12, 8
    x = np.arange(points)
    truth = 1.2 - 0.02 * x + ripple * np.sin(x)
    rho, r = math.exp(np.polyfit(x, np.log(truth), 1)[0]), np.corrcoef(x, np.log(truth))[0, 1]
    hits = np.zeros(2)
    for _ in range(trials):
        groups = truth[:, None] * (1 + rng.normal(0, 0.02, (1, g)) + rng.normal(0, noise, (points, g)))
        total = groups.sum(1)
        errors = law_errors(fit_law(total / g, quantity="PR"), ((total[:, None] - groups) / (g - 1)).tolist())
        (a, b), (c, d) = errors.rho_interval, errors.pearson_interval
        hits += [a < rho < b, c < r < d]
    return tuple(hits / trials)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    assert covered(0.02, 0.01) == pytest.approx((0.95, 0.95), abs=0.04)


def test_noise_pulls_r_towards_zero_and_its_interval_with_it() -> None:
    rho, r = covered(0.004, 0.03)
    assert rho == pytest.approx(0.95, abs=0.04)
    assert r < 0.5  # as LawErrors says: an interval of r at this much text


@pytest.mark.parametrize(
    "left_out",
    [
        [[], [], []],
        [[1.0], [1.0], [1.0]],
        [[1.0, 2.0]] * 2,
        [[1.0, None]] * 3,
        [[1.0, 0.0]] * 3,
        [[1.0, 1.0], [1.0], [1.0, 1.0]],
    ],
    ids=["none", "one group", "a point missing", "a hole", "a zero", "ragged"],
)
def test_without_groups_there_are_no_errors(left_out) -> None:
    assert law_errors(fit_law([4.0, 2.0, 1.1]), left_out) is None


def test_a_perfect_line_has_an_interval_for_rho_but_none_for_r() -> None:
    errors = law_errors(fit_law([4.0, 2.0, 1.0]), [[4.0, 8.0], [2.0, 4.0], [1.0, 2.0]])
    assert errors.pearson_interval is None
    assert errors.fisher_z is None
    assert errors.rho_interval == pytest.approx((0.5, 0.5))


# --- across networks ------------------------------------------------------------------------------------------------


def networks(n: int, spread: float, steps: tuple[float, ...] = (1.0,) * 7, seed: int = 0) -> list:
    rng = np.random.default_rng(seed)
    return [
        fit_law(np.exp(-np.cumsum([0.0, *(np.array(steps) * (1 + rng.normal(0, spread, len(steps))))])))
        for _ in range(n)
    ]


def test_the_summary_agrees_with_a_computation_by_hand() -> None:
    fits = networks(5, 0.1)
    across = laws_across(fits)
    t = 2.7764451  # Student's t with 4 degrees of freedom
    slopes = [fit.slope for fit in fits]
    half = t * np.std(slopes, ddof=1) / math.sqrt(5)
    assert across.rho == pytest.approx([math.exp(np.mean(slopes) + x) for x in (0, -half, half)])
    assert across.evenness.mean == pytest.approx(np.mean([fit.effective_layers / 7 for fit in fits]))
    assert across.trend.mean == pytest.approx(math.exp(np.mean([math.log(fit.trend) for fit in fits])))
    assert (across.networks, across.holds, across.below_chance) == (5, 5, 5)
    first = [7 * fit.shares[0] for fit in fits]
    half = 2.1318468 * np.std(first, ddof=1) / math.sqrt(5)  # 95 % one-sided
    assert across.steps[0] == pytest.approx((np.mean(first), np.mean(first) - half, np.mean(first) + half))
    assert across.equal_steps
    assert across.sentence.startswith("The law holds in 5 of 5 networks (ρ 0.3")
    assert across.sentence.endswith("every one is within a factor of 2 (5 % level).")


def test_equal_steps_are_claimed_wrongly_in_at_most_five_percent() -> None:
    """One step is exactly twice the even one: to call it within a factor of 2 is an error, and rare."""
    steps = (2.0, *([5 / 6] * 6))
    wrong = sum(laws_across(networks(8, 0.15, steps, seed)).equal_steps for seed in range(400))
    assert wrong <= 0.08 * 400


def test_a_step_that_differs_is_seen_across_networks_and_not_averaged_away() -> None:
    across = laws_across(networks(8, 0.1, (3.0, *([4 / 6] * 6))))
    assert across.equal_steps is False
    assert "not every one is shown to be within a factor of 2" in across.sentence
    assert across.steps[0].mean == pytest.approx(3, rel=0.1)


def test_one_network_has_no_interval() -> None:
    across = laws_across([fit_law([8.0, 4.0, 2.0, 1.0])])
    assert (across.rho.low, across.rho.high, across.equal_steps) == (None, None, None)
    assert across.sentence == "The law holds in 1 of 1 networks (ρ 0.5, evenness 1, trend 1)."


def test_networks_in_which_nothing_falls_are_counted_too() -> None:
    across = laws_across([fit_law([8.0, 4.0, 2.0, 1.0]), fit_law([1.0, 2.0, 3.0, 4.0])])
    assert (across.holds, across.steps, across.evenness, across.trend) == (1, None, None, None)
    assert across.pearson is not None


@pytest.mark.parametrize("fits", [[], [fit_law([2.0, 1.0, 0.5]), fit_law([2.0, 1.0])]])
def test_only_laws_of_one_length_are_summarized(fits) -> None:
    with pytest.raises(InputError, match="expected laws over the same number of points"):
        laws_across(fits)
