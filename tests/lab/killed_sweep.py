"""A sweep that is killed (SIGKILL) on its way: python killed_sweep.py FOLDER WORKERS STEPS [saving | conv].

After so many epochs, or with "saving" in the middle of the save of that number; "conv" trains convolutional networks.
This process saves at every epoch; its workers save every minute, and take their time with every epoch.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from lab_parts import EVERYTHING, SCHEDULE, slow_worker, small_sweep
from seam_parts import conv_sweep

import layerlaw.lab
from layerlaw.lab import sweeping


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(steps: int) -> Callable[..., Iterator[int]]:
    def progress(items: Iterable[int], label: str, total: int | None) -> Iterator[int]:
        for step, item in enumerate(items, 1):
            if step == steps:
                die()
            yield item

    return progress


def dying_in_save(number: int) -> Callable[[Any, Path], None]:
    whole, saves = torch.save, iter(range(1, number + 1))

    def save(plain: Any, path: Path) -> None:
        if next(saves) == number:
            memory = io.BytesIO()
            whole(plain, memory)
            path.write_bytes(memory.getvalue()[: len(memory.getvalue()) // 2])
            die()
        whole(plain, path)

    return save


def main(folder: str, workers: str, steps: str, *how: str) -> None:
    torch.set_num_threads(1)
    layerlaw.lab.jobs.SAVE_EVERY = 0.0
    layerlaw.lab.processes._PROGRAM = slow_worker()
    sweeping.WORTH_PROCESSES = 0
    progress: Any = False
    if how == ("saving",):
        torch.save = dying_in_save(int(steps))
    else:
        progress = dying_after(int(steps))
    recipes, samples = conv_sweep() if how == ("conv",) else small_sweep()
    schedule = EVERYTHING if how == ("conv",) else SCHEDULE
    sweeping.sweep(
        recipes, samples, schedule=schedule, members=2, folder=folder, workers=int(workers), progress=progress
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
