"""What the shards of a job array leave for each other in a folder: statistics as safetensors, versioned and checksummed.

A shard writes one file per stage, `sums-2-of-5.safetensors`, last of all: it says of which measurement it is, and names the
files with the statistics of every group of sites (`sums-2-of-5.data-0.safetensors`) with their checksums.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw import probing
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.capture.modules import modules_of
from layerlaw.capture.network import Randomness
from layerlaw.capture.plan import Plan, Site, TokenUse
from layerlaw.capture.scores import Scores
from layerlaw.errors import DataError, PassError, needed
from layerlaw.files import as_path, made_folder, replace_whole
from layerlaw.packed import check_safetensors, digest_of
from layerlaw.probing.classes import Classes
from layerlaw.probing.dealt import dropped_note
from layerlaw.probing.memory import KeptFeatures
from layerlaw.probing.run import Options, Prober, _leave, let_go
from layerlaw.probing.shard_words import SHOWN, behind, cure_of, difference, listed_shards, not_done, then_what
from layerlaw.probing.state import Split, State
from layerlaw.probing.targets import Targets
from layerlaw.progress import choose
from layerlaw.provenance import code_version, provenance
from layerlaw.record import Record
from layerlaw.stats.around import ONE_FORWARD
from layerlaw.stats.passes import Dealt, FirstPass, SecondPass
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import Exchange, through
from layerlaw.stats.regression import FirstRegression, SecondRegression
from layerlaw.threads import on_cpu

FORMAT, VERSION = "layerlaw shard", 5
STAGES: tuple[str, ...] = ("labels", "sums", "scatters")
NAME = re.compile(r"(labels|sums|scatters)-(\d+)-of-(\d+)\.safetensors")
KNOWN: dict[str, type] = {cls.__name__: cls for cls in (Plan, Site, TokenUse, Scores, Classes, Targets)}
WORK = {"labels": "labels", "sums": "class sums", "scatters": "scatters around the centers"}
OPTIONS = ("reduce", "batchnorm", "weighting", "uncertainty", "memory_gib", "seed", "linear")
Facts = dict[str, Any]
Shard = tuple[dict[str, Tensor], Facts]  # what a shard left in a stage


@dataclass(frozen=True)
class ShardFolder:
    """The folder of a job array of so many shards; `command` runs one of them, {i} of {n}, with this folder as {state}."""

    path: Path
    shards: int
    command: str

    def file(self, stage: str, shard: int, part: str = "") -> Path:
        """Where a shard leaves what it found in a stage, or the statistics of a group of sites."""
        return self.path / f"{stage}-{shard}-of-{self.shards}{'.' * bool(part)}{part}.safetensors"

    def commands(self, shards: Sequence[int]) -> str:
        """The commands that run these shards, a line each."""
        of_all = self.command.replace("{n}", str(self.shards))
        of_all = of_all.replace("{state!r}", repr(str(self.path))).replace("{state}", shlex.quote(str(self.path)))
        lines = [f"  {of_all.replace('{i}', str(shard))}" for shard in shards[:SHOWN]]
        return "\n".join([*lines, *[f"  … and {len(shards) - SHOWN} more"] * (len(shards) > SHOWN)])

    def missing(self, stage: str) -> list[int]:
        """The shards that have not finished a stage."""
        found = {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()
        return [shard for shard in range(1, self.shards + 1) if self.file(stage, shard).name not in found]

    def write(self, stage: str, shard: int, tensors: Mapping[str, Tensor], facts: Facts, part: str = "") -> str:
        """Write a file, whole or not at all; its checksum."""
        writer = needed("safetensors.torch", "weights", "A state of shards")
        own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        said = {"format": FORMAT, "version": VERSION, "layerlaw": code_version(), "stage": stage, "part": part}
        text = json.dumps(said | {"shard": shard, "shards": self.shards} | facts, ensure_ascii=False)
        seal, size = _seal(text, own), sum(tensor.nbytes for tensor in own.values())
        about = {"layerlaw": text, "sha256": seal}
        made_folder(self.path)  # another shard that was refused may have taken it away
        replace_whole(self.file(stage, shard, part), lambda to: writer.save_file(own, to, about), wanted=size)
        return seal

    def read(self, stage: str, shard: int, part: str = "") -> Shard:
        """Tensors and facts of a file, if it is still as it was written, by this version, and that of this shard."""
        path = self.file(stage, shard, part)
        again = f"Delete it and run this shard again:\n{self.commands([shard])}"
        text, seal, tensors = self._opened(path, again)
        facts: Facts = json.loads(text) | {"sha256": seal}
        if (facts.get("format"), facts.get("version")) != (FORMAT, VERSION) or facts.get("layerlaw") != code_version():
            came = f"version {facts.get('version')} of layerlaw {facts.get('layerlaw')}"
            expected = f"the state of a shard in version {VERSION} of layerlaw {code_version()}"
            cure = "Shards of one measurement need one version of layerlaw: measure all of them again, in a new folder"
            raise DataError(f"{path}: expected {expected}, got {came}. {cure}.")
        place = [facts.get(name) for name in ("stage", "shard", "shards", "part")]
        if place != [stage, shard, self.shards, part]:
            came = f"what shard {place[1]} of {place[2]} left ({place[0]})"
            raise DataError(f"{path}: expected what its name says, got {came}: a copy would count twice. {again}")
        return tensors, facts

    def _opened(self, path: Path, again: str) -> tuple[str, str, dict[str, Tensor]]:
        reader = needed("safetensors", "weights", "A state of shards")
        expected = f"{path}: expected the state of a shard"
        try:
            check_safetensors(path)
            with reader.safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dictionary
        except FileNotFoundError:
            run = again.partition("\n")[2]
            raise DataError(f"{expected}, found nothing there. Run this shard again:\n{run}") from None
        except OSError as error:
            raise DataError(f"{expected} that can be read ({error.strerror}).") from None
        except (DataError, reader.SafetensorError) as error:
            said = str(error).removeprefix(f"{path}: ").partition(": download")[0].partition("; cut")[0].rstrip(".")
            raise DataError(f"{expected}, got a file that is cut short or damaged ({said}). {again}") from None
        text = about.get("layerlaw", "")
        if not text.startswith("{"):
            raise DataError(f"{expected}, got another safetensors file. {again}")
        if _seal(text, tensors) != about.get("sha256"):
            raise DataError(f"{expected} as it was written, got other content: its checksum differs. {again}")
        return text, about["sha256"], tensors

    def whole(self, stage: str, shard: int, parts: Mapping[str, str | None]) -> bool:
        """Whether all statistics of a shard that is done are there; raises where they are not what it wrote."""
        named = [part for part, seal in parts.items() if seal]
        there = all(self.file(stage, shard, part).exists() for part in named)
        return there and all(self.read(stage, shard, part) for part in named)

    def check_others(self) -> None:
        """Raise where the folder holds shards of another number of them."""
        for found in sorted({int(n) for n in found_shards(self.path)} - {self.shards}):
            cure = f"Go on with shards of {found}, or choose another folder"
            raise DataError(f"{self.path}: expected shards of {self.shards}, got files of shards of {found}. {cure}.")

    def compare(self, mine: Facts, *every: Facts, here: str = "") -> None:
        """Raise where a shard measured something else than what `mine` tells, as the file `here` does where it is named."""
        more = f". 'Here' is {here}: delete the files of one of the two measurements" * bool(here)
        for facts, what in ((facts, what) for facts in every for what in mine if what in facts["identity"]):
            if (theirs := facts["identity"][what]) != mine[what]:
                file, shard = self.file(facts["stage"], facts["shard"]), facts["shard"]
                told, cure = (words(what, mine[what], theirs) for words in (difference, cure_of))
                raise DataError(f"{file}: shard {shard} of {self.shards} measured {told}. {cure}{more}.")


def found_shards(folder: Path) -> set[int]:
    """Of how many shards there are files in a folder."""
    try:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise DataError(f"{folder}: expected a folder that can be read ({error.strerror}).") from None
    return {int(match[3]) for name in names if (match := NAME.fullmatch(name))}


def _seal(text: str, tensors: Mapping[str, Tensor]) -> str:
    return digest_of([text, [[name, tensors[name]] for name in sorted(tensors)]])


def plain(value: Any) -> Any:
    """A plan, classes and what they are made of, as JSON holds them; of a user's function only that there is one."""
    if is_dataclass(value) and type(value).__name__ in KNOWN:
        found = {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name != "parts"}
        return {"is": type(value).__name__, "of": found}
    if isinstance(value, tuple):
        return {"is": "tuple", "of": [plain(one) for one in value]}
    if isinstance(value, dict):
        return {"is": "dict", "of": [[key, plain(one)] for key, one in value.items()]}
    if isinstance(value, Tensor):
        return {"is": "tensor", "of": value.tolist()}
    return {"is": "function"} if callable(value) else value


def made(value: Any) -> Any:
    """What `plain` made plain."""
    if not isinstance(value, dict):
        return value
    kind: str = value["is"]
    of: Any = value.get("of")
    plainly: dict[str, Callable[[], Any]] = {
        "tuple": lambda: tuple(made(one) for one in of),
        "dict": lambda: {key: made(one) for key, one in of},
        "tensor": lambda: torch.tensor(of),
        "function": lambda: _unknown,
    }
    return plainly[kind]() if kind in plainly else KNOWN[kind](**{name: made(one) for name, one in of.items()})


def _unknown(output: Any) -> Any:
    """Stands for a function of the user's that read the class scores: shards have used it."""
    raise DataError("the function that reads the class scores was not saved with the shards.")


def read_all(folder: ShardFolder, stage: str) -> list[Shard]:
    """What all shards left in a stage that they have finished."""
    return [folder.read(stage, shard) for shard in range(1, folder.shards + 1)]


def seal_of(shards: Sequence[Shard]) -> str:
    """What tells the statistics of all shards in one stage from others."""
    return digest_of([facts["parts"] for _, facts in shards])


def label_batches(tensors: Mapping[str, Tensor], label: str) -> list[Tensor]:
    """The labels of every batch of a shard."""
    sizes = tensors[f"{label}.sizes"].tolist()
    return list(torch.split(tensors[f"{label}.labels"], sizes)) if sizes else []


def loading(folder: ShardFolder, stage: str, part: str, known: Sequence[Facts]) -> Exchange:
    """Puts the sums over all shards into statistics of the same shapes; `known` are the facts of every shard."""

    def load(tensors: Sequence[Tensor], digests: Sequence[Tensor]) -> None:
        marks = torch.cat([mark.reshape(-1).cpu() for mark in digests]) if digests else torch.zeros(0)
        for tensor in tensors:
            tensor.zero_()
        for shard, facts in enumerate(known, 1):
            if facts["parts"].get(part) is None:  # a shard without samples
                continue
            found, said = folder.read(stage, shard, part)
            path = folder.file(stage, shard, part)
            theirs = found.pop("digests", torch.zeros(0))
            shapes = [tuple(found[name].shape) for name in sorted(found)]
            if said["sha256"] != facts["parts"][part] or shapes != [tuple(tensor.shape) for tensor in tensors]:
                cure = f"Delete it and run this shard again:\n{folder.commands([shard])}"
                raise DataError(f"{path}: expected the statistics that belong to the others, got other ones. {cure}")
            if theirs.shape != marks.shape or not torch.allclose(theirs, marks, rtol=1e-9, atol=1e-12):
                raise PassError(f"{path}: expected scatters around the centers of all shards, got others.")
            for tensor, name in zip(tensors, sorted(found), strict=True):
                tensor += found[name].to(tensor.device)

    return load


def no_samples(prober: Prober, here: Facts) -> Dealt:
    """Two samples that stand for none: statistics get their shapes from them, and other content."""
    groups, permuted = here["dealt"]
    dealer = prober.classes.dealer(groups, permuted, prober.options.seed, None)
    q = len(prober.classes.ids)
    targets = isinstance(prober.classes, Targets)
    return dealer.deal(torch.zeros(2, q, dtype=torch.float64) if targets else torch.zeros(2, dtype=torch.long))


def zeros(prober: Prober, here: Facts, group: int) -> list[tuple[str, Tensor]]:
    """Their features."""
    like: Any = {"device": prober.device}
    return [(name, torch.zeros(2, d, dtype=getattr(torch, dtype), **like)) for name, d, dtype in here["layout"][group]]


def shaped_first(prober: Prober, here: Facts, group: int) -> FirstPass | FirstRegression:
    """Pass 1 of a group of sites in the shapes that shards have, for their sums."""
    moments = [site for site in prober.plan.sites if site.name in here.get("moments", ())]
    first = prober.classes.first(here["dealt"][0], moments)
    if isinstance(first, FirstRegression):
        first.shift, first.agreed = torch.tensor(here["shift"], dtype=torch.float64), True
    first.begin(no_samples(prober, here))
    for name, features in zeros(prober, here, group):
        first.update(name, features)
    first.end(str)
    return first


def described(prober: Prober) -> Facts:
    """What a record says of a network, its plan and classes, for those who do not have it."""
    modules, names = modules_of(prober.network), {site.module for site in prober.plan.sites}
    owners = {name: any(True for _ in modules[name].parameters()) for name in sorted(names) if name in modules}
    told = {"plan": plain(prober.plan), "classes": plain(prober.classes), "modules": owners}
    return told | {"device": provenance(prober.device)["device"]}


def skeleton(facts: Facts, rows: Tensor | None) -> nn.Module:
    """In place of the network: its name, which modules own parameters, and the rows of its classifier."""
    network: nn.Module = type(facts["provenance"]["model"], (nn.Module,), {})()
    owners, name = facts["modules"], facts["plan"]["of"]["classifier"]
    for path in [*owners, *([] if name is None else [name])]:
        inner = network
        for step in filter(None, path.split(".")):
            if step not in inner._modules:
                inner.add_module(step, nn.Module())
            inner = inner.get_submodule(step)
        if path == name and rows is not None:
            inner.register_parameter("weight", nn.Parameter(rows, requires_grad=False))
        elif owners.get(path):
            inner.register_parameter("some", nn.Parameter(torch.zeros(1), requires_grad=False))
    return network


@on_cpu
def merge(state: str | os.PathLike[str]) -> Record:
    """The record of a measurement whose shards have done all rounds, by what they left in their folder."""
    folder = finished(as_path(state, "state"))
    sums, scatters = read_all(folder, "sums"), read_all(folder, "scatters")
    first, mine = sums[0]
    folder.compare(mine["identity"], *(facts for _, facts in (*sums, *scatters)), here=folder.file("sums", 1).name)
    stale = [number for number, (_, facts) in enumerate(scatters, 1) if facts["around"] != seal_of(sums)]
    if stale:
        why = "measured round 2 around the sums of another round 1. Run these again"
        raise DataError(f"{folder.path}: {listed_shards(stale, 'shard')} {why}:\n{folder.commands(stale)}")
    asked = {name: mine["identity"]["options"][name] for name in OPTIONS}
    try:
        options, plan, classes = Options(**asked, progress=choose(False)), made(mine["plan"]), made(mine["classes"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder.path}: expected a plan of sites and classes, got another ({error}).") from None
    prober = Prober(skeleton(mine, first.get("classifier")), plan, classes, options, Randomness(), None)
    splits: list[Split] = []
    try:
        for label in mine["identity"]["splits"]:
            splits.append(_merged(folder, prober, label, sums, scatters, splits[0] if splits else None))
    except PassError as error:  # shards forward twice, whatever the memory
        again = "Measure all shards again in a new folder"
        raise PassError(f"{folder.path}: {str(error).replace(ONE_FORWARD, '')} {again}.") from None
    here = mine["splits"]["data"]
    unused = sorted({key for _, facts in sums for key in facts["splits"]["data"]["unused"]})
    data: Any = SimpleNamespace(batch_size=here["batch_size"], order=here["order"], unused=unused)
    record = probing.recorded(prober, data, splits[0], splits[1] if len(splits) > 1 else None, None)
    record.notes += filter(None, (dropped_note(label, *of["left_out"]) for label, of in mine["splits"].items()))
    devices = dict.fromkeys(facts["device"] for _, facts in scatters)
    spent = round(sum(facts["seconds"] for _, facts in (*sums, *scatters)), 3)
    more = {"device": ", ".join(devices), "shards": folder.shards, "seconds": spent}
    record.provenance |= mine["provenance"] | more | mine["about"].get("provenance", {})
    record.settings |= mine["about"]["settings"]
    record.name = mine["about"].get("name") or record.name
    return record


def finished(path: Path) -> ShardFolder:
    """The folder of shards that have all done all rounds; else an error that says what is to be run."""
    if not path.is_dir():
        came = "a file" if path.exists() else "nothing there"
        raise DataError(f"{path}: expected the folder of a job array, got {came}.")
    numbers = found_shards(path)
    if len(numbers) != 1:
        came = f"files of shards of {listed_shards(sorted(numbers))}" if numbers else "no file of a shard"
        raise DataError(f"{path}: expected the folder of one job array (probe --shard i/n --state), got {came}.")
    folder = ShardFolder(path, numbers.pop(), "")
    every = range(1, folder.shards + 1)
    there = [(stage, shard) for stage in STAGES for shard in every if folder.file(stage, shard).exists()]
    one = folder.read(*there[0])[1]
    folder = replace(folder, command=one["about"]["command"])
    stages, later = STAGES[folder.missing("labels") == [*every] :], not folder.missing("scatters")
    unneeded = {"labels"} if later and not folder.missing("sums") else set()  # sums have them, too
    for number, stage in enumerate(stages, 1):
        if stage not in unneeded and (missing := folder.missing(stage)):
            here = folder.file(*there[0]).name  # nothing completes two measurements
            folder.compare(one["identity"], *(folder.read(*other)[1] for other in there), here=here)
            which = not_done(missing, folder.shards, number, len(stages))
            after = then_what(folder.shards, number, len(stages), behind(folder, stages, number))
            run = f"still to be run:\n{folder.commands(missing)}{after}"
            raise DataError(f"{path}: expected all shards to be done, but {which} ({WORK[stage]}): {run}")
    return folder


def _merged(
    folder: ShardFolder, prober: Prober, label: str, sums: list[Shard], scatters: list[Shard], reference: Split | None
) -> Split:
    """What all shards found of one data set."""
    here, split, options = sums[0][1]["splits"][label], Split(), prober.options
    split.no_linear_why = here["no_linear_why"]
    decided, fingerprint = any(facts["splits"][label]["decided"] for _, facts in scatters), Fingerprint()
    for _, facts in sums:
        fingerprint.follow(facts["splits"][label]["fingerprint"])
    for group, names in enumerate(here["groups"]):
        sites, part = [site for site in prober.plan.sites if site.name in names], f"{label}-{group}"
        first, nobody, linear = shaped_first(prober, here, group), no_samples(prober, here), frozenset(here["linear"])
        with full_precision(), through(loading(folder, "sums", part, [facts for _, facts in sums])):
            how: Any = (label, options.weighting, reference, linear, None)
            second: SecondPass | SecondRegression = prober.classes.second(first, *how)  # type: ignore[arg-type]
        with full_precision(), through(loading(folder, "scatters", part, [facts for _, facts in scatters])):
            second.begin(nobody, nobody.labels if decided else None)
            for name, features in zeros(prober, here, group):
                second.update(name, features)
            second.end()
            second.all_reduce()
        if isinstance(first, FirstRegression):
            first.pictured = [batch for tensors, _ in sums for batch in label_batches(tensors, label)]
        sample = prober.classes.sample() if f"{label}.pictured" in sums[0][0] else None
        for tensors, _ in sums:
            names = [name for name, *_ in here["layout"][group] if f"{label}.plane.{name}" in tensors]
            if sample is not None:
                sample.follow(tensors[f"{label}.pictured"], {name: tensors[f"{label}.plane.{name}"] for name in names})
        nothing: Any = None
        known: Any = (first, KeptFeatures(sites, 0, None), sample, here["why_not"], linear, fingerprint)
        state = State(sites, nothing, label, prober.classes, nothing, *known)
        state.free = sum((tensors[f"{label}.free"] for tensors, _ in scatters), torch.zeros(2, dtype=torch.float64))
        _leave(state, second, split)
        if sample is not None and (read := sample.features(prober.plan.reads)) is not None:
            split.read = read
        if len(here["groups"]) > 1 and label == sums[0][1]["identity"]["splits"][-1]:  # nothing is measured around it
            let_go(prober, sites, split, reference)
    return split
