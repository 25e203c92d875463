"""Figure 1, quickly."""

import pytest
from experiments_recorded import Quick, made_run, quick_fixture

import layerlaw as ll
from layerlaw.experiments.runs import Runs
from layerlaw.experiments.separation import fig1
from layerlaw.pages import draw_sheet

CELLS = [f"{optimizer}-{depth}" for optimizer in ("sgd", "momentum", "adam") for depth in (4, 8, 20)]
quick = quick_fixture("fig1", most=8)


def test_nine_cells_stand_beside_the_papers_nine(quick: Quick) -> None:
    rows = [quick.row(f"{cell}/pearson") for cell in CELLS]
    assert [row.paper for row in rows] == [-1.0, -0.998, -0.997, -0.999, -0.998, -0.998, -1.0, -0.997, -0.999]
    assert all(row.ours is not None and row.kind == "number" for row in rows)
    assert [row.reproduced for row in rows] == [abs(row.ours - row.paper) <= 0.01 for row in rows]
    assert all(quick.row(f"{cell}/pearson-eval").reproduced is None for cell in CELLS)
    for cell in CELLS:
        law = quick.row(f"{cell}/holds")
        assert (law.paper, law.kind, law.reproduced) == ("law", "direction", law.ours == 1)
        assert law.chance == pytest.approx(0.05)  # one seed
    assert quick.row("adam-20/rho").paper == 0.818
    assert (quick.row("adam-8/half-life").paper, quick.row("adam-8/half-life").reproduced) == (1.1, None)


def test_claims_are_followed_through_the_protocols(quick: Quick) -> None:
    table = quick.table("Which claim survives in which protocol")
    assert len(table.rows) == 9 + 3  # a quick run has one rate, which cannot be chosen anew
    for cell, line in zip(CELLS, table.rows[:9], strict=True):
        ends = ("", "-shuffled", "-balanced", "-eval", "-full")
        assert line[1:] == tuple("yes" if quick.row(f"{cell}/holds{end}").ours == 1 else "no" for end in ends)


def test_the_networks_are_the_papers(quick: Quick) -> None:
    runs = quick.setting.runs["grid"]
    found = {(r.recipe.optimizer, r.recipe.network.depth): r.recipe.learning_rate for r in runs}
    assert found == {cell: rate for cell, (rate, _) in fig1.SHOWN.items()}
    assert all(r.recipe.seed == 666 and r.recipe.batch_size == 128 and r.recipe.weight_decay == 5e-4 for r in runs)
    samples = quick.setting.data["fashion_mnist"]
    assert samples.counts == (100,) * 10
    d0 = float(ll.separation_fuzziness(samples.inputs, samples.labels))
    assert all(r.measurement().separation[0] == pytest.approx(d0, rel=1e-6) for r in runs)
    assert [len(r.measurement().separation) for r in runs] == [r.recipe.network.depth for r in runs]


def test_a_cell_tells_what_a_probe_of_its_network_tells(quick: Quick) -> None:
    (run,) = (r for r in quick.setting.runs["grid"] if (r.recipe.optimizer, r.recipe.network.depth) == ("adam", 8))
    samples = quick.setting.data["fashion_mnist"]
    for batchnorm, name in (("batch", "adam-8/pearson"), ("running", "adam-8/pearson-eval")):
        record = ll.probe(run.network(), (samples.inputs, samples.labels), batchnorm=batchnorm, progress=False)
        assert quick.row(name).ours == pytest.approx(record.law().pearson, abs=1e-5)


def test_the_page_has_the_papers_arrangement_and_every_plane(quick: Quick) -> None:
    law, running, planes = quick.outcome.sheets
    assert (len(law.panels), law.columns, len(running.panels)) == (9, 3, 9)
    assert [panel.title for panel in planes.panels] == ["input", *(f"layer {i}" for i in range(1, 8))]
    assert len(quick.table("Every network of the grid").rows) == 9
    assert len(draw_sheet(law).axes) == 9


def test_diverged_runs_are_reported_not_dropped() -> None:
    lost = made_run({20: [36.0, 10.0, 3.0, 1.0]}, diverged=12)
    _, row, *_ = fig1._rows(("sgd", 4), Runs([lost]), Runs([lost]))
    assert row.name == "sgd-4/pearson"
    assert row.ours is None
    assert row.reproduced is False
    assert "epoch 12" in row.reason


def test_twenty_layers_are_compared_with_eight_seed_by_seed(quick: Quick) -> None:
    runs = {(r.recipe.optimizer, r.recipe.network.depth): r for r in quick.setting.runs["grid"]}
    deep, shallow = (runs["adam", depth].measurement().separation[-1] for depth in (20, 8))
    row = quick.row("adam/final-D-20-over-8")
    assert (row.ours, row.paper, row.kind) == (pytest.approx(deep / shallow), "larger", "direction")
