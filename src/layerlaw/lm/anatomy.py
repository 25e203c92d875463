"""What a language model is: its longest piece, the task that fits, where the state of a token stands."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.hooks import Capture
from layerlaw.capture.plan import Site
from layerlaw.errors import CaptureError
from layerlaw.lm.blocks import NO_MEMORY, BlockStack, run
from layerlaw.lm.tasks import TaskName, token_inputs
from layerlaw.lm.weights import is_spread, vocabulary_of

DRY_TOKENS = 7  # of a piece in the dry run
CHANGED, NEAR = 4, 3  # tokens that are changed to see who reads them, and states right before them
UNREAD = 1e-5  # of a state: later tokens that change less only change the order of sums (a convolution by FFT)
ABOVE_NOISE = 10
# Names of the longest text in configurations; the second only where there is none of the first.
LENGTHS = (("max_position_embeddings", "n_positions"), ("block_size", "max_seq_len", "n_ctx"))


def dry_inputs(model: nn.Module, device: torch.device) -> dict[str, Any]:
    """A few tokens to run the model on."""
    ids = torch.arange(2 * DRY_TOKENS, device=device).reshape(2, DRY_TOKENS).remainder(vocabulary_of(model))
    inputs = token_inputs(model, ids)
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = ids[:, :5]
    return inputs


def longest_piece(model: nn.Module, called: Collection[str] | None = None) -> int | None:
    """How many tokens of a text the model can read at once, where it says so; `called`: modules that a text goes through."""
    config: Any = getattr(model, "config", None)
    if callable(getattr(config, "get_text_config", None)):  # of a model that also reads images, say
        config = config.get_text_config(decoder=False)
    for names in LENGTHS:
        places = [getattr(config, name, None) for name in names]
        if known := [n for n in places if isinstance(n, int) and n > 1]:
            break
    own = getattr(model, "context", None)
    known += [own] if isinstance(own, int) and own > 1 else []
    for name, module in model.named_modules():
        reads_text = called is None or name in called
        if reads_text and isinstance(module, nn.Embedding) and "position" in name and "relative" not in name:
            used = (module.padding_idx + 1) if module.padding_idx is not None else 0  # some keep places for padding
            known += [module.num_embeddings - used] if module.num_embeddings > used else []
            break
    return min(known, default=None)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model reads with one stack of blocks and predicts with another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def task_of(
    model: nn.Module, blocks: BlockStack, device: torch.device, shift: int = 0, *, length: int = 16
) -> TaskName:
    """Which task fits: spans for an encoder-decoder; masked tokens where a later token changes an earlier state.

    What other pieces of a batch do to a state is rounding (or a scale that the batch shares), whatever the dtype; a later
    token that does much more than they do is read.
    """
    if is_encoder_decoder(model):
        return "span"
    size = vocabulary_of(model)
    time = min(16, max(length, DRY_TOKENS))
    generator = torch.Generator().manual_seed(0)
    # Padding has a low number, and may hide a token.
    text, beside, others = torch.randint(size // 2, size, (3, time), generator=generator)
    later = text.clone()
    later[-CHANGED:] = (text[-CHANGED:] - size // 2 + torch.arange(CHANGED)) % size
    end = shift + time - CHANGED
    near = slice(max(shift, end - NEAR), end)
    pairs = ((text, beside), (text, others), (later, beside))
    plain, noisy, changed = (_states(model, blocks, torch.stack(p).to(device))[-1][0, near].double() for p in pairs)
    size_of = plain.norm(dim=-1).clamp_min(1e-30)
    noise, effect = (float(((other - plain).norm(dim=-1) / size_of).median()) for other in (noisy, changed))
    return "masked" if effect > max(UNREAD, ABOVE_NOISE * noise) else "next"


class _Answered(BaseException):
    """Ends a forward whose first block has given what was asked for; no error, and not to be caught by a model."""


def _states(model: nn.Module, blocks: BlockStack, ids: Tensor, *, first: bool = False) -> list[Tensor]:
    """What the blocks give; `first`: the forward ends behind the first of them."""
    seen: list[Tensor] = []

    def keep(_: Site, hidden: Tensor) -> None:
        seen.append(hidden)
        if first:
            raise _Answered

    plan = blocks.plan(embedding=False)
    with Capture(model, plan, plan.sites, reduce=None, consume=keep) as capture, suppress(_Answered):
        run(capture, token_inputs(model, ids), where="the dry run")
    return seen


def _may_stop(model: nn.Module, blocks: BlockStack) -> bool:
    """Whether a trial of a long piece may end behind the first block: the model says how long a piece may be, and nothing
    that others have hung on it (offloaded weights, say) waits for the end of a forward.
    """
    waiting = is_spread(model) or any(module._forward_hooks for module in model.modules())
    return not waiting and longest_piece(model, blocks.called) is not None


@dataclass(frozen=True)
class TokenPlaces:
    """The state of a piece's first token stands at `shift`; `longer`: there may be more states than tokens.

    `most`: the longest piece that the model ran on, where it `failed` on one as long as was wanted.
    """

    shift: int = 0
    longer: bool = False
    most: int | None = None
    failed: str = ""

    def of(self, hidden: Tensor, shape: tuple[int, int]) -> Tensor:
        """The states (B, T, d) of the tokens (B, T) of the text."""
        batch, time = shape
        if not self.longer and tuple(hidden.shape[:2]) == shape:
            return hidden
        if not self.longer or hidden.shape[0] != batch or hidden.shape[1] < self.shift + time:
            expected = f"expected a state of each token ({batch} pieces of {time}), got {tuple(hidden.shape)}"
            raise CaptureError(f"{expected}, unlike in the dry run. Use another length, or name other blocks.")
        return hidden[:, self.shift : self.shift + time]


def places_of(model: nn.Module, blocks: BlockStack, device: torch.device, length: int) -> TokenPlaces:
    """Compare states with tokens, also of a piece as long as they will be; where there are more, see which are theirs."""
    inputs = dry_inputs(model, device)
    read = tuple(next(iter(inputs.values())).shape)
    predicted = tuple(inputs["decoder_input_ids"].shape) if is_encoder_decoder(model) else read
    if read != predicted == blocks.seen:
        return TokenPlaces()
    if blocks.seen == read != predicted:
        decoder = "blocks of the decoder, which predicts what was cut out"
        raise CaptureError(f"blocks: expected {decoder}, got '{blocks.home}' of the encoder.")
    if blocks.seen == predicted[::-1]:
        expected = f"expected hidden states (batch, time, width) for ids of shape {predicted}, got {blocks.seen}"
        why = "blocks with time along axis 0 are not supported. Wrap the model so that batches come first"
        raise CaptureError(f"'{blocks.home}': {expected}: {why}.")
    if blocks.seen[0] == predicted[0] and blocks.seen[1] >= predicted[1]:
        try:
            places = _tried(model, blocks, device, _odd(length))
        except CaptureError as error:
            if error.__cause__ is None or str(error).startswith(NO_MEMORY):
                raise
            cause = error.__cause__
            failed = f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
            length = _longest_that_runs(model, blocks, device, length)
            places = _tried(model, blocks, device, _odd(length))
            places = places and replace(places, most=length, failed=failed)
        if places is not None:
            return places
    came = f"got states {blocks.seen} for tokens {predicted} (batch, time)"
    why = "Blocks that join or split tokens cannot be measured; name others (blocks, or --blocks)"
    raise CaptureError(f"'{blocks.home}': expected one state of each token, {came}. {why}.")


def _odd(length: int) -> int:
    """No multiple of what models pad to."""
    return length - 1 + length % 2


def _longest_that_runs(model: nn.Module, blocks: BlockStack, device: torch.device, length: int) -> int:
    """The longest piece that the model does not fail on, between that of the dry run and one that it has failed on."""
    runs, fails = DRY_TOKENS, length
    while fails - runs > 1:
        middle = (runs + fails) // 2
        try:
            _states(model, blocks, torch.arange(middle, device=device)[None].remainder(vocabulary_of(model)))
            runs = middle
        except CaptureError:
            fails = middle
    return runs


def _tried(model: nn.Module, blocks: BlockStack, device: torch.device, tokens: int) -> TokenPlaces | None:
    """Change one token and see which state moves most; `None` where that is not always as far behind its token.

    Nor where an earlier state, which might as well be the token's, always moves first.
    """
    size, first = vocabulary_of(model), _may_stop(model, blocks)
    ids = torch.arange(size - tokens, size, device=device)[None].remainder(size)
    plain = _states(model, blocks, ids, first=first)[0]
    if plain.shape[1] == tokens:
        return TokenPlaces(longer=blocks.seen[1] != DRY_TOKENS)
    found, begun = set(), set()
    for place in (tokens // 3, tokens // 2, tokens - 2):
        other = ids.clone()
        other[0, place] = (ids[0, place] + size // 2) % size
        moved = (_states(model, blocks, other, first=first)[0] - plain).abs().sum(-1)[0]
        found.add(int(moved.argmax()) - place)
        begun.add(int((moved > 1e-6 * moved.max()).float().argmax()) - place)
    shift = found.pop()
    clear = not found and not (len(begun) == 1 and 0 <= min(begun) < shift)
    return TokenPlaces(shift, longer=True) if clear and 0 <= shift <= plain.shape[1] - tokens else None
