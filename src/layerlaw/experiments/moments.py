"""When something happens in training: the law emerges, a number settles, the samples are interpolated.

All epochs are measured epochs: an answer is never finer than the schedule.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from layerlaw.experiments.runs import law_of, number
from layerlaw.lab import Run
from layerlaw.lab.schedule import BatchNormMode

FULL = 600  # epochs of the paper's trainings
NEVER = "the law does not hold until the end"  # why there is no epoch of emergence


def scaled(epochs: Sequence[int], total: int) -> tuple[int, ...]:
    """The paper's epochs in a training of another length, each once.

    >>> scaled((0, 10, 100, 600), 60)
    (0, 1, 10, 60)
    """
    return tuple(sorted({round(epoch * total / FULL) for epoch in epochs}))


def marks(epochs: Sequence[int], total: int) -> dict[int, int]:
    """The paper's epochs and those that stand for them in a training of another length, each of ours once.

    >>> marks((0, 10, 20, 100), 24)
    {0: 0, 20: 1, 100: 4}
    """
    ours: dict[int, int] = {}
    for epoch in sorted(epochs):
        ours.setdefault(round(epoch * total / FULL), epoch)
    return {paper: epoch for epoch, paper in ours.items()}


def in_paper_epochs(epoch: int | None, total: int) -> int | None:
    """An epoch of a shortened training in the paper's epochs, as all epochs are reported.

    >>> in_paper_epochs(4, 24), in_paper_epochs(100, 600), in_paper_epochs(None, 24)
    (100, 100, None)
    """
    return None if epoch is None else round(epoch * FULL / total)


def paper_epoch(moment: Callable[..., int | None], **how: Any) -> Callable[[Run], int | None]:
    """A moment in the training of a run (`emergence`, say), in the paper's epochs."""
    return lambda run: in_paper_epochs(moment(run, **how), run.recipe.epochs)


def shortened(total: int) -> list[str]:
    """A note where a training is not as long as the paper's.

    >>> shortened(24), shortened(600)
    (['Quick run: epoch 100 of 600 stands for epoch 4 of 24; all epochs are reported so.'], [])
    """
    ours = f"epoch {100 * total / FULL:g} of {total}"
    return [] if total == FULL else [f"Quick run: epoch 100 of {FULL} stands for {ours}; all epochs are reported so."]


def measured_epochs(run: Run, *, batchnorm: BatchNormMode = "batch") -> list[int]:
    """The epochs after which a run was measured."""
    return sorted({r.epoch for r in run.measurements if (r.batchnorm, r.split) == (batchnorm, "train")})


def since(epochs: Sequence[int], holds: Sequence[bool]) -> int | None:
    """The first epoch from which on something holds without a break; `None` when it does not hold at the end.

    >>> since([0, 10, 20, 30], [True, False, True, True]), since([0, 10], [True, False])
    (20, None)
    """
    found = None
    for epoch, true in zip(epochs, holds, strict=True):
        found = (epoch if found is None else found) if true else None
    return found


def settling(epochs: Sequence[int], values: Sequence[float | None], share: float) -> int | None:
    """The first epoch from which on the value stays within this share of its last value.

    >>> settling([0, 10, 20, 30], [9.0, 1.04, 1.2, 1.0], 0.1), settling([0, 10, 20], [2.0, 1.04, 1.0], 0.05)
    (30, 10)
    """
    last = values[-1]
    if last is None:
        return None
    return since(epochs, [v is not None and abs(v - last) <= share * abs(last) * (1 + 1e-12) for v in values])


def emergence(run: Run, *, batchnorm: BatchNormMode = "batch") -> int | None:
    """The epoch from which on the law holds at every later measurement; `None` where this is never so."""
    epochs = measured_epochs(run, batchnorm=batchnorm)
    laws = [law_of(run, epoch=epoch, batchnorm=batchnorm) for epoch in epochs]
    return since(epochs, [law is not None and law.holds is True for law in laws])


def most_even(run: Run, *, batchnorm: BatchNormMode = "batch") -> int | None:
    """The measured epoch at which the steps of log D are most even."""
    epochs = measured_epochs(run, batchnorm=batchnorm)
    known = [(law.evenness, e) for e in epochs if (law := law_of(run, epoch=e, batchnorm=batchnorm)) and law.evenness]
    return max(known)[1] if known else None


def bend(run: Run, epoch: int, end: str = "") -> float | None:
    """1 + r, which is 0 for a straight line; `end` is that of the number's name ("-eval")."""
    r = number(run, f"pearson{end}", epoch=epoch)
    return None if r is None else 1 + r


def interpolation(run: Run, *, batchnorm: BatchNormMode = "batch") -> int | None:
    """The first measured epoch at which every training sample is classified correctly."""
    for epoch in measured_epochs(run, batchnorm=batchnorm):
        if run.measurement(epoch=epoch, batchnorm=batchnorm).accuracy == 1.0:
            return epoch
    return None


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; `None` where one side is constant.

    >>> spearman([1, 2, 3, 4], [10, 20, 20, 90]), spearman([1, 2], [5, 5])
    (0.9486832980505138, None)
    """
    a, b = ranked(x), ranked(y)
    size = math.sqrt(float((a**2).sum() * (b**2).sum()))
    return None if size == 0 else float((a * b).sum()) / size


def ranked(values: Sequence[float]) -> np.ndarray:
    """Ranks less their mean, ties at their mean rank."""
    v = np.asarray(values, dtype=np.float64)
    ranks: np.ndarray = (v[:, None] > v).sum(1) + ((v[:, None] == v).sum(1) - 1) / 2
    ranks -= ranks.mean()
    return ranks
