"""What counts as a weight layer, what as a block, and where a module keeps its features."""

from __future__ import annotations

from collections import Counter

from torch import Tensor, nn
from torch.nn.modules import conv, pooling
from torch.nn.modules.batchnorm import _NormBase

from layerlaw.capture.trace import modules_of

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
BARE = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
FEATURES_LAST = (nn.Linear, nn.MultiheadAttention, nn.RNNBase, nn.Embedding)
FEATURES_FIRST = (
    conv._ConvNd,
    _NormBase,
    nn.GroupNorm,
    pooling._MaxPoolNd,
    pooling._AvgPoolNd,
    pooling._AdaptiveMaxPoolNd,
    pooling._AdaptiveAvgPoolNd,
)


def is_weight_layer(module: nn.Module) -> bool:
    """A leaf with a floating-point weight of two or more dimensions that is neither an embedding nor a norm."""
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)):
        return True  # one layer each, though their weights bear other names
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag, *NORMS)):
        return False
    name = type(module).__name__.lower()
    if "embedding" in name or ("norm" in name and "linear" not in name and "conv" not in name):
        return False
    if any(child != "parametrizations" for child, _ in module.named_children()):
        return False
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.is_floating_point() and weight.dim() >= 2


def weight_layers(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The weight layers among all modules, in definition order; nothing inside a MultiheadAttention counts on its own."""
    closed = tuple(f"{name}." for name, module in modules.items() if isinstance(module, nn.MultiheadAttention))
    return {name: module for name, module in modules.items() if not name.startswith(closed) and is_weight_layer(module)}


def block_names(network: nn.Module, fired: set[str]) -> list[str]:
    """The outermost modules of repeated classes that are no bare container and hold two or more weight layers."""
    modules = {name: module for name, module in modules_of(network).items() if name in fired}
    layers = weight_layers(modules)
    candidates = {
        name: type(module)
        for name, module in modules.items()
        if name and type(module) not in BARE and sum(layer.startswith(f"{name}.") for layer in layers) >= 2
    }
    repeated = {cls for cls, count in Counter(candidates.values()).items() if count >= 2}
    chosen = [name for name, cls in candidates.items() if cls in repeated]
    return [name for name in chosen if not any(name.startswith(f"{other}.") for other in chosen)]


def features_last(module: nn.Module) -> bool | None:
    """Whether a module keeps the features of its tensors on the last axis (tokens) or on axis 1; `None`: it tells not.

    >>> features_last(nn.Linear(2, 2)), features_last(nn.Conv2d(2, 2, 1)), features_last(nn.ReLU())
    (True, False, None)
    """
    if isinstance(module, FEATURES_FIRST):
        return False
    if isinstance(module, FEATURES_LAST) or type(module).__name__ == "Conv1D":  # Hugging Face's linear layer
        return True
    return True if type(module) in (nn.LayerNorm, nn.RMSNorm) else None  # subclasses may permute axes


def features_last_inside(module: nn.Module) -> bool | None:
    """The same of the modules inside: any that keeps features on axis 1 (a convolution, say) decides."""
    found = {features_last(inner) for inner in module.modules()}
    return False if False in found else True if True in found else None
