"""Fine-tuning towards even steps, quickly, and judged on networks made by hand."""

from dataclasses import replace

import pytest
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.runs import PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import reactivation
from layerlaw.lab import EvenCrossEntropy, Run
from layerlaw.outcome import Row

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
    assert (row.ours, row.kind, row.reproduced) == (gap, None, None)  # a part: not judged
    assert quick.row("no-norm/after/holds").kind is None
    joint = quick.row("no-norm/reactivated")
    assert (joint.kind, joint.reproduced) == ("remark", None)  # one seed
    assert joint.ours == quick.row("no-norm/after/holds").ours
    assert "no-norm/reactivated-eval" not in {row.name for row in quick.outcome.rows}  # the same again
    ((claim, *cells),) = quick.table(PROTOCOL_TITLE).rows
    assert str(claim).startswith("Ours: reactivation")
    assert set(cells) == {"–"}
    assert quick.outcome.notes[0] == reactivation.ABOUT


EVEN = tuple(2.0**-i for i in range(8))
UNEVEN = (1.0, 0.9, 0.89, 0.88, 0.87, 0.86, 0.85, 0.01)
CHUNKS, STATISTICS = ("batch", "shuffled", "balanced"), ("running", "whole")


def network(seed: int, chunks: tuple[float, ...], statistics: tuple[float, ...]) -> Run:
    """Steps in chunks, and with running statistics or those of all samples."""
    one, other = (made_run({1: D}, modes=modes, seed=seed) for D, modes in ((chunks, CHUNKS), (statistics, STATISTICS)))
    return replace(one, measurements=(*one.measurements, *other.measurements))


def stages(chunks: int, statistics: int) -> dict[str, Runs]:
    """Ten networks; afterwards so many obey the law in chunks, and so many with running statistics."""
    broken = Runs(network(seed, UNEVEN, UNEVEN) for seed in range(10))
    after = Runs(
        network(seed, EVEN if seed < chunks else UNEVEN, EVEN if seed < statistics else UNEVEN) for seed in range(10)
    )
    return {"before": broken, "control": broken, "after": after}


def accuracies(change: float, since_before: float = 0.0) -> dict[str, list[float]]:
    """Test accuracies whose mean is so much more after than in the control, and so much more than before."""
    control = [0.7 + 0.001 * i for i in range(10)]
    after = [a + change + 0.002 * (-1) ** i for i, a in enumerate(control)]
    return {"before": [a - since_before for a in after], "control": control, "after": after}


def judged(chunks: int, statistics: int, tests: dict[str, list[float]]) -> list[Row]:
    rows = reactivation._rows("x", stages(chunks, statistics), tests, 0.3)
    found = [row for row in rows if row.counted]
    assert [(row.name, row.kind, row.chance) for row in found] == [("x/reactivated", "remark", 0.05)]
    beside = next(row for row in rows if row.name == "x/reactivated-eval")
    assert (beside.kind, beside.reproduced, beside.tolerance) == (None, None, reactivation.BESIDE)
    return [*found, beside]


@pytest.mark.parametrize(
    ("held", "change", "verdict"),
    [
        ((10, 10), 0.0, True),
        ((2, 10), 0.0, False),  # the law in another protocol
        ((5, 6), 0.0, False),  # half is not more than half
        ((6, 0), 0.0, True),
        ((10, 10), 0.05, True),  # better
        ((10, 10), -0.005, True),  # half a point less
        ((10, 10), -0.01, False),  # not shown to be less than a point
        ((10, 10), -0.05, False),  # the law alone is not enough
        ((0, 0), 0.05, False),  # accuracy alone neither
    ],
)
def test_the_law_must_be_back_and_accuracy_about_the_same(held: tuple[int, int], change: float, verdict: bool) -> None:
    row, beside = judged(*held, accuracies(change))
    assert row.reproduced is verdict
    assert [row.ours, beside.ours] == [n / 10 for n in held]


def test_accuracy_before_stands_beside_and_is_not_judged() -> None:
    tests = accuracies(0.0, since_before=-0.1)
    assert judged(10, 10, tests)[0].reproduced
    rows = {row.name: row for row in reactivation._rows("x", stages(10, 10), tests, 0.3)}
    assert rows["x/after-minus-before/test-accuracy"].ours == pytest.approx(-0.1)
    assert rows["x/after-minus-before/test-accuracy"].reproduced is None
    assert rows["x/after-minus-control/test-accuracy"].reproduced is None


def test_every_protocol_is_asked_for_both() -> None:
    after = stages(2, 10)["after"]
    kept, lost = (reactivation._gaps(accuracies(change), "control") for change in (0.0, -0.05))
    modes = (*CHUNKS, *STATISTICS)
    assert [reactivation._verdict(after, kept, mode) for mode in modes] == [False, False, False, True, True]
    assert not any(reactivation._verdict(after, lost, mode) for mode in modes)


def test_a_network_that_diverged_has_no_law() -> None:
    some = stages(6, 6)
    lost = [replace(run, diverged=3) if run.recipe.seed == 0 else run for run in some["after"]]
    row = reactivation._joint("x", Runs(lost), [0.0, 0.001] * 5, "batch")
    assert (row.ours, row.reproduced) == (0.5, False)


def test_the_note_gives_evenness_trend_and_protocols() -> None:
    note = reactivation._note(reactivation.KINDS["frozen"], stages(2, 10), accuracies(0.01, -0.02), 0.3)
    assert "running statistics: evenness 0.15 / 0.15 / 1.00, trend ∞ / ∞ / 1.00 (∞: the fitted first step" in note
    assert "before 0 and 0; control 0 and 0; after 2 and 10" in note
    assert "after, otherwise: 2 with shuffled chunks, 2 with balanced chunks, 10 with statistics of all samples" in note
    assert "(after less control +1.0 ± 0.1 points, after less before -2.0 ± 0.0 points)" in note


def test_a_full_run_breaks_the_law_in_three_ways() -> None:
    assert set(reactivation.KINDS) == {"frozen", "no-norm", "bad-rate"}
    assert [kind.recipe.network.norm for kind in reactivation.KINDS.values()] == [True, False, True]
