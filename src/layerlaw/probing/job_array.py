"""One measurement as a job array: every job takes its share of the batches; files in a folder carry sums to the next round.

Jobs never wait for each other: the same command, run again when all are done, goes on with the next round. Round 1 adds up
classes (or products with targets), round 2 scatters around the centers of all shards, and `merge` makes the record of one
run. Where groups or permuted labels are dealt and the labels are not known beforehand, a round comes before them that reads
the labels: a sample is dealt by its place among all of them, whoever measures it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from layerlaw import probing
from layerlaw.capture.batches import Batch, Batches, Pair
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.capture.modules import classifier_weight, modules_of
from layerlaw.capture.network import network_of
from layerlaw.capture.plan import Site
from layerlaw.data.labeled import Labeled
from layerlaw.data.sharding import left_over
from layerlaw.errors import DataError, InputError, LabelError, PassError
from layerlaw.files import check_room, folder_for
from layerlaw.packed import digest_of
from layerlaw.probing import shard_files, shard_words
from layerlaw.probing.memory import KeptFeatures
from layerlaw.probing.run import Prober
from layerlaw.probing.shard_files import OPTIONS, STAGES, WORK, Facts, Shard, ShardFolder, merge, read_all, seal_of
from layerlaw.probing.shard_words import ShardDone, behind, inputs_in_words, marks_of_model, numbers_of
from layerlaw.probing.shards import ENOUGH
from layerlaw.probing.slices import tell_forwards
from layerlaw.probing.sources import check_whole_in_shards, part_of, places_in, source_of, steady_first
from layerlaw.probing.state import Split, State, first_pass, second_pass, taken_over
from layerlaw.probing.targets import Targets
from layerlaw.provenance import model_provenance
from layerlaw.stats.design import DealerFrom
from layerlaw.stats.passes import FirstPass, SecondPass
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import Exchange, through, world_size
from layerlaw.stats.regression import FirstRegression, SecondRegression

__all__ = ["ShardDone", "merge", "probe_shard"]


class _Left(BaseException):
    """A shard has done its round: nothing of the probe comes behind it."""

    def __init__(self, done: ShardDone) -> None:
        self.done = done


def probe_shard(
    model: nn.Module,
    data: Any,
    *,
    shard: tuple[int, int],
    state: str | os.PathLike[str],
    test: Any = None,
    about: Mapping[str, Any] | None = None,
    **how: Any,
) -> ShardDone:
    """One job of an array that measures together what `layerlaw.probe(model, data, test=test, **how)` measures alone.

    shard   (i, n): the i-th of n shards, from 1 to n; each takes its share of the batches of all the data
    state   the folder that all shards write to and read from
    about   of the record: "name", "settings" and "provenance" to be added; "command": what runs shard {i} of {n} with the
            folder {state}

    Run it for every shard, and when all are done once more: the folder says which round it is. Then `merge(state)` gives the
    record. A shard that is done already is not measured again. `null` and `parts` are for one job.
    """
    if name := next((name for name in ("null", "parts") if how.get(name)), ""):
        raise InputError(f"{name}: cannot be used with shards. Leave it out, or measure in one job, without shards.")
    if how.get("batchnorm") == "whole":
        raise InputError("batchnorm='whole': expected one job, which sees all samples, got a shard. Use 'running'.")
    if world_size() > 1:
        raise InputError("shard: expected one process, got several ranks. Use a job array or torchrun, not both.")
    check_whole_in_shards(data=data, test=test)
    i, n = numbers_of(shard)
    given = shard_words.checked_about(about)
    given.setdefault("command", "probe_shard(model, data, shard=({i}, {n}), state={state!r})")
    settings = {"data_name": how.get("data_name", "")}
    if not isinstance(data, Labeled) or how.get("prepare") is not None:
        found = source_of(data, network_of(model), prepare=how.get("prepare"), labels=how.get("labels"))
        settings |= {"inputs": found.prepared} if found.prepared else {}
    given["settings"] = settings | given.get("settings", {})
    with folder_for(state) as path:
        folder = ShardFolder(path, n, given["command"])
        folder.check_others()
        check_room(path)
        job = _Shard(folder, i, ("data",) if test is None else ("data", "test"), given)
        before = taken_over.set(job)
        try:
            probing.probe(model, data, test=test, **how)
        except _Left as left:
            return left.done
        finally:
            taken_over.reset(before)
    raise AssertionError("a shard always leaves")


class _Shard:
    """Takes the place of both passes over every group of sites: does the part of one shard in one round."""

    def __init__(self, folder: ShardFolder, shard: int, splits: tuple[str, ...], about: Facts) -> None:
        self.folder, self.shard, self.splits, self.about = folder, shard, splits, about
        self.started, self.stage, self.stages = time.perf_counter(), "", STAGES
        self.identity: Facts = {}
        self.facts: Facts = {"about": about, "parts": {}, "splits": {}}
        self.tensors: dict[str, Tensor] = {}
        self.earlier: list[tuple[dict[str, Tensor], Facts]] = []  # what all shards left in the stage before
        self.first_batch: Batch | None = None
        self.forwards: Sequence[Any] = ()  # set by the probe, which does not know the round

    def __call__(self, prober: Prober, state: State, split: Split, reference: Split | None) -> None:
        """Do what this round needs of a group of sites; leave after the last one."""
        if state.label not in self.facts["splits"]:
            self._begin(prober, state)
        here = self.facts["splits"][state.label]
        part, whole = f"{state.label}-{len(here['groups'])}", state.data
        here["groups"].append([site.name for site in state.sites])
        state.data = part_of(whole, self.shard, self.folder.shards)
        if self.forwards and self.stage != "labels" and state.data.length:  # labels take none
            n, over, memory_gib, planned = self.forwards
            over, of = f"this shard's batches of {over} in this round", " (the same in all shards, in a new folder)"
            tell_forwards(n, over, memory_gib, planned, of)
        self.forwards = ()
        if self.stage == "labels":
            self._read_labels(prober, state)
            lend(state.first, state, split)
        else:
            self._prepare(prober, state, whole)
            (self._sums if self.stage == "sums" else self._scatters)(prober, state, split, reference, part)
        if state.label == self.splits[-1] and state.sites[-1] is prober.plan.sites[-1]:
            self._leave()

    def _begin(self, prober: Prober, state: State) -> None:
        """Which data these are, and before the first of them: of which measurement, and which round it is."""
        data, dealer = state.data, state.dealer
        deals = bool(dealer.groups or dealer.permuted)
        if data.length is None or (data.samples is None and deals):
            known, more = ("batches", "") if data.length is None else ("samples", ", or uncertainty=False")
            expected = f"{data.where}: expected data whose number of {known} is known beforehand, in shards"
            raise InputError(f"{expected}. Pass tensors, a Dataset or a DataLoader of one{more}.")
        self.first_batch = steady_first(data, prober.randomness)
        self.identity[state.label] = self._mark(data, self.first_batch)
        unknown = data.labels is None and (deals or isinstance(prober.classes, Targets))
        if state.label == "data":
            self._choose(prober, unknown)
        elif unknown and "labels" not in self.stages:
            raise InputError("test: expected data of the kind of the others, whose labels are known, got a loader.")
        else:
            self._compare()
        facts = {"batch_size": data.batch_size, "order": data.order, "why_not": state.why_not, "decided": False}
        self.facts["splits"][state.label] = facts | {"left_out": left_over(data.loader), "groups": [], "layout": []}

    def _mark(self, data: Batches, batch: Batch) -> Facts:
        """What tells one data set from another, without going through all of it where that takes long."""
        mark = Fingerprint()
        if isinstance(data.source, Pair):
            batch = data.source.whole
        mark.update(batch.labels, *batch.tensors())
        found: Facts = {"batch_size": data.batch_size, "batches": data.length, "samples": data.samples}
        found |= {"order": data.order, "inputs": inputs_in_words(batch.tensors(), data.source), "content": mark.text()}
        if (places := places_in(data.source)) is not None:
            if places != places_in(data.source):
                cure = "Pass shuffle=False: shards in other jobs must find the samples in the same order"
                raise InputError(f"{data.where}: expected a loader of one order, got one that shuffles. {cure}.")
            found["places"] = digest_of(places)
        return found

    def _compare(self) -> None:
        """Raise where the folder has another measurement: also labels that this one may not need."""
        numbers = range(1, self.folder.shards + 1)
        for stages in (STAGES[:1], STAGES[1:]):
            there = ((stage, k) for stage in stages for k in numbers if self.folder.file(stage, k).exists())
            for one in islice(there, 1):  # says what all are
                self.folder.compare(self.identity, self.folder.read(*one)[1])

    def _choose(self, prober: Prober, unknown: bool) -> None:
        """The first stage that this shard has not done; leaves where others must come first, or nothing is left to do."""
        options, plan, known = prober.options, prober.plan, model_provenance(prober.network)
        where = digest_of(shard_files.plain((plan.sites, plan.classifier, plan.reads, plan.scores)))[:12]
        self.identity |= {
            "model": marks_of_model(prober.network, known),
            "options": {name: getattr(options, name) for name in OPTIONS},
            "sites": f"{len(plan.sites)} sites ({plan.rule}), sha256 {where}",
            "classes": f"{prober.classes.K}, sha256 {digest_of(shard_files.plain(prober.classes))[:12]}",
            "splits": list(self.splits),
        }
        self.facts |= {"identity": self.identity, "provenance": known, **shard_files.described(prober)}
        rows = None if plan.classifier is None else classifier_weight(modules_of(prober.network)[plan.classifier])
        self.tensors |= {} if rows is None else {"classifier": rows}
        self._compare()
        self.stages, folder = STAGES[not unknown :], self.folder
        start = int(unknown and bool(folder.missing("labels")) and goes_on(folder, "labels"))  # which nobody needs then
        for at, stage in list(enumerate(self.stages))[start:]:
            before = self.stages[at - 1] if at > start else None
            if before is not None and (missing := folder.missing(before)):
                raise _Left(self._done(at, False, missing))
            self.earlier = [] if before is None else read_all(folder, before)
            folder.compare(self.identity, *(theirs for _, theirs in self.earlier))
            if not folder.file(stage, self.shard).exists():
                self.stage = stage
                return
            mine = folder.read(stage, self.shard)[1]
            folder.compare(self.identity, mine)
            whole = folder.whole(stage, self.shard, mine["parts"])
            anew = stage == "scatters" and mine["around"] != seal_of(self.earlier)  # sums were measured again
            if not whole or anew:
                self.stage = stage
                return
        raise _Left(self._done(len(self.stages), False, folder.missing("scatters")))

    def _done(self, number: int, measured: bool, missing: Sequence[int]) -> ShardDone:
        stage, folder, ahead, damaged, lacking = self.stages[number - 1], self.folder, False, "", (0, list[int]())
        try:
            if not missing:
                check_files(folder, stage, read_sums=not measured)
            ahead = goes_on(folder, stage)
            some = len(folder.missing("scatters")) < folder.shards and not folder.missing("sums")
            lacking = behind(folder, self.stages, number, seal_of(read_all(folder, "sums")) if some else "")
        except DataError as error:  # what this shard itself had to do is done
            damaged = str(error)
        told = (tuple(missing), folder, WORK[stage], ahead, damaged, lacking)
        return ShardDone(self.shard, number, len(self.stages), measured, *told)

    def _read_labels(self, prober: Prober, state: State) -> None:
        """The labels of this shard, without the network; once, not for every group of sites."""
        if f"{state.label}.labels" in self.tensors:
            return
        found = []
        if state.data.length:
            prober.randomness.rewind()
            for i, batch in enumerate(prober.options.progress(state.data, f"{state.label}, labels", state.data.length)):
                found.append(prober.classes.positions(batch.labels.cpu(), f"labels of {state.label}, batch {i}")[0])
        self._keep_labels(state.label, found)

    def _keep_labels(self, label: str, found: Sequence[Tensor]) -> None:
        some = [labels for labels in found if len(labels)]
        self.tensors[f"{label}.labels"] = torch.cat(some) if some else torch.zeros(0, dtype=torch.long)
        self.tensors[f"{label}.sizes"] = torch.tensor([len(labels) for labels in some], dtype=torch.long)

    def _known(self, prober: Prober, label: str, whole: Batches) -> list[list[Tensor]] | None:
        """The labels of every batch of every shard, as far as they are known before this round."""
        if isinstance(pair := whole.source, Pair):
            labels = pair.labels if pair.order is None else pair.labels[pair.order.to(pair.labels.device)]
            batches = list(torch.split(labels.cpu(), pair.batch_size))
            found = [prober.classes.positions(batch, f"labels of {label}")[0] for batch in batches]
            n = self.folder.shards
            cuts = [len(batches) * k // n for k in range(n + 1)]
            return [[one for one in found[a:b] if len(one)] for a, b in pairwise(cuts)]
        return [shard_files.label_batches(tensors, label) for tensors, _ in self.earlier] or None

    def _prepare(self, prober: Prober, state: State, whole: Batches) -> None:
        """What both rounds need: samples are dealt by their place among all of them."""
        known = self._known(prober, state.label, whole)
        deals = state.dealer.groups or state.dealer.permuted or isinstance(prober.classes, Targets)
        before = [] if known is None else [batch for batches in known[: self.shard - 1] for batch in batches]
        due, changed = None if known is None else known[self.shard - 1], shard_words.changed_data(state.data.where)
        if state.kept.whole and state.dealer.permuted and known is not None:
            state.dealer.all_labels = torch.cat([batch for batches in known for batch in batches])  # as one run would
        state.kept = KeptFeatures(state.sites, 0, None)
        state.dealer = DealerFrom(state.dealer, before if deals else [], due, changed)
        if state.sample is not None:
            for batch in before:
                state.sample.begin(prober.classes.pictured(batch))

    def _sums(self, prober: Prober, state: State, split: Split, reference: Split | None, part: str) -> None:
        """Round 1 of a group of sites."""
        here, batch = self.facts["splits"][state.label], self.first_batch
        assert batch is not None
        here["layout"].append(layout(prober, state, batch))
        here["linear"], here["no_linear_why"] = sorted(state.linear), split.no_linear_why
        here["dealt"] = [state.dealer.groups, state.dealer.permuted]
        if isinstance(state.first, FirstRegression):
            targets, _ = prober.classes.positions(batch.labels, f"labels of {state.label}, batch 0")
            shift = targets.double().mean(0).cpu()
            state.first.shift, state.first.agreed = shift, True
            here["shift"], here["moments"] = shift.tolist(), sorted(map(str, state.first.wanted))
        before = 0 if state.sample is None else len(state.sample.labels)
        dealer = state.dealer
        assert isinstance(dealer, DealerFrom)
        try:
            if state.data.length:
                first_pass(prober, state)
        except LabelError:
            if dealer.dealt:
                raise  # else it has no samples of measured classes
        if dealer.due is not None and len(dealer.dealt) < len(dealer.due):
            raise PassError(dealer.changed)
        self.facts["parts"][part] = None
        if dealer.dealt:
            with full_precision(), through(self._saving(part)):
                state.first.all_reduce()
        here["fingerprint"] = state.fingerprint.saved()
        here["unused"] = state.data.unused
        self._keep_labels(state.label, dealer.dealt)
        if state.sample is not None:
            pictured = state.sample.labels[before:]
            self.tensors[f"{state.label}.pictured"] = torch.tensor(pictured, dtype=torch.long)
            for site in state.sites:
                if (features := state.sample.features(site.name)) is not None:
                    self.tensors[f"{state.label}.plane.{site.name}"] = features
        lend(state.first, state, split)

    def _scatters(self, prober: Prober, state: State, split: Split, reference: Split | None, part: str) -> None:
        """Round 2 of a group of sites."""
        here, mine = self.facts["splits"][state.label], self.earlier[self.shard - 1][1]
        there = mine["splits"][state.label]
        state.first = shard_files.shaped_first(prober, there, len(here["groups"]) - 1)
        state.fingerprint = Fingerprint()
        state.fingerprint.follow(there["fingerprint"])
        load = shard_files.loading(self.folder, "sums", part, [facts for _, facts in self.earlier])
        self.facts["parts"][part] = None
        second: SecondPass | SecondRegression
        if mine["parts"][part] is not None:
            with through(load, self._saving(part)):
                second = second_pass(prober, state, reference)
            here["decided"] = second.decision is not None
        else:
            with full_precision(), through(load):
                how: Any = (state.label, prober.options.weighting, reference, state.linear, None)
                second = prober.classes.second(state.first, *how)  # type: ignore[arg-type]
        self.tensors[f"{state.label}.free"] = state.free.clone()
        lend(second, state, split)

    def _saving(self, part: str) -> Exchange:
        def save(tensors: Sequence[Tensor], digests: Sequence[Tensor]) -> None:
            named = {f"{i:05}": tensor for i, tensor in enumerate(tensors)}
            marks = torch.cat([mark.reshape(-1).cpu() for mark in digests]) if digests else torch.zeros(0)
            written = self.folder.write(self.stage, self.shard, named | {"digests": marks}, {}, part)
            self.facts["parts"][part] = written

        return save

    def _leave(self) -> None:
        """All statistics are in files: the last one says so."""
        self.facts["seconds"] = round(time.perf_counter() - self.started, 3)
        if self.stage == "scatters":
            self.facts["around"] = seal_of(self.earlier)
        self.folder.write(self.stage, self.shard, self.tensors, self.facts)
        raise _Left(self._done(self.stages.index(self.stage) + 1, True, self.folder.missing(self.stage)))


def check_files(folder: ShardFolder, stage: str, *, read_sums: bool) -> None:
    """Raise where a file of a round that all shards have done is damaged, or in front of a merge any that it needs is gone.

    Whoever has just measured scatters has read the sums of all shards.
    """
    for one in ["sums"] * (stage == "scatters" and read_sums) + [stage]:
        for shard, part in parts_of_all(read_all(folder, one)):
            if stage == "scatters":  # before, sums may be large, and are read next by all shards
                folder.read(one, shard, part)


def goes_on(folder: ShardFolder, stage: str) -> bool:
    """Whether all that comes behind a stage is there and belongs to it, since files were deleted when all was done."""
    if folder.missing("scatters"):
        return False
    if folder.missing("sums"):
        return stage == "sums"  # `merge` will tell whether they are the same once more
    sums = read_all(folder, "sums")
    there = all(folder.file("sums", shard, part).exists() for shard, part in parts_of_all(sums))
    return there and all(facts["around"] == seal_of(sums) for _, facts in read_all(folder, "scatters"))


def parts_of_all(shards: Sequence[Shard]) -> list[tuple[int, str]]:
    """The files with statistics of all shards in one stage: which shard's, and which part."""
    return [(i, part) for i, (_, facts) in enumerate(shards, 1) for part, seal in facts["parts"].items() if seal]


def layout(prober: Prober, state: State, batch: Batch) -> list[tuple[str, int, str]]:
    """The sites in the order in which the network comes to them, with their features and dtype."""
    found: list[tuple[str, int, str]] = []

    def consume(site: Site, features: Tensor) -> None:
        found.append((site.name, features.shape[1], str(features.dtype).removeprefix("torch.")))

    with prober.capturing(state.sites, consume) as capture:
        capture.run(batch.first(ENOUGH).to(prober.device), rows=None, where=f"{state.label}, batch 0")
    return found


def lend(found: FirstPass | FirstRegression | SecondPass | SecondRegression, state: State, split: Split) -> None:
    """What test data need to know of these: centers, what was taken off the targets, which sites keep second moments."""
    if isinstance(found, SecondPass):
        split.around |= {site: found.around[site.name] for site in state.sites}
    elif isinstance(found, SecondRegression):
        split.targets, found = found.first, found.first
    if isinstance(found, FirstRegression):
        kept: Any = {site: SimpleNamespace(moments=() if site.name in found.wanted else None) for site in state.sites}
        split.regressions |= kept
