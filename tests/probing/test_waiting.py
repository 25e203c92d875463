"""Small batches of a stream that wait for each other, as they do on a GPU: the numbers of those that do not."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from capture_networks import FNN, Encoder, InPlaceResNet, clouds, seeded
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import layerlaw as ll
from layerlaw.capture.plan import statistic_bytes
from layerlaw.errors import FeatureError
from layerlaw.probing import merge, probe_shard, waiting
from layerlaw.stats.passes import Dealt, FirstPass, SecondPass

N, BATCH = 120, 10
X, Y = clouds(N, 12)
X = X.double()
IMAGES = clouds(N, 3, 8, 8)[0].double()
TARGETS = torch.stack([X[:, 0] * X[:, 1], X[:, 2].sin() + 1990], 1)
LABELS = X[:, :2] > 0
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """How many samples each update of either pass got."""
    found: dict[str, list[int]] = {"first": [], "second": []}
    for name, kind in (("first", FirstPass), ("second", SecondPass)):
        begin = kind.begin

        def counted(self: Any, dealt: Dealt, *more: Any, name: str = name, begin: Any = begin) -> None:
            found[name].append(len(dealt.labels))
            begin(self, dealt, *more)

        monkeypatch.setattr(kind, "begin", counted)
    return found


def may_wait(monkeypatch: pytest.MonkeyPatch, most: int = 2**30, enough: int = 4096) -> None:
    for name, value in (("MOST", {"cpu": most, "cuda": most}), ("ENOUGH", enough)):
        monkeypatch.setattr(waiting, name, value)


def budget(network: nn.Module, x: Tensor, rows: int, views: int = 1) -> float:
    """In GiB, what statistics and so many rows of features take."""
    sites = ll.sites(network, x, sites="layers").sites
    statistics = sum(statistic_bytes(3, site.features) for site in sites) * views
    return (statistics + rows * sum(site.features * site.itemsize for site in sites)) / 2**30


def probe(network: nn.Module, data: object, **how: object) -> ll.Record:
    size = BATCH if isinstance(data, tuple) else None
    plain = {"sites": "layers", "progress": False, "batch_size": size, "uncertainty": False}
    return ll.probe(network, data, **{**plain, **how})


def assert_same(a: ll.Record, b: ll.Record, rel: float = 1e-9) -> None:
    left, right = (record.to_pandas().drop(columns=["site", "type", "at"]) for record in (a, b))
    assert list(left.columns) == list(right.columns)
    for column in left.columns:
        np.testing.assert_allclose(left[column], right[column], rtol=rel, atol=1e-12, err_msg=column)
    assert (a.accuracy, a.test_accuracy, a.notes) == (b.accuracy, b.test_accuracy, b.notes)
    assert a.settings == b.settings
    assert a.provenance["data_fingerprint"] == b.provenance["data_fingerprint"]
    for mine, theirs in zip(a.sites, b.sites, strict=True):
        np.testing.assert_allclose(mine.plane, theirs.plane, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("uncertainty", [False, True])
@pytest.mark.parametrize("kind", ["fnn", "resnet"])
def test_a_stream_whose_batches_wait_has_the_numbers_of_one_whose_batches_do_not(
    monkeypatch: pytest.MonkeyPatch, updates: dict[str, list[int]], kind: str, uncertainty: bool
) -> None:
    network, x = (seeded(FNN), X) if kind == "fnn" else (seeded(InPlaceResNet), IMAGES)
    network = network.double()
    memory = budget(network, x, rows=50, views=16 if uncertainty else 1)
    how = {"memory_gib": memory, "uncertainty": uncertainty, "test": (x[:60], Y[:60]), "null": not uncertainty}
    plain = probe(network, (x, Y), **how)
    assert not plain.settings["one_forward"]
    assert set(updates["first"]) == set(updates["second"]) == {BATCH}
    for counts in updates.values():
        counts.clear()
    may_wait(monkeypatch)
    assert_same(probe(network, (x, Y), **how), plain)
    expected = [50, 50, 20, 50, 10, 50, 50, 20]  # of data, test data, the untrained network
    assert updates["first"] == expected[: 5 if uncertainty else None]
    assert updates["second"] == updates["first"]


def test_enough_samples_do_not_wait_for_more(monkeypatch: pytest.MonkeyPatch, updates: dict[str, list[int]]) -> None:
    network = seeded(FNN).double()
    memory = budget(network, X, rows=100)
    plain = probe(network, (X, Y), memory_gib=memory)
    updates["first"].clear()
    may_wait(monkeypatch, enough=30)
    assert_same(probe(network, (X, Y), memory_gib=memory), plain)
    assert updates["first"] == [30, 30, 30, 30]
    updates["first"].clear()
    probe(network, (X, Y), memory_gib=memory, batch_size=20)  # two of which are more than enough
    assert updates["first"] == [20] * 6


@pytest.mark.parametrize("rows", [0, 15])
def test_nothing_waits_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, updates: dict[str, list[int]], rows: int
) -> None:
    network = seeded(FNN).double()
    may_wait(monkeypatch)
    probe(network, (X, Y), memory_gib=budget(network, X, rows) + 1e-9)
    assert updates["first"] == [BATCH] * 12
    updates["first"].clear()
    may_wait(monkeypatch, most=0)
    probe(network, (X, Y), memory_gib=budget(network, X, 100))
    assert updates["first"] == [BATCH] * 12


def test_on_a_cpu_nothing_waits_unless_it_is_told_to(updates: dict[str, list[int]]) -> None:
    network = seeded(FNN).double()
    probe(network, (X, Y), memory_gib=budget(network, X, 100))
    assert updates["first"] == [BATCH] * 12


def test_batches_of_other_sizes_and_of_chosen_classes_wait_too(
    monkeypatch: pytest.MonkeyPatch, updates: dict[str, list[int]]
) -> None:
    network, memory = seeded(FNN).double(), budget(seeded(FNN).double(), X, 50)
    sizes = [7, 30, 1, 12, 45, 5, 20]
    data = list(zip(X.split(sizes), Y.split(sizes), strict=True))
    how = {"memory_gib": memory, "classes": [0, 2]}
    plain = probe(network, data, **how)
    updates["first"].clear()
    may_wait(monkeypatch)
    assert_same(probe(network, data, **how), plain)
    rows = [int(((y == 0) | (y == 2)).sum()) for _, y in data]
    assert sum(updates["first"]) == sum(rows)
    assert len(updates["first"]) < len([n for n in rows if n])


@pytest.mark.parametrize("targets", [TARGETS, LABELS], ids=["numbers", "labels"])
@pytest.mark.parametrize("uncertainty", [False, True])
def test_targets_wait_too(monkeypatch: pytest.MonkeyPatch, targets: Tensor, uncertainty: bool) -> None:
    network = seeded(FNN, (12, 8, 8, 8, 2)).double()
    how = {"uncertainty": uncertainty, "test": (X[:60], targets[:60])}
    memory = 1.1e-4 if uncertainty else 5e-5  # enough for the statistics and some batches, not for all features
    plain = probe(network, (X, targets), memory_gib=memory, **how)
    assert not plain.settings["one_forward"]
    may_wait(monkeypatch)
    worked: list[int] = []
    work = waiting.Waiting.flush
    monkeypatch.setattr(waiting.Waiting, "flush", lambda self: (worked.append(self._kept.rows), work(self))[1])
    assert_same(probe(network, (X, targets), memory_gib=memory, **how), plain)
    assert max(worked) > BATCH


def test_masks_and_tokens_wait_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = clouds(60, 5, 8)
    padding = torch.arange(5) >= (2 + torch.arange(60) % 4)[:, None]
    parts = zip(x.double().split(10), padding.split(10), y.split(10), strict=True)
    data = [{"src": src, "src_key_padding_mask": mask, "labels": labels} for src, mask, labels in parts]
    network, how = seeded(Encoder, batch_first=True).double(), {"reduce": "mean", "memory_gib": 3e-5}
    plain = probe(network, data, **how)
    assert not plain.settings["one_forward"]
    may_wait(monkeypatch)
    assert_same(probe(network, data, **how), plain)


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    """Data of unknown length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(X, Y, strict=True)


def test_data_that_turn_out_too_long_to_be_kept_wait_from_there_on(
    monkeypatch: pytest.MonkeyPatch, updates: dict[str, list[int]]
) -> None:
    network = seeded(FNN).double()
    loader, memory = torch.utils.data.DataLoader(Endless(), batch_size=BATCH), budget(network, X, 70, views=16)
    for uncertainty in (None, True):
        plain = probe(network, loader, memory_gib=memory, uncertainty=uncertainty)
        assert not plain.settings["one_forward"]
        for counts in updates.values():
            counts.clear()
        with monkeypatch.context() as patch:
            may_wait(patch)
            assert_same(probe(network, loader, memory_gib=memory, uncertainty=uncertainty), plain)
        assert max(updates["first"][-2:]) > BATCH
        assert max(updates["second"]) > BATCH


def test_features_that_are_not_finite_are_named_with_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = seeded(FNN).double(), X.clone()
    x[37, 3] = math.nan
    may_wait(monkeypatch)
    with pytest.raises(FeatureError, match="expected finite features, got NaN or infinity in data, batch 3"):
        probe(network, (x, Y), memory_gib=budget(network, X, 50))


def test_changed_data_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    network, memory = seeded(FNN).double(), budget(seeded(FNN).double(), X, 50)

    class Moving(list[tuple[Tensor, Tensor]]):
        passes = 0

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            self.passes += 1
            return iter(list(zip((X + 0.1 * self.passes * X.square()).split(BATCH), Y.split(BATCH), strict=True)))

    may_wait(monkeypatch)
    data = Moving(zip(X.split(BATCH), Y.split(BATCH), strict=True))
    with pytest.raises(ll.LayerlawError, match="the data changed between the two passes"):
        probe(network, data, memory_gib=memory)


def test_shards_whose_batches_wait_merge_to_one_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    network = seeded(FNN).double()
    how = {"memory_gib": budget(network, X, 50, views=16), "uncertainty": True, "batch_size": BATCH, "progress": False}
    whole = ll.probe(network, (X, Y), sites="layers", **how)
    may_wait(monkeypatch)
    done = None
    while done is None or done.missing or done.round < done.rounds:
        for shard in ((1, 2), (2, 2)):
            done = probe_shard(network, (X, Y), shard=shard, state=tmp_path, sites="layers", **how)
    merged = merge(tmp_path)
    for column in ("separation", "nc1", "separation_log_se", "separation_permuted", "ncc_accuracy"):
        assert merged.column(column) == pytest.approx(whole.column(column), rel=1e-9), column


@pytest.mark.parametrize("device", DEVICES)
def test_in_float32_waiting_changes_no_more_than_rounding(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    network, x = seeded(InPlaceResNet), IMAGES.float()
    memory = budget(network, x, 50)
    how = {"memory_gib": memory, "device": device}
    with monkeypatch.context() as patch:
        may_wait(patch, most=0)
        plain = probe(network, (x, Y), **how)
    may_wait(monkeypatch)
    found = probe(network, (x, Y), **how)
    for column in ("separation", "nc1", "cdnv", "ncc_accuracy"):
        assert found.column(column) == pytest.approx(plain.column(column), rel=2e-5), column


def test_dealt_batches_join_to_one() -> None:
    y, groups, permuted = torch.arange(6) % 3, torch.arange(6) % 2, torch.arange(12).view(2, 6) % 3
    parts = [Dealt(y[rows], groups[rows], permuted[:, rows]) for rows in (slice(2), slice(2, 6))]
    whole = Dealt.joined(parts)
    assert torch.equal(whole.labels, y)
    for found, expected in ((whole.groups, groups), (whole.permuted, permuted)):
        assert found is not None
        assert torch.equal(found, expected)
    bare = Dealt.joined([Dealt(y), Dealt(y)])
    assert (len(bare.labels), bare.groups, bare.permuted) == (12, None, None)
