"""The plain loop for any module: the recipe's schedule, visits, and what it returns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lab_parts import Told, clouds, fresh, plain_loop, watched_rates
from torch import Tensor, nn

from layerlaw.errors import LayerlawError
from layerlaw.lab import Recipe, Shape, sweep, train

SAMPLES = clouds(150)
X, Y = SAMPLES.inputs, SAMPLES.labels
BASE = Recipe(network=Shape(12, (16, 10), 4), epochs=6, batch_size=32)


class Watched(nn.Module):
    """A network of another kind than those of the lab."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 9), nn.LayerNorm(9), nn.SiLU(), nn.Linear(9, 4))
        self.batchnorm: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batchnorm.append(self.training)
        return self.body(x)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_it_does_what_the_loop_of_the_tests_does(optimizer: str) -> None:
    recipe = replace(BASE, optimizer=optimizer, learning_rate=0.01)
    network = fresh(recipe)
    losses = train(network, X, Y, recipe, progress=False)
    plain = plain_loop(recipe, X, Y, 6)
    assert losses == pytest.approx(plain.losses, rel=1e-4)
    assert losses == pytest.approx(sweep([recipe], SAMPLES, progress=False)[0].losses, rel=1e-4)
    torch.testing.assert_close(network.linear2.weight, plain.network.linear2.weight, rtol=1e-3, atol=1e-4)


def test_any_module_is_trained_in_train_mode_and_left_in_eval_mode() -> None:
    torch.manual_seed(0)
    network = Watched().eval()
    losses = train(network, X, Y, replace(BASE, learning_rate=0.02, epochs=12), progress=False)
    assert len(losses) == 12
    assert losses[-1] < 0.8 * losses[0]
    assert all(network.batchnorm)
    assert len(network.batchnorm) == 12 * 5
    assert not network.training


def test_the_learning_rate_follows_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = watched_rates(monkeypatch, torch.optim.SGD)
    recipe = replace(BASE, optimizer="sgd", learning_rate=0.5, epochs=8, drops=(0.25, 0.5, 0.75))
    train(Watched(), X, Y, recipe, progress=False)
    assert rates[::5] == [recipe.rate_at(epoch) for epoch in range(8)]
    assert rates[::5] == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005, 0.005, 0.0005, 0.0005])


@pytest.mark.parametrize(("epochs", "drops"), [(600, (200, 400)), (350, (116, 233)), (100, (33, 66)), (3, (1, 2))])
def test_rates_drop_at_a_third_and_two_thirds_as_those_of_the_authors(epochs: int, drops: tuple[int, int]) -> None:
    recipe = replace(BASE, epochs=epochs, learning_rate=0.1)
    rates = [recipe.rate_at(epoch) for epoch in range(epochs)]
    changes = [epoch for epoch in range(1, epochs) if rates[epoch] != rates[epoch - 1]]
    assert tuple(changes) == drops
    assert [rates[0], rates[drops[0]], rates[-1]] == [0.1, 0.01, 0.001]


def test_visits_come_after_the_chosen_epochs_and_zero_is_before() -> None:
    network, seen = Watched(), []
    start = network.body[0].weight.detach().clone()

    def visit(epoch: int) -> None:
        seen.append((epoch, len(network.batchnorm), torch.equal(network.body[0].weight, start)))

    train(network, X, Y, BASE, at_epochs=(0, 2, 6, 9), visit=visit, progress=False)
    assert seen == [(0, 0, True), (2, 10, False), (6, 30, False)]


def test_a_visit_that_returns_true_ends_the_training_and_another_answer_does_not() -> None:
    network = Watched()
    losses = train(network, X, Y, BASE, at_epochs=range(7), visit=lambda epoch: epoch == 2, progress=False)
    assert (len(losses), len(network.batchnorm), network.training) == (2, 10, False)
    untouched = Watched()
    assert train(untouched, X, Y, BASE, at_epochs=[0], visit=lambda epoch: True, progress=False) == []
    assert (untouched.batchnorm, untouched.training) == ([], False)
    assert len(train(network, X, Y, BASE, at_epochs=range(7), visit=lambda epoch: 1, progress=False)) == 6


def test_a_visit_may_leave_the_network_in_eval_mode() -> None:
    network = Watched()
    train(network, X, Y, BASE, at_epochs=range(7), visit=lambda epoch: network.eval() and None, progress=False)
    assert all(network.batchnorm)


def test_progress_is_told_of_every_epoch() -> None:
    told = Told()
    train(Watched(), X, Y, BASE, progress=told)
    assert told.all == [("training", 6), 1, 2, 3, 4, 5, 6]


def test_a_loss_that_is_not_a_number_stops_and_names_the_epoch() -> None:
    recipe = replace(BASE, network=Shape(12, (16, 10), 4, norm=False), optimizer="momentum", learning_rate=1e4)
    with pytest.raises(LayerlawError, match=r"training diverged in epoch \d .*NaN.*: use a lower learning rate"):
        train(fresh(recipe), X, Y, recipe, progress=False)
