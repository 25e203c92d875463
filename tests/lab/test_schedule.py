"""Measurements of a fleet equal what the probe measures on the same networks, one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

import pytest
import torch
from lab_parts import clouds
from torch import Tensor, nn

import layerlaw as ll
import oracle
from layerlaw.errors import InputError
from layerlaw.lab import FeedForward, Fleet, Measurement, Recipe, Run, Samples, Schedule, Shape, sweep
from layerlaw.lab.fleet.engine import measure_fleet
from layerlaw.lab.schedule import balanced_order

MODES = "batch", "shuffled", "balanced", "running", "whole"
EVERYTHING = Schedule(batchnorm=MODES, test=True, permuted=True, by_class=True)
SAMPLES = clouds(250, test=130)  # chunks of 100, 100 and 50; 100 and 30


def trained(
    shape: Shape, samples: Samples = SAMPLES, schedule: Schedule = EVERYTHING, seeds: Sequence[int] = (1, 2)
) -> list[Run]:
    base = Recipe(network=shape, epochs=6, batch_size=32, learning_rate=0.01)
    return sweep(base.grid(seed=seeds), samples, schedule=schedule, progress=False)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return trained(Shape(12, (20, 8, 16), 4))


def same_as_probe(measurement: Measurement, record: ll.Record) -> None:
    test = "test_" if measurement.split == "test" else ""
    assert list(measurement.separation) == pytest.approx(record.column(f"{test}separation"), rel=1e-5)
    assert list(measurement.nearest) == pytest.approx(record.column(f"{test}ncc_accuracy"), abs=1e-5)
    accuracy = record.test_accuracy if test else record.accuracy
    assert accuracy is not None
    assert measurement.accuracy == pytest.approx(accuracy, abs=1e-5)


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "none"])
def test_readings_equal_a_probe_of_the_trained_network(activation: str, norm: bool) -> None:
    train, test = (SAMPLES.inputs, SAMPLES.labels), (SAMPLES.test_inputs, SAMPLES.test_labels)
    for run in trained(Shape(12, (20, 8, 16), 4, norm, activation))[1:]:
        for batchnorm in ("batch", "running"):
            record = ll.probe(run.network(), train, test=test, batchnorm=batchnorm, progress=False)
            assert len(run.measurement(batchnorm=batchnorm).separation) == run.recipe.network.depth
            same_as_probe(run.measurement(batchnorm=batchnorm), record)
            same_as_probe(run.measurement(batchnorm=batchnorm, split="test"), record)


def test_the_modes_differ_as_they_should(runs: list[Run]) -> None:
    one, two, three = (
        runs[0].measurement(batchnorm=batchnorm).separation for batchnorm in ("batch", "running", "whole")
    )
    assert one[0] == two[0] == three[0]  # the input knows no BatchNorm
    assert one[-1] != pytest.approx(two[-1], rel=1e-4)
    assert one[-1] != pytest.approx(three[-1], rel=1e-4)


@torch.no_grad()
def recalibrated(network: FeedForward, x: Tensor) -> FeedForward:
    """Running statistics replaced by those of all samples, layer after layer (the variance with 1/n, as in a batch)."""
    h = x
    for part in network.children():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.copy_(h.mean(0))
            part.running_var.copy_(h.var(0, correction=0))
        h = part(h)
    return network


def test_full_mode_equals_a_network_recalibrated_on_all_the_data(runs: list[Run]) -> None:
    for run in runs:
        network = recalibrated(run.network(), SAMPLES.inputs)
        record = ll.probe(network, (SAMPLES.inputs, SAMPLES.labels), batchnorm="running", progress=False)
        same_as_probe(run.measurement(batchnorm="whole"), record)


@pytest.mark.parametrize("batchnorm", ["batch", "running", "whole"])
def test_the_loss_is_that_of_the_network_on_these_samples(runs: list[Run], batchnorm: str) -> None:
    x, y = SAMPLES.inputs, SAMPLES.labels
    for run in runs:
        network = run.network() if batchnorm != "whole" else recalibrated(run.network(), x)
        network.train(batchnorm == "batch")
        with torch.no_grad():
            logits = torch.cat([network(part) for part in x.split(100)])
        expected = nn.functional.cross_entropy(logits, y).item()
        assert run.measurement(batchnorm=batchnorm).loss == pytest.approx(expected, rel=1e-5)


def test_class_values_sum_up_to_d_weighted_by_the_size_of_the_classes() -> None:
    samples = clouds(250, test=130)
    kept = torch.cat([(samples.labels == k).nonzero().flatten()[: 15 * (k + 1)] for k in range(4)]).sort().values
    uneven = Samples.of((samples.inputs[kept], samples.labels[kept]), (samples.test_inputs, samples.test_labels))
    assert uneven.counts == (15, 30, 45, 60)
    for run in trained(Shape(12, (20, 8), 4), uneven):
        for batchnorm in EVERYTHING.batchnorm:
            measurement = run.measurement(batchnorm=batchnorm)
            assert measurement.by_class is not None
            table = torch.tensor(measurement.by_class, dtype=torch.float64)
            assert table.shape == (3, 4)  # places, classes
            weights = torch.tensor(uneven.counts, dtype=torch.float64) / 150
            assert (table @ weights).tolist() == pytest.approx(list(measurement.separation), rel=1e-9)
            assert float(table.std(-1).min()) > 1e-3  # else any weights would do


def test_permuted_labels_give_the_level_of_chance(runs: list[Run]) -> None:
    for run in runs:
        permuted, real = run.measurement(split="permuted"), run.measurement()
        assert permuted.loss is None
        assert permuted.accuracy is None
        assert all(p > 10 * d for p, d in zip(permuted.separation, real.separation, strict=True))
        x = SAMPLES.inputs.numpy()
        shuffles = [torch.randperm(250, generator=torch.Generator().manual_seed(100 + i)) for i in range(9)]
        levels = sorted(oracle.separation(x, SAMPLES.labels[order], 4) for order in shuffles)
        assert 0.4 * levels[4] < permuted.separation[0] < 2.5 * levels[4]
        assert all(near < 0.5 for near in permuted.nearest)


def test_the_last_chunk_of_one_sample_joins_the_chunk_before() -> None:
    samples = clouds(201, test=101)
    run = trained(Shape(12, (20, 8), 4), samples, seeds=[1])[0]
    x, y = samples.inputs, samples.labels
    batches = [(x[:100], y[:100]), (x[100:], y[100:])]
    test = [(samples.test_inputs, samples.test_labels)]
    record = ll.probe(run.network(), batches, test=test, batchnorm="batch", progress=False)
    same_as_probe(run.measurement(), record)
    same_as_probe(run.measurement(split="test"), record)


def test_fewer_samples_than_a_chunk_are_one_chunk() -> None:
    samples = clouds(60)
    run = trained(Shape(12, (20, 8), 4), samples, Schedule(batchnorm=("batch", "whole")), seeds=[1])[0]
    record = ll.probe(run.network(), (samples.inputs, samples.labels), batchnorm="batch", progress=False)
    same_as_probe(run.measurement(), record)
    assert run.measurement(batchnorm="whole").separation == pytest.approx(run.measurement().separation, rel=1e-6)


def test_epoch_zero_is_the_untrained_network_and_the_last_epoch_is_always_there() -> None:
    run = trained(Shape(12, (20, 8), 4), schedule=Schedule(epochs=(2, 0)), seeds=[3])[0]
    assert [(r.epoch, r.batchnorm) for r in run.measurements] == [
        (e, m) for e in (0, 2, 6) for m in ("batch", "running")
    ]
    torch.manual_seed(3)
    network = run.recipe.network.build()
    for batchnorm in ("batch", "running"):
        record = ll.probe(network, (SAMPLES.inputs, SAMPLES.labels), batchnorm=batchnorm, progress=False)
        same_as_probe(run.measurement(epoch=0, batchnorm=batchnorm), record)
    halfway = run.measurement(epoch=2).separation
    assert halfway[-1] != run.measurement(epoch=0).separation[-1] != run.measurement().separation[-1]


def test_looking_changes_nothing() -> None:
    often = trained(
        Shape(12, (20, 8), 4), schedule=Schedule(epochs=tuple(range(6)), batchnorm=("batch", "running", "whole"))
    )
    once = trained(Shape(12, (20, 8), 4), schedule=Schedule())
    for a, b in zip(often, once, strict=True):
        assert a.losses == b.losses
        assert a.measurement() == b.measurement()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30], ids=str)
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
def test_a_broken_member_yields_none_and_leaves_the_others_untouched(norm: bool, bad: float) -> None:
    recipes = Recipe(network=Shape(12, (20, 8), 4, norm), batch_size=32).grid(seed=(1, 2, 3))
    fleet = Fleet(recipes, [SAMPLES] * 3)
    before = measure_fleet(fleet, EVERYTHING, 0)
    fleet.parameters[1] = bad
    after = measure_fleet(fleet, EVERYTHING, 0)
    without = measure_fleet(Fleet([recipes[0], recipes[2]], [SAMPLES] * 2), EVERYTHING, 0)
    for member, alone in ((0, 0), (2, 1)):
        assert after[member] == before[member]
        for mine, theirs in zip(after[member], without[alone], strict=True):
            assert mine.separation == pytest.approx(theirs.separation, rel=1e-6)
            assert (mine.nearest, mine.accuracy) == (theirs.nearest, theirs.accuracy)
    for measurement, sound in zip(after[1], before[1], strict=True):
        assert measurement.separation[0] == sound.separation[0]  # of the input, which is well
        if bad != 1e30:
            assert measurement.separation[1:] == (None, None)
            assert measurement.nearest[1:] == (None, None)
            assert (measurement.loss, measurement.accuracy) == (None, None)
        if measurement.by_class is not None and bad != 1e30:
            assert measurement.by_class[1:] == ((None,) * 4,) * 2
        numbers = [
            v
            for v in (*measurement.separation, *measurement.nearest, measurement.loss, measurement.accuracy)
            if v is not None
        ]
        assert all(math.isfinite(value) for value in numbers)


def test_a_member_whose_units_are_all_dead_has_no_separation_and_no_law() -> None:
    recipe = Recipe(network=Shape(12, (20, 8), 4, norm=False), batch_size=32)
    fleet = Fleet([recipe], [SAMPLES])
    fleet.biases[0].fill_(-1e3)
    measurement = measure_fleet(fleet, Schedule(batchnorm=("running",)), 0)[0][0]
    assert measurement.separation[0] is not None
    assert measurement.separation[1:] == (None, None)
    assert measurement.loss is not None
    assert Run(recipe, (), (measurement,), 0).law(batchnorm="running") is None


def test_members_with_fewer_classes_are_measured_as_if_alone() -> None:
    five, three = clouds(150, classes=5), clouds(150, classes=3, seed=7)
    recipes = Recipe(network=Shape(12, (16, 10), 5), batch_size=32).grid(seed=(1, 2))
    schedule = Schedule(batchnorm=("batch", "running"), by_class=True)
    together = measure_fleet(Fleet(recipes, [five, three]), schedule, 0)
    for member, samples in enumerate((five, three)):
        alone = measure_fleet(Fleet([recipes[member]], [samples]), schedule, 0)[0]
        for mine, theirs in zip(together[member], alone, strict=True):
            assert mine.separation == pytest.approx(theirs.separation, rel=1e-5)
            assert mine.nearest == pytest.approx(theirs.nearest)
            assert mine.accuracy == theirs.accuracy
            assert mine.by_class is not None
            assert theirs.by_class is not None
            for a, b in zip(mine.by_class, theirs.by_class, strict=True):
                assert a == pytest.approx(b, rel=1e-5)


def test_a_fleet_measured_in_parts_gives_the_same_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(Recipe(network=Shape(12, (20, 8), 4), batch_size=32).grid(seed=range(5)), [SAMPLES] * 5)
    at_once = measure_fleet(fleet, EVERYTHING, 0)
    calls = []
    forward = Fleet.site_features

    def counted(*args: object, **how: object) -> object:
        calls.append(how["members"])
        return forward(*args, **how)

    monkeypatch.setattr(Fleet, "site_features", counted)
    monkeypatch.setitem(ll.lab.fleet.engine.SCRATCH, "cpu", 1)  # one member at a time
    in_parts = measure_fleet(fleet, EVERYTHING, 0)
    assert len(calls) == 5 * 15
    same_readings(at_once, in_parts)


def test_sites_measured_at_once_give_the_same_readings_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(Recipe(network=Shape(12, (12, 8, 8, 8, 20), 4), batch_size=32).grid(seed=range(3)), [SAMPLES] * 3)
    one_by_one = measure_fleet(fleet, EVERYTHING, 0)
    together = [(0, 1), (2, 3, 4), (5,)]  # as on a GPU
    monkeypatch.setattr(ll.lab.fleet.engine, "_alike", lambda sites: ([sites[i] for i in group] for group in together))
    same_readings(one_by_one, measure_fleet(fleet, EVERYTHING, 0))


def test_class_means_found_on_several_cores_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(Recipe(network=Shape(12, (12, 8), 4), batch_size=32).grid(seed=range(5)), [SAMPLES] * 5)
    engine = ll.lab.fleet.engine
    wanted = measure_fleet(fleet, EVERYTHING, 0)
    spread = engine._centers_at_hand
    monkeypatch.setattr(engine, "MANY_CENTERS", 2)
    monkeypatch.setattr(engine, "_centers_at_hand", lambda sums, at_once: spread(sums, at_once=True))
    assert measure_fleet(fleet, EVERYTHING, 0) == wanted


def same_readings(first: list[list[Measurement]], second: list[list[Measurement]]) -> None:
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a.batchnorm, a.split, a.accuracy) == (b.batchnorm, b.split, b.accuracy)
            assert a.separation == pytest.approx(b.separation, rel=1e-6)
            assert a.nearest == pytest.approx(b.nearest)
            assert (a.by_class is None) == (a.split == "permuted")
            for mine, theirs in zip(a.by_class or (), b.by_class or (), strict=True):
                assert mine == pytest.approx(theirs, rel=1e-6)


def test_a_reading_survives_a_trip_through_json(runs: list[Run]) -> None:
    for measurement in runs[0].measurements:
        assert Measurement.from_dict(json.loads(json.dumps(asdict(measurement)))) == measurement


def test_a_law_is_fitted_to_the_separation_along_depth(runs: list[Run]) -> None:
    law = runs[0].law(batchnorm="running")
    assert law == ll.fit_law(list(runs[0].measurement(batchnorm="running").separation))


def test_readings_that_were_not_taken_are_told_with_those_that_were(runs: list[Run]) -> None:
    with pytest.raises(
        InputError,
        match=r"expected a measurement of epoch 3, batchnorm 'batch', 'train' data; there are epochs \[6\], batchnorm",
    ):
        runs[0].measurement(epoch=3)


def test_wishes_that_do_not_exist_are_told() -> None:
    with pytest.raises(
        InputError, match=r"batchnorm: expected some of batch, shuffled, balanced, running, whole, got \['test'\]"
    ):
        Schedule(batchnorm=("test",))
    with pytest.raises(
        InputError, match=r"batchnorm: expected some of batch, shuffled, balanced, running, whole, got \[\]"
    ):
        Schedule(batchnorm=())
    with pytest.raises(InputError, match="epochs: expected numbers ≥ 0, got -1"):
        Schedule(epochs=(3, -1))
    with pytest.raises(InputError, match="schedule: expected held-out samples to measure on"):
        measure_fleet(Fleet([Recipe(network=Shape(12, (8,), 4))], [clouds(60)]), Schedule(test=True), 0)


def test_balanced_chunks_have_every_class_in_its_share() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    order = balanced_order(labels, 3)
    assert sorted(order.tolist()) == list(range(100))
    for start in range(0, 100, 10):
        assert torch.bincount(labels[order[start : start + 10]], minlength=3).tolist() == [5, 3, 2]
    assert torch.equal(balanced_order(torch.stack([labels, labels]), 3)[1], order)  # members of a fleet at once


def test_networks_can_be_kept_and_nothing_measured() -> None:
    kept = Schedule(epochs=(0, 3), batchnorm=(), keep=True)
    (bare,), (full,) = (
        trained(Shape(12, (20, 8), 4), schedule=one, seeds=(1,)) for one in (kept, Schedule(epochs=(0, 3), keep=True))
    )
    assert bare.measurements == ()
    assert sorted(bare.snapshots) == sorted(full.snapshots) == [0, 3, 6]
    for a, b in zip(bare.network(3).state_dict().values(), full.network(3).state_dict().values(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match="expected a measurement of epoch 6"):
        bare.law()
