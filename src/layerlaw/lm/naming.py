"""Blocks named by hand: lists of modules, patterns, or modules one by one."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence

from torch import nn

from layerlaw.errors import CaptureError, InputError

LEAST_BLOCKS = 2
LINES = 60  # of a module tree in an error


def named_modules(modules: Mapping[str, nn.Module], named: str | Sequence[str]) -> list[str]:
    """The names of the modules that are meant; a list of modules stands for what is in it."""
    parts = named.split(",") if isinstance(named, str) else list(named)
    if not all(isinstance(part, str) for part in parts):
        raise InputError(f"blocks: expected names of modules, got {named!r}.")
    found: dict[str, None] = {}
    for part in (part.strip() for part in parts):
        for name in _meant(modules, part):
            inside = isinstance(modules[name], (nn.ModuleList, nn.ModuleDict, nn.Sequential))
            found |= dict.fromkeys(
                (f"{name}.{child}" for child, _ in modules[name].named_children()) if inside else [name]
            )
    if len(found) < LEAST_BLOCKS:
        raise InputError(f"blocks: expected at least {LEAST_BLOCKS} modules, got {', '.join(found) or 'none'}.")
    return list(found)


def _meant(modules: Mapping[str, nn.Module], part: str) -> list[str]:
    if "*" in part or "?" in part:
        hits = [name for name in modules if fnmatch.fnmatchcase(name, part) and name.count(".") == part.count(".")]
    else:
        hits = [part] if part and part in modules else []
    if hits:
        return hits
    near = difflib.get_close_matches(part, [name for name in modules if name], n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise CaptureError(f"blocks: the model has no module {part!r}.{hint} Its tree:\n{tree(modules)}")


def common_home(names: Sequence[str]) -> str:
    """The module that all of them are in.

    >>> common_home(["model.layers.0.mlp", "model.layers.1.mlp"])
    'model.layers'
    """
    paths = [name.split(".")[:-1] for name in names]
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def tree(modules: Mapping[str, nn.Module]) -> str:
    """The modules of a model, two levels deep, for an error."""
    lines = [
        f"  {name}: {type(module).__name__}"
        for name, module in modules.items()
        if name and name.count(".") <= 2 and not name.rpartition(".")[2].isdigit()
    ]
    more = f"\n  … and {len(lines) - LINES} more" if len(lines) > LINES else ""
    return "\n".join(lines[:LINES]) + more
