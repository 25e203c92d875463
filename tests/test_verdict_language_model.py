"""Sentences for language models made by hand: the held-out residual leads, nothing is oversold."""

import numpy as np
import pytest

from layerlaw.law import fit_law
from layerlaw.record import Record, SiteRow
from layerlaw.verdict import judge
from layerlaw.verdict.plateau import final_rise, plateau
from layerlaw.verdict.targets import targets

LINE = [0.9 * 0.9965**i for i in range(30)]
SHAPE = [0.9] * 8 + [0.9 * 0.993**i for i in range(1, 20)] + [0.9 * 0.993**19 * 1.01**i for i in range(1, 4)]
G = 8


def model(
    values: list[float],
    *,
    groups: float | None = 0.001,
    settings: dict | None = None,
    notes: list[str] | None = None,
    **columns,
) -> Record:
    """Blocks h.0, h.1, … with these residuals, held out with errors of about `groups` unless that is None."""
    rng = np.random.default_rng(0)
    sites = [SiteRow("embedded input", "input", (16,), 16, in_fit=False, at="input", values={"residual": 0.95})]
    for i, value in enumerate(values):
        site = SiteRow(f"h.{i}", "Block", (16,), 16, at="output", values={"residual": value * 0.98})
        if groups is not None:
            site.values["residual_held_out"] = value
            site.left_out["residual_held_out"] = [
                float(v) for v in value * np.exp(rng.normal(0, groups / np.sqrt(G), G))
            ]
        site.values |= {name: column[i] for name, column in columns.items()}
        sites.append(site)
    known = {"task": "next", "tokens_per_feature": 200.0} | (settings or {})
    return Record(
        name="m", kind="language model", sites=sites, classes=[], counts=[3200], settings=known, notes=notes or []
    )


def words(record: Record) -> str:
    return str(judge(record))


def test_a_straight_line_is_the_law_on_this_text() -> None:
    verdict = judge(model(LINE))
    assert verdict.headline.startswith(
        "The law holds on this text: every block takes about the same share of log held-out PR ("
    )
    assert "r = −1.000 over 30 blocks, −1.000 without the last, ρ = 0.9965 per block" in verdict.headline
    assert "29.0 effective layers of 29, Greenwood p < 0.0001" in verdict.headline
    assert not any("curve" in line or "plateau" in line or "rises" in line for line in verdict.findings)


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
    assert "Held-out PR falls with depth as a whole, but not by equal steps: it rises at 3 of 29 (r = −0.9" in text
    assert "The residuals of the line are not random: lag-1 correlation +0." in text
    assert "It is a curve, not noise: " in text
    assert (
        "PR rises at 'h.27' (by 1.0%), 'h.28' (by 1.0%), 'h.29' (by 1.0%); 3 of 3 by more than two standard errors."
        in text
    )
    assert "A plateau: the 8 blocks from 'h.1' to 'h.8'" in text
    assert "PR is lowest at 'h.26' and higher at the end" in text
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
        ([0.95] * 30, "PR hardly moves (0.950 to 0.950)."),
    ],
)
def test_the_untrained_model_is_reported_with_its_sign(null: list[float], said: str) -> None:
    text = words(model(LINE, residual_held_out_untrained=null))
    assert f"The same model untrained: {said}" in text
    assert "null=True" not in text
    assert "null=True" in words(model(LINE))


def test_a_residual_of_one_or_more_is_worse_than_the_mean() -> None:
    assert "At 'h.0', 'h.1' held-out PR is 1 or more" in words(model([1.02, 1.0, *LINE[2:]]))
    assert "At every block held-out PR is 1 or more" in words(model([1.05] * 3 + [1.04] * 5))


@pytest.mark.parametrize(
    ("each", "said"), [(200.0, ""), (30.0, "30 tokens per feature: the shape"), (7.0, "Only 7.0 tokens per feature")]
)
def test_too_few_tokens_are_said(each: float, said: str) -> None:
    text = words(model(LINE, settings={"tokens_per_feature": each}))
    assert said in text
    assert ("Use more tokens: about 800 of them give 50 predicted ones per feature." in text) is bool(said)


def test_what_the_notes_say_is_not_said_twice() -> None:
    text = words(model(LINE, settings={"tokens_per_feature": 7.0}, notes=["Only 7.0 tokens per feature (…)."]))
    assert "Only 7.0 tokens" not in text


@pytest.mark.parametrize("task", ["masked", "span"])
def test_another_task_is_named(task: str) -> None:
    assert f"(task '{task}'); not the next token" in words(model(LINE, settings={"task": task}))
    assert "Predicted here" not in words(model(LINE))


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
    assert "Separation D of the most frequent tokens as classes: r = −1.000." in text


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


@pytest.mark.parametrize("values", [[0.9, 0.8], [0.9, 0.9], [0.9, 0.9, 0.9], [0.9, 0.85, 0.8], [0.9, 0.85, 0.8, 0.75]])
def test_few_blocks_are_never_called_a_law(values: list[float]) -> None:
    text = words(model(values))
    assert "The law holds" not in text
    assert "Nearly" not in text
