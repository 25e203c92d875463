"""Demands on records: met or not, by the numbers that are there."""

from typing import Any

import pytest

from layerlaw.errors import InputError
from layerlaw.record import Record, SiteRow
from layerlaw.verdict.checks import checked

STRAIGHT, BENT = [32.0, 16.0, 8.0, 4.0, 2.0, 1.0], [32.0, 31.0, 30.0, 29.0, 28.0, 1.0]


def record(values: list[float], accuracy: float | None = 0.9, name: str = "now", **more: Any) -> Record:
    rows = [SiteRow(f"fc{i}", "Linear", (8,), 8, values={"separation": v, "rank": 1.0}) for i, v in enumerate(values)]
    return Record(name=name, sites=rows, classes=["a", "b"], counts=[500, 500], accuracy=accuracy, **more)


def answers(*given: Any, **demands: Any) -> list[bool]:
    return [one.passed for one in checked(*given, **demands)]


def test_the_law_holds_by_the_rule_that_verdicts_use() -> None:
    assert answers(record(STRAIGHT), holds=["separation"]) == [True]
    found = checked(record(BENT), holds=["separation"])[0]
    assert not found.passed
    assert str(found).startswith("FAIL  the law of separation holds: ρ = ")
    assert "evenness" in found.words


def test_too_few_points_or_no_logarithm_do_not_pass() -> None:
    assert answers(record([4.0, 2.0, 1.0]), holds=["separation"]) == [False]
    assert answers(record([4.0, 2.0, 1.0, 0.5, 0.0]), holds=["separation"]) == [False]


def test_the_final_value_and_the_accuracy_have_limits_that_belong_to_them() -> None:
    assert answers(record(STRAIGHT), max_final=1.0) == [True]
    assert answers(record(STRAIGHT), max_final=0.99) == [False]
    assert answers(record(STRAIGHT), min_accuracy=0.9) == [True]
    assert answers(record(STRAIGHT, test_accuracy=0.8), min_accuracy=0.9) == [False]
    assert checked(record(STRAIGHT), max_final=0.5)[0].name == "final D"


def test_a_record_is_compared_with_an_earlier_one() -> None:
    base = record(STRAIGHT, name="base")
    assert answers(record(STRAIGHT), against=base) == [True, True, True]
    worse = record([*STRAIGHT[:-1], 1.2], accuracy=0.85)
    assert answers(worse, against=base) == [False, True, False]
    assert answers(worse, against=base, worse=0.25) == [True, True, False]
    assert answers(record(BENT, accuracy=None), against=base) == [True, False]
    assert answers(record(STRAIGHT), against=record(BENT, name="base")) == [True, True]  # it had no law to keep
    tested = record(STRAIGHT, name="base", test_accuracy=0.8)
    assert answers(record(STRAIGHT, accuracy=0.5), against=tested) == [True, True, False]  # training with training data
    assert answers(record(STRAIGHT, accuracy=0.5, test_accuracy=0.8), against=tested) == [True, True, True]


@pytest.mark.parametrize(
    ("demands", "words"),
    [
        ({}, "check: expected at least one demand, got none"),
        ({"holds": ["separatoin"]}, "Did you mean 'separation'"),
        ({"holds": ["rank"]}, "holds: expected a column that carries a law, got 'rank'"),
        ({"max_final": -1.0}, "max_final_d: expected a number of at least 0, got -1"),
        ({"min_accuracy": 95.0}, r"min_accuracy: expected a share from 0 to 1 \(0.95 is 95 %\), got 95"),
        ({"max_final": float("nan")}, "max_final_d: expected a number of at least 0, got nan"),
        ({"against": record([2.0, 1.0])}, "against: expected a record of the same kind, measured at the same sites"),
    ],
)
def test_bad_input_is_answered(demands: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        checked(record(STRAIGHT), **demands)


def test_an_accuracy_that_was_not_measured_cannot_be_demanded() -> None:
    with pytest.raises(InputError, match="expected a record with an accuracy, 'now' has none"):
        checked(record(STRAIGHT, accuracy=None), min_accuracy=0.5)
