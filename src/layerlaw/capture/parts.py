"""What a layer is made of: its linear map, and the normalization and nonlinearity that follow, found in one forward.

Weight layers follow each other in time; what is called between two of them belongs to the first. A nonlinearity is what acts
on every number alone and is not linear, which its input and output show; a normalization is what doubling its input does not
change, or what keeps running statistics or is named so. Functions that no module holds are the rest between the tensors that
modules show: a nonlinearity where they act on every number alone (a functional activation), else "other" (a skip connection,
pooling, or an activation together with these).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.hooks import Call, Seen, trace
from layerlaw.capture.modules import NORMS
from layerlaw.capture.plan import Part, PartKind, Site

At = Literal["input", "output"]
SiteOf = Callable[[str, int, At], Site | str]  # the site at a call of a module, or the reason why it cannot be one
FEWEST, MOST_VALUES = 48, 512  # pairs of numbers that show whether one is a function of the other
MOST_SAMPLES = 32
BENDS = 4.0  # the ups and downs of an activation, in units of its range; unrelated numbers have a third of their count
STRAIGHT = 1e-3  # off a line, in units of the range: below it a function is linear
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
            name, kind = (piece.call.title, type(piece.call.module).__name__) if piece.call else ("", "functions")
            if isinstance(before, Site) and isinstance(after, Site):
                parts.append(Part(layer.title, piece.kind, name, kind, before, after))
            else:
                why = next(reason for reason in found if isinstance(reason, str))
                dropped.append(f"the {piece.kind} of {layer.title} ({why})")
    return parts, dropped


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
        yield Piece("map", Bound(layer, "input"), at := Bound(layer, "output"), layer)
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
            if activates(call):
                yield "nonlinearity", call, start, end
                done = call.left
            elif normalizes(call):
                done = call.left
                act = next((inner for inner in self.plain if _within(inner, call) and activates(inner)), None)
                if act is None:
                    yield "normalization", call, start, end
                else:  # one module that normalizes and activates
                    yield "normalization", call, start, Bound(act, "input")
                    yield "nonlinearity", act, Bound(act, "input"), Bound(act, "output")

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


def activates(call: Call) -> bool:
    """Whether a module is a nonlinearity: torch's own, also where all it got was positive, or what acts like one."""
    if call.input is None or call.output is None or call.input.shape != call.output.shape:
        return False
    return type(call.module).__module__ == nn.ReLU.__module__ or acts_alone(call.input.values, call.output.values)


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
    ups_and_downs = y[x.argsort(stable=True)].diff().abs().sum()
    line = torch.stack([x, torch.ones_like(x)], 1)
    off = (y - line @ torch.linalg.lstsq(line, y.unsqueeze(1)).solution.squeeze(1)).abs().max()
    return bool((ups_and_downs <= BENDS * spread) & (off > STRAIGHT * spread))


def normalizes(call: Call) -> bool:
    """Whether a module is a normalization: by its class or running statistics, or since doubling its input changes nothing."""
    module = call.module
    if isinstance(module, NORMS) or "norm" in type(module).__name__.lower() or hasattr(module, "running_mean"):
        return True
    if call.input is None or call.output is None:
        return False
    if call.input.shape != call.output.shape or isinstance(module, (nn.Sequential, nn.Identity)):
        return False
    like = call.input.tensor
    x = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like) * 4  # not by hooks: forward alone
    try:
        with torch.no_grad():
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
