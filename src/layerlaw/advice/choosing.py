"""Depth, width and shape by training: candidates × learning rates × paired seeds in one sweep, compared by final D."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from layerlaw.advice.candidates import BATCHNORM, Candidate, Guess, Trial
from layerlaw.advice.choice import Choice, Kind
from layerlaw.data import Labeled, load, names
from layerlaw.errors import InputError, check_whole, renamed
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep
from layerlaw.lab.engines import Engine, check_engine
from layerlaw.lab.processes import WORTH_PROCESSES, cores, work
from layerlaw.lab.trainer import check_device
from layerlaw.progress import Progress
from layerlaw.provenance import provenance
from layerlaw.wording import counted

RECIPE = Recipe(epochs=200)
SPLIT_SEED = 0
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
SHAPES = ((100,) * 7, (50,) * 4 + (200,) * 3, (200,) * 4 + (50,) * 3)  # even, narrow to wide, wide to narrow
SCHEDULE = Schedule(batchnorm=(BATCHNORM,), test=True, permuted=True)
PER_SECOND = 1e10  # multiplications on one core of 2024, in layers of 100 units; a third of that in layers of 20
IN_RECIPE = ("optimizer", "epochs", "batch_size", "weight_decay", "drops")
RENAMED = {
    **{name: f"recipe (Recipe({name}=…))" for name in IN_RECIPE},
    "norm": "recipe (Recipe(Shape.even(8, norm=False)): its norm and activation are those of every candidate)",
    "size": "data (data.load(…).resized(size))",
    "per_class": "data (data.load(…).balanced(per_class))",
    "validation": "data (TrainingData.of(data, test, validation=0.2))",
    "tell": "announce",
}


class Training(TypedDict, total=False):
    """What the three choices share; `choose_depth` explains each of them."""

    recipe: Recipe
    rates: Sequence[float]
    seeds: Sequence[int]
    test: Any
    device: str
    engine: Engine
    folder: str | Path | None
    progress: bool | Progress
    announce: Callable[[TrainingPlan], object] | None


def choose_depth(
    data: Any, *, depths: Sequence[int] = range(3, 13), width: int = 100, **how: Unpack[Training]
) -> Choice:
    """Which depth separates the training data best? Depth counts all linear layers, the classifier included.

    The rule of He & Su (PNAS 2023, Fig. 5) is the depth of lowest final D. Here it is applied to paired seeds, with the
    one-standard-error rule (the smallest depth that is as good), the learning rate chosen per depth by validation
    accuracy, and held-out accuracy beside it: low D on training data is no promise for others.

    data      a pair of tensors or arrays, `lab.Samples`, `data.Labeled`, a data set's name, or a folder of pictures; or
              `TrainingData`, which also says how much of it is held back to choose learning rates (a fifth by default)
    recipe    how every candidate is trained: optimizer, epochs (200 by default), batch size, weight decay, drops, and from
              its network BatchNorm or not and the activation; its learning rate and seed give way to `rates` and `seeds`
    rates     learning rates, (1e-4, 3e-4, 1e-3, 3e-3) by default; `seeds` (0, 1, 2)
    test      data that nothing is chosen by; their accuracy is the last number, for the recommended depth alone
    device    "cpu" by default
    engine    "processes" of this machine, or "ray": the machines of a Ray cluster, as `sweep` has it
    folder    keeps the sweep, which then can be interrupted and continued
    announce  is called with the `TrainingPlan` before training: how many networks, and roughly how long (`print` will do)
    """
    shapes = {f"depth {depth}": (width,) * (depth - 1) for depth in _several(depths, "depths", least=2)}
    return _choose("depth", data, shapes, **how)


def choose_width(
    data: Any, *, widths: Sequence[int] = (20, 50, 100, 200, 500), depth: int = 8, **how: Unpack[Training]
) -> Choice:
    """Which width is enough? All hidden layers have one width; otherwise as `choose_depth`.

    Wider layers have a lower D from noise alone (with no signal D ≈ n(K−1)/d_eff), so what is compared is D over that
    with shuffled labels, its noise floor.
    """
    check_whole(2, depth=depth)
    shapes = {f"width {width}": (width,) * (depth - 1) for width in _several(widths, "widths", least=1)}
    return _choose("width", data, shapes, **how)


def choose_shape(data: Any, *, shapes: Sequence[Sequence[int]] = SHAPES, **how: Unpack[Training]) -> Choice:
    """Wide below or wide above? `shapes` are the hidden widths from the input on; otherwise as `choose_width`."""
    given = [_sequence(widths, "shapes: every shape") for widths in _sequence(shapes, "shapes")]
    labeled = {shape_label(widths): widths for widths in given}
    if len(labeled) < len(given) or len(labeled) < 2:
        raise InputError(f"shapes: expected at least 2, all different, got {len(labeled)} different of {len(given)}.")
    return _choose("shape", data, labeled, **how)


def _choose(
    kind: Kind,
    data: Any,
    widths: Mapping[str, tuple[int, ...]],
    *,
    recipe: Recipe = RECIPE,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 1, 2),
    test: Any = None,
    device: str = "cpu",
    engine: Engine = "processes",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
    announce: Callable[[TrainingPlan], object] | None = None,
    **old: Any,
) -> Choice:
    """Train hidden widths (by label) × learning rates × seeds, and decide; all is checked before data are loaded."""
    renamed(f"choose_{kind}", old, RENAMED)
    began = time.perf_counter()
    rates, seeds = _sequence(rates, "rates"), _sequence(seeds, "seeds")
    for name, values in (("rates", rates), ("seeds", seeds)):
        if not values or len(set(values)) < len(values):
            raise InputError(f"{name}: expected at least one, all different, got {list(values)}.")
    if bad := [r for r in rates if isinstance(r, bool) or not isinstance(r, (int, float)) or not 0 < r < float("inf")]:
        raise InputError(f"rates: expected positive learning rates, got {bad[0]!r}.")
    if not isinstance(recipe, Recipe) or not isinstance(recipe.network, Shape):
        raise InputError(f"recipe: expected a Recipe for feed-forward networks, got {recipe!r}.")
    recipe.grid(learning_rate=rates, seed=seeds)
    check_device(device)
    check_engine(engine)
    whole = TrainingData.of(data, test)
    samples = whole.samples
    inputs, n = samples.inputs.shape[1], len(samples.labels)
    base = replace(recipe.network, inputs=inputs, classes=samples.classes)
    shapes = {label: replace(base, widths=hidden) for label, hidden in widths.items()}
    # BatchNorm cannot do with a batch of one
    recipe = replace(recipe, batch_size=next(b for b in range(recipe.batch_size, 1, -1) if n % b != 1))
    tried = [(label, rate) for label in shapes for rate in rates]
    once = [replace(recipe, network=shapes[label], learning_rate=rate) for label, rate in tried]
    every = [each for one in once for each in one.grid(seed=seeds)]
    if announce is not None:
        plan = TrainingPlan.of(every, samples, device)
        announce(replace(plan, seconds=None) if engine == "ray" else plan)  # whose machines are not known yet
    how: Any = {"device": device, "engine": engine, "folder": folder, "progress": progress}
    runs = iter(sweep(every, samples, schedule=SCHEDULE, **how))
    trials = {key: list(islice(runs, len(seeds))) for key in tried}
    candidates = []
    for label, shape in shapes.items():  # weights, biases, and BatchNorm's two per unit
        parameters = sum(i * o + o for i, o in shape.sides) + (2 * sum(shape.widths) if shape.norm else 0)
        candidates.append(Candidate(label, shape.widths, parameters, tuple(Trial.of(trials[label, r]) for r in rates)))
    guess = Guess(max(samples.counts) / n, n, whole.validation)
    choice = Choice.of(kind, candidates, validation=whole.validation, guess=guess)
    tested: tuple[float, ...] = ()
    if choice.recommended is not None and whole.test is not None:
        x, y = whole.test
        best = trials[choice.recommended.label, choice.recommended.trial.rate]
        with torch.no_grad():
            tested = tuple(fmean((run.network()(x).argmax(1) == y).tolist()) for run in best)
    about = provenance(
        device,
        data={
            "name": whole.name,
            "sha256": whole.checksum,
            "inputs": inputs,
            "classes": samples.classes,
            "train": n,
            "validation": whole.validation,
            "per_class": list(whole.counts),
            "test": 0 if whole.test is None else len(whole.test[1]),
        },
        settings={
            "batchnorm": BATCHNORM,
            "rates": list(rates),
            "seeds": list(seeds),
            "validation": whole.share,
            "split_seed": SPLIT_SEED,
            **{name: getattr(recipe, name) for name in IN_RECIPE},
            "norm": recipe.network.norm,
        },
    )
    about["seconds"] = round(time.perf_counter() - began, 3)
    return replace(choice, test_accuracies=tested, provenance=about)


@dataclass(frozen=True)
class TrainingPlan:
    """How many networks, of how many layers, for how long; `seconds` is a rough guess, `None` on a GPU or a cluster."""

    networks: int
    depths: tuple[int, int]
    epochs: int
    samples: int
    inputs: int
    seconds: float | None
    processes: int

    @classmethod
    def of(cls, recipes: Sequence[Recipe], samples: Samples, device: str) -> TrainingPlan:
        """Of a sweep over these recipes, as if nothing of it were done yet."""
        depths = [recipe.network.depth for recipe in recipes]
        total = sum(work(recipe, samples) for recipe in recipes)
        processes = cores() if total > WORTH_PROCESSES else 1
        seconds = total / PER_SECOND / processes if torch.device(device).type == "cpu" else None
        n, inputs = samples.inputs.shape
        return cls(len(recipes), (min(depths), max(depths)), recipes[0].epochs, n, inputs, seconds, processes)

    def __str__(self) -> str:
        low, high = self.depths
        layers = counted(low, "layer") if low == high else f"{low}–{high} layers"
        trained = f"{counted(self.networks, 'network')} of {layers}, {counted(self.epochs, 'epoch')} each"
        time = "" if self.seconds is None else f": roughly {rough(self.seconds)} on {counted(self.processes, 'core')}"
        return f"{trained}, on {self.samples:,} samples of {self.inputs:,} numbers{time}"


def rough(seconds: float) -> str:
    """A time in words, no more exact than a guess deserves.

    >>> rough(3), rough(47), rough(1935), rough(20000)
    ('10 seconds', '50 seconds', '30 minutes', '6 hours')
    """
    if seconds < 55:
        return f"{max(1, round(seconds / 10)) * 10} seconds"
    if seconds < 570:
        return counted(max(1, round(seconds / 60)), "minute")
    if seconds < 5400:
        return f"{round(seconds / 600) * 10} minutes"
    return counted(max(2, round(seconds / 3600)), "hour")


def shape_label(widths: Sequence[int]) -> str:
    """Hidden widths in short.

    >>> shape_label((100, 100, 100, 1000, 1000, 50))
    '100×3 → 1000×2 → 50'
    """
    runs = [(width, len(list(run))) for width, run in groupby(widths)]
    return " → ".join(f"{width}×{times}" if times > 1 else str(width) for width, times in runs)


def _sequence(values: Any, name: str) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name}: expected a sequence of numbers, such as (1, 2, 3), got {values!r}.")
    return tuple(values)


def _several(values: Sequence[int], name: str, least: int) -> list[int]:
    for value in (values := _sequence(values, name)):
        check_whole(least, **{name: value})
    if len(chosen := sorted(set(values))) < 2:
        raise InputError(f"{name}: expected at least 2 different ones to choose from, got {list(values)}.")
    return chosen


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What candidates are compared on: `samples` hold the training part, and the validation part as held-out samples."""

    samples: Samples
    test: tuple[Tensor, Tensor] | None
    name: str
    checksum: str  # of everything that was given, test data included
    share: float  # of every class, held back for validation
    counts: tuple[int, ...]  # how many samples every class has, validation part included

    @classmethod
    def of(cls, data: Any, test: Any = None, *, validation: float = 0.2) -> TrainingData:
        """From a pair of tensors or arrays, `Samples`, `Labeled`, the name of a data set or the path of a folder.

        A share `validation` of every class is held back (the same one every time); test samples that `Samples` bring
        along are kept as test data. `TrainingData` are taken as they are.
        """
        if isinstance(data, TrainingData):
            if test is not None:
                raise InputError("test: expected in TrainingData.of(data, test), which was given, got other test data.")
            return data
        if isinstance(validation, bool) or not isinstance(validation, (int, float)) or not 0 < validation < 1:
            raise InputError(f"validation: expected a share between 0 and 1, such as 0.2, got {validation!r}.")
        whole = flat_samples(data, test)
        x, y = whole.test_inputs, whole.test_labels
        held_out = None if x is None or y is None else (x, y)
        named = isinstance(data, (str, os.PathLike))
        name = os.fspath(data) if named else data.name if isinstance(data, Labeled) else "tensors"
        parts = whole.held_back(validation, seed=SPLIT_SEED)
        return cls(parts, held_out, name, whole.checksum, validation, whole.counts)

    @property
    def validation(self) -> int:
        """How many samples the validation part has."""
        return sum(self.counts) - len(self.samples.labels)


def flat_samples(data: Any, test: Any = None) -> Samples:
    """Samples, one vector each, from any form of data."""
    if isinstance(data, (str, os.PathLike)):
        data = pictures(data)
    if isinstance(data, Labeled):
        held_out = _pair(test, channels=data.images.shape[1])
        return Samples.of(data.tensors(flat=True), held_out, class_names=data.class_names)
    if isinstance(data, Samples) and test is None:
        return data.flat()
    known, data = (data.class_names, (data.inputs, data.labels)) if isinstance(data, Samples) else ((), data)
    return Samples.of(data, _pair(test), class_names=known).flat()


def pictures(source: str | os.PathLike[str], size: int | None = None) -> Labeled:
    """The training images of a data set or a folder; a folder in which all are gray has one channel.

    A folder is resized to `size` pixels at once, as its pictures may differ; a data set is left as it is.
    """
    if source in names():
        return load(source)
    data = load(source, size=size)
    return data.with_channels(1) if data.gray else data


def _pair(data: Any, channels: int | None = None) -> Any:
    if isinstance(data, (str, os.PathLike)):
        data = load(data, split="test", channels=None if data in names() else channels)
    return data.tensors(flat=True) if isinstance(data, Labeled) else data
