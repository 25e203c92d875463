"""The shape of the source tree: files, names, and tests that mirror the package."""

import ast
import statistics
from collections import Counter
from pathlib import Path

import layerlaw as ll

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "layerlaw"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LENGTHS = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
OF_THE_WHOLE = {
    "test_bench",
    "test_arguments",
    "test_default_device",
    "test_documentation",
    "test_layout",
    "test_odd_calls",
    "test_pretended_gpu",
    "test_public",
}  # tests of no single module
ACROSS = {"fuzz"}  # folders of tests of no single package


def test_files_are_few_and_of_readable_size() -> None:
    assert len(SOURCES) <= 283, "merge what belongs together before you add another file"
    assert [f"{path.relative_to(PACKAGE)}: {n}" for path, n in LENGTHS.items() if n > 400] == []
    assert 80 <= statistics.median(LENGTHS.values()) <= 230


def test_no_file_is_named_for_nothing_in_particular() -> None:
    names = {path.stem for path in SOURCES}
    assert names & {"util", "utils", "helper", "helpers", "common", "misc", "tools", "base"} == set()


def test_a_class_name_exists_once() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, n in names.items() if n > 1] == []


def test_no_module_bears_the_name_of_a_public_function() -> None:
    public = set(ll.__all__)
    for package in ll._PACKAGES:
        public |= set(getattr(getattr(ll, package), "__all__", ()))
    assert {path.stem for path in SOURCES} & public == set()


def test_the_tests_mirror_the_package() -> None:
    """Each folder of tests is a package, and each test at the top is about a module of that name."""
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    tested = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.glob("test_*.py"))}
    assert tested - ACROSS == folders
    assert {path.stem for path in (ROOT / "tests").glob("test_*.py")} - OF_THE_WHOLE <= {f"test_{m}" for m in modules}
