"""The benchmarks run by hand: what they import from the package is still there."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_finds_all_that_it_imports(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    try:
        runpy.run_path(str(script), run_name="imported")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in {"layerlaw", *(path.stem for path in FOLDER.glob("*.py"))}:
            raise
        pytest.skip(f"{error.name} is not installed")
