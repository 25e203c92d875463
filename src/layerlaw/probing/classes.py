"""What the labels are: classes, or targets of a regression; which are measured, how, and what the network makes of them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import torch
from torch import Tensor

from layerlaw.capture.modules import logits_of
from layerlaw.capture.plan import Plan, Site
from layerlaw.errors import InputError, LabelError
from layerlaw.measures.columns import Columns, site_columns, target_columns
from layerlaw.probing.memory import GROUPS
from layerlaw.record import CLASSIFIER, REGRESSION, Kind
from layerlaw.stats import checked_labels
from layerlaw.stats.centers import Centers, Weighting
from layerlaw.stats.labels import are_targets, check_counts, checked_targets
from layerlaw.stats.passes import Around, Dealer, FirstPass, SecondPass, TargetDealer
from layerlaw.stats.plane import PlaneSample
from layerlaw.stats.ranks import all_reduce
from layerlaw.stats.regression import FirstRegression, SecondRegression
from layerlaw.wording import counted

if TYPE_CHECKING:
    from layerlaw.probing.run import Split

FIFTHS = 5  # colors of a target in the pictures
ClassChoice = SupportsIndex | Sequence[int] | Sequence[str] | Mapping[int, str] | None


@dataclass(frozen=True)
class Classes:
    """`ids` are the numbers of the measured classes in the labels and in the logits, `names` what they are called.

    `lookup` gives the position of each class number (−1 for those left out); `None` when all classes are measured.
    A network with a single logit decides for class 1 above the `threshold`.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...] = ()
    lookup: Tensor | None = None
    threshold: float = 0.0
    kind: ClassVar[Kind] = CLASSIFIER

    @property
    def K(self) -> int:
        """How many classes are measured."""
        return len(self.ids)

    @classmethod
    def of(cls, classes: ClassChoice, plan: Plan, labels: Tensor | None, known: Sequence[str] | None = None) -> Classes:
        """As requested; else as many as the model has logits, or the labels show. Names: those requested, else `known`."""
        numbers: Any = classes
        given: list[str] | None = None
        if isinstance(classes, Mapping):
            numbers, given = list(classes), [str(name) for name in classes.values()]
        elif isinstance(classes, Sequence) and len(classes) and all(isinstance(name, str) for name in classes):
            numbers, given = plan.classes, [str(name) for name in classes]
        if numbers is None:
            numbers = plan.classes if plan.classes is not None or labels is None else checked_labels(labels)[1]
        if numbers is None and given is not None:
            numbers = len(given)
        if numbers is None:
            why = "The model's output is no tensor of class scores (n, K)"
            raise InputError(f"how many classes? {why}, so pass classes=K (or the names or numbers of the classes).")
        ids, lookup = cls._numbered(numbers, plan)
        return cls(ids, _named(ids, given, known), lookup, plan.threshold)

    @staticmethod
    def _numbered(classes: Any, plan: Plan) -> tuple[tuple[int, ...], Tensor | None]:
        if isinstance(classes, SupportsIndex) and not isinstance(classes, Tensor):
            K = classes.__index__()
            if K < 2:
                raise LabelError(f"classes: expected at least 2 classes, got {K}: one class cannot be separated.")
            return tuple(range(K)), None
        ids = tuple(int(c) for c in classes)
        if len(set(ids)) != len(ids) or len(ids) < 2 or min(ids) < 0:
            raise LabelError(f"classes: expected at least two different class numbers ≥ 0, got {list(ids)}.")
        if plan.classes is not None and max(ids) >= plan.classes:
            raise LabelError(f"classes: expected numbers below the model's {plan.classes} logits, got {max(ids)}.")
        lookup = torch.full((max(max(ids) + 1, plan.classes or 0),), -1)
        lookup[list(ids)] = torch.arange(len(ids))
        return ids, lookup

    def positions(self, labels: Tensor, where: str) -> tuple[Tensor, Tensor | None]:
        """Labels as 0 … K−1, and the rows to keep (`None`: all)."""
        if self.lookup is None:
            return checked_labels(labels, self.K, where=where)[0], None
        labels, _ = checked_labels(labels, len(self.lookup), where=where)
        found = self.lookup.to(labels.device)[labels]
        keep = (found >= 0).nonzero().squeeze(1)
        return found[keep], keep if len(keep) < len(labels) else None

    def decide(self, output: Any, keep: Tensor | None) -> Tensor | None:
        """The network's decision among the measured classes, as 0 … K−1; `None` when its output holds no scores."""
        scores = logits_of(output)
        if scores is None:
            return None
        scores = scores if keep is None else scores[keep.to(scores.device)]
        if scores.dim() == 1 or scores.shape[1] == 1:
            score = scores.reshape(-1)
            scores = torch.stack([torch.full_like(score, self.threshold), score], 1)
        if scores.shape[1] <= max(self.ids):
            return None
        every = self.ids == tuple(range(scores.shape[1]))
        return (scores if every else scores[:, list(self.ids)]).argmax(1)

    def dealer(self, groups: int, permuted: int, seed: int, labels: Tensor | None) -> Dealer:
        """Deals the labels of every batch for both passes."""
        return Dealer(self.K, groups=groups, permuted=permuted, seed=seed, all_labels=labels)

    def first(self, groups: int, moments: Sequence[Site]) -> FirstPass:
        """Pass 1."""
        return FirstPass(self.K, groups)

    def second(self, first: FirstPass, where: str, weighting: Weighting, reference: Split | None) -> SecondPass:
        """Pass 2, around what pass 1 found; `reference` lends its centers."""
        first.all_reduce()
        check_counts(first.total(next(iter(first.sums))).counts, where=where)
        lent: dict[Hashable, Centers] | None = None
        if reference is not None:
            lent = {site.name: around.centers for site, around in reference.around.items() if site.name in first.sums}
        return SecondPass(Around.all_of(first, weighting, lent))

    def sample(self) -> PlaneSample:
        """Samples for the pictures."""
        return PlaneSample(self.K)

    def pictured(self, labels: Tensor) -> Tensor:
        """What the samples of a batch are dealt by for the pictures (n,)."""
        return labels

    def moments(
        self, sites: Sequence[Site], samples: int | None, memory: int, reference: Split | None
    ) -> tuple[list[Site], int]:
        """Sites whose second moments are kept, and the bytes they take."""
        return [], 0

    def planes(self, split: Split) -> tuple[list[int], list[str]]:
        """What the samples of the pictures are colored by: their classes."""
        return split.plane_labels, []

    def leave(self, second: SecondPass, sites: Sequence[Site], split: Split) -> None:
        """What the passes found, into the split."""
        scatters = second.scatters()
        for site in sites:
            split.around[site], split.scatters[site] = second.around[site.name], scatters[site.name]
            if site.name in second.near_reference:
                split.near[site] = second.near_reference[site.name]
        found = scatters[sites[0].name]
        split.counts = [int(count) for count in found.counts]
        if found.near.mismatches is not None:
            split.accuracy = float(second.right) / float(found.counts.sum())

    def columns(
        self, split: Split, site: Site, weight: Tensor | None = None, reference: Split | None = None
    ) -> tuple[Columns, dict[str, list[float | None]]]:
        """The numbers of a site; those of test data by the centers of the `reference` too."""
        return site_columns(split.around[site], split.scatters[site], split.near.get(site), weight)


@dataclass(frozen=True)
class Targets:
    """Numbers to be predicted, or several labels at once: the columns of the targets that are measured, and their names."""

    ids: tuple[int, ...]
    names: tuple[str, ...]
    width: int
    lookup: None = None
    kind: ClassVar[Kind] = REGRESSION

    @property
    def K(self) -> int:
        """How many rows of features are remembered: one per target, and the mean."""
        return len(self.ids) + 1

    @classmethod
    def of(cls, classes: ClassChoice, plan: Plan, labels: Tensor, known: Sequence[str] | None, where: str) -> Targets:
        """As requested (names of all targets, numbers of some, or {number: name}); else all of them."""
        width = 1 if labels.dim() == 1 else labels.shape[1]
        numbers: Any = range(width) if classes is None else classes
        given: list[str] | None = None
        if isinstance(classes, Mapping):
            numbers, given = list(classes), [str(name) for name in classes.values()]
        elif isinstance(classes, Sequence) and len(classes) and all(isinstance(name, str) for name in classes):
            numbers, given = range(width), [str(name) for name in classes]
            if len(given) != width:
                raise InputError(f"classes: expected {width} names, one for each target, got {len(given)}.")
        whole = width == 1 and bool((labels == labels.round()).all()) and bool((labels >= 0).all())
        outputs = numbers.__index__() if isinstance(numbers, SupportsIndex) else plan.classes
        if whole and outputs is not None and outputs > 2 and bool((labels < outputs).all()):
            checked_labels(labels, where=where)  # raises: class numbers as floating-point numbers
        if isinstance(numbers, SupportsIndex):
            numbers = range(numbers.__index__()) if numbers.__index__() == width else [-1]
        ids = tuple(int(number) for number in numbers)
        if not ids or len(set(ids)) < len(ids) or min(ids) < 0 or max(ids) >= width:
            one = "the target has number 0" if width == 1 else f"the targets have the numbers 0 … {width - 1}"
            raise LabelError(f"classes: expected names or numbers of targets, got {classes!r}; {one}.")
        return cls(ids, _named(ids, given, known), width)

    def positions(self, labels: Tensor, where: str) -> tuple[Tensor, None]:
        """The measured targets (n, q); all rows are kept."""
        return checked_targets(labels, self.width, where=where)[:, list(self.ids)], None

    def decide(self, output: Any, keep: Tensor | None) -> Tensor | None:
        """The network's output for the measured targets (n, q); `None` where it has not one column for each target."""
        scores = logits_of(output)
        rows = None if scores is None else scores.reshape(len(scores), -1)
        return rows[:, list(self.ids)] if rows is not None and rows.shape[1] == self.width else None

    def dealer(self, groups: int, permuted: int, seed: int, labels: Tensor | None) -> TargetDealer:
        """Deals the targets of every batch for both passes."""
        return TargetDealer(GROUPS, groups=groups, permuted=permuted, seed=seed, all_labels=labels)

    def first(self, groups: int, moments: Sequence[Site]) -> FirstRegression:
        """Pass 1; groups are always kept, since regressions are held out by them."""
        kept = [site.name for site in moments]
        return FirstRegression(len(self.ids), GROUPS, jackknife=groups > 0, moments=kept)

    def second(
        self, first: FirstRegression, where: str, weighting: Weighting, reference: Split | None
    ) -> SecondRegression:
        """Pass 2, around what pass 1 found; the `reference` may then predict these targets."""
        if weighting != "samples":
            raise InputError(f"weighting: expected 'samples' where the labels are no classes, got {weighting!r}.")
        first.all_reduce()
        if reference is not None and reference.targets is not None:
            first.take_off(reference.targets.shift)
        first.check(where)
        return SecondRegression(first)

    def sample(self) -> PlaneSample:
        """Samples for the pictures: the first ones."""
        return PlaneSample(1)

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
        found = dict(second.sites())
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
        if first.one_hot:
            more = "nearest class centers, collapse and accuracy are measured of class numbers, labels.argmax(1)"
            notes.append(f"Every sample has exactly one label, so D_reg is D: {more}.")
        elif int(white.rank) < q - len(same):
            spanned = counted(int(white.rank), "dimension")
            notes.append(f"The {q - len(same)} targets span {spanned}: some are linear in others.")
        if split.accuracy is None and split.r_squared is None:
            what = "label accuracy" if first.binary else "R²"
            notes.append(
                f"No {what} of the network: its output has not one column for each of {counted(self.width, 'target')}."
            )
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

    def columns(
        self, split: Split, site: Site, weight: Tensor | None = None, reference: Split | None = None
    ) -> tuple[Columns, dict[str, list[float | None]]]:
        """The numbers of a site; the targets of test data are predicted by the regression of the `reference`."""
        lent = None if reference is None else reference.regressions[site]
        return target_columns(split.regressions[site], f"site '{site.name}'", lent)


def classes_or_targets(
    classes: ClassChoice, plan: Plan, labels: Tensor | None, example: Tensor, known: Sequence[str] | None
) -> Classes | Targets:
    """What the labels are, by all of them where they are known, else by those of the first batch."""
    seen, where = (example, "labels of data, batch 0") if labels is None else (labels, "labels of data")
    if are_targets(seen):
        return Targets.of(classes, plan, seen, known, where)
    return Classes.of(classes, plan, labels, known)


def _named(ids: tuple[int, ...], given: Sequence[str] | None, known: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the measured classes: as requested, as the data know them, or their numbers."""
    for names in (given, known):
        if names is not None and len(names) == len(ids):
            return tuple(names)
        if names is not None and len(names) > max(ids):
            return tuple(names[i] for i in ids)
        if names is not None and names is given:
            expected = f"{len(ids)} names, since {len(ids)} classes are measured (the model's logits)"
            subset = "For a subset pass classes={number: name, …}"
            raise InputError(f"classes: expected {expected}, got {len(names)}. {subset}.")
    return tuple(map(str, ids))
