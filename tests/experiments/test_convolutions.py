"""Figures 4, S2 and S3, quickly, and how they are judged."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from experiments_recorded import Quick, made_run, quick_fixture
from torch import nn

from layerlaw.errors import InputError
from layerlaw.experiments import code_digest, find
from layerlaw.experiments.numbers import power
from layerlaw.experiments.runs import MODE_NAMES, PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import convolutions
from layerlaw.experiments.separation.s8 import FUZZY
from layerlaw.experiments.setting import PAPER_SEED, Setting
from layerlaw.lab import Architecture, sweep
from layerlaw.measures import separation_fuzziness

fig4 = quick_fixture("fig4", most=3, called="fig4")
s2 = quick_fixture("s2", most=3, called="s2")
s3 = quick_fixture("s3", most=3, called="s3")
MODES = tuple(MODE_NAMES)


CHANNELS = {"fashion_mnist": 1, "cifar10": 3}


class Asked(Setting):
    """A full setting that is stopped where it would train."""

    def train(self, name: str, recipes: Any, data: Any, schedule: Any, **how: Any) -> Runs:
        self.recipes, self.schedule = recipes, schedule
        raise InterruptedError


def asked(run: Callable[[Setting], object], patch: pytest.MonkeyPatch) -> Asked:
    """What a full run trains first; without the official images."""

    def images_of(setting: Setting, size: int = 32) -> dict[str, Any]:
        shapes = {name: torch.zeros(1, channels, size, size) for name, channels in CHANNELS.items()}
        return {name: lambda seed, x=x: SimpleNamespace(inputs=x) for name, x in shapes.items()}

    patch.setattr(convolutions, "images_of", images_of)
    setting = Asked()
    with pytest.raises(InterruptedError):
        run(setting)
    return setting


def test_figure_4_trains_the_grid_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    full = asked(convolutions.fig4, monkeypatch)
    assert {(str(r.network), r.data, r.network.inputs) for r in full.recipes} == {
        (name, data, inputs) for name in ("alexnet_5x5", "vgg13_5x5") for data, inputs in CHANNELS.items()
    }
    assert {(r.epochs, r.batch_size, r.weight_decay, r.optimizer) for r in full.recipes} == {(600, 128, 5e-4, "adam")}
    assert {r.learning_rate for r in full.recipes} == {3e-5, 1e-4, 3e-4, 1e-3, 3e-3}
    assert len(full.recipes) == 2 * 2 * 5 * 3
    assert set(full.schedule.batchnorm) == set(MODE_NAMES)


def test_the_short_sweep_takes_a_tenth_of_the_epochs_on_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    full = asked(convolutions.s2, monkeypatch)
    assert {str(r.network) for r in full.recipes} == {"vgg11", "vgg13", "vgg16", "vgg19"}
    assert {(r.epochs, r.seed) for r in full.recipes} == {(60, PAPER_SEED)}
    assert len(full.recipes) == 4 * 2 * 5


def test_d_is_measured_at_the_input_and_behind_every_relu_before_the_pool(fig4: Quick) -> None:
    kept, samples = fig4.setting.runs["grid"][0], fig4.setting.data["fashion_mnist"]
    (run,) = sweep([kept.recipe], samples, schedule=replace(convolutions.LAYERS, test=False), progress=False, workers=1)
    assert run.measurement().separation == pytest.approx(kept.measurement().separation, rel=1e-6)
    network, x, found = run.network(), samples.inputs, [samples.inputs.flatten(1)]
    with torch.no_grad():
        for part in network:
            x = part(x)
            found += [x.flatten(1)] if isinstance(part, nn.ReLU) else []
    D = [float(separation_fuzziness(f.double(), samples.labels)) for f in found]
    assert len(D) == 8  # input, five convolutions, two linear layers
    assert run.measurement(batchnorm="running").separation == pytest.approx(D, rel=1e-3)


def test_figure_4_chooses_by_the_law_and_allows_for_the_choice(fig4: Quick) -> None:
    runs = fig4.setting.runs["grid"]
    for network in convolutions.CONVOLUTIONAL:
        stages = convolutions.QUICK[network]["stages"]
        some = Runs(r for r in runs if r.recipe.network.stages == stages)
        assert len(some) == 2
        best = min(some, key=lambda r: r.law().pearson)
        name = f"fashion_mnist-{network}"
        assert fig4.row(f"{name}/pearson").ours == pytest.approx(best.law().pearson)
        assert fig4.row(f"{name}/learning-rate").ours == best.recipe.learning_rate
        lowest = min(some, key=lambda r: r.measurement(batchnorm="running").loss)
        assert fig4.row(f"{name}/lowest-loss/pearson").ours == pytest.approx(lowest.law().pearson)
        held = fig4.row(f"{name}/holds")
        assert (held.paper, held.kind, held.chance) == ("law", "direction", pytest.approx(0.05))
    assert power(7, 5) > 0.9  # the choice leaves a test that true laws pass
    claims = [line[0] for line in fig4.table(PROTOCOL_TITLE).rows]
    assert len(claims) == 4  # two networks, and the same with the rate chosen anew
    assert any("float32" in note for note in fig4.outcome.notes)
    assert any("no CIFAR-10" in note for note in fig4.outcome.notes)


def test_one_rate_is_chosen_by_the_loss_of_a_short_sweep_on_the_first_seed(s2: Quick) -> None:
    short, runs = s2.setting.runs["rates"], s2.setting.runs["seeds"]
    assert {r.recipe.epochs for r in short} == {1}
    assert len(short) == 2 * len(runs) == 8
    for run in runs:
        rates = [r for r in short if r.recipe.network == run.recipe.network]
        lowest = min(rates, key=lambda r: r.measurement(batchnorm="running").loss)
        assert run.recipe.learning_rate == lowest.recipe.learning_rate
        assert run.recipe.epochs == 3


def test_a_fuzzy_law_is_judged_by_greenwoods_test(s2: Quick) -> None:
    for network in convolutions.VGG:
        fuzzy, sharp = (s2.row(f"fashion_mnist-{network}/{name}") for name in ("below-chance", "holds"))
        assert (fuzzy.paper, fuzzy.tolerance, fuzzy.kind) == ("fuzzy law", FUZZY.tolerance, "direction")
        assert (sharp.kind, sharp.tolerance) == (None, convolutions.SHARP.tolerance)
    assert len(s2.table(PROTOCOL_TITLE).rows) == 4
    even, one_step = [0.8**i for i in range(9)], [1.0] * 8 + [0.2]
    runs = Runs(made_run({9: D}, seed=i, modes=MODES) for i, D in enumerate([even, even, one_step]))
    assert convolutions._mostly_even(runs, "batch")
    assert not convolutions._mostly_even(Runs(runs[1:]), "running")


def test_pure_convolutions_are_compared_with_vgg11_of_the_same_seed(s3: Quick) -> None:
    row = s3.row("fashion_mnist-pure_cnn_64-over-vgg11/final-D")
    (pure,) = s3.setting.runs["seeds"]
    assert row.low == pytest.approx(row.ours)
    assert (row.kind, row.chance, row.tolerance) == ("direction", 0.05, "> 1 (t test of logs over seeds, 5 %)")
    assert row.reproduced is None  # one seed is no test
    assert s3.row("fashion_mnist-pure_cnn_64/final-D").ours == pytest.approx(pure.measurement().separation[-1])
    assert s3.row("fashion_mnist-pure_cnn_64-over-vgg11/final-D-eval").kind is None
    assert s3.row("fashion_mnist-pure_cnn_64/holds").paper == "law"
    assert any("times that of VGG11" in note for note in s3.outcome.notes)


def test_a_larger_final_d_is_a_t_test_of_logs() -> None:
    def of(ends: list[float]) -> Runs:
        return Runs(made_run({9: [1.0, 0.9, D]}, seed=i, modes=MODES) for i, D in enumerate(ends))

    vgg = of([0.1, 0.1, 0.1])
    larger = convolutions.final_over(of([0.4, 0.5, 0.6]), vgg, name="x")
    assert larger.reproduced is True
    assert larger.ours == pytest.approx((4 * 5 * 6) ** (1 / 3))
    assert convolutions.final_over(of([0.05, 0.5, 0.09]), vgg, name="x").reproduced is False
    assert convolutions.final_over(of([0.4, 0.5, 0.6]), vgg, "running", "x").kind is None  # shown beside
    assert convolutions._larger(of([0.4, 0.5, 0.6]), vgg, "running") is True


def test_the_lowest_loss_is_that_of_the_first_seed_and_never_a_diverged_one() -> None:
    def of(rate: float, seed: int, loss: float, **how: int) -> object:
        return made_run({9: [1.0, 0.5, 0.2]}, learning_rate=rate, seed=seed, loss=loss, **how)

    runs = Runs([of(1.0, 7, 0.0, diverged=3), of(0.1, 7, 0.2), of(0.3, 7, 0.1), of(0.1, 8, 0.01), of(0.3, 8, 0.5)])
    assert [(r.recipe.learning_rate, r.recipe.seed) for r in convolutions.lowest_loss(runs)] == [(0.3, 7), (0.3, 8)]
    exact = Runs([of(0.1, 7, 0.0), of(0.3, 7, 0.1)])  # a loss of 0 is a number
    assert convolutions.lowest_loss(exact)[0].recipe.learning_rate == 0.1


def test_figures_that_share_a_file_have_titles_texts_and_digests_of_their_own() -> None:
    for name in ("fig4", "s2", "s3", "fig7", "fig8", "fig10"):
        assert f"layerlaw reproduce {name} --quick" in find(name).text
        assert len(code_digest(name)) == 16
    assert len({find(name).title for name in ("fig4", "s2", "s3", "fig7", "fig8", "fig10")}) == 6
    with pytest.raises(InputError, match="expected one of the experiments"):
        find("convolutions")


def test_quick_networks_are_smaller_ones_of_the_same_kind() -> None:
    for name, changes in convolutions.QUICK.items():
        full, small = Architecture.named(name), Architecture.named(name, **changes)
        assert type(full) is type(small)
        images = (3, 16, 16) if name.startswith(("resnet", "densenet")) else (3, 32, 32)
        assert small.multiplications(images) < 2e7, name


def test_a_trend_that_is_no_number_is_not_called_a_D_that_does_not_fall() -> None:
    late = [15.0, 15.5, 16.0, 12.0, 3.0, 0.15]
    trend, rho = Runs([made_run({9: late}, seed=0, modes=MODES)]).rows("late", ("trend", "rho"))
    assert trend.ours is None
    assert trend.reason == "the parabola that is fitted to ln D does not fall at its first step"
    assert rho.ours is not None
    rising = Runs([made_run({9: [1.0, 2.0, 3.0]}, seed=0, modes=MODES)]).rows("rising", ("evenness",))[0]
    assert rising.reason == "D does not fall with depth"
