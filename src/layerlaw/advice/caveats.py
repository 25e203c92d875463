"""What speaks against a recommendation, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from layerlaw.advice.rule import Rival, by_rate, relative, sampling_error
from layerlaw.advice.trial import Candidate
from layerlaw.wording import counted, number, percent

FITTED = 0.99  # training accuracy below which D is that of a network under way
FEW_SEEDS = 3


def caveats(
    kind: str,
    candidates: Sequence[Candidate],
    best: Candidate,
    recommended: Candidate,
    rival: Rival | None,
    validation: int,
) -> list[str]:
    """All that apply, the weightiest first."""
    return [
        *_accuracy(recommended, rival, validation),
        *_common_rate(candidates, recommended),
        *_edge(kind, candidates, best),
        *_unfitted(candidates, recommended),
        *_seeds(recommended),
        *_floors(candidates, best),
        *_risers(candidates),
        *failures(candidates),
        *_rate_edge(recommended),
    ]


def _accuracy(recommended: Candidate, rival: Rival | None, validation: int) -> Iterator[str]:
    if rival is None:
        return
    by = f"{100 * rival.ahead:.1f}" + ("" if rival.error is None else f" ± {100 * rival.error:.1f}")
    own = sampling_error(recommended, validation)
    noise = (
        ""
        if own is None
        else f" ({counted(validation, 'validation sample')} alone leave an accuracy open to ±{percent(own)[:-1]})"
    )
    yield (
        f"D and accuracy disagree: {rival.candidate.label} has the best validation accuracy, "
        f"{percent(rival.candidate.trial.accuracy)}, {by} points above {recommended.label}{noise}."
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
        what = "D over its noise floor" if relative(candidates) else "D"
        end, further = ("upper", "larger") if best is ordered[-1] else ("lower", "smaller")
        yield f"The lowest {what} lies at the {end} end of the range, {best.label}: try {further} ones."


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


def _floors(candidates: Sequence[Candidate], best: Candidate) -> Iterator[str]:
    """Wide layers look separated from noise alone, so their D has a floor of its own."""
    if not relative(candidates):
        return
    floors = [floor for c in candidates if (floor := c.trial.floor) is not None]
    ends = list(dict.fromkeys((number(min(floors)), number(max(floors)))))
    words = (
        f"Last layers of different widths have different noise floors (D with shuffled labels: {' to '.join(ends)}), so D "
        "is compared over its floor"
    )
    lowest = min(
        (c for c in candidates if c.comparable and c.trial.falls), key=lambda c: c.trial.separation or math.inf
    )
    if lowest is best:
        yield f"{words}; {best.label} has the lowest D itself too."
    else:
        yield (
            f"{words}; D itself is lowest at {lowest.label}, {number(lowest.trial.separation)} against "
            f"{number(best.trial.separation)} at {best.label}."
        )


def _risers(candidates: Sequence[Candidate]) -> Iterator[str]:
    rising = [c.label for c in candidates if c.comparable and not c.trial.falls]
    if rising:
        yield f"D does not fall along depth at {', '.join(rising)}: left out of the choice."


def failures(candidates: Sequence[Candidate]) -> Iterator[str]:
    """How many runs came to nothing."""
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
