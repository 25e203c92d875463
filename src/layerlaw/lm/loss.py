"""The model's own loss on a few of the tokens: does it know such text, and does the tokenizer belong to it?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerlaw.lm.pieces import Pieces, evenly
from layerlaw.lm.tasks import NextToken

ENOUGH = 2048  # tokens: the mean is known to about a tenth of a nat
AT_ONCE = 512  # tokens in a forward: the scores of all tokens of the vocabulary take much room
CONTEXT = 16  # tokens that are told in a piece, on average: of fewer no model can know much
CLEARLY = 0.5  # nats


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
        if not isinstance(logits, Tensor) or logits.shape != (*batch.told, scores):
            return None  # no scores, or not one row for each token
        rows = logits.reshape(-1, scores).index_select(0, batch.rows.to(logits.device)).float()
        total += float(F.cross_entropy(rows, batch.around[1].to(logits.device), reduction="sum"))
        seen += len(rows)
    return total / seen if seen else None


def _some(pieces: Pieces) -> Iterator[list[int]]:
    """Pieces spread over the text with enough tokens in all, a few at a time."""
    members: list[int] = []
    longest = seen = 0
    for i in evenly(len(pieces.ids)):
        size = min(len(pieces.ids[i]) - 1, AT_ONCE)
        if members and (len(members) + 1) * max(longest, size) > AT_ONCE:
            yield members
            members, longest = [], 0
        members.append(i)
        longest = max(longest, size)
        seen += size
        if seen >= ENOUGH:
            break
    if members:
        yield members


def frequency_loss(counts: Tensor) -> float:
    """The same of a model that knows nothing but how often each token comes in this very text.

    >>> round(frequency_loss(torch.tensor([2, 1, 1, 0])), 4)  # 1.5 bits
    1.0397
    """
    p = counts[counts > 0].double() / counts.sum()
    return float(-(p * p.log()).sum())


def remark(loss: float | None, told: Tensor, pieces: int) -> str:
    """What a loss says that is clearly worse than that of frequencies; `told`: how often each token is to be told."""
    if loss is None:
        return ""
    if not math.isfinite(loss):
        return "The model's scores of the next token are not finite in this precision; its blocks are measured all the same."
    alone = frequency_loss(told)
    if loss < alone + CLEARLY or int(told.sum()) < CONTEXT * pieces:
        return ""
    return (
        f"The model's own loss on this text is {loss:.2f} nats per token; how often each token comes gives {alone:.2f} by "
        "itself. Is it trained, and does this tokenizer belong to it?"
    )
