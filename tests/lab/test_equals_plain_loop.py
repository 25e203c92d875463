"""A fleet is many plain training loops at once: same start, same gradients, same losses, same networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from lab_parts import clouds, fresh, parts_of_layer, plain_loop
from torch import Tensor, nn

from layerlaw.lab import Fleet, Recipe, Samples, Shape
from layerlaw.lab.fleet.engine import Orders

SAMPLES = clouds(150)  # in batches of 32: the last one has 22
ACTIVATIONS = ["relu", "tanh", "gelu", "none"]
RATES = {"sgd": 0.05, "momentum": 0.02, "adam": 0.003}


def fleet_losses(recipes: Sequence[Recipe], samples: Sequence[Samples], epochs: int) -> tuple[Fleet, list[list[float]]]:
    """The trained fleet, and [epoch][member]."""
    fleet = Fleet(recipes, samples)
    orders = Orders([recipe.seed for recipe in recipes], len(samples[0].labels))
    losses = []
    with torch.no_grad():
        for epoch in range(epochs):
            fleet.start_epoch(epoch)
            losses.append(fleet.train_epoch(orders.next()).tolist())
    return fleet, losses


def same_as_plain(recipes: Sequence[Recipe], samples: Sequence[Samples], epochs: int = 3) -> None:
    fleet, losses = fleet_losses(recipes, samples, epochs)
    for member, (recipe, s) in enumerate(zip(recipes, samples, strict=True)):
        plain = plain_loop(recipe, s.inputs, s.labels, epochs)
        assert [row[member] for row in losses] == pytest.approx(plain.losses, rel=1e-4)
        same_networks_nearly(recipe, fleet.state_dict(member), plain.network.state_dict())


def led_by_rounding(recipe: Recipe, name: str) -> bool:
    """A bias or shift that the next BatchNorm cancels has no gradient but rounding, which Adam makes full steps of.

    Weight decay, where there is some, gives a bias a direction; a shift starts at zero and has none.
    """
    if recipe.optimizer != "adam" or not recipe.network.norm:
        return False
    biases, shifts = not recipe.weight_decay, recipe.network.activation == "none"
    kind, _, what = name.partition(".")
    return (
        (biases and kind.startswith("linear") and what == "bias")
        or (shifts and kind.startswith("norm") and what == "bias")
        or ((biases or shifts) and what == "running_mean")
    )


def same_networks_nearly(recipe: Recipe, mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name in [name for name in theirs if not led_by_rounding(recipe, name)]:
        tensor = theirs[name]
        torch.testing.assert_close(mine[name], tensor, rtol=1e-3, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("optimizer", RATES)
def test_losses_and_networks_of_the_first_epochs_equal_those_of_a_plain_loop(
    optimizer: str, activation: str, norm: bool
) -> None:
    shape = Shape(12, (20, 8, 16), 4, norm, activation)
    base = Recipe(network=shape, optimizer=optimizer, learning_rate=RATES[optimizer], epochs=30, batch_size=32)
    same_as_plain(base.grid(seed=(1, 2)), [SAMPLES, SAMPLES])


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
def test_members_of_one_fleet_may_differ_in_everything_but_their_shape(norm: bool) -> None:
    shape = Shape(12, (16, 10), 5, norm)
    base = Recipe(network=shape, epochs=30, batch_size=32)
    five, three, shuffled = clouds(150, classes=5), clouds(150, classes=3, seed=7), SAMPLES.with_random_labels(3)
    members = [  # neighbors with different optimizers, and equal ones that are no neighbors
        (base.grid(optimizer=["adam"], learning_rate=[0.003], seed=[1], weight_decay=[0.0])[0], five),
        (base.grid(optimizer=["sgd"], learning_rate=[0.1], seed=[2], weight_decay=[1e-2])[0], three),
        (base.grid(optimizer=["sgd"], learning_rate=[0.01], seed=[1], weight_decay=[0.0])[0], shuffled),
        (base.grid(optimizer=["momentum"], learning_rate=[0.02], seed=[3], weight_decay=[5e-4])[0], SAMPLES),
        (base.grid(optimizer=["adam"], learning_rate=[0.001], seed=[2], weight_decay=[5e-2])[0], five),
        (base.grid(optimizer=["adam"], learning_rate=[0.001], seed=[2], weight_decay=[5e-4])[0], five),
    ]
    recipes, samples = [recipe for recipe, _ in members], [s for _, s in members]
    same_as_plain(recipes, samples)


@pytest.mark.parametrize("optimizer", RATES)
def test_losses_equal_those_of_a_plain_loop_beyond_both_drops_of_the_rate(optimizer: str) -> None:
    recipe = Recipe(
        network=Shape(12, (16, 10), 4), optimizer=optimizer, learning_rate=RATES[optimizer], epochs=6, batch_size=32
    )
    other = Recipe(
        network=recipe.network, optimizer=optimizer, learning_rate=RATES[optimizer] / 3, epochs=6, batch_size=32, seed=3
    )
    same_as_plain([recipe, other], [SAMPLES, SAMPLES], epochs=6)
    undropped = Recipe(**{**recipe.__dict__, "drops": ()})
    _, losses = fleet_losses([recipe, undropped], [SAMPLES, SAMPLES], 6)
    assert losses[1][0] == losses[1][1]
    assert losses[-1][0] != pytest.approx(losses[-1][1], rel=1e-3)


def test_a_batch_larger_than_the_data_is_one_batch() -> None:
    recipe = Recipe(network=Shape(12, (16,), 4), epochs=9, batch_size=1000)
    same_as_plain([recipe], [SAMPLES])


def test_batches_of_one_sample_work_without_batch_norm() -> None:
    recipe = Recipe(network=Shape(12, (8,), 4, norm=False), optimizer="sgd", learning_rate=0.01, epochs=9, batch_size=1)
    same_as_plain([recipe], [SAMPLES])


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("widths", [(20, 8, 16, 30), (14, 14, 14), (9,)], ids=str)
def test_gradients_of_one_batch_equal_those_of_autograd(widths: tuple[int, ...], activation: str, norm: bool) -> None:
    recipes = Recipe(network=Shape(12, widths, 4, norm, activation), batch_size=32).grid(seed=(1, 2, 3))
    fleet = Fleet(recipes, [SAMPLES] * 3)
    rows = torch.arange(96).view(3, 32)  # another batch for every member
    with torch.no_grad():
        losses = fleet.gradients_of(SAMPLES.inputs[rows].mT, SAMPLES.labels[rows])
    for member, recipe in enumerate(recipes):
        network = fresh(recipe).double()
        loss = nn.functional.cross_entropy(network(SAMPLES.inputs[rows[member]].double()), SAMPLES.labels[rows[member]])
        loss.backward()
        assert float(losses[member]) == pytest.approx(loss.item(), rel=1e-6)
        largest = max(float(p.grad.abs().max()) for p in network.parameters())
        for name, p in network.named_parameters():
            columns, size = fleet.layout.names()[name]
            mine = fleet.gradients[member, columns].view(size).double()
            torch.testing.assert_close(
                mine, p.grad, rtol=1e-4, atol=2e-6 * largest, msg=lambda text, n=name: f"{n} {text}"
            )


def test_every_parameter_has_its_own_columns() -> None:
    for shape in (Shape(5, (4, 3, 6), 2), Shape(5, (4, 3, 6), 2, norm=False)):
        layout = Fleet([Recipe(network=shape)], [clouds(20, 5, 2)]).layout
        used = sorted((c.start, c.stop) for c, _ in layout.names().values())
        assert used[0][0] == 0
        assert all(before[1] == after[0] for before, after in pairwise(used))
        assert used[-1][1] == layout.size
        assert set(layout.names()) == {name for name, _ in fresh(Recipe(network=shape)).named_parameters()}


@pytest.mark.parametrize("seed", [0, 666, 2**40 + 3])
@pytest.mark.parametrize(
    "shape",
    [Shape(7, tuple(range(1, 70)), 3), Shape.even(4, norm=False), Shape(784, (257, 333), 10), Shape(3072, (5,), 2)],
    ids=["all widths", "even", "uneven", "wide"],
)
def test_the_start_is_that_of_pytorch_bit_by_bit(shape: Shape, seed: int) -> None:
    recipe = Recipe(network=shape, seed=seed)
    samples = clouds(20, shape.inputs, 2)
    torch.manual_seed(123)  # whatever the global state is
    state = Fleet([Recipe(network=shape, seed=5), recipe], [samples] * 2).state_dict(1)
    assert torch.initial_seed() == 123
    for name, tensor in fresh(recipe).state_dict().items():
        assert torch.equal(state[name], tensor), name


def test_running_statistics_equal_the_modules_after_some_steps() -> None:
    recipe = Recipe(network=Shape(12, (20, 8), 4), optimizer="sgd", learning_rate=0.05, epochs=30, batch_size=40)
    samples = clouds(150, seed=3)
    samples = Samples.of((3 * samples.inputs + 20, samples.labels))  # far from zero, where variances lose digits
    fleet, _ = fleet_losses([recipe], [samples], 4)
    mine, theirs = fleet.state_dict(0), plain_loop(recipe, samples.inputs, samples.labels, 4).network.state_dict()
    names = [name for name in theirs if "running" in name or "tracked" in name]
    assert len(names) == 6
    for name in names:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-3, atol=1e-5)
    assert int(mine["norm1.num_batches_tracked"]) == 16


@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no norm"])
@pytest.mark.parametrize("layers", [(0, 2), (1, 3), (2, 5), (4, 5), (0, 5)], ids=str)
def test_frozen_layers_stay_and_the_others_learn_as_in_a_plain_loop(
    layers: tuple[int, int], norm: bool, optimizer: str
) -> None:
    recipe = Recipe(
        network=Shape(12, (10, 8, 12, 9), 4, norm),
        optimizer=optimizer,
        learning_rate=RATES[optimizer],
        epochs=30,
        batch_size=32,
        layers=layers,
    )
    fleet, losses = fleet_losses([recipe, Recipe(**{**recipe.__dict__, "seed": 4})], [SAMPLES] * 2, 3)
    plain = plain_loop(recipe, SAMPLES.inputs, SAMPLES.labels, 3)
    assert [row[0] for row in losses] == pytest.approx(plain.losses, rel=1e-4)
    same_networks_nearly(recipe, fleet.state_dict(0), plain.network.state_dict())
    before, after = fresh(recipe), fresh(recipe)
    after.load_state_dict(fleet.state_dict(0))
    for layer in range(recipe.network.depth):
        parts = zip(parts_of_layer(before, layer), parts_of_layer(after, layer), strict=True)
        pairs = [(a.weight, b.weight) for a, b in parts]
        moved = [not torch.equal(a, b) for a, b in pairs]
        assert moved == [layers[0] <= layer < layers[1]] * len(moved), layer
    if norm:  # frozen BatchNorms go on with the statistics of the batch, and follow them
        assert not torch.equal(after.norm1.running_mean, before.norm1.running_mean)


def test_frozen_layers_that_go_on_decaying_do_as_in_a_plain_loop_with_gradients_of_zero() -> None:
    """What torch up to 1.13 did to a layer that was frozen after it had been trained."""
    shape = Shape(12, (10, 8), 4)
    recipe = Recipe(shape, learning_rate=0.003, epochs=30, batch_size=50, layers=(1, 3), decay_frozen=True)
    fleet, _ = fleet_losses([recipe], [SAMPLES], 3)
    network = fresh(recipe)
    frozen = {name: p for name, p in network.named_parameters() if name.startswith(("linear1.", "norm1."))}
    optimizer = torch.optim.Adam(network.parameters(), lr=0.003, weight_decay=recipe.weight_decay)
    orders = torch.Generator().manual_seed(recipe.seed)
    network.train()
    for _ in range(3):
        for rows in torch.randperm(150, generator=orders).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(SAMPLES.inputs[rows]), SAMPLES.labels[rows]).backward()
            for parameter in frozen.values():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
    mine = fleet.state_dict(0)
    for name, parameter in frozen.items():
        torch.testing.assert_close(mine[name], parameter.detach(), rtol=1e-4, atol=1e-6)
        assert not torch.equal(mine[name], fresh(recipe).state_dict()[name]) or name == "norm1.bias"


def test_members_of_one_seed_share_their_order_and_others_do_not() -> None:
    orders = Orders([1, 2, 1], 50)
    first, second = orders.next(), orders.next()
    assert torch.equal(first[0], first[2])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])
    generator = torch.Generator().manual_seed(2)
    for order in (first, second):
        assert torch.equal(order[1], torch.randperm(50, generator=generator))
    skipped = Orders([1, 2, 1], 50)
    skipped.skip(1)
    assert torch.equal(skipped.next(), second)
