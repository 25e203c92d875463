"""Figure 5, quickly."""

import pytest
import torch
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.runs import MODE_NAMES, Runs
from layerlaw.experiments.separation import fig5

quick = quick_fixture("fig5", most=6)


def test_every_data_set_has_the_papers_depth_and_the_controls(quick: Quick) -> None:
    for name, paper in {"mnist": 6, "fashion_mnist": 10, "cifar10": 12}.items():
        row = quick.row(f"{name}/lowest-D-depth")
        assert row.paper == paper
        assert row.reproduced is (abs(row.ours - paper) <= 1)
        assert (row.kind, row.chance) == ("number", 1.0)  # of three depths
        for control in ("one-standard-error-depth", "lowest-D-depth-eval", "lowest-D-depth-rate-by-validation"):
            assert quick.row(f"{name}/{control}").reproduced is None
        assert quick.row(f"{name}/best-validation-depth").ours in (3, 6, 10)


def test_the_order_is_shown_and_not_judged(quick: Quick) -> None:
    row = quick.row("cifar10-minus-mnist/lowest-D-depth")
    assert (row.paper, row.kind, row.reproduced) == (6, None, None)


def test_the_deepest_network_is_a_bound() -> None:
    run = {depth: made_run({1: (16.0, 1.0 / depth)}, modes=tuple(MODE_NAMES)) for depth in (3, 6, 20)}
    each = fig5.Depths("mnist", {d: Runs([r]) for d, r in run.items()}, {}, {})
    (line,) = fig5._protocols([each]).rows
    assert line[0].endswith("(ours ≥ 20, ≥ 20, ≥ 20, ≥ 20, ≥ 20)")
    assert fig5.in_words(None, (3, 6, 20)) == "–"


def test_the_lowest_depth_is_that_of_the_chosen_runs(quick: Quick) -> None:
    ends = {}
    for depth in (3, 6, 10):
        grid = [r for r in quick.setting.runs["grid"] if r.recipe.data == "mnist" and r.recipe.network.depth == depth]
        assert len(grid) == 2
        best = min(grid, key=lambda r: r.measurement(batchnorm="running").loss)  # none is trained to the end
        ends[depth] = best.measurement().separation[-1]
    assert quick.row("mnist/lowest-D-depth").ours == min(ends, key=ends.__getitem__)


def test_validation_images_are_neither_trained_on_nor_tested_on(quick: Quick) -> None:
    samples = quick.setting.data["fashion_mnist"]
    assert samples.counts == (100,) * 10
    assert torch.bincount(samples.test_labels).tolist() == [100] * 10
    distances = torch.cdist(samples.test_inputs, samples.inputs, compute_mode="donot_use_mm_for_euclid_dist")
    assert float(distances.min()) > 0


def test_the_first_of_each_class_are_skipped() -> None:
    assert fig5.beyond(torch.tensor([1, 0, 1, 1, 0]), 2).tolist() == [False, False, False, True, False]


def test_test_accuracy_is_that_of_the_network(quick: Quick) -> None:
    run = quick.setting.runs["grid"][0]
    samples = quick.setting.data[run.recipe.data]  # its held-out part are the validation images
    assert fig5.accuracy(run, samples) == pytest.approx(fig5.validation(run), abs=2e-3)


def test_a_depth_without_all_its_seeds_is_left_out() -> None:
    run, other = (made_run({1: (16.0, 4.0, 1.0)}, seed=seed) for seed in (1, 2))
    kept = fig5.finals({3: Runs([run, other]), 4: Runs([run])})
    assert kept == {3: [0.0, 0.0]}


def test_sheets_and_tables(quick: Quick) -> None:
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [3, 3, 3]
    assert [len(series.x) for series in quick.outcome.sheets[0].panels[0].series] == [3, 6, 10]  # points: the depth
    assert len(quick.table("The whole grid, means over seeds").rows) == 3 * 3 * 2
    assert len(quick.table("The networks chosen").rows) == 9
