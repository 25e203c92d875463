"""The precision rule: products in the features' dtype but at least float32; everything small in float64."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from layerlaw.errors import InputError
from layerlaw.threads import Counted

# Rows are worked through in chunks whose scratch copy stays below this: on a CPU it then stays in the cache, and wide
# features need no second copy; a GPU wants few, large kernels.
CHUNK_BYTES = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
HERE = {"cpu"}  # kinds of devices whose numbers are at hand
SMALL_SQUARES = 1e-28  # of a sample: below, float32 squares lose digits


def full_precision() -> AbstractContextManager[None]:
    """Autocast, TF32 and gradients off: a product is what its dtype says. Costs nothing where that is so already."""
    return nullcontext() if is_full_precision() else _full_precision()


def is_full_precision() -> bool:
    """Whether all of that is off already, and nobody may switch it on meanwhile."""
    return is_quiet() and are_exact()


def is_quiet() -> bool:
    """Whether autocast and gradients are off in this thread."""
    return not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))


def are_exact() -> bool:
    """Whether products are what their dtype says in the whole process, and nobody holds the switches for that."""
    # Where another thread holds the switches they are exact as long as it does: then this one must hold them too.
    return not _exact_products.users and _products_are_exact()


@contextmanager
def _full_precision() -> Iterator[None]:
    with (
        _exact_products,
        torch.no_grad(),
        torch.autocast("cuda", enabled=False),
        torch.autocast("cpu", enabled=False),
    ):
        yield


@contextmanager
def _without_tf32() -> Iterator[None]:
    saved = [(switch, name, getattr(switch, name)) for switch, name in _switches()]
    for switch, name, _ in saved:
        setattr(switch, name, "ieee" if name == "fp32_precision" else False)
    try:
        yield
    finally:
        for switch, name, value in saved:
            setattr(switch, name, value)


_exact_products = Counted(_without_tf32)


@cache
def _switches() -> tuple[tuple[Any, str], ...]:
    """Where torch keeps the precision of float32 products: per backend, or (before 2.9) one switch for CUDA."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        backends: Any = torch.backends
        return (backends.cuda.matmul, "fp32_precision"), (backends.mkldnn.matmul, "fp32_precision")
    return ((torch.backends.cuda.matmul, "allow_tf32"),)


def _products_are_exact() -> bool:
    if _precision_of is not None:  # asked at every site: what the attributes below ask in the end
        return not {_precision_of("generic", "all"), *[_precision_of(one, "matmul") for one in _BACKENDS]} - _EXACT
    inherited = getattr(torch.backends, "fp32_precision", "none")
    return all(value in ("ieee", "none", False) for value in (inherited, *(getattr(s, n) for s, n in _switches())))


_BACKENDS, _EXACT = ("cuda", "mkldnn"), {"ieee", "none"}
_precision_of: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)


def not_dense(values: Tensor) -> str:
    """In words, what keeps the numbers of a tensor from being read row by row; empty where nothing does.

    >>> not_dense(torch.eye(2)), not_dense(torch.eye(2).to_sparse())
    ('', 'a sparse tensor (to_dense() makes it an ordinary one)')
    """
    if values.is_nested:
        return "a nested tensor (to_padded_tensor() makes it an ordinary one)"
    if values.is_meta:
        return "a tensor on the meta device, which holds none"
    return "" if values.layout == torch.strided else "a sparse tensor (to_dense() makes it an ordinary one)"


def not_stored(values: Tensor) -> str:
    """In words, what keeps a tensor from holding each of its numbers; empty where nothing does.

    A file of a kilobyte may hold one number that stands for a billion.

    >>> not_stored(torch.ones(3)), not_stored(torch.ones(1).expand(3))
    ('', 'a tensor of 3 numbers of which 1 is stored (contiguous() stores them all)')
    """
    if (why := not_dense(values)) or values.is_quantized:
        return why or "a quantized tensor (dequantize() makes it an ordinary one)"
    claimed, stored = values.numel(), values.untyped_storage().nbytes() // values.element_size()
    held = f"{stored:,} {'is' if stored == 1 else 'are'}"
    return (
        ""
        if claimed <= stored
        else f"a tensor of {claimed:,} numbers of which {held} stored (contiguous() stores them all)"
    )


def native(values: npt.NDArray[Any], name: str = "data") -> npt.NDArray[Any]:
    """An array as torch takes it: in the byte order of this machine, going forward, writable, of no more than 64 bits.

    Raises where some of its numbers are masked: torch would take what lies below the mask.

    >>> native(np.arange(3, dtype=">i4")[::-1]).tolist()
    [2, 1, 0]
    """
    if isinstance(values, np.ma.MaskedArray):
        if hidden := int(np.ma.getmaskarray(values).sum()):
            cure = "Fill them in, or drop these samples, before"
            raise InputError(f"{name}: expected numbers everywhere, got {hidden} that are masked. {cure}.")
        values = values.data
    wide = {np.dtype(np.longdouble): np.float64, np.dtype(np.clongdouble): np.complex128}
    kind = wide.get(values.dtype, values.dtype.newbyteorder("="))
    forward = values.flags.writeable and all(step >= 0 for step in values.strides)
    return np.array(values, dtype=kind) if kind != values.dtype or not forward else values


def foreign(values: Any) -> Any:
    """An array of another library (JAX, TensorFlow, CuPy, …) as a tensor or an array of NumPy; anything else as it is."""
    if isinstance(values, (Tensor, np.ndarray, np.generic, list, tuple)):
        return values
    if hasattr(values, "__dlpack__"):
        try:
            return from_dlpack(values).clone()  # of memory that its library takes for constant
        except (BufferError, RuntimeError, TypeError, ValueError):  # of a kind or a device that torch does not share
            pass
    return np.asarray(values) if hasattr(values, "__array__") else values


def at_least_float32(features: Tensor) -> Tensor:
    """Half and bfloat16 features become float32; float32 and float64 stay."""
    return features.float() if features.element_size() < 4 else features


def double(values: Tensor) -> Tensor:
    """Float64, on the CPU where the device has no float64 (Apple's mps)."""
    return values.cpu().double() if values.device.type == "mps" else values.double()


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Small numbers on the CPU: by one transfer in float64, where they are on another device, which is waited for once.

    >>> on_host([torch.tensor([3, 4]), torch.tensor(0.5)])
    [tensor([3, 4]), tensor(0.5000)]
    """
    home = next((one.device for one in tensors if one.device.type not in HERE), None)
    if home is None:
        return list(tensors)
    flat = torch.cat([one.reshape(-1).to(home, torch.float64) for one in tensors]).cpu()
    parts = torch.split(flat, [one.numel() for one in tensors])
    return [part.view(one.shape).to(one.dtype) for part, one in zip(parts, tensors, strict=True)]


def take_rows(table: Tensor, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Rows of (…, K, d) chosen by (…, n): (…, n, d), fresh; those that are the same for all entries in the memory `out`."""
    if index.dim() == 1:
        return torch.index_select(table, -2, index) if out is None else torch.index_select(table, -2, index, out=out)
    # One flat index is an order of magnitude faster than a gather over expanded rows.
    *batch, K, d = table.shape
    start = K * torch.arange(torch.Size(batch).numel(), device=index.device).reshape(*batch, 1)
    flat = (index + start).expand(*batch, index.shape[-1])
    found = table.reshape(-1, d).index_select(0, flat.reshape(-1)).reshape(*flat.shape, d)
    return found


def row_chunks(rows: int, row_bytes: int, device: torch.device) -> Iterator[slice]:
    """Slices over rows whose copies stay below the chunk size of the device.

    >>> list(row_chunks(5, 2**21, torch.device("cpu")))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, CHUNK_BYTES.get(device.type, CHUNK_BYTES["cuda"]) // max(row_bytes, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def whole_blocks(rows: int, block: int, row_bytes: int, device: torch.device) -> Iterator[slice]:
    """The same of whole blocks of rows that float32 may add up, then what is left; chunks are the blocks where none fits.

    >>> list(whole_blocks(11, 2, 2**20, torch.device("cpu")))
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None), slice(10, 11, None)]
    """
    most = next(row_chunks(max(rows, 1), row_bytes, device)).stop
    block = min(block, most)
    step, even = most // block * block, rows // block * block
    for start in range(0, even, step):
        yield slice(start, min(start + step, even))
    if even < rows:
        yield slice(even, rows)


def beyond_float32(squares: Tensor) -> Tensor:
    """Whether squared lengths (…) of samples leave the range of float32, upwards or downwards."""
    return ~(squares.isfinite() & (squares > SMALL_SQUARES))
