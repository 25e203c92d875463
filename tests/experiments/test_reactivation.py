"""Fine-tuning towards even steps, quickly."""

from experiments_recorded import Quick, quick_fixture

from layerlaw.experiments.separation import reactivation
from layerlaw.lab import EvenCrossEntropy

quick = quick_fixture("reactivation", most=20)


def test_the_same_networks_are_tuned_with_and_without_the_penalty(quick: Quick) -> None:
    (before,) = quick.setting.runs["no-norm"]
    control, after = quick.setting.runs["no-norm-all-tuned"]
    assert before.recipe.loss.kind == "cross_entropy"
    assert (control.recipe.loss, after.recipe.loss) == (EvenCrossEntropy(0.0), EvenCrossEntropy(1.0))
    for stage in ("before", "control", "after"):
        assert 0 < quick.row(f"no-norm/{stage}/test-accuracy").ours < 1
    gap = quick.row("no-norm/after/test-accuracy").ours - quick.row("no-norm/control/test-accuracy").ours
    row = quick.row("no-norm/after-minus-control/test-accuracy")
    assert (row.ours, row.kind, row.reproduced) == (gap, "direction", None)  # one seed
    assert quick.row("no-norm/after/holds").paper == "reactivated"


def test_a_full_run_breaks_the_law_in_three_ways() -> None:
    assert set(reactivation.KINDS) == {"frozen", "no-norm", "bad-rate"}
    assert [kind.recipe.network.norm for kind in reactivation.KINDS.values()] == [True, False, True]
