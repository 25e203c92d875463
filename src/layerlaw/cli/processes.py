"""Commands under torchrun: the processes find each other, share the work, and the first one speaks for all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import typer

from layerlaw.cli.app import in_options
from layerlaw.errors import InputError, LayerlawError, visible


def sharing(function: Callable[..., None]) -> Callable[..., None]:
    """A command that shares its work under torchrun: each process computes on a device of its own."""

    @wraps(function)
    def shared(**given: Any) -> None:
        with processes(given["device"]) as process:
            several = dist.is_available() and dist.is_initialized()
            function(**given | ({"device": process.device} if several else {}))

    return shared


class Process(NamedTuple):
    """Whether this one prints and writes, and where it computes (`None`: where the model is)."""

    first: bool
    device: str | None


@contextmanager
def processes(device: str | None, device_map: str | None = None) -> Iterator[Process]:
    """Join the processes that torchrun has started; alone, only a device is chosen.

    With GPUs every process takes the one of its LOCAL_RANK and they talk through nccl, else through gloo. An error in
    another process than the first is told on standard error with its number, and never as a second JSON object.
    """
    size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if size == 1:
        yield Process(True, device if device or device_map or not torch.cuda.is_available() else "cuda")
        return
    try:
        where = _device(device, device_map)
        try:
            dist.init_process_group("nccl" if where.startswith("cuda") else "gloo")
        except (RuntimeError, ValueError) as error:
            found = f"WORLD_SIZE is {size}, but the processes did not find each other ({error})"
            raise InputError(f"{found}. Start them with torchrun, or unset it.") from None
        yield Process(rank == 0, where if where != "cpu" else device)
    except LayerlawError as error:
        if rank == 0:
            raise
        print(f"rank {rank}: error: {visible(in_options(str(error)))}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _device(device: str | None, device_map: str | None) -> str:
    """Where this process computes; a GPU is made its own."""
    if device_map is not None:
        raise InputError("--device-map spreads one model over all devices; under torchrun every process has its own.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda:") and _number("LOCAL_WORLD_SIZE", 1) > 1:
        raise InputError(f"device: expected 'cuda' under torchrun (every process takes its own GPU), got {device!r}.")
    local, gpus = _number("LOCAL_RANK", 0), torch.cuda.device_count()
    if not device.startswith("cuda"):
        return device
    if device == "cuda" and local >= gpus:
        got = f"got {gpus} for LOCAL_RANK {local}. Start fewer, or use --device cpu"
        raise InputError(f"device: expected a GPU for each process of this machine, {got}.")
    where = f"cuda:{local}" if device == "cuda" else device
    try:
        torch.cuda.set_device(where)
    except (RuntimeError, AssertionError, AttributeError) as error:  # the last: torch without CUDA
        raise InputError(f"device: cannot compute on {where!r}: {error}") from None
    return where


def _number(name: str, default: int) -> int:
    value = os.environ.get(name) or str(default)
    if not value.isdecimal():
        raise InputError(f"{name}: expected a number, as torchrun sets it, got {value!r}.")
    return int(value)
