"""Jobs of a sweep over the machines of a Ray cluster.

A worker is a Ray actor of one core, or of one core and one GPU; it trains a job at a time in a scratch folder of its
own machine. This process asks every worker how far it is and copies the files of its job into the folder of the sweep: no
folder has to be shared between machines. Where a worker or its machine is lost, the job goes on in another worker from
the files that were copied last.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from layerlaw.errors import LayerlawError, check_choice, needed
from layerlaw.files import write_whole
from layerlaw.lab.jobs import SAVE_SHARE, Checkpoint, Job, run
from layerlaw.lab.processes import failed
from layerlaw.lab.samples import Samples
from layerlaw.progress import Counter, warn
from layerlaw.provenance import code_version

Engine = Literal["processes", "ray"]
"""What trains the jobs of a sweep: processes of this machine, or the workers of a Ray cluster."""
TRIES = 3  # workers that may be lost one after the other over one job, before it is reported
MOMENT = 0.5  # seconds that a worker waits for the end of its job before it answers
COPY_EVERY = 1.0  # seconds, at least, between two copies of the files of a job
PATIENCE = 60.0  # seconds without any worker, before that is told
REACHED = 10.0  # seconds in which the address of a cluster has to answer
NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}  # for a cluster that is started here, unless the user says otherwise


def check_engine(engine: object) -> None:
    """Raise unless it is one of the engines, and its package is there."""
    check_choice("engine", engine, get_args(Engine))
    if engine == "ray":
        needed("ray", "ray", "engine='ray'")


@contextmanager
def cluster() -> Iterator[Any]:
    """The package `ray`, connected to a cluster.

    To the one that this program already uses; else to the one that `RAY_ADDRESS` names or that runs on this machine;
    else to a new one on this machine. A connection that was made here is closed at the end.
    """
    ray = needed("ray", "ray", "engine='ray'")
    if ray.is_initialized():
        yield ray
        return
    where = _address()
    given = {name: value for name, value in NO_STATISTICS.items() if name not in os.environ}
    os.environ.update(given)
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(where, log_to_driver=False, logging_level="ERROR")
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:  # no token, another Python, …
        new = where in (None, "local")
        wanted = "a cluster to be started on this machine" if new else f"a cluster that can be used at {where}"
        said = " ".join(str(error).split())[:300].rstrip(".")
        if not new and os.environ.get("RAY_AUTH_MODE") != "token":
            said += ". Clusters of newer versions want RAY_AUTH_MODE=token, and their token, on every machine"
        raise LayerlawError(f"engine='ray': expected {wanted}, got {type(error).__name__}: {said}.") from error
    finally:
        for name in given:
            os.environ.pop(name, None)
        if main:  # Ray sets one of its own, which ends the program
            signal.signal(signal.SIGTERM, before)
    try:
        with redirect_stdout(sys.stderr):  # to which Ray's words on lost workers belong: standard output may be JSON
            yield ray
    finally:
        ray.shutdown()


def _address() -> str | None:
    """Where the cluster is. Where nobody answers at the address that is given or noted, Ray itself would try for minutes."""
    if given := os.environ.get("RAY_ADDRESS"):
        if problem := _unanswered(given):
            cure = "Start the cluster (ray start --head), or leave RAY_ADDRESS out"
            raise LayerlawError(f"engine='ray': expected a cluster at RAY_ADDRESS={given}, got {problem}. {cure}.")
        return given
    noted = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    with suppress(OSError):
        if _unanswered(noted.read_text(encoding="utf-8").strip()):  # one that was killed leaves its note behind
            return "local"
    return None


def _unanswered(address: str) -> str:
    """Why nobody is reached at host:port, if so; words such as "auto" are left to Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED).close()
        except (OSError, OverflowError) as error:
            return str(error)
    return ""


def workers_of(ray: Any, device: str) -> int:
    """How many workers the cluster has room for: one for each of its cores, or of its GPUs."""
    kind = "GPU" if torch.device(device).type == "cuda" else "CPU"
    there = int(ray.cluster_resources().get(kind, 0))
    if kind == "GPU" and not there:
        cure = "Pass workers=… if machines with GPUs join it later, or device='cpu'"
        raise LayerlawError(f"engine='ray': expected a cluster with GPUs for the device '{device}', got none. {cure}.")
    return max(1, there)


@dataclass
class Answer:
    """What a worker says when asked: epochs since the last time with their losses, and files of its job that are new.

    `names` are all files of the job, where files were asked for; `error` why it failed.
    """

    epochs: list[tuple[int, float]]
    files: dict[str, bytes] = field(default_factory=dict)
    names: list[str] | None = None
    over: bool = False
    error: str = ""


class RayWorker:
    """Trains one job at a time in a thread, so that each of its methods returns within a moment."""

    def __init__(self, path: Sequence[str] = ()) -> None:
        # For networks and losses of a module beside the script, where the machine has the same folders.
        sys.path.extend(part for part in path if part not in sys.path)
        self._over, self._stop = threading.Event(), threading.Event()
        self._epochs: deque[tuple[int, float]] = deque()
        self._sent: dict[str, int] = {}
        self._error = ""

    def versions(self) -> dict[str, str]:
        """Of the packages that the numbers depend on."""
        return _versions()

    def start(self, job: Job, files: dict[str, bytes], *samples: Samples) -> None:
        """Begin a job, whose members come without their samples; `files` are those that it left before, elsewhere."""
        assert job.file is not None
        self._folder = tempfile.TemporaryDirectory(prefix="layerlaw-", ignore_cleanup_errors=True)
        place = Path(self._folder.name)
        for name, content in files.items():
            write_whole(place / name, content)
        members = [replace(member, samples=own) for member, own in zip(job.members, samples, strict=True)]
        for part in [part for member in members for part in (member.recipe.network, member.recipe.loss)]:
            part.register()  # a script's own classes, which files name by their kinds
        device = "cuda" if torch.device(job.device).type == "cuda" else job.device  # Ray shows each worker its own GPU
        self._over.clear()
        self._stop.clear()
        self._epochs.clear()
        self._error, self._sent = "", {path.name: path.stat().st_mtime_ns for path in place.glob("*.pt")}
        here = replace(job, members=members, file=place / job.file.name, device=device)
        threading.Thread(target=self._train, args=[here, str(job.file.parent)], daemon=True).start()

    def _train(self, job: Job, folder: str) -> None:
        torch.set_num_threads(1)

        def report(epoch: int, loss: float) -> bool:
            self._epochs.append((epoch, loss))
            return not self._stop.is_set()

        try:
            run(job, report)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self._error = said.replace(self._folder.name, folder)  # the user's file, not the copy of it here
        finally:
            self._over.set()

    def look(self, stop: bool, files: bool) -> Answer:
        """How far the job is; `stop` ends it after the running epoch, `files` asks for those that changed."""
        if stop:
            self._stop.set()
        over = self._over.wait(MOMENT)
        said = Answer([self._epochs.popleft() for _ in range(len(self._epochs))], over=over, error=self._error)
        if files or over:
            said.names = []
            for path in sorted(Path(self._folder.name).glob("*.pt")):
                with suppress(FileNotFoundError):  # one that was just removed
                    changed = path.stat().st_mtime_ns
                    if self._sent.get(path.name) != changed:
                        said.files[path.name], self._sent[path.name] = path.read_bytes(), changed
                    said.names.append(path.name)
        if over:
            self._folder.cleanup()
        return said


def _versions() -> dict[str, str]:
    return {"layerlaw": code_version(), "torch": torch.__version__}


@dataclass(eq=False)
class _Seat:
    """A worker, the job it has (`None`: it has not begun to work), and what it was asked last."""

    worker: Any
    asked: Any
    job: int | None = None
    since: float = 0.0
    copy_at: float = 0.0


def run_on_ray(
    ray: Any, jobs: Sequence[Job], workers: int, bar: Counter, stop: threading.Event
) -> tuple[list[Checkpoint], bool]:
    """The jobs in workers of the cluster; returns what they reached, and whether all came to their end."""
    with tempfile.TemporaryDirectory(prefix="layerlaw-") as scratch:
        placed = [
            replace(job, file=job.file or Path(scratch) / f"network-{number}.pt") for number, job in enumerate(jobs)
        ]
        sweep = _RaySweep(ray, placed, bar, stop)
        try:
            sweep.go(min(workers, len(jobs)))
        finally:
            sweep.end()
        if sweep.errors:
            raise failed(sweep.errors[0], jobs[0].file)
        finished = [Checkpoint.from_file(job.file)[0] for job in placed if job.file is not None and job.file.exists()]
    return finished, len(finished) == len(jobs) and all(part.done for part in finished)


class _RaySweep:
    """The jobs that wait, the workers that train, and what became of them."""

    def __init__(self, ray: Any, jobs: Sequence[Job], bar: Counter, stop: threading.Event) -> None:
        self.ray, self.jobs, self.errors = ray, jobs, list[str]()
        self._bar, self._stop = bar, stop
        self._waiting = deque(range(len(jobs)))
        self._seats: list[_Seat] = []
        self._lost: Tally[int | None] = Tally()  # workers, by job, since its files were copied the last time
        self._names = {number: {_file(job).name} for number, job in enumerate(jobs)}
        self._epoch = {number: job.begun for number, job in enumerate(jobs)}
        samples = {id(member.samples): member.samples for job in jobs for member in job.members}
        self._samples = {key: ray.put(value) for key, value in samples.items()}  # once, however many jobs share them
        gpus = 1 if torch.device(jobs[0].device).type == "cuda" else 0
        self._kind = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(RayWorker)

    def go(self, workers: int) -> None:
        """Until no job is left, or all workers have stopped where they were told to."""
        began = time.monotonic()
        for _ in range(workers):
            self._hire()
        while self._seats:
            asked = {seat.asked: seat for seat in self._seats}
            answered, _ = self.ray.wait(list(asked), num_returns=1, timeout=0.1)
            for one in answered:
                self._hear(asked[one])
            idle = [seat for seat in self._seats if seat.job is None]
            if self._stopping or not (self._waiting or len(idle) < len(self._seats)):  # nothing is left for them
                for seat in idle:
                    self._dismiss(seat)
            elif len(idle) == len(self._seats) and time.monotonic() - began > PATIENCE:
                began = float("inf")  # once
                told = f"engine='ray': the cluster has had no free core or GPU for {PATIENCE:.0f} s; still waiting."
                warn(told)

    def end(self) -> None:
        """Give all workers back."""
        for seat in list(self._seats):
            self._dismiss(seat)

    @property
    def _stopping(self) -> bool:
        return self._stop.is_set() or bool(self.errors)

    def _hire(self) -> None:
        worker = self._kind.remote(sys.path)
        self._seats.append(_Seat(worker, worker.versions.remote()))

    def _dismiss(self, seat: _Seat) -> None:
        self._seats.remove(seat)
        with suppress(Exception):  # one that is gone already, with its machine or with the cluster
            self.ray.kill(seat.worker)

    def _hear(self, seat: _Seat) -> None:
        failures = self.ray.exceptions
        try:
            said = self.ray.get(seat.asked)
        except failures.RayTaskError as error:  # of our code, or of what the job brought along
            self.errors.append(_short(getattr(error, "cause", None) or error))
            self._dismiss(seat)
        except failures.RayError as error:
            self._lose(seat, error)
        else:
            self._take(seat, said)

    def _take(self, seat: _Seat, said: Any) -> None:
        if seat.job is None:  # its first word
            self._lost[None] = 0
            if said != _versions():
                there, here = (", ".join(f"{k} {v}" for k, v in one.items()) for one in (said, _versions()))
                self.errors.append(f"expected {here} on every machine of the cluster, as here, got {there} on one.")
                self._dismiss(seat)
            else:
                self._next(seat)
        elif not isinstance(said, Answer):  # it has begun
            seat.copy_at = time.monotonic() + COPY_EVERY
            self._look(seat)
        else:
            self._note(seat, said)
            if not said.over:
                self._look(seat)
            elif said.error:
                self.errors.append(said.error)
                self._dismiss(seat)
            else:
                self._next(seat)

    def _next(self, seat: _Seat) -> None:
        """Give a worker the next job, or let it go."""
        if self._stopping or not self._waiting:
            self._dismiss(seat)
            return
        seat.job = self._waiting.popleft()
        job = self.jobs[seat.job]
        place = _file(job).parent
        left = {name: (place / name).read_bytes() for name in self._names[seat.job] if (place / name).exists()}
        samples = [self._samples[id(member.samples)] for member in job.members]
        bare = replace(job, members=[replace(member, samples=NO_SAMPLES) for member in job.members])
        seat.asked = seat.worker.start.remote(bare, left, *samples)

    def _look(self, seat: _Seat) -> None:
        seat.since = time.monotonic()
        seat.asked = seat.worker.look.remote(self._stopping, seat.since >= seat.copy_at)

    def _note(self, seat: _Seat, said: Answer) -> None:
        """Move the bar, and copy the files of the job."""
        assert seat.job is not None
        job = self.jobs[seat.job]
        for epoch, loss in said.epochs:
            if epoch > self._epoch[seat.job]:  # what is trained again after a loss is not counted twice
                self._epoch[seat.job] = epoch
                known = f", loss {loss:.4f}" if loss == loss else ""
                self._bar.step(f"{_words(job)}, epoch {epoch}{known}")
        if said.names is None or said.error:
            return
        place = _file(job).parent
        for name, content in said.files.items():
            write_whole(place / Path(name).name, content)
        for name in self._names[seat.job] - set(said.names):
            (place / name).unlink(missing_ok=True)  # the worker has replaced it by others
        self._names[seat.job] = {*said.names, _file(job).name}
        if said.files:
            self._lost[seat.job] = 0
        now = time.monotonic()
        took = max(0.0, now - seat.since - MOMENT)
        seat.copy_at = now + max(COPY_EVERY, took / SAVE_SHARE)

    def _lose(self, seat: _Seat, error: Exception) -> None:
        """Another worker goes on with the job, unless that was tried often enough."""
        self._dismiss(seat)
        self._lost[seat.job] += 1
        again = self._lost[seat.job] < TRIES
        if seat.job is not None and again:
            self._waiting.appendleft(seat.job)
        if again and not self._stopping:
            self._hire()
        elif not again:
            what = "starting" if seat.job is None else f"training {_words(self.jobs[seat.job])}"
            cure = "Ray ends a worker that takes too much memory: members=1 trains networks one at a time."
            lost = f"{TRIES} workers of the cluster were lost one after the other while {what}"
            self.errors.append(f"{lost} ({_short(error)}). {cure}")


NO_SAMPLES = Samples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64))  # they travel on a way of their own


def _words(job: Job) -> str:
    return f"{len(job.members)} × {job.recipe.network}"


def _file(job: Job) -> Path:
    assert job.file is not None
    return job.file


def _short(error: BaseException) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said if len(said) <= 400 else said[:400] + ' …'}"
