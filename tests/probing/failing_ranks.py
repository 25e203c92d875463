"""One of two processes that fail, lack data, or are killed: `failing_ranks.py RANK PORT FOLDER` (see test_failing_ranks)."""

import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import layerlaw as ll

K, N = 3, 60
LABELS = torch.arange(N) % K
INPUTS = torch.randn(N, 6, generator=torch.Generator().manual_seed(0)) + 2 * nn.functional.one_hot(LABELS, 6)
TARGETS = torch.stack([INPUTS[:, 0] + 1000, INPUTS[:, 1] * LABELS], 1)
QUIET: dict[str, Any] = {"progress": False, "uncertainty": False}
Data = list[tuple[torch.Tensor, torch.Tensor]]


def network(width: int = 8, outputs: int = K) -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, outputs))


def weighted(seed: int) -> nn.Module:
    found = network()
    torch.manual_seed(seed)
    nn.init.normal_(found[3].weight)
    return found


def batches(*sizes: int, labels: torch.Tensor = LABELS, start: int = 0) -> Data:
    found, at = [], start
    for size in sizes:
        found.append((INPUTS[at : at + size], labels[at : at + size]))
        at += size
    return found


class Failing:
    """Data of which some batch does something instead of coming."""

    def __init__(self, at: int, act: Callable[[], object], count: int = 6, pause: float = 0.0) -> None:
        self.at, self.act, self.count, self.pause = at, act, count, pause

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for i in range(self.count):
            if i == self.at:
                self.act()
            time.sleep(self.pause)
            yield INPUTS[10 * (i % 6) : 10 * (i % 6) + 10], LABELS[10 * (i % 6) : 10 * (i % 6) + 10]


def broken() -> None:
    raise ValueError("a picture that is none")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def shards(rank: int) -> dict[str, tuple[nn.Module, Any, dict[str, Any]]]:
    """Of all samples: rank 0 has most or all, rank 1 one or none."""
    none, test = [], {"test": batches(20, 20) if rank == 0 else []}
    most = batches(20, 39) if rank == 0 else batches(1, start=59)
    everything = batches(20, 40) if rank == 0 else none
    pair = (INPUTS, LABELS) if rank == 0 else (INPUTS[:0], LABELS[:0])
    targets = batches(20, 40, labels=TARGETS) if rank == 0 else none
    return {
        "one sample": (network(), most, QUIET),
        "none": (network(), everything, {**QUIET, **test, "null": True}),
        "none, of a pair": (network(), pair, {"progress": False}),
        "none, streamed": (network(), everything, {**QUIET, "memory_gib": 3e-6}),
        "none, linear": (network(), everything, {**QUIET, "linear": True}),
        "the first has none": (network(), none if rank == 0 else batches(20, 40), QUIET),
        "none, of targets": (network(outputs=2), targets, QUIET),
    }


OTHERWISE: dict[str, tuple[Any, Any]] = {  # arguments of rank 0 and of rank 1, whose statistics may have the same sizes
    "batchnorm": ("running", "batch"),
    "seed": (0, 1),
    "reduce": ("mean", "max"),
    "weighting": ("samples", "classes"),
    "memory_gib": (2.0, 1.0),
    "null": (False, True),
    "parts": (True, False),
    "linear": (True, False),
    "uncertainty": (True, "jackknife"),
    "data_name": ("training", "test"),
    "sites": (["0", "2"], ["0", "4"]),
    "classes": ([0, 1], [1, 0]),
    "names of the classes": (["a", "b", "c"], ["a", "b", "d"]),
    "scores": ("auto", None),
}


def otherwise(name: str, rank: int) -> dict[str, Any]:
    """One of these, and what goes with it."""
    more = {"classes": K} if name == "scores" else {}
    return more | {"classes" if name.startswith("names") else name: OTHERWISE[name][rank]}


def alike_but(name: str, rank: int) -> nn.Module:
    """The same weights, and on rank 1 something that no parameter tells."""
    found = network()
    if name == "modules" and rank == 1:
        found[1].eps = 0.5
    if name == "buffers" and rank == 1:
        found.register_buffer("extra", torch.ones(3))
    return found


def alone(name: str) -> tuple[nn.Module, Any, dict[str, Any]]:
    """The same samples in one process."""
    model, data, how = shards(0)[name]
    if name == "one sample":
        data = [*data, *batches(1, start=59)]
    return model, data or batches(20, 40), how


def main(rank: int, port: str, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
    told: dict[str, Any] = {}

    def attempt(name: str, *given: Any, **how: Any) -> None:
        began = time.monotonic()
        try:
            ll.probe(*given, **QUIET | how)
            told[name] = ["", "", 0.0]
        except ll.LayerlawError as error:
            told[name] = [type(error).__name__, str(error), time.monotonic() - began]

    mine = batches(15, 15, start=30 * rank)
    attempt("data", network(), mine if rank == 0 else Failing(1, broken))
    attempt("at once", network(), mine, weighting="samples" if rank == 0 else "nonsense")
    attempt("in a long pass", network(), Failing(-1, broken, 300, 0.1) if rank == 0 else Failing(2, broken))
    attempt("after the passes", network(), mine, test=batches(30) if rank == 0 else Failing(1, broken))
    attempt("other models", network(8 + rank), mine)
    attempt("other sites", network(), mine, sites=["0", "3"] if rank == 0 else ["0"])
    attempt("test data on one", network(), mine, test=batches(30) if rank == 0 else None)
    attempt("other weights", weighted(rank), mine)
    attempt("another dtype", network().to(torch.float64 if rank else torch.float32), mine)
    for name in OTHERWISE:
        attempt(name, network(), mine, **otherwise(name, rank))
    for name in ("modules", "buffers"):
        attempt(name, alike_but(name, rank), mine)
    own: dict[str, Any] = {"device": "cpu"} if rank else {"busy": "raise", "progress": lambda items, *_: iter(items)}
    pair = INPUTS[30 * rank : 30 * rank + 30], LABELS[30 * rank : 30 * rank + 30]
    attempt("what may differ", network(), pair, batch_size=10 + 5 * rank, **own)
    attempt("no samples at all", network(), [])
    attempt("whole", network(), mine)
    for name, (model, data, how) in shards(rank).items():
        ll.probe(model, data, **how).save(folder / f"{name} {rank}.json")
    (folder / f"told {rank}.json").write_text(json.dumps(told))
    attempt("killed", network(), mine if rank == 0 else Failing(1, killed))
    (folder / "told killed.json").write_text(json.dumps(told["killed"]))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
