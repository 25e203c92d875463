"""Data of any kind as batches that can be gone through twice."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from layerlaw.capture.arguments import Inputs
from layerlaw.capture.network import order_of, places_of, unequal_shares
from layerlaw.errors import DataError, LabelError, LayerlawError, shown, whole_number
from layerlaw.stats.labels import are_targets, listed_labels
from layerlaw.stats.precision import native, not_dense
from layerlaw.stats.ranks import world_size
from layerlaw.threads import on_cpu, users_device

LABEL_KEYS = ("labels", "label", "targets", "target")
DEFAULT_BATCH = {"running": 256, "batch": 100, "whole": 256}  # 100: the chunk of the law's authors


@dataclass(frozen=True)
class Batch:
    """What the network is called with, and the labels (n,), or targets (n,) or (n, q)."""

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

    def tensors(self) -> list[Tensor]:
        """The tensors the network is called with."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    def to(self, device: torch.device | None) -> Batch:
        """The same on a device; data that already live on another accelerator are refused, not moved back silently."""
        if device is None:
            return self

        def moved(value: Tensor) -> Tensor:
            if value.device.type not in ("cpu", device.type):
                came, cure = f"the model on {device} and the data on {value.device}", f"pass device='{value.device}'"
                raise DataError(f"expected model and data on one device, got {came}. Move one of them, or {cure}.")
            return value.to(device, non_blocking=True)

        # Numbers on their way to a GPU need not be waited for; those on their way back must be.
        return replace(self._each(moved), labels=self.labels.to(device, non_blocking=self.labels.is_cpu))

    def copy(self) -> Batch:
        """The same in memory of its own."""
        return self._each(Tensor.clone)

    def finite(self) -> Batch:
        """The same with 0 for NaN and infinity in the inputs."""
        return self._each(lambda value: value.nan_to_num(0.0, 0.0, 0.0) if value.is_floating_point() else value)

    def first(self, n: int) -> Batch:
        """The first n samples, in memory of their own."""
        size = len(self.labels)

        def cut(value: Tensor) -> Tensor:
            if value.dim() > 0 and value.shape[0] == size:
                return value[:n].clone()
            return value[:, :n].clone() if value.dim() > 1 and value.shape[1] == size else value.clone()

        return replace(self._each(cut), labels=self.labels[:n].clone())

    def at(self, rows: Tensor) -> Batch:
        """Some of the samples, which lie along the first axis of every tensor that has as many entries there."""
        n = len(self.labels)
        here = self._each(lambda value: value[rows.to(value.device)] if value.dim() and len(value) == n else value)
        return replace(here, labels=self.labels[rows.to(self.labels.device)])

    @classmethod
    def joined(cls, batches: Sequence[Batch], where: str) -> Batch:
        """Several batches as one."""
        sizes = [len(batch.labels) for batch in batches]

        def join(*values: Any) -> Any:
            for axis in range(2 if isinstance(values[0], Tensor) else 0):
                if [value.shape[axis] if value.dim() > axis else None for value in values] == sizes:
                    return torch.cat(values, axis)
            return values[0]  # the same for all samples

        try:
            args, kwargs = tree_map(join, *((batch.args, batch.kwargs) for batch in batches))
        except (RuntimeError, ValueError) as error:
            got = f"inputs of different shapes ({error}): pad them"
            raise DataError(f"{where}: expected batches that can be joined into one, got {got}.") from None
        return cls(args, kwargs, torch.cat([batch.labels for batch in batches]))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Every input tensor changed, also inside tuples, lists and dictionaries."""
        return Batch(_changed(self.args, change), _changed(self.kwargs, change), self.labels)


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    # torch's trees would pass over subclasses of dict, list and tuple
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return (tuple if isinstance(value, tuple) else list)(_changed(one, change) for one in value)
    return {k: _changed(v, change) for k, v in value.items()} if isinstance(value, dict) else value


class Batches:
    """A re-iterable of `Batch`; `samples` and `labels` where they are known beforehand, `order` in words.

    `labels_at` says which item of a batch holds the labels, an index or a key; the `network` what it takes of dictionaries:
    `unused` are the keys that it does not. The `loader` stays where its batches are joined into one.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int | None,
        batchnorm: str,
        where: str,
        seed: int = 0,
        labels_at: int | str | None = None,
        network: nn.Module | None = None,
    ) -> None:
        self.where, self.order = where, "as given"
        self._labels_at, self._inputs, self._last = labels_at, Inputs(network), None
        self.samples: int | None = None
        self.labels: Tensor | None = None
        self.on_several, self.left_out = 0, (0, 0)  # samples that other ranks have too; without drop_last's, of all
        self.suspect = ""  # why all of them may be on other ranks too, though their inputs differ
        self.spare: Batch | None = None  # a few samples, of another rank where this one has hardly any
        if isinstance(data, Iterator):
            raise self._one_shot(data)
        if isinstance(data, (str, os.PathLike)):
            cure = f"layerlaw.data.load({str(data)!r}) reads a data set by its name, or a folder of pictures"
            raise DataError(f"{where}: expected data, got {str(data)!r}. {cure}.")
        whole = whole_number(batch_size)
        if batch_size is not None and (whole is None or whole < 1):
            raise DataError(f"{where}: expected a batch_size of at least 1, got {shown(batch_size)}.")
        size = whole or DEFAULT_BATCH[batchnorm]
        if isinstance(data, (tuple, list)) and len(data) == 2 and _is_plain(data[1]) and isinstance(data[0], list):
            raise DataError(f"{where}: expected inputs as a tensor or an array, got a list. Use torch.tensor(inputs).")
        places = places_of(data)
        if isinstance(data, Mapping) or _is_pair(data) or _are_arrays(data):
            data = Pair(self._batch(data, where), size, where, seed=seed if batchnorm == "batch" else None)
            self.samples, self.labels = len(data.labels), data.labels
            if data.order is not None:
                self.order = f"mixed with seed {seed}, since it was sorted by class"
        elif isinstance(data, Dataset):
            data = DataLoader(data, batch_size=size)
        elif batch_size is not None:
            own = f"{type(data).__name__} given as {where} has its own ({getattr(data, 'batch_size', 'as they come')})"
            raise DataError(f"batch_size: leave it out. The {own}.")
        if isinstance(data, DataLoader):
            self.samples, self.order, places = _length(data.sampler), order_of(data), places_of(data)
        self.places = places if self.order == "as given" else None
        if not hasattr(data, "__iter__"):
            expected = "a DataLoader, a pair (inputs, labels) or a re-iterable of (x, y)"
            raise DataError(f"{where}: expected {expected}, got {type(data).__name__}.")
        self.unequal, self.repeated = unequal_shares(data) if world_size() > 1 else ("", 0)
        self.source, self.loader, self.length = data, data, _length(data)
        self.batch_size = getattr(data, "batch_size", None)

    def __iter__(self) -> Iterator[Batch]:
        try:
            with users_device():
                source, index = iter(self.source), -1
        except Exception as error:
            raise self._failed(error, 0) from error
        if not isinstance(source, _BaseDataLoaderIter):  # one with persistent workers comes back, but begins anew
            if source is self._last:
                raise self._one_shot(self.source)
            self._last = source
        while True:
            try:
                with users_device():
                    item = next(source)
            except StopIteration:
                break
            except LayerlawError:
                raise
            except Exception as error:  # the user's own data sets and collate functions raise anything
                raise self._failed(error, index + 1) from error
            index += 1
            yield self._batch(item, f"{self.where}, batch {index}")
        if index < 0 and world_size() == 1:  # of several processes one may have none
            raise DataError(f"{self.where}: expected at least one batch, got none.")

    def _failed(self, error: Exception, batch: int) -> DataError:
        why = (str(error).strip().splitlines() or [""])[-1]  # of a worker's report the last line
        cure = ". Pad or resize, to bring all samples to one size" if "to be equal size" in why else ""
        return DataError(f"{self.where}, batch {batch}: the data failed with {type(error).__name__}: {why}{cure}")

    def joined(self, batches: Sequence[Batch]) -> Batches:
        """The same data as one batch."""
        whole = copy.copy(self)
        whole.source, whole.length = [Batch.joined(batches, self.where)], 1
        whole.samples = whole.batch_size = len(whole.source[0].labels)
        whole.labels = whole.source[0].labels
        return whole

    @property
    def unused(self) -> list[str]:
        """Keys of dictionaries that the network does not take, as far as batches were read."""
        return sorted(self._inputs.unused)

    @on_cpu
    def _batch(self, item: Any, where: str) -> Batch:
        return as_batch(item, where, self._labels_at, self._inputs)

    def _one_shot(self, data: Any) -> DataError:
        came = f"got a one-shot iterator ({type(data).__name__})"
        cure = "Pass the DataLoader or list itself, not iter(...) or a generator"
        return DataError(f"{self.where}: expected data that can be gone through twice, {came}. {cure}.")


class Pair:
    """Inputs and labels in memory, cut into batches in the order given; with a `seed`, an order sorted by class is mixed."""

    def __init__(self, whole: Batch, batch_size: int, where: str, *, seed: int | None) -> None:
        self.labels = whole.labels.cpu()  # where they are looked at, batch by batch, without waiting for a GPU
        self.whole, self.batch_size = replace(whole, labels=self.labels), batch_size
        n = len(self.labels)
        for value in self.whole.tensors():
            if len(value) != n:
                raise LabelError(f"{where}: expected as many inputs as labels, got {len(value)} inputs and {n} labels.")
        self.order: Tensor | None = None
        if seed is not None and not are_targets(self.labels):
            could = min(len(set(self.labels.tolist())), batch_size)
            full = [part.tolist() for part in torch.split(self.labels, batch_size) if len(part) == batch_size]
            # Sorted by class: some full batch lacks more than half of the classes it could hold, or holds one only.
            if could > 1 and any(len(set(part)) < max(2, could / 2) for part in full):
                self.order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.labels), self.batch_size):
            part = slice(start, start + self.batch_size)
            rows = part if self.order is None else self.order[part]
            yield replace(self.whole._each(lambda value, rows=rows: value[rows]), labels=self.labels[rows])  # type: ignore[misc]


def as_batch(item: Any, where: str, labels_at: int | str | None = None, inputs: Inputs | None = None) -> Batch:
    """One item of a loader: (x, y), or a dictionary with a `labels` key; other forms where `labels_at` names the labels.

    Of several items those before the labels are inputs (those behind them where the labels come first).
    """
    if isinstance(item, Batch):
        return item
    x: Any
    if isinstance(item, tuple) and any(key in getattr(item, "_fields", ()) for key in (labels_at, *LABEL_KEYS)):
        item = item._asdict()  # type: ignore[attr-defined]  # a named tuple
    if isinstance(item, Mapping):
        key = labels_at if labels_at is not None else next((k for k in LABEL_KEYS if k in item), None)
        if key is None or key not in item:
            cure = "labels='…' names the key that holds the labels"
            came = f"expected a dictionary with '{key or 'labels'}', got the keys {sorted(map(str, item))}"
            raise DataError(f"{where}: {came}; {cure}.")
        x, labels = {str(k): _tensor(v) for k, v in item.items() if k != key}, item[key]
    elif isinstance(item, (tuple, list)) and len(item) >= 2:
        at = _label_index(item, labels_at, where)
        before = item[:at] or item[at + 1 :]
        x, labels = (before[0] if len(before) == 1 else before), item[at]
    else:
        came = f"{type(item).__name__}. Data sets without labels cannot be measured"
        raise DataError(f"{where}: expected (inputs, labels) or a dictionary with 'labels', got {came}.")
    y = _labels(labels, where)
    if isinstance(x, Mapping):
        named = {str(k): _tensor(v) for k, v in x.items()}
        batch = Batch(*(inputs or Inputs()).taken(named, where), y)
    else:
        batch = Batch(tuple(_tensor(v) for v in _listed(x)), {}, y)
    tensors = batch.tensors()
    if tensors and not any(len(y) in value.shape[:2] for value in tensors):
        shapes = ", ".join(str(tuple(value.shape)) for value in tensors)
        raise LabelError(f"{where}: expected one label per sample, got {len(y)} labels for inputs of shape {shapes}.")
    return batch


def check_normalized_alone(labels: Tensor, where: str) -> None:
    """Where BatchNorm normalizes each batch by itself, one sample or one class would be no fair batch."""
    if len(labels) == 1:
        why = "a batch of one sample has no batch statistics for BatchNorm (batchnorm='batch')"
        raise DataError(
            f"{where}: {why}. Choose a batch size that leaves no single sample at the end, or drop_last=True."
        )
    if not are_targets(labels) and bool((labels == labels[0]).all()):
        why = f"all {len(labels)} samples are of one class, and batchnorm='batch' normalizes each batch by itself"
        raise DataError(f"{where}: {why}. Mix the classes (shuffle once, with a fixed seed), or use larger batches.")


def _label_index(item: Sequence[Any], labels_at: int | str | None, where: str) -> int:
    """Which of several items are the labels: the second of two, else the user says."""
    n = len(item)
    if labels_at is None and n > 2:
        shapes = ", ".join(_described(value) for value in item[:6]) + (", …" if n > 6 else "")
        cure = "labels=1 says that the second holds them and the first goes into the model; or hand over ((x₁, x₂), y)"
        raise DataError(f"{where}: expected (inputs, labels), got {n} items: {shapes}. Which are the labels? {cure}.")
    at = 1 if labels_at is None else labels_at
    if isinstance(at, bool) or not isinstance(at, int) or not -n <= at < n:
        raise DataError(f"{where}: labels={at!r}: expected an index of the {n} items of a batch, from 0 to {n - 1}.")
    return at % n


def _described(value: Any) -> str:
    return f"{tuple(value.shape)}" if isinstance(value, (Tensor, np.ndarray)) else type(value).__name__


def _labels(labels: Any, where: str) -> Tensor:
    if _is_plain(labels):
        labels = listed_labels(labels, where=where)
    y = _tensor(labels)
    if isinstance(y, (Number, np.generic)) or (isinstance(y, Tensor) and y.dim() == 0):
        single = "Are these single samples? DataLoader(data, batch_size=256) makes batches of them"
        raise LabelError(f"{where}: expected one label per sample, shape (n,), got one number. {single}.")
    if not isinstance(y, Tensor):
        raise LabelError(f"{where}: expected a tensor of labels, got {type(labels).__name__}.")
    if y.is_meta:
        raise LabelError(f"{where}: expected labels, got {not_dense(y)}.")
    if y.dim() == 2 and y.shape[1] == 1 and not are_targets(y):
        y = y.squeeze(1)
    if y.dim() != 1 and not are_targets(y):
        others = "of a regression floating-point numbers (n,) or (n, q) (y.float()), of several labels 0 and 1 (n, q)"
        came = f"{y.dtype} of shape {tuple(y.shape)}"
        raise LabelError(f"{where}: expected one label per sample, shape (n,), or {others}; got {came}.")
    return y


def _is_pair(data: Any) -> bool:
    """(inputs, labels) in memory, as against a list of two batches."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return False
    inputs, labels = data
    in_memory = isinstance(labels, (Tensor, np.ndarray)) or hasattr(labels, "to_numpy") or _is_plain(labels)
    return in_memory and (isinstance(inputs, Mapping) or all(_is_array(value) for value in _listed(inputs)))


def _are_arrays(data: Any) -> bool:
    """Several arrays in memory that are no pair."""
    return isinstance(data, (tuple, list)) and len(data) > 2 and all(_is_array(value) for value in data)


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) or hasattr(value, "to_numpy")


def _is_plain(labels: Any) -> bool:
    """A list of numbers or of words."""
    single = (Number, np.generic, str)
    return (
        isinstance(labels, (tuple, list))
        and bool(labels)
        and all(isinstance(label, single) or (isinstance(label, Tensor) and label.dim() == 0) for label in labels)
    )


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:  # a stream
        return None


def _tensor(value: Any) -> Any:
    if hasattr(value, "to_numpy"):  # a table or a column of pandas
        value = value.to_numpy()
    if isinstance(value, Tensor) and not value.is_meta and (came := not_dense(value)):
        raise DataError(f"expected tensors of numbers, got {came}.")
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "biufc":
        cure = "Number the classes from 0: np.unique(labels, return_inverse=True)[1]"
        raise LabelError(f"expected arrays of numbers, got {value.dtype}. {cure}.")
    return torch.from_numpy(native(value))


def _listed(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)
