"""Figure S4, quickly."""

from dataclasses import replace

import pytest
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.runs import MODE_NAMES, PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import s4
from layerlaw.experiments.setting import ADAM
from layerlaw.lab import Run
from layerlaw.measures import separation_fuzziness

CELLS = [f"{name}-{depth}" for name in ("fashion_mnist", "cifar10") for depth in (4, 8, 20)]
STRAIGHT, BENT = [0.6**layer for layer in range(8)], [1.0] * 7 + [0.01]
quick = quick_fixture("s4")


def test_every_panel_has_its_law_and_its_floor(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    for cell in CELLS:
        parts = ("holds-balanced", "holds-eval", "holds-full", "input-D-over-permuted", "final-D-over-permuted")
        assert {f"{cell}/{part}" for part in parts} <= names
        row = quick.row(f"{cell}/holds")
        assert (row.paper, row.kind, row.tolerance) == ("law", "direction", "> half of the seeds")
        assert row.counted
    assert [row.name for row in quick.outcome.rows if row.reproduced is not None] == [f"{cell}/holds" for cell in CELLS]
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [6, 6, 6]
    assert [len(panel.series[-1].x) for panel in quick.outcome.sheets[1].panels] == [4, 8, 20] * 2
    assert len(quick.table(PROTOCOL_TITLE).rows) == 6


def test_the_law_is_judged_at_the_authors_rate_and_the_best_of_the_grid_stands_beside() -> None:
    def made(curve: list[float], rate: float, loss: float = 0.1) -> list[Run]:
        every = {"modes": tuple(MODE_NAMES), "splits": ("train", "test", "permuted")}
        return [made_run({600: curve}, learning_rate=rate, seed=seed, loss=loss, **every) for seed in (1, 2, 3)]

    bent, straight, untrained = made(BENT, s4.SHOWN["cifar10", 8]), made(STRAIGHT, 1e-3), made(STRAIGHT, 3e-3, 1.2)
    found = {r.name: r for r in s4._rows(("cifar10", 8), Runs(bent), Runs([*bent, *straight, *untrained]), 5)}
    assert (found["cifar10-8/holds"].ours, found["cifar10-8/holds"].reproduced) == (0, False)
    assert found["cifar10-8/holds-best-of-grid"].ours == 1
    assert found["cifar10-8/learning-rate-best-of-grid"].ours == 1e-3


def test_every_protocol_may_choose_its_own_rate() -> None:
    def network(rate: float, batch: list[float], running: list[float], seed: int) -> Run:
        parts = [made_run({600: D}, modes=(mode,)) for D, mode in ((batch, "batch"), (running, "running"))]
        how = {"learning_rate": rate, "seed": seed}
        return replace(made_run({600: batch}, **how), measurements=[m for part in parts for m in part.measurements])

    grid = Runs(
        run for seed in (1, 2, 3) for run in (network(1e-4, STRAIGHT, BENT, seed), network(1e-3, BENT, STRAIGHT, seed))
    )
    assert not grid.at(learning_rate=1e-4).mostly_hold("running")
    assert grid.holds_anew("batch") is grid.holds_anew("running") is True


def test_the_input_is_the_larger_image(quick: Quick) -> None:
    samples, run = quick.setting.data["fashion_mnist"], quick.setting.runs["grid"][0]
    assert samples.inputs.shape == (1000, 16 * 16)
    D = float(separation_fuzziness(samples.inputs, samples.labels))
    assert run.measurement().separation[0] == pytest.approx(D, rel=1e-5)
    floor = run.measurement(split="permuted").separation[0]
    assert s4.input_above_floor(run) == pytest.approx(D / floor, rel=1e-5)
    assert quick.row("fashion_mnist-4/input-D-over-permuted").ours == pytest.approx(D / floor, rel=1e-5)


def test_the_authors_rates_are_in_the_grid() -> None:
    assert set(s4.SHOWN.values()) <= set(ADAM)


def test_notes_tell_what_is_smaller(quick: Quick) -> None:
    assert any("16×16 pixels and width 50" in note for note in quick.outcome.notes)
    assert any("stands in for CIFAR-10" in note for note in quick.outcome.notes)
