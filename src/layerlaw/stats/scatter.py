"""Pass 2: what the residuals do inside the span of the class means, and which center is nearest.

Also the two views that share its product: without one group of samples (jackknife), and under permuted labels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from layerlaw.errors import PassError
from layerlaw.stats.centers import Centers, Span, class_weights, find_centers
from layerlaw.stats.labels import indicator_rows
from layerlaw.stats.moments import Columns, Moments
from layerlaw.stats.precision import at_least_float32, double, row_chunks, take_rows
from layerlaw.stats.stacking import coordinates_of, even_rows, squares_by_view
from layerlaw.stats.sums import ClassSums, by_label, indicators, sums_by_class

FEW = 20  # of so many samples one: fewer that make up the spread are outliers
MOST_FOURTH = 1e290  # fourth powers are not to overflow where squares do not
PER_CLASS = 20  # samples: of so many, class means under permuted labels lie close to each other
MOMENT_ROWS = 1024  # residuals that are multiplied at once, or as many as there are features


@dataclass(frozen=True)
class Frame:
    """Class means (…, K, d) and basis rows (…, P, d) in the dtype of the products, made once and used for every batch."""

    means: Tensor
    basis: Tensor
    wide: bool = False

    @classmethod
    def of(cls, centers: Centers) -> Frame:
        """Around these centers, on their basis."""
        means = centers.rounded_means
        return cls(means, centers.basis.to(means), bool(centers.extreme.any()))


def project(features: Tensor, labels: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
    """Residuals R = x − (mean of its class), as coordinates basis·Rᵀ and lengths ‖R‖.

    features (…, n, d), labels (…, n) → coordinates (…, P, n) and lengths (…, n) in the dtype of the product. The
    samples come last: that is the layout in which the small products that follow are fast.
    """
    *batch, n, d = features.shape
    wide = torch.float64 if frame.wide else None
    coordinates, lengths = [], []
    room: Tensor | None = None
    P, step = frame.basis.shape[-2], even_rows(frame.basis)
    basis = frame.basis if P > 1 or step == 1 else frame.basis.expand(*frame.basis.shape[:-2], 2, d)
    labels = labels if step == 1 else torch.nn.functional.pad(labels, (0, step))
    for rows in row_chunks(n, 4 * d * torch.Size(batch).numel(), features.device):
        m = rows.stop - rows.start
        more = slice(rows.start, rows.start + -(-m // step) * step)
        # Chunk after chunk in the same memory: much of it is in the cache of a GPU, as on a CPU all of it is.
        again = room if room is not None and room.shape[-2] == more.stop - more.start else None
        room = take_rows(frame.means, labels[..., more], out=again)
        residual = room[..., :m, :]
        torch.sub(at_least_float32(features[..., rows, :]), residual, out=residual)
        coordinates.append(coordinates_of(room, basis)[..., :P, :m])
        lengths.append(torch.linalg.vector_norm(residual, dim=-1, dtype=wide))
    return (coordinates[0], lengths[0]) if len(lengths) == 1 else (torch.cat(coordinates, -1), torch.cat(lengths, -1))


def agreement(points: Tensor, centers: Tensor, half_norms: Tensor, choices: Tensor) -> Tensor:
    """1 where the chosen center is the nearest, 1/t where it is one of t equally near, else 0; for several choices.

    points (…, r, n), centers (…, K, r), half_norms ‖c‖²/2 (…, K, 1), choices (…, m, n) → (…, m, n).
    ‖a − c‖² is least where a·c − ‖c‖²/2 is largest.
    """
    scores = (centers @ points).sub_(half_norms)  # (…, K, n)
    best = scores.amax(-2, keepdim=True)
    chosen = scores.gather(-2, choices.expand(*scores.shape[:-2], *choices.shape[-2:]))
    nearest, hits = scores == best, (chosen == best).double()
    alone = nearest.is_cpu and int(nearest.count_nonzero()) == best.numel()  # to look whether there are ties is faster
    return hits if alone else hits / nearest.sum(-2, keepdim=True)


def _choices(labels: Tensor, decision: Tensor | None) -> Tensor:
    """Labels and, where there are any, decisions: (…, 1 or 2, n)."""
    return labels.unsqueeze(-2) if decision is None else torch.stack([labels, decision.expand_as(labels)], -2)


@dataclass
class NearestCenter:
    """Nearest-class-center decisions, as sums over the samples of each class.

    sums (…, K, 2 or 3): number of samples, hits (nearest is own class) and, where the network's decisions are known,
    agreements (nearest is the decision). Among centers at exactly the same distance the decision counts as drawn by lot.
    """

    sums: Tensor

    @classmethod
    def of(cls, points: Tensor, span: Span, labels: Tensor, decision: Tensor | None) -> NearestCenter:
        """Points (…, r, n) relative to the global mean of the centers; labels and decisions of the network (…, n)."""
        points = points if span.middle is None else points - span.middle.mT
        agreed = agreement(points, span.corners, span.half_norms, _choices(labels, decision))
        values = torch.cat([torch.ones_like(agreed[..., :1, :]), agreed], -2)
        return cls(sums_by_class(values, labels, span.counts.shape[-1]))

    @property
    def counts(self) -> Tensor:
        """Samples of each class (…, K)."""
        return self.sums[..., 0]

    @property
    def hits(self) -> Tensor:
        """Samples of each class that are nearest to its own center (…, K)."""
        return self.sums[..., 1]

    @property
    def mismatches(self) -> Tensor | None:
        """Samples of each class whose nearest center is not the network's decision (…, K); `None` without decisions."""
        return self.sums[..., 0] - self.sums[..., 2] if self.sums.shape[-1] == 3 else None


@dataclass
class Scatter:
    """Sums over the samples of each class around fixed centers, float64, side by side in one tensor (…, K, …).

    residuals Σ z (r columns): zero up to rounding when the data are those of pass 1; fuzziness Σ ‖z/s‖² under the
    centers' own weighting; fuzziness_equal, the same with equally weighted classes; lengths Σ ‖R‖²; fourth Σ ‖R‖⁴; near:
    decisions of the nearest center. digest (…, 3) is that of the centers.
    """

    sums: Tensor
    rank: int
    digest: Tensor

    @classmethod
    def of(
        cls, coordinates: Tensor, lengths: Tensor, labels: Tensor, span: Span, decision: Tensor | None = None,
        *, nearest: bool = True,  # whether centers are compared; otherwise `near` has nothing but counts
        residuals: Tensor | None = None,  # where they are known: to add up r rows of many classes takes long
    ) -> Scatter:  # fmt: skip
        """From what `project` gave: coordinates (…, r, n), lengths (…, n), labels and decisions (…, n)."""
        K, r = span.counts.shape[-1], coordinates.shape[-2]
        hot, choices = indicators(labels, K, torch.float64), _choices(labels, decision)
        own_rows = r if residuals is None else 0
        rows = own_rows + 5 + choices.shape[-2]  # the one at own_rows + 4 counts
        values = span.scales.new_empty((*coordinates.shape[:-2], rows, coordinates.shape[-1]))
        values[..., own_rows + 4 :, :] = 1
        z = values[..., :r, :].copy_(coordinates) if residuals is None else coordinates
        own, equal, squares, fourth = values[..., own_rows : own_rows + 4, :].unbind(-2)
        torch.sum((z * span.inverse_scales.unsqueeze(-1)).square_(), -2, out=own)
        simple = span.weighting == "classes" or span.balanced
        equal.copy_(own if simple else (span.equal_whitener @ double(z)).square_().sum(-2))
        torch.square(squares.copy_(lengths).square_(), out=fourth).clamp_max_(MOST_FOURTH)
        if nearest:
            places = by_label(span.starts.mT, labels, hot).add_(z)  # (…, r, n): relative to the corners' origin
            values[..., own_rows + 5 :, :] = agreement(places, span.corners, span.half_norms, choices)
        sums = sums_by_class(values, labels, K, hot)
        if residuals is not None:
            sums = torch.cat([residuals, sums], -1)
        return cls(sums if nearest else sums[..., : r + 5], r, span.digest)

    @property
    def residuals(self) -> Tensor:
        """Σ z of each class (…, K, r)."""
        return self.sums[..., : self.rank]

    @property
    def fuzziness(self) -> Tensor:
        """Σ ‖z/s‖² of each class (…, K)."""
        return self.sums[..., self.rank]

    @property
    def fuzziness_equal(self) -> Tensor:
        """Σ ‖T z‖² of each class (…, K), T the whitener of equally weighted classes."""
        return self.sums[..., self.rank + 1]

    @property
    def lengths(self) -> Tensor:
        """Σ ‖R‖² of each class (…, K)."""
        return self.sums[..., self.rank + 2]

    @property
    def fourth(self) -> Tensor:
        """Σ ‖R‖⁴ of each class (…, K): with the squares it says how many samples make up the spread."""
        return self.sums[..., self.rank + 3]

    @property
    def outliers(self) -> Tensor:
        """Whether few samples are nearly all of the spread (…)."""
        squares, fourth, n = (part.sum(-1) for part in (self.lengths, self.fourth, self.counts))
        return squares.square() * FEW < n * fourth

    @property
    def few(self) -> bool:
        """The same in any entry of the leading dimension."""
        return bool(self.outliers.any())

    @property
    def near(self) -> NearestCenter:
        """Decisions of the nearest center."""
        return NearestCenter(self.sums[..., self.rank + 4 :])

    @property
    def counts(self) -> Tensor:
        """Samples of each class (…, K)."""
        return self.sums[..., self.rank + 4]

    def add(self, other: Scatter) -> None:
        """Add another part of the same data under the same centers, in place."""
        mine, theirs = self.digest, other.digest
        if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12):
            raise PassError(
                "scatters merge only under equal centers, and these were taken around different class means. "
                "Merge (or all-reduce) the class sums of pass 1 first, then take every scatter around the merged centers."
            )
        self.sums += other.sums

    def each(self) -> list[Scatter]:
        """Every entry of the leading dimension."""
        return [Scatter(s, self.rank, mark) for s, mark in zip(self.sums.unbind(), self.digest.unbind(), strict=True)]

    @classmethod
    def stack(cls, parts: Sequence[Scatter]) -> Scatter:
        """Those of several sites as one with a new leading dimension."""
        return cls(torch.stack([p.sums for p in parts]), parts[0].rank, torch.stack([p.digest for p in parts]))

    @classmethod
    def merge(cls, parts: Sequence[Scatter]) -> Scatter:
        """One statistic from several parts of the same data."""
        whole = copy.deepcopy(parts[0])
        for part in parts[1:]:
            whole.add(part)
        return whole


@dataclass
class WithinScatter:
    """The within-class scatter SS_w (d, d) itself around fixed centers: second moments of the residuals, in float64.

    `roots` (K,) are √(w_k/n_k), so that the moments of the residuals times them are SS_w under the centers' weighting. The
    products are in float64 whatever the features came in: SS_w is inverted, and its small directions count.
    """

    means: Tensor
    roots: Tensor
    moments: Moments

    @classmethod
    def start(cls, centers: Centers) -> WithinScatter:
        """Ready for pass 2."""
        moments = Moments.empty(1, centers.means.shape[-1], 0, centers.means.device)
        moments.reference = torch.zeros_like(centers.mean)  # residuals have mean 0
        return cls(centers.means, (centers.weights / centers.counts.clamp_min(1)).sqrt(), moments)

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add the features (n, d) of one batch."""
        n, d = features.shape
        labels = labels.to(self.means.device)
        for start in range(0, n, step := max(MOMENT_ROWS, d)):
            rows = slice(start, start + step)
            residual = double(features[rows]).to(self.means.device) - self.means[labels[rows]]
            ones = Columns(self.roots.new_ones(len(residual), 1), residual.device)
            self.moments.update(0, residual * self.roots[labels[rows]].unsqueeze(-1), ones)

    def add(self, other: WithinScatter) -> None:
        """Add what another part of the same data gave around the same centers, in place."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine += theirs

    @property
    def tensors(self) -> list[Tensor]:
        """What an all-reduce adds up."""
        return self.moments.tensors

    def matrix(self) -> Tensor:
        """SS_w (d, d)."""
        return self.moments.squares()[0]


@dataclass
class LeftOut:
    """Delete-group jackknife: for each group i of g the centers without it (leading dimension g), the fuzziness of the rest.

    `shift` (g, K, r) is how far the class means move when group i leaves, in the basis without it;
    `fuzziness` (g, K) is Σ ‖z/s‖² over the samples not in group i, with z the residual around the *full* class mean.
    """

    centers: Centers
    shift: Tensor
    fuzziness: Tensor

    @classmethod
    def start(cls, groups: ClassSums, full: Centers) -> LeftOut:
        """Ready for pass 2; `groups` are the sums (…, g, K, d) and `full` the centers (…, K, d) of all."""
        centers = find_centers(groups.left_out(), full.weighting, view=True)
        shift = (centers.means - full.rounded_means.double().unsqueeze(-3)) @ centers.basis.mT
        return cls(centers, shift, torch.zeros_like(centers.counts))

    def at(self, index: int | list[int] | None) -> LeftOut:
        """One entry of the leading dimension; what is added to it is added here."""
        return LeftOut(self.centers.at(index), self.shift[index], self.fuzziness[index])

    @property
    def basis(self) -> Tensor:
        """All g bases below each other (…, g·r, d), for one product; each row divided by its scale."""
        return (self.centers.basis * self.centers.inverse_scales.unsqueeze(-1)).flatten(-3, -2)

    @staticmethod
    def added(coordinates: Tensor, absent: Tensor, hot: Tensor) -> Tensor:
        """What samples add to the fuzziness (…, g, K), by coordinates (…, g·r, n) in `basis`, which are overwritten.

        `absent` (g, n): who is in a group, so not in the view without it; `hot` (K, n): indicators of classes, float64.
        """
        q = double(squares_by_view(coordinates, len(absent)))
        return q.masked_fill_(absent, 0.0) @ hot.mT

    def added_together(self, coordinates: Tensor, absent: Tensor) -> Tensor:
        """The same where classes count by their samples: these are added up as one, each class gets its share (S, g, K)."""
        q = squares_by_view(coordinates, len(absent))
        weights = self.centers.weights[:1]  # the same at all sites
        return double(q.masked_fill_(absent, 0.0)).sum(-1, keepdim=True) * weights

    def separation(self) -> Tensor:
        """Separation fuzziness without each group (…, g)."""
        moved = (self.shift * self.centers.inverse_scales.unsqueeze(-2)).square().sum(-1)  # (…, g, K)
        per_class = self.fuzziness / self.centers.counts.clamp_min(1) - moved
        return (self.centers.weights * per_class).sum(-1)


@dataclass
class Permuted:
    """The floor that features show by chance: centers under P permuted labels, Σ ‖z/s‖² of each permuted class (P, K).

    `moves` (P, r, 2K) takes the residual of a sample around its true class mean (as rounded in pass 2) to the one around
    its permuted class mean without another product: true means and, negative, permuted ones, in the scaled bases.
    `apart` (P,) takes its place where classes count by their samples and these are many: squares around one mean differ from
    those around another one by what the means differ, so those around true means are added up, of all classes together.
    """

    centers: Centers
    moves: Tensor | None
    fuzziness: Tensor
    apart: Tensor | None = None

    @classmethod
    def start(cls, sums: ClassSums, true: Centers) -> Permuted:
        """Ready for pass 2; `sums` are those (…, P, K, d) under permuted labels, `true` the centers (…, K, d)."""
        # What was added up: the spread in the classes and between them, as it would be around a sample of any class.
        size = true.spread + 2 * true.counts.sum(-1) * true.scales.square().sum(-1)
        sums = replace(sums, spread=size.unsqueeze(-1).expand(sums.counts.shape[:-1]))
        centers = find_centers(sums, true.weighting, view=True)
        scaled = centers.basis.mT * centers.inverse_scales.unsqueeze(-2)  # (…, P, d, r)
        places = (true.rounded_means.double().unsqueeze(-3) - centers.mean.unsqueeze(-2)) @ scaled
        own, nothing = centers.coordinates * centers.inverse_scales.unsqueeze(-2), torch.zeros_like(centers.counts)
        by_samples, mean_count = true.weighting == "samples" or centers.balanced, true.counts.mean()
        if by_samples and bool(mean_count >= PER_CLASS):  # so D is far above what is taken off, and keeps its digits
            moved = places.square() + 2 * places * (true.rounding.unsqueeze(-3) @ scaled)
            shares = class_weights(true.counts, "samples").unsqueeze(-2)
            means = shares * moved.sum(-1) - centers.weights * own.square().sum(-1)
            return cls(centers, None, nothing, means.sum(-1))
        both = torch.cat([places, -own], -2).mT
        return cls(centers, both.to(true.rounded_means.dtype), nothing)

    def at(self, index: int | list[int] | None) -> Permuted:
        """One entry of the leading dimension; what is added to it is added here."""
        moves, apart = (None if part is None else part[index] for part in (self.moves, self.apart))
        return Permuted(self.centers.at(index), moves, self.fuzziness[index], apart)

    @property
    def basis(self) -> Tensor:
        """All P bases below each other (…, P·r, d), for one product; each row divided by its scale."""
        return (self.centers.basis * self.centers.inverse_scales.unsqueeze(-1)).flatten(-3, -2)

    @staticmethod
    def indicators(labels: Tensor, permuted: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """True labels (n,) and permuted ones (P, n) of one batch, for every site: (P, 2K, n)."""
        true = indicator_rows(labels, classes, dtype).expand(len(permuted), -1, -1)
        return torch.cat([true, indicator_rows(permuted, classes, dtype)], -2)

    @staticmethod
    def added(coordinates: Tensor, moves: Tensor, indicators: Tensor) -> Tensor:
        """What samples add to the fuzziness of several sites (S, P, K), by coordinates (S, P·r, n) around the true means."""
        S, P, r, both = moves.shape
        z = (moves.transpose(0, 1).flatten(1, 2) @ indicators).view(P, S, r, -1)  # one product for all sites
        z += coordinates.view(S, P, r, -1).transpose(0, 1)
        q = squares_by_view(z.flatten(1, 2), S)  # (P, S, n)
        return (double(q) @ double(indicators[:, both // 2 :]).mT).transpose(0, 1)

    def added_together(self, coordinates: Tensor) -> Tensor:
        """The same where classes are not told apart, an equal part to each of them; the coordinates are overwritten."""
        P, K = self.fuzziness.shape[-2:]
        q = double(squares_by_view(coordinates, P)).sum(-1, keepdim=True)
        return (q / K).expand(-1, -1, K)

    def separation(self) -> Tensor:
        """Separation fuzziness under each permutation of the labels (…, P)."""
        found = (self.centers.weights * self.fuzziness / self.centers.counts).sum(-1)
        return found if self.apart is None else found + self.apart
