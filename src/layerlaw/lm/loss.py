"""The model's own loss on some tokens: does it know such text, does the tokenizer belong to it, does it want a BOS?

The scores of all entries of a vocabulary take more memory than everything else, and nobody needs them at every token.
While a model is measured its head sees one place of each piece; what would have entered it at the chosen tokens is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerlaw.capture.modules import modules_of
from layerlaw.errors import LayerlawError
from layerlaw.lm.anatomy import TokenPlaces
from layerlaw.lm.blocks import explained
from layerlaw.lm.pieces import GOLDEN, Pieces, evenly
from layerlaw.lm.tasks import TokenBatch, token_inputs
from layerlaw.lm.weights import head_module, vocabulary_of, weight_count
from layerlaw.threads import users_device
from layerlaw.wording import counted

ENOUGH = 2048  # tokens: the mean is known to about a tenth of a nat
LEAST = 256  # tokens, however short the text
SHARE = 0.06  # of the work of the blocks: so much may the scores cost
AT_ONCE = 2**24  # scores that are held at a time
CONTEXT = 16  # tokens that are predicted in a piece, on average: of fewer no model can know much
CLEARLY = 0.5  # nats
BOS_PIECES, BOS_TOKENS = 4, 128  # pieces that are tried with and without a BOS, and tokens of each at most
BOS_SHARE = 0.03  # of the tokens that are measured: so many are tried
ROUNDED = 1e-2  # of the tolerance between two ways to the same scores: what their rounding is below
BOS_GAIN = 0.05  # a loss lower by this share, and in every piece, is no accident
# What configurations call the soft cap of the scores (Gemma, RecurrentGemma, xLSTM).
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


@dataclass(frozen=True)
class AfterHead:
    """What a model does with the scores of its head: nothing, a factor, or a soft cap."""

    factor: float = 1.0
    cap: float | None = None

    def __call__(self, scores: Tensor) -> Tensor:
        """The model's scores from those of its head."""
        if self.cap is not None:
            return self.cap * torch.tanh(scores / self.cap)
        return scores if self.factor == 1 else scores * self.factor

    def __str__(self) -> str:
        return f"soft cap {self.cap:g}" if self.cap is not None else "" if self.factor == 1 else f"× {self.factor:.4g}"


class Head:
    """The layer that gives the scores; as a context, it sees one place of each piece while the model runs.

    `last` is what would have entered it in the last forward, (batch, time, width). Where the model does more with the scores
    than a factor or a soft cap, or fails on fewer of them, the head is left alone, and the scores are those that the model
    returns (`spared` is False).
    """

    def __init__(self, model: nn.Module, name: str, after: AfterHead | None = None) -> None:
        self.name, self.after, self.spared = name, after, after is not None
        self.module = modules_of(model)[name] if name else None
        self.last: Tensor | None = None
        self._hook: Any = None
        self._cutting = True

    @classmethod
    def of(cls, model: nn.Module, inputs: Mapping[str, Any]) -> Head | None:
        """Found in two dry runs, one as the model is and one with the head spared; `None`: the model gives no scores."""
        name, entries = head_module(model), vocabulary_of(model)
        seen: list[tuple[Tensor, Tensor]] = []
        hook = None
        if name:
            hook = modules_of(model)[name].register_forward_hook(lambda m, args, out: seen.append((args[0], out)))
        try:
            with explained(inputs, "the dry run"):
                scores = first_scores(model(**inputs))
        except (LayerlawError, IndexError):  # found again, and told, where the blocks are looked for
            return None
        finally:
            if hook is not None:
                hook.remove()
        if scores is None or scores.shape[-1] not in (entries, seen[0][1].shape[-1] if seen else entries):
            return None  # the states of a model without a head, say
        if len(seen) != 1 or not all(isinstance(t, Tensor) and t.dim() == 3 for t in seen[0]):
            return cls(model, "")
        found = cls(model, name, _map_between(seen[0][1], scores, getattr(model, "config", None)))
        if found.spared:
            try:
                with torch.no_grad(), users_device(), found:
                    model(**inputs)
            except Exception:  # the model needs the scores of every place
                return cls(model, "")
        return found if found.spared else cls(model, "")

    def on(self, model: nn.Module) -> Head:
        """The same of another model of the same build."""
        return Head(model, self.name, self.after)

    def __enter__(self) -> Head:
        if self.spared and self.module is not None:
            self._hook = self.module.register_forward_pre_hook(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self.last = None

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not (self._cutting and self.spared) or not args or not isinstance(args[0], Tensor) or args[0].dim() != 3:
            return None
        self.last = args[0]
        return (args[0][:, :1], *args[1:])

    def own_scores(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor | None:
        """What the model itself returns, its head not spared."""
        with self.whole(), explained(inputs, "a trial of its scores"):
            return first_scores(model(**inputs))

    @contextmanager
    def whole(self) -> Iterator[None]:
        """In here the head sees all that enters it."""
        before, self._cutting = self._cutting, False
        try:
            yield
        finally:
            self._cutting = before

    @contextmanager
    def seeing(self) -> Iterator[list[Tensor]]:
        """In here what enters the head is kept, (batch, time, width) of every call."""
        seen: list[Tensor] = []
        if self.module is None:
            yield seen
            return

        def keep(_: nn.Module, args: tuple[Any, ...]) -> None:
            seen.extend(x for x in args[:1] if isinstance(x, Tensor) and x.dim() == 3)

        hook = self.module.register_forward_pre_hook(keep)
        try:
            yield seen
        finally:
            hook.remove()

    def confirm(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        """Leave the head alone where the scores of this text are not what it gives: a model may change them by its input."""
        with self.seeing() as seen:
            scores = self.own_scores(model, inputs)
        last = seen[-1] if seen else None
        if not self.spared or scores is None or last is None or last.shape[1] != scores.shape[1]:
            self.spared = False
            return
        mine = self._scores(last[0]).double()
        tolerance = 1e-3 if scores.dtype in (torch.float32, torch.float64) else 5e-2
        off = float((mine - scores[0].double()).abs().max())
        self.spared = not off > tolerance * float(scores.abs().max())  # what is not finite says nothing against it

    def rows(self, output: Any, batch: TokenBatch, places: TokenPlaces) -> Tensor | None:
        """Of every token (batch × time) of a forward that gave this output: what enters the head, or else its scores."""
        states = self.last if self.spared else first_scores(output)
        self.last = None
        if states is None or states.shape[0] != batch.shape[0] or states.shape[1] < batch.shape[1]:
            return None
        if tuple(states.shape[:2]) != batch.shape:
            states = places.of(states, batch.shape)
        return states.reshape(-1, states.shape[-1])

    def losses(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """−ln p (n,) of the tokens (n,) from such rows (n, d), as many scores at a time as memory is spent on."""
        wide = weight_count(self.module) // rows.shape[1] if self.spared and self.module is not None else rows.shape[1]
        many = max(1, AT_ONCE // max(1, wide))
        parts = zip(torch.split(rows, many), torch.split(tokens.to(rows.device), many), strict=True)
        with torch.no_grad():
            found = [F.cross_entropy(self._scores(part).float(), aim, reduction="none") for part, aim in parts]
        return torch.cat(found).double()

    def _scores(self, rows: Tensor) -> Tensor:
        if not self.spared or self.module is None or self.after is None:
            return rows
        with self.whole(), users_device():
            scores: Tensor = self.after(self.module(rows[None]))[0]
        return scores


def first_scores(output: Any) -> Tensor | None:
    """The scores (batch, time, entries) among what a model returns."""
    scores = getattr(output, "logits", output[0] if isinstance(output, (tuple, list)) and output else output)
    return scores if isinstance(scores, Tensor) and scores.dim() == 3 else None


def _map_between(before: Tensor, after: Tensor, config: Any) -> AfterHead | None:
    """What turns the head's output into the model's scores: nothing, a factor, or a soft cap; `None`: something else."""
    if before.shape != after.shape:
        return None
    tolerance = 1e-4 if after.dtype in (torch.float32, torch.float64) else 2e-2
    x, y = before.double(), after.double()
    factor = float((x * y).sum() / (x * x).sum().clamp_min(1e-300))
    cap = next((found for name in CAPS if (found := getattr(config, name, None))), None)
    maps = [AfterHead(), AfterHead(factor)]
    if isinstance(cap, (int, float)):
        maps.append(AfterHead(cap=cap))
    off = [float((m(x) - y).abs().max()) for m in maps]
    if off[0] <= ROUNDED * tolerance * float(y.abs().max()):  # a factor would fit its rounding
        return maps[0]
    best = min(range(len(maps)), key=off.__getitem__)  # small scores are hardly capped: several come near
    return maps[best] if off[best] <= tolerance * float(y.abs().max()) else None


@dataclass
class LossSample:
    """The loss on tokens spread evenly over those that are measured: every `step`-th one of a piece."""

    head: Head
    step: int
    places: TokenPlaces
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)
    sums: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))  # of −ln p, and how many
    failed: str = ""
    _totals: list[tuple[Tensor, int]] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def of(cls, head: Head, model: nn.Module, tokens: int, places: TokenPlaces, *, share: float = 1.0) -> LossSample:
        """So many of the tokens that the scores cost little beside the blocks; `share` of the tokens are predicted."""
        scoring = weight_count(head.module) if head.module is not None else 0
        blocks = max(1, weight_count(model) - 2 * scoring)
        afforded = SHARE * tokens * blocks / scoring if scoring else ENOUGH
        return cls(head, max(1, round(share * tokens / min(ENOUGH, max(LEAST, afforded)))), places)

    def update(self, output: Any, batch: TokenBatch, numbers: Sequence[int]) -> None:
        """The tokens of one forward over the pieces of these numbers; whatever fails must not cost the measurement."""
        chosen = every_nth(batch, numbers, self.step)
        try:
            rows = self.head.rows(output, batch, self.places)
            if rows is None or not len(chosen) or self.failed:
                return
            rows = rows.index_select(0, batch.rows[chosen].to(rows.device))
            told = batch.around[1][chosen]
            if self.head.spared:
                self.kept.append((rows, told))
            else:
                self._add(rows, told)
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"

    def settle(self) -> None:
        """Turn what is kept into losses, in one go: the weights of an offloaded head come once."""
        try:
            if self.kept and not self.failed:
                self._add(*(torch.cat(parts) for parts in zip(*self.kept, strict=True)))
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
        for total, count in self._totals:
            self.sums += torch.tensor([float(total), count], dtype=torch.float64)
        self.kept, self._totals = [], []

    def _add(self, rows: Tensor, told: Tensor) -> None:
        losses = self.head.losses(rows, told)
        self._totals.append((losses.sum(), len(losses)))  # where they are: to ask for a number would wait for the GPU

    @property
    def mean(self) -> float | None:
        """In nats per token; `None` where the model gave no scores of single tokens."""
        return float(self.sums[0] / self.sums[1]) if self.sums[1] and not self.failed else None


def every_nth(batch: TokenBatch, numbers: Sequence[int], step: int) -> Tensor:
    """Which rows of a batch of the pieces of these numbers stand at every `step`-th place of their piece.

    Where the first of them stands depends on the number of the piece alone, so that batches and ranks choose the same.
    """
    time = batch.shape[1]
    first = torch.tensor([int(number * GOLDEN % 1 * step) for number in numbers])
    return ((batch.rows % time + first[batch.rows // time]) % step == 0).nonzero().flatten()


def frequency_loss(counts: Tensor) -> float:
    """The same of a model that knows nothing but how often each token comes in this very text.

    >>> round(frequency_loss(torch.tensor([2, 1, 1, 0])), 4)  # 1.5 bits
    1.0397
    """
    p = counts[counts > 0].double() / counts.sum()
    return float(-(p * p.log()).sum())


def loss_note(loss: float | None, predicted: Tensor, pieces: int) -> str:
    """What a loss says that is clearly worse than that of frequencies; `predicted`: how often each token is predicted."""
    if loss is None:
        return ""
    if not math.isfinite(loss):
        return "The model's scores of tokens are not finite in this precision; its blocks are measured all the same."
    alone = frequency_loss(predicted)
    if loss < alone + CLEARLY or int(predicted.sum()) < CONTEXT * pieces:
        return ""
    gives = (
        f"how often each token comes gives {alone:.2f} by itself. Is it trained, and does this tokenizer belong to it?"
    )
    return f"The model's own loss on this text is {loss:.2f} nats per token; {gives}"


def bos_note(
    model: nn.Module,
    head: Head | None,
    bos: int | None,
    pieces: Pieces,
    device: torch.device,
    *,
    at_once: int = BOS_PIECES,
) -> str:
    """A sentence where a BOS that was not put lowers the loss clearly, in every one of several pieces; else nothing.

    Pieces that are tried have one length, so up to `at_once` of them go through the model in one forward.
    """
    if bos is None or pieces.front or head is None:
        return ""
    most = round(BOS_SHARE * pieces.tokens / (2 * BOS_PIECES))
    long = [i for i in evenly(len(pieces.ids)) if len(pieces.ids[i]) >= CONTEXT][:BOS_PIECES]
    if not long:
        return ""
    shortest = min(len(pieces.ids[i]) for i in long) - 1  # a model may have no place for one more
    size = min(shortest, max(CONTEXT, min(BOS_TOKENS, most)))
    plain = torch.stack([pieces.ids[i][:size] for i in long])
    led = torch.cat([torch.full((len(long), 1), bos, dtype=plain.dtype), plain], 1)
    try:
        without, put = (_mean_losses(model, head, ids.to(device), size - 2, at_once) for ids in (plain, led))
    except (LayerlawError, ValueError):  # a trial that fails costs nothing but its answer
        return ""
    before, after = float(without.mean()), float(put.mean())
    if not bool((put < without).all()) or after > (1 - BOS_GAIN) * before:
        return ""
    tried = f"the first {size} tokens of {counted(len(long), 'piece')}"
    better = f"with one the loss on {tried} is {after:.2f} instead of {before:.2f}"
    return f"No BOS was put in front, but {better}: this model wants it. Use bos=True (or --bos)."


def _mean_losses(model: nn.Module, head: Head, ids: Tensor, last: int, at_once: int) -> Tensor:
    """Mean −ln p of the last tokens of every piece: the first two only the version with a BOS could predict.

    By the scores that the model itself returns: a model may change them where it sees a BOS.
    """
    found, fitting = [], max(1, AT_ONCE // (ids.shape[1] * vocabulary_of(model)))
    for part in torch.split(ids, min(at_once, fitting)):
        scores = head.own_scores(model, token_inputs(model, part))
        if scores is None or scores.shape[1] < part.shape[1]:
            raise ValueError("no scores of single tokens")
        aims = part[:, -last:].to(scores.device).flatten()
        losses = F.cross_entropy(scores[:, -1 - last : -1].float().flatten(0, 1), aims, reduction="none")
        found.append(losses.reshape(len(part), last).mean(1))
    return torch.cat(found)
