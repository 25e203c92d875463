"""Lenses: what the model would predict if it ended at a block, read by its own final norm and head.

The logit lens reads every block's state as if it were the last one's. The linear lens first maps it to the last block's, by
least squares fitted on other documents. (The published tuned lens fits its map by gradient descent so that the predictions
come near the last ones in KL divergence; least squares comes near in the states, and needs moments alone.) Scores of all
entries of the vocabulary are held for a few hundred states at a time, whatever the text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from layerlaw.capture.hooks import Capture, hooked
from layerlaw.capture.modules import modules_of, tensors_in
from layerlaw.errors import InputError, check_choice, check_whole
from layerlaw.lm.anatomy import TokenPlaces
from layerlaw.lm.blocks import BlockStack, run
from layerlaw.lm.loss import AT_ONCE, Head, every_nth, first_scores
from layerlaw.lm.pieces import Pieces
from layerlaw.lm.tasks import TaskName, TokenBatch, predicted_share
from layerlaw.measures.lens import LensSums, lens_columns
from layerlaw.measures.residual import linear_map
from layerlaw.stats.moments import CrossMoments, Moments
from layerlaw.stats.precision import at_least_float32
from layerlaw.stats.ranks import all_reduce
from layerlaw.threads import users_device

if TYPE_CHECKING:
    from layerlaw.lm.stream import TextPlan

LensKind = Literal["logit", "linear"]
LEAST = 256  # tokens that are read at every block, however short the text
TOGETHER = 256  # states of a block that are read at a time: a product of fewer rows waits for the head's weights
DOUBLE_BELOW = 256  # width below which states are measured in float64
HELD_OUT = 0  # the group of documents that the linear lens is read on, and not fitted to
BARE = 0.1  # of the largest score: so far may scores of bare normalized states be off
LEAVE = "Leave lens out, or"


class _Call(NamedTuple):
    """A module that ran behind the last block: what it was given and what it gave, and when."""

    name: str
    entered: int
    left: int
    given: Tensor
    gave: Tensor


@dataclass(frozen=True)
class StateReader:
    """The modules that lead from the last block's state to the head's scores, and a factor before each of them."""

    steps: tuple[tuple[str, nn.Module, float], ...]
    head: Head
    entries: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: nn.Module, blocks: BlockStack, head: Head | None, inputs: Mapping[str, Any]) -> StateReader:
        """Found in a dry run: a way of modules, each of which takes what the one before has given."""
        if head is None:
            raise InputError(f"lens: expected a model that gives scores of tokens, got {type(model).__name__}.")
        if not head.spared:
            what = "a head whose finite scores the model returns as they are, times a factor, or softly capped"
            raise InputError(f"lens: expected {what}; {type(model).__name__} does otherwise. Leave lens out.")
        state, calls = _behind(model, blocks, head, inputs)
        goal = next((call.gave for call in calls if call.name == head.name), None)
        way = None if goal is None else _way(state, goal, calls)
        if goal is None or way is None:
            last = blocks.sites[-1].name
            between = f"nothing but modules in a row between '{last}' and the head '{head.name}'"
            cure = "measure the blocks that were found (blocks left out)" if blocks.named else "name other blocks"
            raise InputError(f"lens: expected {between}, found no such way. {LEAVE} {cure}.")
        modules = modules_of(model)
        steps = tuple((name, modules[name], factor) for name, factor in way)
        return cls(steps, head, goal.shape[-1], state.dtype)

    def scores(self, rows: Tensor) -> Tensor:
        """Scores (n, V) from states (n, d)."""
        x = rows.to(self.dtype)[None]
        with self.head.whole(), users_device():
            for _, module, factor in self.steps:
                at = next((p.device for p in module.parameters() if not p.is_meta), x.device)
                x = module((x if factor == 1 else x * factor).to(at))
        assert self.head.after is not None
        return self.head.after(x)[0]

    @torch.no_grad()
    def read(self, rows: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        """−ln p (n,) of the tokens (n,), and the most probable ones, from states (n, d); few scores at a time."""
        many = max(1, AT_ONCE // self.entries)
        losses, predicted = [], []
        for part, aim in zip(torch.split(rows, many), torch.split(told, many), strict=True):
            scores = at_least_float32(self.scores(part))
            top, first = scores.max(-1)
            right = scores.gather(1, aim.to(scores.device)[:, None])[:, 0]
            # Torch's cross entropy adds a whole vocabulary up in float32 one by one, which is off in the sixth digit.
            total = scores.sub_(top[:, None]).exp_().sum(-1).double()
            losses.append((total.log() + top.double() - right.double()).cpu())
            predicted.append(first.cpu())
        return torch.cat(losses), torch.cat(predicted)

    def confirm(
        self,
        model: nn.Module,
        blocks: BlockStack,
        places: TokenPlaces,
        batch: TokenBatch,
        bare: Callable[[Tensor], Tensor] | None,
    ) -> None:
        """Read from the last block, this text must have the model's own scores; also from its `bare` normalized state."""
        plan, kept = blocks.plan(embedding=False), list[Tensor]()
        capture = Capture(
            model, plan, plan.sites[-1:], reduce=None, consume=lambda _, hidden: kept.append(hidden.clone())
        )
        with self.head.whole(), capture:
            own = first_scores(run(capture, batch.inputs_of(model), where="a trial of the lens"))
        if own is None:
            raise InputError("lens: expected scores (batch, time, entries) of the model, got none. Leave lens out.")
        state = places.of(kept[-1], batch.shape)[0]
        own = (own if tuple(own.shape[:2]) == batch.shape else places.of(own, batch.shape))[0]
        near = 1e-3 if own.dtype in (torch.float32, torch.float64) else 5e-2
        tried = [(state, near, "the last block's states")]
        if bare is not None:  # in small states a norm's epsilon counts, and it is added twice
            tried.append((bare(state), BARE, "the same states under a bare norm, which the linear lens maps to"))
        with torch.no_grad():
            for rows, share, what in tried:
                off = float((self.scores(rows).double() - own.double().to(rows.device)).abs().max())
                if off > share * float(own.abs().max()):  # what is not finite says nothing against it
                    why = f"the final norm and the head make others of {what} (off by {off:.2g})"
                    raise InputError(f"lens: expected the model's own scores, but {why}. Leave lens out.")

    def __str__(self) -> str:
        steps = (f"{name}" if factor == 1 else f"× {factor:.4g}, {name}" for name, _, factor in self.steps)
        return ", ".join(filter(None, [*steps, str(self.head.after or "")]))


def _behind(model: nn.Module, blocks: BlockStack, head: Head, inputs: Mapping[str, Any]) -> tuple[Tensor, list[_Call]]:
    """The last block's state in a dry run, and all calls behind it of one tensor that give one."""
    plan, states, calls = blocks.plan(embedding=False), list[Tensor](), list[_Call]()
    clock, opened = itertools.count(), list[tuple[int, Tensor | None]]()

    def enter(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = list(tensors_in((args, kwargs))) if states else []
        opened.append((next(clock), given[0].clone() if len(given) == 1 else None))

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        entered, given = opened.pop()
        if given is not None and isinstance(output, Tensor):
            calls.append(_Call(name, entered, next(clock), given, output.clone()))

    def keep(_: object, hidden: Tensor) -> None:
        states.append(hidden.clone())

    capture = Capture(model, plan, plan.sites[-1:], reduce=None, consume=keep)
    with head.whole(), capture, hooked(model, modules_of(model), enter, leave):
        run(capture, inputs, where="the dry run")
    return states[-1], calls


def _way(state: Tensor, goal: Tensor, calls: Sequence[_Call], after: int = -1) -> list[tuple[str, float]] | None:
    """Calls one behind the other, the widest first, that make the goal of a state, and the factor before each."""
    fits = [(factor, call) for call in calls if call.entered > after and (factor := _factor(state, call.given))]
    for factor, call in sorted(fits, key=lambda fit: (fit[0] != 1, -fit[1].left)):
        if call.gave.shape == goal.shape and torch.equal(call.gave, goal):
            return [(call.name, factor)]
        if (rest := _way(call.gave, goal, calls, call.left)) is not None:
            return [(call.name, factor), *rest]
    return None


def _factor(x: Tensor, y: Tensor) -> float | None:
    """By which number x becomes y; `None` where that is none, or 0."""
    if x.shape != y.shape or x.device != y.device:
        return None
    if torch.equal(x, y):
        return 1.0
    a, b = x.double(), y.double()
    factor = float((a * b).sum() / (a * a).sum().clamp_min(1e-300))
    tolerance = 1e-5 if y.dtype in (torch.float32, torch.float64) else 2e-2
    near = float((factor * a - b).abs().max()) <= tolerance * float(b.abs().max())
    return factor if near and factor and math.isfinite(factor) else None


def tokens_read(tokens: float, sites: int) -> int:
    """How many tokens are read at every site, by default: so that it costs about what the head costs on all tokens."""
    return max(LEAST, round(tokens / sites))


def bytes_beside(plan: TextPlan, tokens: int, batch: int) -> int:
    """What the linear lens holds: a d×d matrix per site, the states of so many tokens that it reads, and of a batch."""
    d, sites = plan.blocks.width, len(plan.sites)
    return sites * d * (8 * d + (8 if d < DOUBLE_BELOW else 4) * (tokens + batch))


def check_lens(kind: LensKind | None, wanted: int | None, normalize: str, groups: int | None) -> None:
    """Answer what cannot be done, before a model is loaded."""
    if kind is not None:
        check_choice("lens", kind, get_args(LensKind))
    if wanted is not None:
        check_whole(1, kind=Integral, lens_tokens=wanted)
        if kind is None:
            raise InputError(f"lens_tokens: expected with lens='logit' or 'linear', got {wanted} without.")
    if kind == "linear" and groups == 1:
        why = "it is fitted on some documents and read on others"
        raise InputError(f"groups: expected at least 2 with lens='linear', got 1: {why}.")
    if kind == "linear" and normalize == "standardized":
        why = "the map leads to the state that the final norm reads"
        raise InputError(f"normalize: expected 'fresh' or 'none' with lens='linear', got 'standardized': {why}.")


def check_measured(kind: LensKind, task: TaskName, fits: TaskName, pieces: Pieces) -> None:
    """The head gives scores of what the model was trained to predict, and of nothing else; a map is fitted elsewhere."""
    if task != fits:
        raise InputError(
            f"lens: expected the task that the head was trained for, '{fits}', got '{task}'. Leave lens out."
        )
    if kind == "linear" and max(pieces.groups) == HELD_OUT:
        why = f"{len(pieces.ids)} piece of text makes one group, and the map is fitted on others than it is read on"
        raise InputError(f"text: expected at least 2 pieces with lens='linear': {why}. Pass a longer text.")


@dataclass
class Lens:
    """Tokens spread over the text (of the linear lens: over its first group), read at every site while the model runs.

    Of single tokens only the loss and the prediction are kept; of the linear lens also their states, until its map is
    known, and the states of one batch, until the last block gives what they are mapped to.
    """

    readout: StateReader
    kind: LensKind
    sites: tuple[str, ...]
    step: int
    null_direction: bool = False
    columns: dict[str, dict[str, float | None]] = field(default_factory=dict)
    sums: LensSums | None = None
    fitted: int = 0
    failed: str = ""

    @classmethod
    def of(
        cls, kind: LensKind, readout: StateReader, plan: TextPlan, pieces: Pieces, task: TaskName, wanted: int | None
    ) -> Lens:
        """So many tokens of each site; by default all sites together cost what the head costs on the whole text."""
        share = predicted_share(task)
        groups = zip(pieces.ids, pieces.groups, strict=True)
        tokens = share * sum(len(ids) for ids, group in groups if kind == "logit" or group == HELD_OUT)
        wanted = wanted or tokens_read(share * pieces.tokens, len(plan.sites))
        names = tuple(site.name for site in plan.sites)
        return cls(readout, kind, names, max(1, round(tokens / wanted)), plan.sums_to_zero)

    def __post_init__(self) -> None:
        self._told, self._pieces = list[Tensor](), list[Tensor]()
        self._waiting: dict[str, list[Tensor]] = {site: [] for site in self.sites}
        self._read: dict[str, list[tuple[Tensor, Tensor]]] = {site: [] for site in self.sites}
        self._kept: dict[str, list[Tensor]] = {site: [] for site in self.sites}
        self._batch: dict[str, Tensor] = {}
        self._cross: dict[str, CrossMoments] = {}

    @property
    def about(self) -> dict[str, Any]:
        """For the settings of a record."""
        tokens, pieces = (0, 0) if self.sums is None else (self.sums.tokens, self.sums.pieces)
        about: dict[str, Any] = {"kind": self.kind, "tokens": tokens, "pieces": pieces, "read_by": str(self.readout)}
        return about | ({"fitted_tokens": self.fitted} if self.kind == "linear" else {})

    @property
    def notes(self) -> list[str]:
        """What a reader of the columns has to know."""
        if self.failed or self.sums is None:
            return [f"The lens could not be read ({self.failed})."]
        if not self.sums.tokens:
            return ["The lens has read nothing: none of the tokens it would read is in this text. Raise lens_tokens."]
        empty = [site for site, values in self.columns.items() if None in (values.get(c) for c in self._losses)]
        told = "The lens has read no finite scores at {} in this precision"
        return [f"{told.format(', '.join(empty[:3]))}{' and others' * (len(empty) > 3)}."] if empty else []

    @property
    def _losses(self) -> tuple[str, ...]:
        return ("lens_loss", "linear_lens_loss")[: 1 + (self.kind == "linear")]

    def begin(self, group: int, batch: TokenBatch, numbers: Sequence[int]) -> None:
        """A new batch of the pieces of these numbers."""
        self._held_out = group == HELD_OUT
        used = self.kind == "logit" or self._held_out
        chosen = every_nth(batch, numbers, self.step) if used else torch.zeros(0, dtype=torch.long)
        self._chosen, self._rows = chosen, batch.rows[chosen]
        self._told.append(batch.around[1][chosen])
        self._pieces.append(torch.tensor(numbers)[self._rows // batch.shape[1]])

    def update(self, site: str, states: Tensor, X: Tensor) -> None:
        """The states (batch × time, d) of a site, and those that are measured (n, d) as they are measured."""
        if self.failed:
            return
        try:
            if len(self._chosen):
                self._waiting[site].append(states.index_select(0, self._rows.to(states.device)))
                if sum(map(len, self._waiting[site])) >= TOGETHER:
                    self._read_waiting(site)
            if self.kind == "linear" and self._held_out and len(self._chosen):
                self._kept[site].append(X.index_select(0, self._chosen.to(X.device)))
            elif self.kind == "linear" and not self._held_out:
                self._multiply(site, X)
        except Exception as error:  # whatever fails must not cost the measurement
            self._fail(error)

    @property
    def _tokens(self) -> int:
        return sum(map(len, self._told))

    def _fail(self, error: Exception) -> None:
        self.failed = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(".")
        self._batch.clear()

    def _read_waiting(self, site: str) -> None:
        if self._waiting[site]:
            rows = torch.cat(self._waiting[site])
            at = sum(len(losses) for losses, _ in self._read[site])
            self._read[site].append(self.readout.read(rows, torch.cat(self._told)[at : at + len(rows)]))
            self._waiting[site] = []

    def _multiply(self, site: str, X: Tensor) -> None:
        """Products with the last site's states, as soon as those are there."""
        self._batch[site] = X
        if site != self.sites[-1]:
            return
        for name, rows in self._batch.items():
            if name != site:
                if name not in self._cross:
                    self._cross[name] = CrossMoments.empty(rows.shape[1], X.shape[1], rows.device)
                self._cross[name].update(rows, X.to(rows.device))
        self._batch.clear()

    def settle(self, width: int, device: torch.device) -> list[Tensor]:
        """End the pass; gives what is added up over ranks."""
        self.sums = LensSums.empty(len(self.sites))
        try:
            for site in self.sites if not self.failed else ():
                self._read_waiting(site)
            if self._tokens and not self.failed:
                self.sums = self._sums(self._read)
        except Exception as error:
            self._fail(error)
        if self.failed:
            self.sums = LensSums.empty(len(self.sites), math.nan)
        tensors = self.sums.tensors
        for site in self.sites[:-1] if self.kind == "linear" else ():
            cross = self._cross.setdefault(site, CrossMoments.empty(width, width, device))
            cross.settle()
            tensors += cross.tensors
        return tensors

    def finish(self, moments: Mapping[str, Moments]) -> None:
        """The columns, once all is added up; `moments` of all sites, in groups of which the first is not fitted to."""
        assert self.sums is not None
        self.columns = lens_columns(self.sums, self.sites)
        if self.kind == "logit":
            return
        self.fitted = int(self._cross[self.sites[0]].n)
        mapped = LensSums.empty(len(self.sites), math.nan if self.failed else 0.0)
        try:
            if self._tokens and not self.failed:
                told = torch.cat(self._told)
                read = {site: [self._mapped(site, moments[site], told)] for site in self.sites[:-1]}
                mapped = self._sums({**read, self.sites[-1]: self._read[self.sites[-1]]})
        except Exception as error:
            self._fail(error)
            mapped = LensSums.empty(len(self.sites), math.nan)
        all_reduce(mapped.tensors)
        for site, values in lens_columns(mapped, self.sites, "linear_lens").items():
            self.columns[site] |= values

    def _mapped(self, site: str, moments: Moments, told: Tensor) -> tuple[Tensor, Tensor]:
        others = Moments(moments.packed[HELD_OUT + 1 :], moments.cross[HELD_OUT + 1 :])
        B, b = linear_map(others, self._cross.pop(site), null_direction=self.null_direction)
        rows = torch.cat(self._kept.pop(site)).to(B.device)
        return self.readout.read(rows.double() @ B + b, told)

    def _sums(self, read: Mapping[str, list[tuple[Tensor, Tensor]]]) -> LensSums:
        losses, predicted = (
            torch.stack([torch.cat([part[i] for part in read[s]]) for s in self.sites]) for i in (0, 1)
        )
        return LensSums.of(losses, predicted, torch.cat(self._told), torch.cat(self._pieces))
