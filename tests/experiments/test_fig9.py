"""Figure 9, quickly."""

import pytest
import torch
from experiments_recorded import Quick, quick_fixture

from layerlaw.lab import Run

quick = quick_fixture("fig9")


def trained(quick: Quick) -> tuple[Run, Run, Run, Run]:
    """Standard, the first half, as many epochs, and the second half."""
    return (*quick.setting.runs["whole"], *quick.setting.runs["top"])  # type: ignore[return-value]


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Layers whose parameters are not the same; BatchNorm's running statistics move in any case."""
    return {
        name.split(".")[0].removeprefix("linear").removeprefix("norm")
        for name in before
        if name.endswith((".weight", ".bias")) and not torch.equal(before[name], after[name])
    }


def test_one_half_learns_and_then_the_other(quick: Quick) -> None:
    _, bottom, _, top = trained(quick)
    torch.manual_seed(666)
    fresh = bottom.recipe.network.build().state_dict()
    assert moved(fresh, bottom.state) == {str(i) for i in range(1, 11)}
    assert moved(bottom.state, top.state) == {*(str(i) for i in range(11, 20)), "classifier"}


def test_the_schedules_are_the_authors(quick: Quick) -> None:
    standard, bottom, long, top = (run.recipe for run in trained(quick))
    assert (bottom.drops, top.drops, standard.drops) == ((), (1 / 3, 2 / 3), (1 / 3, 2 / 3))
    assert long.epochs == bottom.epochs + top.epochs
    assert {r.seed for r in (standard, bottom, long, top)} == {666}


def test_frozen_layers_separate_as_they_did(quick: Quick) -> None:
    _, bottom, _, top = trained(quick)
    assert top.measurement().separation[:11] == pytest.approx(bottom.measurement().separation[:11], rel=1e-4)
    assert top.measurement().separation[11:] != pytest.approx(bottom.measurement().separation[11:], rel=1e-2)


def test_rows_are_of_the_finished_networks(quick: Quick) -> None:
    standard, _, long, top = trained(quick)
    for kind, run in (("standard", standard), ("frozen", top), ("long", long)):
        assert quick.row(f"{kind}/pearson").ours == pytest.approx(run.law().pearson)
        assert quick.row(f"{kind}/pearson-eval").ours == pytest.approx(run.law(batchnorm="running").pearson)
        assert quick.row(f"{kind}/test-accuracy").ours == run.measurement(batchnorm="running", split="test").accuracy
        assert quick.row(f"{kind}/training-loss").ours == run.measurement(batchnorm="running").loss
    gap = top.law().pearson - standard.law().pearson
    assert quick.row("frozen-minus-standard/pearson").ours == pytest.approx(gap)
    assert quick.row("frozen-minus-standard/test-accuracy").paper == pytest.approx(0.1967 - 0.2385)
    assert quick.row("frozen-minus-long/test-accuracy").paper is None


def test_one_seed_decides_nothing(quick: Quick) -> None:
    assert quick.row("frozen-minus-standard/test-accuracy").reproduced is False
    assert quick.row("frozen-minus-standard/test-accuracy-standard-error").reason == "one seed has no standard error"
    assert any("One seed" in note for note in quick.outcome.notes)


def test_sheets_and_tables(quick: Quick) -> None:
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [3, 3, 1]
    assert {len(series.x) for series in quick.outcome.sheets[2].panels[0].series} == {20}
    assert "last epoch's loss" in quick.table("Every network").columns
    assert "training-loss are measured after training, in eval mode" in quick.table("Every network").note
    assert [row[0] for row in quick.table("Every network").rows] == ["standard", "frozen", "standard, as many epochs"]
