"""A sweep: any number of recipes, trained in as few fleets as possible, interrupted and taken up again at will."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlaw.errors import DataError, InputError
from layerlaw.files import made_folder, write_json
from layerlaw.lab.engine import Job, Progress, check_device, member_bytes
from layerlaw.lab.fleet import check
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import BatchNormMode, Measurement, Schedule, Split
from layerlaw.lab.workers import WORTH_PROCESSES, cores, run_here, run_in_processes, work
from layerlaw.lab.zoo import FeedForward
from layerlaw.law import LawFit, fit_law
from layerlaw.progress import Counter
from layerlaw.progress import Progress as Bar

MEMBERS_ON_CPU = 12  # larger fleets leave the cache, smaller ones pay for their calls
LAST_EPOCH = Schedule()
ROOM = 0.6  # share of a GPU's memory that members may take


@dataclass
class Run:
    """One trained network: its recipe, the loss of every epoch, what was measured, and its final state.

    `diverged` is the first epoch (from 1) whose loss is not a number; `epoch` how far it came.
    """

    recipe: Recipe
    losses: tuple[float, ...]
    measurements: tuple[Measurement, ...]
    epoch: int
    diverged: int | None = None
    state: dict[str, Tensor] | None = None
    snapshots: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether all epochs were trained."""
        return self.epoch == self.recipe.epochs

    def measurement(
        self, *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: Split = "train"
    ) -> Measurement:
        """What was measured after an epoch (the last one by default)."""
        at = self.epoch if epoch is None else epoch
        for measurement in self.measurements:
            if (measurement.epoch, measurement.batchnorm, measurement.split) == (at, batchnorm, split):
                return measurement
        there = [sorted({getattr(r, name) for r in self.measurements}) for name in ("epoch", "batchnorm", "split")]
        raise InputError(
            f"run: expected a measurement of epoch {at}, batchnorm {batchnorm!r}, {split!r} data; there are epochs "
            f"{there[0]}, batchnorm {there[1]}, {there[2]} data. Schedule(epochs=…, batchnorm=…, test=…, permuted=…) says "
            "what is measured."
        )

    def law(
        self, *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: Split = "train"
    ) -> LawFit | None:
        """The law along depth; `None` where D is not defined at every layer (a diverged or dead network)."""
        values = self.measurement(epoch=epoch, batchnorm=batchnorm, split=split).separation
        known = [value for value in values if value is not None and value > 0]
        return fit_law(known) if len(known) == len(values) else None

    def lost_rank(
        self, *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: Split = "train"
    ) -> list[int]:
        """Places (0: the input) where the class means span fewer dimensions than they could: D is not comparable there."""
        shape = self.recipe.network
        sides = (shape.inputs, *shape.widths)
        ranks = self.measurement(epoch=epoch, batchnorm=batchnorm, split=split).rank
        return [
            i for i, (rank, side) in enumerate(zip(ranks, sides, strict=True)) if rank < min(shape.classes - 1, side)
        ]

    def network(self, epoch: int | None = None) -> FeedForward:
        """The trained network as a module, in eval mode; or as it was after an epoch at which it was kept."""
        state = self.state if epoch is None else self.snapshots.get(epoch)
        if state is None and epoch is None:
            raise InputError("run: expected a finished run with its state; this one was stopped on the way.")
        if state is None:
            there = ", ".join(map(str, self.snapshots)) or "none (pass schedule=Schedule(epochs=…, keep=True))"
            raise InputError(f"run: expected an epoch at which the network was kept, got {epoch}; there are {there}.")
        network = FeedForward.of(self.recipe.network)
        network.load_state_dict(state)
        return network.eval()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the network's state."""
        return {
            "recipe": self.recipe.to_dict(),
            "epoch": self.epoch,
            "diverged": self.diverged,
            "losses": [loss if math.isfinite(loss) else None for loss in self.losses],  # JSON knows no other
            "measurements": [asdict(measurement) for measurement in self.measurements],
        }


def sweep(
    recipes: Sequence[Recipe],
    data: Mapping[str, Samples] | Samples,
    *,
    schedule: Schedule = LAST_EPOCH,
    start: Sequence[dict[str, Tensor]] | None = None,
    copied: tuple[int, int] | None = None,
    folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    members: int | None = None,
    workers: int | None = None,
    progress: bool | Bar = True,
) -> list[Run]:
    """Train every recipe and measure it; one `Run` per recipe, in their order.

    `data` are the samples by the name that recipes give. `start` gives every recipe the state of a network to start
    from, or, with `copied=(a, b)`, its layers a … b−1 alone. With a `folder` the sweep is saved there every minute: called
    again after an interruption it goes on where it was, and finished members are never trained again. `members` is the
    most that are trained at once; `workers` the number of processes on a CPU (1: none beside this one).
    """
    samples = _checked(recipes, data, schedule, start, copied, members, workers)
    check_device(str(device))
    keys = _keys(recipes, samples, schedule, start, copied)
    place = None if folder is None else Path(folder)
    done: dict[str, Run] = {}
    jobs: list[Job] = []
    if place is not None:
        made_folder(place)
        done, jobs = _found(place, recipes, samples, keys, schedule, start, copied, str(device))
    going = {key for job in jobs for key in job.keys}
    missing = [i for i in dict(zip(keys, range(len(keys)), strict=True)).values() if keys[i] not in done.keys() | going]
    for chosen in _fleets(recipes, samples, missing, str(device), members, workers):
        picked = [keys[i] for i in chosen]
        file = (
            None if place is None else place / f"fleet-{hashlib.sha256(''.join(picked).encode()).hexdigest()[:12]}.pt"
        )
        states = None if start is None else [start[i] for i in chosen]
        jobs.append(
            Job(
                [recipes[i] for i in chosen],
                [samples[i] for i in chosen],
                schedule,
                picked,
                states,
                copied,
                file,
                str(device),
            )
        )
    finished, complete = _train(jobs, progress, workers)
    for part in finished:
        done |= _runs(part)
    runs = [done[key] for key in keys if key in done]
    if place is not None:
        _write_table(place, keys)
    if not complete:
        raise KeyboardInterrupt("stopped; " + ("call it again to go on" if place else "nothing was kept (no folder)"))
    return runs


def _checked(
    recipes: Sequence[Recipe],
    data: Mapping[str, Samples] | Samples,
    schedule: Schedule,
    start: Sequence[dict[str, Tensor]] | None,
    copied: tuple[int, int] | None,
    members: int | None,
    workers: int | None,
) -> list[Samples]:
    """The samples of every recipe; whatever is wrong with any of them is said before hours of training, not after."""
    if isinstance(recipes, Recipe) or not all(isinstance(recipe, Recipe) for recipe in recipes):
        raise InputError("sweep: expected a list of recipes, [Recipe(…), …] or Recipe(…).grid(…).")
    if not recipes:
        raise InputError("sweep: expected at least one recipe, got none.")
    if any(not isinstance(state, Mapping) for state in start or ()):
        raise InputError("start: expected the states of networks, [run.state for run in …] or network.state_dict().")
    for name, value in (("members", members), ("workers", workers)):
        if value is not None and value < 1:
            raise InputError(f"{name}: expected at least 1, got {value}.")
    if start is not None and len(start) != len(recipes):
        raise InputError(f"start: expected one state per recipe ({len(recipes)}), got {len(start)}.")
    if copied is not None and start is None:
        raise InputError("copied: expected states to copy these layers from (start=…), got none.")
    samples = [_samples_of(recipe, data) for recipe in recipes]
    for recipe, s in zip(recipes, samples, strict=True):
        check([recipe], [s])
        if max(schedule.epochs, default=0) > recipe.epochs:
            raise InputError(
                f"schedule: expected epochs up to {recipe.epochs}, the last one that is trained, got {max(schedule.epochs)}."
            )
        if s.classes != recipe.network.classes:
            raise InputError(
                f"sweep: expected a classifier of {s.classes} outputs for samples of {s.classes} classes, got "
                f"{recipe.network.classes}. Shape(…, classes={s.classes}) or Shape.even(…, classes={s.classes})."
            )
        if schedule.test and s.test_labels is None:
            raise InputError(f"schedule: expected held-out samples to measure on, but {recipe.data!r} has none.")
        if copied is not None and not 0 <= copied[0] < copied[1] <= recipe.network.depth:
            raise InputError(
                f"copied: expected (first, beyond the last) within 0 … {recipe.network.depth}, got {copied}."
            )
    return samples


def _samples_of(recipe: Recipe, data: Mapping[str, Samples] | Samples) -> Samples:
    if isinstance(data, Samples):
        return data
    if not isinstance(data, Mapping):
        raise InputError(
            f"data: expected Samples, or a mapping of names to Samples, got {type(data).__name__}. "
            "Samples.of((inputs, labels)) makes them."
        )
    if recipe.data not in data:
        raise InputError(f"sweep: expected samples called {recipe.data!r}, got {', '.join(map(repr, data))}.")
    return data[recipe.data]


def _keys(
    recipes: Sequence[Recipe],
    samples: Sequence[Samples],
    schedule: Schedule,
    start: Sequence[dict[str, Tensor]] | None,
    copied: tuple[int, int] | None,
) -> list[str]:
    """What makes a member what it is: recipe, data, measurements and start."""
    keys = []
    for i, (recipe, s) in enumerate(zip(recipes, samples, strict=True)):
        digest = hashlib.sha256(json.dumps([recipe.to_dict(), schedule.to_dict(), s.checksum, copied]).encode())
        for name, tensor in sorted((start[i] if start else {}).items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        keys.append(digest.hexdigest()[:24])
    return keys


def _fleets(
    recipes: Sequence[Recipe],
    samples: Sequence[Samples],
    missing: Sequence[int],
    device: str,
    members: int | None,
    workers: int | None,
) -> Iterator[list[int]]:
    """Members that can go together, the deepest first: equal shape, samples, batches, epochs, trained layers."""
    groups: dict[Any, list[int]] = {}
    for i in missing:
        r, n = recipes[i], len(samples[i].labels)
        held_out = samples[i].test_labels
        tests = 0 if held_out is None else len(held_out)
        groups.setdefault((r.network, n, tests, samples[i].classes, r.batch_size, r.epochs, r.trained), []).append(i)
    shares = 1
    if (
        torch.device(device).type == "cpu"
        and work([recipes[i] for i in missing], [samples[i] for i in missing]) > WORTH_PROCESSES
    ):
        shares = -(-(workers or cores()) // max(1, len(groups)))  # no core without a fleet
    for group in sorted(groups.values(), key=lambda g: -len(g) * member_bytes(recipes[g[0]], samples[g[0]])):
        group.sort(key=lambda i: recipes[i].optimizer)  # neighbors share an update
        most = members or _most(recipes[group[0]], samples[group[0]], device)
        parts = min(len(group), max(-(-len(group) // most), shares))
        size = -(-len(group) // parts)
        for at in range(0, len(group), size):
            yield group[at : at + size]


def _most(recipe: Recipe, samples: Samples, device: str) -> int:
    """How many members are trained at once."""
    where = torch.device(device)
    if where.type != "cuda":
        return MEMBERS_ON_CPU
    return max(1, int(ROOM * torch.cuda.mem_get_info(where)[0]) // member_bytes(recipe, samples))


def _found(
    place: Path,
    recipes: Sequence[Recipe],
    samples: Sequence[Samples],
    keys: list[str],
    schedule: Schedule,
    start: Sequence[dict[str, Tensor]] | None,
    copied: tuple[int, int] | None,
    device: str,
) -> tuple[dict[str, Run], list[Job]]:
    """What earlier sweeps left in the folder: finished members, and fleets to go on with."""
    done: dict[str, Run] = {}
    jobs: list[Job] = []
    index = {key: i for i, key in enumerate(keys)}
    files = sorted(place.glob("fleet-*.pt"))
    others = []
    for file in files:
        try:
            part, _ = Progress.from_file(file)
        except Exception as error:
            raise DataError(
                f"{file}: expected the progress of a fleet, but it cannot be read ({type(error).__name__}): is it cut off? "
                "Delete it, and its members are trained again."
            ) from None
        if not index.keys() & set(part.keys):
            others.append(part)
        elif part.done:
            done |= {key: r for key, r in _runs(part).items() if key in index}
        elif all(key in index for key in part.keys):
            at = [index[key] for key in part.keys]
            states = None if start is None else [start[i] for i in at]
            picked = [recipes[i] for i in at], [samples[i] for i in at]
            jobs.append(Job(*picked, schedule, part.keys, states, copied, file, device, part.epoch))
    if files and len(others) == len(files):
        raise DataError(f"{place}: expected an empty folder or one of this sweep. {_difference(others, recipes)}")
    jobs = [job for job in jobs if not set(job.keys) & done.keys()]
    return done, jobs


def _difference(others: Sequence[Progress], recipes: Sequence[Recipe]) -> str:
    """Which fields of the recipe are others, in words: of the two recipes, one there and one here, most alike."""
    theirs = [_fields(recipe) for part in others for recipe in part.recipes]
    ours = [_fields(recipe.to_dict()) for recipe in recipes]
    differing = [
        [f"{k} {there.get(k)} there, {here[k]} here" for k in here if there.get(k) != here[k]]
        for there in theirs
        for here in ours
    ]
    fewest = min(differing, key=len)
    found = "; ".join(fewest) or "other data, measurements or starting points"
    return f"It holds another one ({found}). Choose another folder."


def _fields(recipe: dict[str, Any]) -> dict[str, Any]:
    """All fields side by side, those of the shape too."""
    return {**recipe["network"], **{name: value for name, value in recipe.items() if name != "network"}}


def _runs(part: Progress) -> dict[str, Run]:
    runs = {}
    for i, key in enumerate(part.keys):
        losses = tuple(row[i] for row in part.losses)
        diverged = next((epoch for epoch, loss in enumerate(losses, 1) if not abs(loss) < float("inf")), None)
        state = part.states[i] if part.states else None
        recipe = Recipe.from_dict(part.recipes[i])
        snapshots = {epoch: states[i] for epoch, states in part.snapshots.items()}
        runs[key] = Run(recipe, losses, tuple(part.measurements[i]), part.epoch, diverged, state, snapshots)
    return runs


def _write_table(place: Path, keys: Sequence[str]) -> None:
    """A plain copy of all numbers in the folder, for other programs and for a look at an interrupted sweep.

    The members asked for come first, in their order; then those of other calls.
    """
    found: dict[str, Run] = {}
    for file in sorted(place.glob("fleet-*.pt")):
        found |= _runs(Progress.from_file(file)[0])
    runs = [found[key] for key in dict.fromkeys([*keys, *found]) if key in found]
    write_json(
        place / "sweep.json", {"format": "layerlaw sweep", "version": 1, "runs": [run.to_dict() for run in runs]}
    )


def _train(jobs: list[Job], progress: bool | Bar, workers: int | None) -> tuple[list[Progress], bool]:
    """Run the jobs; returns what they reached, and whether all came to their end."""
    if not jobs:
        return [], True
    total = sum(job.recipes[0].epochs - job.begun for job in jobs)
    count = sum(len(job.recipes) for job in jobs)
    with _stopping() as stop:
        bar = Counter(progress, total, f"{count} network{'s' * (count > 1)}")
        try:
            processes = 1 if torch.device(jobs[0].device).type != "cpu" else workers or cores()
            worth = workers is not None or sum(work(job.recipes, job.samples) for job in jobs) > WORTH_PROCESSES
            if processes > 1 and len(jobs) > 1 and worth:
                return run_in_processes(jobs, processes, bar, stop)
            return run_here(jobs, bar, stop)
        finally:
            bar.close()


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """The first Ctrl-C lets the running epoch end and saves; the second stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    signals = (signal.SIGINT, signal.SIGTERM)  # the second is what a cluster sends before it kills
    before = [signal.getsignal(each) for each in signals]

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for each in signals:
        signal.signal(each, handle)
    try:
        yield stop
    finally:
        for each, old in zip(signals, before, strict=True):
            signal.signal(each, old)
