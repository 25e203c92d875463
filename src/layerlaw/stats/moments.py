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
LONGEST = 2048  # rows that tensor cores add up in one go: they cut off digits, 1e-3 of PR over 32,000 rows, 6e-6 so
PARTS, THIN_PARTS = 16, 64  # of sums that grow in float32, so that a product of narrow features keeps a GPU busy
PRODUCTS = 64  # that are added up in float32, rounded each time, before they are added in float64
ROOM = 1 << 30  # bytes of such sums of all sites


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

    def among(self, rows: Tensor, count: int) -> Columns:
        """The same at these of so many rows, 0 at the others."""
        return Columns(self.plain.new_zeros(count, self.width).index_copy_(0, rows, self.plain), self.plain.device)

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
    growing: PartialSums | None = None

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

    def grow(self, group: int, X: Tensor, T: Columns, sites: int = 1) -> None:
        """The same for features that are `worth_growing`; `settle` ends it. So many `sites` share the room for it."""
        if self.growing is None:
            self.growing = PartialSums.empty(X, T, ROOM // sites)
        if self.growing.group != group or self.growing.products >= PRODUCTS:
            self._end_growing()
            self.growing.group = group
        self.growing.update(X, T)

    def _end_growing(self) -> None:
        if self.growing is not None and self.growing.products:
            self._add(self.growing.group, *self.growing.taken(self.cross.shape[2]))

    def _add(self, group: int, square: Tensor, cross: Tensor) -> None:
        flat = _flat_triangle(self.features, square.device)  # one index is many times faster than two
        self.packed[group] += square.reshape(-1).index_select(0, flat)
        self.cross[group] += cross

    def settle(self, targets: TargetMoments) -> None:
        """Moments about 0, as if no reference had been taken off; exact enough in float64, and equal for all ranks."""
        self._end_growing()
        self.growing = None
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


@dataclass
class PartialSums:
    """XᵀX (p, d, d) and Xᵀ[Y, 1] (t, d, …) of rows of one group, added up in float32 over several batches, in so many parts.

    Of narrow features on a GPU, adding the product of every batch in float64 would take as long as the product itself; and
    tensor cores would cut off digits if one product went over all rows. float64 features stay float64.
    """

    squares: Tensor
    cross: Tensor
    group: int = 0
    products: int = 0  # that were added since the sums were taken

    @classmethod
    def empty(cls, X: Tensor, T: Columns, room: int) -> PartialSums:
        """Nothing added yet, in at most `room` bytes where that is enough for one part."""
        d, kind = X.shape[1], torch.promote_types(X.dtype, torch.float32)
        parts = min(PARTS, max(1, room // (kind.itemsize * d * d)))
        cross = torch.zeros(THIN_PARTS, d, cls._columns(X, T).shape[1], dtype=kind, device=X.device)
        try:
            return cls(cross.new_zeros(parts, d, d), cross)
        except torch.OutOfMemoryError:  # a GPU that the model fills
            return cls(cross.new_zeros(1, d, d), cross)

    @staticmethod
    def _columns(X: Tensor, T: Columns) -> Tensor:
        return T.plain if X.dtype == torch.float64 else T.thirds

    def update(self, X: Tensor, T: Columns) -> None:
        """Add the rows X (n, d) of one batch and what goes with them."""
        X = X if X.dtype == torch.float64 else X.bfloat16()
        self.products += _add_product(self.squares, X, X, LONGEST)
        _add_product(self.cross, X, self._columns(X, T), CUT)

    def taken(self, columns: int) -> tuple[Tensor, Tensor]:
        """XᵀX (d, d) and Xᵀ[Y, 1] (d, columns) in float64; then the sums begin anew."""
        squares, cross = (sums.sum(0, dtype=torch.float64) for sums in (self.squares, self.cross))
        self.products = 0
        self.squares.zero_()
        self.cross.zero_()
        numbers = cross.shape[1] // columns  # of which each column is made: 3, and alignment behind them
        return squares, cross[:, : numbers * columns].reshape(len(cross), numbers, columns).sum(1)


def worth_growing(X: Tensor) -> bool:
    """Whether sums of features like these (…, d) grow in parts: half-precision ones on a GPU, too few for strips."""
    return X.device.type == "cuda" and X.element_size() == 2 and -(-X.shape[-1] // STRIPS) < NARROWEST[1]


def _add_product(sums: Tensor, X: Tensor, Y: Tensor, longest: int) -> int:
    """Add XᵀY to the sums (p, …, …), its rows dealt to the parts, at most so many to each in one go; the number of goes."""
    goes, at = 0, 0
    while at < len(X):
        length = min(longest, (len(X) - at) // len(sums))
        parts, length = (len(sums), length) if length else (1, min(longest, len(X) - at))  # the last few rows
        left, right = (rows[at : at + parts * length].reshape(parts, length, -1) for rows in (X, Y))
        some = sums[:parts]
        if X.dtype == torch.bfloat16:
            torch.baddbmm(some, left.mT, right, out_dtype=torch.float32, out=some)
        else:
            some.baddbmm_(left.mT, right)
        goes, at = goes + 1, at + parts * length
    return goes


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
def _flat_triangle(d: int, device: torch.device) -> Tensor:
    """The entries on and above the diagonal, counted row by row."""
    rows, columns = torch.triu_indices(d, d, device=device)
    places: Tensor = rows * d + columns
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
