"""The weights of a model, however they are held: as parameters, quantized, packed away, or offloaded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn


def weight_count(module: nn.Module) -> int:
    """How many numbers its matrices have; a linear map that keeps them out of sight counts as out × in.

    >>> weight_count(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    12
    """
    return sum(_own_count(part) for part in module.modules())


def _own_count(module: nn.Module) -> int:
    held = sum(p.numel() for p in module.parameters(recurse=False) if p.dim() > 1)
    return max(held, packed_count(module))


def packed_count(module: nn.Module) -> int:
    """Out × in of a linear map that has no such parameter, as quantized ones are; 0 for every other module."""
    sides = [getattr(module, name, None) for name in ("in_features", "out_features")]
    if isinstance(getattr(module, "weight", None), Tensor) or not all(isinstance(side, int) for side in sides):
        return 0
    # A layer with an adapter holds the layer that it adapts.
    inside = any(hasattr(part, "in_features") for part in module.modules() if part is not module)
    return 0 if inside else int(sides[0] or 0) * int(sides[1] or 0)


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype in which it computes: that of its first floating-point parameter or buffer."""
    tensors = (t for held in (model.parameters(), model.buffers()) for t in held if t.is_floating_point())
    return next((t.dtype for t in tensors), torch.float32)


def quantization_of(model: nn.Module) -> str | None:
    """How its weights are quantized, as its configuration, its parameters or its modules say; `None` where they are not.

    >>> quantization_of(nn.Linear(2, 2)) is None
    True
    """
    config: Any = getattr(getattr(model, "config", None), "quantization_config", None)
    said = config if isinstance(config, Mapping) else config.to_dict() if hasattr(config, "to_dict") else {}
    method = said.get("quant_method")
    if method is not None:
        bits = said.get("bits") or next((n for n in (4, 8) if said.get(f"load_in_{n}bit")), None)
        return f"{getattr(method, 'value', method)}{f', {bits} bits' if bits else ''}"
    for parameter in model.parameters():
        package = type(parameter).__module__.partition(".")[0]
        if package not in ("torch", "builtins") and type(parameter) is not nn.Parameter:
            return f"{type(parameter).__name__} ({package})"
        if parameter.dim() > 1 and not parameter.is_floating_point() and not parameter.is_complex():
            return str(parameter.dtype).removeprefix("torch.")
    packed = next((part for part in model.modules() if packed_count(part)), None)
    return None if packed is None else f"{type(packed).__name__} ({type(packed).__module__.rpartition('.')[0]})"


def matrix_of(module: nn.Module) -> Tensor | None:
    """Its weight (out, in) as a plain tensor of numbers; `None` where there is none that can be read."""
    weight: Any = getattr(module, "weight", None)
    weight = weight() if callable(weight) and not isinstance(weight, Tensor) else weight
    if isinstance(weight, Tensor) and weight.is_meta:  # offloaded: accelerate knows where it is
        stored: Any = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
        with suppress(KeyError):
            weight = None if stored is None else stored["weight"]
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.is_meta:
        return None
    strange = type(weight).__module__.partition(".")[0] not in ("torch", "builtins")
    return (weight.dequantize() if weight.is_quantized or strange else weight).detach()
