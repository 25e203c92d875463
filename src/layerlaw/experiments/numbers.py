"""From runs to numbers: means and ranges over seeds, the learning rate as the paper chose it, and its null."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import fmean, stdev
from typing import Any

import numpy as np

from layerlaw.lab import Run
from layerlaw.lab.schedule import BatchNormMode, SplitName
from layerlaw.law import LawFit, law_holds
from layerlaw.outcome import Row

SIMULATIONS = 20_000
Compare = Callable[[float], bool]


def law_of(
    run: Run, *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: SplitName = "train"
) -> LawFit | None:
    """The law of a finished run; `None` where it diverged."""
    return None if run.diverged is not None else run.law(epoch=epoch, batchnorm=batchnorm, split=split)


def row(
    name: str,
    values: Sequence[float | None],
    *,
    paper: float | str | None = None,
    holds: Compare | None = None,
    tolerance: str = "",
    reason: str = "",
) -> Row:
    """The mean over seeds with its range; `holds` says of the mean whether it agrees with the paper.

    >>> row("r", [-0.99, -1.0], paper=-0.997, holds=lambda r: r <= -0.99, tolerance="mean ≤ −0.99").reproduced
    True
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known or len(known) < len(values):
        lost = f"{len(values) - len(known)} of {len(values)} runs gave no number"
        why = reason or ("no run gave a number" if not known else lost)
        if not known:
            return Row(name, paper, None, reproduced=False if holds else None, tolerance=tolerance, reason=why)
        tolerance = f"{tolerance}; {lost}" if tolerance else lost
    mean = fmean(known)
    return Row(name, paper, mean, min(known), max(known), holds(mean) if holds else None, tolerance)


def within(target: float, by: float) -> tuple[Compare, str]:
    """Agreement up to a tolerance, and how it is written."""
    return (lambda value: abs(value - target) <= by), f"{target:g} ± {by:g}"


def at_most(limit: float) -> tuple[Compare, str]:
    """Agreement when not larger, and how it is written."""
    return (lambda value: value <= limit), f"≤ {limit:g}".replace("-", "−")


def at_least(limit: float) -> tuple[Compare, str]:
    """Agreement when not smaller, and how it is written."""
    return (lambda value: value >= limit), f"≥ {limit:g}".replace("-", "−")


def best_law(runs: Iterable[Run], *, batchnorm: BatchNormMode = "batch") -> Run | None:
    """The run with the most negative r at its last epoch: how the paper chose the learning rate that it shows."""
    fitted = [
        (law.pearson, i, run) for i, run in enumerate(runs) if (law := law_of(run, batchnorm=batchnorm)) and law.pearson
    ]
    return min(fitted)[2] if fitted else None


def selected_p(effective_layers: float | None, layers: int, choices: int) -> float | None:
    """Greenwood's p when the best r of several runs was picked: the same choice is made inside the null.

    Under the null every run splits its drop at random over the layers (uniform spacings), the one with the lowest r is
    taken, and p is how often its shares are at least as even as ours.

    >>> selected_p(19.0, 19, 7), selected_p(None, 19, 7)
    (0.0, None)
    """
    if effective_layers is None:
        return None
    return float((_selected_statistics(layers, choices) <= 1 / effective_layers).mean())


@cache
def _selected_statistics(layers: int, choices: int) -> np.ndarray:
    """Σ p² of the run with the lowest r among `choices` random splits, many times."""
    generator = np.random.default_rng(0)
    shares = generator.exponential(size=(SIMULATIONS, choices, layers))
    shares /= shares.sum(-1, keepdims=True)
    curve = 1 - np.concatenate([np.zeros((SIMULATIONS, choices, 1)), shares.cumsum(-1)], -1)  # from 1 down to 0
    x = np.arange(layers + 1.0)
    x -= x.mean()
    curve -= curve.mean(-1, keepdims=True)
    r = (curve * x).sum(-1) / np.sqrt((curve**2).sum(-1) * (x**2).sum())
    picked = np.take_along_axis((shares**2).sum(-1), r.argmin(-1)[:, None], 1)
    return picked[:, 0]


def trouble(
    runs: Sequence[Run], *, epoch: int | None = None, batchnorm: BatchNormMode = "batch", split: SplitName = "train"
) -> str:
    """Why runs have no law, in words: diverged, or a layer at which D is not defined; empty when all have one."""
    found = []
    for run in runs:
        who = f"lr {run.recipe.learning_rate:g}, seed {run.recipe.seed}"
        if run.diverged is not None:
            found.append(f"{who}: diverged in epoch {run.diverged}")
            continue
        values = run.measurement(epoch=epoch, batchnorm=batchnorm, split=split).separation
        holes = [layer for layer, value in enumerate(values) if value is None or value <= 0]
        if holes:
            found.append(
                f"{who}: D is not defined at layer {holes[0]} (of {len(holes)} such): the class means coincide"
            )
    return "; ".join(found)


def law_row(
    name: str,
    runs: Sequence[Run],
    what: str,
    *,
    epoch: int | None = None,
    batchnorm: BatchNormMode = "batch",
    split: SplitName = "train",
    paper: float | str | None = None,
    holds: Compare | None = None,
    tolerance: str = "",
) -> Row:
    """One number of the law (a field of `LawFit`) over the seeds, with the reason where there is none."""
    where: dict[str, Any] = {"epoch": epoch, "batchnorm": batchnorm, "split": split}
    laws = [law_of(run, **where) for run in runs]
    reason = trouble(runs, **where) or ("D does not fall with depth" if runs else "no run to choose from")
    values = [None if law is None else getattr(law, what) for law in laws]
    return row(name, values, paper=paper, holds=holds, tolerance=tolerance, reason=reason)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known.

    >>> mean_of([1.0, None, 2.0]), mean_of([None])
    (1.5, None)
    """
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def minus(a: float | None, b: float | None) -> float | None:
    """a − b where both are known.

    >>> minus(3.0, 1.0), minus(None, 1.0)
    (2.0, None)
    """
    return None if a is None or b is None else a - b


def is_clear(law: LawFit | None, choices: int = 1) -> bool:
    """Whether the law holds, as `law_holds` says.

    `choices` is how many runs it was the best of: with few layers a straight line comes out of choosing alone.
    """
    return law is not None and law_holds(law, greenwood_p=_p_of(law, choices)) is True


@cache
def random_split_r(layers: int) -> float:
    """Median r when the same drop of log D is split at random over the layers: what any falling curve gives.

    >>> round(random_split_r(7), 2)
    -0.97
    """
    shares = np.random.default_rng(0).exponential(size=(SIMULATIONS, layers))
    curve = -np.concatenate([np.zeros((SIMULATIONS, 1)), shares.cumsum(-1)], -1)
    x = np.arange(layers + 1.0) - layers / 2
    curve -= curve.mean(-1, keepdims=True)
    return float(np.median((curve * x).sum(-1) / np.sqrt((curve**2).sum(-1) * (x**2).sum())))


def best_of_seeds(runs: Iterable[Run]) -> list[Run]:
    """The paper's choice of the learning rate, made once per seed; a seed whose runs all failed is left out."""
    cells: dict[int, list[Run]] = {}
    for run in runs:
        cells.setdefault(run.recipe.seed, []).append(run)
    return [best for cell in cells.values() if (best := best_law(cell))]


def law_rows(
    name: str,
    runs: Sequence[Run],
    *,
    choices: int = 1,
    paper: float | str | None = None,
    holds: Compare | None = None,
    tolerance: str = "",
) -> list[Row]:
    """r beside the paper's, then ρ, the shares with their p, and r and ρ in eval mode.

    `choices` is how many learning rates each run is the best of: the p then repeats that choice inside the null.
    """
    laws, evals = [law_of(run) for run in runs], [law_of(run, batchnorm="running") for run in runs]
    pearson = [law.pearson if law else None for law in laws]
    reason = trouble(runs) or ("D does not fall with depth" if runs else "every learning rate failed")
    ps = [_p_of(law, choices) if law else None for law in laws]
    return [
        row(f"{name}/pearson", pearson, paper=paper, holds=holds, tolerance=tolerance, reason=reason),
        row(f"{name}/rho", [law.rho if law else None for law in laws], reason=reason),
        row(f"{name}/effective-layers", [law.effective_layers if law else None for law in laws], reason=reason),
        row(f"{name}/greenwood-p", ps, reason=reason),
        row(f"{name}/pearson-eval", [law.pearson if law else None for law in evals], reason=reason),
        row(f"{name}/rho-eval", [law.rho if law else None for law in evals], reason=reason),
    ]


def _p_of(law: LawFit, choices: int) -> float | None:
    return law.greenwood_p if choices == 1 else selected_p(law.effective_layers, law.layers, choices)


def over(a: float | None, b: float | None) -> float | None:
    """a / b where both are known.

    >>> over(3.0, 2.0), over(None, 1.0)
    (1.5, None)
    """
    return None if a is None or not b else a / b


def final_separation(run: Run, *, batchnorm: BatchNormMode = "batch", split: SplitName = "train") -> float | None:
    """D after the last hidden layer; `None` where the run diverged."""
    return None if run.diverged is not None else run.measurement(batchnorm=batchnorm, split=split).separation[-1]


def above_floor(run: Run, *, batchnorm: BatchNormMode = "batch") -> float | None:
    """D after the last hidden layer over what permuted labels give there: 1 is nothing but noise."""
    return over(
        final_separation(run, batchnorm=batchnorm), final_separation(run, batchnorm=batchnorm, split="permuted")
    )


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of some numbers, one per seed; `None` for fewer than two.

    >>> standard_error([1.0, 3.0]), standard_error([1.0])
    (1.0, None)
    """
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
