"""Figure S1, quickly."""

import pytest
from experiments_recorded import Quick, hidden, made_run, quick_fixture

from layerlaw.experiments.runs import MODE_NAMES, Runs
from layerlaw.experiments.separation import s1
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
    assert [r.name for r in quick.outcome.rows if r.kind] == ["convergence-epoch", "convergence-minus-emergence"]
    assert quick.row("convergence-epoch").paper == "after 400"
    assert any("epoch 4 of 24" in note for note in quick.outcome.notes)


def test_controls_and_figures_are_there(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    assert {"constant-rate/convergence-epoch", "nearest-mean-epoch", "convergence-minus-emergence-full"} <= names
    first, second = quick.outcome.sheets
    assert [series.label for series in first.panels[0].series] == ["train mode", "eval mode"]
    assert first.panels[0].series[0].x[0] == 100  # where the paper's figure begins
    assert len(second.panels) == 2
    assert [row[0] for row in quick.outcome.tables[1].rows] == ["falling", "constant"]


def test_convergence_and_law_by_hand() -> None:
    straight = [0.8**layer for layer in range(20)]
    risen = [v * (1 + 0.5 * layer / 19) for layer, v in enumerate(straight)]  # the last layer is half as much again
    bent = [1.0] * 19 + [0.1]

    def rows(*curves: dict[int, list[float]]) -> dict[str, Row]:
        runs = Runs(made_run(some, seed=i, modes=tuple(MODE_NAMES)) for i, some in enumerate(curves))
        return {row.name: row for row in s1._moment_rows(runs)}

    late = {0: bent, 100: risen, 400: risen, 410: straight, 600: straight}
    run = made_run(late)
    assert s1.convergence(run) == 410
    assert s1.convergence(run, share=0.6) == 100
    found = rows(late, late)
    assert (found["convergence-epoch"].ours, found["convergence-epoch"].reproduced) == (410, True)
    assert (found["convergence-minus-emergence"].ours, found["convergence-minus-emergence"].reproduced) == (310, True)
    found = rows(late)
    assert found["convergence-epoch"].reproduced is None  # one seed is no test
    early = {0: bent, 100: straight, 400: straight, 600: straight}
    found = rows(early, early)
    assert found["convergence-epoch"].reproduced is False
    assert found["convergence-minus-emergence"].reproduced is False  # both at epoch 100
    never = {0: bent, 100: bent, 410: straight, 600: [v * (1 + 3 * (i > 9)) for i, v in enumerate(straight)]}
    found = rows(late, never)
    assert (found["emergence-epoch"].ours, found["convergence-minus-emergence"].low) == (100, 0)  # 600 less 600
    assert found["convergence-minus-emergence"].reproduced is False
