"""A wide site measured in slices of its feature axis: the numbers of the two passes from matrices of the sizes K and n.

Class sums of d features and K classes are K·d numbers: 1.2 GB for a flattened image of 150,528 numbers and 1000 classes,
and means, QR and basis take them several times. Here they exist only for one slice of the features at a time. Write M
(K, d) for the class means minus their weighted mean, H (K−1, K) for the weighted Helmert contrasts, which are zero on
constants, and A = H M = U diag(s) V, so that SS_b = AᵀA = Vᵀ diag(s²) V. For residuals R (n, d) around class means:

    Z = V Rᵀ = diag(1/s) Uᵀ H · (M Rᵀ)        M Rᵀ  = Σ over slices of M_j R_jᵀ     (K, n)
    A Aᵀ = U diag(s²) Uᵀ = H (M Mᵀ) Hᵀ        M Mᵀ  = Σ over slices of M_j M_jᵀ     (K, K)
    ‖R_i‖² = Σ over slices of ‖R_ij‖²         where the means lie: M Vᵀ = diag(1/w) Hᵀ U diag(s), by U and s alone

so that a slice needs its class sums (one forward) and then its residuals (a second one), and never again: the basis V does
not have to be known while they are multiplied. Nothing is approximated. Other centers that residuals are projected on (a
jackknife's, those of permuted labels, those of the training data) are further views: the same with M of their own.

Digits. `find_centers` takes no Gram matrix and projects on V, never on the means, because float32 products and squared
scales lose what small scales divide by. Here sums, means, residuals and products are float64 whatever the features are. The
eigenvalues of A Aᵀ lose twice the digits that s₁/s_r has: where the least scale is below `SMALL` of the largest, U and s
come from the triangular factor of A instead (tall-skinny QR, slice after slice, in one more forward per slice), and rank
and cut-off are found as `find_centers` does. What is left is the rounding of M Rᵀ along s₁ where residuals are large there
too: D has a relative error of 1e-9 at s_r/s₁ = 1e-4, 3e-8 at 1e-5 and 3e-6 at 1e-6. Float32 features do not get there
(`narrow` doubts them before); of float64 ones with a scale below `LEAST` of the largest D is not given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from layerlaw.errors import PassError
from layerlaw.stats.around import CHANGED, Around
from layerlaw.stats.centers import Centers, Weighting, class_weights, helmert_contrasts, rounding_scale
from layerlaw.stats.closer import UNEVEN, CloserLook, narrow
from layerlaw.stats.labels import one_hot
from layerlaw.stats.limits import Doubt
from layerlaw.stats.passes import Dealt
from layerlaw.stats.precision import CHUNK_BYTES, double, row_chunks
from layerlaw.stats.ranks import all_reduce, from_first
from layerlaw.stats.scatter import LeftOut, NearestCenter, Permuted, Scatter
from layerlaw.stats.spectrum import right_singular, turned

SMALL = 3e-3  # of the largest scale: below, eigenvalues of a Gram matrix have fewer than 10 digits
FOLDED = 4  # times K features at once, in a QR
LEAST = 3e-6  # of the largest scale: below, float64 products with class means have lost the sixth digit of D
BLOCK = 4096  # samples whose coordinates are worked through at once
VANISH = "class means differ so much less in some directions than in others that products with them lose the digits"
FEWER = f"{UNEVEN}, or the class means span fewer than K−1 dimensions (behind a layer of fewer features, say)"
WHOLE = "measure it with a memory_gib that holds the site whole"


class NotTold(CloserLook):
    """A closer look would need the basis of all features at once: what may have lost its digits is not believed."""

    def doubt(self, outliers: bool) -> Doubt | None:
        """Always."""
        if self.centers.dtype == torch.float64:
            return Doubt(VANISH, WHOLE.capitalize(), False)
        return Doubt(FEWER, f"In slices it is not told which: measure in float64, or {WHOLE}", False)


@dataclass(frozen=True)
class Views:
    """The centers residuals are projected on: of all samples, without each group, under permuted labels, of a reference."""

    groups: int = 0
    permuted: int = 0
    reference: bool = False

    @property
    def count(self) -> int:
        """How many there are."""
        return 1 + self.groups + self.permuted + self.reference

    def rows(self, dealt: Dealt, K: int) -> Tensor:
        """Where in the table of all views each sample is added (1 + permuted, n)."""
        own = dealt.labels if dealt.groups is None else dealt.labels + K * (1 + dealt.groups)
        if dealt.permuted is None:
            return own.unsqueeze(0)
        start = K * (1 + self.groups + torch.arange(self.permuted, device=own.device)).unsqueeze(-1)
        return torch.cat([own.unsqueeze(0), dealt.permuted + start])


class Added:
    """Which rows of a table the samples of a batch are added to, made ready once for all slices."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._present: list[tuple[Tensor, Tensor]] | None = None

    @property
    def products(self) -> list[tuple[Tensor, Tensor]]:
        """Of each labeling the rows that occur, and the indicators (rows, n) that add samples up into them."""
        if self._present is None:
            found = (row.unique(return_inverse=True) for row in self.rows)
            self._present = [(rows, one_hot(at, len(rows), torch.float64)) for rows, at in found]
        return self._present


class Slice:
    """Some features of a site: class sums under all views (V, K, w), then class means around their mean, and that (V, w).

    One sample, the `reference` (w,), is subtracted before: sums far from 0 round, and of a dead layer would make classes.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.table = self.mean = self.reference = self.counts = torch.empty(0)

    @property
    def width(self) -> int:
        """How many features."""
        return self.stop - self.start

    def add(self, features: Tensor, added: Added, views: int, classes: int) -> None:
        """Add the features (n, d) of a batch to the class sums, in float64."""
        if self.table.numel() == 0:
            self.reference = double(features[:1, self.start : self.stop]).sum(0)
            self.table = self.reference.new_zeros(views, classes, self.width)
            self.counts = self.reference.new_zeros(views * classes)
        flat = self.table.view(-1, self.width)
        self.counts += torch.bincount(added.rows.flatten(), minlength=len(self.counts)).to(flat.device)
        if _row_by_row(flat.device):
            for part in row_chunks(len(features), 8 * self.width, flat.device):
                wide = double(features[part, self.start : self.stop]) - self.reference
                for rows in added.rows:
                    flat.index_add_(0, rows[part].to(flat.device), wide)
            return
        for part in self._columns(len(features)):
            wide = double(features[:, self.start + part.start : self.start + part.stop]) - self.reference[part]
            for rows, hot in added.products:
                flat[:, part].index_add_(0, rows.to(flat.device), hot.to(flat.device) @ wide)

    def meet(self) -> None:
        """From here on around the reference of rank 0, so that sums of all ranks can be added up."""
        first = from_first(self.reference)
        if first is not self.reference:  # else nothing moves, and the product would be as large as the table
            self.table += self.counts.view(*self.table.shape[:2], 1) * (self.reference - first)
            self.reference = first

    def center(self, groups: int, counts: Tensor, weights: Tensor) -> None:
        """From class sums to class means around their mean, in place; counts and weights (V, K) of every view."""
        if groups:
            self.table[0] = self.table[1 : 1 + groups].sum(0)
            self.table[1 : 1 + groups].sub_(self.table[:1]).neg_()
        self.table /= counts.clamp_min(1).unsqueeze(-1)
        self.mean = (weights.unsqueeze(-2) @ self.table).squeeze(-2)
        self.table -= self.mean.unsqueeze(-2)

    def project(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """M Rᵀ of every view (V, K, n) and ‖R‖² (n,) of the slice."""
        V, K, _ = self.table.shape
        n, labels = len(features), labels.to(self.table.device)
        products = self.table.new_zeros(V, K, n)
        squares = self.table.new_zeros(n)
        for part in self._columns(n):
            table = self.table[:, :, part]
            residual = double(features[:, self.start + part.start : self.start + part.stop]) - self.reference[part]
            residual -= self.mean[0, part]
            residual -= table[0].index_select(0, labels)
            squares += residual.square().sum(-1)
            products += table @ residual.mT
        return products, squares

    def drop(self) -> None:
        """Let go of the class means."""
        self.table = self.mean = self.reference = self.counts = torch.empty(0)

    def _columns(self, rows: int) -> Iterator[slice]:
        return row_chunks(self.width, 8 * rows, self.table.device)


class SlicedSite:
    """What is kept of one site from slice to slice, and what comes out of it at the end."""

    def __init__(
        self, features: int, classes: int, views: Views, weighting: Weighting, known: Reference | None
    ) -> None:
        self.features, self.K, self.views, self.weighting, self.known = features, classes, views, weighting, known
        self.dtype = torch.float64  # the coarsest that the features came in
        self.samples = 0
        self.gram = self.places = self.products = self.squares = self.mean = torch.empty(0)
        self.triangle: Tensor | None = None
        self._spectrum: tuple[Tensor, Tensor] | None = None

    def begin(self, counts: Tensor, samples: int, device: torch.device) -> None:
        """Once the class counts (V, K) of all views and the number of samples of this process are known."""
        V, K = self.views.count, self.K
        self.counts, self.samples = counts.to(device), samples
        self.weights = class_weights(self.counts, self.weighting)
        self.gram, self.places = (torch.zeros(V, K, K, dtype=torch.float64, device=device) for _ in range(2))
        self.products = torch.zeros(V, K, samples, dtype=torch.float64, device=device)
        self.squares = torch.zeros(samples, dtype=torch.float64, device=device)
        self.mean = torch.zeros(V, self.features, dtype=torch.float64, device=device)
        self.toward_mean = torch.zeros(K, dtype=torch.float64, device=device)  # M times the mean of all
        self.contrasts = helmert_contrasts(torch.eye(K).to(self.weights).expand(V, K, K), self.weights)  # (V, K−1, K)

    def center(self, part: Slice) -> None:
        """Class means of a slice, whose sums are complete."""
        part.center(self.views.groups, self.counts, self.weights)
        table, mean = part.table, part.mean
        self.mean[:, part.start : part.stop] = whole = mean + part.reference
        self._spectrum = None
        self.gram += table @ table.mT
        self.toward_mean += table[0] @ whole[0]
        if self.views.count > 1:  # where the class means of all samples lie, seen from the mean of each view
            self.places += table[:1] @ table.mT + ((mean[:1] - mean).unsqueeze(-2) @ table.mT)

    def add(self, part: Slice, features: Tensor, labels: Tensor, rows: slice) -> None:
        """Project what a batch has of a slice; `rows` are its samples among all."""
        products, squares = part.project(features, labels)
        self.products[:, :, rows] += products
        self.squares[rows] += squares

    def fold(self, part: Slice) -> None:
        """A centered slice into the triangular factor of the contrasts: exact where the Gram matrix is not."""
        K = self.K
        R = self.triangle if self.triangle is not None else part.table.new_zeros(self.views.count, 0, K - 1)
        step = max(FOLDED * K, CHUNK_BYTES.get(part.table.device.type, CHUNK_BYTES["cuda"]) // (8 * K))
        for start in range(0, part.width, step):
            A = self.contrasts @ part.table[:, :, start : start + step]  # (V, K−1, c)
            R = torch.linalg.qr(torch.cat([R, A.mT], -2), mode="r")[1]
        self.triangle, self._spectrum = R, None

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """U (V, K−1, r) and s (V, r) of the contrasts, largest first."""
        if self._spectrum is None:
            r = min(self.K - 1, self.features)
            if self.triangle is not None:
                s, V = right_singular(self.triangle)
            else:
                values, vectors = torch.linalg.eigh(self.contrasts @ self.gram @ self.contrasts.mT)
                V, s = vectors.flip(-1).mT, values.clamp_min(0).sqrt().flip(-1)
            self._spectrum = turned(V).mT[..., :r], s[..., :r]
        return self._spectrum

    @property
    def short_of_digits(self) -> bool:
        """Whether small scales matter, which a Gram matrix does not have the digits for."""
        if self.triangle is not None:
            return False
        _, s = self.spectrum()
        votes = (s[..., -1] < SMALL * s[..., 0]).any().double().reshape(1)
        all_reduce([votes], always=True)
        return bool(votes > 0)

    def finish(self, dealt: Dealt, decision: Tensor | None) -> Sliced:
        """All numbers of the site, added up over ranks; labels, groups and decisions (n,) are those of all samples here."""
        device = self.gram.device
        labels = dealt.labels.to(device)
        U, s = self.spectrum()
        spreads = self._spreads(dealt, s)
        all_reduce([spreads])
        cutoff = rounding_scale(self.counts, spreads, self.mean, s, self.dtype)
        kept = s > cutoff.unsqueeze(-1)
        scales = torch.where(kept, s, 0.0)
        inverse = torch.where(kept, 1 / torch.where(kept, s, 1.0), 0.0)
        lift = self.contrasts.mT / self.weights.clamp_min(torch.finfo(s.dtype).tiny).unsqueeze(-1)  # (V, K, K−1)
        coordinates = lift @ U * scales.unsqueeze(-2)  # (V, K, r); a direction that is no more than rounding has none
        onto = inverse.unsqueeze(-1) * (U.mT @ self.contrasts)  # (V, r, K): M Rᵀ → Z
        marks = torch.arange(1.0, self.features + 1, dtype=torch.float64, device=device).cos()
        nothing = coordinates.new_empty(*coordinates.shape[:2], 0)
        all_views = Centers(
            counts=self.counts,
            coordinates=coordinates,
            places=coordinates,
            scales=scales,
            rank=kept.sum(-1),
            digest=torch.stack(
                [self.mean @ marks, self.gram.diagonal(dim1=-2, dim2=-1) @ marks.new_ones(self.K), s.sum(-1)], -1
            ),
            weighting=self.weighting,
            means=nothing,
            mean=self.mean,
            basis=nothing.new_empty(*s.shape, 0),
            spread=spreads,
            cut=torch.where(kept, 0.0, s).amax(-1),
            cutoff=cutoff,
            dtype=self.dtype,
        )
        full = self._with_means(all_views.at(0), onto[0])
        around = Around(full, *self._views(all_views, onto))
        if bool(narrow(full)) or bool((full.scales > 0).logical_and(full.scales < LEAST * s[0, 0]).any()):
            around.closer = NotTold(full, nothing[0], nothing[0], nothing[0])
        found = Sliced(around, None, None, Reference(onto[0], full))
        self._add_samples(found, onto, inverse, labels, dealt, decision)
        return found

    def _with_means(self, full: Centers, onto: Tensor) -> Centers:
        """With class means (K, r+1) of the same lengths and angles as those of d numbers, which nothing else is asked of."""
        mean = onto @ self.toward_mean  # (r,): the global mean inside the span, and how far it lies out of it
        out = (full.mean.square().sum() - mean.square().sum()).clamp_min(0).sqrt().expand(self.K, 1)
        full = replace(full, means=torch.cat([full.coordinates + mean, out], -1))
        vars(full)["rounding"] = torch.zeros_like(full.means)  # pass 2 subtracts them in float64
        return full

    def _spreads(self, dealt: Dealt, s: Tensor) -> Tensor:
        """Σ‖x − another sample‖² as pass 1 has it, by the expected value (V,): that bounds the rounding."""
        g, P = self.views.groups, self.views.permuted
        spreads = 2 * self.squares.sum().repeat(self.views.count)
        if dealt.groups is not None:
            own = torch.zeros(g, dtype=torch.float64, device=s.device)
            spreads[1 : 1 + g] -= 2 * own.index_add_(0, dealt.groups.to(s.device), self.squares)
        spreads[1 + g : 1 + g + P] += 2 * self.samples * s[0].square().sum()  # between classes
        return spreads

    def _views(self, centers: Centers, onto: Tensor) -> tuple[LeftOut | None, Permuted | None]:
        g, P = self.views.groups, self.views.permuted
        places = self.places @ onto.mT  # (V, K, r): the class means of all samples in the basis of each view
        left_out = permuted = None
        if g and bool((self.counts[1 : 1 + g] > 0).all()):
            some = slice(1, 1 + g)
            of = centers._each(lambda tensor: tensor[some])
            left_out = LeftOut(of, of.coordinates - places[some], torch.zeros_like(of.counts))
        if P and bool((self.counts[1 + g : 1 + g + P] > 0).all()):
            some = slice(1 + g, 1 + g + P)
            of = centers._each(lambda tensor: tensor[some])
            both = torch.cat([places[some], -of.coordinates], -2).mT * of.inverse_scales.unsqueeze(-1)
            permuted = Permuted(of, both, torch.zeros_like(of.counts))
        return left_out, permuted

    def _add_samples(
        self, found: Sliced, onto: Tensor, inverse: Tensor, labels: Tensor, dealt: Dealt, decision: Tensor | None
    ) -> None:
        """Coordinates of the residuals, block by block, and all that is added up from them."""
        g, P, around = self.views.groups, self.views.permuted, found.around
        for start in range(0, self.samples, BLOCK):
            rows = slice(start, min(start + BLOCK, self.samples))
            Y, own, here = self.products[:, :, rows], labels[rows], dealt.rows(rows).to(labels.device)
            chosen = None if decision is None else decision[rows].to(labels.device)
            part = Scatter.of(onto[0] @ Y[0], self.squares[rows].sqrt(), own, around.centers, chosen)
            found.add(part)
            scaled = inverse[1 : 1 + g + P].unsqueeze(-1) * (onto[1 : 1 + g + P] @ Y[1 : 1 + g + P])
            if around.left_out is not None and dealt.groups is not None:
                added = LeftOut.added(scaled[:g].flatten(0, 1), here.absent(g), here.hot(self.K, torch.float64))
                around.left_out.fuzziness += added
            if around.permuted is not None and around.permuted.moves is not None and dealt.permuted is not None:
                turned = scaled[g:].flatten(0, 1).unsqueeze(0), around.permuted.moves.unsqueeze(0)
                around.permuted.fuzziness += Permuted.added(*turned, here.indicators(self.K, torch.float64))[0]
            if self.known is not None:
                points = self.known.onto @ (Y[-1] + self.places[-1].mT[:, own])
                found.add_near(NearestCenter.of(points, self.known.centers, own, chosen))
        found.all_reduce()


@dataclass(frozen=True)
class Reference:
    """What the centers of training data lend to test data: M Rᵀ → Z (r, K), and where the class means lie in that basis."""

    onto: Tensor
    centers: Centers


@dataclass
class Sliced:
    """One site, measured: as `SecondPass` leaves it, but centers without a basis, and class means in r+1 dimensions."""

    around: Around
    scatter: Scatter | None
    near: NearestCenter | None
    lent: Reference

    def add(self, part: Scatter) -> None:
        """Add samples."""
        if self.scatter is None:
            self.scatter = part
        else:
            self.scatter.add(part)

    def add_near(self, part: NearestCenter) -> None:
        """Add samples, seen from the reference."""
        if self.near is None:
            self.near = part
        else:
            self.near.sums += part.sums

    def all_reduce(self) -> None:
        """Add up over ranks."""
        assert self.scatter is not None
        tensors = [self.scatter.sums, *([self.near.sums] if self.near is not None else [])]
        tensors += [v.fuzziness for v in (self.around.left_out, self.around.permuted) if v is not None]
        all_reduce(tensors, [self.scatter.digest])

    def moved(self) -> float | None:
        """How far class means moved between the passes, in units of the spread; `None` where it is no more than rounding."""
        assert self.scatter is not None
        centers, scatter = self.around.centers, self.scatter
        if not torch.equal(scatter.counts, centers.counts):
            raise PassError("the class counts changed between the passes: pass data that are the same each time.")
        mean = (scatter.residuals / scatter.counts.unsqueeze(-1)).abs() - centers.resolution
        worst = torch.linalg.vector_norm(mean.clamp_min(0) * centers.inverse_scales, dim=-1).max()
        rms = (scatter.fuzziness.sum() / scatter.counts.sum()).sqrt()
        return float(worst / rms) if worst > CHANGED * rms + 1e-8 else None


def _row_by_row(device: torch.device) -> bool:
    """Whether rows are added one by one; on a GPU that would have an order of its own, and products add them up."""
    return device.type == "cpu"
