"""A fingerprint of samples, computed where they are: exact integer sums, the same on every device and for every batching."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from layerlaw.stats.ranks import all_reduce, gathered, rank, world_size

KIND = "sums64"
BITS = 2**64
LOW = 2**32 - 1
COLUMNS = 2**18  # numbers of a sample that have weights of their own; the next so many have them times NEXT
AT_ONCE = 2**16  # numbers on a CPU that are widened at a time: they stay in its cache
AT_ONCE_ELSEWHERE = 2**24
BATCHES = 64  # whose rows wait to be added up
# Odd numbers without a pattern: a change in one number, which is multiplied by an odd weight, is never lost.
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
ROW, NEXT, KINDS = 0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xC2B2AE3D27D4EB4F


@dataclass
class Stream:
    """What is known of one tensor of every batch: how many rows, and the sum of ROW^i times the number of row i.

    Of several ranks also the `unordered` sum of the numbers, which tells whether two of them have the same rows. Rows wait
    until those of some batches are added up at once: on a GPU each call costs more than its work.
    """

    rows: int = 0
    total: int | Tensor = 0
    unordered: int | Tensor = 0
    _waiting: list[Tensor] = field(default_factory=list, repr=False)

    def add(self, sums: Tensor) -> None:
        """Rows behind those that were there, by their `row_sums`; on the device where they are, without waiting for it."""
        self.rows += len(sums)
        self._waiting.append(sums)
        if len(self._waiting) >= BATCHES or len(sums) >= BATCHES * BATCHES:
            self.settle()

    def settle(self) -> None:
        """Add up what waits."""
        if not self._waiting:
            return
        numbers = _scrambled(torch.cat([sums.to(self._waiting[0].device) for sums in self._waiting]))
        self._waiting = []
        before = self.rows - len(numbers)
        later = (numbers * _powers(len(numbers), str(numbers.device))).sum() * _signed(pow(ROW, before, BITS))
        self.total = later if before == 0 else later.to(_device(self.total)) + self.total
        if world_size() > 1:
            more = numbers.sum()
            self.unordered = more if before == 0 else more.to(_device(self.unordered)) + self.unordered

    @property
    def number(self) -> int:
        """The sum, from 0 to 2⁶⁴ − 1."""
        self.settle()
        return int(self.total) % BITS

    @property
    def kind(self) -> tuple[int, int]:
        """How many rows, and the sum of their numbers in whatever order."""
        self.settle()
        return self.rows, int(self.unordered) % BITS


@dataclass
class Fingerprint:
    """Of samples in their order, whatever the batches and wherever they are.

    Every tensor of a batch (labels, first input, second input, …) is a stream of rows, a row per sample. The number of a row
    is the sum of its numbers, read as integers, times weights without a pattern, then scrambled together with its dtype
    and length; that of a stream the sum of ROW^i times those of its rows i; all modulo 2⁶⁴, so exact and free of any
    order of addition. One changed number is always seen; other accidents (rows or labels that changed places, another
    dtype) but for one in billions. It is no protection against intent. A tensor that has no row per sample counts as one row
    of each batch.

    >>> whole, cut = Fingerprint(), Fingerprint()
    >>> whole.update(torch.arange(4))
    >>> cut.update(torch.arange(2)), cut.update(torch.arange(2, 4))
    (None, None)
    >>> whole.text() == cut.text()
    True
    """

    streams: list[Stream] = field(default_factory=list)

    def update(self, *tensors: Tensor) -> None:
        """Add a batch: the labels, whose length is the number of samples, then what the network is called with."""
        self.streams += [Stream() for _ in tensors[len(self.streams) :]]
        samples = len(tensors[0])
        for stream, values in zip(self.streams, tensors, strict=False):
            per_sample = values.dim() > 0 and len(values) == samples
            shape = (samples, prod(values.shape[1:])) if per_sample else (1, values.numel())
            stream.add(row_sums(values.detach().reshape(shape)))

    def all_reduce(self) -> None:
        """Over all ranks of a torchrun job: as if the data of rank 1 came behind those of rank 0, and so on."""
        if world_size() == 1:
            return
        counts = torch.zeros(world_size(), dtype=torch.float64)
        counts[rank()] = len(self.streams)
        all_reduce([counts])
        known = torch.zeros(
            world_size(), int(counts.max()), 3, dtype=torch.float64
        )  # halves of 32 bits are exact in it
        for at, stream in enumerate(self.streams):
            known[rank(), at] = torch.tensor([stream.rows, stream.number >> 32, stream.number & LOW]).double()
        all_reduce([known])
        self.streams = []
        for of_rank in known.long().tolist():
            self.follow([(rows, high << 32 | low) for rows, high, low in of_rank])

    def follow(self, streams: Sequence[tuple[int, int]]) -> None:
        """As if other data came behind these: rows and number of each of their streams."""
        self.streams += [Stream() for _ in streams[len(self.streams) :]]
        for stream, (rows, number) in zip(self.streams, streams, strict=False):
            stream.total = (stream.number + pow(ROW, stream.rows, BITS) * number) % BITS
            stream.rows += rows

    def ranks_alike(self) -> list[list[int]]:
        """Ranks that have the same samples, in whatever order, as lists of two or more; before `all_reduce`."""
        mine = tuple(stream.kind for stream in self.streams)
        alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for r, known in enumerate(gathered(mine)):
            if any(rows for rows, _ in known):
                alike.setdefault(known, []).append(r)
        return [ranks for ranks in alike.values() if len(ranks) > 1]

    def text(self) -> str:
        """Its kind and 32 characters; waits for the device."""
        told = "|".join(f"{stream.rows} {stream.number}" for stream in self.streams)
        return f"{KIND}:{hashlib.sha256(told.encode()).hexdigest()[:32]}"


def row_sums(values: Tensor) -> Tensor:
    """A sum (n,) for every row (n, d), with its dtype and length in it; scrambled, it is the number of the row."""
    kind, length = str(values.dtype), values.shape[1]
    values = _integers(values)
    pieces = torch.split(values, COLUMNS, 1)
    total = _weighted(pieces[0])
    for at, piece in enumerate(pieces[1:], 1):
        total += _weighted(piece) * _signed(pow(NEXT, at, BITS))
    return total + _salt(kind, length)


@lru_cache(maxsize=64)
def _salt(kind: str, length: int) -> int:
    """A number for rows of one dtype and length."""
    return _signed(int.from_bytes(hashlib.sha256(f"{kind} {length}".encode()).digest()[:8], "little") * KINDS)


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
    places = torch.arange(1, COLUMNS + 1, device=device) * _signed(STEP)
    return _scrambled(places) | 1


@lru_cache(maxsize=64)
def _powers(n: int, device: str) -> Tensor:
    """ROW⁰ … ROWⁿ⁻¹ modulo 2⁶⁴."""
    powers = torch.ones(1, dtype=torch.int64)
    while len(powers) < n:
        powers = torch.cat([powers, powers * _signed(pow(ROW, len(powers), BITS))])
    return powers[:n].to(device)


def _signed(number: int) -> int:
    """The same modulo 2⁶⁴, from −2⁶³ to 2⁶³ − 1, as torch holds it."""
    return (number + BITS // 2) % BITS - BITS // 2


def _device(value: int | Tensor) -> torch.device | str:
    return value.device if isinstance(value, Tensor) else "cpu"
