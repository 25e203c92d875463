"""The search of α: what it trains, judges by and answers; with a stand-in for Optuna, and with Optuna itself."""

from __future__ import annotations

import random
import types
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from layerlaw.advice import PenaltySearch, svsl_search
from layerlaw.advice.penalty_search import PenaltyTrial, _first_sites
from layerlaw.errors import InputError, MissingExtraError
from layerlaw.lab import Recipe, Samples, Shape
from layerlaw.lab.variability import VariabilityCrossEntropy


def samples() -> Samples:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(120, 6, generator=generator) + 2 * torch.eye(6)[y]
    return Samples.of((x, y), (x[:30] + 100, y[:30]))  # test samples that would show if they were looked at


RECIPE = Recipe(Shape(6, (8, 8), 3), epochs=8, batch_size=15, learning_rate=0.02, seed=4)


class Sampled:
    """A study that draws at random, with the methods of Optuna's that the search calls."""

    told: ClassVar[list[tuple[int, float]]] = []

    def __init__(self, **how: Any) -> None:
        self.random, self.asked = random.Random(how.get("seed", 0)), 0
        self.told.clear()

    def ask(self) -> Any:
        self.asked += 1
        return types.SimpleNamespace(number=self.asked - 1, suggest_float=self.number, suggest_categorical=self.one)

    def tell(self, trial: Any, value: float) -> None:
        self.told.append((trial.number, value))

    def number(self, name: str, low: float, high: float, *, log: bool) -> float:
        assert (name, log) == ("alpha", True)
        return low * (high / low) ** self.random.random()

    def one(self, name: str, choices: list[str]) -> str:
        assert name == "first"
        return self.random.choice(choices)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("optuna")
    module.logging = types.SimpleNamespace(set_verbosity=lambda level: None, WARNING=30)
    module.samplers = types.SimpleNamespace(TPESampler=lambda **how: how)
    module.create_study = lambda direction, sampler: Sampled(**sampler)
    monkeypatch.setitem(__import__("sys").modules, "optuna", module)


@pytest.mark.usefixtures("stand_in")
def test_the_best_trial_on_held_back_training_samples_is_chosen(tmp_path: Path) -> None:
    found = svsl_search(RECIPE, samples(), trials=3, share=0.25, alphas=(1e-4, 1e-1), folder=tmp_path, progress=False)
    assert len(found.trials) == 3
    assert found.validation == 30
    assert found.best.accuracy == max(trial.accuracy for trial in found.trials)
    assert all(1e-4 <= trial.alpha <= 1e-1 and trial.first in ("linear2", "classifier") for trial in found.trials)
    assert _first_sites(RECIPE, samples(), "auto") == ["linear2", "classifier"]  # what enters linear1 is the raw input
    lines = str(found).splitlines()
    assert (lines[0], len(lines)) == (found.sentence, 4)
    assert lines[1].startswith(f"  α = {found.trials[0].alpha:.3g} from {found.trials[0].first} on: ")
    assert found.plain is not None
    assert found.plain > 0.5  # on samples like those of the training: the test samples are far away
    assert "is the best of 3 trials" in found.sentence
    assert "without the penalty" in found.sentence
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt"))
    again = svsl_search(RECIPE, samples(), trials=3, share=0.25, alphas=(1e-4, 1e-1), folder=tmp_path, progress=False)
    assert again == found
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")) == before  # nothing is trained again


@pytest.mark.usefixtures("stand_in")
def test_several_trials_at_a_time_are_those_of_one_after_the_other(tmp_path: Path) -> None:
    how: dict[str, Any] = {"trials": 4, "share": 0.25, "alphas": (1e-4, 1e-1), "progress": False}
    alone = svsl_search(RECIPE, samples(), **how)
    told = list(Sampled.told)
    assert [number for number, _ in told] == [0, 1, 2, 3]
    assert [value for _, value in told] == [trial.accuracy for trial in alone.trials]
    together = svsl_search(RECIPE, samples(), workers=3, folder=tmp_path, **how)
    assert together == alone  # this study draws the same, whatever it was told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trial-0", "trial-2"]  # 2 with the plain one, then 2
    assert not any(path.stat().st_size > 100_000 for path in tmp_path.rglob("*.pt"))  # numbers, not networks


@pytest.mark.usefixtures("stand_in")
def test_bad_searches_are_answered() -> None:
    with pytest.raises(InputError, match="trials: expected"):
        svsl_search(RECIPE, samples(), trials=0)
    with pytest.raises(InputError, match="workers: expected"):
        svsl_search(RECIPE, samples(), workers=0)
    with pytest.raises(InputError, match="alphas: expected a range of positive numbers"):
        svsl_search(RECIPE, samples(), alphas=(0.0, 1.0))
    with pytest.raises(InputError, match="sites: expected at least two along depth"):
        svsl_search(RECIPE, samples(), sites=("relu1",))
    with pytest.raises(InputError, match="share: expected a number between 0 and 1, got 0") as refused:
        svsl_search(RECIPE, samples(), share=0)
    assert refused.type is InputError


@pytest.mark.parametrize("alphas", [1e-5, (1e-5,), (1e-5, 1e-4, 1e-3), ("a", "b"), (1e-4, 1e-5)])
def test_what_is_no_range_of_alpha_is_refused(alphas: Any) -> None:
    with pytest.raises(InputError, match=r"alphas: expected a range of positive numbers \(low, high\), got"):
        svsl_search(RECIPE, samples(), alphas=alphas)


@pytest.mark.parametrize("sites", [3, None, [], ["relu1", 2], torch.nn.ReLU(), {"relu1"}, ""])
def test_what_is_no_choice_of_sites_is_refused(sites: Any) -> None:
    words = r"sites: expected a rule \(auto, .*\) or names of modules, got .*\. Write sites='auto', or sites=\["
    with pytest.raises(InputError, match=words):
        svsl_search(RECIPE, samples(), sites=sites)


def test_what_is_no_recipe_and_no_samples_is_answered_with_what_to_do() -> None:
    data = samples()
    swapped, network = (data, RECIPE), torch.nn.Linear(6, 3)
    cases: list[tuple[tuple[Any, Any], str]] = [
        (swapped, r"recipe: expected the recipe first and the samples second.*svsl_search\(recipe, samples\)"),
        ((RECIPE, (data.inputs, data.labels)), r"samples: expected layerlaw\.lab\.Samples, got a tuple.*Samples\.of\("),
        ((network, data), r"recipe: expected a layerlaw\.lab\.Recipe, got a Linear\..*Architecture, see docs/lab\.md"),
        (("resnet18", data), r"recipe: expected a layerlaw\.lab\.Recipe, got 'resnet18'.*Recipe\('resnet18', epochs"),
    ]
    for given, words in cases:
        with pytest.raises(InputError, match=words):
            svsl_search(*given)


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'optuna': pip install 'layerlaw\[search\]'"):
        svsl_search(RECIPE, samples())


def test_a_gain_inside_the_noise_is_called_that() -> None:
    trials = (PenaltyTrial(1e-5, "a", 0.81), PenaltyTrial(1e-6, "b", None))
    small = PenaltySearch(1e-5, "a", "authors", trials, 0.80, 100)
    assert "inside the noise" in small.sentence
    assert "inside the noise" not in PenaltySearch(1e-5, "a", "authors", trials, 0.80, 1_000_000).sentence
    assert "diverged" in PenaltySearch(1e-5, "a", "authors", trials, None, 100).sentence


def test_the_line_to_paste_is_that_of_the_search() -> None:
    trials = (PenaltyTrial(1.234e-5, "stage1", 0.9),)
    found = PenaltySearch(1.234e-5, "stage1", "authors", trials, 0.8, 100)
    assert found.loss == 'll.SVSL(model, alpha=1.23e-05, first="stage1", reduction="authors")'
    assert found.sentence.endswith(found.loss)
    assert found.to_dict()["loss"] == found.loss
    assert "sites=('a', 'b'), first" in replace(found, sites=("a", "b")).loss


def test_with_optuna_itself() -> None:
    pytest.importorskip("optuna")
    found = svsl_search(RECIPE, samples(), trials=5, workers=2, share=0.25, progress=False)
    assert len(found.trials) == 5
    assert 5e-8 <= found.alpha <= 5e-5
    assert isinstance(VariabilityCrossEntropy(found.alpha, first=found.first).build(), torch.nn.Module)
