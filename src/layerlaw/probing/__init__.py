"""probe(model, data) → Record, the whole way of the data on one page: dry run → two passes → measures → record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Never

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from layerlaw.capture.batches import LABEL_KEYS, Batches
from layerlaw.capture.modules import classifier_weight, modules_of
from layerlaw.capture.network import BatchNormMode, Randomness, device_of, network_of, placed, probing_state
from layerlaw.capture.plan import Plan, Reduce
from layerlaw.capture.scores import ScoreChoice
from layerlaw.capture.site_rules import SiteChoice, find_sites
from layerlaw.errors import FeatureError, InputError, check_choice, renamed
from layerlaw.module_tree import class_of
from layerlaw.probing.aside import doubt_notes, linear_notes, rank_notes, set_aside, split_notes, token_notes, with_nan
from layerlaw.probing.classes import ClassChoice, Classes, foreign_scores
from layerlaw.probing.dealt import unequal_notes
from layerlaw.probing.job_array import merge, probe_shard
from layerlaw.probing.kept_plans import about_model, again_without_plan, columns_later, origin_of, plan_of
from layerlaw.probing.memory import GROUPS
from layerlaw.probing.pictures import three_classes
from layerlaw.probing.run import Options, Prober
from layerlaw.probing.shards import check_same_plan, first_batch, same_network
from layerlaw.probing.sources import source_of
from layerlaw.probing.state import Split
from layerlaw.probing.targets import Targets, classes_or_targets, told_outputs
from layerlaw.progress import Progress, choose
from layerlaw.record import PartRow, Record, SiteRow
from layerlaw.stats.centers import Weighting
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import Ranks, measured_together, world_size
from layerlaw.threads import WhenBusy, claimed, on_cpu
from layerlaw.verdict.sentences import listed

__all__ = ["merge", "probe", "probe_shard", "sites"]

EXAMPLES = 8  # samples that a dry run prepares
PART_COLUMNS = ("separation", "target_separation", "separation_linear")
MOVED = {
    "mode": "batchnorm ('train' → 'batch', 'eval' → 'running')",
    "logits": "sites (with the name 'logits' among them: sites=['auto', 'logits'])",
    "jackknife": "uncertainty (True: standard errors and permuted labels, 'jackknife', 'permuted' or False)",
    "permuted": "uncertainty (True: standard errors and permuted labels, 'jackknife', 'permuted' or False)",
    "class_names": "classes (which takes names: ['cat', 'dog'], or {3: 'cat', 5: 'dog'} of a subset)",
    "name": "record.name (set it afterwards)",
}


@on_cpu
@measured_together
@again_without_plan
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
    scores: ScoreChoice = "auto",
    labels: int | str | None = None,
    prepare: Any = None,
    data_name: str = "",
    weighting: Weighting = "samples",
    uncertainty: bool | Literal["jackknife", "permuted"] | None = None,
    null: bool = False,
    linear: bool = False,
    parts: bool = False,
    memory_gib: float = 2.0,
    seed: int = 0,
    ranks: Ranks = None,
    busy: WhenBusy = "wait",
    progress: bool | Progress = True,
    **old: Never,
) -> Record:
    """Measure a classifier, a regression or a network of several labels layer by layer.

    model       any nn.Module that returns class scores; afterwards it is exactly as it was
    data, test  a DataLoader, a Dataset (of torch or Hugging Face), a pair of tensors (or arrays), or any re-iterable of
                (x, y) or of dictionaries; y are class numbers (n,), or floating-point targets (n,) or (n, q), or zeros
                and ones (n, q), labels of which a sample may have several
    sites       "auto", "layers", "blocks", or names, globs, module types, a predicate (name, module) → bool; "input" is the
                raw input, "output" what the model gives (a rule adds it where that is no scores: a backbone's
                embedding), "logits" in a list adds the logits, as a site that is no point of the law
    reduce      "flatten", or "mean"/"max" over space or tokens, or the "first"/"last" token
    batchnorm   "running" statistics; "batch": those of each batch, as the law's authors measured; "whole": those of all
                samples at once, which run as one batch
    batch_size  for tensors and datasets; a loader has its own
    device      where to run; the model comes back to where it was
    classes     K, names of all classes, numbers of those to be measured (the others are skipped), or {number: name};
                default: the number of logits, with the names that the data have; of targets, names or numbers of columns
    scores      where the class scores are in the model's output: an index, a key, or a function of it; "auto" finds them.
                `None` for a model without a classifier, or with other classes than the labels: no decision is looked at
    labels      which item of a batch holds the labels: an index or a key; default: the second of two, 'labels' or 'label'
    prepare     what turns images or texts of a Hugging Face dataset, or images of `layerlaw.data.load`, into inputs: a
                tokenizer, an image processor, a transform of one image; default: columns of tensors as they are, and images
                as the model says of itself that it takes them
    data_name   what the data are, such as "CIFAR-10 test", for the sentences about them
    weighting   "samples" (Eq. 1) or "classes"
    uncertainty standard errors ("jackknife") and D under permuted labels ("permuted"): one of them, both (True) or neither
                (False); default: both when the features fit the memory budget
    null        also measure an untrained copy of the network (BatchNorm recalibrated)
    linear      of classes, also measure D_lin, the least D that a linear map could reach, where there are more samples
                than features (at most 2,048): takes a d×d matrix per site and a product of the cost of a square layer
    parts       also measure after the linear map, the normalization and the nonlinearity of every layer, and tell how much
                each changes ln D (`record.parts`, no points of the law); takes passes over the data of its own
    memory_gib  what statistics and kept features may take; sites are measured in groups that fit, and one that is too wide
                alone in slices of its features, by two forwards each (progress and a note say how many; of many, a warning)
    seed        of what is drawn at random: permuted labels, the untrained network, the order of data sorted by class
    ranks       under torchrun, the process group over which the data are dealt; default: all ranks
    busy        where another thread is measuring the model: "wait" until it is free, or "raise"
    progress    a bar or none, or a function (items, label, total) that yields the items and tells how far it is
    """
    renamed("probe", old, MOVED)
    started = time.perf_counter()
    options = Options(reduce, batchnorm, weighting, uncertainty, memory_gib, seed, choose(progress), linear)
    check_choice("null", null, (True, False))
    check_choice("parts", parts, (True, False))
    network = network_of(model)
    if not isinstance(data_name, str):
        raise InputError(f"data_name: expected words such as 'CIFAR-10 test', got {data_name!r}.")
    given = source_of(data, network, prepare=prepare, labels=labels)
    given_test = None if test is None else source_of(test, network, prepare=prepare, labels=labels)
    source, known_names, test_source = given.data, given.class_names, given_test and given_test.data
    how: Any = {"batch_size": batch_size, "batchnorm": batchnorm, "seed": seed, "network": network}
    train = Batches(source, where="data", labels_at=given.labels_at, **how)
    held_out = None if given_test is None else Batches(test_source, where="test", labels_at=given_test.labels_at, **how)
    asked = vars(options) | {"progress": 0, "test": given_test and "data", "null": null, "parts": parts}
    asked |= {"data_name": data_name, "memory_gib": float(memory_gib)}
    with (
        claimed(network, busy),
        Randomness(source, test_source) as randomness,
        placed(network, device) as where,
        same_network(network, batchnorm, null=null, asked=asked) as told_of_ranks,
    ):
        example = first_batch(train)
        if held_out is not None and world_size() > 1:
            first_batch(held_out)
        told: Any = {"scores_at": scores, "classes_told": told_outputs(classes, example.labels, known_names)}
        how_found: Any = {"choice": sites, "reduce": reduce, "parts": parts, "output_row": True}
        plan = plan_of(network, example.to(where), **how_found, **told)
        known = train.labels, example.labels, known_names
        chosen = classes_or_targets(classes, plan, *known, decisions=scores is not None)
        if linear and isinstance(chosen, Targets):
            why = "linear: D_lin is the least D of classes, the labels here are targets. Leave linear=True out."
            raise InputError(why)
        check_same_plan(plan, chosen)
        prober = Prober(network, plan, chosen, options, randomness, where, slices=True)
        with probing_state(network, batchnorm):
            train = prober.prepared(train)
            measured, tested = prober.measure_both(train, held_out)
            untrained = prober.measure_untrained(train) if null else None
            rows, notes = _parts(prober, train) if parts else ([], [])
            record = recorded(prober, train, measured, tested, untrained, since=started)
            record.parts = rows
            record.notes += notes + told_of_ranks + unequal_notes(train, held_out)
    record.settings["data_name"] = data_name
    if given.prepared:
        record.settings["inputs"] = given.prepared
    return record


@on_cpu
def sites(
    model: nn.Module,
    example: Any,
    *,
    sites: SiteChoice = "auto",
    reduce: Reduce = "flatten",
    classes: ClassChoice = None,
    scores: ScoreChoice = "auto",
    labels: int | str | None = None,
    prepare: Any = None,
    **old: Never,
) -> Plan:
    """Dry-run the model and show where a probe would measure: a table of names, types, shapes, features and memory.

    `example` is a batch of inputs (at least two samples), or data as for `probe`, and so are the other arguments; memory
    grows with the number of `classes`.
    """
    renamed("sites", old, {"logits": MOVED["logits"]})
    network = network_of(model)
    if isinstance(example, (tuple, list, torch.Size)) and example and all(isinstance(side, int) for side in example):
        raise InputError(f"example: expected inputs, got a shape {tuple(example)}. Use torch.randn(3, *shape).")
    unlabeled = isinstance(example, Mapping) and not any(key in example for key in (labels, *LABEL_KEYS))
    if isinstance(example, (Tensor, np.ndarray)) or unlabeled:  # labels are needed, a dry run does not look at them
        example = example, torch.zeros(_samples(example), dtype=torch.long)
    given = source_of(example, network, prepare=prepare, labels=labels)
    known_names, reading = given.class_names, {"labels_at": given.labels_at, "network": network}
    few = EXAMPLES if isinstance(given.data, Dataset) else None
    batches = Batches(given.data, batch_size=few, batchnorm="running", where="example", **reading)  # type: ignore[arg-type]
    with claimed(network), Randomness(given.data), probing_state(network, "running"):
        batch = next(iter(batches)).to(device_of(network))
        told: Any = {"scores_at": scores, "classes_told": told_outputs(classes, batch.labels, known_names)}
        plan = find_sites(network, batch, choice=sites, reduce=reduce, output_row=True, **told)
    if classes is None:
        return plan
    measured = classes_or_targets(classes, plan, None, batch.labels, known_names, decisions=scores is not None)
    return replace(plan, classes=measured.K)


def _samples(example: Any) -> int:
    """How many samples there are in inputs without labels."""
    given = list(example.values()) if isinstance(example, Mapping) else [example]
    sizes = [len(one) for one in given if isinstance(one, (Tensor, np.ndarray)) and one.ndim]
    if not sizes:
        shown = f"a dictionary with {list(example)[:10]}" if isinstance(example, Mapping) else "a single number"
        raise InputError(f"example: expected a batch of inputs (n, …), got {shown}.")
    return sizes[0]


def recorded(
    run: Prober, data: Batches, train: Split, test: Split | None, null: Split | None, *, since: float | None = None
) -> Record:
    """What the passes over training data, test data and the untrained network found, as a record; `since`: their begin."""
    weight, options = _classifier(run, train), run.options
    if foreign := foreign_scores(train.free_accuracy, run.plan.classes):
        run, weight = replace(run, classes=replace(run.classes, undecided=foreign)), foreign
        train, test = (split and split.without_decisions() for split in (train, test))  # type: ignore[assignment]
    plane_labels, words = run.classes.planes(train)
    return Record(
        name=class_of(run.network).__name__,
        kind=run.classes.kind,
        sites=_rows(run, train, test, null, weight),
        classes=list(run.classes.names),
        counts=train.counts,
        test_counts=test.counts if test else [],
        accuracy=train.accuracy,
        test_accuracy=test.accuracy if test else None,
        r_squared=train.r_squared,
        test_r_squared=test.r_squared if test else None,
        plane_labels=plane_labels,
        collapse_view=three_classes(run, train, weight),
        words=words,
        notes=[*_unused(data), *_notes(run, train, weight), *split_notes(train, test, null)],
        settings={
            "sites": run.plan.rule,
            "sites_why": run.plan.why,
            **({"blocks": list(run.plan.blocks)} if run.plan.blocks and run.plan.rule != "blocks" else {}),
            **({"in_front": {k: list(v) for k, v in run.plan.in_front.items()}} if run.plan.in_front else {}),
            **({"embedded": True} if run.plan.embedded else {}),
            "reduce": options.reduce,
            "batchnorm": options.batchnorm,
            "batch_size": data.batch_size,
            "order": data.order,
            "weighting": options.weighting,
            **_labels(run, train),
            "jackknife_groups": GROUPS if train.has("left_out") else 0,
            "linear": options.linear,
            "parts": bool(run.plan.parts),
            "permuted_labels": train.has("permuted"),
            "one_forward": train.one_forward,
            "seed": options.seed,
            "scores": run.classes.undecided or str(run.classes.scores),
        },
        provenance=origin_of(
            train.about_model or about_model(run.network),
            run.device,
            since,
            data_fingerprint=train.fingerprint,
            data_samples=train.samples,
            test_fingerprint=test.fingerprint if test else None,
            test_samples=test.samples if test else None,
        ),
    )


def _labels(run: Prober, train: Split) -> dict[str, Any]:
    """What is told of the labels among the settings."""
    if isinstance(run.classes, Classes):
        return {"classes": list(run.classes.ids) if run.classes.lookup is not None else run.classes.K}
    first = train.targets
    assert first is not None
    found: dict[str, Any] = {
        "targets": "labels" if first.binary else "numbers",
        "target_numbers": list(run.classes.ids),
    }
    found["target_dimensions"] = int(next(iter(train.regressions.values())).fit.targets.rank)
    return found | ({"most_frequent_accuracy": round(first.most_frequent, 6)} if first.binary else {})


def _classifier(run: Prober, train: Split) -> Tensor | str:
    """Rows of the classifier for the measured classes (K, d), or the reason why there are none."""
    plan, K = run.plan, run.classes.K
    if isinstance(run.classes, Targets):
        return ""  # rows of targets are no class means
    if run.classes.undecided:
        return run.classes.undecided
    if plan.classifier is None:
        return plan.classifier_why
    rows = classifier_weight(modules_of(run.network)[plan.classifier])
    if rows is None:
        return f"the last layer '{plan.classifier}' is not linear"
    if len(rows) <= max(run.classes.ids):
        return f"the classifier has {len(rows)} row{'s' * (len(rows) > 1)} for {K} classes"
    site = next((site for site in plan.sites if site.name == plan.reads), None)
    if site is None:
        return f"what the classifier '{plan.classifier}' reads is not among the sites"
    if site in train.lent:
        return f"what the classifier '{plan.classifier}' reads is measured in slices of its features"
    if rows.shape[1] != site.features:
        return f"the classifier '{plan.classifier}' reads {rows.shape[1]} of the {site.features} features at its site"
    return rows.clone() if run.classes.ids == tuple(range(len(rows))) else rows[list(run.classes.ids)]


def _rows(run: Prober, train: Split, test: Split | None, null: Split | None, weight: Tensor | str) -> list[SiteRow]:
    rows, sites, classes = [], run.plan.sites, run.classes
    with full_precision():
        read = {site: weight for site in sites if site.name == run.plan.reads and isinstance(weight, Tensor)}
        waits = test is None and null is None and isinstance(classes, Classes)  # their numbers are put among these
        found = (columns_later(train, sites, read) if waits else None) or classes.columns(train, sites, weights=read)
        untrained = {} if null is None else classes.columns(null, sites)
        tested = {} if test is None else classes.columns(test, sites, reference=train)
    for site in sites:
        values, by_class = found[site]
        if site in untrained:
            shown, fresh = (*classes.kind.leading, "residual_held_out"), untrained[site][0]
            values |= {f"{name}_untrained": fresh[name] for name in shown if name in fresh}
        if site in tested:
            columns, classwise = tested[site]
            values |= {f"test_{key}": value for key, value in columns.items()}
            by_class |= {f"test_{key}": value for key, value in classwise.items()}
        about = (site.name, site.type, site.shape, site.features, site.in_fit, site.seen_at)
        plane = train.planes.get(site, [])
        rows.append(SiteRow(*about, values, by_class, plane, branch=site.branch, aside=site.aside))
    set_aside(run, train, rows)
    return rows


def _unused(data: Batches) -> list[str]:
    keys = ", ".join(f"'{key}'" for key in data.unused)
    return [f"Not handed to the model, whose forward does not take it: {keys}."] if keys else []


def _parts(run: Prober, data: Batches) -> tuple[list[PartRow], list[str]]:
    """D before and after every part, from passes over the data that leave out what is not needed for it; and notes.

    A part is looked at beside the rows of the record: where one cannot be measured, it alone is left out.
    """
    run = replace(run, plan=run.plan.of_parts(), options=replace(run.options, uncertainty=False))
    left_out: dict[Any, str] = {}
    try:
        split = run.measure(data, "parts", extras=True, forgive=True)
    except FeatureError:
        left_out = {site.name: "NaN or infinity in its features" for site in with_nan(run, data)}
        sound = tuple(site for site in run.plan.sites if site.name not in left_out)
        if not left_out or not sound:
            raise
        run = replace(run, plan=replace(run.plan, sites=sound))
        split = run.measure(data, "parts", extras=True, forgive=True)
    left_out |= split.untrusted or {}
    measured = [site for site in (*split.around, *split.regressions) if site.name not in left_out]
    with full_precision():
        columns = {site: found for site, (found, _) in run.classes.columns(split, measured).items()}
    known = {site: {name: found[name] for name in PART_COLUMNS if name in found} for site, found in columns.items()}
    rows = [
        PartRow(part.layer, part.kind, part.module, part.type, known[part.before], known[part.after], part.branch)
        for part in run.plan.parts
        if part.before in known and part.after in known
    ]
    by_reason: dict[str, list[str]] = {}
    for name, why in left_out.items():
        by_reason.setdefault(why, []).append(str(name))
    notes = [f"Parts at {listed(names)} are left out: {why}." for why, names in by_reason.items()]
    return rows, notes


def _notes(run: Prober, train: Split, weight: Tensor | str) -> list[str]:
    notes = [f"Left out: {'; '.join(run.plan.dropped)}."] if run.plan.dropped else []
    aside, total = sum(site.branch and not site.in_fit for site in run.plan.sites), len(run.plan.sites)
    if aside:
        takes = "record.law(branches=True) takes them in"
        notes.append(f"{aside} of {total} rows lie on side branches and are no points of the law: {takes}.")
    if run.plan.no_trunk and run.plan.rule != "chosen":
        notes.append(f"Side branches are not told from the trunk: {run.plan.no_trunk}.")
    if run.classes.undecided and weight:
        notes.append(f"The network's decisions are not looked at (no accuracy, mismatch, NC3, NC4): {weight}.")
    elif isinstance(weight, str) and weight:
        notes.append(f"No NC2 and NC3 of the classifier: {weight}.")
    if train.free_accuracy is not None and train.accuracy is not None and train.free_accuracy < train.accuracy:
        free = f"of all its outputs the network chooses that of the label for {train.free_accuracy:.1%}"
        notes.append(f"Accuracy ({train.accuracy:.1%}) is among the {run.classes.K} chosen classes alone; {free}.")
    notes += token_notes(run)
    if train.no_extras_why:
        notes.append(f"No standard errors and permuted-label floor: {train.no_extras_why}.")
    notes += [*linear_notes(run, train), *doubt_notes(run, train)]
    if isinstance(run.classes, Targets):
        return notes + run.classes.notes(train)
    return notes + run.classes.doubts(train) + rank_notes(run, train)
