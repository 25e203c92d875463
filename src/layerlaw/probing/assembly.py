"""From statistics to a record: rows, notes, settings, provenance."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layerlaw.capture import Batches
from layerlaw.capture.layers import classifier_weight
from layerlaw.capture.trace import clean_name
from layerlaw.measures.columns import classifier_columns, site_columns
from layerlaw.probing.budget import GROUPS
from layerlaw.probing.run import Run, Split
from layerlaw.record import Record, SiteRow
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import world_size


def assembled(
    run: Run, data: Batches, names: Sequence[str] | None, train: Split, test: Split | None, null: Split | None
) -> Record:
    """The record of a probe."""
    weight = _classifier(run)
    return Record(
        name=type(run.network).__name__,
        sites=_rows(run, train, test, null, weight),
        classes=[str(name) for name in names] if names else [str(i) for i in run.classes.ids],
        counts=train.counts,
        test_counts=test.counts if test else [],
        accuracy=train.accuracy,
        test_accuracy=test.accuracy if test else None,
        plane_labels=train.plane_labels,
        notes=_notes(run, train, weight),
        settings=_settings(run, data, train),
        provenance=_provenance(run, train, test),
    )


def _classifier(run: Run) -> Tensor | str:
    """Rows of the classifier for the measured classes (K, d), or the reason why there are none."""
    if run.plan.classifier is None:
        return run.plan.classifier_why
    modules = {clean_name(name): module for name, module in run.network.named_modules()}
    found = classifier_weight(modules[run.plan.classifier])
    if found is None:
        return f"the last layer '{run.plan.classifier}' is not linear"
    rows, _ = found
    if len(rows) <= max(run.classes.ids):
        return f"the classifier has {len(rows)} row{'s' * (len(rows) > 1)} for {run.classes.K} classes"
    return rows[list(run.classes.ids)]


def _rows(run: Run, train: Split, test: Split | None, null: Split | None, weight: Tensor | str) -> list[SiteRow]:
    rows = []
    with full_precision():
        for site in run.plan.sites:
            around = train.around[site]
            values, by_class = site_columns(around, train.scatters[site])
            reads = site.module == run.plan.classifier and site.at == "input"
            if reads and isinstance(weight, Tensor) and weight.shape == around.centres.means.shape:
                values |= classifier_columns(around.centres.means, weight, values["ncc_mismatch"])
            if null is not None:
                values["separation_untrained"] = site_columns(null.around[site], null.scatters[site])[0]["separation"]
            if test is not None:
                columns, classwise = site_columns(test.around[site], test.scatters[site], test.near[site])
                values |= {f"test_{key}": value for key, value in columns.items()}
                by_class |= {f"test_{key}": value for key, value in classwise.items()}
            plane = train.planes.get(site, [])
            rows.append(SiteRow(site.name, site.type, site.shape, site.features, site.in_fit, values, by_class, plane))
    return rows


def _notes(run: Run, train: Split, weight: Tensor | str) -> list[str]:
    notes = [f"Left out: {text}." for text in run.plan.dropped]
    if isinstance(weight, str):
        notes.append(f"No NC2 and NC3 of the classifier: {weight}.")
    elif not any(site.module == run.plan.classifier and site.at == "input" for site in run.plan.sites):
        notes.append(
            f"NC3 is measured where the classifier '{run.plan.classifier}' reads, which is not among the sites."
        )
    if train.no_extras_why:
        notes.append(f"No standard errors and permuted-label floor: {train.no_extras_why}.")
    short = [site.name for site, around in train.around.items() if not bool(around.centres.full_rank)]
    if short:
        notes.append(f"The class means span fewer than K−1 dimensions at: {', '.join(short)}.")
    return notes


def _settings(run: Run, data: Batches, train: Split) -> dict[str, Any]:
    options = run.options
    return {
        "sites": run.plan.rule,
        "sites_why": run.plan.why,
        "reduce": options.reduce,
        "mode": options.mode,
        "batch_size": getattr(data.source, "batch_size", None),
        "weighting": options.weighting,
        "classes": list(run.classes.ids) if run.classes.lookup is not None else run.classes.K,
        "jackknife_groups": GROUPS if any(a.left_out is not None for a in train.around.values()) else 0,
        "permuted_labels": any(a.permuted is not None for a in train.around.values()),
        "one_forward": train.one_forward,
        "seed": options.seed,
    }


def _provenance(run: Run, train: Split, test: Split | None) -> dict[str, Any]:
    device = run.device or torch.device("cpu")
    return {
        "layerlaw": importlib.metadata.version("layerlaw"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "processes": world_size(),
        "model": type(run.network).__name__,
        "parameters": sum(p.numel() for p in run.network.parameters()),
        "data_sha256": train.checksum,
        "test_sha256": test.checksum if test else None,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
