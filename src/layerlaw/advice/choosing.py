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

from layerlaw.advice.choice import Choice, Kind
from layerlaw.advice.material import SPLIT_SEED, Material
from layerlaw.advice.plan import Plan
from layerlaw.advice.rule import Guess
from layerlaw.advice.trial import MODE, Candidate, Trial
from layerlaw.errors import InputError
from layerlaw.lab import Recipe, Run, Schedule, Shape, sweep
from layerlaw.lab.recipe import Optimizer
from layerlaw.progress import Progress
from layerlaw.provenance import provenance

RATES = (1e-4, 3e-4, 1e-3, 3e-3)
BATCH = 128
SHAPES = ((100,) * 7, (50,) * 4 + (200,) * 3, (200,) * 4 + (50,) * 3)  # even, narrow to wide, wide to narrow
SCHEDULE = Schedule(batchnorm=(MODE,), test=True, permuted=True)
Tell = Callable[[Plan], object]


@dataclass(frozen=True)
class Training:
    """How every candidate is trained; checked before anything is loaded."""

    rates: Sequence[float]
    optimizer: Optimizer
    seeds: Sequence[int]
    epochs: int
    norm: bool

    def __post_init__(self) -> None:
        for name in ("rates", "seeds"):
            values = _sequence(getattr(self, name), name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name}: expected at least one, all different, got {list(values)}.")
            object.__setattr__(self, name, values)
        for rate in self.rates:
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
                raise InputError(f"rates: expected positive learning rates, got {rate!r}.")
        Recipe(optimizer=self.optimizer, epochs=self.epochs).grid(learning_rate=self.rates, seed=self.seeds)

    def recipes(self, shape: Shape, samples: int) -> list[Recipe]:
        """Rates × seeds for one shape, the seeds varying fastest."""
        batch = next(b for b in range(BATCH, 1, -1) if samples % b != 1)  # BatchNorm cannot do with a batch of one
        base = Recipe(network=shape, optimizer=self.optimizer, epochs=self.epochs, batch_size=batch)
        return base.grid(learning_rate=self.rates, seed=self.seeds)


def choose_depth(
    data: Any,
    *,
    depths: Sequence[int] = range(3, 13),
    width: int = 100,
    rates: Sequence[float] = RATES,
    optimizer: Optimizer = "adam",
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 200,
    validation: float = 0.2,
    test: Any = None,
    norm: bool = True,
    size: int | None = None,
    per_class: int | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
    tell: Tell | None = None,
) -> Choice:
    """Which depth separates the training data best? Depth counts all linear layers, the classifier included.

    The rule of He & Su (PNAS 2023, Fig. 5) is the depth of lowest final D. Here it is asked of paired seeds, with the
    one-standard-error rule (the smallest depth that is as good), the learning rate chosen per depth by validation
    accuracy, and held-out accuracy beside it: low D on training data is no promise for others.

    data        a pair of tensors or arrays, `lab.Samples`, `data.Labeled`, a data set's name, or a folder of pictures
    validation  the share of every class that is held back to choose learning rates
    test        data that nothing is chosen by; their accuracy is the last number, for the recommended depth alone
    size, per_class   for images: pixels a side, and how many of every class
    folder      keeps the sweep, which then can be interrupted and taken up again
    tell        is called with the `Plan` before training: how many networks, and roughly how long (`print` will do)
    """
    shapes = {f"depth {depth}": (width,) * (depth - 1) for depth in _several(depths, "depths", least=2)}
    training = Training(rates, optimizer, seeds, epochs, norm)
    cut = {"validation": validation, "test": test, "size": size, "per_class": per_class}
    return _choose("depth", shapes, data, training, cut, device, folder, progress, tell)


def choose_width(
    data: Any,
    *,
    widths: Sequence[int] = (20, 50, 100, 200, 500),
    depth: int = 8,
    rates: Sequence[float] = RATES,
    optimizer: Optimizer = "adam",
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 200,
    validation: float = 0.2,
    test: Any = None,
    norm: bool = True,
    size: int | None = None,
    per_class: int | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
    tell: Tell | None = None,
) -> Choice:
    """Which width is enough? All hidden layers have one width; otherwise as `choose_depth`.

    Wider layers have a lower D from noise alone (with no signal D ≈ n(K−1)/d_eff), so what is compared is D over that
    with shuffled labels, its noise floor.
    """
    if depth < 2:
        raise InputError(f"depth: expected at least 2 (one hidden layer and the classifier), got {depth}.")
    shapes = {f"width {width}": (width,) * (depth - 1) for width in _several(widths, "widths", least=1)}
    training = Training(rates, optimizer, seeds, epochs, norm)
    cut = {"validation": validation, "test": test, "size": size, "per_class": per_class}
    return _choose("width", shapes, data, training, cut, device, folder, progress, tell)


def choose_shape(
    data: Any,
    *,
    shapes: Sequence[Sequence[int]] = SHAPES,
    rates: Sequence[float] = RATES,
    optimizer: Optimizer = "adam",
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 200,
    validation: float = 0.2,
    test: Any = None,
    norm: bool = True,
    size: int | None = None,
    per_class: int | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | Progress = True,
    tell: Tell | None = None,
) -> Choice:
    """Wide below or wide above? `shapes` are the hidden widths from the input on; otherwise as `choose_width`."""
    given = [_sequence(widths, "shapes: every shape") for widths in _sequence(shapes, "shapes")]
    labeled = {shape_label(widths): widths for widths in given}
    if len(labeled) < len(given) or len(labeled) < 2:
        raise InputError(f"shapes: expected at least 2, all different, got {len(labeled)} different of {len(given)}.")
    training = Training(rates, optimizer, seeds, epochs, norm)
    cut = {"validation": validation, "test": test, "size": size, "per_class": per_class}
    return _choose("shape", labeled, data, training, cut, device, folder, progress, tell)


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


def _choose(
    kind: Kind,
    shapes: Mapping[str, tuple[int, ...]],
    data: Any,
    training: Training,
    cut: dict[str, Any],
    device: str,
    folder: str | Path | None,
    progress: bool | Progress,
    tell: Tell | None,
) -> Choice:
    began = time.perf_counter()
    _check_device(device)
    share = cut["validation"]
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise InputError(f"validation: expected a share between 0 and 1, such as 0.2, got {share!r}.")
    material = Material.of(data, cut["test"], **{name: cut[name] for name in ("validation", "size", "per_class")})
    samples = material.samples
    made = {
        label: Shape(samples.inputs.shape[1], widths, samples.classes, training.norm)
        for label, widths in shapes.items()
    }
    grid = [(label, r) for label, shape in made.items() for r in training.recipes(shape, len(samples.labels))]
    if tell is not None:
        tell(Plan.of([r for _, r in grid], samples, device))
    runs = sweep([r for _, r in grid], samples, schedule=SCHEDULE, device=device, folder=folder, progress=progress)
    trials: dict[tuple[str, float], list[Run]] = {}
    for (label, recipe), run in zip(grid, runs, strict=True):
        trials.setdefault((label, recipe.learning_rate), []).append(run)
    candidates = [
        Candidate.of(label, shape, [Trial.of(trials[label, rate]) for rate in training.rates])
        for label, shape in made.items()
    ]
    guess = Guess(max(samples.counts) / len(samples.labels), len(samples.labels), material.validation)
    choice = Choice.of(kind, candidates, validation=material.validation, guess=guess)
    chosen = choice.recommended
    tested = () if chosen is None else _tested(trials[chosen.label, chosen.trial.rate], material)
    provenance = _provenance(material, grid[0][1], training, cut["validation"], device)
    provenance["seconds"] = round(time.perf_counter() - began, 3)
    return replace(choice, test_accuracies=tested, provenance=provenance)


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InputError(f"device: expected cpu, cuda, cuda:1, …, got {device!r}.") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: expected one that is here, got {device!r}, but torch sees no GPU. Use 'cpu'.")


def _tested(runs: Sequence[Run], material: Material) -> tuple[float, ...]:
    """Accuracy on the test data, per seed."""
    if material.test is None:
        return ()
    x, y = material.test
    with torch.no_grad():
        return tuple(fmean((run.network()(x).argmax(1) == y).tolist()) for run in runs)


def _provenance(
    material: Material, recipe: Recipe, training: Training, validation: float, device: str
) -> dict[str, Any]:
    samples, test = material.samples, material.test
    return provenance(
        device,
        data={
            "name": material.name,
            "sha256": material.checksum,
            "inputs": samples.inputs.shape[1],
            "classes": samples.classes,
            "train": len(samples.labels),
            "validation": material.validation,
            "per_class": list(material.counts),
            "test": 0 if test is None else len(test[1]),
        },
        settings={
            "batchnorm": MODE,
            "rates": list(training.rates),
            "seeds": list(training.seeds),
            "validation": validation,
            "split_seed": SPLIT_SEED,
            **{name: getattr(recipe, name) for name in ("optimizer", "epochs", "batch_size", "weight_decay", "drops")},
            "norm": training.norm,
        },
    )
