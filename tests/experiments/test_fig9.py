"""Figure 9, quickly."""

import pytest
import torch
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.numbers import below, paired_rows
from layerlaw.experiments.runs import Runs
from layerlaw.experiments.separation import fig9
from layerlaw.lab import Run
from layerlaw.law import fit_law

quick = quick_fixture("fig9")


def trained(quick: Quick) -> tuple[Run, Run, Run, Run, Run]:
    """Standard, the first half, as many epochs, and the second half; then with the first one decayed."""
    return (*quick.setting.runs["whole"], *quick.setting.runs["top"])  # type: ignore[return-value]


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Layers whose parameters are not the same; BatchNorm's running statistics move in any case."""
    return {
        name.split(".")[0].removeprefix("linear").removeprefix("norm")
        for name in before
        if name.endswith((".weight", ".bias")) and not torch.equal(before[name], after[name])
    }


def test_one_half_learns_and_then_the_other(quick: Quick) -> None:
    _, bottom, _, top, decayed = trained(quick)
    torch.manual_seed(666)
    fresh = bottom.recipe.network.build().state_dict()
    assert moved(fresh, bottom.state) == {str(i) for i in range(1, 11)}
    assert moved(bottom.state, top.state) == {*(str(i) for i in range(11, 20)), "classifier"}
    assert moved(bottom.state, decayed.state) == {*(str(i) for i in range(1, 20)), "classifier"}
    shrunk = [
        decayed.state[f"linear{i}.weight"].norm() / bottom.state[f"linear{i}.weight"].norm() for i in range(1, 11)
    ]
    assert all(0.1 < ratio < 1 for ratio in shrunk)


def test_the_schedules_are_the_authors(quick: Quick) -> None:
    standard, bottom, long, top, _ = (run.recipe for run in trained(quick))
    assert (bottom.drops, top.drops, standard.drops) == ((), (1 / 3, 2 / 3), (1 / 3, 2 / 3))
    assert long.epochs == bottom.epochs + top.epochs
    assert {r.seed for r in (standard, bottom, long, top)} == {666}


def test_frozen_layers_separate_as_they_did(quick: Quick) -> None:
    _, bottom, _, top, _ = trained(quick)
    assert top.measurement().separation[:11] == pytest.approx(bottom.measurement().separation[:11], rel=1e-4)
    assert top.measurement().separation[11:] != pytest.approx(bottom.measurement().separation[11:], rel=1e-2)


def test_rows_are_of_the_finished_networks(quick: Quick) -> None:
    standard, _, long, top, decayed = trained(quick)
    for kind, run in (("standard", standard), ("frozen", top), ("decayed", decayed), ("long", long)):
        assert quick.row(f"{kind}/pearson").ours == pytest.approx(run.law().pearson)
        assert quick.row(f"{kind}/pearson-eval").ours == pytest.approx(run.law(batchnorm="running").pearson)
        assert quick.row(f"{kind}/test-accuracy").ours == run.measurement(batchnorm="running", split="test").accuracy
        assert quick.row(f"{kind}/train-loss").ours == run.measurement(batchnorm="running").loss
    missing = quick.row("frozen-minus-standard/pearson-at-matched-rates")
    assert (missing.ours, missing.reason) == (None, fig9.UNMATCHED)  # a quick run trains none
    assert quick.row("frozen-minus-standard/test-accuracy-at-matched-rates").paper == pytest.approx(0.1967 - 0.2385)
    assert quick.row("frozen-minus-long/test-accuracy-at-matched-rates").paper is None


def test_one_seed_decides_nothing(quick: Quick) -> None:
    row, error = paired_rows("gap", [0.1], below(0))
    assert (row.kind, row.reproduced) == ("direction", None)
    assert error.reason == "one seed has no standard error"
    assert any("at any rate" in note for note in quick.outcome.notes)


def test_sheets_and_tables(quick: Quick) -> None:
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [4, 4, 1]
    assert {len(series.x) for series in quick.outcome.sheets[2].panels[0].series} == {20}
    assert "last epoch's loss" in quick.table("Every network").columns
    assert "train-loss are measured after training, in eval mode" in quick.table("Every network").note
    assert [row[0] for row in quick.table("Every network").rows] == [
        "standard",
        "frozen",
        "frozen, decayed as in torch 1.9",
        "standard, as many epochs",
    ]


def test_matched_differences_are_averaged_over_the_rates_of_a_seed() -> None:
    straight, bent = (16.0, 8.0, 4.0, 2.0, 1.0), (16.0, 15.0, 14.0, 13.0, 1.0)
    kinds = {
        "a": Runs(made_run({1: straight}, seed=s, learning_rate=r) for s in (1, 2) for r in (1e-3, 1e-4)),
        "b": Runs(made_run({1: bent}, seed=s, learning_rate=r) for s in (1, 2) for r in (1e-3, 1e-4)),
    }
    gap = fit_law(straight).evenness - fit_law(bent).evenness
    assert fig9.matched(kinds, "a", "b", "evenness", (1e-3, 1e-4)) == pytest.approx([gap, gap])
    untrained = {**kinds, "b": Runs(made_run({1: bent}, seed=s, learning_rate=1e-3, loss=0.5) for s in (1, 2))}
    assert fig9.matched(untrained, "a", "b", "evenness", (1e-3, 1e-4)) == []
    lost = {**kinds, "b": Runs(kinds["b"][:3])}
    assert fig9.matched(lost, "a", "b", "evenness", (1e-3, 1e-4)) == pytest.approx([gap, gap])
