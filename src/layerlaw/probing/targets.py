"""Targets of a regression, or several labels at once: which are measured, how, and what the network makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import torch
from torch import Tensor

from layerlaw.capture.plan import Plan, Site
from layerlaw.capture.scores import NO_SCORES, Scores
from layerlaw.errors import InputError, LabelError
from layerlaw.measures.columns import target_columns
from layerlaw.measures.unread import SiteColumns
from layerlaw.probing.classes import (
    NOT_ASKED,
    ClassChoice,
    Classes,
    Rows,
    named,
    numbers_and_names,
    told_classes,
    too_few,
)
from layerlaw.probing.memory import GROUPS
from layerlaw.probing.pictures import PictureSample
from layerlaw.record import REGRESSION, Kind
from layerlaw.stats import checked_labels
from layerlaw.stats.centers import Weighting
from layerlaw.stats.design import TargetDealer
from layerlaw.stats.labels import are_soft_labels, are_targets, checked_targets
from layerlaw.stats.limits import Doubt, check_range
from layerlaw.stats.ranks import all_reduce
from layerlaw.stats.regression import FirstRegression, SecondRegression
from layerlaw.wording import counted

if TYPE_CHECKING:
    from layerlaw.probing.state import Split

MANY = 20  # different whole numbers: more of them may be targets of a regression
NEARLY = 1e9  # one over an eigenvalue of the targets' correlations: from here on D_reg is off by 1e-6 and more
FIFTHS = 5  # colors of a target in the pictures


@dataclass(frozen=True)
class Targets:
    """Numbers to be predicted, or several labels at once: the columns of the targets that are measured, and their names.

    `undecided` says why the network's output is not looked at, where it is not.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]
    width: int
    scores: Scores = NO_SCORES
    undecided: str = ""
    few_whole: int = 0
    """How many different whole numbers a single target has, where they are so few that they may be class numbers."""
    lookup: None = None
    kind: ClassVar[Kind] = REGRESSION

    @property
    def K(self) -> int:
        """How many rows of features are remembered: one per target, and the mean."""
        return len(self.ids) + 1

    @classmethod
    def of(
        cls,
        classes: ClassChoice,
        plan: Plan,
        labels: Tensor,
        known: Sequence[str] | None,
        where: str,
        *,
        decisions: bool = True,
    ) -> Targets:
        """As requested (names of all targets, numbers of some, or {number: name}); else all of them."""
        width = 1 if labels.dim() == 1 else labels.shape[1]
        if are_soft_labels(labels):
            what = f"rows of {width} numbers that sum to 1, which are soft labels of a classifier or shares to be predicted"
            cures = (
                "Pass labels.argmax(1) to measure classes; for a regression leave out a column, which changes no D_reg"
            )
            raise LabelError(f"{where}: expected class numbers or targets, got {what}. {cures} (labels[:, 1:]).")
        numbers, given = numbers_and_names(classes)
        if given is not None and isinstance(numbers, int) and len(given) != width:
            raise InputError(f"classes: expected {width} names, one for each target, got {len(given)}.")
        if numbers is None or (given is not None and isinstance(numbers, int)):
            numbers = range(width)
        whole = width == 1 and bool((labels == labels.round()).all()) and bool((labels >= 0).all())
        outputs = numbers.__index__() if isinstance(numbers, SupportsIndex) else plan.classes if decisions else None
        if whole and outputs is not None and outputs > 2 and bool((labels < outputs).all()):
            checked_labels(labels, where=where)  # raises: class numbers as floating-point numbers
        if isinstance(numbers, SupportsIndex):
            numbers = range(numbers.__index__()) if numbers.__index__() == width else [-1]
        ids = tuple(int(number) for number in numbers)
        if not ids or len(set(ids)) < len(ids) or min(ids) < 0 or max(ids) >= width:
            one = "the target has number 0" if width == 1 else f"the targets have the numbers 0 … {width - 1}"
            raise LabelError(f"classes: expected names or numbers of targets, got {classes!r}; {one}.")
        different = len(set(labels.flatten().tolist())) if whole else 0
        few = different if 2 < different <= MANY and 2 * different < len(labels) else 0  # 0 and 1: a label, yes or no
        return cls(ids, named(ids, given, known), width, plan.scores, "" if decisions else NOT_ASKED, few)

    def positions(self, labels: Tensor, where: str) -> tuple[Tensor, None]:
        """The measured targets (n, q); all rows are kept."""
        return checked_targets(labels, self.width, where=where)[:, list(self.ids)], None

    def decide(self, output: Any, keep: Tensor | None) -> Tensor | None:
        """The network's output for the measured targets (n, q); `None` where it has not one column for each target."""
        scores = None if self.undecided else self.scores.of(output)
        rows = None if scores is None else scores.reshape(len(scores), -1)
        return rows[:, list(self.ids)] if rows is not None and rows.shape[1] == self.width else None

    def decide_freely(self, output: Any, keep: Tensor | None) -> None:
        """Of classes alone."""

    def unreadable(self, decision: Tensor) -> str:
        """What in the network's output is no number; empty where all are."""
        return "the network's output" * bool(decision.isnan().any())

    def dealer(self, groups: int, permuted: int, seed: int, labels: Tensor | None) -> TargetDealer:
        """Deals the targets of every batch for both passes."""
        return TargetDealer(GROUPS, groups=groups, permuted=permuted, seed=seed, all_labels=labels)

    def first(self, groups: int, moments: Sequence[Site]) -> FirstRegression:
        """Pass 1; groups are always kept, since regressions are held out by them."""
        kept = [site.name for site in moments]
        return FirstRegression(len(self.ids), GROUPS, jackknife=groups > 0, moments=kept)

    def second(
        self,
        first: FirstRegression,
        where: str,
        weighting: Weighting,
        reference: Split | None,
        linear: frozenset[str] = frozenset(),
        again: object = None,
    ) -> SecondRegression:
        """Pass 2, around what pass 1 found, which is in float64; the `reference` may then predict these targets."""
        if weighting != "samples":
            raise InputError(f"weighting: expected 'samples' where the labels are no classes, got {weighting!r}.")
        first.all_reduce()
        if reference is not None and reference.targets is not None:
            first.take_off(reference.targets.shift)
        first.check(where)
        second = SecondRegression(first)
        check_range(second.fits)
        return second

    def sample(self) -> PictureSample:
        """Samples for the pictures: the first ones."""
        return PictureSample(1)

    def pictured(self, labels: Tensor) -> Tensor:
        """What the samples of a batch are dealt by for the pictures (n,)."""
        return torch.zeros(len(labels), dtype=torch.long)

    def moments(
        self, sites: Sequence[Site], samples: int | None, memory: int, reference: Split | None
    ) -> tuple[list[Site], int]:
        """Sites whose second moments (d×d, of every group) fit half of the budget, narrow ones first, and their bytes.

        A site with more features than samples needs none: a regression on them would explain everything. Of test data, those
        whose targets the `reference` can predict.
        """
        if reference is not None:
            sites = [site for site in sites if reference.regressions[site].moments is not None]
        known = torch.tensor([float(samples or 0), float(samples is None)], dtype=torch.float64)
        all_reduce([known])  # every rank must keep the same
        n = None if known[1] else float(known[0])
        chosen, used = [], 0
        for site in sorted(sites, key=lambda site: site.features):
            d = site.features
            need = 8 * GROUPS * (d * (d + 1) // 2 + d * self.K)
            too_few = reference is None and n is not None and n * (1 - 1 / GROUPS) <= d + 1
            if used + need > memory // 2 or too_few:
                break
            chosen.append(site)
            used += need
        return chosen, used

    def leave(self, second: SecondRegression, sites: Sequence[Site], split: Split) -> None:
        """What the passes found, into the split."""
        found = dict(second.sites(split.untrusted))
        split.regressions |= {site: found[site.name] for site in sites}
        split.counts = [int(second.first.counts.sum())]
        split.accuracy, split.r_squared = second.label_accuracy, second.r_squared
        split.targets = second.first

    def planes(self, split: Split) -> tuple[list[int], list[str]]:
        """What the samples of the pictures are colored by: whether they have the first label, or its size in fifths."""
        if split.targets is None or not split.plane_labels:
            return [], []
        values = torch.cat(split.targets.pictured)[: len(split.plane_labels), 0].contiguous()
        if split.targets.binary:
            return [int(value) for value in values], [f"without {self.names[0]}", f"with {self.names[0]}"]
        ends = torch.unique(torch.quantile(values, torch.linspace(0, 1, FIFTHS + 1, dtype=values.dtype)))
        size, spread = float(ends.abs().max()), float(ends[-1] - ends[0])
        digits = 3 + max(0, math.floor(math.log10(size / spread))) if spread > 0 else 3
        names = [f"{self.names[0]}: {low:.{digits}g} … {high:.{digits}g}" for low, high in pairwise(ends.tolist())]
        return torch.bucketize(values, ends[1:-1]).tolist(), names

    def notes(self, split: Split) -> list[str]:
        """What there is to say of the targets and of what could not be measured."""
        first, found = split.targets, split.regressions
        assert first is not None
        white, q = next(iter(found.values())).fit.targets, len(self.ids)
        same = [name for name, deviation in zip(self.names, white.deviations.tolist(), strict=True) if deviation == 0]
        notes = (
            [f"Targets that are the same for all samples say nothing and were left out: {', '.join(same)}."]
            if same
            else []
        )
        if self.few_whole:
            seen = f"The labels are {self.few_whole} different whole numbers as floating-point numbers"
            notes.append(f"{seen}: taken as a regression target; pass integer labels for classes (labels.astype(int)).")
        if first.one_hot:
            more = "nearest class centers, collapse and accuracy are measured of class numbers, labels.argmax(1)"
            notes.append(f"Every sample has exactly one label, so D_reg is D: {more}.")
        elif int(white.rank) < q - len(same):
            spanned = counted(int(white.rank), "dimension")
            alike = "some are linear in others, up to about a millionth of their deviations"
            notes.append(f"The {q - len(same)} targets span {spanned}: {alike}.")
        # Along every direction that is kept H divides by the root of its eigenvalue.
        steepest = (white.deviations.unsqueeze(-1) * white.H).square().sum(0).max()
        if float(steepest) > NEARLY:
            cure = "all of them are there if you give differences of such targets in their place"
            notes.append(f"Some targets are nearly linear in others, so D_reg has about 4 digits: {cure}.")
        if split.accuracy is None and split.r_squared is None:
            what = "label accuracy" if first.binary else "R²"
            lacks = f"its output has not one column for each of {counted(self.width, 'target')}"
            notes.append(f"No {what} of the network: {self.undecided or lacks}.")
        short = [site.name for site, one in found.items() if int(one.fit.rank) < int(white.rank)]
        if short:
            least = counted(int(white.rank), "dimension")
            notes.append(f"What is fitted to the targets spans fewer than {least} at: {', '.join(short)}.")
        n = int(first.counts.sum())
        wide = [site.name for site in found if site.features + 1 >= n - int(first.counts.max())]
        if wide:
            why = f"a linear regression on as many features as samples ({n}) explains everything"
            notes.append(f"No residual 1 − R² at {', '.join(wide)}: {why}.")
        unkept = [site.name for site, one in found.items() if one.moments is None and site.name not in wide]
        if unkept:
            notes.append(f"No residual 1 − R² at {', '.join(unkept)}: its second moments do not fit memory_gib.")
        return notes

    def span(self, split: Split) -> int:
        """How many dimensions the targets span, and what is fitted to them at most."""
        return int(next(iter(split.regressions.values())).fit.targets.rank)

    def short_of(self, features: int, rank: int, span: int) -> str:
        """Why a site is no point of the law: what is fitted to the targets spans too little."""
        if features < span:
            return f"{too_few(features)} the {span} dimensions of the targets"
        return f"what is fitted to the targets spans {rank} of {span} dimensions"

    def fitted(self, split: Split, site: Site) -> Tensor:
        """What tells the features of a site from those of another: their fit at the mean of the targets, and its slopes."""
        fit = split.regressions[site].fit
        slopes = fit.coefficients[1:]
        return torch.cat([fit.coefficients[:1] + fit.targets.mean @ slopes, slopes * fit.targets.deviations[:, None]])

    def doubt(self, split: Split, site: Site) -> Doubt | None:
        """Why D_reg of a site would look right and may be wrong."""
        return split.regressions[site].doubt

    def columns(
        self, split: Split, sites: Sequence[Site], weights: Rows = None, reference: Split | None = None
    ) -> dict[Site, SiteColumns]:
        """The numbers of the sites; the targets of test data are predicted by the regression of the `reference`."""
        lent = {} if reference is None else reference.regressions
        regressions = split.regressions
        return {site: target_columns(regressions[site], f"site '{site.name}'", lent.get(site)) for site in sites}


def classes_or_targets(
    classes: ClassChoice,
    plan: Plan,
    labels: Tensor | None,
    first: Tensor,
    known: Sequence[str] | None,
    *,
    decisions: bool = True,
) -> Classes | Targets:
    """What the labels are, by all of them where they are known, else by the `first` batch of them."""
    seen, where = (first, "labels of data, batch 0") if labels is None else (labels, "labels of data")
    if are_targets(seen):
        return Targets.of(classes, plan, seen, known, where, decisions=decisions)
    hint = _numbers_hint(seen, plan.classes if decisions else None)
    try:
        chosen = Classes.of(classes, plan, labels, known, decisions=decisions, first=first)
    except LabelError as error:
        raise LabelError(f"{error}{hint}") from None
    return replace(chosen, hint=f"{chosen.hint}{hint}")


def _numbers_hint(labels: Tensor, outputs: int | None) -> str:
    """What ends an error about class numbers that look like whole numbers to be predicted."""
    if labels.dim() > 2 or labels.dtype.is_complex or labels.dtype == torch.bool:
        return ""
    different = len(set(labels.flatten().tolist()))
    if different <= (outputs or 0) or (outputs != 2 and different <= MANY):  # one score fits 2 classes, or one target
        return ""
    return f" If these {different} different numbers are to be predicted (a regression), pass y.float()."


def told_outputs(classes: ClassChoice, labels: Tensor, known: Sequence[str] | None) -> int | None:
    """How many scores the network's output should have, as far as the user or the data say; one score tells two apart."""
    if are_targets(labels):
        return max(2, 1 if labels.dim() == 1 else labels.shape[1])
    return told_classes(classes, known)
