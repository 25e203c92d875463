"""Figure S10, quickly."""

import pytest
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.runs import ENDS, MODE_NAMES, PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import s10
from layerlaw.lab import Run, Shape
from layerlaw.outcome import Row

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
            assert {
                f"{optimizer}-{depth}/{norm}/{what}" for norm in ("norm", "no-norm") for what in ("holds", "rho")
            } <= names
            assert f"{optimizer}-{depth}/norm/holds-eval" in names
        assert {f"all-{depth}/no-norm/trained", f"all-{depth}/norm/holds-among-trained-full"} <= names
    chosen = [row for row in quick.outcome.rows if row.paper == "no clear law"]
    assert len(chosen) == 6
    assert {row.kind for row in chosen} == {None}  # they are among all networks of their depth
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [6, 6, 6, 6]
    assert len(quick.table("Every network of the grid").rows) == 18
    losses = [r.losses[-1] for r in quick.setting.runs["norms"] if s10.network_of(r) == ("adam", 4, False)]
    assert quick.row("adam-4/no-norm/lowest-loss").ours == pytest.approx(min(losses))


def test_what_is_not_trained_is_not_compared(quick: Quick) -> None:
    lines = quick.table(PROTOCOL_TITLE).rows
    assert [set(line[1:]) for line in lines] == [{"–"}] * 6
    assert not any(": the law holds" in line[0] for line in lines)
    assert any("no rate trains a network without BatchNorm" in note for note in quick.outcome.notes)


def test_no_law_is_said_of_trained_networks_alone() -> None:
    straight, bent = (
        made_run({600: D}, learning_rate=0.1, network=Shape.even(8, norm=False)) for D in (STRAIGHT, BENT)
    )
    lost = [made_run({600: STRAIGHT}, learning_rate=rate, seed=1, diverged=3) for rate in (0.1, 0.3)]

    def held(runs: list[Run]) -> tuple[Row, Row]:
        chosen = Runs(runs).best()
        found = {r.name: r for r in s10.law_rows(("adam", 8, False), Runs(runs), chosen, 2)}
        return found["adam-8/no-norm/holds"], s10.unclear(8, Runs(runs))

    best, every = held([straight, *lost])
    assert (best.ours, best.reproduced, every.ours, every.reproduced) == (1, None, 1, False)
    best, every = held([bent, *lost])
    assert (best.ours, best.reproduced, every.ours, every.reproduced) == (0, None, 0, True)
    best, every = held(lost)
    assert (best.ours, every.ours, every.reproduced) == (None, None, None)
    assert best.reason == "of 2 runs 2 diverged, 0 are not trained"
    assert every.reason == "no network is trained"
    (*_, loss, _) = s10.law_rows(("adam", 8, False), Runs(lost), Runs(), 2)
    assert loss.reason == "all 2 runs diverged"


def test_one_criterion_for_trained_networks_with_and_without_batchnorm() -> None:
    def network(norm: bool, D: list[float], loss: float, seed: int, rate: float = 1e-3) -> Run:
        how = {"network": Shape.even(8, norm=norm), "seed": seed, "learning_rate": rate, "modes": tuple(MODE_NAMES)}
        return made_run({600: D}, loss=loss, **how)

    bare = [network(False, BENT, 0.01, seed) for seed in (1, 2, 3)]
    bare += [network(False, STRAIGHT, loss, seed, 1e-4) for seed, loss in ((1, 0.01), (2, 0.5), (3, 0.5))]
    twins = [network(True, STRAIGHT, 0.01, seed, rate) for seed in (1, 2, 3) for rate in (1e-3, 1e-4)]
    rows = {row.name: row for row in s10.grid_rows(8, Runs([*bare, *twins]))}
    assert rows["all-8/no-norm/trained"].ours == pytest.approx(2 / 3)  # all of seed 1, half of the others
    assert rows["all-8/no-norm-minus-norm/trained"].reproduced is False  # −0, −.5, −.5: t = 2 < 2.92
    often = rows["all-8/no-norm/holds-among-trained"]
    assert (often.ours, often.reproduced, often.tolerance) == (0.25, True, "≤ half of the trained networks")
    assert [rows[f"all-8/norm/holds-among-trained{end}"].ours for end in ENDS.values()] == [1] * len(ENDS)
    gap = rows["all-8/no-norm-minus-norm/holds-among-trained"]
    assert (gap.low, gap.high, gap.kind, gap.reproduced) == (-1, -0.5, "self-check", True)  # t = 5
    none = s10.rarer(8, Runs([*(network(False, BENT, 2.3, 1) for _ in range(2)), *twins]))
    assert (none.ours, none.reproduced) == (None, None)


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
