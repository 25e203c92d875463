"""Data that are dealt to several processes: one of them may have a single sample, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from layerlaw.capture.batches import Batch, Batches
from layerlaw.errors import DataError, PassError
from layerlaw.probing.classes import Classes
from layerlaw.probing.targets import Targets
from layerlaw.provenance import parameter_mark
from layerlaw.stats.ranks import gathered, rank, world_size

ENOUGH = 3  # samples, for a dry run


@dataclass(frozen=True)
class Step:
    """One batch: its labels as 0 … K−1 (or targets (n, q)), and the rows that are of measured classes (`None`: all).

    `borrowed`: samples of another rank, which are counted there.
    """

    batch: Batch
    labels: Tensor
    rows: Tensor | None
    where: str
    borrowed: bool = False


def check_same_weights(network: nn.Module) -> None:
    """Raise where ranks have networks of different weights: their statistics would be those of no network."""
    if world_size() > 1 and len(set(gathered(parameter_mark(network)))) > 1:
        likely = "seeded otherwise, or loaded from another checkpoint"
        cure = "Load or broadcast the same weights on all ranks"
        raise PassError(
            f"expected the same weights on all {world_size()} ranks, got different ones ({likely}). {cure}."
        )


def first_batch(data: Batches) -> Batch:
    """The first batch; samples of another rank, where this one has too few to see how shapes grow with them."""
    first = next(iter(data), None)
    if world_size() > 1:
        sizes = gathered(0 if first is None else len(first.labels))
        if max(sizes) == 0:
            raise DataError(f"{data.where}: expected samples, got none on all {world_size()} ranks.")
        giver = sizes.index(max(sizes))
        few = None if first is None or rank() != giver else first.first(ENOUGH)
        data.spare = gathered(few and replace(few._each(Tensor.cpu), labels=few.labels.cpu()))[giver]
        data.labels = data.labels if sizes[rank()] else None  # there are none to be known
        first = data.spare if sizes[rank()] < ENOUGH else first
    assert first is not None
    return first


def borrowed(data: Batches, classes: Classes | Targets, device: torch.device | None) -> Step | None:
    """Samples of another rank for one without any, so that it makes statistics of the same shapes, which add nothing."""
    if data.spare is None:
        return None
    batch, where = data.spare.to(device), f"{data.where}, samples of another rank"
    if isinstance(classes, Targets):
        labels = classes.positions(batch.labels, where)[0]
    else:
        labels = torch.arange(len(batch.labels), device=batch.labels.device) % classes.K  # theirs may not be measured
    return Step(batch, labels, None, where, borrowed=True)
