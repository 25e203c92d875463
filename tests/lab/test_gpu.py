"""Training on a GPU, which is pretended, as far as it goes without kernels of Triton and graphs: the losses of the CPU."""

from dataclasses import replace

import pytest
import torch
from image_parts import IMAGES, RECIPE
from seam_parts import TinyConv
from svsl_parts import SmallNet, batch
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.lab import Recipe, Samples, Shape, sweep, train
from pretended_gpu import Gpu

EXACT = replace(RECIPE, network=TinyConv(), precision="float32", learning_rate=0.003, epochs=2)


class Waiting(nn.Module):
    """Looks at a number in every forward, on which a GPU waits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if float(x.sum()) < 1e9 else x


def test_a_step_that_cannot_be_recorded_is_waited_for_before_the_weights_are_put_back(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sweep([EXACT], IMAGES, progress=False, device="cpu")[0].losses
    build = TinyConv.build
    monkeypatch.setattr(TinyConv, "build", lambda self: Waiting(build(self)))
    run = sweep([EXACT], IMAGES, progress=False, device="cuda")[0]
    assert "no graph (called a synchronizing CUDA operation" in run.how[0]
    assert run.losses == pytest.approx(expected, rel=1e-4)


def test_a_fleet_and_a_plain_loop_learn_as_on_the_cpu(gpu: Gpu) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(3, 10, generator=generator)[y] + torch.randn(120, 10, generator=generator)
    recipe = Recipe(Shape.even(3, inputs=10, width=8, classes=3), epochs=2, batch_size=30, learning_rate=0.05)
    recipes = [replace(recipe, optimizer=optimizer, seed=seed) for optimizer in ("sgd", "adam") for seed in (0, 1)]
    here, there = (sweep(recipes, Samples(x, y, classes=3), device=to, progress=False) for to in ("cpu", "cuda"))
    for run, other in zip(there, here, strict=True):
        assert run.losses == pytest.approx(other.losses, rel=1e-4)
        for a, b in zip(run.measurements, other.measurements, strict=True):
            assert a.separation == pytest.approx(b.separation, rel=1e-4)
    losses = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(device)
        losses.append(train(network, x.to(device), y.to(device), recipe, progress=False))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("how", [{}, {"learn_alpha": True}, {"reduction": "authors"}, {"means": "moving"}], ids=str)
def test_svsl_in_a_loop_of_ones_own_is_that_of_the_cpu(how: dict, gpu: Gpu) -> None:
    found: list[list[float]] = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        network = SmallNet().double().to(device)
        loss = ll.SVSL(network, alpha=0.1, **how).to(device)
        found.append([])
        for seed in range(2):
            x, y = (part.to(device) for part in batch(24, seed=seed))
            value = loss(network(x), y)
            parameters = [*network.parameters(), *loss.parameters()]
            with torch.no_grad():
                for parameter, gradient in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
                    parameter -= 0.1 * gradient
            found[-1].append(float(value.detach()))
    assert found[1] == pytest.approx(found[0], rel=1e-10)
