"""When the minority collapses and when it vanishes, to the digits of the table."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from peeled_oracle import TABLE, threshold_by_angle

import layerlaw.peeled as lp
from layerlaw.errors import InputError
from layerlaw.peeled.two_groups import threshold


@pytest.mark.parametrize(("K_A", "K_B", "E_W", "E_H", "collapse", "vanish"), TABLE)
def test_the_table_of_ratios(K_A: int, K_B: int, E_W: float, E_H: float, collapse: float, vanish: float) -> None:
    assert lp.collapse_ratio(K_A, K_B, E_W=E_W, E_H=E_H) == pytest.approx(collapse, rel=2e-7)
    assert lp.vanish_ratio(K_A, K_B, E_W=E_W, E_H=E_H) == pytest.approx(vanish, rel=1e-4)  # printed with 4 or 5 digits


@pytest.mark.parametrize(("K_A", "K_B", "E_W", "E_H", "collapse", "vanish"), TABLE)
def test_phases_change_at_the_ratios_and_nowhere_else(
    K_A: int, K_B: int, E_W: float, E_H: float, collapse: float, vanish: float
) -> None:
    R0, gone = lp.collapse_ratio(K_A, K_B, E_W=E_W, E_H=E_H), lp.vanish_ratio(K_A, K_B, E_W=E_W, E_H=E_H)
    near = [R0 * (1 - 1e-9), R0 * (1 + 1e-9)]
    expected = ["separated", "collapsed"]
    if gone < math.inf:
        near, expected = [*near, gone * (1 - 1e-9), gone * (1 + 1e-9)], [*expected, "collapsed", "vanished"]
    curve = lp.collapse_curve(K_A, K_B, near, E_W=E_W, E_H=E_H)
    assert list(curve.phases) == expected
    assert curve.cosines[0] < 1
    assert all(c == 1 for c, phase in zip(curve.cosines, expected, strict=True) if phase == "collapsed")
    assert math.exp(curve.log_collapse) == pytest.approx(R0)


def test_the_table_in_the_docs_is_what_the_code_gives() -> None:
    text = (Path(__file__).parents[2] / "docs" / "peeled.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (\d+), (\d+), ([\d.]+), ([\d.]+) \| ([\d.]+) \| ([\d.]+|∞) \|", text)
    assert len(rows) == len(TABLE)
    for row in rows:
        K_A, K_B, E_W, E_H = int(row[0]), int(row[1]), float(row[2]), float(row[3])
        vanish = lp.vanish_ratio(K_A, K_B, E_W=E_W, E_H=E_H)
        assert f"{lp.collapse_ratio(K_A, K_B, E_W=E_W, E_H=E_H):.6f}" == row[4]
        assert ("∞" if vanish == math.inf else f"{vanish:.6f}") == row[5]


def test_the_threshold_is_the_one_written_with_an_angle() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        K_A, K_B = (int(k) for k in rng.integers(1, 20, 2))
        m = float(rng.uniform(0.05, 1.2))
        c, R = threshold_by_angle(K_A, K_B, m)
        if math.isfinite(R):
            assert threshold(K_A, K_B, m) == pytest.approx((c, math.log(R)), rel=1e-9, abs=1e-9)


def test_minority_cosines_of_the_facts() -> None:
    curve = lp.collapse_curve(5, 5, [1, 2, 5, 10, 12.19244, 12.1925, 1e4], E_W=1, E_H=5)
    assert curve.cosines[:4] == pytest.approx([-1 / 9, -0.067283, 0.072527, 0.517496], abs=5e-7)
    assert curve.cosines[4] < 1
    assert (curve.cosines[5:] == 1).all()
    assert curve.note == ""


def test_the_cosine_rises_with_the_ratio() -> None:
    cosines = lp.collapse_curve(4, 6, np.geomspace(1, 2e3, 300), E_W=1, E_H=7).cosines
    assert (np.diff(cosines) >= 0).all()
    assert cosines[0] == pytest.approx(-1 / 9)
    assert cosines[-1] == 1


def test_only_the_product_of_the_budgets_matters() -> None:
    for E_W, E_H in ((1, 6), (6, 1), (2, 3), (0.01, 600)):
        assert lp.collapse_ratio(4, 5, E_W=E_W, E_H=E_H) == pytest.approx(
            lp.collapse_ratio(4, 5, E_W=1, E_H=6), rel=1e-12
        )
        assert lp.vanish_ratio(9, 2, E_W=E_W, E_H=E_H) == pytest.approx(lp.vanish_ratio(9, 2, E_W=1, E_H=6), rel=1e-12)


def test_large_budgets_need_logarithms() -> None:
    log = lp.collapse_ratio(5, 5, E_W=1e3, E_H=1e3, log=True)
    assert 1000 < log < 1e5
    with pytest.raises(InputError, match=r"more than a double can hold. Ask for collapse_ratio\(…, log=True\)"):
        lp.collapse_ratio(5, 5, E_W=1e3, E_H=1e3)
    with pytest.raises(InputError, match="log=True"):
        lp.collapse_ratio(5, 5, E_W=1e3, E_H=1e3, bias=True)
    # collapse_ratio grows like its leading term: the derivative of log R0 in c settles
    steps = np.diff([lp.collapse_ratio(5, 5, E_W=c, E_H=c, log=True) for c in (1e4, 2e4, 3e4)])
    assert steps[1] == pytest.approx(steps[0], rel=1e-3)


def test_tiny_budgets_collapse_at_once() -> None:
    assert 1 < lp.collapse_ratio(5, 5, E_W=1e-6, E_H=1e-6) < 1 + 1e-4


def test_ratios_below_one_swap_the_groups_and_say_so() -> None:
    curve = lp.collapse_curve(3, 7, [0.1, 1.0, 10.0], E_W=1, E_H=5)
    other = lp.collapse_curve(7, 3, [10.0], E_W=1, E_H=5)
    assert curve.swapped.tolist() == [True, False, False]
    assert curve.phases[0] == other.phases[0] == "vanished"
    assert np.isnan(curve.cosines[0])
    assert curve.note == (
        "Below R = 1 the groups are swapped (1 of 3 ratios). "
        "At 1 of 3 ratios the minority classifiers are 0 and have no angle."
    )


def test_one_minority_class_cannot_collapse_but_vanish() -> None:
    for bias in (False, True):
        assert lp.collapse_ratio(9, 1, E_W=1, E_H=1, bias=bias) == math.inf
        assert lp.collapse_ratio(9, 1, E_W=1, E_H=1, bias=bias, log=True) == math.inf
        assert lp.collapse_curve(9, 1, [2.0], E_W=1, E_H=1, bias=bias).log_collapse == math.inf
    gone = lp.vanish_ratio(9, 1, E_W=1, E_H=1)
    assert math.isfinite(gone)
    for factor, phase in ((0.999, "separated"), (1.001, "vanished")):
        s = lp.solve({round(gone * factor * 10**6): 9, 10**6: 1}, E_W=1, E_H=1)
        assert s.phases[-1] == phase
        assert s.gap < 1e-12
    assert lp.vanish_ratio(1, 9, E_W=1, E_H=1) == math.inf


class TestCriticalBudget:
    def test_it_inverts_the_collapse_ratio(self) -> None:
        for K_A, K_B, R in ((5, 5, 100), (3, 7, 1000), (9, 2, 3)):
            c = lp.critical_budget({R: K_A, 1: K_B})
            assert lp.collapse_ratio(K_A, K_B, E_W=c, E_H=c) == pytest.approx(R, rel=1e-9)

    def test_with_a_bias_it_inverts_that_ratio(self) -> None:
        c = lp.critical_budget({50: 4, 1: 6}, bias=True)
        assert lp.collapse_ratio(4, 6, E_W=c, E_H=c, bias=True) == pytest.approx(50, rel=1e-9)

    @pytest.mark.parametrize("bias", [False, True])
    def test_of_many_groups_it_is_where_the_smallest_begins_to_collapse(self, bias: bool) -> None:
        counts = {1000: 3, 200: 4, 30: 5, 7: 2}
        c = lp.critical_budget(counts, bias=bias)
        before, after = (lp.solve(counts, E_W=c * f, E_H=c * f, bias=bias) for f in (0.999, 1.001))
        assert before.phases[-1] == "collapsed"
        assert set(after.phases) == {"separated"}

    def test_balanced_classes_and_two_classes_need_none(self) -> None:
        assert lp.critical_budget([7, 7, 7]) == 0
        assert lp.critical_budget([1000, 1]) == 0  # one direction is enough

    def test_a_long_tail_of_single_classes_needs_one(self) -> None:
        for counts in ([7, 6, 5], [1000, 500, 200, 80, 30, 10, 3], [1000] * 5 + [10], [1000] * 5 + [30, 10]):
            c = lp.critical_budget(counts)
            below, above = (lp.solve(counts, E_W=c * f, E_H=c * f) for f in (0.9999, 1.0001))
            assert not below.separated
            assert above.separated

    def test_solving_just_below_and_just_above_agrees_with_it(self) -> None:
        rng = np.random.default_rng(3)
        for counts in random_counts(rng, 40):
            for bias in (False, True):
                c = lp.critical_budget(counts, bias=bias)
                if c > 0:
                    below, above = (lp.solve(counts, E_W=c * f, E_H=c * f, bias=bias) for f in (0.999, 1.001))
                    assert (below.separated, above.separated) == (False, True), (counts, bias)
                else:
                    assert lp.solve(counts, E_W=0.01, E_H=0.01, bias=bias).separated


class TestOversampling:
    def test_two_groups_need_the_ratio_over_the_threshold(self) -> None:
        plan = lp.oversampling({6000: 5, 6: 5}, E_W=1, E_H=10)
        assert plan.factors == pytest.approx([1, 1000 / lp.collapse_ratio(5, 5, E_W=1, E_H=10)])
        assert plan.copies.tolist() == [1, 13]
        filled = lp.solve({6000: 5, 6 * 13: 5}, E_W=1, E_H=10)
        assert filled.phases == ("separated", "separated")
        assert lp.solve({6000: 5, 6 * 12: 5}, E_W=1, E_H=10).phases[1] == "collapsed"
        assert "Repeat the samples of 5 classes up to 73.9" in str(plan)

    def test_a_long_tail_is_filled_up_to_one_level(self) -> None:
        counts = [1000, 800, 500, 200, 100, 30, 30, 8, 3, 3]
        plan = lp.oversampling(counts, E_W=1, E_H=4)
        assert plan.needed
        for factor, collapsed in ((0.99, True), (1.01, False)):
            level = plan.level * factor
            whole = [round(1000 * max(n, level)) for n in counts]
            assert lp.solve(whole, E_W=1, E_H=4).separated is not collapsed

    def test_nothing_to_do_is_said(self) -> None:
        for counts in ([5, 5, 5], {100: 5, 90: 5}, [30, 20, 20, 10], [9, 9, 1]):
            assert lp.solve(counts, E_W=2, E_H=8).separated
            plan = lp.oversampling(counts, E_W=2, E_H=8)
            assert not plan.needed
            assert (plan.copies == 1).all()
            assert "nothing to oversample" in str(plan)

    def test_a_vanished_single_class_is_repeated_too(self) -> None:
        counts = [1000] * 5 + [10]
        assert lp.solve(counts, E_W=1, E_H=5).phases[1] == "vanished"
        plan = lp.oversampling(counts, E_W=1, E_H=5)
        assert plan.factors[1] == pytest.approx(100 / lp.vanish_ratio(5, 1, E_W=1, E_H=5))
        assert plan.copies is not None
        assert plan.copies.tolist() == [1, 16]
        assert str(plan).startswith("Repeat the samples of 1 class up to 159.775 each")

    @pytest.mark.parametrize(
        ("counts", "c", "bias"),
        [([264, 24, 17, 6, 5, 2], 0.7268826, False), ([462, 340, 248, 6, 2, 2], 1.3402927, True)],
    )
    def test_rounding_up_alone_is_not_enough(self, counts: list[int], c: float, bias: bool) -> None:
        plan = lp.oversampling(counts, E_W=c, E_H=c, bias=bias)
        rounded = np.floor(plan.factors).astype(int) + (plan.factors > 1)
        assert not lp.solve(np.array(counts) * rounded[plan.groups.members], E_W=c, E_H=c, bias=bias).separated
        assert plan.copies is not None
        assert lp.solve(np.array(counts) * plan.copies[plan.groups.members], E_W=c, E_H=c, bias=bias).separated

    def test_copies_separate_every_class_when_solved_again(self) -> None:
        rng = np.random.default_rng(4)
        needed = 0
        for counts in random_counts(rng, 60):
            bias, c = bool(rng.integers(2)), 10 ** rng.uniform(-1, 0.7)
            plan = lp.oversampling(counts, E_W=c, E_H=c, bias=bias)
            assert plan.needed is not lp.solve(counts, E_W=c, E_H=c, bias=bias).separated
            assert plan.copies is not None
            after = lp.solve(np.array(counts) * plan.copies[plan.groups.members], E_W=c, E_H=c, bias=bias)
            assert after.separated, (counts, bias, c)
            assert after.total_accuracy == 1
            needed += plan.needed
        assert needed > 20

    def test_where_only_equal_sizes_do_and_cannot_be_had_that_is_said(self) -> None:
        plan = lp.oversampling({10**6 + 3: 2, 10**6 - 17: 3}, E_W=1e-7, E_H=1e-7)
        assert plan.needed
        assert plan.copies is None
        assert "by weights" in str(plan)

    def test_budgets_too_large_to_solve_for_need_nothing(self) -> None:
        assert not lp.oversampling({100: 5, 1: 5}, E_W=2000, E_H=2000).needed
        assert not lp.oversampling([100, 50, 1], E_W=2000, E_H=2000, bias=True).needed

    def test_progress_is_told(self) -> None:
        seen = []

        def notice(items, label, total):
            seen.append(label)
            yield from items

        lp.oversampling([264, 24, 17, 6, 5, 2], E_W=0.7, E_H=0.7, progress=notice)
        lp.critical_budget([264, 24, 17, 6, 5, 2], progress=notice)
        assert seen == ["level", "copies", "critical budget"]


def random_counts(rng: np.random.Generator, many: int) -> list[list[int]]:
    """Sizes of all kinds: single classes, long tails, few sizes shared by several."""
    out = []
    for i in range(many):
        K, top = int(rng.integers(2, 9)), 10 ** rng.uniform(0.7, 4)
        if i % 3 == 0:
            sizes = top ** rng.uniform(0, 1, K)
        elif i % 3 == 1:
            sizes = rng.choice([top, top**0.5, 2.0], K)
        else:
            sizes = top * rng.uniform(0.4, 0.9) ** np.arange(K)
        out.append([int(n) for n in np.maximum(1, np.round(sizes))])
    return out


def test_no_entry_of_the_copies_can_be_lowered_by_itself() -> None:
    counts = [874, 118, 91, 22, 2]
    plan = lp.oversampling(counts, E_W=1, E_H=2.9, progress=False)
    assert plan.copies is not None
    assert plan.copies.tolist() == [1, 1, 1, 2, 17]
    for g in (3, 4):
        fewer = plan.copies.copy()
        fewer[g] -= 1
        assert not lp.solve((np.array(counts) * fewer).tolist(), E_W=1, E_H=2.9).separated
