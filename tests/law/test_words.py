"""One wording of a law, by evenness, trend and chance; a jump behind a fall is named."""

from dataclasses import replace

import numpy as np
import pytest

from layerlaw.law import fit_law
from layerlaw.law.words import law_claim
from layerlaw.record import Record, SiteRow
from layerlaw.verdict import judge


def measured(values: list[float], **settings: object) -> Record:
    rows = [SiteRow(f"s{i}", "Linear", (4,), 4, at="output", values={"separation": v}) for i, v in enumerate(values)]
    return Record(name="net", sites=rows, classes=["a", "b"], settings=settings)


CURVES = {
    "even": [2.0**-i for i in range(8)],
    "uneven": [9.0, 8.9, 8.8, 2.0, 1.9, 1.0, 0.9],
    "bent": list(np.exp(-np.cumsum([0.0, *np.geomspace(0.2, 0.9, 12)]))),
    "rising": [1.0, 2.0, 4.0, 8.0],
    "little": [1.0, 0.99, 0.98, 0.97],
    "short": [4.0, 2.0, 1.0],
    "two": [4.0, 1.0],
    "with a rise": [32.0, 16.0, 8.0, 8.2, 4.0, 2.0, 1.0],
    "jump": [37.0, 18.0, 9.0, 4.0, 2.0, 1.0, 41.0],
}


@pytest.mark.parametrize("curve", CURVES)
def test_a_fit_and_the_verdict_on_its_record_say_the_same(curve: str) -> None:
    fit = fit_law(CURVES[curve])
    headline = judge(measured(CURVES[curve])).headline
    assert (
        headline == fit.verdict.replace("at layer 6 of 6", "at 's6'") == str(fit).replace("at layer 6 of 6", "at 's6'")
    )
    assert fit.to_dict()["verdict"] == fit.verdict


@pytest.mark.parametrize("curve", CURVES)
def test_the_words_go_by_evenness_trend_and_chance(curve: str) -> None:
    fit = fit_law(CURVES[curve])
    assert "effective layers" not in fit.verdict
    assert fit.verdict.startswith("The law holds") == (fit.holds is True)
    if fit.holds is False and fit.evenness is not None and fit.rho < 1:
        assert "evenness" in fit.verdict
        assert "Greenwood p" in fit.verdict
    assert not any("effective" in reason for reason in fit.objections)


@pytest.mark.parametrize("curve", CURVES)
def test_what_speaks_against_a_law_of_blocks_speaks_of_blocks(curve: str) -> None:
    fit = fit_law(CURVES[curve])
    blocks = replace(fit, step="block")
    assert not any("layer" in reason for reason in blocks.objections)
    assert [reason.replace("block", "layer") for reason in blocks.objections] == fit.objections
    assert blocks.verdict.replace("block", "layer") == fit.verdict


def test_a_fall_that_a_jump_undoes_is_told_with_both_factors() -> None:
    fit = fit_law(CURVES["jump"])
    assert fit.rho < 1  # and yet it ends no lower than it begins
    assert fit.verdict.startswith("No law: D falls 37-fold over 5 layers, then rises 41-fold at layer 6 of 6 (")
    places = [f"at '{name}'" for name in "abcdef"]
    claim = law_claim(replace(fit, step="block"), "D", places=places)
    assert claim == "No law: D falls 37-fold over 5 blocks, then rises 41-fold at 'f'"
    named = judge(measured(CURVES["jump"])).headline
    assert named.startswith("No law: D falls 37-fold over 5 layers, then rises 41-fold at 's6' (")


@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0, 8.0], [4.0, 3.0, 4.0, 5.0], [4.0, 1.0, 1.5, 2.2, 3.2, 4.7]])
def test_without_a_fall_or_a_jump_it_just_does_not_fall(values: list[float]) -> None:
    assert "-fold" not in fit_law(values).verdict
    assert fit_law(values).verdict.startswith("No law: D ")


@pytest.mark.parametrize("settings", [{}, {"sites": "blocks"}])
@pytest.mark.parametrize("error", [None, 0.001, 0.3])
def test_a_records_law_and_its_headline_are_one_sentence(settings: dict[str, object], error: float | None) -> None:
    record = measured([9.0, 8.9, 8.8, 2.0, 2.1, 1.0, 0.9], **settings)
    for site in record.sites:
        site.values["separation_log_se"] = error
    said, step = str(record.law()), "block" if settings else "layer"
    assert said == judge(record).headline
    assert f"per {step}" in said
    assert f"{step}s share the drop" in said
    assert ("layer" in said) is (step == "layer")
    assert (f"; it rises at 1 of 6 {step}s, within its errors (" in said) is (error == 0.3)


def test_a_law_of_plain_numbers_has_layers_and_no_errors() -> None:
    fit = fit_law([4.0, 4.2, 1.0])
    assert (fit.step, fit.log_errors, fit.rises_within_errors) == ("layer", (), False)
