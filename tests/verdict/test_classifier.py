"""Sentences for records made by hand."""

import dataclasses

import numpy as np
import pytest

from layerlaw.law import fit_law
from layerlaw.law.words import law_numbers_written
from layerlaw.record import Record, SiteRow
from layerlaw.verdict import Verdict, judge, law_holds, workers
from layerlaw.verdict.steps import idle_steps

EVEN = [0.5**i * 40 for i in range(8)]


def record(values: list[float | None], **columns: list[float | None]) -> Record:
    """Sites s0, s1, … with these separations and further columns."""
    sites = [
        SiteRow(f"s{i}", "ReLU", (10,), 10, values={"separation": v} | {name: c[i] for name, c in columns.items()})
        for i, v in enumerate(values)
    ]
    return Record(name="made", sites=sites, classes=["a", "b"], counts=[10, 10])


def words(verdict: Verdict) -> str:
    return str(verdict)


def test_an_even_drop_holds() -> None:
    verdict = judge(record(EVEN))
    assert verdict.headline.startswith("The law holds: ")
    assert verdict.headline.endswith("r = −1.000, evenness 1.00, trend 1.00, Greenwood p < 0.0001).")
    assert any("an even share would be 14%" in line for line in verdict.findings)
    assert "Hardly anything" not in words(verdict)
    assert verdict.advice == ()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([64.0, 32.0, 16.0, 8.0, 4.0, 2.0], "The law holds: every layer takes about the same share of log D ("),
        # steps of ln D 1 → 3 → 1: no trend, even as a whole
        (
            [float(np.exp(-v)) for v in np.cumsum([0, *(1 + 2 * np.sin(np.pi * i / 28) for i in range(29))])],
            "The law holds as a whole: log D falls on a line, but single steps are 0.45 to 1.35 of the even one (",
        ),
        (
            [float(np.exp(-v)) for v in np.cumsum([0, *np.linspace(1, 4.3, 19)])],
            "The law does not hold: D falls with depth as a whole, but the steps grow with depth (",
        ),
        (
            [100.0, 50.0, 25.0, 24.9, 12.0, 12.5, 6.0],
            "The law does not hold: D falls with depth as a whole, but it rises at 1 of 6 layers; the layers share the drop "
            "no more evenly than a random split would; the steps shrink with depth; the steps are uneven (",
        ),
        (
            [8.0, 4.2, 2.6, 1.0],
            "The law is not established: D falls with depth as a whole, but the layers share the drop no more evenly than a "
            "random split would (",
        ),
        ([1.0, 0.99, 0.98, 0.97, 0.96], "No law to speak of: D falls by only 0.04 of its first value over 4 layers ("),
        ([1.0, 2.0, 4.0, 8.0], "No law: D does not fall with depth ("),
        ([4.0, 2.0, 1.0], "Too few points to call it a law: D falls over 3 of them ("),
        ([1.0, 2.0], "Two points make no law: D does not fall, from 1 to 2 ("),
    ],
    ids=["even", "hump", "bent", "rises", "chance", "little", "grows", "three points", "two points"],
)
def test_the_headline_is_the_answer_of_the_fit_with_its_objections(values: list[float], says: str) -> None:
    r = record(values)
    fit, headline = r.law(), judge(r).headline
    assert headline.startswith(says)
    assert law_holds(r, fit) is fit.holds
    assert headline.startswith("The law holds") == (fit.holds is True)
    if fit.holds is None:
        assert not any(word in headline for word in ("evenness", "trend", "Greenwood"))
    elif fit.greenwood_p is not None:
        assert f"evenness {fit.evenness:.2f}" in headline
        assert f"trend {fit.trend:.2f}".replace("inf", "∞") in headline


def test_numbers_are_never_rounded_across_what_is_asked_of_them() -> None:
    shy = next(f for e in np.arange(0.2, 1.2, 1e-4) if 0.795 < (f := fit_law(stepped(e))).evenness < 0.8)
    assert shy.holds is False
    assert float(law_numbers_written(shy)[0]) < 0.8
    bent = next(f for e in np.arange(0.2, 0.5, 1e-5) if 1.75 < (f := fit_law(sloped(e))).trend < 1.7501)
    assert float(law_numbers_written(bent)[1]) > 1.75


def stepped(excess: float) -> np.ndarray:
    """Steps of ln D by turns smaller and larger than 1."""
    return np.exp(-np.cumsum([0.0, *(1 + excess * (-1) ** i for i in range(12))]))


def sloped(slope: float) -> np.ndarray:
    """Steps of ln D that grow evenly with depth."""
    return np.exp(-np.cumsum([0.0, *np.linspace(1 - slope, 1 + slope, 12)]))


def test_rises_within_their_errors_are_no_evidence_against_the_law() -> None:
    values = [100.0, 50.0, 25.0, 12.0, 12.5, 6.0]
    clear = judge(record(values, separation_log_se=[0.001] * 6)).headline
    assert "but it rises at 1 of 5 layers; the layers" in clear
    within = judge(record(values, separation_log_se=[0.1] * 6)).headline
    assert "; it rises at 1 of 5 layers, within its errors (" in within


def test_idle_layers_are_named() -> None:
    values = [100.0, 50.0, 25.0, 24.9, 12.0, 12.5, 6.0]
    r = record(values)
    assert idle_steps(r.law()) == [2]
    assert "Hardly anything happens at 's3'." in words(judge(r))
    assert "D rises at 's5' (by 4.2%)." in words(judge(r))


def test_rises_within_two_standard_errors_are_said_to_be() -> None:
    values = [100.0, 50.0, 25.0, 12.0, 12.5, 6.0]
    assert ", within two standard errors" in words(judge(record(values, separation_log_se=[0.1] * 6)))
    assert "standard errors" not in words(judge(record(values, separation_log_se=[0.001] * 6)))


def test_rounding_is_no_rise() -> None:
    fit = record([8.0, 4.0, 4.0 * (1 + 1e-12), 4.0, 2.0, 1.0]).law()
    assert fit.rising == []
    assert "rises" not in fit.verdict


def test_between_inputs_the_first_layer_does_the_work_between_outputs_the_second() -> None:
    r = record(EVEN)
    assert workers(r.sites)[0] == "s1"
    for site in r.sites:
        site.at = "input"
    assert workers(r.sites)[0] == "s0"


def test_uneven_classes_are_mentioned() -> None:
    r = record(EVEN)
    assert "weighting" not in words(judge(r))
    r.counts = [900, 10]
    assert "The classes have 10 to 900 samples" in words(judge(r))


def test_the_largest_step_is_named() -> None:
    assert "The largest step is at 's2', by a factor of 4.50" in words(judge(record([10.0, 9.0, 2.0, 1.8, 1.5, 1.0])))


def test_many_idle_layers_are_shortened_and_advise_a_shallower_network() -> None:
    values = [100.0, 1.0, *(0.99**i for i in range(1, 9))]
    verdict = judge(record(values))
    assert "'s2', 's3', 's4', 's5' and 4 more" in words(verdict)
    assert "8 of 9 layers do little: a shallower network may do as well." in verdict.advice


def test_separation_near_the_floor_is_warned_of() -> None:
    floor: list[float | None] = [50.0, 50.0, 50.0, 50.0, 3.9, 50.0, None, 50.0]
    text = words(judge(record(EVEN, separation_permuted=floor)))
    assert "At 's0', 's4' D is more than half of what permuted labels give" in text
    assert "noise alone" in text


def test_separation_far_from_the_floor_is_not_warned_of() -> None:
    assert "permuted" not in words(judge(record(EVEN, separation_permuted=[1e4] * 8)))


def test_test_data_are_reported_beside_the_training_data() -> None:
    r = record(EVEN, test_separation=[2 * v for v in EVEN])
    said = f"On test data D is {2 * EVEN[-1]:.3g} at 's7', the last point of the law (train {EVEN[-1]:.3g})."
    assert said in words(judge(r))
    r.test_accuracy = 0.801
    assert "; accuracy 80.1%." in words(judge(r))


def test_test_data_measured_nowhere_are_not_reported() -> None:
    assert "On test data" not in words(judge(record(EVEN, test_separation=[None] * 8)))


def test_a_low_rank_is_flagged() -> None:
    r = record(EVEN, rank=[1.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    r.classes = ["a", "b", "c"]
    assert "At 's0', 's3' the class means span fewer dimensions than they could" in words(judge(r))
    assert "span fewer" not in words(judge(record(EVEN, rank=[1.0] * 8)))


def test_a_dead_layer_is_called_one() -> None:
    verdict = judge(record(EVEN, rank=[1.0] * 6 + [0.0, 0.0]))
    assert verdict.headline == "No law can be fitted: the class means coincide at 's6', 's7' (a dead layer?)."


def test_a_narrow_site_filled_by_its_means_is_not_called_discontinuous() -> None:
    """Fewer features than K−1: SS_b can be inverted there, and D is as continuous as anywhere."""
    r = record(EVEN, full_rank=[0.0] * 8, rank=[1.0] * 8)
    r.classes = ["a", "b", "c"]
    for site in r.sites:
        site.shape, site.features = (1,), 1
    assert "discontinuous" not in words(judge(r))


def test_collapse_at_the_last_site_is_told() -> None:
    columns = {"nc1": [1.0] * 7 + [0.0312], "nc3": [None] * 7 + [0.25], "ncc_mismatch": [0.5] * 7 + [0.015]}
    text = words(judge(record(EVEN, **columns)))
    assert "At 's7': NC1 = 0.0312, NC3 = 0.25, the nearest class center disagrees with the network on 1.5%." in text


def test_rare_rows_are_told_only_where_they_are_clearly_closer() -> None:
    def said(rare: float | None, counts: list[int]) -> str:
        values = {"minority": rare, "majority": -0.16}
        columns = {f"classifier_cosine_{name}": [None] * 7 + [value] for name, value in values.items()}
        columns |= {"classifier_norm_minority": [None] * 7 + [0.5], "classifier_norm_majority": [None] * 7 + [1.7]}
        made = record(EVEN, **columns)
        made.counts = counts
        return words(judge(made))

    assert "mean cosine 0.67 against -0.16; mean norm 0.50 against 1.70" in said(0.67, [500, 5])
    assert "rows of the rare" not in said(-0.10, [500, 5])
    assert "rows of the rare" not in said(None, [500, 5])
    assert "rows of the rare" not in said(0.67, [500, 400])


def test_an_early_right_center_advises_an_exit() -> None:
    r = record(EVEN, ncc_accuracy=[0.5, 0.8, 0.97, 0.992, 1.0, 1.0, 1.0, 1.0])
    r.accuracy, r.counts = 1.0, [50, 50]
    assert any(line.startswith("From 's3' on (site 3 of 7) the nearest class center") for line in judge(r).advice)
    r.sites[5].values["ncc_accuracy"] = 0.9  # it does not stay right
    assert judge(r).advice == ()
    r.sites[5].values["ncc_accuracy"], r.accuracy = 1.0, 0.3  # a network that decides badly
    assert not any(line.startswith("From") for line in judge(r).advice)


def test_data_are_called_by_their_name_and_training_data_only_where_there_are_test_data() -> None:
    r = record(EVEN, ncc_accuracy=[0.5, 0.8, 0.97, 0.992, 1.0, 1.0, 1.0, 1.0])
    r.accuracy, r.counts = 1.0, [50, 50]
    assert any("at least 99% of the data:" in line for line in judge(r).advice)
    r.test_counts = [20, 20]
    assert any("at least 99% of the training data:" in line for line in judge(r).advice)
    r.settings["data_name"] = "CIFAR-10 test"
    assert any("at least 99% of CIFAR-10 test:" in line for line in judge(r).advice)
    assert not any("training" in line for line in str(judge(r)).splitlines())


def test_chance_decisions_on_separated_classes_speak_of_scale_and_scores() -> None:
    r = record(EVEN)
    r.classes, r.counts = [str(k) for k in range(10)], [50] * 10
    for accuracy, told in ((0.12, True), (0.35, False), (None, False)):
        r.accuracy = accuracy
        assert any("hardly better than by chance" in line and "scaled" in line for line in judge(r).advice) == told
    rising = record(list(reversed(EVEN)))
    rising.accuracy, rising.classes = 0.12, r.classes
    assert [line.startswith("D grows with depth, as in networks") for line in judge(rising).advice][-1]


def test_a_late_right_center_advises_nothing() -> None:
    assert judge(record(EVEN, ncc_accuracy=[0.5] * 6 + [0.995, 1.0])).advice == ()


def test_an_untrained_network_shows_what_is_learned() -> None:
    text = words(judge(record(EVEN, separation_untrained=[40.0 + i for i in range(8)])))
    assert "Untrained, D rises from 40 to 47" in text
    assert "the drop is learned" in text
    same = words(judge(record(EVEN, separation_untrained=EVEN)))
    assert "learned" not in same


def test_a_growing_separation_is_explained() -> None:
    verdict = judge(record([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert verdict.headline.startswith("No law")
    assert any("D grows with depth" in line for line in verdict.advice)


def test_sites_outside_the_fit_are_not_judged() -> None:
    r = record([*EVEN, 1e-9])
    r.sites[-1].in_fit = False
    assert judge(r) == judge(record(EVEN))


@pytest.mark.parametrize(
    "r",
    [
        Record(name="empty", sites=[], classes=[]),
        record([1.0]),
        record([None, None]),
        record([1.0, 0.0, 1.0]),
        record([float("nan"), 1.0]),
        Record(
            name="bare", sites=[SiteRow("a", "Linear", (1,), 1), SiteRow("b", "Linear", (1,), 1)], classes=["x", "y"]
        ),
    ],
    ids=["empty", "one site", "nothing measured", "collapsed", "nan", "no columns"],
)
def test_what_cannot_be_fitted_is_said(r: Record) -> None:
    r.notes = ["a note"]
    verdict = judge(r)
    assert verdict.headline.startswith("No law can be fitted: ")
    assert "a note" in verdict.findings


@pytest.mark.parametrize("values", [[2.0, 1.0], [1.0, 2.0], [3.0, 2.0, 1.0], [1.0, 1.0, 1.0], [5.0, 3.0, 2.0, 1.0]])
def test_short_records_are_judged_without_a_crash_and_without_a_law(values: list[float]) -> None:
    text = words(judge(record(values)))
    assert "The law holds" not in text


def test_columns_full_of_nothing_do_not_crash() -> None:
    names = ["nc1", "nc3", "ncc_mismatch", "ncc_accuracy", "full_rank", "separation_permuted", "test_separation"]
    names += ["separation_untrained", "separation_corrected", "separation_log_se"]
    judge(record(EVEN, **{name: [None] * 8 for name in names}))


def test_the_verdict_reads_as_lines() -> None:
    verdict = Verdict("Headline.", ("One.",), ("Two.",))
    assert str(verdict) == "Headline.\n· One.\n· Two."
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.headline = "other"


def collapsing(test: list[float] | None) -> Record:
    """Nearest centers are right on the training data from 's2' on, and on test data as given."""
    right = [0.5, 0.9, 0.995, 0.996, 1.0, 1.0, 1.0]
    columns = {"ncc_accuracy": right} | ({} if test is None else {"test_ncc_accuracy": test})
    made = record(EVEN[:7], **columns)  # type: ignore[arg-type]
    return dataclasses.replace(made, counts=[100, 100], test_counts=[100, 100] * (test is not None), accuracy=1.0)


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (None, "least 99% of the data: a candidate for early exit"),
        (
            [0.5, 0.8, 0.89, 0.9, 0.9, 0.9, 0.9],
            "least 99% of the training data, and on test data within 1 point of that at 's6': a candidate for early exit",
        ),
        (
            [0.5, 0.8, 0.85, 0.87, 0.9, 0.9, 0.9],
            "least 99% of the training data; on test data it is right on 85.0% there and on 90.0% at 's6'. Within 1 point "
            "of that it is only from 's4' on (site 4 of 6): a candidate for early exit",
        ),
        (
            [0.5, 0.8, 0.85, 0.92, 0.8, 0.88, 0.9],
            "least 99% of the training data, but on test data it is right on 85.0% there and on 90.0% at 's6': no candidate",
        ),
    ],
    ids=["no test data", "test data agree", "test data agree later", "test data never agree"],
)
def test_an_early_exit_names_the_same_site_as_the_effective_depth_and_what_test_data_object(
    test: list[float] | None, said: str
) -> None:
    made = collapsing(test)
    [line] = [line for line in judge(made).advice if "early exit" in line]
    assert line.startswith("From 's2' on (site 2 of 6) the nearest class center is right on at ")
    assert said in line
    assert made.effective_depth(0.01) == 2


def test_an_early_exit_is_counted_as_in_the_table_where_other_rows_are_no_points() -> None:
    made = collapsing(None)
    made.sites.insert(1, SiteRow("side", "Conv2d", (4,), 4, in_fit=False, branch=True, values={"ncc_accuracy": 1.0}))
    [line] = [line for line in judge(made).advice if "early exit" in line]
    assert line.startswith("From 's2' on (site 3 of 7) ")
    assert made.effective_depth(0.01) == 3


def test_a_row_of_a_side_branch_is_not_said_to_be_left_out_once_more() -> None:
    made = record(EVEN)
    why = "2 features do not hold the 9 dimensions of 10 class means"
    made.sites.insert(2, SiteRow("se.fc2", "Conv2d", (2, 1, 1), 2, in_fit=False, branch=True, aside=why))
    made.settings["sites"] = "layers"
    assert "Left out" not in words(judge(made))
    made.settings["sites"] = "chosen"  # a user who has named it may wonder
    assert f"Left out of the law: 'se.fc2' is no point: {why}." in judge(made).findings
