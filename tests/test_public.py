"""The public surface, the light import, the examples, and the README."""

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import layerlaw as ll

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_are_at_most_twenty_three_public_names_and_all_of_them_load() -> None:
    assert ll.__all__ == sorted(ll.__all__)
    assert len(ll.__all__) <= 23
    assert all(getattr(ll, name) is not None for name in ll.__all__)
    assert set(ll._HOMES) == set(ll.__all__)


def test_packages_come_with_their_first_use() -> None:
    assert all(getattr(ll, package).__name__ == f"layerlaw.{package}" for package in ll._PACKAGES)
    assert {*ll.__all__, *ll._PACKAGES} <= set(dir(ll))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ll.nonsense


def test_importing_loads_torch_and_numpy_only() -> None:
    code = """
import sys, numpy, torch
before = set(sys.modules)
import layerlaw
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
heavy = {"matplotlib", "plotly", "rich", "typer", "pandas", "scipy", "transformers", "PIL", "pooch", "torchmetrics",
         "tokenizers", "accelerate", "gguf", "datasets", "sklearn"}
print(sorted(new), sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['layerlaw'] []"


def test_probing_needs_no_extra() -> None:
    code = """
import sys
heavy = {"matplotlib", "plotly", "rich", "typer", "pandas", "scipy", "transformers", "PIL", "pooch",
         "tokenizers", "accelerate", "gguf", "datasets", "sklearn"}
for name in heavy:
    sys.modules[name] = None
import torch, layerlaw as ll
x, y = torch.randn(60, 8), torch.arange(60) % 3
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
record = ll.probe(net, (x, y), progress=False)
record.save("record.json"), ll.Record.load("record.json"), record.law(), record._repr_html_()
for action in (record.to_pandas, lambda: ll.report(record, "page.html"), lambda: ll.plot(record)):
    try:
        action()
    except ll.LayerlawError as error:
        print("pip install" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/tmp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40
    statements = [*ast.walk(ast.parse(path.read_text()))]
    imported = [node.module or "" for node in statements if isinstance(node, ast.ImportFrom)]
    imported += [one.name for node in statements if isinstance(node, ast.Import) for one in node.names]
    if missing := {name for name in imported if find_spec(name.split(".")[0]) is None}:
        pytest.skip(f"needs {', '.join(sorted(missing))}")
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=one_thread)
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_every_package() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = {
        p.stem for p in (ROOT / "src" / "layerlaw").iterdir() if not p.name.startswith("_") and p.suffix != ".typed"
    }
    missing = [part for part in sorted(parts) if not re.search(rf"^\s*{part}(\.py|/)", text, re.MULTILINE)]
    assert not missing


def test_no_file_names_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    pattern = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|farm|opt)/")
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".cff", ".yaml", ""} and path.is_file():
            found = [line for line in path.read_text(encoding="utf-8").splitlines() if pattern.search(line)]
            assert not found, f"{name}: {found[:2]}"
