"""The model's own loss on a few of the tokens: does it know such text, and does the tokenizer belong to it?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerlaw.lm.calling import token_inputs
from layerlaw.lm.pieces import Pieces, evenly

ENOUGH = 2048  # tokens: the mean is known to about a tenth of a nat


def own_loss(model: nn.Module, pieces: Pieces, scores: int, device: torch.device) -> float | None:
    """Mean −ln p of the next token, in nats, over some whole pieces; `None` where the model gives no such scores."""
    total, seen = 0.0, 0
    for i in evenly(len(pieces.ids)):
        ids = pieces.ids[i].to(device)
        try:
            with torch.no_grad():
                output = model(**token_inputs(model, ids[None]))
        except torch.OutOfMemoryError:
            return None  # the scores of all tokens take more room than the states, and nothing else needs them
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor) or logits.shape != (1, len(ids), scores):
            return None
        total += float(F.cross_entropy(logits[0, :-1].float(), ids[1:].to(logits.device), reduction="sum"))
        seen += len(ids) - 1
        if seen >= ENOUGH:
            break
    return total / seen if seen else None


def frequency_loss(counts: Tensor) -> float:
    """The same of a model that knows nothing but how often each token comes in this very text.

    >>> round(frequency_loss(torch.tensor([2, 1, 1, 0])), 4)  # 1.5 bits
    1.0397
    """
    p = counts[counts > 0].double() / counts.sum()
    return float(-(p * p.log()).sum())


def remark(loss: float | None, counts: Tensor) -> str:
    """What a loss says that is worse than that of frequencies; nothing of one that is better."""
    if loss is None or loss < (alone := frequency_loss(counts)):
        return ""
    return (
        f"The model's own loss on this text is {loss:.2f} nats per token; how often each token comes gives {alone:.2f} by "
        "itself. Is it trained, and does this tokenizer belong to it?"
    )
