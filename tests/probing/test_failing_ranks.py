"""An error on one rank reaches all of them with its text; a rank may have one sample, or none; a killed one ends the job."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from failing_ranks import OTHERWISE, alone, shards
from test_ranks import on_two_ranks

import layerlaw as ll

SCRIPT = Path(__file__).with_name("failing_ranks.py")
SOON = 12.0  # seconds: of a busy machine; the processes would wait for a minute


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_two_ranks(SCRIPT, tmp_path_factory.mktemp("failing"), codes=(0, -signal.SIGKILL))


def told(folder: Path, name: str) -> list[list]:
    return [json.loads((folder / f"told {rank}.json").read_text())[name] for rank in range(2)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data", "rank 1: DataError: data, batch 1: the data failed with ValueError: a picture that is none"),
        ("at once", "rank 1: InputError: weighting: expected one of samples, classes, got 'nonsense'"),
        ("in a long pass", "rank 1: DataError: data, batch 2: the data failed with ValueError"),
        ("after the passes", "rank 1: DataError: test, batch 1: the data failed with ValueError"),
    ],
)
def test_an_error_on_one_rank_reaches_the_other_with_its_text(name: str, words: str, folder: Path) -> None:
    (kind, text, seconds), (own, _, _) = told(folder, name)
    assert kind == "RankError"
    assert words in text
    assert own in words
    assert own != "RankError"
    assert seconds < SOON


def test_ranks_that_measure_different_things_are_told_so(folder: Path) -> None:
    same = "expected the same on all 2 ranks, got"
    for name, words in (
        ("other sites", f"sites: {same} '3' on rank 0 and nothing on rank 1 (number 2 of them)."),
        ("test data on one", f"test: {same} 'data' on rank 0 and None on rank 1."),
        (
            "other models",
            f"modules as printed: {same} '(0): Linear(in_features=6, out_features=8, bias=True)' on rank 0",
        ),
        ("modules", "eps=0.5"),
        ("buffers", f"buffers: {same} nothing on rank 0 and 'extra' on rank 1"),
    ):
        for kind, text, _ in told(folder, name):
            assert (kind, words in text) == ("InputError", True), text
    for name in ("other weights", "another dtype"):
        for kind, text, _ in told(folder, name):
            assert (kind, "expected the same weights on all 2 ranks" in text) == ("PassError", True)
    for kind, text, _ in told(folder, "no samples at all"):
        assert (kind, text) == ("DataError", "data: expected samples, got none on all 2 ranks.")


@pytest.mark.parametrize("name", OTHERWISE)
def test_an_argument_that_differs_is_named_with_what_two_ranks_have(name: str, folder: Path) -> None:
    first, second = OTHERWISE[name]
    shown = {
        "sites": "'2' on rank 0 and '4' on rank 1 (number 2 of them)",
        "classes": "0 on rank 0 and 1 on rank 1 (number 1 of them)",
        "names of the classes": "'c' on rank 0 and 'd' on rank 1 (number 3 of them)",
        "scores": "'the output' on rank 0 and 'scores=None' on rank 1",
    }.get(name, f"{first!r} on rank 0 and {second!r} on rank 1")
    cure = "Give all of them the same model and arguments: only the data are dealt."
    for kind, text, _ in told(folder, name):
        assert (kind, text) == ("InputError", f"{name}: expected the same on all 2 ranks, got {shown}. {cure}")


def test_what_is_of_one_rank_alone_may_differ(folder: Path) -> None:
    assert told(folder, "what may differ") == [["", "", 0.0]] * 2


def test_after_errors_the_ranks_can_measure_again(folder: Path) -> None:
    assert told(folder, "whole") == [["", "", 0.0]] * 2


@pytest.mark.parametrize("name", list(shards(0)))
def test_a_rank_with_one_sample_or_none_gets_the_record_of_all(name: str, folder: Path) -> None:
    model, data, how = alone(name)
    expected = ll.probe(model, data, **how)
    records = [ll.Record.load(folder / f"{name} {rank}.json") for rank in range(2)]
    assert [site.values for site in records[0].sites] == [site.values for site in records[1].sites]
    spread = ("log_se", "permuted", "corrected", "held_out")  # dealt rank by rank
    columns = [c for c in expected.columns if not any(part in c for part in spread)]
    assert len(columns) > 3
    for record in records:
        assert record.counts == expected.counts
        assert record.accuracy == pytest.approx(expected.accuracy)
        for column in columns:
            left, right = (np.array(one.column(column), dtype=float) for one in (record, expected))
            np.testing.assert_allclose(left, right, rtol=2e-5, atol=1e-10, err_msg=column)


def test_a_killed_rank_ends_the_job(folder: Path) -> None:
    kind, text, seconds = json.loads((folder / "told killed.json").read_text())
    assert kind == "RankError"
    assert "another process of this job is gone or does not answer" in text
    assert seconds < SOON
