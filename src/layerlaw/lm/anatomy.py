"""What a language model is, told by its parts and its behavior: vocabulary, output embedding, which way it reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.trace import modules_of
from layerlaw.errors import InputError
from layerlaw.lm.blocks import Blocks, Hooked
from layerlaw.lm.calling import token_inputs
from layerlaw.lm.tasks import TaskName

DRY_TOKENS = 7  # of a piece in the dry run


def vocabulary_of(model: nn.Module) -> int:
    """Entries of the input embedding."""
    table = _embedding(model)
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


def body_of(model: nn.Module, blocks_home: str) -> nn.Module:
    """The model without its head, where it can be called on its own: the scores are not needed."""
    body = getattr(model, "base_model", None)
    if not isinstance(body, nn.Module) or body is model or is_encoder_decoder(model):
        return model
    home = modules_of(model)[blocks_home]
    return body if any(module is home for module in body.modules()) else model


def longest_piece(model: nn.Module) -> int | None:
    """How many tokens of a text the model can read at once, where it says so."""
    config = getattr(model, "config", None)
    places = (getattr(config, "max_position_embeddings", None), getattr(config, "n_positions", None))
    known = [n for n in (*places, getattr(model, "context", None)) if isinstance(n, int) and n > 1]
    table = _position_table(model)  # some models keep two places of their table for padding
    return min([*known, *([table] if table else [])], default=None)


def _position_table(model: nn.Module) -> int | None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position" in name and "relative" not in name:
            offset = (module.padding_idx + 1) if module.padding_idx is not None else 0
            return module.num_embeddings - offset
    return None


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model reads with one stack of blocks and tells with another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def task_of(model: nn.Module, blocks: Blocks, device: torch.device, shift: int = 0) -> TaskName:
    """Which task fits: spans for an encoder-decoder; masked tokens where a later token changes an earlier state."""
    if is_encoder_decoder(model):
        return "span"
    size = vocabulary_of(model)
    generator = torch.Generator().manual_seed(0)
    time = min(16, longest_piece(model) or 16)
    ids = torch.randint(
        size // 2, size, (1, time), generator=generator
    )  # padding has a low number, and may hide a token
    other = ids.clone()
    other[0, -4:] = (ids[0, -4:] - size // 2 + torch.arange(4)) % size
    last = len(blocks.names) - 1
    early = slice(shift, shift + ids.shape[1] - 4)
    before, after = (states(model, blocks, one.to(device))[last][:, early] for one in (ids, other))
    moved = float((before - after).abs().max()) / max(float(before.abs().max()), 1e-30)
    return "masked" if moved > 100 * torch.finfo(before.dtype).eps else "next"  # more than rounding


def dry_inputs(model: nn.Module, device: torch.device) -> dict[str, Any]:
    """A few tokens to run the model on."""
    size = vocabulary_of(model)
    ids = torch.arange(2 * DRY_TOKENS, device=device).reshape(2, DRY_TOKENS).remainder(size)
    inputs = token_inputs(model, ids)
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = ids[:, :5]
    return inputs


def states(model: nn.Module, blocks: Blocks, ids: Tensor) -> dict[int, Tensor]:
    """The hidden states of every block for a few tokens."""
    seen: dict[int, Tensor] = {}
    with Hooked(model, blocks, seen.__setitem__, embedding=False) as hooked:
        hooked.run(token_inputs(model, ids), where="the dry run")
    return seen


def _embedding(model: nn.Module) -> nn.Embedding | None:
    getter = getattr(model, "get_input_embeddings", None)
    if callable(getter):
        try:
            found = getter()
        except NotImplementedError:
            found = None
        if isinstance(found, nn.Embedding):
            return found
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    return max(tables, key=lambda m: m.num_embeddings, default=None)
