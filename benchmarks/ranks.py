"""One process against two that share the samples, one thread each: `python benchmarks/ranks.py [--rounds 5] [--only WORD]`.

In every round rank 0 first probes all batches alone (`ranks=` a group of itself), then both ranks probe every second batch
together. Printed are medians of the ratio one : two, by processor time (that of the slower rank, which other users of the
machine do not change) and by the clock, and the largest relative difference between the two records in any column.
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
    alone = dist.new_group([0])
    for name, (network, batches, how) in cases(images).items():
        if only not in name:
            continue
        quiet: dict[str, Any] = {"progress": False, "uncertainty": False, **how}
        ratios, clocks, apart = [], [], 0.0
        for number in range(rounds + 1):  # the first warms up
            taken = torch.zeros(2, 2, dtype=torch.float64)
            if rank == 0:
                one, *before = timed(partial(ll.probe, network, batches, ranks=alone, **quiet))
            dist.barrier()
            two, *after = timed(partial(ll.probe, network, batches[rank::2], **quiet))
            taken[rank] = torch.tensor(after)
            dist.all_reduce(taken)
            if rank == 0 and number:
                ratios.append(before[0] / float(taken[:, 0].max()))
                clocks.append(before[1] / float(taken[:, 1].max()))
                apart = max(apart, difference(one, two))
        if rank == 0:
            told = (
                f"{statistics.median(ratios):.2f} × by processor time, {statistics.median(clocks):.2f} × by the clock"
            )
            print(f"{name}: {told}, records {apart:.0e} apart", flush=True)
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
    multiprocessing.spawn(work, (port, given.rounds, given.images, given.only), nprocs=2)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
