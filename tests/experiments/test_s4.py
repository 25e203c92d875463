"""Figure S4, quickly."""

import pytest
from experiments_recorded import Quick, quick_fixture

from layerlaw.experiments.separation import s4
from layerlaw.measures import separation_fuzziness

quick = quick_fixture("s4")


def test_every_panel_has_its_law_and_its_floor(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    for data in ("fashion_mnist", "cifar10"):
        for depth in (4, 8, 20):
            parts = ("pearson", "pearson-eval", "input-D-over-permuted", "final-D-over-permuted")
            assert {f"{data}-{depth}/{part}" for part in parts} <= names
            assert quick.row(f"{data}-{depth}/pearson").paper == "holds"
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [6, 6, 6]
    assert [len(panel.series[-1].x) for panel in quick.outcome.sheets[1].panels] == [4, 8, 20] * 2


def test_the_input_is_the_larger_image(quick: Quick) -> None:
    samples, run = quick.setting.data["fashion_mnist"], quick.setting.runs["grid"][0]
    assert samples.inputs.shape == (1000, 16 * 16)
    D = float(separation_fuzziness(samples.inputs, samples.labels))
    assert run.measurement().separation[0] == pytest.approx(D, rel=1e-5)
    floor = run.measurement(split="permuted").separation[0]
    assert s4.input_above_floor(run) == pytest.approx(D / floor, rel=1e-5)
    assert quick.row("fashion_mnist-4/input-D-over-permuted").ours == pytest.approx(D / floor, rel=1e-5)


def test_the_authors_rates_are_in_the_grid() -> None:
    assert set(s4.SHOWN.values()) <= set(s4.RATES)


def test_notes_tell_what_is_smaller(quick: Quick) -> None:
    assert any("16×16 pixels and width 50" in note for note in quick.outcome.notes)
    assert any("stands in for CIFAR-10" in note for note in quick.outcome.notes)
