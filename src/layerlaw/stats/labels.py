"""Labels: checked once, then one-hot rows and jackknife groups; whether their order tells samples apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from layerlaw.errors import LabelError
from layerlaw.stats.precision import double, row_chunks

NUMBERED = "number the classes from 0 without gaps: np.unique(labels, return_inverse=True)[1]"
FEW_LABELS = 4096  # of one batch: what is made of no more of them is kept
BLOCK = 1024  # rows that are added up in float32 under several labelings
SURPRISES = 20  # labels that do not follow from those before: so many are no accident
PAIRED = 2**17  # numbers, which stay in the cache: sums of one site into the cells of two labelings at once
RUN = 16  # of a class, on average, one after the other: fewer than a product may add up


def are_targets(labels: Tensor) -> bool:
    """Whether these are no class numbers, but numbers to be predicted or several labels at once.

    Such are floating-point numbers (n,) or (n, q), and rows of zeros and ones (n, q).

    >>> are_targets(torch.tensor([0.5, 2.0])), are_targets(torch.tensor([[0, 1], [1, 1]])), are_targets(torch.tensor([0, 1]))
    (True, True, False)
    """
    if labels.dtype.is_floating_point:
        return labels.dim() in (1, 2)
    several = labels.dim() == 2 and labels.shape[1] > 1 and not labels.dtype.is_complex
    return several and bool(((labels == 0) | (labels == 1)).all())


def are_soft_labels(labels: Tensor) -> bool:
    """Whether these are rows of probabilities: floating-point numbers (n, K ≥ 2) from 0 to 1 that sum to 1, not all 0 or 1.

    >>> are_soft_labels(torch.tensor([[0.9, 0.1], [0.2, 0.8]])), are_soft_labels(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    (True, False)
    """
    if not labels.dtype.is_floating_point or labels.dim() != 2 or labels.shape[1] < 2 or not len(labels):
        return False
    off = (double(labels).sum(1) - 1).abs().max()
    inside = (labels >= 0) & (labels <= 1)
    whole = bool(((labels == 0) | (labels == 1)).all())
    return bool(inside.all()) and not whole and bool(off <= max(1e-4, 4 * torch.finfo(labels.dtype).eps))


def checked_targets(labels: Tensor, width: int | None = None, *, where: str = "targets") -> Tensor:
    """Targets as (n, q) in float64, finite and of this width.

    >>> checked_targets(torch.tensor([1.5, 2.0]))
    tensor([[1.5000],
            [2.0000]], dtype=torch.float64)
    """
    if not are_targets(labels):
        raise LabelError(
            f"{where}: expected floating-point numbers of shape (n,) or (n, q), or zeros and ones of shape (n, q), as in "
            f"other batches; got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    rows = labels.unsqueeze(1) if labels.dim() == 1 else labels
    if len(rows) == 0 or rows.shape[1] == 0:
        raise LabelError(f"{where}: expected at least one sample and one target, got shape {tuple(labels.shape)}.")
    if width is not None and rows.shape[1] != width:
        raise LabelError(f"{where}: expected {width} target{'s' * (width > 1)} per sample, got {rows.shape[1]}.")
    bad = (~rows.isfinite()).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        samples = len(set(bad[:, 0].tolist()))
        raise LabelError(
            f"{where}: expected finite targets, got {float(rows[row, column])} in target {column} of sample {row} "
            f"({samples} of {len(rows)} samples have such). Leave these samples out, or fill the numbers in before."
        )
    return double(rows)


def checked_labels(labels: Tensor, classes: int | None = None, *, where: str = "labels") -> tuple[Tensor, int]:
    """Whole-number labels in 0 … K−1 as int64, and K (the largest label + 1 when not given).

    >>> checked_labels(torch.tensor([0, 2, 1]))
    (tensor([0, 2, 1]), 3)
    """
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise LabelError(
            f"{where}: expected whole-number class labels (int64), got {labels.dtype}. "
            "Convert them with labels.long() if they are class numbers; one-hot or soft labels need argmax(-1)."
        )
    if labels.dim() == 0:
        raise LabelError(f"{where}: expected one label per sample, shape (n,), got shape ().")
    if labels.numel() == 0:
        raise LabelError(f"{where}: expected at least one label, got none.")
    whole = labels.long()
    if labels.dtype == torch.uint64 and int(whole.min()) < 0:  # beyond int64 they would come out negative
        came = int(whole.min()) + 2**64
        cure = "Number the classes from 0: np.unique(labels, return_inverse=True)[1]"
        raise LabelError(f"{where}: expected class numbers below 2⁶³, got {came}. {cure}.")
    labels = whole
    low, high = torch.stack(labels.aminmax()).tolist()  # one transfer from a device
    K = high + 1 if classes is None else classes
    if low < 0 or high >= K:
        bad = low if low < 0 else high
        raise LabelError(
            f"{where}: expected labels in 0 … {K - 1} ({K} classes), got {bad}. "
            "Number the classes from 0; a negative label (an ignore index, say) must be filtered out first."
        )
    return labels, K


def listed_labels(labels: Sequence[Any], *, where: str) -> Tensor:
    """A list of numbers, or of tensors of one number, as a tensor."""
    cure = "Number the classes from 0, np.unique(labels, return_inverse=True)[1]"
    words = [label for label in labels if isinstance(label, str)]
    if words:
        named = f"{cure}; in Python `classes` takes their names"
        raise LabelError(f"{where}: expected class numbers, got strings such as {words[0]!r}. {named}.")
    try:
        return torch.as_tensor([label.item() if isinstance(label, Tensor) else label for label in labels])
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise LabelError(
            f"{where}: expected class numbers that torch can hold, got others ({error}). {cure}."
        ) from None


def check_reached(classes: int, samples: int, *, where: str = "labels") -> None:
    """Raise where there are fewer samples than classes: some class is empty, and so many might not be counted in memory."""
    if classes > samples:
        cure = f"N{NUMBERED[1:]}"
        raise LabelError(f"{where}: expected samples of all {classes:,} classes, got {samples:,} samples. {cure}.")


def check_counts(
    counts: Tensor,
    *,
    where: str = "data",
    names: tuple[str, ...] | None = None,
    cure: str = "pass classes=[…] with the class numbers to be measured",
) -> None:
    """Raise unless there are at least two classes and none is empty."""
    K = counts.shape[-1]
    if K < 2:
        raise LabelError(f"{where}: expected at least 2 classes, got {K}: one class cannot be separated from nothing.")
    fewest, most = torch.stack(counts.aminmax()).tolist() if counts.numel() else (0, 0)  # one transfer from a device
    if fewest > 0 and most > 1:
        return
    empty = (counts.reshape(-1, K) == 0).any(0).nonzero().flatten().tolist()
    if not most or len(empty) == K:
        raise LabelError(f"{where}: expected samples, got none.")
    if not empty:
        raise LabelError(
            f"{where}: expected several samples of at least one class, got one of each: the spread within classes cannot "
            "be measured. Use more samples."
        )
    if empty:
        shown = ", ".join(str(names[k] if names else k) for k in empty[:10]) + (" …" if len(empty) > 10 else "")
        raise LabelError(
            f"{where}: expected samples of all {K} classes, got none of class {shown} "
            f"({len(empty)} empty). Add samples, or {cure}."
        )


def near_chance(accuracy: float, classes: int) -> bool:
    """Whether decisions among so many classes are hardly better than guessing: less than a tenth of the way to perfect.

    >>> near_chance(0.12, 10), near_chance(0.3, 10)
    (True, False)
    """
    chance = 1 / classes
    return accuracy < chance + 0.1 * (1 - chance)


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """(…, n) labels → (…, K, n) indicator rows, ready to be multiplied with (…, n, d) features.

    >>> one_hot(torch.tensor([1, 0, 1]), 2, torch.float32)
    tensor([[0., 1., 0.],
            [1., 0., 1.]])
    """
    return (labels.unsqueeze(-2) == torch.arange(classes, device=labels.device).unsqueeze(-1)).to(dtype)


_kept: list[tuple[Tensor, Tensor]] = []


def kept_one_hot(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """The same, not to be overwritten: of few labels they are kept, since a network in training is measured on the same."""
    if labels.dim() != 1 or len(labels) > FEW_LABELS or not labels.is_cpu:
        return one_hot(labels, classes, dtype)
    known = _kept[0] if _kept else None
    same = known is not None and known[1].shape[0] == classes and known[1].dtype == dtype
    if known is None or not same or not torch.equal(known[0], labels):
        with torch.inference_mode(False):  # they may be used outside of one
            _kept[:] = [known := (labels.clone(), one_hot(labels, classes, dtype))]
    return known[1]


def indicator_rows(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """The same of labels that are known to be 0 … K−1, which is faster on a CPU."""
    if not labels.is_cpu:
        return one_hot(labels, classes, dtype)
    rows = torch.zeros((*labels.shape[:-1], classes, labels.shape[-1]), dtype=dtype)
    return rows.scatter_(-2, labels.unsqueeze(-2), 1)


@dataclass(frozen=True)
class Labelings:
    """Several labelings (P, n) of the same samples, 0 … K−1, made ready for sums over rows of features.

    counts (P, K) in float64.
    """

    labels: Tensor
    counts: Tensor
    _made: dict[tuple[int, int], tuple[Tensor, ...]] = field(default_factory=dict, repr=False)
    _cells: dict[tuple[int, int], list[tuple[Tensor, int]]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, labels: Tensor, classes: int) -> Labelings:
        """From labels (P, n) that are known to be 0 … K−1."""
        counts = torch.zeros((len(labels), classes), dtype=torch.float64, device=labels.device)
        return cls(labels, counts.scatter_add_(1, labels, counts.new_ones(1, 1).expand(labels.shape)))

    def chunks(self, row_bytes: int) -> Iterator[slice]:
        """Rows that are added up in one go."""
        n = self.labels.shape[1]
        if self.labels.is_cpu:  # where the sums of every block are held too
            return row_chunks(n, row_bytes + row_bytes * self.counts.numel() // self._block, self.labels.device)
        return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))

    @property
    def _block(self) -> int:
        """Rows that are added up in float32 on a CPU."""
        return min(BLOCK, RUN * self.counts.shape[1])

    def added_up(self, rows: Tensor, place: slice) -> Tensor:
        """Sums (…, P, K, d) in float64 of the rows (…, m, d) of one of the chunks."""
        *batch, _, d = rows.shape
        if (place.start, place.stop) not in self._made:
            labels = self.labels[:, place]
            self._made[place.start, place.stop] = self._runs(labels) if labels.is_cpu else self._hot(labels)
        ready = self._made[place.start, place.stop]
        if not rows.is_cpu:
            return double(ready[0].to(rows.dtype) @ rows).view(*batch, *self.counts.shape, d)
        # Going through the rows of every cell takes a quarter of the time of a product with indicators.
        order, starts = ready
        found = [
            torch.embedding_bag(one, order, starts)[0].view(-1, *self.counts.shape, d).sum(0, dtype=torch.float64)
            for one in rows.reshape(-1, *rows.shape[-2:])
        ]
        return torch.stack(found).view(*batch, *self.counts.shape, d)

    def cells(self, sites: int, features: int) -> list[tuple[Tensor, int]]:
        """Cells (S·n,) that the rows of several sites are added into, and how many there are.

        Of few classes and features they are those of two labelings, which are added up at once.
        """
        K, n = self.counts.shape[1], self.labels.shape[1]
        at_once = 2 if n >= 2 * K * K and K * K * features <= PAIRED else 1
        if (sites, at_once) not in self._cells:
            lead = torch.arange(sites).unsqueeze(-1)
            self._cells[sites, at_once] = found = []
            for some in torch.split(self.labels, at_once):
                own, number = (some[0], K) if len(some) == 1 else (some[0] * K + some[1], K * K)
                found.append(((lead * number + own).view(-1), sites * number))
        return self._cells[sites, at_once]

    def apart(self, sums: Sequence[Tensor], sites: int) -> Tensor:
        """Sums (S, P, K, d) of every labeling from those (cells, d) into all `cells`."""
        K, found = self.counts.shape[1], []
        for one in sums:
            both = one.view(sites, -1, K, one.shape[-1])  # (S, K or 1, K, d)
            found += [both.sum(2), both.sum(1)] if len(one) > sites * K else [both.squeeze(1)]
        return torch.stack(found, 1)

    def _hot(self, labels: Tensor) -> tuple[Tensor]:
        """Indicators of the cells (P·K, m)."""
        return (one_hot(labels, self.counts.shape[1], torch.float32).flatten(0, 1),)

    def _runs(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of the rows, cell by cell, and where each cell begins; every block of rows has cells of its own."""
        (P, m), K = labels.shape, self.counts.shape[1]
        block = torch.arange(m) // self._block
        cells = (labels + K * (torch.arange(P).unsqueeze(-1) + P * block)).reshape(-1)
        order, starts = runs_of(cells, -(-m // self._block) * P * K)
        return order % m, starts

    def to(self, device: torch.device) -> Labelings:
        """The same on another device."""
        if self.counts.device == device:
            return self
        return Labelings(self.labels.to(device), self.counts.to(device))


def runs_of(cells: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Rows sorted by the cell (n,) they belong to, in their own order inside of it, and where each of so many cells begins.

    >>> runs_of(torch.tensor([2, 0, 2, 0]), 3)
    (tensor([1, 3, 0, 2]), tensor([0, 2, 2]))
    """
    short = cells.to(torch.int16) if number < 2**15 else cells  # which NumPy sorts ten times as fast
    sizes = torch.bincount(cells, minlength=number)
    return torch.from_numpy(short.numpy().argsort(kind="stable")), sizes.cumsum(0) - sizes


@lru_cache(maxsize=4)
def shuffled_groups(groups: int, seed: int) -> Tensor:
    """Group numbers for `deal_groups`: ten rounds of 10·g, each g number ten times in random order; not to be changed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):  # they may be used outside of one
        return torch.cat([torch.randperm(10 * groups, generator=generator) for _ in range(10)]) % groups


def deal_groups(labels: Tensor, seen: Tensor, groups: int, order: Tensor | None = None) -> Tensor:
    """Deal the samples of each class like cards into groups: (n,) labels → (n,) group numbers.

    `seen` (K,) counts the samples of each class dealt so far and is advanced in place, so that the groups stay
    stratified over batches. `order` are the numbers to deal, over and over (default 0, 1, …): dealt in turn, groups of a
    file whose samples change slowly would be too much alike.

    >>> deal_groups(torch.tensor([0, 0, 1, 0, 1]), torch.zeros(2, dtype=torch.long), 2)
    tensor([0, 1, 0, 0, 1])
    """
    by_class, starts = runs_of(labels, len(seen))
    place = (seen - starts)[labels[by_class]] + torch.arange(len(labels))  # how many of its class came before it
    group = torch.empty_like(place)
    group[by_class] = place % groups if order is None else order[place % len(order)]
    seen += torch.bincount(labels, minlength=len(seen))
    return group


def mixed_order(labels: Tensor) -> bool:
    """Whether labels (n,) are in an order that no other samples have by accident: not sorted, nor one after the other.

    >>> sorted_, in_turn = torch.arange(300) // 100, torch.arange(300) % 3
    >>> [mixed_order(one) for one in (sorted_, in_turn, in_turn[torch.randperm(300)])]
    [False, False, True]
    """
    values, y = torch.unique(labels, return_inverse=True)
    K, n = len(values), len(y)
    if n < 2 * K:  # numbers to be predicted
        return n >= SURPRISES
    # What comes behind a label: the same as the last time, in a sorted order and where classes take turns.
    order = y[:-1].argsort(stable=True)
    here, behind = y[:-1][order], y[1:][order]
    surprises = int(((here[1:] == here[:-1]) & (behind[1:] != behind[:-1])).sum())
    return surprises >= 2 * K + SURPRISES and _period(y.tolist()) > n // 2


def _period(values: Sequence[int]) -> int:
    """After how many values they repeat themselves (Knuth, Morris, Pratt)."""
    borders, border = [0], 0
    for value in values[1:]:
        while border and value != values[border]:
            border = borders[border - 1]
        border += value == values[border]
        borders.append(border)
    return len(values) - borders[-1]
