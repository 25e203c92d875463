"""On a CUDA device: recorded steps give the numbers of a plain loop, survive interruptions, and leave torch as it was."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from image_parts import IMAGES, NETWORKS, RECIPE, plain_losses
from lab_parts import EVERYTHING
from seam_parts import Pull, TinyConv
from svsl_parts import NAMES, SmallNet, batch, direct, features_of, gradients
from torch import nn

import layerlaw as ll
from layerlaw.errors import MemoryBudgetError
from layerlaw.lab import Architecture, CrossEntropy, Recipe, Run, Samples, Schedule, jobs, sweep, variability
from layerlaw.lab.trainer import Trainer
from layerlaw.lab.training import SingleEngine
from layerlaw.lab.variability import VariabilityCrossEntropy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

EXACT = replace(RECIPE, precision="float32", learning_rate=0.003)


def quiet(recipes: list[Recipe], data: Samples = IMAGES, **how: Any) -> list[Run]:
    return sweep(recipes, data, **{"progress": False, "device": "cuda", **how})


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("family", NETWORKS)
def test_recorded_steps_give_the_losses_of_a_plain_loop(family: str, optimizer: Any) -> None:
    recipe = replace(EXACT, network=NETWORKS[family], optimizer=optimizer)
    torch.backends.cudnn.allow_tf32 = False
    try:
        losses, _ = plain_losses(recipe, IMAGES, 4, "cuda")
    finally:
        torch.backends.cudnn.allow_tf32 = True
    run = quiet([recipe])[0]
    assert run.losses == pytest.approx(losses, rel=1e-3 if optimizer == "adam" else 1e-4)
    assert run.losses[:2] == pytest.approx(losses[:2], rel=2e-4 if optimizer == "adam" else 1e-4)
    assert run.how == (f"float32, graph, channels last, on {torch.cuda.get_device_name()}",)


def test_the_numbers_are_those_of_the_cpu() -> None:
    recipe = replace(EXACT, optimizer="momentum")
    schedule = replace(EVERYTHING, sites="layers", branches=True)
    there, here = quiet([recipe], schedule=schedule)[0], quiet([recipe], schedule=schedule, device="cpu")[0]
    assert there.losses == pytest.approx(here.losses, rel=1e-3)
    for a, b in zip(there.measurements, here.measurements, strict=True):
        assert (a.epoch, a.batchnorm, a.split, a.sites, a.widths) == (b.epoch, b.batchnorm, b.split, b.sites, b.widths)
        assert a.separation == pytest.approx(b.separation, rel=1e-4 if a.epoch == 0 else 3e-2)
    again = there.measured(IMAGES, schedule)  # on the CPU
    for a, b in zip(again.measurements, [m for m in there.measurements if m.epoch == 4], strict=True):
        assert a.separation == pytest.approx(b.separation, rel=1e-4)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_other_precisions_learn_the_same_and_say_so(precision: Any) -> None:
    exact, coarse = quiet([replace(EXACT, optimizer="momentum", precision=p) for p in ("float32", precision)])
    assert coarse.losses == pytest.approx(exact.losses, rel=0.05)
    assert coarse.losses != exact.losses
    assert coarse.how[0].startswith(f"{precision}, graph, channels last, on ")
    assert coarse.to_dict()["recipe"]["precision"] == precision
    assert all(tensor.dtype != torch.bfloat16 for tensor in coarse.state.values())


def test_tf32_is_the_default_and_switches_are_as_before() -> None:
    def switches() -> tuple[Any, ...]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark

    before = switches()
    run = quiet([replace(EXACT, precision=None)])[0]
    assert run.how[0].startswith("tf32, graph")
    assert switches() == before


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, when it first compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # which torch would like to use
def test_a_compiled_network_learns_the_same() -> None:
    recipe = replace(EXACT, optimizer="momentum")
    plain, compiled = quiet([recipe])[0], quiet([recipe], compile=True)[0]
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-3)
    assert "compiled" in compiled.how[0]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_every_epoch_can_be_the_last_before_an_interruption(optimizer: Any, tmp_path: Path) -> None:
    recipe = replace(EXACT, optimizer=optimizer)
    whole = quiet([recipe])[0]
    member = jobs.Member(recipe, IMAGES, "key")
    job = jobs.Job([member], Schedule(), file=tmp_path / "network-1.pt", device="cuda")
    for _ in range(4):
        part = jobs.run(job, lambda epoch, loss: False)  # one epoch at a time
    assert part.done
    assert part.runs()["key"].losses == pytest.approx(whole.losses, rel=1e-3)
    assert len(part.how) == 1


def test_two_processes_train_the_same_networks_on_one_device() -> None:
    recipes = [replace(EXACT, seed=seed) for seed in (1, 2, 3)]
    for one, two in zip(quiet(recipes), quiet(recipes, workers=2), strict=True):
        assert two.losses == pytest.approx(one.losses, rel=1e-3)
        assert two.how == one.how


@pytest.mark.parametrize("first", ["cpu", "cuda"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_training_may_go_on_on_another_device(first: str, optimizer: Any, tmp_path: Path) -> None:
    recipe = replace(EXACT, optimizer=optimizer)
    whole = quiet([recipe])[0]
    member, file = jobs.Member(recipe, IMAGES, "key"), tmp_path / "network-1.pt"
    jobs.run(jobs.Job([member], Schedule(), file=file, device=first), lambda epoch, loss: epoch < 2)
    other = {"cpu": "cuda", "cuda": "cpu"}[first]
    part = jobs.run(jobs.Job([member], Schedule(), file=file, device=other))
    losses = part.runs()["key"].losses  # Adam makes much of rounding where the loss is nearly 0
    assert losses[:2] == pytest.approx(whole.losses[:2], rel=1e-3)
    assert losses == pytest.approx(whole.losses, rel=0.05)
    assert [("cpu" in how) for how in part.how] == [first == "cpu", first == "cuda"]


def test_recording_changes_nothing_and_dropout_is_drawn_anew_in_every_step() -> None:
    network = TinyConv(dropout=0.5)
    recipe = replace(EXACT, network=network)
    engine = SingleEngine(recipe, IMAGES, Schedule(), device="cuda")
    trainer = engine._trainer
    before = {name: tensor.clone() for name, tensor in trainer.network.state_dict().items()}
    random = torch.cuda.get_rng_state()
    trainer.network.train()
    trainer._capture([20, 12])
    assert trainer.captured
    for name, tensor in trainer.network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert torch.equal(torch.cuda.get_rng_state(), random)
    assert all(not value.any() for state in trainer.optimizer.state.values() for value in state.values())
    once, twice = (quiet([recipe])[0].losses for _ in range(2))
    assert once == pytest.approx(twice, rel=1e-4)
    quiet_network = replace(recipe, network=TinyConv())
    assert quiet([quiet_network])[0].losses != pytest.approx(once, rel=1e-2)


def test_what_cannot_be_recorded_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) if float(x.sum()) < 1e9 else x  # waits for the device

    expected = quiet([replace(EXACT, network=TinyConv())])[0]
    build = TinyConv.build
    monkeypatch.setattr(TinyConv, "build", lambda self: Waiting(build(self)))
    run = quiet([replace(EXACT, network=TinyConv())])[0]
    assert "no graph" in run.how[0]
    assert run.losses == pytest.approx(expected.losses, rel=1e-4)


def test_a_loss_that_looks_inside_is_run_as_it_is() -> None:
    recipe = replace(EXACT, network=TinyConv(), loss=Pull())
    there, here = quiet([recipe])[0], quiet([recipe], device="cpu")[0]
    assert "graph" not in there.how[0]
    assert there.losses == pytest.approx(here.losses, rel=1e-3)


@pytest.mark.parametrize("learn", [None, 1e-3])
def test_the_penalty_of_svsl_is_recorded_and_gives_the_losses_of_the_cpu(learn: float | None) -> None:
    loss = VariabilityCrossEntropy(0.05, reduction="authors", where=("2", "5", "9"), learn_alpha=learn)
    recipe = replace(EXACT, network=TinyConv(), optimizer="momentum", loss=loss)
    there, here = quiet([recipe])[0], quiet([recipe], device="cpu")[0]
    assert there.how[0].startswith("float32, graph")
    assert there.losses == pytest.approx(here.losses, rel=1e-3)
    plain = quiet([replace(recipe, loss=CrossEntropy())])[0]
    assert there.losses[-1] != pytest.approx(plain.losses[-1], rel=1e-2)


def test_a_penalty_that_changes_in_python_is_not_recorded() -> None:
    for how in ({"start": 3}, {"means": "moving"}, {"start": "terminal"}):
        loss = VariabilityCrossEntropy(0.05, where=("2", "5"), **how)
        recipe = replace(EXACT, network=TinyConv(), optimizer="momentum", loss=loss)
        there, here = quiet([recipe])[0], quiet([recipe], device="cpu")[0]
        assert "graph" not in there.how[0]
        assert there.losses == pytest.approx(here.losses, rel=1e-3)


def test_a_network_that_diverges_is_reported() -> None:
    network = Architecture.named("vgg11", stages=((4,), (4,)), side=8, inputs=1, classes=4, batchnorm=False)
    wild = replace(EXACT, network=network, optimizer="momentum", learning_rate=1e6, drops=())
    bad, good = quiet([wild, EXACT])
    assert bad.diverged is not None
    assert bad.measurement().separation[-1] is None
    assert good.diverged is None


def test_out_of_memory_names_a_batch_that_fits() -> None:
    n = 20_000  # in one batch far too many for any GPU: 20 MB each and more
    x = torch.zeros(1, 3, 32, 32).expand(n, -1, -1, -1)
    y = torch.arange(n) % 10
    samples = Samples(x, y, classes=10)
    with pytest.raises(MemoryBudgetError, match=r"samples per batch would fit, not \d+\. Pass batch_size=") as error:
        quiet([Recipe("resnet50", epochs=1, batch_size=n)], samples, schedule=Schedule(batchnorm=("running",)))
    fit = int(str(error.value).rpartition("batch_size=")[2].rstrip("."))
    del error  # its traceback holds what had been allocated
    gc.collect()
    assert 128 <= fit < n
    torch.cuda.empty_cache()
    engine = SingleEngine(
        Recipe("resnet50", epochs=1, batch_size=fit), Samples(x[:fit], y[:fit], classes=10), Schedule(), device="cuda"
    )
    assert torch.isfinite(engine.train_epoch(0)).all()
    assert isinstance(engine._trainer, Trainer)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("dtype", "off"), [(torch.float64, 1e-12), (torch.float32, 1e-3), (torch.bfloat16, 2e-2)])
def test_svsl_by_kernels_is_that_of_direct_autograd(dtype: torch.dtype, off: float, form: torch.memory_format) -> None:
    assert variability._kernels() is not None
    torch.manual_seed(0)
    network = SmallNet().to("cuda", torch.float32 if dtype == torch.bfloat16 else dtype)
    exact = copy.deepcopy(network).double()
    x, y = (given.cuda() for given in batch())
    here = network.to(memory_format=form)
    loss = ll.SVSL(here, alpha=0.3, sites=list(NAMES), reduction="authors")
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        given = x.to(next(network.parameters()).dtype).contiguous(memory_format=form)
        found = loss(here(given), y)
    expected = direct(features_of(exact, x), y, 0.3, "authors")
    assert found.item() == pytest.approx(expected.item(), rel=off)
    for a, b in zip(gradients(found, here), gradients(expected, exact), strict=True):
        assert float((a.double() - b).norm()) <= off * float(b.norm()) + 1e-9
