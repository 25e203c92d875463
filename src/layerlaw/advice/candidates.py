"""Candidate networks at their learning rates, over paired seeds: the lowest final D, and the smallest that is as good."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, geometric_mean, stdev
from typing import Any

from layerlaw.errors import InputError, LayerlawError
from layerlaw.lab import Run
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.law import fit_law
from layerlaw.wording import percent

BATCHNORM: BatchNormMode = "running"  # BatchNorm as the network is used
CLEAR = 3.0  # standard errors above chance: the best of a dozen guessing networks is rarely that lucky


@dataclass(frozen=True)
class Trial:
    """One candidate at one learning rate: an entry per seed that came through, in the same order everywhere.

    `curves` hold D on the training data, at the input and after every hidden layer; `permuted` D of the last layer under
    shuffled labels (the level that noise reaches); accuracies and losses are those on the validation part. `failed` counts
    the seeds that diverged, or left D undefined.
    """

    rate: float
    curves: tuple[tuple[float, ...], ...]
    permuted: tuple[float | None, ...] = ()
    accuracies: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    train_accuracies: tuple[float, ...] = ()
    failed: int = 0

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Trial:
        """From the runs of one recipe with all seeds."""
        rows: list[tuple[Any, ...]] = []
        for run in runs:
            train = run.measurement(batchnorm=BATCHNORM)
            test = run.measurement(batchnorm=BATCHNORM, split="test")
            noise = run.measurement(batchnorm=BATCHNORM, split="permuted").separation[-1]
            if run.diverged is None and all(D is not None and D > 0 for D in train.separation):
                rows.append((tuple(train.separation), noise, test.accuracy, test.loss, train.accuracy))
        curves, permuted, accuracies, losses, fitted = zip(*rows, strict=True) if rows else [()] * 5
        failed = len(runs) - len(rows)
        return cls(runs[0].recipe.learning_rate, curves, permuted, accuracies, losses, fitted, failed)

    @property
    def seeds(self) -> int:
        """How many were trained."""
        return len(self.curves) + self.failed

    @property
    def finals(self) -> tuple[float, ...]:
        """D after the last hidden layer."""
        return tuple(curve[-1] for curve in self.curves)

    @property
    def separation(self) -> float | None:
        """Geometric mean of the final D over seeds: what candidates are compared by, on the log scale."""
        return mean(self.finals, geometric_mean)

    @property
    def floor(self) -> float | None:
        """Geometric mean of the final D with shuffled labels."""
        return mean([floor for floor in self.permuted if floor], geometric_mean)

    def compared(self, over_floor: bool) -> tuple[float, ...]:
        """What candidates are compared by, seed by seed: final D, or over its noise floor, where all are known."""
        if not over_floor:
            return self.finals
        known = [D / floor for D, floor in zip(self.finals, self.permuted, strict=False) if floor]
        return tuple(known) if len(known) == len(self.finals) else ()

    def middle(self, over_floor: bool) -> float | None:
        """The geometric mean of `compared`."""
        return mean(self.compared(over_floor), geometric_mean)

    @cached_property
    def falls(self) -> bool:
        """Whether D falls along depth: it ends below where it began, and r (mean over seeds) is not above 0."""
        r = self.law("pearson")
        return self.curve is not None and self.curve[-1] < self.curve[0] and (r is None or r <= 0)

    @property
    def accuracy(self) -> float | None:
        """Mean validation accuracy."""
        return mean(self.accuracies)

    @property
    def train_accuracy(self) -> float | None:
        """Mean accuracy on the training data."""
        return mean(self.train_accuracies)

    @property
    def curve(self) -> tuple[float, ...] | None:
        """D along depth, geometric mean over seeds."""
        return tuple(map(geometric_mean, zip(*self.curves, strict=True))) or None

    def law(self, number: str) -> float | None:
        """The mean over seeds of a number of the fitted law, such as "rho"."""
        fitted = [getattr(fit_law(curve), number) for curve in self.curves]
        return mean([value for value in fitted if value is not None])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers over all seeds."""
        D, floor = self.separation, self.floor
        return {
            "rate": self.rate,
            "separation": D,
            "separation_low": min(self.finals, default=None),
            "separation_high": max(self.finals, default=None),
            "separation_permuted": floor,
            "separation_over_permuted": None if D is None or floor is None else D / floor,
            "accuracy": self.accuracy,
            "accuracy_error": standard_error(self.accuracies),
            "train_accuracy": self.train_accuracy,
            "diverged": self.failed,
        }


@dataclass(frozen=True)
class Candidate:
    """One network shape with all its trials. The learning rate is chosen by validation accuracy, never by D or test data."""

    label: str
    widths: tuple[int, ...]
    parameters: int
    trials: tuple[Trial, ...]

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

        def preference(trial: Trial) -> tuple[float, ...]:  # lower is better
            hits = round(-(trial.accuracy or 0.0), 12)  # sums of the same hits in another order must tie
            return trial.failed, hits, fmean(trial.losses or [math.inf]), trial.rate

        return min(self.trials, key=preference)

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
            **trial.to_dict(),
            **{name: trial.law(name) for name in ("rho", "pearson", "effective_layers")},
            "diverged": self.failed,
            "curve": trial.curve,
            "trials": [{**t.to_dict(), "finals": list(t.finals)} for t in self.trials],
        }


def mean(values: Sequence[float], kind: Callable[[Sequence[float]], float] = fmean) -> float | None:
    """The mean, of one kind or another; `None` of nothing."""
    return kind(values) if values else None


@dataclass(frozen=True)
class Guess:
    """What guessing reaches: the share of the largest class, and the samples that accuracies were measured on."""

    share: float
    train: int
    validation: int

    def above(self, samples: int) -> float:
        """The accuracy on so many samples from which on a network has clearly learned something."""
        return self.share + CLEAR * math.sqrt(self.share * (1 - self.share) / samples)


def relative(candidates: Sequence[Candidate]) -> bool:
    """Whether the last hidden layers differ in width, so that D is compared over its noise floor.

    A wide layer looks separated from noise alone: with no signal D ≈ n(K−1)/d_eff.
    """
    sound = [candidate for candidate in candidates if candidate.comparable]
    return len({c.widths[-1] for c in candidates}) > 1 and all(c.trial.compared(True) for c in sound)


def decide(candidates: Sequence[Candidate]) -> tuple[Candidate, Candidate]:
    """(best, recommended) by final D over paired seeds; by D over its noise floor where last widths differ.

    With d_s = log D_s − log D_s(best) for every seed s, a candidate is as good as the best when mean d ≤ sd(d)/√seeds;
    the smallest such candidate is recommended. One seed has no standard error: then the best is. Candidates along which
    D does not fall are passed over, unless there is no other: the noise floor of a layer that lost rank is no measure.
    """
    sound = [candidate for candidate in candidates if candidate.comparable]
    if not sound:
        failed = sum(c.failed for c in candidates)
        why = f"at every learning rate a run diverged or left D undefined ({failed} runs in all)"
        raise LayerlawError(f"no candidate could be compared: {why}. Use lower learning rates.")
    over_floor = relative(candidates)
    sound = [candidate for candidate in sound if candidate.trial.falls] or sound
    logs = {c.label: [math.log(value) for value in c.trial.compared(over_floor)] for c in sound}
    best = min(sound, key=lambda c: fmean(logs[c.label]))

    def as_good(candidate: Candidate) -> bool:
        behind, error = difference(logs[candidate.label], logs[best.label])
        return candidate is best or (error is not None and behind <= error)

    recommended = min(filter(as_good, sound), key=lambda c: (c.parameters, fmean(logs[c.label])))
    return best, recommended


def by_rate(candidates: Sequence[Candidate]) -> dict[float, Candidate]:
    """What would be recommended if all candidates had one learning rate, for every rate that is chosen by one of them.

    When these disagree, the rate decides as much as the size does.
    """
    found = {}
    for rate in sorted({candidate.trial.rate for candidate in candidates}):
        alike = [replace(c, trials=tuple(t for t in c.trials if t.rate == rate)) for c in candidates]
        if all(c.trials for c in alike) and any(c.comparable for c in alike):
            label = decide(alike)[1].label
            found[rate] = next(c for c in candidates if c.label == label)
    return found


def objection(candidates: Sequence[Candidate], chosen: Candidate, guess: Guess | None) -> str | None:
    """Why nothing can be recommended: no network learned anything, or D does not fall along depth."""
    fitted, right = ([getattr(c.trial, name) for c in candidates] for name in ("train_accuracy", "accuracy"))
    tried = () if guess is None else ((fitted, guess.train, "training"), (right, guess.validation, "validation"))
    for accuracies, samples, where in tried:
        best = max((share for share in accuracies if share is not None), default=math.inf)
        if guess and samples and best <= guess.above(samples):
            luck = f"guessing reaches {percent(guess.share)}, and up to {percent(guess.above(samples))} may be luck"
            return f"no network learned anything that shows on the {where} data (best accuracy {percent(best)}; {luck})"
    return None if chosen.trial.falls else "D does not fall along depth in any candidate"


def more_accurate(candidates: Sequence[Candidate], chosen: Candidate, validation: int) -> Candidate | None:
    """The candidate of best validation accuracy, unless the chosen one is within one standard error of it.

    The error is that of the paired difference over seeds; for one seed that of the validation samples, if they are known.
    """
    known = [c for c in candidates if c.comparable and c.trial.accuracy is not None]
    if chosen not in known:
        return None
    top = max(known, key=lambda c: (c.trial.accuracy or 0.0, -c.parameters))
    ahead, error = difference(top.trial.accuracies, chosen.trial.accuracies)
    needed = error if error is not None else sampling_error(chosen, validation) or 0.0
    return top if ahead > max(needed, 1e-9) else None


def sampling_error(candidate: Candidate, validation: int) -> float | None:
    """√(a(1−a)/n): what so many validation samples alone leave open."""
    a = candidate.trial.accuracy
    return None if a is None or not validation else math.sqrt(a * (1 - a) / validation)


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float | None]:
    """Mean of a − b over paired seeds, and its standard error (`None` for one seed).

    >>> mean, error = difference([1.0, 2.0, 3.0], [0.5, 1.5, 3.5])
    >>> round(mean, 6), round(error, 6)  # differences .5, .5, −.5
    (0.166667, 0.333333)
    """
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    return fmean(gaps), standard_error(gaps)


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean: s/√n; `None` for fewer than two values."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
