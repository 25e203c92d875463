"""Descriptions that a recipe is made of: frozen dataclasses with a kind. To add a loss, subclass `Loss` here."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.capture.batches import Batch
from layerlaw.capture.network import Randomness, probing_state
from layerlaw.capture.plan import Plan, Reduce
from layerlaw.capture.site_rules import SiteChoice, find_sites
from layerlaw.errors import InputError


class Description(ABC):
    """The base of `Architecture` and `Loss`, whose subclasses are found by their kind when a file is read."""

    kind: ClassVar[str]
    what: ClassVar[str]  # as messages call it: "network", "loss"
    kinds: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Description in cls.__bases__:
            cls.kinds = {}
        elif "kind" in cls.__dict__:
            there = cls.kinds.setdefault(cls.kind, cls)
            if there.__qualname__ != cls.__qualname__:
                raise TypeError(f"kind: expected its own name for {cls.__name__}, {cls.kind!r} is {there.__name__}.")

    @classmethod
    def register(cls) -> None:
        """Make its kind known where the class came pickled: cloudpickle makes it first and gives it its kind later."""
        cls.kinds[cls.kind] = cls

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, the kind among them."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, also after a trip through JSON, which knows lists only."""
        return cls.of_kind(data["kind"])(**{k: _tuples(v) for k, v in data.items() if k != "kind"})

    @classmethod
    def of_kind(cls, kind: str) -> type[Self]:
        """The class of this kind; every file in lab/networks is looked through for it."""
        if kind not in cls.kinds:
            cls.import_families()
        if kind not in cls.kinds:
            near = difflib.get_close_matches(str(kind), cls.kinds, 1, 0.4)
            hint = f"Did you mean {near[0]}?" if near else "Import the module that defines it first."
            raise InputError(f"{cls.what}: expected one of the kinds {', '.join(cls.kinds)}, got {kind!r}. {hint}")
        return cls.kinds[kind]

    @staticmethod
    def import_families() -> None:
        """Every file in lab/networks, so that all kinds are known."""
        networks = importlib.import_module("layerlaw.lab.networks")
        for module in pkgutil.iter_modules(networks.__path__):
            importlib.import_module(f"{networks.__name__}.{module.name}")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


class Loss(Description):
    """What training minimizes: a frozen dataclass of settings with a `kind` and `build`.

    A loss that looks into the network says where: `sites` as for `probe` ("auto", "blocks", names, …). Their features
    come from the same forward as the logits, with gradients.
    """

    what: ClassVar[str] = "loss"

    @property
    def sites(self) -> SiteChoice | None:
        """Whose features the criterion gets; `None`: it needs none."""
        return None

    @abstractmethod
    def build(self) -> nn.Module:
        """A fresh criterion: logits (n, K), labels (n,), {site: (n, d)} → a number; its parameters are trained too.

        One with a method `end_epoch` is told after every epoch.
        """


def plan_sites(network: nn.Module, batch: Batch, choice: SiteChoice, reduce: Reduce = "flatten") -> Plan:
    """Where a loss looks into the network, by a dry run that leaves network and random numbers as they were."""
    with Randomness(), probing_state(network, "running"):
        return find_sites(network, batch, choice=choice, reduce=reduce)


def not_left_out(name: str, named: bool) -> str:
    """Why a site without a gradient, in no_grad mode, may not just be left out; empty where it may.

    Functions that compute a part of the model once more during backward (reentrant checkpointing) run it in this mode too:
    what a rule finds there does learn, and to leave it out would be silent. Such a function is on the stack.
    """
    frame = None if torch.compiler.is_compiling() else sys._getframe()
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_name == "forward" and code.co_varnames[:1] == ("ctx",):  # of a torch.autograd.Function
            why = "it runs in no_grad mode and is computed once more during backward, as by reentrant checkpointing"
            cure = "Use torch.utils.checkpoint with use_reentrant=False, or sites outside of what is recomputed"
            return f"Site '{name}' carries no gradient: {why}. {cure}."
    if named:
        cure = "Choose sites behind it, or a rule such as sites='auto', which leaves it out"
        return f"Site '{name}' carries no gradient: the model runs it in no_grad mode. {cure}."
    return ""


def why_lost(loss: Tensor, features: Mapping[str, Tensor]) -> str:
    """Where a loss that is NaN or infinite comes from, by the features (n, d) along depth, and what to do."""
    where = "features and logits are finite, so they or the labels' scores are too large or too small for their dtype"
    for name, x in features.items():
        lost = int((~x.isfinite().flatten(1).all(1)).sum())
        if lost:
            where = f"at '{name}' {lost} of {len(x)} samples have NaN or infinite features"
            break
    came = "NaN" if bool(loss.isnan().any()) else "infinite"
    return f"the loss is {came}: {where}. Check the inputs for such values, or use a lower learning rate"


def leaves_behind(starts: Collection[Any], is_goal: Callable[[Any], bool] = lambda node: False) -> set[Any] | None:
    """What the graph of autograd behind some nodes ends in: tensors, or nodes that lead nowhere; `None`: it meets a goal."""
    seen, ahead, leaves = set(starts), deque(starts), set()
    while ahead:
        node = ahead.popleft()  # breadth first: what is looked for is near
        if is_goal(node):
            return None
        behind = {one for one, _ in node.next_functions if one is not None}
        leaves |= set() if behind else {getattr(node, "variable", node)}
        ahead += behind - seen
        seen |= behind
    return leaves


def node_number() -> int | None:
    """The number of a node of autograd's graph that is made now: later ones of this thread have larger numbers."""
    node = torch.zeros((), device="cpu", requires_grad=True).clone().grad_fn
    return None if node is None else int(node._sequence_nr())


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """The mean over the batch of −log p(label)."""

    kind: ClassVar[str] = "cross_entropy"

    def build(self) -> nn.Module:
        """Without state."""
        return _MeanCrossEntropy()

    def __str__(self) -> str:
        return "cross-entropy"


class _MeanCrossEntropy(nn.Module):
    def forward(self, logits: Tensor, labels: Tensor, features: Mapping[str, Tensor]) -> Tensor:
        return F.cross_entropy(logits, labels)
