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
    """A trial with these final D per seed, on a straight line from D_0 = 32 over five layers."""
    n = len(finals)
    curves = tuple(None if D is None else straight(D) for D in finals)
    accuracies = accuracies if accuracies is not None else [0.8] * n
    return Trial(rate, curves, (floor,) * n, tuple(accuracies), (loss,) * n, (fitted,) * n)


def straight(last: float, first: float = 32.0, layers: int = 5) -> tuple[float, ...]:
    return tuple(math.exp(math.log(first) + (math.log(last) - math.log(first)) * i / layers) for i in range(layers + 1))


def candidate(depth: int, *trials: Trial) -> Candidate:
    return Candidate(f"depth {depth}", (100,) * (depth - 1), 1000 * depth, trials)
