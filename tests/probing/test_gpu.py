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
from pretended_gpu import Gpu, missing


def probed(case: Case, device: str) -> ll.Record:
    network, data, test, how = case
    more = {} if test is None else {"test": on(test, device)}
    return ll.probe(copy.deepcopy(network).to(device), on(data, device), progress=False, **more, **how)


@pytest.mark.parametrize(("name", "device"), [*((name, "cuda") for name in CASES), ("kept", "cuda:1")])
def test_the_record_is_that_of_the_cpu(name: str, device: str, gpu: Gpu) -> None:
    expected = probed(CASES[name], "cpu")
    for _ in range(2):  # the second time by a plan that is kept
        assert_same(probed(CASES[name], device), expected)


def test_the_host_waits_for_few_numbers_of_a_probe(gpu: Gpu) -> None:
    """Whoever needs one more raises the number here, and knows that a GPU stands still for it."""
    network, data, _, _ = CASES["kept"]
    network, data = copy.deepcopy(network).cuda(), on(data, "cuda")
    for _ in range(3):
        gpu.waits.clear()
        ll.probe(network, data, progress=False, uncertainty=False)
    assert len(gpu.waits) <= 53, "\n".join(gpu.waits)


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
