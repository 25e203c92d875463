"""A GPU that is pretended, for machines without one: tensors say that they are on it, and their numbers are on the CPU.

Inside of `with pretended_gpu() as gpu:` code takes its branches for CUDA, with real numbers. What only a GPU would tell is
written into `gpu.problems`: CPU tensors in operations on the GPU, tensors of two devices in one, memory that a stream reads
or writes without waiting for the stream that wrote or reads it, and memory that is let go of, and may be used again, while
another stream works on it. `gpu.waits` has every place where the host waits for the GPU.

It cannot show how long anything takes, NCCL, kernels (Triton, cuSOLVER and its digits, TF32, half precision, autocast),
recorded graphs (`CUDAGraph` fails, as it does where a model cannot be recorded), or real limits of memory. One clock stands
for all threads of the host: what one of them has waited for, the others are taken to know.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils import _python_dispatch as dispatching

DEVICES = 2
CPU = torch.device("cpu")
NOT_CODE = (__file__, os.path.dirname(torch.__file__), "<")
"""Files in which the reason of a problem is not looked for: this one, those of torch, and what was made at run time."""

WAITING = {
    *("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "bincount", "multinomial", "histc"),
    *("_unique2", "unique_dim", "unique_consecutive", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd"),
}
"""Operations for whose numbers the host waits."""

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
MOVING = {"copy_", "_to_copy", "_foreach_copy_"}


def missing() -> str:
    """Why no GPU can be pretended here; empty where one can."""
    if torch.cuda.is_available():
        return "there is a real GPU"
    needed = [
        (torch._C, "_set_meta_in_tls_dispatch_include"),
        (torch.Tensor, "_make_wrapper_subclass"),
        (dispatching, "return_and_correct_aliasing"),
        (dispatching, "TorchDispatchMode"),
        (torch.__future__, "set_swap_module_params_on_conversion"),
    ]
    lacking = [name for where, name in needed if not hasattr(where, name)]
    return f"torch {torch.__version__} lacks {', '.join(lacking)}" if lacking else ""


class Known(dict[Any, int]):
    """How much of the work of every stream is known to be over: stream → number of operations."""

    def learn(self, other: Known) -> None:
        for stream, done in other.items():
            self[stream] = max(done, self.get(stream, 0))

    def lacks(self, uses: dict[Stream, int]) -> list[Stream]:
        return [stream for stream, done in uses.items() if self.get(stream, 0) < done]


class Stream:
    """`torch.cuda.Stream`: operations in a row, and what they have waited for."""

    number: ClassVar[int] = 0

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device, self.known = place_of("cuda" if device is None else device), Known()
        self.let_go: list[tuple[dict[Stream, int], str]] = []
        """Memory of this stream that nobody holds: what other streams do with it, and whose it was."""
        Stream.number += 1
        STREAMS.add(self)
        self.name = f"stream {Stream.number} of {self.device}"

    def __repr__(self) -> str:
        return self.name

    def wait_stream(self, other: Stream) -> None:
        self.known.learn(other.known)

    def wait_event(self, event: Event) -> None:
        self.known.learn(event.known)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        waited(self, "synchronize")


class Event:
    """`torch.cuda.Event`."""

    def __init__(self, **_: Any) -> None:
        self.known, self.stream = Known(), None

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or current_stream()
        self.known = Known(self.stream.known)

    def synchronize(self) -> None:
        HOST.learn(self.known)
        if self.stream is not None:
            GPU.waits.append(f"synchronize an event of {self.stream}, at {where()}")


class Memory:
    """What one allocation holds: who wrote it last, who has read it since, and which streams it is kept for."""

    def __init__(self, home: Stream, name: str) -> None:
        self.home, self.name = home, f"what {name} gave at {where()}"
        self.wrote: dict[Stream, int] = {}
        self.read: dict[Stream, int] = {}
        self.kept_for: set[Stream] = {home}

    def __del__(self) -> None:
        uses = {s: max(self.wrote.get(s, 0), self.read.get(s, 0)) for s in {*self.wrote, *self.read} - self.kept_for}
        if uses:
            self.home.let_go.append((uses, f"{self.name}, let go of at {where()}"))


class Gpu:
    """What was seen of the code inside."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.waits: list[str] = []
        self.refuses_to_wait = False

    def told(self) -> str:
        """Every problem once, with how often it was."""
        each = dict.fromkeys(self.problems)
        return "\n".join(f"{self.problems.count(problem)}× {problem}" for problem in each)


class Here(threading.local):
    """The current device of a thread, and its current stream on each of them."""

    def __init__(self) -> None:
        self.device, self.streams = 0, dict(DEFAULT)
        self.leaving = False  # whether a tensor is sent to the CPU


GPU, HOST, STREAMS = Gpu(), Known(), WeakSet[Stream]()
DEFAULT: dict[int, Stream] = {}  # filled below: a stream needs to know its device
HERE = Here()


def where() -> str:
    """The innermost line that is neither of torch nor of this file."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(NOT_CODE):
        frame = frame.f_back
    if frame is None:
        return "?"
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


def place_of(device: Any) -> torch.device:
    """A device with its number."""
    if isinstance(device, int):
        return torch.device("cuda", device)
    place = torch.device(device)
    return torch.device("cuda", HERE.device) if place.type == "cuda" and place.index is None else place


DEFAULT |= {i: Stream(i) for i in range(DEVICES)}
HERE.streams.update(DEFAULT)


def current_stream(device: Any = None) -> Stream:
    return HERE.streams[place_of("cuda" if device is None else device).index]


@contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    """`torch.cuda.stream`. Threads begin their work on a GPU here, and torch dispatches in each of them for itself."""
    index = stream.device.index
    before = HERE.device, HERE.streams[index]
    HERE.device, HERE.streams[index] = index, stream
    try:
        with nullcontext() if isinstance(dispatching._get_current_dispatch_mode(), Dispatch) else Dispatch():
            yield
    finally:
        HERE.device, HERE.streams[index] = before


@contextmanager
def on_device(device: Any) -> Iterator[None]:
    """`torch.cuda.device`."""
    before, HERE.device = HERE.device, place_of(device).index
    try:
        yield
    finally:
        HERE.device = before


def waited(stream: Stream, name: str) -> None:
    """The host waits for all that is queued on a stream."""
    if GPU.refuses_to_wait:
        raise RuntimeError(f"called a synchronizing CUDA operation: {name} at {where()}")
    HOST.learn(stream.known)
    GPU.waits.append(f"{name} at {where()}")


def launch(stream: Stream, name: str, read: list[Memory], written: list[Memory]) -> None:
    """An operation is queued."""
    stream.known.learn(HOST)
    let_go, stream.let_go = stream.let_go, []
    for uses, memory in let_go:  # the next operation may be given it
        for other in stream.known.lacks(uses):
            GPU.problems.append(f"Reused: {name} on {stream}, at {where()}, may get memory that {other} uses: {memory}")
    now = stream.known[stream] = stream.known.get(stream, 0) + 1
    for memory in read:
        for other in stream.known.lacks(memory.wrote):
            GPU.problems.append(f"Not waited for: {name} on {stream} reads, at {where()}, {memory.name} on {other}")
        memory.read[stream] = now
    for memory in written:
        for other in stream.known.lacks(memory.read | memory.wrote):
            GPU.problems.append(
                f"Not waited for: {name} on {stream} writes, at {where()}, {memory.name}; {other} uses it"
            )
        memory.wrote, memory.read = {stream: now}, {}


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU. For C++ it is an empty shell on the CPU, so that torch needs no CUDA for it."""

    held: Tensor
    place: torch.device
    memory: Memory

    @staticmethod
    def __new__(cls, held: Tensor, place: torch.device, memory: Memory) -> OnGpu:
        made: OnGpu = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device="cpu"
        )
        made.held, made.place, made.memory = held, place, memory
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.one_hot:  # which makes a tensor beside the shell, in C++
            return _one_hot(*args, **(kwargs or {}))
        if func is PLAIN_TO:  # of a tensor on the CPU, to the device of one that is not
            return moved(*args, **(kwargs or {}))
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})

    device = property(lambda self: self.place)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return int(self.place.index)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def to(self, *args: Any, **how: Any) -> Tensor:
        return moved(self, *args, **how)

    def cpu(self) -> Tensor:
        return moved(self, CPU)

    def cuda(self, device: Any = None, **how: Any) -> Tensor:
        return moved(self, "cuda" if device is None else device)

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, values: Any, **how: Any) -> Tensor:
        return torch.tensor(values, **{"dtype": self.dtype, "device": self.device, **how})

    def record_stream(self, stream: Stream) -> None:
        self.memory.kept_for.add(stream)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        copied = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.held}, {self.place})"


PLAIN_TO = torch.Tensor.to


def moved(tensor: Tensor, *args: Any, **how: Any) -> Tensor:
    """`Tensor.to`: C++ knows no GPU, and would find that a tensor on one is on the CPU already."""
    device, dtype = how.get("device"), how.get("dtype")
    for value in args:
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, int, torch.device)) and not isinstance(value, bool):
            device = value
    device, dtype = tensor.device if device is None else place_of(device), dtype or tensor.dtype
    if not isinstance(tensor, OnGpu) and device.type != "cuda":
        return PLAIN_TO(tensor, *args, **how)
    if device == tensor.device and dtype == tensor.dtype and not how.get("copy", False):
        return tensor
    blocking = {"non_blocking": True} if how.get("non_blocking", False) or any(value is True for value in args) else {}
    HERE.leaving, before = device.type == "cpu", HERE.leaving
    try:
        return torch.ops.aten._to_copy.default(tensor, device=device, dtype=dtype, **blocking)
    finally:
        HERE.leaving = before


class Dispatch(dispatching.TorchDispatchMode):
    """Catches what makes tensors on a GPU out of none."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports its compiler at the first call, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@cache
def written_by(func: Any) -> list[tuple[int, str]]:
    """The arguments that an operation overwrites: their places and names."""
    infos = [(i, one.name, one.alias_info) for i, one in enumerate(func._schema.arguments)]
    return [(i, name) for i, name, alias in infos if alias is not None and alias.is_write]


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those among the arguments of an operation, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def each(values: Any, change: Callable[[Any], Any]) -> Any:
    """The same with every value in lists changed."""
    return (
        type(values)(each(value, change) for value in values) if isinstance(values, (list, tuple)) else change(values)
    )


def held(value: Any) -> Any:
    """Numbers on the CPU."""
    return value.held if isinstance(value, OnGpu) else value


def _one_hot(classes: Tensor, num_classes: int = -1) -> Tensor:
    count = int(classes.max()) + 1 if num_classes < 0 else num_classes
    return (classes.unsqueeze(-1) == torch.arange(count, device=classes.device)).long()


def _product(func: Any) -> Callable[..., Any]:
    """Operations that only GPUs have: products whose numbers are added up in another type."""

    def product(*args: Any, out_dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
        given = [value.to(out_dtype or args[-1]) for value in args if isinstance(value, Tensor)]
        return func(*given) if out is None else out.copy_(func(*given))

    return product


ONLY_ON_GPUS = {
    getattr(getattr(torch.ops.aten, name), kind): _product(getattr(torch, name))
    for name in ("mm", "bmm", "baddbmm")
    for kind in ("dtype", "dtype_out")
    if hasattr(getattr(torch.ops.aten, name), kind)
}


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation of torch, where tensors or the device asked for may be on a GPU."""
    name, asked = func.overloadpacket.__name__, kwargs.get("device")
    given = [*tensors_in(args), *tensors_in(kwargs.values())]
    there = [tensor for tensor in given if isinstance(tensor, OnGpu)]
    target = place_of(asked) if asked is not None else there[0].place if there else CPU
    if not there and target.type != "cuda":
        return func(*args, **kwargs)
    if name == "copy_":
        target = args[0].device
    elif there and target == CPU and not HERE.leaving:  # where the shell is, says autograd in C++
        target = there[0].place
    stream = current_stream(there[-1].place if there else target)  # of two the last: where a copy comes from
    if there:
        _look_at_devices(name, there, [t for t in given if not isinstance(t, OnGpu) and t.dim()], args)

    own, named = each(args, held), {key: each(value, held) for key, value in kwargs.items()}
    if asked is not None:
        named["device"] = CPU
    if name == "_to_copy":
        named.pop("non_blocking", None)
    out = ONLY_ON_GPUS.get(func, func)(*own, **named)
    if name == "_to_copy" and any(out is value for value in own):  # same device and type, and yet a copy
        out = out.clone()

    overwritten = [args[i] if i < len(args) else kwargs.get(key) for i, key in written_by(func)]
    overwritten = list(tensors_in(overwritten))
    memories = {tensor.held.untyped_storage()._cdata: tensor.memory for tensor in there}
    made: list[Memory] = []

    receiver = current_stream(target) if target.type == "cuda" else stream
    if receiver.device != stream.device:  # a copy from one GPU to the other, for which their streams wait
        stream.wait_stream(receiver)

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or target.type != "cuda":
            return value
        storage = value.untyped_storage()._cdata
        if storage not in memories:
            memories[storage] = Memory(receiver, name)
            made.append(memories[storage])
        return OnGpu(value, target, memories[storage])

    result = each(out, wrapped)
    written = [tensor.memory for tensor in overwritten if isinstance(tensor, OnGpu)]
    view = not overwritten and not made and any(one.alias_info is not None for one in func._schema.returns)
    if not view:
        launch(stream, name, [t.memory for t in there if t.memory not in written], [*written, *made])
    receiver.wait_stream(stream)
    if reason := _awaited(name, target, given, there, args, kwargs):
        waited(stream, reason)
    if not overwritten:
        return result
    if torch.Tag.inplace_view in func.tags:  # the shell takes the new shape
        return dispatching.return_and_correct_aliasing(func, args, kwargs, result)
    first = func._schema.returns  # what was overwritten is returned itself
    return overwritten[0] if len(first) == 1 else tuple(overwritten) if first else None


def _look_at_devices(name: str, there: list[OnGpu], here: list[Tensor], args: Any) -> None:
    """One operation takes tensors of one device; from the CPU numbers without an axis, and indices."""
    if name in MOVING:
        return
    if len(places := {str(tensor.place) for tensor in there}) > 1:
        GPU.problems.append(f"Two devices: {' and '.join(sorted(places))} in {name}, at {where()}")
    indices = {id(index) for index in args[1] if index is not None} if name in INDEXING else set()
    for tensor in here:
        if id(tensor) not in indices:
            GPU.problems.append(f"On the CPU: a tensor {tuple(tensor.shape)} in {name} on a GPU, at {where()}")


def _awaited(name: str, target: torch.device, given: Any, there: Any, args: Any, kwargs: Any) -> str:
    """Why the host waits for an operation; empty where it does not."""
    if name in WAITING or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        return name
    if there and target.type == "cpu":
        return "to the CPU"
    if (
        name in ("copy_", "_to_copy")
        and len(there) < len(given)
        and not (kwargs.get("non_blocking") or args[2:] == (True,))
    ):
        return "from the CPU"
    if name == "_to_copy" and not there and not kwargs.get("non_blocking"):
        return "from the CPU"
    if name in INDEXING:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return f"mask in {name}"
        if any(not isinstance(index, OnGpu) and index.dim() for index in indices):
            return f"CPU index in {name}"
    return ""


def _made_of(make: Callable[..., Tensor], values: Any, **how: Any) -> Tensor:
    """`torch.tensor` and `torch.as_tensor`, which read the numbers of a tensor in C++."""
    device, dtype = how.pop("device", None), how.get("dtype")
    if isinstance(values, OnGpu):
        return values.to(device, dtype) if make is AS_TENSOR else values.detach().to(device, dtype, copy=True)
    if device is None and not (make is AS_TENSOR and isinstance(values, Tensor)):
        device = getattr(getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), "device", None)
    made = make(values, device=CPU if not isinstance(values, Tensor) else values.device, **how)
    return made if device is None else made.to(device)


AS_TENSOR = torch.as_tensor


def _replaced() -> Iterator[tuple[Any, str, Any]]:
    """What stands in torch while a GPU is pretended: where, name, value."""
    generators = [torch.Generator().manual_seed(i) for i in range(DEVICES)]

    def generator(device: Any = "cuda") -> torch.Generator:
        return generators[place_of(device).index]

    def seed_all(seed: int) -> None:
        for one in generators:
            one.manual_seed(seed)

    def set_all(states: list[Tensor]) -> None:
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)

    def no_graph(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a pretended GPU records no graphs")

    def synchronize(device: Any = None) -> None:
        for stream in {current_stream(device), *HOST}:
            waited(stream, "synchronize")

    yield torch, "tensor", partial(_made_of, torch.tensor)
    yield torch, "as_tensor", partial(_made_of, AS_TENSOR)
    yield torch.Tensor, "to", moved
    yield torch.Tensor, "cuda", lambda self, device=None, **how: moved(self, "cuda" if device is None else device)
    yield torch.Tensor, "pin_memory", lambda self: self
    cuda: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "current_stream": current_stream,
        "stream": on_stream,
        "device": on_device,
        "current_device": lambda: HERE.device,
        "device_count": lambda: DEVICES,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "get_device_name": lambda device=None: "a pretended GPU",
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_properties": lambda device=None: SimpleNamespace(name="a pretended GPU", total_memory=2**34),
        "get_device_capability": lambda device=None: (7, 0),  # too old for kernels of Triton
        "mem_get_info": lambda device=None: (2**34, 2**34),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "CUDAGraph": no_graph,
        "graph_pool_handle": lambda: (0, 0),
        "get_sync_debug_mode": lambda: 2 * GPU.refuses_to_wait,
        "set_sync_debug_mode": lambda mode: setattr(GPU, "refuses_to_wait", mode in (2, "error")),
        "empty_cache": lambda: None,
        "synchronize": synchronize,
        "manual_seed": lambda seed: generator().manual_seed(seed),
        "manual_seed_all": seed_all,
        "get_rng_state": lambda device="cuda": generator(device).get_state(),
        "set_rng_state": lambda state, device="cuda": generator(device).set_state(state),
        "get_rng_state_all": lambda: [one.get_state() for one in generators],
        "set_rng_state_all": set_all,
    }
    for name, value in cuda.items():
        yield torch.cuda, name, value


@contextmanager
def pretended_gpu() -> Iterator[Gpu]:
    """Torch has two GPUs in here, of which `missing()` says whether they can be; afterwards it is as it was.

    Parameters of a module that is sent there and back stay the same objects. What layerlaw keeps for later, such as streams
    and plans, goes on in the next such block.
    """
    global GPU
    for stream in list(STREAMS):  # begins with nothing left to do
        HOST.learn(stream.known)
    swapped, GPU = torch.__future__.get_swap_module_params_on_conversion(), Gpu()
    with ExitStack() as stack:
        for owner, name, value in _replaced():
            stack.enter_context(mock.patch.object(owner, name, value))
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swapped)
        stack.enter_context(Dispatch())
        yield GPU
