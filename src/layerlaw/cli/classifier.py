"""`layerlaw probe | merge | sites | report | modules`: measure a model, show where, write its page, find its modules."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.utils.data import Dataset
from typer import Argument, Option

from layerlaw.cli.app import JsonFlag, check_folder, command, conclude, console, in_options, saved
from layerlaw.cli.class_choice import CLASSES, ChosenClasses, ClassMap, classes_asked, outputs_unknown
from layerlaw.cli.inputs import (
    ChosenImages,
    ImageOptions,
    SiteOptions,
    explained_inputs,
    load_given,
    whole_numbers,
)
from layerlaw.cli.named import FEATURES, check_features_alone, measured_features
from layerlaw.cli.processes import sharing
from layerlaw.data import DEFAULT
from layerlaw.data.labeled import MOMENTS
from layerlaw.data.sharding import can_deal, dealt, made_apart
from layerlaw.errors import DataError, InputError
from layerlaw.files import check_place, check_room, json_safe
from layerlaw.pages import print_comparison, print_record
from layerlaw.pages import report as write_page
from layerlaw.pages.advice_terminal import print_modules
from layerlaw.probing import merge as merge_shards
from layerlaw.probing import probe as run_probe
from layerlaw.probing import probe_shard
from layerlaw.probing import sites as find_sites
from layerlaw.probing.shard_words import MOST_SHARDS
from layerlaw.record import LANGUAGE_MODEL, REGRESSION, Record
from layerlaw.stats.ranks import rank, world_size
from layerlaw.verdict import find_modules, judge, law_holds
from layerlaw.wording import percent

WELL_DECIDED, CLEARLY_BETTER, FEW_IMAGES = 0.9, 0.1, 30  # when other scales are tried, what is better, images per class
SHAPE = "shape: expected positive whole numbers such as 3,32,32"


@dataclass(frozen=True)
class ResultOptions:
    """Where a measured record goes."""

    out: Annotated[Path | None, Option(help="Write the record here (JSON).")] = None
    page: Annotated[Path | None, Option(help="Write the report here (HTML).")] = None
    name: Annotated[str | None, Option(help="Name of the record.")] = None
    as_json: JsonFlag = False

    def check(self) -> None:
        """Before minutes of measuring, not after."""
        if self.out is not None and self.page is not None and self.out.resolve() == self.page.resolve():
            raise DataError(f"{self.out}: expected one file for the record (--out) and another for the page (--page).")
        for path in filter(None, (self.out, self.page)):
            check_place(path)
            check_room(path.parent, of=path)

    def show(self, record: Record, *facts: str, **more: Any) -> None:
        """Write record and page where they were requested, print the record below the facts; `more` is for scripts."""
        if rank() > 0:
            return  # the first process speaks for all
        written = {"record": str(record.save(self.out))} if self.out is not None else {}
        if self.page is not None:
            try:
                written["page"] = str(write_page(record, self.page))
            except Exception as error:  # what was measured is still shown
                record.notes.append(f"The page {self.page} could not be written ({type(error).__name__}: {error}).")
                if self.out is not None:
                    record.save(self.out)
        screen = console(self.as_json)
        for fact in facts:
            screen.print(fact, markup=False, highlight=False)
        print_record(record, screen, words=in_options)
        conclude(screen, self.as_json, summary(record) | more, written)


@command
@sharing
def probe(
    where: SiteOptions,
    images: ImageOptions,
    *,
    weights: Annotated[Path | None, Option(help="A .safetensors or .pt file of weights (never unpickled).")] = None,
    batchnorm: Annotated[
        str, Option(help="BatchNorm: running statistics, or those of each batch, or of the whole data.")
    ] = "running",
    weighting: Annotated[str, Option(help="samples (as in the paper) or classes.")] = "samples",
    classes: Annotated[str | None, Option(help=CLASSES)] = None,
    class_map: ClassMap = None,
    data_name: Annotated[str | None, Option(help="What the data are, e.g. 'CIFAR-10 test', for the sentences.")] = None,
    logits: Annotated[bool, Option("--logits", help="Also measure the logits.")] = False,
    null: Annotated[bool, Option("--null", help="Also measure an untrained copy of the network.")] = False,
    parts: Annotated[
        bool, Option("--parts", help="Also measure after the linear map, normalization and nonlinearity of each layer.")
    ] = False,
    uncertainty: Annotated[
        bool | None, Option(help="Standard errors and D under permuted labels. Default: where they fit the memory.")
    ] = None,
    linear: Annotated[bool, Option("--linear", help="Also measure the least D that a linear map could reach.")] = False,
    test: Annotated[bool, Option(help="Also measure the test split.")] = True,
    per_class: Annotated[int | None, Option(help="Use this many training images of each class.")] = None,
    batch_size: Annotated[int | None, Option(help="Samples per forward.")] = None,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1, …")] = None,
    memory_gib: Annotated[float, Option(help="Memory for statistics and kept features.")] = 2.0,
    shard: Annotated[
        str | None, Option(help="Measure the i-th of n shares of the data, e.g. 3/16; with --state.")
    ] = None,
    state: Annotated[Path | None, Option(help="Folder that shards leave statistics in, for each other.")] = None,
    result: ResultOptions,
) -> None:
    """Measure MODEL layer by layer: does every layer take its share of separating the classes?

    MODEL names your own Python code, and that code is run; or a model of a library (timm:resnet18, torchvision:resnet18,
    hf:folder-or-name), whose own preprocessing is used; or a folder of saved features (features:folder), .npy or
    safetensors files, one per layer, and labels. Under torchrun the processes share the samples; a loader of your own code
    must deal them itself (layerlaw.data.UnpaddedSampler).

    Job arrays: run --shard 1/n … n/n with one --state folder, the same again when all are done, then `layerlaw merge`.
    """
    result.check()
    part = _shard(shard, state, result)
    if where.model.startswith(FEATURES):
        if world_size() > 1:
            raise InputError(f"model: expected one process for saved features, got {world_size()}. Leave torchrun out.")
        unasked: Any = {"--data": images, "--weights": weights, "--batchnorm": batchnorm, "--class-map": class_map}
        unasked |= {"--logits": logits, "--null": null, "--parts": parts, "--per-class": per_class}
        unasked |= {"--batch-size": batch_size, "--device": device, "--reduce": where.reduce, "--scores": where.scores}
        unasked |= {"--shard": shard, "--state": state}
        check_features_alone(unasked | {"--labels": where.labels}, ImageOptions())
        asked: Any = {"weighting": weighting, "uncertainty": uncertainty, "linear": linear, "memory_gib": memory_gib}
        asked |= {"classes": classes_asked(classes, None, {}), "data_name": data_name or "", "name": result.name}
        record = measured_features(where.model, where.sites, test=test, **asked)
        result.show(record, f"features: {', '.join(site.name for site in record.sites)}")
        return
    made = load_given(where.model, weights)
    network, given = made.network, made.data
    how_much: Any = {"test": test, "per_class": per_class, "named": made.named}
    chosen = images.chosen(given, made.test, network=network, **how_much)
    asked_classes = ChosenClasses.of(classes, class_map, chosen, made)
    how: Any = {"batchnorm": batchnorm, "weighting": weighting, "null": null, **where.how(logits=logits)}
    how |= {"batch_size": batch_size, "device": device, "memory_gib": memory_gib, "parts": parts, "linear": linear}
    how |= {"uncertainty": uncertainty, "progress": rank() == 0, "classes": asked_classes.asked}

    def given_as(pair: Any, name: str = "data") -> Any:
        whole = asked_classes.given_as(pair)
        share = dealt(whole)
        if given is not None and world_size() > 1 and share is whole and any(can_deal(whole)):
            made_apart.set(made_apart.get() | {name})
        return share

    named: Any = {"data_name": data_name if data_name is not None else chosen.name}
    source = images.data or ("from the model file" if given is not None else DEFAULT)
    said: dict[str, Any] = {
        "model": where.model,
        "weights": str(weights) if weights else None,
        "data": source,
        "per_class": per_class,
    }
    scaled = chosen.normalize if chosen.train is not None else images.normalize
    channels = chosen.train.images.shape[1] if chosen.train is not None else None
    said |= {"size": images.size, "channels": channels, "flat": images.flat, "normalize": scaled}

    def noted(record: Record) -> Record:
        if made.named is not None:
            made.named.note(record, prepared=isinstance(chosen.data, Dataset))
        record.name = result.name or record.name
        record.provenance["command"] = said
        return record

    if part is not None:
        about = noted(Record(name="", sites=[], classes=[]))
        described: Any = {name: getattr(about, name) for name in ("name", "settings", "provenance")}
        described["command"] = _command_of_shards()
        pair: Any = {"test": given_as(chosen.test, "test"), "shard": part, "state": state, "about": described}
        with explained_inputs(network, chosen, images.flat):
            done = probe_shard(network, given_as(chosen.data), **pair, **how, **named)
        screen = console(result.as_json)
        for line in (*chosen.facts, str(done)):
            screen.print(line, soft_wrap=True)
        found = {"shard": list(part), "round": done.round, "rounds": done.rounds, "measured": done.measured}
        found |= {"damaged": done.damaged} if done.damaged else {}
        conclude(screen, result.as_json, found | {"missing": list(done.missing), "state": str(state)})
        return
    with explained_inputs(network, chosen, images.flat):
        record = run_probe(network, given_as(chosen.data), test=given_as(chosen.test, "test"), **how, **named)
    facts = [*chosen.facts, *asked_classes.about(chosen, unknown=outputs_unknown(record))]
    if (told := other_scaling(network, chosen, record, given_as, how | {"flat": images.flat})) is not None:
        facts.append(told)
    noted(record)
    result.show(record, *facts)


def _shard(shard: str | None, state: Path | None, result: ResultOptions) -> tuple[int, int] | None:
    """Which of how many shards, where that was asked for."""
    if shard is None and state is None:
        return None
    if shard is None or state is None:
        raise InputError("--shard, --state: expected both of them, such as --shard 3/16 --state folder, or neither.")
    if result.out is not None or result.page is not None:
        raise InputError("--out, --page: expected them with `layerlaw merge`, which makes the record of all shards.")
    i, n = (int(one) if one.isdecimal() else 0 for one in (f"{shard}/".split("/")[:2]))
    if shard.count("/") != 1 or not 1 <= i <= n <= MOST_SHARDS:
        expected = f"i/n, the i-th of n shards with i from 1 to n (at most {MOST_SHARDS:,})"
        raise InputError(f"--shard: expected {expected}, such as --shard 3/16, got {shard!r}.")
    return i, n


def _command_of_shards() -> str:
    """The command line that is running, with {i} and {n} for the numbers of its shard, {state} for its folder."""
    words, given = [shlex.quote(word) for word in sys.argv[1:]], sys.argv[1:]
    for name, stands in (("--shard", "{i}/{n}"), ("--state", "{state}")):
        for at, word in enumerate(given):
            if word == name and at + 1 < len(words):
                words[at + 1] = stands
            elif word.startswith(f"{name}="):
                words[at] = f"{name}={stands}"
    return "layerlaw " + " ".join(words)


@command
def merge(
    state: Annotated[Path, Argument(help="The folder that shards left statistics in (probe --shard i/n --state).")],
    result: ResultOptions,
) -> None:
    """Make the record of a measurement whose shards are done (probe --shard i/n --state FOLDER)."""
    result.check()
    record = merge_shards(state)
    record.name = result.name or record.name
    result.show(record, f"merged: {record.provenance['shards']} shards")


@command
def sites(
    where: SiteOptions,
    images: ImageOptions,
    shape: Annotated[str | None, Option(help="Shape of one random input instead of data, e.g. 3,32,32.")] = None,
    classes: Annotated[int | None, Option(help="How many classes; the memory grows with them.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show where a probe would measure MODEL, as a dry run: names, types, shapes, features, memory.

    MODEL names your own Python code, and that code is run.
    """
    made = load_given(where.model)
    network, given = made.network, made.data
    sides = () if shape is None else whole_numbers(shape, SHAPE, 1)
    try:
        chosen = (
            images.chosen(given, network=network, named=made.named)
            if shape is None
            else ChosenImages(torch.randn(3, *sides))
        )
    except RuntimeError:
        raise InputError(f"{SHAPE}, got {shape}: 3 such inputs do not fit into memory.") from None
    with explained_inputs(network, chosen, images.flat):
        plan = find_sites(network, chosen.data, classes=classes, **where.how())
    screen = console(as_json)
    screen.print(str(plan), markup=False, highlight=False, soft_wrap=True)
    found: dict[str, Any] = {"sites": plan.rows(), "why": plan.why, "left_out": list(plan.dropped)}
    found |= {"no_sites": plan.no_sites, "no_trunk": plan.no_trunk, "classifier": plan.classifier}
    conclude(screen, as_json, found)


@command
def report(
    records: Annotated[list[Path], Argument(help="Record files (JSON); several are compared on one page.")],
    out: Annotated[Path, Option("--out", "-o", help="The page to write.")] = Path("layerlaw.html"),
    title: Annotated[str | None, Option(help="Title of the page.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write one self-contained HTML page about one record, or comparing several."""
    loaded = [Record.load(path) for path in records]
    page = write_page(loaded if len(loaded) > 1 else loaded[0], out, title=title)  # before a reader may turn away
    screen = console(as_json)
    if len(loaded) == 1:
        print_record(loaded[0], screen, words=in_options)
    else:
        print_comparison(loaded, screen)
    found = {"records": [record.name for record in loaded], "laws": [law_of(record) for record in loaded]}
    conclude(screen, as_json, found, {"page": str(page)})


@command
def modules(
    records: Annotated[
        list[Path], Argument(help="Record files (JSON) measured at layers, of one network or several seeds.")
    ],
    branches: Annotated[bool, Option("--branches", help="Rows of side branches are points of a level too.")] = False,
    out: Annotated[Path | None, Option(help="Folder for modules.json and modules.png.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """At which level, layers, blocks or stages, do the modules share the drop of log D evenly?

    The finest level that is more even than random splits would be (Greenwood's p < .05), or none. Records of several seeds
    are pooled. Measure with --sites layers: blocks and stages are then found in the same record.
    """
    check_folder(out)
    found = find_modules(*(Record.load(path) for path in records), branches=branches)
    screen, written = console(as_json), saved(found, "modules", out)
    print_modules(found, screen)
    conclude(screen, as_json, found.to_dict(), written)


def summary(record: Record) -> dict[str, Any]:
    """What a script wants to know of a record."""
    verdict = judge(record)
    told = ["accuracy", "test_accuracy"] if record.kind != LANGUAGE_MODEL else []
    told += ["r_squared", "test_r_squared"] if record.kind == REGRESSION else []
    found = {name: getattr(record, name) for name in ("name", *told, "settings", "provenance", "notes")}
    found |= {
        "law": law_of(record),
        "verdict": [verdict.headline, *verdict.findings, *verdict.advice],
        "parts": [vars(part) | {"change": part.change()} for part in record.parts],
        "rows": [{"site": s.name, "type": s.type, "features": s.features, **s.values} for s in record.sites],
    }
    return dict(json_safe(found))


def law_of(record: Record, column: str | None = None, drop_last: int = 0) -> dict[str, Any] | None:
    """The law of a column as plain data; `None` where there are too few sites, or a value has no logarithm."""
    try:
        fit, errors = record.law(column, drop_last=drop_last), record.law_errors(column, drop_last=drop_last)
    except InputError:
        return None
    rule = {"holds": law_holds(record, fit, errors), "objections": fit.objections}
    return {**fit.to_dict(), "evenness": fit.evenness, "steps": fit.steps, "equal_steps": fit.equal_steps, **rule}


def other_scaling(
    network: Any, chosen: ChosenImages, record: Record, given_as: Callable[[Any], Any], how: dict[str, Any]
) -> str | None:
    """A network that decides badly is asked again with pixels of other scales, on a few images."""
    train, now, flat = chosen.train, chosen.normalize, how.pop("flat")
    if train is None or now is None or record.accuracy is None or record.accuracy > WELL_DECIDED:
        return None
    few = train.balanced(min(FEW_IMAGES, *train.counts()))
    usual: list[Any] = [
        "half",
        "none",
        *["imagenet"] * (train.images.shape[1] == 3),
        *["dataset"] * (train.name in MOMENTS),
    ]
    plain: Any = {"sites": ["logits"], "uncertainty": False, "null": False, "progress": False}

    def accuracy(scaling: Any) -> float:
        found = run_probe(network, given_as(few.tensors(scaling, flat=flat)), **how | plain).accuracy
        return 0.0 if found is None else found

    here = accuracy(now)
    best, there = max(((other, accuracy(other)) for other in usual if other != now), key=lambda pair: pair[1])
    if there < here + CLEARLY_BETTER:
        return None
    said = f"{len(few)} images: accuracy {percent(here)}, but {percent(there)} with --normalize {best}"
    return f"pixels: may be scaled otherwise than in training. On {said}"
