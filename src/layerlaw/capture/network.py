"""The network while it is probed: unwrapped, eager, in the chosen mode, and afterwards exactly as it was."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from layerlaw.errors import CaptureError

Mode = Literal["eval", "train"]


def network_of(model: nn.Module) -> nn.Module:
    """The network itself, without DataParallel, DistributedDataParallel or torch.compile around it."""
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            "expected a plain nn.Module, got a TorchScript model: its inner calls cannot be observed. "
            "Pass the module it was scripted or traced from."
        )
    if not isinstance(model, nn.Module):
        raise CaptureError(f"expected an nn.Module, got {type(model).__name__}.")
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):  # torch.compile
            model = inner
        else:
            return model


def device_of(network: nn.Module) -> torch.device | None:
    """The device of the first parameter or buffer; `None` for a network that has neither."""
    first = next(itertools.chain(network.parameters(), network.buffers()), None)
    return None if first is None else first.device


@contextmanager
def probing_state(network: nn.Module, mode: Mode) -> Iterator[None]:
    """Eval mode, no gradients, no fast paths, eager calls; everything restored at the end.

    `mode="train"` is the protocol of the law's authors: BatchNorm alone uses the statistics of the batch (its buffers
    stay untouched), Dropout stays off.
    """
    modules = list(network.modules())
    training = [module.training for module in modules]
    norms = [module for module in modules if isinstance(module, _BatchNorm)]
    tracking = [norm.track_running_stats for norm in norms]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            network.eval()
            if mode == "train":
                for norm in norms:
                    # In training without tracking, BatchNorm takes the batch's statistics and writes none.
                    norm.training, norm.track_running_stats = True, False
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            for module, was in zip(modules, training, strict=True):
                module.training = was
            for norm, was in zip(norms, tracking, strict=True):
                norm.track_running_stats = was


class Randomness:
    """The state of every random generator a loader may draw from: rewound before the second pass, restored after."""

    def __init__(self, data: Any) -> None:
        sampler = getattr(data, "sampler", None)
        found = [getattr(source, "generator", None) for source in (data, sampler)]
        self._generators = [g for g in found if isinstance(g, torch.Generator)]
        self._states = [g.get_state() for g in self._generators]
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 - the global state is what loaders draw from

    def rewind(self) -> None:
        """Put every generator back to where it was."""
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002


def untrained(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """A copy of the network with freshly drawn parameters: the null against which training is judged.

    Every module with `reset_parameters` draws anew; other floating-point parameters of two or more dimensions (class
    tokens, position tables) are replaced by normal noise of their own standard deviation. BatchNorm buffers are reset;
    fresh ones (mean 0, variance 1) mean no normalisation at all, so recalibrate them on the data: `probe(…, null=True)`
    does.
    """
    network = copy.deepcopy(network_of(model))
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        with torch.no_grad():
            for module in network.modules():
                reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
                if callable(reset):
                    reset()
                    continue
                for parameter in module.parameters(recurse=False):
                    if parameter.is_floating_point() and parameter.dim() >= 2:
                        parameter.copy_(torch.randn(parameter.shape) * parameter.std())
    finally:
        torch.set_rng_state(state)
    return network


@contextmanager
def recalibrating(network: nn.Module) -> Iterator[None]:
    """BatchNorm buffers become the plain average of the statistics of every batch that is run inside."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average
        norm.train()
    try:
        with torch.no_grad():
            yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
