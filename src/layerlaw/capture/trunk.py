"""The trunk of a network: what every path of the data from its input to its scores passes, seen in one forward.

A dispatch mode writes down which tensors each operation reads and gives, whatever modules or plain functions call it. The
nodes of the graph are contents of memory, so that operations in place, views and modules that are called twice need no rules
of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from layerlaw.capture.replay import RECORDED

if TYPE_CHECKING:
    from layerlaw.capture.hooks import Call

SAME_VALUES = ("clone", "_unsafe_view", "_reshape_copy", "lift_fresh", "cat")  # of one tensor they give what they get
OVERWRITE = ("copy_", "zero_", "fill_")  # what was there before does not matter
PRODUCTS = ("mm", "mv", "matmul")  # how the names of matrix products end; "conv" and "linear" may be anywhere in a name
LOOKUPS = ("embedding", "_embedding", "index", "gather")  # how the names of those begin that read a table at ids
BY_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
UNREACHED = "the output does not come from the input by operations of torch alone"


class Node(NamedTuple):
    """The content of some memory at some time: the operation that gave it and the nodes it was made of."""

    made_by: str
    reads: tuple[int, ...]
    size: int
    ids: bool = False  # integers that the input consists of or that come from it
    reads_ids: tuple[int, ...] = ()  # those that count only where no embedding reads the ids


class Product(NamedTuple):
    """A convolution or a matrix product of data with a parameter, in the module that was running."""

    call: Call
    parameter: str  # its name in the network; "" where it was computed from parameters


class DataFlow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The graph of one forward, from `source`, the tensor that the network is called with.

    Only floating-point tensors are followed: a mask or an index that is computed from the data is no path of the data.
    Token ids become data where an embedding (if there is none, anything else) turns them into numbers.
    """

    supports_higher_order_operators = True

    def __init__(self, network: nn.Module, source: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.products: list[Product] = []
        self.running: list[Call] = []  # the modules that are being called, innermost last
        self.trouble = ""  # why the data cannot be followed
        self.by_numbers = False  # whether something was done that depends on numbers, such as `if x.mean() > 0`
        self.steady = source.device.type in RECORDED  # whether the forward does the same with all numbers
        self._device = source.device
        self._whole: dict[int, int] = {}  # by storage: the node of all of its content
        self._sizes: dict[int, int] = {}  # by storage: how many numbers that is
        self._views: dict[tuple[Any, ...], int] = {}  # parts of a storage that were read
        self._joined: dict[tuple[Any, ...], int] = {}  # concatenations, by what they join
        self._addresses: list[StorageWeakRef] = []  # while these last no other storage gets the same address
        self._weights = {_storage(p): name for name, p in network.named_parameters() if not p.is_meta}
        self._source = self._add(source, Node("input", (), source.numel(), ids=not source.is_floating_point()))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To torch: do not wrap every operation against the compiler, which the first one would load for seconds."""
        return False  # no compiled code runs in here: a probe calls networks eagerly

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.trouble:
            return func(*args, **kwargs)
        try:
            operation = _operation(func)
            given = self._given(operation, args, kwargs)
        except Exception as error:  # a tensor without memory of its own, say: the forward goes on
            self.trouble, self.steady = f"{type(error).__name__} at {func}", False
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        try:
            self._write(operation, args, kwargs, given, result)
            if self.steady:
                here = all(tensor.device == self._device for tensor in _tensors((*args, result), kwargs))
                self.steady = operation.steady and here
        except Exception as error:
            self.trouble, self.steady = f"{type(error).__name__} at {func}", False
        return result

    def node(self, tensor: Tensor) -> int | None:
        """The node of what a tensor holds now; `None`: nothing that comes from the input."""
        if self.trouble or tensor.numel() == 0:
            return None
        return self._node(tensor, _storage(tensor))

    def _node(self, tensor: Tensor, storage: int) -> int | None:
        whole = self._whole.get(storage)
        if whole is None or tensor.numel() >= self._sizes[storage]:
            return whole
        key = (whole, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if key not in self._views:
            self.nodes.append(Node("part", (whole,), tensor.numel(), ids=self.nodes[whole].ids))
            self._views[key] = len(self.nodes) - 1
        return self._views[key]

    def looked_up(self, end: int) -> bool:
        """Whether a node, or one that it is made of, holds rows of a table at token ids: an embedding."""
        seen, stack = {end}, [end]
        while stack:
            node = self.nodes[stack.pop()]
            behind = {*node.reads, *node.reads_ids}
            if not node.ids and node.made_by.startswith(LOOKUPS) and any(self.nodes[i].ids for i in behind):
                return True
            stack += behind - seen
            seen |= behind
        return False

    def trunk(self, end: int | None) -> Trunk | str:
        """What every path from the input to a node passes, or the reason why that cannot be said."""
        if self.trouble:
            return f"the data could not be followed: {self.trouble}"
        if end is None:
            return UNREACHED
        reads = [set(node.reads) for node in self.nodes]
        inside = self._between(reads, end)
        if not inside:  # no embedding: one-hot vectors, say
            reads = [set(node.reads) | set(node.reads_ids) for node in self.nodes]
            inside = self._between(reads, end)
        if not inside:
            return UNREACHED
        reads = [earlier & inside for earlier in reads]
        last_reader = {earlier: node for node in sorted(inside) for earlier in reads[node]}
        points, reach = [], 0
        for node in sorted(inside):  # in the order of time
            if reach <= node:  # nothing before it is read behind it
                points.append(node)
            reach = max(reach, last_reader.get(node, node))
        return Trunk(self.nodes, points, {node: reads[node] for node in inside})

    def _between(self, reads: list[set[int]], end: int) -> set[int]:
        """The nodes on some path from the input to `end`; none where there is no path."""
        ahead = {self._source}
        for node in range(self._source + 1, end + 1):
            if reads[node] & ahead:
                ahead.add(node)
        found: set[int] = set()
        stack = [end] if end in ahead else []
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += reads[node] & ahead
        return found

    def _add(self, tensor: Tensor, node: Node) -> int:
        self.nodes.append(node)
        self._hold(tensor, len(self.nodes) - 1)
        return len(self.nodes) - 1

    def _hold(self, tensor: Tensor, node: int) -> None:
        storage = self._keep_address(tensor)
        self._whole[storage], self._sizes[storage] = node, tensor.numel()

    def _keep_address(self, tensor: Tensor) -> int:
        memory = tensor.untyped_storage()
        self._addresses.append(StorageWeakRef(memory))  # type: ignore[no-untyped-call]
        return int(memory._cdata)

    def _given(self, operation: Operation, args: Any, kwargs: Any) -> Arguments:
        """What an operation reads; a product of data and parameters is written down."""
        tensors = [tensor for tensor in _tensors(args, kwargs) if tensor.numel()]
        self.by_numbers |= operation.by_numbers and (operation.name != "index" or _by_mask(tensors))
        storages = [_storage(tensor) for tensor in tensors]
        if operation.shape_only:
            return Arguments([], storages)
        nodes = [self._node(tensor, storage) for tensor, storage in zip(tensors, storages, strict=True)]
        reads = list(dict.fromkeys([node for node in nodes if node is not None]))
        if reads and operation.product and self.running:
            stored = [s for t, s, node in zip(tensors, storages, nodes, strict=True) if node is None and t.dim() >= 2]
            names = [self._weights[storage] for storage in stored if storage in self._weights]
            if names:
                self.products.append(Product(self.running[-1], names[0]))
        return Arguments(reads, storages)

    def _write(self, operation: Operation, args: Any, kwargs: Any, given: Arguments, result: Any) -> None:
        """Nodes for what an operation overwrites and gives."""
        name, reads, known = operation.name, given.reads, given.storages
        if operation.writes:
            known = [_storage(tensor) for tensor in _tensors(args, kwargs) if tensor.numel()]
            for tensor in operation.overwritten(args, kwargs):
                self._overwrite(name, reads, tensor, whole=name in OVERWRITE or "out" in kwargs)
        of_weights = not reads and any(storage in self._weights for storage in known)
        for tensor in _tensors((result,), {}):
            if tensor.numel() == 0 or (storage := _storage(tensor)) in known:  # a view, or what was overwritten
                continue
            if of_weights:
                self._weights[storage] = ""
                self._keep_address(tensor)
            if not reads:
                continue
            if len(reads) == 1 and name in SAME_VALUES and self.nodes[reads[0]].size == tensor.numel():
                self._hold(tensor, reads[0])
                continue
            joined = (_axis(args, kwargs), tuple(reads)) if name == "cat" else None
            made = self._made(name, reads if joined is None else self._parts_joined(*joined), tensor)
            if made is not None:
                self._add(tensor, made)
                if joined is not None:
                    self._joined[joined] = len(self.nodes) - 1

    def _overwrite(self, name: str, reads: list[int], tensor: Tensor, *, whole: bool) -> None:
        """A node for what is written into a tensor; where that is `whole`, what was there before does not matter."""
        storage = _storage(tensor)
        old, size = self._whole.get(storage), self._sizes.get(storage, tensor.numel())
        anew = tensor.numel() >= size and whole
        sources = [n for n in reads if n != old] if anew else list(dict.fromkeys([*reads, *filter(None, [old])]))
        made = self._made(name, sources, tensor)
        if made is not None:
            self._add(tensor, made)
            self._sizes[storage] = size
        elif anew:
            self._whole.pop(storage, None)

    def _made(self, name: str, reads: list[int], tensor: Tensor) -> Node | None:
        ids = tuple(node for node in reads if self.nodes[node].ids)
        numbers = tuple(node for node in reads if not self.nodes[node].ids)
        if not tensor.is_floating_point():
            return Node(name, ids, tensor.numel(), ids=True) if ids else None
        if name.startswith("embedding"):
            return Node(name, numbers + ids, tensor.numel()) if reads else None
        return Node(name, numbers, tensor.numel(), reads_ids=ids) if reads else None

    def _parts_joined(self, axis: int, reads: tuple[int, ...]) -> list[int]:
        """What a concatenation joins, where an earlier one already joined the first (or the last) of its parts.

        A dense block that keeps a list and joins all of it at every layer has the same trunk as one that adds to a tensor.
        """
        for length in range(len(reads) - 1, 1, -1):
            if (earlier := self._joined.get((axis, reads[:length]))) is not None:
                return [earlier, *reads[length:]]
            if (earlier := self._joined.get((axis, reads[-length:]))) is not None:
                return [*reads[:-length], earlier]
        return list(reads)


class Trunk:
    """The points that every path passes, in order, and the parts between them: plain steps, and branches that rejoin."""

    def __init__(self, nodes: list[Node], points: list[int], reads: Mapping[int, set[int]]) -> None:
        self.nodes, self.points, self.reads = nodes, points, reads
        self._position = {node: i for i, node in enumerate(points)}

    def position(self, node: int | None) -> int | None:
        """Which point of the trunk a node is, counted from 0 at the input; `None`: it is none."""
        return None if node is None else self._position.get(node)

    def part(self, node: int | None) -> int | None:
        """Between which points, i and i + 1, a node was made (point i + 1 included); `None`: on no path to the output."""
        if node is None or node not in self.reads:
            return None
        return max(0, bisect_left(self.points, node) - 1)

    @cached_property
    def branched(self) -> set[int]:
        """The parts with more than one path, other than gates."""
        return self._forked - self.gates

    @cached_property
    def gates(self) -> set[int]:
        """The parts x · g(x), such as squeeze-and-excitation."""
        ends = {i: self.points[i + 1] for i in self._forked}
        return {
            i
            for i, end in ends.items()
            if self.nodes[end].made_by.startswith("mul") and self.points[i] in self.reads[end]
        }

    @cached_property
    def _forked(self) -> set[int]:
        return {part for node in self.reads if node not in self._position and (part := self.part(node)) is not None}

    def behind(self, node: int | None, weighted: Container[int]) -> int | None:
        """The point that a node shows: itself, or the one that a norm or activation without weights made it of.

        Made of all of that point's numbers, and of as many as they are: what is pooled or cut out is something else.
        """
        if (at := self.position(node)) is not None or node is None or (part := self.part(node)) is None:
            return at
        stack, start = [node], self.points[part]
        if self.nodes[node].size != self.nodes[start].size:
            return None
        while stack:
            one = stack.pop()
            if one in weighted:
                return None
            stack += [earlier for earlier in self.reads[one] if earlier != start]
        return part


def _axis(args: Any, kwargs: Any) -> int:
    return int(args[1] if len(args) > 1 else kwargs.get("dim", 0))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Those among the arguments of an operation, also in lists and dictionaries, in order."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)) and value and type(value[0]) is not int:
            found += _tensors(value, {})
        elif isinstance(value, dict):
            found += _tensors(value.values(), {})
    return found


def _by_mask(tensors: Iterable[Tensor]) -> bool:
    """Whether entries are chosen by a mask, so that their number depends on numbers."""
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors)


class Arguments(NamedTuple):
    """What an operation got: the nodes that it reads, and the memory of every tensor."""

    reads: list[int]
    storages: list[int]


class Operation(NamedTuple):
    """What is known of an operation of torch, whatever it is called with."""

    name: str
    shape_only: bool  # it takes the shape of its input only
    product: bool
    by_numbers: bool  # it tells numbers to Python, or the shape of what it gives depends on numbers
    steady: bool  # it is torch's own, and does the same with all numbers: none decides, none is drawn
    writes: tuple[tuple[int, str], ...]  # the places and names of arguments that it overwrites

    def overwritten(self, args: Any, kwargs: Any) -> list[Tensor]:
        """The tensors that it has overwritten."""
        values = [args[i] if i < len(args) else kwargs.get(name) for i, name in self.writes]
        return [tensor for tensor in _tensors(values, {}) if tensor.numel()]


@lru_cache(maxsize=4096)
def _operation(func: Any) -> Operation:
    name = str(getattr(func, "overloadpacket", func).__name__)
    product = "conv" in name or "linear" in name or name.endswith(PRODUCTS)
    tags, schema = set(getattr(func, "tags", None) or ()), getattr(func, "_schema", None)
    # functions that are operations, such as flex_attention, have no schema
    arguments = list(enumerate(schema.arguments)) if schema is not None else []
    writes = [(i, one.name) for i, one in arguments if one.alias_info is not None and one.alias_info.is_write]
    by_numbers = bool(BY_NUMBERS & tags)
    drawn = torch.Tag.nondeterministic_seeded in tags
    steady = getattr(func, "namespace", "") == "aten" and not (by_numbers or drawn)
    shape_only = name.startswith("new_") or name.endswith("_like")
    return Operation(name, shape_only, product, by_numbers, steady, tuple(writes))
