"""How the data are dealt to several processes: every sample to one of them, of one and the same data set, with all of its
features."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from layerlaw.capture.batches import Batch, Batches
from layerlaw.capture.fingerprint import LOOKED_AT, Fingerprint
from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import Randomness, parts_of, probing_state
from layerlaw.capture.plan import Plan, Reduce, Site
from layerlaw.data.sharding import (
    dealt_to_others,
    dealt_whole,
    left_over,
    made_apart,
    mark_of_set,
    same_sets,
    unlike_sets,
    whole_state,
)
from layerlaw.errors import DataError, FeatureError
from layerlaw.progress import warn
from layerlaw.stats.design import Dealer
from layerlaw.stats.labels import mixed_order
from layerlaw.stats.ranks import rank, world_size
from layerlaw.threads import users_device
from layerlaw.wording import counted, joined

AGAIN = "These are counted several times (if your data contain exact copies of samples, this is no error)"
FEW = 8, 64  # samples, and features of a site, by which parts of the features are told from all of them
ROUNDING = 0.05  # of the length of all these numbers: by more they are not the same
SURELY = 2  # times as many samples on several ranks as a sampler repeats are there for another reason
SEEDED = "Seed random_split or shuffle (generator=torch.Generator().manual_seed(0)) and sort the files of a folder"


def _check_same_inputs(network: nn.Module, fingerprint: Fingerprint, label: str) -> None:
    """Raise where ranks that make one forward together (tensor parallel) have other samples than each other."""
    for group in _parallel(network):
        if len(set(_of_group(group, fingerprint.text()))) > 1:
            why = f"{_holders(group)} and make one forward together"
            cure = "Pass the group over which data are dealt, say mesh['data'].get_group(), as `ranks` to probe and sampler"
            raise DataError(f"{label}: expected the same samples on {why}, got different ones. {cure}.")


def check_all_features(network: nn.Module, plan: Plan, batch: Batch, reduce: Reduce) -> None:
    """Raise where ranks that make one forward together (tensor parallel) have a part of a site's features each.

    Or of the class scores. These are local tensors behind a column-wise layer; nothing but their numbers tells. Of other
    samples the data will tell.
    """
    if not (groups := _parallel(network)):
        return
    found, inputs = dict[str, Tensor](), Fingerprint()
    inputs.update(batch.labels, *batch.tensors())

    def consume(site: Site, features: Tensor) -> None:
        found[f"site '{site.name}'"] = features[: FEW[0], : FEW[1]].double().nan_to_num().cpu().clone()

    sites = dict.fromkeys((*plan.sites, *plan.of_parts().sites))
    with probing_state(network, "running"), Capture(network, plan, list(sites), reduce=reduce, consume=consume) as once:
        output = once.run(batch, where="the dry run")
        if (scores := plan.scores.of(output)) is not None:
            found["the model's class scores"] = scores[: FEW[0]].double().nan_to_num().cpu()
    for group in groups:
        known = _of_group(group, (inputs.text(), found))
        if any(given != inputs.text() for given, _ in known):
            continue
        if cut := [name for name, mine in found.items() if not all(_same(mine, there[name]) for _, there in known)]:
            expected = f"{cut[0]}: expected all of them on each of {_holders(group)}, got a part on each"
            cure = "Pass use_local_output=False to ColwiseParallel, or choose a site behind the row-wise layer"
            raise FeatureError(f"{expected}, as a column-wise layer leaves it. {cure}.")


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether numbers are the same but for rounding."""
    return a.shape == b.shape and bool((a - b).norm() <= ROUNDING * torch.maximum(a.norm(), b.norm()))


def _of_group(group: Any, mine: Any) -> list[Any]:
    """What all ranks of a process group have, which need not be those that measure together."""
    known = [None] * dist.get_world_size(group)
    dist.all_gather_object(known, mine, group=group)
    return known


def _holders(group: Any) -> str:
    which = joined([str(r) for r in dist.get_process_group_ranks(group)])
    return f"ranks {which}, which hold parts of one model (tensor parallel)"


def _parallel(network: nn.Module) -> Collection[Any]:
    """Groups of ranks over which weights are cut for one forward of all; those of FSDP have a forward each."""
    if any(base.__name__ == "FSDPModule" for module in network.modules() for base in type(module).__mro__):
        return ()
    every: list[Any] = list(network.parameters())
    cut = [(w.device_mesh, i) for w in every for i, p in enumerate(getattr(w, "placements", ())) if p.is_shard()]
    groups = [mesh.get_group(i) for mesh, i in cut]
    return {tuple(dist.get_process_group_ranks(group)): group for group in groups}.values()


def check_dealt(network: nn.Module, fingerprint: Fingerprint, data: Batches, label: str) -> None:
    """Raise where several ranks have the same samples, each of which would count several times; of some it is noted."""
    _check_same_inputs(network, fingerprint, label)
    data.left_out = left_over(data.loader)
    if world_size() == 1:
        return
    mine = mark_of_set(dealt_whole(parts_of(data.loader)))
    by_places, known = fingerprint.dealt_by_places(beside=(mine, *data.left_out))
    sets, data.left_out = [of for of, *_ in known], (sum(left for _, left, _ in known), sum(n for *_, n in known))
    if by_places and (None in sets or same_sets(sets)):  # equal samples are on several ranks by right
        return
    alike = [] if by_places else fingerprint.ranks_alike()
    if not alike or data.where in made_apart.get():
        beside = (None, None) if by_places else _order_and_set(fingerprint, data)
        data.on_several, known = fingerprint.on_several_ranks(beside=beside)
        _check_same_set(data, label, sets, by_places=by_places)
        _check_own_shares(data, label, bool(alike))
        data.suspect = _suspect(known)
        return
    ranks, n = " and ".join(map(str, alike[0])), fingerprint.streams[0].rows if fingerprint.streams else 0
    times = "twice" if len(alike[0]) == 2 else f"{len(alike[0])} times"
    several = f"got the same {n} on ranks {ranks}" if rank() in alike[0] else f"got the same on ranks {ranks}"
    deal = "DataLoader(dataset, sampler=layerlaw.data.UnpaddedSampler(dataset)), of tensors a TensorDataset(x, y)"
    cure = f"Deal them: {deal}. Ranks that hold parts of one model pass `ranks`, the group over which data are dealt"
    raise DataError(f"{label}: expected every sample on one rank, {several}, where each would count {times}. {cure}.")


def _check_same_set(data: Batches, label: str, sets: list[tuple[int, str] | None], *, by_places: bool) -> None:
    """Raise where the data set that samplers deal is not the same on all ranks, or is in another order."""
    if None in sets or same_sets(sets):
        return
    with Randomness(data.loader), users_device():
        got = unlike_sets(dealt_whole(parts_of(data.loader)), sets, suspect=data.on_several > 0)
    if got:
        n = f"{counted(data.on_several, 'sample')} would be counted several times, and others never"
        why = f"{n if data.on_several else 'Some would never be measured'}. The sampler deals places"
        raise DataError(f"{label}: expected the same data set on all {len(sets)} ranks, {got}. {why}. {SEEDED}.")
    if by_places and got is not None:
        data.on_several = 0  # the data have equal samples


def _check_own_shares(data: Batches, label: str, alike: bool) -> None:
    """Raise where `make` returned other data on each rank that are no shares, as samples are on several of them."""
    if data.where in made_apart.get() and (alike or data.on_several):
        which = (
            f"{counted(data.on_several, 'sample')} on several ranks" if data.on_several else "another order of the same"
        )
        expected = f"expected make to return the same data on all {world_size()} ranks, which the command deals"
        raise DataError(f"{label}: {expected}. make returned other data on each rank: got {which}. {SEEDED}.")


def _order_and_set(fingerprint: Fingerprint, data: Batches) -> tuple[Any, Any]:
    """By what ranks may have the same samples, whatever their inputs: marks of the order of labels and of the data set."""
    labels = fingerprint.streams[0] if fingerprint.streams else None
    if labels is None:
        return None, None
    mine, given = (labels.rows, labels.number), whole_state(data.source)
    if given is not None and not given[1]:
        given = (*given, mine)  # some read other samples on every rank without a word of it in their state
    mixed = mixed_order(torch.cat([one.cpu() for one in fingerprint.labels])[:LOOKED_AT])
    return mine if mixed else None, given


def _suspect(known: Sequence[tuple[Any, Any]]) -> str:
    """In words, that several ranks seem to have the same samples, whose inputs random augmentation made unlike."""
    for at, what in enumerate(("{} labels in the same order", "data set, and each of them all of its {} samples")):
        alike: dict[tuple[Any, ...], list[int]] = {}
        for r, one in enumerate(known):
            if (mark := one[at]) is not None:
                alike.setdefault(mark, []).append(r)
        for (n, *_), ranks in alike.items():
            if len(ranks) > 1:
                times = "twice" if len(ranks) == 2 else f"{len(ranks)} times"
                have = f"ranks {' and '.join(map(str, ranks))} have the same {what.format(n)}, though other inputs"
                return f"{have}, as random augmentation makes them: every sample may be counted {times}"
    return ""


def deals_alone(dealer: Dealer) -> bool:
    """Whether each rank deals its samples into groups by itself."""
    return world_size() > 1 and dealer.groups > 0 and not dealer.shared


def dropped_note(where: str, left: int, of: int) -> str:
    """A note where drop_last leaves out samples; else empty."""
    cure = "Make the loader without it, and all are measured"
    return f"{where}: drop_last leaves out {left} of {of} samples. {cure}." if left else ""


def unequal_notes(*all_data: Batches | None) -> list[str]:
    """A note where samplers deal to other ranks than these, repeat samples or leave some out to be fair to all ranks, or
    shares overlap; rank 0 warns."""
    notes = []
    for data in filter(None, all_data):
        n = data.on_several
        found = f"{counted(n, 'sample')} {'is' if n == 1 else 'are'} on several ranks, with the same inputs and labels"
        found = f"{found}. {AGAIN}" if n else data.suspect
        if data.unequal and n <= SURELY * max(1, data.repeated):  # what the sampler repeats is on several ranks
            found = ""
        if found := ". ".join(filter(None, (data.unequal, found))):
            ours, theirs = "layerlaw.data.UnpaddedSampler(dataset)", "DataLoaderConfiguration(even_batches=False)"
            theirs = f"{'a loader without drop_last and ' * ('leaves out' in data.unequal)}{theirs} of accelerate"
            cure = theirs if "BatchSamplerShard" in data.unequal else ours
            found = f"{found}. With {cure} every sample is dealt once"
            found += ", where all ranks have the same data set (seed random_split and shuffle)" * (n > 0)
        found, dropped = dealt_to_others(parts_of(data.loader)) or found, dropped_note(data.where, *data.left_out)
        for note in filter(None, (f"{data.where}: {found}." if found else "", dropped)):
            notes.append(note)
            if rank() == 0 and (note != dropped or world_size() > 1):
                warn(f"layerlaw: {note}")
    return notes
