"""Files of weights: read without ever running pickled code, unwrapped, and loaded into a model that they fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from layerlaw.errors import DataError
from layerlaw.files import as_path
from layerlaw.packed import read_safetensors, read_torch
from layerlaw.wording import counted

INSIDE = ("state_dict", "model", "model_state_dict")  # where training loops put the weights
WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name
NAMED = 5  # keys that an error names


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a model the weights of a safetensors or torch file; an error says which of them do not fit."""
    state = read_state(path)
    inner = next((state[key] for key in INSIDE if isinstance(state.get(key), dict)), state)
    if not isinstance(inner, dict) or not inner or not all(isinstance(v, Tensor) for v in inner.values()):
        raise DataError(f"{path}: expected a state dict of tensors, got the keys {list(state)[:10]}.")
    own = model.state_dict()
    inner = unwrapped(inner, own)
    for name, value in inner.items():
        if isinstance(here := own.get(name), Tensor) and _sort_of(value) != _sort_of(here):
            expected = f"'{name}' as {_sort_of(here)} numbers, such as {_dtype_word(here)}"
            raise DataError(
                f"{path}: expected {expected}, got {_dtype_word(value)}. Are these the weights of this model?"
            )
    try:
        model.load_state_dict(inner)
    except RuntimeError as error:
        lines = " ".join(line.strip()[:300] for line in str(error).splitlines()[1:6])
        raise DataError(f"{path}: the weights do not fit the model: {misfits(inner, own) or lines}.") from None


def read_state(path: Path) -> dict[str, Any]:
    """What a file of weights holds by name."""
    if not as_path(path, "weights.pt").is_file():
        raise DataError(f"{path}: expected a file of weights, found none.")
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    state = read_torch(path, what="plain weights (torch.save(model.state_dict(), …))")
    if not isinstance(state, dict):
        raise DataError(f"{path}: expected a state dict, got {type(state).__name__}.")
    return state


def unwrapped(state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The state without what wrappers put before its names: `module.` and `_orig_mod.`, at any depth of wrapping, and one
    name more, such as that of the network in a LightningModule, where without it all names are the model's.

    >>> unwrapped({"_orig_mod.module.fc.bias": 1}, {"fc.bias": 0}), unwrapped({"net.fc.bias": 1}, {"fc.bias": 0})
    ({'fc.bias': 1}, {'fc.bias': 1})
    >>> unwrapped({"module.fc.bias": 1}, {"module.fc.bias": 0})
    {'module.fc.bias': 1}
    """
    found = dict(state)
    while found and found.keys() != own.keys():
        wrapper = next((w for w in WRAPPERS if all(str(key).startswith(w) for key in found)), None)
        if wrapper is None:
            break
        found = {key.removeprefix(wrapper): value for key, value in found.items()}
    firsts = {str(key).partition(".")[0] for key in found}
    inner = {str(key).partition(".")[2]: value for key, value in found.items()}
    return inner if len(firsts) == 1 and found.keys() != own.keys() and inner.keys() == own.keys() else found


def misfits(state: Mapping[str, Tensor], own: Mapping[str, Any]) -> str:
    """Which keys are missing, which are surplus, which have other shapes; empty where all fit."""
    parts = []
    for keys, what in (
        ([key for key in own if key not in state], "missing"),
        ([key for key in state if key not in own], "surplus"),
    ):
        if keys:
            parts.append(f"{counted(len(keys), 'key')} {'is' if len(keys) == 1 else 'are'} {what} ({_some(keys)})")
    shapes = [
        f"'{key}' has the shape {tuple(value.shape)}, the model's {tuple(own[key].shape)}"
        for key, value in state.items()
        if isinstance(own.get(key), Tensor) and not is_lazy(own[key]) and own[key].shape != value.shape
    ]
    more = [f"{len(shapes) - NAMED} more have other shapes"] if len(shapes) > NAMED else []
    return "; ".join([*parts, *shapes[:NAMED], *more])


def _some(keys: list[str]) -> str:
    return ", ".join(f"'{key}'" for key in keys[:NAMED]) + ", …" * (len(keys) > NAMED)


def _dtype_word(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _sort_of(values: Tensor) -> str:
    """What kind of numbers a tensor holds: copying one kind into another loses digits, or the imaginary part."""
    if values.is_quantized:
        return "quantized"
    return "complex" if values.is_complex() else "floating-point" if values.is_floating_point() else "whole"
