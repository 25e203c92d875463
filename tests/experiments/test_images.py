"""The samples of the experiments, and the choice repeated inside the null."""

from pathlib import Path

import numpy as np
import pytest

from layerlaw.data import load
from layerlaw.experiments import NAMES, find, reproduce, setting, title
from layerlaw.experiments.numbers import Claim, row, selected_p
from layerlaw.experiments.setting import Setting, samples, stand_in
from layerlaw.law import fit_law, greenwood_p


def test_the_first_images_of_every_class_in_file_order() -> None:
    found = samples(Setting(quick=True), "fashion_mnist", 100)
    x, y = load().balanced(100).resized(10).tensors(flat=True)
    assert found.inputs.equal(x)
    assert found.labels.equal(y)
    assert found.test_labels is not None
    assert len(found.test_labels) == 2000


def test_prepared_samples_are_the_same_and_need_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = setting._samples.__wrapped__("fashion_mnist_sample", (30, 20) * 5, 10, 50)
    monkeypatch.setenv(setting.PREPARED, str(tmp_path))
    kept = setting._samples.__wrapped__("fashion_mnist_sample", (30, 20) * 5, 10, 50)
    monkeypatch.setattr(setting, "load", None)  # whoever loads now fails
    again = setting._samples.__wrapped__("fashion_mnist_sample", (30, 20) * 5, 10, 50)
    assert plain.checksum == kept.checksum == again.checksum
    assert again.class_names == plain.class_names
    assert again.counts == (30, 20) * 5
    assert len(list(tmp_path.iterdir())) == 1


def test_a_quick_run_says_what_stands_in() -> None:
    assert stand_in(Setting(quick=True), "mnist", "fashion_mnist") == ["Quick run: Fashion-MNIST stands in for MNIST."]
    assert stand_in(Setting(), "mnist") == []
    assert samples(Setting(quick=True), "cifar10") is samples(Setting(quick=True), "mnist")


def test_without_a_choice_the_selected_p_is_greenwoods() -> None:
    for layers, effective in ((7, 5.5), (19, 12.0)):
        exact = greenwood_p(1 / effective, layers)
        assert selected_p(effective, layers, 1) == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))


def test_choosing_the_straightest_makes_evenness_cheaper() -> None:
    generator = np.random.default_rng(1)
    even = []
    for _ in range(400):  # the choice by hand, with the fit of the package
        fits = []
        for _ in range(7):
            shares = generator.exponential(size=7)
            fits.append(fit_law(np.exp(-np.concatenate([[0.0], shares.cumsum() / shares.sum() * 4]))))
        chosen = min(fits, key=lambda fit: fit.pearson)
        even.append(chosen.effective_layers >= 5.5)
    p = selected_p(5.5, 7, 7)
    assert p == pytest.approx(np.mean(even), abs=4 * np.sqrt(p * (1 - p) / 400))
    assert p > 2 * selected_p(5.5, 7, 1)


def test_every_experiment_has_a_title_and_a_docstring_with_its_command() -> None:
    for name in NAMES:
        assert title(name)
        assert f"layerlaw reproduce {name}" in (find(name).text)


def test_seeds_begin_with_the_authors() -> None:
    assert Setting(seed_count=3).seeds() == (666, 1, 2)
    assert len(Setting(seed_count=3).seeds(least=10)) == 10
    assert Setting(quick=True).seeds(least=10) == (666,)
    assert Setting(quick=True, seed_count=2).seeds(least=10) == (666, 1)


def test_a_missing_number_has_a_reason() -> None:
    lost = row("r", [None, None], Claim(-0.99, lambda r: r < 0), reason="diverged in epoch 3")
    assert (lost.ours, lost.reproduced, lost.reason) == (None, False, "diverged in epoch 3")
    part = row("r", [None, -1.0], Claim(None, lambda r: r < 0, "< 0"))
    assert (part.ours, part.reproduced) == (-1.0, True)
    assert "1 of 2" in part.tolerance


def test_an_unknown_figure_is_answered() -> None:
    with pytest.raises(ValueError, match=r"fig1, fig2.*got 'fig4'"):
        reproduce("fig4")
