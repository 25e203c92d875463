"""What a network is called with: by which names, where a batch is a dictionary, and with images of which size."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import DataError

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


def other_size(network: nn.Module, images: object) -> str:
    """A sentence that names a size of square images with which the forward works, the nearest; empty where none is known.

    `images` (n, channels, height, width) are some that failed. Nothing is tried on several ranks, where the others may not.
    """
    if not isinstance(images, Tensor) or images.dim() != 4 or not images.dtype.is_floating_point:
        return ""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return ""
    height, width = images.shape[-2:]
    side, few = max(height, width, 1), images[:2]
    try:  # in eval mode: the statistics of BatchNorm stay, and two samples are enough
        tried = copy.deepcopy(network).eval() if any(part.training for part in network.modules()) else network
    except Exception:  # a module that cannot be copied
        return ""
    for other in sorted(SIDES, key=lambda other: abs(math.log(other / side))):
        if (other, other) == (height, width):
            continue
        try:
            with torch.no_grad():
                tried(F.interpolate(few.float(), (other, other)).to(images.dtype))
        except Exception:  # whatever a network raises for a size that it does not take
            continue
        size = f"{other} × {other} pixels"
        return f"It takes images of {size}, not of {height} × {width}: resize them."
    return ""
