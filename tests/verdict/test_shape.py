"""Intervals of evenness and trend over documents, and one answer to whether the law holds."""

import numpy as np
import pytest
from models_by_hand import LINE, SHAPE, G, model

from layerlaw.law import fit_law, t_quantile
from layerlaw.record import Record
from layerlaw.verdict import judge, law_holds
from layerlaw.verdict.shape import shape_intervals


def test_evenness_and_trend_have_jackknife_intervals() -> None:
    record = model(LINE, groups=0.001)
    rows = np.array([site.left_out["residual_held_out"] for site in record.sites[1:]])  # (blocks, groups)
    found = shape_intervals(record)
    for name, ends in zip(("evenness", "trend"), found, strict=True):
        logs = [np.log(getattr(fit_law(column), name)) for column in rows.T]
        half = t_quantile(G - 1) * np.sqrt((G - 1) * np.var(logs))
        whole = np.log(getattr(record.law(), name))
        assert np.log(ends) == pytest.approx([whole - half, min(whole + half, 0 if name == "evenness" else np.inf)])
    low, high = (f"{end:.2f}" for end in found.trend)
    line = next(line for line in judge(record).findings if line.startswith("With other text"))
    assert "through this same model (jackknife over 8 groups, 95 %)" in line
    assert f"trend between {low} and {high}." in line
    assert "evenness between 0." in line


def test_an_interval_of_the_trend_needs_a_trend_in_every_group() -> None:
    record = model(LINE)
    for site, value in zip(record.sites[1:], LINE, strict=True):
        site.left_out["residual_held_out"][0] = 0.9 * 0.9  # flat without the first group
        assert value <= 0.9
    assert shape_intervals(record) == (None, None)
    assert shape_intervals(model(LINE, groups=None)) == (None, None)


@pytest.mark.parametrize(
    ("record", "holds", "opening"),
    [
        (model(LINE), True, "The law holds on this text: "),
        (model(SHAPE), False, "The law does not hold on this text: "),
        (model(LINE, settings={"tokens_per_feature": 5.0}), None, "Too few tokens to judge"),
        (model([1.3 * v for v in LINE[:8]]), False, "No law: held-out PR is 1 or more"),
        (model(LINE, groups=2.0), None, "No clear trend"),
        (model([0.9, 0.9001, 0.9, 0.9001, 0.9]), False, "No law: held-out PR is the same"),
        (model(LINE[:3]), None, "Too few blocks to call it a law"),
    ],
    ids=["line", "uneven", "few tokens", "nothing predicted", "wide interval", "flat", "few blocks"],
)
def test_the_answer_agrees_with_the_headline(record: Record, holds: bool | None, opening: str) -> None:
    assert judge(record).headline.startswith(opening)
    assert law_holds(record, record.law(), record.law_errors()) is holds
