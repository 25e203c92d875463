"""A monitor in a plain loop: it measures, keeps, sends on, and disturbs nothing."""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from training_parts import CLASSES, FEATURES, SAMPLES, Blobs, differences, everything, network, seed_everything

import layerlaw as ll
from layerlaw.errors import CaptureError, InputError
from layerlaw.integrations import monitor as monitor_module
from layerlaw.integrations.undisturbed import reread, seeded
from layerlaw.later import waits
from layerlaw.record import Record
from layerlaw.verdict.stopping import UntilLaw

Adam, Momentum = torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)


class OwnOrder(Sampler[int]):
    """A sampler with a state of its own."""

    def __init__(self, n: int) -> None:
        self.n, self.times = n, 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return iter(torch.randperm(self.n, generator=torch.Generator().manual_seed(self.times)).tolist())

    def __len__(self) -> int:
        return self.n


def loader(kind: str) -> DataLoader[Any]:
    how: dict[str, Any] = {"batch_size": 16}
    if kind == "own sampler":
        return DataLoader(Blobs(), sampler=OwnOrder(SAMPLES), **how)
    if kind == "own generator":
        return DataLoader(Blobs(), shuffle=True, generator=torch.Generator().manual_seed(5), **how)
    if kind == "workers":
        return DataLoader(Blobs(), shuffle=True, num_workers=1, **how)
    if kind == "persistent workers":
        return DataLoader(Blobs(), shuffle=True, num_workers=1, persistent_workers=True, **how)
    return DataLoader(Blobs(), shuffle=True, **how)


def trained(
    kind: str, optimizer_of: Callable[..., torch.optim.Optimizer], watched: bool, *, inside: bool = False
) -> tuple[dict[str, Any], list[Record]]:
    """40 steps (8 epochs of 5); with `inside` the monitor is called in the middle of an epoch, too."""
    model, data = network(), loader(kind)
    optimizer = optimizer_of(model.parameters(), lr=0.01)
    seed_everything(11)
    monitor = ll.Monitor(model, data, every=2, test=loader("plain")) if watched else None
    losses = []
    for epoch in range(8):
        model.train()
        for step, (x, y) in enumerate(data):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if monitor is not None and inside and step == 2:
                monitor.measure(10 * epoch)
        if monitor is not None and not inside:
            monitor(epoch)
    return everything(model, optimizer, losses), monitor.records if monitor is not None else []


@pytest.mark.parametrize("optimizer", [Adam, Momentum], ids=["adam", "momentum"])
@pytest.mark.parametrize("kind", ["plain", "own sampler", "own generator", "workers", "persistent workers"])
def test_a_training_is_bit_by_bit_the_same_with_and_without_a_monitor(kind: str, optimizer: Any) -> None:
    alone, _ = trained(kind, optimizer, watched=False)
    watched, records = trained(kind, optimizer, watched=True)
    assert len(alone["losses"]) == 40
    assert [record.settings["step"] for record in records] == [0, 2, 4, 6]
    assert differences(alone, watched) == []


@pytest.mark.parametrize("kind", ["plain", "persistent workers"])
def test_so_it_is_when_it_measures_in_the_middle_of_an_epoch(kind: str) -> None:
    alone, _ = trained(kind, Adam, watched=False)
    watched, records = trained(kind, Adam, watched=True, inside=True)
    assert len(records) == 8
    assert differences(alone, watched) == []


def test_the_comparison_sees_one_number_that_was_drawn() -> None:
    alone, _ = trained("plain", Adam, watched=False)
    seed_everything(11)
    torch.rand(())
    assert differences(alone, alone | {"draws": [0.0, 0.0, 0.0]}) == ["draws"]
    changed = alone["state 0.weight"].clone()
    changed[0, 0] = torch.nextafter(changed[0, 0], torch.tensor(9.0))
    assert differences(alone, alone | {"state 0.weight": changed}) == ["state 0.weight"]


def test_a_record_is_what_a_probe_of_the_same_data_gives() -> None:
    model, data = network(), (Blobs().x, Blobs().y)
    monitor = ll.Monitor(model, data, uncertainty=True)
    for epoch in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        record = monitor(epoch)
        assert record is not None
        own = ll.probe(model, data, progress=False, uncertainty=True)
        assert [site.values for site in record.sites] == [site.values for site in own.sites]
        assert [site.plane for site in record.sites] == [site.plane for site in own.sites]
        assert record.notes == own.notes


def test_the_same_data_are_measured_at_every_epoch_however_they_are_drawn() -> None:
    monitor = ll.Monitor(network(), loader("plain"))
    fingerprints = []
    for epoch in range(3):
        record = monitor(epoch)
        assert record is not None
        fingerprints.append(record.provenance["data_fingerprint"])
        torch.rand(5)
    assert len(set(fingerprints)) == 1


def test_a_network_that_changes_its_layers_is_looked_at_anew() -> None:
    model = network()
    monitor = ll.Monitor(model, (Blobs().x, Blobs().y))
    first = monitor(0)
    model[0] = nn.Sequential(nn.Linear(FEATURES, 30), nn.ReLU(), nn.Linear(30, FEATURES))
    second = monitor(1)
    assert first is not None
    assert second is not None
    assert len(second.sites) == len(first.sites) + 1


class Switched(nn.Module):
    """It leaves layers out where a list, which no plain attribute tells of, says so."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(5))
        self.head, self.out = nn.Linear(FEATURES, CLASSES), [False] * 5

    def forward(self, x: Tensor) -> Tensor:
        for layer, out in zip(self.layers, self.out, strict=True):
            x = x if out else layer(x).relu()
        return self.head(x)


def test_so_is_one_whose_layers_are_called_otherwise_than_before() -> None:
    model = Switched()
    monitor = ll.Monitor(model, (Blobs().x, Blobs().y))
    first, model.out[2] = monitor(0), True
    second = monitor(1)
    assert first is not None
    assert second is not None
    assert (len(first.sites), len(second.sites)) == (6, 5)


def test_it_measures_at_epochs_that_every_divides_and_when_told_to() -> None:
    monitor = ll.Monitor(network(), (Blobs().x, Blobs().y), every=5)
    assert [epoch for epoch in range(12) if monitor(epoch) is not None] == [0, 5, 10]
    assert monitor.measure(11) is monitor.record
    assert repr(monitor) == "Monitor(every=5): 4 measured"


def test_records_are_written_with_their_epochs_and_the_page_at_the_end(tmp_path: Path) -> None:
    with ll.Monitor(network(), (Blobs().x, Blobs().y), every=3, folder=tmp_path / "run") as monitor:
        for epoch in range(7):
            monitor(epoch)
    names = ["epoch-000000.json", "epoch-000003.json", "epoch-000006.json", "layerlaw.html", "movie.html"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
    read = Record.load(tmp_path / "run" / names[1])
    assert (read.name, read.settings["step"], read.settings["step_unit"]) == ("epoch 3", 3, "epoch")
    assert "Over training" in (tmp_path / "run" / "layerlaw.html").read_text(encoding="utf-8")


def test_the_law_stops_a_training_by_the_rule_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = ll.Monitor(network(), (Blobs().x, Blobs().y))
    model_of_law = [16.0, 8.0, 4.0, 2.0, 1.0]
    measured = monitor._measured

    def lawful() -> Record:
        record = measured()
        for site, value in zip([site for site in record.sites if site.in_fit], model_of_law, strict=True):
            site.values["separation"] = value
        return record

    monkeypatch.setattr(monitor, "_measured", lawful)
    seen = []
    for epoch in range(4):
        monitor(epoch)
        seen.append(monitor.should_stop)
    assert seen == [False, False, True, True]
    assert monitor.rule.since == 0


def test_whether_to_stop_is_asked_without_the_other_numbers() -> None:
    model = network()
    monitor = ll.Monitor(model, (Blobs().x, Blobs().y))
    for epoch in range(1, 4):
        monitor(epoch)
        with torch.no_grad():
            next(model.parameters()).mul_(1.1)
    asked = [curve() for _, curve in monitor._unseen if curve is not None]
    assert not monitor.should_stop
    assert all(waits(site, "values") for record in monitor.records for site in record.sites)
    assert asked == [[site.values["separation"] for site in record.sites] for record in monitor.records]
    again = UntilLaw()
    for record in monitor.records:
        again.update(record.settings["step"], record)
    assert repr(again) == repr(monitor.rule)


def test_the_rule_has_seen_all_records_whenever_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    often, seldom = (ll.Monitor(network(), (Blobs().x, Blobs().y)) for _ in range(2))
    monkeypatch.setattr(monitor_module, "MOST_UNSEEN", 2)
    for epoch in range(7):
        often(epoch)
        seldom(epoch)
        assert often.rule._last == epoch
        assert len(seldom._unseen) <= 2
    assert repr(often.rule) == repr(seldom.rule)
    seldom(8)
    old, seldom.rule = seldom._rule, UntilLaw()
    assert old._last == 8  # what was measured before it was changed was for the old one
    assert seldom.rule._last is None
    seldom(9)
    assert (seldom.rule._last, old._last) == (9, 8)


CHANGES: dict[str, Callable[[nn.Sequential, Tensor, Tensor], object]] = {
    "nothing": lambda model, x, y: None,
    "weights": lambda model, x, y: model[4].weight.data.mul_(1.5),
    "running statistics": lambda model, x, y: model[1].running_var.mul_(2),  # type: ignore[union-attr, operator]
    "labels": lambda model, x, y: y.copy_(y.flip(0)),
    "labels that torch does not see change": lambda model, x, y: np.from_dlpack(y)[:9].fill(2),
    "inputs": lambda model, x, y: x.mul_(3).sub_(1),
    "inputs that torch does not see change": lambda model, x, y: np.from_dlpack(x)[:9].fill(2),
    "a layer more": lambda model, x, y: model.insert(1, nn.Linear(FEATURES, FEATURES)),
    "a layer less": lambda model, x, y: model.pop(4),
    "another nonlinearity": lambda model, x, y: model.__setitem__(2, nn.Tanh()),
    "a wider layer": lambda model, x, y: (
        model.__setitem__(12, nn.Linear(FEATURES, 20)),
        model.__setitem__(13, nn.BatchNorm1d(20)),
        model.__setitem__(16, nn.Linear(20, CLASSES)),
    ),
    "eval mode": lambda model, x, y: model.eval(),
    "float64": lambda model, x, y: (model.double(), setattr(x, "data", x.data.double())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_that_is_kept_outlives_a_change(change: str) -> None:
    model, x, y = network(), Blobs().x.clone(), Blobs().y.clone()
    monitor = ll.Monitor(model, (x, y))
    monitor(0)
    monitor(1)
    CHANGES[change](model, x, y)
    again = monitor(2)
    fresh = ll.probe(model, (x, y), uncertainty=False, batch_size=1024, progress=False)
    assert again is not None
    found, wanted = again.to_dict(), fresh.to_dict()
    for name in ("created", "seconds"):
        found["provenance"].pop(name), wanted["provenance"].pop(name)
    found["settings"] = {k: v for k, v in found["settings"].items() if k not in ("step", "step_unit")}
    found["name"] = wanted["name"]
    assert_equal(found, wanted)
    before = monitor.records[1].to_dict()
    changed = [k for k in ("sites", "counts", "provenance") if before[k] != found[k]]
    assert bool(set(changed) - {"provenance"}) == (change not in ("nothing", "eval mode"))


def assert_equal(found: Any, wanted: Any) -> None:
    """But for the last digit of numbers, which are computed together with those of other measurements."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            assert_equal(found[name], value)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_equal(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-13, abs=0)
    else:
        assert found == wanted


def test_too_few_layers_for_a_law_are_told_once_when_somebody_asks() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    monitor = ll.Monitor(model, (Blobs().x, Blobs().y))
    monitor(0)
    with pytest.warns(UserWarning, match="should_stop never becomes True .*4 places along depth"):
        assert not monitor.should_stop
    assert not monitor.should_stop


def test_a_measurement_that_fails_warns_once_and_the_next_one_is_made() -> None:
    model = network()
    monitor = ll.Monitor(model, (Blobs().x, Blobs().y))
    good = model[0].weight.detach().clone()  # type: ignore[operator]
    assert monitor(0) is not None
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)  # type: ignore[operator]
    with pytest.warns(UserWarning, match="epoch 1 could not be measured .*NaN.*The training goes on"):
        assert monitor(1) is None
    assert monitor(2) is None  # a warning would be an error here
    with torch.no_grad():
        model[0].weight.copy_(good)  # type: ignore[arg-type]
    assert monitor(3) is not None
    assert [record.settings["step"] for record in monitor.records] == [0, 3]


def test_a_layer_that_collapsed_is_kept_and_sent(tmp_path: Path) -> None:
    model, sent = network(), []
    with torch.no_grad():
        model[8].weight.zero_()  # type: ignore[operator]
    x = torch.eye(CLASSES)[Blobs().y].repeat(1, 4)  # every class is one point: D = 0 at every layer
    writer = Writer(tmp_path)
    monitor = ll.Monitor(model, (x, Blobs().y), to=[lambda values, step: sent.append((step, values)), writer])
    record = monitor(0)
    assert record is not None
    assert not any(site.values["separation"] for site in record.sites)
    assert "layerlaw/rho" not in sent[0][1]
    assert not monitor.should_stop


class Writer:
    """What TensorBoard's does, kept in lists."""

    def __init__(self, folder: Path) -> None:
        self.log_dir, self.scalars, self.images = str(folder), [], []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def add_image(self, name: str, image: Any, step: int, dataformats: str) -> None:
        self.images.append((name, image.shape, step, dataformats))


def test_trackers_get_numbers_picture_and_page(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    with ll.Monitor(network(), (Blobs().x, Blobs().y), to=writer) as monitor:
        record = monitor(4)
    assert record is not None
    found = {name: value for name, value, step in writer.scalars if step == 4}
    assert found["layerlaw/separation/0"] == record.sites[0].values["separation"]
    assert found["layerlaw/rho"] == record.law().rho
    assert found["layerlaw/accuracy"] == record.accuracy
    (name, shape, step, order), *others = writer.images
    assert (name, shape[2], step, order, others) == ("layerlaw/law", 3, 4, "HWC", [])
    assert (tmp_path / "layerlaw.html").stat().st_size > 10_000


def test_a_tracker_that_raises_is_told_once_and_the_record_is_kept(tmp_path: Path) -> None:
    sent: list[int] = []

    def broken(values: dict[str, float], step: int) -> None:
        raise ConnectionError("the server is away")

    monitor = ll.Monitor(network(), (Blobs().x, Blobs().y), to=[broken, lambda values, step: sent.append(step)])
    words = "broken did not take epoch 0, the record is kept .ConnectionError: the server is away"
    with pytest.warns(UserWarning, match=words):
        assert monitor(0) is not None
    assert monitor(1) is not None
    assert sent == [0, 1]
    assert len(monitor.records) == 2


def test_a_folder_that_is_gone_is_told_once_and_the_record_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    monitor = ll.Monitor(network(), (Blobs().x, Blobs().y), folder=folder)
    folder.rmdir()
    with pytest.warns(UserWarning, match="epoch-000000.json could not be written, the record is kept"):
        assert monitor(0) is not None


def test_an_epoch_that_was_measured_is_not_measured_again() -> None:
    monitor = ll.Monitor(network(), (Blobs().x, Blobs().y))
    monitor(3)
    with pytest.warns(UserWarning, match="expected one epoch after the other, got 3 after 3"):
        assert monitor(3) is None


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(Blobs().x, Blobs().y, strict=True))


class Counted(Stream):
    def __len__(self) -> int:
        return SAMPLES


def test_a_stream_of_unknown_length_is_refused_and_one_of_known_length_is_read() -> None:
    with pytest.raises(InputError, match=r"IterableDataset without length.*itertools.islice"):
        ll.Monitor(network(), DataLoader(Stream(), batch_size=16))
    assert ll.Monitor(network(), DataLoader(Counted(), batch_size=16))(0) is not None
    few = list(itertools.islice(DataLoader(Stream(), batch_size=16), 5))
    assert ll.Monitor(network(), few)(0) is not None


PAIR = (Blobs().x, Blobs().y)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"every": 0}, InputError, "every: expected a whole number of at least 1, got 0"),
        ({"every": 2.5}, InputError, "every: expected a whole number of at least 1, got 2.5"),
        ({"model": "resnet"}, InputError, "model: expected an nn.Module, got 'resnet'"),
        ({"data": iter([PAIR])}, InputError, "data: expected data that can be read again and again"),
        ({"test": iter([PAIR])}, InputError, "test: expected data that can be read again and again"),
        ({"to": "tensorboard"}, InputError, "to: expected a SummaryWriter, a wandb run, the module mlflow"),
        ({"uncertain": True}, TypeError, "unexpected keyword argument 'uncertain'. Did you mean 'uncertainty'"),
        ({"evry": 2}, TypeError, r"Monitor\(\) got an unexpected keyword argument 'evry'. Did you mean 'every'"),
        ({"seed": -1}, InputError, "seed: expected a whole number"),
        ({"at_end": "no"}, InputError, "at_end: expected"),
        ({"sites": "nothing*"}, CaptureError, r"site 'nothing\*' matches no module of the model"),
        ({"sites": ["input", nn.Conv2d]}, CaptureError, "expected a choice that matches a module .*Conv2d"),
        (
            {"to": lambda values: None},
            InputError,
            r"to: expected a function of \(numbers, step\), got <lambda>\(values\)",
        ),
    ],
)
def test_bad_input_is_answered_before_the_training(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given = {"model": network(), "data": PAIR} | change
    with pytest.raises(error, match=words):
        ll.Monitor(given.pop("model"), given.pop("data"), **given)


def test_an_epoch_must_be_a_whole_number_and_a_page_needs_a_record(tmp_path: Path) -> None:
    monitor = ll.Monitor(network(), PAIR)
    with pytest.raises(InputError, match=r"epoch: expected a whole number of at least 0, got 0.5"):
        monitor(0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="page: expected at least one measured epoch, got none"):
        monitor.page(tmp_path / "page.html")
    with pytest.raises(InputError, match="movie: expected at least one measured epoch, got none"):
        monitor.movie(tmp_path / "movie.html")


def test_a_finished_monitor_leaves_page_and_movie_in_its_folder(tmp_path: Path) -> None:
    with ll.Monitor(network(), PAIR, folder=tmp_path) as monitor:
        for epoch in (0, 1):
            monitor(epoch)
    assert {"movie.html", "layerlaw.html"} <= {file.name for file in tmp_path.iterdir()}
    assert 'id="movie"' in (tmp_path / "movie.html").read_text(encoding="utf-8")


def test_a_call_after_the_end_is_measured_and_told_to_be_on_no_page(tmp_path: Path) -> None:
    monitor = ll.Monitor(network(), PAIR, folder=tmp_path)
    for epoch in (0, 1):
        monitor(epoch)
    monitor.finish()
    before = (tmp_path / "layerlaw.html").read_text(encoding="utf-8")
    with pytest.warns(UserWarning, match=r"epoch 2 is measured after finish\(\), .* call finish\(\) again at the end"):
        assert monitor(2) is not None
    assert (tmp_path / "layerlaw.html").read_text(encoding="utf-8") == before
    assert monitor(3) is not None  # told once
    monitor.finish()
    assert "epoch 3" in (tmp_path / "layerlaw.html").read_text(encoding="utf-8")
    assert "epoch 3" not in before


def test_a_sharded_model_is_refused() -> None:
    class Sharded(nn.Parameter):
        def full_tensor(self) -> Tensor:
            return self

    model = network()
    model[0].weight = Sharded(torch.zeros(FEATURES, FEATURES))
    with pytest.raises(InputError, match="expected whole weights in every process, got a sharded model"):
        ll.Monitor(model, PAIR)
    zero = network()
    zero[0].weight.ds_id = 0  # type: ignore[union-attr]
    with pytest.raises(InputError, match="DeepSpeed ZeRO-3"):
        ll.Monitor(zero, PAIR)


def test_a_loader_is_read_again_with_the_samples_of_its_sampler() -> None:
    data = TensorDataset(torch.arange(20).float()[:, None], torch.arange(20) % 2)

    def read(**how: Any) -> list[int]:
        again = reread(DataLoader(data, **how))
        once, twice = ([int(v) for x, _ in again for v in x.flatten()] for _ in range(2))
        assert once == twice
        return once

    assert read(batch_size=6) == list(range(20))
    assert sorted(read(batch_size=6, shuffle=True)) == list(range(20)) != read(batch_size=6, shuffle=True)
    assert sorted(read(batch_size=2, sampler=SubsetRandomSampler([3, 5, 9]))) == [3, 5, 9]
    assert set(read(batch_size=4, sampler=WeightedRandomSampler([0.0] * 10 + [1.0] * 10, 12))) <= set(range(10, 20))
    batches = [[1, 2], [5, 6]]
    own: Any = type("Own", (BatchSampler,), {"__iter__": lambda self: iter(batches), "__len__": lambda self: 2})
    assert read(batch_sampler=own(range(20), 2, False)) == [1, 2, 5, 6]
    assert len(read(batch_size=6, drop_last=True)) == 18


def test_a_language_model_is_measured_on_text() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(64, (60, 32), generator=torch.Generator().manual_seed(0))
    before, random_state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    monitor = ll.Monitor(model, ll.lm.pieces_of(ids, length=32))
    record = monitor(0)
    assert record is not None
    assert [site.name for site in record.sites if site.in_fit] == [f"model.layers.{i}" for i in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(random_state, torch.get_rng_state())
    with pytest.raises(InputError, match="test: expected none for a language model"):
        ll.Monitor(model, "some text", test=PAIR)


class Transform:
    """Something that draws from a generator of its own."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.own: Any = {
            "numpy": np.random.default_rng, "old": np.random.RandomState, "python": random.Random,
            "torch": lambda seed: torch.Generator().manual_seed(seed),
        }[kind](seed)  # fmt: skip

    def draw(self) -> float:
        if self.kind == "torch":
            return float(torch.rand((), generator=self.own))
        return float(self.own.random() if self.kind != "old" else self.own.rand())


def test_generators_are_found_wherever_a_data_set_holds_them() -> None:
    kinds = ("numpy", "old", "python", "torch")
    parts = [Transform(kinds[i % 4], i) for i in range(24)]
    holder = SimpleNamespace(
        a=SimpleNamespace(list=parts[:8]), b={"some": tuple(parts[8:16])}, c=partial(print, parts[16], more=parts[17]),
        d=SimpleNamespace(e=SimpleNamespace(f=SimpleNamespace(g=parts[18:]))),
    )  # fmt: skip
    holder.itself = holder
    expected = [part.draw() for part in parts]
    parts_again = [Transform(kinds[i % 4], i) for i in range(24)]
    for part, again in zip(parts, parts_again, strict=True):
        part.own = again.own
    with seeded(0, DataLoader([1, 2], collate_fn=holder)):  # type: ignore[arg-type]
        assert [part.draw() for part in parts] == expected
    assert [part.draw() for part in parts] == expected
