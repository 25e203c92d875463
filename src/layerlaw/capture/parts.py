"""What a layer is made of: its linear map, and the normalization and nonlinearity that follow, found in one forward.

Weight layers follow each other in time; what is called between two of them belongs to the first. A nonlinearity is what acts
on every number alone and is not linear, which its input and output show; a normalization is what doubling its input does not
change, or what keeps running statistics or is named so. Functions that no module holds are the rest between the tensors that
modules show: a nonlinearity where they act on every number alone (a functional activation), else "other" (a skip connection,
pooling, or an activation together with these). "Other" are also layers that are no linear map: attention, recurrence.

What every path of the data passes is the trunk, and its parts follow each other; where it forks, one part, "branches", leads
from the fork to where the branches have rejoined (a residual block, a gate), and the parts inside are marked as a branch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules import conv

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Call, Seen, trace
from layerlaw.capture.modules import NORMS
from layerlaw.capture.plan import Part, PartKind, Site
from layerlaw.module_tree import class_of
from layerlaw.threads import users_device

At = Literal["input", "output"]
SiteOf = Callable[[str, int, At], Site | str]  # the site at a call of a module, or the reason why it cannot be one
FEWEST, MOST_VALUES = 48, 512  # pairs of numbers that show whether one is a function of the other
MOST_SAMPLES = 32
BENDS = 4.0  # the ups and downs of an activation, in units of its range; unrelated numbers have a third of their count
STRAIGHT = 1e-3  # off a line, in units of the range: below it a function is linear
SMOOTH = 1.3  # the ups and downs of all points over those of every fourth
SCALE_FREE = 1e-2  # a normalization adds a small number to the variance


@dataclass(frozen=True)
class Bound:
    """A tensor at the edge of a part: what a call got or gave."""

    call: Call
    at: At

    @property
    def seen(self) -> Seen | None:
        """The tensor."""
        return self.call.input if self.at == "input" else self.call.output


@dataclass(frozen=True)
class Piece:
    """A part before it has sites."""

    kind: PartKind
    before: Bound
    after: Bound
    call: Call | None  # of its module; `None`: functions between modules


def find_parts(
    network: nn.Module, batch: Batch, layers: Sequence[Call], end: Call | None, site_of: SiteOf
) -> tuple[list[Part], list[str]]:
    """The parts of every call of a weight layer but the classifier `end`, in depth order, and what cannot be measured."""
    ordered = sorted(layers, key=lambda call: call.entered)
    widths = [call.input.tensor.numel() for call in ordered if call.input is not None]
    samples = max(2, min(len(batch.labels), MOST_SAMPLES, -(-4 * FEWEST // max(1, min(widths, default=1)))))
    seen = trace(network, batch.first(samples), values=MOST_VALUES)
    again = {(call.name, call.number): call for call in seen.calls}
    chain = [again[call.name, call.number] for call in ordered if (call.name, call.number) in again]
    last = None if end is None else (end.name, end.number)
    places: dict[tuple[object, ...], Site] = {}
    parts, dropped = [], []
    watch = _Watch(seen.calls, chain)
    for i, layer in enumerate(chain):
        if (layer.name, layer.number) == last:
            continue
        for piece in watch.pieces(layer, chain[i + 1] if i + 1 < len(chain) else None):
            found = [_placed(bound, site_of, places) for bound in (piece.before, piece.after)]
            before, after = found
            name, kind = (piece.call.title, class_of(piece.call.module).__name__) if piece.call else ("", "functions")
            if isinstance(before, Site) and isinstance(after, Site):
                parts.append(Part(layer.title, piece.kind, name, kind, before, after))
            else:
                why = next(reason for reason in found if isinstance(reason, str))
                dropped.append(f"the {piece.kind} of {layer.title} ({why})")
    return parts, dropped


def along_trunk(parts: Sequence[Part], position: Callable[[Site], int | None]) -> list[Part]:
    """The parts with those of side branches marked, and a part "branches" wherever no other leads on along the trunk.

    `position` says which point of the trunk a site is; `None`: it is none.
    """
    ends = {site: at for part in parts for site in (part.before, part.after) if (at := position(site)) is not None}
    seen = dict(sorted(((at, site) for site, at in reversed(ends.items())), key=lambda pair: pair[0]))
    steps = {
        (ends[part.before], ends[part.after]): part
        for part in reversed(parts)
        if part.before in ends and part.after in ends and ends[part.before] < ends[part.after]
    }
    chain: list[Part] = []
    points, i = list(seen), 0
    while i + 1 < len(points):
        here = points[i]
        on = min((step for step in steps if step[0] == here), default=(here, points[i + 1]))
        chain.append(steps.get(on) or _joined(parts, seen[here], seen[on[1]]))
        i = points.index(on[1])
    own, block = dict(zip(chain, chain, strict=True)), ""
    for part in chain:  # what follows where branches rejoin is no more of a layer of theirs
        block = part.layer if part.kind == "branches" else "" if part.module == part.layer else block
        own[part] = replace(part, layer=block or part.layer)
    placed: list[Part] = []
    ready = [part for part in chain if part not in parts]
    for part in parts:
        placed.append(own.get(part) or replace(part, branch=True))
        while ready and part.after == ready[0].after:  # behind the last part inside
            placed.append(ready.pop(0))
    return [*placed, *ready]


def _joined(parts: Sequence[Part], fork: Site, join: Site) -> Part:
    """All that happens between two points of the trunk, named after the module that holds it, or its first layer."""
    first = next((i for i, part in enumerate(parts) if part.before == fork), len(parts))
    last = max((i for i, part in enumerate(parts) if part.after == join), default=-1)
    if not (held := parts[first : last + 1]):  # functions that no layer comes with
        return Part(join.module or join.name, "other", "", "functions", fork, join)
    # functions at the fork go by the layer before it, which is not inside
    inside = [part.layer for part in held if part.module] or [part.layer for part in held]
    steps = zip(*(layer.split(".") for layer in inside), strict=False)
    holder = ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, steps))
    return Part(holder or inside[0], "branches", "", "branches", fork, join)


def _placed(bound: Bound, site_of: SiteOf, places: dict[tuple[object, ...], Site]) -> Site | str:
    """The site at a bound; the same tensor seen from two modules is one site."""
    assert bound.seen is not None
    if bound.seen.key not in places:
        found = site_of(bound.call.name, bound.call.number, bound.at)
        if isinstance(found, str):
            return found
        places[bound.seen.key] = replace(found, name=f"{bound.call.title} ({bound.at})", in_fit=False)
    return places[bound.seen.key]


class _Watch:
    """One forward, as its calls show it."""

    def __init__(self, calls: Sequence[Call], layers: Sequence[Call]) -> None:
        self.layers = layers
        inside = [call for call in calls if not any(_within(call, layer) or _within(layer, call) for layer in layers)]
        self.plain = sorted((call for call in inside if call not in layers), key=lambda call: call.entered)
        self.first: dict[tuple[object, ...], int] = {}  # when each tensor was first seen
        for call in calls:
            for seen, time in ((call.input, call.entered), (call.output, call.left)):
                if seen is not None:
                    key = _content(seen)
                    self.first[key] = min(time, self.first.get(key, time))

    def pieces(self, layer: Call, follower: Call | None) -> Iterator[Piece]:
        """The parts from the input of a layer to the input of the one that follows in time."""
        if layer.input is None or layer.output is None:
            return
        start, at = Bound(layer, "input"), Bound(layer, "output")
        yield Piece("map" if _is_affine(layer.module, layer.input.tensor) else "other", start, at, layer)
        until = follower.entered if follower is not None else 2**62
        for kind, call, before, after in self._known(layer.left, until):
            yield from self._rest(layer, at, before)
            yield Piece(kind, before, after, call)
            at = after
        if follower is not None and follower.input is not None:
            yield from self._rest(layer, at, Bound(follower, "input"))

    def _known(self, since: int, until: int) -> Iterator[tuple[PartKind, Call, Bound, Bound]]:
        """Normalizations and nonlinearities that are modules; the outermost module that is one counts."""
        done = since
        for call in self.plain:
            if call.entered < done or call.left > until or call.input is None or call.output is None:
                continue
            start, end = Bound(call, "input"), Bound(call, "output")
            kind = kind_of(call)
            if kind is None:
                continue
            done = call.left
            inner = (one for one in self.plain if _within(one, call) and kind_of(one) == "nonlinearity")
            if kind == "normalization" and (act := next(inner, None)) is not None:  # a module that does both
                yield kind, call, start, Bound(act, "input")
                yield "nonlinearity", act, Bound(act, "input"), Bound(act, "output")
            else:
                yield kind, call, start, end

    def _rest(self, layer: Call, start: Bound, end: Bound) -> Iterator[Piece]:
        """What functions did between two tensors; nothing where they are the same, or the forward took another branch."""
        before, after = start.seen, end.seen
        assert before is not None
        assert after is not None
        if _content(before) == _content(after) or self.first.get(_content(after), layer.left + 1) < layer.left:
            return
        x, y = before.values, after.values
        if x is not None and y is not None and len(x) == len(y) and torch.equal(x, y):
            return
        yield Piece("nonlinearity" if acts_alone(x, y) else "other", start, end, None)


def kind_of(call: Call) -> Literal["normalization", "nonlinearity"] | None:
    """What a module is: by its class where that tells (a ReLU may get positive numbers alone), else by what it does."""
    module = call.module
    if call.input is None or call.output is None or call.input.shape != call.output.shape:
        return None
    if type(module).__module__ == nn.ReLU.__module__:  # torch's own activations
        return "nonlinearity"
    if isinstance(module, NORMS) or "norm" in class_of(module).__name__.lower() or hasattr(module, "running_mean"):
        return "normalization"
    if acts_alone(call.input.values, call.output.values):
        return "nonlinearity"
    return "normalization" if _scale_free(module, call.input.tensor) else None


def acts_alone(x: Tensor | None, y: Tensor | None) -> bool:
    """Whether numbers y are one function of the numbers x at the same places, with few bends and no straight line.

    >>> x = torch.randn(200, generator=torch.Generator().manual_seed(0)).double()
    >>> acts_alone(x, x.relu()), acts_alone(x, x * x.sigmoid()), acts_alone(x, 2 * x + 1), acts_alone(x, x + x.roll(1))
    (True, True, False, False)
    """
    if x is None or y is None or len(x) != len(y) or len(x) < FEWEST:
        return False
    if not bool(x.isfinite().all() & y.isfinite().all()):
        return False
    spread = y.max() - y.min()
    if not bool((spread > 0) & (x.max() > x.min())):
        return False
    curve = y[x.argsort(stable=True)]
    fine, coarse = (points.diff().abs().sum() for points in (curve, torch.cat([curve[::4], curve[-1:]])))
    line = torch.stack([x, torch.ones_like(x)], 1)
    off = (y - line @ torch.linalg.lstsq(line, y.unsqueeze(1)).solution.squeeze(1)).abs().max()
    # The ups and downs of a curve are the same however closely one looks, those of unrelated numbers are not.
    return bool((fine <= BENDS * spread) & (fine <= SMOOTH * coarse) & (off > STRAIGHT * spread))


def _is_affine(module: nn.Module, like: Tensor) -> bool:
    """Whether a weight layer is a linear map plus a bias; attention and recurrent layers are not."""
    if isinstance(module, (nn.Linear, conv._ConvNd)):
        return True
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(like.shape, generator=g).to(like) for _ in range(2))
    try:
        with torch.no_grad(), users_device():
            both, one, other, nothing = (module.forward(x) for x in (a + b, a, b, torch.zeros_like(a)))
            off, size = (both + nothing - one - other).abs().max(), both.abs().max()
    except Exception:
        return False  # it wants, or gives, more than one tensor
    return bool(off <= 0.02 * size)  # half precision rounds to that


def _scale_free(module: nn.Module, like: Tensor) -> bool:
    """Whether doubling the input changes nothing; `forward` is called without hooks."""
    if isinstance(module, (nn.Sequential, nn.Identity)):
        return False
    x = 4 * torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)
    try:
        with torch.no_grad(), users_device():
            once, twice = module.forward(x.clone()), module.forward(2 * x)
    except Exception:
        return False  # it wants more than one tensor
    if not isinstance(once, Tensor) or not isinstance(twice, Tensor) or once.shape != x.shape:
        return False
    size = once.abs().max()
    return bool((size > 0) & ((twice - once).abs().max() <= SCALE_FREE * size))


def _within(inner: Call, outer: Call) -> bool:
    return inner is not outer and outer.entered < inner.entered and inner.left < outer.left


def _content(seen: Seen) -> tuple[object, ...]:
    """Equal for views of the same memory in the same version."""
    return (*seen.key[:2], seen.tensor.numel())
