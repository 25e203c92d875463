"""docs/reproduction.md and the pages beside it say what the records say."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from layerlaw.experiments import NAMES
from layerlaw.outcome import Outcome, Row
from layerlaw.pages.outcome_words import verdict_line

ROOT = Path(__file__).resolve().parents[2]


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return loaded("ledger")


@pytest.fixture(scope="module")
def documents(script: ModuleType) -> dict[Path, str]:
    made: dict[Path, str] = script.documents()
    return made


def test_the_files_are_what_the_script_makes_of_the_records(documents: dict[Path, str]) -> None:
    for path, text in documents.items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python scripts/ledger.py"
    there = {path.stem for path in (ROOT / "docs" / "reproduction").glob("*.md")}
    assert (
        there
        == {path.stem for path in documents if path.parent.name == "reproduction"}
        <= {*NAMES, "protocols", "rare_classes"}
    )


def test_the_index_has_a_line_per_figure_and_few_words_around_them(documents: dict[Path, str]) -> None:
    index = documents[ROOT / "docs" / "reproduction.md"]
    figures = {path.stem for path in documents if path.parent.name == "reproduction"}
    assert len(index.splitlines()) <= len(figures) + 70  # four papers
    for name in figures:
        assert f"(reproduction/{name}.md)" in index


def test_every_row_that_did_not_come_out_says_what_was_tried(documents: dict[Path, str]) -> None:
    misses = [line for text in documents.values() for line in text.splitlines() if line.startswith("- **")]
    assert len(misses) > 5
    assert [line for line in misses if "). " not in line or not line.rstrip().endswith(".")] == []


def test_what_was_tried_is_about_rows_that_did_not_come_out(script: ModuleType) -> None:
    found = script.load_records()
    missed = {
        f"{name}/{row.name}" for name, o in found.items() for row in o.rows if row.reproduced is False and row.counted
    }
    assert {key for key in script.TRIED if key.split("/")[0] in found} <= missed


def test_every_judged_row_has_its_kind_and_chance_and_every_record_its_commit(script: ModuleType) -> None:
    for outcome in script.load_records().values():
        for row in outcome.rows:
            assert row.reproduced is None or row.kind is not None, f"{outcome.name}/{row.name}"
        assert len(outcome.provenance["commit"]) == 12
        assert len(outcome.provenance["code"]) == 16


def test_the_page_of_the_protocols_has_the_claims_of_every_figure(documents: dict[Path, str]) -> None:
    text = documents[ROOT / "docs" / "reproduction" / "protocols.md"]
    head, body = text.split("\n| claim |")
    rows = [line for line in body.splitlines() if line.startswith("| ")][1:]
    assert {row.split(":")[0] for row in rows} >= {f"| Fig. {n}" for n in (1, 2, 3, 9, "S4", "S10")}
    laws = [row for row in rows if ": the law holds" in row and "rate chosen" not in row]
    drawn = sum(row.split(" | ")[1] == "✓" for row in laws)
    assert f"That the law holds, at the learning rates shown | {drawn} of {len(laws)} |" in head


def test_the_tallies_of_readme_and_docs_are_those_of_the_records() -> None:
    found = subprocess.run(
        [sys.executable, ROOT / "scripts" / "tallies.py"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, ""), found.stdout


def test_tallies_leave_out_what_chance_passes() -> None:
    row = {"reproduced": True, "chance": 0.05, "kind": "number"}
    rows = [row, {**row, "reproduced": False, "chance": 0.2}, {**row, "chance": 0.21}, {**row, "reproduced": None}]
    words = "1 of 2 numbers reproduced (1 row not counted: chance passes it)"
    assert loaded("tallies").tally(rows) == words
    assert verdict_line([Outcome("a", "", [Row("r", 1.0, 1.0, **one) for one in rows], [])]) == words


def test_the_table_of_rare_classes_has_the_numbers_of_the_records(documents: dict[Path, str]) -> None:
    text = documents[ROOT / "docs" / "reproduction" / "rare_classes.md"]
    outcome = Outcome.load(ROOT / "docs" / "reproduction" / "minority.json")
    line = next(line for line in text.splitlines() if "(minority.md)" in line and "| 5 | 1000 | 1 |" in line)
    cells = [cell.strip() for cell in line.split("|")][5:]
    for name, cell in zip(("cosine", "cosine-predicted"), cells, strict=False):
        row = next(row for row in outcome.rows if row.name == f"K_A-5/R-1000/{name}")
        assert row.ours is not None
        assert cell.split()[0] == f"{row.ours:.2f}".replace("-", "−")
