"""`layerlaw svsl-search` and `layerlaw difficulty` through the real entry point."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from command_line import layerlaw

from layerlaw.record import Record, SiteRow


def record(first: float) -> Record:
    rows = [
        SiteRow(f"layer{i}", "Linear", (4,), 4, values={"ncc_mismatch": first / i, "separation": 1.0 / i})
        for i in (1, 2, 3)
    ]
    return Record("net", rows, ["x", "y"], counts=[500, 500], accuracy=1.0)


def test_difficulty_orders_records_and_leaves_a_page(tmp_path: Path) -> None:
    record(0.6).save(tmp_path / "hard.json")
    record(0.2).save(tmp_path / "easy.json")
    done = layerlaw("difficulty", "hard.json", "easy.json", "--out", "found", cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert "mismatch at 'layer1', easiest first: easy (20.0%) < hard (60.0%)" in said
    assert "Mismatch: the share of samples whose nearest class center is not what the network decides." in said
    assert any(line.startswith("easy ") for line in done.stdout.splitlines())  # names stand flush left
    assert json.loads((tmp_path / "found" / "difficulty.json").read_text())["sets"][0]["name"] == "easy"
    assert (tmp_path / "found" / "difficulty.png").read_bytes().startswith(b"\x89PNG")
    assert "Difficulty of data sets" in (tmp_path / "found" / "difficulty.html").read_text()
    wrong = layerlaw("difficulty", "hard.json", "easy.json", "--names", "one", cwd=tmp_path, code=1)
    assert "expected 2 different ones" in wrong.stdout + wrong.stderr
    empty = layerlaw("difficulty", "hard.json", "easy.json", "--names", "one,", cwd=tmp_path, code=1)
    assert "one per record, got 'one', ''. Separate them by commas." in empty.stdout + empty.stderr
    same = layerlaw("difficulty", "hard.json", "hard.json", cwd=tmp_path, code=1)
    assert "got 'hard', 'hard'. Name the data sets by --names." in same.stdout + same.stderr
    alone = layerlaw("difficulty", "hard.json", cwd=tmp_path, code=1)
    assert "records: expected the files of two or more data sets, got 1." in alone.stdout + alone.stderr


def test_the_search_needs_its_extra_and_says_so(tmp_path: Path) -> None:
    if importlib.util.find_spec("optuna"):
        pytest.skip("Optuna is here")
    done = layerlaw("svsl-search", "--per-class", "10", "--size", "16", "--epochs", "1", cwd=tmp_path, code=1)
    assert "layerlaw[search]" in done.stdout + done.stderr
    wrong = layerlaw("svsl-search", "--reduction", "mean", cwd=tmp_path, code=1)
    assert "reduction: expected" in wrong.stdout + wrong.stderr


def test_a_range_of_alpha_goes_upward(tmp_path: Path) -> None:
    tiny = ("--network", "resnet20", "--per-class", "10", "--size", "12")
    wrong = layerlaw("svsl-search", *tiny, "--alphas", "2", "1", cwd=tmp_path, code=1)
    assert "--alphas: expected a range of positive numbers" in wrong.stdout + wrong.stderr


def test_the_search_prints_its_sentence_and_leaves_a_file(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    small = ("--network", "resnet20", "--per-class", "10", "--size", "12", "--epochs", "1", "--trials", "1")
    some = ("--batch-size", "30", "--alphas", "1e-3", "2e-3", "--out", "found")
    done = layerlaw("svsl-search", *small, *some, cwd=tmp_path)
    assert "is the best of 1 trial" in " ".join(done.stdout.split())
    plain = json.loads((tmp_path / "found" / "search.json").read_text())
    assert 1e-3 <= plain["trials"][0]["alpha"] <= 2e-3
    line = plain["loss"]
    assert re.fullmatch(r'll\.SVSL\(model, alpha=\S+, first="[\w.]+", reduction="authors"\)', line)
    assert line in done.stdout.splitlines()  # whole, to be pasted
    assert plain["sentence"].endswith(line)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("--validation", "0", "--validation: expected"), ("--rate", "-1", "--rate: expected")],
)
def test_errors_of_the_search_name_its_options(option: str, value: str, words: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    small = ("--network", "resnet20", "--per-class", "10", "--size", "12", "--epochs", "1", "--trials", "1")
    done = layerlaw("svsl-search", *small, option, value, cwd=tmp_path, code=1)
    assert words in done.stdout + done.stderr


def test_the_table_of_difficulties_fits_a_narrow_terminal(tmp_path: Path) -> None:
    record(0.6).save(tmp_path / "hard.json")
    record(0.2).save(tmp_path / "easy.json")
    done = layerlaw("difficulty", "hard.json", "easy.json", cwd=tmp_path, columns=80)
    assert any(
        line.split() == ["data", "set", "mismatch", "±", "error", "test", "mismatch", "train", "acc.", "test", "acc."]
        for line in done.stdout.splitlines()
    )
