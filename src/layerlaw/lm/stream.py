"""A pass over the text: every block's hidden states become second moments while the forward runs, and are forgotten.

The moments of a site are 4·g·d² bytes for g groups of documents: 22 GB for the 81 sites of a model of 70 billion parameters
(d = 8192) and one group. Where those of all sites do not fit memory_gib, the text is read several times, some of the sites
each time; what becomes of their moments is computed at once, and they are dropped.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import probing_state
from layerlaw.capture.plan import Plan, Site
from layerlaw.errors import CaptureError, InputError, PassError
from layerlaw.lm.anatomy import TokenPlaces
from layerlaw.lm.blocks import BlockStack, run
from layerlaw.lm.chosen_tokens import FrequentTokens, PicturedWords
from layerlaw.lm.lens import DOUBLE_BELOW, Lens
from layerlaw.lm.loss import LossSample
from layerlaw.lm.pieces import Pieces, batches
from layerlaw.lm.tasks import LanguageTask, Target, TokenBatch, sent
from layerlaw.measures.residual import Residual, prediction_residuals
from layerlaw.probing.shards import forward_along, own_share
from layerlaw.progress import Counter, Progress
from layerlaw.stats.moments import Columns, Moments, TargetMoments, worth_growing
from layerlaw.stats.precision import at_least_float32
from layerlaw.stats.ranks import all_reduce, look_at_others, rank, world_size

T = TypeVar("T")
Normalize = Literal["fresh", "none", "standardized"]
AT_ONCE = 4096  # tokens whose codes are added up at a time
TABLE = 1 << 28  # bytes of codes that are kept on a GPU


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
    """Of one batch, on one device: the rows that are used, what goes with them, and how many rows there are."""

    rows: Tensor
    columns: Columns
    count: int
    on_cpu: Tensor  # the rows again, so that to look at them does not wait for a GPU

    @cached_property
    def unused(self) -> Tensor:
        """The other rows."""
        others = torch.ones(self.count, dtype=torch.bool)
        others[self.on_cpu] = False
        return sent(others.nonzero().flatten(), self.rows.device)

    @cached_property
    def all_columns(self) -> Columns:
        """What goes with all rows: 0 where a row is not used."""
        return self.columns.among(self.rows, self.count)


class MomentPass:
    """The moments of one model over all pieces: of every site and of the targets, and the columns of each target."""

    def __init__(
        self,
        plan: TextPlan,
        groups: int,
        loss: LossSample | None = None,
        lens: Lens | None = None,
        only: Sequence[str] = (),
    ) -> None:
        self.plan, self.groups, self.loss, self.lens, self.which = plan, groups, loss, lens, ""
        self.names = list(only) or [site.name for site in plan.sites]  # of the sites whose moments are kept
        self.codes = [(target, target.codes()) for target in plan.targets]
        self.seen = {
            target.offset: torch.zeros(groups, len(code), dtype=torch.float64) for target, code in self.codes
        }  # how often each token was at each offset: all that the targets' own moments need
        self._tables: dict[torch.device, list[Tensor]] = {}
        self._here: dict[torch.device, BatchHere] = {}
        self._whole: set[torch.device] = set()  # where all rows were multiplied, used or not
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
        self._results: dict[str, tuple[Future[dict[str, Residual]], Future[float | None]]] = {}
        self._devices: list[torch.device] = []

    def begin(self, group: int, batch: TokenBatch, number: int = 0) -> None:
        """A new batch, the number-th of all: its rows and the tokens around them."""
        self._group, self._batch = group, batch
        # Prepared before the forward, while a GPU is still busy with the last batch.
        self._here = {device: self._on(device) for device in self._here}
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
        states = self.plan.places.of(hidden, self._batch.shape).reshape(-1, hidden.shape[-1])
        if device not in self._here:
            self._here[device] = self._on(device)
        here = self._here[device]
        kept = site.name in self.names
        if kept and site.name not in self.sites:
            self.sites[site.name] = self._empty(device)
        if kept and self._grows(states) and 2 * len(here.rows) > here.count:
            # Most rows are used: the others become 0, which is faster than to choose.
            self._whole.add(device)
            X = self.plan.normalized(states).index_fill_(0, here.unused, 0)
            self.sites[site.name].grow(self._group, X, here.all_columns, len(self.names))
            if self.frequent is None and self.words is None and self.lens is None:
                return
            X = X.index_select(0, here.rows)
        else:
            X = self.plan.normalized(states.index_select(0, here.rows))
            if kept and self._grows(states):
                self.sites[site.name].grow(self._group, X, here.columns, len(self.names))
            elif kept:
                self.sites[site.name].update(self._group, X, here.columns)
        if kept and self.frequent is not None:
            self.frequent.update(site.name, X, hidden.dtype)
        if self.words is not None:
            self.words.update(site.name, X)
        if self.lens is not None:
            self.lens.update(site.name, states, X)

    def _grows(self, states: Tensor) -> bool:
        return not self.plan.bare and worth_growing(states)

    def _on(self, device: torch.device) -> BatchHere:
        """The rows of the batch and the codes of the tokens around them; tokens travel faster than their codes."""
        if device not in self._tables:
            self._tables[device] = [code.to(device) if code.nbytes <= TABLE else code for _, code in self.codes]
        parts = []
        for (target, _), code in zip(self.codes, self._tables[device], strict=True):
            tokens = sent(self._batch.around[target.offset], code.device)
            parts.append(code[tokens].to(device).double())
        columns = Columns(torch.cat([*parts, torch.ones_like(parts[0][:, :1])], 1), device)
        here = BatchHere(sent(self._batch.rows, device), columns, math.prod(self._batch.shape), self._batch.rows)
        if device in self._whole:
            _ = here.unused, here.all_columns.thirds
        return here

    def _empty(self, device: torch.device) -> Moments:
        d = self.plan.blocks.width
        try:
            return Moments.empty(self.groups, d, self.targets.sums.shape[1], device)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            what = f"{self.groups} groups of {d} × {d} numbers for each of {len(self.names)} sites"
            why = f"out of memory for the statistics: {what}"
            raise InputError(f"{why}. Use fewer groups or a lower memory_gib.") from error

    def settle(self, device: torch.device) -> None:
        """End the pass and add up over ranks; one without a batch has nothing to add."""
        self._count_targets()
        self._here, self._tables = {}, {}  # their memory is free again
        names = self.names
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

    @property
    def devices(self) -> list[torch.device]:
        """Where the sites are."""
        return list(dict.fromkeys([*self._devices, *(moments.device for moments in self.sites.values())]))

    def residuals(self, site: str) -> dict[str, Residual]:
        """The prediction residuals of one site, by the name of their target."""
        if site in self._results:
            return self._results[site][0].result()
        how: Any = {"where": f"'{site}{self.which}'", "null_direction": self.plan.sums_to_zero}
        return prediction_residuals(self.sites[site], self.targets, self.columns, **how)

    def separation(self, site: str) -> float | None:
        """D of the frequent tokens at one site, where they are measured."""
        if site in self._results:
            return self._results[site][1].result()
        return None if self.frequent is None else self.frequent.separation(site)

    def condense(self) -> None:
        """What becomes of the moments, instead of them; an error is kept for whoever asks for its site."""
        self._devices = self.devices
        for site in self.names:
            self._results[site] = _tried(partial(self.residuals, site)), _tried(partial(self.separation, site))
            del self.sites[site]
            if self.frequent is not None:
                del self.frequent.sums[site], self.frequent.grams[site]

    def take(self, other: MomentPass) -> None:
        """The results of another pass over the same text, which measured other sites."""
        if not torch.equal(self.targets.counts, other.targets.counts):
            raise PassError(
                "text: expected the same tokens in every pass, got others. Measure with a larger memory_gib."
            )
        self._results |= other._results
        self._devices = list(dict.fromkeys([*self.devices, *other.devices]))
        self.tokens, self.seconds = self.tokens + other.tokens, self.seconds + other.seconds

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
    passes: tuple[tuple[str, ...], ...] = ()  # names of the sites of each, where one pass does not hold all of them

    def measure(
        self, network: nn.Module, loss: LossSample | None = None, lens: Lens | None = None, which: str = ""
    ) -> MomentPass:
        """Every batch of this rank through the model, then one all-reduce; `loss` looks at what comes out.

        Where there are several passes, loss, lens and words look at all sites in the first of them.
        """
        passes = self.passes or ((),)
        whole: MomentPass | None = None
        for number, names in enumerate(passes):
            plan = self.plan if number == 0 else replace(self.plan, words=None)
            beside = (loss, lens) if number == 0 else (None, None)
            found = MomentPass(plan, max(self.pieces.groups) + 1, *beside, names)
            found.which = which
            self._pass(network, found, "tokens" if len(passes) == 1 else f"tokens, pass {number + 1} of {len(passes)}")
            if len(passes) > 1:
                found.condense()
            if whole is not None:
                whole.take(found)
            whole = whole or found
        assert whole is not None
        return whole

    def _pass(self, network: nn.Module, found: MomentPass, label: str) -> None:
        plan, pieces, loss, lens = self.plan.capture(), self.pieces, found.loss, found.lens
        mine = own_share(list(batches(pieces, self.batch_size)), network)
        counter = Counter(self.progress, len(mine), label)
        started = time.perf_counter()
        all_sites = lens is not None or found.words is not None
        sites = [site for site in plan.sites if all_sites or site.name in found.names]
        with (
            probing_state(network, "running"),
            Capture(network, plan, sites, reduce=None, consume=found.consume) as capture,
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


def _tried(job: Callable[[], T]) -> Future[T]:
    """What a job gives, or its error for whoever asks."""
    found: Future[T] = Future()
    try:
        found.set_result(job())
    except Exception as error:
        found.set_exception(error)
    return found
