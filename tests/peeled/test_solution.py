"""What a solution says agrees with the matrices it stands for."""

import json
import math

import numpy as np
import pytest
import torch
from peeled_oracle import dense_gap, dense_loss, two_group_loss

import layerlaw.peeled as lp
from layerlaw.errors import InputError, MemoryBudgetError
from layerlaw.measures import geometry, self_duality

PROBLEMS = [
    ([100] * 5 + [10] * 5, 1, 5, False),
    ([10, 100, 10, 100, 10, 100], 2, 1, False),  # classes in any order
    ([1000] * 3 + [10] * 4, 1, 3, False),  # collapsed
    ([1000] * 7 + [10] * 3, 1, 5, False),  # vanished
    ([9, 9, 9, 9], 3, 1, False),
    ([50, 1], 1, 2, False),
    ([50, 1, 1, 1], 1, 2, False),
    ([500, 500, 40, 40, 40, 7, 7], 1, 4, False),
    ([500, 200, 90, 30, 10, 5], 1, 4, False),
    ([100] * 5 + [10] * 5, 1, 5, True),
    ([1000] * 3 + [10] * 4, 1, 3, True),
    ([5000] * 3 + [1] * 2, 1, 1, True),
    ([500, 500, 40, 40, 40, 7, 7], 1, 2, True),
]


@pytest.fixture(params=range(len(PROBLEMS)), ids=lambda i: str(PROBLEMS[i]))
def problem(request: pytest.FixtureRequest) -> tuple[np.ndarray, lp.Solution]:
    counts, E_W, E_H, bias = PROBLEMS[request.param]
    return np.array(counts), lp.solve(counts, E_W=E_W, E_H=E_H, bias=bias)


def test_classifiers_and_features_are_on_the_budgets_and_give_the_logits(problem) -> None:
    counts, s = problem
    K = len(counts)
    for p in (None, s.rank, K + 3):
        W, H = s.W(p), s.H(p)
        assert W.shape == H.shape == (K, p or s.rank)
        assert (W**2).sum() / K == pytest.approx(s.E_W, rel=1e-10)
        assert (H**2).sum() / K == pytest.approx(s.E_H, rel=1e-10)
        assert H @ W.T + s.biases[s.groups.members] == pytest.approx(s.logits, abs=1e-10)
        assert s.classifier_blocks.dense() == pytest.approx(W @ W.T, abs=1e-10)
        assert s.feature_blocks.dense() == pytest.approx(H @ H.T, abs=1e-10)
    assert np.linalg.matrix_rank(W, tol=1e-7) == s.rank <= K - 1
    assert W.sum(0) == pytest.approx(0, abs=1e-9)  # Σ w_k = 0


def test_loss_and_certificate_are_those_of_the_dense_problem(problem) -> None:
    counts, s = problem
    assert dense_loss(counts, s.logits)[0] == pytest.approx(s.loss, rel=1e-12)
    Z = s.H() @ s.W().T
    b = s.biases[s.groups.members]
    assert dense_gap(counts, Z, s.c, b=b) == pytest.approx(s.gap, abs=1e-12)
    assert s.gap < 1e-10
    assert np.linalg.norm(dense_loss(counts, s.logits)[1], 2) == pytest.approx(s.multiplier, rel=1e-8)
    if s.bias:
        assert dense_loss(counts, s.logits)[1].sum(0) == pytest.approx(0, abs=1e-11)
        assert s.groups.classes @ s.biases == pytest.approx(0, abs=1e-12)
    else:
        assert not b.any()


def test_cosines_norms_and_phases_are_those_of_the_rows(problem) -> None:
    counts, s = problem
    W, member = s.W(), s.groups.members
    assert (s.groups.sizes[member] == counts).all()
    norm = np.linalg.norm(W, axis=1)
    assert norm == pytest.approx(s.norms[member], abs=1e-7)
    assert np.linalg.norm(s.H(), axis=1) == pytest.approx(s.feature_norms[member], abs=1e-7)
    for g, phase in enumerate(s.phases):
        rows = np.flatnonzero(member == g)
        inside = s.cosines[g, g]
        if phase == "vanished":
            assert norm[rows].max() < 1e-9
            assert np.isnan(s.cosines[g]).all()
        elif len(rows) > 1:
            assert W[rows[0]] @ W[rows[1]] / norm[rows[0]] / norm[rows[1]] == pytest.approx(inside, abs=1e-9)
            assert (inside == 1) == (phase == "collapsed")
            assert (s.slack[g] <= 1) == (phase == "collapsed")
        else:
            assert np.isnan(inside)
        for h in range(g):
            if "vanished" not in (phase, s.phases[h]):
                other = np.flatnonzero(member == h)[0]
                cosine = W[rows[0]] @ W[other] / norm[rows[0]] / norm[other]
                assert s.cosines[g, h] == s.cosines[h, g] == pytest.approx(cosine, abs=1e-9)


def test_accuracy_counts_ties_fairly(problem) -> None:
    counts, s = problem
    logits = s.logits
    expected = [
        (row >= row.max() - 1e-10)[k] / (row >= row.max() - 1e-10).sum() for k, row in enumerate(logits)
    ]  # a share of the prize for each of the best
    assert s.accuracy[s.groups.members] == pytest.approx(expected)
    assert s.total_accuracy == pytest.approx(np.dot(expected, counts) / counts.sum())


def test_neural_collapse_is_what_the_measures_say(problem) -> None:
    counts, s = problem
    W, M = torch.from_numpy(s.W()), torch.from_numpy(s.H())
    found = s.neural_collapse
    assert found.nc1 == 0
    norms, angles, _ = (float(v) for v in geometry(M - M.mean(0)))
    assert found.nc2_norms == pytest.approx(norms, abs=1e-9)
    if "vanished" in s.phases:
        assert found.nc2_angles is None
        assert found.nc2_angles_classifier is None
    else:
        assert found.nc2_angles == pytest.approx(angles, abs=1e-7)
        norms, angles, _ = (float(v) for v in geometry(W))
        assert found.nc2_norms_classifier == pytest.approx(norms, abs=1e-9)
        assert found.nc2_angles_classifier == pytest.approx(angles, abs=1e-7)
    assert found.nc3 == pytest.approx(float(self_duality(M - M.mean(0), W)), abs=1e-9)
    distance = torch.cdist(M, M, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    best = [set(np.flatnonzero(z >= z.max() - 1e-10)) for z in s.logits]
    nearest = [set(np.flatnonzero(d < 1e-8)) for d in distance]
    differ = [one != other for one, other in zip(best, nearest, strict=True)]
    assert found.nc4 == pytest.approx(np.dot(differ, counts) / counts.sum())


@pytest.mark.parametrize("K", [2, 3, 10, 1000])
@pytest.mark.parametrize("c", [0.1, 1.0, 4.0, 30.0])
def test_balanced_classes_are_a_simplex(K: int, c: float) -> None:
    s = lp.solve([7] * K, E_W=2 * c, E_H=c / 2)
    assert s.loss == pytest.approx(math.log1p((K - 1) * math.exp(-K * c / (K - 1))), rel=1e-12)
    assert s.minority_cosine == pytest.approx(-1 / (K - 1), abs=1e-14)
    assert s.rank == K - 1
    collapse = s.neural_collapse
    assert max(collapse.nc2_norms, collapse.nc2_angles, collapse.nc2_angles_classifier, collapse.nc4) < 1e-7
    assert abs(collapse.nc3) < 1e-12
    if K <= 10:  # h_k = √(E_H/E_W) w_k = √E_H m_k
        assert s.H() == pytest.approx(math.sqrt(s.E_H / s.E_W) * s.W(), abs=1e-12)
        simplex = math.sqrt(K / (K - 1)) * (np.eye(K) - 1 / K)
        assert s.feature_blocks.dense() == pytest.approx(s.E_H * simplex @ simplex, abs=1e-12)


def test_only_the_product_of_the_budgets_matters() -> None:
    one = lp.solve([50, 50, 5, 5, 5], E_W=1, E_H=4)
    other = lp.solve([50, 50, 5, 5, 5], E_W=8, E_H=0.5)
    assert one.loss == pytest.approx(other.loss, rel=1e-13)
    assert one.cosines == pytest.approx(other.cosines, abs=1e-13)
    assert one.phases == other.phases
    assert other.norms == pytest.approx(math.sqrt(8) * one.norms)


def test_only_ratios_of_counts_matter() -> None:
    one, other = lp.solve([50, 50, 5, 5, 5], E_W=1, E_H=4), lp.solve([5000, 5000, 500, 500, 500], E_W=1, E_H=4)
    assert one.loss == pytest.approx(other.loss, rel=1e-14)


def test_the_four_numbers_minimize_the_objective_written_in_four_numbers() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        K_A, K_B = (int(k) for k in rng.integers(2, 8, 2))
        n = int(rng.integers(2, 200))
        c = float(rng.uniform(0.5, 4))
        s = lp.solve({n: K_A, 1: K_B}, E_W=c, E_H=c)
        a, e = s.value.z
        r = np.linalg.norm(s.value.T, 2)
        t_A, t_B = abs(s.value.T[0]) @ [1, 0], abs(s.value.T[1, 0])
        scale = math.sqrt((K_A + K_B) / K_B)
        best = two_group_loss(K_A, K_B, n, a, e, t_A * scale, t_B * scale)
        assert best == pytest.approx(s.loss, rel=1e-12)
        total = (K_A + K_B) * c
        for _ in range(50):  # no feasible point nearby is better
            step = rng.normal(size=4) * 10.0 ** rng.uniform(-4, 0)
            x = np.maximum(0, np.array([a, e, t_A * scale, t_B * scale]) + step)
            size = (K_A - 1) * x[0] + (K_B - 1) * x[1] + math.hypot(x[2], x[3])
            x *= min(1.0, total / size)
            assert two_group_loss(K_A, K_B, n, *x) >= best - 1e-13
        assert (K_A - 1) * a + (K_B - 1) * e + r == pytest.approx(total, rel=1e-12)


def test_certificates_of_two_groups_are_at_rounding_up_to_a_million_classes() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        K_A, K_B = (int(10 ** rng.uniform(0, 6)) for _ in range(2))
        n = int(10 ** rng.uniform(0.01, 8)) + 1
        c = 10 ** rng.uniform(-2, 2)
        bias = bool(rng.integers(2))
        s = lp.solve({n: K_A, 1: K_B}, E_W=c, E_H=c, bias=bias)
        assert s.gap <= 1e-8
        assert s.value.nuclear(s.groups) == pytest.approx(s.K * c, rel=1e-8)


def test_the_multiplier_is_the_price_of_the_budget() -> None:
    for counts, bias in (
        ({30: 4, 1: 3}, False),
        ({30: 4, 1: 3}, True),
        ([9, 7, 4, 2, 1], False),
        ([9, 7, 4, 2, 1], True),
    ):
        s = lp.solve(counts, E_W=1.5, E_H=1.5, bias=bias)
        h = 1e-4
        ends = [lp.solve(counts, E_W=1.5 + d, E_H=1.5 + d, bias=bias).loss for d in (h, -h)]
        assert -(ends[0] - ends[1]) / (2 * h * s.K) == pytest.approx(s.multiplier, rel=1e-5)


def test_a_long_tail_shares_one_direction() -> None:
    s = lp.solve([1000, 900, 800, 700, 600, 10, 9, 8, 7, 6], E_W=1, E_H=5)
    assert s.rank == 5
    assert np.nanmin(s.cosines[5:, 5:]) > 0.9999
    assert s.accuracy[6:].max() == 0  # the largest of the tail takes all of its samples
    assert s.phases == ("separated",) * 6 + ("confused",) * 4
    spread = lp.solve([264, 24, 17, 6, 5, 2], E_W=0.7268826, E_H=0.7268826)  # not every tail is parallel
    assert spread.phases == ("separated",) * 3 + ("confused",) * 3
    assert 0.9 < np.nanmin(spread.cosines[2:, 2:]) < 0.97


def test_a_single_rare_class_that_loses_its_samples_is_not_called_separated() -> None:
    s = lp.solve([100, 50, 20, 20, 5], E_W=1, E_H=3)
    assert s.phases == ("separated", "separated", "separated", "confused")
    assert s.accuracy.tolist() == [1, 1, 1, 0]
    assert not s.separated
    outvoted = lp.solve(
        [55] * 5 + [10], E_W=1, E_H=5, bias=True
    )  # the bias speaks for the majority before the row is 0
    assert outvoted.phases == ("separated", "confused")
    assert outvoted.norms[1] > 0
    assert outvoted.accuracy[1] == 0


def test_separated_means_accuracy_one_and_nothing_else() -> None:
    rng = np.random.default_rng(11)
    seen = set()
    for _ in range(80):
        counts = np.maximum(1, np.round(10 ** rng.uniform(0, 4, rng.integers(2, 9)))).astype(int)
        counts = np.repeat(counts, rng.integers(1, 4, len(counts)))
        c = 10 ** rng.uniform(-1, 1)
        s = lp.solve(counts, E_W=c, E_H=c, bias=bool(rng.integers(2)))
        assert [phase == "separated" for phase in s.phases] == (s.accuracy == 1).tolist()
        assert s.separated == (s.total_accuracy == 1)
        assert all(phase != "collapsed" or k > 1 for phase, k in zip(s.phases, s.groups.classes, strict=True))
        seen |= set(s.phases)
    assert seen == {"separated", "confused", "collapsed", "vanished"}


def test_a_vanished_size_among_many_ties_with_all_classes() -> None:
    s = lp.solve([1000] * 7 + [700] * 2 + [3] * 2, E_W=1, E_H=0.5)
    assert s.phases == ("separated", "vanished", "vanished")
    assert s.accuracy.tolist() == [1, 1 / 11, 1 / 11]
    assert np.isnan(s.cosines[1:]).all()


def test_a_solution_is_represented_in_a_line() -> None:
    s = lp.solve(np.arange(1, 40), E_W=1, E_H=5, loss="mse")
    assert repr(s).startswith("Solution(39 classes of 39 sizes, c=2.236, kind='mse', bias=False, loss=")
    assert len(repr(s)) < 150
    assert "array" not in repr(lp.collapse_curve(5, 5, [1, 2], E_W=1, E_H=5))


@pytest.mark.parametrize("p", ["a", 3.5, True, 0])
def test_dimensions_are_whole_numbers(p) -> None:
    s = lp.solve([10, 10, 1, 1], E_W=1, E_H=4)
    for vectors in (s.W, s.H):
        with pytest.raises(InputError, match="p: expected a whole number of at least 1, got"):
            vectors(p)


def test_a_million_classes_need_no_large_matrix() -> None:
    s = lp.solve({100: 400_000, 10: 600_000}, E_W=1, E_H=300)
    assert s.rank > 0
    assert len(str(s)) < 300
    json.dumps(s.to_dict(), allow_nan=False)
    with pytest.raises(MemoryBudgetError, match="The group-wise numbers"):
        _ = s.classifier_blocks.dense()
    with pytest.raises(MemoryBudgetError, match="GiB"):
        s.W()


def test_too_few_dimensions_are_refused() -> None:
    s = lp.solve([10, 10, 1, 1], E_W=1, E_H=4)
    assert s.rank == 3
    with pytest.raises(InputError, match="expected p ≥ 3, the rank of this optimum, got p = 2"):
        s.W(2)


def test_a_solution_in_words() -> None:
    s = lp.solve([1000] * 7 + [10] * 3, E_W=1, E_H=5)
    assert str(s) == (
        "10 classes, c = 2.236: loss 0.2458, rank 6. 7 classes of 1,000: separated, cosine −0.167, accuracy 1. "
        "3 classes of 10: vanished, accuracy 0.1."
    )
    plain = s.to_dict()
    assert [group["phase"] for group in plain["groups"]] == ["separated", "vanished"]
    assert plain["groups"][1]["cosine"] is None
    assert "sizes in all" in str(lp.solve([9, 8, 7, 6, 5], E_W=1, E_H=1))
