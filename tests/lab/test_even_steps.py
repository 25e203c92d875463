"""The evenness penalty: its D against the exact one, its gradient, and what fine-tuning with it does."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import layerlaw as ll
import oracle
from layerlaw.data import DEFAULT as SAMPLE
from layerlaw.data import load
from layerlaw.errors import InputError
from layerlaw.lab import CrossEntropy, EvenCrossEntropy, EvenSteps, FeedForward, Recipe, Samples, Shape, sweep, train
from layerlaw.lab.even_steps import batch_separation, unevenness


def clouds(n: int, d: int, K: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % K
    return torch.randn(K, d, generator=g)[y] + torch.randn(n, d, generator=g), y


@pytest.mark.parametrize(("n", "d", "K"), [(60, 5, 3), (60, 30, 3), (200, 20, 10)])
def test_d_of_a_batch_is_the_exact_one(n: int, d: int, K: int) -> None:
    x, y = clouds(n, d, K)
    assert float(batch_separation(x, y, K)) == pytest.approx(oracle.separation(x, y, K), rel=1e-12)
    uneven = y[torch.randperm(n, generator=torch.Generator().manual_seed(1))].clamp_max(K - 2)  # and one class absent
    assert float(batch_separation(x, uneven, K)) == pytest.approx(oracle.separation(x, uneven, K - 1), rel=1e-12)


def test_the_gradient_agrees_with_differences() -> None:
    x, y = clouds(12, 4, 3)
    x = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: batch_separation(v, y, 3), (x,))
    values = torch.tensor([9.0, 5.0, 4.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unevenness, (values,))


def test_the_penalty_is_that_of_the_fit() -> None:
    values = [9.0, 5.0, 4.0, 1.0]
    fit = ll.fit_law(values)
    assert float(unevenness(torch.tensor(values))) == pytest.approx(1 / fit.evenness - 1, rel=1e-6)


@pytest.fixture(scope="module")
def images() -> tuple[torch.Tensor, torch.Tensor]:
    return load(SAMPLE).balanced(50).resized(10).tensors(flat=True)


def test_fine_tuning_in_a_loop_of_ones_own_makes_the_steps_even(images) -> None:
    x, y = images
    torch.manual_seed(0)
    network = nn.Sequential(
        *[layer for _ in range(5) for layer in (nn.Linear(100, 100), nn.ReLU())], nn.Linear(100, 10)
    )
    train(network, x, y, Recipe(epochs=30), progress=False)
    before = ll.probe(network, (x, y), progress=False).law()
    even = EvenSteps(network, x[:4])
    assert len(even.sites) == before.points
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4)
    for _ in range(60):
        logits, penalty = even(x, y)
        optimizer.zero_grad()
        (F.cross_entropy(logits, y) + penalty).backward()
        optimizer.step()
    after = ll.probe(network, (x, y), progress=False).law()
    assert float(penalty.detach()) == pytest.approx(1 / after.evenness - 1, abs=0.02)
    assert not before.holds
    assert after.holds
    assert not any(module._forward_hooks for module in network.modules())


def test_a_recipe_names_the_loss_and_weight_zero_is_the_control(images) -> None:
    samples = Samples.of(images)
    network = Shape.even(6, norm=False)
    (before,) = sweep([Recipe(network, epochs=150)], samples, progress=False)
    tuned = Recipe(network, epochs=40, batch_size=250, learning_rate=1e-3, drops=(0.6,))
    losses = (CrossEntropy(), EvenCrossEntropy(0.0), EvenCrossEntropy(1.0))
    recipes = tuned.grid(loss=losses)
    assert Recipe.from_dict(recipes[2].to_dict()) == recipes[2]
    plain, control, even = sweep(recipes, samples, start=[before.state] * 3, progress=False)
    assert control.losses == pytest.approx(plain.losses, rel=1e-3)
    laws = [run.law(batchnorm="running") for run in (before, control, even)]
    assert [law.holds for law in laws] == [False, False, True]


def test_where_d_does_not_fall_the_penalty_asks_for_a_drop() -> None:
    values = torch.tensor([1.0, 1.2, 1.1], requires_grad=True)
    penalty = unevenness(values)
    assert float(penalty.detach()) > 2
    (slope,) = torch.autograd.grad(penalty, values)
    assert slope[0] < 0 < slope[2]  # a larger first value and a smaller last one lower it


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: EvenCrossEntropy(-1.0), "weight: expected a number ≥ 0, got -1.0"),
        (lambda: EvenSteps(nn.Linear(4, 3), torch.randn(4, 4)), "expected at least 3 along depth"),
    ],
)
def test_bad_input_is_answered(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_the_public_name() -> None:
    assert ll.EvenSteps is EvenSteps
    assert isinstance(EvenSteps(FeedForward(depth=4, inputs=10, width=10, classes=3), torch.randn(4, 10)).sites, list)
