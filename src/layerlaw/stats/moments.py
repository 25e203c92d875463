"""Second moments of features and targets, streamed by groups: all that a linear regression needs to remember."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from layerlaw.stats.precision import full_precision

CUT = 512  # rows of a piece of a thin product
STRIPS = 4  # of a product of which the upper half is wanted: 10/16 of the work
NARROWEST = (64, 256)  # features in a strip that are worth a product of their own, on a CPU and on a GPU
LONGEST = (
    1024  # rows that tensor cores add up in one go: they cut digits off at every step, 1e-3 of PR over 32,000 rows
)
ROOM = 1 << 30  # bytes of features that wait for a product of several sites, and of their products


@dataclass
class TargetMoments:
    """Of the targets Y alone: how many rows (g,), their sums (g, q) and the sums of their squares (g, q)."""

    counts: Tensor
    sums: Tensor
    squares: Tensor

    @classmethod
    def empty(cls, groups: int, targets: int) -> TargetMoments:
        """Nothing seen yet."""
        zeros = torch.zeros(groups, targets, dtype=torch.float64)
        return cls(torch.zeros(groups, dtype=torch.float64), zeros, zeros.clone())

    def update(self, group: int, Y: Tensor) -> None:
        """Add the rows (n, q) of one batch."""
        Y = Y.double().cpu()
        self.counts[group] += len(Y)
        self.sums[group] += Y.sum(0)
        self.squares[group] += Y.square().sum(0)

    @property
    def tensors(self) -> list[Tensor]:
        """What is added up over ranks."""
        return [self.counts, self.sums, self.squares]


class Columns:
    """[Y, 1] (n, q+1) of one batch on one device, in the forms that products want; made once, used at every site."""

    def __init__(self, T: Tensor, device: torch.device | str = "cpu") -> None:
        self.plain = T.to(device)
        self.width = T.shape[1]

    @cached_property
    def thirds(self) -> Tensor:
        """Three bfloat16 numbers for each, with all its digits, since token ids need them; aligned, or products are slow."""
        thirds = torch.cat(_parts(self.plain.float(), 3), 1)
        return torch.nn.functional.pad(thirds, (0, -thirds.shape[1] % 8))


@dataclass
class Moments:
    """XᵀX (its upper half) and Xᵀ[Y, 1] of features X (n, d) and targets Y (n, q), in float64, for every group of rows.

    While it grows, `reference` (d,), the mean of the first batch, is taken off X: some features of language models lie a
    hundred times their spread away from 0, and a float32 product would keep little of the spread. `settle` puts it back.

    float64 and float32 are multiplied as they are. On a GPU, where float32 products are slow, half-precision features are
    multiplied as bfloat16 and added in float32, and a float32 number goes as two bfloat16 ones, x = high + low, which carry
    16 of its 24 bits; the product of two low ones is too small to matter.
    """

    packed: Tensor
    cross: Tensor
    reference: Tensor | None = None

    @classmethod
    def empty(cls, groups: int, features: int, targets: int, device: torch.device | str = "cpu") -> Moments:
        """Nothing seen yet."""
        halves = torch.zeros(groups, features * (features + 1) // 2, dtype=torch.float64, device=device)
        return cls(halves, torch.zeros(groups, features, targets + 1, dtype=torch.float64, device=device))

    @property
    def features(self) -> int:
        """d."""
        return self.cross.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the layer is that they come from."""
        return self.cross.device

    @property
    def nbytes(self) -> int:
        """What they take."""
        return int(self.packed.nbytes + self.cross.nbytes)

    def update(self, group: int, X: Tensor, T: Columns) -> None:
        """Add the features X (n, d) of one batch and what goes with them: one large product, added in float64."""
        d = self.features
        if X.device.type == "cuda" and X.element_size() == 2:
            X = X.bfloat16()  # what half precision has lost before cannot be won back by a reference
            self._add(group, _upper(X, X), _thin(X, T))
            return
        if self.reference is None:
            self.reference = X.mean(0, dtype=torch.float64).to(torch.promote_types(X.dtype, torch.float32))
        if X.device.type == "cuda" and X.dtype == torch.float32:
            high, low = _parts(X - self.reference, 2)
            mixed = _mm(high.mT, low)
            self._add(group, _upper(high, high) + mixed + mixed.mT, _thin(high, T) + _thin(low, T))
        else:
            product = _plain_product(X, self.reference, T.plain)
            self._add(group, product[:, :d], product[:, d:])

    def _add(self, group: int, square: Tensor, cross: Tensor) -> None:
        flat = _flat_triangle(self.features, square.device)  # one index is many times faster than two
        self.packed[group] += square.reshape(-1).index_select(0, flat)
        self.cross[group] += cross

    def settle(self, targets: TargetMoments) -> None:
        """Moments about 0, as if no reference had been taken off; exact enough in float64, and equal for all ranks."""
        if self.reference is None:
            return
        r = self.reference.double()
        flat = _flat_triangle(self.features, r.device)
        for group, (packed, cross) in enumerate(zip(self.packed, self.cross, strict=True)):
            n, y = targets.counts[group].item(), targets.sums[group].to(r.device)
            sums = cross[:, -1].clone()
            square = torch.outer(sums, r) + torch.outer(r, sums + n * r)
            packed += square.reshape(-1).index_select(0, flat)
            cross[:, :-1] += torch.outer(r, y)
            cross[:, -1] += n * r
        self.reference = None

    def squares(self) -> Tensor:
        """XᵀX of every group, whole (g, d, d)."""
        d, places = self.features, _mirrored(self.features, self.device)
        return torch.stack([packed.index_select(0, places) for packed in self.packed]).reshape(-1, d, d)

    @property
    def tensors(self) -> list[Tensor]:
        """What is added up over ranks."""
        return [self.packed, self.cross]


class WaitingSites:
    """Features of several sites for the same rows, multiplied in one launch: a narrow product alone leaves a GPU idle.

    They wait beside [Y, 1], as [X, Y, 1] (sites, n, d + …), in at most `ROOM` bytes; `finish` ends a batch. Parts of so many
    rows are multiplied apart, all in one launch, and added up in float64. Half-precision features are multiplied as in
    `Moments`; float64 ones as they are, without a reference.
    """

    def __init__(self, group: int, T: Columns, sites: int) -> None:
        self.group, self.T, self.sites = group, T, sites
        self._rows: Tensor | None = None
        self._waiting: list[Moments] = []

    @staticmethod
    def worth(X: Tensor) -> bool:
        """Whether features like these (…, d) are multiplied together: half-precision ones on a GPU, too few for strips."""
        return X.device.type == "cuda" and X.element_size() == 2 and -(-X.shape[-1] // STRIPS) < NARROWEST[1]

    def add(self, moments: Moments, X: Tensor, rows: Tensor) -> Tensor:
        """The chosen `rows` (n,) of X (N, d), which are added to these moments now or soon, and given back (n, d)."""
        X = X if X.dtype == torch.float64 else X.bfloat16()
        n, d = len(rows), X.shape[1]
        if self._rows is None:
            self._rows = self._empty(X, n)
        if len(self._waiting) == len(self._rows):
            self.finish()
        chosen = self._rows[len(self._waiting)].flatten(0, 1)[:n, :d]
        torch.index_select(X, 0, rows, out=chosen)
        self._waiting.append(moments)
        return chosen

    def _empty(self, X: Tensor, n: int) -> Tensor:
        """Room for n rows of several sites, in parts: (sites, parts, rows of a part, columns), 0 behind the last row."""
        d, T = X.shape[1], self.T.plain if X.dtype == torch.float64 else self.T.thirds
        length = max(1, min(n, LONGEST))
        shape = (-(-n // length), length, d + T.shape[1])
        product = torch.promote_types(X.dtype, torch.float32).itemsize * d
        launches = -(-self.sites // max(1, ROOM // (shape[0] * shape[2] * (length * X.element_size() + product))))
        try:
            room = X.new_empty(-(-self.sites // launches), *shape)
        except torch.OutOfMemoryError:  # a GPU that the model fills has room for one at a time
            room = X.new_empty(1, *shape)
        flat = room.flatten(1, 2)
        flat[:, :n, d:] = T
        flat[:, n:] = 0
        return room

    def finish(self) -> None:
        """Multiply what waits, and add it to the moments of its sites."""
        if self._rows is None or not self._waiting:
            return
        d, q = self._waiting[0].features, self.T.width
        rows = self._rows[: len(self._waiting)]
        half, parts = rows.dtype == torch.bfloat16, rows.flatten(0, 1)
        left = parts[..., :d].mT
        with full_precision():
            product = torch.bmm(left, parts, out_dtype=torch.float32) if half else torch.bmm(left, parts)
        product = product.view(*rows.shape[:2], d, -1).sum(1, dtype=torch.float64)
        squares = product.flatten(1).index_select(1, _flat_triangle(d, rows.device, product.shape[2]))
        cross = product[..., d : d + (3 if half else 1) * q].reshape(len(rows), d, -1, q).sum(2)
        torch._foreach_add_([site.packed[self.group] for site in self._waiting], list(squares))
        torch._foreach_add_([site.cross[self.group] for site in self._waiting], list(cross))
        self._waiting.clear()


@dataclass
class CrossMoments:
    """XᵀZ (d, q) of features X (n, d) and other features Z (n, q) of the same rows, with their sums and n; in float64.

    While it grows, the means of the first batch are taken off both, as in `Moments`; `settle` puts them back.
    """

    product: Tensor
    x: Tensor
    z: Tensor
    n: Tensor
    references: tuple[Tensor, Tensor] | None = None

    @classmethod
    def empty(cls, features: int, others: int, device: torch.device | str = "cpu") -> CrossMoments:
        """Nothing seen yet."""
        like = torch.zeros((), dtype=torch.float64, device=device)
        return cls(
            like.new_zeros(features, others), like.new_zeros(features), like.new_zeros(others), like.new_zeros(1)
        )

    def update(self, X: Tensor, Z: Tensor) -> None:
        """Add the rows of one batch: one product, added in float64."""
        if self.references is None:
            r, s = (rows.mean(0, dtype=torch.float64) for rows in (X, Z))
            self.references = r.to(_wide(X)), s.to(_wide(Z))
        X, Z = (rows.to(_wide(rows)) - mean for rows, mean in zip((X, Z), self.references, strict=True))
        self.product += _cross_product(X, Z)
        self.x += X.sum(0, dtype=torch.float64)
        self.z += Z.sum(0, dtype=torch.float64)
        self.n += len(X)

    def settle(self) -> None:
        """Moments about 0, as if nothing had been taken off: equal for all ranks."""
        if self.references is None:
            return
        r, s = (mean.double() for mean in self.references)
        self.product += torch.outer(r, self.z + self.n * s) + torch.outer(self.x, s)
        self.x += self.n * r
        self.z += self.n * s
        self.references = None

    @property
    def tensors(self) -> list[Tensor]:
        """What is added up over ranks."""
        return [self.product, self.x, self.z, self.n]


def _wide(X: Tensor) -> torch.dtype:
    return torch.promote_types(X.dtype, torch.float32)


def _cross_product(X: Tensor, Z: Tensor) -> Tensor:
    """XᵀZ; of float32 on a GPU as two bfloat16 numbers each, which carry 16 of 24 bits."""
    if X.device.type == "cuda" and X.dtype == Z.dtype == torch.float32:
        (high, low), (other, rest) = _parts(X, 2), _parts(Z, 2)
        return _mm(high.mT, other) + _mm(high.mT, rest) + _mm(low.mT, other)
    with full_precision():
        return X.mT @ Z.to(X.dtype)


@lru_cache(maxsize=4)
def _flat_triangle(d: int, device: torch.device, width: int | None = None) -> Tensor:
    """The entries on and above the diagonal of the first d of `width` columns (default: d), counted row by row."""
    rows, columns = torch.triu_indices(d, d, device=device)
    places: Tensor = rows * (d if width is None else width) + columns
    return places


@lru_cache(maxsize=4)
def _mirrored(d: int, device: torch.device) -> Tensor:
    """Of every entry of a symmetric matrix, row by row: which one of those on and above the diagonal it is."""
    rows, columns = torch.triu_indices(d, d, device=device)
    numbers = torch.arange(len(rows), device=device)
    places = numbers.new_empty(d, d)
    places[rows, columns] = numbers
    places[columns, rows] = numbers
    return places.reshape(-1)


def gram(X: Tensor) -> Tensor:
    """XᵀX of (n, d) in float64, as exact as moments are."""
    moments = Moments.empty(1, X.shape[1], 0, X.device)
    moments.reference = torch.zeros(X.shape[1], dtype=torch.promote_types(X.dtype, torch.float32), device=X.device)
    moments.update(0, X, Columns(torch.zeros(len(X), 1), X.device))
    return moments.squares()[0]


def _plain_product(X: Tensor, reference: Tensor, T: Tensor) -> Tensor:
    """(X − r)ᵀ[X − r, T] (d, d+t) on and above the diagonal, in the dtype of the reference."""
    d, kind = X.shape[1], reference.dtype
    rows = torch.empty(len(X), d + T.shape[1], dtype=kind, device=X.device)
    torch.sub(X.to(kind), reference, out=rows[:, :d])
    rows[:, d:] = T
    with full_precision():
        return _upper(rows[:, :d], rows)


def _upper(X: Tensor, Y: Tensor) -> Tensor:
    """XᵀY for X (n, d) and Y = [X, …], right on and above the diagonal: strips leave out most of the rest."""
    d = X.shape[1]
    strip = -(-d // STRIPS)
    if strip < NARROWEST[X.device.type == "cuda"]:
        return _mm(X.mT, Y)
    product = torch.empty(d, Y.shape[1], dtype=torch.promote_types(X.dtype, torch.float32), device=X.device)
    for i in range(0, d, strip):
        part = slice(i, min(i + strip, d))
        if X.device.type == "cuda":
            product[part, i:] = _mm(X[:, part].mT, Y[:, i:])
        else:
            torch.mm(X[:, part].mT, Y[:, i:], out=product[part, i:])
    return product


def _thin(X: Tensor, T: Columns) -> Tensor:
    """Xᵀ[Y, 1] for bfloat16 X; a long, thin product keeps a GPU busy only when it is cut along its length."""
    n, d = X.shape
    pieces = n // CUT
    thirds, even = T.thirds, pieces * CUT
    total = _mm(X[even:].mT, thirds[even:])
    if pieces:
        cut = (part[:even].reshape(pieces, CUT, -1) for part in (X, thirds))
        total = total + torch.bmm(next(cut).mT, next(cut), out_dtype=torch.float32).sum(0)
    return total[:, : 3 * T.width].reshape(d, 3, T.width).sum(1)


def _parts(values: Tensor, count: int) -> list[Tensor]:
    """So many bfloat16 numbers that add up to the values."""
    parts = []
    for _ in range(count):
        parts.append(values.bfloat16())
        values = values - parts[-1]
    return parts


def _mm(A: Tensor, B: Tensor) -> Tensor:
    """A product of matrices; of bfloat16 ones it is added and returned in float32."""
    return torch.mm(A, B, out_dtype=torch.float32) if A.dtype == torch.bfloat16 else A @ B
