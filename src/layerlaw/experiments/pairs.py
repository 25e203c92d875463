"""Networks of one seed side by side: ratios, differences with their standard error, and the one-standard-error rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from layerlaw.experiments.numbers import Compare, minus, over, row, standard_error
from layerlaw.lab import Run
from layerlaw.outcome import Row

Values = Mapping[int, Sequence[float]]
Value = Callable[[Run], float | None]


def ratios(
    above: Sequence[Run], below: Sequence[Run], value: Value, above_value: Value | None = None
) -> list[float | None]:
    """A number of one network over that of the other of the same seed; `above_value` where the first has another one."""
    others = {run.recipe.seed: run for run in below}
    first = above_value or value
    return [over(first(run), value(others[run.recipe.seed])) for run in above if run.recipe.seed in others]


def paired_rows(
    name: str,
    first: Sequence[float | None],
    second: Sequence[float | None],
    *,
    paper: float | str | None = None,
    larger: bool | None = None,
) -> list[Row]:
    """The mean difference of pairs, and its standard error.

    `larger` says what the paper claims of the sign; it holds when the mean lies more than two standard errors on that
    side of 0.
    """
    differences = [minus(a, b) for a, b in zip(first, second, strict=True)]
    error = standard_error([d for d in differences if d is not None])
    claim: Compare | None = None
    tolerance = ""
    if larger is not None:
        sign = 1 if larger else -1
        claim = (lambda mean: sign * mean > 2 * error) if error is not None else (lambda mean: False)
        tolerance = f"mean {'>' if larger else '<'} 0 by more than two standard errors"
    why = "" if error is not None else "one seed has no standard error"
    return [
        row(name, differences, paper=paper, holds=claim, tolerance=tolerance),
        row(f"{name}-standard-error", [error], reason=why),
    ]


def lowest(values: Values) -> int:
    """The choice with the lowest mean over seeds.

    >>> lowest({3: [2.0, 2.0], 4: [1.0, 2.5], 5: [3.0, 1.0]})
    4
    """
    return min(values, key=lambda choice: (fmean(values[choice]), choice))


def one_standard_error(values: Values) -> int:
    """The smallest choice that is not clearly worse than the one with the lowest mean.

    Not clearly worse: the mean of its paired differences to the best one is at most their standard error. With one
    seed there is no error to speak of, and the best one stands.

    >>> one_standard_error({3: [5.0, 5.0], 4: [1.0, 3.0], 5: [1.5, 2.0]})  # 4: differences −0.5, 1.0
    4
    """
    best = lowest(values)
    for choice in sorted(values):
        differences = [a - b for a, b in zip(values[choice], values[best], strict=True)]
        error = standard_error(differences)
        if choice == best or (error is not None and fmean(differences) <= error):
            return choice
    return best
