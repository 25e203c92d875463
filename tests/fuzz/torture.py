"""Work that is killed (SIGKILL) at random moments, again and again, and goes on: its result is that of an unbroken run.

    python tests/fuzz/torture.py [KILLS] [--seed S] [--only JOB]        make torture N=100

Every round takes one job in a fresh folder, kills it up to five times at random moments, lets it finish and compares every
number and every weight with those of a run that nobody killed. No partial file may be left. The jobs save as often as they
can, so that many kills fall into a save; they are forked from this process, which has imported everything already.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

import layerlaw.lab.jobs
import layerlaw.lab.sweeping
from layerlaw import advice, lab
from layerlaw.experiments import reproduce
from layerlaw.experiments.next_token.language import Corpus, OwnModel, trained
from layerlaw.experiments.setting import Setting
from layerlaw.packed import digest_of

KILLS_PER_ROUND, SOON = 5, 0.7  # of the time that is left after a kill, less and less is needed
PATIENCE = 60.0  # seconds, and ten times as long as the unbroken run: then a job hangs


def samples(*shape: int, n: int = 120, classes: int = 4) -> lab.Samples:
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(n) % classes)[torch.randperm(n, generator=generator)]
    means = torch.randn(classes, *shape, generator=generator)
    return lab.Samples.of((means[y] + torch.randn(n, *shape, generator=generator), y))


def swept(folder: Path) -> Any:
    """A grid of feed-forward networks, trained as fleets."""
    base = lab.Recipe(network=lab.Shape(12, (16, 10), 4), epochs=20, batch_size=30, learning_rate=0.01)
    recipes = base.grid(optimizer=("adam", "momentum"), seed=(1, 2))
    schedule = lab.Schedule(epochs=(0, 7), batchnorm=("batch", "running"))
    return of_runs(lab.sweep(recipes, samples(12), schedule=schedule, members=2, folder=folder, progress=False))


def networks(folder: Path) -> Any:
    """Convolutional networks, trained one by one."""
    network = lab.ConvolutionalNetwork(stages=((4,), (6,)), side=8, inputs=1, classes=4)
    recipes = lab.Recipe(network=network, epochs=4, batch_size=40).grid(seed=(1, 2))
    return of_runs(lab.sweep(recipes, samples(1, 8, 8), folder=folder, progress=False))


def reproduced(folder: Path) -> Any:
    """A figure, more quickly than quickly."""
    Setting.epochs = lambda self, full=600, quick=60: 3  # type: ignore[method-assign]
    outcome = reproduce("s11", quick=True, seeds=1, folder=folder, progress=False).to_dict()
    return {key: part for key, part in outcome.items() if key != "provenance"}


def chosen_depth(folder: Path) -> Any:
    """The choice of a depth."""
    recipe = lab.Recipe(network=lab.Shape(12, (16,), 4), epochs=20, batch_size=30)
    how: dict[str, Any] = {"recipe": recipe, "rates": (1e-3, 3e-3), "seeds": (0, 1), "folder": folder}
    choice = advice.choose_depth(samples(12), depths=(2, 3, 4), width=16, progress=False, **how)
    return {key: part for key, part in asdict(choice).items() if "second" not in key and key != "provenance"}


def language_model(folder: Path) -> Any:
    """Language models of our own, kept after several steps."""
    text = torch.randint(30, (4000,), generator=torch.Generator().manual_seed(0))
    corpus = Corpus(32, text, list(text.view(-1, 40)[:10]), "random")
    setting = Setting(quick=True, folder=folder / "lm", progress=False)
    found = {}
    for seed in (1, 2):
        models = trained(setting, OwnModel("gpt", 2, 64, seed, 24), corpus, (0, 8, 16))
        found |= {f"{seed} {step}": dict(model.state_dict()) for step, model in models.items()}
    return found


JOBS: dict[str, Callable[[Path], Any]] = {
    "sweep": swept,
    "networks": networks,
    "reproduce": reproduced,
    "depth": chosen_depth,
    "language model": language_model,
}


def of_runs(runs: Sequence[lab.Run]) -> Any:
    plain = [{key: part for key, part in run.to_dict().items() if key != "how"} for run in runs]
    return [plain, [dict(run.state or {}) for run in runs]]


def result_of(value: Any) -> str:
    """A digest of numbers, names and weights."""
    return digest_of(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous()
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def started(job: str, folder: Path, result: Path) -> int:
    """The process that does the job, in a group of its own."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        torch.set_num_threads(1)
        layerlaw.lab.jobs.SAVE_EVERY = 0.0  # after every epoch
        layerlaw.lab.sweeping.WORTH_PROCESSES = float("inf")  # type: ignore[assignment]
        result.write_text(result_of(JOBS[job](folder / "kept")))
        status = 0
    except BaseException:
        result.with_suffix(".error").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def ended(pid: int, seconds: float) -> bool:
    """Whether the process ends within this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.002)
    return False


def killed(pid: int) -> None:
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@dataclass
class Unbroken:
    """What a job gives when nobody kills it, and how long it takes."""

    result: str
    seconds: float


def finished(job: str, place: Path, patience: float) -> str:
    """The result of a job that is let alone, or what went wrong."""
    result, error = place / "result", place / "result.error"
    pid = started(job, place, result)
    if not ended(pid, patience):
        killed(pid)
        return f"hangs: not done after {patience:.0f} s"
    return result.read_text() if result.exists() else f"failed: {error.read_text().strip().splitlines()[-1]}"


def unbroken(job: str) -> Unbroken:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        found = finished(job, Path(folder), 600)
        assert len(found) == 64, f"{job}: {found}"
        return Unbroken(found, time.monotonic() - began)


def tortured(job: str, whole: Unbroken, random: Random, most: int) -> tuple[int, str]:
    """How often a job was killed in one round, and what is wrong with its result; empty where nothing is."""
    place, kills = Path(tempfile.mkdtemp()), 0
    try:
        while kills < most:
            pid = started(job, place, place / "result")
            if ended(pid, random.uniform(0.0, SOON * whole.seconds)):
                break
            killed(pid)
            kills += 1
        (place / "result").unlink(missing_ok=True)
        found = finished(job, place, PATIENCE + 10 * whole.seconds)
        # An empty one may be of a writer that has just begun: others leave it alone for a minute.
        left = [path.name for path in place.rglob("*.part") if path.is_file() or any(path.iterdir())]
        wrong = "" if found == whole.result else found if len(found) != 64 else "another result"
        return kills, wrong or (f"left {', '.join(left[:3])}" if left else "")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def torture(kills: int, seed: int, only: Sequence[str] = (), say: Callable[[str], object] = print) -> list[str]:
    """Kill jobs so many times in all; gives what was wrong."""
    jobs = list(only or JOBS)
    whole = {job: unbroken(job) for job in jobs}
    say("unbroken: " + ", ".join(f"{job} {one.seconds:.1f} s" for job, one in whole.items()))
    wrong, done, rounds = list[str](), 0, 0
    while done < kills:
        job, random = jobs[rounds % len(jobs)], Random(f"{seed} {rounds}")
        count, complaint = tortured(job, whole[job], random, min(KILLS_PER_ROUND, kills - done))
        done, rounds = done + count, rounds + 1
        wrong += [f"{job}, seed {seed}, round {rounds - 1}, {count} kills: {complaint}"] if complaint else []
        say(f"{done} of {kills} kills, round {rounds} ({job}): {complaint or 'identical'}")
        if rounds > 20 * kills:
            raise RuntimeError("the jobs end before they can be killed")
    say(json.dumps({"kills": done, "rounds": rounds, "identical": rounds - len(wrong), "wrong": wrong}, indent=1))
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill jobs at random moments; compare with unbroken runs.")
    parser.add_argument("kills", nargs="?", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(JOBS), default=[])
    given = parser.parse_args()
    sys.exit(1 if torture(given.kills, given.seed, given.only) else 0)


if __name__ == "__main__":
    main()
