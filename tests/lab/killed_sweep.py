"""A sweep that is killed (SIGKILL) on its way: python killed_sweep.py FOLDER WORKERS STEPS [saving | conv | images].

After so many epochs, or with "saving" in the middle of the save of that number; "conv" trains convolutional networks.
This process saves at every epoch; its workers save every minute, and take their time with every epoch. "images" is killed
at the optimizer step of that number, and saves as it always does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from image_parts import image_sweep
from lab_parts import EVERYTHING, SCHEDULE, slow_worker, small_sweep
from seam_parts import conv_sweep

import layerlaw.lab
from layerlaw.lab import sweeping
from layerlaw.lab.trainer import Trainer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(steps: int) -> Callable[..., Iterator[int]]:
    def progress(items: Iterable[int], label: str, total: int | None) -> Iterator[int]:
        for step, item in enumerate(items, 1):
            if step == steps:
                die()
            yield item

    return progress


def dying_in_save(number: int) -> Callable[[Path, bytes], int]:
    whole, saves = Path.write_bytes, iter(range(1, number + 1))

    def save(path: Path, content: bytes) -> int:
        if next(saves) == number:
            whole(path, content[: len(content) // 2])
            die()
        return whole(path, content)

    return save


def dying_in_step(number: int) -> Callable[..., None]:
    step, made = Trainer.step, iter(range(1, number + 1))

    def slow_step(self: Trainer, rows: torch.Tensor) -> None:
        time.sleep(0.1)  # an epoch of images takes longer than a few saves
        step(self, rows)
        if next(made) == number:
            die()

    return slow_step


def main(folder: str, workers: str, steps: str, *how: str) -> None:
    torch.set_num_threads(1)
    layerlaw.lab.jobs.SAVE_EVERY = layerlaw.lab.jobs.SAVE_EVERY if how == ("images",) else 0.0
    layerlaw.lab.processes._PROGRAM = slow_worker()
    sweeping.WORTH_PROCESSES = 0
    progress: Any = False
    if how == ("saving",):
        Path.write_bytes = dying_in_save(int(steps))  # type: ignore[method-assign,assignment]
    elif how == ("images",):
        layerlaw.lab.jobs.SAVE_SHARE = 0.5  # a busy machine may need long for a save
        Trainer.step = dying_in_step(int(steps))  # type: ignore[method-assign]
    else:
        progress = dying_after(int(steps))
    recipes, samples = {("conv",): conv_sweep, ("images",): image_sweep}.get(how, small_sweep)()
    schedule = EVERYTHING if how in (("conv",), ("images",)) else SCHEDULE
    sweeping.sweep(
        recipes, samples, schedule=schedule, members=2, folder=folder, workers=int(workers), progress=progress
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
