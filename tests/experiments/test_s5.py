"""Figure S5, quickly."""

import pytest
from experiments_recorded import Quick, quick_fixture

from layerlaw.experiments.runs import corrected_half_life, half_life_on
from layerlaw.lab import Run

quick = quick_fixture("s5")


def by_size(quick: Quick) -> dict[int, Run]:
    return {int(run.recipe.data): run for run in quick.setting.runs["grid"]}


def test_every_size_has_its_law_and_controls(quick: Quick) -> None:
    assert sorted(by_size(quick)) == [500, 1000, 2500]
    for n, run in by_size(quick).items():
        assert quick.setting.data[str(n)].counts == (n // 10,) * 10
        assert quick.row(f"{n}-images/pearson").ours == pytest.approx(run.law().pearson)
        assert quick.row(f"{n}-images/half-life").ours == pytest.approx(run.law().half_life)
        floor = run.measurement(split="permuted").separation[-1]
        assert quick.row(f"{n}-images/final-D-over-permuted").ours == pytest.approx(run.law().values[-1] / floor)


def test_growth_is_the_ratio_to_the_smallest(quick: Quick) -> None:
    runs = by_size(quick)
    ratio = runs[2500].law().half_life / runs[500].law().half_life
    row = quick.row("2500-over-500-images/half-life")
    assert row.ours == pytest.approx(ratio)
    assert row.reproduced is (ratio >= 1.05)
    assert quick.row("2500-over-500-images/half-life-eval").reproduced is None


def test_the_smaller_sample_is_part_of_the_larger_and_measured_alike(quick: Quick) -> None:
    runs, data = by_size(quick), quick.setting.data
    small, large = ({row.numpy().tobytes() for row in data[name].inputs} for name in ("500", "2500"))
    assert small <= large
    same = half_life_on(runs[2500], data["500"]) / half_life_on(runs[500], data["500"])
    assert quick.row("2500-over-500-images/half-life-same-images").ours == pytest.approx(same)
    assert half_life_on(runs[500], data["500"]) == pytest.approx(runs[500].law().half_life, rel=1e-4)


def test_the_corrected_half_life_is_another_one(quick: Quick) -> None:
    run, data = by_size(quick)[2500], quick.setting.data["2500"]
    corrected = corrected_half_life(run, data)
    assert corrected is not None
    assert quick.row("2500-images/half-life-corrected").ours == pytest.approx(corrected)
    assert corrected != pytest.approx(run.law().half_life, rel=1e-3)


def test_sheets_and_tables(quick: Quick) -> None:
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [3, 3, 3, 1]
    assert len(quick.table("Every network of the grid").rows) == 3
    assert sum("The half-life at" in note for note in quick.outcome.notes) == 2
