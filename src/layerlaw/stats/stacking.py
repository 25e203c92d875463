"""Features of sites of equal shape, put side by side: one call then serves all of them.

On a CPU, what it gives for a sample does not depend on the samples beside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from inspect import ismethod
from typing import ParamSpec, Protocol

import torch
from torch import Tensor

P = ParamSpec("P")
Key = Hashable  # whatever names a site
Kind = tuple[torch.Size, torch.dtype, torch.device]

# Bytes of one site's features in a batch up to which a call costs more than the copy that joins it with others.
SMALL = {"cpu": 2**19, "cuda": 2**25}
# Bytes of all of them: on a CPU they stay in the cache, with what is made of them.
AT_ONCE = {"cpu": 2**21, "cuda": 2**27}
TILE = 16  # samples: products of whole tiles are the same whatever stands beside them
MANY_FEATURES = 512  # of more, how a product adds up float32 numbers depends on the number of samples
MANY_ROWS = 64  # of so many it does on some machines
SMALL_PRODUCT = 400  # multiplications below which torch takes another way
ALONE = {"cpu": 2, "cuda": 8}  # times as many where nothing is made of them but sums and projections: no views


class Entry(Protocol):
    """One entry of the leading dimension of a statistic, which remembers what it is of: `entry` is that, and the place."""

    @property
    def tensors(self) -> list[Tensor]:
        """What it holds."""

    @property
    def entry(self) -> tuple[Entry, int] | None:
        """`None` where it is by itself."""


def side_by_side(parts: Sequence[Entry]) -> list[Tensor]:
    """The tensors of statistics of equal shape with a new leading dimension; those that lie so are copied as one."""
    wholes = _wholes_of(parts)
    if wholes is None:
        return [torch.stack(same) for same in zip(*(part.tensors for part in parts), strict=True)]
    if len(wholes) == 1:
        return [tensor.clone() for tensor in wholes[0].tensors]
    return [torch.cat(same) for same in zip(*(whole.tensors for whole in wholes), strict=True)]


def _wholes_of(parts: Sequence[Entry]) -> list[Entry] | None:
    """What these are all the entries of, one whole behind the other; `None` where they are not."""
    found: list[Entry] = []
    missing = place = 0
    for part in parts:
        if part.entry is None:
            return None
        whole, index = part.entry
        if not missing:
            found.append(whole)
            missing, place = len(whole.tensors[0]), 0
        if whole is not found[-1] or index != place:
            return None
        missing, place = missing - 1, place + 1
    return None if missing else found


def owned(work: Callable[P, None]) -> Callable[P, None]:
    """The same work for something that the owner of this method holds.

    A cycle would keep large tensors until the garbage collector comes.
    """
    if not ismethod(work):
        return work
    known = weakref.WeakMethod(work)

    def done(*args: P.args, **kwargs: P.kwargs) -> None:
        method = known()
        assert method is not None
        method(*args, **kwargs)

    return done


class Stacks:
    """Gathers the features of a batch while the forward runs; `work` gets those of equal shape together, (S, n, d).

    Large ones it gets at once and alone, (1, n, d). Small ones are copied: what follows in the forward may overwrite them.
    """

    def __init__(self, work: Callable[[list[Key], Tensor], None]) -> None:
        self._work = owned(work)
        self._waiting: dict[Kind, dict[Key, Tensor]] = {}
        self._rooms: dict[Kind, Tensor] = {}  # what those that wait are copied to, side by side
        self._spare: dict[Kind, Tensor] = {}  # those of batches before: fresh memory costs more than the copy
        self._usual: dict[Kind, int] = {}  # how many came together in a batch before

    def add(self, key: Key, features: Tensor) -> None:
        """The features (n, d) of one site."""
        size, device = features.nbytes, features.device.type
        if size > SMALL.get(device, 0):
            self._work([key], features.unsqueeze(0))
            return
        kind = features.shape, features.dtype, features.device
        together = self._waiting.setdefault(kind, {})
        if not together and (usual := self._usual.get(kind, 1)) > 1:
            spare = self._spare.pop(kind, None)
            if spare is None or len(spare) < usual:
                spare = features.new_empty((usual, *features.shape))
            self._rooms[kind] = spare
        room = self._rooms.get(kind)
        if room is not None and key not in together and len(together) < len(room):
            together[key] = room[len(together)].copy_(features)
        else:  # they are put side by side later
            self._rooms.pop(kind, None)
            together[key] = features.clone()
        if size * len(together) >= AT_ONCE[device]:
            self._flush(kind)

    def add_all(self, keys: Sequence[Key], features: Tensor, *, views: bool) -> None:
        """Those of several sites (S, n, d), which nothing overwrites; `views`: whether more is made of each."""
        device = features.device.type
        most = AT_ONCE.get(device, 0) * (1 if views else ALONE.get(device, 1))
        step = max(1, most // max(1, features[0].nbytes))
        for at in range(0, len(keys), step):
            self._work(list(keys[at : at + step]), features[at : at + step])

    def flush(self) -> None:
        """At the end of a batch: work through those that wait."""
        for kind in list(self._waiting):
            self._flush(kind)

    def drop(self) -> None:
        """Forget those that wait: their batch was not finished."""
        self._waiting, self._rooms = {}, {}

    def _flush(self, kind: Kind) -> None:
        together, room = self._waiting.pop(kind), self._rooms.pop(kind, None)
        self._usual[kind] = max(len(together), self._usual.get(kind, 0))
        whole = torch.stack(list(together.values())) if room is None else room[: len(together)]
        self._work(list(together), whole)
        if room is not None:
            self._spare[kind] = room


class Pages:
    """Gathers the features of a batch in the same way, but those of all widths side by side; `work` gets (n, D) of several.

    With their keys come their widths. Only small ones are to be added.
    """

    def __init__(self, work: Callable[[list[Key], list[int], Tensor], None]) -> None:
        self._work = owned(work)
        self._waiting: dict[tuple[torch.dtype, torch.device], dict[Key, Tensor]] = {}
        self._bytes: dict[tuple[torch.dtype, torch.device], int] = {}

    def add(self, key: Key, features: Tensor) -> None:
        """The features (n, d) of one site."""
        kind = features.dtype, features.device
        self._waiting.setdefault(kind, {})[key] = features.clone()
        self._bytes[kind] = self._bytes.get(kind, 0) + features.nbytes
        if self._bytes[kind] >= AT_ONCE[features.device.type]:
            self._flush(kind)

    def flush(self) -> None:
        """At the end of a batch: work through those that wait."""
        for kind in list(self._waiting):
            self._flush(kind)

    def drop(self) -> None:
        """Forget those that wait: their batch was not finished."""
        self._waiting, self._bytes = {}, {}

    def _flush(self, kind: tuple[torch.dtype, torch.device]) -> None:
        page, self._bytes[kind] = self._waiting.pop(kind), 0
        self._work(list(page), [features.shape[1] for features in page.values()], torch.cat(list(page.values()), 1))


def even_rows(basis: Tensor) -> int:
    """Of so many rows a product on a CPU takes a multiple: the coordinates of a sample are then the same among any others.

    The last few columns of a product are added up in another order, and so are those of a very small one, or of one row.
    """
    if not basis.is_cpu:
        return 1
    P, d = basis.shape[-2:]
    return 2 * TILE if _tiled(basis) else TILE * max(1, -(-SMALL_PRODUCT // (TILE * max(2, P) * max(1, d))))


def coordinates_of(rows: Tensor, basis: Tensor) -> Tensor:
    """basis·rowsᵀ: (…, P, d) and (…, n, d) → (…, P, n), n a multiple of `even_rows`; large ones tile by tile."""
    if not _tiled(basis):
        return basis @ rows.mT
    *batch, n, d = rows.shape
    step, P = even_rows(basis), basis.shape[-2]
    found = rows.new_empty(*batch, P, n // step, step)
    bases, tiles = basis.expand(*batch, P, d).reshape(-1, 1, P, d), rows.reshape(-1, n // step, step, d)
    for own, some, out in zip(bases, tiles, found.view(-1, P, n // step, step), strict=True):
        out.copy_(torch.bmm(own.expand(len(some), P, d), some.mT).transpose(0, 1))
    return found.view(*batch, P, n)


def _tiled(basis: Tensor) -> bool:
    P, d = basis.shape[-2:]
    many = d > MANY_FEATURES or (P >= MANY_ROWS and _among_others(torch.get_num_threads()))
    return many and basis.is_cpu and basis.dtype == torch.float32


@cache
def _among_others(threads: int) -> bool:
    """Whether products of many rows give a sample other last digits among more samples (MKL does by AVX2); tried once."""
    basis, rows = torch.rand(2, 416, 128, generator=torch.Generator("cpu").manual_seed(0), device="cpu").unbind()
    every = basis[:99] @ rows.mT
    return any(not torch.equal(basis[:99] @ rows[:n].mT, every[:, :n]) for n in (16, 64, 160, 208))


def squares_by_view(coordinates: Tensor, views: int) -> Tensor:
    """Squared lengths (…, v, n) of the samples in each of v views, by coordinates (…, v·r, n), which are overwritten.

    On a CPU row after row: what `sum` gives a sample there depends on the place where it stands among others.
    """
    *batch, _, n = coordinates.shape
    squares = coordinates.square_().view(*batch, views, -1, n)
    if not squares.is_cpu:
        return squares.sum(-2)
    first, *others = squares.unbind(-2)
    for one in others:
        first += one
    return first
