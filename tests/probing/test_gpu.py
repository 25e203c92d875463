"""Model and data on a GPU, which is pretended: the record of the CPU, in order; also in parts and on two ranks."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_ranks import PLACES, TOGETHER, share
from probe_on_gpus import CASES, Case, Data, assert_same, on

import layerlaw as ll
from layerlaw.probing.job_array import probe_shard
from layerlaw.probing.paths import sample_paths
from layerlaw.probing.shard_files import merge
from pretended_gpu import Gpu, missing


def probed(case: Case, device: str) -> ll.Record:
    network, data, test, how = case
    more = {} if test is None else {"test": on(test, device)}
    return ll.probe(copy.deepcopy(network).to(device), on(data, device), progress=False, **more, **how)


@pytest.mark.parametrize(("name", "device"), [*((name, "cuda") for name in CASES), ("kept", "cuda:1")])
def test_the_record_is_that_of_the_cpu(name: str, device: str, gpu: Gpu) -> None:
    expected = probed(CASES[name], "cpu")
    for _ in range(1 + (name in ("kept", "streamed", "regression"))):  # the second time by a plan that is kept
        assert_same(probed(CASES[name], device), expected)


def test_the_host_waits_for_few_numbers_of_a_probe(gpu: Gpu) -> None:
    """Whoever needs one more raises the number here, and knows that a GPU stands still for it."""
    network, data, _, _ = CASES["kept"]
    network, data = copy.deepcopy(network).cuda(), on(data, "cuda")
    for _ in range(3):
        gpu.waits.clear()
        ll.probe(network, data, progress=False, uncertainty=False)
    assert len(gpu.waits) <= 53, "\n".join(gpu.waits)


@pytest.mark.parametrize("how", [{}, {"memory_gib": 3e-5, "batch_size": 50}], ids=["kept", "in parts"])
def test_paths_of_samples_are_those_of_the_cpu(how: dict, gpu: Gpu) -> None:
    network, data, test, _ = CASES["test data"]
    here, there = (
        sample_paths(copy.deepcopy(network).to(to), on(data, to), test=on(test, to), progress=False, **how)
        for to in ("cpu", "cuda")
    )
    torch.testing.assert_close(there.separation, here.separation, rtol=1e-4, atol=1e-6)
    assert torch.equal(there.nearest, here.nearest)
    assert torch.equal(there.predictions, here.predictions)


@pytest.mark.parametrize("targets", [False, True])
def test_the_record_of_given_features_is_that_of_the_cpu(targets: bool, gpu: Gpu) -> None:
    x, y = CASES["regression" if targets else "kept"][1]
    layers = {"a": x, "b": x.relu(), "c": x**3}
    how = {"linear": True, "progress": False} if not targets else {"progress": False}
    there = {name: layer.cuda() for name, layer in layers.items()}
    expected = ll.record_of(layers, y, test=({k: v[:100] for k, v in layers.items()}, y[:100]), **how)
    test = {name: layer[:100] for name, layer in there.items()}, y[:100].cuda()
    assert_same(ll.record_of(there, y.cuda(), test=test, **how), expected)
    assert_same(ll.record_of(there, y.numpy(), test=(test[0], y[:100]), **how), expected)


@pytest.mark.parametrize("name", ["kept", "regression", "flattened"])
def test_jobs_on_a_gpu_and_on_the_cpu_give_the_record_of_one(name: str, gpu: Gpu, tmp_path: Path) -> None:
    network, data, _, how = CASES[name]
    how = {"batch_size": 40, "progress": False, **how}
    expected = ll.probe(network, data, **how)
    for _ in range(3):  # one pass at a time
        for i, device in ((1, "cuda"), (2, "cpu")):
            probe_shard(copy.deepcopy(network).to(device), data, shard=(i, 2), state=tmp_path / "state", **how)
    assert_same(merge(tmp_path / "state"), expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks have found."""
    if reason := missing():
        pytest.skip(reason)
    folder, here = tmp_path_factory.mktemp("ranks"), Path(__file__).parent
    paths = [str(here.parent), *os.environ.get("PYTHONPATH", "").split(":")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(paths), "LAYERLAW_RANK_TIMEOUT": "20"}
    command = [sys.executable, str(here / "gpu_ranks.py")]
    ranks = [
        subprocess.Popen([*command, str(i), str(folder)], env=environment, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)[-4000:]
    return folder


def behind_each_other(data: Data) -> Data:
    """The samples of the first rank, then those of the second, as one process would have them."""
    (x, y), (u, v) = share(data, 0), share(data, 1)
    return torch.cat([x, u]), torch.cat([y, v])


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("place", PLACES)
def test_two_ranks_have_the_record_of_one_process(place: str, name: str, folder: Path) -> None:
    network, data, test, how = CASES[name]
    expected = probed((network, behind_each_other(data), test and behind_each_other(test), how), "cpu")
    for rank in range(2):
        assert (folder / f"{place}, {name} {rank}.txt").read_text() == ""
        assert_same(ll.Record.load(folder / f"{place}, {name} {rank}.json"), expected)
