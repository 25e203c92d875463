"""What counts as a weight layer, what as a block."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from layerlaw.capture.trace import clean_name
from layerlaw.errors import CaptureError

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
BARE = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def is_weight_layer(module: nn.Module) -> bool:
    """A leaf with a floating-point weight of two or more dimensions that is neither an embedding nor a norm."""
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return True  # one layer each, though their weights bear other names
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag, *NORMS)):
        return False
    name = type(module).__name__.lower()
    if "norm" in name or "embedding" in name:
        return False
    if any(child != "parametrizations" for child, _ in module.named_children()):
        return False
    weight = getattr(module, "weight", None)
    if isinstance(weight, UninitializedParameter):
        raise CaptureError(
            f"expected a model with its weights in place, got a lazy {type(module).__name__}: run one batch first."
        )
    return isinstance(weight, Tensor) and weight.is_floating_point() and weight.dim() >= 2


def weight_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Every weight layer by name, in definition order; nothing inside a MultiheadAttention counts on its own."""
    found: dict[str, nn.Module] = {}
    closed: list[str] = []
    for raw, module in network.named_modules():
        name = clean_name(raw)
        if any(name.startswith(prefix) for prefix in closed):
            continue
        if isinstance(module, nn.MultiheadAttention):
            closed.append(f"{name}.")
        if is_weight_layer(module):
            found[name] = module
    return found


def block_names(network: nn.Module, fired: set[str]) -> list[str]:
    """The outermost modules of repeated classes that are no bare container and hold two or more weight layers."""
    layers = [name for name in weight_layers(network) if name in fired]
    candidates = {
        name: type(module)
        for raw, module in network.named_modules()
        if (name := clean_name(raw)) in fired
        and name
        and type(module) not in BARE
        and sum(layer.startswith(f"{name}.") for layer in layers) >= 2
    }
    repeated = {cls for cls, count in Counter(candidates.values()).items() if count >= 2}
    chosen = [name for name, cls in candidates.items() if cls in repeated]
    return [name for name in chosen if not any(name.startswith(f"{other}.") for other in chosen)]


def classifier_weight(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Rows of a linear classifier (K, d) and its bias (K,), in float64 on the CPU; `None` where it is not linear."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or isinstance(module, nn.MultiheadAttention):
        return None
    rows = _whole(weight)
    if type(module).__name__ == "Conv1D":  # Hugging Face keeps (inputs, outputs)
        rows = rows.mT
    return rows, _whole(bias) if isinstance(bias, Tensor) else None


def _whole(parameter: Tensor) -> Tensor:
    """All of a parameter that may be sharded over ranks."""
    full = getattr(parameter, "full_tensor", None)
    return (full() if callable(full) else parameter).detach().cpu().to(torch.float64)
