"""Numbers of a monitor's records are computed when somebody looks, those of several records at once: the same numbers."""

import copy
import gc
import pickle
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import layerlaw as ll
from layerlaw.later import Later, Together
from layerlaw.measures.columns import Column, registered
from layerlaw.provenance import parameter_digest


class Layers(nn.Sequential):
    """Layers of several widths, one of them dead where that is wanted."""

    def __init__(self, *widths: int, dead: bool = False) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        super().__init__(*layers[:-1])
        if dead:
            nn.init.zeros_(layers[2].weight)


def samples(counts: tuple[int, ...] = (60, 60, 60, 60)) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    return torch.randn(4, 8, generator=g)[y] + 0.3 * torch.randn(len(y), 8, generator=g), y


def change(model: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + by).add_(by * parameter.roll(1, 0))


def waits(record: ll.Record) -> bool:
    return isinstance(vars(record.sites[0])["values"], Later)


def numbers(record: ll.Record) -> list[tuple[dict[str, object], dict[str, object]]]:
    return [(dict(site.values), dict(site.by_class)) for site in record.sites]


def same(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and a == pytest.approx(b, rel=1e-12))


@pytest.mark.parametrize("widths", [(8, 16, 16, 16, 4), (8, 16, 12, 16, 4)])
@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("counts", [(60, 60, 60, 60), (100, 60, 40, 20)])
@pytest.mark.parametrize("uncertainty", [False, True])
def test_at_once_they_are_what_they_are_one_by_one(
    widths: tuple[int, ...], dead: bool, counts: tuple[int, ...], uncertainty: bool
) -> None:
    model, data = Layers(*widths, dead=dead), samples(counts)
    monitor, alone = ll.Monitor(model, data, uncertainty=uncertainty), []
    for epoch in range(4):
        monitor(epoch)
        how = {"uncertainty": uncertainty, "batch_size": 1024}
        alone.append(ll.probe(model, data, progress=False, **how))
        change(model, 0.1)
    assert all(map(waits, monitor.records))
    assert not any(map(waits, alone))
    for late, early in zip(monitor.records, alone, strict=True):
        assert same(numbers(late), numbers(early))
        assert [(site.in_fit, site.aside) for site in late.sites] == [(site.in_fit, site.aside) for site in early.sites]
        assert late.notes == early.notes


def test_one_look_computes_them_for_all_records_that_are_still_held() -> None:
    seen: list[int] = []
    together = Together(lambda parts: [seen.append(len(parts)) or part for part in parts])
    first, second, third = (together.later(number) for number in (1, 2, 3))
    del second
    gc.collect()
    assert third.value() == 3
    assert seen == [2, 2]
    assert first.value() == 1
    assert seen == [2, 2]
    assert together.later(4).value() == 4


def test_a_record_that_waits_is_saved_copied_and_pickled_with_its_numbers(tmp_path: Path) -> None:
    model = Layers(8, 16, 16, 4)
    expected = numbers(ll.probe(model, samples(), uncertainty=False, batch_size=1024, progress=False))
    for way in (
        copy.deepcopy,
        lambda record: pickle.loads(pickle.dumps(record)),
        lambda r: ll.Record.load(r.save(tmp_path / "r.json")),
    ):
        monitor = ll.Monitor(model, samples())
        record = monitor(0)
        assert record is not None
        assert waits(record)
        assert same(numbers(way(record)), expected)


def test_a_record_that_waits_does_not_hold_the_network() -> None:
    model = Layers(8, 16, 16, 4)
    monitor = ll.Monitor(model, samples())
    record, known = monitor(0), weakref.ref(model[0].weight)
    assert record is not None
    assert waits(record)
    del model, monitor
    gc.collect()
    assert known() is None
    assert record.sites[0].values["separation"] is not None


def test_columns_are_those_that_were_known_at_the_measurement() -> None:
    monitor = ll.Monitor(Layers(8, 16, 16, 4), samples())
    with registered(Column("twice", compute=lambda s: 2 * s.separation)):
        monitor(0)
    monitor(1)
    with_it, without = monitor.records
    D = with_it.sites[1].values["separation"]
    assert D is not None
    assert with_it.sites[1].values["twice"] == pytest.approx(2 * D)
    assert "twice" not in without.sites[1].values


def test_the_checksum_of_the_weights_waits_too_and_is_of_the_time_of_the_measurement(tmp_path: Path) -> None:
    model, data = Layers(8, 16, 16, 4), samples()
    monitor = ll.Monitor(model, data)
    records, expected = [], []
    for epoch in range(3):
        records.append(monitor(epoch))
        expected.append(parameter_digest(model))
        change(model, 0.1)
    assert all(isinstance(vars(record)["provenance"], Later) for record in records)
    copied, packed, saved = copy.deepcopy(records[0]), pickle.loads(pickle.dumps(records[1])), records[2]
    read = ll.Record.load(saved.save(tmp_path / "record.json"))
    found = [record.provenance["parameters_sha256"] for record in (copied, packed, read)]
    assert found == expected
    assert len(set(expected)) == 3
    assert all(record.provenance["seconds"] >= 0 and record.provenance is record.provenance for record in records)
