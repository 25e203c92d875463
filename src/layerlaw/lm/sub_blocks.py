"""The residual stream inside a block: the states between attention and the MLP, found by what a block adds to what it read.

A sequential block adds one branch after another: h = x + attention(norm x), then h + MLP(norm h). Some module reads the
state h (or gives it, where a norm stands behind each sum), so it can be measured like the output of a block. A parallel
block adds both branches at once to what it has read: there is no state after attention. No family is named here; sums are
recognized by their numbers in a dry run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from layerlaw.capture.hooks import hooked
from layerlaw.capture.modules import entering, modules_of, tensors_in
from layerlaw.capture.plan import Part, PartKind, Site
from layerlaw.errors import CaptureError
from layerlaw.lm.blocks import BlockStack, explained
from layerlaw.module_tree import class_of

SubSites = Literal["blocks", "sub-blocks"]
EXACT = 0.995  # of the entries of a sum have to be it but for rounding; a few may be rounded in another order
MOVED = 0.05  # of the entries of a state have to differ from the one before, or nothing was added
KINDS: tuple[tuple[str, PartKind], ...] = (("att", "attention"), ("mlp|ff|feed|moe|expert|dense|fc", "mlp"))
CURE = "Measure at the ends of blocks (sites='blocks'), or name modules whose outputs are to be measured (blocks)"


class _Passed(NamedTuple):
    """A hidden state that went into or came out of a call inside a block."""

    time: int
    name: str
    call: int
    at: Literal["input", "output"]
    pick: int
    values: Tensor  # (batch, time, width)


@dataclass(frozen=True)
class _Sum:
    """A branch was added to the state before, which gave this one; `name` of the module whose output was added."""

    name: str
    after: _Passed


def with_sub_blocks(model: nn.Module, blocks: BlockStack, inputs: Mapping[str, Any]) -> BlockStack:
    """The same blocks with a site at every state between the branches of a block, and what lies between two sites.

    Rows between the ends of blocks are no points of the law, which is about blocks.
    """
    chains = _chains(model, blocks, inputs)
    if all(len(chain) < 2 for _, _, chain in chains.values()):
        raise CaptureError(_why_none(*next(iter(chains.values())), blocks.sites[0]))
    modules = modules_of(model)
    sites: list[Site] = []
    parts: list[Part] = []
    before = blocks.plan(embedding=True).sites[0] if blocks.whole else None
    for end in blocks.sites:
        chain = chains[end.name][2]
        for branch, step in zip(_branches(end.module, chain), chain, strict=True) if len(chain) > 1 else ():
            brief, kind = branch.removeprefix(f"{end.module}."), class_of(modules[branch]).__name__
            site, place = end, step.after
            if step is not chain[-1]:
                inner = replace(end, name=f"{end.name} after {brief}", type=kind, in_fit=False)
                site = replace(inner, module=place.name, at=place.at, call=place.call, pick=place.pick)
                sites.append(site)
            if before is not None:
                does = _kind(f"{brief} {kind}", after_attention=any(p.layer == end.name for p in parts))
                parts.append(Part(end.name, does, branch, kind, before, site))
            before = site
        sites.append(end)
        before = end
    return replace(blocks, sites=tuple(sites), calls=blocks.calls | _calls(chains), parts=tuple(parts))


def one_branch_note(blocks: BlockStack) -> str:
    """A remark where some blocks have no state inside."""
    ends = [site for site in blocks.sites if site.in_fit]
    inside = {site.name.rpartition(" after ")[0] for site in blocks.sites if not site.in_fit}
    plain = [site.name for site in ends if site.name not in inside]
    if not inside or not plain:
        return ""
    listed = f"{', '.join(plain[:4])}{' …' * (len(plain) > 4)}"
    return f"{len(plain)} of {len(ends)} blocks have no state between branches: {listed}."


def _calls(chains: Mapping[str, tuple[Any, dict[str, int], Any]]) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for _, counts, chain in chains.values():
        for name in {step.after.name for step in chain[:-1]}:
            calls[name] = counts[name]
    return dict(calls)


def _chains(
    model: nn.Module, blocks: BlockStack, inputs: Mapping[str, Any]
) -> dict[str, tuple[list[_Passed], dict[str, int], list[_Sum]]]:
    """By site of a block: what passed in it, how often each module was called in all, and its sums.

    Of one block at a time the states are kept, but for the first: they would be as large as a small model.
    """
    ends = {(site.module, site.call): site for site in blocks.sites}
    homes = {site.module for site in blocks.sites}
    inside = [name for name in modules_of(model) if any(name == h or name.startswith(f"{h}.") for h in homes)]
    counts: Counter[str] = Counter()
    running: list[tuple[str, int]] = []
    passed: list[_Passed] = []
    found: dict[str, tuple[list[_Passed], dict[str, int], list[_Sum]]] = {}
    shape = (*blocks.seen, blocks.width)

    def keep(name: str, call: int, at: Literal["input", "output"], pick: int, tensor: Tensor | None) -> None:
        if tensor is not None and tuple(tensor.shape) == shape:
            passed.append(_Passed(len(passed), name, call, at, pick, tensor.detach().clone()))

    def enter(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if name in homes:
            passed.clear()
        running.append((name, counts[name]))
        counts[name] += 1
        keep(*running[-1], "input", 0, entering(args, kwargs))

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        while running[-1][0] != name:  # one that ended with an exception which the model has caught
            running.pop()
        _, call = running.pop()
        for pick, tensor in enumerate(tensors_in(output)):
            keep(name, call, "output", pick, tensor)
        if (end := ends.get((name, call))) is not None:
            found[end.name] = (list(passed) if not found else [], counts, _sums(passed, end))
            passed.clear()

    with explained(inputs, "the dry run"), hooked(model, inside, enter, leave):
        model(**inputs)
    return found


def _sums(passed: Sequence[_Passed], end: Site) -> list[_Sum]:
    """The sums from what a block reads to what it gives, in order; empty where they do not lead there."""
    own = [p for p in passed if p.name == end.module]
    start = next((p for p in own if p.at == "input"), None)
    last = next((p for p in own if p.at == "output" and p.pick == end.pick), None)
    if start is None or last is None:
        return []
    found: list[_Sum] = []
    state = start
    while len(found) < len(passed):
        base, step = next(
            ((b, s) for b in _as_base(state, passed) for s in _next_sum(b, passed, end.module)), (state, None)
        )
        if step is None:
            return []
        if found:  # where a norm stands behind each sum, the state is what it gives
            found[-1] = replace(found[-1], after=base)
        found.append(step)
        state = step.after
        if any(torch.equal(s.values, last.values) for s in _as_base(state, passed)):
            return [*found[:-1], replace(found[-1], after=last)]
    return []


def _as_base(state: _Passed, passed: Sequence[_Passed]) -> Iterator[_Passed]:
    """A state, then what the first single layer makes of it that reads it: a norm, perhaps."""
    yield state
    single = (p for p in passed if not any(other.name.startswith(f"{p.name}.") for other in passed))
    reads = (p for p in single if p.time >= state.time and p.at == "input" and torch.equal(p.values, state.values))
    if (reader := next(reads, None)) is not None:
        yield from (p for p in passed if (p.name, p.call, p.at) == (reader.name, reader.call, "output"))


def _next_sum(base: _Passed, passed: Sequence[_Passed], own: str) -> Iterator[_Sum]:
    """The first state behind `base` that is `base` plus what one module gave in between, that module outermost."""
    for after in passed:
        if after.time <= base.time or not _moved(base.values, after.values):
            continue
        between = [p for p in passed if base.time < p.time < after.time and p.at == "output" and p.name != own]
        between = [p for p in between if not torch.equal(p.values, after.values)]
        if adding := [p for p in between if _is_sum(after.values, base.values, p.values)]:
            added = min(adding, key=lambda p: (p.name.count("."), p.time))
            yield _Sum(_maker(added, between, passed), _read_by_a_module(after, passed))
            return


def _maker(added: _Passed, between: Sequence[_Passed], passed: Sequence[_Passed]) -> str:
    """The module that made what was added; where a norm of its own stands behind it, the one before that norm."""
    read = [p for p in passed if (p.name, p.call, p.at) == (added.name, added.call, "input")]
    made = [p for p in between for r in read if p.time < r.time and torch.equal(p.values, r.values)]
    alone = not any(p.name.startswith(f"{added.name}.") for p in passed)
    return min(made, key=lambda p: (p.name.count("."), p.time)).name if made and alone else added.name


def _read_by_a_module(state: _Passed, passed: Sequence[_Passed]) -> _Passed:
    """The same state as what a module reads, where one does: it stands there until the block is done with it."""
    same = [p for p in passed if p.at == "input" and p.time >= state.time and torch.equal(p.values, state.values)]
    return same[0] if same else state


def _rounding(*parts: Tensor) -> Tensor:
    eps = max(torch.finfo(part.dtype).eps for part in parts)
    return eps * sum((part.double().abs() for part in parts), torch.tensor(1e-30))


def _moved(before: Tensor, after: Tensor) -> bool:
    return float(((after.double() - before.double()).abs() > _rounding(before, after)).double().mean()) > MOVED


def _is_sum(total: Tensor, first: Tensor, *added: Tensor) -> bool:
    """Whether a state is the sum of others but for rounding; what is added alone may have a factor of its own."""
    step = total.double() - first.double()
    branch = sum((part.double() for part in added), torch.zeros_like(step))
    factor = float((branch * step).sum() / branch.square().sum().clamp_min(1e-300)) if len(added) == 1 else 1.0
    factor = 1.0 if abs(factor - 1) < 0.02 else factor
    rounding = _rounding(total, *(factor * part for part in added))
    if factor != 1:  # it was found from the rounded numbers themselves
        rounding = rounding + float(rounding.norm() / branch.norm().clamp_min(1e-300)) * branch.abs()
    exact = (step - factor * branch).abs() <= rounding
    return factor != 0 and float(exact.double().mean()) >= EXACT


def _branches(block: str, chain: Sequence[_Sum]) -> list[str]:
    """The branches of a block that the modules of its sums belong to: the first names in which they differ."""
    names = [step.name.removeprefix(f"{block}.").split(".") for step in chain]
    same = 0
    while len({tuple(name[: same + 1]) for name in names}) == 1 and all(len(name) > same + 1 for name in names):
        same += 1
    return [".".join([block, *name[: same + 1]]) for name in names]


def _kind(words: str, *, after_attention: bool) -> PartKind:
    """By what it is called: nothing else tells attention from an MLP at a glance; what follows attention is an MLP."""
    found: PartKind = next((kind for known, kind in KINDS if re.search(known, words.lower())), "other")
    return "mlp" if found == "other" and after_attention else found


def _why_none(passed: Sequence[_Passed], _: object, chain: Sequence[_Sum], end: Site) -> str:
    """What kind of block it is, in plain words."""
    what = f"sites='sub-blocks': expected blocks that add one branch after another, got '{end.name}' ({end.type}), "
    own = [p for p in passed if p.name == end.module]
    if len(chain) == 1:
        return f"{what}which adds one branch only ('{chain[0].name}'): no state lies inside. {CURE}."
    gave = [p for p in passed if p.at == "output" and p.name != end.module]
    start, last = own[0], own[-1]
    for a, b in combinations(gave, 2):
        names = _branches(end.module, [_Sum(p.name, p) for p in (a, b)])
        if names[0] == names[1] or not _is_sum(last.values, start.values, a.values, b.values):
            continue
        both = " and ".join(f"'{name}'" for name in names)
        if all(_reads_only(name, start, passed) for name in names):
            why = "at once to what it has read (a parallel block): there is no state after attention"
            return f"{what}which adds {both} {why}. {CURE}."
        return f"{what}which adds {both}, but no module reads or gives the state between them. {CURE}."
    return f"{what}in which no such sums were found. {CURE}."


def _reads_only(branch: str, start: _Passed, passed: Sequence[_Passed]) -> bool:
    """Whether a branch reads what the block has read, as it is or behind one layer (a norm)."""
    of_branch = [p for p in passed if p.name == branch or p.name.startswith(f"{branch}.")]
    first = next((p for p in of_branch if p.at == "input"), None)
    if first is None:
        return False
    same = [p for p in passed if p.at == "input" and torch.equal(p.values, start.values)]
    behind = [p for p in passed for r in same if (p.name, p.call, p.at) == (r.name, r.call, "output")]
    return any(torch.equal(first.values, p.values) for p in (start, *behind) if p.name != start.name or p is start)
