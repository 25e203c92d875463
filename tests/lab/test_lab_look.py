"""Readings of a fleet equal what the probe measures on the same networks, one by one."""

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
from layerlaw.lab import FeedForward, Fleet, Look, Reading, Recipe, Run, Samples, Shape, sweep
from layerlaw.lab.look import look_at

EVERYTHING = Look(modes=("train", "eval", "full"), test=True, permuted=True, by_class=True)
SAMPLES = clouds(250, test=130)  # chunks of 100, 100 and 50; 100 and 30


def trained(
    shape: Shape, samples: Samples = SAMPLES, look: Look = EVERYTHING, seeds: Sequence[int] = (1, 2)
) -> list[Run]:
    base = Recipe(shape=shape, epochs=6, batch_size=32, learning_rate=0.01)
    return sweep(base.grid(seed=seeds), samples, look=look, progress=False)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return trained(Shape(12, (20, 8, 16), 4))


def same_as_probe(reading: Reading, record: ll.Record) -> None:
    test = "test_" if reading.split == "test" else ""
    assert list(reading.separation) == pytest.approx(record.column(f"{test}separation"), rel=1e-5)
    assert list(reading.nearest) == pytest.approx(record.column(f"{test}ncc_accuracy"), abs=1e-5)
    accuracy = record.test_accuracy if test else record.accuracy
    assert accuracy is not None
    assert reading.accuracy == pytest.approx(accuracy, abs=1e-5)


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "none"])
def test_readings_equal_a_probe_of_the_trained_network(activation: str, norm: bool) -> None:
    train, test = (SAMPLES.inputs, SAMPLES.labels), (SAMPLES.test_inputs, SAMPLES.test_labels)
    for run in trained(Shape(12, (20, 8, 16), 4, norm, activation))[1:]:
        for mode in ("train", "eval"):
            record = ll.probe(run.network(), train, test=test, mode=mode, progress=False)
            assert len(run.reading(mode=mode).separation) == run.recipe.shape.depth
            same_as_probe(run.reading(mode=mode), record)
            same_as_probe(run.reading(mode=mode, split="test"), record)


def test_the_modes_differ_as_they_should(runs: list[Run]) -> None:
    one, two, three = (runs[0].reading(mode=mode).separation for mode in ("train", "eval", "full"))
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
        record = ll.probe(network, (SAMPLES.inputs, SAMPLES.labels), mode="eval", progress=False)
        same_as_probe(run.reading(mode="full"), record)


@pytest.mark.parametrize("mode", ["train", "eval", "full"])
def test_the_loss_is_that_of_the_network_on_these_samples(runs: list[Run], mode: str) -> None:
    x, y = SAMPLES.inputs, SAMPLES.labels
    for run in runs:
        network = run.network() if mode != "full" else recalibrated(run.network(), x)
        network.train(mode == "train")
        with torch.no_grad():
            logits = torch.cat([network(part) for part in x.split(100)])
        expected = nn.functional.cross_entropy(logits, y).item()
        assert run.reading(mode=mode).loss == pytest.approx(expected, rel=1e-5)


def test_class_values_sum_up_to_d_weighted_by_the_size_of_the_classes() -> None:
    samples = clouds(250, test=130)
    kept = torch.cat([(samples.labels == k).nonzero().flatten()[: 15 * (k + 1)] for k in range(4)]).sort().values
    uneven = Samples.of((samples.inputs[kept], samples.labels[kept]), (samples.test_inputs, samples.test_labels))
    assert uneven.counts == (15, 30, 45, 60)
    for run in trained(Shape(12, (20, 8), 4), uneven):
        for mode in EVERYTHING.modes:
            reading = run.reading(mode=mode)
            assert reading.by_class is not None
            table = torch.tensor(reading.by_class, dtype=torch.float64)
            assert table.shape == (3, 4)  # places, classes
            weights = torch.tensor(uneven.counts, dtype=torch.float64) / 150
            assert (table @ weights).tolist() == pytest.approx(list(reading.separation), rel=1e-9)
            assert float(table.std(-1).min()) > 1e-3  # else any weights would do


def test_permuted_labels_give_the_level_of_chance(runs: list[Run]) -> None:
    for run in runs:
        permuted, real = run.reading(split="permuted"), run.reading()
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
    record = ll.probe(run.network(), batches, test=test, mode="train", progress=False)
    same_as_probe(run.reading(), record)
    same_as_probe(run.reading(split="test"), record)


def test_fewer_samples_than_a_chunk_are_one_chunk() -> None:
    samples = clouds(60)
    run = trained(Shape(12, (20, 8), 4), samples, Look(modes=("train", "full")), seeds=[1])[0]
    record = ll.probe(run.network(), (samples.inputs, samples.labels), mode="train", progress=False)
    same_as_probe(run.reading(), record)
    assert run.reading(mode="full").separation == pytest.approx(run.reading().separation, rel=1e-6)


def test_epoch_zero_is_the_untrained_network_and_the_last_epoch_is_always_there() -> None:
    run = trained(Shape(12, (20, 8), 4), look=Look(epochs=(2, 0)), seeds=[3])[0]
    assert [(r.epoch, r.mode) for r in run.readings] == [(e, m) for e in (0, 2, 6) for m in ("train", "eval")]
    torch.manual_seed(3)
    network = FeedForward.of(run.recipe.shape)
    for mode in ("train", "eval"):
        record = ll.probe(network, (SAMPLES.inputs, SAMPLES.labels), mode=mode, progress=False)
        same_as_probe(run.reading(epoch=0, mode=mode), record)
    halfway = run.reading(epoch=2).separation
    assert halfway[-1] != run.reading(epoch=0).separation[-1] != run.reading().separation[-1]


def test_looking_changes_nothing() -> None:
    often = trained(Shape(12, (20, 8), 4), look=Look(epochs=tuple(range(6)), modes=("train", "eval", "full")))
    once = trained(Shape(12, (20, 8), 4), look=Look())
    for a, b in zip(often, once, strict=True):
        assert a.losses == b.losses
        assert a.reading() == b.reading()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30], ids=str)
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
def test_a_broken_member_yields_none_and_leaves_the_others_untouched(norm: bool, bad: float) -> None:
    recipes = Recipe(shape=Shape(12, (20, 8), 4, norm), batch_size=32).grid(seed=(1, 2, 3))
    fleet = Fleet(recipes, [SAMPLES] * 3)
    before = look_at(fleet, EVERYTHING, 0)
    fleet.parameters[1] = bad
    after = look_at(fleet, EVERYTHING, 0)
    without = look_at(Fleet([recipes[0], recipes[2]], [SAMPLES] * 2), EVERYTHING, 0)
    for member, alone in ((0, 0), (2, 1)):
        assert after[member] == before[member]
        for mine, theirs in zip(after[member], without[alone], strict=True):
            assert mine.separation == pytest.approx(theirs.separation, rel=1e-6)
            assert (mine.nearest, mine.accuracy) == (theirs.nearest, theirs.accuracy)
    for reading, sound in zip(after[1], before[1], strict=True):
        assert reading.separation[0] == sound.separation[0]  # of the input, which is well
        if bad != 1e30:
            assert reading.separation[1:] == (None, None)
            assert reading.nearest[1:] == (None, None)
            assert (reading.loss, reading.accuracy) == (None, None)
        if reading.by_class is not None and bad != 1e30:
            assert reading.by_class[1:] == ((None,) * 4,) * 2
        numbers = [v for v in (*reading.separation, *reading.nearest, reading.loss, reading.accuracy) if v is not None]
        assert all(math.isfinite(value) for value in numbers)


def test_a_member_whose_units_are_all_dead_has_no_separation_and_no_law() -> None:
    recipe = Recipe(shape=Shape(12, (20, 8), 4, norm=False), batch_size=32)
    fleet = Fleet([recipe], [SAMPLES])
    fleet.biases[0].fill_(-1e3)
    reading = look_at(fleet, Look(modes=("eval",)), 0)[0][0]
    assert reading.separation[0] is not None
    assert reading.separation[1:] == (None, None)
    assert reading.loss is not None
    assert Run(recipe, (), (reading,), 0).law(mode="eval") is None


def test_members_with_fewer_classes_are_measured_as_if_alone() -> None:
    five, three = clouds(150, classes=5), clouds(150, classes=3, seed=7)
    recipes = Recipe(shape=Shape(12, (16, 10), 5), batch_size=32).grid(seed=(1, 2))
    look = Look(modes=("train", "eval"), by_class=True)
    together = look_at(Fleet(recipes, [five, three]), look, 0)
    for member, samples in enumerate((five, three)):
        alone = look_at(Fleet([recipes[member]], [samples]), look, 0)[0]
        for mine, theirs in zip(together[member], alone, strict=True):
            assert mine.separation == pytest.approx(theirs.separation, rel=1e-5)
            assert mine.nearest == pytest.approx(theirs.nearest)
            assert mine.accuracy == theirs.accuracy
            assert mine.by_class is not None
            assert theirs.by_class is not None
            for a, b in zip(mine.by_class, theirs.by_class, strict=True):
                assert a == pytest.approx(b, rel=1e-5)


def test_a_fleet_measured_in_parts_gives_the_same_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(Recipe(shape=Shape(12, (20, 8), 4), batch_size=32).grid(seed=range(5)), [SAMPLES] * 5)
    at_once = look_at(fleet, EVERYTHING, 0)
    calls = []
    forward = Fleet.site_features

    def counted(*args: object, **how: object) -> object:
        calls.append(how["members"])
        return forward(*args, **how)

    monkeypatch.setattr(Fleet, "site_features", counted)
    monkeypatch.setitem(ll.lab.look.SCRATCH, "cpu", 1)  # one member at a time
    in_parts = look_at(fleet, EVERYTHING, 0)
    assert len(calls) == 5 * 9
    same_readings(at_once, in_parts)


def test_sites_measured_at_once_give_the_same_readings_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(Recipe(shape=Shape(12, (12, 8, 8, 8, 20), 4), batch_size=32).grid(seed=range(3)), [SAMPLES] * 3)
    one_by_one = look_at(fleet, EVERYTHING, 0)
    together = [(0, 1), (2, 3, 4), (5,)]  # as on a GPU
    monkeypatch.setattr(ll.lab.look, "_alike", lambda sites: ([sites[i] for i in group] for group in together))
    same_readings(one_by_one, look_at(fleet, EVERYTHING, 0))


def same_readings(first: list[list[Reading]], second: list[list[Reading]]) -> None:
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a.mode, a.split, a.accuracy) == (b.mode, b.split, b.accuracy)
            assert a.separation == pytest.approx(b.separation, rel=1e-6)
            assert a.nearest == pytest.approx(b.nearest)
            assert (a.by_class is None) == (a.split == "permuted")
            for mine, theirs in zip(a.by_class or (), b.by_class or (), strict=True):
                assert mine == pytest.approx(theirs, rel=1e-6)


def test_a_reading_survives_a_trip_through_json(runs: list[Run]) -> None:
    for reading in runs[0].readings:
        assert Reading.from_dict(json.loads(json.dumps(asdict(reading)))) == reading


def test_a_law_is_fitted_to_the_separation_along_depth(runs: list[Run]) -> None:
    law = runs[0].law(mode="eval")
    assert law == ll.fit_law(list(runs[0].reading(mode="eval").separation))


def test_readings_that_were_not_taken_are_told_with_those_that_were(runs: list[Run]) -> None:
    with pytest.raises(
        InputError,
        match=r"expected a reading of epoch 3, mode 'train', 'train' data; there are epochs \[6\], modes",
    ):
        runs[0].reading(epoch=3)


def test_wishes_that_do_not_exist_are_told() -> None:
    with pytest.raises(InputError, match=r"modes: expected some of train, eval, full, got \['test'\]"):
        Look(modes=("test",))
    with pytest.raises(InputError, match=r"modes: expected some of train, eval, full, got \[\]"):
        Look(modes=())
    with pytest.raises(InputError, match="epochs: expected numbers ≥ 0, got -1"):
        Look(epochs=(3, -1))
    with pytest.raises(InputError, match="look: expected held-out samples to measure on"):
        look_at(Fleet([Recipe(shape=Shape(12, (8,), 4))], [clouds(60)]), Look(test=True), 0)
