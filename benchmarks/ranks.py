"""One process against two that share the samples, one thread each: `python benchmarks/ranks.py [--rounds 5] [--only WORD]`.

In every round rank 0 first probes all batches alone (`ranks=` a group of itself), then every second one, while the other
waits. Then both ranks probe every second batch, once each for itself at the same time, without a word between them, and once
together. Printed are medians of the ratio one : two, by processor time of the slower rank and by the clock; in brackets the
same ratio of those that do not talk: what the machine allows. For processor time is not free of what else runs: two
processes share the last cache, the memory and the clock rate of the processor with each other and with other users of the
machine, and rank 0 alone has them for itself. So the third number is the first one with this taken out: times half of the
batches by both at once : by one alone. It is what two processors that share nothing would give. Last is the largest relative
difference between the records of one and two in any column.

The first round of each case is a warm-up and does not count.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from kept_memory import KEPT
from networks import ResNet20, separated
from torch import multiprocessing, nn

import layerlaw as ll
from layerlaw.lab import FeedForward

BATCH = 100


def cases(images: int) -> dict[str, tuple[nn.Module, list[Any], dict[str, Any]]]:
    """Network, all batches and options, by name."""
    torch.manual_seed(0)
    x, y = separated(images, 3, 32, 32)
    flat, labels = separated(30 * images, 400)
    network = ResNet20().train()
    network(x[:BATCH])
    pictures = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    vectors = list(zip(flat.split(BATCH), labels.split(BATCH), strict=True))
    plain = FeedForward(inputs=400, depth=8)
    few = pictures[: max(2, len(pictures) // 2)]
    return {
        "ResNet-20, layers, mean": (network, pictures, {"sites": "layers", "reduce": "mean"}),
        "ResNet-20, layers, mean, float64": (
            ResNet20().double(),
            [(a.double(), b) for a, b in few],
            {"sites": "layers", "reduce": "mean"},
        ),
        "ResNet-20, layers, mean, streamed": (
            network,
            pictures,
            {"sites": "layers", "reduce": "mean", "memory_gib": 2e-3},
        ),
        "ResNet-20, blocks, flattened": (network, pictures, {"sites": "blocks", "memory_gib": 1.0}),
        "8 layers of width 100": (plain, vectors, {}),
    }


def timed(job: Callable[[], ll.Record]) -> tuple[ll.Record, float, float]:
    """What a job gives, and its seconds of the processor and of the clock."""
    processor, clock = time.process_time(), time.perf_counter()
    found = job()
    return found, time.process_time() - processor, time.perf_counter() - clock


def difference(one: ll.Record, two: ll.Record) -> float:
    """The largest of any column, relative to the values of that row."""
    assert one.columns == two.columns
    found = [0.0]
    for column in one.columns:
        a, b = (np.array(record.column(column), dtype=float) for record in (one, two))
        found.append(float(np.nanmax(np.abs(a - b) / np.maximum(np.abs(a), 1e-12), initial=0.0)))
    return max(found)


def work(rank: int, port: int, rounds: int, images: int, only: str) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    for name, (network, batches, how) in cases(images).items():
        if only not in name:
            continue
        quiet: dict[str, Any] = {"progress": False, "uncertainty": False, **how}
        share = batches[rank::2]
        ratios, disturbed, apart = [], [], 0.0
        for number in range(rounds + 1):  # the first warms up
            if rank == 0:
                one, *before = timed(partial(ll.probe, network, batches, ranks=alone, **quiet))
                _, undisturbed, _ = timed(partial(ll.probe, network, share, ranks=alone, **quiet))
            dist.barrier()
            _, *silent = timed(partial(ll.probe, network, share, ranks=alone, **quiet))
            dist.barrier()
            two, *after = timed(partial(ll.probe, network, share, **quiet))
            taken = torch.zeros(2, 4, dtype=torch.float64)
            taken[rank] = torch.tensor([*after, *silent])
            dist.all_reduce(taken)
            if rank == 0 and number:
                ratios.append([part / slower for part, slower in zip(before * 2, taken.amax(0).tolist(), strict=True)])
                disturbed.append(float(taken[0, 2]) / undisturbed)
                apart = max(apart, difference(one, two))
        if rank == 0:
            told, clock, limit, limit_clock = map(statistics.median, zip(*ratios, strict=True))
            processor = f"{told:.2f} × ({limit:.2f}) by processor time"
            apart_from = (
                f"{statistics.median(r[0] * d for r, d in zip(ratios, disturbed, strict=True)):.2f} × undisturbed"
            )
            print(
                f"{name}: {processor}, {clock:.2f} × ({limit_clock:.2f}) by the clock, {apart_from}, "
                f"records {apart:.0e} apart",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--only", default="", help="cases with this in their name")
    given = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= KEPT  # read by the processes that are started
    multiprocessing.spawn(work, (port, given.rounds, given.images, given.only), nprocs=2)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
