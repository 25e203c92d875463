"""Hooks: the dry run, which writes down every call of every module, and the capture that hands features to a consumer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from layerlaw.capture.arguments import what_would_do
from layerlaw.capture.batches import Batch
from layerlaw.capture.modules import entering, main_input, tensors_in
from layerlaw.capture.modules import hooked as hooked
from layerlaw.capture.plan import Plan, Reduce, Site, reduced, samples_first
from layerlaw.capture.replay import Passed, Replays
from layerlaw.capture.trunk import DataFlow
from layerlaw.errors import CaptureError, FeatureError
from layerlaw.stats.precision import are_exact, full_precision, is_quiet
from layerlaw.threads import users_device


def _version(tensor: Tensor) -> int:
    """How often it was written to, where it counts that."""
    return 0 if tensor.is_inference() else tensor._version


@dataclass(eq=False, slots=True)  # it is made for every tensor that passes: frozen ones take thrice as long
class Seen:
    """A tensor as it was when it passed: `key` is equal for equal content (same memory, same version, same layout)."""

    key: tuple[Any, ...]
    tensor: Tensor  # kept alive so that its memory is not given to another tensor during the trace
    copy: Tensor | None  # its content at that time, where axis 0 is not simply the samples
    node: int | None = None  # its node in the graph of the data, where that was followed
    values: Tensor | None = None  # some of its numbers at that time, evenly chosen, where they were requested

    @classmethod
    def of(cls, tensor: Tensor, samples: int, flow: DataFlow | None = None, values: int = 0) -> Seen:
        """Look at a tensor that a module got or gave."""
        shape = tuple(tensor.shape)
        key = (tensor.data_ptr(), _version(tensor), shape, tensor.stride())
        copy = tensor.detach().clone() if shape and shape[0] != samples else None
        node = None if flow is None else flow.node(tensor)
        return cls(key, tensor, copy, node, _some_of(tensor.detach(), values) if values else None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.tensor.shape)

    @property
    def unchanged(self) -> bool:
        """Whether nothing has overwritten it since it passed, as far as is known."""
        return self.tensor.is_inference() or self.tensor._version == self.key[1]

    def same_values(self, other: Seen) -> bool:
        """Whether both, still as they were, hold the same numbers in the same order, sample by sample."""
        if not (self.unchanged and other.unchanged):
            return False
        a, b = self.tensor.flatten(1), other.tensor.flatten(1)
        return a.shape == b.shape and bool(torch.equal(a, b))

    def same_content(self, other: Seen) -> bool:
        """Whether both show the same memory in the same version, whatever the view."""
        return self.key[:2] == other.key[:2] and self.tensor.numel() == other.tensor.numel()


@dataclass(slots=True)
class Call:
    """One call of one module: the tensor it got, those it gave; `entered` and `left` order all calls in time."""

    name: str
    number: int
    module: nn.Module
    entered: int
    input: Seen | None
    left: int = -1
    outputs: tuple[Seen, ...] = ()
    nodes: range = range(0)  # of the graph of the data, made during the call

    @property
    def output(self) -> Seen | None:
        """The first tensor it gave."""
        return self.outputs[0] if self.outputs else None

    def tensor(self, at: Literal["input", "output"], pick: int = 0) -> Seen | None:
        """What it got, or one of the tensors that it gave."""
        return self.input if at == "input" else self.outputs[pick] if pick < len(self.outputs) else None

    @property
    def title(self) -> str:
        """`name`, or `name#2` for the second call of a module."""
        return self.name if self.number == 0 else f"{self.name}#{self.number + 1}"


@dataclass
class Trace:
    """All calls of one forward, the model's own output, and whether the model overwrote its inputs."""

    samples: int
    calls: list[Call]
    output: Any = None
    overwrites_input: bool = False
    flow: DataFlow | str = "the data were not followed"  # the graph of the data, or why there is none

    @property
    def root(self) -> Call:
        """The call of the network itself."""
        return next(call for call in self.calls if call.name == "")


def _some_of(tensor: Tensor, count: int) -> Tensor:
    """At most so many of its numbers, the same places in all tensors of one size, in float64 on the CPU."""
    places = torch.linspace(0, tensor.numel() - 1, min(count, tensor.numel()), dtype=torch.float64).long()
    at = torch.unravel_index(places.to(tensor.device), tensor.shape)
    return tensor[at].cpu().double()


HINT = "Does it take inputs of this shape and type?"


def trace(network: nn.Module, batch: Batch, *, hint: str = HINT, values: int = 0) -> Trace:
    """Run the network once on a small batch of its own and write down every call; `hint` ends the error if that fails.

    With `values` so many numbers of every tensor are kept, as they were when it passed.
    """
    return _traced(network, batch, None, hint, values)


def trace_flow(network: nn.Module, batch: Batch) -> Trace:
    """The same, and how the data flow from call to call; where that makes the model fail it runs again without."""
    given = batch.copy()
    source = main_input(given.args, given.kwargs)
    if source is None:
        return replace(trace(network, batch), flow="the model is called with no tensor")
    try:
        return _traced(network, given, DataFlow(network, source), HINT)
    except CaptureError as error:
        cause = error.__cause__
        if not isinstance(cause, NotImplementedError) and "dispatch" not in str(cause).lower():
            raise
        return replace(trace(network, batch), flow=f"the model does not run while its data are followed: {cause}")


def _traced(network: nn.Module, batch: Batch, flow: DataFlow | None, hint: str, values: int = 0) -> Trace:
    n = len(batch.labels)
    found = Trace(n, [])
    counts: dict[str, int] = defaultdict(int)
    running: list[Call] = [] if flow is None else flow.running
    clock = iter(range(2**62))

    def enter(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        tensor = entering(args, kwargs)
        call = Call(
            name, counts[name], module, next(clock), None if tensor is None else Seen.of(tensor, n, flow, values)
        )
        call.nodes = range(len(flow.nodes) if flow else 0, 0)
        counts[name] += 1
        found.calls.append(call)
        running.append(call)

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        while (call := running.pop()).name != name:  # one that ended with an exception which the model has caught
            pass
        call.nodes = range(call.nodes.start, len(flow.nodes) if flow else 0)
        call.left, call.outputs = next(clock), tuple(Seen.of(tensor, n, flow, values) for tensor in tensors_in(output))

    given, versions = batch.copy(), [_version(tensor) for tensor in batch.tensors()]
    try:
        with hooked(network, None, enter, leave), users_device(), nullcontext() if flow is None else flow:
            found.output = network(*batch.args, **batch.kwargs)
    except Exception as error:
        alone = given.args[0] if len(given.args) == 1 and not isinstance(error, torch.OutOfMemoryError) else None
        hint = what_would_do(network, alone) or hint
        raise CaptureError(failed(f"in the dry run with {n} samples", batch, error, hint)) from error
    found.calls = [call for call in found.calls if call.left >= 0]
    pairs = zip(given.tensors(), batch.tensors(), strict=True)
    # Also where what was written is what was there: with other numbers it would not be.
    written = versions != [_version(tensor) for tensor in batch.tensors()]
    found.overwrites_input = written or not all(torch.equal(before, after) for before, after in pairs)
    found.flow = flow or found.flow
    return found


MIXED = "mix the samples in an order that is not theirs"


def sample_axis(two: Seen, three: Seen | None) -> tuple[int, int] | str:
    """(axis, fold) of the samples, from how the shape changes between two and three samples; else the reason why not."""
    a = two.shape
    if not a:
        return "it is a single number"
    if three is None:
        if len(a) > 1 and a[0] == a[1] == 2:
            return "axes 0 and 1 both have 2 entries, as many as there are samples: a batch of 3 or more would tell"
        return (0, 1) if a[0] == 2 else (1, 1) if len(a) > 1 and a[1] == 2 else f"no axis of {a} has the 2 samples"
    b = three.shape
    if len(a) != len(b):
        return f"its shape changes from {a} to {b} with the number of samples"
    grows = [axis for axis in range(min(2, len(a))) if (a[axis], b[axis]) == (2, 3)]
    if len(grows) == 1:
        return grows[0], 1
    if len(grows) == 2:
        return f"axes 0 and 1 both grow with the number of samples ({a}, {b})"
    if a[0] and a[0] % 2 == 0 and b[0] == a[0] // 2 * 3 and two.copy is not None and three.copy is not None:
        # Several rows per sample (windows, say): only if the first two samples are the first rows of both runs.
        x, y = two.copy, three.copy[: a[0]]
        tolerance = 1e-3 if x.element_size() >= 4 else 2e-2  # another batch size changes the rounding
        if x.shape == y.shape and float((x - y).abs().max()) <= tolerance * float(x.abs().max()):
            return 0, a[0] // 2
        return f"its {a[0]} rows {MIXED}"
    return f"no axis of {a} follows the number of samples"


Consume = Callable[[Site, Tensor], None]
LOGITS = -1  # the turn of the logits among the outputs of the network, which is called once


def failed(when: str, batch: Batch, error: Exception, hint: str = HINT) -> str:
    """That the model itself raised, and with which inputs."""
    inputs = ", ".join(f"{tuple(v.shape)} {v.dtype}" for v in batch.tensors()) or "no tensors"
    return f"the model failed {when} (inputs: {inputs}): {type(error).__name__}: {error}. {hint}"


_unobserved: ContextVar[bool] = ContextVar("layerlaw unobserved forward", default=False)


@contextmanager
def unobserved() -> Iterator[None]:
    """Forwards in here go past every `Capture`: they are made for the sake of other ranks."""
    token = _unobserved.set(True)
    try:
        yield
    finally:
        _unobserved.reset(token)


class Capture:
    """Hooks at the sites, as a context: they are removed at the end, also after an exception.

    `run` sends batches through the network; while the forward runs, `consume(site, features)` gets every site's (n, d)
    features (with `reduce=None` the tensors themselves), detached and in full precision. With `gradients` they stay attached
    to the graph, outside autocast, so that a loss can be built on them, and are in memory of their own, so that an in-place
    layer behind the site cannot change them. In `any_order`, flattened images are handed over as they lie in memory. Where
    many batches come a GPU may run them by `replays`.
    """

    def __init__(
        self,
        network: nn.Module,
        plan: Plan,
        sites: Sequence[Site],
        *,
        reduce: Reduce | None,
        consume: Consume,
        gradients: bool = False,
        any_order: bool = False,
        replays: Replays | None = None,
    ) -> None:
        self.network, self.plan, self.reduce, self.consume = network, plan, reduce, consume
        self.gradients, self.any_order, self._replays = gradients, any_order and reduce == "flatten", replays
        self.inputs: dict[str, dict[int, Site]] = defaultdict(dict)  # by module and call
        self.outputs: dict[str, dict[int, Site]] = defaultdict(dict)
        for site in sites:
            turn = LOGITS if site.at == "logits" else site.call
            (self.inputs if site.at == "input" else self.outputs)[site.module][turn] = site
        self.inputs, self.outputs = dict(self.inputs), dict(self.outputs)
        self.expected = Counter({site.module: plan.calls[site.module] for site in sites})
        self.counts: Counter[str] = Counter()
        self.samples = 0
        self.mask: Tensor | None = None
        self.rows: Tensor | None = None
        self._exact = False
        self._hooks = hooked(network, self.expected, self.enter, self.leave, self.outputs)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def run(self, batch: Batch, *, rows: Tensor | None = None, where: str) -> Any:
        """One forward; returns the model's output. Only the chosen `rows` of the batch are handed over (`None`: all)."""
        if self.gradients and not torch.is_grad_enabled():
            raise CaptureError(f"{where}: expected gradients to be enabled for gradients=True, got no_grad mode.")
        if self.plan.overwrites_input:
            batch = batch.copy()
        if rows is None and self._replays is not None:
            output = self._replays.run(batch, self._collected, self.consume)
            if output is not None:
                return output
        replays = self._replays if rows is None else None
        with self._consuming(self.consume if replays is None else replays.watched(self.consume)):
            self.begin(batch, rows)
            with users_device():
                output = self.network(*batch.args, **batch.kwargs)
        self.check_calls(where)
        if replays is not None:
            replays.went(batch, output)
        return output

    def _collected(self, batch: Batch) -> tuple[Any, dict[Site, Tensor]]:
        """One forward whose features are held, where nothing behind them overwrites them."""
        held = Passed() if self._replays is None else self._replays.held()
        with self._consuming(held.add):
            self.begin(batch)
            with users_device():
                output = self.network(*batch.args, **batch.kwargs)
        return output, held.unchanged()

    @contextmanager
    def _consuming(self, consume: Consume) -> Iterator[None]:
        before, self.consume = self.consume, consume
        try:
            yield
        finally:
            self.consume = before

    def begin(self, batch: Batch, rows: Tensor | None = None) -> None:
        """Before a forward, also one that somebody else runs."""
        self.counts.clear()
        self.samples, self.mask, self.rows = len(batch.labels), batch.mask, rows
        self._exact = are_exact()  # switches of the process, which take longer to look at than a small site to copy

    def check_calls(self, where: str) -> None:
        """After a forward: every module with a site was called as often as in the dry run."""
        if dict(self.counts) != dict(self.expected):  # two of Counter are compared entry by entry in Python
            name = next(name for name in self.expected if self.counts[name] != self.expected[name])
            times = f"{self.expected[name]} times in the dry run and {self.counts[name]} times in {where}"
            why = "a varying number of calls makes no fixed layers. Choose other sites"
            raise CaptureError(f"module '{name}' was called {times}: {why}.")

    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before a call: count it, look at its input."""
        if _unobserved.get():
            return
        site = self.inputs[name].get(self.counts[name]) if name in self.inputs else None
        self.counts[name] += 1
        if site is not None:
            self.hand_over(site, entering(args, kwargs))

    def leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """After a call: look at its output."""
        if _unobserved.get():
            return
        site = self.outputs[name].get(self.counts[name] - 1)
        if site is not None:
            self.hand_over(site, next(islice(tensors_in(output), site.pick, None), None))
        if (scores := self.outputs[name].get(LOGITS)) is not None:
            self.hand_over(scores, self.plan.scores.of(output))

    def hand_over(self, site: Site, tensor: Tensor | None) -> None:
        """Turn what the module got or gave into (n, d) features and pass them on, outside autocast (and without TF32)."""
        if tensor is None:
            raise CaptureError(f"site '{site.name}': expected a floating-point tensor as in the dry run, got none.")
        if hasattr(tensor, "full_tensor"):  # in parts on several ranks, all of which are here
            tensor = tensor.full_tensor()
        if self.gradients:
            with torch.autocast(tensor.device.type, enabled=False):
                self.consume(site, self.features(site, tensor))
        elif self._exact and not torch.is_inference_mode_enabled() and is_quiet():
            self.consume(site, self.features(site, tensor.detach()))
        else:
            # A model's own inference mode would give tensors that cannot be added to later.
            inference = torch.is_inference_mode_enabled()
            with torch.inference_mode(False) if inference else nullcontext(), full_precision():
                self.consume(site, self.features(site, tensor.detach()))

    def features(self, site: Site, tensor: Tensor) -> Tensor:
        """One row per sample; the tensor as it is where no reduction is wanted."""
        if self.reduce is None:
            return tensor
        ordered = samples_first(tensor, site.axis, site.fold)
        plain = tensor.dim() == 2 and self.rows is None and not self.gradients
        if plain and ordered.shape == (self.samples, site.features):
            return ordered
        if len(ordered) != self.samples:
            came = f"features for {len(ordered)} (shape {tuple(ordered.shape)})"
            raise FeatureError(f"site '{site.name}': expected {self.samples} samples, got {came}.")
        if self.any_order and tensor.dim() == 4 and ordered.is_contiguous(memory_format=torch.channels_last):
            ordered = ordered.permute(0, 2, 3, 1)  # as it lies in memory: flattened without a copy
        features = reduced(ordered, self.reduce, channels_last=site.channels_last, mask=self.mask)
        if features.shape[1] != site.features:
            expected = f"expected {site.features} features per sample as in the first batch, got {features.shape[1]}"
            cure = "pad them to one length, or use reduce='mean', 'first' or 'last'"
            why = f"Inputs of varying length cannot be flattened: {cure}"
            raise FeatureError(f"site '{site.name}': {expected}. {why}.")
        if self.rows is not None:
            return features.index_select(0, self.rows.to(features.device))
        if self.gradients and features.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            return features.clone()
        return features
