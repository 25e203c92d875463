"""Who measured, with which code, on which machine, and when: put together in one place for records, outcomes and advice."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, cuda, nn

from layerlaw.files import sha256
from layerlaw.later import Later
from layerlaw.module_tree import PLAIN, buffers_in, class_of, in_a_row, parameters_in, walk

DIGEST_BYTES = 2 * 2**30
SMALL = 2**20  # bytes of a tensor: to fetch a larger one takes longer than to ask for it
FETCHED = {"cuda"}
WAITING = 2**20  # bytes of all tensors: of so few a checksum may wait, with a copy of them
READABLE = {torch.float32, torch.float64, torch.float16, torch.int64}  # by NumPy, as they are


def provenance(*devices: str | torch.device | None, **more: Any) -> dict[str, Any]:
    """What every result says of its origin, with what else is known of this one in between."""
    used = [device or "cpu" for device in devices]
    return {
        "layerlaw": code_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": ", ".join(cuda.get_device_name(d) if torch.device(d).type == "cuda" else str(d) for d in used),
        **more,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@cache
def code_version() -> str:
    """The installed version, or a word that says it runs from a bare source tree."""
    try:
        return importlib.metadata.version("layerlaw")
    except importlib.metadata.PackageNotFoundError:
        return "run from its source"


def model_provenance(model: nn.Module, *, waits: bool = False) -> dict[str, Any]:
    """What is said of a model: its class, its number of parameters and their checksum.

    With `waits` the checksum of few parameters is a `Later`, which `worked_out` finds.
    """
    modules = walk(model)
    parameters = parameters_in(modules)
    tensors = [*parameters, *buffers_in(modules)]
    return {
        "model": class_of(model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "parameters_sha256": (_digest_later(tensors) if waits else None) or _digest(tensors),
    }


def worked_out(about: dict[str, Any]) -> dict[str, Any]:
    """The same, with the value of whatever is a `Later`."""
    return {key: value.value() if isinstance(value, Later) else value for key, value in about.items()}


def parameter_digest(network: nn.Module, *, whole: bool = False) -> str | None:
    """A checksum of all parameters and buffers; `None` where they are elsewhere or larger than is quickly read.

    Nor is there one where they are held in a form that has no bytes to read, as some quantized weights are. `whole`: of
    large ones, too, which are read one after the other.
    """
    modules = walk(network)
    return _digest([*parameters_in(modules), *buffers_in(modules)], whole=whole)


def unreadable(network: nn.Module) -> list[str]:
    """The names of parameters and buffers of which there is no checksum, whatever their size."""
    named = (*network.named_parameters(), *network.named_buffers())
    return [name for name, tensor in named if _digest([tensor], whole=True) is None]


def _digest(tensors: Sequence[Tensor], *, whole: bool = False) -> str | None:
    others = [t for t in tensors if type(t) not in PLAIN]
    elsewhere = any(t.is_meta for t in tensors) or any(
        hasattr(t, "full_tensor") for t in others
    )  # offloaded or sharded
    if elsewhere or (not whole and sum(t.nbytes for t in tensors) > DIGEST_BYTES):
        return None
    try:
        return sha256(map(_bytes, _on_host(tensors)))
    except (NotImplementedError, RuntimeError, TypeError, ValueError):  # a finished measurement is not lost for it
        return None


def _digest_later(tensors: Sequence[Tensor]) -> Later[str | None] | None:
    """The checksum of the tensors as they are now, computed when somebody looks; `None` where they are not copied for it."""
    plain = all(type(t) in PLAIN and t.is_cpu and t.layout == torch.strided for t in tensors)
    if not plain or (held := sum(t.nbytes for t in tensors)) > WAITING:
        return None
    kinds: dict[torch.dtype, list[int]] = {}
    for i, tensor in enumerate(tensors):
        kinds.setdefault(tensor.dtype, []).append(i)
    with torch.no_grad():  # in one piece for each dtype: to copy them one by one takes as long as to read them
        copies = {dtype: in_a_row([tensors[i] for i in alike]) for dtype, alike in kinds.items()}
    sizes = [tensor.numel() for tensor in tensors]

    def found() -> str | None:
        parts: dict[int, Tensor] = {}
        for dtype, alike in kinds.items():
            parts |= zip(alike, torch.split(copies[dtype], [sizes[i] for i in alike]), strict=True)
        return _digest([parts[i] for i in range(len(sizes))])

    return Later(found, held)


def _on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors, small ones of an accelerator fetched together: it is asked once per dtype, not once for each."""
    here = [tensor.detach() for tensor in tensors]
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(here):
        if tensor.device.type in FETCHED and type(tensors[i]) in PLAIN and tensor.nbytes <= SMALL:
            kinds.setdefault((tensor.device, tensor.dtype), []).append(i)
    for alike in kinds.values():
        flat = torch.cat([here[i].reshape(-1) for i in alike]).cpu()
        for i, part in zip(alike, torch.split(flat, [here[i].numel() for i in alike]), strict=True):
            here[i] = part
    return here


def _bytes(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor, whose bytes are read; those that NumPy does not know as their bytes."""
    here = tensor.detach()
    if not here.is_cpu or not here.is_contiguous():
        here = here.cpu().contiguous()
    return here.numpy() if here.dtype in READABLE else here.reshape(-1).view(torch.uint8).numpy()
