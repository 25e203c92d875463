"""What networks are trained on: inputs with labels, and held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlaw.errors import Demand, FeatureError, LabelError, check_whole, demand
from layerlaw.files import sha256
from layerlaw.stats.labels import check_counts, checked_labels, one_hot
from layerlaw.stats.precision import native


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs (n, …) in float32 with labels (n,), and held-out ones where there are any.

    Images keep their shape; a feed-forward network flattens them itself. The order is kept: BatchNorm with batch
    statistics measures in chunks of this order.
    """

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor | None = None
    test_labels: Tensor | None = None
    classes: int = 0
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("inputs", "labels", "test_inputs", "test_labels"):
            value = getattr(self, name)
            if not isinstance(value, Tensor | None):
                came, cure = type(value).__name__, "Samples.of((inputs, labels)) takes arrays too"
                raise FeatureError(f"{name}: expected a tensor, got {came}. {cure}.")

    @classmethod
    def of(cls, train: Any, test: Any = None, *, class_names: tuple[str, ...] = ()) -> Samples:
        """From pairs (inputs, labels) of tensors or arrays."""
        x, y = _pair(train, "training data")
        y, K = checked_labels(y, len(class_names) or None, where="training labels")
        check_counts(torch.bincount(y, minlength=K), where="training data", names=class_names or None)
        test_x, test_y = (None, None) if test is None else _pair(test, "test data")
        if test_x is not None and test_y is not None:
            test_y, _ = checked_labels(test_y, K, where="test labels")
            if test_x[0].numel() != x[0].numel():
                raise FeatureError(f"test data: expected {x[0].numel()} numbers per sample, got {test_x[0].numel()}.")
            here, there = ([size for size in one.shape[1:] if size != 1] for one in (x, test_x))
            if here != there and len(here) > 1 and len(there) > 1:  # else flat, or without the axis of a single channel
                came = f"samples of shape {tuple(x.shape[1:])} as in training, got {tuple(test_x.shape[1:])}"
                cure = "Put their axes in the same order (torch.Tensor.permute)"
                raise FeatureError(f"test data: expected {came}. {cure}.")
            test_x = test_x.reshape(-1, *x.shape[1:])
        return cls(x, y, test_x, test_y, K, class_names or tuple(str(k) for k in range(K)))

    @property
    def counts(self) -> tuple[int, ...]:
        """Training samples of every class."""
        return tuple(torch.bincount(self.labels, minlength=self.classes).tolist())

    @cached_property
    def checksum(self) -> str:
        """sha256 of the bytes of inputs and labels, held-out ones included."""
        parts = (self.inputs, self.labels, self.test_inputs, self.test_labels)
        return sha256(part.cpu().numpy() for part in parts if part is not None)

    def flat(self) -> Samples:
        """The same with inputs (n, d)."""
        if self.inputs.dim() == 2:
            return self
        test = None if self.test_inputs is None else self.test_inputs.flatten(1)
        return replace(self, inputs=self.inputs.flatten(1), test_inputs=test)

    def to(self, device: str | torch.device) -> Samples:
        """The same on a device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)  # type: ignore[arg-type]

    def with_random_labels(self, seed: int = 0) -> Samples:
        """The same inputs with their labels shuffled: a null that leaves nothing to learn but the samples."""
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(seed))
        return replace(self, labels=self.labels[order])

    def held_back(self, share: float = 0.2, seed: int = 0) -> Samples:
        """Split the training samples: a share of every class becomes the held-out part, the test samples are dropped."""
        demand(share=(share, Demand("a number between 0 and 1", lambda value: 0 < value < 1)))
        generator = torch.Generator().manual_seed(seed)
        kept = torch.ones(len(self.labels), dtype=torch.bool)
        for k in range(self.classes):
            index = (self.labels == k).nonzero().flatten()
            out = round(share * len(index))
            if not 1 <= out < len(index):
                raise LabelError(f"class {k}: expected enough samples to hold {share:g} back, got {len(index)}.")
            kept[index[torch.randperm(len(index), generator=generator)[:out]]] = False
        x, y = self.inputs, self.labels
        return replace(self, inputs=x[kept], labels=y[kept], test_inputs=x[~kept], test_labels=y[~kept])

    def imbalanced(self, counts: Sequence[int]) -> Samples:
        """The first `counts[k]` training samples of class k, in their order; 0 leaves a class to the classifier alone.

        >>> some = Samples.of((torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])))
        >>> some.imbalanced([2, 1, 0]).labels.tolist(), some.imbalanced([2, 1, 0]).classes
        ([0, 1, 0], 3)
        """
        self._check_whole_numbers("counts", counts, 0)
        for k, (wanted, there) in enumerate(zip(counts, self.counts, strict=True)):
            if wanted > there:
                raise LabelError(f"counts: expected at most {there} samples of class {k}, got {wanted}.")
        check_counts(torch.tensor([count for count in counts if count]), where="counts")
        hot = one_hot(self.labels, self.classes, torch.int64)
        rank = hot.cumsum(1).gather(0, self.labels.unsqueeze(0)).squeeze(0)  # how many of its class, itself included
        kept = rank <= torch.tensor(counts, device=rank.device)[self.labels]
        return replace(self, inputs=self.inputs[kept], labels=self.labels[kept])

    def repeated(self, times: Sequence[int]) -> Samples:
        """Every training sample of class k `times[k]` times, one behind the other: oversampling.

        >>> some = Samples.of((torch.zeros(3, 2), torch.tensor([0, 1, 0])))
        >>> some.repeated([1, 3]).labels.tolist()
        [0, 1, 1, 1, 0]
        """
        self._check_whole_numbers("times", times, 1)
        each = torch.tensor(times, device=self.labels.device)[self.labels]
        return replace(self, inputs=self.inputs.repeat_interleave(each, 0), labels=self.labels.repeat_interleave(each))

    def _check_whole_numbers(self, name: str, values: Sequence[int], least: int) -> None:
        if len(values) != self.classes:
            raise LabelError(f"{name}: expected {self.classes} numbers, one per class, got {len(values)}.")
        for k, value in enumerate(values):
            named: dict[str, Any] = {f"{name}[{k}]": value}
            check_whole(least, **named)


def _tensor(values: Any, where: str) -> Tensor:
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray):
        values = native(values)
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        came = f"{getattr(values, 'dtype', type(values).__name__)} ({error})"
        cure = "Number the classes from 0: np.unique(labels, return_inverse=True)[1]"
        raise FeatureError(f"{where}: expected numbers, got {came}. {cure}.") from None


def _pair(data: Any, where: str) -> tuple[Tensor, Tensor]:
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise FeatureError(f"{where}: expected a pair (inputs, labels), got {type(data).__name__}.")
    x, y = (_tensor(part, where) for part in data)
    if x.dim() < 2 or len(x) != len(y) or y.dim() != 1:
        raise FeatureError(f"{where}: expected inputs (n, …) and labels (n,), got {(*x.shape,)} and {(*y.shape,)}.")
    x = x.float().contiguous()
    if not bool(x.isfinite().all()):
        raise FeatureError(f"{where}: expected finite inputs, got NaN or infinity.")
    return x, y
