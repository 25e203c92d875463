"""Choosing by real training on the embedded sample, and what cannot be chosen from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from layerlaw.advice import Choice, TrainingData, TrainingPlan, choose_depth, choose_shape, choose_width
from layerlaw.data import load
from layerlaw.errors import DataError, FeatureError, InputError, LabelError
from layerlaw.lab import Recipe, Samples, Shape, sweep

SAMPLE = "fashion_mnist_sample"
QUICK: dict[str, Any] = {"rates": (1e-3, 3e-3), "recipe": Recipe(epochs=30), "seeds": (0, 1, 2), "progress": False}


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> Choice:
    folder = tmp_path_factory.mktemp("sweep")
    data, test = load(SAMPLE).balanced(40).resized(10), load(SAMPLE, split="test").resized(10)
    return choose_depth(data, depths=(2, 4, 6), test=test, folder=folder, **QUICK)


def test_depth_is_chosen_on_real_data(choice: Choice) -> None:
    assert [c.label for c in choice.candidates] == ["depth 2", "depth 4", "depth 6"]
    assert choice.recommended is not None
    assert choice.recommended.label in {"depth 4", "depth 6"}  # depth 2 cannot separate as well
    finals = [c.trial.separation for c in choice.candidates]
    assert finals[0] is not None
    assert finals[2] is not None
    assert finals[0] > 2 * finals[2]
    assert all(0.5 < (c.trial.accuracy or 0) < 0.95 for c in choice.candidates)
    assert choice.test_accuracy is not None
    assert choice.test_accuracy > 0.6
    settings = choice.provenance["data"]
    assert (settings["train"], settings["validation"], settings["test"]) == (320, 80, 2000)


def test_its_numbers_are_those_of_the_networks(choice: Choice) -> None:
    """One network of the grid, trained alone on the same split, has the same D and validation accuracy."""
    material = TrainingData.of(load(SAMPLE).balanced(40).resized(10))
    rate = choice.candidates[1].trial.rate
    run, *_ = sweep([Recipe(Shape.even(4), learning_rate=rate, epochs=30, seed=1)], material.samples, progress=False)
    measurement = run.measurement(batchnorm="running")
    assert choice.candidates[1].trial.finals[1] == pytest.approx(measurement.separation[-1], rel=0.02)
    x, y = material.samples.test_inputs, material.samples.test_labels
    assert x is not None
    with torch.no_grad():
        accuracy = float((run.network()(x).argmax(1) == y).double().mean())
    assert choice.candidates[1].trial.accuracies[1] == pytest.approx(accuracy, abs=0.03)


def test_it_is_saved_and_drawn(choice: Choice, tmp_path: Path) -> None:
    data = json.loads(choice.save(tmp_path / "choice.json").read_text())
    assert data["format"] == "layerlaw choice"
    assert choice.recommended is not None
    assert data["recommended"] == choice.recommended.label
    assert [len(row["trials"]) for row in data["candidates"]] == [2, 2, 2]
    choice.plot().savefig(tmp_path / "choice.png")
    assert (tmp_path / "choice.png").stat().st_size > 10_000


def test_width_and_shape_report_noise_floors_and_count_parameters() -> None:
    x, y = load(SAMPLE).balanced(20).resized(6).tensors(flat=True)
    few = {**QUICK, "recipe": Recipe(epochs=40), "seeds": (0, 1), "rates": (3e-3,)}
    width = choose_width((x.numpy(), y.numpy()), widths=(30, 10), depth=3, **few)
    assert [c.label for c in width.candidates] == ["width 10", "width 30"]
    assert width.candidates[0].parameters == 36 * 10 + 10 + 10 * 10 + 10 + 10 * 10 + 10 + 2 * 20
    shape = choose_shape(Samples.of((x, y)), shapes=((20, 20, 40), (40, 20, 20)), **few)
    assert [c.label for c in shape.candidates] == ["20×2 → 40", "40 → 20×2"]
    for found in (width, shape):
        assert found.over_floor
        assert "D over its noise floor" in found.headline
        assert any("noise floors" in line for line in found.caveats)
        assert "flatter" in found.sentences[-1]  # no test data


def test_the_split_is_stratified_the_same_every_time_and_keeps_test_samples_apart() -> None:
    x, y = torch.randn(100, 5), torch.arange(100) % 4
    samples = Samples.of((x, y), (x[:8] + 1, y[:8]))
    a, b = TrainingData.of(samples, validation=0.2), TrainingData.of(samples, validation=0.2)
    assert a.samples.counts == (20, 20, 20, 20)
    assert torch.bincount(a.samples.test_labels).tolist() == [5] * 4
    assert torch.equal(a.samples.inputs, b.samples.inputs)
    assert a.test is not None
    assert torch.equal(a.test[0], x[:8] + 1)
    rows = {tuple(row) for part in (a.samples.inputs, a.samples.test_inputs) for row in part.tolist()}
    assert len(rows) == 100


def test_a_last_batch_of_one_sample_is_avoided() -> None:
    x, y = torch.randn(162, 4), torch.arange(162) % 2
    found = choose_depth((x, y), depths=(2, 3), rates=(1e-3,), seeds=(0,), recipe=Recipe(epochs=1), progress=False)
    settings = found.provenance["settings"]
    assert found.provenance["data"]["train"] % settings["batch_size"] != 1


PAIR = (np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2)


@pytest.mark.parametrize(
    ("data", "options", "error", "words"),
    [
        (PAIR, {"depths": (1, 3)}, InputError, "depths: expected a whole number of at least 2, got 1"),
        (PAIR, {"depths": ()}, InputError, "expected at least 2 different ones to choose from, got []"),
        (PAIR, {"depths": (4, 4)}, InputError, "expected at least 2 different ones"),
        (PAIR, {"depths": (3, 4.5)}, InputError, "depths: expected a whole number of at least 2, got 4.5"),
        (PAIR, {"rates": ()}, InputError, "rates: expected at least one"),
        (PAIR, {"rates": (0.0,)}, InputError, "rates: expected positive learning rates, got 0.0"),
        (PAIR, {"seeds": (1, 1)}, InputError, "seeds: expected at least one, all different"),
        (PAIR, {"recipe": "adam"}, InputError, "recipe: expected a Recipe for feed-forward networks, got 'adam'"),
        (PAIR, {"width": 0}, InputError, "width: expected at least 1"),
        (PAIR, {"seeds": 2}, InputError, "seeds: expected a sequence of numbers, such as (1, 2, 3), got 2"),
        (PAIR, {"depths": 5}, InputError, "depths: expected a sequence"),
        (PAIR, {"rates": 0.01}, InputError, "rates: expected a sequence"),
        (PAIR, {"test": (PAIR[0][:, :2], PAIR[1])}, FeatureError, "expected 3 numbers per sample, got 2"),
        ((PAIR[0], np.zeros(40, dtype=int)), {}, LabelError, "expected at least 2 classes, got 1"),
        ((PAIR[0], PAIR[1].astype(float)), {}, LabelError, "expected whole-number class labels"),
        ((np.full((40, 3), np.nan), PAIR[1]), {}, FeatureError, "expected finite inputs"),
        (np.zeros(3), {}, FeatureError, "expected a pair (inputs, labels)"),
        ("fashion_mnist_sampel", {}, DataError, "did you mean 'fashion_mnist_sample'"),
    ],
)
def test_bad_input_is_answered(data: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        choose_depth(data, **{"recipe": Recipe(epochs=1), "progress": False, **options})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("share", "error", "words"),
    [
        (0.0, InputError, "validation: expected a share between 0 and 1, such as 0.2, got 0.0"),
        ("half", InputError, "validation: expected a share between 0 and 1"),
        (0.999, LabelError, "expected enough samples to hold 0.999 back"),
    ],
)
def test_a_share_that_cannot_be_held_back_is_answered(share: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        TrainingData.of(PAIR, validation=share)
    assert words in str(caught.value)


def test_prepared_data_are_taken_as_they_are_and_bring_their_own_test_data() -> None:
    data = TrainingData.of(PAIR, (PAIR[0][:4], PAIR[1][:4]), validation=0.5)
    assert TrainingData.of(data) is data
    assert (data.validation, data.share) == (20, 0.5)
    with pytest.raises(InputError, match="test: expected in TrainingData"):
        choose_depth(data, test=PAIR, progress=False)


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ({"epochs": 3}, "choose_depth: 'epochs' is now 'recipe' (Recipe(epochs=…))."),
        ({"optimizer": "sgd"}, "'optimizer' is now 'recipe' (Recipe(optimizer=…))"),
        ({"norm": False}, "'norm' is now 'recipe' (Recipe(Shape.even(8, norm=False))"),
        ({"size": 10, "per_class": 40}, "'size' is now 'data' (data.load(…).resized(size)); 'per_class' is now 'data'"),
        ({"validation": 0.1}, "'validation' is now 'data' (TrainingData.of(data, test, validation=0.2))"),
        ({"tell": print}, "'tell' is now 'announce'"),
        ({"speed": 2}, "choose_depth() got an unexpected keyword argument 'speed'"),
    ],
)
def test_old_arguments_are_answered_with_their_new_place(old: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError) as caught:
        choose_depth(PAIR, **old)
    assert words in str(caught.value)
    for choose in (choose_width, choose_shape):
        with pytest.raises(TypeError, match=choose.__name__):
            choose(PAIR, **old)


def test_bad_widths_and_shapes_are_answered() -> None:
    with pytest.raises(InputError, match="depth: expected a whole number of at least 2, got 1"):
        choose_width(PAIR, depth=1)
    with pytest.raises(InputError, match="shapes: expected at least 2, all different, got 1 different of 2"):
        choose_shape(PAIR, shapes=((10, 10), (10, 10)))
    with pytest.raises(InputError, match="expected at least 2"):
        choose_shape(PAIR, shapes=((10,), ()))
    with pytest.raises(InputError, match="shapes: expected a sequence"):
        choose_shape(PAIR, shapes=5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shapes: every shape: expected a sequence"):
        choose_shape(PAIR, shapes=(5, 6))  # type: ignore[arg-type]


def test_labels_without_meaning_give_no_recommendation() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 10, generator=g), torch.arange(200) % 4
    how = {**QUICK, "recipe": Recipe(epochs=20), "rates": (3e-3,)}
    found = choose_depth((x, y), depths=(2, 3), width=30, test=(x[:20], y[:20]), **how)
    assert found.recommended is None
    assert found.headline.startswith("No recommendation: no network learned anything that shows on the validation data")
    assert found.to_dict()["recommended"] is None
    assert found.test_accuracies == ()
    found.plot()


def test_the_plan_is_announced_before_training() -> None:
    plans: list[TrainingPlan] = []
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    how: dict[str, Any] = {"rates": (1e-3,), "seeds": (0, 1), "recipe": Recipe(epochs=1), "progress": False}
    choose_depth((x, y), depths=(2, 3), announce=plans.append, **how)
    assert str(plans[0]).startswith(
        "4 networks of 2–3 layers, 1 epoch each, on 48 samples of 4 numbers: roughly 10 seconds"
    )


def test_a_folder_of_gray_pictures_has_one_channel_and_keeps_all_of_them(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    for name, count in (("cat", 12), ("dog", 5)):
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.fromarray(noise.integers(0, 256, (6, 6), dtype=np.uint8)).save(tmp_path / name / f"{i}.png")
    gray = TrainingData.of(tmp_path)
    assert gray.samples.inputs.shape[1] == 36
    assert gray.counts == (12, 5)
    Image.new("RGB", (6, 6), (200, 0, 0)).save(tmp_path / "dog" / "red.png")
    assert TrainingData.of(tmp_path).samples.inputs.shape[1] == 108


def test_diverged_runs_are_reported_not_dropped() -> None:
    """A learning rate of 1e30 blows every network up; the sane rate is taken, and the report counts the others."""
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    recipe = Recipe(Shape.even(8, norm=False), optimizer="sgd", epochs=3)
    found = choose_depth((x, y), depths=(2, 3), rates=(1e-3, 1e30), seeds=(0, 1), recipe=recipe, progress=False)
    assert all(c.trial.rate == 1e-3 for c in found.candidates)
    assert any("4 of 8 runs diverged" in line for line in found.caveats)
