"""Figures 7, 8 and 10, quickly, and how they are judged."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments import find
from layerlaw.experiments.numbers import holds, power
from layerlaw.experiments.runs import MODE_NAMES, PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import blocks, convolutions
from layerlaw.experiments.setting import Setting
from layerlaw.lab import Architecture, Run
from layerlaw.measures import separation_fuzziness
from layerlaw.outcome import TOO_EASY

fig7 = quick_fixture("fig7", most=3, called="fig7")
fig8 = quick_fixture("fig8", most=3, called="fig8")
fig10 = quick_fixture("fig10", most=3, called="fig10")
MIXED_SITES = (
    *("input", "stage1.0.branch.relu1", "stage1.0.branch.relu2", "stage1.0.relu"),
    *("stage1.1.branch.relu1", "stage1.1.branch.relu2", "stage1.1.relu"),
    *("stage2.0.branch.relu1", "stage2.0.relu", "stage2.1.branch.relu1", "stage2.1.relu"),
)


def mixed_run(ends: Sequence[float], seed: int = 1, within: float = 9.0) -> Run:
    """A mixed network with D given at the input and at the ends of its blocks, and one D inside of them."""
    given = iter(ends)
    D = [within if "branch" in site else next(given) for site in MIXED_SITES]
    made = made_run({9: D}, seed=seed, modes=tuple(MODE_NAMES), network=Architecture.named("resnet_mixed"))
    named = [replace(m, sites=MIXED_SITES, widths=(8,) * 11, rank=(9,) * 11) for m in made.measurements]
    return replace(made, measurements=tuple(named))


def test_levels_are_parts_of_one_measurement(fig7: Quick) -> None:
    runs = Runs(fig7.setting.runs["grid"])
    assert len(runs) == 3 * 2
    mixed = Runs(r for r in runs if len(r.recipe.network.blocks) == 2)
    assert mixed[0].measurement().sites == MIXED_SITES
    (ends, *_), (layers, *_) = (blocks.seen(mixed, keep) for keep in (blocks.is_block, blocks.is_layer))
    assert ends.measurement().sites == tuple(f"stage{i}.{j}.relu" for i in (1, 2) for j in (0, 1))
    assert layers.measurement().sites == MIXED_SITES[1:]
    assert ends.measurement().separation == tuple(mixed[0].measurement().separation[i] for i in (3, 6, 8, 10))
    assert len(ends.measurement().rank) == len(ends.measurement().widths) == 4


def test_blocks_are_judged_to_have_the_law_and_layers_not_to(fig7: Quick) -> None:
    for network in ("resnet_2layer", "resnet_3layer"):
        block, layer = (fig7.row(f"fashion_mnist-{network}/{level}/holds") for level in ("block", "layer"))
        assert (block.paper, block.kind, block.chance) == ("law", "direction", pytest.approx(1 - 0.95**2))
        assert block.tolerance == "> half of the seeds, each the best of 2"
        assert (layer.paper, layer.kind) == ("no law", "direction")
        assert layer.chance < 0.05
        assert fig7.row(f"fashion_mnist-{network}/block-lowest-loss/holds").kind is None
        assert fig7.row(f"fashion_mnist-{network}/block-from-input/holds").kind is None
    mixed = fig7.row("fashion_mnist-resnet_mixed/block/holds")
    assert (mixed.kind, mixed.tolerance) == (None, blocks.MIXED.tolerance)
    assert power(3, 5) < 0.3 < power(3)  # allowing for the choice in each seed would not be a test
    assert holds(best_of=5).chance(3) < TOO_EASY  # the chance beside the row allows for it
    assert len(fig7.table(PROTOCOL_TITLE).rows) == 6
    assert sum(note.startswith("Module finder") for note in fig7.outcome.notes) == 3
    assert [sheet.title for sheet in fig7.outcome.sheets][:2] == ["D along blocks", "D along layers"]
    assert [sheet.panels[0].xlabel for sheet in fig7.outcome.sheets] == ["block", "layer", "block", "block"]


def test_the_best_law_is_that_of_blocks(fig7: Quick) -> None:
    for network in blocks.FOUR_BLOCKS:
        shape = Architecture.named(network, inputs=1, side=16)
        grid = blocks.seen(Runs(fig7.setting.runs["grid"]).at(network=shape), blocks.is_block)
        best = min(grid, key=lambda run: run.law().pearson)
        assert fig7.row(f"fashion_mnist-{network}/block/pearson").ours == pytest.approx(best.law().pearson)
        assert fig7.row(f"fashion_mnist-{network}/learning-rate").ours == best.recipe.learning_rate


def test_the_two_slopes_of_the_mixed_network_are_means_of_log_drops() -> None:
    run = mixed_run([64.0, 32.0, 8.0, 4.0, 3.0])
    assert blocks.drop_gap(run) == pytest.approx(math.log(4) - (math.log(2) + math.log(4 / 3)) / 2)
    long = (math.log(2) + math.log(4)) / 2
    short = (math.log(2) + math.log(4 / 3)) / 2
    assert blocks.drop_gap(run, keep=blocks.is_block_or_input) == pytest.approx(long - short)
    assert blocks.drop_gap(replace(run, diverged=3)) is None


def test_blocks_with_more_layers_reduce_d_more_by_a_t_test_over_seeds() -> None:
    steeper = Runs(mixed_run([64.0, 32.0, 8.0 - seed / 10, 4.0, 2.0], seed) for seed in range(3))
    row = blocks.larger_drop(steeper, "batch", "x")
    assert (row.reproduced, row.kind, row.chance) == (True, "direction", 0.05)
    assert blocks.larger_drop(steeper, "running", "x").kind is None
    flatter = Runs(mixed_run([64.0, 32.0, 20.0 + seed, 4.0, 2.0], seed) for seed in range(3))
    assert blocks._more(flatter, "batch") is False
    assert blocks._more(Runs(steeper[:1]), "whole") is None  # one seed is no test


def test_a_law_of_blocks_need_not_be_one_of_layers() -> None:
    runs = Runs(mixed_run([64.0, 32.0, 16.0, 8.0, 4.0], seed, within=40.0) for seed in range(3))
    assert blocks.seen(runs, blocks.is_block).mostly_hold()
    assert blocks._no_law(blocks.seen(runs, blocks.is_layer), "batch")
    assert not blocks._no_law(blocks.seen(runs, blocks.is_block), "batch")


def test_principal_scores_are_those_of_numpys_svd() -> None:
    x = torch.randn(30, 12, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.arange(1.0, 13.0))
    x = x + 100.0
    centered = x.double().numpy() - x.double().numpy().mean(0)
    _, s, vt = np.linalg.svd(centered, full_matrices=False)
    ours, theirs = blocks.principal(x, 5).numpy(), (centered @ vt[:5].T)[:, ::-1]
    assert ours.shape == (30, 5)
    assert np.abs(ours) == pytest.approx(np.abs(theirs), rel=1e-3, abs=1e-4)
    assert (ours**2).sum(0)[::-1] == pytest.approx(s[:5] ** 2, rel=1e-5)
    assert blocks.principal(x, 12) is x  # no wider: left alone


def test_all_components_have_the_exact_d(fig7: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(40) % 4
    x = torch.randn(40, 300, generator=generator) + 3 * torch.randn(4, 300, generator=generator)[labels]
    exact = float(separation_fuzziness(x, labels))
    assert float(separation_fuzziness(blocks.principal(x, 40), labels)) == pytest.approx(exact, rel=1e-5)
    run, samples = fig7.setting.runs["grid"][0], fig7.setting.data["fashion_mnist"]
    monkeypatch.setattr(blocks.principal, "__defaults__", (10_000,))
    reduced = blocks.principal_separation(run, samples)
    (layers,) = blocks.seen(Runs([run]), blocks.is_layer)
    assert tuple(reduced) == layers.measurement().sites
    assert tuple(reduced.values()) == pytest.approx(layers.measurement().separation, rel=1e-4)


def test_components_stand_beside_the_exact_d(fig7: Quick, fig8: Quick, fig10: Quick) -> None:
    networks = ((fig7, "resnet_2layer"), (fig8, "densenet161"), (fig10, "resnet18"))
    for quick, network in networks:
        row = quick.row(f"fashion_mnist-{network}/block-100-components/pearson")
        assert row.ours is not None
        assert row.ours != quick.row(f"fashion_mnist-{network}/block/pearson").ours
    lost = replace(mixed_run([5.0] * 5), diverged=1)
    assert blocks.principal_separation(lost, fig7.setting.data["fashion_mnist"]) == {}
    assert fig7.row("fashion_mnist-resnet_2layer/layer-100-components/pearson").kind is None


def test_the_points_of_a_dense_network_are_its_blocks(fig8: Quick) -> None:
    (run,) = fig8.setting.runs["seeds"]
    assert run.measurement().sites == ("input", "conv", "stage1", "stage2", "stage3", "stage4")
    ours = fig8.row("fashion_mnist-densenet161/block/rho").ours
    (ends,) = blocks.seen(Runs([run]), blocks.is_stage)
    assert ours == pytest.approx(ends.law().rho)
    assert fig8.row("fashion_mnist-densenet161/block-from-input/rho").ours == pytest.approx(run.law().rho)
    assert fig8.row("fashion_mnist-densenet161/block/holds").paper == "law"


def test_resnet18_is_compared_with_the_four_blocks_of_figure_7(fig10: Quick) -> None:
    (deep,) = blocks.seen(Runs(fig10.setting.runs["seeds"]), blocks.is_block)
    assert len(deep.measurement().sites) == 9  # the stem and eight blocks
    row = fig10.row("fashion_mnist-resnet18-minus-2layer/evenness")
    assert (row.kind, row.tolerance) == ("direction", "< 0 (t test over seeds, 5 %)")
    assert fig10.row("fashion_mnist-resnet18-minus-2layer/evenness-eval").kind is None
    shallow = fig10.row("fashion_mnist-resnet_2layer/block/pearson").ours
    difference = fig10.row("fashion_mnist-resnet18-minus-2layer/pearson").ours
    assert difference == pytest.approx(deep.law().pearson - shallow)


def test_a_weaker_law_is_a_t_test_of_evenness() -> None:
    def of(last: Sequence[float], steps: int = 8) -> Runs:
        return Runs(
            made_run({9: [*(0.9**i for i in range(steps)), D]}, seed=i, modes=tuple(MODE_NAMES))
            for i, D in enumerate(last)
        )

    even, uneven = of([0.9**8] * 3), of([0.1, 0.11, 0.09])
    row = blocks.weaker(uneven, even, "batch", "x")
    assert (row.reproduced, row.kind) == (True, "direction")
    assert blocks._weaker(even, uneven, "batch") is False
    rising = of([2.0, 2.1, 2.2])
    assert blocks.evenness(rising[0]) == 0.0
    assert blocks._weaker(rising, even, "running") is True  # no law at all is no stronger one
    assert blocks._weaker(even, rising, "running") is False
    assert blocks.above_chance(even[0]) == pytest.approx(1 - 9 / 16)
    assert blocks.above_chance(made_run({9: [1.0, None, 0.5]})) is None


def test_a_dense_network_that_was_read_is_not_needed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setting, "epochs", lambda *_, **__: 2)
    first = find("fig8").run(Setting(quick=True, progress=False, folder=tmp_path / "fig8"))
    shutil.rmtree(tmp_path / "fig8" / "seeds")
    monkeypatch.setattr(convolutions, "at_one_rate", lambda *_, **__: pytest.fail("trained again"))
    again = find("fig8").run(Setting(quick=True, progress=False, folder=tmp_path / "fig8"))
    assert again.rows == first.rows
    assert again.notes == first.notes
    assert [table.rows for table in again.tables] == [table.rows for table in first.tables]


def test_seeds_of_dense_networks_come_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setting, "epochs", lambda *_, **__: 2)
    for seeds in (1, 2):  # the second time the network of the first seed is still there
        found = find("fig8").run(Setting(True, seeds, folder=tmp_path / "fig8", progress=False))
    rho = next(row for row in found.rows if row.name == "fashion_mnist-densenet161/block/rho")
    assert rho.low < rho.high
