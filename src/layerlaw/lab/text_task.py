"""What a language model is asked during training: the next token, or the tokens hidden from it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from layerlaw.lab.text_model import TextModel


class Asked(NamedTuple):
    """What goes in (B, T), at which places (B, k) an answer is wanted (`None`: everywhere), and the answers (B, k)."""

    inputs: Tensor
    places: Tensor | None
    answers: Tensor


def ask_next(windows: Tensor) -> Asked:
    """Windows (B, T + 1) → every token but the first, from the tokens before it."""
    return Asked(windows[:, :-1], None, windows[:, 1:])


def ask_masked(windows: Tensor, *, mask_id: int, share: float, generator: torch.Generator) -> Asked:
    """BERT's scheme: of a share of the places 80 % show the mask, 10 % a random token, 10 % the token itself.

    The same number of places in every window, at least one. Random tokens are drawn from those before `mask_id`.
    The draws are made on the CPU, so that they are the same on every device.
    """
    B, T = windows.shape
    k = max(1, round(share * T))
    places = torch.rand(B, T, generator=generator).topk(k, dim=1).indices  # k places, all choices equally likely
    lot = torch.rand(B, k, generator=generator)
    other = torch.randint(mask_id, (B, k), generator=generator)
    places, lot, other = (drawn.to(windows.device) for drawn in (places, lot, other))
    answers = windows.gather(1, places)
    shown = torch.where(lot < 0.8, mask_id, torch.where(lot < 0.9, other, answers))
    return Asked(windows.scatter(1, places, shown), places, answers)


def cross_entropy(
    model: TextModel, inputs: Tensor, places: Tensor | None, answers: Tensor, reduction: str = "mean"
) -> Tensor:
    """Cross-entropy in nats of the answers; the head works at the asked places only."""
    h = model.hidden(inputs)
    if places is not None:
        h = h.gather(1, places[..., None].expand(-1, -1, h.shape[-1]))  # (B, k, width)
    logits = model.head(h).float()
    return F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction=reduction)
