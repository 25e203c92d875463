"""Two processes measure what one does."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from two_ranks import GROUPS, K, measured

import oracle
from layerlaw.stats import all_reduce, deal_groups, ranks
from layerlaw.stats.ranks import rank, world_size


def data() -> dict[str, tuple[torch.Tensor, ...]]:
    x, y = oracle.blobs([90, 50, 30, 10], 9, seed=5, offset=2.0)
    groups = deal_groups(y, torch.zeros(K, dtype=torch.long), GROUPS)
    decision = torch.flip(y, [0])
    return {"float64": (x, y, groups, decision), "float32": (x.float(), y, groups, decision)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    torch.save(data(), folder / "data.pt")
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(here / "two_ranks.py")]
    processes = [
        subprocess.Popen(
            [*command, str(i), "2", str(folder)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for i in range(2)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output.decode()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(folder / f"found{i}.pt") for i in range(2)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_two_processes_equal_one_for_every_statistic(found: list[dict], dtype: str, weighting: str) -> None:
    relative = 1e-12 if dtype == "float64" else 1e-6
    expected = measured(*data()[dtype], weighting)
    for theirs in found:
        for name, value in expected.items():
            size = float(expected["lengths"].sum()) if name == "residuals" else float(value.abs().max())
            torch.testing.assert_close(
                theirs[f"{dtype} {weighting}"][name], value, rtol=relative, atol=relative * size, msg=name
            )


def test_both_ranks_hold_the_same_numbers(found: list[dict]) -> None:
    first, second = found
    for name in ("float64 samples", "float32 classes"):
        assert all(torch.equal(first[name][key], second[name][key]) for key in first[name])


def test_ranks_with_different_centers_are_told(found: list[dict]) -> None:
    for theirs in found:
        assert theirs["different centers"] == (
            "the ranks measured around different class means: all must probe the same model and sites."
        )


@pytest.mark.parametrize("job", ["in a job", "without one"])
def test_few_numbers_come_to_the_meeting_and_some_need_no_more_messages_than_ranks(found: list[dict], job: str) -> None:
    for theirs in found:
        for n, calls in ((5, 1), (1000, 2), (200_000, 2)):
            added, first, in_calls = theirs[f"{job} {n}"]
            torch.testing.assert_close(added, 2 * torch.arange(n, dtype=torch.float64) + 1, rtol=0, atol=0)
            assert first.tolist() == list(range(n))
            assert in_calls == (calls if job == "in a job" else 1)


def test_one_process_is_left_alone() -> None:
    tensor = torch.arange(3.0)
    all_reduce([tensor], [torch.tensor(1.0)])
    assert tensor.tolist() == [0, 1, 2]
    assert world_size() == 1
    assert rank() == 0


def test_a_tensor_that_a_thread_of_the_group_still_holds_is_kept_until_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a thread would have to delete it while the interpreter ends, which aborts the process."""
    tensors = [torch.zeros(2) for _ in range(3)]
    sent = iter(tensors)
    monkeypatch.setattr(ranks, "_held", [])
    outside = torch.zeros(3)
    monkeypatch.setattr(ranks, "_in_use", lambda tensor: tensor is tensors[0])
    for tensor in sent:
        ranks._call(lambda: None, tensor)
    assert [id(tensor) for tensor in ranks._held] == [id(tensors[0]), id(tensors[2])]
    answers = iter([True, True, False])
    monkeypatch.setattr(ranks, "_in_use", lambda tensor: next(answers, False))
    ranks._wait_until_let_go()
    assert next(answers, None) is None  # it asked until nobody did
    assert not ranks._in_use(outside)


def test_a_rank_that_failed_says_so_where_the_others_do_not_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks._Job.__new__(ranks._Job)
    job._store = None
    monkeypatch.setattr(ranks, "TOLD_AFTER", 0.05)
    for wait, said in (
        (0.0, ""),
        (1.0, "layerlaw: rank 0 failed and waits for the others to hear of it. ValueError: b\n"),
    ):
        monkeypatch.setattr(job, "meet", lambda wait=wait, **_: time.sleep(wait))
        job.tell(ValueError("b"))
        assert capsys.readouterr().err == said
