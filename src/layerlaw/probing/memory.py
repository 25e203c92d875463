"""The memory budget: what fits of features and statistics, and the features that are kept for the second pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerlaw.capture.batches import Batches
from layerlaw.capture.plan import Site, statistic_bytes
from layerlaw.errors import InputError, MemoryBudgetError
from layerlaw.stats.passes import FirstPass, SecondPass
from layerlaw.stats.ranks import all_reduce, world_size
from layerlaw.stats.regression import FirstRegression, SecondRegression

GROUPS = 10  # of the delete-group jackknife
PERMUTATIONS = 5  # of the labels: their median is the chance level; on collapsed features single ones differ threefold
# Of what is held per sample and site in float64 while a block of rows is worked through, at least and at most. On a CPU it
# stays in the cache; a GPU wants few, large ones, and what the kept features leave of the memory budget is for them.
BLOCK_BYTES = {"cpu": (4 * 2**20, 4 * 2**20), "cuda": (2**27, 2**30)}
# Bytes of a site in a batch from which on features are not kept side by side: on a CPU large ones gain nothing by it.
LARGE = {"cpu": 2**21}
MOST_ROUNDS = 1000  # of slices, of two forwards each
FEATURE_BYTES = 9  # in slices, per class and view: sums in float64, and an eighth for copies of parts
MOST_LINEAR = 2048  # features: beyond, the eigenvalues of a scatter matrix take longer than most probes
WHY_NOT = "the features do not fit the memory budget; request them with uncertainty=True"  # of data of unknown length


class Budget(int):
    """Bytes of the memory budget for statistics and kept features: those given, but for what is set `aside` for others."""

    given: int
    aside: int

    def __new__(cls, given: int, aside: int) -> Budget:
        """What is left of it."""
        found = super().__new__(cls, given - aside)
        found.given, found.aside = given, aside
        return found


def the_budget(memory: int, digits: int = 2) -> str:
    """What there is, in words: what was given as memory_gib, and what is not for statistics."""
    if not isinstance(memory, Budget) or not memory.aside:
        return f"the budget is {in_gib(memory, digits)} GiB"
    return f"the budget is {in_gib(memory.given, digits)} GiB, of which {in_gib(memory.aside)} are for matrices d×d"


def beside_the_budget(need: float, memory: int) -> tuple[str, str]:
    """So many bytes in GiB, and what there is, with as many digits as they need to look different."""
    given = memory.given if isinstance(memory, Budget) else memory
    digits = next((d for d in range(2, 17) if in_gib(need, d) != in_gib(given, d)), 2)
    return in_gib(need, digits), the_budget(memory, digits)


def enough_gib(need: float, memory: int) -> str:
    """A memory_gib that has room for so many bytes, surely: matrices d×d may take up to half of it."""
    return in_gib(1.1 * need * (2 if isinstance(memory, Budget) and memory.aside else 1))


@dataclass(frozen=True)
class Extras:
    """What is measured beyond the plain numbers, and how many bytes of features are kept for the second pass."""

    jackknife: bool
    permuted: bool
    keep: int
    why_not: str = ""

    @classmethod
    def that_fit(
        cls, sites: Sequence[Site], samples: int | None, K: int, memory: int, wanted: tuple[bool | None, bool | None]
    ) -> Extras:
        """`wanted` are jackknife and permuted; `None` means: if features and statistics fit the budget together.

        Data of unknown length are taken to fit until they do not.
        """
        jackknife, permuted = wanted
        plain = sum(statistic_bytes(K, site.features) for site in sites)
        features = sum(site.features * site.itemsize for site in sites) * (samples or 0)
        statistics = plain * views_of(jackknife is not False, permuted is not False)
        fits = features + statistics <= memory
        if world_size() > 1:  # every rank must add up the same things
            votes = torch.tensor([float(fits and samples is not None)], dtype=torch.float64)
            all_reduce([votes])
            fits = float(votes) == world_size()
        takes = f"features take {in_gib(features)} GiB, statistics {in_gib(statistics)} GiB"
        cure = "request them with uncertainty=True"
        if samples is None:  # so no number is known to be enough
            takes = f"statistics take {in_gib(statistics)} GiB, beside features of samples of unknown number"
        else:
            cure += f", or give memory_gib={enough_gib(features + statistics, memory)}"
        needs = f"{takes}, {the_budget(memory)}"
        why_not = f"{needs}; {cure}" if not fits and None in (jackknife, permuted) else ""
        jackknife, permuted = (fits if option is None else option for option in (jackknife, permuted))
        left = memory - plain * views_of(jackknife, permuted)
        return cls(jackknife, permuted, left if features <= left else 0, why_not)

    @property
    def views(self) -> tuple[int, int]:
        """How many groups of the jackknife there are, and how many permutations of the labels."""
        return GROUPS * self.jackknife, PERMUTATIONS * self.permuted

    def room(self, sites: Sequence[Site], classes: int, memory: int) -> int:
        """What the statistics of a group of sites leave of the memory budget."""
        views = views_of(self.jackknife, self.permuted)
        return memory - sum(statistic_bytes(classes, site.features) * views for site in sites)

    def groups(
        self, sites: Sequence[Site], classes: int, memory: int, *, reduce: str = "", of: str = "classes"
    ) -> list[list[Site]]:
        """Sites in groups whose statistics fit the memory budget; each group costs its own forwards.

        `of` says what there are: "targets", or "classes in shards", both of which are not measured in slices.
        """
        groups: list[list[Site]] = [[]]
        used, needs = 0, [statistic_bytes(classes, s.features) * views_of(self.jackknife, self.permuted) for s in sites]
        if max(needs, default=0) > memory:
            most = max(needs)
            raise self._no_room(sites[needs.index(most)], classes, most, memory, reduce, of)
        for site, need in zip(sites, needs, strict=True):
            if used + need > memory:
                groups.append([])
                used = 0
            groups[-1].append(site)
            used += need
        return groups

    def _no_room(self, site: Site, classes: int, need: int, memory: int, reduce: str, of: str) -> MemoryBudgetError:
        """That the statistics of one site do not fit, and what would."""
        what = "targets" if "targets" in of else "classes"
        count = classes - (what == "targets")  # their mean is one more
        gib, budget = beside_the_budget(need, memory)
        needs = f"with {count} {what} its statistics need {gib} GiB, {budget}"
        views = views_of(self.jackknife, self.permuted)
        others = [f"uncertainty=False, which takes {views} times less"] * (views > 1)
        others += ["reduce='mean'"] * (reduce == "flatten" and len(site.shape) > 1)
        others += ["fewer targets" if what == "targets" else "fewer classes (classes=[…])", "other sites"]
        others += ["a job without shards, which measures it in slices"] * (of == "classes in shards")
        cure = f"memory_gib={enough_gib(need, memory)} measures it; or use {', '.join(others)}"
        return MemoryBudgetError(f"site '{site.name}' has {site.features} features: {needs}. {cure}.")


def linear_sites(
    sites: Sequence[Site], samples: int | None, K: int, memory: int
) -> tuple[frozenset[str], dict[str, list[str]]]:
    """The sites whose within-class scatter (d, d) is kept for D_lin, and by reason those of which it is not.

    All scatters together take at most a quarter of the memory budget, narrow sites first. Ranks must keep the same ones,
    and one of them does not know how many samples the others have.
    """
    samples = None if world_size() > 1 else samples
    chosen, left_out, used = set(), defaultdict(list), 0
    for site in sorted(sites, key=lambda site: site.features):
        d = site.features
        need = 4 * d * (d + 1)  # the upper half, in float64
        if samples is not None and samples < d + K:
            left_out[too_few(samples)].append(site.name)
        elif d > MOST_LINEAR:
            left_out[f"has more than {MOST_LINEAR:,} features"].append(site.name)
        elif used + need > memory // 4:
            left_out["the scatter matrices would take more than a quarter of memory_gib"].append(site.name)
        else:
            chosen.add(site.name)
            used += need
    return frozenset(chosen), left_out


def too_few(samples: int) -> str:
    """Why there is no D_lin of a site."""
    return f"needs at least d + K samples, there are {samples:,}"


def scatter_bytes(sites: Sequence[Site], chosen: Container[str]) -> int:
    """Memory of the within-class scatters of the chosen sites."""
    return sum(4 * site.features * (site.features + 1) for site in sites if site.name in chosen)


def kept_bytes(views: int, classes: int, samples: int) -> int:
    """What a site keeps from slice to slice: K² and K·n numbers of every view."""
    return 8 * views * classes * (2 * classes + samples)


def too_small(
    sites: Sequence[Site], classes: int, views: int, samples: int | None, memory: int, *, known: bool = True
) -> MemoryBudgetError:
    """That sites do not fit even in slices, and what would; `known`: whether there are no more than so many samples."""
    site = max(sites, key=lambda site: site.features)  # while this one is sliced, narrower ones may be too
    kept = 0 if samples is None else kept_bytes(views, classes, samples)
    enough = kept + FEATURE_BYTES * views * classes * -(-site.features // 10)
    what = f"with {classes} classes" + (f" and {samples} samples{' or more' * (not known)}" if samples else "")
    need, budget = beside_the_budget(kept, memory)
    takes = f"what is kept from slice to slice needs {need} GiB, and a slice of features needs more on top; {budget}"
    if samples is None:
        takes = f"its statistics do not fit, not even in {MOST_ROUNDS:,} rounds of slices, {the_budget(memory)}"
    whole, how = statistic_bytes(classes, site.features) * views, "in about ten slices of its features"
    if samples is None or not known or whole <= enough:  # of unknown samples no number of slices is sure to do
        enough, how = whole, "whole"
    cure = f"memory_gib={enough_gib(enough, memory)} measures it {how}; or use reduce='mean', fewer classes (classes=[…]), "
    why = f"site '{site.name}' has {site.features} features: {what} {takes}"
    return MemoryBudgetError(f"{why}. {cure}fewer samples, other sites.")


class KeptFeatures:
    """The features of all sites (n, d), copied batch by batch as long as they fit the budget; of equal sites together."""

    def __init__(self, sites: Sequence[Site], budget: int, samples: int | None, batches: int | None = None) -> None:
        self.whole = budget > 0
        self._row_bytes = sum(site.features * site.itemsize for site in sites)
        self._budget, self._capacity, self._batches = budget, samples or 0, batches or 0
        self._names: dict[tuple[int, int], list[str]] = defaultdict(list)  # by features and bytes of a number
        for site in sites:
            self._names[site.features, site.itemsize].append(site.name)
        self._stacks: dict[tuple[Any, ...], tuple[list[str], Tensor]] = {}  # names, and (sites, rows, d)
        self._places: dict[str, tuple[tuple[Any, ...], int]] = {}  # of every site its stack, and where in it
        self._closed: list[tuple[Tensor, Tensor | None, str]] = []  # labels, decisions and name of every batch
        self.rows = 0

    def fits(self, rows: int) -> bool:
        """Whether so many more samples fit."""
        return (self.rows + rows) * self._row_bytes <= self._budget

    def add(self, site: Site, features: Tensor) -> None:
        """Copy: what follows in the forward may overwrite the features in place."""
        end = self.rows + len(features)
        if site.name not in self._places:
            alike = self._names[site.features, site.itemsize]
            # Usually all of them come in one dtype and on one device.
            kind = (*features.shape[1:], features.dtype, features.device, site.itemsize)
            if features.nbytes > LARGE.get(features.device.type, features.nbytes):
                alike, kind = [site.name], (*kind, site.name)
            if kind not in self._stacks:
                self._stacks[kind] = [], features.new_empty((len(alike), 0, features.shape[1]))
            held = self._stacks[kind][0]
            self._places[site.name] = kind, len(held)
            held.append(site.name)
        kind, place = self._places[site.name]
        names, stack = self._stacks[kind]
        if end > stack.shape[1]:
            most = self._budget // self._row_bytes
            expected = len(features) * self._batches  # as if all batches were as large as this one
            capacity = self._capacity or (expected if expected <= most else 0)
            rows = max(end, min(most, max(capacity, 2 * self.rows)))
            grown = features.new_empty((len(stack), rows, features.shape[1]))
            grown[:, : self.rows] = stack[:, : self.rows]
            self._stacks[kind] = names, (stack := grown)
        stack[place, self.rows : end] = features

    def add_all(self, features: Mapping[Site, Tensor]) -> bool:
        """Copy those of all sites by one call, if there is room for them already; whether there was."""
        end = self.rows + len(next(iter(features.values())))
        ready = all(site.name in self._places for site in features)
        if not ready or any(end > stack.shape[1] for _, stack in self._stacks.values()):
            return False
        rooms = dict[str, Tensor]()
        for names, stack in self._stacks.values():
            rooms |= zip(names, stack[: len(names), self.rows : end].unbind(), strict=True)
        torch._foreach_copy_([rooms[site.name] for site in features], list(features.values()))
        return True

    def close(self, labels: Tensor, decision: Tensor | None, where: str) -> None:
        """End a batch."""
        self._closed.append((labels, decision, where))
        self.rows += len(labels)

    @property
    def labels(self) -> Tensor:
        """Labels of all kept samples (n,)."""
        return torch.cat([labels for labels, _, _ in self._closed])

    def decisions(self, rows: slice) -> Tensor | None:
        """Decisions of the network for some of the samples."""
        found = [decision for _, decision, _ in self._closed if decision is not None]
        return torch.cat(found)[rows] if len(found) == len(self._closed) else None

    def features(self, rows: slice | None = None) -> Iterator[tuple[str, Tensor]]:
        """Every site's features (n, d), all or some rows of them, in the order of the forward."""
        for name, (kind, place) in self._places.items():
            yield (
                name,
                self._stacks[kind][1][place, : self.rows] if rows is None else self._stacks[kind][1][place, rows],
            )

    @property
    def sites(self) -> int:
        """How many there are."""
        return len(self._places)

    @property
    def widest(self) -> int:
        """The most features of a site."""
        return max((stack.shape[2] for _, stack in self._stacks.values()), default=0)

    @property
    def places(self) -> set[torch.device]:
        """The devices that hold them."""
        return {stack.device for _, stack in self._stacks.values()}

    @property
    def devices(self) -> set[str]:
        """Kinds of them."""
        return {place.type for place in self.places}

    def together(self, rows: slice | None = None) -> Iterator[tuple[list[str], Tensor]]:
        """The same of sites of one kind side by side: their names, and (sites, n, d)."""
        for names, stack in self._stacks.values():
            yield names, stack[: len(names), : self.rows] if rows is None else stack[: len(names), rows]

    def hand_over(
        self, to: FirstPass | SecondPass | FirstRegression | SecondRegression, rows: slice | None = None
    ) -> None:
        """Add every site's features to a pass, those of one kind together where it takes them so.

        Some rows are a batch of a stream whose features do not fit: pass 1 adds it up like those that follow.
        """
        if isinstance(to, FirstPass):
            to.expect(self._places)
        if isinstance(to, SecondPass) or (isinstance(to, FirstPass) and rows is None):
            for names, features in self.together(rows):
                to.update_all(names, features)
        else:
            for name, of_site in self.features(rows):
                to.update(name, of_site)

    def batches(self) -> Iterator[tuple[Tensor, slice, str]]:
        """Labels, rows and names of the batches as they came."""
        start = 0
        for labels, _, where in self._closed:
            yield labels, slice(start, start + len(labels)), where
            start += len(labels)

    def blocks(self, each: int) -> Iterator[slice]:
        """Blocks of rows small enough for work that holds so many bytes of each."""
        device = next((stack.device.type for _, stack in self._stacks.values()), "cpu")
        least, most = BLOCK_BYTES.get(device, BLOCK_BYTES["cuda"])
        size = max(least, min(most, self._budget - self.rows * self._row_bytes))
        step = max(256, size // max(1, each))
        for start in range(0, self.rows, step):
            yield slice(start, min(start + step, self.rows))

    def where_bad(self, name: str) -> str:
        """Name of the first batch in which a site has NaN or infinite features."""
        kind, place = self._places[name]
        mine = self._stacks[kind][1][place]
        bad = (where for _, rows, where in self.batches() if not bool(mine[rows].isfinite().all()))
        return next(bad, "the sum over all batches")

    def clear(self) -> None:
        """Forget the samples; their memory is kept for the next ones."""
        self._closed, self.rows = [], 0

    def drop(self) -> None:
        """Let go of everything."""
        self.whole, self._stacks, self._places, self._closed, self.rows = False, {}, {}, [], 0


def one_batch(data: Batches, sites: Sequence[Site], memory: int) -> Batches:
    """All samples as one batch (`batchnorm="whole"`), where inputs and features of the sites fit the memory budget.

    BatchNorm then normalizes by the mean and variance of all samples at once: what running statistics become when they are
    recalibrated on these samples, layer after layer.
    """
    if world_size() > 1:
        raise InputError("batchnorm='whole': expected one process, which sees all samples, got several. Use 'running'.")
    of_sites, batches, n, inputs = sum(site.features * site.itemsize for site in sites), [], 0, 0
    for batch in data:
        batches.append(batch)
        n, inputs = n + len(batch.labels), inputs + sum(tensor.nbytes for tensor in batch.tensors())
        each = of_sites + inputs / n
        total = max(n, data.samples or 0)
        if each * total > memory:
            what = f"{total}{'' if data.samples else ' or more'} samples with the features of {len(sites)} sites"
            need, budget = beside_the_budget(each * total, memory)
            fits = f"which fits {int(memory // each)} samples"
            larger = f"memory_gib={in_gib(1.1 * each * total)}" if data.samples else "a larger memory_gib"
            raise MemoryBudgetError(
                f"{data.where}: batchnorm='whole' runs all samples as one batch: {what} need {need} GiB, {budget}, "
                f"{fits}. Use fewer samples or sites, {larger}, or batchnorm='running'."
            )
    return data.joined(batches)


def views_of(jackknife: bool, permuted: bool) -> int:
    """How often the statistics of a site are held."""
    return 1 + GROUPS * jackknife + PERMUTATIONS * permuted


def in_gib(size: float, digits: int = 2) -> str:
    """A number of bytes in words."""
    return f"{size / 2**30:.{digits}g}"
