"""The weights of a model and its vocabulary, however they are held: as parameters, quantized, packed away, offloaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.errors import InputError

CLASSES_ELSEWHERE = "How layers separate classes is measured by ll.probe(model, data) (layerlaw probe)"
TABLE = re.compile(r"emb|wte|tok|vocab|table", re.IGNORECASE)  # names of embeddings that are plain parameters


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


def is_spread(model: nn.Module) -> bool:
    """Whether accelerate decides where its parts are: several devices, or weights that are put away."""
    return hasattr(model, "hf_device_map") or any(parameter.is_meta for parameter in model.parameters())


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


def vocabulary_of(model: nn.Module) -> int:
    """Entries of the input embedding."""
    getter, table = getattr(model, "get_input_embeddings", None), None
    with suppress(NotImplementedError):
        table = getter() if callable(getter) else None
    if isinstance(table, nn.Embedding):
        return int(table.num_embeddings)
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    sizes += [len(rows) for rows in _bare_tables(model)]
    known = getattr(getattr(model, "config", None), "vocab_size", None)
    if isinstance(known, int) and known > 1 and (known in sizes or not sizes):
        return known
    if not sizes:
        expected = "expected a language model with an embedding of token ids (nn.Embedding, or a table as a parameter)"
        raise InputError(f"model: {expected}, found none. {CLASSES_ELSEWHERE}.")
    return max(sizes)  # others are of places


def _bare_tables(model: nn.Module) -> list[Tensor]:
    """Parameters (entries, width) that a module holds without being a layer, as embeddings written by hand are."""
    layers = (nn.Linear, nn.Embedding, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)
    homes = (m for m in model.modules() if not isinstance(m, layers) and not hasattr(m, "in_features"))
    named = (item for home in homes for item in home.named_parameters(recurse=False))
    return [p for name, p in named if p.dim() == 2 and len(p) > p.shape[1] and TABLE.search(name)]


def head_module(model: nn.Module) -> str:
    """The name of the module that gives the scores of the tokens; empty where there is none."""
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if callable(getter) else None
    if head is None and not callable(getter):
        size = vocabulary_of(model)
        layers = [m for m in model.modules() if getattr(m, "out_features", None) == size]
        head = layers[-1] if layers else None
    return next((name for name, module in model.named_modules() if module is head), "") if head is not None else ""


def output_embedding(model: nn.Module) -> Tensor | None:
    """The weight (V, d) of the layer that gives the scores of the tokens, where the model has one."""
    if name := head_module(model):
        return matrix_of(model.get_submodule(name))
    if callable(getattr(model, "get_output_embeddings", None)):
        return None
    size = vocabulary_of(model)  # a table that is written by hand gives the scores too, where nothing else can
    return next((rows.detach() for rows in reversed(_bare_tables(model)) if len(rows) == size), None)
