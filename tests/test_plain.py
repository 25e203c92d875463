"""Plain data: the limits of a JSON file, and rules that say where a value does not fit."""

import json
import pickle
import time
from pathlib import Path

import pytest

from layerlaw.errors import DataError
from layerlaw.outcome import Outcome
from layerlaw.plain import (
    DEEPEST,
    MOST_DIGITS,
    Misfit,
    check_plain,
    check_text,
    either,
    fields,
    log_ratio,
    parse,
    several,
    whole_from,
)
from layerlaw.record import Record

HEAD = '{"format": "layerlaw record", "version": 2, "name": "a", "classes": [], "sites": [], "settings": '


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{"a": ' + "[" * 60 + "]" * 60 + "}", "at most 50 deep inside each other"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "at most 50 deep inside each other"),
        ('{"a": ' + '{"a":' * 5000 + "1" + "}" * 5000 + "}", "at most 50 deep inside each other"),
        ('{"a": ' + "9" * 401 + "}", "numbers of at most 400 digits, got one of 401"),
        ('{"a": ' + "9" * 5000 + "}", "numbers of at most 400 digits, got one of 5,000"),
        ('{"a": ' + "9" * 400 + "}", "settings.a: expected a finite number, got a whole number of about 401 digits"),
        ('{"a": 1e999}', "settings.a: expected a finite number, got inf"),
        ('{"a": NaN}', "expected finite numbers .* got NaN"),
        ('{"a": -Infinity}', "got -Infinity"),
        ('{"a": 1, "a": 2}', "every name once in an object, got 'a' twice"),
        (r'{"a": "\ud800"}', "settings.a: expected text of whole characters"),
        (r'{"\udfff": 1}', "expected text of whole characters"),
    ],
)  # fmt: skip
def test_a_file_beyond_the_limits_is_answered(tmp_path: Path, settings: str, message: str) -> None:
    (tmp_path / "r.json").write_text(HEAD + settings + "}")
    with pytest.raises(DataError, match=message) as caught:
        Record.load(tmp_path / "r.json")
    assert "r.json" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_field_of_a_newer_version_is_within_the_limits_too(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(HEAD + '{}, "future": ' + "[" * 51 + "]" * 51 + "}")
    with pytest.raises(DataError, match="at most 50 deep"):
        Record.load(tmp_path / "r.json")


def test_what_is_just_within_the_limits_is_read() -> None:
    deep = {"a": json.loads("[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))}
    check_plain(deep)
    assert parse(b'{"a": ' + b"9" * MOST_DIGITS + b"}")["a"] == int("9" * MOST_DIGITS)


def test_too_large_a_file_is_refused_before_it_takes_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("layerlaw.files.LARGEST_FILE", 2**20)
    monkeypatch.setattr("layerlaw.plain.LARGEST_FILE", 2**20)
    (tmp_path / "r.json").write_text(HEAD + '"' + "x" * 2**20 + '"}')
    with pytest.raises(DataError, match="expected at most 1 MiB"):
        Record.load(tmp_path / "r.json")
    monkeypatch.setattr("layerlaw.plain.MOST_VALUES", 1000)
    with pytest.raises(DataError, match="expected at most 1,000 values"):
        parse(b"[" + b"[]," * 1000 + b"[]]")


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_record(place: str) -> None:
    with pytest.raises(DataError, match="got a device or a pipe"):
        Outcome.load(place)


@pytest.mark.parametrize("version", [-7, 0, True, 1.0, "2", None, [], 10**30])
def test_a_version_is_a_whole_number_from_one(version: object) -> None:
    with pytest.raises(DataError, match="expected a layerlaw record of version"):
        Record.from_dict({"format": "layerlaw record", "version": version})


def test_a_rule_says_where_a_value_stands_and_what_was_expected() -> None:
    rule = fields({"a": several(fields({"b": either(check_text, whole_from(1, 5))}, {}))}, {})
    rule({"a": [{"b": 3, "more": object()}, {"b": "x"}]}, "")
    with pytest.raises(Misfit, match=r"^a\[1\]\.b: expected a whole number from 1 to 5, got 7$"):
        rule({"a": [{"b": 3}, {"b": 7}]}, "")
    with pytest.raises(Misfit, match=r"^a\[0\]\.b: expected this field, which is missing$"):
        rule({"a": [{}]}, "")
    with pytest.raises(Misfit, match=r"^a: expected a list, got 'text'$"):
        rule({"a": "text"}, "")


def test_an_error_survives_the_way_to_another_process() -> None:
    with pytest.raises(Misfit) as caught:
        check_text(3, "name")
    assert str(pickle.loads(pickle.dumps(caught.value))) == "name: expected text, got 3"


def test_a_long_list_is_checked_in_a_moment() -> None:
    start = time.perf_counter()
    check_plain([[0.5, 1.5]] * 100_000)
    assert time.perf_counter() - start < 5


def test_values_that_take_far_more_memory_than_their_file_are_refused() -> None:
    with pytest.raises(DataError, match="expected values that take at most"):
        parse('["\U0001f600"'.encode() + b',"ab"' * 4_000_000 + b"]")
    assert len(parse(b"[" + b"0.12345678," * 100_000 + b"1]")) == 100_001


def test_the_log_of_a_ratio_that_is_no_number() -> None:
    assert log_ratio(5e-324, 1e300) == pytest.approx(-1435.216, abs=1e-3)
    assert log_ratio(1e300, 5e-324) == -log_ratio(5e-324, 1e300)
