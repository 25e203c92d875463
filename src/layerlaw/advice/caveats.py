"""What speaks against a recommendation, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from layerlaw.advice.paired import difference
from layerlaw.advice.rule import by_rate
from layerlaw.advice.trial import Candidate
from layerlaw.pages.numbers import counted, number, percent

FITTED = 0.99  # training accuracy below which D is that of a network under way
FEW_SEEDS = 3


def caveats(
    kind: str, candidates: Sequence[Candidate], best: Candidate, recommended: Candidate, validation: int
) -> list[str]:
    """All that apply, the weightiest first."""
    return [
        *_accuracy(candidates, recommended, validation),
        *_common_rate(candidates, recommended),
        *_edge(kind, candidates, best),
        *_unfitted(candidates, recommended),
        *_seeds(recommended),
        *_floors(kind, candidates, recommended),
        *_failed(candidates),
        *_rate_edge(recommended),
    ]


def _accuracy(candidates: Sequence[Candidate], recommended: Candidate, validation: int) -> Iterator[str]:
    known = [c for c in candidates if c.comparable and c.trial.accuracy is not None]
    if recommended not in known:
        return
    top = max(known, key=lambda c: (c.trial.accuracy or 0.0, -c.parameters))
    lost, error = difference(_known(top.trial.accuracies), _known(recommended.trial.accuracies))
    noise = ""
    if validation:
        a = recommended.trial.accuracy or 0.0
        own = math.sqrt(a * (1 - a) / validation)
        noise = f" ({counted(validation, 'validation sample')} alone leave an accuracy open to ±{percent(own)[:-1]})"
    if lost > 0 and (error is None or lost > error):
        by = f"{100 * lost:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
        yield (
            f"D and accuracy disagree: {top.label} has the best validation accuracy, {percent(top.trial.accuracy)}, "
            f"{by} points above {recommended.label}{noise}. If accuracy is what counts, take {top.label}."
        )


def _common_rate(candidates: Sequence[Candidate], recommended: Candidate) -> Iterator[str]:
    """Low rates and high rates leave different D: the choice may be one of rates in disguise."""
    found = by_rate(candidates)
    if any(candidate is not recommended for candidate in found.values()):
        each = ", ".join(f"{candidate.label} at {rate:g}" for rate, candidate in found.items())
        yield f"The learning rate decides too: with one for all, the choice would be {each}."


def _edge(kind: str, candidates: Sequence[Candidate], best: Candidate) -> Iterator[str]:
    if kind == "shape" or len(candidates) < 2:
        return
    ordered = sorted(candidates, key=lambda c: c.parameters)
    if best in (ordered[0], ordered[-1]):
        end, further = ("upper", "larger") if best is ordered[-1] else ("lower", "smaller")
        yield f"The lowest D lies at the {end} end of the range, {best.label}: try {further} ones."


def _unfitted(candidates: Sequence[Candidate], recommended: Candidate) -> Iterator[str]:
    accuracy = recommended.trial.train_accuracy
    if accuracy is not None and accuracy < FITTED:
        behind = sum((c.trial.train_accuracy or 0.0) < FITTED for c in candidates)
        yield (
            f"Only {percent(accuracy)} of the training data are fitted at {recommended.label} ({behind} of "
            f"{len(candidates)} candidates are below {percent(FITTED, 0)}): D still falls, and the comparison is one of "
            "speed. Train longer."
        )


def _seeds(recommended: Candidate) -> Iterator[str]:
    n = len(recommended.trial.curves)
    if n == 1:
        yield "One seed has no standard error: the lowest D was taken, and the next seed may name another one."
    elif n < FEW_SEEDS:
        yield f"{n} seeds give a poor standard error: use at least {FEW_SEEDS}."


def _floors(kind: str, candidates: Sequence[Candidate], recommended: Candidate) -> Iterator[str]:
    """Wide layers look separated from noise alone, so their D has a floor of its own."""
    if kind == "depth":
        return
    ratios = {c.label: D / floor for c in candidates if (D := c.trial.separation) and (floor := c.trial.floor)}
    if recommended.label not in ratios:
        return
    lowest = min(ratios, key=lambda label: ratios[label])
    floors = [c.trial.floor for c in candidates if c.trial.floor]
    words = (
        f"Last layers of different widths have different noise floors (D with shuffled labels from "
        f"{number(min(floors))} to {number(max(floors))})"
    )
    if lowest == recommended.label:
        yield f"{words}; relative to its floor {recommended.label} has the lowest D too."
    else:
        yield (
            f"{words}; relative to the floor {lowest} is lowest, {number(ratios[lowest])} against "
            f"{number(ratios[recommended.label])} at {recommended.label}."
        )


def _failed(candidates: Sequence[Candidate]) -> Iterator[str]:
    failed = sum(c.failed for c in candidates)
    if failed:
        runs = sum(len(t.curves) for c in candidates for t in c.trials)
        left_out = [c.label for c in candidates if not c.comparable]
        rest = f"; {', '.join(left_out)} could not be compared" if left_out else ""
        yield f"{failed} of {counted(runs, 'run')} diverged or left D undefined{rest}."


def _rate_edge(recommended: Candidate) -> Iterator[str]:
    rates = sorted(trial.rate for trial in recommended.trials)
    rate = recommended.trial.rate
    if len(rates) > 1 and rate in (rates[0], rates[-1]):
        end, further = ("highest", "higher") if rate == rates[-1] else ("lowest", "lower")
        yield f"The learning rate of {recommended.label}, {rate:g}, is the {end} tried: {further} ones may do better."


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
