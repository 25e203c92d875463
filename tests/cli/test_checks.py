"""`layerlaw check` as a process: its lines and its exit codes."""

import json
from pathlib import Path

import pytest
from command_line import layerlaw

from layerlaw.record import Record, SiteRow

STRAIGHT, BENT = [32.0, 16.0, 8.0, 4.0, 2.0, 1.0], [32.0, 31.0, 30.0, 29.0, 28.0, 1.0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, values in (("good", STRAIGHT), ("bent", BENT)):
        rows = [SiteRow(f"fc{i}", "Linear", (8,), 8, values={"separation": v}) for i, v in enumerate(values)]
        record = Record(name=name, sites=rows, classes=["a", "b"], counts=[500, 500], accuracy=0.9)
        record.save(tmp_path / f"{name}.json")
    return tmp_path


def test_demands_that_are_met_leave_a_line_each_and_exit_code_0(folder: Path) -> None:
    demands = ("--holds", "separation", "--max-final-d", "1", "--against", "bent.json")
    lines = layerlaw("check", "good.json", *demands, cwd=folder).stdout.splitlines()
    assert [line[:4] for line in lines] == ["pass"] * 4
    assert lines[1] == "pass  final D: 1, at most 1 was demanded"


def test_one_that_is_not_met_gives_exit_code_1(folder: Path) -> None:
    done = layerlaw("check", "good.json", "bent.json", "--holds", "separation", "--json", cwd=folder, code=1)
    found = json.loads(done.stdout)
    assert found["passed"] is False
    assert [(row["record"], row["passed"]) for row in found["checks"]] == [("good.json", True), ("bent.json", False)]
    assert "FAIL  the law of separation holds" in done.stderr


def test_a_baseline_of_other_data_is_told_and_one_of_the_same_is_not(folder: Path) -> None:
    for name, data in (("one", "sums64:a"), ("same", "sums64:a"), ("other", "sums64:b")):
        record = Record.load(folder / "good.json")
        record.provenance["data_fingerprint"] = data
        record.save(folder / f"{name}.json")
    lines = layerlaw("check", "one.json", "--against", "other.json", cwd=folder).stdout.splitlines()
    assert lines[-1] == "note  data: one.json and other.json were measured on different data"
    assert "note" not in layerlaw("check", "one.json", "--against", "same.json", cwd=folder).stdout
    found = json.loads(layerlaw("check", "one.json", "--against", "other.json", "--json", cwd=folder).stdout)
    assert found["notes"] == [{"record": "one.json", "data": "were measured on different data"}]


def test_the_same_samples_in_another_order_are_the_same_data(folder: Path) -> None:
    """As other numbers of processes deal them."""
    for name, samples in (("ordered", "set64:a"), ("dealt", "set64:a"), ("others", "set64:b")):
        record = Record.load(folder / "good.json")
        record.provenance |= {"data_fingerprint": f"sums64:{name}", "data_samples": samples}
        record.save(folder / f"{name}.json")
    assert "note" not in layerlaw("check", "ordered.json", "--against", "dealt.json", cwd=folder).stdout
    told = layerlaw("check", "ordered.json", "--against", "others.json", cwd=folder).stdout
    assert "were measured on different data" in told
    record = Record.load(folder / "dealt.json")  # as from before that was written down
    del record.provenance["data_samples"]
    record.save(folder / "old.json")
    told = layerlaw("check", "ordered.json", "--against", "old.json", cwd=folder).stdout
    assert "were measured on different data" in told


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("good.json",), "check: expected at least one demand, got none"),
        (("nothing.json", "--max-final-d", "1"), "expected a layerlaw record, found nothing there"),
        (("good.json", "--max-final-d", "-1"), "--max-final-d: expected a number of at least 0"),
        (("good.json", "--max-final-d", "one"), "--max-final-d"),
    ],
)
def test_bad_input_gives_exit_code_2(given: tuple[str, ...], words: str, folder: Path) -> None:
    assert words in layerlaw("check", *given, cwd=folder, code=2).stderr
