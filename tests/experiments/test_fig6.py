"""Figure 6, quickly."""

import pytest
from experiments_recorded import Quick, hidden, made_run, quick_fixture

from layerlaw.experiments.runs import MODE_NAMES, PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import fig6
from layerlaw.lab import Run
from layerlaw.measures import separation_fuzziness

quick = quick_fixture("fig6")


def network_of(quick: Quick, name: str) -> Run:
    (run,) = [r for r in quick.setting.runs["grid"] if r.recipe.network.widths == fig6.QUICK[name]]
    return run


def test_the_widths_are_those_of_the_paper() -> None:
    assert fig6.WIDTHS["narrow-wide"] == (100, 100, 100, 100, 1000, 1000, 1000)
    assert fig6.WIDTHS["wide-narrow"] == (1000, 1000, 1000, 1000, 100, 100, 100)
    assert fig6.WIDTHS["mixed"] == (100, 500, 500, 2500, 2500, 500, 500)
    assert {len(widths) + 1 for widths in fig6.WIDTHS.values()} == {8}


def test_claims_are_ratios_of_final_d_and_have_their_floor_beside_them(quick: Quick) -> None:
    ends = {name: network_of(quick, name).measurement().separation[-1] for name in fig6.QUICK}
    floors = {name: network_of(quick, name).measurement(split="permuted").separation[-1] for name in fig6.QUICK}
    for above, below, words in (
        ("width-20", "width-100", "larger"),
        ("width-1000", "width-100", "about the same (first version)"),
        ("wide-narrow", "narrow-wide", None),  # judged at equal rates
    ):
        row = quick.row(f"{above}-over-{below}/final-D")
        assert row.ours == pytest.approx(ends[above] / ends[below])
        assert row.paper == words
        floor = quick.row(f"{above}-over-{below}/final-D-over-permuted")
        assert floor.ours == pytest.approx(ends[above] / floors[above] / (ends[below] / floors[below]))
        assert floor.reproduced is None
        assert quick.row(f"{above}-over-{below}/final-D-same-rates").reason == fig6.UNMATCHED  # six epochs train none
    larger, same = (quick.row(f"{name}-over-width-100/final-D") for name in ("width-20", "width-1000"))
    assert (larger.kind, larger.chance, larger.reproduced) == ("direction", 0.05, None)  # one seed is no test
    assert (same.kind, same.reproduced) == (None, None)  # of the first version
    assert len(quick.table(PROTOCOL_TITLE).rows) == 2


def test_the_two_shapes_are_judged_at_equal_rates() -> None:
    def of(ends: dict[float, float], seed: int, loss: float = 0.01) -> list[Run]:
        modes = tuple(MODE_NAMES)
        return [
            made_run(
                {9: [1.0, 0.5, D]}, learning_rate=rate, seed=seed, loss=loss, modes=modes, splits=("train", "permuted")
            )
            for rate, D in ends.items()
        ]

    narrow = Runs(r for seed in (1, 2, 3) for r in of({1e-3: 0.4, 3e-3: 0.1}, seed))
    wide = Runs(r for seed in (1, 2, 3) for r in of({1e-3: 0.2, 3e-3: 0.05 + seed / 1000}, seed))
    grid = {"wide-narrow": wide, "narrow-wide": narrow}
    best = {"wide-narrow": wide.at(learning_rate=1e-3), "narrow-wide": narrow.at(learning_rate=3e-3)}
    found = {row.name: row for row in fig6._ratios(fig6.MATCHED, best, grid)}
    name = "wide-narrow-over-narrow-wide/final-D"
    assert (found[name].ours, found[name].kind) == (pytest.approx(2), None)  # the rates chosen differ
    same = found[f"{name}-same-rates"]
    assert (same.kind, same.reproduced) == ("direction", True)
    assert 0.5 < same.ours < 0.53


def test_d_along_a_mixed_shape_is_that_of_its_features(quick: Quick) -> None:
    run, samples = network_of(quick, "mixed"), quick.setting.data["fashion_mnist"]
    features = hidden(run.network(), samples.inputs)
    assert [f.shape[1] for f in features] == [100, *fig6.QUICK["mixed"]]
    D = [float(separation_fuzziness(f, samples.labels)) for f in features]
    assert run.measurement(batchnorm="running").separation == pytest.approx(D, rel=1e-3)


def test_every_network_has_law_floor_and_accuracy(quick: Quick) -> None:
    names = {row.name for row in quick.outcome.rows}
    for name in fig6.WIDTHS:
        parts = ("final-D", "final-D-permuted", "final-D-over-permuted", "test-accuracy", "holds", "holds-full")
        assert {f"{name}/{part}" for part in parts} <= names
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [6, 6, 6]
    assert {series.style for series in quick.outcome.sheets[1].panels[0].series} >= {"null"}
    assert len(quick.table("What comes out at the end of every network").rows) == 6
    assert any("at most 200 units" in note for note in quick.outcome.notes)


def test_a_ratio_is_a_geometric_mean() -> None:
    row = fig6.ratio_row("a over b", [0.5, 2.0, None, 4.0])
    assert (row.ours, row.low, row.high) == (pytest.approx(4 ** (1 / 3)), 0.5, 4.0)
    assert fig6.ratio_row("none", [None], reason="why").reason == "why"
