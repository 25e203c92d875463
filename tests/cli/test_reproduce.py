"""`layerlaw reproduce` through its real entry point."""

import json
from pathlib import Path

from command_line import layerlaw

from layerlaw.outcome import Outcome


def test_json_rows_record_figure_and_page(tmp_path: Path) -> None:
    done = layerlaw("reproduce", "s6", "s5", "--quick", "--json", "--out", "r", cwd=tmp_path)
    data = json.loads(done.stdout)
    first = data["rows"][0]
    assert first["name"].startswith("s6/")
    assert {"name", "paper", "ours", "low", "high", "reproduced", "reason"} <= first.keys()
    place = tmp_path / "r" / "quick"  # a trial never takes the place of a result
    outcome = Outcome.load(place / "s6.json")
    assert len([r for r in data["rows"] if r["name"].startswith("s6/")]) == len(outcome.rows)
    assert outcome.provenance["command"] == "layerlaw reproduce s6 --quick --device cpu"
    assert outcome.provenance["quick"] is True
    for name in ("s6.png", "s6.pdf", "s6.html", "s5.html", "all.html"):
        assert (place / name).stat().st_size > 1000
    assert not any(row["reproduced"] is not None for row in data["rows"])  # nothing is judged by a quick run
    before = outcome.provenance["wall_s"]
    layerlaw("reproduce", "s6", "--quick", "--out", "r", cwd=tmp_path)  # everything is there already
    assert Outcome.load(place / "s6.json").provenance["wall_s"] >= before
    assert "paper" in done.stderr


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for arguments, words in (
        (("fig4",), "expected one of the experiments fig1"),
        ((), "expected a figure to reproduce"),
        (("fig1", "--seeds", "0"), "seeds: expected at least 1"),
        (("fig1", "--list"), "expected no figure beside it"),
        (("fig1", "--device", "nowhere"), "device: expected one that torch can use here"),
    ):
        done = layerlaw("reproduce", *arguments, cwd=tmp_path, code=1)
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    (tmp_path / "file").touch()
    assert "expected a folder, got a file" in layerlaw("reproduce", "s6", "--out", "file", cwd=tmp_path, code=1).stderr
    assert not (tmp_path / "layerlaw-reproduce").exists()


def test_the_list_names_every_figure(tmp_path: Path) -> None:
    assert set(json.loads(layerlaw("reproduce", "--list", "--json", cwd=tmp_path).stdout)["figures"]) > {
        "fig1",
        "s11",
        "linearized",
    }
