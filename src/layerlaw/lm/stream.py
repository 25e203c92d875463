"""One pass over the text: every block's hidden states become second moments while the forward runs, and are forgotten.

Of chosen tokens more is kept: D of the most frequent ones as classes, and pictures of words.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import probing_state
from layerlaw.capture.plan import Plan, Site
from layerlaw.errors import CaptureError, InputError
from layerlaw.lm.anatomy import TokenPlaces
from layerlaw.lm.blocks import BlockStack, run
from layerlaw.lm.lens import DOUBLE_BELOW, Lens
from layerlaw.lm.loss import LossSample
from layerlaw.lm.pieces import Pieces, batches
from layerlaw.lm.tasks import MASKED_SHARE, LanguageTask, Target, TaskName, TokenBatch
from layerlaw.lm.tokenizer import tokens_of
from layerlaw.measures.separation import separation_from_scatter
from layerlaw.progress import Counter, Progress
from layerlaw.stats import ClassSums, find_centers
from layerlaw.stats.moments import Columns, Moments, TargetMoments
from layerlaw.stats.plane import PlaneSample
from layerlaw.stats.precision import at_least_float32
from layerlaw.stats.ranks import all_reduce, look_at_others, rank, world_size

Normalize = Literal["fresh", "none", "standardized"]
GROUPS = 8  # of documents: enough for a standard error
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

    def normalized(self, X: Tensor) -> Tensor:
        """Rows as they are measured: a norm's trained factors do not change PR, so a bare one serves every block."""
        d, norm = (X.shape[-1],), self.blocks.norm
        if self.normalize == "none" or (self.normalize == "fresh" and norm == "none"):
            return X.double()  # single tokens may be ten thousand times larger than the rest
        if X.device.type == "cpu":
            X = X.double() if X.shape[-1] < DOUBLE_BELOW else at_least_float32(X)
        if self.normalize == "standardized":
            return F.layer_norm(X, d, eps=1e-12)
        return (F.rms_norm if norm == "rms" else F.layer_norm)(X, d, eps=self.blocks.eps)


class MomentPass:
    """The moments of one model over all pieces: of every site and of the targets, and the columns of each target."""

    def __init__(self, plan: TextPlan, groups: int, loss: LossSample | None = None, lens: Lens | None = None) -> None:
        self.plan, self.groups, self.loss, self.lens = plan, groups, loss, lens
        self.codes = [(target, target.codes()) for target in plan.targets]
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
        """A new batch, the number-th of all: its rows and the codes of the tokens around them."""
        self._group, self._index, self._shape = group, batch.rows, batch.shape
        self._rows: dict[torch.device, Tensor] = {}
        self._values: dict[torch.device, Columns] = {}
        Y = torch.cat([code[batch.around[target.offset]].double() for target, code in self.codes], 1)
        self.targets.update(group, Y)
        self._T = torch.cat([Y, torch.ones(len(Y), 1, dtype=torch.float64)], 1)
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
        if device not in self._rows:
            self._rows[device], self._values[device] = self._index.to(device), Columns(self._T, device)
        states = self.plan.places.of(hidden, self._shape).reshape(-1, hidden.shape[-1])
        X = self.plan.normalized(states.index_select(0, self._rows[device]))
        if site.name not in self.sites:
            self.sites[site.name] = self._empty(device)
        self.sites[site.name].update(self._group, X, self._values[device])
        if self.frequent is not None:
            self.frequent.update(site.name, X, hidden.dtype)
        if self.words is not None:
            self.words.update(site.name, X)
        if self.lens is not None:
            self.lens.update(site.name, states, X)

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
        mine = list(batches(pieces, self.batch_size))[rank() :: world_size()]
        counter = Counter(self.progress, len(mine), "tokens")
        started = time.perf_counter()
        with (
            probing_state(network, "running"),
            Capture(network, plan, plan.sites, reduce=None, consume=found.consume) as capture,
        ):
            for number, (group, members) in enumerate(mine):
                look_at_others()
                batch = self.task.batch([pieces.ids[i] for i in members], members)
                if len(batch.rows):
                    found.begin(group, batch, rank() + number * world_size())
                    if lens is not None:
                        lens.begin(group, batch, members)
                    inputs = batch.to(self.device).inputs_of(network)
                    output = run(capture, inputs, where=f"the {len(members)} pieces from {members[0]} on")
                    if loss is not None:
                        loss.update(output, batch, members)
                    del output  # its scores may be larger than all else
                    found.tokens += sum(len(pieces.ids[i]) for i in members)
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


@dataclass
class FrequentTokens:
    """The most frequent of the tokens that are predicted, as classes, and what D = Tr(SSw SSb⁺) needs at every site.

    That is the sums of each class (K, d) and the Gram matrix of all their states (d, d), since the class means are not known
    before the one pass over the text ends.
    """

    ids: Tensor
    counts: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    grams: dict[str, Moments] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64

    @classmethod
    def of(cls, counts: Tensor, classes: int) -> FrequentTokens:
        """By how often each token is to be predicted."""
        order = torch.argsort(counts, descending=True, stable=True)
        ids = order[: min(classes, int((counts > 1).sum()))].sort().values
        return cls(ids, torch.zeros(len(ids), dtype=torch.float64))

    def begin(self, tokens: Tensor) -> None:
        """The next tokens (n,) of a batch."""
        place = torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)
        self._rows = (self.ids[place] == tokens).nonzero().flatten()
        self._labels = place[self._rows]
        self.counts += torch.bincount(self._labels, minlength=len(self.ids))

    def update(self, site: str, X: Tensor, dtype: torch.dtype) -> None:
        """Normalized states (n, d) of one site, which came from the model in this dtype."""
        part = X.index_select(0, self._rows.to(X.device))
        if not len(part):
            return
        self._open(site, X.shape[1], X.device)
        self.dtype = dtype
        self.sums[site].index_add_(0, self._labels.to(X.device), part.double())
        self.grams[site].update(0, part, Columns(torch.ones(len(part), 1), X.device))

    def _open(self, site: str, d: int, device: torch.device) -> None:
        if site not in self.sums:
            self.sums[site] = torch.zeros(len(self.ids), d, dtype=torch.float64, device=device)
            self.grams[site] = Moments.empty(1, d, 0, device)

    def settle(self, sites: Sequence[str], d: int, device: torch.device) -> list[Tensor]:
        """End the pass; gives what is added up over ranks, where one that saw none of these tokens has zeros."""
        total = TargetMoments.empty(1, 0)
        total.counts += self.counts.sum()
        for site in sites:
            self._open(site, d, device)
            self.grams[site].settle(total)
        return [self.counts, *(t for site in sites for t in (self.sums[site], *self.grams[site].tensors))]

    def separation(self, site: str) -> float | None:
        """D of one site, of the classes that came; `None` where all means coincide."""
        came = self.counts > 0
        if int(came.sum()) < 2:
            return None
        sums = self.sums[site]
        sums, counts = sums[came.to(sums.device)], self.counts[came].to(sums.device)
        weighted = sums / counts.sqrt()[:, None]
        within = self.grams[site].squares()[0] - weighted.mT @ weighted  # n·SSw
        spread = within.diagonal().sum().clamp_min(0)
        centers = find_centers(ClassSums(counts, sums, spread, self.dtype))
        return float(separation_from_scatter(centers, within / counts.sum())) if int(centers.rank) else None


@dataclass
class PicturedWords:
    """The chosen words, the token that stands for each, and the samples kept so far."""

    names: tuple[str, ...]
    ids: Tensor
    sample: PlaneSample = field(repr=False)
    seen: Tensor = field(repr=False)  # how often each came

    @classmethod
    def of(cls, words: Sequence[str | int], tokenizer: Any, vocabulary: int) -> PicturedWords:
        """Words by name (one token each, with or without a blank before them), or token ids."""
        ids = []
        for word in words:
            if isinstance(word, bool) or not isinstance(word, (str, Integral)):
                raise InputError(f"words: expected words or token ids, got {word!r}.")
            ids.append(_single_token(word, tokenizer) if isinstance(word, str) else int(word))
        if wrong := [i for i in ids if not 0 <= i < vocabulary]:
            raise InputError(f"words: expected token ids 0 … {vocabulary - 1}, got {wrong[0]}.")
        if len(set(ids)) < len(ids):
            raise InputError(f"words: expected different words, got {', '.join(map(repr, words))}.")
        names = tuple(str(word).strip() for word in words)
        return cls(names, torch.tensor(ids), PlaneSample(len(ids)), torch.zeros(len(ids), dtype=torch.float64))

    def begin(self, tokens: Tensor, number: int) -> None:
        """The tokens (n,) at the rows of a batch, and which of all batches it is."""
        hits = tokens[:, None] == self.ids  # (n, words)
        self.seen += hits.sum(0)
        self._rows = hits.any(1).nonzero().flatten()
        self.sample.begin(hits[self._rows].long().argmax(1), number)

    def update(self, site: str, X: Tensor) -> None:
        """Normalized states (n, d) of one site."""
        if len(self._rows):
            self.sample.update(site, X.index_select(0, self._rows.to(X.device)))


def _single_token(word: str, tokenizer: Any) -> int:
    if tokenizer is None:
        raise InputError(f"words: expected token ids where there is no tokenizer, got {word!r}.")
    for spelling in (f" {word.strip()}", word.strip()):  # within a text a blank stands before a word
        ids = tokens_of(tokenizer, spelling, add_special_tokens=False)
        unknown = ids == [getattr(tokenizer, "unk_token_id", None)] and word.strip() != tokenizer.unk_token
        if len(ids) == 1 and not unknown:
            return int(ids[0])
    what = "which the tokenizer does not know" if unknown else f"which is {len(ids)}"
    raise InputError(f"words: expected words that are one token each, got {word!r}, {what}. Choose others.")
