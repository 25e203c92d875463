"""Figure S1, quickly."""

from dataclasses import replace

import pytest
from experiments_recorded import Quick, hidden, made_run, quick_fixture

from layerlaw.experiments.moments import emergence
from layerlaw.experiments.runs import MODE_NAMES, Runs
from layerlaw.experiments.separation import fig2, s1
from layerlaw.lab import Run
from layerlaw.measures import separation_fuzziness
from layerlaw.outcome import Row

quick = quick_fixture("s1")


def test_falling_and_constant_rate_part_at_the_first_drop(quick: Quick) -> None:
    falling, constant = quick.setting.runs["last-layer"]
    assert constant.recipe.drops == ()
    drop = falling.recipe.epochs // 3
    assert falling.losses[:drop] == pytest.approx(constant.losses[:drop], rel=1e-6)
    assert falling.losses[drop + 1] != pytest.approx(constant.losses[drop + 1], rel=1e-3)


def test_rows_are_d_of_the_last_hidden_layer(quick: Quick) -> None:
    falling = quick.setting.runs["last-layer"][0]
    samples = quick.setting.data["fashion_mnist"]
    last = hidden(falling.network(), samples.inputs)[-1]
    assert last.shape == (1000, 100)
    D = float(separation_fuzziness(last, samples.labels))
    assert quick.row("last-D/epoch-600-eval").ours == pytest.approx(D, rel=1e-3)
    assert quick.row("last-D/epoch-600").ours == pytest.approx(falling.measurement().separation[-1])
    assert quick.row("last-D/epoch-100").paper is None  # the paper gives no value
    assert [r.name for r in quick.outcome.rows if r.kind] == ["nearest-mean-minus-emergence"]
    assert quick.row("convergence-epoch-within-5%").paper == "after 400"
    assert any("epoch 4 of 24" in note for note in quick.outcome.notes)


def test_controls_and_figures_are_there(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    for share in ("1%", "2%", "5%", "10%"):
        parts = (
            "convergence-epoch-within",
            "convergence-minus-emergence-within",
            "constant-rate/convergence-epoch-within",
        )
        assert {f"{part}-{share}" for part in parts} <= names
    assert {"nearest-mean-epoch-eval", "nearest-mean-minus-emergence-full", "last-D-at-end-over-emergence"} <= names
    first, second = quick.outcome.sheets
    assert [series.label for series in first.panels[0].series] == ["train mode", "eval mode"]
    assert first.panels[0].series[0].x[0] == 100  # where the paper's figure begins
    assert len(second.panels) == 2
    assert [row[0] for row in quick.outcome.tables[1].rows] == ["falling", "constant"]


STRAIGHT = [0.8**layer for layer in range(20)]
RISEN = [v * (1 + 0.5 * layer / 19) for layer, v in enumerate(STRAIGHT)]  # the last layer is half as much again
BENT = [1.0] * 19 + [0.1]


def rows(*runs: Run) -> dict[str, Row]:
    return {row.name: row for row in s1._moment_rows(Runs(runs))}


def made(curves: dict[int, list[float]], collapsed: int | None, seed: int = 1) -> Run:
    """A run whose samples are nearest to their own means from an epoch on."""
    run = made_run(curves, seed=seed, modes=tuple(MODE_NAMES))
    shares = {e: 1.0 if collapsed is not None and e >= collapsed else 0.97 for e in curves}
    return replace(run, measurements=[replace(m, nearest=(0.5,) * 19 + (shares[m.epoch],)) for m in run.measurements])


def test_convergence_is_shown_at_several_shares_and_judged_at_none() -> None:
    late = {0: BENT, 100: RISEN, 400: RISEN, 410: STRAIGHT, 600: STRAIGHT}
    run = made(late, None)
    assert s1.convergence(run, share=0.05) == 410
    assert s1.convergence(run, share=0.6) == 100
    found = rows(run, made(late, None, seed=2))
    for share in ("1%", "2%", "5%", "10%"):
        row = found[f"convergence-epoch-within-{share}"]
        assert (row.ours, row.reproduced, row.kind) == (410, None, None)
        assert found[f"convergence-minus-emergence-within-{share}"].ours == 310
    assert found["last-D-at-end-over-emergence"].ours == pytest.approx(1 / 1.5)


def test_the_order_of_law_and_collapse_is_judged_without_a_share() -> None:
    early = {0: BENT, 100: STRAIGHT, 200: STRAIGHT, 300: STRAIGHT, 600: STRAIGHT}
    name = "nearest-mean-minus-emergence"

    def verdict(*collapsed: int | None, curves: dict[int, list[float]] = early) -> tuple[float, bool | None]:
        row = rows(*(made(curves, epoch, seed) for seed, epoch in enumerate(collapsed)))[name]
        return row.ours, row.reproduced

    assert verdict(300, 300) == (200, True)
    assert verdict(None, None) == (500, True)  # never: not before the last epoch
    assert verdict(0, 0) == (-100, False)
    assert verdict(100, 100) == (0, False)
    assert verdict(300) == (200, None)  # one seed is no test
    never = {**early, 600: [v * (1 + 3 * (i > 9)) for i, v in enumerate(STRAIGHT)]}
    assert verdict(300, 300, curves=never) == (-300, False)
    assert verdict(None, None, curves=never) == (0, False)


def test_emergence_is_asked_at_the_epochs_of_fig_2() -> None:
    epochs = {0: BENT, 100: STRAIGHT, 210: BENT, 250: STRAIGHT, 600: STRAIGHT}
    run = made(epochs, None)
    assert emergence(run) == 250
    assert s1.emergence(run) == 100  # Fig. 2 does not probe at 210
    assert {*fig2.EPOCHS, *fig2.BETWEEN} <= set(s1.PROBES)
