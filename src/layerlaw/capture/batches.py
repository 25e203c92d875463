"""Data of any kind as batches that can be gone through twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from layerlaw.errors import DataError, LabelError

LABEL_KEYS = ("labels", "label")
DEFAULT_BATCH = {"eval": 256, "train": 100}  # 100: the chunk of the law's authors


@dataclass
class Batch:
    """What the network is called with, and the labels (n,)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Tensor

    @property
    def mask(self) -> Tensor | None:
        """Which tokens are real (n, T), from `attention_mask` (1 = real) or a key padding mask (True = padding)."""
        mask = self.kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 2:
            return mask.bool()
        for name in ("src_key_padding_mask", "key_padding_mask"):
            padding = self.kwargs.get(name)
            if isinstance(padding, Tensor) and padding.dim() == 2:
                return ~padding if padding.dtype == torch.bool else padding == 0
        return None

    def to(self, device: torch.device | None) -> Batch:
        """The same on a device; data that already live on another accelerator are refused, not moved back silently."""
        if device is None:
            return self
        return Batch(_moved(self.args, device), _moved(self.kwargs, device), self.labels.to(device))

    def first(self, n: int) -> Batch:
        """The first n samples."""
        return Batch(self._cut(self.args, n), self._cut(self.kwargs, n), self.labels[:n])

    def _cut(self, value: Any, n: int) -> Any:
        size = len(self.labels)
        if isinstance(value, Tensor) and value.dim() > 0:
            if value.shape[0] == size:
                return value[:n]
            return value[:, :n] if value.dim() > 1 and value.shape[1] == size else value
        if isinstance(value, tuple):
            return tuple(self._cut(v, n) for v in value)
        if isinstance(value, dict):
            return {k: self._cut(v, n) for k, v in value.items()}
        return value

    def feed(self, checksum: hashlib._Hash) -> None:
        """Add the bytes of inputs and labels to a checksum."""
        for value in (*self.args, *self.kwargs.values(), self.labels):
            if isinstance(value, Tensor):
                plain = value.detach().cpu().contiguous()
                checksum.update(plain.reshape(-1).view(torch.uint8).numpy().data)


class Batches:
    """A re-iterable of `Batch` made from a DataLoader, a Dataset, a pair of tensors, or any re-iterable of (x, y)."""

    def __init__(self, data: Any, *, batch_size: int | None, mode: str, where: str, seed: int = 0) -> None:
        self.where = where
        self.samples: int | None = None
        self.labels: Tensor | None = None
        if isinstance(data, Iterator):
            raise DataError(
                f"{where}: expected data that can be gone through twice, got a one-shot iterator ({type(data).__name__}). "
                "Pass the DataLoader or list itself, not iter(...) or a generator."
            )
        if _is_pair(data):
            data = _Pair(data, batch_size or DEFAULT_BATCH[mode], where, mixed=mode == "train", seed=seed)
            self.samples, self.labels = len(data.labels), data.labels
        elif batch_size is not None and not isinstance(data, Dataset):
            raise DataError(
                f"{where}: batch_size applies to tensors and datasets; this {type(data).__name__} has its own."
            )
        elif isinstance(data, Dataset):
            data = DataLoader(data, batch_size=batch_size or DEFAULT_BATCH[mode])
        if isinstance(data, DataLoader) and hasattr(data.dataset, "__len__"):
            self.samples = len(data.dataset)
        if not hasattr(data, "__iter__"):
            raise DataError(
                f"{where}: expected a DataLoader, a pair (inputs, labels) or a re-iterable of (x, y), "
                f"got {type(data).__name__}."
            )
        self.source = data
        self.length = len(data) if hasattr(data, "__len__") else None

    def __iter__(self) -> Iterator[Batch]:
        empty = True
        for index, item in enumerate(self.source):
            empty = False
            yield as_batch(item, f"{self.where}, batch {index}")
        if empty:
            raise DataError(f"{self.where}: expected at least one batch, got none.")


class _Pair:
    """Inputs and labels in memory, cut into batches; class-mixed by one fixed permutation where BatchNorm wants it."""

    def __init__(self, data: Any, batch_size: int, where: str, *, mixed: bool, seed: int) -> None:
        if batch_size < 1:
            raise DataError(f"{where}: expected a batch_size of at least 1, got {batch_size}.")
        self.inputs, self.labels, self.batch_size = data[0], _tensor(data[1]), batch_size
        n = len(self.labels)
        for value in self.inputs.values() if isinstance(self.inputs, Mapping) else _listed(self.inputs):
            if len(value) != n:
                raise LabelError(f"{where}: expected as many inputs as labels, got {len(value)} inputs and {n} labels.")
        self.order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)) if mixed else None

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for start in range(0, len(self.labels), self.batch_size):
            end = start + self.batch_size
            index = slice(start, end) if self.order is None else self.order[start:end]
            if isinstance(self.inputs, Mapping):
                x: Any = {k: _rows(v, index) for k, v in self.inputs.items()}
            elif isinstance(self.inputs, (tuple, list)):
                x = tuple(_rows(v, index) for v in self.inputs)
            else:
                x = _rows(self.inputs, index)
            yield x, _rows(self.labels, index)


def as_batch(item: Any, where: str) -> Batch:
    """One item of a loader: (x, y), (x₁, x₂, …, y), or a dictionary with a `labels` key."""
    if isinstance(item, Mapping):
        key = next((k for k in LABEL_KEYS if k in item), None)
        if key is None:
            raise DataError(
                f"{where}: expected a dictionary with a 'labels' key, got the keys {sorted(map(str, item))}."
            )
        return Batch((), {k: _tensor(v) for k, v in item.items() if k != key}, _tensor(item[key]))
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        *inputs, labels = item
        x = inputs[0] if len(inputs) == 1 else tuple(inputs)
        if isinstance(x, Mapping):
            return Batch((), {k: _tensor(v) for k, v in x.items()}, _labels(labels, where))
        args = tuple(_tensor(v) for v in _listed(x))
        return Batch(args, {}, _labels(labels, where))
    raise DataError(
        f"{where}: expected (inputs, labels) or a dictionary with 'labels', got {type(item).__name__}. "
        "Data sets without labels cannot be measured."
    )


def _labels(labels: Any, where: str) -> Tensor:
    y = _tensor(labels)
    if not isinstance(y, Tensor):
        raise LabelError(f"{where}: expected a tensor of labels, got {type(labels).__name__}.")
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.dim() != 1:
        raise LabelError(f"{where}: expected one label per sample, shape (n,), got shape {tuple(y.shape)}.")
    return y


def _is_pair(data: Any) -> bool:
    """(inputs, labels) in memory, as against a list of two batches."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return False
    inputs, labels = data
    return isinstance(labels, (Tensor, np.ndarray)) and (
        isinstance(inputs, (Tensor, np.ndarray, Mapping))
        or (isinstance(inputs, (tuple, list)) and all(isinstance(v, (Tensor, np.ndarray)) for v in inputs))
    )


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _rows(value: Any, index: slice | Tensor) -> Any:
    value = _tensor(value)
    return value[index if isinstance(index, slice) else index.to(value.device)]


def _listed(x: Any) -> Sequence[Any]:
    return x if isinstance(x, (tuple, list)) else (x,)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        if value.device.type not in ("cpu", device.type):
            raise DataError(
                f"expected model and data on one device, got the model on {device} and the data on {value.device}. "
                f"Move one of them, or pass device='{value.device}'."
            )
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        return tuple(_moved(v, device) for v in value)
    if isinstance(value, dict):
        return {k: _moved(v, device) for k, v in value.items()}
    return value
