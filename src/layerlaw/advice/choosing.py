"""Depth, width and shape by training: candidates × learning rates × paired seeds in one sweep, compared by final D."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from layerlaw.advice.candidates import BATCHNORM, Candidate, Guess, Trial
from layerlaw.advice.choice import Choice, Kind
from layerlaw.advice.training_data import SPLIT_SEED, TrainingData
from layerlaw.errors import InputError, renamed
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape, sweep
from layerlaw.lab.processes import WORTH_PROCESSES, cores, work
from layerlaw.progress import Progress
from layerlaw.provenance import provenance
from layerlaw.wording import counted

RECIPE = Recipe(epochs=200)
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
SHAPES = ((100,) * 7, (50,) * 4 + (200,) * 3, (200,) * 4 + (50,) * 3)  # even, narrow to wide, wide to narrow
SCHEDULE = Schedule(batchnorm=(BATCHNORM,), test=True, permuted=True)
PER_SECOND = 1e10  # multiplications on one core of 2024, in layers of 100 units; a third of that in layers of 20
RENAMED = {
    **{name: f"recipe (Recipe({name}=…))" for name in ("optimizer", "epochs", "batch_size", "weight_decay", "drops")},
    "norm": "recipe (Recipe(Shape.even(8, norm=False)): its norm and activation are those of every candidate)",
    "size": "data (data.load(…).resized(size))",
    "per_class": "data (data.load(…).balanced(per_class))",
    "validation": "data (TrainingData.of(data, test, validation=0.2))",
    "tell": "announce",
}


def choose_depth(
    data: Any,
    *,
    depths: Sequence[int] = range(3, 13),
    width: int = 100,
    recipe: Recipe = RECIPE,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 1, 2),
    test: Any = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
    announce: Announce | None = None,
    **old: Any,
) -> Choice:
    """Which depth separates the training data best? Depth counts all linear layers, the classifier included.

    The rule of He & Su (PNAS 2023, Fig. 5) is the depth of lowest final D. Here it is applied to paired seeds, with the
    one-standard-error rule (the smallest depth that is as good), the learning rate chosen per depth by validation
    accuracy, and held-out accuracy beside it: low D on training data is no promise for others.

    data      a pair of tensors or arrays, `lab.Samples`, `data.Labeled`, a data set's name, or a folder of pictures; or
              `TrainingData`, which also says how much of it is held back to choose learning rates (a fifth by default)
    recipe    how every candidate is trained: optimizer, epochs, batch size, weight decay, drops, and from its network
              BatchNorm or not and the activation; its learning rate and seed give way to `rates` and `seeds`
    test      data that nothing is chosen by; their accuracy is the last number, for the recommended depth alone
    folder    keeps the sweep, which then can be interrupted and continued
    announce  is called with the `TrainingPlan` before training: how many networks, and roughly how long (`print` will do)
    """
    renamed("choose_depth", old, RENAMED)
    shapes = {f"depth {depth}": (width,) * (depth - 1) for depth in _several(depths, "depths", least=2)}
    grid = Grid("depth", shapes, recipe, rates, seeds)
    return grid.choose(data, test, device=device, folder=folder, progress=progress, announce=announce)


def choose_width(
    data: Any,
    *,
    widths: Sequence[int] = (20, 50, 100, 200, 500),
    depth: int = 8,
    recipe: Recipe = RECIPE,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 1, 2),
    test: Any = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
    announce: Announce | None = None,
    **old: Any,
) -> Choice:
    """Which width is enough? All hidden layers have one width; otherwise as `choose_depth`.

    Wider layers have a lower D from noise alone (with no signal D ≈ n(K−1)/d_eff), so what is compared is D over that
    with shuffled labels, its noise floor.
    """
    renamed("choose_width", old, RENAMED)
    if depth < 2:
        raise InputError(f"depth: expected at least 2 (one hidden layer and the classifier), got {depth}.")
    shapes = {f"width {width}": (width,) * (depth - 1) for width in _several(widths, "widths", least=1)}
    grid = Grid("width", shapes, recipe, rates, seeds)
    return grid.choose(data, test, device=device, folder=folder, progress=progress, announce=announce)


def choose_shape(
    data: Any,
    *,
    shapes: Sequence[Sequence[int]] = SHAPES,
    recipe: Recipe = RECIPE,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 1, 2),
    test: Any = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
    announce: Announce | None = None,
    **old: Any,
) -> Choice:
    """Wide below or wide above? `shapes` are the hidden widths from the input on; otherwise as `choose_width`."""
    renamed("choose_shape", old, RENAMED)
    given = [_sequence(widths, "shapes: every shape") for widths in _sequence(shapes, "shapes")]
    labeled = {shape_label(widths): widths for widths in given}
    if len(labeled) < len(given) or len(labeled) < 2:
        raise InputError(f"shapes: expected at least 2, all different, got {len(labeled)} different of {len(given)}.")
    grid = Grid("shape", labeled, recipe, rates, seeds)
    return grid.choose(data, test, device=device, folder=folder, progress=progress, announce=announce)


@dataclass(frozen=True)
class TrainingPlan:
    """How many networks, of how many layers, for how long; `seconds` is a rough guess, `None` on a GPU."""

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
        load, seconds = sum(work(recipe, samples) for recipe in recipes), None
        processes = cores() if load > WORTH_PROCESSES else 1
        if torch.device(device).type == "cpu":
            seconds = load / PER_SECOND / processes
        n, inputs = samples.inputs.shape
        return cls(len(recipes), (min(depths), max(depths)), recipes[0].epochs, n, inputs, seconds, processes)

    def __str__(self) -> str:
        low, high = self.depths
        layers = counted(low, "layer") if low == high else f"{low}–{high} layers"
        text = (
            f"{counted(self.networks, 'network')} of {layers}, {counted(self.epochs, 'epoch')} each, on {self.samples:,} "
            f"samples of {self.inputs:,} numbers"
        )
        if self.seconds is None:
            return text
        return f"{text}: roughly {rough(self.seconds)} on {counted(self.processes, 'core')}"


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


Announce = Callable[[TrainingPlan], object]


@dataclass(frozen=True)
class Grid:
    """Hidden widths by label × learning rates × seeds; checked before anything is loaded."""

    kind: Kind
    widths: Mapping[str, tuple[int, ...]]
    recipe: Recipe
    rates: Sequence[float]
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        for name in ("rates", "seeds"):
            values = _sequence(getattr(self, name), name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name}: expected at least one, all different, got {list(values)}.")
            object.__setattr__(self, name, values)
        for rate in self.rates:
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
                raise InputError(f"rates: expected positive learning rates, got {rate!r}.")
        if not isinstance(self.recipe, Recipe) or not isinstance(self.recipe.network, Shape):
            raise InputError(f"recipe: expected a Recipe for feed-forward networks, got {self.recipe!r}.")
        self.recipe.grid(learning_rate=self.rates, seed=self.seeds)

    def choose(
        self,
        data: Any,
        test: Any,
        *,
        device: str,
        folder: str | Path | None,
        progress: bool | Progress,
        announce: Announce | None,
    ) -> Choice:
        """Train all of them and decide."""
        began = time.perf_counter()
        _check_device(device)
        whole = TrainingData.of(data, test)
        samples = whole.samples
        template = self.recipe.network
        assert isinstance(template, Shape)  # checked when the grid was made
        shapes = {
            label: replace(template, inputs=samples.inputs.shape[1], widths=widths, classes=samples.classes)
            for label, widths in self.widths.items()
        }
        # BatchNorm cannot do with a batch of one
        batch = next(b for b in range(self.recipe.batch_size, 1, -1) if len(samples.labels) % b != 1)
        recipes = [
            (label, recipe)
            for label, shape in shapes.items()
            for recipe in replace(self.recipe, network=shape, batch_size=batch).grid(
                learning_rate=self.rates, seed=self.seeds
            )
        ]
        every = [recipe for _, recipe in recipes]
        if announce is not None:
            announce(TrainingPlan.of(every, samples, device))
        runs = sweep(every, samples, schedule=SCHEDULE, device=device, folder=folder, progress=progress)
        trials: dict[tuple[str, float], list[Run]] = {}
        for (label, recipe), run in zip(recipes, runs, strict=True):
            trials.setdefault((label, recipe.learning_rate), []).append(run)
        candidates = [
            Candidate.of(label, shape, [Trial.of(trials[label, rate]) for rate in self.rates])
            for label, shape in shapes.items()
        ]
        guess = Guess(max(samples.counts) / len(samples.labels), len(samples.labels), whole.validation)
        choice = Choice.of(self.kind, candidates, validation=whole.validation, guess=guess)
        chosen = choice.recommended
        tested = () if chosen is None else _tested(trials[chosen.label, chosen.trial.rate], whole)
        about = self._provenance(whole, every[0], device)
        return replace(
            choice, test_accuracies=tested, provenance=about | {"seconds": round(time.perf_counter() - began, 3)}
        )

    def _provenance(self, whole: TrainingData, recipe: Recipe, device: str) -> dict[str, Any]:
        samples, test = whole.samples, whole.test
        return provenance(
            device,
            data={
                "name": whole.name,
                "sha256": whole.checksum,
                "inputs": samples.inputs.shape[1],
                "classes": samples.classes,
                "train": len(samples.labels),
                "validation": whole.validation,
                "per_class": list(whole.counts),
                "test": 0 if test is None else len(test[1]),
            },
            settings={
                "batchnorm": BATCHNORM,
                "rates": list(self.rates),
                "seeds": list(self.seeds),
                "validation": whole.share,
                "split_seed": SPLIT_SEED,
                **{
                    name: getattr(recipe, name)
                    for name in ("optimizer", "epochs", "batch_size", "weight_decay", "drops")
                },
                "norm": recipe.network.norm,
            },
        )


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
    values = _sequence(values, name)
    if any(isinstance(value, bool) or not isinstance(value, int) for value in values):
        raise InputError(f"{name}: expected whole numbers, got {list(values)}.")
    chosen = sorted(set(values))
    if len(chosen) < 2:
        raise InputError(f"{name}: expected at least 2 different ones to choose from, got {list(values)}.")
    if chosen[0] < least:
        what = " (one hidden layer and the classifier)" if name == "depths" else ""
        raise InputError(f"{name}: expected numbers of at least {least}{what}, got {chosen[0]}.")
    return chosen


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InputError(f"device: expected cpu, cuda, cuda:1, …, got {device!r}.") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: expected one that is here, got {device!r}, but torch sees no GPU. Use 'cpu'.")


def _tested(runs: Sequence[Run], whole: TrainingData) -> tuple[float, ...]:
    """Accuracy on the test data, per seed."""
    if whole.test is None:
        return ()
    x, y = whole.test
    with torch.no_grad():
        return tuple(fmean((run.network()(x).argmax(1) == y).tolist()) for run in runs)
