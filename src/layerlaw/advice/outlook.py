"""What the Layer-Peeled Model says of class sizes at one norm budget: groups to be shown, numbers, panels of a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.peeled import Groups, Solution, collapse_curve, collapse_ratio, oversampling, solve, vanish_ratio
from layerlaw.peeled.counts import Array, Counts, grouped
from layerlaw.peeled.figures import ratio_panel
from layerlaw.peeled.solution import Phase
from layerlaw.peeled.thresholds import LARGEST, filling_level
from layerlaw.peeled.two_groups import log_separation_ratio
from layerlaw.progress import Progress
from layerlaw.sheet import Panel, Series
from layerlaw.wording import counted, finite, ratio_words

Index = npt.NDArray[np.intp]
MOST_GROUPS = 8  # rows of a table that are still read; a power of 2, so that the rare half begins at a border
MOST_SOLVED = 40  # distinct sizes solved as they are, some seconds; the cost grows with their cube and more
MOST_BINS = 24  # for more sizes; a multiple of the groups shown
NARROWEST = math.log(1.25)  # sizes within a quarter of each other are shown as one group
MOST_LISTED = 10**6  # classes whose numbers are listed; a mapping may stand for any number
LARGEST_C = 200.0  # beyond, the loss underflows and no phase changes any more
WORST: tuple[Phase, ...] = ("vanished", "collapsed", "confused", "separated")
POINTS = 121  # of a curve
FURTHEST = math.log(1e6)  # a threshold beyond is not drawn
ABOUT = "sizes were binned: factors are about right, whole copies were not solved for"
BY = ("by the norms", "by the norm in use")


@dataclass(frozen=True)
class ClassGroup:
    """Classes of one size, or of sizes between `low` and `high`, shown together."""

    number: int  # how many classes
    classes: tuple[int, ...] | None  # which, in the order of the counts; `None` where they are too many to list
    low: int
    high: int
    size: float  # mean number of samples
    rare: bool

    @property
    def words(self) -> str:
        """How many classes of how many samples."""
        sizes = f"{self.low:,}" if self.low == self.high else f"{self.low:,}–{self.high:,}"
        return f"{counted(self.number, 'class', 'classes')} of {sizes}"


def shown_groups(counts: Counts) -> tuple[ClassGroup, ...]:
    """Groups of classes to be shown, the largest first.

    Up to 8 distinct sizes each are a group. More are put into 2, 4 or 8 bins of equal width in the logarithm, as wide as
    a factor of 1.25 at least; all within that are one. Rare are the classes below the geometric middle of the smallest and
    the largest size; none when there is one group.

    >>> [g.words for g in shown_groups([100, 5000, 100, 5000, 5000])]
    ['3 classes of 5,000', '2 classes of 100']
    """
    whole = grouped(counts)
    shown = _shown(whole.sizes)
    middle = math.sqrt(whole.sizes[0]) * math.sqrt(whole.sizes[-1])
    members = whole.members if whole.K <= MOST_LISTED else None
    found = []
    for b in range(int(shown[-1]) + 1):
        own = np.flatnonzero(shown == b)
        sizes, classes = whole.sizes[own], whole.classes[own]
        ids = None if members is None else tuple(np.flatnonzero(np.isin(members, own)).tolist())
        mean, rare = float(sizes @ classes / classes.sum()), bool(shown[-1] > 0 and sizes[0] < middle)
        found.append(ClassGroup(int(classes.sum()), ids, int(sizes[-1]), int(sizes[0]), mean, rare))
    return tuple(found)


@dataclass(frozen=True)
class Sizes:
    """Sizes for which the model is solved, and the group each is shown in."""

    groups: Groups
    shown: Index  # (G,) place among the groups that are shown
    of: int  # distinct sizes there are; more than `len(groups)` where they were binned

    @property
    def binned(self) -> bool:
        """Whether some sizes were taken as larger than they are."""
        return len(self.groups) < self.of


def solved_sizes(counts: Counts, most: float = MOST_SOLVED, bins: int = MOST_BINS) -> Sizes:
    """The sizes as they are, or, where they are more than `most`, in bins, each taken as its largest.

    The smallest size stays what it is. So every class is at least as frequent as in truth and the rarest is not: the budget
    that separates all can only come out larger. (With a bias its closed form says so; without, no exception was found in
    400 random lists.)
    """
    exact = grouped(counts)
    shown = _shown(exact.sizes)
    if len(exact) <= most:
        return Sizes(exact, shown, len(exact))
    fine = _bins(exact.sizes, bins)  # borders of the groups shown are borders here too
    fine[-1] += 1
    place = np.unique(fine, return_inverse=True)[1]
    first = np.flatnonzero(np.diff(place, prepend=-1))
    classes = np.bincount(place, weights=exact.classes).astype(np.float64)
    return Sizes(Groups(exact.sizes[first], classes), shown[first], len(exact))


def _shown(sizes: Array) -> Index:
    """The group of each of these falling, distinct sizes."""
    if len(sizes) <= MOST_GROUPS:
        return np.arange(len(sizes))
    steps = math.log(sizes[0] / sizes[-1]) / NARROWEST
    many = 1 if steps <= 1 else min(MOST_GROUPS, 2 ** max(1, math.floor(math.log2(steps))))
    return np.unique(_bins(sizes, many), return_inverse=True)[1]  # without the empty ones


def _bins(sizes: Array, many: int) -> Index:
    """The bin of each size among `many` of equal width in the logarithm; a border belongs to the larger sizes."""
    fall = np.log(sizes[0] / sizes)
    return np.asarray(np.clip(np.ceil(fall / fall[-1] * many - 1e-9).astype(np.intp) - 1, 0, many - 1))


@dataclass(frozen=True)
class SizeOutlook:
    """What becomes of the classes of one size."""

    samples: float  # of each class; of a bin the largest in it
    classes: int
    group: int  # place of the group it is shown in
    phase: Phase
    margin: float | None
    """Own logit minus the largest other one: lost at 0 and below. `None` at budgets too large to say."""
    factor: float  # by how much samples must weigh more for all to be separated
    copies: int | None  # the same in whole numbers, solved again; `None` where none were found, or sizes were binned
    beside: float | None  # of a confused size: cosine between its rows and the row that takes its samples


@dataclass(frozen=True)
class Outlook:
    """At the budget c = √(E_W E_H). Lists have one entry per group that is shown, the largest classes first.

    `log_collapse` and `log_vanish` are ln R0 and ln R_vanish (∞: no ratio does it), `log_lost` ln of the ratio from which
    on the rarer size is not separated: R0, or what ends a single class. `None` for all but two sizes, where one ratio does
    not say it. `cosine` is the mean over pairs of rare classes, `None` where there is no such pair or they have vanished.
    """

    c: float
    binned: bool  # whether sizes were put together, each bin at its largest: then a loss may be one of the bins only
    sizes: tuple[SizeOutlook, ...]
    phases: tuple[Phase, ...]  # of the worst size in each group
    lost: tuple[int, ...]  # how many classes of each group are not separated
    margins: tuple[float | None, ...]  # the least of each group
    slack: tuple[float, ...]
    """n_g/(Nλ) of the smallest size in the group: several classes of that size coincide at 1 and below."""
    cosines: tuple[float | None, ...]
    norms: tuple[float, ...]  # of the classifier's rows, per √E_W
    factors: tuple[float, ...]  # the largest in the group
    copies: tuple[int, ...] | None  # per size, not per group; `None` where none were found or sizes were binned
    cosine: float | None
    log_collapse: float | None
    log_vanish: float | None
    log_lost: float | None

    @property
    def collapses(self) -> bool:
        """Whether any size is collapsed, vanished or confused."""
        return any(self.lost)

    @property
    def repeats(self) -> float:
        """The largest of the factors."""
        return max(self.factors)

    def to_dict(self, E_W: float) -> dict[str, Any]:
        """Plain data for JSON. Norms in the units of the classifier's rows; R0 and R_vanish plain and as logarithms.

        A plain ratio is `None` where there is none (its logarithm is `None` too) or where it is more than a double holds.
        """
        plain = asdict(self)
        norms = plain.pop("norms")
        ratios = {"R0": self.log_collapse, "R_vanish": self.log_vanish}
        return plain | {
            "copies_note": ABOUT if self.binned else None,
            "predicted_row_norms": [norm * math.sqrt(E_W) for norm in norms],
            **{name: None if log is None or log > LARGEST else math.exp(log) for name, log in ratios.items()},
        }


def outlook_at(
    groups: tuple[ClassGroup, ...], sizes: Sizes, c: float, *, bias: bool = False, progress: bool | Progress = False
) -> Outlook:
    """The forecast at c. Angles and phases depend on nothing else (docs/peeled.md)."""
    at = min(c, LARGEST_C)
    how: dict[str, Any] = {"E_W": at, "E_H": at, "bias": bias}
    found = solve(sizes.groups, **how)  # type: ignore[arg-type]  # grouped() takes Groups
    samples, classes, G = found.groups.sizes, found.groups.classes, len(found.groups)
    if sizes.binned:  # copies for bins would be wrong for the sizes in them
        level = filling_level(sizes.groups, at, bias=bias, progress=progress) or 0.0
        copies = None if level else (1,) * G
    else:
        plan = oversampling(sizes.groups, **how, progress=progress)  # type: ignore[arg-type]
        level, copies = plan.level if plan.needed else 0.0, None if plan.copies is None else tuple(plan.copies.tolist())
    least = found.value.margins(found.groups).min(1).tolist() if c <= LARGEST_C else [None] * G
    others = found.value.rows(found.groups)[2].copy()
    np.fill_diagonal(others, -np.inf)
    beside = found.cosines[np.arange(G), others.argmax(1)].tolist()  # to the size of the largest other logits
    said = [finite(b) if phase == "confused" else None for b, phase in zip(beside, found.phases, strict=True)]
    columns: list[Sequence[Any]] = [samples.tolist(), classes.astype(int).tolist(), sizes.shown.tolist(), found.phases]
    columns += [least, np.maximum(1.0, level / samples).tolist(), copies or [None] * G, said]
    told = tuple(SizeOutlook(*row) for row in zip(*columns, strict=True))
    by_group = [[size for size in told if size.group == g] for g in range(len(groups))]
    members = [np.flatnonzero(sizes.shown == g) for g in range(len(groups))]
    logs: dict[str, float | None] = dict.fromkeys(("log_collapse", "log_vanish", "log_lost"))
    if sizes.of == 2:  # of more than two sizes one ratio says nothing
        K_A, K_B, _ = sizes.groups.pair
        ratios = [ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True) for ratio in (collapse_ratio, vanish_ratio)]
        logs = dict(zip(logs, [*ratios, log_separation_ratio(K_A, K_B, c, bias=bias)], strict=True))
    return Outlook(
        c=c,
        binned=sizes.binned,
        sizes=told,
        phases=tuple(min((size.phase for size in own), key=WORST.index) for own in by_group),
        lost=tuple(sum(size.classes for size in own if size.phase != "separated") for own in by_group),
        margins=tuple(min((size.margin for size in own if size.margin is not None), default=None) for own in by_group),
        slack=tuple(float(found.slack[own].min()) for own in members),
        cosines=tuple(_mean_cosine(found, own) for own in members),
        norms=tuple(float(found.norms[i] @ classes[i] / classes[i].sum()) / math.sqrt(at) for i in members),
        factors=tuple(max(1.0, level / group.low) for group in groups),
        copies=copies,
        cosine=_mean_cosine(found, np.flatnonzero([groups[g].rare for g in sizes.shown])),
        **logs,
    )


def _mean_cosine(found: Solution, own: Index) -> float | None:
    """Mean cosine over all pairs of classes of these sizes."""
    k = found.groups.classes[own]
    pairs = np.outer(k, k) - np.diag(k)  # (g, g) ordered pairs between and within sizes
    cosines = np.where(pairs > 0, found.cosines[np.ix_(own, own)], 0.0)
    if pairs.sum() == 0 or np.isnan(cosines).any():
        return None
    return float((pairs * cosines).sum() / pairs.sum())


def cosine_panel(
    K_A: int, K_B: int, outlooks: Sequence[Outlook], R: float, *, bias: bool, measured: float | None
) -> Panel:
    """Predicted cosine between rows of rare classes against R, with this place marked."""
    ends = [o.log_collapse for o in outlooks if o.log_collapse is not None]
    reach = [log_R0 + 0.5 for log_R0 in ends if log_R0 < FURTHEST]
    ratios = np.exp(np.linspace(0, max([math.log(R) + 1.0, math.log(100), *reach]), POINTS))
    curves = {}
    for at, name in zip(outlooks, BY, strict=False):
        c = min(at.c, LARGEST_C)
        curves[f"predicted {name}"] = collapse_curve(K_A, K_B, ratios, E_W=c, E_H=c, bias=bias)
    here = [] if measured is None else [Series((R,), (measured,), "measured", color=3)]
    note = f"dotted: here, R = {ratio_words(math.log(R))}\nR0 = {' and '.join(map(ratio_words, ends))}"
    title = "cosine between rows of rare classes"
    return ratio_panel(title, curves, "cosine", note, more=here, style="line", marked=R)


def margins_panel(groups: Sequence[ClassGroup], outlooks: Sequence[Outlook]) -> Panel:
    """Margin of each size; at 0 and below its samples are lost."""
    series = []
    for at, name in zip(outlooks, BY, strict=False):
        known = [(size.samples, size.margin) for size in at.sizes if size.margin is not None]
        if known:
            series.append(Series([n for n, _ in known], [m for _, m in known], name))
    ends = (groups[-1].low * 0.8, groups[0].high * 1.25)
    series.append(Series(ends, (0.0, 0.0), "lost at 0 and below", style="fit", color=7))
    each = "bin of sizes, at its largest" if any(at.binned for at in outlooks) else "class size"
    title, xlabel, ylabel = f"predicted margin of each {each}", "samples of a class", "own logit − best other"
    return Panel(title, series, xlabel=xlabel, ylabel=ylabel, log_x=True, log_y=False)
