"""Figure S11, quickly."""

from dataclasses import replace

import pytest
import torch
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.runs import PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import s11
from layerlaw.lab import Run
from layerlaw.law import fit_law

quick = quick_fixture("s11", most=8)


def trained(quick: Quick) -> tuple[Run, Run, Run]:
    """20 layers, 15 from scratch, ten fixed and five new."""
    source, scratch = sorted(quick.setting.runs["whole"], key=lambda r: -r.recipe.network.depth)
    return source, scratch, *quick.setting.runs["new"]  # type: ignore[return-value]


def test_ten_layers_are_those_of_the_source_and_stay(quick: Quick) -> None:
    source, scratch, new = trained(quick)
    assert (source.recipe.network.depth, scratch.recipe.network.depth, new.recipe.network.depth) == (20, 15, 15)
    for i in range(1, 15):
        for part in (f"linear{i}.weight", f"linear{i}.bias", f"norm{i}.weight", f"norm{i}.bias"):
            assert torch.equal(source.state[part], new.state[part]) is (i <= 10), part
    assert (source.recipe.seed, new.recipe.seed) == (666, 1666)
    assert new.measurement().separation[:11] == pytest.approx(source.measurement().separation[:11], rel=1e-4)


def test_rows_of_the_new_layers_are_those_of_five_points(quick: Quick) -> None:
    source, scratch, new = trained(quick)
    assert len(new.law().values) == 15
    tail, head = fit_law(new.law().values[10:]), fit_law(new.law().values[:11])
    assert quick.row("new-layers/pearson").ours == pytest.approx(tail.pearson)
    assert quick.row("new-layers/rho").ours == pytest.approx(tail.rho)
    assert quick.row("fixed-layers/rho").ours == pytest.approx(head.rho)
    assert quick.row("new-layers-over-scratch/rho").ours == pytest.approx(tail.rho / scratch.law().rho)
    assert quick.row("pretrained/pearson").ours == pytest.approx(new.law().pearson)
    assert quick.row("source/pearson").ours == pytest.approx(source.law().pearson)
    assert quick.row("new-layers/pearson-eval").ours == pytest.approx(
        fit_law(new.law(batchnorm="running").values[10:]).pearson
    )


def test_the_rate_is_chosen_by_the_new_layers() -> None:
    head = [2.0**-i for i in range(11)]
    straight = made_run({1: (*head, *(head[-1] * 2.0**-i for i in range(1, 5)))}, learning_rate=1e-3)
    bent = made_run({1: (*head, *(head[-1] * 2.0**-i for i in (3, 4, 5, 6)))}, learning_rate=3e-3)
    lost = made_run({1: (*head, 1.0, 1.0, 1.0, 1.0)}, diverged=1)
    assert Runs([bent, straight, lost]).best(s11.new_law) == (straight,)
    assert s11.new_law(straight).points == 5
    assert s11.fixed_law(bent).pearson == pytest.approx(-1.0)


def test_in_another_protocol_another_rate_is_chosen() -> None:
    head = [2.0**-i for i in range(11)]
    straight, bent = ([*head, *(head[-1] * 2.0**-i for i in steps)] for steps in ((1, 2, 3, 4), (3, 4, 5, 6)))

    def network(rate: float, batch: list[float], running: list[float]) -> Run:
        one, two = (made_run({1: D}, modes=(mode,)) for D, mode in ((batch, "batch"), (running, "running")))
        how = {"learning_rate": rate, "seed": 1001}
        return replace(made_run({1: batch}, **how), measurements=(*one.measurements, *two.measurements))

    runs = Runs([network(1e-3, straight, bent), network(3e-3, bent, straight)])
    kinds = {"scratch": runs, "pretrained": runs}
    rates = [s11.chosen_in(kinds, mode)["pretrained"][0].recipe.learning_rate for mode in ("batch", "running")]
    assert rates == [1e-3, 3e-3]


def test_the_new_layers_are_judged_and_the_repeated_networks_are_not(quick: Quick) -> None:
    judged = {row.name: (row.paper, row.chance) for row in quick.outcome.rows if row.kind}
    assert judged == {"new-layers/holds": ("law", 0.05), "new-layers-over-scratch/rho": ("quite different", 0.05)}
    assert quick.row("new-layers-over-scratch/rho").reproduced is None  # one seed is no test
    assert len(quick.table(PROTOCOL_TITLE).rows) == 2
    assert [s11._differs(ratios) for ratios in ([0.8, 0.82, 0.81], [1.2, 1.3, 1.25], [0.8, 1.2, 1.0])] == [
        True,
        True,
        False,
    ]


def test_five_points_as_the_best_of_nine_are_no_law() -> None:
    head = [2.0**-i for i in range(10)]
    run = made_run({1: [*head, *(head[-1] * v for v in (1.0, 0.42, 0.25, 0.14, 0.0625))]})
    assert s11.new_law(run).holds is True
    assert s11.new_law(run, 9).holds is False


def test_the_panel_has_two_lines_and_the_boundary(quick: Quick) -> None:
    *_, panel = quick.outcome.sheets[0].panels
    lines = [series for series in panel.series if series.style == "fit"]
    assert [(series.x[0], series.x[-1]) for series in lines] == [(0.0, 10.0), (10.0, 14.0)]
    assert panel.marked == 10
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [3, 3, 1]
