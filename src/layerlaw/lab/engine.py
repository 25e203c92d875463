"""Train one fleet from wherever it stands to its last epoch, looking and saving on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlaw.errors import InputError, MemoryBudgetError
from layerlaw.files import replace_whole
from layerlaw.lab.fleet import Fleet
from layerlaw.lab.graphs import EpochGraph
from layerlaw.lab.orders import Orders
from layerlaw.lab.recipe import Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Measurement, Schedule, measure_fleet

SAVE_EVERY = 60.0  # seconds
GRAPH_FROM = 5  # epochs: fewer are not worth a capture


@dataclass
class Job:
    """Members that are trained as one fleet, and where their progress is kept.

    `start` holds a state of a `FeedForward` per member to start from; `copied` says which layers are taken from it;
    `begun` is how many epochs the file already holds.
    """

    recipes: list[Recipe]
    samples: list[Samples]
    schedule: Schedule
    keys: list[str]
    start: list[dict[str, Tensor]] | None = None
    copied: tuple[int, int] | None = None
    file: Path | None = None
    device: str = "cpu"
    begun: int = 0


@dataclass
class Progress:
    """How far a fleet is: what its file holds. `losses` has one row per epoch done, one column per member."""

    keys: list[str]
    recipes: list[dict[str, Any]]
    epoch: int = 0
    losses: list[list[float]] = field(default_factory=list)
    measurements: list[list[Measurement]] = field(default_factory=list)
    states: list[dict[str, Tensor]] = field(default_factory=list)
    snapshots: dict[int, list[dict[str, Tensor]]] = field(default_factory=dict)
    wall_s: float = 0.0
    done: bool = False

    def to_file(self, path: Path, state: dict[str, Tensor] | None = None) -> None:
        """Write the progress, and the fleet's whole state while it is not done."""
        plain = {**self.__dict__, "measurements": [[asdict(r) for r in member] for member in self.measurements]}
        plain["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        moved = None if state is None else {name: tensor.cpu() for name, tensor in state.items()}
        replace_whole(path, lambda part: torch.save({**plain, "state": moved}, part))

    @classmethod
    def from_file(cls, path: Path) -> tuple[Progress, dict[str, Tensor] | None]:
        """Read a file back: progress, and the state where it is not done."""
        plain = torch.load(path, weights_only=True)
        state = plain.pop("state")
        plain["losses"] = plain["losses"].tolist()
        plain["measurements"] = [[Measurement.from_dict(r) for r in member] for member in plain["measurements"]]
        return cls(**plain), state


def check_device(device: str) -> None:
    """Raise unless torch can use the device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        kinds = [kind for kind in ("cuda", "mps", "xpu") if torch.get_device_module(kind).is_available()]
        said = str(error).splitlines()[0]
        raise InputError(
            f"device: expected one that torch can use here ({', '.join(['cpu', *kinds])}), got {device!r}: {said}"
        ) from None


Report = Callable[[int, float], bool]
"""Called after every epoch with its number and the mean loss of the last known epoch; `False` means: stop here."""


def run(job: Job, report: Report | None = None) -> Progress:
    """Train the members of a job; goes on from its file if there is one. Stops early only when `report` says so."""
    began = time.monotonic()
    try:
        with torch.no_grad():
            return _run(job, report, began)
    except torch.OutOfMemoryError as error:
        count, fit = len(job.recipes), _that_fit(job)
        advice = f"about {fit} would fit. Pass members={fit}." if count > 1 else "choose a smaller network or batch."
        raise MemoryBudgetError(
            f"training {count} member{'s' * (count > 1)} ({job.recipes[0].network}) at once ran out of memory on "
            f"{job.device}: {advice}"
        ) from error


def _run(job: Job, report: Report | None, began: float) -> Progress:
    fleet = Fleet(job.recipes, job.samples, job.device)
    for member, state in enumerate(job.start or []):
        fleet.load_state_dict(member, state, job.copied)
    first = job.recipes[0]
    progress = Progress(job.keys, [r.to_dict() for r in job.recipes], measurements=[[] for _ in job.recipes])
    if job.file is not None and job.file.exists():
        progress, kept = Progress.from_file(job.file)
        for name, tensor in fleet.state().items():
            tensor.copy_((kept or {})[name])
    orders = Orders([r.seed for r in job.recipes], len(job.samples[0].labels))
    orders.skip(progress.epoch)
    earlier, saved, last_loss = progress.wall_s, time.monotonic(), float("nan")
    wanted = {*job.schedule.epochs, first.epochs}
    if progress.epoch == 0 and 0 in wanted:
        _note(progress, fleet, job.schedule, 0)
    epoch_of = _stepper(fleet, first.epochs - progress.epoch)
    pending: list[Tensor] = []  # losses still on the device: fetching them would make it wait
    for epoch in range(progress.epoch, first.epochs):
        fleet.start_epoch(epoch)
        pending.append(epoch_of(orders.next()).clone())
        progress.epoch = epoch + 1
        if epoch + 1 in wanted:
            _note(progress, fleet, job.schedule, epoch + 1)
        now = time.monotonic()
        late = job.file is not None and now - saved > SAVE_EVERY
        if late or epoch + 1 == first.epochs or len(pending) >= 64:
            last_loss = _fetch(pending, progress)
        going = report is None or report(epoch + 1, last_loss)
        if not going and epoch + 1 < first.epochs:
            _fetch(pending, progress)
            progress.wall_s = earlier + time.monotonic() - began
            if job.file is not None:
                progress.to_file(job.file, fleet.state())
            return progress
        if late and job.file is not None:
            progress.wall_s = earlier + now - began
            progress.to_file(job.file, fleet.state())
            saved = now
    progress.states = [fleet.state_dict(member) for member in range(len(fleet))]
    progress.wall_s, progress.done = earlier + time.monotonic() - began, True
    if job.file is not None:
        progress.to_file(job.file)
    return progress


def _stepper(fleet: Fleet, epochs: int) -> Callable[[Tensor], Tensor]:
    """How an epoch is trained: on CUDA as a graph, where there are epochs enough to make up for capturing it."""
    if fleet.device.type == "cuda" and epochs >= GRAPH_FROM:
        fleet.start_epoch(0)
        return EpochGraph(fleet)
    return lambda orders: fleet.train_epoch(orders.to(fleet.device))


def _note(progress: Progress, fleet: Fleet, schedule: Schedule, epoch: int) -> None:
    for kept, new in zip(progress.measurements, measure_fleet(fleet, schedule, epoch), strict=True):
        kept.extend(new)
    if schedule.keep:
        progress.snapshots[epoch] = [fleet.state_dict(member) for member in range(len(fleet))]


def _fetch(pending: list[Tensor], progress: Progress) -> float:
    """Bring the losses over; returns the mean of the last epoch's over the members that are well."""
    if pending:
        progress.losses.extend(torch.stack(pending).double().cpu().tolist())
        pending.clear()
    well = [loss for loss in (progress.losses[-1] if progress.losses else []) if loss == loss]
    return sum(well) / len(well) if well else float("nan")


def member_bytes(recipe: Recipe, samples: Samples) -> int:
    """About what one more member needs: parameters, gradients, optimizer, activations of a batch, of a measurement."""
    sides = recipe.network.sides
    parameters = sum(i * o + 3 * o for i, o in sides)
    batch = recipe.batch_size * sum(3 * o + i for i, o in sides)
    return 4 * (parameters * 6 + batch) + 16 * len(samples.labels)


def _that_fit(job: Job) -> int:
    """How many members would fit the device, with a fifth of its memory to spare."""
    device = torch.device(job.device)
    room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 4 * 2**30
    return max(1, min(len(job.recipes) - 1, int(0.8 * room) // member_bytes(job.recipes[0], job.samples[0])))
