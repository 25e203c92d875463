"""What a dry run depends on, but for numbers, as a key: two dry runs of one network with equal keys find the same.

Modules and their attributes, shapes of weights and inputs, hooks, and the code that a forward runs with the flags that this
code reads, as far as names lead to them. What cannot be told by looking at it makes no key.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Container, Hashable, Iterable
from contextvars import ContextVar
from functools import lru_cache, partial
from types import (
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from layerlaw.capture.batches import Batch
from layerlaw.errors import LayerlawError
from layerlaw.module_tree import named

VALUES = frozenset([bool, int, str, float, complex, bytes, type(None), type(...), range])
VALUES |= frozenset([torch.dtype, torch.device, torch.layout, torch.memory_format])
FIXED = frozenset(  # attributes of classes that belong to these as they are
    [MemberDescriptorType, GetSetDescriptorType, WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType]
)
USUAL = frozenset(vars(nn.Module()))  # what every module has: a probe sets `training` itself, the others are torch's
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
ROOTS = ("forward", "__call__", "__getattr__", "__getattribute__")  # what calling a module runs
BASES = (nn.Module, object)
LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}  # their functions are who they are
CLOSED = ("torch", "numpy", "logging")  # and so are objects of these
ATTENTION = ("flash", "mem_efficient", "math", "cudnn")  # the ways in which torch computes it
OUTSIDE = {  # the environment, numbers of tensors past torch, random numbers, the clock
    *("environ", "getenv", "numpy", "tolist", "__array__", "data_ptr"),
    *("random", "randint", "randrange", "uniform", "choice", "shuffle"),
    *("time", "perf_counter", "monotonic", "process_time"),
}
DEEPEST = 4  # objects inside objects that are looked into
MOST = 5_000  # values in one key, other than plain ones


class NoKeyError(LayerlawError):
    """A dry run may depend on something that cannot be told by looking at it."""


class PlanKey:
    """The key of one network, batch and options; `held` are those that it knows by their address."""

    def __init__(self, network: nn.Module, batch: Batch, how: dict[str, Any]) -> None:
        modules = named(network)
        self._modules = {id(module): i for i, module in enumerate(modules.values())}
        self._kinds: dict[type, int] = {}
        self._memory: dict[int, int] = {}  # of tensors
        self._names = dict.fromkeys(ROOTS)  # what code that may run means something by
        self._classes: dict[type, set[str]] = {}  # whose methods may run, and those that were looked at
        self._seen: dict[int, tuple[int, object]] = {}  # by address: what was looked at, and must live so long
        self.held: list[object] = []
        found: list[Hashable] = [_switches()]
        found += [self._module(name, module) for name, module in modules.items()]
        found += [self._kind(kind) for kind in self._kinds]
        found.append(self._hooks([getattr(torch_module, f"_global{name}") for name in HOOKS]))
        found.append(self._code())
        self.value: Hashable = (tuple(found), self._batch(batch), self._value(how, 0))
        self._seen.clear()

    def references(self) -> list[ref[Any]]:
        """Weak references to what the key knows by address: while all of them live, no address means something else.

        A TypeError where there is none to something.
        """
        return [ref(one) for one in self.held]

    def _module(self, name: str, module: nn.Module) -> Hashable:
        if (kind := self._kinds.get(type(module), -1)) < 0:
            kind = self._kinds[type(module)] = len(self._kinds)
            self._classes |= {base: set() for base in type(module).__mro__ if base not in BASES}
        plain, tensors = [], []
        for key, value in vars(module).items():
            if key in USUAL:
                continue
            of = type(value)
            known = of in VALUES or (of is tuple and {type(item) for item in value} <= VALUES)
            plain.append((key, of, value) if known else (key, self._value(value, 0)))
        for held in (module._parameters, module._buffers):
            for key, tensor in held.items():
                tensors.append((key, None if tensor is None else self._tensor(tensor)))
        hooks = module._forward_hooks or module._forward_pre_hooks
        return name, kind, tuple(plain), tuple(tensors), self._hooks([vars(module)[n] for n in HOOKS]) if hooks else ()

    def _tensor(self, tensor: Tensor) -> Hashable:
        """What a tensor looks like, and which one it is among those of the network that are the same memory."""
        try:
            memory = tensor.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):  # sparse ones, subclasses without memory of their own
            memory = id(tensor)
        first = self._memory.setdefault(memory, len(self._memory))
        strides = tensor.stride() if tensor.layout == torch.strided else None
        return self._kind(type(tensor)), tensor.shape, tensor.dtype, tensor.device, strides, tensor.requires_grad, first

    def _hooks(self, of: Iterable[dict[int, Any]]) -> Hashable:
        return tuple([tuple([self._value(hook, 0) for hook in hooks.values()]) for hooks in of])

    def _batch(self, batch: Batch) -> Hashable:
        """Of the samples in a batch what they look like, and whether there are enough for a dry run on three."""
        n = len(batch.labels)
        labels = tuple(batch.labels.shape[1:]), batch.labels.dtype
        return min(n, 3), labels, self._input(batch.args, n), self._input(batch.kwargs, n)

    def _input(self, value: Any, n: int) -> Hashable:
        if isinstance(value, Tensor):
            shape = tuple(["n" if size == n and axis < 2 else size for axis, size in enumerate(value.shape)])
            strides = value.stride()[1:] if value.layout == torch.strided else None
            return self._kind(type(value)), shape, value.dtype, value.device, strides
        if isinstance(value, (tuple, list)):
            return (self._kind(type(value)), *[self._input(item, n) for item in value])
        if isinstance(value, dict):
            return (
                self._kind(type(value)),
                *[(self._value(key, 0), self._input(item, n)) for key, item in value.items()],
            )
        return self._value(value, 0)

    def _value(self, value: Any, depth: int) -> Hashable:
        """Values and containers by value, functions by what they run, anything else by what it is and what it has."""
        kind = type(value)
        if kind in VALUES:
            return kind, value
        if kind in FIXED:
            return "fixed", kind
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._kind(kind), value.shape, value.dtype
        if isinstance(value, np.generic):
            return kind, value.item()
        if isinstance(value, nn.Module):
            if id(value) not in self._modules:
                raise NoKeyError(f"a {kind.__name__} that is no module of the network")
            return "module", self._modules[id(value)]
        if id(value) in self._seen:
            return "again", self._seen[id(value)][0]
        self._look_at(value)
        if isinstance(value, (tuple, list, deque)):
            return (self._kind(kind), *[self._value(item, depth) for item in list(value)])
        if isinstance(value, (dict, SimpleNamespace)):
            value = value if isinstance(value, dict) else vars(value)
            items = [(self._value(key, depth), self._value(item, depth)) for key, item in list(value.items())]
            return (self._kind(kind), *items)
        if isinstance(value, (set, frozenset)):
            return self._kind(kind), frozenset([self._value(item, depth) for item in list(value)])
        if isinstance(value, FunctionType):
            return self._function(value, own=False)
        if isinstance(value, MethodType):
            return "method", self._value(value.__func__, depth), self._value(value.__self__, depth)
        if isinstance(value, ContextVar):
            return value, self._value(value.get(None), depth)
        if isinstance(value, partial):
            return "partial", *[self._value(one, depth) for one in (value.func, value.args, value.keywords)]
        return self._object(value, depth)

    def _look_at(self, value: object) -> None:
        self._seen[id(value)] = len(self._seen), value
        if len(self._seen) > MOST:
            raise NoKeyError(f"more than {MOST} values")

    def _kind(self, kind: type) -> Hashable:
        """A class by its address, so that no key keeps it alive."""
        if kind.__module__ == "builtins" or kind in (Tensor, nn.Parameter):
            return kind
        self.held.append(kind)
        return id(kind)

    def _object(self, value: Any, depth: int) -> Hashable:
        self.held.append(value)
        kind, about = type(value), getattr(value, "__dict__", None)
        if isinstance(value, (type, ModuleType)) or _is_of(kind, CLOSED):
            return id(value)
        if depth >= DEEPEST:
            raise NoKeyError(f"a {kind.__name__} in objects in objects")
        if any(vars(base).get("__slots__") for base in kind.__mro__) and not _is_of(kind, LIBRARIES):
            raise NoKeyError(f"a {kind.__name__}, which has slots")
        self._classes |= {
            base: set() for base in kind.__mro__ if base not in self._classes and not _is_of(base, LIBRARIES)
        }
        items = about if type(about) is dict else {}
        return id(value), *[(key, self._value(item, depth + 1)) for key, item in list(items.items())]

    def _code(self) -> Hashable:
        """What a forward may run, as far as names lead from one method to others, to functions and to flags they read."""
        found: list[Hashable] = []
        before = -1
        while before < len(found):
            before = len(found)
            for number, (base, done) in enumerate(list(self._classes.items())):
                about = vars(base)
                names = sorted((self._names.keys() & about.keys()) - done)
                done.update(names)
                found += [(number, name, self._attribute(about[name], own=True)) for name in names]
        return tuple(found)

    def _attribute(self, value: Any, *, own: bool) -> Hashable:
        """Something that code means by a name; `own`: a method of what is called."""
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            return "property", *[self._attribute(one, own=own) for one in (value.fget, value.fset) if one is not None]
        if own and isinstance(value, FunctionType) and id(value) not in self._seen:
            self._look_at(value)
            return self._function(value, own=True)
        return self._value(value, 1)

    def _function(self, function: FunctionType, *, own: bool) -> Hashable:
        """Its code, what it has closed over, and what its names mean; of libraries those alone that are called."""
        code, means, library = function.__code__, function.__globals__, _is_of(function, LIBRARIES)
        if library and not own:
            self.held.append(function)
            return code, id(function)
        names, outside = _names(code)
        if outside and not library:
            raise NoKeyError(f"{function.__qualname__} uses '{outside}'")
        self._names |= dict.fromkeys(names)
        found: list[Hashable] = [code]
        for cell in function.__closure__ or ():
            try:
                found.append(self._value(cell.cell_contents, 1))
            except ValueError:  # empty
                found.append("empty")
        more = (function.__defaults__, function.__kwdefaults__, function.__dict__)
        found += [self._value(one, 1) for one in more if one]
        for name in names:
            if name in means:
                value = means[name]
                found.append((name, self._attribute(value, own=False)))
                if isinstance(value, ModuleType) or (isinstance(value, type) and not _is_of(value, LIBRARIES)):
                    inside = vars(value)
                    found += [(n, self._attribute(inside[n], own=False)) for n in (*names, "forward") if n in inside]
        return tuple(found)


def _switches() -> Hashable:
    """Switches of torch that change what a forward does."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        raise NoKeyError("a mode of torch")
    casts = [(torch.is_autocast_enabled(where), torch.get_autocast_dtype(where)) for where in ("cpu", "cuda")]
    attention = [getattr(torch._C, f"_get_{kind}_sdp_enabled")() for kind in ATTENTION]
    strict = torch.are_deterministic_algorithms_enabled()
    calls = nn.Module._call_impl.__code__, nn.Module.__call__.__code__
    return torch.get_default_dtype(), strict, calls, *casts, *attention


def _is_of(value: Any, packages: Container[str]) -> bool:
    """Whether a function or a class was defined in one of these packages."""
    where = getattr(value, "__module__", None)
    return isinstance(where, str) and where.partition(".")[0] in packages


@lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[tuple[str, ...], str]:
    """The names that code uses, also in functions inside of it, and one by which it reads what no key tells."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= dict.fromkeys(_names(constant)[0])
        elif isinstance(constant, str) and constant.isidentifier():  # getattr(self, "name")
            names[constant] = None
    return tuple(names), next((name for name in names if name in OUTSIDE), "")
