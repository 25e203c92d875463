"""`layerlaw reproduce` through its real entry point."""

import json
import sys
from pathlib import Path

import pytest
from command_line import layerlaw

from layerlaw.cli import main
from layerlaw.experiments import NAMES
from layerlaw.outcome import Outcome


def test_json_rows_record_figure_and_page(tmp_path: Path) -> None:
    done = layerlaw("reproduce", "s11", "lm_words", "--quick", "--json", "--out", "r", cwd=tmp_path)
    data = json.loads(done.stdout)
    first = data["rows"][0]
    assert first["name"].startswith("s11/")
    assert {"name", "paper", "ours", "low", "high", "reproduced", "reason"} <= first.keys()
    place = tmp_path / "r" / "quick"  # a trial never takes the place of a result
    outcome = Outcome.load(place / "s11.json")
    assert len([r for r in data["rows"] if r["name"].startswith("s11/")]) == len(outcome.rows)
    assert outcome.provenance["command"] == "layerlaw reproduce s11 --quick --device cpu"
    assert outcome.provenance["quick"] is True
    assert outcome.title.endswith("(quick run, on embedded Fashion-MNIST)")
    for name in ("s11.png", "s11.pdf", "s11.html", "lm_words.html", "all.html"):
        assert (place / name).stat().st_size > 1000
    assert not any(row["reproduced"] is not None for row in data["rows"])  # nothing is judged by a quick run
    before = outcome.provenance["wall_s"]
    layerlaw("reproduce", "s11", "--quick", "--out", "r", cwd=tmp_path)  # everything is there already
    assert Outcome.load(place / "s11.json").provenance["wall_s"] >= 0.8 * before  # trainings that were there count
    assert "paper" in done.stderr
    assert len(list((place / "sweeps" / "drawings").iterdir())) == sum(
        len(Outcome.load(place / f"{name}.json").sheets) for name in ("s11", "lm_words")
    )
    text = (place / "all.html").read_text(encoding="utf-8")
    assert text.count("<svg ") == text.count('data-panel="sheet"') > 1  # those of the other experiment, too


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected a figure to reproduce"),
        (["fig1", "--seeds", "0"], "seeds: expected at least 1"),
        (["fig1", "--list"], "expected no figure beside it"),
        (["fig1", "--device", "nowhere"], "device: expected one that torch can use here"),
        (["s6", "--out", "file"], "expected a folder, got a file"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["layerlaw", "reproduce", *arguments])
    with pytest.raises(SystemExit, match="1"):
        main()
    printed = capsys.readouterr().err
    assert words in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "layerlaw-reproduce").exists()


def test_an_unknown_figure_is_one_line_of_the_process(tmp_path: Path) -> None:
    done = layerlaw("reproduce", "fig40", cwd=tmp_path, code=1)
    assert "expected one of the experiments fig1" in done.stderr
    assert "got 'fig40'. Did you mean fig4 or fig10?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_list_names_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["layerlaw", "reproduce", "--list", "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert tuple(json.loads(capsys.readouterr().out)["figures"]) == NAMES
