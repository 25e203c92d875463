"""What the Layer-Peeled Model says of class sizes at one norm budget, in numbers and as panels of a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layerlaw.advice.class_groups import ClassGroup, Sizes
from layerlaw.peeled import Solution, collapse_curve, collapse_ratio, oversampling, solve, vanish_ratio
from layerlaw.peeled.figures import vanishing
from layerlaw.peeled.resampling import filling_level
from layerlaw.peeled.solution import Phase
from layerlaw.peeled.thresholds import LARGEST, log_separation_ratio, margins
from layerlaw.progress import Progress
from layerlaw.sheet import Panel, Series
from layerlaw.wording import ratio_words

Array = npt.NDArray[np.float64]
LARGEST_C = 200.0  # beyond, the loss underflows and no phase changes any more
WORST: tuple[Phase, ...] = ("vanished", "collapsed", "confused", "separated")
POINTS = 121  # of a curve
FURTHEST = math.log(1e6)  # a threshold beyond is not drawn
ABOUT = "sizes were binned: factors are about right, whole copies were not solved for"


@dataclass(frozen=True)
class SizeOutlook:
    """What becomes of the classes of one size."""

    samples: float
    """Of each class; of a bin the largest in it."""
    classes: int
    group: int
    """Place of the group it is shown in."""
    phase: Phase
    margin: float | None
    """Own logit minus the largest other one: lost at 0 and below. `None` at budgets too large to say."""
    factor: float
    """By how much samples must weigh more for all to be separated."""
    copies: int | None
    """The same in whole numbers, solved again; `None` where none were found, or sizes were binned."""
    beside: float | None
    """Of a confused size: cosine between its rows and the row that takes its samples."""


@dataclass(frozen=True)
class Outlook:
    """At the budget c = √(E_W E_H). Tuples have one entry per group that is shown, the largest classes first.

    `log_collapse` and `log_vanish` are ln R0 and ln R_vanish (∞: no ratio does it), `log_lost` ln of the ratio from which
    on the rarer size is not separated: R0, or what ends a single class. `None` for all but two sizes, where one ratio does
    not say it. `cosine` is the mean over pairs of rare classes, `None` where there is no such pair or they have vanished.
    """

    c: float
    binned: bool
    """Whether sizes were put together, each bin at its largest: then a loss may be one of the bins only."""
    sizes: tuple[SizeOutlook, ...]
    slack: tuple[float, ...]
    """n_g/(Nλ) of the smallest size in the group: several classes of that size coincide at 1 and below."""
    cosines: tuple[float | None, ...]
    norms: tuple[float, ...]
    """Of the classifier's rows, per √E_W."""
    factors: tuple[float, ...]
    """The largest in the group."""
    cosine: float | None
    log_collapse: float | None
    log_vanish: float | None
    log_lost: float | None

    @property
    def by_group(self) -> list[list[SizeOutlook]]:
        """The sizes that are shown together, group by group."""
        return [[size for size in self.sizes if size.group == g] for g in range(len(self.slack))]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Of the worst size in each group."""
        return tuple(min((size.phase for size in sizes), key=WORST.index) for sizes in self.by_group)

    @property
    def lost(self) -> tuple[int, ...]:
        """How many classes of each group are not separated."""
        return tuple(sum(size.classes for size in sizes if size.phase != "separated") for sizes in self.by_group)

    @property
    def margins(self) -> tuple[float | None, ...]:
        """The least of each group."""
        every = ([size.margin for size in sizes if size.margin is not None] for sizes in self.by_group)
        return tuple(min(known, default=None) for known in every)

    @property
    def copies(self) -> tuple[int, ...] | None:
        """Per size, not per group; `None` where none were found or sizes were binned."""
        whole = tuple(size.copies for size in self.sizes if size.copies is not None)
        return whole if len(whole) == len(self.sizes) else None

    @property
    def collapses(self) -> bool:
        """Whether any size is collapsed, vanished or confused."""
        return any(size.phase != "separated" for size in self.sizes)

    @property
    def repeats(self) -> float:
        """The largest of the factors."""
        return max(self.factors)

    def to_dict(self, E_W: float) -> dict[str, Any]:
        """Plain data for JSON. Norms in the units of the classifier's rows; R0 and R_vanish plain and as logarithms.

        A plain ratio is `None` where there is none (its logarithm is `None` too) or where it is more than a double holds.
        `copies` are per size (`sizes`), all else in lists per group.
        """
        plain = asdict(self)
        norms = plain.pop("norms")
        return plain | {
            "phases": self.phases,
            "lost": self.lost,
            "margins": self.margins,
            "copies": self.copies,
            "copies_note": ABOUT if self.binned else None,
            "predicted_row_norms": [norm * math.sqrt(E_W) for norm in norms],
            "R0": _plain(self.log_collapse),
            "R_vanish": _plain(self.log_vanish),
        }


def outlook_at(
    groups: tuple[ClassGroup, ...], sizes: Sizes, c: float, *, bias: bool = False, progress: bool | Progress = False
) -> Outlook:
    """The forecast at c. Angles and phases depend on nothing else (docs/peeled.md)."""
    at = min(c, LARGEST_C)
    found = solve(sizes.groups, E_W=at, E_H=at, bias=bias)  # type: ignore[arg-type]  # grouped() takes Groups
    level, copies = _filling(sizes, at, bias, progress)
    least = margins(found.groups, found.value).min(1)
    beside = _beside(found)
    members = [np.flatnonzero(sizes.shown == g) for g in range(len(groups))]
    log_collapse, log_vanish, log_lost = _ratios(sizes, c, bias)
    return Outlook(
        c=c,
        binned=sizes.binned,
        sizes=tuple(
            SizeOutlook(
                samples=float(found.groups.sizes[i]),
                classes=int(found.groups.classes[i]),
                group=int(sizes.shown[i]),
                phase=found.phases[i],
                margin=float(least[i]) if c <= LARGEST_C else None,
                factor=max(1.0, level / float(found.groups.sizes[i])),
                copies=None if copies is None else int(copies[i]),
                beside=beside[i],
            )
            for i in range(len(sizes.groups))
        ),
        slack=tuple(float(found.slack[own].min()) for own in members),
        cosines=tuple(_mean_cosine(found, own) for own in members),
        norms=tuple(_mean(found.norms[own], found.groups.classes[own]) / math.sqrt(at) for own in members),
        factors=tuple(max(1.0, level / group.low) for group in groups),
        cosine=_mean_cosine(found, np.flatnonzero([groups[g].rare for g in sizes.shown])),
        log_collapse=log_collapse,
        log_vanish=log_vanish,
        log_lost=log_lost,
    )


def _filling(sizes: Sizes, c: float, bias: bool, progress: bool | Progress) -> tuple[float, list[int] | None]:
    """Samples every class must at least have, and copies per size; copies for bins would be wrong for the sizes in them."""
    if sizes.binned:
        level = filling_level(sizes.groups, c, bias=bias, progress=progress)
        return (0.0, [1] * len(sizes.groups)) if level is None else (level, None)
    plan = oversampling(sizes.groups, E_W=c, E_H=c, bias=bias, progress=progress)  # type: ignore[arg-type]
    return (plan.level if plan.needed else 0.0), None if plan.copies is None else [int(k) for k in plan.copies]


def _ratios(sizes: Sizes, c: float, bias: bool) -> tuple[float | None, float | None, float | None]:
    """ln R0, ln R_vanish and ln of what loses the minority; of more than two sizes one ratio says nothing."""
    if sizes.of != 2:
        return None, None, None
    K_A, K_B = (int(k) for k in sizes.groups.classes)
    collapse = collapse_ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True)
    vanish = vanish_ratio(K_A, K_B, E_W=c, E_H=c, bias=bias, log=True)
    return collapse, vanish, log_separation_ratio(K_A, K_B, c, bias=bias)


def _beside(found: Solution) -> tuple[float | None, ...]:
    """Of each confused size the cosine between its rows and those of the size whose logits are largest for its samples."""
    others = found.value.rows(found.groups)[2].copy()
    np.fill_diagonal(others, -np.inf)
    winner = others.argmax(1)
    near = [float(found.cosines[g, winner[g]]) for g in range(len(winner))]
    return tuple(
        near[g] if phase == "confused" and math.isfinite(near[g]) else None for g, phase in enumerate(found.phases)
    )


def _mean_cosine(found: Solution, own: npt.NDArray[np.intp]) -> float | None:
    """Mean cosine over all pairs of classes of these sizes."""
    k = found.groups.classes[own]
    pairs = np.outer(k, k) - np.diag(k)  # (g, g) ordered pairs between and within sizes
    cosines = np.where(pairs > 0, found.cosines[np.ix_(own, own)], 0.0)
    if pairs.sum() == 0 or np.isnan(cosines).any():
        return None
    return float((pairs * cosines).sum() / pairs.sum())


def _mean(values: Array, weight: Array) -> float:
    return float(values @ weight / weight.sum())


def _plain(log_ratio: float | None) -> float | None:
    return None if log_ratio is None or log_ratio > LARGEST else math.exp(log_ratio)


def collapse_panels(
    groups: Sequence[ClassGroup],
    outlooks: Sequence[Outlook],
    *,
    ratio: float | None,
    bias: bool,
    measured: float | None,
) -> tuple[Panel, ...]:
    """Predicted margin of each size; of two sizes also the cosine between rare classes against R, this place marked."""
    margins_panel = _margins_panel(groups, outlooks)
    rare, frequent = (sum(g.number for g in groups if g.rare is rare) for rare in (True, False))
    if ratio is None or rare < 2:
        return (margins_panel,)
    return _cosine_panel(frequent, rare, outlooks, ratio, bias, measured), margins_panel


def _cosine_panel(
    K_A: int, K_B: int, outlooks: Sequence[Outlook], R: float, bias: bool, measured: float | None
) -> Panel:
    ends = [o.log_collapse for o in outlooks if o.log_collapse is not None]
    reach = [log_R0 + 0.5 for log_R0 in ends if log_R0 < FURTHEST]
    end = max([math.log(R) + 1.0, math.log(100), *reach])
    ratios = np.exp(np.linspace(0, end, POINTS))
    series, curves = [], []
    names = ("predicted by the norms", "predicted by the norm in use")
    for at, name in zip(outlooks, names, strict=False):
        c = min(at.c, LARGEST_C)
        curve = collapse_curve(K_A, K_B, ratios, E_W=c, E_H=c, bias=bias)
        series.append(Series(ratios.tolist(), curve.cosines.tolist(), name, style="line"))
        curves.append(curve)
    series += vanishing(curves)
    if measured is not None:
        series.append(Series((R,), (measured,), "measured", color=3))
    R0 = " and ".join(ratio_words(log_R0) for log_R0 in ends)
    return Panel(
        "cosine between rows of rare classes",
        series,
        xlabel="imbalance ratio R",
        ylabel="cosine",
        log_x=True,
        log_y=False,
        note=f"dotted: here, R = {ratio_words(math.log(R))}\nR0 = {R0}",
        marked=R,
    )


def _margins_panel(groups: Sequence[ClassGroup], outlooks: Sequence[Outlook]) -> Panel:
    """Margin of each size; at 0 and below its samples are lost."""
    series = []
    for at, name in zip(outlooks, ("by the norms", "by the norm in use"), strict=False):
        known = [(size.samples, size.margin) for size in at.sizes if size.margin is not None]
        if known:
            series.append(Series([n for n, _ in known], [m for _, m in known], name))
    ends = (groups[-1].low * 0.8, groups[0].high * 1.25)
    series.append(Series(ends, (0.0, 0.0), "lost at 0 and below", style="fit", color=7))
    bins = any(at.binned for at in outlooks)
    return Panel(
        f"predicted margin of each {'bin of sizes, at its largest' if bins else 'class size'}",
        series,
        xlabel="samples of a class",
        ylabel="own logit − best other",
        log_x=True,
        log_y=False,
    )
