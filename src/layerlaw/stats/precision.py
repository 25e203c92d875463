"""The precision rule: products in the features' dtype but at least float32; everything small in float64."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# Rows are worked through in chunks whose scratch copy stays below this, so that wide features need no second copy.
CHUNK_BYTES = 16 * 2**20


@contextmanager
def full_precision() -> Iterator[None]:
    """Autocast and TF32 off, gradients off: a product is what its dtype says."""
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.no_grad(), torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32


def at_least_float32(features: Tensor) -> Tensor:
    """Half and bfloat16 features become float32; float32 and float64 stay."""
    return features.float() if features.element_size() < 4 else features


def double(values: Tensor) -> Tensor:
    """Float64, on the CPU where the device has no float64 (Apple's mps)."""
    return values.cpu().double() if values.device.type == "mps" else values.double()


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows of (…, K, d) chosen by (…, n): a fresh (…, n, d)."""
    if table.dim() == 2 and index.dim() == 1:
        return torch.index_select(table, 0, index)
    return torch.take_along_dim(table, index.unsqueeze(-1), -2)


def row_chunks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Slices over the rows whose copies stay below the chunk size.

    >>> list(row_chunks(5, CHUNK_BYTES // 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, CHUNK_BYTES // max(row_bytes, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
