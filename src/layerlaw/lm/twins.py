"""The untrained twin of a language model: the same build with freshly drawn weights, the null for what training does.

How large the weights of a transformer are drawn decides what it does untrained, so the standard deviation is part of the
record: the one of its configuration; of a GGUF file, which has none, a known or the usual one; or one that is requested.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from layerlaw.capture.network import untrained
from layerlaw.errors import InputError
from layerlaw.lm.weights import dtype_of

STD_NAMES = ("initializer_range", "init_std")  # what configurations call it
SHAPE = ("model_type", "hidden_size", "num_hidden_layers", "max_position_embeddings")
# Published models whose value is not the usual one of their kind: (kind, width, blocks, longest text) → value, model.
KNOWN: dict[tuple[Any, ...], tuple[float, str]] = {("llama", 576, 30, 8192): (1 / 24, "SmolLM2-135M")}


@dataclass(frozen=True)
class Twin:
    """The model, the standard deviation that its weights were drawn with, and who says so."""

    model: nn.Module
    std: float | None = None
    source: str = ""
    assumed: bool = False

    @property
    def note(self) -> str:
        """A remark where nobody knows."""
        if not self.assumed:
            return ""
        cure = "If you know it, pass null_std=… (--null-std)"
        drawn = f"those of the untrained model have std {self.std:g}, {self.source}"
        return f"The file does not say how its weights were drawn: {drawn}. {cure}."


def untrained_twin(
    model: nn.Module, seed: int, *, std: float | None = None, device: Any = None, unsaid: bool = False
) -> Twin:
    """A model of the same configuration, or a copy of a wrapper around one, with freshly drawn weights.

    std     of the weights; default: what the configuration says, or for an `unsaid` one (GGUF) what is known or usual
    device  where the twin goes; default: where the model is

    A twin of an adapted model is its base drawn anew with the adapters off: untrained, they add nothing. A model that has no
    configuration of transformers is drawn by its layers' own `reset_parameters`.
    """
    inner = list(_configured(model))
    if not inner:
        return _plain_twin(model, seed, std)
    config = plain_config(inner[0])
    value, source, assumed = _std_of(config, std, unsaid=unsaid or _from_gguf(inner[0]))
    if inner[0] is model:
        home = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
        drawn = seeded(seed, partial(type(model), config))
        return Twin(drawn.to(device=device or home, dtype=dtype_of(model)), value, source, assumed)
    return Twin(_wrapped_twin(model, seed, std, unsaid=unsaid), value, source, assumed)


def check_std(model: nn.Module, std: float | None) -> None:
    """Before the long work: can weights of this model be drawn with a chosen standard deviation?"""
    for part in _configured(model):
        _std_of(plain_config(part), std, unsaid=False)


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Made while the random numbers start at a seed, and go on afterwards as if nothing had been."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def plain_config(model: Any) -> Any:
    """A copy of its configuration that says nothing of quantization."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def _configured(model: nn.Module) -> Iterator[nn.Module]:
    """The models of transformers in it, itself perhaps, outermost only."""
    if any(kind.__name__ == "PreTrainedModel" for kind in type(model).__mro__):
        yield model
        return
    for child in model.children():
        yield from _configured(child)


def _from_gguf(model: Any) -> bool:
    said = getattr(model.config, "quantization_config", None)
    method = said.get("quant_method") if isinstance(said, dict) else getattr(said, "quant_method", None)
    return "gguf" in str(method).lower()


def _std_of(config: Any, std: float | None, *, unsaid: bool) -> tuple[float | None, str, bool]:
    """The value, who says so, whether it is a guess; written into the configuration where it is not there."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    names = [name for name in STD_NAMES if isinstance(getattr(text, name, None), (int, float))]
    if not names:
        if std is not None:
            expected = f"expected a configuration with {' or '.join(STD_NAMES)}"
            raise InputError(
                f"null_std: {expected}, got {type(text).__name__}, which draws its weights by other rules."
            )
        return None, "by the rules of its class", False
    value, source, assumed = float(getattr(text, names[0])), "as its configuration says", False
    if std is not None:
        value, source = float(std), "as requested"
    elif unsaid:
        known = KNOWN.get(tuple(getattr(text, name, None) for name in SHAPE))
        source, assumed = f"the usual one of {type(text).__name__}", known is None
        value, source = (known[0], f"that of {known[1]}") if known else (value, source)
    for part in (config, text):
        for name in names:
            if hasattr(part, name):
                setattr(part, name, value)
    return value, source, assumed


def _plain_twin(model: nn.Module, seed: int, std: float | None) -> Twin:
    twin = untrained(model, seed=seed)
    if std is None:
        return Twin(twin, None, "by the rules of its layers")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return Twin(twin, float(std), "as requested")


def _wrapped_twin(model: nn.Module, seed: int, std: float | None, *, unsaid: bool) -> nn.Module:
    twin = copy.deepcopy(model)
    mine: set[int] = set()
    with torch.no_grad():
        for part in _configured(twin):
            config = plain_config(part)
            _std_of(config, std, unsaid=unsaid or _from_gguf(part))
            fresh = dict(seeded(seed, partial(type(part), config)).named_parameters())
            for name, parameter in part.named_parameters():
                key = name.replace(".base_layer", "")  # a layer with an adapter keeps its own inside
                plain = not parameter.is_meta and parameter.is_floating_point()
                if key in fresh and plain and parameter.shape == fresh[key].shape:
                    parameter.copy_(fresh.pop(key))
                    mine.add(id(parameter))
            if left := [name for name, drawn in fresh.items() if drawn.dim() > 1]:
                why = "quantized or offloaded weights inside a wrapper cannot be drawn anew"
                raise InputError(
                    f"null: expected plain weights, got others at '{left[0]}': {why}. Pass the base model."
                )
        for module in twin.modules():
            switch: Any = getattr(module, "enable_adapters", None)
            if hasattr(module, "adapter_layer_names") and callable(switch):  # a layer with an adapter, of PEFT
                switch(False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in twin.parameters():
            if (
                id(parameter) not in mine
                and parameter.is_floating_point()
                and parameter.dim() > 1
                and parameter.numel()
            ):
                spread = float(parameter.float().std(correction=0))
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return twin
