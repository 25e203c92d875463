"""The two passes over all sites of a network at once.

Heavy products happen site by site while the forward runs; what is left of size n×K waits for the end of the batch and is
then worked through for all sites together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from layerlaw.errors import FeatureError, PassError
from layerlaw.stats.around import ONE_FORWARD, Around, OneRank, Projected, add_fuzziness, by_kin, frame_of, moved
from layerlaw.stats.closer import exact_sums, permuted_sums
from layerlaw.stats.labels import Labelings, kept_one_hot, one_hot
from layerlaw.stats.limits import TOO_LARGE, all_true, doubtful
from layerlaw.stats.precision import at_least_float32, double, on_host
from layerlaw.stats.ranks import all_reduce, is_alone
from layerlaw.stats.scatter import Frame, LeftOut, NearestCenter, Permuted, Scatter, project
from layerlaw.stats.stacking import Key, Stacks
from layerlaw.stats.sums import MANY_ROWS, Assignment, ClassSums, PagedSums

T = TypeVar("T")


@dataclass
class Dealt:
    """The labels of one batch, dealt for a pass: jackknife groups (n,), permuted labels (P, n) where they are requested.

    What is made of them is made once for all sites.
    """

    labels: Tensor
    groups: Tensor | None = None
    permuted: Tensor | None = None
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def rows(self, rows: slice) -> Dealt:
        """Some of the samples."""
        groups, permuted = (None if t is None else t[..., rows] for t in (self.groups, self.permuted))
        return Dealt(self.labels[rows], groups, permuted)

    @classmethod
    def joined(cls, parts: Sequence[Dealt]) -> Dealt:
        """Batches that follow each other as one."""
        if len(parts) == 1:
            return parts[0]
        views = zip(*((part.groups, part.permuted) for part in parts), strict=True)
        groups, permuted = (None if any(t is None for t in view) else torch.cat(view, -1) for view in views)
        return cls(torch.cat([part.labels for part in parts]), groups, permuted)

    def to(self, device: torch.device) -> Dealt:
        """The same on another device."""
        if device == self.labels.device:
            return self
        parts = (None if t is None else t.to(device) for t in (self.labels, self.groups, self.permuted))
        return self._once(device, lambda: Dealt(*parts))  # type: ignore[arg-type]

    def hot(self, classes: int, dtype: torch.dtype) -> Tensor:
        """Indicators of the classes (K, n), which others use too."""
        return self._once(("hot", classes, dtype), lambda: kept_one_hot(self.labels, classes, dtype))

    def absent(self, groups: int) -> Tensor:
        """Which samples the views without each group lack (g, n)."""
        assert self.groups is not None
        return self._once(("absent", groups), lambda: one_hot(self.groups, groups, torch.bool))  # type: ignore[arg-type]

    def indicators(self, classes: int, dtype: torch.dtype) -> Tensor:
        """Of true and of permuted labels (P, 2K, n)."""
        assert self.permuted is not None
        both = self.labels, self.permuted
        return self._once(("indicators", classes, dtype), lambda: Permuted.indicators(*both, classes, dtype))

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found


class FirstPass:
    """Class sums of every site; with jackknife groups as a leading dimension, and under permuted labels."""

    def __init__(self, classes: int, groups: int = 0) -> None:
        self.classes, self.groups = classes, groups
        self._order: dict[Key, None] = {}  # of the forward, whatever is worked through together
        self._together: dict[tuple[bool, tuple[Key, ...]], ClassSums] = {}  # of sites at once, permuted or not
        self._sums: tuple[dict[Key, ClassSums], dict[Key, ClassSums]] = {}, {}
        self._finite: dict[tuple[Key, ...], Tensor] = {}
        self._labels: Assignment | None = None
        self._stacks, self._paged = Stacks(self._add_up), PagedSums(classes, groups)

    def begin(self, dealt: Dealt) -> None:
        """Start a batch."""
        self._finite = {}
        self._stacks.drop()
        self._paged.begin(dealt.labels, dealt.groups)
        self._dealt, self._labels = dealt, None
        self._for: dict[tuple[int, torch.device], Assignment] = {}
        drawn = dealt.permuted
        self._permuted = None if drawn is None else Labelings.of(drawn, self.classes)

    def expect(self, keys: Iterable[Key]) -> None:
        """The order of the sites, where they come in another one."""
        self._order |= dict.fromkeys(keys)

    def update(self, key: Key, features: Tensor) -> None:
        """Add the (n, d) features of one site."""
        self._order[key] = None
        if self._permuted is not None or not self._paged.add(key, features):
            self._stacks.add(key, features)

    def update_all(self, keys: Sequence[Key], features: Tensor) -> None:
        """Add those of several sites (S, n, d) and batches: on a CPU, sums are the same however these were put together."""
        self.expect(keys)
        if not features.is_cpu or features.dtype == torch.float64:
            self._stacks.add_all(keys, features, views=self.groups > 0 or self._permuted is not None)
            return
        step = max(1, MANY_ROWS // features.shape[1]) if features.is_contiguous() else 1  # others would be copied
        for at in range(0, len(keys), step):
            self._add_up(list(keys[at : at + step]), features[at : at + step], exact=True)

    def _add_up(self, keys: list[Key], features: Tensor, *, exact: bool = False) -> None:
        """Those of several sites (S, n, d)."""
        kind, named = (len(keys), features.device), tuple(keys)
        if kind not in self._for:
            if self._labels is None:
                self._labels = Assignment.of(self._dealt.labels, self.classes, self._dealt.groups, self.groups)
            self._for[kind] = self._labels.to(features.device).for_sites(len(keys))
        under = None if self._permuted is None else self._permuted.to(features.device)
        if exact:
            sums, permuted = exact_sums(features, self._for[kind], under)
        else:
            sums = ClassSums.assigned(features, self._for[kind])
            permuted = None if under is None else _permuted_sums(features, under)
        self._finite[named] = sums.sums.isfinite().flatten(1).all(1)
        _add(self._together, (False, named), sums)
        self._permuted = under
        if permuted is not None:
            _add(self._together, (True, named), permuted)

    def end(self, where: Callable[[Key], str]) -> None:
        """End a batch: not-a-number and infinity show in the sums; `where` says which batch of a site is spoilt."""
        self._stacks.flush()
        if not (paged := self._paged.end()) and self._finite and all_true(self._finite.values()):
            return
        flags = {key: flag for keys, found in self._finite.items() for key, flag in zip(keys, found, strict=True)}
        if flags := flags | paged:
            check_finite({key: flags[key] for key in self._order if key in flags}, where)

    @property
    def sums(self) -> dict[Key, ClassSums]:
        """By site, in the order of the forward."""
        return self._by_site[0]

    @property
    def permuted(self) -> dict[Key, ClassSums]:
        """The same under permuted labels."""
        return self._by_site[1]

    @property
    def _by_site(self) -> tuple[dict[Key, ClassSums], dict[Key, ClassSums]]:
        """Takes apart what was added up together."""
        for (drawn, keys), together in self._together.items():
            for i, key in enumerate(keys):
                _add(self._sums[drawn], key, together.at(i))
        apart = list(self._paged.take())
        for key, sums in apart:
            _add(self._sums[0], key, sums)
        if self._together or apart:
            self._together = {}
            whole, drawn_ones = ({key: sums[key] for key in self._order if key in sums} for sums in self._sums)
            self._sums = whole, drawn_ones
        return self._sums

    def drop_extras(self) -> None:
        """Forget groups and permuted labels: the features turned out not to fit the memory budget."""
        totals = {key: sums.total() if self.groups else sums for key, sums in self.sums.items()}
        self.groups, self._sums, self._paged = 0, (totals, {}), PagedSums(self.classes, 0)

    def all_reduce(self) -> None:
        """Add up over ranks, in one collective call: in the same order on all of them, whichever site came first."""
        if not is_alone():
            ordered = (of[key] for of in (self.sums, self.permuted) for key in sorted(of, key=str))
            all_reduce([tensor for sums in ordered for tensor in sums.tensors])

    def total(self, key: Key) -> ClassSums:
        """Sums of one site over all groups."""
        return self.sums[key].total() if self.groups else self.sums[key]


SumsAgain = Callable[[Container[Key]], tuple[FirstPass, FirstPass] | None]
"""Sums of some sites in float64, and those of the magnitudes of their features; `None` where these are not at hand."""


def check_finite(sums: Mapping[Key, Tensor], where: Callable[[Key], str]) -> None:
    """Not-a-number and infinity show in the sums of a batch; `where` says which batch of a site is spoilt."""
    flags = [torch.isfinite(of_site).all() if of_site.dim() else of_site for of_site in sums.values()]
    home = flags[0].device
    found = torch.stack([flag.to(home) for flag in flags]).tolist()  # one transfer, not one per site
    if not all(found):
        bad = list(sums)[found.index(False)]
        raise FeatureError(
            f"site '{bad}': expected finite features, got NaN or infinity in {where(bad)}. Look at the inputs of that "
            f"batch and at the layer before this site; half precision may overflow (probe in float32). {TOO_LARGE}."
        )


@dataclass
class SecondPass:
    """Scatters of every site around fixed centers, and the views that share their products."""

    around: Mapping[Key, Around]
    right: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))  # decided by the network
    same_features: bool = False  # whether they are the very ones of pass 1, which were kept: nothing can have changed

    def __post_init__(self) -> None:
        self._stacks = Stacks(self._project)
        self._frames: dict[tuple[Key, ...], tuple[Frame, Tensor | None]] = {}
        self._waiting: list[Projected] = []
        self._right: Tensor | None = None  # what is to be added to `right`: a GPU is not waited for after each batch
        by_rank: dict[tuple[int, torch.device], dict[Key, Around]] = defaultdict(dict)
        for key, around in self.around.items():
            scales = around.alike.centers.scales
            by_rank[scales.shape[-1], scales.device][key] = around
        # Sites whose class means span equally many dimensions are worked through as one.
        self._spans = [OneRank(list(sites), list(sites.values())) for sites in by_rank.values()]

    def begin(self, dealt: Dealt, decision: Tensor | None) -> None:
        """Start a batch; `decision` may also be set before `end`, since the network decides last."""
        self._dealt, self.decision, self._waiting = dealt, decision, []
        self._stacks.drop()

    def update(self, key: Key, features: Tensor) -> None:
        """Project the residuals of one site; the rest waits for the end of the batch."""
        self._stacks.add(key, features)

    def update_all(self, keys: Sequence[Key], features: Tensor) -> None:
        """Those of several sites (S, n, d)."""
        self._stacks.add_all(keys, features, views=self._dealt.groups is not None or self._dealt.permuted is not None)

    def _project(self, keys: list[Key], features: Tensor) -> None:
        """Those of several sites (S, n, d)."""
        sites, here = [self.around[key] for key in keys], self._dealt.to(features.device)
        if any(site.kin != sites[0].kin for site in sites[1:] if site.alike is not sites[0].alike):
            kinds: dict[Any, list[int]] = defaultdict(list)
            for i, site in enumerate(sites):
                kinds[site.kin].append(i)
            for some in kinds.values():
                self._project(
                    [keys[i] for i in some], features[some] if len(some) > 1 else features[some[0]].unsqueeze(0)
                )
            return
        if tuple(keys) not in self._frames:
            self._frames[tuple(keys)] = frame_of(sites, features.device)
        frame, moves = self._frames[tuple(keys)]
        coordinates, lengths = project(features, here.labels, frame)  # (S, P, n), (S, n)
        K, r = sites[0].alike.centers.coordinates.shape[-2:]
        left_out, permuted, at = sites[0].alike.left_out, sites[0].alike.permuted, r
        if left_out is not None:
            part = coordinates[:, at : (at := at + left_out.centers.scales[0].numel())]
            if here.groups is not None:
                absent = here.absent(left_out.fuzziness.shape[-2])
                if left_out.centers.weighting == "samples":
                    add_fuzziness(sites, "left_out", left_out.added_together(part, absent))
                else:
                    add_fuzziness(sites, "left_out", LeftOut.added(part, absent, here.hot(K, torch.float64)))
        if permuted is not None:
            part = coordinates[:, at : (at := at + permuted.centers.scales[0].numel())]
            if here.permuted is not None and moves is not None:
                add_fuzziness(sites, "permuted", Permuted.added(part, moves, here.indicators(K, moves.dtype)))
            elif here.permuted is not None:
                add_fuzziness(sites, "permuted", permuted.added_together(part))
        if at > r:  # the rest is no longer needed, and would be held until the end of the batch
            coordinates, at = torch.cat([coordinates[:, :r], coordinates[:, at:]], 1), r
        self._waiting.append((keys, coordinates[:, :r], lengths, coordinates[:, at:]))
        for i, site in enumerate(sites):
            for whole in (site.within, site.closer):
                if whole is not None:
                    whole.update(features[i], here.labels)

    def end(self) -> None:
        """Work through what waited, all sites of equal rank together."""
        self._stacks.flush()
        for sites in self._spans:
            sites.update(self._waiting, self._dealt, self.decision)
        if self.decision is not None:
            right = (self.decision == self._dealt.to(self.decision.device).labels).sum()
            self._right = right if self._right is None else self._right + right.to(self._right.device)
        self._waiting = []

    @property
    def near_reference(self) -> dict[Key, NearestCenter]:
        """Nearest-center decisions by the centers of the training data, by site."""
        return {
            key: NearestCenter(sites.near.sums[i])
            for sites in self._spans
            if sites.near is not None
            for i, key in enumerate(sites.keys)
        }

    @property
    def sums(self) -> list[Tensor]:
        """What was added up of residuals."""
        return [sites.scatter.sums for sites in self._spans if sites.scatter is not None]

    def all_reduce(self) -> None:
        """Add up over ranks, in one collective call."""
        if is_alone():
            return
        self._settle()
        found = [sites.scatter for sites in self._spans if sites.scatter is not None]
        tensors = [self.right, *self.sums]
        tensors += [sites.near.sums for sites in self._spans if sites.near is not None]
        for alike in {id(around.alike): around.alike for around in self.around.values()}.values():
            tensors += [view.fuzziness for view in (alike.left_out, alike.permuted) if view is not None]
        for around in self.around.values():
            tensors += [t for one in (around.within, around.closer) if one is not None for t in one.tensors]
        all_reduce(tensors, [scatter.digest for scatter in found])

    def _settle(self) -> None:
        if self._right is not None:
            self.right += self._right.cpu()
            self._right = None

    def scatters(self, untrusted: dict[Key, str] | None = None) -> dict[Key, Scatter]:
        """The scatter of every site, once all batches are in; raises when the data were not those of pass 1.

        With `untrusted` such sites are written down there, with the reason, and only other class counts raise.
        """
        self._settle()
        together = {tuple(sites.keys): sites.scatter for sites in self._spans if sites.scatter is not None}
        by_key = {key: one for keys, whole in together.items() for key, one in zip(keys, whole.each(), strict=True)}
        found = {key: by_key[key] for key in self.around}
        keys, off = list(found), dict[Key, float]()
        spread = zip(together, on_host([whole.outliers for whole in together.values()]), strict=True)
        few = {key: one for keys, flags in spread for key, one in zip(keys, flags, strict=True)}
        for alike, places in by_kin(list(self.around.values())):
            here = [keys[place] for place in places]
            if not self.same_features or not is_alone():  # others may not have kept theirs
                scatter = together.get(tuple(here)) or Scatter.stack([found[key] for key in here])
                off |= moved(here, alike.centers, scatter)
            outliers = torch.stack([few[key] for key in here])
            for key, doubted in zip(here, doubtful(alike.centers, outliers).tolist(), strict=True):
                self.around[key].judge(found[key], doubted)
        for key, by in sorted(off.items(), key=lambda item: keys.index(item[0])):
            why = f"the data changed between the two passes: the class means moved by {by:.2g} of the spread"
            if untrusted is None:
                raise PassError(
                    f"site '{key}': {why}. Random augmentation, dropout left on by hand, or batches that differ while "
                    f"BatchNorm uses batch statistics do this; make the data deterministic{ONE_FORWARD}."
                )
            untrusted[key] = why
        return found


def _add(sums: dict[Any, ClassSums], key: Hashable, part: ClassSums) -> None:
    if key in sums:
        sums[key].add(part)
    else:
        sums[key] = part


def _permuted_sums(features: Tensor, under: Labelings) -> ClassSums:
    """Sums (…, P, K, d) of (…, n, d) features under P labelings at once.

    One row is subtracted before and added back after: under random labels nothing nearer to a sample is known.
    """
    reference = at_least_float32(features[..., :1, :])
    sums = under.counts.unsqueeze(-1) * double(reference).unsqueeze(-3)
    for rows in under.chunks(4 * features[..., 0, :].numel()):
        sums += under.added_up(features[..., rows, :] - reference, rows)
    return permuted_sums(under, sums, features.dtype)
