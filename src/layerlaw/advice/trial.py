"""A candidate network, tried at several learning rates with the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from layerlaw.advice.paired import standard_error
from layerlaw.errors import InputError
from layerlaw.lab import Run, Shape
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import LawFit, fit_law

MODE: BatchNormMode = "running"  # BatchNorm as the network is used


@dataclass(frozen=True)
class Trial:
    """One candidate at one learning rate: an entry per seed, `None` where the run diverged or D is not defined.

    `curves` hold D on the training data, at the input and after every hidden layer; `permuted` D of the last layer under
    shuffled labels (the level that noise reaches); accuracies and losses are those on the validation part.
    """

    rate: float
    curves: tuple[tuple[float, ...] | None, ...]
    permuted: tuple[float | None, ...] = ()
    accuracies: tuple[float | None, ...] = ()
    losses: tuple[float | None, ...] = ()
    train_accuracies: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Trial:
        """From the runs of one recipe with all seeds."""
        train = [run.measurement(batchnorm=MODE) for run in runs]
        held_out = [run.measurement(batchnorm=MODE, split="test") for run in runs]
        noise = [run.measurement(batchnorm=MODE, split="permuted") for run in runs]
        well = [run.diverged is None and _curve(r.separation) is not None for run, r in zip(runs, train, strict=True)]

        def kept(values: Sequence[float | None]) -> tuple[float | None, ...]:
            return tuple(v if ok else None for v, ok in zip(values, well, strict=True))

        return cls(
            rate=runs[0].recipe.learning_rate,
            curves=tuple(_curve(r.separation) if ok else None for r, ok in zip(train, well, strict=True)),
            permuted=kept([r.separation[-1] for r in noise]),
            accuracies=kept([r.accuracy for r in held_out]),
            losses=kept([r.loss for r in held_out]),
            train_accuracies=kept([r.accuracy for r in train]),
        )

    @property
    def failed(self) -> int:
        """How many seeds diverged, or left D undefined."""
        return sum(curve is None for curve in self.curves)

    @cached_property
    def finals(self) -> tuple[float, ...]:
        """D after the last hidden layer, of the seeds that came through."""
        return tuple(curve[-1] for curve in self.curves if curve is not None)

    @property
    def separation(self) -> float | None:
        """Geometric mean of the final D over seeds: what candidates are compared by, on the log scale."""
        return _geometric(self.finals)

    @property
    def floor(self) -> float | None:
        """Geometric mean of the final D with shuffled labels."""
        return _geometric([v for v in self.permuted if v is not None and v > 0])

    @cached_property
    def over_floor(self) -> tuple[float, ...]:
        """Final D over that with shuffled labels, seed by seed; empty where one of the floors is not known."""
        pairs = [
            (curve[-1], floor) for curve, floor in zip(self.curves, self.permuted, strict=False) if curve is not None
        ]
        known = [D / floor for D, floor in pairs if floor is not None and floor > 0]
        return tuple(known) if len(known) == len(self.finals) else ()

    @property
    def falls(self) -> bool:
        """Whether D falls along depth: it ends below where it began, and r (mean over seeds) is not above 0."""
        r = self.law(lambda fit: fit.pearson)
        return self.curve is not None and self.curve[-1] < self.curve[0] and (r is None or r <= 0)

    @property
    def accuracy(self) -> float | None:
        """Mean validation accuracy."""
        return _mean(self.accuracies)

    @property
    def accuracy_error(self) -> float | None:
        """Standard error of the mean validation accuracy over seeds."""
        return standard_error([v for v in self.accuracies if v is not None])

    @property
    def train_accuracy(self) -> float | None:
        """Mean accuracy on the training data."""
        return _mean(self.train_accuracies)

    @property
    def curve(self) -> tuple[float, ...] | None:
        """D along depth, geometric mean over seeds."""
        known = [curve for curve in self.curves if curve is not None]
        return tuple(math.exp(fmean(map(math.log, column))) for column in zip(*known, strict=True)) if known else None

    def law(self, number: Callable[[LawFit], float | None]) -> float | None:
        """The mean over seeds of a number of the fitted law."""
        return _mean([number(fit) for fit in self._fits])

    @cached_property
    def _fits(self) -> list[LawFit]:
        return [fit_law(curve) for curve in self.curves if curve is not None]


@dataclass(frozen=True)
class Candidate:
    """One network shape with all its trials. The learning rate is chosen by validation accuracy, never by D or test data."""

    label: str
    widths: tuple[int, ...]
    parameters: int
    trials: tuple[Trial, ...]

    @classmethod
    def of(cls, label: str, shape: Shape, trials: Sequence[Trial]) -> Candidate:
        """Count the parameters of a shape: weights, biases, and BatchNorm's two per unit."""
        norms = 2 * sum(shape.widths) if shape.norm else 0
        return cls(label, shape.widths, sum(i * o + o for i, o in shape.sides) + norms, tuple(trials))

    @property
    def depth(self) -> int:
        """Number of linear layers, the classifier included."""
        return len(self.widths) + 1

    @cached_property
    def trial(self) -> Trial:
        """The trial at the chosen rate: most seeds that came through, then mean validation accuracy, then its loss.

        >>> slow = Trial(0.001, ((4.0, 2.0),), accuracies=(0.8,), losses=(0.7,))
        >>> fast = Trial(0.003, ((4.0, 1.0),), accuracies=(0.8,), losses=(0.6,))
        >>> Candidate("depth 2", (10,), 130, (slow, fast)).trial.rate
        0.003
        """
        if not self.trials:
            raise InputError(f"candidate '{self.label}': expected at least one trial, got none.")
        return min(self.trials, key=_preference)

    @property
    def failed(self) -> int:
        """How many runs diverged, or left D undefined, over all rates."""
        return sum(trial.failed for trial in self.trials)

    @property
    def comparable(self) -> bool:
        """Whether every seed came through at the chosen rate, so that it can be paired with others."""
        return self.trial.failed == 0

    def to_dict(self) -> dict[str, Any]:
        """One row: the chosen rate's numbers, and all trials below."""
        trial = self.trial
        return {
            "label": self.label,
            "depth": self.depth,
            "widths": list(self.widths),
            "parameters": self.parameters,
            "rate": trial.rate,
            **_numbers(trial),
            "rho": trial.law(lambda fit: fit.rho),
            "pearson": trial.law(lambda fit: fit.pearson),
            "effective_layers": trial.law(lambda fit: fit.effective_layers),
            "diverged": self.failed,
            "curve": trial.curve,
            "trials": [{"rate": t.rate, **_numbers(t), "finals": list(t.finals)} for t in self.trials],
        }


def _preference(trial: Trial) -> tuple[float, ...]:
    """Lower is better. Sums of the same hits in another order must tie."""
    accuracy, loss = trial.accuracy, _mean(trial.losses)
    return (
        trial.failed,
        round(-accuracy, 12) if accuracy is not None else math.inf,
        loss if loss is not None else math.inf,
        trial.rate,
    )


def _numbers(trial: Trial) -> dict[str, Any]:
    D, floor = trial.separation, trial.floor
    return {
        "separation": D,
        "separation_low": min(trial.finals, default=None),
        "separation_high": max(trial.finals, default=None),
        "separation_permuted": floor,
        "separation_over_permuted": None if D is None or floor is None else D / floor,
        "accuracy": trial.accuracy,
        "accuracy_error": trial.accuracy_error,
        "train_accuracy": trial.train_accuracy,
        "diverged": trial.failed,
    }


def _curve(values: Sequence[float | None]) -> tuple[float, ...] | None:
    known = tuple(value for value in values if value is not None and value > 0)
    return known if len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _geometric(values: Sequence[float]) -> float | None:
    return math.exp(fmean(map(math.log, values))) if values else None
