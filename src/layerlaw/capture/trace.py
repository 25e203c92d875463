"""The dry run: every call of every module in firing order, with the tensors that went in and came out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch
from layerlaw.errors import CaptureError

WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")


def clean_name(name: str) -> str:
    """A module's name without the parts that torch.compile, FSDP or checkpointing put into it.

    >>> clean_name("layers.0._orig_mod.fc")
    'layers.0.fc'
    """
    return WRAPPERS.sub("", name).removeprefix(".")


def first_tensor(value: Any) -> Tensor | None:
    """The first floating-point tensor in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return None
    return next((found for item in value if (found := first_tensor(item)) is not None), None)


@dataclass(frozen=True)
class Seen:
    """A tensor as it was when it passed: `key` is equal for equal content (same memory, same version, same layout)."""

    key: tuple[Any, ...]
    shape: tuple[int, ...]
    tensor: Tensor  # kept alive so that its memory is not given to another tensor during the trace
    copy: Tensor | None  # its content at that time, where the sample axis may be folded into axis 0

    @classmethod
    def of(cls, value: Any, samples: int) -> Seen | None:
        """Look at the first floating-point tensor of what a module got or gave."""
        tensor = first_tensor(value)
        if tensor is None:
            return None
        shape = tuple(tensor.shape)
        folded = bool(shape) and samples not in shape[:2]
        key = (tensor.data_ptr(), tensor._version, shape, tensor.stride())
        return cls(key, shape, tensor, tensor.detach().clone() if folded else None)

    def same_content(self, other: Seen) -> bool:
        """Whether both show the same memory in the same version, whatever the view."""
        return self.key[:2] == other.key[:2] and self.tensor.numel() == other.tensor.numel()


@dataclass
class Call:
    """One call of one module; `entered` and `left` order all calls in time."""

    name: str
    number: int
    module: nn.Module
    entered: int
    input: Seen | None
    left: int = -1
    output: Seen | None = None


@dataclass
class Trace:
    """All calls of one forward, and the model's own output."""

    calls: list[Call]
    output: Any
    samples: int

    @property
    def root(self) -> Call:
        """The call of the network itself."""
        return next(call for call in self.calls if call.name == "")


def trace(network: nn.Module, batch: Batch) -> Trace:
    """Run the network once on a small batch and write down every call."""
    calls: list[Call] = []
    counts: dict[str, int] = defaultdict(int)
    open_calls: dict[str, list[Call]] = defaultdict(list)
    clock = 0
    n = len(batch.labels)

    with ExitStack() as hooks:
        for raw_name, module in network.named_modules():
            name = clean_name(raw_name)

            def enter(m: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                nonlocal clock
                clock += 1
                call = Call(name, counts[name], m, clock, Seen.of((args, kwargs), n))
                counts[name] += 1
                calls.append(call)
                open_calls[name].append(call)

            def leave(m: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                nonlocal clock
                clock += 1
                call = open_calls[name].pop()
                call.left, call.output = clock, Seen.of(output, n)

            hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        try:
            output = network(*batch.args, **batch.kwargs)
        except Exception as error:
            shapes = [tuple(v.shape) for v in (*batch.args, *batch.kwargs.values()) if isinstance(v, Tensor)]
            raise CaptureError(
                f"the model failed in the dry run with {n} samples, inputs of shape {shapes}: "
                f"{type(error).__name__}: {error}. Does it take inputs of this shape and type?"
            ) from error
    return Trace([call for call in calls if call.left >= 0], output, n)


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
        if torch.allclose(two.copy, three.copy[: a[0]], rtol=1e-3, atol=1e-5):
            return 0, a[0] // 2
        return f"its {a[0]} rows mix the samples in an order that is not theirs"
    return f"no axis of {a} follows the number of samples"
