"""The one-standard-error rule and the caveats, on tables whose answer is known."""

import math
from dataclasses import replace

import pytest
from advice_candidates import candidate, trial

from layerlaw.advice import Candidate, Choice
from layerlaw.advice.candidates import Guess, by_rate, decide
from layerlaw.errors import LayerlawError
from layerlaw.pages.sheets.scales import y_scale


def logs(*values: float) -> list[float]:
    return [math.exp(value) for value in values]


def test_a_smaller_candidate_within_one_standard_error_is_recommended() -> None:
    # Differences of log D to the best, seed by seed: .0, .1, .2 → mean .1, s.d. .1, standard error .1/√3 = .0577 < .1.
    far = candidate(4, trial(logs(0.0, 0.1, 0.2)))
    # −.2, .1, .2 → mean .0333, s.d. .2082, standard error .1202 ≥ .0333.
    near = candidate(6, trial(logs(-0.2, 0.1, 0.2)))
    best = candidate(8, trial(logs(0.0, 0.0, 0.0)))
    assert decide([far, near, best]) == (best, near)
    assert decide([best, far]) == (best, best)


def test_pairing_matters_not_the_spread_of_the_seeds() -> None:
    """All seeds of the deep network are better by .1, whatever the seed: no standard error covers that."""
    shallow, deep = candidate(3, trial(logs(1.1, 2.1, 3.1))), candidate(9, trial(logs(1.0, 2.0, 3.0)))
    assert decide([shallow, deep]) == (deep, deep)


def test_a_difference_of_exactly_one_standard_error_counts_as_as_good() -> None:
    # Differences 0 and 2: mean 1, s.d. √2, standard error 1.
    small, best = candidate(3, trial(logs(0.0, 2.0))), candidate(5, trial(logs(0.0, 0.0)))
    assert decide([small, best])[1] is small


def test_one_seed_has_no_standard_error_and_the_lowest_is_taken() -> None:
    small, best = candidate(3, trial([1.001])), candidate(5, trial([1.0]))
    choice = Choice.of("depth", [small, best])
    assert choice.recommended is choice.best is best
    assert any("One seed has no standard error" in line for line in choice.caveats)
    two = Choice.of("depth", [candidate(3, trial([2.0, 2.1])), candidate(5, trial([1.0, 1.1]))])
    assert any("2 seeds give a poor standard error" in line for line in two.caveats)


def test_the_learning_rate_is_chosen_by_validation_accuracy_then_loss_and_never_by_separation() -> None:
    low_D = trial([0.1] * 3, [0.70] * 3, rate=0.003)
    accurate = trial([9.0] * 3, [0.81, 0.80, 0.82], rate=0.001)
    assert candidate(4, low_D, accurate).trial is accurate
    same = trial([5.0] * 3, [0.82, 0.81, 0.80], rate=0.01, loss=0.4)  # the same hits in another order, a lower loss
    assert candidate(4, accurate, same).trial is same
    assert candidate(4, same, accurate).trial is same


def test_a_rate_at_which_a_seed_diverged_is_passed_over() -> None:
    broken, sound = trial([1.0, None, 1.0], [0.9] * 3, rate=0.1), trial([2.0] * 3, [0.7] * 3, rate=0.01)
    deep = candidate(4, broken, sound)
    assert deep.trial is sound
    assert deep.failed == 1
    choice = Choice.of("depth", [deep, candidate(5, trial([None, None, 1.0])), candidate(6, trial([4.0] * 3))])
    assert choice.recommended is deep  # depth 5 cannot be paired
    assert any("3 of 12 runs diverged" in line and "depth 5 could not be compared" in line for line in choice.caveats)


def test_all_diverged_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(LayerlawError, match="Use lower learning rates"):
        decide([candidate(3, trial([None, None])), candidate(4, trial([None, 1.0]))])


def test_losing_accuracy_against_the_most_accurate_candidate_is_told() -> None:
    best = candidate(8, trial([1.0] * 3, [0.80, 0.81, 0.82]))
    accurate = candidate(4, trial([2.0] * 3, [0.84, 0.85, 0.86]))
    choice = Choice.of("depth", [accurate, best], validation=200)
    assert choice.recommended is best
    assert "depth 4 has the best validation accuracy, 85.0%, 4.0 ± 0.0 points above depth 8" in choice.caveats[0]
    assert choice.headline.startswith(
        "By D take depth 8; by validation accuracy take depth 4 (85.0 against 81.0%). Depth 8 has the lowest final D, 1.00"
    )
    assert choice.by_accuracy is accurate
    assert choice.to_dict()["recommended_by_accuracy"] == "depth 4"
    assert "200 validation samples alone leave an accuracy open to ±2.8" in choice.caveats[0]
    noisy = candidate(4, trial([2.0] * 3, [0.90, 0.70, 0.84]))  # mean .813: ahead by .003 ± .06
    assert not any("disagree" in line for line in Choice.of("depth", [noisy, best]).caveats)
    one = [candidate(4, trial([2.0], [0.83])), candidate(8, trial([1.0], [0.81]))]
    assert Choice.of("depth", one, validation=200).by_accuracy is None  # 2 points, and 200 samples leave ±2.8 open
    assert Choice.of("depth", one, validation=2000).by_accuracy is one[0]


def test_the_minimum_at_the_edge_of_the_range_is_told() -> None:
    table = [candidate(d, trial([D] * 3)) for d, D in ((3, 4.0), (5, 2.0), (7, 1.0))]
    assert any("upper end of the range, depth 7" in line for line in Choice.of("depth", table).caveats)
    table = [candidate(d, trial([D] * 3)) for d, D in ((3, 4.0), (5, 1.0), (7, 2.0))]
    assert not any("end of the range" in line for line in Choice.of("depth", table).caveats)


def test_a_network_that_has_not_fitted_its_data_is_told() -> None:
    table = [candidate(3, trial([2.0] * 3, fitted=0.95)), candidate(5, trial([1.0] * 3, fitted=0.97))]
    assert any("97.0% of the training data" in line and "2 of 2" in line for line in Choice.of("depth", table).caveats)


def test_a_choice_that_the_learning_rate_makes_is_told() -> None:
    """Depth 8 is best at either rate, but its chosen rate spoils it."""
    spoiled = candidate(8, trial([1.0] * 3, [0.7] * 3, rate=0.001), trial([9.0] * 3, [0.8] * 3, rate=0.003))
    other = candidate(4, trial([2.0] * 3, [0.8] * 3, rate=0.001), trial([10.0] * 3, [0.7] * 3, rate=0.003))
    choice = Choice.of("depth", [other, spoiled])
    assert choice.recommended is other
    assert by_rate([other, spoiled]) == {0.001: spoiled, 0.003: spoiled}
    assert any("depth 8 at 0.001, depth 8 at 0.003" in line for line in choice.caveats)


def test_widths_are_told_with_their_noise_floors() -> None:
    narrow = Candidate("width 20", (20,) * 5, 2000, (trial([2.0] * 3, floor=2000),))  # .001 of its floor
    wide = Candidate("width 500", (500,) * 5, 9000, (trial([1.0] * 3, floor=100),))  # .01 of its floor
    choice = Choice.of("width", [narrow, wide])
    assert choice.recommended is narrow  # by D itself it would be the wide one
    assert choice.headline.startswith(
        "Take width 20: it has the lowest D over its noise floor (the last widths differ), 0.001"
    )
    assert any("D with shuffled labels: 100 to 2,000" in line for line in choice.caveats)
    assert any("D itself is lowest at width 500, 1.00 against 2.00 at width 20" in line for line in choice.caveats)
    assert choice.sheet().panels[0].series[-1].y == pytest.approx((0.001, 0.01))  # type: ignore[union-attr]
    same = replace(wide, trials=(trial([1.0] * 3, floor=2000),))
    assert any("(D with shuffled labels: 2,000)" in line for line in Choice.of("width", [narrow, same]).caveats)
    alike = [replace(c, widths=(50, 100)) for c in (narrow, wide)]
    assert not Choice.of("shape", alike).over_floor


def test_nothing_learned_or_a_rising_D_gives_no_recommendation() -> None:
    guess = Guess(0.1, train=1000, validation=100)  # up to 10 + 3·√(.1·.9/100) = 19% may be luck
    table = [candidate(d, trial([1.0 / d] * 3, [0.18] * 3)) for d in (3, 5)]
    choice = Choice.of("depth", table, validation=100, guess=guess)
    assert choice.recommended is None
    assert "best accuracy 18.0%; guessing reaches 10.0%, and up to 19.0% may be luck" in choice.headline
    assert choice.to_dict()["recommended"] is None
    assert choice.sheet().panels[0].marked is None  # type: ignore[union-attr]
    assert "no recommendation" in choice.sheet().title
    learned = [candidate(d, trial([1.0 / d] * 3, [0.20] * 3)) for d in (3, 5)]
    assert Choice.of("depth", learned, validation=100, guess=guess).recommended is not None
    unfitted = [candidate(d, trial([1.0 / d] * 3, [0.5] * 3, fitted=0.12)) for d in (3, 5)]
    assert "shows on the training data" in Choice.of("depth", unfitted, guess=guess).headline
    rising = Choice.of("depth", [candidate(d, trial([40.0 * d] * 3)) for d in (3, 5)])
    assert rising.recommended is None
    assert rising.headline == "No recommendation: D does not fall along depth in any candidate."
    # Lowest over its floor, by accident.
    lost_rank = Candidate("width 10", (10,) * 5, 500, (trial([90.0] * 3, floor=1e6),))
    sound = Candidate("width 50", (50,) * 5, 2000, (trial([2.0] * 3, floor=500),))
    passed_over = Choice.of("width", [lost_rank, sound])
    assert passed_over.recommended is passed_over.best is sound
    assert any("D does not fall along depth at width 10: left out" in line for line in passed_over.caveats)


def test_curves_of_other_rates_are_not_cut_off_by_the_axis() -> None:
    table = [candidate(d, trial([1.0] * 3), trial([1e-4] * 3, [0.7] * 3, rate=0.1)) for d in (3, 5)]
    for panel in Choice.of("depth", table).sheet().panels:
        scale = y_scale(panel)  # type: ignore[arg-type]
        assert scale is not None
        assert all(scale.low < v < scale.high for s in panel.series for v in s.y if v is not None)  # type: ignore[union-attr]


def test_headline_and_dictionary_give_the_numbers() -> None:
    near = candidate(6, trial(logs(-0.2, 0.1, 0.2), [0.80, 0.81, 0.82]))
    best = candidate(8, trial(logs(0.0, 0.0, 0.0)))
    choice = Choice.of("depth", [near, best], test_accuracies=(0.7, 0.8))
    assert choice.headline.startswith(
        "Take depth 6: it is the smallest whose final D, 1.03 [0.819, 1.22] over 3 seeds, is within one standard error of "
        "the lowest (1.00 at depth 8); validation accuracy 81.0 ± 0.6%, learning rate 0.001."
    )
    assert choice.sentences[-1].endswith("depth 6 is right in 75.0 ± 5.0%.")
    row = choice.to_dict()["candidates"][0]
    assert row["separation"] == pytest.approx(math.exp(0.1 / 3))
    assert row["accuracy_error"] == pytest.approx(0.01 / math.sqrt(3))
    assert row["pearson"] == pytest.approx(-1)
    assert row["effective_layers"] == pytest.approx(5)
    assert row["separation_over_permuted"] == pytest.approx(math.exp(0.1 / 3) / 500)
    assert choice.to_dict()["test_accuracy"] == pytest.approx(0.75)


def test_the_sheet_shows_final_separation_and_accuracy_with_the_recommended_one_marked() -> None:
    table = [candidate(d, trial([D, 2 * D], [0.8, 0.9])) for d, D in ((3, 4.0), (5, 1.0), (7, 2.0))]
    above, below = Choice.of("depth", table).sheet().panels
    assert above.marked == below.marked == 5
    series = above.series[-1]
    assert series.x == (3, 5, 7)
    assert series.low == pytest.approx((4, 1, 2))
    assert series.high == pytest.approx((8, 2, 4))
    assert below.series[-1].y == pytest.approx((0.85,) * 3)
    shapes = Choice.of("shape", table).sheet().panels
    assert [s.label for s in shapes[0].series] == ["depth 3", "depth 5", "depth 7"]
