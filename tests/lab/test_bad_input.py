"""Bad input is answered before anything is trained: what was expected, what came, where, what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab_parts import clouds

import layerlaw.lab
from layerlaw.errors import DataError, FeatureError, InputError, LabelError, LayerlawError, MemoryBudgetError
from layerlaw.lab import FeedForward, Fleet, Recipe, Run, Samples, Schedule, Shape, sweep, sweeping

SAMPLES = clouds(150)
BASE = Recipe(network=Shape(12, (16, 10), 4), epochs=3, batch_size=32)


def quiet(recipes: list[Recipe], data: Any = SAMPLES, **how: Any) -> list[Run]:
    return sweep(recipes, data, **{"progress": False, "workers": 1, **how})


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training anything is a failure."""
    monkeypatch.setattr(layerlaw.lab.fleet.engine, "Fleet", lambda *given: pytest.fail("something was trained"))
    monkeypatch.setattr(sweeping, "run_in_processes", lambda *given: pytest.fail("something was trained"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Shape.even(1), r"depth: expected at least 2 \(one hidden layer and the classifier\), got 1"),
        (lambda: Shape.even(0), r"depth: expected at least 2 .*, got 0"),
        (lambda: Shape(12, ()), r"depth: expected at least 2 .*, got 1"),
        (lambda: Shape.even(3, width=0), "width: expected at least 1, got 0"),
        (lambda: Shape(12, (4, -2, 4)), "width: expected at least 1, got -2"),
        (lambda: Shape.even(3, inputs=0), "inputs: expected at least 1, got 0"),
        (lambda: Shape.even(3, classes=1), "classes: expected at least 2, got 1"),
        (lambda: Shape.even(3, activation="swish"), "activation: expected one of relu, tanh, gelu, none, got 'swish'"),
        (lambda: FeedForward(depth=3, inputs=4, activation="swish"), "activation: expected one of relu, tanh"),
        (lambda: FeedForward(depth=1, inputs=4), "depth: expected at least 2"),
        (lambda: FeedForward(inputs=4, widths=(3, 0)), "width: expected at least 1, got 0"),
    ],
)
def test_shapes_that_cannot_be(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer": "lion"}, "optimizer: expected one of sgd, momentum, adam, got 'lion'"),
        ({"epochs": 0}, "epochs: expected a whole number of at least 1, got 0"),
        ({"epochs": 2.5}, "epochs: expected a whole number of at least 1, got 2.5"),
        ({"epochs": True}, "epochs: expected a whole number of at least 1, got True"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a positive number, got nan"),
        ({"learning_rate": -0.1}, "learning_rate: expected a positive number, got -0.1"),
        ({"learning_rate": 0.0}, "learning_rate: expected a positive number, got 0.0"),
        ({"learning_rate": float("inf")}, "learning_rate: expected a positive number, got inf"),
        ({"weight_decay": -1e-4}, "weight_decay: expected a number ≥ 0, got -0.0001"),
        ({"weight_decay": float("nan")}, "weight_decay: expected a number ≥ 0, got nan"),
        ({"seed": -1}, "seed: expected a whole number of at least 0 and below 2⁶³, got -1"),
        ({"seed": 2**63}, "seed: expected a whole number of at least 0 and below 2⁶³, got 9223"),
        ({"seed": 1.5}, "seed: expected a whole number of at least 0 and below 2⁶³, got 1.5"),
        ({"drops": 0.5}, r"drops: expected shares of the training such as \(0.5,\), got 0.5"),
        ({"drops": (0.5, 1.5)}, r"drops: expected shares of the training between 0 and 1, got \(0.5, 1.5\)"),
        ({"layers": (0, 4)}, r"layers: expected \(first, beyond the last\) within 0 … 3, got \(0, 4\)"),
        ({"layers": (2, 2)}, r"layers: expected \(first, beyond the last\) within 0 … 3, got \(2, 2\)"),
        ({"layers": (-1, 2)}, r"layers: expected .* within 0 … 3, got \(-1, 2\)"),
        ({"layers": (1,)}, r"layers: expected .* within 0 … 3, got \(1,\)"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_recipes_that_cannot_be(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(BASE, **change)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("recipe", "samples", "words"),
    [
        (
            replace(BASE, batch_size=149),
            SAMPLES,
            "expected batches of at least 2 samples for BatchNorm, but 150 samples in batches of 149 leave one alone. "
            "Choose another batch size",
        ),
        (replace(BASE, batch_size=1), SAMPLES, "150 samples in batches of 1 leave one alone"),
        (BASE, clouds(60, 13), r"expected 12 numbers per sample \(depth 3, widths 16, 10\), got 13"),
        (BASE, clouds(60, classes=5), "expected at most 4 classes, got samples of 5"),
    ],
    ids=["one left over", "batches of one", "width", "classes"],
)
def test_samples_that_do_not_go_with_the_last_recipe_are_told_before_the_first_is_trained(
    recipe: Recipe, samples: Samples, words: str, tmp_path: Path
) -> None:
    recipes = [replace(BASE, data="good"), replace(recipe, data="bad")]
    with pytest.raises(InputError, match=words):
        quiet(recipes, {"good": SAMPLES, "bad": samples}, folder=tmp_path / "new", members=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("untrained")
def test_samples_that_are_not_there() -> None:
    with pytest.raises(InputError, match="sweep: expected samples called 'mnist', got 'cifar', 'letters'"):
        quiet([replace(BASE, data="mnist")], {"cifar": SAMPLES, "letters": SAMPLES})
    with pytest.raises(InputError, match=r"data: expected Samples, or a mapping of names .*, got tuple\. Samples\.of"):
        quiet([BASE], (SAMPLES.inputs, SAMPLES.labels))


def test_one_left_over_is_fine_without_batch_norm() -> None:
    shape = Shape(12, (16, 10), 4, norm=False)
    assert quiet([replace(BASE, network=shape, batch_size=149)])[0].finished


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"members": 0}, "members: expected a whole number of at least 1, or None, got 0"),
        ({"members": 2.5}, r"members: expected a whole number of at least 1, or None, got 2\.5"),
        ({"workers": 0}, "workers: expected a whole number of at least 1, or None, got 0"),
        ({"workers": -2}, "workers: expected a whole number of at least 1, or None, got -2"),
        ({"workers": "2"}, "workers: expected a whole number of at least 1, or None, got '2'"),
        ({"workers": 1.5}, r"workers: expected a whole number of at least 1, or None, got 1\.5"),
        ({"workers": True}, "workers: expected a whole number of at least 1, or None, got True"),
        ({"copied": (0, 1)}, r"copied: expected states to copy these layers from \(start=…\), got none"),
        ({"start": []}, r"start: expected one state per recipe \(1\), got 0"),
        ({"start": [{}], "copied": (1, 4)}, r"copied: expected .* within 0 … 3, got \(1, 4\)"),
        ({"schedule": Schedule(test=True)}, "schedule: expected held-out samples to measure on, but 'data' has none"),
    ],
    ids=str,
)
def test_wishes_that_cannot_be(how: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        quiet([BASE], **how)


@pytest.mark.usefixtures("untrained")
def test_no_recipes() -> None:
    with pytest.raises(InputError, match="sweep: expected at least one recipe, got none"):
        quiet([])


def test_a_start_of_another_shape() -> None:
    state = Shape(12, (16, 11), 4).build().state_dict()
    with pytest.raises(InputError, match=r"start: expected 'linear2.weight' of shape \(10, 16\), got \(11, 16\)"):
        quiet([BASE], start=[state])
    with pytest.raises(InputError, match=r"start: expected 'norm1.weight' of shape \(16,\), got nothing"):
        quiet([BASE], start=[Shape(12, (16, 10), 4, norm=False).build().state_dict()])
    assert quiet([BASE], start=[state], copied=(0, 1))[0].finished  # the first layer is the same


def test_a_start_without_running_statistics() -> None:
    state = BASE.network.build().state_dict()
    del state["norm2.running_var"]
    with pytest.raises(InputError, match=r"start: expected 'norm2.running_var' of shape \(10,\), got nothing"):
        quiet([BASE], start=[state])


def test_samples_that_are_none() -> None:
    x, y = SAMPLES.inputs, SAMPLES.labels
    spoilt = x.clone()
    spoilt[3, 2] = torch.nan
    cases: list[tuple[Any, Any, type[LayerlawError], str]] = [
        (
            (x, torch.zeros(150, dtype=torch.long)),
            None,
            LabelError,
            "training data: expected at least 2 classes, got 1",
        ),
        ((x, 2 * y), None, LabelError, "training data: expected samples of all 7 classes, got none of class 1, 3, 5"),
        ((x, y.float()), None, LabelError, "training labels: expected whole-number class labels"),
        ((x, y - 1), None, LabelError, "training labels: expected labels in 0 … 2 .*, got -1"),
        ((spoilt, y), None, FeatureError, "training data: expected finite inputs, got NaN or infinity"),
        ((x, y), (spoilt, y), FeatureError, "test data: expected finite inputs"),
        ((x, y), (x[:, :5], y), FeatureError, "test data: expected 12 numbers per sample, got 5"),
        (
            (x.view(-1, 3, 2, 2), y),
            (x.view(-1, 3, 2, 2).permute(0, 2, 3, 1), y),
            FeatureError,
            r"test data: expected samples of shape \(3, 2, 2\) as in training, got \(2, 2, 3\)\. Put their axes in",
        ),
        ((x, y), (x, y + 1), LabelError, "test labels: expected labels in 0 … 3"),
        (
            (x, y[:9]),
            None,
            FeatureError,
            r"expected inputs \(n, …\) and labels \(n,\), got \(150, 12\) and \(9,\)",
        ),
        ((x[:, 0], y), None, FeatureError, r"expected inputs \(n, …\) and labels"),
        (x, None, FeatureError, r"training data: expected a pair \(inputs, labels\), got Tensor"),
    ]
    for train, test, kind, words in cases:
        with pytest.raises(kind, match=words):
            Samples.of(train, test)
    for share in (1.0, 0, "half"):
        with pytest.raises(InputError, match=f"share: expected a number between 0 and 1, got {share!r}") as refused:
            SAMPLES.held_back(share)
        assert refused.type is InputError
    with pytest.raises(LabelError, match=r"class 0: expected enough samples to hold 0\.001 back"):
        SAMPLES.held_back(0.001)


def test_members_that_do_not_go_together() -> None:
    pairs: list[tuple[Recipe, Samples, str]] = [
        (replace(BASE, network=Shape(12, (16, 9), 4)), SAMPLES, "network"),
        (replace(BASE, batch_size=50), SAMPLES, "batch size"),
        (replace(BASE, epochs=4), SAMPLES, "number of epochs"),
        (replace(BASE, layers=(0, 1)), SAMPLES, "set of trained layers"),
        (BASE, clouds(90), "number of samples"),
    ]
    for recipe, samples, words in pairs:
        with pytest.raises(InputError, match=f"fleet: expected members of one {words}, got"):
            Fleet([BASE, recipe], [SAMPLES, samples])
    with pytest.raises(InputError, match="fleet: expected one set of samples per recipe, got 1 for 2"):
        Fleet([BASE, BASE], [SAMPLES])
    with pytest.raises(InputError, match="fleet: expected one set of samples per recipe, got 0 for 0"):
        Fleet([], [])


def test_out_of_memory_says_how_many_members_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Fleet, "train_epoch", full)
    with pytest.raises(
        MemoryBudgetError,
        match=r"training 5 members \(depth 3, widths 16, 10\) at once ran out of memory on cpu: about 4 would fit. "
        r"Pass members=4\.",
    ):
        quiet(BASE.grid(seed=range(5)))
    with pytest.raises(
        MemoryBudgetError,
        match=r"training 1 member \(depth 3.*\) at once ran out .*: choose a smaller network or batch\.",
    ):
        quiet([BASE])
    wide = replace(BASE, network=Shape(12, (4000, 4000), 4), batch_size=64)
    assert 2 <= layerlaw.lab.fleet.engine.members_that_fit(wide, SAMPLES, "cpu") <= 12  # about 0.4 GB each, of 4 GiB


def test_out_of_memory_when_the_fleet_is_made_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(layerlaw.lab.fleet.engine, "Fleet", full)
    with pytest.raises(MemoryBudgetError, match=r"training 3 members .* about 2 would fit"):
        quiet(BASE.grid(seed=range(3)))


def test_recipes_survive_a_trip_through_json() -> None:
    for recipe in (BASE, replace(BASE, layers=(1, 3), drops=(0.5,), network=Shape(5, (4, 3), 2, False, "gelu"))):
        again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
        assert again == recipe
        assert hash(again) == hash(recipe)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: BASE.grid(lr=(0.1,)), "got 'lr'. Did you mean learning_rate?"),
        (lambda: BASE.grid(learning_rate=0.1), "expected several values of learning_rate, got 0.1"),
        (lambda: replace(BASE, learning_rate="a"), "learning_rate: expected a number, got 'a'"),
        (lambda: Shape(20, 30, 4), "widths: expected the widths of the hidden layers"),
        (lambda: Schedule(epochs=5), "epochs: expected whole numbers, (0, 100, …), got 5"),
        (lambda: Schedule(epochs=("a",)), "epochs: expected whole numbers"),
        (lambda: sweep(BASE, clouds(60)), "sweep: expected a list of recipes"),
        (lambda: sweep([BASE], clouds(60), schedule=Schedule(epochs=(0, 10**6))), "schedule: expected epochs up to"),
        (lambda: sweep([BASE], clouds(60), start=[3]), "start: expected the states of networks"),
        (
            lambda: sweep([BASE], clouds(60, classes=3)),
            "expected a classifier of 3 outputs for samples of 3 classes, got 4",
        ),
        (lambda: sweep([BASE], clouds(60), device="nowhere"), "device: expected one that torch can use here (cpu"),
        (lambda: Samples(np.zeros((4, 2)), np.zeros(4)), "inputs: expected a tensor, got ndarray"),
        (lambda: Samples.of((np.zeros((4, 2)), np.array(["a", "b", "a", "b"]))), "expected numbers, got <U1"),
    ],
)
def test_slips_of_the_pen_are_answered(wrong: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        wrong()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, words in (
        ("file", "expected a folder, got a file"),
        ("file/inside", "a folder that can be made or used"),
    ):
        with pytest.raises(DataError, match=words):
            sweep([BASE], clouds(60), folder=tmp_path / folder, progress=False)


def test_tables_of_pandas_are_taken() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [0.0, 1.0, 2.0, 3.0], "b": [1.0, 1.0, 0.0, 0.0]}, index=[20, 21, 22, 23])
    found = Samples.of((frame, pandas.Series([0, 1, 0, 1], index=frame.index)))
    assert found.inputs.tolist() == [[0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [3.0, 0.0]]
