"""CUDA graphs: work of a device is recorded instead of being done, and where that fails nothing of it stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import torch

END_OF_POOL = "_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"  # since torch 2.7, and before
Mode = Literal["global", "thread_local"]


@contextmanager
def recording(
    graph: torch.cuda.CUDAGraph, aside: torch.cuda.Stream, *, pool: Any = None, mode: Mode = "thread_local"
) -> Iterator[None]:
    """Record what the device is told to do, in the stream `aside`, which waits for the present one; that waits for it too.

    Graphs share the memory of a `pool` where they are recorded in the same stream. In mode "global" other threads may not do
    what would break a recording either. An error of the work itself is raised, not the one of the recording that it broke.
    """
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    here = torch.cuda.current_stream(aside.device)
    aside.wait_stream(here)
    try:
        with torch.cuda.stream(aside):
            try:
                with _captured(graph, pool, mode):
                    yield
            except Exception:
                # One that goes well, in a pool of its own: torch's random numbers wait for its end.
                with suppress(RuntimeError), _captured(torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), mode):
                    torch.zeros(1, device=aside.device)
                raise
    finally:
        here.wait_stream(aside)


@contextmanager
def _captured(graph: torch.cuda.CUDAGraph, pool: Any, mode: Mode) -> Iterator[None]:
    try:
        graph.capture_begin(pool=pool, capture_error_mode=mode)
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # the other error says why
                graph.capture_end()
            raise
        graph.capture_end()
    except BaseException:
        _close(pool)
        raise


def _close(pool: Any) -> None:
    """End what a recording that failed leaves open.

    Before 2.12, torch goes on as if it were still recording (pytorch/pytorch#180395): memory that it has taken is then
    never given back, so that every later call of the process may run out of it.
    """
    end = next((getattr(torch._C, name) for name in END_OF_POOL if hasattr(torch._C, name)), None)
    if end is not None:
        with suppress(RuntimeError):  # nothing was open
            end(torch.cuda.current_device(), pool)
