"""The blocks of a language model, found by structure: a list of modules through which the tokens pass one after another.

No family is named here. In a dry run a block is a child of a list (nn.ModuleList or nn.Sequential) that turns a tensor
(batch, time, width) into another of the same shape; of several such lists the one that holds the most parameters and is not
inside another is taken, in an encoder-decoder the one that runs last. Where that is not what is wanted, they are named.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Call, Capture, Seen, Trace, trace
from layerlaw.capture.modules import matching, modules_of
from layerlaw.capture.plan import Part, Plan, Site
from layerlaw.errors import CaptureError, InputError, LayerlawError
from layerlaw.lm.weights import weight_count
from layerlaw.module_tree import class_of
from layerlaw.threads import on_cpu, users_device

Norm = Literal["rms", "layer", "none"]
LEAST_BLOCKS = 2
EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps")  # what families call it
LINES = 60  # of a module tree in an error
NO_MEMORY = "out of memory"  # how the message begins


@dataclass(frozen=True)
class BlockStack:
    """The sites of the blocks in the order they run (a shared one several times), and the norm after them.

    `calls` says how often each module is called; `seen`, batch and time of the hidden states in the dry run; `linked`,
    whether every block takes what the one before has given; `whole`, whether they are also all of their list, so that the
    embedded text enters the first; `called`, all modules that ran. Sites between the branches of a block are no points of
    the law; `parts` are what the branches do.
    """

    sites: tuple[Site, ...]
    calls: dict[str, int]
    seen: tuple[int, int]
    norm: Norm
    eps: float
    norm_name: str = ""
    home: str = ""
    named: bool = False
    linked: bool = True
    whole: bool = True
    overwrites_input: bool = False
    others: tuple[str, ...] = field(default=(), repr=False)
    called: frozenset[str] = field(default=frozenset(), repr=False)
    parts: tuple[Part, ...] = field(default=(), repr=False)

    @property
    def width(self) -> int:
        """Features of a hidden state."""
        return self.sites[-1].features

    def __str__(self) -> str:
        ends = [site for site in self.sites if site.in_fit]
        kinds = ", ".join(dict.fromkeys(site.type for site in ends))
        after = f"{self.norm} norm '{self.norm_name}' behind them" if self.norm != "none" else "no norm behind them"
        home = f" in '{self.home}'" if self.home else ""
        return f"{len(ends)} blocks of type {kinds}{home}, width {self.width}, {after}"

    def plan(self, *, embedding: bool) -> Plan:
        """What capture has to know; `embedding`: also what enters the first block."""
        first = next(site for site in self.sites if site.in_fit)  # not a state inside it
        opening = replace(first, name="embedded input", at="input", type="input", in_fit=False, pick=0)
        return Plan(
            sites=(opening,) * embedding + self.sites,
            rule="blocks",
            why=str(self),
            overwrites_input=self.overwrites_input,
            calls=self.calls,
        )


@dataclass(frozen=True)
class _Step:
    """A call, the hidden state that it gave, and which of its tensors that is."""

    call: Call
    pick: int
    state: Seen | None

    @classmethod
    def of(cls, call: Call) -> _Step:
        for pick, seen in enumerate(call.outputs):  # a block may hand its input on beside what it has made of it
            if call.input is not None and seen.shape == call.input.shape and not seen.same_content(call.input):
                return cls(call, pick, seen)
        return cls(call, 0, call.output)

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.state is None else self.state.shape

    def reads(self, before: _Step) -> bool:
        """Whether it takes what another one has given."""
        return self.call.input is not None and before.state is not None and self.call.input.same_content(before.state)


@on_cpu
def find_blocks(model: nn.Module, inputs: Mapping[str, Any], named: str | Sequence[str] | None = None) -> BlockStack:
    """Run the model once on a few tokens and find its blocks, or those that are `named`; an error shows its tree.

    named   a list of modules ("model.layers"), a pattern ("layers.*.mlp"), or names of modules, with commas or as a list
    """
    modules = modules_of(model)
    chosen = None if named is None else _named_modules(modules, named)
    with torch.no_grad():
        traced = trace(model, _batch(inputs), hint="Does it take token ids as input_ids?")
    steps = [_Step.of(call) for call in traced.calls]
    lists = _lists(modules, steps)
    own = _main_list(model, modules, lists) if lists else ""
    if chosen is not None:
        home, mine = _common_home(chosen), _steps_of(chosen, steps)
        siblings = {s.call.name for s in steps if _parent(s.call.name) == home and s.shape == mine[0].shape}
        whole = _linked(mine) and siblings == set(chosen)
        return _described(traced, steps, mine, home, own=lists.get(own), named=True, whole=whole)
    _refuse_side_branches(modules, steps, own)
    if not lists:
        expected = "a list of at least two modules (nn.ModuleList or nn.Sequential) through which tokens pass as"
        cure = f"If they are in none, name them (blocks, or --blocks). The model's tree:\n{_tree(modules)}"
        raise CaptureError(f"no blocks found: expected {expected} (batch, time, width). {cure}")
    others = tuple(other for other in lists if other != own)
    return _described(traced, steps, lists[own], own, whole=_linked(lists[own]), others=others)


def _main_list(model: nn.Module, modules: Mapping[str, nn.Module], lists: Mapping[str, list[_Step]]) -> str:
    """An encoder-decoder runs its decoder last; otherwise the list with the most weights, of those that pass on directly."""
    size = {home: weight_count(modules[home]) for home in lists}
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        large = [home for home in lists if 4 * size[home] >= max(size.values())]
        return max(large, key=lambda h: lists[h][-1].call.left)
    return max(lists, key=lambda h: (_linked(lists[h]), size[h], -lists[h][0].call.entered))


def _refuse_side_branches(modules: Mapping[str, nn.Module], steps: list[_Step], found: str) -> None:
    """What was found is not the model where a larger list runs whose states are no (batch, time, width)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for step in steps:
        home = _parent(step.call.name)
        seen = step.call.input
        if home and isinstance(modules[home], nn.ModuleList) and seen is not None and len(seen.shape) > 3:
            shapes.setdefault(home, seen.shape)
    most = weight_count(modules[found]) if found else 0
    larger = [home for home in shapes if weight_count(modules[home]) > most and not found.startswith(f"{home}.")]
    if not larger:
        return
    home = max(larger, key=lambda name: weight_count(modules[name]))
    children = list(modules[home].children())
    what = f"'{home}' ({len(children)} of type {class_of(children[0]).__name__}), which holds most of the model"
    came = f"got {shapes[home]} in {what}"
    cure = "Name modules that give one state per token (blocks, or --blocks)"
    raise CaptureError(
        f"blocks: expected hidden states (batch, time, width), {came}. {cure}. Its tree:\n{_tree(modules)}"
    )


def _described(
    traced: Trace, steps: list[_Step], chosen: list[_Step], home: str, *, own: list[_Step] | None = None, **about: Any
) -> BlockStack:
    """`own`: the model's blocks where others were named; the norm behind them is that of all states that are named."""
    batch, time, width = chosen[-1].shape
    norm_name, norm, eps = _norm_after(steps, (own or chosen)[-1])
    sites = tuple(
        Site(
            c.title,
            c.name,
            "output",
            c.number,
            class_of(c.module).__name__,
            0,
            1,
            True,
            (width,),
            width,
            pick=step.pick,
        )
        for step in chosen
        for c in [step.call]
    )
    names = {site.module for site in sites}
    calls = dict(Counter(call.name for call in traced.calls if call.name in names))
    about |= {
        "called": frozenset(call.name for call in traced.calls),
        "norm_name": norm_name,
        "home": home,
        "linked": _linked(chosen),
    }
    return BlockStack(sites, calls, (batch, time), norm, eps, overwrites_input=traced.overwrites_input, **about)


def _linked(steps: list[_Step]) -> bool:
    return all(after.reads(before) for before, after in itertools.pairwise(steps))


def _lists(modules: Mapping[str, nn.Module], steps: list[_Step]) -> dict[str, list[_Step]]:
    """Of every list of modules the calls that pass hidden states on, where there are at least two; outermost lists only."""
    found: dict[str, list[_Step]] = {}
    for home, module in modules.items():
        nested = any(home.startswith(f"{other}.") for other in found)
        if not home or nested or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        inside = [s for s in steps if _parent(s.call.name) == home and len(s.shape) == 3]
        inside = [s for s in inside if s.call.input is not None and s.call.input.shape == s.shape]
        if len(inside) >= LEAST_BLOCKS and weight_count(inside[0].call.module):
            found[home] = sorted(inside, key=lambda s: s.call.entered)
    return found


def _steps_of(names: Sequence[str], steps: list[_Step]) -> list[_Step]:
    """The calls of modules named by hand, in the order they end; all must give hidden states of one width."""
    found = sorted((step for step in steps if step.call.name in set(names)), key=lambda step: step.call.left)
    idle = [name for name in names if all(step.call.name != name for step in found)]
    if idle:
        raise CaptureError(f"blocks: '{idle[0]}' was not called in the dry run, so it gives no hidden states.")
    first = found[0]
    for step in found:
        if len(step.shape) != 3 or step.shape != first.shape:
            expected = "(batch, time, width)" if len(first.shape) != 3 else f"{first.shape} as '{first.call.name}' does"
            came = step.shape or "no tensor"
            raise CaptureError(f"blocks: expected '{step.call.name}' to give {expected}, got {came}.")
    return found


def _named_modules(modules: Mapping[str, nn.Module], named: str | Sequence[str]) -> list[str]:
    """The names of the modules that are meant; a list of modules stands for what is in it."""
    parts = named.split(",") if isinstance(named, str) else list(named)
    if not all(isinstance(part, str) for part in parts):
        raise InputError(f"blocks: expected names of modules, got {named!r}.")
    found: dict[str, None] = {}
    for part in (part.strip() for part in parts):
        try:
            meant = matching({n: m for n, m in modules.items() if n}, part, what="blocks:", same_depth=True)
        except CaptureError as error:
            raise CaptureError(f"{error} Its tree:\n{_tree(modules)}") from None
        for name in meant:
            inside = isinstance(modules[name], (nn.ModuleList, nn.ModuleDict, nn.Sequential))
            children = (f"{name}.{child}" for child, _ in modules[name].named_children())
            found |= dict.fromkeys(children if inside else [name])
    if len(found) < LEAST_BLOCKS:
        raise InputError(f"blocks: expected at least {LEAST_BLOCKS} modules, got {', '.join(found) or 'none'}.")
    return list(found)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _common_home(names: Sequence[str]) -> str:
    """The module that all of them are in.

    >>> _common_home(["model.layers.0.mlp", "model.layers.1.mlp"])
    'model.layers'
    """
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return ".".join(parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, levels))


def _tree(modules: Mapping[str, nn.Module]) -> str:
    """The modules of a model, two levels deep, for an error."""
    lines = [
        f"  {name}: {class_of(module).__name__}"
        for name, module in modules.items()
        if name and name.count(".") <= 2 and not name.rpartition(".")[2].isdigit()
    ]
    more = f"\n  … and {len(lines) - LINES} more" if len(lines) > LINES else ""
    return "\n".join(lines[:LINES]) + more


def _norm_after(steps: list[_Step], last: _Step) -> tuple[str, Norm, float]:
    """The first module behind the last block that reads its output and divides by its size, and how."""
    for step in steps:
        call = step.call
        if call.entered > last.call.left and step.reads(last) and call.input and call.input.shape == last.shape:
            norm = _kind_of_norm(call.module, last.shape[2])
            if norm is not None:
                named = (getattr(call.module, name, None) for name in EPSILONS)
                return call.name, norm, next((value for value in named if isinstance(value, float)), 1e-6)
    return "", "none", 0.0


def _kind_of_norm(module: nn.Module, d: int) -> Norm | None:
    """What a module does to a row: scaling it changes nothing in a norm, shifting it nothing in a layer norm."""
    if next(module.children(), None) is not None:
        return None
    first = next(module.parameters(), None)
    x = (10 * torch.linspace(-1.7, 2.3, d).sin()).reshape(1, 1, d)
    if first is not None:  # the weights of an offloaded module come when it is called
        x = x.to("cpu" if first.is_meta else first.device, first.dtype)
    try:
        with torch.no_grad(), users_device():
            plain, scaled, shifted = (module(v) for v in (x, 4 * x, x + 32))
    except Exception:  # whatever it is, it is no norm of a row
        return None
    if not isinstance(plain, Tensor) or plain.shape != x.shape:
        return None
    near = partial(torch.allclose, plain, rtol=2e-2, atol=2e-2 * float(plain.abs().max()))
    return ("layer" if near(shifted) else "rms") if near(scaled) else None


def run(capture: Capture, inputs: Mapping[str, Any], *, where: str) -> Any:
    """One forward whose hidden states go to the consumer; returns what the model does."""
    with explained(inputs, where):
        return capture.run(_batch(inputs), where=where)


@contextmanager
def explained(inputs: Mapping[str, Any], where: str) -> Iterator[None]:
    """No gradients; a forward that fails is reported with the shapes that went in."""
    try:
        with torch.no_grad(), users_device():
            yield
    except LayerlawError:
        raise
    except Exception as error:  # an assertion of the model's own, say
        no_memory = "not enough memory" in str(error) or "can't allocate" in str(error)
        if no_memory or isinstance(error, torch.OutOfMemoryError):
            smaller = "a smaller batch (batch_size=1), shorter pieces (length=256), a smaller dtype (dtype='bfloat16')"
            cure = f"use {smaller}, or spread the model (device_map='auto')"
            raise CaptureError(f"{NO_MEMORY} in {where}: {cure}.") from error
        shapes = ", ".join(f"{name} {tuple(v.shape)}" for name, v in inputs.items() if isinstance(v, Tensor))
        said = f"{type(error).__name__}: {error}. Does it take token ids as input_ids?"
        raise CaptureError(f"the model failed in {where} ({shapes}): {said}") from error


def _batch(inputs: Mapping[str, Any]) -> Batch:
    """Token inputs as capture takes them; nobody looks at the labels."""
    first = next(value for value in inputs.values() if isinstance(value, Tensor))
    return Batch((), dict(inputs), torch.zeros(len(first), dtype=torch.long))
