"""Jobs of a sweep: members that are trained together, the file their progress is kept in, and the runs that come of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from layerlaw.errors import DataError, InputError, LayerlawError, MemoryBudgetError
from layerlaw.lab.fleet.engine import FleetEngine, fleet_takes, members_that_fit
from layerlaw.lab.networks import same_numbers
from layerlaw.lab.recipe import Member, Recipe
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import BatchNormMode, Measurement, Schedule, SplitName
from layerlaw.lab.training import SingleEngine, measured_again, smaller_batch
from layerlaw.law import LawFit, fit_law
from layerlaw.packed import read_torch, write_torch
from layerlaw.wording import counted, number

SAVE_EVERY = 60.0  # seconds
TRAINED_AGAIN = "Delete it, and its members are trained again."
SAVE_SHARE = 0.05  # of the time, that saving a network (not a fleet) may take: then it is done after every epoch


@dataclass(repr=False, eq=False)
class Run:
    """One trained network: its recipe, the loss of every epoch, what was measured, and its final state.

    `diverged` is the first epoch (from 1) whose loss is not a number; `epoch` how far it came; `how` in which way it was
    trained: precision, graph or not, on what; several where it was taken up elsewhere. Two runs are equal where all of this
    is, the numbers of their networks too; NaN equals NaN.
    """

    recipe: Recipe
    losses: tuple[float, ...]
    measurements: tuple[Measurement, ...]
    epoch: int
    diverged: int | None = None
    state: dict[str, Tensor] | None = None
    snapshots: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    how: tuple[str, ...] = ()

    def __repr__(self) -> str:
        loss = f"loss {number(self.losses[-1])}" if self.losses else "no loss"
        ended = f"diverged in epoch {self.diverged}" if self.diverged else loss
        epochs, found = counted(self.recipe.epochs, "epoch"), counted(len(self.measurements), "measurement")
        return f"<Run '{self.recipe.words}': {self.epoch:,} of {epochs}, {ended}, {found}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        losses = [torch.tensor(run.losses, dtype=torch.float64) for run in (self, other)]  # as JSON, infinity is as NaN
        networks, others = ({**run.snapshots, "last": run.state or {}} for run in (self, other))
        same = same_numbers(*losses) and same_numbers(networks, others)
        return same and self.to_dict() == other.to_dict()

    @property
    def finished(self) -> bool:
        """Whether all epochs were trained."""
        return self.epoch == self.recipe.epochs

    def measurement(
        self, *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: SplitName = "train"
    ) -> Measurement:
        """What was measured after an epoch (the last one by default)."""
        at = self.epoch if epoch is None else epoch
        for measurement in self.measurements:
            if (measurement.epoch, measurement.batchnorm, measurement.split) == (at, batchnorm, split):
                return measurement
        there = [sorted({getattr(r, name) for r in self.measurements}) for name in ("epoch", "batchnorm", "split")]
        wanted = f"epoch {at}, batchnorm {batchnorm!r}, {split!r} data"
        have = f"epochs {there[0]}, batchnorm {there[1]}, {there[2]} data"
        cure = "Schedule(epochs=…, batchnorm=…, test=…, permuted=…) says what is measured"
        raise InputError(f"run: expected a measurement of {wanted}; there are {have}. {cure}.")

    def law(
        self, *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: SplitName = "train"
    ) -> LawFit | None:
        """The law along depth; `None` where D is not defined at every site (a diverged or dead network)."""
        found = self.measurement(epoch=epoch, batchnorm=batchnorm, split=split)
        known = [value for value in found.separation if value is not None and value > 0]
        return replace(fit_law(known), step=found.step) if len(known) == len(found.separation) else None

    def lost_rank(
        self, *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: SplitName = "train"
    ) -> list[int]:
        """Places (0: the first site) where the class means span fewer dimensions than they could: D is not comparable."""
        found, most = self.measurement(epoch=epoch, batchnorm=batchnorm, split=split), self.recipe.network.classes - 1
        sites = enumerate(zip(found.rank, found.widths, strict=True))
        return [i for i, (rank, width) in sites if rank < min(most, width)]

    def network(self, epoch: int | None = None) -> nn.Module:
        """The trained network as a module, in eval mode; or as it was after an epoch at which it was kept."""
        state = self.state if epoch is None else self.snapshots.get(epoch)
        if state is None and epoch is None:
            why = "its network was not kept (networks=False)" if self.finished else "it was stopped on the way"
            raise InputError(f"run: expected a finished run with its state; of this one {why}.")
        if state is None:
            there = ", ".join(map(str, self.snapshots)) or "none (pass schedule=Schedule(epochs=…, keep=True))"
            raise InputError(f"run: expected an epoch at which the network was kept, got {epoch}; there are {there}.")
        network = self.recipe.network.build()
        network.load_state_dict(state)
        return network.eval()

    def measured(self, samples: Samples, schedule: Schedule, *, device: str = "cpu") -> Run:
        """The same run with other measurements of its network: at other sites, in other modes, on other samples.

        Of the last epoch, and of those epochs of the schedule at which networks were kept.
        """
        self.recipe.network.check_inputs(tuple(samples.inputs.shape[1:]))
        epochs = [epoch for epoch in schedule.epochs if epoch in self.snapshots and epoch != self.epoch]
        networks = [(epoch, self.network(epoch)) for epoch in epochs] + [(self.epoch, self.network())]
        found = [m for epoch, network in networks for m in measured_again(network, samples, schedule, epoch, device)]
        return replace(self, measurements=tuple(found))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the network's state."""
        return {
            "recipe": self.recipe.to_dict(),
            "epoch": self.epoch,
            "diverged": self.diverged,
            "losses": [loss if math.isfinite(loss) else None for loss in self.losses],  # JSON knows no other
            "measurements": [asdict(measurement) for measurement in self.measurements],
            "how": list(self.how),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Run:
        """The inverse of `to_dict`: without a network."""
        losses = tuple(math.nan if loss is None else loss for loss in data["losses"])
        found, how = tuple(map(Measurement.from_dict, data["measurements"])), tuple(data["how"])
        return cls(Recipe.from_dict(data["recipe"]), losses, found, data["epoch"], data["diverged"], how=how)


@dataclass
class Job:
    """Members that are trained as one, and where their progress is kept; `begun`: epochs that the file already holds.

    `networks`: whether the trained networks are kept, and not only what was measured.
    """

    members: list[Member]
    schedule: Schedule
    copied: tuple[int, int] | None = None
    file: Path | None = None
    device: str = "cpu"
    begun: int = 0
    compile: bool = False
    networks: bool = True

    @property
    def recipe(self) -> Recipe:
        """Of the first member; all have one network, batch size and number of epochs."""
        return self.members[0].recipe

    @property
    def is_fleet(self) -> bool:
        """Whether the fast path is taken; other jobs have one member."""
        return len(self.members) > 1 or self._feed_forward

    @property
    def _feed_forward(self) -> bool:
        return fleet_takes(self.recipe, self.schedule)

    @property
    def save_every(self) -> float | None:
        """Seconds between two times that it is saved; `None`: after every epoch, unless that would take too long."""
        return SAVE_EVERY if self._feed_forward else None

    @property
    def entangled(self) -> bool:
        """Whether a member that diverges spoils the others: 0 · NaN is NaN between images that lie side by side."""
        return self.is_fleet and not self._feed_forward

    def engine(self) -> FleetEngine | SingleEngine:
        """What trains the members, an epoch at a time; both kinds have the same methods."""
        how: dict[str, Any] = {"copied": self.copied, "device": self.device}
        if not self.is_fleet:
            (member,) = self.members
            how["compile"] = self.compile
            return SingleEngine(member.recipe, member.samples, self.schedule, start=member.start, **how)
        recipes, samples = [m.recipe for m in self.members], [m.samples for m in self.members]
        start = [m.start for m in self.members if m.start is not None]
        return FleetEngine(recipes, samples, self.schedule, start=start, **how)


@dataclass
class Checkpoint:
    """How far a job is: what its file holds. `losses` has one row per epoch done, one column per member."""

    keys: list[str]
    recipes: list[dict[str, Any]]
    epoch: int = 0
    losses: list[list[float]] = field(default_factory=list)
    measurements: list[list[Measurement]] = field(default_factory=list)
    states: list[dict[str, Tensor]] = field(default_factory=list)
    snapshots: dict[int, list[dict[str, Tensor]]] = field(default_factory=dict)
    wall_s: float = 0.0
    done: bool = False
    how: list[str] = field(default_factory=list)
    networks: bool = True  # whether the states of finished members are kept

    def to_file(self, path: Path, state: dict[str, Any] | None = None) -> None:
        """Write the progress, and the engine's whole state while it is not done."""
        plain = {**self.__dict__, "measurements": [[asdict(r) for r in member] for member in self.measurements]}
        plain["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        write_torch(path, tree_map_only(Tensor, Tensor.cpu, {**plain, "state": state}))

    @classmethod
    def from_file(cls, path: Path) -> tuple[Checkpoint, dict[str, Any] | None]:
        """Read a file back: progress, and the state where it is not done; a damaged file is an error that says so."""
        plain = read_torch(path, what="the progress of a sweep", sealed=True)
        try:
            state = plain.pop("state")
            plain["losses"] = plain["losses"].tolist()
            plain["measurements"] = [[Measurement.from_dict(r) for r in member] for member in plain["measurements"]]
            found = cls(**plain)
            found.check(state)
            found.runs()
        except (LayerlawError, KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            wrong = f"a part is missing or wrong ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            raise DataError(f"{path}: expected the progress of a sweep, but {wrong}. {TRAINED_AGAIN}") from None
        return found, state

    def check(self, state: object) -> None:
        """Raise unless the parts are of the kinds and the lengths that they should be."""
        members = len(self.keys)
        counts = {"recipes": self.recipes, "measurements": self.measurements, "states": self.states or self.keys}
        counts |= {f"networks of epoch {epoch}": kept for epoch, kept in self.snapshots.items()}
        for name, parts in counts.items():
            if not isinstance(parts, list) or len(parts) != members:
                raise ValueError(f"expected {name} of {members} members")
        states = [*self.states, *(one for kept in self.snapshots.values() for one in kept)]
        if not all(isinstance(value, Tensor) for one in states for value in one.values()):
            raise TypeError("expected tensors in the states")
        if not all(isinstance(key, str) for key in self.keys) or not all(isinstance(one, str) for one in self.how):
            raise TypeError("expected names of members")
        if type(self.epoch) is not int or type(self.done) is not bool or not 0 <= self.wall_s < math.inf:
            raise TypeError("expected an epoch, whether it is done, and seconds")
        if len(self.losses) != self.epoch or any(len(row) != members for row in self.losses):
            raise ValueError(f"expected the losses of {self.epoch} epochs and {members} members")
        if type(self.networks) is not bool:
            raise TypeError("expected whether networks are kept")
        kept = members if self.networks else 0
        if not (isinstance(state, dict) or (state is None and self.done and len(self.states) == kept)):
            raise ValueError("expected the state of the training, or of the trained networks")

    @classmethod
    def beside(cls, parts: Sequence[Checkpoint]) -> Checkpoint:
        """Finished jobs of as many epochs as one."""
        joined = cls([], [], parts[0].epoch, [], networks=parts[0].networks)
        for rows in zip(*(part.losses for part in parts), strict=True):
            joined.losses.append([loss for row in rows for loss in row])
        for part in parts:
            joined.keys += part.keys
            joined.recipes += part.recipes
            joined.measurements += part.measurements
            joined.states += part.states
            for epoch, states in part.snapshots.items():
                joined.snapshots.setdefault(epoch, []).extend(states)
            joined.how = list(dict.fromkeys([*joined.how, *part.how]))
        return replace(joined, wall_s=sum(part.wall_s for part in parts), done=all(part.done for part in parts))

    def runs(self) -> dict[str, Run]:
        """The runs of the members by their keys."""
        runs, by_member = {}, list(zip(*self.losses, strict=True)) or [()] * len(self.keys)
        for i, (key, losses) in enumerate(zip(self.keys, by_member, strict=True)):
            diverged = next((epoch for epoch, loss in enumerate(losses, 1) if not math.isfinite(loss)), None)
            state = self.states[i] if self.states else None
            recipe = Recipe.from_dict(self.recipes[i])
            snapshots = {epoch: states[i] for epoch, states in self.snapshots.items()}
            found, how = tuple(self.measurements[i]), tuple(self.how)
            runs[key] = Run(recipe, losses, found, self.epoch, diverged, state, snapshots, how)
        return runs


Report = Callable[[int, float], bool]
"""Called after every epoch with its number and the mean loss of the last known epoch; `False` means: stop here."""


def run(job: Job, report: Report | None = None) -> Checkpoint:
    """Train the members of a job; goes on from its file if there is one. Stops early only when `report` says so."""
    try:
        return _run(job, report)
    except EntangledError:
        return _one_by_one(job, report)
    except torch.OutOfMemoryError as error:
        count = len(job.members)
        advice = "choose a smaller network or batch"
        if not job.is_fleet:
            advice = smaller_batch(job.recipe, job.members[0].samples, job.device)
        elif count > 1:
            half = job.entangled and count // 2
            fit = half or max(1, min(count - 1, members_that_fit(job.recipe, job.members[0].samples, job.device)))
            advice = f"about {fit} would fit. Pass members={fit}"
        what = f"training {counted(count, 'member')} ({job.recipe.network}) at once"
        raise MemoryBudgetError(f"{what} ran out of memory on {job.device}: {advice}.") from error


class EntangledError(Exception):
    """One of the members that are trained as one diverged, and took the others along."""


def _one_by_one(job: Job, report: Report | None) -> Checkpoint:
    """The members of a job each for itself, from their beginning; the job's file is written once all are there."""
    if job.file is not None:
        job.file.unlink(missing_ok=True)
    parts: list[Checkpoint] = []
    alone = [replace(job, members=[member], begun=0) for member in job.members]
    for one in alone:
        if job.file is not None:
            one.file = job.file.with_name(f"network-{one.members[0].key[:12]}.pt")
        parts.append(_run(one, report))
        if not parts[-1].done:
            return parts[-1]
    found = Checkpoint.beside(parts)
    if job.file is not None:
        found.to_file(job.file)
        for one in alone:
            assert one.file is not None
            one.file.unlink(missing_ok=True)
    return found


def _run(job: Job, report: Report | None) -> Checkpoint:
    began, epochs = time.monotonic(), job.recipe.epochs
    engine, keys = job.engine(), [m.key for m in job.members]
    recipes = [m.recipe.to_dict() for m in job.members]
    reached = Checkpoint(keys, recipes, measurements=[[] for _ in job.members], networks=job.networks)
    if job.file is not None and job.file.exists():
        reached, kept = Checkpoint.from_file(job.file)
        try:
            engine.resume(kept or {}, reached.epoch)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            wrong = f"its state does not fit ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            raise DataError(f"{job.file}: expected the progress of this job, but {wrong}. {TRAINED_AGAIN}") from error
    earlier, saved, every, last_loss = reached.wall_s, began, job.save_every or 0.0, float("nan")
    device = torch.device(job.device)
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    pending: list[Tensor] = []  # losses still on the device: fetching them would make it wait

    def note(epoch: int) -> None:
        for known, new in zip(reached.measurements, engine.measure(epoch), strict=True):
            known.extend(new)
        if job.schedule.keep:
            reached.snapshots[epoch] = engine.state_dicts()

    def save(*, done: bool = False) -> None:
        reached.wall_s, reached.done = earlier + time.monotonic() - began, done
        reached.how = list(dict.fromkeys([*reached.how, f"{engine.how}, on {place}"]))
        if job.file is not None:
            reached.to_file(job.file, None if done else engine.state())

    wanted = {*job.schedule.epochs, epochs}
    if reached.epoch == 0 and 0 in wanted:
        note(0)
    for epoch in range(reached.epoch + 1, epochs + 1):
        pending.append(engine.train_epoch(epoch - 1))
        reached.epoch = epoch
        if epoch in wanted:
            note(epoch)
        late = job.file is not None and time.monotonic() - saved > min(every, SAVE_EVERY)
        if late or epoch == epochs or len(pending) >= 64:
            last_loss = _fetch(pending, reached)
            if job.entangled and not math.isfinite(sum(reached.losses[-1])):
                raise EntangledError
        going = report is None or report(epoch, last_loss)
        if not going and epoch < epochs:
            _fetch(pending, reached)
            save()
            return reached
        if late:
            started = time.monotonic()
            save()
            saved = time.monotonic()
            every = job.save_every or (saved - started) / SAVE_SHARE
    if job.networks:
        reached.states = engine.state_dicts()
    save(done=True)
    return reached


def _fetch(pending: list[Tensor], reached: Checkpoint) -> float:
    """Bring the losses over; returns the mean of the last epoch's over the members that are well."""
    if pending:
        reached.losses.extend(torch.stack(pending).double().cpu().tolist())
        pending.clear()
    well = [loss for loss in (reached.losses[-1] if reached.losses else []) if loss == loss]
    return sum(well) / len(well) if well else float("nan")
