"""probe(model, data) → Record: the whole way of the data on one page.

capture     the dry run: sites
run         pass 1 (class sums) → centers → pass 2 (scatter), for the data, the test data and an untrained network
memory      what fits the memory budget, kept features
classes     which classes are measured, what the network decides among them
assembly    statistics → measures → record
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Never

import numpy as np
import torch
from torch import Tensor, nn

from layerlaw.capture.batches import LABEL_KEYS, Batches
from layerlaw.capture.network import BatchNormMode, Randomness, device_of, network_of, placed, probing_state
from layerlaw.capture.plan import Plan, Reduce
from layerlaw.capture.site_rules import SiteChoice, find_sites
from layerlaw.data import Labeled
from layerlaw.errors import renamed
from layerlaw.probing.assembly import assembled
from layerlaw.probing.classes import ClassChoice, Classes
from layerlaw.probing.run import Options, Prober
from layerlaw.progress import Progress, choose
from layerlaw.record import Record
from layerlaw.stats.centers import Weighting

__all__ = ["probe", "sites"]

MOVED = {
    "mode": "batchnorm ('train' → 'batch', 'eval' → 'running')",
    "logits": "sites (with the name 'logits' among them: sites=['auto', 'logits'])",
    "jackknife": "uncertainty (True: standard errors and permuted labels, 'jackknife', 'permuted' or False)",
    "permuted": "uncertainty (True: standard errors and permuted labels, 'jackknife', 'permuted' or False)",
    "class_names": "classes (which takes names: ['cat', 'dog'], or {3: 'cat', 5: 'dog'} of a subset)",
    "name": "record.name (set it afterwards)",
}


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
    classes: ClassChoice = None,
    weighting: Weighting = "samples",
    uncertainty: bool | Literal["jackknife", "permuted"] | None = None,
    null: bool = False,
    memory_gib: float = 2.0,
    seed: int = 0,
    progress: bool | Progress = True,
    **old: Never,
) -> Record:
    """Measure a classifier layer by layer.

    model       any nn.Module that returns class scores; afterwards it is exactly as it was
    data, test  a DataLoader, a Dataset, a pair of tensors (or arrays), or any re-iterable of (x, y) or of dictionaries
    sites       "auto", "layers", "blocks", or names, globs, module types, a predicate (name, module) → bool; "input" is the
                raw input, "logits" in a list adds the logits, as a site that is no point of the law
    reduce      "flatten", or "mean"/"max" over space or tokens, or the "first"/"last" token
    batchnorm   "running" statistics; "batch": those of each batch, as the law's authors measured; "whole": those of all
                samples at once, which run as one batch
    batch_size  for tensors and datasets; a loader has its own
    device      where to run; the model comes back to where it was
    classes     K, names of all classes, numbers of those to be measured (the others are skipped), or {number: name};
                default: the number of logits, with the names that the data have
    weighting   "samples" (Eq. 1) or "classes"
    uncertainty standard errors ("jackknife") and D under permuted labels ("permuted"): one of them, both (True) or neither
                (False); default: both when the features fit the memory budget
    null        also measure an untrained copy of the network (BatchNorm recalibrated)
    memory_gib  what statistics and kept features may take; sites are measured in groups that fit
    seed        of what is drawn at random: permuted labels, the untrained network, the order of data sorted by class
    """
    renamed("probe", old, MOVED)
    started = time.perf_counter()
    options = Options(reduce, batchnorm, weighting, uncertainty, memory_gib, seed, choose(progress))
    network = network_of(model)
    source, known_names = _source(data)
    test_source = None if test is None else _source(test)[0]
    how: Any = {"batch_size": batch_size, "batchnorm": batchnorm, "seed": seed}
    train = Batches(source, where="data", **how)
    held_out = None if test_source is None else Batches(test_source, where="test", **how)
    with Randomness(source, test_source) as randomness, placed(network, device) as where:
        with probing_state(network, "running"):
            plan = find_sites(network, next(iter(train)).to(where), choice=sites, reduce=reduce)
        chosen = Classes.of(classes, plan, train.labels, known_names)
        prober = Prober(network, plan, chosen, options, randomness, where)
        with probing_state(network, batchnorm):
            train = prober.prepared(train)
            measured = prober.measure(train, "data", plane=True, extras=True)
            tested = None
            if held_out is not None:
                tested = prober.measure(prober.prepared(held_out), "test", reference=measured, extras=True)
            untrained = prober.measure_untrained(train) if null else None
            record = assembled(prober, train, measured, tested, untrained)
    record.provenance["seconds"] = round(time.perf_counter() - started, 3)
    return record


def sites(
    model: nn.Module, example: Any, *, sites: SiteChoice = "auto", reduce: Reduce = "flatten", **old: Never
) -> Plan:
    """Dry-run the model and show where a probe would measure: a table of names, types, shapes, features and memory.

    `example` is a batch of inputs (at least two samples), or data as for `probe`.
    """
    renamed("sites", old, {"logits": MOVED["logits"]})
    network = network_of(model)
    if isinstance(example, (Tensor, np.ndarray)):  # inputs without labels get some: a dry run does not look at them
        example = example, torch.zeros(len(example), dtype=torch.long)
    elif isinstance(example, Mapping) and not any(key in example for key in LABEL_KEYS):
        example = example, torch.zeros(len(next(iter(example.values()))), dtype=torch.long)
    source = _source(example)[0]
    batches = Batches(source, batch_size=None, batchnorm="running", where="example")
    with Randomness(source), probing_state(network, "running"):
        batch = next(iter(batches)).to(device_of(network))
        return find_sites(network, batch, choice=sites, reduce=reduce)


def _source(data: Any) -> tuple[Any, Sequence[str] | None]:
    """What to iterate over, and the class names where the data know them."""
    if isinstance(data, Labeled):
        return data.tensors(), data.class_names
    known = getattr(getattr(data, "dataset", data), "classes", None)
    named = isinstance(known, (list, tuple)) and all(isinstance(name, str) for name in known)
    return data, known if named else None
