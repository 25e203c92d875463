"""The dry run: every call of every module in firing order, with the tensors that went in and came out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.capture.modules import entering, modules_of, tensors_in
from layerlaw.errors import CaptureError


@dataclass(frozen=True)
class Seen:
    """A tensor as it was when it passed: `key` is equal for equal content (same memory, same version, same layout)."""

    key: tuple[Any, ...]
    tensor: Tensor  # kept alive so that its memory is not given to another tensor during the trace
    copy: Tensor | None  # its content at that time, where axis 0 is not simply the samples

    @classmethod
    def of(cls, tensor: Tensor, samples: int) -> Seen:
        """Look at a tensor that a module got or gave."""
        shape = tuple(tensor.shape)
        version = 0 if tensor.is_inference() else tensor._version
        key = (tensor.data_ptr(), version, shape, tensor.stride())
        return cls(key, tensor, tensor.detach().clone() if shape and shape[0] != samples else None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.tensor.shape)

    def same_content(self, other: Seen) -> bool:
        """Whether both show the same memory in the same version, whatever the view."""
        return self.key[:2] == other.key[:2] and self.tensor.numel() == other.tensor.numel()


@dataclass
class Call:
    """One call of one module: the tensor it got, those it gave; `entered` and `left` order all calls in time."""

    name: str
    number: int
    module: nn.Module
    entered: int
    input: Seen | None
    left: int = -1
    outputs: tuple[Seen, ...] = ()

    @property
    def output(self) -> Seen | None:
        """The first tensor it gave."""
        return self.outputs[0] if self.outputs else None

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

    @property
    def root(self) -> Call:
        """The call of the network itself."""
        return next(call for call in self.calls if call.name == "")


@contextmanager
def hooked(
    network: nn.Module, names: Iterable[str], enter: Callable[..., None], leave: Callable[..., None]
) -> Iterator[None]:
    """Call `enter(name, module, args, kwargs)` before and `leave(name, module, args, output)` after these modules."""
    modules = modules_of(network)
    with ExitStack() as hooks:
        for name in names:
            hooks.callback(modules[name].register_forward_pre_hook(partial(enter, name), with_kwargs=True).remove)
            hooks.callback(modules[name].register_forward_hook(partial(leave, name)).remove)
        yield


def trace(network: nn.Module, batch: Batch, *, hint: str = "Does it take inputs of this shape and type?") -> Trace:
    """Run the network once on a small batch of its own and write down every call; `hint` ends the error if that fails."""
    n = len(batch.labels)
    found = Trace(n, [])
    counts: dict[str, int] = defaultdict(int)
    open_calls: dict[str, list[Call]] = defaultdict(list)
    clock = iter(range(2**62))

    def enter(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        tensor = entering(args, kwargs)
        call = Call(name, counts[name], module, next(clock), None if tensor is None else Seen.of(tensor, n))
        counts[name] += 1
        found.calls.append(call)
        open_calls[name].append(call)

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        call = open_calls[name].pop()
        call.left, call.outputs = next(clock), tuple(Seen.of(tensor, n) for tensor in tensors_in(output))

    given = batch.copy()
    with hooked(network, modules_of(network), enter, leave):
        try:
            found.output = network(*batch.args, **batch.kwargs)
        except Exception as error:
            inputs = ", ".join(f"{tuple(v.shape)} {v.dtype}" for v in batch.tensors()) or "no tensors"
            what = f"the model failed in the dry run with {n} samples (inputs: {inputs})"
            raise CaptureError(f"{what}: {type(error).__name__}: {error}. {hint}") from error
    found.calls = [call for call in found.calls if call.left >= 0]
    pairs = zip(given.tensors(), batch.tensors(), strict=True)
    found.overwrites_input = not all(torch.equal(before, after) for before, after in pairs)
    return found


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
        return f"its {a[0]} rows mix the samples in an order that is not theirs"
    return f"no axis of {a} follows the number of samples"
