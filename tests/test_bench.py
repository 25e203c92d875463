"""`make bench` writes its table between two markers, and nothing else of the page; benchmarks find what they import."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """benchmarks/run.py, which measures nothing and writes another page."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("bench_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("separation", "probes", "regressions"):
        monkeypatch.setattr(module, name, lambda rounds: [("a row", "1.00", "≤ 2")])
    monkeypatch.setattr(module, "memory", list)
    monkeypatch.setattr(module, "keep_memory", lambda: None)
    monkeypatch.setattr(module, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(sys, "argv", ["run.py"])
    return module


def test_what_was_written_by_hand_stays(bench: ModuleType) -> None:
    bench.PAGE.write_text((FOLDER.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8"), encoding="utf-8")
    old = bench.PAGE.read_text(encoding="utf-8")
    for _ in range(2):
        bench.main()
        new = bench.PAGE.read_text(encoding="utf-8")
        assert new.count("| a row | 1.00 | ≤ 2 |") == 3
        assert new.partition(bench.BEGIN)[0] == old.partition(bench.BEGIN)[0]
        assert new.partition(bench.END)[2] == old.partition(bench.END)[2]
    assert "## The fleet" in new
    assert "D against the d×d pseudo-inverse" not in new


@pytest.mark.parametrize("page", ["# Benchmarks\n", "{0}\n", "{1} {0}", "{0} {1} {1}"])
def test_a_page_without_its_markers_is_told_before_the_work(
    page: str, bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.PAGE.write_text(page.format(bench.BEGIN, bench.END), encoding="utf-8")
    monkeypatch.setattr(bench, "separation", lambda rounds: pytest.fail("measured"))
    with pytest.raises(SystemExit, match="expected '<!-- make bench begins -->' and behind it"):
        bench.main()
    assert bench.PAGE.read_text(encoding="utf-8") == page.format(bench.BEGIN, bench.END)


def test_a_benchmark_begins_once_more_so_that_it_keeps_its_memory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    begun = "import os, sys; sys.path.insert(0, sys.argv[1]); import kept_memory; print('begun', flush=True)"
    script.write_text(
        f"{begun}; kept_memory.keep_memory(); print(os.environ['MALLOC_MMAP_MAX_'], len(kept_memory.usual()))"
    )
    environment = {"PATH": "somewhere"}
    done = subprocess.run(
        [sys.executable, str(script), str(FOLDER)], capture_output=True, text=True, check=True, env=environment
    )
    *begins, last = done.stdout.splitlines()
    assert begins == ["begun", "begun"]
    assert last.split()[0] == "0"
    assert int(last.split()[1]) <= len(environment) + 1  # Python may add LC_CTYPE


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_finds_all_that_it_imports(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    try:
        runpy.run_path(str(script), run_name="imported")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in {"layerlaw", *(path.stem for path in FOLDER.glob("*.py"))}:
            raise
        pytest.skip(f"{error.name} is not installed")
