"""Networks for images through recipe and sweep: a plain loop's numbers, interruptions, divergence, measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_parts import IMAGES, NETWORKS, RECIPE, image_sweep, plain_losses
from lab_parts import EVERYTHING, kill_on_the_way, numbers, same_networks

import layerlaw as ll
from layerlaw.data import load
from layerlaw.errors import InputError
from layerlaw.lab import Architecture, Recipe, Run, Samples, Schedule, Shape, jobs, processes, sweep, trainer
from layerlaw.lab.trainer import Trainer, arithmetic
from layerlaw.lab.training import SingleEngine
from oracle import separation


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def quiet(recipes: list[Recipe], data: Samples = IMAGES, **how: Any) -> list[Run]:
    return sweep(recipes, data, **{"progress": False, "workers": 1, **how})


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("family", NETWORKS)
def test_the_first_epochs_are_those_of_a_plain_loop(family: str, optimizer: Any) -> None:
    recipe = replace(RECIPE, network=NETWORKS[family], optimizer=optimizer, learning_rate=0.003)
    losses, network = plain_losses(recipe, IMAGES, 4)
    run = quiet([recipe])[0]
    assert run.losses == pytest.approx(losses, rel=1e-4)
    assert run.losses[-1] < run.losses[0]
    assert run.how == ("float32, on cpu",)
    for name, tensor in run.network().state_dict().items():
        if optimizer == "momentum":  # Adam amplifies rounding where gradients are nearly zero
            torch.testing.assert_close(tensor, network.state_dict()[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("worth", "threads"), [(math.inf, 1), (0, 3)])
def test_only_large_steps_take_the_threads_there_are(
    worth: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, found = processes.run, []

    def seen(job: jobs.Job, report: Any) -> jobs.Checkpoint:
        found.append(torch.get_num_threads())
        return run(job, report)

    monkeypatch.setattr(processes, "WORTH_THREADS", worth)
    monkeypatch.setattr(processes, "run", seen)
    torch.set_num_threads(3)
    quiet([replace(RECIPE, epochs=1)])
    assert found == [threads]
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("epoch_s", "save_s", "apart"), [(10, 0.4, 1), (1, 0.01, 1), (1, 0.4, 9), (1, 30, 61)])
def test_what_a_kill_can_lose_is_an_epoch_or_twenty_saves_or_a_minute(
    epoch_s: float, save_s: float, apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of the test's own: how many epochs lie between two saves."""
    now, saved = [0.0], [0]

    def train_epoch(self: SingleEngine, epoch: int) -> torch.Tensor:
        now[0] += epoch_s
        return torch.tensor([1.0])

    def to_file(self: jobs.Checkpoint, path: Path, state: object = None) -> None:
        now[0] += save_s
        saved.append(self.epoch)

    monkeypatch.setattr(jobs.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(SingleEngine, "train_epoch", train_epoch)
    monkeypatch.setattr(jobs.Checkpoint, "to_file", to_file)
    member = jobs.Member(replace(RECIPE, epochs=200), IMAGES, "key")
    jobs.run(jobs.Job([member], Schedule(), file=tmp_path / "job.pt"))
    gaps = [b - a for a, b in pairwise(saved)]
    assert max(gaps) == apart
    assert saved[-1] == 200


def test_a_residual_network_learns_fashion_mnist_and_its_blocks_separate_the_classes() -> None:
    images = load().balanced(20).resized(16)
    held_out = load(split="test").resized(16)
    samples = Samples.of(images.tensors("dataset"), held_out.tensors("dataset"))
    network = Architecture.named("resnet_2layer", inputs=1, side=16)
    recipe = Recipe(network, epochs=12, batch_size=50, learning_rate=3e-3, seed=1)
    run = quiet([recipe], samples, schedule=Schedule(epochs=(0,), sites="blocks", test=True))[0]
    before, after = (run.measurement(epoch=epoch, batchnorm="batch").separation for epoch in (0, 12))
    assert run.losses[-1] < 0.5 * run.losses[0]
    assert list(after) == sorted(after, reverse=True)  # every block separates
    assert after[-1] < before[-1]  # of the untrained network, with few images for so many features
    assert run.measurement(split="test", batchnorm="running").accuracy > 0.5


def test_d_is_that_of_the_flattened_features() -> None:
    run = quiet([RECIPE], schedule=Schedule(batchnorm=("running",), sites="layers", branches=True))[0]
    found, network = run.measurement(batchnorm="running"), run.network()
    seen: dict[str, np.ndarray] = {}
    for name in found.sites:
        network.get_submodule(name).register_forward_pre_hook(
            lambda module, args, name=name: seen.update({name: args[0].flatten(1).double().numpy()})
        )
    with torch.no_grad():
        network(IMAGES.inputs)
    assert len(found.sites) == 11  # 3 + 3 + 2 + 2 layers and the classifier
    for name, D in zip(found.sites, found.separation, strict=True):
        assert pytest.approx(separation(seen[name], IMAGES.labels, 4), rel=1e-4) == D, name


def test_rows_on_branches_are_taken_in_on_request_only() -> None:
    every, trunk = (quiet([RECIPE], schedule=Schedule(sites="layers", branches=b))[0] for b in (True, False))
    on_trunk = [f"stage{s}.{b}.branch.conv1" for s in (1, 2) for b in (0, 1)] + ["classifier"]
    assert list(trunk.measurement().sites) == on_trunk
    places = [every.measurement().sites.index(name) for name in on_trunk]
    assert [every.measurement().separation[i] for i in places] == list(trunk.measurement().separation)
    assert every.losses == trunk.losses
    blocks = quiet([RECIPE], schedule=Schedule(sites="blocks"))[0].measurement()
    assert blocks.separation[1:] == pytest.approx(trunk.measurement().separation[1:], rel=1e-6)
    assert blocks.separation[0] == pytest.approx(trunk.measurement().separation[0], rel=1e-5)  # repeated channels


def test_a_trained_network_is_measured_again_elsewhere() -> None:
    schedule = replace(EVERYTHING, sites="blocks", keep=True)
    run = quiet([RECIPE], schedule=schedule)[0]
    same = run.measured(IMAGES, schedule)
    assert [(m.epoch, m.batchnorm, m.split) for m in same.measurements] == [
        (m.epoch, m.batchnorm, m.split) for m in run.measurements
    ]
    for again, first in zip(same.measurements, run.measurements, strict=True):
        assert again.separation == pytest.approx(first.separation, rel=1e-6)
    layers = run.measured(IMAGES, Schedule(sites="layers", branches=True))
    assert len(layers.measurement().sites) == 11
    assert {m.epoch for m in layers.measurements} == {4}
    assert (layers.losses, layers.recipe, len(layers.law().values)) == (run.losses, run.recipe, 11)
    with pytest.raises(InputError, match=r"expected images of 1 channels .*got samples of 3 × 8 × 8"):
        run.measured(Samples.of((IMAGES.inputs.repeat(1, 3, 1, 1), IMAGES.labels)), Schedule())


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
def test_measurements_equal_a_probe(batchnorm: Any) -> None:
    recipe = replace(RECIPE, network=NETWORKS["strided"])
    run = quiet([recipe], schedule=replace(EVERYTHING, sites="blocks"))[0]
    pair = (IMAGES.inputs, IMAGES.labels)
    record = ll.probe(run.network(), pair, batchnorm=batchnorm, sites="blocks", progress=False)
    found = run.measurement(batchnorm=batchnorm)
    fitted = {site.name: site.values["separation"] for site in record.sites if site.in_fit}  # and one of the scores
    assert list(found.sites) == list(fitted)
    assert list(found.separation) == pytest.approx(list(fitted.values()), rel=1e-5)


def test_a_network_that_diverges_is_reported_and_the_others_go_on() -> None:
    network = Architecture.named("vgg11", stages=((4,), (4,)), side=8, inputs=1, classes=4, batchnorm=False)
    wild = replace(RECIPE, network=network, optimizer="momentum", learning_rate=1e6, drops=())
    runs = quiet([RECIPE, wild, replace(RECIPE, seed=6)])
    assert [run.diverged is None for run in runs] == [True, False, True]
    assert runs[1].measurement().separation[-1] is None
    assert runs[0].losses == quiet([RECIPE])[0].losses
    assert runs[0].losses != runs[2].losses


class Replayed:
    """Stands in for a CUDA graph: the same warm-up, then the step itself whenever it is called."""

    def __init__(self, trainer: Trainer, size: int, *shared: object) -> None:
        self._step = trainer.step
        for _ in range(4):
            trainer.step(torch.arange(size))
        trainer.optimizer.zero_grad()

    def __call__(self, rows: torch.Tensor) -> None:
        self._step(rows)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Everything of the recorded way that needs no GPU; gives what makes a trainer that goes it."""
    monkeypatch.setattr(trainer, "StepGraph", Replayed)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: torch.set_rng_state(state))

    def make(recipe: Recipe) -> Trainer:
        torch.manual_seed(recipe.seed)
        made = Trainer(recipe.network.build(), IMAGES.inputs, IMAGES.labels, recipe)
        made.captured, made._rate = True, torch.zeros(())
        return made

    return make


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_what_recording_a_step_changes_is_put_back(recorded: Any, optimizer: Any) -> None:
    recipe = replace(RECIPE, optimizer=optimizer, learning_rate=0.003)
    losses, _ = plain_losses(recipe, IMAGES, 4)
    made = recorded(recipe)
    found = [float(made.train_epoch(epoch)) / len(IMAGES.labels) for epoch in range(2)]
    assert sorted(made._graphs) == [12, 20]
    state = {part: getattr(made, part).state_dict() for part in ("network", "optimizer")}
    again = recorded(recipe)  # taken up by another, which records anew
    for part, content in state.items():
        getattr(again, part).load_state_dict(content)
    again.orders.set_state(made.orders.get_state())
    found += [float(again.train_epoch(epoch)) / len(IMAGES.labels) for epoch in (2, 3)]
    assert found == pytest.approx(losses, rel=1e-4)


def test_a_step_that_cannot_be_recorded_is_made_as_it_is(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Replayed):
        def __init__(self, trainer: Trainer, size: int, *shared: object) -> None:
            super().__init__(trainer, size)
            raise RuntimeError("called a synchronizing CUDA operation\nmore")

    monkeypatch.setattr(trainer, "StepGraph", Refusing)
    losses, _ = plain_losses(RECIPE, IMAGES, 2)
    made = recorded(RECIPE)
    found = [float(made.train_epoch(epoch)) / len(IMAGES.labels) for epoch in range(2)]
    assert found == pytest.approx(losses, rel=1e-4)
    assert made.how.endswith("no graph (called a synchronizing CUDA operation)")

    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer, "StepGraph", full)
    with pytest.raises(torch.OutOfMemoryError):
        recorded(RECIPE).train_epoch(0)


def test_killed_in_the_middle_of_an_epoch_it_loses_that_epoch_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    parts = kill_on_the_way(folder, 1, 18, "images")  # the third step of the fourth epoch
    assert [(part.epoch, part.done) for part in parts] == [(3, False)]
    recipes, samples = image_sweep()
    resumed = quiet(recipes, samples, schedule=EVERYTHING, folder=folder)
    whole = quiet(recipes, samples, schedule=EVERYTHING)
    assert numbers(resumed) == numbers(whole)
    assert same_networks(resumed, whole)


def test_saving_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, saves = [0.0], []
    monkeypatch.setattr(jobs.time, "monotonic", lambda: now[0])
    to_file, train_epoch = jobs.Checkpoint.to_file, Trainer.train_epoch

    def slow_save(self: jobs.Checkpoint, *given: Any) -> None:
        saves.append(self.epoch)
        now[0] += 1.0
        to_file(self, *given)

    def slow_epoch(self: Trainer, epoch: int) -> torch.Tensor:
        now[0] += 5.0
        return train_epoch(self, epoch)

    monkeypatch.setattr(jobs.Checkpoint, "to_file", slow_save)
    monkeypatch.setattr(Trainer, "train_epoch", slow_epoch)
    quiet([replace(RECIPE, epochs=12)], folder=tmp_path)
    assert saves == [1, 6, 11, 12]  # at least 20 seconds apart where a save takes one; and at the end


def test_a_file_from_before_is_still_its_own(tmp_path: Path) -> None:
    recipe = Recipe(Shape(64, (8,), 4), epochs=2, batch_size=20)
    assert "precision" not in recipe.to_dict()
    assert "branches" not in Schedule().to_dict()
    assert replace(RECIPE, precision="tf32").to_dict()["precision"] == "tf32"
    assert Recipe.from_dict(replace(RECIPE, precision="tf32").to_dict()).precision == "tf32"
    run = quiet([recipe], folder=tmp_path)[0]
    (file,) = tmp_path.glob("*.pt")
    plain = torch.load(file, weights_only=True)
    del plain["how"], plain["sha256"]
    torch.save(plain, file)
    again = quiet([recipe], folder=tmp_path)[0]
    assert (again.losses, again.how, run.how) == (run.losses, (), ("float32, fleet, on cpu",))


def test_the_precision_of_a_recipe_is_that_of_its_network_and_sends_it_past_the_fleet() -> None:
    assert RECIPE.precision_on(torch.device("cuda")) == "tf32"
    assert replace(RECIPE, precision="bf16").precision_on(torch.device("cuda")) == "bf16"
    shape = Recipe(Shape(64, (8,), 4), epochs=2, batch_size=20)
    assert shape.precision_on(torch.device("cuda")) == "float32"
    fleet, alone = quiet([shape, replace(shape, precision="tf32")])
    assert (fleet.how, alone.how) == (("float32, fleet, on cpu",), ("float32, on cpu",))
    assert alone.losses == pytest.approx(fleet.losses, rel=1e-5)


def test_switches_of_torch_are_as_before_after_training() -> None:
    def switches() -> tuple[Any, ...]:
        cudnn = torch.backends.cudnn
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark

    before = switches()
    with arithmetic("tf32", torch.device("cuda"), benchmark=True):
        assert switches() == ("high", True, True)
        with arithmetic("float32", torch.device("cuda")):
            assert switches() == ("highest", False, False)
        assert switches() == ("high", True, True)
    with pytest.raises(ZeroDivisionError), arithmetic("bf16", torch.device("cuda")):
        raise ZeroDivisionError
    with arithmetic(None, torch.device("cuda")), arithmetic("float32", torch.device("cpu")):
        assert switches() == before
    assert switches() == before
    assert math.isfinite(quiet([RECIPE])[0].losses[-1])


def test_bf16_is_autocast_around_forward_and_loss_alone(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, inside, seen = recorded(replace(RECIPE, network=NETWORKS["convolutional"])), [False], []

    @contextmanager
    def half() -> Iterator[None]:  # some CPUs die of bfloat16
        inside[0] = True
        yield
        inside[0] = False

    monkeypatch.setattr(made, "_half", half)
    made.network.conv1.register_forward_hook(lambda *given: seen.append(("forward", inside[0])))
    made.network.conv1.weight.register_hook(lambda gradient: seen.append(("backward", inside[0])))
    for made.precision in ("bf16", "tf32", None):
        made.step(torch.arange(20))
    backward = ("backward", False)
    assert seen == [("forward", True), backward, ("forward", False), backward, ("forward", False), backward]
