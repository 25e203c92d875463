"""What is left open by a recording that fails is closed; a stand-in takes the place of the graph."""

from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch

from layerlaw.capture.recording import END_OF_POOL, recording

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
POOL, OTHER = (0, 7), (0, 8)


class Stream:
    device = torch.device("cpu")

    def wait_stream(self, _: object) -> None:
        pass


class Graph:
    """Fails as it is told to; tells the pools that it was begun with."""

    begun: ClassVar[list] = []
    fails: ClassVar[str] = ""

    def capture_begin(self, pool, capture_error_mode) -> None:
        Graph.begun.append(pool)
        if Graph.fails == "begin":
            Graph.fails = ""
            raise RuntimeError("cannot begin")

    def capture_end(self) -> None:
        if Graph.fails == "end":
            Graph.fails = ""
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list:
    """Pools whose recording was ended by hand; torch complains about those that are not open."""
    found: list = []

    def end(device: int, pool: object) -> None:
        found.append(pool)
        raise RuntimeError("not currently recording to mempool_id")

    Graph.begun, Graph.fails = [], ""
    monkeypatch.setattr(torch._C, END_OF_POOL[0], end, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: OTHER)
    return found


def test_nothing_is_closed_where_all_went_well(closed: list) -> None:
    with recording(Graph(), Stream(), pool=POOL):
        pass
    assert Graph.begun == [POOL]
    assert not closed


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_a_recording_that_fails_is_closed_and_says_why(closed: list, fails: str) -> None:
    Graph.fails = fails
    with pytest.raises(RuntimeError, match=r"cannot begin|previous error"), recording(Graph(), Stream(), pool=POOL):
        pass
    assert closed == [POOL]
    assert Graph.begun == [POOL, OTHER]  # a second one, that goes well


def test_an_error_of_the_work_is_told_rather_than_that_of_its_recording(closed: list) -> None:
    Graph.fails = "end"
    with pytest.raises(ValueError, match="of the work"), recording(Graph(), Stream(), pool=POOL):
        raise ValueError("of the work")
    assert closed == [POOL]


@cuda
def test_memory_is_given_back_after_a_recording_that_failed() -> None:
    x, graph, here = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    with pytest.raises(RuntimeError), recording(graph, torch.cuda.Stream()):
        x.sum().item()
    assert torch.cuda.current_stream() == here
    large = torch.empty(2**30, device="cuda")
    assert torch.cuda.memory_reserved() > 2**32
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 2**30
    torch.rand(3, device="cuda")  # random numbers are drawn as ever
    with recording(graph := torch.cuda.CUDAGraph(), torch.cuda.Stream()):
        y = x + 1
    graph.replay()
    assert y.tolist() == [2, 2, 2]
