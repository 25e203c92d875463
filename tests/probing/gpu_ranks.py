"""One of two ranks that probe together, on GPUs that are pretended: `python gpu_ranks.py RANK FOLDER` (see test_gpu)."""

import copy
import datetime
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from probe_on_gpus import CASES, Data, on

import layerlaw as ll
from layerlaw.module_tree import PLAIN
from pretended_gpu import OnGpu, pretended_gpu

PLACES = {"both on GPUs": ("cuda", "cuda"), "one on a GPU, one on the CPU": ("cuda", "cpu")}
TOGETHER = (
    *("kept", "streamed", "uncertainty", "uncertainty, streamed", "test data", "many classes", "flattened"),
    *("regression", "regression, test data", "regression, streamed", "several labels"),
)
"""The cases that are probed by ranks."""


def share(data: Data, rank: int) -> Data:
    x, y = data
    return x[rank::2], y[rank::2]


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meet'}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=30),
    )
    PLAIN.add(OnGpu)
    for place, devices in PLACES.items():
        for name in TOGETHER:
            network, data, test, how = CASES[name]
            told = folder / f"{place}, {name} {rank}.txt"
            with pretended_gpu() as gpu:
                try:
                    more = {} if test is None else {"test": on(share(test, rank), devices[rank])}
                    network, data = copy.deepcopy(network).to(devices[rank]), on(share(data, rank), devices[rank])
                    ll.probe(network, data, progress=False, **more, **how).save(told.with_suffix(".json"))
                except Exception:  # the others are probed all the same
                    gpu.problems.append(traceback.format_exc())
            told.write_text(gpu.told())
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may abort Python while it shuts down


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
