"""probe(model, data) → Record: the whole way of the data on one page.

capture → pass 1 (class sums) → centers → pass 2 (scatter) → measures → record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn

from layerlaw.capture import (
    Batches,
    BatchNormMode,
    Plan,
    Randomness,
    Reduce,
    SiteChoice,
    find_sites,
    network_of,
    placed,
    probing_state,
)
from layerlaw.capture.batches import LABEL_KEYS
from layerlaw.capture.network import device_of
from layerlaw.data import Labeled
from layerlaw.probing.assembly import assembled
from layerlaw.probing.classes import Classes
from layerlaw.probing.null import measure_untrained
from layerlaw.probing.options import Options
from layerlaw.probing.run import Run
from layerlaw.progress import Progress, choose
from layerlaw.record import Record
from layerlaw.stats.centers import Weighting

__all__ = ["probe", "sites"]


def probe(
    model: nn.Module,
    data: Any,
    *,
    test: Any = None,
    sites: SiteChoice = "auto",
    reduce: Reduce = "flatten",
    batchnorm: BatchNormMode = "running",
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    classes: SupportsIndex | Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    weighting: Weighting = "samples",
    logits: bool = False,
    jackknife: bool | None = None,
    permuted: bool | None = None,
    null: bool = False,
    memory_gib: float = 2.0,
    seed: int = 0,
    name: str | None = None,
    progress: bool | Progress = True,
) -> Record:
    """Measure a classifier layer by layer.

    model       any nn.Module that returns class scores; afterwards it is exactly as it was
    data, test  a DataLoader, a Dataset, a pair of tensors (or arrays), or any re-iterable of (x, y) or of dictionaries
    sites       "auto", "layers", "blocks", or names, globs, module types, a predicate (name, module) → bool
    reduce      "flatten", or "mean"/"max" over space or tokens, or the "first"/"last" token
    batchnorm   "running", or "batch": BatchNorm on batch statistics, as the law's authors measured
    batch_size  for tensors and datasets; a loader has its own
    device      where to run; the model comes back to where it was
    classes     K, or the class numbers to be measured (the others are skipped); default: the number of logits
    weighting   "samples" (Eq. 1) or "classes"
    logits      also measure the logits, as a site that is no point of the law
    jackknife, permuted   standard errors, and D under permuted labels; default: when the features fit the memory budget
    null        also measure an untrained copy of the network (BatchNorm recalibrated)
    memory_gib  what statistics and kept features may take; sites are measured in groups that fit
    """
    started = time.perf_counter()
    options = Options(reduce, batchnorm, weighting, jackknife, permuted, memory_gib, seed, choose(progress))
    network = network_of(model)
    source, known_names = _source(data)
    test_source = None if test is None else _source(test)[0]
    train = Batches(source, batch_size=batch_size, batchnorm=batchnorm, where="data", seed=seed)
    held_out = None
    if test_source is not None:
        held_out = Batches(test_source, batch_size=batch_size, batchnorm=batchnorm, where="test", seed=seed)
    with Randomness(source, test_source) as randomness, placed(network, device) as where:
        with probing_state(network, "running"):
            plan = find_sites(network, next(iter(train)).to(where), choice=sites, reduce=reduce, logits=logits)
        chosen = Classes.of(classes, plan, train.labels)
        names = chosen.names(class_names, known_names)
        run = Run(network, plan, chosen, options, randomness, where)
        with probing_state(network, batchnorm):
            train_split = run.measure(train, "data", plane=True, extras=True)
            test_split = (
                run.measure(held_out, "test", reference=train_split, extras=True) if held_out is not None else None
            )
            null_split = measure_untrained(run, train) if null else None
            record = assembled(run, train, names, train_split, test_split, null_split)
    record.name = name or record.name
    record.provenance["seconds"] = round(time.perf_counter() - started, 3)
    return record


def sites(
    model: nn.Module,
    example: Any,
    *,
    sites: SiteChoice = "auto",
    reduce: Reduce = "flatten",
    logits: bool = False,
) -> Plan:
    """Dry-run the model and show where a probe would look: a table of names, types, shapes, features and memory.

    `example` is a batch of inputs (at least two samples), or data as for `probe`.
    """
    network = network_of(model)
    source = _source(_labeled(example))[0]
    batches = Batches(source, batch_size=None, batchnorm="running", where="example")
    with Randomness(source), probing_state(network, "running"):
        batch = next(iter(batches)).to(device_of(network))
        return find_sites(network, batch, choice=sites, reduce=reduce, logits=logits)


def _source(data: Any) -> tuple[Any, Sequence[str] | None]:
    """What to iterate over, and the class names where the data know them."""
    if isinstance(data, Labeled):
        return data.tensors(), data.class_names
    known = getattr(getattr(data, "dataset", data), "classes", None)
    named = isinstance(known, (list, tuple)) and all(isinstance(name, str) for name in known)
    return data, known if named else None


def _labeled(example: Any) -> Any:
    """Inputs without labels get some: a dry run does not look at them."""
    if isinstance(example, (Tensor, np.ndarray)):
        return example, torch.zeros(len(example), dtype=torch.long)
    if isinstance(example, Mapping) and not any(key in example for key in LABEL_KEYS):
        return example, torch.zeros(len(next(iter(example.values()))), dtype=torch.long)
    return example
