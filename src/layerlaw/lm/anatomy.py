"""What a language model is: vocabulary, output embedding, longest piece, fitting task, where a token's state stands."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.hooks import Capture
from layerlaw.capture.modules import modules_of
from layerlaw.errors import CaptureError, InputError
from layerlaw.lm.blocks import BlockStack, run
from layerlaw.lm.tasks import TaskName, token_inputs

DRY_TOKENS = 7  # of a piece in the dry run
CHANGED, NEAR = 4, 3  # tokens that are changed to see who reads them, and the states right before them that are looked at
UNREAD = 1e-5  # of a state: a smaller change by later tokens is that of sums in another order (a convolution by way of FFT)
ABOVE_NOISE = 10


def dry_inputs(model: nn.Module, device: torch.device) -> dict[str, Any]:
    """A few tokens to run the model on."""
    ids = torch.arange(2 * DRY_TOKENS, device=device).reshape(2, DRY_TOKENS).remainder(vocabulary_of(model))
    inputs = token_inputs(model, ids)
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = ids[:, :5]
    return inputs


def vocabulary_of(model: nn.Module) -> int:
    """Entries of the input embedding."""
    getter, table = getattr(model, "get_input_embeddings", None), None
    with suppress(NotImplementedError):
        table = getter() if callable(getter) else None
    if not isinstance(table, nn.Embedding):
        tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
        table = max(tables, key=lambda m: m.num_embeddings, default=None)
    if table is None:
        raise InputError("model: expected a language model with an embedding of token ids (nn.Embedding), found none.")
    return table.num_embeddings


def output_embedding(model: nn.Module) -> Tensor | None:
    """The weight (V, d) of the layer that gives the scores of the tokens, where the model has one."""
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if callable(getter) else None
    if head is None and not callable(getter):
        size = vocabulary_of(model)
        layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == size]
        head = layers[-1] if layers else None
    weight = getattr(head, "weight", None)
    return weight.detach() if isinstance(weight, Tensor) and weight.dim() == 2 else None


def body_of(model: nn.Module, home: str) -> nn.Module:
    """The model without its head, where it can be called on its own and holds the blocks: the scores are not needed."""
    body = getattr(model, "base_model", None)
    if not isinstance(body, nn.Module) or body is model or is_encoder_decoder(model):
        return model
    blocks = modules_of(model)[home]
    return body if any(module is blocks for module in body.modules()) else model


def longest_piece(model: nn.Module) -> int | None:
    """How many tokens of a text the model can read at once, where it says so."""
    config = getattr(model, "config", None)
    places = (getattr(config, "max_position_embeddings", None), getattr(config, "n_positions", None))
    known = [n for n in (*places, getattr(model, "context", None)) if isinstance(n, int) and n > 1]
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position" in name and "relative" not in name:
            used = (module.padding_idx + 1) if module.padding_idx is not None else 0  # some keep places for padding
            known += [module.num_embeddings - used] if module.num_embeddings > used else []
            break
    return min(known, default=None)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model reads with one stack of blocks and predicts with another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def task_of(model: nn.Module, blocks: BlockStack, device: torch.device, shift: int = 0) -> TaskName:
    """Which task fits: spans for an encoder-decoder; masked tokens where a later token changes an earlier state.

    What other pieces of a batch do to a state is rounding (or a scale that the batch shares), whatever the dtype; a later
    token that does much more than they do is read.
    """
    if is_encoder_decoder(model):
        return "span"
    size = vocabulary_of(model)
    time = min(16, longest_piece(model) or 16)
    generator = torch.Generator().manual_seed(0)
    # Padding has a low number, and may hide a token.
    text, beside, others = torch.randint(size // 2, size, (3, time), generator=generator)
    later = text.clone()
    later[-CHANGED:] = (text[-CHANGED:] - size // 2 + torch.arange(CHANGED)) % size
    end = shift + time - CHANGED
    near = slice(max(shift, end - NEAR), end)
    pairs = ((text, beside), (text, others), (later, beside))
    plain, noisy, changed = (_states(model, blocks, torch.stack(p).to(device))[-1][0, near].double() for p in pairs)
    noise, effect = (((other - plain).norm(dim=-1) / plain.norm(dim=-1).clamp_min(1e-30)).median() for other in (noisy, changed))
    return "masked" if float(effect) > max(UNREAD, ABOVE_NOISE * float(noise)) else "next"


def _states(model: nn.Module, blocks: BlockStack, ids: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    plan = blocks.plan(embedding=False)
    with Capture(model, plan, plan.sites, reduce=None, consume=lambda _, hidden: seen.append(hidden)) as capture:
        run(capture, token_inputs(model, ids), where="the dry run")
    return seen


@dataclass(frozen=True)
class TokenPlaces:
    """The state of a piece's first token stands at `shift`; `longer`: there may be more states than tokens."""

    shift: int = 0
    longer: bool = False

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
        odd = length - 1 + length % 2  # no multiple of what models pad to
        if (places := _tried(model, blocks, device, odd)) is not None:
            return places
    came = f"got states {blocks.seen} for tokens {predicted} (batch, time)"
    why = "Blocks that join or split tokens cannot be measured; name others (blocks, or --blocks)"
    raise CaptureError(f"'{blocks.home}': expected one state of each token, {came}. {why}.")


def _tried(model: nn.Module, blocks: BlockStack, device: torch.device, tokens: int) -> TokenPlaces | None:
    """Change one token and see which state moves most; `None` where that is not always as far behind its token.

    Nor where an earlier state, which might as well be the token's, always moves first.
    """
    size = vocabulary_of(model)
    ids = torch.arange(size - tokens, size, device=device)[None].remainder(size)
    plain = _states(model, blocks, ids)[0]
    if plain.shape[1] == tokens:
        return TokenPlaces(longer=blocks.seen[1] != DRY_TOKENS)
    found, begun = set(), set()
    for place in (tokens // 3, tokens // 2, tokens - 2):
        other = ids.clone()
        other[0, place] = (ids[0, place] + size // 2) % size
        moved = (_states(model, blocks, other)[0] - plain).abs().sum(-1)[0]
        found.add(int(moved.argmax()) - place)
        begun.add(int((moved > 1e-6 * moved.max()).float().argmax()) - place)
    shift = found.pop()
    clear = not found and not (len(begun) == 1 and 0 <= min(begun) < shift)
    return TokenPlaces(shift, longer=True) if clear and 0 <= shift <= plain.shape[1] - tokens else None
