"""How often must samples of rare classes be repeated so that every class is separated?"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from layerlaw.peeled.counts import Array, Counts, Groups, checked_budgets, checked_flag, grouped
from layerlaw.peeled.thresholds import biased_critical_budget, biased_need, log_separation_ratio, separated, spare
from layerlaw.peeled.two_groups import root, root_near
from layerlaw.progress import Counter, Progress

Whole = npt.NDArray[np.int64]
ABOUT = 12  # solves that many sizes take
LEVELS = 300  # tried for whole copies
STRICTER = 0.99  # what comes after a candidate that failed must need so much less
FEW_SIZES = 10  # in which copies are lowered one by one; a solve takes hundredths of a second there
MOST_TIMES = 1000  # repetitions of the largest classes, tried where only nearly equal sizes will do


@dataclass(frozen=True)
class Oversampling:
    """Fill up: every class with fewer than `level` samples is repeated until it has that many."""

    groups: Groups = field(repr=False)
    level: float
    """Samples per class that just suffice; the smallest count where every class is separated already."""
    factors: Array
    """(G,) level over size for the smaller classes, 1 for the others: what sampling by weights needs."""
    copies: Whole | None
    """(G,) whole number of times to show each sample. Solved again with so many: every group is separated. `None`: no such
    numbers were found, though the factors, or equal sizes, do it at any budget."""

    @property
    def needed(self) -> bool:
        """Whether anything has to be done."""
        return self.copies is None or bool((self.copies > 1).any())

    def __str__(self) -> str:
        if not self.needed:
            return "Every class is separated: nothing to oversample."
        few, most = int(self.groups.classes[self.factors > 1].sum()), self.factors.max()
        classes = "1 class" if few == 1 else f"{few:,} classes"
        said = f"Repeat the samples of {classes} up to {self.level:,.6g} each, the rarest {most:.4g} times"
        if self.copies is None:
            return (
                f"{said}, by weights: at this budget the sizes must be so nearly equal that whole copies do it only beyond "
                f"{MOST_TIMES:,} copies of the largest classes."
            )
        return f"{said}; in whole copies {int(self.copies.max()):,} times (solved again: every class is separated)."


def oversampling(
    counts: Counts, *, E_W: float, E_H: float, bias: bool = False, progress: bool | Progress = True
) -> Oversampling:
    """The oversampling of the smaller classes that makes `solve` report every group separated.

    All classes below a common level are repeated up to it; the level is the least that suffices. In two groups the factor
    is R/R0 (of a single rare class R/R_vanish): it brings n_A/n_B down to the threshold. Whole copies overshoot and may
    push other classes out: those given have been solved again, and every class is separated. Of at most 10 sizes no
    entry can be one less by itself. One or two dozen solves without a bias, more where copies are lowered: a second or
    two for 10 sizes, five for 40, a minute for a hundred; `progress` shows them.

    >>> plan = oversampling({6000: 5, 6: 5}, E_W=1, E_H=10)  # R = 1000, R0 = 81.102…
    >>> round(float(plan.factors[1]), 6), plan.copies
    (12.330121, array([ 1, 13]))
    """
    groups, c = grouped(counts), checked_budgets(E_W, E_H)
    checked_flag(bias, "bias")
    counter = Counter(progress, ABOUT, "oversampling")

    def lost(groups: Groups) -> bool:
        counter.step()
        return not separated(groups, c, bias=bias)

    with closing(counter):
        level = _level(groups, c, bias, counter)
        none = np.ones(len(groups))
        if level is None:
            return Oversampling(groups, float(groups.sizes[-1]), none, none.astype(np.int64))
        return Oversampling(groups, level, np.maximum(1.0, level / groups.sizes), _copies(groups, level, lost))


def filling_level(groups: Groups, c: float, *, bias: bool = False, progress: bool | Progress = True) -> float | None:
    """The level alone, without whole copies, which take most of the time; `None` where every class is separated already."""
    with closing(Counter(progress, ABOUT, "level")) as counter:
        return _level(groups, c, bias, counter)


def _level(groups: Groups, c: float, bias: bool, counter: Counter) -> float | None:
    def excess(groups: Groups) -> float:
        counter.step()
        return spare(groups, c, bias=bias)

    counter.step()
    if _plenty(groups, c, bias) or separated(groups, c, bias=bias):
        return None
    if len(groups) == 2:
        K_A, K_B, _ = groups.pair
        level = float(groups.sizes[0]) * math.exp(-log_separation_ratio(K_A, K_B, c, bias=bias))
    else:
        level = _least_level(groups, c, excess)
    return max(float(groups.sizes[-1]), level)


def _plenty(groups: Groups, c: float, bias: bool) -> bool:
    """Whether a closed form says that nothing is near: also at budgets whose loss is too small to be solved for."""
    if len(groups) == 1:
        return True
    if len(groups) == 2:
        K_A, K_B, log_R = groups.pair
        return log_R < log_separation_ratio(K_A, K_B, c, bias=bias) * (1 - 1e-9)
    return bias and c > biased_critical_budget(groups) * (1 + 1e-9)


def _least_level(groups: Groups, c: float, excess: Callable[[Groups], float]) -> float:
    """The level at which classes filled up to it begin to be separated; with a bias it is nearly the same, and cheap."""
    sizes = groups.sizes

    def beyond(log_level: float) -> float:
        return excess(_filled(groups, math.exp(log_level)))

    low, high = math.log(sizes[-1]), math.log(sizes[0])
    with_bias = (
        root(lambda log_level: c - biased_critical_budget(_filled(groups, math.exp(log_level))), low, high, close=1e-6)
        if c < biased_critical_budget(groups)
        else low
    )
    return math.exp(root_near(beyond, with_bias, low, high, step=0.01, close=1e-6))


def _copies(groups: Groups, level: float, lost: Callable[[Groups], bool]) -> Whole | None:
    """The fewest samples, in whole copies, that pass when solved.

    Rounding makes sizes unequal, and unequal sizes need more budget. How much more is known in closed form with a bias
    and is about the same without: so all candidates are judged by that, against its value at the level, and few are solved.
    """
    candidates = _candidates(groups.sizes, level)
    need = biased_need(groups.classes, groups.sizes * candidates)  # (C,)
    most = biased_critical_budget(_filled(groups, level))
    for i in np.argsort(groups.sizes * groups.classes @ candidates.T, kind="stable"):  # by samples shown
        if need[i] > most:
            continue
        if not lost(_repeated(groups, candidates[i])):
            return _fewer(groups, np.asarray(candidates[i]), lost)
        most = STRICTER * need[i]
    return None


def _fewer(groups: Groups, copies: Whole, lost: Callable[[Groups], bool]) -> Whole:
    """Fewer copies of one size after another, until no entry can be one less; of few sizes only, for the cost."""
    if len(groups) > FEW_SIZES:
        return copies
    copies, lower = copies.copy(), True
    while lower:
        lower = False
        for g in reversed(range(len(groups))):  # the rarest first, they are copied most
            low, high = 0, int(copies[g])  # `low` is too few, `high` has been solved
            copies[g] = high - 1
            while high - low > 1:
                if lost(_repeated(groups, copies)):
                    low = int(copies[g])
                else:
                    high, lower = int(copies[g]), True
                copies[g] = (low + high) // 2
            copies[g] = high
    return copies


def _candidates(sizes: Array, level: float) -> Whole:
    """(C, G) copies of the smaller classes up to a level, rounded up or to the nearest; then copies of all classes."""
    levels = np.geomspace(level, sizes[0], LEVELS)[:, None]
    up = np.where(sizes < levels, np.floor(levels / sizes) + 1, 1)
    times = np.arange(1, MOST_TIMES + 1)[:, None]
    near = [np.maximum(1, np.rint(many / sizes)) for many in (levels, times * sizes[0])]
    return np.unique(np.concatenate([up, *near]).astype(np.int64), axis=0)


def _repeated(groups: Groups, copies: Whole) -> Groups:
    """The groups after repeating; sizes that have become equal are one."""
    sizes, where = np.unique(-groups.sizes * copies, return_inverse=True)
    return Groups(-sizes, np.bincount(where, weights=groups.classes).astype(np.float64))


def _filled(groups: Groups, level: float) -> Groups:
    above = groups.sizes > level * (1 + 1e-12)
    below = float(groups.classes[~above].sum())
    return Groups(np.append(groups.sizes[above], level), np.append(groups.classes[above], below))
