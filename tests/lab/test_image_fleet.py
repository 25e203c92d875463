"""Narrow networks for images side by side: the numbers of a plain loop, interruptions, a member that diverges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from image_parts import IMAGES, NETWORKS, RECIPE, plain_losses
from lab_parts import EVERYTHING
from seam_parts import Pull, pictures

from layerlaw.errors import MemoryBudgetError
from layerlaw.lab import Architecture, Recipe, Samples, Schedule, forwards, jobs, sweep
from layerlaw.lab.fleet.engine import FleetEngine, Orders
from layerlaw.lab.fleet.images import ImageFleet, members_side_by_side
from layerlaw.lab.training import SingleEngine

OTHER = pictures(92, side=8, seed=3)
KINDS = ("residual", "convolutional", "strided")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def three(family: str = "residual", **changes: Any) -> tuple[list[Recipe], list[Samples]]:
    """Members that differ in seed, learning rate, decay and samples."""
    base = replace(RECIPE, network=NETWORKS[family], **changes)
    recipes = [replace(base, seed=5), replace(base, seed=6, learning_rate=0.003), replace(base, weight_decay=0.0)]
    return recipes, [IMAGES, OTHER, OTHER]


def job_of(recipes: list[Recipe], samples: list[Samples], **how: Any) -> jobs.Job:
    members = [jobs.Member(r, s, f"key{i}") for i, (r, s) in enumerate(zip(recipes, samples, strict=True))]
    return jobs.Job(members, **{"schedule": Schedule(), **how})


@pytest.fixture
def float64() -> Iterator[None]:
    """Networks are drawn in float64, where rounding hides nothing."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("by", ["blocks", "groups"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("family", KINDS)
def test_members_have_the_losses_and_the_state_of_a_plain_loop(family: str, optimizer: Any, by: Any) -> None:
    recipes, samples = three(family, optimizer=optimizer)
    samples = [replace(one, inputs=one.inputs.double()) for one in samples]
    fleet, orders = ImageFleet(recipes, samples, by=by), Orders([r.seed for r in recipes], 92)
    found = []
    for epoch in range(3):
        fleet.start_epoch(epoch)
        with torch.no_grad():
            found.append(fleet.train_epoch(orders.next()))
    for i, (recipe, own) in enumerate(zip(recipes, samples, strict=True)):
        losses, network = plain_losses(recipe, own, 3)
        assert torch.stack(found)[:, i].tolist() == pytest.approx(losses, rel=1e-10)
        ours = fleet.state_dict(i)
        assert ours.keys() == network.state_dict().keys()
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-6, atol=1e-8)


def test_every_member_is_measured_as_if_it_were_alone() -> None:
    recipes, samples = three()
    schedule = replace(EVERYTHING, sites="layers", branches=True)
    together = FleetEngine(recipes, samples, schedule).measure(0)
    for one, recipe, own in zip(together, recipes, samples, strict=True):
        assert one == SingleEngine(recipe, own, schedule).measure(0)[0]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_every_epoch_can_be_the_last_before_an_interruption(optimizer: Any, tmp_path: Path) -> None:
    recipes, samples = three(optimizer=optimizer)
    whole = jobs.run(job_of(recipes, samples))
    broken = job_of(recipes, samples, file=tmp_path / "fleet-1.pt")
    for _ in range(4):
        part = jobs.run(broken, lambda epoch, loss: False)
    assert part.done
    assert part.losses == whole.losses
    for a, b in zip(part.states, whole.states, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in b)
    assert part.how == ["float32, 3 networks side by side, on cpu"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_member_that_diverges_takes_no_other_along(kept: bool, tmp_path: Path) -> None:
    network = Architecture.named("vgg11", stages=((4,), (4,)), side=8, inputs=1, classes=4, batchnorm=False)
    recipes, samples = three()
    recipes = [replace(recipe, network=network, optimizer="momentum") for recipe in recipes]
    recipes[1] = replace(recipes[1], learning_rate=1e6, drops=())
    job = job_of(recipes, samples, file=tmp_path / "fleet-1.pt" if kept else None)
    runs = jobs.run(job).runs()
    assert runs["key1"].diverged is not None
    for i in (0, 2):
        assert runs[f"key{i}"].losses == jobs.run(job_of([recipes[i]], [samples[i]])).runs()["key0"].losses
    assert [file.name for file in tmp_path.iterdir()] == ["fleet-1.pt"] * kept
    if kept:
        again = jobs.Checkpoint.from_file(tmp_path / "fleet-1.pt")[0].runs()
        assert again["key0"].losses == runs["key0"].losses
        assert again["key1"].diverged == runs["key1"].diverged


def test_only_narrow_networks_with_cross_entropy_are_trained_side_by_side() -> None:
    counts = {name: members_side_by_side(Recipe(name)) for name in ("resnet_2layer", "resnet_mixed", "pure_cnn_16")}
    assert counts == {"resnet_2layer": 8, "resnet_mixed": 8, "pure_cnn_16": 4}
    for alone in ("resnet18", "resnet20", "vgg11", "densenet161", "tied_resnet"):
        assert members_side_by_side(Recipe(alone)) == 1
    assert members_side_by_side(replace(RECIPE, loss=Pull())) == 1


def test_out_of_memory_names_half_of_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(ImageFleet, "train_epoch", full)
    recipes, samples = three()
    with pytest.raises(MemoryBudgetError, match=r"3 members .* about 1 would fit\. Pass members=1\."):
        jobs.run(job_of(recipes, samples))


def test_features_in_parts_give_the_measurements_of_features_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = replace(EVERYTHING, sites="layers", branches=True, collapse=True)
    engine = SingleEngine(replace(RECIPE, epochs=1), IMAGES, schedule)
    engine.train_epoch(0)
    (kept,) = engine.measure(1)
    monkeypatch.setitem(forwards.BUDGET, "cpu", 1)
    (streamed,) = engine.measure(1)
    for a, b in zip(kept, streamed, strict=True):
        assert a.separation == pytest.approx(b.separation, rel=1e-6)
        assert a.nearest == b.nearest
        assert (a.loss is None) == (b.loss is None)
        assert a.loss is None or (a.loss, a.accuracy) == pytest.approx((b.loss, b.accuracy), rel=1e-6)
        for name, values in (a.collapse or {}).items():
            pairs = zip(values, (b.collapse or {})[name], strict=True)
            assert all(p is q is None or p == pytest.approx(q, rel=1e-5, abs=1e-9) for p, q in pairs), name


def test_a_memory_with_its_channels_last_is_taken_up_by_weights_that_have_them_first(tmp_path: Path) -> None:
    """As when a training goes on that began on a GPU."""
    recipe = replace(RECIPE, optimizer="momentum")
    job = job_of([recipe], [IMAGES], file=tmp_path / "network-1.pt")
    whole = jobs.run(job_of([recipe], [IMAGES])).losses
    jobs.run(job, lambda epoch, loss: epoch < 2)
    part, state = jobs.Checkpoint.from_file(tmp_path / "network-1.pt")
    assert state is not None
    for memory in state["optimizer"]["state"].values():
        if (buffer := memory["momentum_buffer"]).dim() == 4:
            memory["momentum_buffer"] = buffer.contiguous(memory_format=torch.channels_last)
    part.to_file(tmp_path / "network-1.pt", state)
    assert jobs.run(job).losses == whole


@cuda
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_on_a_gpu_a_sweep_trains_them_side_by_side(optimizer: Any) -> None:
    recipes, _ = three(optimizer=optimizer, precision="float32", learning_rate=0.003, epochs=6)
    data = lambda seed: {5: IMAGES, 6: OTHER}[seed]  # noqa: E731
    runs = sweep(recipes, {"data": data}, device="cuda", progress=False)
    for run in runs:
        torch.backends.cudnn.allow_tf32 = False
        try:
            losses, _ = plain_losses(run.recipe, data(run.recipe.seed), 6, "cuda")
        finally:
            torch.backends.cudnn.allow_tf32 = True
        # Adam makes much of rounding, which differs from one GPU and cuDNN to the next
        assert run.losses[0] == pytest.approx(losses[0], rel=1e-3 if optimizer == "adam" else 1e-4)
        assert run.losses[:3] == pytest.approx(losses[:3], rel=0.03)
        assert run.how[0].startswith("float32, 3 networks side by side, on ")


@cuda
def test_on_a_gpu_members_can_be_asked_to_be_trained_alone() -> None:
    recipes, _ = three(precision="float32")
    runs = sweep(recipes, IMAGES, device="cuda", progress=False, members=1)
    assert all("side by side" not in run.how[0] for run in runs)
