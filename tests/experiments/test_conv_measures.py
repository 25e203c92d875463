"""Other measures for convolutional features, quickly, and what makes them right."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments_recorded import Quick, Recording
from torch import nn

from layerlaw.errors import DataError, FeatureError
from layerlaw.experiments import find
from layerlaw.experiments.runs import AtSite, principal, site_features
from layerlaw.experiments.separation import conv_measures, convolutions
from layerlaw.experiments.separation.blocks import is_block
from layerlaw.experiments.separation.conv_measures import MEASURES, conv_numbers, readout_residual, straightest_of
from layerlaw.experiments.setting import Setting
from layerlaw.law import fit_law
from layerlaw.measures import cdnv, separation_fuzziness

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.arange(60) % 4
IMAGES = torch.randn(60, 5, 3, 4, generator=GENERATOR) + 2 * torch.randn(4, 5, 1, 1, generator=GENERATOR)[LABELS]


@pytest.fixture(scope="module")
def quick() -> Iterator[Quick]:
    families = {
        ("resnet_2layer",): conv_measures.FAMILIES["resnet_2layer", "resnet_3layer"],
        ("vgg11",): conv_measures.FAMILIES["vgg11", "vgg19"],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_measures, "FAMILIES", families)
        setting = Recording(most=2)
        yield Quick(find("conv_measures").run(setting), setting)


def at(features: torch.Tensor, decisions: torch.Tensor = LABELS) -> AtSite:
    return AtSite("relu1", features, LABELS, decisions)


def test_every_measure_is_that_of_its_features() -> None:
    wrong = LABELS.clone()
    wrong[:6] = (wrong[:6] + 1) % 4
    found = conv_numbers(at(IMAGES, wrong))
    flat, pooled = IMAGES.flatten(1), IMAGES.mean((2, 3))
    places = torch.cat([IMAGES[:, :, i, j] for i in range(3) for j in range(4)])
    assert list(found) == list(MEASURES)
    assert found["D"] == pytest.approx(float(separation_fuzziness(flat, LABELS)))
    assert found["D-pooled"] == pytest.approx(float(separation_fuzziness(pooled, LABELS)))
    assert found["D-positions"] == pytest.approx(float(separation_fuzziness(places, LABELS.repeat(12))), rel=1e-6)
    assert found["cdnv-pooled"] == pytest.approx(float(cdnv(pooled, LABELS)))
    means = torch.stack([flat[k == LABELS].mean(0) for k in range(4)])
    nearest = torch.cdist(flat, means).argmin(1)
    assert found["mismatch"] == pytest.approx(float((nearest != wrong).double().mean()))


def test_features_without_positions_are_pooled_already() -> None:
    found = conv_numbers(at(IMAGES.flatten(1)))
    assert found["D"] == found["D-pooled"] == found["D-positions"]
    assert found["cdnv"] == found["cdnv-pooled"]


def test_the_read_out_leaves_what_least_squares_leaves() -> None:
    x = IMAGES.flatten(1)[:, :10]
    X = np.column_stack([np.ones(60), x.double().numpy()])
    Y = np.eye(4)[LABELS.numpy()]
    fitted = X @ np.linalg.lstsq(X, Y, rcond=None)[0]
    expected = ((Y - fitted) ** 2).sum() / ((Y - Y.mean(0)) ** 2).sum()
    assert readout_residual(x, LABELS) == pytest.approx(expected, rel=1e-6)
    twice = torch.cat([x, 3 * x], 1)  # says nothing new
    assert readout_residual(twice, LABELS) == pytest.approx(expected, rel=1e-5)
    assert readout_residual(x @ torch.randn(10, 10, generator=GENERATOR), LABELS) == pytest.approx(expected, rel=1e-4)
    assert readout_residual(torch.ones(60, 3), LABELS) == pytest.approx(1.0)
    assert readout_residual(nn.functional.one_hot(LABELS).float(), LABELS) == pytest.approx(0.0, abs=1e-12)


def test_features_that_are_not_finite_have_no_numbers() -> None:
    broken = IMAGES.clone()
    broken[3] = torch.nan
    assert conv_numbers(at(broken)) == dict.fromkeys(MEASURES)
    assert conv_numbers(at(torch.zeros_like(IMAGES)))["D"] is None


def test_a_measure_that_is_not_defined_leaves_the_others(monkeypatch) -> None:
    """Pooled maps may have no spread where the maps themselves do."""
    even = IMAGES - IMAGES.mean((2, 3), keepdim=True)
    found = conv_numbers(at(even.double()))
    assert found["D"] is not None
    assert found["cdnv"] is not None
    assert found["readout"] is not None
    measured = conv_measures.measure

    def pooled_fails(features, labels, **how):
        if features.shape[1] == IMAGES.shape[1] and len(features) == len(IMAGES):
            raise FeatureError("expected other features")
        return measured(features, labels, **how)

    whole = conv_numbers(at(IMAGES))
    monkeypatch.setattr(conv_measures, "measure", pooled_fails)
    found = conv_numbers(at(IMAGES))
    assert found["D-pooled"] is None
    assert found["mismatch-pooled"] is None
    assert {name: found[name] for name in ("D", "cdnv", "readout-pooled")} == {
        name: whole[name] for name in ("D", "cdnv", "readout-pooled")
    }


def test_the_straightest_falls_in_every_seed() -> None:
    straight, bent = fit_law([8.0, 4.0, 2.0, 1.0]), fit_law([8.0, 7.9, 7.0, 1.0])
    rising = fit_law([1.0, 2.0, 4.0, 8.0])
    laws = {"D": [bent, straight], "cdnv": [straight, None], "D-pooled": [rising, rising]}
    assert straightest_of(laws) == "D"
    assert straightest_of({"D-pooled": [rising]}) is None
    assert straightest_of({"mismatch": [None]}) is None


def test_sites_are_given_as_the_network_has_them_and_flattened_they_have_the_measured_d(quick: Quick) -> None:
    (run,) = (r for r in quick.setting.runs["seeds"] if "convolutions" in str(r.recipe.network))
    samples = quick.setting.data["fashion_mnist"]
    for site, D in zip(site_features(run, samples), run.measurement().separation[1:], strict=True):
        assert site.features.dim() == 4
        assert conv_numbers(site)["D"] == pytest.approx(D, rel=1e-4)
        assert len(site.decisions) == len(samples.labels)


def test_the_table_has_a_line_per_network_and_says_which_is_straightest(quick: Quick) -> None:
    table = quick.table("Which measure gives the straightest law")
    assert [line[0] for line in table.rows] == ["Fashion-MNIST, 2-layer blocks", "Fashion-MNIST, VGG11"]
    for network, line in zip(("resnet_2layer", "vgg11"), table.rows, strict=True):
        rows = {name: quick.row(f"fashion_mnist-{network}/{name}/pearson").ours for name in MEASURES}
        named = {name: r for name, r in rows.items() if r is not None and r < 0}
        assert line[-1] == MEASURES[min(named, key=lambda name: named[name])]
    assert all(quick.row(f"fashion_mnist-vgg11/{name}/holds").kind is None for name in MEASURES)


def test_what_was_measured_is_kept_and_goes_on_without_the_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_measures, "FAMILIES", {("vgg11",): ("s2", conv_measures.LAYERS, 2)})
    setting = Setting(quick=True, progress=False, folder=tmp_path / "conv_measures")
    first = conv_measures.run(setting)
    shutil.rmtree(tmp_path / "s2")  # the networks
    monkeypatch.setattr(convolutions, "at_one_rate", lambda *a, **k: pytest.fail("trained again"))
    again = Setting(quick=True, progress=False, folder=tmp_path / "conv_measures")
    assert conv_measures.run(again).rows == first.rows
    assert again.checksums == setting.checksums
    assert again.used_seeds == setting.used_seeds


def test_another_seed_is_trained_alone_where_the_networks_of_the_first_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_measures, "FAMILIES", {("vgg11",): ("s2", conv_measures.LAYERS, 2)})
    both = {}
    for count in (1, 2):
        setting = Recording(most=2, seed_count=count, folder=tmp_path / "conv_measures")
        both[count] = Quick(conv_measures.run(setting), setting)
        assert [run.recipe.seed for run in setting.runs["seeds"]] == [(666, 1)[count - 1]]
        shutil.rmtree(tmp_path / "s2")
    assert both[2].setting.used_seeds == {666, 1}
    first, grown = (both[count].row("fashion_mnist-vgg11/D/rho") for count in (1, 2))
    assert first.ours in (grown.low, grown.high)


def test_what_was_kept_and_is_damaged_is_told(tmp_path: Path) -> None:
    setting = Setting(quick=True, folder=tmp_path)
    assert setting.remembered({"a": 1}, lambda names: [(name, {"x": (1.0, float("nan"))}) for name in names]) == {
        "a": {"x": [1.0, None]}
    }
    kept = setting.kept(1, "json")
    assert kept is not None
    kept.write_text('{"x": [1.0')
    with pytest.raises(DataError, match=r"expected what an experiment kept.*Delete it, and it is made again"):
        setting.remembered({"a": 1}, lambda names: [])


def test_points_of_residual_networks_are_their_blocks(quick: Quick) -> None:
    panels = next(s for s in quick.outcome.sheets if s.title == "D along depth").panels
    assert [len(panel.series[-1].x) for panel in panels] == [4, 8]
    assert is_block("stage1.0.relu")
    assert not is_block("stage1.0.branch.relu1")


def test_d_of_components_is_that_of_principal_scores() -> None:
    wide = torch.randn(60, 30, 3, 3, generator=GENERATOR) + torch.randn(4, 30, 1, 1, generator=GENERATOR)[LABELS]
    expected = float(separation_fuzziness(principal(wide.flatten(1)), LABELS))
    assert conv_numbers(at(wide))["D-components"] == pytest.approx(expected)
