"""Who measured, with which code, on which machine, and when: put together in one place for records, outcomes and advice."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from functools import cache
from typing import Any

import torch
from torch import cuda, nn

from layerlaw.files import sha256

DIGEST_BYTES = 2 * 2**30


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
        return "not installed"


def model_provenance(model: nn.Module) -> dict[str, Any]:
    """What is said of a model: its class, its number of parameters and their checksum."""
    return {
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameters_sha256": parameter_digest(model),
    }


def parameter_digest(network: nn.Module) -> str | None:
    """A checksum of all parameters and buffers; `None` where they are elsewhere or larger than is quickly read.

    Nor is there one where they are held in a form that has no bytes to read, as some quantized weights are.
    """
    tensors = [*network.parameters(), *network.buffers()]
    elsewhere = any(t.is_meta or hasattr(t, "full_tensor") for t in tensors)  # offloaded or sharded
    if elsewhere or sum(t.numel() * t.element_size() for t in tensors) > DIGEST_BYTES:
        return None
    try:
        return sha256(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for t in tensors)
    except (NotImplementedError, RuntimeError, TypeError, ValueError):  # a finished measurement is not lost for it
        return None
