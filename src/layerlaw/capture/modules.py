"""The modules of a network: their names, which are weight layers and blocks, what they hand over, and the classifier."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import conv, pooling
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.hooks import RemovableHandle

from layerlaw.errors import CaptureError
from layerlaw.module_tree import class_of, named
from layerlaw.threads import default_mode, on_cpu

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
BARE = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
FEATURES_LAST = (nn.Linear, nn.MultiheadAttention, nn.RNNBase, nn.Embedding)
POOLS = (pooling._MaxPoolNd, pooling._AvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd)
FEATURES_FIRST = (conv._ConvNd, _NormBase, nn.GroupNorm, *POOLS)
EMBEDDING, NORM = "an embedding", "a normalization"
NO_WEIGHT = re.compile(r"embed|token|bias|scale|gamma|pos|norm")  # what parameters that multiply no data are called
WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")


@lru_cache(maxsize=2**14)
def clean_name(name: str) -> str:
    """A module's name without the parts that torch.compile, FSDP or checkpointing put into it.

    >>> clean_name("layers.0._orig_mod.fc")
    'layers.0.fc'
    """
    return WRAPPERS.sub("", name).removeprefix(".")


def modules_of(network: nn.Module) -> dict[str, nn.Module]:
    """Every module by its clean name, in definition order; of a wrapper and what it wraps, the inner one."""
    return {clean_name(name): module for name, module in named(network).items()}


@contextmanager
def hooked(
    network: nn.Module,
    names: Iterable[str] | None,
    enter: Callable[..., None],
    leave: Callable[..., None],
    left: Container[str] | None = None,
) -> Iterator[None]:
    """Call `enter(name, module, args, kwargs)` before and `leave(name, module, args, output)` after these modules.

    Without `names` they are all; `left` are those of them that `leave` is called after, where it is not all.
    """
    modules = modules_of(network)
    if default_mode() is not None:  # the forward is the user's, what is done in between is not
        enter, leave = on_cpu(enter), on_cpu(leave)
    # One key for all, put in by hand: to register and remove them one by one takes as long as a small network's forward.
    key = RemovableHandle(OrderedDict()).id
    seen = [(name, modules[name]) for name in (modules if names is None else names)]
    try:
        for name, module in seen:
            module._forward_pre_hooks_with_kwargs[key] = True
            module._forward_pre_hooks[key] = partial(enter, name)
            if left is None or name in left:
                module._forward_hooks[key] = partial(leave, name)
        yield
    finally:
        for _, module in seen:
            for hooks in (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs, module._forward_hooks):
                hooks.pop(key, None)


class WeakHook:
    """Calls a method of its owner as long as that is there; copies of the network do not take it along."""

    def __init__(self, owner: Any = None, method: str = "", *first: Any) -> None:
        self._owner, self._method, self._first = weakref.ref(owner) if owner is not None else None, method, first

    def __call__(self, *args: Any) -> None:
        """What a module does when it is called."""
        if (owner := self.owner) is not None:
            getattr(owner, self._method)(*self._first, *args)

    @property
    def owner(self) -> Any:
        """Whose method it calls; `None` where it is gone."""
        return None if self._owner is None else self._owner()

    def __deepcopy__(self, memo: Any) -> WeakHook:
        return WeakHook()

    def __reduce__(self) -> tuple[Any, ...]:
        return WeakHook, ()


def matching(modules: Mapping[str, nn.Module], pattern: str, *, what: str, same_depth: bool = False) -> list[str]:
    """The modules that a name or a glob means, at least one; with `same_depth` a star does not reach across dots."""
    found = [name for name in modules if fnmatch.fnmatchcase(name, pattern)]
    if same_depth:
        found = [name for name in found if name.count(".") == pattern.count(".")]
    if found:
        return found
    near = difflib.get_close_matches(pattern, [name for name in modules if name], n=5, cutoff=0.4)
    hint = (
        f"Nearest names: {', '.join(near)}." if near else "layerlaw sites (in Python layerlaw.sites) lists the names."
    )
    if what == "site" and "," in pattern:
        hint = f"Several are given as sites={[part.strip() for part in pattern.split(',')]}."
    raise CaptureError(f"{what} '{pattern}' matches no module of the model. {hint}")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors in nested tuples, lists, dictionaries and dataclasses, other than masks, in order."""
    if isinstance(value, Tensor):
        if _is_plain(value):
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        yield from tensors_in([item for key, item in value.items() if "mask" not in str(key)])
    elif dataclasses.is_dataclass(value):
        yield from tensors_in({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})


def _is_plain(value: Tensor) -> bool:
    return value.layout == torch.strided and not value.is_nested and value.is_floating_point()


def entering(args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """The tensor that a module works on: by convention its `hidden_states`, or what comes first."""
    if args and not kwargs and isinstance(args[0], Tensor) and _is_plain(args[0]):  # as nearly always
        return args[0]
    hidden = kwargs.get("hidden_states")
    return hidden if isinstance(hidden, Tensor) else next(tensors_in((args, kwargs)), None)


def main_input(args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """The tensor that a network is about: its `input_ids`, or what it works on, or the first tensor it gets."""
    ids = kwargs.get("input_ids")
    found = ids if isinstance(ids, Tensor) else entering(args, kwargs)
    return next((v for v in (found, *args, *kwargs.values()) if isinstance(v, Tensor)), None)


def is_weight_layer(module: nn.Module) -> bool:
    """A leaf with a floating-point weight of two or more dimensions that is neither an embedding nor a norm."""
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)):
        return True  # one layer each, though their weights bear other names
    if kind_without_layer(module) in (EMBEDDING, NORM):
        return False
    if any(name != "parametrizations" for name, child in module._modules.items() if child is not None):
        return False
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.is_floating_point() and weight.dim() >= 2


def owns_weights(module: nn.Module) -> bool:
    """Whether a module has a floating-point parameter of two or more dimensions of its own."""
    return any(p.is_floating_point() and p.dim() >= 2 for p in module.parameters(recurse=False))


def kind_without_layer(module: nn.Module) -> str:
    """Why a module with a weight may be no layer."""
    name = class_of(module).__name__.lower()
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or "embedding" in name:
        return EMBEDDING
    if isinstance(module, NORMS) or ("norm" in name and "linear" not in name and "conv" not in name):
        return NORM
    return "its parameters enter no convolution or matrix product of the data"


def weight_layers(
    modules: Mapping[str, nn.Module], called: Container[str] = (), applied: Container[str] | None = None
) -> dict[str, nn.Module]:
    """The weight layers among all modules, in definition order; nothing inside a MultiheadAttention counts on its own.

    Beside leaves with a `weight`: modules that are called and apply a parameter to the data themselves, whatever it is
    called and whatever children they have, as long as no layer is called inside them. Which do is known from a dry run
    (`applied`); where it could not be followed, those with a weight of their own are taken.
    """
    closed = tuple(f"{name}." for name, module in modules.items() if isinstance(module, nn.MultiheadAttention))
    inner = {name: module for name, module in modules.items() if not name.startswith(closed)}
    found = {name for name, module in inner.items() if is_weight_layer(module)}
    for name in reversed(inner):  # children before their parents
        if name not in called or not (name in applied if applied is not None else _may_apply(modules[name])):
            continue
        if not any(other in called and (not name or other.startswith(f"{name}.")) for other in found):
            found.add(name)
    return {name: module for name, module in inner.items() if name in found}


def _may_apply(module: nn.Module) -> bool:
    own = [(name, p) for name, p in module.named_parameters(recurse=False) if p.is_floating_point()]
    large = [name for name, p in own if sum(size > 1 for size in p.shape) >= 2]
    return any(not NO_WEIGHT.search(name) for name in large) and kind_without_layer(module) not in (EMBEDDING, NORM)


def block_names(modules: Mapping[str, nn.Module], fired: set[str], layers: Container[str]) -> list[str]:
    """The outermost modules of repeated classes that are no bare container and hold two or more weight layers."""
    inside = [name for name in modules if name in fired and name in layers]
    candidates = {
        name: class_of(module)
        for name, module in modules.items()
        if name in fired
        and name
        and module._modules
        and class_of(module) not in BARE
        and sum(layer.startswith(f"{name}.") for layer in inside) >= 2
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
    if isinstance(module, FEATURES_LAST) or class_of(module).__name__ == "Conv1D":  # Hugging Face's linear layer
        return True
    return True if class_of(module) in (nn.LayerNorm, nn.RMSNorm) else None  # subclasses may permute axes


def logits_of(output: Any) -> Tensor | None:
    """The class scores in a model's output: itself, its `logits`, or its first floating-point tensor; (n, K) or (n,)."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    found = next(tensors_in(logits if isinstance(logits, Tensor) else output), None)
    return found if found is not None and found.dim() in (1, 2) else None


def classifier_weight(module: nn.Module) -> Tensor | None:
    """Rows of a linear classifier (K, d) in float64 on the CPU; `None` where it is not linear."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    full = getattr(weight, "full_tensor", None)  # a parameter that is sharded over ranks
    rows: Tensor = (full() if callable(full) else weight).detach().cpu().to(torch.float64)
    return rows.mT if class_of(module).__name__ == "Conv1D" else rows  # Hugging Face keeps (inputs, outputs)
