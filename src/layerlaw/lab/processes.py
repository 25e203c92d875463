"""Jobs on several cores: one process per core, each with one thread.

A fleet on one core keeps to its cache, and two threads inside one fleet help little. The processes are started as
programs of their own, so that a script without a `__main__` guard is not run again.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import torch

from layerlaw.errors import LayerlawError
from layerlaw.files import disk_told
from layerlaw.lab.fleet.engine import GPU_SHARE, fleet_takes, member_bytes
from layerlaw.lab.fleet.rows import fused_path
from layerlaw.lab.jobs import Checkpoint, Job, run
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.progress import Counter, warn
from layerlaw.threads import one_thread

_PROGRAM = "from layerlaw.lab.processes import serve; serve()"
AT_ONCE = 8  # fleets on a GPU
BUSY = 512  # members that keep a GPU busy: those of further fleets wait, and are made and measured while these train
WORTH_PROCESSES = 3e11  # multiplications; below, starting processes takes longer than they save
WORTH_THREADS = (
    1e9  # multiplications of a step; below, threads gain little, and beside other programs they wait for each other
)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work(recipe: Recipe, samples: Samples) -> float:
    """About how many multiplications training takes."""
    return _work_of_one(recipe, samples) * len(samples.labels) * recipe.epochs


def _work_of_one(recipe: Recipe, samples: Samples) -> float:
    """Of one sample, there and back."""
    return 3.0 * recipe.network.multiplications(tuple(samples.inputs.shape[1:]))


def run_here(jobs: Sequence[Job], bar: Counter, stop: threading.Event) -> tuple[list[Checkpoint], bool]:
    """The jobs in this process; returns what they reached, and whether all came to their end.

    One after the other; but fleets on a GPU, which small networks leave idle most of the time, several at once.
    """
    at_once = [job for job in jobs if fits_beside_others(job)]
    finished = []
    for job in jobs if len(at_once) < 2 else [job for job in jobs if not fits_beside_others(job)]:

        def report(epoch: int, loss: float, job: Job = job) -> bool:
            bar.step(_where(job, epoch, loss))
            return not stop.is_set()

        with _threads(job):
            finished.append(run(job, report))
        if stop.is_set():
            break
    if len(at_once) > 1 and not stop.is_set():
        finished += _run_at_once(at_once, bar, stop)
    return finished, all(part.done for part in finished) and len(finished) == len(jobs)


def fits_beside_others(job: Job) -> bool:
    """Whether a GPU may train other fleets meanwhile: of feed-forward networks, which need no switches of torch."""
    return torch.device(job.device).type == "cuda" and fused_path() and fleet_takes(job.recipe, job.schedule)


def _run_at_once(jobs: Sequence[Job], bar: Counter, stop: threading.Event) -> list[Checkpoint]:
    """Fleets on a GPU, each in a thread and a stream of its own, as many as its memory has room for."""
    waiting, changed, failed = iter(jobs), threading.Condition(), threading.Event()
    room = GPU_SHARE * torch.cuda.mem_get_info(torch.device(jobs[0].device))[0]
    running = 0
    training: dict[int, int] = {}  # members of each job, from its first epoch to the one before its last
    finished: list[Checkpoint] = []

    def over() -> bool:
        return stop.is_set() or failed.is_set()

    def report(job: Job, epoch: int, loss: float) -> bool:
        with changed:
            bar.step(_where(job, epoch, loss))
            if id(job) in training:
                if epoch == job.recipe.epochs - 1:  # its measuring may take long
                    training[id(job)] = 0
                    changed.notify_all()
            else:
                while sum(training.values()) and sum(training.values()) + len(job.members) > BUSY and not over():
                    changed.wait(0.5)
                training[id(job)] = len(job.members)
        return not over()

    def work_off(number: int) -> None:
        nonlocal room, running
        while True:
            with changed:
                job = next(waiting, None)
                if job is None or over():
                    return
                need = len(job.members) * member_bytes(job.recipe, job.members[0].samples)
                while running and need > room and not failed.is_set():
                    changed.wait()
                room, running = room - need, running + 1
            try:
                with torch.cuda.stream(_stream(job.device, number)):
                    finished.append(run(job, partial(report, job)))
            except BaseException:
                failed.set()
                raise
            finally:
                with changed:
                    room, running = room + need, running - 1
                    training[id(job)] = 0
                    changed.notify_all()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        going = {pool.submit(work_off, number) for number in range(min(AT_ONCE, len(jobs)))}
        try:
            while going:  # in short turns: this thread answers Ctrl-C
                ended, going = wait(going, 0.05)
                for one in ended:
                    one.result()
        except BaseException:
            failed.set()
            raise
    return finished


@cache
def _stream(device: str, number: int) -> torch.cuda.Stream:
    """Made once: torch keeps freed memory for the stream that had it."""
    return torch.cuda.Stream(torch.device(device))  # type: ignore[no-untyped-call]


def _threads(job: Job) -> AbstractContextManager[None]:
    """One on a CPU for a fleet, whose matrices are small, and for other small steps."""
    if job.is_fleet and torch.device(job.device).type == "cpu":
        return one_thread()
    return threads_for(job.recipe, job.members[0].samples, job.device)


def threads_for(recipe: Recipe, samples: Samples, device: str) -> AbstractContextManager[None]:
    """One on a CPU, where the steps of its training are small."""
    little = _work_of_one(recipe, samples) * recipe.batch_size < WORTH_THREADS
    return one_thread() if little and torch.device(device).type == "cpu" else nullcontext()


def _where(job: Job, epoch: int, loss: float) -> str:
    known = f", loss {loss:.4f}" if loss == loss else ""
    return f"{_what(job)}, epoch {epoch}{known}"


def _what(job: Job) -> str:
    return f"{len(job.members)} × {job.recipe.network}"


def found_elsewhere(jobs: Sequence[Job], workers: int | None) -> bool:
    """Whether other processes can import the networks and losses; a warning says so where `workers` were asked for.

    Not those that the running script itself defines, since importing it would run it again, nor those of a function.
    """
    members = [member.recipe for job in jobs for member in job.members]
    kinds = {type(part) for recipe in members for part in (recipe.network, recipe.loss)}
    own = {kind.__name__: kind for kind in kinds if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__}
    if own and workers:
        places = [
            f"{name} (defined in {'a function' if '<locals>' in own[name].__qualname__ else 'the running script'})"
            for name in sorted(own)
        ]
        why = f"other processes cannot import {', '.join(places)}"
        cure = f"put {'it' if len(own) == 1 else 'them'} at the top level of a module that the script imports"
        warn(f"workers={workers}: all is trained in this process, since {why}. For {workers} processes, {cure}.")
    return not own


def failed(why: str, file: Path | None) -> LayerlawError:
    """That a training ended with an error, and where the sweep has a folder, what is left of it."""
    left = "" if file is None else f" What was saved is in {file.parent}: call sweep again with this folder to go on."
    return LayerlawError(f"training failed: {why.rstrip('.')}.{left}")


def _ended(code: int, job: Job) -> str:
    """What became of a worker that is gone, and what to do."""
    signals = {-one: one.name for one in signal.Signals}
    how = f"was killed ({signals.get(code, f'signal {-code}')})" if code < 0 else f"ended with exit code {code}"
    cures = ["Nothing of it was saved: with folder=… it would be, and a second call go on from there"] * (not job.file)
    if signals.get(code) == "SIGKILL":  # what Linux sends where memory runs out
        how += ", perhaps for lack of memory,"
        cures.append("Fewer workers need less memory")
    return ". ".join([f"a worker process {how} while training {_what(job)}", *cures])


def run_in_processes(
    jobs: Sequence[Job], processes: int, bar: Counter, stop: threading.Event
) -> tuple[list[Checkpoint], bool]:
    """The same in several processes, which take one job after the other."""
    waiting, lock = iter(range(len(jobs))), threading.Lock()
    with tempfile.TemporaryDirectory(prefix="layerlaw-") as scratch:
        files = [job.file or Path(scratch) / f"result-{number}.pt" for number, job in enumerate(jobs)]
        for number, job in enumerate(jobs):
            with disk_told(place := Path(scratch) / f"job-{number}"), open(place, "wb") as file:
                pickle.dump(replace(job, file=files[number]), file)
        path = os.pathsep.join(sys.path)  # for networks and losses that a script imports from beside it
        program = [sys.executable, "-c", _PROGRAM, scratch, str(os.getpid())]
        alone: dict[str, str] = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
        # In a session of its own: Ctrl-C reaches this process alone, which then asks the workers to stop.
        how: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "env": alone, "start_new_session": True}
        errors: list[str] = []

        def drive() -> None:
            with Popen(program, text=True, **how) as worker:
                assert worker.stdin is not None
                assert worker.stdout is not None
                for number in waiting:
                    if stop.is_set() or errors:
                        break
                    with suppress(BrokenPipeError):  # it is gone: its exit code says more
                        print(number, file=worker.stdin, flush=True)
                    said: dict[str, Any] = {}
                    for line in worker.stdout:
                        said = json.loads(line)
                        if "epoch" not in said:
                            break
                        with lock:
                            bar.step(_where(jobs[number], said["epoch"], said["loss"]))
                    if "done" not in said:
                        errors.append(said.get("error") or _ended(worker.wait(), jobs[number]))

        with ThreadPoolExecutor(processes) as pool:
            going = {pool.submit(drive) for _ in range(min(processes, len(jobs)))}
            try:
                while going:
                    ended, going = wait(going, 0.1)
                    errors += [f"{type(error).__name__}: {error}" for one in ended if (error := one.exception())]
                    if stop.is_set() or errors:
                        (Path(scratch) / "stop").touch()
            finally:
                (Path(scratch) / "stop").touch()
        if errors:
            raise failed(errors[0], jobs[0].file)
        finished = [Checkpoint.from_file(file)[0] for file in files if file.exists()]
    return finished, len(finished) == len(jobs) and all(part.done for part in finished)


def serve() -> None:
    """What a worker does: take the number of a job from standard input, train, report on standard output."""
    scratch, parent = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)

    def alone() -> bool:
        return os.getppid() != parent

    def report(epoch: int, loss: float) -> bool:
        if alone():  # the sweep is gone: save, and go
            return False
        try:
            print(json.dumps({"epoch": epoch, "loss": loss}), flush=True)
        except BrokenPipeError:  # it went a moment ago
            return False
        return not (scratch / "stop").exists()

    for line in sys.stdin:
        if alone():
            break
        try:
            with open(scratch / f"job-{int(line)}", "rb") as file:
                job: Job = pickle.load(file)
            run(job, report)
            if alone():
                break
            print(json.dumps({"done": True}), flush=True)
        except BrokenPipeError:
            break
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            break
    if alone():  # nobody else is left to tidy up
        shutil.rmtree(scratch, ignore_errors=True)
