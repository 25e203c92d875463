"""Measuring a trained network once more: on other images, in another order, or with D corrected for their number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from layerlaw.lab import Run, Samples
from layerlaw.law import fit_law
from layerlaw.probing import probe
from layerlaw.record import Record


def probed(run: Run, data: Samples, *, jackknife: bool = False) -> Record:
    """A record of the network on these training images, in the authors' BatchNorm mode (chunks of 100 in their order)."""
    pair: tuple[Tensor, Tensor] = (data.inputs, data.labels)
    with _one_thread():
        errors: Any = "jackknife" if jackknife else False
        return probe(run.network(), pair, batchnorm="batch", uncertainty=errors, progress=False)


def half_life_on(run: Run, data: Samples) -> float | None:
    """The half-life on these images; `None` where D does not fall."""
    return probed(run, data).law().half_life


def corrected_half_life(run: Run, data: Samples) -> float | None:
    """The half-life of D corrected for the number of images; `None` where the bias is too large at some layer."""
    sites = probed(run, data, jackknife=True).sites
    values = [site.values.get("separation_corrected") for site in sites if site.in_fit]
    known = [value for value in values if value]
    return fit_law(known).half_life if len(known) == len(values) else None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrices: a second thread costs more than it brings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
