"""Odd commands: each leaves with one line that says why, or with the usage; never with a traceback."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from layerlaw.cli import main
from layerlaw.cli.preprocessing import class_map

MODEL = """
import torch
from torch import nn

def small(change=lambda x, y: (x, y)):
    torch.manual_seed(0)
    x, y = torch.randn(60, 8), torch.arange(60) % 3
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), change(x, y)

def nothing(): return None
def text(): return "model"
def fails(): raise KeyError("gone")
def needs(a): return a
def three(): return small() + (1, 2)
def nan(): return small(lambda x, y: (x * float("nan"), y))
def one(): return small(lambda x, y: (x[:1], y[:1]))
def one_class(): return small(lambda x, y: (x, y * 0))
def soft(): return small(lambda x, y: (x, torch.rand(60, 3).softmax(1)))
def empty(): return small(lambda x, y: (x[:0], y[:0]))
def words(): return small(lambda x, y: (x, ["a"] * 60))
def generator(): return small(lambda x, y: (pair for pair in [(x, y)]))

number = 3
net = small()[0]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("odd")
    texts = {
        "model.py": MODEL, "broken.py": "def make(:", "raises.py": "raise RuntimeError('at import')",
        "imports.py": "import nothing_like_this", "empty.json": "", "cut.json": "{", "list.json": "[]",
        "bare.json": '{"format": "layerlaw record"}', "text.npz": "x", "text.pt": "x", "text.safetensors": "x",
    }  # fmt: skip
    for name, content in texts.items():
        (place / name).write_text(content, encoding="utf-8")
    (place / "bytes.json").write_bytes(b"\xff\xfe\x00\x80")
    (place / "folder").mkdir()
    np.savez(place / "inputs.npz", x=np.zeros((4, 2)))
    np.savez(place / "arrays.npz", x=np.random.default_rng(0).normal(size=(60, 8)).astype("f"), y=np.arange(60) % 3)
    torch.save({"a": 1}, place / "other.pt")
    before = Path.cwd()
    os.chdir(place)
    yield place
    os.chdir(before)


LONG = "a" * 300  # no disk has such a name
SMALL = (
    "--batchnorm x", "--weighting x", "--classes x", "--classes 0", "--classes 0,9", "--classes ,", "--class-map x",
    "--class-map a=b", "--class-map nothing.json", "--batch-size 0", "--batch-size x", "--batch-size 1", "--device gpu",
    "--device cuda:99", "--memory-gib 0", "--memory-gib -1", "--memory-gib nan", "--memory-gib 1e-12", "--memory-gib x",
    "--sites x", "--sites [", "--reduce x", "--scores x", "--scores 9", "--labels x", "--labels 9", "--out nowhere/a.json",
    "--out folder", "--page nowhere/a.html", "--page folder", "--out a.x --page a.x", "--weights nothing.pt",
    "--weights text.pt", "--weights text.safetensors", "--weights other.pt", "--weights folder", "--per-class 0",
    "--data nothing", "--data folder", "--data inputs.npz", "--data text.npz", "--nothing", "extra", "--mode train",
)  # fmt: skip
COMMANDS = (
    "probe", "probe nothing", "probe nothing.py", "probe nothing.py:make", "probe model.py", "probe model.py:",
    "probe model.py:nope", "probe model.py:nothing", "probe model.py:text", "probe model.py:number", "probe model.py:fails",
    "probe model.py:needs", "probe model.py:three", "probe model.py:nan", "probe model.py:one", "probe model.py:one_class",
    "probe model.py:soft", "probe model.py:empty", "probe model.py:words", "probe model.py:generator",
    "probe broken.py:make", "probe raises.py:make", "probe imports.py:make", "probe folder:make", "probe :make",
    "probe a:b:c", "probe json:loads", "probe model.py:net", "probe model.py:net --data arrays.npz --size 3",
    "probe model.py:net --data empty.json", "probe model.py:net --size 0", "probe model.py:net --normalize x",
    *(f"probe model.py:small {options}" for options in SMALL),
    "sites", "sites nothing.py:m", "sites model.py:net --shape x", "sites model.py:net --shape 0",
    "sites model.py:net --shape -3", "sites model.py:net --shape 7", "sites model.py:net --shape ,",
    "sites model.py:net --shape 99999999999999", "sites model.py:net --shape 8 --classes 1",
    "sites model.py:net --shape 8 --classes x", "sites model.py:net --shape 8 --sites nope",
    *(f"{command} {file}" for command in ("report", "modules") for file in (
        "", "nothing.json", "empty.json", "cut.json", "list.json", "bytes.json", "bare.json", "folder", "model.py")),
    "reproduce", "reproduce nothing", "demo --out empty.json", "demo --epochs x", "depth --depths x", "depth --depths 0",
    "width --widths a", "shape x", "imbalance", "imbalance x", "imbalance 1,2,x", "imbalance 0,0", "nothing", "--nothing",
    *(f"probe model.py:small --{option} {LONG}" for option in ("out", "page", "weights", "data")),
    *(f"{command} {LONG}" for command in ("probe", "report", "modules", "demo --out", "depth --depths 3 --out")),
    f"probe {LONG}.py:make", f"sites {LONG}.py:make", f"checkpoints --model model.py:small {LONG}",
    f"lm {LONG}:x --text model.py",
    f"lm x --text {LONG} --tokens 100", f"imbalance --counts 500x3,50x3 --E-W 1 --E-H 5 --out {LONG}",
    *(f"imbalance --E-W 1 --E-H 5 --counts {numbers}" for numbers in (
        "1-3000000000", "3x3000000000", "9" * 50, "9" * 5000, "3-" + "9" * 5000, "3x" + "9" * 5000)),
    "depth --depths 1-3000000000",
)  # fmt: skip
WORKING = (
    "probe model.py:small --memory-gib inf",
    "probe model.py:net --data arrays.npz",
    "sites model.py:net --shape 8",
)


def left(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["layerlaw", *command.split()])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[:60])
def test_odd_commands_are_answered(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    code = left(command, monkeypatch)
    said = capsys.readouterr()
    assert code in (1, 2)
    assert "Traceback" not in said.err + said.out
    if code == 1:
        assert said.err.startswith("error: ")
        assert 20 < len(said.err) - len("error: ") < 2000
    else:
        assert "Usage: " in said.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", WORKING)
def test_unusual_commands_work(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert left(command, monkeypatch) == 0
    assert capsys.readouterr().out


def test_a_class_map_may_be_longer_than_the_name_of_a_file() -> None:
    names = tuple(f"class{i}" for i in range(100))
    found, _ = class_map(",".join(f"{name}={i}" for i, name in enumerate(names)), names, torch.nn.Linear(2, 100))
    assert found == {i: i for i in range(100)}
