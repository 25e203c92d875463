"""From runs to numbers, and from numbers to rows beside the paper's: choices of a learning rate, their null, pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from layerlaw.lab import Run, Samples
from layerlaw.lab.schedule import CHUNK, BatchNormMode, SplitName
from layerlaw.law import STRAIGHT, LawFit, fit_law, law_holds
from layerlaw.outcome import Row
from layerlaw.probing import probe
from layerlaw.record import Record

SIMULATIONS = 20_000
LAW = ("pearson", "rho", "effective-layers", "greenwood-p", "pearson-eval", "rho-eval")
MODES: tuple[BatchNormMode, ...] = ("batch", "running")
MODE_NAMES: dict[BatchNormMode, str] = {"batch": "train", "running": "eval", "whole": "full"}  # in rows and tables
FLAT, NO_RUN = "D does not fall with depth", "every learning rate failed"
_NAME = re.compile(r"(?:(test|train)-)?(.+?)(?:-(eval|full))?")
Value = Callable[[Run], float | None]
Key = TypeVar("Key", bound=Hashable)


class Where(TypedDict, total=False):
    """Which measurement of a run: after which epoch (the last), in which BatchNorm mode ("batch"), of which samples."""

    epoch: int | None
    batchnorm: BatchNormMode
    split: SplitName


@dataclass(frozen=True)
class Claim:
    """What the paper says of a number: a number or words, when ours agrees with it, and how that is written."""

    paper: float | str | None = None
    holds: Callable[[float], bool] | None = None
    tolerance: str = ""


def within(target: float, by: float, paper: float | str | None = None) -> Claim:
    """Agreement up to a tolerance."""
    return Claim(target if paper is None else paper, lambda value: abs(value - target) <= by, f"{target:g} ± {by:g}")


def at_most(limit: float, paper: float | str | None = None) -> Claim:
    """Agreement when not larger."""
    return Claim(paper, lambda value: value <= limit, f"≤ {limit:g}".replace("-", "−"))


def at_least(limit: float, paper: float | str | None = None) -> Claim:
    """Agreement when not smaller."""
    return Claim(paper, lambda value: value >= limit, f"≥ {limit:g}".replace("-", "−"))


def below(limit: float, paper: str, of: str = "") -> Claim:
    """Agreement when smaller; `of` says what the number is a share of."""
    return Claim(paper, lambda value: value < limit, f"< {limit:g}{of and f' of {of}'}")


def above(limit: float, paper: str, of: str = "") -> Claim:
    """Agreement when larger; `of` says what the number is a share of."""
    return Claim(paper, lambda value: value > limit, f"> {limit:g}{of and f' of {of}'}")


LAW_HOLDS = at_most(STRAIGHT, "holds")
NOTHING_CLAIMED = Claim()


def row(name: str, values: Sequence[float | None], claim: Claim = NOTHING_CLAIMED, *, reason: str = "") -> Row:
    """The mean over seeds with its range; the claim says of the mean whether it agrees with the paper.

    >>> row("r", [-0.99, -1.0], at_most(-0.99, paper=-0.997)).reproduced
    True
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    lost = f"{len(values) - len(known)} of {len(values)} runs gave no number"
    if not known:
        verdict = False if claim.holds else None
        why = reason or "no run gave a number"
        return Row(name, claim.paper, None, reproduced=verdict, tolerance=claim.tolerance, reason=why)
    tolerance = "; ".join(filter(None, [claim.tolerance, lost if len(known) < len(values) else ""]))
    mean = fmean(known)
    verdict = claim.holds(mean) if claim.holds else None
    return Row(name, claim.paper, mean, min(known), max(known), verdict, tolerance)


def rows(
    name: str,
    runs: Sequence[Run],
    names: Sequence[str],
    claims: Mapping[str, Claim] | None = None,
    *,
    choices: int = 1,
    epoch: int | None = None,
    reason: str = "",
) -> list[Row]:
    """Rows `name/…` of the named numbers (see `number`) over the seeds, with a reason where there is none."""
    found = []
    for what in names:
        where: Where = {**_parsed(what)[1], "epoch": epoch}
        why = reason or trouble(runs, **where) or (FLAT if runs else NO_RUN)
        values = [number(run, what, choices, epoch=epoch) for run in runs]
        found.append(row(f"{name}/{what}", values, (claims or {}).get(what, NOTHING_CLAIMED), reason=why))
    return found


def number(run: Run, name: str, choices: int = 1, *, epoch: int | None = None) -> float | None:
    """A number of a run by its name in the ledger; `None` where the run diverged or has no such number.

    Numbers of the law (pearson, rho, half-life, effective-layers, greenwood-p), D after the last hidden layer (final-D,
    last-D; final-D-permuted with permuted labels, final-D-over-permuted over that floor) and accuracy (in eval mode).
    "test-" in front: on test samples. "-eval" or "-full" behind: with running statistics, or those of all samples.
    `choices` is how many learning rates the run is the best of: greenwood-p then repeats that choice inside the null.
    """
    if run.diverged is not None:
        return None
    core, where = _parsed(name)
    where["epoch"] = epoch
    if core == "final-D-over-permuted":
        return over(number(run, name.replace("-over-permuted", "")), number(run, name.replace("-over", "")))
    if core == "accuracy":
        return run.measurement(epoch=epoch, batchnorm="running", split=where["split"]).accuracy
    if core in ("final-D", "last-D", "final-D-permuted"):
        return run.measurement(**where).separation[-1]
    law = run.law(**where)
    if law is None:
        return None
    if core == "greenwood-p" and choices > 1:
        return selected_p(law.effective_layers, law.layers, choices)
    value: float | None = getattr(law, core.replace("-", "_"))
    return value


def _parsed(name: str) -> tuple[str, Where]:
    """The number and where it is measured."""
    found = _NAME.fullmatch(name)
    assert found is not None
    side, core, mode = found.groups()
    batchnorm = {words: mode for mode, words in MODE_NAMES.items()}[mode or "train"]
    split: SplitName = "permuted" if core == "final-D-permuted" else "test" if side == "test" else "train"
    return core, {"batchnorm": batchnorm, "split": split}


def law_of(run: Run, **where: Unpack[Where]) -> LawFit | None:
    """The law of a finished run; `None` where it diverged, or D is not defined at every layer."""
    return None if run.diverged is not None else run.law(**where)


def law_along(values: Sequence[float | None]) -> LawFit | None:
    """The law of numbers along depth; `None` where one of them is missing."""
    known = [value for value in values if value is not None and value > 0]
    return fit_law(known) if len(known) == len(values) else None


def of_laws(laws: Iterable[LawFit | None], what: str) -> list[float | None]:
    """One number (pearson, rho, greenwood-p, …) of each law."""
    return [None if law is None else getattr(law, what.replace("-", "_")) for law in laws]


def trouble(runs: Sequence[Run], **where: Unpack[Where]) -> str:
    """Why runs have no law, in words: diverged, or a layer at which D is not defined; empty when all have one."""
    found = []
    for run in runs:
        who = f"lr {run.recipe.learning_rate:g}, seed {run.recipe.seed}"
        if run.diverged is not None:
            found.append(f"{who}: diverged in epoch {run.diverged}")
            continue
        values = run.measurement(**where).separation
        holes = [layer for layer, value in enumerate(values) if value is None or value <= 0]
        if holes:
            many = f"layer {holes[0]} (of {len(holes)} such)"
            found.append(f"{who}: D is not defined at {many}: the class means coincide")
    return "; ".join(found)


def grouped(runs: Iterable[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    """Runs by what they have in common, in the order in which it first occurs."""
    cells: dict[Key, list[Run]] = {}
    for run in runs:
        cells.setdefault(key(run), []).append(run)
    return cells


def best_law(runs: Iterable[Run]) -> Run | None:
    """The run with the most negative r at its last epoch: how the paper chose the learning rate that it shows."""
    fitted = [(law.pearson, i, run) for i, run in enumerate(runs) if (law := law_of(run)) and law.pearson]
    return min(fitted)[2] if fitted else None


def best_of_seeds(runs: Iterable[Run]) -> list[Run]:
    """The paper's choice of the learning rate, made once per seed; a seed whose runs all failed is left out."""
    cells = grouped(runs, lambda run: run.recipe.seed)
    return [best for cell in cells.values() if (best := best_law(cell))]


def is_clear(law: LawFit | None, choices: int = 1) -> bool:
    """Whether the law holds, as `law_holds` says.

    `choices` is how many runs it was the best of: with few layers a straight line comes out of choosing alone.
    """
    if law is None or law.effective_layers is None:
        return False
    p = law.greenwood_p if choices == 1 else selected_p(law.effective_layers, law.layers, choices)
    return law_holds(law, greenwood_p=p) is True


def clear_seeds(runs: Sequence[Run], choices: int) -> list[float]:
    """1 for every seed whose best law is clear, else 0; also for a seed without any law."""
    best, seeds = best_of_seeds(runs), {run.recipe.seed for run in runs}
    return [float(is_clear(law_of(run), choices)) for run in best] + [0.0] * (len(seeds) - len(best))


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
    r, squares = _random_splits(layers, choices)
    return np.take_along_axis(squares, r.argmin(-1)[:, None], 1)[:, 0]


@cache
def random_split_r(layers: int) -> float:
    """Median r when the same drop of log D is split at random over the layers: what any falling curve gives.

    >>> round(random_split_r(7), 2)
    -0.97
    """
    return float(np.median(_random_splits(layers, 1)[0]))


def _random_splits(layers: int, choices: int) -> tuple[np.ndarray, np.ndarray]:
    """r and Σ p² of drops split at random, (simulations, choices) each."""
    shares = np.random.default_rng(0).exponential(size=(SIMULATIONS, choices, layers))
    shares /= shares.sum(-1, keepdims=True)
    curve = 1 - np.concatenate([np.zeros((SIMULATIONS, choices, 1)), shares.cumsum(-1)], -1)  # from 1 down to 0
    x = np.arange(layers + 1.0)
    x -= x.mean()
    curve -= curve.mean(-1, keepdims=True)
    return (curve * x).sum(-1) / np.sqrt((curve**2).sum(-1) * (x**2).sum()), (shares**2).sum(-1)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known.

    >>> mean_of([1.0, None, 2.0]), mean_of([None])
    (1.5, None)
    """
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def minus(a: float | None, b: float | None) -> float | None:
    """a − b where both are known."""
    return None if a is None or b is None else a - b


def over(a: float | None, b: float | None) -> float | None:
    """a / b where both are known."""
    return None if a is None or not b else a / b


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of some numbers, one per seed; `None` for fewer than two.

    >>> standard_error([1.0, 3.0]), standard_error([1.0])
    (1.0, None)
    """
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def ratios(
    first: Sequence[Run], second: Sequence[Run], value: str | Value, first_value: Value | None = None
) -> list[float | None]:
    """A number of one network over that of the other of the same seed; `first_value` where the first has another one."""
    others = {run.recipe.seed: _value(run, value) for run in second}
    return [
        over(_value(run, first_value or value), others[run.recipe.seed]) for run in first if run.recipe.seed in others
    ]


def differences(first: Sequence[Run], second: Sequence[Run], value: str | Value) -> list[float | None]:
    """A number of one network minus that of the other of the same seed."""
    others = {run.recipe.seed: _value(run, value) for run in second}
    return [minus(_value(run, value), others[run.recipe.seed]) for run in first if run.recipe.seed in others]


def _value(run: Run, value: str | Value) -> float | None:
    return number(run, value) if isinstance(value, str) else value(run)


def paired_rows(
    name: str, differences: Sequence[float | None], *, paper: float | None = None, larger: bool | None = None
) -> list[Row]:
    """The mean difference of pairs, and its standard error.

    `larger` says what the paper claims of the sign; it holds when the mean lies more than two standard errors on that
    side of 0.
    """
    error = standard_error([d for d in differences if d is not None])
    claim = Claim(paper)
    if larger is not None:
        sign, side = (1, ">") if larger else (-1, "<")
        words = f"mean {side} 0 by more than two standard errors"
        claim = Claim(paper, lambda mean: error is not None and sign * mean > 2 * error, words)
    why = "" if error is not None else "one seed has no standard error"
    return [row(name, differences, claim), row(f"{name}-standard-error", [error], reason=why)]


def record_of(
    run: Run,
    data: Samples | tuple[Tensor, Tensor],
    *,
    test: Any = None,
    batchnorm: BatchNormMode = "batch",
    jackknife: bool = False,
    device: str = "cpu",
) -> Record:
    """A trained network measured once more: on other images, in another order, or with D corrected for their number."""
    pair = (data.inputs, data.labels) if isinstance(data, Samples) else data
    errors: Any = "jackknife" if jackknife else False
    how: dict[str, Any] = {"batchnorm": batchnorm, "batch_size": CHUNK, "uncertainty": errors, "device": device}
    with _one_thread():
        return probe(run.network(), pair, test=test, progress=False, **how)


def half_life_on(run: Run, data: Samples) -> float | None:
    """The half-life on these training images; `None` where D does not fall."""
    return record_of(run, data).law().half_life


def corrected_half_life(run: Run, data: Samples) -> float | None:
    """The half-life of D corrected for the number of images; `None` where the bias is too large at some layer."""
    sites = record_of(run, data, jackknife=True).sites
    law = law_along([site.values.get("separation_corrected") for site in sites if site.in_fit])
    return law.half_life if law else None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrices: a second thread costs more than it brings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
