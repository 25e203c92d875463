"""`layerlaw probe` under torchrun: two processes share the samples and leave the record of one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from command_line import layerlaw
from test_cli import IMAGES, MODEL

from layerlaw.cli.processes import processes
from layerlaw.errors import InputError
from layerlaw.record import Record

OWN_LOADER = """
from torch.utils.data import DataLoader, TensorDataset

def with_loader():
    network, (x, y) = with_data()
    return network, DataLoader(TensorDataset(x, y), batch_size=50)

def unseeded():
    network, (x, y) = with_data()
    torch.seed()
    return network, *torch.utils.data.random_split(TensorDataset(x, y), [80, 40])

def unseeded_tensors():
    network, (x, y) = with_data()
    torch.seed()
    order = torch.randperm(len(y))
    return network, (x[order], y[order])

def own_shares():
    network, (x, y) = with_data()
    rank = torch.distributed.get_rank()
    return network, TensorDataset(x[rank::2], y[rank::2])

def own_test_shares():
    from torch.utils.data import DistributedSampler
    network, (x, y) = with_data()
    rank, data = torch.distributed.get_rank(), TensorDataset(x[:119], y[:119])
    loader = DataLoader(data, batch_size=50, sampler=DistributedSampler(data, shuffle=False))
    return network, loader, TensorDataset(x[rank::2], y[rank::2])

def joins():
    torch.distributed.init_process_group("gloo")

def for_three():
    from torch.utils.data import DistributedSampler
    network, (x, y) = with_data()
    data = TensorDataset(x, y)
    return network, DataLoader(data, batch_size=50, sampler=DistributedSampler(data, num_replicas=3, rank=0))
"""


def on_two(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`layerlaw …` in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "layerlaw"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pair = subprocess.Popen([*command, *arguments], cwd=cwd, env=environment, **pipes)
    try:
        said, errors = pair.communicate(timeout=120)
    finally:
        pair.terminate()  # it ends its workers; a plain kill would leave them
        pair.wait(60)
    return subprocess.CompletedProcess(command, pair.returncode, said, errors)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processes")
    (path / "model.py").write_text(MODEL + OWN_LOADER)
    return path


def test_two_processes_measure_what_one_measures(folder: Path) -> None:
    options = ("probe", "model.py:make", *IMAGES[:-1], "--classes", "0,1,2,3,5", "--no-uncertainty")
    layerlaw(*options, "--out", "one.json", cwd=folder)
    done = on_two(*options, "--out", "two.json", "--page", "two.html", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["record"] == "two.json"  # one object: the second process is silent
    assert (folder / "two.html").exists()
    one, two = Record.load(folder / "one.json"), Record.load(folder / "two.json")
    assert two.provenance["processes"] == 2
    assert (one.counts, one.test_counts, one.classes) == (two.counts, two.test_counts, two.classes)
    assert one.columns == two.columns
    for column in one.columns:
        left, right = (np.array(record.column(column), dtype=float) for record in (one, two))
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-9, err_msg=column)
    assert one.settings == two.settings
    for name in ("data_fingerprint", "data_samples", "test_fingerprint", "test_samples"):
        assert one.provenance[name] == two.provenance[name] is not None
    assert "data" not in layerlaw("check", "two.json", "--against", "one.json", cwd=folder).stdout


def test_a_loader_of_the_users_own_that_does_not_deal_is_an_error_of_one_line(folder: Path) -> None:
    done = on_two("probe", "model.py:with_loader", "--json", cwd=folder)
    assert done.returncode == 1
    assert (
        "expected every sample on one rank, got the same 120 on ranks 0 and 1"
        in json.loads(done.stdout)["error"]["message"]
    )
    assert "rank 1: error: data: expected every sample on one rank" in done.stderr


@pytest.mark.parametrize(
    ("name", "which"), [("unseeded", r"\d+ samples on several"), ("unseeded_tensors", "(another order|120 samples)")]
)
def test_other_data_on_each_rank_from_make_are_an_error_that_names_the_seed(
    folder: Path, name: str, which: str
) -> None:
    done = on_two("probe", f"model.py:{name}", "--json", cwd=folder)
    assert done.returncode == 1
    words = json.loads(done.stdout)["error"]["message"]
    assert words.startswith("data: expected make to return the same data on all 2 ranks, which the command deals.")
    assert re.search(f"make returned other data on each rank: got {which}", words)
    assert "Seed random_split or shuffle" in words


def test_make_may_return_shares_of_its_own(folder: Path) -> None:
    done = on_two("probe", "model.py:own_shares", "--no-uncertainty", "--out", "own.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    record = Record.load(folder / "own.json")
    assert (sum(record.counts), record.notes) == (120, [])


def test_shares_of_test_data_of_its_own_say_nothing_of_the_data(folder: Path) -> None:
    done = on_two("probe", "model.py:own_test_shares", "--no-uncertainty", "--out", "own.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    record = Record.load(folder / "own.json")
    (note,) = record.notes
    assert "the loader's DistributedSampler repeats 1 of 119 samples" in note
    assert (sum(record.counts), sum(record.test_counts)) == (120, 120)


def test_a_make_that_joins_the_processes_is_told_that_the_command_does(folder: Path) -> None:
    done = on_two("probe", "model.py:joins", "--json", cwd=folder)
    first, *_ = json.loads(done.stdout)["error"]["message"].splitlines()
    assert first.endswith("Under torchrun the command does this: leave it out of make, and return the bare model.")


def test_a_warning_is_one_line_without_a_line_of_code(folder: Path) -> None:
    said = layerlaw("probe", "model.py:for_three", "--no-uncertainty", cwd=folder).stderr
    (line,) = (line for line in said.splitlines() if "arning" in line)
    assert line.startswith("warning: data: the loader's DistributedSampler deals to 3 ranks, but one process measures")


def test_all_processes_name_an_option_as_the_command_line_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by two real ones: one may be ended before it speaks."""
    monkeypatch.setattr("sys.argv", ["layerlaw", "probe", "model.py:make", "--shard", "1/2", "--state", "array"])
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend: None)
    for name, value in {"WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(typer.Exit), processes("cpu"):
        raise InputError("shard: expected one process, got several ranks.")
    assert capsys.readouterr().err == "rank 1: error: --shard: expected one process, got several ranks.\n"


def test_saved_features_are_for_one_process(monkeypatch: pytest.MonkeyPatch, refused) -> None:
    monkeypatch.setattr("layerlaw.cli.classifier.world_size", lambda: 2)
    assert "expected one process for saved features, got 2" in refused("probe", "features:folder")
