"""On a CUDA device: the fused kernels of a fleet give the numbers of the plain path, alone and beside other fleets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from lab_parts import clouds

from layerlaw.lab import Fleet, Recipe, Run, Schedule, Shape, processes, sweep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


SAMPLES = clouds(150, test=50)
BASE = Recipe(network=Shape(12, (16, 100, 40), 4), epochs=8, batch_size=64, learning_rate=0.01)


def quiet(recipes: list[Recipe], **how: Any) -> list[Run]:
    return sweep(recipes, SAMPLES, **{"progress": False, "device": "cuda", **how})


@pytest.mark.parametrize("widths", [(16,), (100, 100, 100), (128, 7, 65)])
@pytest.mark.parametrize("batch", [128, 30])
@torch.no_grad()
def test_gradients_are_those_of_the_plain_path(widths: tuple[int, ...], batch: int) -> None:
    recipes = replace(BASE, network=Shape(12, widths, 4), batch_size=batch).grid(seed=(1, 2, 3))
    fused, plain = (Fleet(recipes, [SAMPLES] * 3, device) for device in ("cuda", "cpu"))
    assert fused._fused is not None
    for part in (*plain.layout.gains, *plain.layout.shifts):
        plain.parameters[:, part] += 0.3 * torch.randn(3, part.stop - part.start)
    fused.parameters.copy_(plain.parameters)
    for B in (batch, 22):  # a short batch in buffers of a long one
        some, labels = plain.rows[:, 5 : 5 + B], plain.labels[:, 5 : 5 + B]
        expected = plain.gradients_of(plain.pool[some].mT, labels)
        found = fused._fused.gradients_of(some.cuda(), labels.cuda())
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=0.0)
        size = plain.gradients.abs().max()
        torch.testing.assert_close(fused.gradients.cpu() / size, plain.gradients / size, rtol=0.0, atol=1e-5)
        assert fused.norms is not None
        assert plain.norms is not None
        for name in ("running_means", "running_variances"):
            here, there = getattr(plain.norms, name), getattr(fused.norms, name)
            torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_losses_are_those_of_the_cpu(optimizer: Any) -> None:
    recipes = replace(BASE, optimizer=optimizer).grid(seed=(1, 2), learning_rate=(0.003, 0.01))
    there, here = (
        quiet(recipes, schedule=Schedule(test=True)),
        quiet(recipes, device="cpu", schedule=Schedule(test=True)),
    )
    for a, b in zip(there, here, strict=True):
        assert a.how[0].startswith("float32, fleet, fused kernels, on ")
        assert a.losses[:3] == pytest.approx(b.losses[:3], rel=1e-3)
        assert a.losses == pytest.approx(b.losses, rel=0.05)


@pytest.mark.parametrize(
    "other",
    [
        {"network": replace(BASE.network, activation="tanh")},
        {"network": replace(BASE.network, norm=False)},
        {"network": Shape(12, (200, 10), 4)},
        {"batch_size": 150},
        {"layers": (1, 3)},
    ],
)
def test_other_fleets_take_the_plain_path(other: dict[str, Any]) -> None:
    recipe = replace(BASE, optimizer="momentum", **other)
    there, here = quiet([recipe])[0], quiet([recipe], device="cpu")[0]
    assert there.how[0].startswith("float32, fleet, on ")
    assert there.losses == pytest.approx(here.losses, rel=1e-3)


def test_fleets_trained_at_once_give_the_bits_of_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [Shape.even(depth, inputs=12, classes=4) for depth in (3, 5, 9)]
    recipes = replace(BASE, epochs=30).grid(network=shapes, optimizer=("sgd", "adam"), seed=(1, 2))
    schedule = Schedule(epochs=(0, 10), test=True, permuted=True)
    at_once = quiet(recipes, schedule=schedule)
    monkeypatch.setattr(processes, "AT_ONCE", 1)
    for one, other in zip(at_once, quiet(recipes, schedule=schedule), strict=True):
        assert one.losses == other.losses
        for a, b in zip(one.measurements, other.measurements, strict=True):
            assert a.separation == pytest.approx(b.separation, rel=1e-6)
