"""What the model is asked, and as what its answer is written.

A task (the next token, masked tokens of encoders, masked spans of encoder-decoders) turns pieces into model inputs and says
which rows of hidden states are used and which tokens stand around them. A target is a function of one of these tokens, given
as a row of numbers for each token of the vocabulary.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from layerlaw.errors import InputError
from layerlaw.lm.weights import CLASSES_ELSEWHERE
from layerlaw.module_tree import class_of

TaskName = Literal["next", "masked", "span"]
MASKED_SHARE = 0.15
SPAN = 3  # mean length of a masked span, as T5 was trained
SKETCH = 256  # columns of the random sketch of one-hot targets
SHUFFLES = 8  # shuffled vocabularies

AGAINST_ITS_WAY = {  # by task, where another one fits the model
    "next": "The model reads both ways: the next token is among what it reads, so PR says how well it is copied.",
    "masked": "The model reads forward only: a masked token is predicted from what stands before it.",
}


def predicted_share(task: TaskName) -> float:
    """Of the tokens that are read, so many are predicted, about."""
    return 1.0 if task == "next" else MASKED_SHARE


def decides_classes(model: nn.Module) -> str:
    """A remark on a model that was trained to sort whole inputs into classes."""
    name = class_of(model).__name__
    if not re.search(r"For\w*Classification$", name):
        return ""
    return f"{name} decides about classes; here only its states of single tokens are measured. {CLASSES_ELSEWHERE}."


def token_inputs(model: nn.Module, ids: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
    """What the forward is called with: ids under the name it has for them, a mask where it knows one, no cache."""
    known = inspect.signature(model.forward).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in known.values())
    # A causal model without a mask needs none: padding stands behind the text, and nobody looks at its rows.
    masked = {"attention_mask": mask} if mask is not None and ("attention_mask" in known or anything) else {}
    cache = {"use_cache": False} if "use_cache" in known else {}
    name, first = "input_ids", next(iter(known.values()), None)
    if "input_ids" not in known and first is not None and first.kind is first.POSITIONAL_OR_KEYWORD:
        name = first.name  # of a plain model, whatever it is called
    return {name: ids, **masked, **cache}


@dataclass
class TokenBatch:
    """Inputs of one forward, the rows (of batch × time, flat) that are used, and the tokens at each offset (n,)."""

    inputs: dict[str, Any]
    rows: Tensor
    around: dict[int, Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        """Batch and time of the tokens whose states are used: a decoder's, where there is one."""
        ids = self.inputs.get("decoder_input_ids", self.inputs["input_ids"])
        return ids.shape[0], ids.shape[1]

    def inputs_of(self, model: nn.Module) -> dict[str, Any]:
        """As this model's forward wants to be called."""
        if "decoder_input_ids" in self.inputs:
            return self.inputs
        return token_inputs(model, self.inputs["input_ids"], self.inputs.get("attention_mask"))

    def to(self, device: torch.device) -> TokenBatch:
        """The same on a device."""
        move = {name: sent(v, device) if isinstance(v, Tensor) else v for name, v in self.inputs.items()}
        return TokenBatch(move, self.rows, self.around)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The same on a device; to a GPU by pinned memory, so that the processor need not wait until the GPU has come so far."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True)
class NextToken:
    """Every token of a piece that has all the wanted neighbors within it."""

    offsets: tuple[int, ...]
    pad: int = 0
    front: int = 0  # tokens before every piece: the last of them predicts the first of the text
    name: TaskName = "next"

    def batch(self, pieces: Sequence[Tensor], numbers: Sequence[int]) -> TokenBatch:
        """Right-padded ids; padding is masked and no row of it is used."""
        ids, mask = padded(pieces, self.pad)
        at = torch.arange(ids.shape[1])
        lengths = mask.sum(1, keepdim=True)
        fits = (
            (at + min(0, *self.offsets) >= 0) & (at + max(0, *self.offsets) < lengths) & (at >= self.front - 1)
        )  # (B, T)
        rows = fits.reshape(-1).nonzero().flatten()
        flat = ids.reshape(-1)
        return TokenBatch(_inputs(ids, mask), rows, {o: flat[rows + o] for o in self.offsets})


@dataclass(frozen=True)
class MaskedTokens:
    """A random 15 % of the tokens are replaced by the mask; they are what is predicted."""

    mask: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pad: int = 0
    seed: int = 0
    name: TaskName = "masked"

    def batch(self, pieces: Sequence[Tensor], numbers: Sequence[int]) -> TokenBatch:
        """The tokenizer's special tokens around every piece are never masked."""
        front, back = (torch.tensor(special, dtype=torch.long) for special in (self.before, self.after))
        ids, mask = padded([torch.cat([front, piece, back]) for piece in pieces], self.pad)
        chosen = torch.zeros_like(ids, dtype=torch.bool)
        for i, (piece, number) in enumerate(zip(pieces, numbers, strict=True)):
            draw = torch.rand(len(piece), generator=_generator(self.seed, number)) < MASKED_SHARE
            chosen[i, len(front) : len(front) + len(piece)] = draw
        rows = chosen.reshape(-1).nonzero().flatten()
        return TokenBatch(_inputs(torch.where(chosen, self.mask, ids), mask), rows, {1: ids.reshape(-1)[rows]})


@dataclass(frozen=True)
class Spans:
    """Spans of about three tokens are cut out and a sentinel left; the decoder predicts them, sentinel by sentinel."""

    sentinels: tuple[int, ...]
    start: int
    end: int | None
    pad: int = 0
    seed: int = 0
    name: TaskName = "span"

    def batch(self, pieces: Sequence[Tensor], numbers: Sequence[int]) -> TokenBatch:
        """The decoder reads what came before; rows before a sentinel are not used."""
        parts = [self.corrupted(piece, _generator(self.seed, n)) for piece, n in zip(pieces, numbers, strict=True)]
        sources, labels, real = zip(*parts, strict=True)
        ids, mask = padded(sources, self.pad)
        after, after_mask = padded(labels, self.pad)
        tokens, _ = padded(real, 0)
        before = torch.cat([torch.full((len(after), 1), self.start), after[:, :-1]], 1)
        rows = (tokens.bool() & after_mask.bool()).reshape(-1).nonzero().flatten()
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": before}
        return TokenBatch(inputs, rows, {1: after.reshape(-1)[rows]})

    def corrupted(self, piece: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """What the encoder reads, what the decoder predicts, and which of that are tokens of the text."""
        n = len(piece)
        spans = max(1, min(round(n * MASKED_SHARE / SPAN), len(self.sentinels), n // (2 * SPAN)))
        hidden = max(spans, round(n * MASKED_SHARE))
        lengths = _composition(hidden, spans, generator)
        gaps = _composition(n - hidden, spans, generator)
        source, label, real, at = [], [], [], 0
        for gap, length, sentinel in zip(gaps, lengths, self.sentinels, strict=False):
            source += [*piece[at : at + gap].tolist(), sentinel]
            label += [sentinel, *piece[at + gap : at + gap + length].tolist()]
            real += [0, *[1] * length]
            at += gap + length
        source += piece[at:].tolist() + ([self.end] if self.end is not None else [])
        return torch.tensor(source), torch.tensor(label), torch.tensor(real)


LanguageTask = NextToken | MaskedTokens | Spans


def task_for(
    name: TaskName,
    *,
    offsets: tuple[int, ...],
    tokenizer: Any,
    config: Any,
    mask_id: int | None,
    seed: int,
    front: int = 0,
) -> LanguageTask:
    """The task with the special tokens that this tokenizer and model have."""
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    if name == "next":
        return NextToken(offsets, pad, front)
    if set(offsets) != {1}:
        only = f"with the task '{name}' only what is masked can be predicted"
        raise InputError(f"targets: previous, current, next2 and words belong to next-token prediction; {only}.")
    if name == "masked":
        mask = mask_id if mask_id is not None else getattr(tokenizer, "mask_token_id", None)
        if mask is None:
            raise InputError("task 'masked': expected a tokenizer with a mask token, got none. Pass mask_id=….")
        return MaskedTokens(int(mask), *around(tokenizer), pad, seed)
    size, start = int(config.vocab_size), getattr(config, "decoder_start_token_id", None)
    sentinels = _named_sentinels(tokenizer) or tuple(range(size - 1, max(size - 101, size // 2), -1))
    start = start if start is not None else getattr(config, "pad_token_id", None) or 0
    return Spans(sentinels, int(start), getattr(config, "eos_token_id", None), pad, seed)


def check_task(task: TaskName | None, fits: TaskName) -> TaskName:
    """The task that is requested, or else the one that fits: spans are for encoder-decoders, and they for spans."""
    if task == "span" != fits:
        raise InputError("task 'span': expected an encoder-decoder, got a model with one stack of blocks. Use 'next'.")
    if task not in (None, "span") and fits == "span":
        raise InputError(f"task {task!r}: expected 'span' for an encoder-decoder, which predicts what was cut out.")
    return task or fits


def padded(pieces: Sequence[Tensor], pad: int) -> tuple[Tensor, Tensor]:
    """(B, T) ids with padding at the right, and where they are real."""
    ids = torch.nn.utils.rnn.pad_sequence(list(pieces), batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(piece) for piece in pieces])
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def _inputs(ids: Tensor, mask: Tensor) -> dict[str, Any]:
    """Without padding no mask: models then take their faster way."""
    return {"input_ids": ids} if bool(mask.all()) else {"input_ids": ids, "attention_mask": mask}


def _generator(seed: int, number: int) -> torch.Generator:
    """By the number of the piece, so that batches, groups and ranks draw the same."""
    return torch.Generator().manual_seed(seed * 1_000_003 + number)


def _composition(total: int, parts: int, generator: torch.Generator) -> list[int]:
    """A random way to write the total as a sum of so many positive numbers."""
    cuts = (torch.randperm(total - 1, generator=generator)[: parts - 1] + 1).sort().values.tolist() if total > 1 else []
    return [b - a for a, b in itertools.pairwise([0, *cuts, total])]


def around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that an encoder's tokenizer puts before and after a text."""
    ids = (getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "sep"))
    before, after = (() if i is None else (i,) for i in ids)
    return before, after


def unnamed_sentinels(tokenizer: Any) -> str:
    """A remark where nothing says which tokens stand for spans that are cut out."""
    if _named_sentinels(tokenizer):
        return ""
    return (
        "The tokenizer names no sentinels (<extra_id_0>, …): the last entries of the vocabulary (up to 100) stand for the "
        "spans that are cut out, as in T5. If the model was trained with others, these numbers mean little."
    )


def _named_sentinels(tokenizer: Any) -> tuple[int, ...]:
    if tokenizer is None:
        return ()
    if hasattr(tokenizer, "get_sentinel_token_ids") and (found := tokenizer.get_sentinel_token_ids()):
        return tuple(sorted(found, reverse=True))
    named = [tokenizer.convert_tokens_to_ids(f"<extra_id_{i}>") for i in range(100)]
    unknown = getattr(tokenizer, "unk_token_id", None)
    return tuple(i for i in named if i is not None and i != unknown)


@dataclass(frozen=True)
class Target:
    """A named target: codes (V, q) of the token `offset` steps away (1: the next)."""

    name: str
    offset: int
    codes: Callable[[], Tensor]
    about: str
    columns: int = 1


WORDS = {"next": "the next token", "masked": "the masked token", "span": "the hidden token"}


def targets_of(
    names: Sequence[str], vocabulary: int, embedding: Tensor | None, counts: Tensor, seed: int, task: str = "next"
) -> list[Target]:
    """The targets by name; "id" always comes first, since it costs nothing."""
    ids, what, shuffled = partial(_scaled, vocabulary), WORDS[task], f"each of {SHUFFLES} shuffled vocabularies"
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**40:
        raise InputError(f"seed: expected a whole number from 0 to 2**40, got {seed!r}.")
    table = torch.zeros(0, 0) if embedding is None else embedding.detach()
    all_known = (
        Target("id", 1, ids, f"{what}'s id"),
        Target("embedding", 1, lambda: table.float().cpu(), f"{what}'s row of the output embedding", table.shape[1]),
        Target("onehot", 1, partial(_sketch, vocabulary, seed), f"{what}, one-hot (random sketch)", SKETCH),
        Target("shuffled", 1, partial(_shuffled, vocabulary, seed), f"its id in {shuffled}", SHUFFLES),
        Target("rank", 1, partial(_ranks, counts), f"{what}'s frequency rank in this text"),
        Target("previous", -1, ids, "the previous token's id"),
        Target("current", 0, ids, "the token's own id"),
        Target("next2", 2, ids, "the id of the token after the next"),
    )
    known = {target.name: target for target in all_known}
    if wrong := [name for name in names if name not in known]:
        raise InputError(f"targets: expected some of {', '.join(known)}, got {', '.join(map(repr, wrong))}.")
    if "embedding" in names and embedding is None:
        expected = "expected a model with an output embedding (a language-model head), got one without"
        cure = "Load it with its head (AutoModelForCausalLM, AutoModelForMaskedLM), or leave this target out"
        raise InputError(f"target 'embedding': {expected}. {cure}.")
    return [known[name] for name in dict.fromkeys(["id", *names])]


def _scaled(vocabulary: int) -> Tensor:
    """Ids in −½ … ½: PR does not change with scale and shift, and sums stay small."""
    return ((torch.arange(vocabulary, dtype=torch.float64) + 0.5) / vocabulary - 0.5)[:, None]


def _sketch(vocabulary: int, seed: int) -> Tensor:
    """Random signs: E‖Sᵀ(y − ŷ)‖² = ‖y − ŷ‖² for one-hot y, so the sums over columns estimate the one-hot sums."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (vocabulary, SKETCH), generator=generator).float() * 2 - 1


def _shuffled(vocabulary: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(vocabulary, generator=generator) for _ in range(SHUFFLES)]
    return torch.cat([_scaled(vocabulary)[order] for order in orders], 1)


def _ranks(counts: Tensor) -> Tensor:
    """0 for the most frequent token of the text, 1 for the next …; equal counts in the order of the ids."""
    order = torch.argsort(counts, descending=True, stable=True)
    ranks = torch.empty(len(counts), dtype=torch.float64)
    ranks[order] = torch.arange(len(counts), dtype=torch.float64)
    seen = max(1, int((counts > 0).sum()))
    return (ranks / seen - 0.5)[:, None]
