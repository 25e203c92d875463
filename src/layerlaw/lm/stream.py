"""One pass over the text: every block's hidden states become second moments while the forward runs, and are forgotten."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import probing_state
from layerlaw.capture.plan import Plan, Site
from layerlaw.errors import CaptureError, InputError
from layerlaw.lm.anatomy import TokenPlaces
from layerlaw.lm.blocks import BlockStack, run
from layerlaw.lm.chosen_tokens import FrequentTokens, PicturedWords
from layerlaw.lm.lens import DOUBLE_BELOW, Lens
from layerlaw.lm.loss import LossSample
from layerlaw.lm.pieces import Pieces, batches
from layerlaw.lm.tasks import MASKED_SHARE, LanguageTask, Target, TaskName, TokenBatch
from layerlaw.probing.shards import forward_along, own_share
from layerlaw.progress import Counter, Progress
from layerlaw.stats.moments import Columns, Moments, TargetMoments, WaitingSites
from layerlaw.stats.precision import at_least_float32
from layerlaw.stats.ranks import all_reduce, look_at_others, rank, world_size

Normalize = Literal["fresh", "none", "standardized"]
GROUPS = 8  # of documents: enough for a standard error
AT_ONCE = 4096  # tokens whose codes are added up at a time
TABLE = 1 << 28  # bytes of codes that are kept on a GPU
ENOUGH = 100  # tokens per feature: from about here on the correlation is stable


@dataclass(frozen=True)
class TextPlan:
    """What is measured; what enters the first block is a site too where the blocks are all of their list."""

    blocks: BlockStack
    targets: tuple[Target, ...]
    normalize: Normalize = "fresh"
    places: TokenPlaces = field(default_factory=TokenPlaces)
    frequent: FrequentTokens | None = None
    words: PicturedWords | None = None

    def capture(self) -> Plan:
        """The sites, for capture."""
        return self.blocks.plan(embedding=self.blocks.whole)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The embedded tokens and the blocks behind them."""
        return self.capture().sites

    @property
    def sums_to_zero(self) -> bool:
        """Whether the features of a token add up to 0, so that one of them says nothing new."""
        return self.normalize == "standardized" or (self.normalize == "fresh" and self.blocks.norm == "layer")

    @property
    def bare(self) -> bool:
        """Whether states are measured without a norm."""
        return self.normalize == "none" or (self.normalize == "fresh" and self.blocks.norm == "none")

    def normalized(self, X: Tensor) -> Tensor:
        """Rows as they are measured: a norm's trained factors do not change PR, so a bare one serves every block."""
        d, norm = (X.shape[-1],), self.blocks.norm
        if self.bare:
            return X.double()  # single tokens may be ten thousand times larger than the rest
        if X.device.type == "cpu":
            X = X.double() if X.shape[-1] < DOUBLE_BELOW else at_least_float32(X)
        if self.normalize == "standardized":
            return F.layer_norm(X, d, eps=1e-12)
        return (F.rms_norm if norm == "rms" else F.layer_norm)(X, d, eps=self.blocks.eps)


@dataclass(frozen=True)
class BatchHere:
    """Of one batch, on one device: the rows that are used, what goes with them, and the sites that wait for a product."""

    rows: Tensor
    columns: Columns
    waiting: WaitingSites


class MomentPass:
    """The moments of one model over all pieces: of every site and of the targets, and the columns of each target."""

    def __init__(self, plan: TextPlan, groups: int, loss: LossSample | None = None, lens: Lens | None = None) -> None:
        self.plan, self.groups, self.loss, self.lens = plan, groups, loss, lens
        self.codes = [(target, target.codes()) for target in plan.targets]
        self.seen = {
            target.offset: torch.zeros(groups, len(code), dtype=torch.float64) for target, code in self.codes
        }  # how often each token was at each offset: all that the targets' own moments need
        self._tables: dict[torch.device, list[Tensor]] = {}
        self.columns: dict[str, slice] = {}
        at = 0
        for target, code in self.codes:
            width = code.shape[1]
            if target.name == "shuffled":  # every shuffled vocabulary is a target of its own
                self.columns |= {f"shuffled_{i + 1}": slice(at + i, at + i + 1) for i in range(width)}
            else:
                self.columns[target.name] = slice(at, at + width)
            at += width
        self.targets = TargetMoments.empty(groups, at)
        self.sites: dict[str, Moments] = {}
        self.frequent, self.words = copy.deepcopy((plan.frequent, plan.words))  # which have seen nothing yet
        self.tokens, self.seconds = 0, 0.0

    def begin(self, group: int, batch: TokenBatch, number: int = 0) -> None:
        """A new batch, the number-th of all: its rows and the tokens around them."""
        self._group, self._batch = group, batch
        self._here: dict[torch.device, BatchHere] = {}
        for offset, seen in self.seen.items():
            seen[group] += torch.bincount(batch.around[offset], minlength=seen.shape[1])
        if self.frequent is not None:
            self.frequent.begin(batch.around[1])
        if self.words is not None:
            self.words.begin(batch.around[0], number)

    def consume(self, site: Site, hidden: Tensor) -> None:
        """The hidden states (B, T, d) of one block."""
        if hidden.dim() != 3 or hidden.shape[-1] != site.features:
            came = tuple(hidden.shape)
            raise CaptureError(f"'{site.name}': expected hidden states (batch, time, {site.features}), got {came}.")
        device = hidden.device
        if device not in self._here:
            self._here[device] = self._on(device)
        here = self._here[device]
        states = self.plan.places.of(hidden, self._batch.shape).reshape(-1, hidden.shape[-1])
        if site.name not in self.sites:
            self.sites[site.name] = self._empty(device)
        if self._together(states):
            X = here.waiting.add(self.sites[site.name], self.plan.normalized(states), here.rows)
        else:
            X = self.plan.normalized(states.index_select(0, here.rows))
            self.sites[site.name].update(self._group, X, here.columns)
        if self.frequent is not None:
            self.frequent.update(site.name, X, hidden.dtype)
        if self.words is not None:
            self.words.update(site.name, X)
        if self.lens is not None:
            self.lens.update(site.name, states, X)

    def _together(self, states: Tensor) -> bool:
        """Whether several sites share a product; a linear lens keeps the rows of all sites, which would be overwritten."""
        linear = self.lens is not None and self.lens.kind == "linear"
        return not linear and not self.plan.bare and WaitingSites.worth(states)

    def _on(self, device: torch.device) -> BatchHere:
        """The rows of the batch and the codes of the tokens around them; tokens travel faster than their codes."""
        if device not in self._tables:
            self._tables[device] = [code.to(device) if code.nbytes <= TABLE else code for _, code in self.codes]
        parts = []
        for (target, _), code in zip(self.codes, self._tables[device], strict=True):
            tokens = self._batch.around[target.offset].to(code.device)
            parts.append(code[tokens].to(device).double())
        columns = Columns(torch.cat([*parts, torch.ones_like(parts[0][:, :1])], 1), device)
        waiting = WaitingSites(self._group, columns, len(self.plan.sites))
        return BatchHere(self._batch.rows.to(device), columns, waiting)

    def end(self) -> None:
        """The batch has gone through the model: what waits is added up."""
        for here in self._here.values():
            here.waiting.finish()

    def _empty(self, device: torch.device) -> Moments:
        d = self.plan.blocks.width
        try:
            return Moments.empty(self.groups, d, self.targets.sums.shape[1], device)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            what = f"{self.groups} groups of {d} × {d} numbers for each of {len(self.plan.sites)} sites"
            why = f"out of memory for the statistics: {what}"
            raise InputError(f"{why}. Use fewer groups or a lower memory_gib.") from error

    def settle(self, device: torch.device) -> None:
        """End the pass and add up over ranks; one without a batch has nothing to add."""
        self._count_targets()
        self._here, self._tables = {}, {}  # their memory is free again
        names = [site.name for site in self.plan.sites]
        self.sites = {name: self.sites.get(name) or self._empty(device) for name in names}
        for moments in self.sites.values():
            moments.settle(self.targets)
        more = [] if self.frequent is None else self.frequent.settle(names, self.plan.blocks.width, device)
        if self.loss is not None:
            self.loss.settle()
            more += [self.loss.sums]
        more += [] if self.lens is None else self.lens.settle(self.plan.blocks.width, device)
        if world_size() > 1:
            more += [] if self.words is None else [self.words.seen]
            all_reduce([*self.targets.tensors, *(t for site in self.sites.values() for t in site.tensors), *more])
            if self.words is not None:
                self.words.sample.gather()
        if self.lens is not None:
            self.lens.finish(self.sites)

    def _count_targets(self) -> None:
        """Counts, sums and sums of squares of the targets, from how often each token was seen."""
        self.targets.counts += next(iter(self.seen.values())).sum(1)
        at = 0
        for target, code in self.codes:
            seen = self.seen[target.offset]
            for ids in torch.split(seen.sum(0).nonzero().flatten(), AT_ONCE):
                Y, times = code[ids].double(), seen[:, ids]
                self.targets.sums[:, at : at + Y.shape[1]] += times @ Y
                self.targets.squares[:, at : at + Y.shape[1]] += times @ Y.square()
            at += code.shape[1]


@dataclass(frozen=True)
class TextRun:
    """All that a pass needs but the model: the trained one and its untrained twin are measured alike."""

    plan: TextPlan
    task: LanguageTask
    pieces: Pieces
    batch_size: int
    device: torch.device
    progress: bool | Progress

    def measure(self, network: nn.Module, loss: LossSample | None = None, lens: Lens | None = None) -> MomentPass:
        """Every batch of this rank through the model, then one all-reduce; `loss` looks at what comes out."""
        plan, pieces = self.plan.capture(), self.pieces
        found = MomentPass(self.plan, max(pieces.groups) + 1, loss, lens)
        mine = own_share(list(batches(pieces, self.batch_size)), network)
        counter = Counter(self.progress, len(mine), "tokens")
        started = time.perf_counter()
        with (
            probing_state(network, "running"),
            Capture(network, plan, plan.sites, reduce=None, consume=found.consume) as capture,
        ):
            for number, (group, members) in enumerate(mine):
                look_at_others()
                batch = self.task.batch([pieces.ids[i] for i in members], members)
                if group is not None and len(batch.rows):
                    found.begin(group, batch, rank() + number * world_size())
                    if lens is not None:
                        lens.begin(group, batch, members)
                    inputs = batch.to(self.device).inputs_of(network)
                    output = run(capture, inputs, where=f"the {len(members)} pieces from {members[0]} on")
                    found.end()
                    if loss is not None:
                        loss.update(output, batch, members)
                    del output  # its scores may be larger than all else
                    found.tokens += sum(len(pieces.ids[i]) for i in members)
                else:
                    forward_along(network, **batch.to(self.device).inputs_of(network))
                counter.step(f"{found.tokens / (time.perf_counter() - started):,.0f} tokens/s")
        counter.close()
        found.settle(self.device)
        found.seconds = time.perf_counter() - started
        return found


def tokens_wanted(width: int, task: TaskName) -> int:
    """How many tokens are read by default: a hundred per feature, of which masked tasks use about 15 %."""
    return round(ENOUGH * width / (1 if task == "next" else MASKED_SHARE))


def affordable(groups: int | None, plan: TextPlan, memory_gib: float, beside: int = 0) -> tuple[int, str]:
    """How many groups the memory allows, and a note where that is fewer than the usual eight.

    `beside`: bytes that a linear lens takes, which needs two groups.
    """
    if not memory_gib > 0:
        raise InputError(f"memory_gib: expected a positive number of GiB, got {memory_gib}.")
    if groups is not None:
        return groups, ""
    d = plan.blocks.width
    one = 8 * len(plan.sites) * d * ((d + 1) / 2 + sum(target.columns for target in plan.targets) + 1)
    chosen = max(1, int(min((memory_gib * 2**30 - beside) // one, GROUPS)))
    if beside and chosen < 2:
        takes = f"{beside / 2**30:.2g} GiB beside {2 * one / 2**30:.2g} GiB for two groups of documents"
        cure = "Raise it, lower batch_size or lens_tokens, or use lens='logit'"
        raise InputError(f"memory_gib: the linear lens takes {takes}, got {memory_gib:g}. {cure}.")
    if chosen == GROUPS:
        return GROUPS, ""
    what = "no held-out values and no standard errors" if chosen == 1 else f"{chosen} groups instead of {GROUPS}"
    return chosen, f"The statistics of one group take {one / 2**30:.2g} GiB: {what} (memory_gib={memory_gib:g})."


def check_enough(counts: Tensor, width: int, task: str, *, tokens: int | None, length: int) -> None:
    """A regression on d features with n ≤ d+1 rows explains everything and says nothing; `counts`: rows of every group."""
    n = int(counts.sum())
    least = int((counts.sum() - counts).min()) if len(counts) > 1 else n
    if n == 0 and task == "next":
        expected = "expected pieces in which a token has all the neighbors that are needed"
        raise InputError(f"length: {expected}, got none in pieces of {length}. Use longer ones.")
    if n <= width + 1:
        share = " (about 15 % of the tokens are masked)" if task != "next" else ""
        cure = "Pass a longer text" if tokens is None else f"Use more than tokens={tokens}"
        cure += "; 20 per feature are the least for numbers to trust, 100 are good"
        raise InputError(f"text: expected more predicted tokens than features, got {n} for {width}{share}. {cure}.")
    if least <= width + 1:
        cure = "Pass a longer text, or groups=1 (no held-out values)"
        raise InputError(f"groups: leaving one group out leaves {least} tokens for {width} features. {cure}.")
