"""Sentences for language models made by hand: the held-out residual leads, nothing is oversold."""

import numpy as np
import pytest
from models_by_hand import LINE, SHAPE, model

from layerlaw.law import fit_law, law_errors
from layerlaw.record import Record
from layerlaw.verdict import judge
from layerlaw.verdict.steps import final_rise, is_early, plateau, same_everywhere, spread
from layerlaw.verdict.targets import targets


def words(record: Record) -> str:
    return str(judge(record))


def test_a_straight_line_is_the_law_on_this_text() -> None:
    verdict = judge(model(LINE))
    assert verdict.headline.startswith(
        "The law holds on this text: every block takes about the same share of log held-out PR ("
    )
    assert "r = −1.000 over 30 blocks, −1.000 without the last, ρ = 0.9965 per block" in verdict.headline
    assert "evenness 1.00, trend 1.00, Greenwood p < 0.0001" in verdict.headline
    assert not any("curve" in line or "plateau" in line or "rises" in line for line in verdict.findings)


def test_uneven_single_steps_are_not_called_the_same_share() -> None:
    logs = np.cumsum([0.0, *(0.004 * (1 + 2 * np.sin(np.pi * i / 28)) for i in range(29))])  # 1 → 3 → 1
    headline = judge(model([float(v) for v in 0.9 * np.exp(-logs)])).headline
    assert headline.startswith(
        "The law holds on this text as a whole: log held-out PR falls on a line, but single steps are 0.45 to "
    )


def test_what_is_said_of_the_residual_in_sample_has_the_same_rule() -> None:
    assert "(r = −1.000, −1.000 without the last block; the law holds)." in words(model(LINE))
    assert "; the law does not hold)." in words(model(SHAPE))
    assert "the law" not in words(model(LINE, settings={"tokens_per_feature": 7.0}))


def test_the_held_out_residual_leads_and_the_one_in_sample_stands_beside_it() -> None:
    record = model(LINE)
    for i, site in enumerate(record.sites[1:]):
        site.values["residual"] = 0.5 + 0.001 * i  # in-sample it would rise
    text = words(record)
    assert text.startswith("The law holds")
    assert (
        "Held out, PR goes from 0.900 to 0.813; in-sample, as the paper takes it, from 0.500 to 0.529 (r = +1.000"
        in text
    )


def test_without_groups_the_residual_in_sample_is_judged_and_said_to_be() -> None:
    text = words(model(LINE, groups=None))
    assert "log in-sample PR" in text
    assert "nothing is held out" in text
    assert "jackknife" not in text


def test_plateau_curve_and_rise_are_told() -> None:
    text = words(model(SHAPE))
    assert text.startswith(
        "The law does not hold on this text: held-out PR falls with depth as a whole, but it rises at 3 of 29 steps; "
    )
    assert "The residuals of the line are not random: lag-1 correlation +0." in text
    assert "It is a curve, not noise: " in text
    assert (
        "PR rises at block 28 (by 1.00%), block 29 (by 1.00%), block 30 (by 1.00%); 3 of 3 by more than two standard errors."
        in text
    )
    assert "A plateau: the 8 blocks from 2 to 9" in text
    assert "PR is lowest at block 27 and higher at the end" in text
    assert "The early blocks from 2 to 9 bring the target hardly nearer to a linear reader." in text
    assert "measure the loss without it" in text
    assert "The law holds" not in text


def test_what_errors_could_explain_is_not_called_a_curve() -> None:
    text = words(model(SHAPE, groups=0.5))
    assert "it may be noise" in text
    assert "none by more than two standard errors" in text


def test_a_residual_that_rises_is_no_law() -> None:
    text = words(model(LINE[::-1]))
    assert text.startswith("No law: held-out PR does not fall with depth (r = +1.000")
    assert "plateau" not in text


@pytest.mark.parametrize(
    ("null", "said"),
    [
        (
            [0.9 * 1.002**i for i in range(30)],
            "PR rises with depth (r = +1.000, 0.900 to 0.954); the fall was learned.",
        ),
        ([0.95 * 0.998**i for i in range(30)], "PR falls with depth (r = −1.000, 0.950 to 0.896), 57% of the slope"),
        ([0.95] * 30, "PR hardly moves (0.950 to 0.950); the fall was learned."),
    ],
)
def test_the_untrained_model_is_reported_with_its_sign(null: list[float], said: str) -> None:
    text = words(model(LINE, residual_held_out_untrained=null))
    assert f"The same model untrained: {said}" in text
    assert "null=True" not in text
    assert "null=True" in words(model(LINE))


def test_a_residual_of_one_or_more_is_worse_than_the_mean() -> None:
    assert "At blocks 1, 2 held-out PR is 1 or more" in words(model([1.02, 1.0, *LINE[2:]]))
    assert "At every block held-out PR is 1 or more" in words(model([1.05] * 3 + [1.04] * 5))


@pytest.mark.parametrize(
    ("each", "said"), [(200.0, ""), (30.0, "30 tokens per feature: the shape"), (7.0, "Only 7.0 tokens per feature")]
)
def test_too_few_tokens_are_said(each: float, said: str) -> None:
    text = words(model(LINE, settings={"tokens_per_feature": each}))
    assert said in text
    assert ("Use more tokens: about 1,600 of them give 100 predicted ones per feature." in text) is bool(said)
    assert "50" not in text


def test_what_the_notes_say_is_not_said_twice() -> None:
    text = words(model(LINE, settings={"tokens_per_feature": 7.0}, notes=["Only 7.0 tokens per feature (…)."]))
    assert "Only 7.0 tokens" not in text


@pytest.mark.parametrize("task", ["masked", "span"])
def test_another_task_is_named(task: str) -> None:
    assert f"(task '{task}'); not the next token" in words(model(LINE, settings={"task": task}))
    assert "Predicted here" not in words(model(LINE))
    assert ("decoder" in words(model(LINE, settings={"task": task}))) is (task == "span")


def test_other_targets_stand_in_one_line() -> None:
    up = LINE[::-1]
    text = words(
        model(
            LINE, rank=[16.0] * 30, residual_rank=LINE, residual_rank_held_out=up, residual_rank_log_se=LINE,
            residual_previous=up, residual_shuffled_1=LINE, residual_shuffled_2=up, separation=LINE,
        )
    )  # fmt: skip
    assert "r with other targets: frequency rank +1.000, previous token +1.000, " in text  # held out where it was
    assert "shuffled ids −1.000 … +1.000 (2 vocabularies)." in text
    assert "Of 4 other targets the law holds for 1 of 2 shuffled vocabularies." in text
    assert "Separation D of the most frequent tokens as classes: r = −1.000." in text


def test_classes_of_the_separation_are_counted() -> None:
    said = words(model(LINE, separation=LINE, settings={"classes": 50, "tokens": 3200}))
    assert "Separation D of the 50 most frequent tokens as classes: r = −1.000." in said
    said = words(model(LINE, separation=LINE, settings={"classes": 50, "tokens": 600}))
    assert (
        "Separation D of the 50 most frequent tokens as classes: r = −1.000; with at most 12 samples per class on "
        "average D is mostly noise." in said
    )


def test_targets_are_told_from_their_columns() -> None:
    assert targets(model(LINE, rank=LINE, residual_onehot=LINE, residual_onehot_held_out_untrained=LINE)) == ["onehot"]


def test_a_fall_and_a_rise_that_cancel_are_no_plateau() -> None:
    assert plateau(fit_law([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.6, 0.7], quantity="PR")) is None
    assert plateau(fit_law(LINE)) is None


def test_a_rise_at_the_end_begins_at_the_lowest_value() -> None:
    rise = final_rise(fit_law([1.0, 0.9, 0.8, 0.85, 0.84]))
    assert rise is not None
    assert (rise.first, rise.last) == (2, 3)
    assert final_rise(fit_law(LINE)) is None
    assert final_rise(fit_law(LINE[::-1])) is None


@pytest.mark.parametrize(
    "record",
    [
        model([0.9]), model([]), model([0.9, 0.0, 0.8], groups=None),
        Record(name="m", kind="language model", sites=[], classes=[]),
    ],
    ids=["one block", "no block", "zero", "empty"],
)  # fmt: skip
def test_what_cannot_be_fitted_is_said(record: Record) -> None:
    assert judge(record).headline.startswith("No law can be fitted: ")


@pytest.mark.parametrize("values", [[0.9, 0.8], [0.9, 0.9], [0.9, 0.9, 0.9], [0.9, 0.85, 0.8]])
def test_few_blocks_are_never_called_a_law(values: list[float]) -> None:
    text = words(model(values))
    assert "The law holds" not in text
    assert "Nearly" not in text


# Eight blocks: much at the second, a plateau of three, then even steps.
EARLY = [0.95, 0.90, 0.8998, 0.8996, 0.8994, 0.85, 0.80, 0.75]


def test_the_advice_names_the_blocks_of_the_plateau_and_not_those_before_it() -> None:
    text = words(model(EARLY, groups=1e-5))
    assert "A plateau: the 3 blocks from 3 to 5" in text
    assert "The early blocks from 3 to 5 bring" in text


def test_a_plateau_beyond_the_first_half_is_not_called_early() -> None:
    values = [0.95, 0.90, *[0.8998 - 1e-4 * i for i in range(6)], 0.80]
    fit = fit_law(values, quantity="PR")
    run = plateau(fit)
    assert run is not None
    assert run.first <= fit.layers / 4
    assert not is_early(run, fit)
    assert "early blocks" not in words(model(values, groups=1e-5))


def with_rise(by: float, tiny: float = 0.0) -> list[float]:
    """Eight blocks, uneven steps; a rise at h.5 and, if wanted, a tiny one at h.3."""
    logs = np.cumsum([0.0, -0.05, -0.02, np.log1p(tiny) if tiny else -0.01, -0.01, np.log1p(by), -0.03, -0.001])
    return [float(v) for v in 0.95 * np.exp(logs)]


def test_rises_too_small_to_count_are_named_as_such() -> None:
    verdict = judge(model(with_rise(0.0022, 0.0009), groups=1e-5))
    assert "but it rises at 1 of 7 steps; " in verdict.headline
    assert "PR rises at block 6 (by 0.22%); 1 of 1 by more than two standard errors." in verdict.findings
    assert "Rises of 0.1% or less are not counted: at block 4." in verdict.findings
    assert "not counted" not in words(model(with_rise(0.0022), groups=1e-5))


def test_the_step_from_the_embedded_input_is_said_not_to_be_counted() -> None:
    record = model(LINE)
    record.sites[0].values["residual_held_out"] = 0.89
    assert "from the embedded input to block 1, PR rises by 1.12%; that is no step of the law." in words(record)


def test_a_headline_says_so_when_its_rises_are_within_error() -> None:
    headline = judge(model(with_rise(0.0022), groups=0.005)).headline
    assert headline.startswith(
        "The law does not hold on this text: held-out PR falls with depth as a whole, but the blocks share the drop no more "
        "evenly than a random split would; "
    )
    assert "; it rises at 1 of 7 steps, not clearly (" in headline
    nearly = [0.9 * 0.99**i for i in range(30)]
    nearly[20] = nearly[19] * 1.002
    headline = judge(model(nearly, groups=0.005)).headline
    assert headline.startswith(
        "The law holds on this text as a whole: log held-out PR falls on a line, but it rises at 1 of 29 steps, not "
        "clearly, and single steps are −0.2"
    )


def wave(around: float, by: float, tilt: float) -> list[float]:
    """Thirty values that go up and down, with a little tilt along depth."""
    return [around + by * (-1) ** i + tilt * (i - 14.5) / 29 for i in range(30)]


@pytest.mark.parametrize("null", [wave(1.017, 0.004, -0.01), wave(1.0, 0.01, 0.02), wave(0.995, 0.005, 0.005)])
def test_an_untrained_model_near_one_predicts_nothing(null: list[float]) -> None:
    text = words(model(LINE, residual_held_out_untrained=null))
    extremes = f"PR between {min(null):.3f} and {max(null):.3f}"
    assert f"The same model untrained predicts nothing, at any depth ({extremes}); the fall was learned." in text
    assert "PR rises with depth" not in text
    assert "PR falls with depth" not in text


def test_an_untrained_model_has_a_trend_only_beyond_noise() -> None:
    def said(null: list[float], **kinds) -> str:
        return words(model(LINE, residual_held_out_untrained=null, **kinds))

    assert "PR hardly moves (0.90" in said(wave(0.9, 0.0, -0.006))
    assert "PR has no clear trend (0.9" in said(wave(0.9, 0.03, 0.03))
    assert "PR has no clear trend (0.9" in said(wave(0.9, 0.03, 0.0))
    straight = wave(0.9, 0.0, 0.02)
    assert "PR rises with depth (r = +1.000" in said(straight)
    assert "PR has no clear trend (0.890 to 0.910, r = +1.000)" in said(straight, groups=0.05)  # the yardstick is wide


def test_a_fall_is_learned_only_where_it_is_more_than_what_the_untrained_model_does() -> None:
    little = [0.9 * 0.9996**i for i in range(30)]  # by 1.2 % in all
    text = words(model(little, groups=1e-5, residual_held_out_untrained=[0.95 * 0.9997**i for i in range(30)]))
    assert "PR hardly moves (0.950 to 0.942, r = −1.000)." in text
    text = words(model(LINE[::-1], residual_held_out_untrained=[0.95] * 30))
    assert "learned" not in text
    above = [v + 0.4 for v in LINE]  # it falls, but nothing is predicted
    assert "learned" not in words(model(above, residual_held_out_untrained=[1.4] * 30))


@pytest.mark.parametrize("values", [[-1e-14, 1e-12, 3e-13, -2e-15, 1e-12, 0.0], [1e-12, 2e-13, 3e-13, 1e-12, 5e-14]])
def test_a_text_told_exactly_leaves_nothing_to_measure(values: list[float]) -> None:
    verdict = judge(model(values, residual_held_out_untrained=values, notes=["A note."]))
    assert verdict.headline == (
        "The text is predictable to rounding at every block (held-out PR is 0): there is nothing to measure."
    )
    assert (verdict.findings, verdict.advice) == (("A note.",), ())


def test_the_same_residual_at_every_block_has_no_correlation() -> None:
    values = [1.0149 + 1e-6 * i for i in range(12)]
    verdict = judge(model(values, groups=1e-7))
    assert verdict.headline == "No law: held-out PR is the same at every block, 1.0149."
    text = str(verdict)
    assert "r = " not in text
    assert "rises" not in text
    assert "plateau" not in text


def test_little_within_its_errors_is_the_same_much_is_not() -> None:
    values = [0.9, 0.902, 0.899, 0.901, 0.9, 0.902, 0.899, 0.901]
    assert judge(model(values, groups=0.02)).headline == (
        "No law: held-out PR is the same at every block within its errors, 0.8990 to 0.9020."
    )
    assert "the same" not in judge(model(values, groups=1e-5)).headline
    assert "the same" not in judge(model(SHAPE, groups=0.5)).headline


def test_a_trend_beyond_its_errors_is_not_the_same_everywhere() -> None:
    fit = fit_law([0.9 * 0.9998**i for i in range(30)])
    apart = np.array([-1.0, 1.0] * 4)
    jumps = [[float(v * np.exp(0.003 * sign * (-1) ** i)) for sign in apart] for i, v in enumerate(fit.values)]
    errors = law_errors(fit, jumps)
    assert errors is not None
    assert 2 * max(errors.steps) > 0.006 > spread(fit)
    assert errors.rho_interval[1] < 1
    assert not same_everywhere(fit, errors)


def test_two_blocks_and_equal_blocks_are_told_apart() -> None:
    assert judge(model([0.9, 0.8])).headline == "Two blocks make no law (held-out PR 0.900, then 0.800)."
    assert judge(model([0.9, 0.9])).headline == "No law: held-out PR is the same at both blocks, 0.9000."
    assert judge(model([0.9] * 5)).headline == "No law: held-out PR is the same at every block, 0.9000."


def test_before_the_shape_is_read_there_must_be_enough_tokens() -> None:
    assert "PR is lowest at" in words(model(SHAPE, settings={"tokens_per_feature": 30.0}))
    few = judge(model(SHAPE, settings={"tokens_per_feature": 7.0}))
    assert few.headline.startswith("Too few tokens to judge, 7.0 per feature: here held-out PR falls with depth (r = ")
    assert judge(model(LINE, settings={"tokens_per_feature": 7.0})).headline.startswith("Too few tokens to judge")
    assert few.advice[0].startswith("Use more tokens: about 1,600 of them")
    assert not any("PR is lowest at" in line or "early blocks" in line for line in few.advice)


def test_where_nothing_is_predicted_more_tokens_are_the_advice() -> None:
    verdict = judge(model([v + 0.3 for v in SHAPE]))
    assert verdict.headline.startswith("No law: held-out PR is 1 or more at every block, so nothing of unseen text is ")
    assert verdict.advice[0] == "Use more tokens: fitted to these, no block predicts anything of unseen text."
    assert not any("PR is lowest at" in line or "early blocks" in line for line in verdict.advice)


def test_what_the_target_embedding_says_of_a_rise_at_the_end_is_told_where_it_was_measured() -> None:
    falling = [0.9 * 0.99**i for i in range(30)]
    line = next(line for line in judge(model(SHAPE, residual_embedding=falling)).advice if "PR is lowest at" in line)
    assert "with the output embedding as target PR is lowest at the last block. Measure the loss" in line
    line = next(line for line in judge(model(SHAPE, residual_embedding=SHAPE)).advice if "PR is lowest at" in line)
    assert "with the output embedding as target PR is lowest at block 27. Measure the loss" in line


def test_no_shape_is_read_where_there_might_be_no_fall() -> None:
    verdict = judge(model([0.9 - 0.0004 * i + 0.002 * (i > 27) for i in range(30)], groups=0.5))
    assert "since the interval of ρ includes 1" in verdict.headline
    assert not any("PR is lowest at" in line for line in verdict.advice)


def test_of_few_tokens_nothing_is_judged() -> None:
    few = {"tokens_per_feature": 7.0}
    for curve in (SHAPE, [0.9] * 30, LINE, LINE[::-1]):
        verdict = judge(model(curve, settings=few))
        assert verdict.headline.startswith("Too few tokens to judge, 7.0 per feature: here held-out PR ")
        assert not any(word in line for line in verdict.findings for word in ("plateau", "curve", "rises at"))
    ends_higher = judge(model([0.9, 0.8, 0.7, 0.6, 0.65, 0.7, 0.905], settings=few))
    assert "here held-out PR does not fall with depth" in ends_higher.headline
