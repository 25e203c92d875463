"""Figure 3, quickly."""

import pytest
import torch
from experiments_recorded import Quick, hidden, made_run, quick_fixture

from layerlaw.experiments.runs import record_of
from layerlaw.experiments.separation import fig3
from layerlaw.lab.schedule import chunk_order
from layerlaw.measures import separation_fuzziness

quick = quick_fixture("fig3")


def chosen(quick: Quick, data: str, depth: int) -> fig3.Run:
    (run,) = [
        r
        for r in quick.setting.runs["grid"]
        if (r.recipe.data, r.recipe.network.depth, r.recipe.optimizer) == (data, depth, "adam")
    ]
    return run


def test_every_panel_has_its_law_in_both_modes(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    panels = [f"{data}-{depth}" for data in ("cifar10", "imbalanced") for depth in (4, 8, 20)]
    panels += [f"sgd-9-lr-{rate}" for rate in ("0.01", "0.03", "0.1")]
    assert {f"{panel}/{what}" for panel in panels for what in ("holds", "pearson", "evenness", "pearson-eval")} <= names
    assert [quick.row(f"{panel}/holds").paper for panel in panels] == ["law"] * 9
    assert len(quick.table("Which claim survives in which protocol").rows) == 9 + 2 * 3


def test_the_law_is_not_judged_where_true_laws_mostly_fail_the_test() -> None:
    assert fig3._claim(4, 1).agrees is not None
    assert fig3._claim(8, 5).agrees is not None
    few = fig3._claim(4, 5)
    assert (few.paper, few.agrees, few.tolerance) == (
        "law",
        None,
        "not judged: equal steps with noise of 20 % pass in 28%",
    )


def test_sheets_have_their_panels(quick: Quick) -> None:
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [9, 9, 3]


def test_the_imbalanced_sample_and_its_control_are_equally_large(quick: Quick) -> None:
    data = quick.setting.data
    assert data["imbalanced"].counts == (100,) * 5 + (20,) * 5
    assert data["equal"].counts == (60,) * 10


def test_the_first_number_of_a_curve_is_that_of_the_raw_images(quick: Quick) -> None:
    for name in ("imbalanced", "equal"):
        samples, run = quick.setting.data[name], chosen(quick, name, 8)
        D = [separation_fuzziness(f, samples.labels) for f in hidden(run.network(), samples.inputs)]
        assert run.measurement(batchnorm="running").separation == pytest.approx([float(d) for d in D], rel=1e-3)
        assert len(D) == 8


def test_half_life_ratios_are_those_of_the_runs(quick: Quick) -> None:
    ours, other, small = (chosen(quick, name, 4).law().half_life for name in ("imbalanced", "equal", "fashion_mnist"))
    assert quick.row("imbalanced-4/half-life-over-balanced-equal").ours == pytest.approx(ours / other)
    row = quick.row("imbalanced-4/half-life-over-balanced-1000")
    assert row.ours == pytest.approx(ours / small)
    assert (row.kind, row.chance, row.reproduced) == ("direction", 0.05, None)  # one seed has no t test


def test_the_minority_is_full_early_and_the_probe_measures_as_the_fleet_does(quick: Quick) -> None:
    samples = quick.setting.data["imbalanced"]
    minority = (samples.labels >= 5).long()
    assert minority[:100].sum() > 30 > 0 == minority[-100:].sum()  # as collected; mixed chunks have their share:
    assert minority[chunk_order("shuffled", samples.labels, 10)][-100:].sum() > 5
    run = chosen(quick, "imbalanced", 4)
    assert record_of(run, samples).law().values == pytest.approx(run.law().values, rel=1e-4)
    ends = [run.law(batchnorm=mode).half_life for mode in ("balanced", "running", "whole")]
    other = [chosen(quick, "equal", 4).law(batchnorm=mode).half_life for mode in ("balanced", "running", "whole")]
    for end, a, b in zip(("balanced", "eval", "full"), ends, other, strict=True):
        row = quick.row(f"imbalanced-4/half-life-over-balanced-equal-{end}")
        assert row.ours == (None if a is None or b is None else pytest.approx(a / b))


def test_cosines_are_those_of_the_classifier(quick: Quick) -> None:
    W = chosen(quick, "imbalanced", 8).network().classifier.weight.detach().double()
    cosines = torch.nn.functional.cosine_similarity(W[:, None], W[None], dim=-1)
    pairs = torch.triu_indices(5, 5, 1)
    assert quick.row("imbalanced-8/cosine-majority-classes").ours == pytest.approx(
        cosines[:5, :5][*pairs].mean().item()
    )
    assert quick.row("imbalanced-8/cosine-minority-classes").ours == pytest.approx(
        cosines[5:, 5:][*pairs].mean().item()
    )
    assert quick.row("balanced-equal-8/cosine-minority-classes").ours is not None
    assert "−0.111" in quick.table("Cosines between the classifier's rows").note


def test_a_simplex_has_the_cosine_of_the_note() -> None:
    simplex = torch.eye(10) - 0.1
    run = made_run({1: (2.0, 1.0)})
    run.state = {"classifier.weight": simplex}
    assert fig3.classifier_cosines(run) == pytest.approx((fig3.SIMPLEX, fig3.SIMPLEX))
    run.state = {"classifier.weight": torch.ones(10, 3)}
    assert fig3.classifier_cosines(run) == pytest.approx((1.0, 1.0))


def test_tables_and_notes(quick: Quick) -> None:
    assert len(quick.table("Every network of the grid").rows) == quick.setting.networks == 15
    assert len(quick.table("Cosines between the classifier's rows").rows) == 9
    assert any("stands in for CIFAR-10" in note for note in quick.outcome.notes)
    assert (
        sum("the imbalanced half-life is" in note or "nothing to compare" in note for note in quick.outcome.notes) == 3
    )
