"""Blocks as people mean them: runs of the trunk whose ends the graph of the data gives, and whose names the modules give.

A run is a module that takes a point of the trunk and gives a later one, or what lies between two neighboring points. What
holds a chain of alike runs (a stage, an encoder) is no block but its parts are; of what remains the outermost is taken:
attention and feed-forward part of one transformer block, the gate inside an inverted bottleneck, are no rows of their own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from torch import nn

from layerlaw.capture.hooks import Call
from layerlaw.capture.modules import BARE
from layerlaw.capture.trunk import Trunk
from layerlaw.module_tree import class_of

UNNAMED = "branch"  # the kind of a run that is not all of one module
LARGEST_SHARE = 0.5  # with more of the layers between two neighboring points the trunk says little about the network
LARGEST_PART = 8  # layers between two neighboring points that are never too many: an Inception module has as many


@dataclass(frozen=True)
class TrunkRun:
    """A run of the trunk from point `first` to point `last`, named after the module that holds its layers.

    `call` is the call of that module where its own output is the last point (its tensor number `pick`).
    """

    name: str
    title: str
    kind: str
    first: int
    last: int
    entered: int
    branched: bool
    call: Call | None = None
    pick: int = 0

    def holds(self, other: TrunkRun) -> bool:
        """Whether another run is one of its parts."""
        inside = self.first <= other.first and other.last <= self.last
        return inside and other.name.startswith(f"{self.name}.")

    @property
    def home(self) -> str:
        """The name of the module it is in."""
        return self.name.rpartition(".")[0]

    @property
    def numbered(self) -> bool:
        """Whether it is one of a series by its name."""
        return self.name[-1:].isdigit()


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor can be looked at: the input or an output of a call."""

    call: Call
    at: Literal["input", "output"]
    pick: int = 0


class Blocks:
    """The blocks of one network on its trunk."""

    def __init__(
        self, trunk: Trunk, calls: Sequence[Call], layers: Sequence[Call], modules: Mapping[str, nn.Module]
    ) -> None:
        self.trunk, self.calls, self.modules = trunk, calls, modules
        self.layers: dict[int, list[Call]] = defaultdict(list)  # by the part of the trunk that they work in
        for call in layers:
            parts = (trunk.part(seen.node) for seen in call.outputs)
            if (part := next((part for part in parts if part is not None), None)) is not None:
                self.layers[part].append(call)
        self._part_of = {call.entered: part for part, calls in self.layers.items() for call in calls}
        made = {node for call in layers for node in call.nodes}
        # What branches inside one layer, such as the gates of a recurrent one, is no branch of the network.
        self.branched = {i for i in trunk.branched if self.layers[i] and trunk.points[i + 1] not in made}

    def trouble(self, repeated: Sequence[str]) -> str:
        """Why the trunk is no picture of the network, which has these repeated modules; "" where it is."""
        most, total = max(map(len, self.layers.values()), default=0), sum(map(len, self.layers.values()))
        if most > max(LARGEST_PART, LARGEST_SHARE * total):
            return f"{most} of {total} layers lie between two neighboring points that every path passes"
        for run in self.runs:
            names = [] if run.call is not None else [call.name for call in self.layers[run.first]]
            held = [home for home in repeated if any(name.startswith(f"{home}.") for name in names)]
            if len(held) > len({class_of(self.modules[home]) for home in held}):
                return f"{len(held)} repeated modules, '{held[0]}' and others, hand on several tensors"
        return ""

    @cached_property
    def runs(self) -> list[TrunkRun]:
        """The blocks in the order of the trunk."""
        runs = self._whole_modules()
        runs += self._between_points(runs)
        chains = self._chains(runs)
        stages = [run for run in runs if run.kind in chains and any(run.holds(other) for other in runs)]
        rest = [run for run in runs if run not in stages]
        outermost = [run for run in rest if not any(other.holds(run) for other in rest)]
        count = Counter(run.kind for run in outermost)
        sure = [run for run in outermost if run.branched or count[run.kind] > 1]
        series = {_series(run.name) for run in sure if run.numbered}
        found = [run for run in outermost if run in sure or _series(run.name) in series]
        return self._joined(sorted(found, key=lambda run: (run.last, run.first)))

    def end(self, run: TrunkRun) -> TensorPlace | None:
        """Where the end of a run can be looked at: there, or as long as no layer has worked on it."""
        if run.call is not None:
            return TensorPlace(run.call, "output", run.pick)
        for point in range(run.last, len(self.trunk.points)):
            if (place := self._places.get(self.trunk.points[point])) is not None:
                return place
            if self.layers[point]:
                break
        root, node = next(call for call in self.calls if not call.name), self.trunk.points[run.last]
        picks = (pick for pick, seen in enumerate(root.outputs) if seen.node == node)
        return next((TensorPlace(root, "output", pick) for pick in picks), None)

    def in_front(self, run: TrunkRun) -> list[str]:
        """The layers of the trunk in no block between the block before (the input) and this one, such as a stem."""
        begin = max((other.last for other in self.runs if other.last <= run.first), default=0)
        return [call.name for part in range(begin, run.first) for call in self.layers.get(part, ())]

    def side(self, layer: Call) -> str:
        """Where a layer is: "inside", "in front of", "between" or "behind" the blocks."""
        if any(run.first <= self._part_of.get(layer.entered, -1) < run.last for run in self.runs):
            return "inside"
        spans = [(run.call.entered, run.call.left) for run in self.runs if run.call is not None]
        if any(entered < layer.entered < left for entered, left in spans):  # what no path to the output passes
            return "inside"
        last = max((call.left for run in self.runs for call in self._layers_of(run)), default=0)
        if layer.entered < min((run.entered for run in self.runs), default=0):
            return "in front of"
        return "behind" if layer.entered > last else "between"

    def _layers_of(self, run: TrunkRun) -> list[Call]:
        return [call for part in range(run.first, run.last) for call in self.layers.get(part, ())]

    @cached_property
    def _places(self) -> dict[int, TensorPlace]:
        found: dict[int, TensorPlace] = {}
        for call in self.calls:
            for pick, seen in enumerate(call.outputs):
                if seen.node is not None and call.name:
                    found.setdefault(seen.node, TensorPlace(call, "output", pick))
        for call in self.calls:
            if call.input is not None and call.input.node is not None:
                found.setdefault(call.input.node, TensorPlace(call, "input"))
        return found

    def _whole_modules(self) -> list[TrunkRun]:
        """Modules that take a point of the trunk and give a later one, with two layers, or one and a branch."""
        layers = [call for calls in self.layers.values() for call in calls]
        names = {call.name for call in layers}
        runs = []
        for call in self.calls:
            if not call.name or class_of(call.module) in BARE or call.name in names or call.input is None:
                continue
            first = self.trunk.position(call.input.node)
            ends = [(self.trunk.position(seen.node), pick) for pick, seen in enumerate(call.outputs)]
            last, pick = next(((end, pick) for end, pick in ends if end is not None), (None, 0))
            if first is None or last is None or last <= first:
                continue
            inside = [c for c in layers if c.name.startswith(f"{call.name}.") and call.entered < c.entered < call.left]
            branched = any(part in self.branched for part in range(first, last))
            gate = all(self._part_of[layer.entered] in self.trunk.gates for layer in inside)
            if (len(inside) >= 2 or branched) and not gate:
                kind = class_of(call.module).__name__
                runs.append(TrunkRun(call.name, call.title, kind, first, last, call.entered, branched, call, pick))
        return runs

    def _between_points(self, runs: Sequence[TrunkRun]) -> list[TrunkRun]:
        """Branches that rejoin outside of the module that holds their layers, as in `x = x + layer(x)`."""
        found = []
        for part in sorted(self.branched):
            layers = self.layers[part]
            owner = _common([call.name for call in layers])
            if len(layers) < 2 or any(r.name == owner and r.first <= part < r.last for r in runs) or self._heads(part):
                continue
            calls = [
                c for c in self.calls if c.name == owner and c.entered < layers[0].entered and layers[-1].left < c.left
            ]
            others = [c for i, cs in self.layers.items() if i != part for c in cs if c.name.startswith(f"{owner}.")]
            own = bool(owner) and not (calls and any(calls[-1].entered < c.entered < calls[-1].left for c in others))
            own = own and (bool(calls) or not others)
            name = owner if own else layers[0].name
            title = (calls[-1].title if calls else owner) if own else f"{layers[0].title} … {layers[-1].title}"
            kind = class_of(self.modules[name]).__name__ if own else UNNAMED
            found.append(TrunkRun(name, title, kind, part, part + 1, layers[0].entered, True))
        return found

    def _heads(self, part: int) -> bool:
        """Whether a part is several classifiers whose scores are put together."""
        sizes = [self.trunk.nodes[point].size for point in self.trunk.points[part : part + 2]]
        return sizes[0] != sizes[1] and not any(later > part and calls for later, calls in self.layers.items())

    def _chains(self, runs: Sequence[TrunkRun]) -> set[str]:
        """Classes whose modules hold a chain of alike runs: numbered items of one list, or nothing but such runs."""
        count, chains = Counter(run.kind for run in runs), set()
        for run in runs:
            parts = [other for other in runs if run.holds(other)]
            top = [part for part in parts if not any(other.holds(part) for other in parts)]
            items = Counter((part.home, part.kind) for part in parts if self._is_item(part))
            kinds = Counter(part.kind for part in top if part.call is not None)
            same = len({part.kind for part in top}) == 1 and all(part.call is not None for part in top)
            same = same and (all(part.numbered for part in top) or all(self._alike(part, top[0]) for part in top))
            repeated = max(kinds.values(), default=0) > 1
            if max(items.values(), default=0) > 1 or (same and len(top) > 1) or (repeated and count[run.kind] == 1):
                chains.add(run.kind)
        return chains

    def _is_item(self, run: TrunkRun) -> bool:
        return run.numbered and isinstance(self.modules.get(run.home), BARE)

    def _alike(self, one: TrunkRun, other: TrunkRun) -> bool:
        """Whether two runs are of one class and made of the same kinds of parts, up to a shortcut or a gate."""
        a, b = (_kinds(self.modules[run.name]) for run in (one, other))
        return one.kind == other.kind and (a <= b or b <= a)

    def _joined(self, runs: list[TrunkRun]) -> list[TrunkRun]:
        """Parts of one numbered list, such as [attention, feed-forward], are one block where several lists are made so."""
        homes: dict[str, list[TrunkRun]] = defaultdict(list)
        for run in runs:
            if (
                run.home.rpartition(".")[2].isdigit()
                and run.home in self.modules
                and class_of(self.modules[run.home]) in BARE
            ):
                homes[run.home].append(run)
        sizes = [node.size for node in (self.trunk.nodes[point] for point in self.trunk.points)]
        several = {
            home: parts
            for home, parts in homes.items()
            if len(parts) > 1
            and not any(self._alike(a, b) for i, a in enumerate(parts) for b in parts[:i])
            and all(sizes[part.first] == sizes[part.last] for part in parts)
        }
        count = Counter(_series(home) for home in several)
        for home, parts in several.items():
            if count[_series(home)] > 1:
                kind, end = " + ".join(part.kind for part in parts), self.trunk.points[parts[-1].last]
                own = (c for c in self.calls if c.name == home and c.output is not None and c.output.node == end)
                call, first = next(own, None), parts[0]  # a list that is no module of its own to call has none
                place: dict[str, Any] = {"call": call, "pick": 0} if call is not None else {}
                about: dict[str, Any] = {"name": home, "title": home, "kind": kind, "entered": first.entered}
                whole = replace(parts[-1], first=first.first, **about, **place)
                runs = [whole if run is parts[-1] else run for run in runs if run not in parts[:-1]]
        return runs


def works_behind(end: TensorPlace, layers: Iterable[Call], trunk: Trunk | str) -> bool:
    """Whether one of these layers works on the data behind a place, such as the end of the last block."""
    seen = end.call.tensor(end.at, end.pick)
    if isinstance(trunk, str) or seen is None or seen.node is None:  # the data could not be followed: by time
        passed = end.call.entered if end.at == "input" else end.call.left
        return any(call.entered >= passed for call in layers)
    return any(node > seen.node and node in trunk.reads for call in layers for node in call.nodes)


def _series(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _common(names: Iterable[str]) -> str:
    """The innermost module that holds all of them.

    >>> _common(["a.b.one", "a.b.two"]), _common(["a.b.one"]), _common(["a", "b"])
    ('a.b', 'a.b', '')
    """
    split = [name.split(".")[:-1] for name in names]
    shared = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _kinds(module: nn.Module) -> set[str]:
    """What a module is made of: classes with weights, and all that are not of torch."""
    return {
        class_of(part).__name__
        for part in module.modules()
        if not type(part).__module__.startswith("torch.nn") or any(p.dim() > 1 for p in part.parameters(recurse=False))
    }
