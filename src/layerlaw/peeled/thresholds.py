"""When do minority classifiers collapse, when do they vanish? How large a budget, how many repeated samples keep them apart?

All of it depends on c = √(E_W E_H) only, and is computed in logarithms: R0 grows like e^{K c/…}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
import numpy.typing as npt

from layerlaw.errors import InputError
from layerlaw.peeled import two_groups
from layerlaw.peeled.counts import Array, Counts, Groups, check_budgets, check_flag, grouped, listed, positive, whole
from layerlaw.peeled.logits import slope
from layerlaw.peeled.solving import optimum, optimum_penalized
from layerlaw.peeled.two_groups import log_separation_ratio, log_vanish_ratio, root, root_above_0, root_near, threshold
from layerlaw.progress import Counter, Progress
from layerlaw.wording import counted

LARGEST = math.log(1.7e308)
MOST_LOG_C = math.log(1e8)
ABOUT = 12  # solves that a critical budget or a level of many sizes takes
LEAST_C = 2e-8  # just above the least budget that `solve` accepts
LEVELS = 300  # tried for whole copies
STRICTER = 0.99  # what comes after a candidate that failed must need so much less
FEW_SIZES = 10  # in which copies are lowered one by one; a solve takes hundredths of a second there
MOST_TIMES = 1000  # repetitions of the largest classes, tried where only nearly equal sizes will do
Whole = npt.NDArray[np.int64]


def collapse_ratio(K_A: int, K_B: int, *, E_W: float, E_H: float, bias: bool = False, log: bool = False) -> float:
    """R0: from this ratio n_A/n_B on, all minority classifiers coincide (minority collapse).

    Above 1, larger is safer. Finite for two and more minority classes: some imbalance collapses them at any budget. ∞ for
    one, which has no other to coincide with; it vanishes instead (`vanish_ratio`). The threshold is λ = n_B/N, explicit in
    the margin m of the minority towards the majority (docs/peeled.md, "The threshold"); with a bias
    R0 = 1 + (e^{K²c/(K_A(K−1))} − 1)/K. With `log` its natural logarithm, which does not overflow.

    >>> round(collapse_ratio(5, 5, E_W=1, E_H=5), 6), round(collapse_ratio(3, 7, E_W=1, E_H=10), 4)
    (12.192447, 6350.8465)
    >>> round(collapse_ratio(5, 5, E_W=100, E_H=1000, log=True), 3)
    669.592
    """
    K_A, K_B, c = _checked(K_A, K_B, E_W, E_H, bias=bias, log=log)
    value = log_separation_ratio(K_A, K_B, c, bias=bias) if K_B > 1 else math.inf
    return _plain(value, log, "collapse_ratio")


def vanish_ratio(K_A: int, K_B: int, *, E_W: float, E_H: float, bias: bool = False, log: bool = False) -> float:
    """R_vanish: from this ratio n_A/n_B on, all minority classifiers are exactly 0 and their angles undefined; ∞ if none is.

    Without a bias: a = K c/(K_A−1), d = (K_A e^{−a/K_A} + K_B)² − K K_B,
    R_vanish = √(K_A/(K d)) (e^{a(1−1/K_A)} + (K_A−1) e^{−a/K_A} + K_B), ∞ when d ≤ 0 or K_A = 1. With a bias it is finite
    for K_A > 1: (e^a + K − 1)/(K_A + K_B e^{−a/K_A}).

    >>> round(vanish_ratio(7, 3, E_W=1, E_H=5), 4), vanish_ratio(5, 5, E_W=1, E_H=5)
    (5.7053, inf)
    """
    K_A, K_B, c = _checked(K_A, K_B, E_W, E_H, bias=bias, log=log)
    return _plain(log_vanish_ratio(K_A, K_B, c, bias=bias), log, "vanish_ratio")


def critical_budget(counts: Counts, *, bias: bool = False, progress: bool | Progress = True) -> float:
    """The least budget c = √(E_W E_H) above which `solve` finds every group separated; 0 where any budget suffices.

    Smaller is safer. With a bias (K−1)/K² Σ_k log(1 + K (n_k/n_min − 1)). Without: two groups invert `collapse_ratio` (a
    single minority class `vanish_ratio`); of more, no group of several classes is collapsed above the nuclear norm over K
    of the penalized optimum at λ = n_g/N, and where a size with one class is confused even then, a root in c says until
    when. That is a dozen solves, a second for 40 sizes, ten for a hundred; `progress` shows them.

    >>> round(critical_budget([12192447] * 5 + [1000000] * 5) ** 2, 6)  # R = R0 at E_W = 1, E_H = 5
    5.0
    >>> round(critical_budget([7, 6, 5]), 4)  # three sizes need a second direction
    0.1949
    """
    groups = grouped(counts)
    check_flag(bias, "bias")
    if len(groups) == 1:
        return 0.0
    if bias:
        return float(biased_need(groups))
    if len(groups) == 2:
        K_A, K_B, log_R = groups.pair
        if K_B > 1:
            return threshold(K_A, K_B, root_above_0(lambda m: threshold(K_A, K_B, m)[1] - log_R))[0]
        if K_A == 1:
            return 0.0  # one direction separates two classes
        return root_above_0(lambda c: min(log_vanish_ratio(K_A, K_B, c), 2 * log_R + 1) - log_R)
    several, least = groups.shares[groups.classes > 1], LEAST_C
    with closing(Counter(progress, ABOUT, "critical budget")) as counter:

        def excess(log_c: float) -> float:
            counter.step()
            return spare(groups, math.exp(log_c))

        if len(several):
            least = max(least, optimum_penalized(groups, float(several[-1])).nuclear(groups) / groups.K)
            if excess(math.log(least) + 1e-6) > 0:
                return least
        guess = math.log(biased_need(groups))  # with a bias it is about the same
        found = root_near(excess, guess, math.log(least), MOST_LOG_C, step=0.01, close=1e-9)
    return 0.0 if found == math.log(LEAST_C) else math.exp(found)


@dataclass(frozen=True)
class CollapseCurve:
    """Minority cosines along a sweep of ratios R."""

    ratios: Array = field(repr=False)
    cosines: Array = field(repr=False)
    """Cosine between two minority classifiers; exactly 1 in collapse, NaN where they have vanished."""
    phases: tuple[str, ...] = field(repr=False)
    swapped: npt.NDArray[np.bool_] = field(repr=False)
    """Where R < 1: the K_A classes are the smaller ones there, and cosine and phase are theirs."""
    log_collapse: float  # log R0, ∞ for a single minority class
    log_vanish: float  # log R_vanish, ∞ where there is none

    @property
    def note(self) -> str:
        """What a reader must know about the values, in a sentence; empty when nothing."""
        swapped, gone, many = int(self.swapped.sum()), self.phases.count("vanished"), len(self.phases)
        below = f"Below R = 1 the groups are swapped ({swapped} of {many} ratios)."
        zero = f"At {gone} of {many} ratios the minority classifiers are 0 and have no angle."
        return " ".join(compress((below, zero), (swapped, gone)))


def collapse_curve(
    K_A: int, K_B: int, ratios: Sequence[float] | Array, *, E_W: float, E_H: float, bias: bool = False
) -> CollapseCurve:
    """Cosine between minority classifiers against the ratio R = n_A/n_B: the paper's main curve.

    From −1/(K−1) at R = 1 up to exactly 1 from R0 on. A ratio below 1 makes the K_A classes the minority: the groups are
    swapped for it, and `swapped` says so.

    >>> collapse_curve(5, 5, [1, 2, 5, 10, 20], E_W=1, E_H=5).cosines.round(6)
    array([-0.111111, -0.067283,  0.072527,  0.517496,  1.      ])
    """
    K_A, K_B, c = _checked(K_A, K_B, E_W, E_H, bias=bias)
    given = listed(ratios, "ratios", "ratios n_A/n_B")
    values = [positive(R, f"ratios[{i}]", "ratio n_A/n_B") for i, R in enumerate(given)]
    best = two_groups.biased_pair if bias else two_groups.solve_pair
    pairs = [best(K_A, K_B, math.log(R), c) if R >= 1 else best(K_B, K_A, -math.log(R), c) for R in values]
    cosines = np.array([pair.minority_cosine for pair in pairs], dtype=np.float64)  # None becomes NaN
    log_collapse = collapse_ratio(K_A, K_B, E_W=E_W, E_H=E_H, bias=bias, log=True)
    log_vanish, R = log_vanish_ratio(K_A, K_B, c, bias=bias), np.array(values)
    return CollapseCurve(R, cosines, tuple(pair.phase for pair in pairs), R < 1, log_collapse, log_vanish)


@dataclass(frozen=True)
class Oversampling:
    """Fill up: every class with fewer than `level` samples is repeated until it has that many."""

    groups: Groups = field(repr=False)
    level: float  # samples per class that just suffice; the smallest count where every class is separated already
    factors: Array  # (G,) level over size for the smaller classes, 1 for the others: what sampling by weights needs
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
        classes = counted(int(self.groups.classes[self.factors > 1].sum()), "class", "classes")
        most = f"the rarest {self.factors.max():.4g} times"
        said = f"Repeat the samples of {classes} up to {self.level:,.6g} each, {most}"
        if self.copies is None:
            only = f"whole copies do it only beyond {MOST_TIMES:,} copies of the largest classes"
            return f"{said}, by weights: at this budget the sizes must be so nearly equal that {only}."
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
    groups, c = grouped(counts), check_budgets(E_W, E_H)
    check_flag(bias, "bias")
    level = filling_level(groups, c, bias=bias, progress=progress)
    none = np.ones(len(groups))
    if level is None:
        return Oversampling(groups, float(groups.sizes[-1]), none, none.astype(np.int64))
    with closing(Counter(progress, ABOUT, "copies")) as counter:

        def lost(groups: Groups) -> bool:
            counter.step()
            return not separated(groups, c, bias=bias)

        return Oversampling(groups, level, np.maximum(1.0, level / groups.sizes), _copies(groups, level, lost))


def filling_level(groups: Groups, c: float, *, bias: bool = False, progress: bool | Progress = True) -> float | None:
    """The level alone, without whole copies, which take most of the time; `None` where every class is separated already.

    Closed forms go first: they hold at budgets whose loss is too small to be solved for, too.
    """
    sizes = groups.sizes
    if len(groups) == 1:
        return None
    if len(groups) == 2:
        K_A, K_B, log_R = groups.pair
        log_ratio = log_separation_ratio(K_A, K_B, c, bias=bias)
        if log_R < log_ratio * (1 - 1e-9) or separated(groups, c, bias=bias):
            return None
        return max(float(sizes[-1]), float(sizes[0]) * math.exp(-log_ratio))
    with_bias = float(biased_need(groups))
    if (bias and c > with_bias * (1 + 1e-9)) or separated(groups, c, bias=bias):
        return None

    low, high = math.log(sizes[-1]), math.log(sizes[0])
    guess = low
    if c < with_bias:  # with a bias the level is nearly the same, and cheap
        guess = root(lambda log_level: c - float(biased_need(_filled(groups, log_level))), low, high, close=1e-6)
    with closing(Counter(progress, ABOUT, "level")) as counter:

        def excess(log_level: float) -> float:
            counter.step()
            return spare(_filled(groups, log_level), c, bias=bias)

        return max(float(sizes[-1]), math.exp(root_near(excess, guess, low, high, step=0.01, close=1e-6)))


def _copies(groups: Groups, level: float, lost: Callable[[Groups], bool]) -> Whole | None:
    """The fewest samples, in whole copies, that pass when solved.

    Copies of the smaller classes up to a level, rounded up or to the nearest, then copies of all classes. Rounding makes
    sizes unequal, and unequal sizes need more budget. How much more is known in closed form with a bias and is about the
    same without: so all candidates are judged by that, against its value at the level, and few are solved.
    """
    sizes = groups.sizes
    levels = np.geomspace(level, sizes[0], LEVELS)[:, None]
    up = np.where(sizes < levels, np.floor(levels / sizes) + 1, 1)
    times = np.arange(1, MOST_TIMES + 1)[:, None]
    near = [np.maximum(1, np.rint(many / sizes)) for many in (levels, times * sizes[0])]
    candidates: Whole = np.unique(np.concatenate([up, *near]).astype(np.int64), axis=0)  # (C, G)
    need = biased_need(groups, candidates)  # (C,)
    most = biased_need(_filled(groups, math.log(level)))
    for i in np.argsort(sizes * groups.classes @ candidates.T, kind="stable"):  # by samples shown
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


def _repeated(groups: Groups, copies: Whole) -> Groups:
    """The groups after repeating; sizes that have become equal are one."""
    sizes, where = np.unique(-groups.sizes * copies, return_inverse=True)
    return Groups(-sizes, np.bincount(where, weights=groups.classes).astype(np.float64))


def _filled(groups: Groups, log_level: float) -> Groups:
    level = math.exp(log_level)
    above = groups.sizes > level * (1 + 1e-12)
    below = float(groups.classes[~above].sum())
    return Groups(np.append(groups.sizes[above], level), np.append(groups.classes[above], below))


def separated(groups: Groups, c: float, *, bias: bool = False) -> bool:
    """Whether `solve` reports every group of the optimum at c separated.

    >>> from layerlaw.peeled.counts import grouped
    >>> separated(grouped([100, 100, 10, 10]), 2.0), separated(grouped([100, 100, 1, 1]), 1.0)
    (True, False)
    """
    return bool((optimum(groups, c, bias=bias).margins(groups) > 0).all())


def spare(groups: Groups, c: float, *, bias: bool = False) -> float:
    """How far the optimum at c is from losing a class, for finding where it does: positive where all are separated.

    The smaller of the least margin between logits of different groups and of the least log(n_g/(Nλ)) over groups of several
    classes, which passes through 0 evenly where the margin within them just ends. With a bias c less what is needed.
    """
    if bias:
        return c - float(biased_need(groups))
    logits = optimum(groups, c)
    between = logits.margins(groups)
    np.fill_diagonal(between, np.inf)
    log_slack = np.log(groups.shares[groups.classes > 1]) - math.log(slope(groups, logits).norm(groups))
    least = min(float(between.min()), float(log_slack.min(initial=np.inf)))
    return least if least != 0 else -1.0  # a tie: a single class that has vanished


def biased_need(groups: Groups, copies: Whole | int = 1) -> Array:
    """The critical budget with a bias, in closed form; with several rows of copies (…, G) that of each.

    Every margin a_k = log(K n_k/(Nλ) − (K−1)) is positive iff λ < n/N of the smallest. So
    c = (K−1)/K² Σ_k log(1 + K (n_k/n_min − 1)).

    >>> from layerlaw.peeled.counts import grouped
    >>> round(float(biased_need(grouped([15288868] * 5 + [10**6] * 5))) ** 2, 6)  # R0 at E_W = 1, E_H = 5
    5.0
    """
    K, sizes = groups.K, groups.sizes * copies
    return np.asarray((K - 1) / K**2 * (np.log1p(K * (sizes / sizes.min(-1, keepdims=True) - 1)) @ groups.classes))


def _checked(K_A: object, K_B: object, E_W: object, E_H: object, **flags: object) -> tuple[int, int, float]:
    for name, value in flags.items():
        check_flag(value, name)
    return whole(K_A, "K_A"), whole(K_B, "K_B"), check_budgets(E_W, E_H)


def _plain(value: float, log: bool, name: str) -> float:
    if log or value == math.inf:
        return value
    if value > LARGEST:
        raise InputError(f"{name}: exp({value:.6g}) is more than a double can hold. Ask for {name}(…, log=True).")
    return math.exp(value)
