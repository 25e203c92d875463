"""Which classes are measured, and what the network decides among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from layerlaw.capture.modules import logits_of
from layerlaw.capture.plan import Plan
from layerlaw.errors import InputError, LabelError
from layerlaw.stats import checked_labels

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
