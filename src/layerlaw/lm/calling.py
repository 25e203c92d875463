"""How a model's forward is called: by the names that it has for token ids and masks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def token_inputs(model: nn.Module, ids: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
    """What the forward is called with: ids under the name it has for them, a mask where it knows one, no cache."""
    known = inspect.signature(model.forward).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in known.values())
    # A causal model without a mask needs none: padding stands behind the text, and nobody looks at its rows.
    masked = {"attention_mask": mask} if mask is not None and ("attention_mask" in known or anything) else {}
    cache = {"use_cache": False} if "use_cache" in known else {}
    return {_name_of_ids(known): ids, **masked, **cache}


def _name_of_ids(known: Mapping[str, inspect.Parameter]) -> str:
    """`input_ids`, or the first thing a plain model takes."""
    if "input_ids" in known or not known:
        return "input_ids"
    first = next(iter(known.values()))
    return first.name if first.kind is first.POSITIONAL_OR_KEYWORD else "input_ids"
