"""Features regressed on targets: the two passes for numbers to be predicted and for several labels at once.

SS_b is what a linear regression of the features X (n, d) on the targets Y (n, q) explains, SS_w what it leaves, and
D_reg = Tr(SS_w SS_b⁺); of one-hot targets the fitted values are the class means, and D_reg is D. Pass 1 keeps products of
the design T = [1, Y] with itself and with X; between the passes, `FeatureFit` has an orthonormal basis of the fitted values;
pass 2 keeps what the residuals do inside it. No d×d matrix but where a held-out regression of Y on X is wanted (`Moments`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from layerlaw.errors import LabelError, PassError
from layerlaw.stats.around import CHANGED, ONE_FORWARD
from layerlaw.stats.centers import FeatureFit, Whitened
from layerlaw.stats.closer import UNEVEN_DOUBT, ClosestFit
from layerlaw.stats.design import DesignRows, FitViews
from layerlaw.stats.limits import Doubt, doubt_of
from layerlaw.stats.moments import Columns, Moments, TargetMoments
from layerlaw.stats.passes import Dealt, check_finite
from layerlaw.stats.precision import double, row_chunks
from layerlaw.stats.ranks import all_reduce, world_size
from layerlaw.stats.scatter import FEW
from layerlaw.stats.stacking import Key

PICTURED = 200  # targets that are remembered to color the plane


@dataclass
class SiteSums:
    """Of one site: TᵀX (g, 1+q, d) of every group, under permuted targets (P, 1+q, d), Σ x² (d,), and XᵀX if wanted."""

    cross: Tensor
    permuted: Tensor | None
    squares: Tensor
    moments: Moments | None
    dtype: torch.dtype

    @property
    def tensors(self) -> list[Tensor]:
        """What is added up over ranks."""
        more = [] if self.permuted is None else [self.permuted]
        return [self.cross, self.squares, *more, *([] if self.moments is None else [self.moments.packed])]


class FirstRegression:
    """Pass 1 over all sites. The mean of the first batch is taken off the targets, however far from 0 they lie."""

    def __init__(self, targets: int, groups: int, *, jackknife: bool, moments: Collection[Key] = ()) -> None:
        self.targets, self.groups, self.jackknife = targets, groups, jackknife
        self.wanted = frozenset(moments)  # sites whose second moments are kept
        self.gram = torch.zeros(groups, targets + 1, targets + 1, dtype=torch.float64)  # TᵀT
        self.permuted_gram: Tensor | None = None
        self.shift = torch.zeros(targets, dtype=torch.float64)
        self.sites: dict[Key, SiteSums] = {}
        self.not_binary = torch.zeros(1, dtype=torch.float64)  # how many numbers are neither 0 nor 1
        self.pictured: list[Tensor] = []
        self.agreed = False  # whether the shift is given, and not that of the first batch
        self._seen = 0

    def begin(self, dealt: Dealt) -> None:
        """Start a batch."""
        Y = double(dealt.labels).cpu()
        if self._seen == 0 and not self.agreed:
            self.shift = Y.mean(0)
        if self._seen < PICTURED:
            self.pictured.append(Y[: PICTURED - self._seen])
        self._seen += len(Y)
        self.not_binary += ((Y != 0) & (Y != 1)).sum()
        self._rows, self._fresh = DesignRows(dealt, self.shift, self.groups), list[Key]()
        for k, rows in self._rows.of_groups:
            self.gram[k] += self._rows.T[rows].mT @ self._rows.T[rows]
        if self._rows.permuted is not None:
            part = self._rows.permuted @ self._rows.permuted.mT
            self.permuted_gram = part if self.permuted_gram is None else self.permuted_gram + part

    def update(self, key: Key, features: Tensor) -> None:
        """Add the features (n, d) of one site; products in float64, since they are thin."""
        X = features.cpu() if features.device.type == "mps" else features
        T, _, permuted = self._rows.on(X.device)
        if key not in self.sites:
            self.sites[key] = self._empty(key, X, 0 if permuted is None else len(permuted))
        site, p = self.sites[key], self.targets + 1
        for k, rows in self._rows.of_groups:
            rows = rows.to(X.device)
            for part in row_chunks(len(rows), 8 * X.shape[1], X.device):
                chosen = rows[part]
                wide = X.index_select(0, chosen).double()
                columns = T[chosen].mT
                if permuted is not None:
                    columns = torch.cat([columns, permuted[..., chosen].flatten(0, 1)])
                product = columns @ wide  # ((1+P)(1+q), d)
                site.cross[k] += product[:p]
                site.squares += wide.square().sum(0)
                if site.permuted is not None:
                    site.permuted += product[p:].view_as(site.permuted)
                if site.moments is not None:  # in float64 too: collinear features would else predict by their rounding
                    site.moments.update(k, wide, Columns(torch.ones(len(wide), 1), X.device))
        self._fresh.append(key)

    def _empty(self, key: Key, X: Tensor, P: int) -> SiteSums:
        g, p, d = self.groups, self.targets + 1, X.shape[1]
        like = torch.zeros(d, dtype=torch.float64, device=X.device)
        moments = Moments.empty(g, d, 0, X.device) if key in self.wanted else None
        return SiteSums(like.new_zeros(g, p, d), like.new_zeros(P, p, d) if P else None, like, moments, X.dtype)

    def end(self, where: Callable[[Key], str]) -> None:
        """End a batch: not-a-number and infinity show in the sums."""
        check_finite({key: self.sites[key].cross for key in self._fresh}, where)

    def drop_extras(self) -> None:
        """Forget what the jackknife and permuted targets need: the features turned out not to fit the memory budget."""
        self.jackknife, self.permuted_gram = False, None
        for site in self.sites.values():
            site.permuted = None

    def all_reduce(self) -> None:
        """Add up over ranks, once they agree on what is taken off the targets."""
        if world_size() > 1:
            common = self.shift.clone()
            all_reduce([common], always=True)
            self.take_off(common / world_size())
        none = self.counts.new_zeros(len(self.counts), 0)
        for site in self.sites.values():
            if site.moments is not None:  # of each rank's own reference, before they are added up
                site.moments.settle(TargetMoments(self.counts, none, none))
        sums = [self.gram, self.not_binary, *(() if self.permuted_gram is None else (self.permuted_gram,))]
        all_reduce([*sums, *(t for site in self.sites.values() for t in site.tensors)])

    def take_off(self, shift: Tensor) -> None:
        """As if this had been taken off the targets from the beginning: so that ranks, or two data sets, agree."""
        E = torch.eye(self.targets + 1, dtype=torch.float64)
        E[0, 1:] = self.shift - shift
        self.gram, self.shift = E.mT @ self.gram @ E, shift
        self.permuted_gram = None if self.permuted_gram is None else E.mT @ self.permuted_gram @ E
        for site in self.sites.values():
            here = E.to(site.cross.device).mT
            site.cross = here @ site.cross
            site.permuted = None if site.permuted is None else here @ site.permuted

    @property
    def binary(self) -> bool:
        """Whether all targets are 0 or 1: labels, of which a sample may have several."""
        return float(self.not_binary) == 0

    @property
    def one_hot(self) -> bool:
        """Whether every sample has exactly one of several labels."""
        n, q = self.counts.sum(), self.targets
        sums = self.gram[:, 0, 1:].sum(0) + n * self.shift
        both = self.gram[:, 1:, 1:].sum(0) + torch.outer(sums, self.shift) + torch.outer(self.shift, sums)
        both = both - n * torch.outer(self.shift, self.shift)  # YᵀY: how often two labels come together
        apart = float((both - both.diag().diag()).abs().max()) < 0.5
        return self.binary and q > 1 and apart and abs(float(sums.sum() - n)) < 0.5

    @property
    def most_frequent(self) -> float:
        """Share of labels that one has right who always gives each label's more frequent answer."""
        share = self.shift + self.gram[:, 0, 1:].sum(0) / self.counts.sum()
        return float(torch.maximum(share, 1 - share).mean())

    @property
    def counts(self) -> Tensor:
        """Samples of every group (g,)."""
        return self.gram[:, 0, 0]

    def check(self, where: str) -> None:
        """Answer targets of which nothing can be said."""
        n, span = int(self.counts.sum()), int(Whitened.of(self.gram.sum(0)).rank)
        if span == 0:
            what = "that differ between samples, got the same everywhere: nothing depends on a constant"
            raise LabelError(f"{where}: expected targets {what}.")
        if n <= span + 1:
            raise LabelError(
                f"{where}: expected more samples than targets, got {n} samples for {self.targets} targets: a regression on "
                "them explains everything. Use more samples, or fewer targets (classes=[…] with their numbers)."
            )

    def target_moments(self) -> TargetMoments:
        """Of the targets alone, in groups."""
        return TargetMoments(self.counts, self.gram[:, 0, 1:], self.gram[:, 1:, 1:].diagonal(dim1=1, dim2=2))


@dataclass
class SiteRegression:
    """What both passes leave of one site.

    fit: the regression of its features; residuals: Σ ‖z‖² and Σ z·T (r, 1+q) of the scaled coordinates z of the residuals;
    left_out (g,) and permuted (P,): D_reg without each group and under permuted targets; moments: XᵀX in groups, `None`
    where it was not kept.
    """

    fit: FeatureFit
    squares: Tensor
    along: Tensor
    left_out: Tensor | None
    permuted: Tensor | None
    moments: Moments | None
    targets: TargetMoments
    hidden: bool = False  # whether float32 hides directions from the fit

    @property
    def doubt(self) -> Doubt | None:
        """Why D_reg would look right and may be wrong; `None` where nothing says so."""
        return doubt_of(self.fit) or (UNEVEN_DOUBT if self.hidden else None)

    @property
    def separation(self) -> Tensor:
        """D_reg; what the residuals still share with the targets is rounding, and is taken off."""
        n = self.fit.targets.n
        return ((self.squares - self.drift.square().sum() * n) / n).clamp_min(0)

    @property
    def drift(self) -> Tensor:
        """Mean of z times 1 and times each whitened target (r, 1+q): 0 but for rounding in the data of pass 1."""
        white = self.fit.targets
        mean = self.along / white.n
        return torch.cat([mean[:, :1], (mean[:, 1:] - mean[:, :1] * white.mean) @ white.H], -1)

    @property
    def moved(self) -> bool:
        """Whether the drift is more than rounding: the data of pass 2 are not those of pass 1."""
        rms = (self.squares / self.fit.targets.n).sqrt()
        return bool((self.drift.abs().amax(-1) > CHANGED * rms + 1e-8 + self.fit.resolution).any())


@dataclass
class SecondRegression:
    """Pass 2 over all sites, around the fits of pass 1; also what the network itself makes of the targets.

    errors (q,) are Σ (output − target)²; right (2, q) how often a label is what the output says, taken as a score (above 0)
    and as a probability (above one half); `predicted` counts samples and outputs that are no probabilities.
    """

    first: FirstRegression
    errors: Tensor = field(init=False)
    right: Tensor = field(init=False)
    predicted: Tensor = field(init=False)

    def __post_init__(self) -> None:
        first, q = self.first, self.first.targets
        self.errors, self.right = torch.zeros(q, dtype=torch.float64), torch.zeros(2, q, dtype=torch.float64)
        self.predicted, self.gram = torch.zeros(2, dtype=torch.float64), torch.zeros(q + 1, q + 1, dtype=torch.float64)
        self.decision: Tensor | None = None
        self.fits: dict[Key, FeatureFit] = {}
        self._views: dict[Key, tuple[FitViews | None, FitViews | None]] = {}
        self._sums: dict[Key, tuple[Tensor, Tensor]] = {}
        self._closest: dict[Key, ClosestFit] = {}
        self._left: dict[Key, tuple[Tensor, Tensor]] = {}  # Σ r² (d,) of residuals, and Σ‖r‖⁴, where they matter
        # The targets are the same at every site.
        total, counts = first.gram.sum(0), first.counts
        whole = self.targets = Whitened.of(total)
        enough = first.jackknife and bool((counts.sum() - counts > q + 1).all())
        without = Whitened.of(total - first.gram) if enough else None
        shuffled = None if first.permuted_gram is None else Whitened.of(first.permuted_gram)
        for key, site in first.sites.items():
            found = ClosestFit.of(whole, site.cross.sum(0), site.squares, site.dtype)
            fit, left_out, permuted = found.fit, None, None
            if without is not None:
                rest = ClosestFit.of(without, site.cross.sum(0) - site.cross, site.squares, site.dtype)
                left_out = FitViews.left_out(rest.fit, fit, rest.hidden())
            if site.permuted is not None and shuffled is not None:
                drawn = ClosestFit.of(shuffled, site.permuted, site.squares, site.dtype)
                permuted = FitViews.permuted(drawn.fit, fit, drawn.hidden())
            self._closest[key], self._left[key] = found, (torch.zeros_like(site.squares), fit.scales.new_zeros(1))
            self.fits[key], self._views[key] = fit, (left_out, permuted)
            r = fit.scales.shape[-1]
            self._sums[key] = fit.scales.new_zeros(()), fit.scales.new_zeros(r, q + 1)
            site.permuted = None  # no longer needed

    def begin(self, dealt: Dealt, decision: Tensor | None) -> None:
        """Start a batch; `decision` (n, q) is the network's output, and may also be set before `end`."""
        self._rows = DesignRows(dealt, self.first.shift, self.first.groups)
        self._targets, self.decision = dealt.labels, decision
        self.gram += self._rows.T.mT @ self._rows.T

    def update(self, key: Key, features: Tensor) -> None:
        """Residuals of one site in the basis of its fit, and in those of its views."""
        X = features.cpu() if features.device.type == "mps" else features
        T, groups, permuted = self._rows.on(X.device)
        fit, views = self.fits[key], self._views[key]
        scaled, (squares, along) = fit.scaled, self._sums[key]
        rows = [view.basis for view in views if view is not None]
        closest = self._closest[key]
        wide = X.dtype == torch.float64 or closest.exact is not None
        others = torch.cat(rows).to(torch.float64 if wide else torch.float32) if rows else None
        for part in row_chunks(len(X), 8 * X.shape[1], X.device):
            residual = torch.addmm(X[part].double(), T[part], fit.coefficients, alpha=-1)
            z = scaled @ residual.mT  # (r, m)
            squares += z.square().sum()
            along += z @ T[part]
            if closest.exact is not None:
                apart = residual.square()
                self._left[key][0].add_(apart.sum(0))
                self._left[key][1].add_(apart.sum(-1).square().sum())
            if others is None:
                continue
            coordinates, at = others @ residual.to(others.dtype).mT, 0
            if (left_out := views[0]) is not None:
                at, columns = len(left_out.basis), T[part].mT
                absent = groups[part] == torch.arange(len(left_out.counts), device=X.device).unsqueeze(-1)
                left_out.update(coordinates[:at], columns, absent)
            if (drawn := views[1]) is not None and permuted is not None:
                own = T[part].mT.expand(len(permuted), -1, -1)
                drawn.update(coordinates[at:], torch.cat([own, permuted[:, 1:, part]], 1))

    def end(self) -> None:
        """End a batch."""
        if self.decision is not None:
            output, targets = double(self.decision).cpu(), double(self._targets).cpu()
            self.errors += (output - targets).square().sum(0)
            self.right += torch.stack([((output > level) == (targets > 0.5)).sum(0) for level in (0.0, 0.5)])
            self.predicted += torch.tensor([float(len(output)), float(((output < 0) | (output > 1)).sum())])

    @property
    def r_squared(self) -> float | None:
        """R² of the network's output, the mean over the targets that vary; `None` of labels and where there is no output."""
        n, deviations = self.predicted[0], self.targets.deviations
        if self.first.binary or n == 0:
            return None
        varies = deviations > 0
        return float((1 - self.errors[varies] / (n * deviations[varies].square())).mean())

    @property
    def label_accuracy(self) -> float | None:
        """Share of labels that the output has right; `None` of other targets and where there is no output."""
        n, improbable = self.predicted.tolist()
        return float(self.right[int(improbable == 0)].mean() / n) if self.first.binary and n else None

    def all_reduce(self) -> None:
        """Add up over ranks, in one collective call."""
        sums = (t for pairs in (self._sums, self._left) for pair in pairs.values() for t in pair)
        tensors = [self.errors, self.right, self.predicted, self.gram, *sums]
        tensors += [view.fuzziness for pair in self._views.values() for view in pair if view is not None]
        all_reduce(tensors, [self._digest(fit) for fit in self.fits.values()])

    @staticmethod
    def _digest(fit: FeatureFit) -> Tensor:
        numbers = fit.coefficients.flatten()
        marks = torch.arange(1.0, len(numbers) + 1, dtype=torch.float64, device=numbers.device).cos()
        return torch.stack([(numbers * marks).sum(), fit.scales.sum()])

    def sites(self, untrusted: dict[Key, str] | None = None) -> Iterator[tuple[Key, SiteRegression]]:
        """What is left of every site, once all batches are in; raises when the data were not those of pass 1.

        With `untrusted` such sites are written down there, with the reason, and only other targets raise.
        """
        targets = self.first.target_moments()
        self._check_targets()
        for key, fit in self.fits.items():
            left_out, permuted = (None if view is None or view.hidden else view.separation for view in self._views[key])
            moments = self._moments(self.first.sites[key])
            left, fourth = self._left[key]
            hidden = self._closest[key].hidden(left, bool(left.sum().square() * FEW < fit.targets.n * fourth))
            found = SiteRegression(fit, *self._sums[key], left_out, permuted, moments, targets, hidden)
            if found.moved:
                why = "the features moved against the targets"
                if untrusted is None:
                    raise PassError(_changed(f"site '{key}'", why))
                untrusted[key] = f"the data changed between the two passes: {why}"
            yield key, found

    def _check_targets(self) -> None:
        before = self.first.gram.sum(0)
        if not torch.allclose(self.gram, before, rtol=1e-9, atol=1e-9 * float(before.abs().max())):
            n, m = int(before[0, 0]), int(self.gram[0, 0])
            what = f"{n} samples in pass 1, {m} in pass 2" if n != m else "the targets are not the same"
            raise PassError(_changed("data", what))

    @staticmethod
    def _moments(site: SiteSums) -> Moments | None:
        """Second moments whose products with the targets are those of pass 1: Xᵀ[Y, 1] (g, d, q+1)."""
        if site.moments is None:
            return None
        return Moments(site.moments.packed, torch.cat([site.cross[:, 1:], site.cross[:, :1]], 1).mT.contiguous())


def _changed(where: str, what: str) -> str:
    return (
        f"{where}: the data changed between the two passes: {what}. Random augmentation, a one-shot iterator or sampling "
        f"with replacement do this; make the data deterministic{ONE_FORWARD}."
    )
