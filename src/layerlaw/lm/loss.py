"""The model's own loss on a few tokens: does it know such text, does the tokenizer belong to it, does it want a BOS?"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerlaw.lm.blocks import explained
from layerlaw.lm.pieces import Pieces, evenly
from layerlaw.lm.tasks import NextToken, token_inputs

ENOUGH = 2048  # tokens: the mean is known to about a tenth of a nat
AT_ONCE = 512  # tokens in a forward: the scores of all tokens of the vocabulary take much memory
CONTEXT = 16  # tokens that are predicted in a piece, on average: of fewer no model can know much
CLEARLY = 0.5  # nats
MUCH = 0.2  # a loss lower by this share is no accident of one piece
BOS_TOKENS = 256  # of the piece that is tried with and without a BOS


def own_loss(model: nn.Module, pieces: Pieces, scores: int, device: torch.device) -> float | None:
    """Mean −ln p of the next token, in nats, over some pieces; `None` where the model gives no such scores."""
    task, total, seen = NextToken((1,)), 0.0, 0
    for members in _some(pieces):
        batch = task.batch([pieces.ids[i][: AT_ONCE + 1] for i in members], members).to(device)
        try:
            with torch.no_grad():
                output = model(**batch.inputs_of(model))
        except RuntimeError:
            return None  # out of memory: nothing else needs the scores of all tokens
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor) or logits.shape != (*batch.shape, scores):
            return None  # no scores, or not one row for each token
        rows = logits.reshape(-1, scores).index_select(0, batch.rows.to(logits.device)).float()
        total += float(F.cross_entropy(rows, batch.around[1].to(logits.device), reduction="sum"))
        seen += len(rows)
    return total / seen if seen else None


def _some(pieces: Pieces) -> list[list[int]]:
    """Pieces spread over the text with enough tokens in all, as many at a time as the longest of them allows."""
    sizes = {i: min(len(pieces.ids[i]) - 1, AT_ONCE) for i in evenly(len(pieces.ids))}
    before = accumulate(sizes.values(), initial=0)
    chosen = [i for i, seen in zip(sizes, before, strict=False) if seen < ENOUGH]
    many = AT_ONCE // max(sizes[i] for i in chosen)
    return [chosen[at : at + many] for at in range(0, len(chosen), many)]


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
        return "The model's scores of the next token are not finite in this precision; its blocks are measured all the same."
    alone = frequency_loss(predicted)
    if loss < alone + CLEARLY or int(predicted.sum()) < CONTEXT * pieces:
        return ""
    gives = (
        f"how often each token comes gives {alone:.2f} by itself. Is it trained, and does this tokenizer belong to it?"
    )
    return f"The model's own loss on this text is {loss:.2f} nats per token; {gives}"


def bos_note(model: nn.Module, tokenizer: Any, pieces: Pieces, device: torch.device) -> str:
    """A sentence where a BOS that the tokenizer does not put lowers the loss on one piece by much, else nothing."""
    known = getattr(tokenizer, "bos_token_id", None)
    if known is None or pieces.bos is not None:
        return ""
    most = min(BOS_TOKENS, max(map(len, pieces.ids)) - 1)  # a model may have no place for one more
    piece = pieces.ids[0][:most].to(device)
    plain = _loss_of_piece(model, piece[None])
    led = _loss_of_piece(model, torch.cat([torch.tensor([known], device=device), piece])[None])
    if plain is None or led is None or led > (1 - MUCH) * plain:
        return ""
    better = f"with one the loss on the first piece is {led:.2f} instead of {plain:.2f}"
    return f"The tokenizer puts no BOS in front, but {better}: this model wants it (bos=True, or --bos)."


def _loss_of_piece(model: nn.Module, ids: Tensor) -> float | None:
    """Cross-entropy of all tokens but the first two, which only the version with a BOS could predict."""
    inputs = token_inputs(model, ids)
    with explained(inputs, "the loss of one piece"):
        output = model(**inputs)
    scores = getattr(output, "logits", output)
    if not isinstance(scores, Tensor) or scores.dim() != 3 or ids.shape[1] < 8:
        return None
    losses = F.cross_entropy(scores[0, :-1].float(), ids[0, 1:], reduction="none")
    return float(losses[2:].mean())
