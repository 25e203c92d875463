"""SVSL beside plain training, and random labels, quickly; what a full run trains; the rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from experiments_recorded import Quick, Recording, quick_fixture

from layerlaw.advice.courses import course_ends
from layerlaw.errors import MissingExtraError
from layerlaw.experiments import code_digest, find
from layerlaw.experiments.collapse import svsl
from layerlaw.experiments.collapse.svsl import MEASURED, PUBLISHED, SITES
from layerlaw.experiments.runs import Runs
from layerlaw.experiments.setting import Setting
from layerlaw.lab import CrossEntropy, Samples
from layerlaw.lab.variability import VariabilityCrossEntropy
from layerlaw.verdict.conjectures import training_course

quick = quick_fixture("svsl_random_labels")


@pytest.fixture(scope="module", autouse=True)
def fewer_epochs_measured() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svsl, "QUICK_MEASURED", (4, 12, 16, 20, 30))
        yield


@pytest.fixture(scope="module")
def pairs() -> Quick:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svsl, "QUICK_EPOCHS", 4)
        patch.setattr(svsl, "QUICK_MEASURED", (1, 2, 4))
        patch.setattr(svsl, "QUICK_COUNT", 8)
        setting = Recording(seed_count=2)
        return Quick(find("svsl_cifar10").run(setting), setting)


def test_random_labels_are_learned_by_heart_and_the_last_layers_collapse(quick: Quick) -> None:
    runs = quick.setting.runs["labels"]
    assert [run.recipe.data for run in runs] == ["true-labels", "random-labels"]
    true, random = (quick.setting.data[run.recipe.data] for run in runs)
    assert torch.equal(true.inputs, random.inputs)
    assert not torch.equal(true.labels, random.labels)
    assert true.counts == random.counts == (10,) * 10
    assert quick.row("random-labels/interpolation-epoch").ours <= 30
    assert quick.row("random-labels/average/train-mismatch").ours <= 0.02
    assert quick.row("random-labels/stage1/train-mismatch").ours > quick.row("true-labels/stage1/train-mismatch").ours
    assert quick.row("random-labels/conjecture-7/train").ours == 1
    assert quick.row("random-labels/test-accuracy").ours < 0.3 < quick.row("true-labels/test-accuracy").ours


def test_the_terminal_phase_is_shaded_from_the_threshold_on(quick: Quick) -> None:
    mismatch, accuracy, collapse = quick.outcome.sheets
    run = quick.setting.runs["labels"][0]
    assert mismatch.panels[0].shaded == (training_course(run).interpolation, 30)
    assert [series.label for series in mismatch.panels[0].series] == list(SITES)
    curve = mismatch.panels[1].series[0]
    assert curve.y == tuple(m.mismatch[0] for m in run.measurements if m.split == "test")
    assert [panel.title for panel in accuracy.panels] == ["train accuracy", "test accuracy"]
    assert [panel.title for panel in collapse.panels][:2] == ["D", "NC1"]


def test_both_of_a_pair_start_alike_and_differ_by_the_penalty_alone(pairs: Quick) -> None:
    runs = pairs.setting.runs["pairs"]
    assert [(run.recipe.seed, run.recipe.loss.kind) for run in runs] == [
        (666, "cross_entropy"), (666, "svsl"), (1, "cross_entropy"), (1, "svsl")
    ]  # fmt: skip
    first, second = runs[0].recipe, runs[1].recipe
    assert (first.network, first.learning_rate, first.epochs) == (second.network, second.learning_rate, second.epochs)
    assert second.loss.reduction == "authors"
    assert runs[0].losses != runs[1].losses
    assert runs[0].losses[0] == pytest.approx(runs[1].losses[0], rel=0.2)


def test_gains_are_those_of_pairs_with_their_interval(pairs: Quick) -> None:
    by_loss = {
        kind: Runs(pairs.setting.runs["pairs"]).by(lambda run: run.recipe.loss.kind)[kind]
        for kind in ("svsl", "cross_entropy")
    }
    ends = {
        kind: [run.measurement(batchnorm="running", split="test").accuracy for run in some]
        for kind, some in by_loss.items()
    }
    gains = [a - b for a, b in zip(ends["svsl"], ends["cross_entropy"], strict=True)]
    row = pairs.row("svsl-minus-plain/test-accuracy")
    assert row.ours == pytest.approx(sum(gains) / 2)
    assert row.paper == PUBLISHED["cifar10"].gain == 0.0023
    error = abs(gains[0] - gains[1]) / 2
    assert pairs.row("svsl-minus-plain/test-accuracy-standard-error").ours == pytest.approx(error)
    low, high = (pairs.row(f"svsl-minus-plain/test-accuracy-interval-{side}").ours for side in ("low", "high"))
    assert (high - low) / 2 == pytest.approx(12.706205 * error, rel=1e-5)
    assert any("Conjecture 12" in note for note in pairs.outcome.notes)
    ends = course_ends(training_course(by_loss["svsl"][0]))
    assert ends.best_epoch in (1, 2, 4)
    assert ends.at_threshold is None or ends.interpolation is not None


class Stop(Exception):
    pass


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_full_run_has_the_settings_of_the_paper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    about, seen = PUBLISHED[name], {}
    channels = 3 if name == "cifar10" else 1
    some = Samples.of((torch.randn(20, channels, about.size, about.size), torch.arange(20) % 10))
    monkeypatch.setattr(svsl, "_images", lambda *given: some)

    def train(self: Setting, folder: str, recipes: Any, data: Any, schedule: Any, *, networks: bool) -> Any:
        seen.update(folder=folder, recipes=recipes, schedule=schedule)
        raise Stop

    monkeypatch.setattr(Setting, "train", train)
    with pytest.raises(Stop):
        find(f"svsl_{name}").run(Setting(progress=False))
    recipes, schedule = seen["recipes"], seen["schedule"]
    assert [r.seed for r in recipes] == [666, 666, 1, 1, 2, 2]
    for plain, penalty in zip(recipes[::2], recipes[1::2], strict=True):
        assert plain.loss == CrossEntropy()
        assert penalty.loss == VariabilityCrossEntropy(about.alpha, first=about.first, reduction="authors", where=SITES)
    recipe = recipes[0]
    assert (recipe.optimizer, recipe.learning_rate, recipe.weight_decay) == ("momentum", about.rate, 5e-4)
    assert (recipe.epochs, recipe.batch_size, recipe.drops) == (350, 128, (1 / 3, 2 / 3))
    assert (recipe.network.stem, recipe.network.widths) == ("7x7" if channels == 3 else "3x3", (64, 128, 256, 512))
    assert schedule.epochs == MEASURED
    assert (len(MEASURED), schedule.batchnorm, schedule.test, schedule.collapse) == (30, ("running",), True, True)


def test_without_optuna_the_search_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*given: Any, **how: Any) -> Any:
        raise MissingExtraError("optuna", "search", "searching α")

    monkeypatch.setattr(svsl, "svsl_search", missing)
    about = PUBLISHED["mnist"]
    some = Samples.of((torch.randn(20, 1, 28, 28), torch.arange(20) % 10))
    found, why = svsl._searched(Setting(progress=False), svsl._recipe(Setting(), about, some), some, about)
    assert found is None
    assert "layerlaw[search]" in why


def test_every_name_is_found_with_its_title_and_code() -> None:
    for name in svsl.TITLES:
        assert find(name).title == svsl.TITLES[name]
        assert f"layerlaw reproduce {name} --quick" in find(name).text


def test_its_code_is_that_of_the_checks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr("layerlaw.experiments._bare", lambda text: read.append(text) or text)
    code_digest("svsl_mnist")
    for word in ("def check_conjectures", "def svsl_search", "def svsl_mnist", "def collapse_columns"):
        assert any(word in text for text in read), word
