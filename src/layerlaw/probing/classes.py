"""Which classes are measured, and what the network decides among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerlaw.capture import Plan, logits_of
from layerlaw.errors import InputError, LabelError
from layerlaw.stats import checked_labels


@dataclass(frozen=True)
class Classes:
    """`ids` are the numbers of the measured classes in the labels and in the logits.

    `lookup` gives the position of each class number (−1 for those left out); `None` when all classes are measured.
    """

    ids: tuple[int, ...]
    lookup: Tensor | None = None

    @property
    def K(self) -> int:
        """How many classes are measured."""
        return len(self.ids)

    @classmethod
    def of(cls, classes: int | Sequence[int] | None, plan: Plan, labels: Tensor | None) -> Classes:
        """As asked for; else as many as the model has logits; else as many as the labels show."""
        if classes is None:
            classes = plan.classes
        if classes is None and labels is not None:
            classes = checked_labels(labels)[1]
        if classes is None:
            raise InputError(
                "how many classes? The model's output is no tensor of class scores (n, K), so pass classes=K "
                "(or the class numbers to be measured)."
            )
        if isinstance(classes, int):
            if classes < 2:
                raise LabelError(
                    f"classes: expected at least 2 classes, got {classes}: one class cannot be separated from nothing."
                )
            return cls(tuple(range(classes)))
        ids = tuple(int(c) for c in classes)
        if len(set(ids)) != len(ids) or len(ids) < 2 or min(ids) < 0:
            raise LabelError(f"classes: expected at least two different class numbers ≥ 0, got {list(classes)}.")
        if plan.classes is not None and max(ids) >= plan.classes:
            raise LabelError(f"classes: expected numbers below the model's {plan.classes} logits, got {max(ids)}.")
        lookup = torch.full((max(max(ids) + 1, plan.classes or 0),), -1)
        lookup[list(ids)] = torch.arange(len(ids))
        return cls(ids, lookup)

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
            return (scores.reshape(-1) > 0).long()
        if scores.shape[1] <= max(self.ids):
            return None
        return scores.argmax(1) if self.lookup is None else scores[:, list(self.ids)].argmax(1)
