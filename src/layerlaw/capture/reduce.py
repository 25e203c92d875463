"""From whatever a layer hands over to one row of features per sample."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from layerlaw.errors import CaptureError
from layerlaw.stats.precision import at_least_float32

Reduce = Literal["flatten", "mean", "max", "first", "last"]
CHOICES = get_args(Reduce)


def check_reduce(reduce: str) -> None:
    """Raise unless it is one of the choices."""
    if reduce not in CHOICES:
        raise CaptureError(f"reduce: expected one of {', '.join(CHOICES)}, got {reduce!r}.")


def samples_first(tensor: Tensor, axis: int, fold: int) -> Tensor:
    """Bring the sample axis to the front; `fold` > 1 rows of axis 0 that belong to one sample become its own axis."""
    if axis == 1:
        tensor = tensor.transpose(0, 1)
    if fold > 1:
        tensor = tensor.reshape(tensor.shape[0] // fold, fold, *tensor.shape[1:])
    return tensor


def reduced(tensor: Tensor, reduce: Reduce, *, channels_last: bool, mask: Tensor | None = None) -> Tensor:
    """(n, …) → (n, d).

    `flatten` keeps everything; `mean` and `max` go over space (or over the real tokens of the mask); `first` and
    `last` choose a token of (n, T, d) and flatten features that have no tokens.

    >>> reduced(torch.arange(12.0).reshape(1, 3, 2, 2), "mean", channels_last=False)
    tensor([[1.5000, 5.5000, 9.5000]])
    """
    tokens = channels_last and tensor.dim() == 3
    if tensor.dim() <= 2 or reduce == "flatten" or (reduce in ("first", "last") and not tokens):
        return tensor.reshape(len(tensor), -1)
    if mask is not None and tokens:
        return _masked(tensor, mask.to(tensor.device), reduce)
    if reduce == "first":
        return tensor[:, 0]
    if reduce == "last":
        return tensor[:, -1]
    space = tuple(range(1, tensor.dim() - 1)) if channels_last else tuple(range(2, tensor.dim()))
    wide = at_least_float32(tensor)
    return wide.mean(space) if reduce == "mean" else wide.amax(space)


def _masked(tensor: Tensor, mask: Tensor, reduce: Reduce) -> Tensor:
    if mask.shape != tensor.shape[:2]:
        raise CaptureError(
            f"attention mask: expected shape {tuple(tensor.shape[:2])} like the tokens, got {tuple(mask.shape)}. "
            "Use reduce='flatten', or sites whose tokens are those of the mask."
        )
    if not bool(mask.any(1).all()):
        raise CaptureError(
            "attention mask: expected at least one real token in every sample, got a sample of padding only."
        )
    if reduce == "first":  # with left padding the first real token is not at 0
        return tensor[torch.arange(len(tensor), device=mask.device), mask.int().argmax(1)]
    if reduce == "last":
        position = torch.arange(mask.shape[1], device=mask.device)
        return tensor[torch.arange(len(tensor), device=mask.device), (position * mask).argmax(1)]
    wide = at_least_float32(tensor)
    real = mask.unsqueeze(-1)
    if reduce == "max":
        return wide.masked_fill(~real, -torch.inf).amax(1)
    return wide.masked_fill(~real, 0.0).sum(1) / real.sum(1)
