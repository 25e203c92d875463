"""What a network is called with: by which names, where a batch is a dictionary, images of which size, how many at once."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import DataError, MemoryBudgetError
from layerlaw.threads import users_device

if TYPE_CHECKING:
    from layerlaw.capture.batches import Batch

SIDES = (8, 16, 24, 28, 32, 48, 64, 96, 112, 128, 160, 192, 224, 240, 256, 288, 299, 320, 384)  # of images in use


class Inputs:
    """What a network takes of a dictionary: by name what its forward calls so, else the one tensor that can be meant."""

    def __init__(self, network: nn.Module | None = None) -> None:
        self.unused: set[str] = set()
        self._network, self._asked = network, False

    def _ask(self) -> None:
        """What the signature of its forward says: asked with the first dictionary, since it takes a while."""
        if self._asked:
            return
        self._asked, parameters = True, None
        with suppress(TypeError, ValueError):
            parameters = None if self._network is None else inspect.signature(self._network.forward).parameters
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self._known = parameters is not None
        self._named = {k: p for k, p in (parameters or {}).items() if p.kind in kinds}
        self._any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in (parameters or {}).values())

    def taken(self, given: Mapping[str, Any], where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments of a call."""
        self._ask()
        needed = [name for name, p in self._named.items() if p.default is inspect.Parameter.empty]
        fits = {k: v for k, v in given.items() if self._any_name or k in self._named}
        if not self._known or (fits and all(name in fits for name in needed)):
            kept = fits if self._known else dict(given)
            self.unused |= given.keys() - kept.keys()
            return (), kept
        tensors = {k: v for k, v in given.items() if isinstance(v, Tensor) and (v.dim() > 1 or v.is_floating_point())}
        if len(tensors) != 1 or len(needed) > 1:
            takes = ", ".join(self._named) or "no arguments by name"
            cure = "Rename the keys, or hand over (inputs, labels)"
            raise DataError(f"{where}: the model takes {takes}; got the keys {', '.join(map(str, given))}. {cure}.")
        self.unused |= given.keys() - tensors.keys()
        return tuple(tensors.values()), {}


def what_would_do(network: nn.Module, inputs: object) -> str:
    """A sentence that says how inputs that failed would pass: as numbers of another kind, with axes in another order, in
    another size; empty where nothing is known. Nothing is tried on several ranks, where the others may not."""
    if not isinstance(inputs, Tensor) or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ""
    few = inputs[:2]
    others: list[tuple[str, Tensor]] = []
    if few.dtype in (torch.uint8, torch.float64):
        pixels = ", scaled as in training (x.float() / 255, say)" if few.dtype == torch.uint8 else ""
        others.append((f"inputs of float32: pass x.float(){pixels}", few.float()))
    if few.dim() == 4:
        others.append(("images whose channels come first: pass x.permute(0, 3, 1, 2)", few.permute(0, 3, 1, 2)))
        if few.shape[1] == 1:
            others.append(("images of 3 channels: pass x.expand(-1, 3, -1, -1)", few.expand(-1, 3, -1, -1)))
        if few.shape[1] == 3 and few.dtype.is_floating_point:
            others.append(("images of 1 channel: pass x.mean(1, keepdim=True)", few.mean(1, keepdim=True)))
    if few.dim() == 3:
        others.append(("images with an axis of channels: pass x.unsqueeze(1)", few.unsqueeze(1)))
    for words, other in others:
        if passes(network, other):
            return f"It takes {words}."
    return other_size(network, inputs)


def passes(network: nn.Module, inputs: Tensor) -> bool:
    """Whether a forward works, in eval mode: the statistics of BatchNorm stay, and two samples are enough."""
    try:
        tried = copy.deepcopy(network).eval() if any(part.training for part in network.modules()) else network
        with torch.no_grad():
            tried(inputs)
    except Exception:  # whatever a network raises, or a module that cannot be copied
        return False
    return True


def other_size(network: nn.Module, images: object) -> str:
    """A sentence that names a size of square images with which the forward works, the nearest; empty where none is known.

    `images` (n, channels, height, width) are some that failed.
    """
    if not isinstance(images, Tensor) or images.dim() != 4 or not images.dtype.is_floating_point:
        return ""
    height, width = images.shape[-2:]
    side, few = max(height, width, 1), images[:2].float()
    for other in sorted(SIDES, key=lambda other: abs(math.log(other / side))):
        if (other, other) != (height, width) and passes(network, F.interpolate(few, (other, other)).to(images.dtype)):
            return f"It takes images of {other} × {other} pixels, not of {height} × {width}: resize them."
    return ""


def out_of_memory(network: nn.Module, batch: Batch, where: str) -> MemoryBudgetError:
    """That a forward did not fit the device, and how many samples at a time would."""
    n, fit = len(batch.labels), samples_that_fit(network, batch)
    cure = (
        f"about {fit} would fit. Pass batch_size={fit}, or a loader of such batches" if fit else "choose another device"
    )
    return MemoryBudgetError(f"{where}: {n} samples at once ran out of memory on {batch.labels.device}: {cure}.")


@torch.no_grad()
def samples_that_fit(network: nn.Module, batch: Batch) -> int:
    """About how many samples a forward has room for, fewer than the batch has, by what two of them take; 0: not even one."""
    n, device = len(batch.labels), batch.labels.device
    if device.type != "cuda" or n < 3:
        return n // 2
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        few = batch.first(2)
        with users_device():
            network(*few.args, **few.kwargs)
    except torch.OutOfMemoryError:
        return 0
    each = max(1, torch.cuda.max_memory_allocated(device) - before) / 2
    torch.cuda.empty_cache()
    return max(1, min(n // 2, int(0.8 * torch.cuda.mem_get_info(device)[0] / each)))
