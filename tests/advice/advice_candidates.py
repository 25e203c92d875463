"""Candidates with numbers chosen by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layerlaw.advice import Candidate, Trial


def trial(
    finals: Sequence[float | None],
    accuracies: Sequence[float] | None = None,
    *,
    rate: float = 0.001,
    loss: float = 0.5,
    fitted: float = 1.0,
    floor: float = 500.0,
) -> Trial:
    """A trial with these final D per seed (`None`: it diverged), on a straight line from D_0 = 32 over five layers."""
    given = zip(finals, accuracies or [0.8] * len(finals), strict=True)
    sound = [(straight(D), accuracy) for D, accuracy in given if D is not None]
    n = len(sound)
    curves, shares = tuple(curve for curve, _ in sound), tuple(accuracy for _, accuracy in sound)
    return Trial(rate, curves, (floor,) * n, shares, (loss,) * n, (fitted,) * n, failed=len(finals) - n)


def straight(last: float, first: float = 32.0, layers: int = 5) -> tuple[float, ...]:
    return tuple(math.exp(math.log(first) + (math.log(last) - math.log(first)) * i / layers) for i in range(layers + 1))


def candidate(depth: int, *trials: Trial) -> Candidate:
    return Candidate(f"depth {depth}", (100,) * (depth - 1), 1000 * depth, trials)
