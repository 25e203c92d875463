"""The images of the experiments, their settings and their names."""

from pathlib import Path

import pytest

from layerlaw.data import load
from layerlaw.experiments import NAMES, _how_quick, find, reproduce, setting, title
from layerlaw.experiments.setting import Images, Setting, samples, stand_in
from layerlaw.lab import Architecture, Recipe, Samples, Schedule
from layerlaw.outcome import Outcome, Row


def test_images_are_drawn_by_the_seed_or_the_first_in_file_order() -> None:
    images = samples(Setting(quick=True), "fashion_mnist", 100)
    first = images(None)
    x, y = load().balanced(100).resized(10).tensors(flat=True)
    assert first.inputs.equal(x)
    assert first.labels.equal(y)
    drawn, other = images(1), images(2)
    assert drawn is images(1)
    assert drawn.counts == other.counts == (100,) * 10
    assert len({drawn.checksum, other.checksum, first.checksum}) == 3
    known = {tuple(row.tolist()) for row in load().resized(10).tensors(flat=True)[0]}
    assert all(tuple(row.tolist()) in known for row in drawn.inputs)
    assert all(some.test_labels is not None and len(some.test_labels) == 2000 for some in (first, drawn))
    assert drawn.test_inputs.equal(first.test_inputs)


@pytest.mark.parametrize("size", [10, 12])
def test_prepared_images_are_the_same_and_need_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    images = Images("fashion_mnist_sample", (30, 20) * 5, size, 50)

    def fresh() -> Samples:
        setting._whole.cache_clear()
        return setting._drawn.__wrapped__(images, 3)

    plain = fresh()
    monkeypatch.setenv(setting.PREPARED, str(tmp_path))
    kept = fresh()
    monkeypatch.setattr(setting, "load", None)  # whoever loads now fails
    again = fresh()
    assert plain.checksum == kept.checksum == again.checksum
    assert again.class_names == plain.class_names
    assert again.counts == (30, 20) * 5
    assert len(list(tmp_path.iterdir())) == 2
    setting._whole.cache_clear()


def test_images_keep_their_shape_for_convolutions() -> None:
    flat, whole = (samples(Setting(quick=True), "cifar10", 20, size=12, tests=20, flat=f)(1) for f in (True, False))
    assert (whole.inputs.shape, whole.test_inputs.shape) == ((200, 1, 12, 12), (200, 1, 12, 12))
    assert whole.flat().inputs.equal(flat.inputs)
    assert whole.checksum == flat.checksum


def test_residual_networks_are_trained_once_and_measured_per_block_and_per_layer() -> None:
    quick = Setting(quick=True, progress=False)
    images = {"fashion_mnist": samples(quick, "fashion_mnist", 10, size=12, tests=10, flat=False)}
    kinds = [Architecture.named(name, inputs=1, side=12) for name in ("resnet_2layer", "resnet_mixed")]
    recipes = Recipe(data="fashion_mnist", epochs=2, batch_size=50).grid(network=kinds)
    blocks = quick.train("blocks", recipes, images, Schedule(sites="blocks"))
    layers = quick.measure(blocks, images, Schedule(sites="layers", branches=True))
    assert [len(run.measurement().sites) for run in blocks] == [5, 5]
    assert [len(run.measurement().sites) for run in layers] == [9, 11]
    for run, finer in zip(blocks, layers, strict=True):
        ends = [run.measurement().separation[i] for i in (0, -1)]
        assert [finer.measurement().separation[i] for i in (0, -1)] == pytest.approx(ends, rel=1e-4)
    assert quick.networks == 2
    assert layers.at(network=kinds[1])[0].losses == blocks[1].losses


def test_a_quick_run_says_what_stands_in() -> None:
    assert stand_in(Setting(quick=True), "mnist", "fashion_mnist") == ["Quick run: Fashion-MNIST stands in for MNIST."]
    assert stand_in(Setting(), "mnist") == []
    assert samples(Setting(quick=True), "cifar10") == samples(Setting(quick=True), "mnist")


def test_every_experiment_has_a_title_and_a_docstring_with_its_command() -> None:
    for name in NAMES:
        assert title(name)
        assert f"layerlaw reproduce {name}" in (find(name).text)


def test_seeds_begin_with_the_authors() -> None:
    assert Setting(seed_count=3).seeds() == (666, 1, 2)
    assert len(Setting(seed_count=3).seeds(least=10)) == 10
    assert Setting(quick=True).seeds(least=10) == (666,)
    assert Setting(quick=True, seed_count=2).seeds(least=10) == (666, 1)


def test_an_unknown_figure_is_answered() -> None:
    with pytest.raises(ValueError, match=r"fig1, fig2.*got 'fig40'"):
        reproduce("fig40")


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [((0.25, None, 0.47), " (test accuracy 0.25 to 0.47)."), ((0.9,), " (test accuracy 0.90)."), ((), " alone.")],
)
def test_a_quick_run_says_how_well_its_networks_learned(accuracies: tuple[float | None, ...], words: str) -> None:
    rows = [Row(f"net-{i}/test-accuracy", None, ours, reason="diverged") for i, ours in enumerate(accuracies)]
    gain = Row("svsl-minus-plain/test-accuracy", None, -0.02)
    assert _how_quick(Outcome("fig1", "Figure 1", [*rows, gain], [], [], [])).endswith(words)
