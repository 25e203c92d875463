"""Pass 1: how many samples each class has, and the sum of their features."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from layerlaw.stats.labels import FEW_LABELS, kept_one_hot, one_hot, runs_of
from layerlaw.stats.precision import at_least_float32, double, row_chunks, whole_blocks
from layerlaw.stats.stacking import SMALL, Key, Pages, side_by_side

MANY_ROWS = 2**16  # of several sites: what is made of no more of them is kept
ROWS_IN_FLOAT32 = 1024  # sums of more rows than this go on in float64
PAGED = {"cuda"}  # devices on which the features of sites of all widths are added up together
MANY = 64  # classes (and groups): sums into so many cells are runs of sorted rows, not products with indicator rows


@dataclass(frozen=True)
class Assignment:
    """Labels (…, n) made ready for sums over the rows of (…, n, d) features, which are numbered through (N rows).

    first (…·K,) is a row of each class; own (N,) says which of those belongs to a row; cells (N,) says where the row is
    added: its leading index, block of rows, group and class. counts (…, K), or (g, K) when the sums are split into
    groups; spreads (N,) numbers leading index and group.
    """

    labels: Tensor
    counts: Tensor
    first: Tensor
    own: Tensor
    cells: Tensor
    spreads: Tensor
    groups: int

    @classmethod
    def of(cls, labels: Tensor, classes: int, split: Tensor | None = None, groups: int = 0) -> Assignment:
        """`split` (n,) are the numbers of the groups the sums are split into.

        The one of few labels is kept: a network that is trained is measured on the same ones again and again.
        """
        few = labels.dim() == 1 and len(labels) <= FEW_LABELS and labels.device.type == "cpu"
        if not few or groups or split is not None:
            return cls._made(labels, classes, split, groups)
        known = _kept[0] if _kept else None
        if known is None or known.counts.shape[-1] != classes or not torch.equal(known.labels, labels):
            with torch.inference_mode(False):  # it may be used outside of one
                _kept[:] = [known := cls._made(labels.clone(), classes, None, 0)]  # a copy: labels may be changed
        return known

    @classmethod
    def _made(cls, labels: Tensor, classes: int, split: Tensor | None, groups: int) -> Assignment:
        *batch, n = labels.shape
        B, device = torch.Size(batch).numel(), labels.device
        lead = torch.arange(B, device=device).unsqueeze(-1)  # (B, 1)
        flat = labels.reshape(B, n)
        own = (lead * classes + flat).reshape(-1)
        group = torch.zeros_like(flat) if split is None else split.expand(B, n)
        block = torch.arange(n, device=device) // ROWS_IN_FLOAT32
        g = max(1, groups)
        cells = ((lead * (-(-n // ROWS_IN_FLOAT32)) + block) * g + group) * classes + flat
        spreads = lead * g + group
        if split is None:
            counts = own.new_zeros(B * classes).index_add_(0, own, torch.ones_like(own))
            counts = counts.reshape(*batch, classes).double()
        else:
            counts = torch.bincount(split * classes + labels, minlength=g * classes).reshape(g, classes).double()
        none = B * n  # a class without rows takes the first of all: nothing of it is added up
        first = own.new_full((B * classes,), none).scatter_reduce_(0, own, torch.arange(none, device=device), "amin")
        first = first.where(first < none, n * (torch.arange(B * classes, device=device) // classes))
        return cls(labels, counts, first, own, cells.reshape(-1), spreads.reshape(-1), groups)

    def for_sites(self, sites: int) -> Assignment:
        """Labels (n,) for the features of several sites (S, n, d); of few rows they are kept."""
        kept = vars(self).setdefault("_for_sites", {}) if sites * len(self.labels) <= MANY_ROWS else {}
        if sites not in kept:
            with torch.inference_mode(False):
                kept[sites] = self._made_for(sites)
        found: Assignment = kept[sites]
        return found

    def _made_for(self, sites: int) -> Assignment:
        S, n = sites, len(self.labels)
        lead = torch.arange(S, device=self.labels.device).unsqueeze(-1)  # (S, 1)
        K, blocks, g = self.counts.shape[-1], -(-n // ROWS_IN_FLOAT32), max(1, self.groups)
        steps = {"first": n, "own": K, "cells": blocks * g * K, "spreads": g}
        parts = {name: (getattr(self, name) + step * lead).reshape(-1) for name, step in steps.items()}
        shared = {name: getattr(self, name).expand(S, *getattr(self, name).shape) for name in ("labels", "counts")}
        return Assignment(**shared, **parts, groups=self.groups)

    @property
    def shared(self) -> bool:
        """Whether all entries of the leading dimension have the same labels."""
        pairs = zip(self.labels.shape[:-1], self.labels.stride(), strict=False)
        return all(size == 1 or step == 0 for size, step in pairs)

    @cached_property
    def runs(self) -> tuple[Tensor, Tensor]:
        """Rows in the order of their cells (N,), and where each cell begins in it."""
        blocks = max(1, -(-self.labels.shape[-1] // ROWS_IN_FLOAT32))
        return runs_of(self.cells, self.counts.numel() * blocks)

    def spread(self, lengths: Tensor) -> Tensor:
        """Sums of squared lengths (N,) of all rows, those of groups apart."""
        squares, m = double(lengths).square_(), self.counts.shape[:-1].numel()
        sums = squares.new_zeros(m).index_add_(0, self.spreads, squares) if self.groups else squares.view(m, -1).sum(-1)
        return sums.view(self.counts.shape[:-1])

    def indicators(self, dtype: torch.dtype) -> Tensor:
        """Of the cells that rows are added into, (1, C, n) where all entries have the same labels, else (B, C, n)."""
        n, C = self.labels.shape[-1], self.cells_each
        made: dict[torch.dtype, Tensor] = vars(self).setdefault("_indicators", {})
        if dtype not in made:
            with torch.inference_mode(False):  # they may be used outside of one
                each = self.cells[:n].view(1, n) if self.shared else self.cells.view(-1, n)
                made[dtype] = one_hot(each % C, C, dtype)
        return made[dtype]

    @property
    def cells_each(self) -> int:
        """Into how many cells the rows of one entry of the leading dimension are added."""
        return max(1, self.groups) * self.counts.shape[-1]

    def to(self, device: torch.device) -> Assignment:
        """The same on another device."""
        if self.labels.device == device:
            return self
        moved: dict[str, Any] = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != "groups"}
        return Assignment(**moved, groups=self.groups)


_kept: list[Assignment] = []


@dataclass
class ClassSums:
    """Class counts (…, K) and class sums (…, K, d), in float64.

    `spread` (…) is the sum of ‖x − reference of its class‖², the size of what was added: it bounds the rounding.
    `dtype` is the coarsest dtype the features came in; the rank rule of the centers depends on it. Groups of a jackknife are
    a leading dimension: `sums` (g, K, d); `total` adds them up. `entry`: of what it is an entry, and which one.
    """

    counts: Tensor
    sums: Tensor
    spread: Tensor
    dtype: torch.dtype
    entry: tuple[ClassSums, int] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> ClassSums:
        """Sums of (…, n, d) features with (…, n) labels."""
        return cls.assigned(features, Assignment.of(labels, classes))

    @classmethod
    def assigned(cls, features: Tensor, to: Assignment) -> ClassSums:
        """Sums of (…, n, d) features into the cells of an assignment.

        One sample of each class is subtracted before the sum and added back in float64: what is rounded to float32 is
        then of the size of the within-class spread, whatever the offset and the distance of the classes.
        """
        rows, d = features.flatten(0, -2), features.shape[-1]
        reference = at_least_float32(rows.index_select(0, to.first))  # (…·K, d)
        sums, lengths = _way(to, features.device)(rows, reference, to)
        place = double(reference).view(*to.labels.shape[:-1], *((1,) if to.groups else ()), -1, d)
        sums = sums.view(*to.counts.shape, d).addcmul_(to.counts.unsqueeze(-1), place)
        return cls(to.counts.clone(), sums, to.spread(lengths), features.dtype)

    @property
    def tensors(self) -> list[Tensor]:
        """What an all-reduce adds up."""
        return [self.counts, self.sums, self.spread]

    def add(self, other: ClassSums) -> None:
        """Add another part of the same data, in place."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine += theirs
        if other.dtype.itemsize < self.dtype.itemsize:
            self.dtype = other.dtype

    @classmethod
    def merge(cls, parts: Sequence[ClassSums]) -> ClassSums:
        """One statistic from several parts of the same data."""
        whole = copy.deepcopy(replace(parts[0], entry=None))
        for part in parts[1:]:
            whole.add(part)
        return whole

    @classmethod
    def stack(cls, parts: Sequence[ClassSums]) -> ClassSums:
        """Several sites of equal shape as one statistic with a new leading dimension."""
        if len(parts) == 1:
            return parts[0].alone()
        counts, sums, spread = side_by_side(parts)
        return cls(counts, sums, spread, parts[0].dtype)

    def alone(self) -> ClassSums:
        """It with a new leading dimension; the sums are the same, since of a wide site a copy is large."""
        return ClassSums(self.counts.clone()[None], self.sums[None], self.spread.clone()[None], self.dtype)

    def at(self, index: int) -> ClassSums:
        """One entry of the leading dimension."""
        return ClassSums(self.counts[index], self.sums[index], self.spread[index], self.dtype, (self, index))

    def to(self, device: torch.device | str) -> ClassSums:
        """The same on another device."""
        return ClassSums(self.counts.to(device), self.sums.to(device), self.spread.to(device), self.dtype)

    def total(self) -> ClassSums:
        """Add up the groups: (…, g, K, d) → (…, K, d)."""
        return ClassSums(self.counts.sum(-2), self.sums.sum(-3), self.spread.sum(-1), self.dtype)

    def left_out(self) -> ClassSums:
        """Everything but group i, for each group i of (…, g, K, d)."""
        all_ = self.total()
        counts, sums = all_.counts.unsqueeze(-2) - self.counts, all_.sums.unsqueeze(-3) - self.sums
        return ClassSums(counts, sums, all_.spread.unsqueeze(-1) - self.spread, self.dtype)


class PagedSums:
    """Class sums of all sites of a batch at once, whatever their widths, so that a GPU gets few calls.

    The same arithmetic as `ClassSums.assigned`, for few classes, on pages (n, D) of features side by side. In here `spread`
    is that of every column.
    """

    def __init__(self, classes: int, groups: int) -> None:
        self.classes, self.groups = classes, groups
        self._pages = Pages(self._add_up)
        self._sums: dict[tuple[Key, ...], tuple[list[int], ClassSums]] = {}
        self._finite: list[tuple[list[Key], list[int], Tensor]] = []  # of this batch, column by column

    def begin(self, labels: Tensor, split: Tensor | None) -> None:
        """Start a batch: labels (n,), and the groups (n,) that the sums are split into."""
        self._pages.drop()
        self._labels, self._split, self._finite = labels, split, []
        self._made: dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]] = {}

    def add(self, key: Key, features: Tensor) -> bool:
        """The features (n, d) of one site; whether they are taken."""
        device = features.device.type
        if device not in PAGED or features.nbytes > SMALL[device] or max(1, self.groups) * self.classes >= MANY:
            return False
        self._pages.add(key, features)
        return True

    def end(self) -> dict[Key, Tensor]:
        """End a batch: whether the sums of each site are finite, where some are not."""
        self._pages.flush()
        whole = [flags.all() for _, _, flags in self._finite]
        if not whole or all(torch.stack([flag.to(whole[0].device) for flag in whole]).tolist()):
            return {}
        parts = ((keys, torch.split(flags, widths)) for keys, widths, flags in self._finite)
        return {key: flags.all() for keys, some in parts for key, flags in zip(keys, some, strict=True)}

    def take(self) -> Iterator[tuple[Key, ClassSums]]:
        """The sums of each site, which are forgotten here."""
        pages, self._sums = self._sums, {}
        for keys, (widths, page) in pages.items():
            parts = (torch.split(whole, widths, -1) for whole in (page.sums, page.spread))
            for key, sums, spread in zip(keys, *parts, strict=True):
                yield key, ClassSums(page.counts.clone(), sums.contiguous(), spread.sum(-1), page.dtype)

    def _add_up(self, keys: list[Key], widths: list[int], page: Tensor) -> None:
        rows = at_least_float32(page)
        labels, first, hot, counts, grouped = self._ready(rows.dtype, rows.device)
        reference = rows.index_select(0, first)  # (K, D)
        near = rows - reference.index_select(0, labels)
        blocks = [slice(at, at + ROWS_IN_FLOAT32) for at in range(0, len(near), ROWS_IN_FLOAT32)]
        parts = [double(hot[:, part] @ near[part]) for part in blocks]
        cells = sum(parts[1:], parts[0])
        sums = cells.view(*counts.shape, -1).addcmul_(counts.unsqueeze(-1), double(reference))
        self._finite.append((keys, widths, sums.isfinite().flatten(0, -2).all(0)))
        squares = near.square_()
        spread = double(grouped @ squares) if self.groups else squares.sum(0, dtype=torch.float64)
        found = ClassSums(counts.clone(), sums, spread, page.dtype)
        if tuple(keys) in self._sums:
            self._sums[tuple(keys)][1].add(found)
        else:
            self._sums[tuple(keys)] = widths, found

    def _ready(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
        """Labels, a row of each class (K,), indicators of the cells (C, n), counts (K,) or (g, K), indicators of groups."""
        if (dtype, device) not in self._made:
            K, g, labels = self.classes, self.groups, self._labels.to(device)
            own = one_hot(labels, K, torch.uint8)
            first, hot, grouped = own.argmax(-1), own.to(dtype), own
            if g:
                assert self._split is not None
                split = self._split.to(device)
                hot, grouped = one_hot(split * K + labels, g * K, dtype), one_hot(split, g, dtype)
            counts = hot.sum(-1, dtype=torch.float64).view(*((g, K) if g else (K,)))
            self._made[dtype, device] = labels, first, hot, counts, grouped
        return self._made[dtype, device]


def _add_up(rows: Tensor, reference: Tensor, to: Assignment) -> tuple[Tensor, Tensor]:
    """Cell sums (cells, d) in float64 and lengths (N,) of the rows around their reference, by one pass over the rows."""
    (N, d), C = rows.shape, to.counts.numel()
    blocks = max(1, -(-to.labels.shape[-1] // ROWS_IN_FLOAT32))
    chunks, lengths = list(row_chunks(N, 4 * d, rows.device)), reference.new_empty(N)
    at_once = len(chunks) == 1 and reference.dtype == torch.float32  # then going by cells is faster
    sums = reference.new_zeros((0 if at_once else C * blocks, d))
    for part in chunks:
        near = reference.index_select(0, to.own[part])
        near = torch.sub(rows[part], near, out=near)
        sums = torch.embedding_bag(near, *to.runs)[0] if at_once else sums.index_add_(0, to.cells[part], near)
        torch.linalg.vector_norm(near, dim=-1, out=lengths[part])
    whole = double(sums)
    if blocks > 1:  # (…, blocks, cells of one leading index, d)
        B = torch.Size(to.labels.shape[:-1]).numel()
        whole = whole.view(B, blocks, C // B, d).sum(1).view(C, d)
    return whole, lengths


def _way(to: Assignment, device: torch.device) -> Callable[[Tensor, Tensor, Assignment], tuple[Tensor, Tensor]]:
    """How rows are added up on this device: on a GPU adding row by row would be atomics, in an order of their own."""
    if device.type == "cpu":
        return _add_up
    return _add_runs if to.shared and to.cells_each >= MANY else _multiply_out


def _add_runs(rows: Tensor, reference: Tensor, to: Assignment) -> tuple[Tensor, Tensor]:
    """The same by sorting the rows by their cell, and adding up each run of them: the same order on every device."""
    n, C, d = to.labels.shape[-1], to.cells_each, rows.shape[-1]
    B = len(rows) // n
    cells, own = to.cells[:n] % C, to.own[:n]
    few = bool(to.counts.max() <= ROWS_IN_FLOAT32)  # so that the sum of every run may be in float32
    most = next(row_chunks(n, 4 * d * B, rows.device)).stop
    step = most if few else min(most, ROWS_IN_FLOAT32)
    whole = torch.zeros((B, C, d), dtype=torch.float64, device=rows.device)
    lengths = reference.new_empty((B, n))
    pieces = torch.split(cells, n if few else step)
    orders = (i * step + piece.argsort(stable=True) for i, piece in enumerate(pieces))
    for part in (part for order in orders for part in torch.split(order, step)):
        near = at_least_float32(rows.view(B, n, d).index_select(1, part))
        near = near - reference.view(B, -1, d).index_select(1, own.index_select(0, part))
        runs = torch.zeros(C, dtype=torch.long, device=rows.device)
        runs.index_add_(0, cells.index_select(0, part), torch.ones_like(part))  # whole numbers: no order matters
        whole += _run_sums(near, runs).double()
        lengths.index_copy_(1, part, torch.linalg.vector_norm(near, dim=-1))
    return whole.view(B * C, d), lengths.view(-1)


def _run_sums(sorted_rows: Tensor, runs: Tensor) -> Tensor:
    """Sums (B, C, d) of runs of so many rows (C,) of (B, n, d)."""
    lengths = runs.expand(len(sorted_rows), -1).contiguous()
    return torch.segment_reduce(sorted_rows.contiguous(), "sum", lengths=lengths, axis=1, unsafe=True, initial=0)


def _multiply_out(rows: Tensor, reference: Tensor, to: Assignment) -> tuple[Tensor, Tensor]:
    """The same by products with indicator rows, of few cells; a chunk of rows takes four calls, all in the same memory."""
    *batch, n = to.labels.shape
    B, d = torch.Size(batch).numel(), rows.shape[-1]
    C, parts = to.counts.numel() // B, list(whole_blocks(n, ROWS_IN_FLOAT32, 4 * d * B, rows.device))
    hot = to.indicators(reference.dtype)  # (1 or B, C, n)
    lengths = reference.new_empty((B, n))
    room = reference.new_empty((B * max(part.stop - part.start for part in parts), d))
    whole: Tensor | None = None
    for part in parts:
        m = part.stop - part.start
        blocks = max(1, m // ROWS_IN_FLOAT32)
        near = room[: B * m]
        torch.index_select(reference, 0, to.own.view(B, n)[:, part].reshape(-1), out=near)
        near = near.view(B, m, d)
        torch.sub(at_least_float32(rows.view(B, n, d)[:, part]), near, out=near)
        # One product for all blocks: (B, blocks, C, rows) @ (B, blocks, rows, d)
        own = hot[..., part].view(len(hot), C, blocks, -1).transpose(1, 2)
        more = (own @ near.view(B, blocks, -1, d)).sum(1, dtype=torch.float64)
        whole = more if whole is None else whole.add_(more)
        torch.linalg.vector_norm(near, dim=-1, out=lengths[:, part])
    assert whole is not None
    return whole.view(B * C, d), lengths.view(-1)


def indicators(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor | None:
    """Those of labels (…, n) as rows (…, K, n), where products with them are fast; `None` where classes are many."""
    return kept_one_hot(labels, classes, dtype) if classes < MANY or labels.dim() > 1 else None


def sums_by_class(values: Tensor, labels: Tensor, classes: int, hot: Tensor | None = None) -> Tensor:
    """Sums over the samples of each class in float64: values (…, m, n) and labels (…, n) → (…, K, m)."""
    if (hot := indicators(labels, classes, values.dtype) if hot is None else hot) is not None:
        return hot @ values.mT
    order = labels.argsort(stable=True)
    runs = torch.zeros(classes, dtype=torch.long, device=labels.device)
    runs.index_add_(0, labels, torch.ones_like(labels))
    rows = values.index_select(-1, order).mT  # (…, n, m)
    return _run_sums(rows.reshape(-1, *rows.shape[-2:]), runs).view(*values.shape[:-2], classes, -1)


def by_label(columns: Tensor, labels: Tensor, hot: Tensor | None = None) -> Tensor:
    """Of columns (…, r, K), one of each class, those of the samples: labels (…, n) → (…, r, n)."""
    hot = indicators(labels, columns.shape[-1], columns.dtype) if hot is None else hot
    return columns.index_select(-1, labels) if hot is None else columns.contiguous() @ hot  # faster than turned ones
