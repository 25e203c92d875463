"""What a user's choice of sites means: the name of a rule, names and patterns of modules, and the two ends of a model."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from layerlaw.capture.modules import matching, modules_of
from layerlaw.capture.network import network_of
from layerlaw.capture.plan import Site
from layerlaw.errors import CaptureError
from layerlaw.threads import users_device

RULES = ("auto", "layers", "blocks")  # what a string may say instead of naming modules


def chosen_by(modules: Mapping[str, nn.Module], item: Any) -> list[str]:
    """The modules that a user chose by a name, a glob, a type or a predicate."""
    if isinstance(item, type):
        return [name for name, module in modules.items() if isinstance(module, item)]
    if isinstance(item, str):
        if not item.strip():  # the name of the model as a whole, which is no place in it
            raise CaptureError(f"sites: expected a rule ({', '.join(RULES)}), names or globs of modules, got {item!r}.")
        return matching(modules, item, what="site")
    if callable(item) and not isinstance(item, nn.Module):
        return _chosen_by(item, modules)
    raise CaptureError(f"sites: expected names, globs, module types or a predicate, got {item!r}.")


def _chosen_by(predicate: Callable[[str, nn.Module], Any], modules: Mapping[str, nn.Module]) -> list[str]:
    """The names of the modules that a user's own function of name and module chooses."""
    try:
        with users_device():
            return [name for name, module in modules.items() if name and predicate(name, module)]
    except Exception as error:  # it raises anything
        came = f"{type(error).__name__}: {error}"
        raise CaptureError(
            f"sites: expected a function (name, module) → bool, got one that fails with {came}."
        ) from error


def check_sites(model: nn.Module, choice: Any) -> None:
    """Raise where a choice of sites means no module of the model: before the training, not in it."""
    modules = modules_of(network_of(model))
    for item in choice if isinstance(choice, (list, tuple)) else [choice]:
        known = isinstance(item, str) and item in (*RULES, "input", "output", "logits")
        if not known and not any(chosen_by(modules, item)):
            raise CaptureError(f"sites: expected a choice that matches a module of the model, {item!r} matches none.")


def without_ends(choice: Any, modules: Container[str]) -> tuple[Any, list[str]]:
    """A list with "logits" or "output" among it also measures these; beside names a module that is called so goes first."""
    if not isinstance(choice, (list, tuple)):
        return choice, []
    named = [item for item in ("output", "logits") if item in choice]
    others = [item for item in choice if not (isinstance(item, str) and item in named)]
    if named and len(others) == 1 and isinstance(others[0], str) and others[0] in RULES:
        return others[0], named
    named = [item for item in named if item == "logits" and item not in modules]
    return [item for item in choice if not (isinstance(item, str) and item in named)], named


def told_apart(sites: Iterable[Site]) -> list[Site]:
    """The sites with names of their own."""
    out: list[Site] = []
    for site in sites:
        taken = any(site.name == other.name for other in out)
        out.append(replace(site, name=f"{site.name} ({site.at})") if taken else site)
    return out
