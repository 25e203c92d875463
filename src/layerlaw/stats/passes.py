"""The two passes over all sites of a network at once.

Heavy products happen site by site while the forward runs; what is left of size n×K waits for the end of the batch and is
then worked through for all sites together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from layerlaw.errors import FeatureError, PassError
from layerlaw.stats.centers import Centers, Span, Weighting, find_centers
from layerlaw.stats.closer import CloserLook, Rounding, narrow
from layerlaw.stats.labels import deal_groups, one_hot, shuffled_groups
from layerlaw.stats.limits import TOO_LARGE, Doubt, doubt_of, finite, hides_directions
from layerlaw.stats.precision import double
from layerlaw.stats.ranks import all_reduce
from layerlaw.stats.scatter import Frame, LeftOut, NearestCenter, Permuted, Scatter, WithinScatter, project
from layerlaw.stats.sums import Assignment, ClassSums

Key = Hashable  # whatever names a site
TOGETHER = 100_000  # class means of more numbers than this are worked through site by site
CHANGED = 1e-4  # mean residual over its rms above which the data of pass 2 are not those of pass 1


@dataclass
class Dealt:
    """The labels of one batch, dealt for a pass: jackknife groups (n,), permuted labels (P, n) where they are requested."""

    labels: Tensor
    groups: Tensor | None = None
    permuted: Tensor | None = None

    def rows(self, rows: slice) -> Dealt:
        """Some of the samples."""
        groups, permuted = (None if t is None else t[..., rows] for t in (self.groups, self.permuted))
        return Dealt(self.labels[rows], groups, permuted)


class Dealer:
    """Deals batches in the same way in both passes: stratified groups, labels permuted so many times with a fixed seed."""

    def __init__(self, classes: int, *, groups: int, permuted: int, seed: int, all_labels: Tensor | None) -> None:
        self.classes, self.groups, self.permuted = classes, groups, permuted
        self.seed, self.all_labels = seed, all_labels
        self.restart()

    def restart(self) -> None:
        """Begin a pass."""
        self._seen = torch.zeros(self.classes, dtype=torch.long)
        self._order = shuffled_groups(self.groups, self.seed) if self.groups else None
        self._generator = torch.Generator().manual_seed(self.seed)
        self._shuffled = None
        if self.permuted and self.all_labels is not None:
            n = len(self.all_labels)
            orders = [torch.randperm(n, generator=self._generator) for _ in range(self.permuted)]
            self._shuffled = self.all_labels[torch.stack(orders)]  # (P, n)
        self._at = 0

    def deal(self, labels: Tensor) -> Dealt:
        """Labels (n,) of the next batch, already numbered 0 … K−1."""
        dealt = Dealt(labels)
        here, n = labels.cpu(), len(labels)
        if self.groups:
            dealt.groups = deal_groups(here, self._seen, self.groups, self._order).to(labels.device)
        if self._shuffled is not None:
            dealt.permuted = self._shuffled[:, self._at : self._at + n].to(labels.device)
        elif self.permuted:  # a stream whose labels are not known beforehand: drawn, not permuted
            drawn = torch.randint(self.classes, (self.permuted, n), generator=self._generator)
            dealt.permuted = drawn.to(labels.device)
        self._at += n
        return dealt


class TargetDealer(Dealer):
    """Deals targets (n, q): the groups of held-out fits, permuted rows (P, q, n) where they are requested.

    The targets of a stream are not known beforehand; there noise of the size of the first batch takes the place of permuted
    ones: D_reg knows nothing of the targets but the space that they span.
    """

    def __init__(self, always: int, *, groups: int, permuted: int, seed: int, all_labels: Tensor | None) -> None:
        self.always = always
        super().__init__(1, groups=groups, permuted=permuted, seed=seed, all_labels=all_labels)

    def restart(self) -> None:
        """Begin a pass."""
        super().restart()
        self._order = shuffled_groups(self.always, self.seed)
        self._noise: tuple[Tensor, Tensor] | None = None

    def deal(self, labels: Tensor) -> Dealt:
        """Targets (n, q) of the next batch."""
        n, q = labels.shape
        one = torch.zeros(n, dtype=torch.long)
        dealt = Dealt(labels, deal_groups(one, self._seen, self.always, self._order))
        if self._shuffled is not None:
            dealt.permuted = self._shuffled[:, self._at : self._at + n].mT  # (P, q, n)
        elif self.permuted:
            if self._noise is None:
                self._noise = labels.mean(0).cpu(), labels.std(0, correction=0).clamp_min(1e-3).cpu()
            drawn = torch.randn(self.permuted, n, q, generator=self._generator, dtype=torch.float64)
            dealt.permuted = (self._noise[0] + self._noise[1] * drawn).mT
        self._at += n
        return dealt


class FirstPass:
    """Class sums of every site; with jackknife groups as a leading dimension, and under permuted labels."""

    def __init__(self, classes: int, groups: int = 0) -> None:
        self.classes, self.groups = classes, groups
        self.sums: dict[Key, ClassSums] = {}
        self.permuted: dict[Key, ClassSums] = {}
        self._fresh: list[Key] = []

    def begin(self, dealt: Dealt) -> None:
        """Start a batch."""
        self._fresh = []
        self._labels = Assignment.of(dealt.labels, self.classes, dealt.groups, self.groups)
        self._permuted = None if dealt.permuted is None else one_hot(dealt.permuted, self.classes, torch.float32)

    def update(self, key: Key, features: Tensor) -> None:
        """Add the (n, d) features of one site."""
        _add(self.sums, key, ClassSums.assigned(features, self._labels.to(features.device)))
        if self._permuted is not None:
            _add(self.permuted, key, ClassSums.permuted(features, self._permuted.to(features.device)))
        self._fresh.append(key)

    def end(self, where: Callable[[Key], str]) -> None:
        """End a batch: not-a-number and infinity show in the sums; `where` says which batch of a site is spoilt."""
        check_finite({key: self.sums[key].sums for key in self._fresh}, where)

    def drop_extras(self) -> None:
        """Forget groups and permuted labels: the features turned out not to fit the memory budget."""
        if self.groups:
            self.sums = {key: sums.total() for key, sums in self.sums.items()}
        self.groups, self.permuted = 0, {}

    def all_reduce(self) -> None:
        """Add up over ranks, in one collective call: in the same order on all of them, whichever site came first."""
        ordered = (of[key] for of in (self.sums, self.permuted) for key in sorted(of, key=str))
        all_reduce([tensor for sums in ordered for tensor in sums.tensors])

    def total(self, key: Key) -> ClassSums:
        """Sums of one site over all groups."""
        return self.sums[key].total() if self.groups else self.sums[key]


SumsAgain = Callable[[Container[Key]], tuple[FirstPass, FirstPass]]
"""Sums of some sites in float64, and those of the magnitudes of their features."""


def check_finite(sums: Mapping[Key, Tensor], where: Callable[[Key], str]) -> None:
    """Not-a-number and infinity show in the sums of a batch; `where` says which batch of a site is spoilt."""
    flags = [torch.isfinite(of_site).all() for of_site in sums.values()]
    home = flags[0].device
    found = torch.stack([flag.to(home) for flag in flags]).tolist()  # one transfer, not one per site
    if not all(found):
        bad = list(sums)[found.index(False)]
        raise FeatureError(
            f"site '{bad}': expected finite features, got NaN or infinity in {where(bad)}. Look at the inputs of that "
            f"batch and at the layer before this site; half precision may overflow (probe in float32). {TOO_LARGE}."
        )


@dataclass
class Around:
    """What pass 2 measures around at one site: its centers, and the optional views that share its product."""

    centers: Centers
    left_out: LeftOut | None = None
    permuted: Permuted | None = None
    reference: Centers | None = None  # centers of the training data, for nearest-center decisions on test data
    within: WithinScatter | None = None  # the whole within-class scatter, where it was requested
    closer: CloserLook | None = None  # where float32 sums may have lost directions
    _judged: tuple[Scatter, Doubt | None] | None = None

    @classmethod
    def all_of(
        cls,
        first: FirstPass,
        weighting: Weighting,
        references: Mapping[Key, Centers] | None = None,
        within: Container[Key] = (),
    ) -> dict[Key, Around]:
        """Everything that pass 1 allows, for all sites; those of equal shape are worked through together.

        `within` are the sites of which the whole within-class scatter is kept.
        """
        shapes: dict[tuple[int, ...], list[Key]] = defaultdict(list)
        for number, (key, sums) in enumerate(first.sums.items()):
            alone = sums.sums.shape[-2:].numel() > TOGETHER  # large ones gain nothing
            shapes[*sums.sums.shape, sums.dtype.itemsize, number if alone else -1].append(key)
        found: dict[Key, Around] = {}
        for keys in shapes.values():
            stacked = ClassSums.stack([first.sums[key] for key in keys])
            centers = find_centers(stacked.total() if first.groups else stacked, weighting)
            left_out = permuted = None
            if first.groups and bool((stacked.left_out().counts > 0).all()):
                left_out = LeftOut.start(stacked, centers)
            if first.permuted and finite(
                first.permuted[key].sums for key in keys
            ):  # over all classes, they may overflow
                drawn = ClassSums.stack([first.permuted[key] for key in keys])
                permuted = Permuted.start(drawn, centers) if bool((drawn.counts > 0).all()) else None
            closely = narrow(centers).tolist()
            for i, key in enumerate(keys):
                found[key] = cls(
                    centers.at(i),
                    left_out.at(i) if left_out else None,
                    permuted.at(i) if permuted else None,
                    references[key] if references else None,
                    WithinScatter.start(centers.at(i)) if key in within else None,
                    CloserLook.start(centers.at(i)) if closely[i] else None,
                )
        return {key: found[key] for key in first.sums}

    def with_digits(self, wide: Around, sizes: Tensor) -> Around:
        """The same by sums in float64, `wide`, where these have real directions only; `sizes` (K, d) of each feature."""

        def real(centers: Centers) -> bool:
            return Rounding(sizes, torch.zeros_like(sizes), centers.counts, centers.weights).all_real(centers)

        if not real(wide.centers):
            return self
        left_out = wide.left_out if wide.left_out and real(wide.left_out.centers) else None
        permuted = wide.permuted if wide.permuted and real(wide.permuted.centers) else None
        return replace(wide, left_out=left_out, permuted=permuted)

    def doubt(self, scatter: Scatter) -> Doubt | None:
        """Why D would look right and may be wrong; `None` where nothing says so."""
        if self._judged is None or self._judged[0] is not scatter:
            few = scatter.few
            found = doubt_of(self.centers, few) or (None if self.closer is None else self.closer.doubt(few))
            self._judged = scatter, found
        return self._judged[1]

    def believed(self, view: LeftOut | Permuted | None) -> bool:
        """Whether a view has all directions that rounding leaves to it."""
        if view is None or hides_directions(view.centers):
            return False
        return self.closer is None or bool((view.centers.rank >= self.centers.rank).all())

    @property
    def other_bases(self) -> list[Tensor]:
        """Rows to project on beside the basis of the centers, in the order the coordinates come back."""
        return [view.basis for view in (self.left_out, self.permuted, self.reference) if view is not None]


@dataclass
class SecondPass:
    """Scatters of every site around fixed centers, and the views that share their products."""

    around: Mapping[Key, Around]
    near_reference: dict[Key, NearestCenter] = field(default_factory=dict)
    right: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    """How many samples the network itself decided rightly."""

    def __post_init__(self) -> None:
        self._frames: dict[Key, Frame] = {}
        self._waiting: dict[Key, tuple[Tensor, Tensor]] = {}
        by_rank: dict[int, list[Key]] = defaultdict(list)
        for key, around in self.around.items():
            by_rank[around.centers.scales.shape[-1]].append(key)
        # Sites whose class means span equally many dimensions are worked through as one.
        self._stacks = [(keys, Span.stack([self.around[key].centers for key in keys])) for keys in by_rank.values()]
        self._scatters: list[Scatter | None] = [None] * len(self._stacks)
        self._places = {
            key: (around.centers.rounded_means.double() - around.reference.mean) @ around.reference.basis.mT
            for key, around in self.around.items()
            if around.reference is not None
        }

    def begin(self, dealt: Dealt, decision: Tensor | None) -> None:
        """Start a batch; `decision` may also be set before `end`, since the network decides last."""
        self._dealt, self.decision, self._waiting = dealt, decision, {}
        self._indicators: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def update(self, key: Key, features: Tensor) -> None:
        """Project the residuals of one site; the rest waits for the end of the batch."""
        around = self.around[key]
        if key not in self._frames:
            self._frames[key] = Frame.of(around.centers, *around.other_bases, device=features.device)
        labels = self._dealt.labels.to(features.device)
        self._waiting[key] = project(features, labels, self._frames[key])
        if around.within is not None:
            around.within.update(features, labels)
        if around.closer is not None:
            around.closer.update(features, labels)

    def end(self) -> None:
        """Work through what waited, all sites of equal rank together."""
        for i, (keys, span) in enumerate(self._stacks):
            device, r = span.scales.device, span.scales.shape[-1]
            labels = self._dealt.labels.to(device)
            decision = None if self.decision is None else self.decision.to(device)
            own = torch.stack([self._waiting[key][0][:r].to(device) for key in keys])  # (sites, r, n)
            lengths = torch.stack([self._waiting[key][1].to(device) for key in keys])
            part = Scatter.of(own, lengths, labels, span, decision)
            scatter = self._scatters[i]
            if scatter is None:
                self._scatters[i] = part
            else:
                scatter.add(part)
        if self.decision is not None:
            self.right += (self.decision == self._dealt.labels.to(self.decision.device)).sum().cpu()
        for key, (coordinates, _) in self._waiting.items():
            self._update_views(key, coordinates)
        self._waiting = {}

    def _update_views(self, key: Key, coordinates: Tensor) -> None:
        around = self.around[key]
        at = around.centers.basis.shape[0]
        labels = self._dealt.labels.to(coordinates.device)
        if around.left_out is not None and self._dealt.groups is not None:
            width = around.left_out.centers.scales.numel()
            around.left_out.update(coordinates[at : at + width], labels, self._dealt.groups.to(coordinates.device))
            at += width
        if around.permuted is not None and self._dealt.permuted is not None:
            width = around.permuted.centers.scales.numel()
            kind = coordinates.device, around.permuted.moves.dtype
            if kind not in self._indicators:
                K = around.centers.counts.shape[-1]
                permuted = self._dealt.permuted.to(coordinates.device)
                self._indicators[kind] = Permuted.indicators(labels, permuted, K, kind[1])
            around.permuted.update(coordinates[at : at + width], self._indicators[kind])
            at += width
        if around.reference is not None:
            points = double(coordinates[at:]) + self._places[key][labels].mT
            decision = None if self.decision is None else self.decision.to(coordinates.device)
            part = NearestCenter.of(points, around.reference, labels, decision)
            if key in self.near_reference:
                self.near_reference[key].sums += part.sums
            else:
                self.near_reference[key] = part

    def all_reduce(self) -> None:
        """Add up over ranks, in one collective call."""
        scatters = [scatter for scatter in self._scatters if scatter is not None]
        tensors = [self.right, *(scatter.sums for scatter in scatters)]
        for key, around in self.around.items():
            tensors += [view.fuzziness for view in (around.left_out, around.permuted) if view is not None]
            tensors += [self.near_reference[key].sums] if key in self.near_reference else []
            tensors += [t for one in (around.within, around.closer) if one is not None for t in one.tensors]
        all_reduce(tensors, [scatter.digest for scatter in scatters])

    def scatters(self, untrusted: dict[Key, str] | None = None) -> dict[Key, Scatter]:
        """The scatter of every site, once all batches are in; raises when the data were not those of pass 1.

        With `untrusted` such sites are written down there, with the reason, and only other class counts raise.
        """
        found: dict[Key, Scatter] = {}
        for (keys, _), scatter in zip(self._stacks, self._scatters, strict=True):
            assert scatter is not None
            found |= {key: scatter.at(i) for i, key in enumerate(keys)}
        for key in self.around:
            if (moved := self._moved(key, found[key])) is not None:
                why = f"the data changed between the two passes: the class means moved by {moved:.2g} of the spread"
                if untrusted is None:
                    raise PassError(
                        f"site '{key}': {why}. Random augmentation, dropout left on by hand, or batches that differ while "
                        "BatchNorm uses batch statistics do this; make the data deterministic, or raise memory_gib so that "
                        "one forward serves both."
                    )
                untrusted[key] = why
        return {key: found[key] for key in self.around}

    def _moved(self, key: Key, scatter: Scatter) -> float | None:
        """How far class means moved, in units of the spread; `None` where it is no more than rounding."""
        centers = self.around[key].centers
        if not torch.equal(scatter.counts, centers.counts):
            raise PassError(
                f"site '{key}': the data changed between the two passes: class counts {_numbers(centers.counts)} in pass 1, "
                f"{_numbers(scatter.counts)} in pass 2. Pass data that are the same each time they are gone through "
                "(no one-shot iterators, no sampling with replacement from an unseeded generator)."
            )
        mean = scatter.residuals / scatter.counts.unsqueeze(-1)  # (K, r)
        # A direction in which the class means hardly differ has a small scale: rounding is large beside it, and no change.
        moved = ((mean - centers.expected_residuals).abs() - centers.resolution).clamp_min(0) * centers.inverse_scales
        rms = (scatter.fuzziness.sum() / scatter.counts.sum()).sqrt()
        worst = torch.linalg.vector_norm(moved, dim=-1).max()
        return float(worst / rms) if worst > CHANGED * rms + 1e-8 else None


def _add(sums: dict[Key, ClassSums], key: Key, part: ClassSums) -> None:
    if key in sums:
        sums[key].add(part)
    else:
        sums[key] = part


def _numbers(counts: Tensor) -> str:
    shown = [str(int(c)) for c in counts[:12]]
    return "[" + ", ".join(shown) + (", …]" if len(counts) > 12 else "]")
