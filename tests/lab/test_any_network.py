"""Any network and any loss through recipe and sweep: the same care as for fleets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lab_parts import EVERYTHING, clouds, kill_on_the_way, numbers, same_networks
from seam_parts import Pull, Pulling, SameEntropy, TinyConv, conv_sweep, pictures
from torch import nn
from torch.nn import functional as F

import layerlaw as ll
from layerlaw.errors import InputError
from layerlaw.lab import (
    Architecture,
    CrossEntropy,
    Loss,
    Measurement,
    Recipe,
    Run,
    Samples,
    Schedule,
    Shape,
    jobs,
    sweep,
    sweeping,
    train,
)
from layerlaw.lab.jobs import Checkpoint
from layerlaw.lab.training import SingleEngine

PICTURES = pictures()
CONV = Recipe(TinyConv(), epochs=4, batch_size=20, learning_rate=0.01, seed=5)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def quiet(recipes: list[Recipe], data: Samples = PICTURES, **how: Any) -> list[Run]:
    return sweep(recipes, data, **{"progress": False, "workers": 1, **how})


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_convolutional_network_is_trained_as_by_a_loop_written_by_hand(optimizer: str) -> None:
    recipe = replace(CONV, optimizer=optimizer, epochs=6)
    run = quiet([recipe])[0]
    x, y = PICTURES.inputs, PICTURES.labels
    torch.manual_seed(5)
    network = TinyConv().build()
    how: dict[str, Any] = {"lr": 0.01, "weight_decay": 5e-4}
    steps: torch.optim.Optimizer
    if optimizer == "adam":
        steps = torch.optim.Adam(network.parameters(), fused=True, **how)  # as the recipe: else Adam drifts
    else:
        steps = torch.optim.SGD(network.parameters(), momentum=0.9 if optimizer == "momentum" else 0, **how)
    drops = torch.optim.lr_scheduler.MultiStepLR(steps, [2, 4], gamma=0.1)
    generator, losses = torch.Generator().manual_seed(5), []
    for _ in range(6):
        total = 0.0
        for rows in torch.randperm(90, generator=generator).split(20):
            steps.zero_grad()
            loss = F.cross_entropy(network(x[rows]), y[rows])
            loss.backward()
            steps.step()
            total += loss.item() * len(rows)
        drops.step()
        losses.append(total / 90)
    assert run.losses == pytest.approx(losses, rel=1e-6)
    for name, tensor in run.network().state_dict().items():
        torch.testing.assert_close(tensor, network.state_dict()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layers", [None, (1, 3)], ids=str)
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
def test_a_feed_forward_network_gets_the_numbers_of_the_fleet(norm: bool, layers: tuple[int, int] | None) -> None:
    samples = clouds(150, test=41)
    fleet = Recipe(Shape(12, (16, 10), 4, norm), epochs=4, batch_size=32, learning_rate=0.01, layers=layers)
    plain = replace(fleet, loss=SameEntropy())
    start = [quiet([replace(fleet, seed=9, layers=None)], samples)[0].state] * 2
    for how in ({}, {"start": start}, {"start": start, "copied": (0, 2)}):
        theirs, mine = quiet([fleet, plain], samples, schedule=EVERYTHING, **how)
        assert mine.losses == pytest.approx(theirs.losses, rel=1e-5)
        for a, b in zip(mine.measurements, theirs.measurements, strict=True):
            same_measurement(a, b, rel=2e-3)
        for a, b in zip(mine.measurements[:9], theirs.measurements[:9], strict=True):
            same_measurement(a, b, rel=1e-5)  # of one and the same network: before the first epoch
        for name, tensor in mine.network().state_dict().items():
            noise = norm and name.startswith("linear") and name.endswith(".bias")  # in front of BatchNorm
            if not (noise or "tracked" in name):  # the fleet counts its own steps alone
                torch.testing.assert_close(tensor, theirs.network().state_dict()[name], rtol=1e-2, atol=2e-4)
        assert mine.lost_rank() == theirs.lost_rank()


def same_measurement(a: Measurement, b: Measurement, rel: float) -> None:
    assert (a.epoch, a.batchnorm, a.split, a.rank, a.sites, a.widths) == (
        *(b.epoch, b.batchnorm, b.split, b.rank, b.sites, b.widths),
    )
    assert a.separation == pytest.approx(b.separation, rel=rel)
    assert a.nearest == pytest.approx(b.nearest, abs=1e-9 if rel < 1e-4 else 0.02)
    assert (a.loss is None) == (b.loss is None) == (a.split == "permuted")
    if a.loss is not None:
        assert a.accuracy == pytest.approx(b.accuracy, abs=1e-9 if rel < 1e-4 else 0.02)
        assert a.loss == pytest.approx(b.loss, rel=rel)
    assert (a.by_class is None) == (b.by_class is None)
    for mine, theirs in zip(a.by_class or (), b.by_class or (), strict=True):
        assert mine == pytest.approx(theirs, rel=rel)


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
def test_measurements_equal_a_probe(batchnorm: Any) -> None:
    run = quiet([CONV], schedule=EVERYTHING)[0]
    train, test = (PICTURES.inputs, PICTURES.labels), (PICTURES.test_inputs, PICTURES.test_labels)
    record = ll.probe(run.network(), train, test=test, batchnorm=batchnorm, progress=False)
    for split, before in (("train", ""), ("test", "test_")):
        found = run.measurement(batchnorm=batchnorm, split=split)
        assert list(found.sites) == [site.name for site in record.sites]
        assert list(found.widths) == [site.features for site in record.sites]
        assert list(found.separation) == pytest.approx(record.column(f"{before}separation"), rel=1e-5)
        assert list(found.nearest) == pytest.approx(record.column(f"{before}ncc_accuracy"), abs=1e-9)
        assert found.accuracy == pytest.approx(record.test_accuracy if before else record.accuracy)


def test_the_loss_that_is_measured_is_that_of_the_network_in_every_mode() -> None:
    run = quiet([CONV], schedule=EVERYTHING)[0]
    x, y = PICTURES.inputs, PICTURES.labels
    for batchnorm in ("batch", "running", "whole"):
        network = run.network().train(batchnorm != "running")
        with torch.no_grad():
            expected = F.cross_entropy(network(x), y).item()  # 90 samples are one chunk
        assert run.measurement(batchnorm=batchnorm).loss == pytest.approx(expected, rel=1e-5)
    assert run.measurement(split="permuted").loss is None
    assert run.measurement(batchnorm="running").loss != pytest.approx(run.measurement().loss, rel=1e-3)


def test_without_batchnorm_the_modes_are_the_same_and_sites_can_be_chosen() -> None:
    recipe = replace(CONV, network=TinyConv(batchnorm=False))
    run = quiet([recipe], schedule=replace(EVERYTHING, sites=("0", "3")))[0]
    assert len(run.measurements) == 3 * 15
    one, two = run.measurement(batchnorm="batch"), run.measurement(batchnorm="whole")
    assert replace(two, batchnorm="batch") == one
    assert one.sites == ("0", "3")
    fleet = Recipe(Shape(36, (8, 8), 4), epochs=2, batch_size=20)
    chosen = quiet([fleet], schedule=Schedule(sites=("linear1",)))[0].measurement()
    assert chosen.sites == ("linear1",)


def test_measuring_changes_nothing_of_the_training() -> None:
    dropout = replace(CONV, network=TinyConv(dropout=0.5))
    often, once = quiet([dropout], schedule=EVERYTHING), quiet([dropout])
    assert often[0].losses == once[0].losses
    assert same_networks(often, once)


def test_a_training_depends_on_its_seed_alone() -> None:
    dropout = replace(CONV, network=TinyConv(dropout=0.5))
    torch.manual_seed(1)
    alone = quiet([dropout])
    torch.manual_seed(2)
    state = torch.get_rng_state()
    _, among, _ = quiet([replace(dropout, seed=1), dropout, CONV])
    assert torch.equal(torch.get_rng_state(), state)
    assert numbers(alone) == numbers([among])
    assert same_networks(alone, [among])


def test_a_loss_sees_features_with_gradients_and_its_parameters_learn() -> None:
    x, y = PICTURES.inputs, PICTURES.labels
    loss = Pull(alpha=0.3)
    engine = SingleEngine(replace(CONV, loss=loss), PICTURES, Schedule())
    torch.manual_seed(5)
    network, by_hand = TinyConv().build(), Pulling(0.3)
    parameters = [*network.parameters(), *by_hand.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4, fused=True)
    features: dict[str, torch.Tensor] = {}
    for name in loss.sites:
        network.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: features.update({name: out.flatten(1)})
        )
    total = 0.0
    for rows in torch.randperm(90, generator=torch.Generator().manual_seed(5)).split(20):
        logits = network(x[rows])
        value = by_hand(logits, y[rows], features)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        total += value.item() * len(rows)
    assert float(engine.train_epoch(0)) == pytest.approx(total / 90, rel=1e-6)
    for name, tensor in engine.state_dicts()[0].items():
        torch.testing.assert_close(tensor, network.state_dict()[name])
    kept = engine.state()["criterion"]
    assert int(kept["steps"]) == 5
    torch.testing.assert_close(kept["weight"], by_hand.weight.detach())
    assert float(kept["weight"]) != pytest.approx(0.3, abs=1e-4)


def test_a_loss_chooses_its_sites_as_a_probe_does() -> None:
    engine = SingleEngine(replace(CONV, loss=Pull("auto")), PICTURES, Schedule())  # type: ignore[arg-type]
    engine.train_epoch(0)
    record = ll.probe(TinyConv().build(), (PICTURES.inputs, PICTURES.labels), progress=False)
    assert engine._trainer.criterion.seen == [[site.name for site in record.sites]] * 5
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in engine._trainer.network.modules())


def test_train_takes_the_loss_of_the_recipe() -> None:
    recipe = replace(CONV, loss=Pull())
    torch.manual_seed(5)
    network = TinyConv().build()
    losses = train(network, PICTURES.inputs, PICTURES.labels, recipe, progress=False)
    assert losses == pytest.approx(quiet([recipe])[0].losses, rel=1e-6)
    assert losses != pytest.approx(quiet([CONV])[0].losses, rel=1e-4)


def test_a_network_that_diverges_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    wild = replace(CONV, network=TinyConv(batchnorm=False), optimizer="momentum", learning_rate=1e6, drops=())
    runs = quiet([CONV, wild, replace(CONV, seed=6)], schedule=Schedule(epochs=(0,), by_class=True), folder=tmp_path)
    assert [run.diverged is None for run in runs] == [True, False, True]
    assert runs[1].diverged == 1 + next(i for i, loss in enumerate(runs[1].losses) if not math.isfinite(loss))
    last = runs[1].measurement()
    assert last.separation[0] is not None  # of the pictures, which are well
    assert last.separation[1:] == (None, None)
    assert last.by_class is not None
    assert last.by_class[1:] == ((None,) * 4,) * 2
    assert (last.loss, last.accuracy, runs[1].law()) == (None, None, None)
    assert runs[1].measurement(epoch=0).separation[1] is not None
    assert numbers([runs[0]]) == numbers(quiet([CONV], schedule=Schedule(epochs=(0,), by_class=True)))
    table = json.loads((tmp_path / "sweep.json").read_text())
    assert [run["diverged"] for run in table["runs"]] == [run.diverged for run in runs]


def test_a_dead_network_has_no_separation() -> None:
    engine = SingleEngine(replace(CONV, network=TinyConv(batchnorm=False)), PICTURES, Schedule(test=True))
    engine._trainer.network[0].bias.data.fill_(-1e3)
    for measurement in engine.measure(0)[0]:
        assert measurement.separation[0] is not None
        assert measurement.separation[1:] == (None, None)
        assert measurement.loss is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38, 1e20, 1e12], ids=str)
@pytest.mark.parametrize("batchnorm", [True, False], ids=["norm", "no norm"])
def test_a_broken_network_is_measured_where_it_is_sound(batchnorm: bool, bad: float) -> None:
    engine = SingleEngine(replace(CONV, network=TinyConv(batchnorm=batchnorm)), PICTURES, EVERYTHING)
    before = engine.measure(0)[0]
    with torch.no_grad():
        engine._trainer.network[0].weight.fill_(bad)
    for measurement, sound in zip(engine.measure(0)[0], before, strict=True):
        assert measurement.separation[0] == sound.separation[0]
        if not math.isfinite(bad):
            assert measurement.separation[1:] == measurement.nearest[1:] == (None, None)
            assert (measurement.loss, measurement.accuracy) == (None, None)
        told = [*measurement.separation, *measurement.nearest, measurement.loss, measurement.accuracy]
        assert all(value is None or math.isfinite(value) for value in told)


def test_fleets_and_other_networks_share_a_sweep_its_folder_and_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Recipe(Shape(36, (8,), 4), epochs=4, batch_size=20, learning_rate=0.01)
    recipes = [CONV, *fleet.grid(seed=(1, 2)), replace(CONV, seed=6, loss=Pull())]
    here = quiet(recipes)
    monkeypatch.setattr(sweeping, "WORTH_PROCESSES", 0)
    there = quiet(recipes, workers=2, folder=tmp_path)
    assert numbers(here) == numbers(there)
    assert same_networks(here, there)
    names = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert names == ["fleet", "network", "network", "sweep.json"]
    monkeypatch.setattr(jobs, "_run", lambda *given: pytest.fail("something was trained again"))
    assert numbers(quiet(recipes[::-1], folder=tmp_path)) == numbers(here[::-1])


def test_a_family_that_the_running_script_defines_is_trained_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(sweeping, "run_in_processes", lambda *given: pytest.fail("no other process knows the family"))
    monkeypatch.setattr(TinyConv, "__module__", "__main__")
    recipes = [CONV, replace(CONV, seed=6)]
    words = (
        r"^workers=2: all is trained in this process, since other processes cannot import TinyConv \(defined in the "
        r"running script\)\. For 2 processes, put it at the top level of a module that the script imports\.$"
    )
    with pytest.warns(UserWarning, match=words) as told:
        assert all(run.finished for run in quiet(recipes, workers=2))
    assert [warning.filename for warning in told] == [__file__]
    monkeypatch.setattr(sweeping, "cores", lambda: 2)
    assert all(run.finished for run in quiet(recipes, workers=None))  # nothing was asked for: no warning


def test_a_family_that_a_function_defines_is_trained_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class InnerConv(TinyConv):
        kind: ClassVar[str] = "inner_conv"

    recipes = [replace(CONV, network=InnerConv(), loss=loss) for loss in (CONV.loss, Pull())]
    with pytest.warns(
        UserWarning, match=r"cannot import InnerConv \(defined in a function\)\. For 2 processes, put it"
    ):
        runs = quiet(recipes, workers=2)
    assert all(run.finished for run in runs)
    monkeypatch.setattr(Pull, "__module__", "__main__")
    words = r"import InnerConv \(defined in a function\), Pull \(defined in the running script\)\. .* put them at"
    with pytest.warns(UserWarning, match=words):
        quiet(recipes, workers=2)


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    parts = kill_on_the_way(folder, 1, 20, "conv")
    assert sorted((part.epoch, part.done) for part in parts) == [(3, False), (8, True), (8, True)]
    recipes, samples = conv_sweep()
    steps: list[int] = []

    def progress(items: Iterable[int], label: str, total: int | None) -> Iterator[int]:
        for item in items:
            steps.append(item)
            yield item

    resumed = quiet(recipes, samples, schedule=EVERYTHING, folder=folder, progress=progress)
    assert len(steps) == 5
    whole = quiet(recipes, samples, schedule=EVERYTHING)
    assert numbers(resumed) == numbers(whole)
    assert same_networks(resumed, whole)


@pytest.mark.parametrize("number", range(3))
def test_every_epoch_can_be_the_last_before_an_interruption(number: int, tmp_path: Path) -> None:
    recipes, samples = conv_sweep()
    whole = quiet([recipes[number]], samples, schedule=EVERYTHING)
    member = jobs.Member(recipes[number], samples, "key")
    job = jobs.Job([member], EVERYTHING, file=tmp_path / "network-1.pt")
    for _ in range(8):
        part = jobs.run(job, lambda epoch, loss: False)  # one epoch at a time
    assert part.done
    again = Checkpoint.from_file(tmp_path / "network-1.pt")[0].runs()["key"]
    assert numbers([again]) == numbers(whole)
    assert same_networks([again], whole)


def test_kept_networks_come_back_as_they_were() -> None:
    run = quiet([CONV], schedule=Schedule(epochs=(0, 2), keep=True))[0]
    torch.manual_seed(5)
    fresh = TinyConv().build().state_dict()
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in run.network(0).state_dict().items())
    shorter = quiet([CONV], schedule=Schedule(epochs=(2,)))[0]
    assert run.measurement(epoch=2) == shorter.measurement(epoch=2)


def test_recipes_of_any_kind_survive_a_trip_through_json() -> None:
    for recipe in (CONV, replace(CONV, loss=Pull(("2",), 0.5)), replace(CONV, network=TinyConv((3, 3, 3), 5))):
        plain = json.loads(json.dumps(recipe.to_dict()))
        assert plain["network"]["kind"] == "tiny_conv"
        again = Recipe.from_dict(plain)
        assert again == recipe
        assert hash(again) == hash(recipe)
    assert Recipe(loss="same_entropy").loss == SameEntropy()
    assert Recipe().loss == CrossEntropy()


def test_descriptions_say_what_they_know() -> None:
    network = TinyConv()
    assert network.norm
    assert not TinyConv(batchnorm=False).norm
    assert network.multiplications((1, 6, 6)) == 36 * 9 * (4 + 24) + 24 * 4
    assert Shape(12, (16, 10), 4).multiplications((12,)) == 12 * 16 + 160 + 40
    before = torch.get_rng_state()
    network.check(PICTURES, 20)
    assert torch.equal(before, torch.get_rng_state())
    assert "tiny_conv" in Architecture.kinds
    assert "pull" in Loss.kinds
    with pytest.raises(TypeError, match="expected its own name for Other, 'tiny_conv' is TinyConv"):
        type("Other", (TinyConv,), {"kind": "tiny_conv"})


@pytest.mark.parametrize(
    ("recipe", "samples", "words"),
    [
        (CONV, clouds(60), r"network: expected one that takes samples of shape \(12,\), got tiny conv \(4, 6\), whose"),
        (
            replace(CONV, batch_size=89),
            PICTURES,
            "batches of at least 2 samples for BatchNorm, but 90 samples in batches",
        ),
        (CONV, pictures(classes=3), r"expected a classifier of 3 outputs .*, got 4\. TinyConv\(…, classes=3\)"),
        (replace(CONV, network=TinyConv(classes=3)), PICTURES, "network: expected at most 3 classes, got samples of 4"),
        (replace(CONV, loss=Pull(("nothing",))), PICTURES, "site 'nothing' matches no module"),
        (Recipe(Shape(35, (8,), 4)), PICTURES, r"expected 35 numbers per sample \(depth 2, width 8\), got 1 × 6 × 6"),
    ],
    ids=["shape", "one alone", "too many classes", "too few", "site", "numbers"],
)
def test_what_does_not_go_together_is_answered(recipe: Recipe, samples: Samples, words: str) -> None:
    with pytest.raises(ll.LayerlawError, match=words):
        quiet([recipe], samples)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: replace(CONV, layers=(0, 1)), r"layers: expected None for tiny conv \(4, 6\), which has no numbered"),
        (
            lambda: Recipe(network=TinyConv().build()),
            r"network: .*'resnet18', got a \w+\. .*Architecture with build\(\); see docs/lab",
        ),
        (lambda: Recipe(loss=nn.CrossEntropyLoss()), r"loss: expected a description such as CrossEntropy\(\), got"),
        (lambda: Recipe(loss="cross entropy"), "loss: expected one of the kinds cross_entropy, .* mean cross_entropy"),
        (lambda: Architecture.from_dict({"kind": "vgg"}), "network: expected one of the kinds feed_forward, .*'vgg'"),
        (lambda: Schedule(sites=(3,)), "sites: expected 'auto', 'layers', 'blocks' or names of modules, got"),
        (
            lambda: ll.lab.Fleet([CONV], [PICTURES]),
            r"fleet: expected feed-forward networks, got tiny conv .*sweep trains",
        ),
        (lambda: quiet([CONV], start=[{}]), r"start: expected '0.weight' of shape \(4, 1, 3, 3\), got nothing"),
    ],
)
def test_slips_of_the_pen_are_answered(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_samples_keep_their_shape_and_a_feed_forward_network_flattens_them() -> None:
    assert PICTURES.inputs.shape == (90, 1, 6, 6)
    flat = PICTURES.flat()
    assert (flat.inputs.shape, flat.test_inputs.shape) == ((90, 36), (40, 36))
    assert flat.checksum == PICTURES.checksum
    assert flat.flat() is flat
    recipe = Recipe(Shape(36, (8,), 4), epochs=3, batch_size=20)
    assert numbers(quiet([recipe], PICTURES, schedule=EVERYTHING)) == numbers(
        quiet([recipe], flat, schedule=EVERYTHING)
    )
    assert (
        Samples.of((PICTURES.inputs, PICTURES.labels), (flat.test_inputs, flat.test_labels)).checksum == flat.checksum
    )
    assert asdict(PICTURES.held_back(0.5))["inputs"].shape[1:] == (1, 6, 6)
