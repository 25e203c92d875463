"""`file.py:make` → a model: the user's own code, run as it is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.errors import DataError, InputError, MissingExtraError


def load_model(reference: str, more: str = "(model, data) or (model, data, test)") -> tuple[nn.Module, Any, Any]:
    """(model, data or None, test data or None) from `file.py:make` or `package.module:make`, which may give `more`."""
    place, _, attribute = reference.rpartition(":")
    if not place or not attribute.isidentifier():
        raise InputError(f"model: expected 'file.py:make' or 'package.module:make', got {reference!r}.")
    module = _module(place)
    if not hasattr(module, attribute):
        known = [name for name in vars(module) if not name.startswith("_")]
        raise InputError(f"{place} has no '{attribute}'. It has: {', '.join(known[:20])}.")
    made = getattr(module, attribute)
    if not isinstance(made, nn.Module) and callable(made):
        with explained(reference):
            made = made()
    parts = made if isinstance(made, tuple) else (made,)
    model, data, test = (*parts, None, None)[:3]
    if not isinstance(model, nn.Module):
        raise InputError(f"{reference}: expected a callable that returns a model, {more}, got {type(model).__name__}.")
    return model, data, test


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a model from a safetensors or torch file; no pickled code is ever run."""
    state = _state(path)
    inner = state.get("state_dict", state.get("model", state))
    if not isinstance(inner, dict) or not all(isinstance(v, Tensor) for v in inner.values()):
        raise DataError(f"{path}: expected a state dict of tensors, got the keys {list(state)[:10]}.")
    if all(key.startswith("module.") for key in inner):
        inner = {key.removeprefix("module."): value for key, value in inner.items()}
    try:
        model.load_state_dict(inner)
    except RuntimeError as error:
        lines = [line.strip()[:300] for line in str(error).splitlines()[1:6]]
        raise DataError(f"{path}: the weights do not fit the model. " + " ".join(lines)) from None


def _state(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path}: expected a file of weights, found none.")
    if path.suffix == ".safetensors":
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ImportError:
            raise MissingExtraError("safetensors", "weights", "Reading .safetensors") from None
        try:
            loaded: dict[str, Any] = load_file(path)
        except SafetensorError as error:
            raise DataError(
                f"{path}: expected a safetensors file, got something else or a damaged one ({error})."
            ) from None
        return loaded
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different one for every way a file can be wrong
        raise DataError(
            f"{path}: expected a file of plain weights (torch.save(model.state_dict(), …)); "
            f"it is damaged or holds other objects, which are not loaded for safety ({type(error).__name__})."
        ) from None
    if not isinstance(state, dict):
        raise DataError(f"{path}: expected a state dict, got {type(state).__name__}.")
    return state


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise InputError(f"{place}: expected a file 'name.py' or an importable module ({error}).") from None
    path = Path(place)
    if not path.is_file():
        raise InputError(f"{place}: expected a Python file, found none.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # the file's own neighbors can be imported
    sys.modules.setdefault(path.stem, module)
    with explained(place):
        spec.loader.exec_module(module)
    return module


@contextmanager
def explained(what: str) -> Iterator[None]:
    """An error in the user's own code is reported with its own lines, not with ours."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
        own = [frame for frame in frames if "importlib" not in frame.filename]
        places = "".join(f"\n  {frame.filename}, line {frame.lineno}: {frame.line}" for frame in own[-4:])
        raise InputError(f"{what} failed with {type(error).__name__}: {error}{places}") from None
