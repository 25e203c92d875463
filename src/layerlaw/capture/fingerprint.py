"""A fingerprint of samples, computed where they are: exact integer sums, the same on every device and for every batching."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layerlaw.stats.ranks import gathered, world_size

KIND, ANY_ORDER = "sums64", "set64"
BITS, LOW = 2**64, 2**32 - 1
COLUMNS = 2**18  # numbers of a sample that have weights of their own; the next so many have them times NEXT
AT_ONCE = 2**16  # numbers on a CPU that are widened at a time: they stay in its cache
AT_ONCE_ELSEWHERE = 2**24
BATCHES = 64  # whose rows wait to be added up
KEPT_BYTES, MOST_KEPT = 2**22, 2**23  # of a tensor on a CPU whose sums are kept, and of all that is kept
MOST_PLACES = 16  # in memory with sums that are kept: batches of a stream come to ever new ones
MOST_COMPARED = 2**20  # samples of a rank that are looked for on others; of more, half of them, a quarter, …
LOOKED_AT = 2**12  # labels of a rank, by which one sees whether they are in an order that others could have by accident
# Odd numbers without a pattern: a change in one number, which is multiplied by an odd weight, is never lost.
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
ROW, NEXT, KINDS = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xC2B2AE3D27D4EB4F

Places = tuple[int, int]
"""Where the samples of a rank are among those of all ranks: the place of the first, and how far it is to each next one."""
Share = tuple[dict[str, Any], Places | None, list[int | None], int, Any]  # saved, places, sums by these, how thinned, …


@dataclass
class Stream:
    """What is known of one tensor of every batch: how many rows, and the sum of ROW^i times the number of row i.

    Of one of several ranks also the same by the places i that its rows have among those of all ranks, where they are known.
    """

    rows: int = 0
    total: int | Tensor = 0
    placed: int | Tensor | None = 0

    def add(self, numbers: Tensor, places: Places | None = None) -> None:
        """Rows behind those that were there; on the device of the first ones, without waiting for it."""
        self.total = _sum(self.total, _at_places(numbers, self.rows, 1))
        if places is None or self.placed is None:
            self.placed = None
        else:
            first, step = places
            self.placed = _sum(self.placed, _at_places(numbers, first + step * self.rows, step))
        self.rows += len(numbers)

    @property
    def number(self) -> int:
        """The sum, from 0 to 2⁶⁴ − 1."""
        return int(self.total) % BITS


@dataclass(frozen=True)
class RowSums:
    """The `row_sums` of one tensor of a batch, and whether they are a row per sample or one of the whole batch."""

    sums: Tensor
    per_sample: bool


@dataclass
class Fingerprint:
    """Of samples in their order, whatever the batches and wherever they are.

    Every tensor of a batch (labels, first input, second input, …) is a stream of rows, a row per sample. The number of a row
    is the sum of its numbers, read as integers, times weights without a pattern, then scrambled together with its dtype
    and length; that of a stream the sum of ROW^i times those of its rows i; all modulo 2⁶⁴, so exact and free of any
    order of addition. One changed number is always seen; other accidents (rows or labels that changed places, another
    dtype) but for one in billions. It is no protection against intent. A tensor that has no row per sample counts as one row
    of each batch. `samples` is the same without an order: the sum of the numbers of samples, each scrambled from those of
    its rows. Ranks add up to the fingerprint of one process where the places of their samples are known.

    >>> whole, cut = Fingerprint(), Fingerprint()
    >>> whole.update(torch.arange(4))
    >>> cut.update(torch.arange(2)), cut.update(torch.arange(2, 4))
    (None, None)
    >>> whole.text() == cut.text()
    True
    """

    streams: list[Stream] = field(default_factory=list)
    samples: int | Tensor = 0
    places: Places | None = None
    labels: list[Tensor] = field(default_factory=list)  # numbers of the first ones, of one of several ranks
    _seen: list[Tensor] = field(default_factory=list)  # numbers of single samples, to be looked for on other ranks
    _waiting: list[tuple[int, list[RowSums]]] = field(default_factory=list, repr=False)  # each call on a GPU costs time
    _thinned: int = 0  # how often the half of them was let go
    _shares: list[Share] | None = field(default=None, repr=False)

    def update(self, *tensors: Tensor, places: Places | None = None) -> None:
        """Add a batch: the labels, whose length is the number of samples, then what the network is called with."""
        if self._waiting and (places != self.places or len(tensors) != len(self._waiting[0][1])):
            self.settle()
        self.streams += [Stream() for _ in tensors[len(self.streams) :]]
        self.places, n, batch = places, len(tensors[0]), list[RowSums]()
        for values in tensors:
            per_sample = values.dim() > 0 and len(values) == n
            shape = (n, prod(values.shape[1:])) if per_sample else (1, values.numel())
            batch.append(RowSums(row_sums(values.detach().reshape(shape)), per_sample))
        self._waiting.append((n, batch))
        if len(self._waiting) >= BATCHES or n >= BATCHES * BATCHES:
            self.settle()

    def settle(self) -> None:
        """Add up what waits; on the device where it is, without waiting for it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._shares = None
        # Of few batches: what is held of many would lie scattered in memory that others need.
        fresh = world_size() == 1 and len(waiting) < BATCHES and not any(stream.rows for stream in self.streams)
        known = _settled[0] if fresh and _settled else None
        if known is not None and known.of(waiting, self.places):
            self.streams, self.samples = [replace(stream) for stream in known.streams], known.samples
            return
        self._settle(waiting)
        if fresh:
            _settled[:] = [Settled(waiting, self.places, [replace(stream) for stream in self.streams], self.samples)]

    def _settle(self, waiting: list[tuple[int, list[RowSums]]]) -> None:
        together: Tensor | None = None
        for stream, rows in zip(self.streams, zip(*(batch for _, batch in waiting), strict=True), strict=False):
            numbers = _scrambled(torch.cat([one.sums.to(rows[0].sums.device) for one in rows]))
            per_sample = all(one.per_sample for one in rows)
            if together is None and world_size() > 1 and stream.rows < LOOKED_AT:
                self.labels.append(numbers[:LOOKED_AT])
            stream.add(numbers, self.places if per_sample else None)
            if not per_sample:  # one number for all samples of a batch
                parts = zip(torch.split(numbers, [len(one.sums) for one in rows]), waiting, strict=True)
                numbers = torch.cat([part.expand(n) for part, (n, _) in parts])
            together = numbers if together is None else numbers.to(together.device) + together * _signed(NEXT)
        assert together is not None
        together = _scrambled(together)
        self.samples = _sum(self.samples, together.sum())
        if world_size() > 1:
            self._seen.append(together)
            if sum(map(len, self._seen)) > MOST_COMPARED:
                self._thinned += 1
                self._seen = [_thinned(torch.cat(self._seen), self._thinned)]

    def all_reduce(self) -> None:
        """Over all ranks of a torchrun job: as if one process had gone through all samples in the order of their places.

        Where these are not known, as if the data of rank 1 came behind those of rank 0, and so on.
        """
        self.settle()
        if world_size() == 1:
            return
        every = self._of_all()
        self.streams, self.samples = [], 0
        for saved, *_ in every:
            self.follow(saved)
        there = [(saved["streams"], places, numbers) for saved, places, numbers, *_ in every if saved["streams"]]
        if not one_sequence([(streams[0][0], places) for streams, places, _ in there]):
            return
        for at, stream in enumerate(self.streams):
            numbers = [one[at] for _, _, one in there if at < len(one)]
            known = [number for number in numbers if number is not None]
            if len(known) == len(there):
                stream.total = sum(known) % BITS

    def _of_all(self, beside: Any = None) -> list[Share]:
        """Of every rank its share, with what it has `beside` that: exchanged once, behind all batches."""
        self.settle()
        if self._shares is None or beside is not None:
            placed = [s.placed if s.placed is None else int(s.placed) % BITS for s in self.streams]
            self._shares = gathered((self.saved(), self.places, placed, self._thinned, beside))
        return self._shares

    def saved(self) -> dict[str, Any]:
        """Plain numbers that say all of it, for another process."""
        self.settle()
        return {"streams": [[s.rows, s.number] for s in self.streams], "samples": int(self.samples) % BITS}

    def follow(self, saved: dict[str, Any]) -> None:
        """As if other data came behind these, of which another process `saved` the numbers."""
        self.settle()
        self._shares = None
        self.streams += [Stream() for _ in saved["streams"][len(self.streams) :]]
        self.samples = (int(self.samples) + saved["samples"]) % BITS
        for stream, (rows, number) in zip(self.streams, saved["streams"], strict=False):
            stream.total = (stream.number + pow(ROW, stream.rows, BITS) * number) % BITS
            stream.rows += rows

    def dealt_by_places(self, beside: Any = None) -> tuple[bool, list[Any]]:
        """Whether every rank has places of its own, and what each has `beside` its samples, which is sent along."""
        every = self._of_all(beside)
        known = [(saved["streams"][0][0], places) for saved, places, *_ in every if saved["streams"]]
        return one_sequence([(rows, places) for rows, places in known if rows]), [one for *_, one in every]

    def ranks_alike(self) -> list[list[int]]:
        """Ranks that have the same samples, in whatever order, as lists of two or more; before `all_reduce`."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for r, (saved, *_) in enumerate(self._of_all()):
            alike.setdefault((*(rows for rows, _ in saved["streams"]), saved["samples"]), []).append(r)
        return [ranks for (*rows, _), ranks in alike.items() if len(ranks) > 1 and any(rows)]

    def on_several_ranks(self, beside: Any = None) -> tuple[int, list[Any]]:
        """How many samples more than one rank has (of very many, about), as far as that is sure; before `all_reduce`.

        Data may have equal samples: these would be on one rank as often as on several, so that several must have many
        more of them. Behind that number what every rank has `beside` its samples, which is sent along.
        """
        most = max(thinned for *_, thinned, _ in self._of_all())
        mine = _thinned(torch.cat(self._seen) if self._seen else torch.zeros(0, dtype=torch.int64), most).cpu()
        every = gathered((torch.unique(mine), len(mine), beside))
        again = sum(n - len(own) for own, n, _ in every)
        several = int((torch.unique(torch.cat([own for own, *_ in every]), return_counts=True)[1] > 1).sum())
        return several * 2**most if several > 2 * len(every) * again else 0, [one for *_, one in every]

    def text(self) -> str:
        """Its kind and 32 characters; waits for the device."""
        self.settle()
        return f"{KIND}:{_digest('|'.join(f'{stream.rows} {stream.number}' for stream in self.streams))}"

    def samples_text(self) -> str:
        """The same whatever the order of the samples."""
        self.settle()
        rows = self.streams[0].rows if self.streams else 0
        return f"{ANY_ORDER}:{_digest(f'{rows} {int(self.samples) % BITS}')}"


def _digest(told: str) -> str:
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def one_sequence(shares: Sequence[tuple[int, Places | None]]) -> bool:
    """Whether shares of so many samples at these places are 0, 1, 2, … together, each once."""
    n, steps = sum(rows for rows, _ in shares), {places[1] if places else 0 for _, places in shares}
    if len(steps) != 1 or steps <= {0}:
        return False
    firsts, step = [places[0] for _, places in shares if places], steps.pop()
    fits = all(rows == len(range(places[0], n, step)) for rows, places in shares if places)
    return fits and len(set(firsts)) == len(firsts) and all(0 <= first < step for first in firsts)


def _thinned(numbers: Tensor, times: int) -> Tensor:
    """One of 2^times numbers, the same ones on every rank."""
    return numbers[numbers & (2**times - 1) == 0]


def _sum(total: int | Tensor, more: Tensor) -> Tensor:
    """On the device of the first."""
    return more + _signed(total) if isinstance(total, int) else more.to(total.device) + total


def _at_places(numbers: Tensor, first: int, step: int) -> Tensor:
    """The sum of ROW^i times numbers whose places i are first, first + step, …"""
    powers = _powers(len(numbers), str(numbers.device), pow(ROW, step, BITS))
    return (numbers * powers).sum() * _signed(pow(ROW, first, BITS))


@dataclass(frozen=True)
class Settled:
    """What a fresh fingerprint found from these very row sums: data that are measured again and again have them again."""

    waiting: list[tuple[int, list[RowSums]]]
    places: Places | None
    streams: list[Stream]
    samples: int | Tensor

    def of(self, waiting: list[tuple[int, list[RowSums]]], places: Places | None) -> bool:
        """Whether it was found from them."""
        if places != self.places or [len(batch) for _, batch in waiting] != [len(batch) for _, batch in self.waiting]:
            return False
        pairs = zip(waiting, self.waiting, strict=True)
        return all(one.sums is other.sums for (_, a), (_, b) in pairs for one, other in zip(a, b, strict=True))


_settled: list[Settled] = []


class KnownRows:
    """Row sums of tensors in memory, with a copy of these: where the same numbers are at the same place, so are their sums.

    All numbers are compared, which takes a tenth of the time of their sums. Only of data that were seen to stay the same is
    there a copy; those of a stream come and go.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[npt.NDArray[Any] | None, Tensor]] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def find(self, values: Tensor, kind: str) -> Tensor:
        """The sums of whole numbers (n, d) that were read from this kind."""
        if not values.is_cpu or type(values) is not Tensor or values.nbytes > KEPT_BYTES:
            return _row_sums(values, kind)
        place, numbers = (values.data_ptr(), values.shape, kind, COLUMNS), values.numpy()
        copy, before = self._kept.get(place, (None, None))
        if before is not None and copy is not None and np.array_equal(copy, numbers):
            return before
        with torch.inference_mode(False):  # they may be used outside of one
            sums = _row_sums(values, kind)
        stays = before is not None and torch.equal(sums, before)
        with self._lock:
            self._let_go(place)
            self._kept[place] = (numbers.copy() if stays else None), sums
            self._bytes += sums.nbytes + stays * numbers.nbytes
            while self._bytes > MOST_KEPT or len(self._kept) > MOST_PLACES:
                self._let_go(next(iter(self._kept)))
        return sums

    def _let_go(self, place: Hashable) -> None:
        if place in self._kept:
            copy, sums = self._kept.pop(place)
            self._bytes -= sums.nbytes + (0 if copy is None else copy.nbytes)


_known_rows = KnownRows()


def row_sums(values: Tensor, *, keep: bool = True) -> Tensor:
    """A sum (n,) for every row (n, d), with its dtype and length; `keep` it: the same rows may come again."""
    find = _known_rows.find if keep else _row_sums
    return find(_integers(values), f"{values.dtype} {values.shape[1]}")


def _row_sums(values: Tensor, kind: str) -> Tensor:
    pieces = torch.split(values, COLUMNS, 1)
    total = _weighted(pieces[0])
    for at, piece in enumerate(pieces[1:], 1):
        total += _weighted(piece) * _signed(pow(NEXT, at, BITS))
    return total + _salt(kind)


@lru_cache(maxsize=64)
def _salt(kind: str) -> int:
    """A number for rows of one dtype and length."""
    return _signed(int.from_bytes(hashlib.sha256(kind.encode()).digest()[:8], "little") * KINDS)


def _weighted(values: Tensor) -> Tensor:
    """Σ_j weight_j · value_ij modulo 2⁶⁴ (n,); a few rows at a time, as they are widened to 64 bits."""
    d = values.shape[1]
    weights = _weights(str(values.device))[:d]
    count = max(1, (AT_ONCE if values.device.type == "cpu" else AT_ONCE_ELSEWHERE) // max(1, d))
    wide = values.element_size() == 8
    found = []
    for part in torch.split(values, count):
        # Of 64 bits the high ones are added to the low: 1.0 has zeros there, which a product would only push out.
        part = part ^ ((part >> 32) & LOW) if wide else part.to(torch.int64)
        found.append((part * weights if wide else part.mul_(weights)).sum(1))
    return found[0] if len(found) == 1 else torch.cat(found)


def _integers(values: Tensor) -> Tensor:
    """The bytes of (n, d) as whole numbers, as wide as the numbers are."""
    if values.dtype.is_complex:
        values = torch.view_as_real(values).flatten(1)
    if values.dtype == torch.bool:
        values = values.to(torch.uint8)
    values = values.contiguous()
    return values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])


def _scrambled(x: Tensor) -> Tensor:
    """A number for each, such that any change of one bit changes about half of the bits of the other."""
    for shift, factor in ((30, FIRST), (27, SECOND)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, zeros from the left: `>>` would repeat the sign."""
    found: Tensor = (x >> bits) & (2 ** (64 - bits) - 1)
    return found


@lru_cache(maxsize=16)
def _weights(device: str) -> Tensor:
    """Odd weights (COLUMNS,) without a pattern."""
    return _scrambled(torch.arange(1, COLUMNS + 1, device=device) * _signed(STEP)) | 1


@lru_cache(maxsize=64)
def _powers(n: int, device: str, base: int = ROW) -> Tensor:
    """base⁰ … baseⁿ⁻¹ modulo 2⁶⁴."""
    powers = torch.ones(1, dtype=torch.int64)
    while len(powers) < n:
        powers = torch.cat([powers, powers * _signed(pow(base, len(powers), BITS))])
    return powers[:n].to(device)


def _signed(number: int) -> int:
    """The same modulo 2⁶⁴, from −2⁶³ to 2⁶³ − 1, as torch holds it."""
    return (number + BITS // 2) % BITS - BITS // 2
