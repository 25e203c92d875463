"""Figure 2, quickly."""

import pytest
from experiments_recorded import Quick, hidden, made_run, quick_fixture

from layerlaw.experiments.runs import Runs
from layerlaw.experiments.separation import fig2
from layerlaw.law import fit_law
from layerlaw.measures import separation_fuzziness
from layerlaw.outcome import Row
from layerlaw.sheet import Panel

quick = quick_fixture("fig2")
MODES = ("batch", "shuffled", "balanced", "running", "whole")


def test_real_and_random_labels_are_measured_in_all_modes(quick: Quick) -> None:
    real, null = quick.setting.runs["epochs"]
    assert (real.recipe.network.depth, real.recipe.learning_rate) == (20, 3e-4)
    assert {r.batchnorm for r in real.measurements} == {"batch", "shuffled", "balanced", "running", "whole"}
    for run in (real, null):
        samples = quick.setting.data[run.recipe.data]
        D = separation_fuzziness(samples.inputs, samples.labels)
        assert run.measurement(epoch=0).separation[0] == pytest.approx(float(D), rel=1e-6)
        assert len(run.measurement().separation) == 20
    assert quick.setting.data["random labels"].counts == quick.setting.data["fashion_mnist"].counts
    assert null.measurement().separation[0] != pytest.approx(real.measurement().separation[0], rel=0.5)


def test_full_mode_normalizes_by_all_samples(quick: Quick) -> None:
    real = quick.setting.runs["epochs"][0]
    samples = quick.setting.data["fashion_mnist"]
    features = hidden(real.network(), samples.inputs, full=True)
    assert len(features) == 20
    D = separation_fuzziness(features[3], samples.labels)
    assert real.measurement(batchnorm="whole").separation[3] == pytest.approx(float(D), rel=1e-3)


def test_rows_are_the_law_at_the_papers_epochs(quick: Quick) -> None:
    real = quick.setting.runs["epochs"][0]
    start = fit_law(real.measurement(epoch=0).separation)
    assert quick.row("epoch-0/rho").ours == pytest.approx(start.rho)
    assert quick.row("epoch-0/holds").ours == float(start.holds is True)
    assert quick.row("epoch-0/holds").reproduced is not start.holds
    assert quick.row("epoch-100/pearson").paper == -0.996
    assert quick.row("epoch-100/pearson").ours == pytest.approx(
        real.law(epoch=4).pearson
    )  # the paper's epoch 100 in a training of 24
    assert quick.row("epoch-600/pearson-eval").ours == pytest.approx(real.law(batchnorm="running").pearson)
    change = real.law(epoch=24).rho - real.law(epoch=4).rho
    assert quick.row("rho-at-600-minus-100").ours == pytest.approx(change)
    assert quick.row("rho-at-600-minus-100").reproduced is None  # one seed has no t test
    assert quick.row("emergence-epoch").paper == "starts at 100"
    assert quick.row("emergence-epoch").tolerance == "100 ± 50"
    assert any("epoch 100 of 600 stands for epoch 4 of 24" in note for note in quick.outcome.notes)
    names = {row.name for row in quick.outcome.rows}
    assert {"emergence-epoch", "emergence-epoch-eval", "interpolation-epoch", "epoch-0/pearson-full"} <= names
    assert {"random-labels/pearson", "random-labels/below-chance", "random-labels/train-accuracy"} <= names


def test_sheets_have_a_panel_per_epoch(quick: Quick) -> None:
    sheets = quick.outcome.sheets
    assert [panel.title for panel in sheets[0].panels] == [f"epoch {e}" for e in (0, 20, 50, 100, 200, 300, 600)]
    assert sheets[0].columns == 3
    last = sheets[0].panels[-1]
    assert isinstance(last, Panel)
    assert last.series[-1].y == pytest.approx(quick.setting.runs["epochs"][0].measurement().separation)
    assert [row[0] for row in quick.table("Every probed epoch").rows] == [0, 25, 50, 100, 200, 300, 600]


def test_a_full_run_probes_the_papers_epochs() -> None:
    assert fig2.EPOCHS == (0, 10, 20, 30, 50, 100, 200, 300, 600)
    assert fig2.RATE == 3e-4


def test_what_changes_between_the_epochs_is_tested_over_seeds() -> None:
    straight = [0.8**layer for layer in range(20)]
    bent = [0.8 ** (layer + 0.2 * layer**2) for layer in range(20)]

    def found(*pairs: tuple[list[float], list[float]]) -> dict[str, Row]:
        runs = Runs(made_run({0: a, 100: a, 600: b}, seed=seed, modes=MODES) for seed, (a, b) in enumerate(pairs))
        return {row.name: row for row in fig2._law_rows(runs, runs, 600)}

    near = [v * (1 + 0.01 * (layer % 2)) for layer, v in enumerate(straight)]
    clearer = found((bent, straight), (bent, near), (bent, straight))["evenness-at-600-minus-100"]
    assert (clearer.reproduced, clearer.kind, clearer.chance) == (True, "direction", 0.05)
    assert found((straight, bent), (near, bent))["evenness-at-600-minus-100"].reproduced is False
    assert found((bent, straight))["evenness-at-600-minus-100"].reproduced is None
    rows = found((bent, straight), (bent, near))
    assert (rows["epoch-100/holds"].ours, rows["epoch-600/holds"].ours) == (0, 1)


def test_moments_of_training_are_those_of_every_seed() -> None:
    straight = [0.8**layer for layer in range(20)]
    bent = [1.0] * 19 + [0.01]
    good = made_run({0: bent, 60: straight, 600: straight}, accuracy={600: 1.0})
    bad = made_run({0: bent, 60: straight, 600: bent}, seed=1)
    found = {row.name: row for row in fig2._moment_rows(Runs([good, good]), Runs([good, bad]))}
    assert (found["emergence-epoch"].ours, found["emergence-epoch"].reproduced) == (60, True)
    assert found["emergence-epoch"].chance == 0  # the other network has no law at the end
    assert found["interpolation-epoch"].ours == 600
    assert found["most-even-epoch"].ours == 600
    found = {row.name: row for row in fig2._moment_rows(Runs([bad]), Runs([good, bad]))}
    assert (found["emergence-epoch"].ours, found["emergence-epoch"].reproduced) == (600, False)  # not there at the end
    assert found["emergence-epoch"].chance == 1  # the other network passes
    assert found["emergence-epoch-where-it-emerges"].ours is None
