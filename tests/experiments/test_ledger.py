"""docs/reproduction.md and the pages beside it say what the records say."""

import importlib.util
from pathlib import Path

import pytest

from layerlaw.experiments import NAMES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def documents() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("ledger_script", ROOT / "scripts" / "ledger.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made: dict[Path, str] = script.documents()
    return made


def test_the_files_are_what_the_script_makes_of_the_records(documents: dict[Path, str]) -> None:
    for path, text in documents.items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python scripts/ledger.py"
    there = {path.stem for path in (ROOT / "docs" / "reproduction").glob("*.md")}
    assert there == {path.stem for path in documents if path.parent.name == "reproduction"} <= set(NAMES)


def test_the_index_fits_a_screen_and_links_to_every_figure(documents: dict[Path, str]) -> None:
    index = documents[ROOT / "docs" / "reproduction.md"]
    assert len(index.splitlines()) <= 60
    for name in {path.stem for path in documents if path.parent.name == "reproduction"}:
        assert f"(reproduction/{name}.md)" in index


def test_every_number_that_did_not_come_out_says_what_was_tried(documents: dict[Path, str]) -> None:
    misses = [line for text in documents.values() for line in text.splitlines() if line.startswith("- **")]
    assert len(misses) == 13
    assert all(line.rstrip().rsplit("). ", 1)[-1].endswith(".") and "). " in line for line in misses)
