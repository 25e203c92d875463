"""A measurement in shards: merged, it is the record of one run."""

import itertools
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from capture_networks import FNN, InPlaceResNet, clouds, seeded
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import layerlaw as ll
from disk import full_disk
from layerlaw import provenance
from layerlaw.errors import DataError, InputError, LabelError, MemoryBudgetError, PassError
from layerlaw.probing import merge, probe_shard, slices
from layerlaw.probing.job_array import ShardDone
from layerlaw.probing.shard_files import ShardFolder
from layerlaw.stats import centers
from layerlaw.stats.spectrum import right_singular

pytest.importorskip("safetensors")

X, Y = clouds(300, 12)
X = X.double()
TARGETS = torch.stack([X[:, 0] * X[:, 1], 100 * X[:, 2].sin() + 1990], 1)
SEVERAL = torch.stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 0, X[:, 3] > 1], 1)
IMAGES, CLASSES = clouds(120, 3, 8, 8)
HOW: dict[str, Any] = {"batch_size": 40, "progress": False}


def network(outputs: int = 3) -> nn.Module:
    return seeded(FNN, (12, 20, 16, 16, outputs)).double()


def all_shards(folder: Path, model: nn.Module, data: Any, n: int, **how: Any) -> ShardDone:
    """One round of every shard."""
    done = [probe_shard(model, data, shard=(i, n), state=folder, **how) for i in range(1, n + 1)]
    return done[-1]


def merged(folder: Path, model: nn.Module, data: Any, n: int, **how: Any) -> ll.Record:
    """All rounds of every shard."""
    while True:
        done = all_shards(folder, model, data, n, **how)
        if done.round == done.rounds and not done.missing:
            return merge(folder)


def command_of(folder: Path, shard: int) -> str:
    """What runs one of three shards."""
    return f"  probe_shard(model, data, shard=({shard}, 3), state={str(folder)!r})"


def apart(a: Any, b: Any) -> float:
    """The largest relative difference of the numbers in plain data that are otherwise equal."""
    if isinstance(a, dict):
        assert list(a) == list(b)
        return max((apart(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        return max((apart(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    if isinstance(a, float) and isinstance(b, float) and math.isfinite(a):
        return abs(a - b) / max(1e-3, abs(a))  # coordinates in pictures may be 0
    assert a == b
    return 0.0


def same(one: ll.Record, other: ll.Record, within: float = 1e-12) -> None:
    """Everything but when, how long and in how many forwards."""
    a, b = (record.to_dict() for record in (one, other))
    assert b["provenance"].pop("shards") >= 1
    for record in (a, b):
        del record["settings"]["one_forward"]
        for name in ("created", "seconds"):
            del record["provenance"][name]
    assert apart(a, b) <= within


@pytest.mark.parametrize("n", [1, 2, 5])
def test_merged_shards_are_one_run_with_standard_errors_and_test_data(tmp_path: Path, n: int) -> None:
    how = HOW | {"test": (X[:100], Y[:100]), "uncertainty": True}
    alone = ll.probe(network(), (X, Y), **how)
    assert {"separation_log_se", "separation_permuted", "test_separation_log_se", "test_nc1", "nc4"} <= set(
        alone.columns
    )
    same(alone, merged(tmp_path, network(), (X, Y), n, **how))


@pytest.mark.parametrize("labels", [TARGETS, SEVERAL], ids=["numbers", "several labels"])
@pytest.mark.parametrize("loaded", [False, True])
def test_shards_of_targets_are_one_run(tmp_path: Path, labels: torch.Tensor, loaded: bool) -> None:
    model, how = network(labels.shape[1]), {"uncertainty": True, "progress": False}
    splits = [TensorDataset(X, labels), TensorDataset(X[:90], labels[:90])]
    data, test = [DataLoader(split, 40) for split in splits] if loaded else [split.tensors for split in splits]
    if not loaded:
        how["batch_size"] = 40
    alone = ll.probe(model, data, test=test, **how)
    assert {"target_separation_log_se", "target_separation_permuted", "residual_held_out"} <= set(alone.columns)
    same(alone, merged(tmp_path, model, data, 3, test=test, **how), within=1e-10)


@pytest.mark.parametrize("memory", [2.0, 300 * 8 * 30 / 2**30], ids=["kept by one run", "streamed by one run"])
def test_a_loader_is_dealt_as_in_one_run_after_a_round_that_reads_its_labels(tmp_path: Path, memory: float) -> None:
    loader, how = DataLoader(TensorDataset(X, Y), 40), {"uncertainty": True, "progress": False, "memory_gib": memory}
    alone = ll.probe(network(), loader, test=loader, **how)
    assert alone.settings["one_forward"] == (memory == 2.0)
    assert all_shards(tmp_path, network(), loader, 3, test=loader, **how).rounds == 3
    same(alone, merged(tmp_path, network(), loader, 3, test=loader, **how))


def test_a_loader_without_standard_errors_takes_two_rounds_and_loads_its_share_alone(tmp_path: Path) -> None:
    loaded = []

    class Seen(TensorDataset):
        def __getitem__(self, i: int) -> Any:
            loaded.append(i)
            return super().__getitem__(i)

    loader, how = DataLoader(Seen(X, Y), 40), {"uncertainty": False, "progress": False}
    done = probe_shard(network(), loader, shard=(4, 4), state=tmp_path, **how)
    assert done.rounds == 2
    assert set(loaded) == {*range(40), *range(240, 300)}  # the first batch shows the sites
    same(ll.probe(network(), loader, **how), merged(tmp_path, network(), loader, 4, **how))


def test_batches_of_any_sizes_and_shards_without_any_are_one_run(tmp_path: Path) -> None:
    cuts = [0, 7, 8, 60, 61, 200, 300]
    data = [(X[a:b], Y[a:b]) for a, b in itertools.pairwise(cuts)]
    how = {"uncertainty": False, "progress": False}
    same(ll.probe(network(), data, **how), merged(tmp_path, network(), data, 9, **how))


def test_a_shard_may_have_no_sample_of_the_measured_classes(tmp_path: Path) -> None:
    order = Y.argsort(stable=True)
    how = HOW | {"classes": [1, 2], "uncertainty": True, "test": (X[order], Y[order])}
    alone = ll.probe(network(), (X[order], Y[order]), **how)
    same(alone, merged(tmp_path, network(), (X[order], Y[order]), 6, **how))


def test_batch_statistics_groups_of_sites_and_the_least_of_a_linear_map_are_those_of_one_run(tmp_path: Path) -> None:
    model = seeded(InPlaceResNet).double()
    order = CLASSES.argsort(stable=True)  # is mixed, so that BatchNorm sees all classes
    data = (IMAGES[order].double(), CLASSES[order])
    how = {"batchnorm": "batch", "batch_size": 20, "sites": ["layers", "logits"], "progress": False}
    how |= {"reduce": "mean", "linear": True, "uncertainty": True, "test": data, "memory_gib": 40_000 / 2**30}
    alone = ll.probe(model, data, **how)
    assert "mixed" in alone.settings["order"]
    assert not alone.settings["one_forward"]
    assert "separation_linear" in alone.columns
    done = all_shards(tmp_path, model, data, 2, **how)
    assert len(list(tmp_path.glob("sums-1-of-2.data-*"))) > 1  # groups of sites
    assert done.rounds == 2
    same(alone, merged(tmp_path, model, data, 2, **how))


def test_of_float32_shards_are_a_streamed_run_exactly_and_a_kept_one_but_for_rounding(tmp_path: Path) -> None:
    model = seeded(InPlaceResNet)
    how = {"sites": ["layers", "logits"], "progress": False, "batch_size": 20, "uncertainty": True}
    little = 40 * 3 * 16 * 600 / 2**30
    streamed = ll.probe(model, (IMAGES, CLASSES), **how, memory_gib=little)
    assert not streamed.settings["one_forward"]
    same(streamed, merged(tmp_path / "a", model, (IMAGES, CLASSES), 3, **how, memory_gib=little))
    kept, shards = ll.probe(model, (IMAGES, CLASSES), **how), merged(tmp_path / "b", model, (IMAGES, CLASSES), 3, **how)
    assert kept.settings["one_forward"]
    assert shards.column("separation") == pytest.approx(kept.column("separation"), rel=1e-6)
    assert shards.column("separation_permuted") == pytest.approx(kept.column("separation_permuted"), rel=1e-5)


def test_what_is_done_is_not_measured_again_and_every_answer_says_what_comes_next(tmp_path: Path) -> None:
    first = probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, **HOW)
    assert (first.round, first.rounds, first.measured, first.missing) == (1, 2, True, (2,))
    assert "shard=(2, 2)" in str(first)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, **HOW)
    assert (again.round, again.measured, again.missing) == (1, False, (2,))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written
    assert "next: the same commands once more" in str(
        probe_shard(network(), (X, Y), shard=(2, 2), state=tmp_path, **HOW)
    )
    all_shards(tmp_path, network(), (X, Y), 2, **HOW)
    last = probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, **HOW)
    assert (last.round, last.measured, last.missing) == (2, False, ())
    assert f"merge('{tmp_path}')" in str(last)


def test_the_network_is_left_as_it_was_and_a_folder_remembers_the_name_of_the_data(tmp_path: Path) -> None:
    model = network().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    about = {"name": "mine", "provenance": {"command": "a command"}}
    record = merged(tmp_path, model, (X, Y), 2, data_name="clouds", about=about, **HOW)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert (record.name, record.settings["data_name"], record.provenance["command"]) == ("mine", "clouds", "a command")


def test_pictures_of_wide_features_show_as_many_samples_as_those_of_one_run(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), seeded(nn.Linear, 30_000, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = clouds(120, 30_000)
    order = y.argsort(stable=True)
    data, how = TensorDataset(x[order], y[order]), {"sites": ["input", "1", "3"], "progress": False, "batch_size": 40}
    alone = ll.probe(model, data.tensors, uncertainty=False, **how)
    assert len(alone.sites[0].plane) < len(alone.sites[1].plane) == len(alone.plane_labels)
    known = merged(tmp_path / "known", model, data.tensors, 3, uncertainty=False, **how)
    assert [site.plane for site in known.sites] == [site.plane for site in alone.sites]
    loaded = merged(tmp_path / "loaded", model, data, 3, uncertainty=False, **how)  # labels are not known before
    assert [site.plane for site in loaded.sites] == [site.plane for site in alone.sites]


def test_what_files_cannot_hold_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="about: expected a dictionary of text, numbers and lists"):
        probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, about={"name": object()}, **HOW)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), (1.5, 2), "1/2", (1,), None, (True, 2), (1, 10**9)])
def test_a_shard_is_a_number_of_so_many(tmp_path: Path, shard: Any) -> None:
    with pytest.raises(InputError, match=r"shard: expected \(i, n\), the i-th of n shards with i from 1 to n, got"):
        probe_shard(network(), (X, Y), shard=shard, state=tmp_path, **HOW)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"null": True}, "null: cannot be used with shards. Leave it out, or measure in one job"),
        ({"parts": True}, "parts: cannot be used with shards"),
        ({"batchnorm": "whole"}, "expected one job, which sees all samples"),
    ],
)
def test_what_needs_one_job_is_said(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, **HOW | how)


def test_data_of_unknown_length_or_in_another_order_each_time_are_refused(tmp_path: Path) -> None:
    class Stream:
        def __iter__(self) -> Any:
            return iter([(X, Y)])

    with pytest.raises(InputError, match="number of batches is known beforehand"):
        probe_shard(network(), Stream(), shard=(1, 2), state=tmp_path, progress=False)
    with pytest.raises(InputError, match=r"number of samples is known beforehand.*uncertainty=False"):
        probe_shard(network(), [(X, Y)], shard=(1, 2), state=tmp_path, progress=False)
    one_of_three = DistributedSampler(TensorDataset(X, Y), num_replicas=3, rank=0)
    dealt = DataLoader(TensorDataset(X, Y), 40, sampler=one_of_three)
    words = (
        "expected a loader of all samples, got one with a DistributedSampler, so that this job sees only 1/3 of them"
    )
    with pytest.raises(DataError, match=f"^data: {words}"):
        probe_shard(network(), dealt, shard=(1, 2), state=tmp_path, progress=False)
    with pytest.raises(DataError, match=f"^test: {words}"):
        probe_shard(network(), (X, Y), test=dealt, shard=(1, 2), state=tmp_path, progress=False)
    shuffled = DataLoader(TensorDataset(X, Y), 40, shuffle=True)
    with pytest.raises(InputError, match=r"got one that shuffles\. Pass shuffle=False"):
        probe_shard(network(), shuffled, shard=(1, 2), state=tmp_path, progress=False)


def changed_weights() -> nn.Module:
    model = network()
    with torch.no_grad():
        next(iter(model.parameters()))[0, 0] += 1
    return model


def changed_module() -> nn.Module:
    model = network()
    model.beside = nn.Tanh()  # nothing that has parameters
    return model


OTHER_WEIGHTS = (
    r"shard 1 of 2 measured the same architecture with other weights \(FNN, 919 parameters, sha256 [0-9a-f]{12} there, "
    r"[0-9a-f]{12} here\)\. Load the same weights in every job"
)


@pytest.mark.parametrize(
    ("model", "data", "how", "message"),
    [
        (changed_weights(), (X, Y), {}, OTHER_WEIGHTS),
        (seeded(FNN, (12, 20, 16, 3)).double(), (X, Y), {}, r"measured another architecture \(FNN, 919 parameters"),
        (
            changed_module(),
            (X, Y),
            {},
            r"measured another model \(the same weights, but other modules as they are print",
        ),
        (
            network(),
            (X.roll(1, 0), Y),
            {},
            r"shard 1 of 2 measured other data \(other inputs or labels\)\. If these tensors are drawn or shuffled at "
            "random, use the same seed in every job; another measurement needs a folder of its own",
        ),
        (network(), (X, Y.roll(1, 0)), {}, "shard 1 of 2 measured other data"),
        (
            network().float(),
            (X.float(), Y),
            {},
            r"inputs tensors of float64 \(12,\) there, tensors of float32 \(12,\) here",
        ),
        (
            network(),
            (X[:200], Y[:200]),
            {},
            r"other data \(batches 8 there, 5 here; samples 300 there, 200 here; other in",
        ),
        (network(), (X, Y), {"seed": 1}, r"measured with other options \(seed 0 there, 1 here\)"),
        (network(), (X, Y), {"uncertainty": False}, "measured with other options"),
        (network(), (X, Y), {"sites": ["layers.1", "layers.2"]}, "measured other sites"),
        (network(), (X, Y), {"classes": [0, 2]}, "measured other classes"),
        (network(), (X, Y), {"test": (X, Y)}, r"measured other data sets \(data there, data, test here\)"),
        (network(), (X, Y), {"batch_size": 20}, r"measured data in batches of another size \(40 there, 20 here\)"),
    ],
)
def test_another_measurement_needs_a_folder_of_its_own(
    tmp_path: Path, model: nn.Module, data: Any, how: dict[str, Any], message: str
) -> None:
    probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, **HOW)
    with pytest.raises(DataError, match=message):
        probe_shard(model, data, shard=(2, 2), state=tmp_path, **HOW | how)


def test_other_weights_are_noticed_of_a_model_too_large_for_the_checksum_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "DIGEST_BYTES", 100)
    probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path / "other", **HOW)
    with pytest.raises(DataError, match=r"shard 1 of 2 measured the same architecture with other weights \(FNN, "):
        probe_shard(changed_weights(), (X, Y), shard=(2, 2), state=tmp_path / "other", **HOW)
    alone = ll.probe(network(), (X, Y), **HOW)
    assert alone.provenance["parameters_sha256"] is None
    same(alone, merged(tmp_path, network(), (X, Y), 2, **HOW))


def test_weights_that_cannot_be_read_are_refused_in_shards(tmp_path: Path) -> None:
    """Others in another shard would not be noticed."""
    model = network()
    model.register_buffer("offloaded", torch.empty(3, device="meta"))
    words = (
        r"model: expected weights that can be read, .* got offloaded, sharded or quantized ones \(offloaded\)\. Load"
    )
    with pytest.raises(InputError, match=words):
        probe_shard(model, (X, Y), shard=(1, 2), state=tmp_path / "array", **HOW)
    assert not (tmp_path / "array").exists()


@pytest.mark.parametrize("labels", [Y, TARGETS], ids=["classes", "targets"])
def test_shards_may_find_the_other_signs_of_directions_as_another_device_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: torch.Tensor
) -> None:
    model, how = network(2 if labels is TARGETS else 3), HOW | {"uncertainty": True}
    alone = ll.probe(model, (X, labels), **how)
    all_shards(tmp_path, model, (X, labels), 2, **how)
    for shard in (1, 2):
        if shard == 2:  # as on a GPU, but turned round in any case
            monkeypatch.setattr(centers, "right_singular", turned_round)
        probe_shard(model, (X, labels), shard=(shard, 2), state=tmp_path, **how)
    monkeypatch.undo()
    same(alone, merge(tmp_path), within=1e-10)


def turned_round(A: torch.Tensor, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    s, V = right_singular(A, **how)
    return s, -V


def test_a_shard_that_reads_no_labels_is_refused_where_others_have_read_theirs(tmp_path: Path) -> None:
    data, a, b = DataLoader(TensorDataset(X, Y), 40), tmp_path / "a", tmp_path / "b"
    probe_shard(network(), data, shard=(1, 2), state=a, uncertainty=True, progress=False)
    other = (
        r"labels-1-of-2\.safetensors: shard 1 of 2 measured with other options \(uncertainty True there, False here\)"
    )
    with pytest.raises(DataError, match=rf"{other}\. .*; another measurement needs a folder of its own\.$"):
        probe_shard(network(), data, shard=(2, 2), state=a, uncertainty=False, progress=False)
    with pytest.raises(DataError, match=r"labels-1-of-2\.safetensors: shard 1 of 2 measured other data \("):
        probe_shard(network(), (X, Y), shard=(2, 2), state=a, **HOW, uncertainty=True)
    all_shards(b, network(), data, 2, uncertainty=False, progress=False)
    for file in b.iterdir():  # as two that began at the same time
        shutil.copy(file, a)
    with pytest.raises(DataError) as error:
        merge(a)
    assert str(error.value).startswith(
        f"{a / 'sums-1-of-2.safetensors'}: shard 1 of 2 measured with other options (unc"
    )
    assert "'Here' is labels-1-of-2.safetensors: delete the files of one of the two meas" in str(error.value)
    for shard, uncertainty in ((1, True), (2, False)):  # neither goes on
        with pytest.raises(DataError, match="measured with other options"):
            probe_shard(network(), data, shard=(shard, 2), state=a, uncertainty=uncertainty, progress=False)
    (a / "labels-1-of-2.safetensors").unlink()
    same(
        ll.probe(network(), data, uncertainty=False, progress=False),
        merged(a, network(), data, 2, uncertainty=False, progress=False),
    )


def test_samples_that_drop_last_leaves_out_are_noted_as_in_one_run(tmp_path: Path) -> None:
    data, test = (DataLoader(TensorDataset(X[:n], Y[:n]), 40, drop_last=True) for n in (300, 90))
    how = {"test": test, "uncertainty": True, "progress": False}
    alone, record = ll.probe(network(), data, **how), merged(tmp_path, network(), data, 3, **how)
    same(alone, record)
    assert sum("drop_last leaves out" in note for note in record.notes) == 2


def test_many_forwards_of_one_round_are_told_in_the_rounds_that_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MANY", 3)
    data, model = TensorDataset(IMAGES, CLASSES), seeded(InPlaceResNet)
    how = {"sites": ["layers", "logits"], "memory_gib": 40_000 / 2**30, "uncertainty": True, "batch_size": 20}
    how |= {"progress": False, "test": data, "reduce": "mean"}
    probe_shard(model, data, shard=(1, 1), state=tmp_path, **how)  # labels
    for stage in ("sums", "scatters"):
        with pytest.warns(UserWarning, match="forwards over this shard") as told:
            probe_shard(model, data, shard=(1, 1), state=tmp_path, **how)
        words = r"layerlaw: (\d+) forwards over this shard's batches of the data and the test data in this round are "
        words += (
            r"needed within memory_gib=\S+; memory_gib=\S+ takes (\d+) \(the same in all shards, in a new folder\)\."
        )
        (found,) = [match for one in told if (match := re.fullmatch(words, str(one.message)))]
        assert int(found[1]) == len(list(tmp_path.glob(f"{stage}-1-of-1.*-*"))) > 3
    assert not probe_shard(model, data, shard=(1, 1), state=tmp_path, **how).measured  # without a warning


def test_other_test_data_are_noticed(tmp_path: Path) -> None:
    probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, test=(X, Y), **HOW)
    with pytest.raises(DataError, match="shard 1 of 2 measured other test data"):
        probe_shard(network(), (X, Y), shard=(2, 2), state=tmp_path, test=(2 * X, Y), **HOW)


def test_data_that_change_between_the_rounds_are_noticed(tmp_path: Path) -> None:
    class Changing(TensorDataset):
        times = 1.0

        def __getitem__(self, i: int) -> Any:
            x, y = super().__getitem__(i)
            return (x if i < 40 else x * self.times), y

    data = Changing(X, Y)
    how = {"batch_size": 40, "progress": False}
    for _ in range(2):  # labels, sums
        all_shards(tmp_path, network(), data, 2, **how)
    data.times = 1.5
    changed = (
        r"data, shard 1/2: the samples or their order changed since an earlier round\. Random augmentation .* folder"
    )
    with pytest.raises(PassError, match=changed):
        all_shards(tmp_path, network(), data, 2, **how)
    plain = how | {"uncertainty": False}
    data.times = 1.0
    all_shards(tmp_path / "plain", network(), data, 2, **plain)
    data.times = 1.5
    with pytest.raises(PassError, match=changed):
        all_shards(tmp_path / "plain", network(), data, 2, **plain)


class Relabeled(TensorDataset):
    """Gives samples behind the first batch other labels from some time on."""

    now = False

    def __init__(self, later: torch.Tensor, labels: torch.Tensor) -> None:
        super().__init__(X, labels)
        self.later = later

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x, (self.later[i] if self.now and i >= 40 else y)


@pytest.mark.parametrize(
    ("labels", "later", "classes"),
    [
        (Y, (Y + 1) % 3, None),
        (Y, (Y + 1) % 3, [0, 1]),
        (Y, torch.zeros_like(Y), [0, 1]),  # more samples of measured classes than were counted
        (Y, torch.full_like(Y, 2), [0, 1]),  # none
        (TARGETS, TARGETS * 2, None),
    ],
)
def test_labels_that_change_behind_the_round_that_reads_them_are_noticed(
    tmp_path: Path, labels: torch.Tensor, later: torch.Tensor, classes: Any
) -> None:
    """Groups and permuted labels would be those of the old ones, sums those of the new ones."""
    model, data = network(2 if classes or labels is TARGETS else 3), Relabeled(later, labels)
    how = HOW | {"classes": classes, "scores": None if classes else "auto"}
    changed = r"^data, shard {}/3: the samples or their order changed since an earlier round\. .* in a new folder\.$"
    for rounds, more in ((1, {"uncertainty": True}), (2, {"uncertainty": True}), (1, {"uncertainty": False})):
        if labels is TARGETS and more == {"uncertainty": False}:
            continue  # takes three rounds, too
        folder, data.now = tmp_path / f"{rounds}{more}", False
        for _ in range(rounds):
            assert all_shards(folder, model, data, 3, **how, **more).rounds == 2 + more["uncertainty"]
        data.now = True
        for shard in (1, 3):
            with pytest.raises(PassError, match=changed.format(shard)):
                probe_shard(model, data, shard=(shard, 3), state=folder, **how, **more)
        assert not list(folder.glob(f"{'scatters' if rounds + (not more['uncertainty']) == 2 else 'sums'}-*"))


@pytest.mark.parametrize("labels", [Y, TARGETS], ids=["classes", "targets"])
def test_features_that_change_between_the_rounds_are_told_with_what_helps_in_shards(
    tmp_path: Path, labels: torch.Tensor
) -> None:
    class Noisy(nn.Module):
        by = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * Noisy.by

    model = nn.Sequential(network().layers[0], Noisy(), nn.Linear(20, 3 if labels is Y else 2).double())
    all_shards(tmp_path, model, (X, labels), 2, uncertainty=False, **HOW)
    Noisy.by = 1.5
    all_shards(tmp_path, model, (X, labels), 2, uncertainty=False, **HOW)
    with pytest.raises(PassError, match="the data changed between the two passes") as error:
        merge(tmp_path)
    assert "memory_gib" not in str(error.value)
    assert str(error.value).startswith(f"{tmp_path}: ")
    assert "; make the data deterministic. Measure all shards again in a new folder." in str(error.value)


def test_random_augmentation_is_noticed_though_every_job_is_seeded_alike(tmp_path: Path) -> None:
    data = DataLoader(Augmented(X, Y), batch_size=40)
    with pytest.raises(
        DataError, match=r"data: expected samples that are the same in every job, .*Random augmentation do"
    ):
        probe_shard(network(), data, shard=(1, 2), state=tmp_path, progress=False)
    with pytest.raises(DataError, match=r"test: expected samples that are the same in every job, got some that change"):
        probe_shard(network(), (X, Y), test=data, shard=(1, 2), state=tmp_path, progress=False, uncertainty=False)


class Augmented(TensorDataset):
    """Every sample with noise that depends on the generator of torch."""

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x + 0.1 * torch.randn(12), y


def test_random_augmentation_is_named_where_shards_find_other_data(tmp_path: Path) -> None:
    how = {"batch_size": 40, "progress": False}
    probe_shard(network(), TensorDataset(X, Y), shard=(1, 2), state=tmp_path, **how)
    with pytest.raises(
        DataError,
        match=r"measured other data .*Random augmentation does this, and random_split or shuffle without a seed: make the ",
    ):
        probe_shard(network(), TensorDataset(X + 1, Y), shard=(2, 2), state=tmp_path, **how)
    with pytest.raises(DataError, match="another measurement needs a folder of its own"):
        probe_shard(changed_weights(), TensorDataset(X, Y), shard=(2, 2), state=tmp_path, **how)


def test_commands_name_the_folder_where_it_is_now(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path / "before", **HOW)
    moved = (tmp_path / "before").rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"round 1 of 2 .*: still to be run:") as error:
        merge(moved)
    assert f"  probe_shard(model, data, shard=(2, 2), state='{moved}')" in str(error.value)
    assert str(tmp_path / "before") not in str(error.value)


def test_a_shard_that_is_refused_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    shuffled = DataLoader(TensorDataset(X, Y), 40, shuffle=True)
    (tmp_path / "there").mkdir()
    for folder in ("new/inside", "there"):
        with pytest.raises(InputError, match="got one that shuffles"):
            probe_shard(network(), shuffled, shard=(1, 2), state=tmp_path / folder, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_that_another_shard_took_away_is_made_again(tmp_path: Path) -> None:
    class Removing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shutil.rmtree(tmp_path / "array", ignore_errors=True)
            return x

    model = nn.Sequential(Removing(), network())
    assert probe_shard(model, (X, Y), shard=(1, 2), state=tmp_path / "array", **HOW).measured


def test_shards_of_another_number_are_noticed(tmp_path: Path) -> None:
    probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, **HOW)
    with pytest.raises(DataError, match="expected shards of 3, got files of shards of 2"):
        probe_shard(network(), (X, Y), shard=(1, 3), state=tmp_path, **HOW)
    (tmp_path / "sums-1-of-4.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"expected the folder of one job array .*, got files of shards of 2, 4"):
        merge(tmp_path)


def test_merging_too_early_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got no file of a shard"):
        merge(tmp_path)
    with pytest.raises(DataError, match="expected the folder of a job array, got nothing there"):
        merge(tmp_path / "missing")
    about = {"command": "layerlaw probe net.py:make --shard {i}/{n} --state there"}
    probe_shard(network(), (X, Y), shard=(2, 3), state=tmp_path, about=about, **HOW)
    with pytest.raises(DataError) as error:
        merge(tmp_path)
    first = "shards 1, 3 of 3 have not done round 1 of 2 (class sums): still to be run:"
    commands = [f"  layerlaw probe net.py:make --shard {i}/3 --state there" for i in (1, 2, 3)]
    assert str(error.value).endswith(
        "\n".join([first, commands[0], commands[2], "Then run all 3 once more, for round 2."])
    )
    for i in (1, 3):
        probe_shard(network(), (X, Y), shard=(i, 3), state=tmp_path, about=about, **HOW)
    with pytest.raises(DataError) as error:
        merge(tmp_path)
    assert str(error.value).endswith(
        "\n".join(["have not done round 2 of 2 (scatters around the centers): still to be run:", *commands])
    )


def two_rounds(folder: Path) -> Path:
    all_shards(folder, network(), (X, Y), 2, **HOW)
    all_shards(folder, network(), (X, Y), 2, **HOW)
    return folder


@pytest.mark.parametrize("name", ["sums-2-of-2", "sums-2-of-2.data-0", "scatters-1-of-2", "scatters-1-of-2.data-0"])
def test_a_file_that_is_cut_short_changed_or_gone_is_answered_and_its_shard_can_be_run_again(
    tmp_path: Path, name: str
) -> None:
    alone, file = ll.probe(network(), (X, Y), **HOW), two_rounds(tmp_path) / f"{name}.safetensors"
    content = file.read_bytes()
    for damage, message in [
        (content[: len(content) // 2], "cut short or damaged"),
        (content[:5], "cut short or damaged"),
        (b"", r"cut short or damaged \(expected a safetensors file, got an empty one\)"),
        (content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], "its checksum differs"),
        (content.replace(b"sums", b"suns", 1).replace(b"scatters", b"scattert", 1), "its checksum differs"),
    ]:
        file.write_bytes(damage)
        with pytest.raises(DataError, match=message) as error:
            merge(tmp_path)
        assert str(file) in str(error.value)
        assert "Delete it and run this shard again:\n  probe_shard(" in str(error.value)
    file.unlink()
    with pytest.raises(DataError, match=r"Run this shard again|has not done round"):
        merge(tmp_path)
    all_shards(tmp_path, network(), (X, Y), 2, **HOW)
    all_shards(tmp_path, network(), (X, Y), 2, **HOW)
    same(alone, merge(tmp_path))


@pytest.mark.parametrize("loaded", [False, True])
def test_a_deleted_file_of_an_earlier_round_needs_no_later_one(tmp_path: Path, loaded: bool) -> None:
    data = DataLoader(TensorDataset(X, Y), 40) if loaded else (X, Y)
    how = {"progress": False, "uncertainty": True} | ({} if loaded else {"batch_size": 40})
    alone = merged(tmp_path, network(), data, 3, **how)
    rounds, later = (3, "round 3 is there") if loaded else (2, "round 2 is there")
    for deleted in ("sums-2-of-3", "sums-2-of-3.data-0"):
        (tmp_path / f"{deleted}.safetensors").unlink()
        with pytest.raises(DataError) as error:
            merge(tmp_path)
        assert "shard=(2, 3)" in str(error.value)
        assert "once more" not in str(error.value)
        assert (f"Then merge: {later}." in str(error.value)) == (deleted == "sums-2-of-3")
        other = probe_shard(network(), data, shard=(1, 3), state=tmp_path, **how)
        assert not other.measured
        assert "shard=(2, 3)" in str(other)
        assert f"then: merge('{tmp_path}')" in str(other)
        done = probe_shard(network(), data, shard=(2, 3), state=tmp_path, **how)
        assert (done.measured, done.round, done.rounds) == (True, rounds - 1, rounds)
        assert str(done).endswith(f"next: merge('{tmp_path}')")
        assert apart(alone.column("separation"), merge(tmp_path).column("separation")) == 0
    if loaded:
        (tmp_path / "labels-2-of-3.safetensors").unlink()
        for i in (1, 2):
            done = probe_shard(network(), data, shard=(i, 3), state=tmp_path, **how)
            assert not done.measured
            assert str(done).endswith(f"next: merge('{tmp_path}')")
        assert merge(tmp_path).columns == alone.columns


@pytest.mark.parametrize("loaded", [False, True])
def test_a_shard_whose_files_are_gone_needs_its_own_rounds_alone(tmp_path: Path, loaded: bool) -> None:
    data = DataLoader(TensorDataset(X, Y), 40) if loaded else (X, Y)
    how = {"progress": False, "uncertainty": True} | ({} if loaded else {"batch_size": 40})
    alone = merged(tmp_path, network(), data, 3, **how)
    for file in tmp_path.glob("*-2-of-3*.safetensors"):
        file.unlink()
    for number in range(1, 4 if loaded else 3):
        rounds, last = (3, number == 3) if loaded else (2, number == 2)
        with pytest.raises(DataError, match=rf"shard 2 of 3 has not done round {number} of {rounds} \(") as error:
            merge(tmp_path)
        commands, then = (
            str(error.value).split("still to be run:\n")[1],
            f"Then run shard 2 once more, for round {number + 1}.",
        )
        assert commands == f"{command_of(tmp_path, 2)}{'' if last else chr(10) + then}"
        done = probe_shard(network(), data, shard=(2, 3), state=tmp_path, **how)
        assert (done.measured, done.round) == (True, number)
        _, *told = str(done).splitlines()
        alone_next = [f"next: round {number + 1} of shard 2 alone:", command_of(tmp_path, 2)]
        assert told == ([f"next: merge('{tmp_path}')"] if last else alone_next)
    assert apart(alone.column("separation"), merge(tmp_path).column("separation")) == 0


def test_scatters_around_sums_that_are_gone_are_measured_again_with_those_of_their_shard(tmp_path: Path) -> None:
    plain = HOW | {"uncertainty": False}
    merged(tmp_path, network(), (X, Y), 3, **plain)
    for shard in (1, 3):  # as if they had been measured around other sums
        folder = ShardFolder(tmp_path, 3, "")
        tensors, facts = folder.read("scatters", shard)
        del facts["sha256"]
        folder.write("scatters", shard, tensors, facts | {"around": "others"})
    for file in tmp_path.glob("*-2-of-3*.safetensors"):
        file.unlink()
    done = probe_shard(network(), (X, Y), shard=(2, 3), state=tmp_path, **plain)
    assert "next: the same commands once more, of all shards (round 2)" in str(done)


@pytest.mark.parametrize("name", ["sums-2-of-2.data-0", "scatters-2-of-2", "scatters-2-of-2.data-0"])
def test_a_shard_that_is_done_names_the_damaged_file_of_another(tmp_path: Path, name: str) -> None:
    file = two_rounds(tmp_path) / f"{name}.safetensors"
    content = file.read_bytes()
    for damage in (content[:99], content[:-3] + b"\1\2\3"):
        file.write_bytes(damage)
        done = probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, **HOW)
        assert (done.round, done.measured, done.missing) == (2, False, ())
        _, told, command, then = str(done).splitlines()
        assert told.startswith(f"next: {file}: expected the state of a shard")
        assert told.endswith("Delete it and run this shard again:")
        assert "shard=(2, 2)" in command
        assert then == f"then: merge('{tmp_path}')"
    file.unlink()
    while not (done := probe_shard(network(), (X, Y), shard=(2, 2), state=tmp_path, **HOW)).measured:
        pass
    assert str(done).endswith(f"next: merge('{tmp_path}')")
    assert merge(tmp_path).counts


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_shard_whose_statistics_are_damaged_is_not_done(tmp_path: Path, rounds: int) -> None:
    """It was told to be, and only others stumbled over the file."""
    for _ in range(rounds):
        probe_shard(network(), (X, Y), shard=(1, 1 if rounds == 2 else 2), state=tmp_path, **HOW)
    (file,) = tmp_path.glob(f"{'sums' if rounds == 1 else 'scatters'}-1-of-*.data-0.safetensors")
    content = file.read_bytes()
    for damage, message in ((content[:-3] + b"\1\2\3", "its checksum differs"), (content[:99], "cut short or damaged")):
        file.write_bytes(damage)
        with pytest.raises(DataError, match=message) as error:
            probe_shard(network(), (X, Y), shard=(1, 1 if rounds == 2 else 2), state=tmp_path, **HOW)
        assert f"{file}: " in str(error.value)
        assert "Delete it and run this shard again:\n  probe_shard(" in str(error.value)
    file.unlink()
    assert probe_shard(network(), (X, Y), shard=(1, 1 if rounds == 2 else 2), state=tmp_path, **HOW).measured


def test_what_does_not_fit_the_budget_is_told_with_what_helps_in_shards(tmp_path: Path) -> None:
    how = {"shard": (1, 2), "state": tmp_path, "memory_gib": 1e-7, "progress": False}
    with pytest.raises(MemoryBudgetError) as error:
        probe_shard(network(), (X, Y), **how, uncertainty=True)
    words = (
        "measures it; or use uncertainty=False, which takes 16 times less, fewer classes (classes=[…]), other sites, "
    )
    assert str(error.value).endswith(f"{words}a job without shards, which measures it in slices.")  # vectors: no reduce
    enough = float(str(error.value).partition("memory_gib=")[2].partition(" ")[0])
    assert probe_shard(network(), (X, Y), **how | {"memory_gib": enough}, uncertainty=True).measured
    with pytest.raises(MemoryBudgetError, match=r"measures it; or use reduce='mean', fewer classes"):
        probe_shard(seeded(InPlaceResNet), (IMAGES, CLASSES), **how | {"state": tmp_path / "b"}, uncertainty=False)
    with pytest.raises(MemoryBudgetError) as error:
        probe_shard(network(2), (X, TARGETS), **how | {"state": tmp_path / "c"}, uncertainty=False)
    assert "with 2 targets its statistics" in str(error.value)
    assert str(error.value).endswith("measures it; or use fewer targets, other sites.")


def test_a_copy_of_a_shard_does_not_count_twice(tmp_path: Path) -> None:
    two_rounds(tmp_path)
    for part in ("", ".data-0"):
        shutil.copy(tmp_path / f"sums-1-of-2{part}.safetensors", tmp_path / f"sums-2-of-2{part}.safetensors")
    with pytest.raises(DataError, match="expected what its name says, got what shard 1 of 2 left"):
        merge(tmp_path)


def test_shards_of_two_measurements_are_not_mixed(tmp_path: Path) -> None:
    two_rounds(tmp_path / "a")
    for _ in range(2):
        all_shards(tmp_path / "b", changed_weights(), (X, Y), 2, **HOW)
    for file in (tmp_path / "b").glob("*-2-of-2*"):
        shutil.copy(file, tmp_path / "a")
    with pytest.raises(DataError, match="shard 2 of 2 measured the same architecture with other weights"):
        merge(tmp_path / "a")


def test_round_2_around_other_sums_is_noticed(tmp_path: Path) -> None:
    data = [(X[:150], Y[:150]), (X[150:], Y[150:])]
    other = [(X[:150], Y[:150]), (X[150:] * 1.5, Y[150:])]  # of a list only the first batch tells which data these are
    how = {"uncertainty": False, "progress": False}
    for folder, given in (("a", data), ("b", other)):
        for _ in range(2):
            all_shards(tmp_path / folder, network(), given, 2, **how)
    for file in (tmp_path / "b").glob("sums-2-of-2*"):
        shutil.copy(file, tmp_path / "a")
    with pytest.raises(DataError, match="shards 1, 2 measured round 2 around the sums of another round 1"):
        merge(tmp_path / "a")
    all_shards(tmp_path / "a", network(), other, 2, **how)  # is measured again, though it was there
    same(ll.probe(network(), other, **how), merge(tmp_path / "a"))


def test_another_version_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerlaw.probing.shard_files.code_version", lambda: "0.0.1")
    probe_shard(network(), (X, Y), shard=(1, 2), state=tmp_path, **HOW)
    monkeypatch.undo()
    with pytest.raises(
        DataError, match=r"got version 5 of layerlaw 0\.0\.1\. Shards of one measurement need one version"
    ):
        probe_shard(network(), (X, Y), shard=(2, 2), state=tmp_path, **HOW)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    wide = seeded(FNN, (12, 400, 400, 3)).double()
    probe_shard(wide, (X, Y), shard=(1, 2), state=tmp_path, **HOW)
    there = {path: path.read_bytes() for path in tmp_path.iterdir()}
    statistics = (tmp_path / "sums-1-of-2.data-0.safetensors").stat().st_size
    assert statistics > 1 << 16  # what is tried before the work fits
    for room in (0, statistics - 1):
        with full_disk(room), pytest.raises(DataError, match="expected space on the disk"):
            probe_shard(wide, (X, Y), shard=(2, 2), state=tmp_path, **HOW)
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if "-2-of-2" not in path.name} == there
        assert not (tmp_path / "sums-2-of-2.safetensors").exists()
    same(ll.probe(wide, (X, Y), **HOW), merged(tmp_path, wide, (X, Y), 2, **HOW))


def test_samples_of_no_measured_class_anywhere_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="expected samples of all 2 classes"):
        merged(tmp_path, network(), (X, Y), 2, classes=[0, 7], scores=None, **HOW)
