"""`layerlaw probe --shard i/n --state FOLDER` and `layerlaw merge`: what each says, writes and refuses."""

import itertools
import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import layerlaw

import layerlaw as ll
from layerlaw.cli import main

pytest.importorskip("safetensors")

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    x, y = torch.randn(90, 8).double(), torch.arange(90) % 3
    return net, (x + y[:, None], y)
"""
PROBE = ("probe", "net.py:make", "--batch-size", "20")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def called(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call `layerlaw` in this process; gives what it says."""

    def call(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["layerlaw", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert left.value.code == code, said.err
        return said.out + said.err

    return call


def test_processes_measure_what_one_measures(called: Callable[..., str], here: Path) -> None:
    """Nothing that differs from process to process, such as the order of a set, is taken for another measurement."""
    layerlaw(*PROBE, "--shard", "1/2", "--state", "array", cwd=here)
    for i in (2, 1, 2):
        called(*PROBE, "--shard", f"{i}/2", "--state", "array")
    called("merge", "array", "--out", "merged.json", "--page", "merged.html")
    called(*PROBE, "--out", "one.json")
    one, merged = (ll.Record.load(here / f"{name}.json") for name in ("one", "merged"))
    assert merged.columns == one.columns
    for column in one.columns:
        a, b = ([math.nan if value is None else value for value in record.column(column)] for record in (one, merged))
        assert b == pytest.approx(a, rel=1e-12, nan_ok=True), column
    assert merged.provenance["shards"] == 2
    assert merged.provenance["command"] == one.provenance["command"]
    assert (merged.name, merged.notes) == (one.name, one.notes)
    assert (here / "merged.html").stat().st_size > 10_000


def test_every_command_says_what_to_do_next(called: Callable[..., str]) -> None:
    def shard(i: int, **more: Any) -> str:
        return called(*PROBE, "--shard", f"{i}/2", "--state", "my folder", **more)

    command = "layerlaw probe net.py:make --batch-size 20 --shard {}/2 --state 'my folder'"
    first = shard(1)
    assert "shard 1/2, round 1 of 2 (class sums): done" in first
    assert command.format(2) in first
    assert command.format(1) not in first
    early = called("merge", "my folder", code=1)
    assert "shard 2 of 2 has not done round 1 of 2" in early
    assert command.format(2) in early
    assert "next: the same commands once more, of all shards (round 2)" in shard(2)
    early = called("merge", "my folder", code=1)
    assert "shards 1, 2 of 2 have not done round 2 of 2" in early
    assert "still to be run:" in early
    assert all(command.format(i) in early for i in (1, 2))
    shutil.copytree("my folder", "copy of it")
    copied = called("merge", "copy of it", code=1)
    assert command.format(1).replace("my folder", "copy of it") in copied
    assert "my folder" not in copied
    shard(1)
    assert "next: layerlaw merge 'my folder'" in shard(2)
    assert "was done already" in shard(2)
    told = json.loads(called(*PROBE, "--shard", "2/2", "--state", "my folder", "--json").partition("\n")[0])
    assert (told["round"], told["rounds"], told["measured"], told["missing"]) == (2, 2, False, [])
    assert "merged: 2 shards" in called("merge", "my folder", "--name", "mine")
    Path("my folder/scatters-1-of-2.safetensors").write_text("no state")
    told = json.loads(called(*PROBE, "--shard", "2/2", "--state", "my folder", "--json").partition("\n")[0])
    assert "scatters-1-of-2.safetensors: expected the state of a shard" in told["damaged"]
    assert command.format(1) in told["damaged"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "1/2"], "--shard, --state: expected both of them"),
        (["--state", "array"], "--shard, --state: expected both of them"),
        *(
            (["--shard", given, "--state", "array"], "--shard: expected i/n, the i-th of n shards with i from 1 to n")
            for given in ("3/2", "0/2", "1/0", "one", "1/2/3", "1/", "/", "-1/2", "1/1000000")
        ),
        (
            ["--shard", "1/2", "--state", "array", "--memory-gib", "1e-7"],
            "--memory-gib 2e-06 measures it; or use fewer",
        ),
        (["--shard", "1/2", "--state", "net.py"], "net.py: expected a folder, got a file. Name a folder"),
        (
            ["--shard", "1/2", "--state", "array", "--out", "r.json"],
            "--out, --page: expected them with `layerlaw merge`",
        ),
        (["--shard", "1/2", "--state", "array", "--null"], "--null: cannot be used with shards"),
    ],
)
def test_bad_shards_are_answered(called: Callable[..., str], arguments: list[str], message: str) -> None:
    assert message in called(*PROBE, *arguments, code=1)


def test_saved_features_have_no_shards(called: Callable[..., str]) -> None:
    assert "--shard" in called("probe", "features:.", "--shard", "1/2", "--state", "array", code=1)


def test_a_folder_of_something_else_is_answered(called: Callable[..., str], here: Path) -> None:
    assert "expected the folder of one job array" in called("merge", ".", code=1)
    assert "got a file" in called("merge", "net.py", code=1)
    (here / "sums-1-of-1.safetensors").write_text("no state")
    assert "expected the state of a shard, got a file that is cut short or damaged" in called("merge", ".", code=1)


def test_the_commands_of_the_guide_run_as_they_are_written(called: Callable[..., str], here: Path) -> None:
    """With the model file of the page, which every process must find with the same weights."""
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    model = next(block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "def make()" in block)
    (here / "model.py").write_text(model)
    (section,) = re.findall(r"## Job arrays\n(.*?)\n## ", page, re.S)
    loops = re.findall(r"do layerlaw (probe .*?); done", section)
    assert len(loops) == 2
    for command, i in itertools.product(loops, "1234"):
        called(*shlex.split(command.replace("$i", i)))
    (merge,) = re.findall(r"^layerlaw (merge array .*)$", section, re.M)
    called(*shlex.split(merge))
    called("probe", "model.py:make", "--data", "fashion_mnist_sample", "--out", "one.json")
    one, merged = (ll.Record.load(here / name) for name in ("one.json", "record.json"))
    D = [[site.values["separation"] for site in record.sites] for record in (merged, one)]
    assert D[0] == pytest.approx(D[1], rel=1e-6)
