"""Noise on the weights of one layer, or of all, and D at every layer afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from layerlaw.advice.material import flat_samples
from layerlaw.errors import InputError
from layerlaw.lab import FeedForward, Fleet, Recipe, Run, Schedule
from layerlaw.lab.fleet.measure import measure_fleet
from layerlaw.lab.schedule import BatchNormMode
from layerlaw.probing import probe
from layerlaw.record import Record
from layerlaw.verdict import working_sites

Array = npt.NDArray[np.float64]
Noise = list[list[Tensor]]
"""What is added to the weights of every layer (a layer may have several)."""


@dataclass(frozen=True)
class Subject:
    """A network whose layers can be disturbed: their names, their weights, and D along depth under given noise.

    `measure` takes one noise per disturbed network, each as a list over layers (`None`: left alone); it returns D of shape
    (networks, layers + 1).
    """

    layers: list[str]
    weights: list[list[Tensor]]
    measure: Callable[[list[list[list[Tensor] | None]]], Array]


def subject_of(network: nn.Module | Run, data: Any, batchnorm: BatchNormMode) -> Subject:
    """A `FeedForward` (or a run of one) is measured as a fleet, any other module by `probe`, one noise after the other."""
    if isinstance(network, Run):
        network = network.network()
    if not isinstance(network, nn.Module):
        raise InputError(f"network: expected a module or a run, got {type(network).__name__}.")
    return _fleet(network, data, batchnorm) if isinstance(network, FeedForward) else _module(network, data, batchnorm)


def draw(weights: list[list[Tensor]], generator: torch.Generator) -> Noise:
    """Gaussian noise for every weight, of the weight's own Frobenius norm."""
    return [[_like(w, generator) for w in layer] for layer in weights]


def _like(weight: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return noise.mul_(float(weight.detach().double().norm() / noise.norm())).to(weight.dtype)


def _fleet(network: FeedForward, data: Any, batchnorm: BatchNormMode) -> Subject:
    samples = flat_samples(data)
    recipe = Recipe(network=network.shape, epochs=1, batch_size=max(2, len(samples.labels)))
    state = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    hidden = len(network.shape.widths)
    weights = [[state[f"linear{i + 1}.weight"]] for i in range(hidden)]

    def measure(noises: list[list[list[Tensor] | None]]) -> Array:
        with torch.no_grad():
            fleet = Fleet([recipe] * len(noises), [samples] * len(noises))
            for member, noise in enumerate(noises):
                fleet.load_state_dict(member, state)
                for i, added in enumerate(noise):
                    if added is not None:
                        fleet.weights[i][member] += added[0]
            measurements = measure_fleet(fleet, Schedule(batchnorm=(batchnorm,)), 0)
        return np.array([member[0].separation for member in measurements], dtype=np.float64)  # None becomes NaN

    return Subject([f"linear{i + 1}" for i in range(hidden)], weights, measure)


def _module(network: nn.Module, data: Any, batchnorm: BatchNormMode) -> Subject:
    if batchnorm not in ("running", "batch"):
        raise InputError(f"batchnorm: expected 'running' or 'batch' for {type(network).__name__}, got {batchnorm!r}.")

    def record() -> Record:
        return probe(network, data, batchnorm=batchnorm, uncertainty=False, progress=False)

    sites = [site for site in record().sites if site.in_fit]
    modules = dict(network.named_modules())
    names = [sites[i].name.split("#")[0] for i in working_sites(sites)]
    weights = []
    for name in names:
        if name not in modules:
            raise InputError(f"robustness: expected every site to be a module of its own, got '{name}'.")
        found = [p for p in modules[name].parameters() if p.dim() > 1]
        if not found:
            raise InputError(f"robustness: expected a weight at every site, found none at '{name}'.")
        weights.append(found)

    def measure(noises: list[list[list[Tensor] | None]]) -> Array:
        rows = []
        for noise in noises:
            with _disturbed(weights, noise):
                found = [site.values.get("separation") for site in record().sites if site.in_fit]
            rows.append(found)
        return np.array(rows, dtype=np.float64)

    return Subject(names, weights, measure)


@contextmanager
def _disturbed(weights: list[list[Tensor]], noise: list[list[Tensor] | None]) -> Iterator[None]:
    """Add the noise, then put back the very bits that were there."""
    touched = [(w, n) for layer, added in zip(weights, noise, strict=True) for w, n in zip(layer, added or [])]  # noqa: B905
    kept = [w.detach().clone() for w, _ in touched]
    try:
        with torch.no_grad():
            for w, n in touched:
                w += n.to(w.device)
        yield
    finally:
        with torch.no_grad():
            for (w, _), before in zip(touched, kept, strict=True):
                w.copy_(before)
