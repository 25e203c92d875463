"""Any number of sizes: against the exact pairs, against random starts, and by the certificate."""

import numpy as np
import pytest

import layerlaw.peeled as lp
from layerlaw.peeled.counts import grouped
from layerlaw.peeled.logits import gap, slope
from layerlaw.peeled.many_groups import solve_groups


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "counts", [{10: 5, 1: 5}, {100: 5, 1: 5}, {100: 7, 1: 3}, {9: 1, 1: 4}, {9: 4, 1: 1}, {9: 1, 1: 1}]
)
def test_two_groups_come_out_as_by_the_exact_way(counts: dict[int, int], bias: bool) -> None:
    groups = grouped(counts)
    numeric, exact = solve_groups(groups, 1.5, bias=bias), lp.solve(counts, E_W=1.5, E_H=1.5, bias=bias)
    assert gap(groups, numeric, 1.5) < 1e-10
    assert numeric.z == pytest.approx(exact.value.z, abs=1e-7)
    assert np.abs(numeric.T - exact.value.T).max() < 1e-7
    assert numeric.b == pytest.approx(exact.value.b, abs=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_random_groups_are_certified(bias: bool) -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        G = int(rng.integers(3, 9))
        sizes = rng.choice(10 ** int(rng.integers(1, 6)) + 20, G, replace=False) + 1
        counts = {int(n): int(k) for n, k in zip(sizes, rng.integers(1, 8, G), strict=True)}
        c = 10 ** rng.uniform(-1.5, 1.2)
        s = lp.solve(counts, E_W=c, E_H=c, bias=bias)
        assert s.certified
        assert s.value.nuclear(s.groups) == pytest.approx(s.K * c, rel=1e-9)
        for g, k in enumerate(s.groups.classes):  # collapsed iff λ ≥ n_g/N
            assert k == 1 or (s.value.z[g] == 0) == (s.slack[g] <= 1)


@pytest.mark.parametrize("penalty", [0.3, 0.03, 0.003])
def test_the_penalized_way_meets_its_multiplier(penalty: float) -> None:
    groups = grouped({50: 2, 20: 3, 6: 1, 2: 4})
    logits = solve_groups(groups, penalty=penalty)
    s = slope(groups, logits)
    if logits.nuclear(groups) > 0:
        assert s.norm(groups) == pytest.approx(penalty, rel=1e-7)
    else:
        assert s.norm(groups) <= penalty


def test_random_starts_find_nothing_better() -> None:
    for counts, bias in (([100, 30, 10, 3, 1], False), ([100, 30, 10, 3, 1], True), ([40, 40, 6, 6, 6, 1], False)):
        s = lp.solve(counts, E_W=1, E_H=3, bias=bias)
        found = lp.solve_direct(counts, E_W=1, E_H=3, bias=bias, per_class=2, starts=4)
        assert found.loss == pytest.approx(s.loss, abs=1e-9)
        norm = s.norms[s.groups.members]
        assert found.cosines == pytest.approx(s.classifier_blocks.dense() / np.outer(norm, norm), abs=1e-4)
