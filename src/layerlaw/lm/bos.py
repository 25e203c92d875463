"""Does the model want a BOS that its tokenizer does not put? The loss on one piece tells."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.lm.blocks import run
from layerlaw.lm.calling import token_inputs
from layerlaw.lm.pieces import Pieces

MUCH = 0.2  # a loss lower by this share is no accident of one piece
LOOKED_AT = 256


def missing_bos(model: nn.Module, tokenizer: Any, pieces: Pieces, device: torch.device) -> str:
    """A sentence where a BOS in front lowers the loss by much, else nothing."""
    known = getattr(tokenizer, "bos_token_id", None)
    if known is None or pieces.bos is not None:
        return ""
    most = min(LOOKED_AT, max(map(len, pieces.ids)) - 1)  # a model may have no place for one more
    piece = pieces.ids[0][:most].to(device)
    plain = _loss(model, piece[None])
    led = _loss(model, torch.cat([torch.tensor([known], device=device), piece])[None])
    if plain is None or led is None or led > (1 - MUCH) * plain:
        return ""
    return (
        f"The tokenizer puts no BOS in front, but with one the loss on the first piece is {led:.2f} instead of {plain:.2f}: "
        "this model wants it (bos=True, or --bos)."
    )


def _loss(model: nn.Module, ids: Tensor) -> float | None:
    """Cross-entropy of all tokens but the first two, which only the version with a BOS could predict."""
    output = run(model, token_inputs(model, ids), where="a look at the loss")
    scores = getattr(output, "logits", output)
    if not isinstance(scores, Tensor) or scores.dim() != 3 or ids.shape[1] < 8:
        return None
    losses = nn.functional.cross_entropy(scores[0, :-1].float(), ids[0, 1:], reduction="none")
    return float(losses[2:].mean())
