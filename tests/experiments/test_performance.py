"""Does evenness go along with accuracy? Quickly, and on numbers made by hand."""

from collections.abc import Iterator
from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
from experiments_recorded import Quick, made_run, quick_fixture

from layerlaw.experiments.moments import ranked, spearman
from layerlaw.experiments.numbers import above
from layerlaw.experiments.runs import PROTOCOL_TITLE, Runs
from layerlaw.experiments.separation import performance
from layerlaw.experiments.separation.performance import Matched

quick = quick_fixture("performance", most=30)


def test_networks_are_measured_with_and_without_noise(quick: Quick) -> None:
    table = quick.table("Every trained network")
    assert set(performance.SKILLS) < set(table.columns)
    runs = quick.setting.runs["grid"].trained
    assert len(table.rows) == len(runs) > 0
    able = performance.Able.of(runs[0], quick.setting.data[runs[0].recipe.data], "cpu").values
    assert able["test-accuracy"] == pytest.approx(runs[0].measurement(batchnorm="running", split="test").accuracy)
    assert able["noisy-input-accuracy"] < able["test-accuracy"]
    assert able["change-of-log-D"] > 0
    again = performance.Able.of(runs[0], quick.setting.data[runs[0].recipe.data], "cpu").values
    assert again == able


def test_too_few_networks_are_not_judged(quick: Quick) -> None:
    assert quick.outcome.reproduced == (0, 0)
    for skill in performance.SKILLS:
        for end in ("", "-eval"):
            row = quick.row(f"all/evenness{end}-with-{skill}-matched")
            assert (row.ours, row.reproduced, row.reason) == (None, None, performance.TOO_FEW)
    claims = [line[0] for line in quick.table(PROTOCOL_TITLE).rows]
    assert len(claims) == 4
    assert all(str(claim).startswith("Ours: ") for claim in claims)
    assert all(set(line[1:]) == {"–"} for line in quick.table(PROTOCOL_TITLE).rows)
    assert "Not tested" in quick.outcome.notes[0]


def test_matching_takes_out_what_the_rate_does() -> None:
    """Within each rate evenness and skill agree; across rates they are opposed."""
    runs = Runs(made_run({1: (4.0, 2.0)}, seed=seed, learning_rate=rate) for rate in (1e-3, 1e-4) for seed in range(6))
    even = {id(r): r.recipe.seed + (10 if r.recipe.learning_rate == 1e-3 else 0) for r in runs}
    skill = {id(r): r.recipe.seed - (10 if r.recipe.learning_rate == 1e-3 else 0) for r in runs}
    pair = (lambda r: even[id(r)], lambda r: skill[id(r)])
    assert performance.correlation(runs, *pair) < 0
    assert Matched.of(runs, *pair).correlations == pytest.approx([1.0, 1.0])
    assert performance.correlation(runs[:4], *pair) is None


def groups(*rows: list[float]) -> np.ndarray:
    return np.array(rows, dtype=float)


def test_all_permutations_of_five_seeds_by_hand() -> None:
    """Of the 120 orders of five seeds 1 gives a correlation of 1, and 4 swaps of neighbors give 0.9."""
    up, swapped = [1, 2, 3, 4, 5], [1, 2, 3, 5, 4]
    assert Matched(groups(up), groups(up)).p == pytest.approx(1 / 120)
    assert Matched(groups(up), groups(swapped)).p == pytest.approx(5 / 120)
    assert Matched(groups(up), groups(up), sign=-1).p == 1.0
    assert Matched(groups(up), groups(up[::-1]), sign=-1).p == pytest.approx(1 / 120)
    assert Matched(groups(up), groups([7, 7, 7, 7, 7])).shown is None  # a constant has no correlation
    assert Matched(groups(up[:4]), groups(up[:4])).shown is None


def test_groups_that_say_the_same_are_not_counted_twice() -> None:
    """Twenty copies of a group give the p of one; two opposed groups have a mean of 0 in every permutation."""
    up, mixed = [1, 2, 3, 4, 5], [1, 3, 2, 5, 4]
    one = Matched(groups(up), groups(mixed))
    many = Matched(groups(*[up] * 20), groups(*[mixed] * 20))
    assert many.p == one.p > 0.05
    assert above(0).agrees([*many.correlations[:-1], many.correlations[0] + 1e-9])  # what the t test over groups says
    assert Matched(groups(up, up), groups(up, up[::-1])).p == 1.0


def test_joint_permutations_with_seeds_that_are_missing() -> None:
    """Against a plain loop: one order of the seeds for all groups, Spearman's of the pairs that exist."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 3, 6))
    y += x
    x[0, 2] = y[0, 2] = x[1, 5] = np.nan  # not trained; no such number
    means = []
    for order in permutations(range(6)):
        found = []
        for a, b in zip(x[:, order], y, strict=True):
            pairs = [(u, v) for u, v in zip(a, b, strict=True) if np.isfinite(u) and np.isfinite(v)]
            found += [spearman(*zip(*pairs, strict=True))] if len(pairs) >= performance.FEWEST else []
        means.append(fmean(found))
    matched = Matched(x, y)
    assert matched.permuted == pytest.approx(means)
    assert fmean(matched.correlations) == pytest.approx(means[0])
    assert matched.p == pytest.approx(np.mean([m >= means[0] - 1e-12 for m in means]))


def simulated(share: float, count: int, missing: float = 0.0) -> Iterator[Matched]:
    """Eight groups of ten seeds; what a seed has in common in all groups is most of it. `share`: of the skill, the law."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        common = rng.normal(size=(2, 1, 10))
        x, y = common + 0.5 * rng.normal(size=(2, 8, 10))
        gone = rng.random((8, 10)) < missing
        yield Matched(np.where(gone, np.nan, x), np.where(gone, np.nan, share * x + (1 - share) * y))


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_without_a_correlation_dependent_groups_show_one_in_twenty_times(
    missing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performance, "PERMUTATIONS", 199)
    found = list(simulated(0, 400, missing))
    assert 0.025 < fmean(m.shown for m in found) < 0.08  # 0.05, two standard errors are 0.022
    assert fmean(above(0).agrees(m.correlations) for m in found) > 0.2  # a t test over the groups: far too often
    assert fmean(m.shown for m in simulated(0.6, 40, missing)) > 0.9


def test_the_expected_sign_is_judged_in_the_authors_protocol() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 10))
    for name, skill in performance.SKILLS.items():
        for sign, verdict in ((skill.sign, True), (-skill.sign, False)):
            matched = Matched(x, sign * x + 0.1 * rng.normal(size=x.shape), skill.sign)
            judged, p = performance.matched_rows(name, matched, "batch")
            assert (judged.name, judged.reproduced) == (f"all/evenness-with-{name}-matched", verdict)
            assert (judged.kind, judged.chance, judged.counted) == ("remark", 0.05, True)
            assert "permuted alike in all groups, 2,000 times; one-sided p < 0.05" in judged.tolerance
            assert p.ours == matched.p
            assert (p.ours < 0.05) is verdict
            beside, _ = performance.matched_rows(name, matched, "running")
            assert (beside.name, beside.reproduced) == (f"all/evenness-eval-with-{name}-matched", None)
    assert {name: skill.sign for name, skill in performance.SKILLS.items() if skill.sign < 0} == {"change-of-log-D": -1}


def test_notes_report_robustness_and_partial_correlations() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 10))
    every = {
        (mode, name): Matched(x, rng.normal(size=x.shape), skill.sign)
        for mode in performance.MODES
        for name, skill in performance.SKILLS.items()
    }
    rows = [
        performance.row(f"cifar10-{depth}/evenness-with-{name}-{how}", [depth / 100])
        for name in performance.SKILLS
        for depth in (4, 20)
        for how in ("pooled", "matched", "partial")
    ]
    about, *skills, partial = performance._notes(rows, every)
    assert "Not tested: whether a network gets better while the law emerges" in about
    for note, skill in zip(skills, performance.SKILLS.values(), strict=True):
        assert note.startswith(f"Evenness and {skill.words}, at the same optimizer and rate")
        assert note.endswith("CIFAR-10, 4, 20 layers +0.04, +0.20.")
    assert "accuracy with noisy weights +0.04 to +0.20; change of ln D" in partial


def test_a_partial_correlation_is_what_the_group_and_the_other_number_leave() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=60)
    a, b = z + 0.1 * rng.normal(size=60), z + 0.1 * rng.normal(size=60)  # alike because of z alone
    rates = np.repeat([1e-3, 1e-2], 30)
    shift = np.where(rates == 1e-2, 9.0, 0.0)
    runs = [made_run({1: (2.0, 1.0)}, learning_rate=float(rate), seed=i) for i, rate in enumerate(rates)]
    at = {id(r): i for i, r in enumerate(runs)}

    def of(values: np.ndarray) -> performance.Value:
        return lambda r: float(values[at[id(r)]])

    assert performance.correlation(runs, of(a + shift), of(b - shift)) < -0.3  # confounded by the rate
    assert performance.partial(runs, of(a + shift), of(b - shift), []) > 0.9
    assert abs(performance.partial(runs, of(a + shift), of(b - shift), [of(z)])) < 0.35
    x, y, held = (np.concatenate([ranked(v[:30]), ranked(v[30:])]) for v in (a, b, z))
    left = [r - held * (held @ r) / (held @ held) for r in (x, y)]
    assert performance.partial(runs, of(a + shift), of(b - shift), [of(z)]) == pytest.approx(np.corrcoef(*left)[0, 1])
    assert performance.partial(runs[:5], of(a), of(b), [of(z)]) is None
