"""Figure S5, quickly."""

import pytest
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.runs import PROTOCOL_TITLE, Runs, corrected_half_life, half_life_on
from layerlaw.experiments.separation import s5
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
    assert (row.kind, row.chance, row.tolerance) == ("direction", 0.05, "> 1 (t test of logs over seeds, 5 %)")
    assert row.reproduced is None  # one seed is no test
    assert quick.row("2500-over-500-images/half-life-eval").kind is None
    assert quick.row("2500-over-500-images/half-life-same-rates").reason == s5.UNMATCHED  # eight epochs train none
    assert [r.name for r in quick.outcome.rows if r.counted] == [f"{n}-images/holds" for n in (1000, 2500)]
    smallest, middle = quick.row("500-images/holds"), quick.row("1000-over-500-images/half-life")
    assert (smallest.kind, smallest.tolerance) == (None, "judged in fig1: the same networks")
    assert (middle.kind, middle.paper) == ("direction", "can be larger")


def test_the_ratio_at_equal_rates_leaves_the_untrained_out() -> None:
    def of(factors: dict[float, float], **how: float) -> list[Run]:
        curves = {rate: [factor**i for i in range(8)] for rate, factor in factors.items()}
        return [made_run({9: curve}, learning_rate=rate, seed=1, **how) for rate, curve in curves.items()]

    small = Runs([*of({1e-3: 0.5, 3e-3: 0.25}), *of({1e-4: 0.9}, loss=0.5)])
    large = Runs([*of({1e-4: 0.5, 1e-3: 0.5**0.5, 3e-3: 0.25})])
    assert large.over_at_same_rates(small, "half-life") == [pytest.approx(2**0.5)]  # 2 at one rate, 1 at the other
    assert Runs(small[2:]).over_at_same_rates(large, "half-life") == [None]


def test_larger_is_a_t_test_over_seeds() -> None:
    def of(half_lives: list[float]) -> Runs:
        return Runs(made_run({9: [2 ** (-i / h) for i in range(8)]}, seed=i) for i, h in enumerate(half_lives))

    base = of([1.0, 1.0, 1.0])
    assert s5.longer_half_life(of([1.2, 1.3, 1.25]), base, "batch") is True
    assert s5.longer_half_life(of([1.0, 1.9, 1.0]), base, "running") is False
    assert s5.longer_half_life(of([1.5]), base, "batch") is None
    assert s5.longer_half_life(of([5.0, 12.0, 30.0]), base, "batch") is True  # a ratio of many sizes, always large


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
    claims = [line[0] for line in quick.table(PROTOCOL_TITLE).rows]
    assert claims == [
        *(f"Fig. S5: the law holds, {n} images" for n in (1000, 2500)),
        *(f"Fig. S5: half-life larger, {n} over 500 images" for n in (1000, 2500)),
    ]  # one rate: nothing to choose anew
    assert sum("The half-life at" in note for note in quick.outcome.notes) == 2
