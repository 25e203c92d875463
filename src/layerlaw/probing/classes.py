"""Which classes are measured, what they are called, and what the network decides among them."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from layerlaw.capture.batches import LABEL_KEYS
from layerlaw.capture.plan import Plan, Site
from layerlaw.capture.scores import NO_SCORES, Scores
from layerlaw.errors import FeatureError, InputError, LabelError, whole_number
from layerlaw.measures.unread import SiteColumns, all_columns
from layerlaw.probing.pictures import PictureSample
from layerlaw.record import CLASSIFIER, Kind
from layerlaw.stats.around import FEW_MEANS, Around, check_ranges
from layerlaw.stats.centers import Centers, Weighting
from layerlaw.stats.design import Dealer
from layerlaw.stats.labels import check_counts, check_reached, checked_labels, near_chance
from layerlaw.stats.limits import TOO_LARGE, Doubt, finite
from layerlaw.stats.passes import FirstPass, SecondPass, SumsAgain
from layerlaw.stats.precision import double, not_dense

if TYPE_CHECKING:
    from layerlaw.probing.state import Split

ClassChoice = SupportsIndex | Sequence[int] | Sequence[str] | Mapping[int, str] | Mapping[str, int] | None
MOST = 10_000_000  # classes: more would not be counted in memory
NOT_ASKED = "scores=None"
Rows = Mapping[Site, Tensor] | None  # of a classifier (K, d), by the site that it reads


@dataclass(frozen=True)
class Classes:
    """`ids` are the numbers of the measured classes in the labels and in the logits, `names` what they are called.

    `lookup` gives the position of each class number (−1 for those left out); `None` when all classes are measured.
    A network with a single logit decides for class 1 above the `threshold`. `undecided` says why its decisions are not
    looked at, where they are not; `hint` ends errors about labels.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...] = ()
    lookup: Tensor | None = None
    threshold: float = 0.0
    scores: Scores = NO_SCORES
    outputs: int | None = None
    undecided: str = ""
    hint: str = ""
    kind: ClassVar[Kind] = CLASSIFIER

    @property
    def K(self) -> int:
        """How many classes are measured."""
        return len(self.ids)

    @classmethod
    def of(
        cls,
        classes: ClassChoice,
        plan: Plan,
        labels: Tensor | None,
        known: Sequence[str] | None = None,
        *,
        decisions: bool = True,
        first: Tensor | None = None,
    ) -> Classes:
        """As requested; else as many as the model has logits, or the labels show. Names: those requested, else `known`.

        Without `decisions` the model's output is not looked at; `first` are labels that are known in any case.
        """
        W = plan.classes if decisions else None
        numbers, given = numbers_and_names(classes)
        hint = ""
        if numbers is None and W is not None and not _others(W, known, first):
            hint = (
                f" The model's output was taken for the scores of {W} classes. A model without a classifier, or of other "
                "classes than the labels, needs scores=None (and classes=K)."
            )
            numbers = W
        if numbers is None and labels is not None and (W is None or known is None):
            numbers = checked_labels(labels)[1]
            check_reached(numbers, len(labels))
        if numbers is None and known is not None:
            numbers = len(known)
        if numbers is None:
            why = (
                "The model's output is no tensor of class scores (n, K)"
                if decisions
                else "scores=None leaves them open"
            )
            raise InputError(f"how many classes? {why}, so pass classes=K (or the names or numbers of the classes).")
        ids, lookup = cls._numbered(numbers, W)
        undecided = "" if decisions else NOT_ASKED
        if W is not None and lookup is None and len(ids) != W and not (plan.scores.given and len(ids) < W):
            undecided = f"the model's output fits {W} classes, not {len(ids)}, so it is not the scores of these"
            which = f" {len(ids)} classes were named, the model's output fits {W}."
            hint = f"{which} For some of its classes pass classes={{number: name, …}}, or their numbers." * (
                given is not None
            )
        names = named(ids, given, known)
        return cls(ids, names, lookup, plan.threshold, plan.scores, W, undecided, hint)

    @staticmethod
    def _numbered(classes: Any, columns: int | None) -> tuple[tuple[int, ...], Tensor | None]:
        if isinstance(classes, SupportsIndex) and not isinstance(classes, (Tensor, bool)):
            K = classes.__index__()
            if K < 2:
                raise LabelError(f"classes: expected at least 2 classes, got {K}: one class cannot be separated.")
            if K > MOST:
                raise LabelError(f"classes: expected at most {MOST:,} classes, got {K:,}.")
            return tuple(range(K)), None
        try:
            ids = tuple(operator.index(c) for c in classes)
        except (TypeError, ValueError):
            expected = "expected K, names of all classes, numbers of those to be measured, or {number: name}"
            raise InputError(f"classes: {expected}, got {str(classes)[:100]}.") from None
        if len(set(ids)) != len(ids) or len(ids) < 2 or min(ids) < 0:
            raise LabelError(f"classes: expected at least two different class numbers ≥ 0, got {list(ids)}.")
        if max(ids) >= MOST:
            raise LabelError(f"classes: expected numbers below {MOST:,}, got {max(ids):,}. Number the classes from 0.")
        if columns is not None and max(ids) >= columns:
            came = f"classes: expected numbers below the model's {columns} logits, got {max(ids)}"
            raise LabelError(f"{came}. Where the labels are not the model's own classes pass scores=None.")
        if columns == len(ids) and ids == tuple(range(columns)):
            return ids, None
        lookup = torch.full((max(max(ids) + 1, columns or 0),), -1)
        lookup[list(ids)] = torch.arange(len(ids))
        return ids, lookup

    def positions(self, labels: Tensor, where: str) -> tuple[Tensor, Tensor | None]:
        """Labels as 0 … K−1, and the rows to keep (`None`: all)."""
        limit = self.K if self.lookup is None else self.outputs and len(self.lookup)
        try:
            labels, _ = checked_labels(labels, limit, where=where)
        except LabelError as error:
            numbers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
            raise LabelError(f"{error}{self.hint * numbers}") from None
        if self.lookup is None:
            return labels, None
        lookup = self.lookup.to(labels.device)
        found = torch.where(labels < len(lookup), lookup[labels.clamp(max=len(lookup) - 1)], -1)
        keep = (found >= 0).nonzero().squeeze(1)
        return found[keep], keep if len(keep) < len(labels) else None

    def decide(self, output: Any, keep: Tensor | None) -> Tensor | None:
        """The network's decision among the measured classes, as 0 … K−1, −1 where a score is NaN; `None` without scores."""
        scores = self._scores(output, keep)
        if scores is None or scores.shape[1] <= max(self.ids):
            return None
        best, decision = (scores if self.ids == tuple(range(scores.shape[1])) else scores[:, list(self.ids)]).max(1)
        return decision.masked_fill(best.isnan(), -1)  # it is where any score is

    def confidence(self, output: Any, keep: Tensor | None) -> Tensor | None:
        """Softmax of the decision among the measured classes, in float64; of one probability p the larger of p and 1 − p."""
        scores = self._scores(output, keep)
        if scores is None or scores.shape[1] <= max(self.ids):
            return None
        chosen = double(scores[:, list(self.ids)])
        single = self.threshold != 0  # a score that is a probability
        return torch.maximum(chosen[:, 1], 1 - chosen[:, 1]) if single else chosen.softmax(1).amax(1)

    def decide_freely(self, output: Any, keep: Tensor | None) -> Tensor | None:
        """Its decision among all of its classes, where fewer are measured: 0 … K−1, or −1 for others.

        Where labels are not the model's own classes it hardly ever hits; `None` where nobody needs to know.
        """
        if self.lookup is None or self.scores.given:
            return None
        scores = self._scores(output, keep)
        if scores is None or scores.shape[1] <= self.K:
            return None
        return self.lookup.to(scores.device)[scores.argmax(1)]

    def _scores(self, output: Any, keep: Tensor | None) -> Tensor | None:
        scores = None if self.undecided else self.scores.of(output)
        if scores is None:
            return None
        scores = scores if keep is None else scores[keep.to(scores.device)]
        if scores.dim() == 1 or scores.shape[1] == 1:
            score = scores.reshape(-1)
            return torch.stack([torch.full_like(score, self.threshold), score], 1)
        return scores

    def unreadable(self, decision: Tensor) -> str:
        """What in the network's output is no number; empty where all are."""
        return "class scores" * bool((decision < 0).any())

    def dealer(self, groups: int, permuted: int, seed: int, labels: Tensor | None) -> Dealer:
        """Deals the labels of every batch for both passes."""
        return Dealer(self.K, groups=groups, permuted=permuted, seed=seed, all_labels=labels)

    def first(self, groups: int, moments: Sequence[Site]) -> FirstPass:
        """Pass 1."""
        return FirstPass(self.K, groups)

    def second(
        self,
        first: FirstPass,
        where: str,
        weighting: Weighting,
        reference: Split | None,
        linear: frozenset[str] = frozenset(),
        again: SumsAgain | None = None,
    ) -> SecondPass:
        """Pass 2, around what pass 1 found; `reference` lends its centers, `linear` sites keep their scatter.

        `again` adds up kept features of some sites in float64, where float32 may have lost some of their directions.
        """
        first.all_reduce()
        try:
            check_counts(first.total(next(iter(first.sums))).counts, where=where)
        except LabelError as error:
            raise LabelError(f"{error}{self.hint}") from None
        others = {} if reference is None else reference.around
        lent: dict[Hashable, Centers] = {site.name: other.centers for site, other in others.items()}
        around = Around.all_of(first, weighting, lent, linear)
        check_ranges(around)
        closely = [key for key, each in around.items() if each.closer is not None]
        if again is not None and closely and (found := again(closely)) is not None:
            for key, wide in Around.all_of(found[0], weighting, lent, linear).items():
                sizes = found[1].sums[key].sums / wide.centers.counts.unsqueeze(-1)
                around[key] = around[key].with_digits(wide, sizes)
        return SecondPass(around, same_features=again is not None)

    def sample(self) -> PictureSample:
        """Samples for the pictures."""
        return PictureSample(self.K)

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
        scatters = second.scatters(split.untrusted)
        if not finite(second.sums):
            name = next(name for name, scatter in scatters.items() if not finite([scatter.sums]))
            raise FeatureError(f"site '{name}': expected finite features, got infinite squares. {TOO_LARGE}.")
        split.around |= {site: second.around[site.name] for site in sites}
        split.scatters |= {site: scatters[site.name] for site in sites}
        near = second.near_reference
        split.near |= {site: near[site.name] for site in sites if site.name in near}
        found = scatters[sites[0].name]
        split.counts = found.counts.long().tolist()
        if found.near.mismatches is not None:
            split.accuracy = float(second.right) / float(found.counts.sum())

    def columns(
        self, split: Split, sites: Sequence[Site], weights: Rows = None, reference: Split | None = None
    ) -> dict[Site, SiteColumns]:
        """The numbers of the sites, at some by the rows (K, d) of the classifier that reads there: its `weights`."""
        read = weights or {}
        left = [site for site in sites if site not in split.finished or site in read]
        known = [(split.around[site], split.scatters[site], split.near.get(site)) for site in left]
        found = all_columns(known, {left.index(site): rows for site, rows in read.items()})
        return split.numbers(sites, dict(zip(left, found, strict=True)))

    def span(self, split: Split) -> int:
        """How many dimensions the class means of a site span at most."""
        return self.K - 1

    def short_of(self, features: int, rank: int, span: int) -> str:
        """Why a site is no point of the law: its class means span too little."""
        if features < span:
            return f"{too_few(features)} the {span} dimensions of {span + 1} class means"
        return f"its class means span {rank} of {span} dimensions"

    def fitted(self, split: Split, site: Site) -> Tensor:
        """What tells the features of a site from those of another: class means, or a few of them; of slices their mean."""
        few = FEW_MEANS if split.finished else None
        return split.lent[site].centers.mean if site in split.lent else split.around[site].centers.means[:few]

    def doubt(self, split: Split, site: Site) -> Doubt | None:
        """Why D of a site would look right and may be wrong."""
        return split.around[site].doubt(split.scatters[site])

    def doubts(self, split: Split) -> list[str]:
        """A note where the decisions are so wrong that the scores are hardly those of the labels."""
        if split.accuracy is None:
            return []
        n, chance = sum(split.counts), 1 / self.K
        least = chance - 3 * math.sqrt(chance * (1 - chance) / n)
        by = str(self.scores) if self.scores.function is not None else f"from {self.scores}"
        found = f"Accuracy is {split.accuracy:.1%} with the scores read {by}"
        if split.accuracy < min(least, chance / 2):
            may = "these may be no class scores (scores=), or the labels be numbered in another order than they"
            return [f"{found}, far below chance ({chance:.1%}): {may}."]
        site, scatter = list(split.scatters.items())[-1]
        nearest = float(scatter.near.hits.sum() / scatter.counts.sum())
        if self.scores.given and near_chance(split.accuracy, self.K) and nearest > (1 + chance) / 2:
            other = f"the nearest class center at '{site.name}' is right on {nearest:.1%}"
            return [f"{found}, while {other}: are these scores?"]
        return []


def too_few(features: int) -> str:
    """The beginning of a sentence on what so many features cannot hold."""
    return "1 feature does not hold" if features == 1 else f"{features} features do not hold"


def foreign_scores(free_accuracy: float | None, columns: int | None) -> str:
    """Why the scores are not those of the labels, where only some classes were measured; empty where nothing says so."""
    if free_accuracy is None or columns is None or not near_chance(free_accuracy, columns):
        return ""
    found = f"of all its {columns} outputs the network chooses that of the label for {free_accuracy:.1%} of the samples"
    scaled = "its inputs are scaled otherwise than in training (--normalize)"
    why = f"the labels are not its own classes, {scaled}, or it is untrained"
    return f"{found}: {why}. If they are its classes, pass scores='output'"


def told_classes(classes: ClassChoice, known: Sequence[str] | None) -> int | None:
    """How many classes the user (or the data) spoke of; `None` where only some of them were named, or none."""
    numbers, _ = numbers_and_names(classes)
    if numbers is None:
        return None if known is None else len(known)
    return None if isinstance(numbers, Tensor) else whole_number(numbers)


def names_in(data: Any) -> Sequence[str] | None:
    """The class names that data know, also inside loaders and subsets: torchvision's, our own, Hugging Face's."""
    for _ in range(20):  # a loader of a subset of a subset …
        for attribute in ("class_names", "classes", "class_to_idx"):
            if names := _as_names(getattr(data, attribute, None)):
                return names
        features = getattr(data, "features", None)
        for key in LABEL_KEYS if isinstance(features, Mapping) else ():
            if names := _as_names(getattr(features.get(key), "names", None)):  # type: ignore[union-attr]
                return names
        parts = getattr(data, "datasets", None)  # a ConcatDataset
        inner = parts[0] if isinstance(parts, (list, tuple)) and parts else getattr(data, "dataset", None)
        if inner is None or isinstance(inner, Tensor):
            return None
        if isinstance(parts, (list, tuple)) and len({str(names_in(part)) for part in parts}) != 1:
            return None
        data = inner
    return None


def _as_names(value: Any) -> list[str] | None:
    """A list of names, or a dictionary of them by number, or of numbers by name."""
    if isinstance(value, Mapping):
        pairs = {n: k for k, n in value.items()} if all(isinstance(k, str) for k in value) else dict(value)
        if not all(isinstance(k, int) for k in pairs) or sorted(pairs) != list(range(len(pairs))):
            return None
        value = [pairs[k] for k in range(len(pairs))]
    named = isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(name, str) for name in value)
    return list(value) if named else None


def numbers_and_names(classes: Any) -> tuple[Any, list[str] | None]:
    """What was requested as K or as class numbers, and the names where some came with them."""
    if isinstance(classes, Mapping) and classes:
        turned = all(isinstance(key, str) for key in classes)  # {"cat": 3}
        pairs = {n: str(name) for name, n in classes.items()} if turned else {n: str(v) for n, v in classes.items()}
        if len(pairs) < len(classes):
            raise InputError(f"classes: expected a number of its own for each name, got {dict(classes)}.")
        return list(pairs), list(pairs.values())
    if isinstance(classes, Tensor) and (why := not_dense(classes)):
        raise InputError(f"classes: expected K, numbers or names, got {why}.")
    if isinstance(classes, (np.ndarray, Tensor)):
        classes = classes.tolist()
    if isinstance(classes, (type, str)):
        raise InputError(f"classes: expected K, a list of names or of numbers, or {{number: name}}, got {classes!r}.")
    if isinstance(classes, Sequence) and len(classes) and all(isinstance(name, str) for name in classes):
        return len(classes), [str(name) for name in classes]
    return classes, None


def _others(columns: int, known: Sequence[str] | None, first: Tensor | None) -> bool:
    """Whether the data name fewer classes than the model has outputs, and their labels are numbers of these names."""
    if known is None or len(known) >= columns:
        return False
    return first is None or first.is_floating_point() or not len(first) or int(first.max()) < len(known)


def named(ids: tuple[int, ...], given: Sequence[str] | None, known: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the measured classes: as requested, as the data know them, or their numbers."""
    for names in (given, known):
        if names is not None and len(names) == len(ids):
            return tuple(names)
        if names is not None and len(names) > max(ids):
            return tuple(names[i] for i in ids)
    return tuple(map(str, ids))
