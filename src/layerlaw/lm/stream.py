"""One pass over the text: every block's hidden states become second moments while the forward runs, and are forgotten."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerlaw.capture.network import probing_state
from layerlaw.errors import InputError
from layerlaw.lm.anatomy import body_of
from layerlaw.lm.blocks import Blocks, Hooked
from layerlaw.lm.classes import FrequentTokens
from layerlaw.lm.pieces import Pieces, batches
from layerlaw.lm.places import Places
from layerlaw.lm.targets import Target
from layerlaw.lm.tasks import MASKED_SHARE, Batch, Task, TaskName
from layerlaw.lm.words import Words
from layerlaw.progress import Counter, Progress
from layerlaw.stats.moments import Columns, Moments, TargetMoments
from layerlaw.stats.precision import at_least_float32
from layerlaw.stats.ranks import all_reduce, rank, world_size

Normalize = Literal["fresh", "none", "standardized"]
GROUPS = 8  # of documents: enough for a standard error
ENOUGH = 100  # tokens per feature: from about here on the correlation is stable
DOUBLE_BELOW = 256  # width: below it a product in float64 costs little, and a small model is measured exactly


@dataclass(frozen=True)
class Plan:
    """What is measured: blocks, targets, normalization, and whether what enters the first block counts as a site too."""

    blocks: Blocks
    targets: tuple[Target, ...]
    normalize: Normalize = "fresh"
    embedding: bool = True
    places: Places = field(default_factory=Places)
    frequent: FrequentTokens | None = None
    words: Words | None = None

    @property
    def sites(self) -> int:
        """Blocks, and the embedded tokens before them."""
        return len(self.blocks.names) + self.embedding

    @property
    def sums_to_zero(self) -> bool:
        """Whether the features of a token add up to 0, so that one of them says nothing new."""
        return self.normalize == "standardized" or (self.normalize == "fresh" and self.blocks.norm == "layer")

    def normalized(self, X: Tensor) -> Tensor:
        """Rows as they are measured: a norm's trained factors do not change PR, so a bare one serves every block."""
        d = (X.shape[-1],)
        if self.normalize == "none" or (self.normalize == "fresh" and self.blocks.norm == "none"):
            return X.double()  # single tokens may be ten thousand times larger than the rest
        X = X.double() if X.shape[-1] < DOUBLE_BELOW and X.device.type == "cpu" else X
        if X.device.type == "cpu":
            X = at_least_float32(X)
        if self.normalize == "standardized":
            return F.layer_norm(X, d, eps=1e-12)
        norm = F.rms_norm if self.blocks.norm == "rms" else F.layer_norm
        return norm(X, d, eps=self.blocks.eps)


@dataclass
class Measured:
    """Moments of every site and of the targets, columns of each target, and how long it took."""

    sites: list[Moments]
    targets: TargetMoments
    columns: dict[str, slice]
    frequent: FrequentTokens | None
    words: Words | None
    tokens: int
    seconds: float


class Pass:
    """Collects the moments of one model over all pieces."""

    def __init__(self, plan: Plan, groups: int) -> None:
        self.plan, self.groups = plan, groups
        codes = [(target, target.codes()) for target in plan.targets]
        self.columns: dict[str, slice] = {}
        at = 0
        for target, code in codes:
            width = code.shape[1]
            if target.name == "shuffled":  # every shuffled vocabulary is a target of its own
                self.columns |= {f"shuffled_{i + 1}": slice(at + i, at + i + 1) for i in range(width)}
            else:
                self.columns[target.name] = slice(at, at + width)
            at += width
        self.codes = codes
        self.targets = TargetMoments.empty(groups, at)
        self.sites: list[Moments | None] = [None] * plan.sites
        self.frequent = None if plan.frequent is None else plan.frequent.fresh(plan.sites)
        self.words = None if plan.words is None else plan.words.fresh()
        self._group = 0
        self._rows: dict[torch.device, Tensor] = {}
        self._values: dict[torch.device, Columns] = {}

    def run(
        self,
        model: nn.Module,
        task: Task,
        pieces: Pieces,
        *,
        batch_size: int,
        device: torch.device,
        progress: bool | Progress,
    ) -> Measured:
        """Every batch of this rank through the model; then one all-reduce."""
        started = time.perf_counter()
        todo = list(batches(pieces, batch_size))
        mine = todo[rank() :: world_size()]
        counter = Counter(progress, len(mine), "tokens")
        done = 0
        with Hooked(model, self.plan.blocks, self.consume, embedding=self.plan.embedding) as hooked:
            for number, (group, members) in enumerate(mine):
                batch = task.batch([pieces.ids[i] for i in members], members)
                if len(batch.rows):
                    self.begin(group, batch, rank() + number * world_size())
                    inputs = batch.to(device).inputs_of(model)
                    hooked.run(inputs, where=f"the {len(members)} pieces from {members[0]} on")
                    done += sum(len(pieces.ids[i]) for i in members)
                counter.step(f"{done / (time.perf_counter() - started):,.0f} tokens/s")
        counter.close()
        self._finish(device)
        sites = [site for site in self.sites if site is not None]
        return Measured(
            sites, self.targets, self.columns, self.frequent, self.words, done, time.perf_counter() - started
        )

    def begin(self, group: int, batch: Batch, number: int = 0) -> None:
        """A new batch, the number-th of all: its rows and the codes of the tokens around them."""
        self._group, self._rows, self._values = group, {}, {}
        Y = torch.cat([code[batch.around[target.offset]].double() for target, code in self.codes], 1)
        self.targets.update(group, Y)
        self._T = torch.cat([Y, torch.ones(len(Y), 1, dtype=torch.float64)], 1)
        self._index, self._told = batch.rows, batch.told
        if self.frequent is not None:
            self.frequent.begin(batch.around[1])
        if self.words is not None:
            self.words.begin(batch.around[0], number)

    def consume(self, site: int, hidden: Tensor) -> None:
        """The hidden states (B, T, d) of one block."""
        device = hidden.device
        hidden = self.plan.places.of(hidden, self._told)
        if device not in self._rows:
            self._rows[device] = self._index.to(device)
        X = self.plan.normalized(hidden.reshape(-1, hidden.shape[-1]).index_select(0, self._rows[device]))
        if device not in self._values:
            self._values[device] = Columns(self._T, device)
        found = self.sites[site]
        if found is None:
            found = self.sites[site] = self._empty(X.shape[1], device)
        found.update(self._group, X, self._values[device])
        if self.frequent is not None:
            self.frequent.update(site, X)
        if self.words is not None:
            self.words.update(site, X)

    def _empty(self, d: int, device: torch.device) -> Moments:
        try:
            return Moments.empty(self.groups, d, self.targets.sums.shape[1], device)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            raise InputError(
                f"out of memory for the statistics: {self.groups} groups of {d} × {d} numbers for each of {self.plan.sites} "
                "sites. Use fewer groups (groups=2, or 1), or a lower memory_gib."
            ) from error

    def _finish(self, device: torch.device) -> None:
        d = self.plan.blocks.width
        sites = [site or self._empty(d, device) for site in self.sites]  # a rank without a batch has nothing to add
        for site in sites:
            site.settle(self.targets)
        self.sites = list(sites)
        if world_size() > 1:
            more = [] if self.frequent is None else self.frequent.tensors(d)
            more += [] if self.words is None else [self.words.seen]
            all_reduce([*self.targets.tensors, *(t for site in sites for t in site.tensors), *more])
            if self.words is not None:
                self.words.sample.gather()


@dataclass(frozen=True)
class Run:
    """All that a pass needs but the model: the trained one and its untrained twin are measured alike."""

    plan: Plan
    task: Task
    pieces: Pieces
    batch_size: int
    device: torch.device
    progress: bool | Progress

    def measure(self, network: nn.Module) -> Measured:
        """One pass; the head of the model is left out where that is possible, since nobody looks at its scores."""
        body = body_of(network, self.plan.blocks.home)
        prefix = next(f"{name}." for name, module in network.named_modules() if module is body).removeprefix(".")
        names = tuple(name.removeprefix(prefix) for name in self.plan.blocks.names)
        inner = replace(self.plan, blocks=replace(self.plan.blocks, names=names))
        collecting = Pass(inner, max(self.pieces.groups) + 1)
        with probing_state(network, "running"):
            return collecting.run(
                body, self.task, self.pieces, batch_size=self.batch_size, device=self.device, progress=self.progress
            )


def tokens_wanted(width: int, task: TaskName) -> int:
    """How many tokens are read unless told: a hundred per feature, of which masked tasks use about 15 %."""
    return round(ENOUGH * width / (1 if task == "next" else MASKED_SHARE))


def affordable(groups: int | None, plan: Plan, memory_gib: float) -> tuple[int, str]:
    """How many groups the memory allows, and a note where that is fewer than the usual eight."""
    if not memory_gib > 0:
        raise InputError(f"memory_gib: expected a positive number of GiB, got {memory_gib}.")
    if groups is not None:
        if groups < 1:
            raise InputError(f"groups: expected at least 1, got {groups}.")
        return groups, ""
    d = plan.blocks.width
    one = 8 * plan.sites * d * ((d + 1) / 2 + sum(target.columns for target in plan.targets) + 1)
    fits = int(min(memory_gib * 2**30 // one, GROUPS))
    if fits >= GROUPS:
        return GROUPS, ""
    chosen = max(1, fits)
    what = "no held-out values and no standard errors" if chosen == 1 else f"{chosen} groups instead of {GROUPS}"
    return chosen, f"The statistics of one group take {one / 2**30:.2g} GiB: {what} (memory_gib={memory_gib:g})."
