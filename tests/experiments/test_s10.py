"""Figure S10, quickly."""

import pytest
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.runs import Runs
from layerlaw.experiments.separation import s10
from layerlaw.lab import Shape

STRAIGHT = [0.6**layer for layer in range(8)]
BENT = [1.0] * 7 + [0.01]
quick = quick_fixture("s10", most=4)


def test_without_batchnorm_both_modes_are_one(quick: Quick) -> None:
    bare = [r for r in quick.setting.runs["norms"] if not r.recipe.network.norm]
    assert len(bare) == 9
    for run in bare:
        assert not any("norm" in name for name in run.state)
        if run.recipe.network.depth < 20:  # deeper, class means coincide up to rounding
            assert run.measurement(batchnorm="batch").separation == pytest.approx(
                run.measurement(batchnorm="running").separation, rel=1e-4
            )
    twin = next(r for r in quick.setting.runs["norms"] if r.recipe.network.norm)
    assert twin.measurement(batchnorm="batch").separation != pytest.approx(
        twin.measurement(batchnorm="running").separation, rel=1e-3
    )


def test_every_cell_has_rows_and_its_twin(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    for depth in (4, 8, 20):
        for optimizer in ("adam", "sgd"):
            assert {f"{optimizer}-{depth}/{norm}/pearson" for norm in ("norm", "no-norm")} <= names
            assert f"{optimizer}-{depth}/no-norm/lowest-loss" in names
        assert {f"all-{depth}/no-norm/well-trained", f"all-{depth}/norm/clear-law-among-well-trained"} <= names
    judged = {row.name for row in quick.outcome.rows if row.paper == "no clear law" and row.reproduced is not None}
    assert judged == {f"adam-{depth}/no-norm/seeds-with-clear-law" for depth in (4, 8, 20)}
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [6, 6, 6, 6]
    assert len(quick.outcome.tables[0].rows) == 18
    losses = [r.losses[-1] for r in quick.setting.runs["norms"] if s10.network_of(r) == ("adam", 4, False)]
    assert quick.row("adam-4/no-norm/lowest-loss").ours == pytest.approx(min(losses))


def test_short_of_rank_counts_places_with_too_few_dimensions(quick: Quick) -> None:
    samples = quick.setting.data["fashion_mnist"]
    run = next(r for r in quick.setting.runs["norms"] if s10.network_of(r) == ("adam", 8, False))
    assert s10.short_layers(run, samples) == 0
    weight = run.state["linear4.weight"]
    kept = weight.clone()
    try:
        weight[3:] = 0  # three neurons that listen to the layer before: at most three dimensions from here on
        assert s10.short_layers(run, samples) >= 1
    finally:
        weight.copy_(kept)


def test_a_seed_whose_runs_all_fail_has_no_clear_law() -> None:
    good = made_run({600: STRAIGHT}, learning_rate=0.1)
    lost = [made_run({600: STRAIGHT}, learning_rate=rate, seed=1, diverged=3) for rate in (0.1, 0.3)]
    share, pearson, p, loss = s10._law_rows("x", Runs([good, *lost]), 2, judged=True)
    assert (share.ours, share.reproduced) == (0.5, False)
    assert pearson.ours == pytest.approx(-1)
    assert p.ours == 0
    assert loss.ours == pytest.approx(0.1)
    share, pearson, p, loss = s10._law_rows("x", Runs(lost), 2, judged=True)
    assert (share.ours, share.reproduced, pearson.ours, p.ours, loss.ours) == (0, True, None, None, None)
    assert pearson.reason == "no D at every layer in 2 runs: 2 diverged, in 0 class means coincide at some layer"
    assert loss.reason == "all 2 runs diverged"


def test_the_share_of_clear_laws_is_among_the_well_trained() -> None:
    def network(norm: bool, D: list[float], accuracy: float, seed: int) -> s10.Run:
        shape = Shape.even(8, norm=norm)
        return made_run({600: D}, accuracy={600: accuracy}, network=shape, seed=seed)

    bare = [network(False, STRAIGHT, 1.0, 1), network(False, BENT, 0.99, 2), network(False, STRAIGHT, 0.98, 3)]
    twins = [network(True, STRAIGHT, 1.0, seed) for seed in (1, 2, 3)]
    rows = {row.name: row for row in s10._training_rows(8, Runs([*bare, *twins]))}
    assert rows["all-8/no-norm/well-trained"].ours == pytest.approx(2 / 3)
    assert rows["all-8/no-norm/well-trained"].reproduced is True
    assert rows["all-8/no-norm/clear-law-among-well-trained"].ours == 0.5
    assert rows["all-8/no-norm/clear-law-among-well-trained"].reproduced is False
    assert rows["all-8/norm/clear-law-among-well-trained"].ours == 1


def test_the_lowest_loss_is_chosen_per_seed_among_the_sound() -> None:
    runs = Runs(
        [
            made_run({600: STRAIGHT}, loss=0.5, seed=1),
            made_run({600: STRAIGHT}, loss=0.2, seed=1, learning_rate=0.1),
            made_run({600: STRAIGHT}, loss=0.1, seed=1, diverged=9),
            made_run({600: STRAIGHT}, loss=0.4, seed=2),
        ]
    )
    assert [run.losses[-1] for run in s10.lowest_loss(runs)] == [0.2, 0.4]
