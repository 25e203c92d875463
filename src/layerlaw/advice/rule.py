"""Which candidate: the lowest final D, the smallest that is as good, and whether there is anything to recommend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from layerlaw.advice.paired import difference
from layerlaw.advice.trial import Candidate, Trial
from layerlaw.errors import LayerlawError
from layerlaw.wording import percent

CLEAR = 3.0  # standard errors above chance: the best of a dozen guessing networks is rarely that lucky


@dataclass(frozen=True)
class Guess:
    """What guessing reaches: the share of the largest class, and the samples that accuracies were measured on."""

    share: float
    train: int
    validation: int

    def above(self, samples: int) -> float:
        """The accuracy on so many samples from which on a network has clearly learned something."""
        return self.share + CLEAR * math.sqrt(self.share * (1 - self.share) / samples)


@dataclass(frozen=True)
class Rival:
    """The most accurate candidate, where it is ahead of the recommended one by more than one standard error."""

    candidate: Candidate
    ahead: float
    error: float | None


def relative(candidates: Sequence[Candidate]) -> bool:
    """Whether the last hidden layers differ in width, so that D is compared over its noise floor.

    A wide layer looks separated from noise alone: with no signal D ≈ n(K−1)/d_eff.
    """
    sound = [candidate for candidate in candidates if candidate.comparable]
    return len({c.widths[-1] for c in candidates}) > 1 and all(c.trial.over_floor for c in sound)


def compared(trial: Trial, over_floor: bool) -> tuple[float, ...]:
    """What candidates are compared by, seed by seed: final D, or that over its noise floor."""
    return trial.over_floor if over_floor else trial.finals


def middle(trial: Trial, over_floor: bool) -> float | None:
    """The geometric mean of `compared`."""
    values = compared(trial, over_floor)
    return math.exp(fmean(map(math.log, values))) if values else None


def decide(candidates: Sequence[Candidate]) -> tuple[Candidate, Candidate]:
    """(best, recommended) by final D over paired seeds; by D over its noise floor where last widths differ.

    With d_s = log D_s − log D_s(best) for every seed s, a candidate is as good as the best when mean d ≤ sd(d)/√seeds;
    the smallest such candidate is recommended. One seed has no standard error: then the best is. Candidates along which
    D does not fall are passed over, unless there is no other: the noise floor of a layer that lost rank is no measure.
    """
    sound = [candidate for candidate in candidates if candidate.comparable]
    if not sound:
        raise LayerlawError(
            f"no candidate could be compared: at every learning rate a run diverged or left D undefined "
            f"({sum(c.failed for c in candidates)} runs in all). Use lower learning rates."
        )
    over_floor = relative(candidates)
    sound = [candidate for candidate in sound if candidate.trial.falls] or sound
    logs = {c.label: [math.log(value) for value in compared(c.trial, over_floor)] for c in sound}
    best = min(sound, key=lambda c: fmean(logs[c.label]))

    def as_good(candidate: Candidate) -> bool:
        mean, error = difference(logs[candidate.label], logs[best.label])
        return candidate is best or (error is not None and mean <= error)

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
    if guess is not None:
        trained = _best([c.trial.train_accuracy for c in candidates])
        held_out = _best([c.trial.accuracy for c in candidates])
        for accuracy, samples, where in (
            (trained, guess.train, "training"),
            (held_out, guess.validation, "validation"),
        ):
            if accuracy is not None and samples and accuracy <= guess.above(samples):
                return (
                    f"no network learned anything that shows on the {where} data (best accuracy {percent(accuracy)}; "
                    f"guessing reaches {percent(guess.share)}, and up to {percent(guess.above(samples))} may be luck)"
                )
    if not chosen.trial.falls:
        return "D does not fall along depth in any candidate"
    return None


def more_accurate(candidates: Sequence[Candidate], chosen: Candidate, validation: int) -> Rival | None:
    """The candidate of best validation accuracy, unless the chosen one is within one standard error of it.

    The error is that of the paired difference over seeds; for one seed that of the validation samples, if they are known.
    """
    known = [c for c in candidates if c.comparable and c.trial.accuracy is not None]
    if chosen not in known:
        return None
    top = max(known, key=lambda c: (c.trial.accuracy or 0.0, -c.parameters))
    ahead, error = difference(_known(top.trial.accuracies), _known(chosen.trial.accuracies))
    needed = error if error is not None else sampling_error(chosen, validation) or 0.0
    return Rival(top, ahead, error) if ahead > max(needed, 1e-9) else None


def sampling_error(candidate: Candidate, validation: int) -> float | None:
    """√(a(1−a)/n): what so many validation samples alone leave open."""
    a = candidate.trial.accuracy
    return None if a is None or not validation else math.sqrt(a * (1 - a) / validation)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _best(values: Sequence[float | None]) -> float | None:
    return max(_known(values), default=None)
