"""A sweep: any number of recipes, trained in as few jobs as possible, interrupted and taken up again at will."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlaw.errors import DataError, InputError, demand, whole
from layerlaw.files import as_path, check_room, made_folder, write_json
from layerlaw.lab.engines import Engine, check_engine, cluster, run_on_ray, workers_of
from layerlaw.lab.fleet.engine import GPU_SHARE, fleet_takes, member_bytes
from layerlaw.lab.fleet.images import members_side_by_side
from layerlaw.lab.jobs import TRAINED_AGAIN, Checkpoint, Job, Run
from layerlaw.lab.processes import WORTH_PROCESSES, cores, found_elsewhere, run_here, run_in_processes, work
from layerlaw.lab.recipe import Member, Recipe, check_layers
from layerlaw.lab.samples import Samples
from layerlaw.lab.schedule import Schedule
from layerlaw.lab.trainer import check_device
from layerlaw.progress import Counter, Progress
from layerlaw.threads import on_cpu, users_device
from layerlaw.wording import counted

MEMBERS_ON_CPU = 12  # larger fleets leave the cache, smaller ones pay for their calls
MEMBERS_ON_GPU = 128  # which keep it busy: of several such fleets the host measures one while another one is trained
LAST_EPOCH = Schedule()
Data = Mapping[str, Samples | Callable[[int], Samples]] | Samples


@on_cpu
def sweep(
    recipes: Sequence[Recipe],
    data: Data,
    *,
    schedule: Schedule = LAST_EPOCH,
    start: Sequence[dict[str, Tensor]] | None = None,
    copied: tuple[int, int] | None = None,
    folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    members: int | None = None,
    workers: int | None = None,
    engine: Engine = "processes",
    compile: bool = False,
    networks: bool = True,
    progress: bool | Progress = True,
) -> list[Run]:
    """Train every recipe and measure it; one `Run` per recipe, in their order.

    Feed-forward networks with cross-entropy are trained many at once, as fleets, and so are, on CUDA, narrow networks for
    images; any other network or loss by the plain loop, one at a time. `data` are the samples by the name that recipes
    give; a function gives every recipe the samples for its seed, so that seeds differ in their samples too. `start` gives
    every recipe the state of a network to start from, or, with `copied=(a, b)`, its layers a … b−1 alone. With a `folder`
    the sweep is saved there every minute, after whole epochs (networks that are not feed-forward after every epoch, unless
    saving would take more than a twentieth of the time): called again after an interruption it goes on where it was, and
    finished members are never trained again.
    `members` is the most that are trained at once; `workers` the number of processes (by default one for each core of a
    CPU, and none beside this one on a GPU, which small networks leave idle most of the time: there NVIDIA's MPS lets
    several share it). `engine="ray"` trains on the machines of a Ray cluster instead (the one that the program is
    connected to, that `RAY_ADDRESS` names or that runs here; else one is started here), by default with one worker for each
    of its cores or GPUs; this process alone writes to the folder.
    `progress` is a bar, none, or a function (items, label, total) that gives the same items and tells how far it is.
    `compile`, on CUDA, puts networks outside fleets through `torch.compile`. Without `networks` only what was measured is
    kept of finished members, not the networks: files of kilobytes.
    """
    template = Job([], schedule, copied, None, str(device), compile=compile, networks=networks)
    count = whole(1, kind=Integral).or_none
    demand(members=(members, count), workers=(workers, count))
    check_engine(engine)
    wanted = _members(recipes, data, start, template)
    check_device(template.device)
    if compile and torch.device(template.device).type != "cuda":
        raise InputError(f"compile: expected False on the device '{template.device}', got True. It is for CUDA only.")
    for recipe in recipes:
        recipe.precision_on(torch.device(template.device))
    place = None if folder is None else as_path(folder, "sweep")
    done: dict[str, Run] = {}
    jobs: list[Job] = []
    if place is not None:
        check_room(made_folder(place))  # before the training
        done, jobs = _found(place, wanted, template)
    going = done.keys() | {member.key for job in jobs for member in job.members}
    missing = list({member.key: member for member in wanted if member.key not in going}.values())
    with ExitStack() as held:
        ray = held.enter_context(cluster()) if engine == "ray" and (missing or jobs) else None
        if ray is not None:
            workers = workers or workers_of(ray, template.device)
        for chosen in _together(missing, template, members, workers, spread=ray is not None):
            job = replace(template, members=chosen)
            if place is not None:
                name = hashlib.sha256("".join(member.key for member in chosen).encode()).hexdigest()[:12]
                job.file = place / f"{'fleet' if job.is_fleet else 'network'}-{name}.pt"
            jobs.append(job)
        finished, complete = _train(jobs, progress, workers, ray, before=len(done))
    for part in finished:
        done |= part.runs()
    keys = [member.key for member in wanted]
    if place is not None:
        _write_table(place, keys)
    if not complete:
        raise KeyboardInterrupt("stopped; " + ("call it again to go on" if place else "nothing was kept (no folder)"))
    return [done[key] for key in keys if key in done]


def _members(
    recipes: Sequence[Recipe],
    data: Data,
    start: Sequence[Mapping[str, Tensor]] | None,
    template: Job,
) -> list[Member]:
    """Every recipe with its samples; whatever is wrong with any of them is said before hours of training, not after."""
    schedule, copied, given = template.schedule, template.copied, data
    if isinstance(recipes, Recipe) or not all(isinstance(recipe, Recipe) for recipe in recipes):
        raise InputError("sweep: expected a list of recipes, [Recipe(…), …] or Recipe(…).grid(…).")
    if not recipes:
        raise InputError("sweep: expected at least one recipe, got none.")
    if any(not isinstance(state, Mapping) for state in start or ()):
        raise InputError("start: expected the states of networks, [run.state for run in …] or network.state_dict().")
    if start is not None and len(start) != len(recipes):
        raise InputError(f"start: expected one state per recipe ({len(recipes)}), got {len(start)}.")
    if copied is not None and start is None:
        raise InputError("copied: expected states to copy these layers from (start=…), got none.")
    if not isinstance(given, Samples | Mapping):
        raise InputError(
            f"data: expected Samples, or a mapping of names to Samples, got {type(given).__name__}. "
            "Samples.of((inputs, labels)) makes them."
        )
    found, measured = [], schedule.to_dict()
    for i, recipe in enumerate(recipes):
        if isinstance(data, Mapping) and recipe.data not in data:
            raise InputError(f"sweep: expected samples called {recipe.data!r}, got {', '.join(map(repr, data))}.")
        named, network = data if isinstance(data, Samples) else data[recipe.data], recipe.network
        samples = named if isinstance(named, Samples) else users_device()(named)(recipe.seed)
        network.check(samples, recipe.batch_size)
        if max(schedule.epochs, default=0) > recipe.epochs:
            raise InputError(
                f"schedule: expected epochs up to {recipe.epochs}, the last one that is trained, got {max(schedule.epochs)}."
            )
        if samples.classes != network.classes:
            raise InputError(
                f"sweep: expected a classifier of {samples.classes} outputs for samples of {samples.classes} classes, got "
                f"{network.classes}. {type(network).__name__}(…, classes={samples.classes})."
            )
        if 0 in samples.counts and fleet_takes(recipe, schedule):
            raise InputError(
                f"sweep: expected samples of every class for {network}, got none of class {samples.counts.index(0)} in "
                f"{recipe.data!r}. Classes without samples are for networks outside fleets (convolutional, residual, …)."
            )
        if schedule.test and samples.test_labels is None:
            raise InputError(f"schedule: expected held-out samples to measure on, but {recipe.data!r} has none.")
        if copied is not None:
            check_layers("copied", copied, network.depth)
        state = None if start is None else start[i]
        digest = hashlib.sha256(json.dumps([recipe.to_dict(), measured, samples.checksum, copied]).encode())
        if not template.networks:  # a sweep that wants them trains them again
            digest.update(b"no networks")
        for name, tensor in sorted((state or {}).items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        found.append(Member(recipe, samples, digest.hexdigest()[:24], state))
    return found


def _together(
    missing: Sequence[Member], template: Job, members: int | None, workers: int | None, *, spread: bool = False
) -> Iterator[list[Member]]:
    """Members that are trained as one, the largest fleets first: equal shape, samples, batches, epochs, trained layers.

    `spread`: over all workers, however little work it is, and also where these are GPUs.
    """
    groups: dict[Any, list[Member]] = {}
    others = [member for member in missing if not fleet_takes(member.recipe, template.schedule)]
    images = list(_side_by_side(others, template, members))
    together = {member.key for group in images for member in group}
    alone = [member for member in others if member.key not in together]
    for member in missing:
        r, s = member.recipe, member.samples
        if not fleet_takes(r, template.schedule):
            continue
        tests = 0 if s.test_labels is None else len(s.test_labels)
        kind = (r.network, len(s.labels), tests, s.classes, r.batch_size, r.epochs, r.trained, r.decay_frozen)
        groups.setdefault(kind, []).append(member)
    shares, device = 1, torch.device(template.device)
    worth = device.type == "cpu" and sum(work(m.recipe, m.samples) for m in missing) > WORTH_PROCESSES
    if worth or spread:
        shares = -(-(workers or cores()) // max(1, len(groups) + len(alone)))  # no core without a job

    def bytes_of(group: list[Member]) -> int:
        return member_bytes(group[0].recipe, group[0].samples)

    yield from ([member] for member in sorted(alone, key=lambda m: -work(m.recipe, m.samples)))
    yield from images
    for group in sorted(groups.values(), key=lambda group: -len(group) * bytes_of(group)):
        group.sort(key=lambda member: member.recipe.optimizer)  # neighbors share an update
        most = members or MEMBERS_ON_CPU
        if members is None and device.type == "cuda":
            fit = int(GPU_SHARE * torch.cuda.mem_get_info(device)[0]) // bytes_of(group)
            most = max(1, min(fit, MEMBERS_ON_GPU))
        parts = min(len(group), max(-(-len(group) // most), shares))
        size = -(-len(group) // parts)
        for at in range(0, len(group), size):
            yield group[at : at + size]


def _side_by_side(others: Sequence[Member], template: Job, members: int | None) -> Iterator[list[Member]]:
    """Narrow networks for images that a GPU trains many of at once."""
    if torch.device(template.device).type != "cuda" or template.compile:
        return
    groups: dict[Any, list[Member]] = {}
    for member in others:
        r, s = member.recipe, member.samples
        kind = (r.network, s.inputs.shape, r.batch_size, r.epochs, r.optimizer, r.precision, r.loss, r.decay_frozen)
        groups.setdefault(kind, []).append(member)
    for group in groups.values():
        most = min(members or len(group), members_side_by_side(group[0].recipe))
        size = -(-len(group) // -(-len(group) // most))
        for at in range(0, len(group), size) if size >= 2 else ():
            yield group[at : at + size]


def _files(place: Path) -> list[Path]:
    return sorted([*place.glob("fleet-*.pt"), *place.glob("network-*.pt")])


def _found(place: Path, wanted: Sequence[Member], template: Job) -> tuple[dict[str, Run], list[Job]]:
    """What earlier sweeps left in the folder: finished members, and jobs to go on with."""
    done: dict[str, Run] = {}
    jobs: list[Job] = []
    members = {member.key: member for member in wanted}
    files, others = _files(place), []
    for file in files:
        try:
            part, _ = Checkpoint.from_file(file)
        except DataError as error:
            raise DataError(f"{error}".removesuffix(f" {TRAINED_AGAIN}") + f" {TRAINED_AGAIN}") from None
        if not members.keys() & set(part.keys):
            others.append(part)
        elif part.done:
            done |= {key: run for key, run in part.runs().items() if key in members}
        elif all(key in members for key in part.keys):
            going = [members[key] for key in part.keys]
            jobs.append(replace(template, members=going, file=file, begun=part.epoch))
    recipes = [member.recipe.to_dict() for member in wanted]
    if files and len(others) == len(files) and not _of_other_seeds(others, recipes):
        difference = _difference(others, recipes)
        raise DataError(
            f"{place}: expected an empty folder or one of this sweep. It holds another one ({difference}). "
            "Choose another folder."
        )
    return done, [job for job in jobs if not any(member.key in done for member in job.members)]


def _of_other_seeds(others: Sequence[Checkpoint], recipes: Sequence[dict[str, Any]]) -> bool:
    """Whether a recipe of this sweep is there with another seed: seeds may come one after the other."""
    here = [{**recipe, "seed": None} for recipe in recipes]
    return any(r not in recipes and {**r, "seed": None} in here for part in others for r in part.recipes)


def _difference(others: Sequence[Checkpoint], recipes: Sequence[dict[str, Any]]) -> str:
    """Which fields of the recipe are others, in words: of the two recipes, one there and one here, most alike."""

    def fields(recipe: dict[str, Any]) -> dict[str, Any]:
        return {**recipe["network"], **{name: value for name, value in recipe.items() if name != "network"}}

    pairs = product([r for part in others for r in part.recipes], recipes)
    differing = [
        [f"{k} {there.get(k)} there, {here[k]} here" for k in here if there.get(k) != here[k]]
        for there, here in ((fields(there), fields(here)) for there, here in pairs)
    ]
    fewest: list[str] = min(differing, key=len)
    return "; ".join(fewest) or "other data, measurements or starting points"


def _write_table(place: Path, keys: Sequence[str]) -> None:
    """A plain copy of all numbers in the folder, for other programs; members of this call first, in their order."""
    found: dict[str, Run] = {}
    for file in _files(place):
        found |= Checkpoint.from_file(file)[0].runs()
    runs = [found[key].to_dict() for key in dict.fromkeys([*keys, *found]) if key in found]
    write_json(place / "sweep.json", {"format": "layerlaw sweep", "version": 1, "runs": runs})


def _train(
    jobs: list[Job], progress: bool | Progress, workers: int | None, ray: Any = None, *, before: int = 0
) -> tuple[list[Checkpoint], bool]:
    """Run the jobs; returns what they reached, and whether all came to their end. `before`: members finished earlier."""
    if not jobs:
        return [], True
    members = [member for job in jobs for member in job.members]
    total = sum(job.recipe.epochs - job.begun for job in jobs)
    processes = workers or (cores() if torch.device(jobs[0].device).type == "cpu" else 1)
    worth = workers is not None or sum(work(m.recipe, m.samples) for m in members) > WORTH_PROCESSES
    several = ray is None and processes > 1 and len(jobs) > 1 and worth and found_elsewhere(jobs, workers)
    with _stopping() as stop:
        begun = sum(len(job.members) for job in jobs if job.begun)
        earlier = [f"{begun} of them begun"] * (begun > 0) + [f"{before} finished before"] * (before > 0)
        label = counted(len(members), "network") + (f" left ({', '.join(earlier)})" if earlier else "")
        bar = Counter(progress, total, label)
        try:
            if ray is not None:
                return run_on_ray(ray, jobs, workers or 1, bar, stop)
            if several:
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
