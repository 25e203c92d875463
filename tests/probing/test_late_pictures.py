"""Planes and the view of three classes are worked out when somebody looks: the same as if it had been done at once."""

import copy
import gc
import importlib
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import layerlaw as ll
from layerlaw.later import Later
from layerlaw.pages import plot_planes
from layerlaw.stats import plane

VIEW = importlib.import_module("layerlaw.probing.pictures")


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(240) % 4
    return torch.randn(4, 8, generator=g)[y] + 0.3 * torch.randn(240, 8, generator=g), y


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def probed(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> ll.Record:
    return ll.probe(model, data, uncertainty=False, progress=False)


def pictures(record: ll.Record) -> tuple[object, object]:
    return [site.plane for site in record.sites], record.collapse_view


def waiting(record: ll.Record) -> bool:
    return isinstance(vars(record)["collapse_view"], Later) and isinstance(vars(record.sites[0])["plane"], Later)


def test_they_are_those_of_the_measurement_whatever_has_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (VIEW, plane):
        monkeypatch.setattr(module, "FEW_BYTES", 0)
    at_once = probed(net(), samples())
    assert not waiting(at_once)
    monkeypatch.undo()
    model, (x, y) = net(), samples()
    record = probed(model, (x, y))
    assert waiting(record)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7)
    x.fill_(7)
    y.fill_(0)
    assert pictures(record) == pictures(at_once)
    assert len(record.sites[0].plane) == 200
    assert all(isinstance(point, tuple) for point in record.sites[0].plane)


@pytest.mark.parametrize("where", ["autocast", "inference", "float64"])
def test_they_do_not_depend_on_where_somebody_looks(where: str) -> None:
    wanted = pictures(probed(net(), samples()))
    record = probed(net(), samples())
    if where == "float64":
        torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=where == "autocast"),
            torch.inference_mode(where == "inference"),
        ):
            assert pictures(record) == wanted
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda record: pickle.loads(pickle.dumps(record))])
def test_copies_and_files_have_them(way: Callable[[ll.Record], ll.Record], tmp_path: Path) -> None:
    wanted = pictures(probed(net(), samples()))
    assert pictures(way(probed(net(), samples()))) == wanted
    record = probed(net(), samples())
    record.save(tmp_path / "record.json")
    assert pictures(ll.Record.load(tmp_path / "record.json")) == wanted


def test_wide_sites_keep_fewer_samples_and_the_file_can_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plane, "SITE_BYTES", 100 * 16 * 4)
    record = probed(net(), samples())
    assert len({len(site.plane) for site in record.sites}) > 1
    record.save(tmp_path / "record.json")
    again = ll.Record.load(tmp_path / "record.json")
    assert pictures(again) == pictures(record)
    ll.report(again, tmp_path / "page.html")
    plot_planes(again)


def test_a_record_holds_neither_the_network_nor_the_data_nor_what_was_looked_at() -> None:
    model, (x, y) = net(), samples()
    gone = [weakref.ref(model), weakref.ref(x)]
    record = probed(model, (x, y))
    sources = [weakref.ref(vars(record)["collapse_view"]), weakref.ref(vars(record.sites[0])["plane"])]
    del model, x, y
    gc.collect()
    assert [one() for one in gone] == [None, None]
    pictures(record)
    gc.collect()
    assert [one() for one in sources] == [None, None]


def tensors() -> int:
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def test_nothing_of_a_measurement_waits_for_the_garbage_collector() -> None:
    """Three times, since something that is kept for all measurements may come with any of them."""
    model, data = net(), samples()
    probed(model, data)
    gc.collect()
    gc.disable()
    more = []
    try:
        for _ in range(3):
            before = tensors()
            probed(model, data)  # the record is dropped at once
            more.append(tensors() - before)
    finally:
        gc.enable()
    assert min(more) <= 0, more
