"""A network that is measured again and again: what its first dry run found is used as long as its structure is the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.network import probing_state
from layerlaw.capture.plan import Plan
from layerlaw.capture.site_rules import find_sites
from layerlaw.module_tree import named

PLAIN = (bool, int, str, float, type(None))
USUAL = frozenset(vars(nn.Module()))  # what every module has: a probe sets `training` itself, the others are torch's


class KeptPlans:
    """The plan of one network, and of what it was made: modules, their plain attributes, shapes of weights and inputs.

    Kept are plans that no number in a batch could have made otherwise: those of a classifier that ends in a layer and
    reads no tokens. All others are found anew.
    """

    def __init__(self) -> None:
        self._key: Hashable = None
        self._plan: Plan | None = None
        self.used = False
        """Whether the last measurement went by a plan that was kept."""

    def find(self, network: nn.Module, batch: Batch, **how: Any) -> Plan:
        """The plan: the one that was kept, or found by a dry run."""
        key = (_structure(network), _shapes(batch), _words(how))
        self.used = self._plan is not None and key == self._key
        if self._plan is not None and self.used:
            return self._plan
        plan = _found(network, batch, how)
        settled = plan.classifier is not None and plan.threshold == 0.0 and plan.tokens is None
        self._key, self._plan = key, plan if settled else None
        return plan

    def forget(self) -> None:
        """Find the next plan anew."""
        self._plan, self.used = None, False


_in_use: ContextVar[KeptPlans | None] = ContextVar("layerlaw kept plans", default=None)


@contextmanager
def keeping(plans: KeptPlans) -> Iterator[None]:
    """Probes in here use these plans."""
    token = _in_use.set(plans)
    try:
        yield
    finally:
        _in_use.reset(token)


def plan_of(network: nn.Module, batch: Batch, **how: Any) -> Plan:
    """Where to measure: a plan that is kept, where somebody keeps them, else what a dry run finds."""
    kept = _in_use.get()
    return _found(network, batch, how) if kept is None else kept.find(network, batch, **how)


def _found(network: nn.Module, batch: Batch, how: dict[str, Any]) -> Plan:
    with probing_state(network, "running"):
        return find_sites(network, batch, **how)


def _structure(network: nn.Module) -> Hashable:
    """What a dry run depends on, but for the numbers in weights and inputs."""
    found: list[Hashable] = []
    for name, module in named(network).items():
        about = vars(module)
        plain = tuple([(k, v) for k, v in about.items() if k not in USUAL and type(v) in PLAIN])
        shapes = tuple([(k, p.shape, p.dtype) for k, p in module._parameters.items() if p is not None])
        found.append((name, type(module), plain, shapes))
    return tuple(found)


def _shapes(batch: Batch) -> Hashable:
    """Of the samples in a batch what they look like, and whether there are enough for a dry run on three."""
    inputs = tuple((tuple(value.shape[1:]), value.dtype) for value in batch.tensors())
    return min(len(batch.labels), 3), tuple(batch.labels.shape[1:]), batch.labels.dtype, tuple(batch.kwargs), inputs


def _words(how: dict[str, Any]) -> Hashable:
    """The options of a plan; functions and classes are who they are."""
    return tuple((name, str(value), id(value) if callable(value) else 0) for name, value in how.items())
