"""Figure S7, quickly."""

import math
from itertools import accumulate

import pytest
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.moments import spearman
from layerlaw.experiments.runs import PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import s7

quick = quick_fixture("s7")


def curve(ratios: list[float]) -> list[float]:
    """D along depth from its ratios, 10 at the input."""
    return list(accumulate(ratios, lambda a, b: a * b, initial=10.0))


def test_ratios_multiply_to_the_whole_fall(quick: Quick) -> None:
    (run,) = quick.setting.runs["ratios"]
    ratios = s7.layer_ratios(run, run.epoch)
    assert len(ratios) == 7
    D = run.measurement().separation
    assert math.prod(ratios) == pytest.approx(D[-1] / D[0])
    assert ratios[0] == pytest.approx(D[1] / D[0])


def test_the_order_of_convergence_by_hand() -> None:
    start, end = [1.0] * 7, [0.5] * 7
    run = made_run(
        {epoch: curve(end[:epoch] + start[epoch:]) for epoch in range(8)}
    )  # layer k has converged at epoch k
    assert s7.convergence(run) == [1, 2, 3, 4, 5, 6, 7]
    assert s7.order(run) == pytest.approx(1)
    backwards = made_run({epoch: curve(start[epoch:] + end[:epoch]) for epoch in range(8)})
    assert s7.order(backwards) == pytest.approx(-1)
    at_once = made_run({0: curve(start), 1: curve(end)})
    assert s7.order(at_once) is None
    assert s7.head_start(run, 3) == pytest.approx(spearman(range(7), [0, 0, 0, 1, 1, 1, 1]))


def test_an_early_start_is_the_mean_of_three_epochs() -> None:
    ahead, behind = [0.5, *[1.0] * 6], [*[1.0] * 6, 0.5]
    curves = {0: [1.0] * 7, 10: ahead, 20: behind, 50: ahead, 600: [0.5] * 7}
    run = made_run({epoch: curve(ratios) for epoch, ratios in curves.items()})
    alone = [s7.head_start(run, epoch) for epoch in (10, 20, 50)]
    assert alone[0] == -alone[1] == alone[2] > 0
    assert s7.early_start(run) == pytest.approx(alone[0] / 3)


def test_ten_percent_is_ten_percent() -> None:
    run = made_run({0: curve([0.551] + [0.5] * 6), 1: curve([0.549] + [0.5] * 6), 2: curve([0.5] * 7)})
    assert s7.convergence(run)[0] == 1
    assert s7.convergence(run, share=0.05)[0] == 2


def test_rows_and_controls(quick: Quick) -> None:
    (run,) = quick.setting.runs["ratios"]
    (constant,) = quick.setting.runs["constant"]
    assert constant.recipe.drops == ()
    assert constant.recipe.learning_rate == run.recipe.learning_rate
    assert quick.row("layer-and-convergence/spearman").ours == pytest.approx(s7.order(run))
    row = quick.row("layer-and-convergence/spearman")
    assert (row.paper, row.kind, row.chance) == ("lower layers first", "direction", 0.05)
    assert quick.row("convergence-epoch/layer-7").ours == 10 * s7.convergence(run)[-1]  # of 600 epochs, not of 60
    names = {row.name for row in quick.outcome.rows}
    assert {
        "layer-and-convergence/spearman-eval",
        "layer-and-convergence/spearman-full",
        "constant-rate/spearman",
    } <= names
    assert {"layer-and-convergence/spearman-within-5%", "layer-and-ratio-at-20/spearman-eval"} <= names
    assert {"layer-and-ratio-at-10/spearman", "layer-and-ratio-at-50/spearman"} <= names
    judged = [row.name for row in quick.outcome.rows if row.kind]
    assert judged == ["layer-and-convergence/spearman", "layer-and-early-ratio/spearman"]
    assert quick.row("layer-and-early-ratio/spearman").ours == pytest.approx(s7.early_start(run))
    assert len(quick.table(PROTOCOL_TITLE).rows) == 2
    assert [len(panel.series) for panel in quick.outcome.sheets[0].panels] == [7, 7]
    assert any("stands in for CIFAR-10" in note for note in quick.outcome.notes)


def test_an_order_is_a_t_test_over_seeds_in_every_protocol() -> None:
    start, end = [1.0] * 7, [0.5] * 7
    first = {epoch: curve(end[:epoch] + start[epoch:]) for epoch in range(8)}
    last = {epoch: curve(start[epoch:] + end[:epoch]) for epoch in range(8)}
    runs = [made_run(curves, seed=i) for i, curves in enumerate((first, first, first, last))]
    assert s7._tested(Runs(runs[:3]), s7.order, s7.FIRST) is True
    assert s7._tested(Runs(runs), s7.order, s7.FIRST) is False  # mean 0.5, t = 1
    assert s7._tested(Runs(runs[:1]), s7.order, s7.FIRST) is None


def test_all_runs_lost_is_reported_not_raised() -> None:
    rows = s7._rows(Runs(), 600)
    assert all(row.ours is None and row.reason for row in rows)
    assert [row.reproduced for row in rows if row.paper] == [False, False]
    assert s7._sheets(Runs(), Runs())[0].panels == ()
