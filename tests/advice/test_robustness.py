"""Proposition 1 against real noise on real weights."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from layerlaw.advice import Robustness, robustness
from layerlaw.advice.perturbation import _effect, draw_noise
from layerlaw.errors import InputError
from layerlaw.lab import FeedForward, Recipe, Run, Samples, Schedule, Shape, sweep


@pytest.fixture(scope="module")
def samples() -> Samples:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 5
    return Samples.of((torch.randn(5, 20, generator=g)[y] + 1.5 * torch.randn(300, 20, generator=g), y))


@pytest.fixture(scope="module")
def run(samples: Samples) -> Run:
    recipe = Recipe(Shape.even(5, inputs=20, width=40, classes=5), epochs=40, learning_rate=3e-3)
    return sweep([recipe], samples, schedule=Schedule(batchnorm=("running",)), progress=False)[0]


@pytest.fixture(scope="module")
def found(run: Run, samples: Samples) -> Robustness:
    return robustness(run, samples, scales=(0.001, 0.01, 0.5))


def test_the_first_order_matches_the_measurement_at_small_noise(found: Robustness) -> None:
    small, middle, large = found.effects
    assert small.error("formula") < 0.01
    assert small.error("added") < 0.1
    assert small.slope("added") == pytest.approx(1, abs=0.1)
    assert middle.error("formula") < 0.05
    assert large.error("formula") > 0.1  # and it does end
    assert found.linear_until == 0.01
    assert small.size < middle.size < large.size


def test_the_undisturbed_network_is_the_one_that_was_measured(found: Robustness, run: Run) -> None:
    assert found.fit.values == pytest.approx(
        [v or 0.0 for v in run.measurement(batchnorm="running").separation], rel=1e-6
    )
    assert found.reduction == pytest.approx(found.fit.values[-1] / found.fit.values[0])
    assert found.layers == ("linear1", "linear2", "linear3", "linear4")


def test_the_algebra_on_numbers_by_hand() -> None:
    """Two layers, D = 8, 4, 2. Alone: layer 1 raises D_1 to 5 and D_2 to 2.5; layer 2 raises D_2 to 3. Together: 8, 5, 4."""
    D = np.array([[[8.0, 5, 2.5], [8, 4, 3], [8, 5, 4]]])
    effect = _effect(0.1, D, np.array([8.0, 4, 2]))
    assert effect.measured == pytest.approx((1.0,))  # R from 1/4 to 1/2
    assert effect.local_epsilon[0] == pytest.approx((0.125, 0.25))  # 5/8 − 1/2, 3/4 − 1/2
    assert effect.epsilon[0] == pytest.approx((0.125, 0.3))  # 5/8 − 1/2, 4/5 − 1/2
    assert effect.local == pytest.approx((0.75,))  # 2·.125 + 2·.25
    assert effect.formula == pytest.approx((0.85,))
    assert effect.added == pytest.approx((0.75,))  # .25 + .5
    assert effect.inequality == pytest.approx(2.4)
    assert effect.slope("formula") == pytest.approx(0.85)
    assert effect.error("formula") == pytest.approx(0.15)


def test_noise_has_the_asked_size() -> None:
    weights = [[torch.randn(30, 20)], [torch.randn(10, 30), torch.randn(4, 3, 2, 2)]]
    noise = draw_noise(weights, torch.Generator().manual_seed(0))
    for layer, added in zip(weights, noise, strict=True):
        for w, n in zip(layer, added, strict=True):
            assert n.shape == w.shape
            assert float(n.norm()) == pytest.approx(float(w.norm()), rel=1e-5)


def test_the_same_seed_gives_the_same_numbers_and_the_network_is_left_alone(run: Run, samples: Samples) -> None:
    network = run.network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    a, b = (robustness(network, samples, scales=(0.01,), repeats=2, seed=3) for _ in range(2))
    assert a == b
    assert a != robustness(network, samples, scales=(0.01,), repeats=2, seed=4)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_any_module_is_disturbed_through_a_probe_with_the_same_result(run: Run, samples: Samples) -> None:
    """The same network as a plain Sequential: the same noise, measured by `probe`."""
    network = run.network()
    plain = nn.Sequential(*network.children())
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    pair = samples.inputs, samples.labels
    how = {"scales": (0.01, 0.1), "repeats": 2}
    fleet, probed = robustness(network, pair, **how), robustness(plain, pair, **how)  # type: ignore[arg-type]
    assert probed.fit.values == pytest.approx(fleet.fit.values, rel=1e-4)
    for a, b in zip(fleet.effects, probed.effects, strict=True):
        assert b.measured == pytest.approx(a.measured, rel=0.01, abs=1e-4)
        assert b.local == pytest.approx(a.local, rel=0.01, abs=1e-4)
    assert all(torch.equal(before[name], tensor) for name, tensor in plain.state_dict().items())
    assert probed.layers == ("0", "3", "6", "9")


def test_it_says_what_it_found_and_is_plain_data(found: Robustness) -> None:
    text = str(found)
    first, head, *rows, last = text.splitlines()
    assert first.startswith("R = D_last/D_first = ")
    assert [cell.strip() for cell in head.split("|")][1:] == [
        "measured change of R",
        "formula, joint ε",
        "sum of single layers",
        "local ε",
    ]
    assert [row.split("|")[0].strip() for row in rows] == ["0.001", "0.01", "0.5"]
    assert "right to a tenth up to noise of 0.01; with ε read off one layer at a time" in last
    data = json.loads(json.dumps(found.to_dict()))
    assert len(data["effects"]) == 3
    assert set(data["effects"][0]["predictions"]) == {"formula", "added", "local"}
    assert data["effects"][0]["inequality"] > 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scales": ()}, "scales: expected positive numbers"),
        ({"scales": (0.0, 0.1)}, "scales: expected positive numbers"),
        ({"repeats": 0}, "repeats: expected a whole number of at least 1"),
    ],
)
def test_bad_input_is_answered(run: Run, samples: Samples, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        robustness(run, samples, **options)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_what_is_no_network_or_no_separation_is_answered(samples: Samples) -> None:
    with pytest.raises(InputError, match="expected a module or a run, got int"):
        robustness(3, samples)  # type: ignore[arg-type]
    dead = FeedForward(inputs=20, widths=(8, 8), classes=5, norm=False)
    nn.init.zeros_(dead.get_submodule("linear1").weight)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected D > 0 before and after each of 2 layers"):
        robustness(dead, samples)
    plain = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 5))
    with pytest.raises(InputError, match="batchnorm: expected 'running' or 'batch' for Sequential, got 'whole'"):
        robustness(plain, (samples.inputs, samples.labels), batchnorm="whole")
