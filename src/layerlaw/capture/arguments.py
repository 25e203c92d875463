"""What a network is called with, where a batch is a dictionary: its forward says by which names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from layerlaw.errors import DataError


class Inputs:
    """What a network takes of a dictionary: by name what its forward calls so, else the one tensor that can be meant."""

    def __init__(self, parameters: Mapping[str, inspect.Parameter] | None = None) -> None:
        self.unused: set[str] = set()
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self._known = parameters is not None
        self._named = {k: p for k, p in (parameters or {}).items() if p.kind in kinds}
        self._any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in (parameters or {}).values())

    @classmethod
    def of(cls, network: nn.Module | None) -> Inputs:
        """As the signature of its forward says."""
        try:
            return cls(None if network is None else inspect.signature(network.forward).parameters)
        except (TypeError, ValueError):
            return cls()

    def taken(self, given: Mapping[str, Any], where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments of a call."""
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
