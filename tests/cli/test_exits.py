"""`layerlaw exit` and `layerlaw paths` through the real entry point."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from command_line import layerlaw

from layerlaw.advice import EarlyExit

MODEL = """
import torch
def make():
    torch.manual_seed(0)
    places = 3 * torch.randn(3, 9)
    y, yt = torch.arange(120) % 3, torch.arange(90) % 3
    x, xt = places[y] + torch.randn(120, 9), places[yt] + torch.randn(90, 9)
    layers = [part for _ in range(4) for part in (torch.nn.Linear(9, 9), torch.nn.ReLU())]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(9, 3))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, (x, y), (xt, yt)
"""


def test_exit_says_its_sentence_first_and_leaves_files(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    done = layerlaw("exit", "model.py:make", "--tolerance", "0.05", "--out", "found", cwd=tmp_path)
    first = done.stdout.splitlines()[0]
    assert first.startswith(("The last ", "Nothing to gain here: "))
    assert "With a linear read-out instead of class means" in done.stdout
    assert "whole network" in done.stdout
    folder = tmp_path / "found"
    data = json.loads((folder / "exit.json").read_text())
    assert data["sentence"].startswith(first.split(",")[0][:20])
    assert len(data["sites"]) == 5
    assert (folder / "exit.png").read_bytes().startswith(b"\x89PNG")
    assert "Each sample on its own" in (folder / "exit.html").read_text()
    namespace: dict = {}
    exec(MODEL, namespace)
    net, _, (xt, _) = namespace["make"]()
    with torch.no_grad():
        assert EarlyExit.load(folder / "exit.safetensors", net)(xt).shape == (90, 3)


def test_exit_without_test_data_says_so_first_and_names_what_the_command_takes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.replace("return net, (x, y), (xt, yt)", "return net, (x, y)"))
    done = layerlaw("exit", "model.py:make", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert data["sentence"].startswith("Judged without test data")
    assert "test accuracy" not in done.stderr
    assert "--data with a test split" in " ".join(done.stderr.split())
    assert "test=" not in done.stderr
    assert any("--data with a test split" in note for note in data["notes"])


def test_paths_lists_what_was_decided_last_and_leaves_files(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    done = layerlaw("paths", "model.py:make", "--out", "found", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert len(data["rows"]) == 90
    assert len(data["last"]) == 10
    assert "decided at" in done.stderr
    assert (tmp_path / "found" / "paths.png").read_bytes().startswith(b"\x89PNG")
    assert "were decided last" in (tmp_path / "found" / "paths.html").read_text()


def test_bad_options_are_answered(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    assert "tolerance: expected a share from 0 to below 1, got 2.0" in refused(
        "exit", "model.py:make", "--tolerance", "2"
    )
    assert "by: expected one of centers, linear, best" in refused("exit", "model.py:make", "--by", "magic")
