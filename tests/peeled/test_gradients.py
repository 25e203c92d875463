"""Gradients, by differences and against dense matrices: what the certificate rests on."""

import numpy as np
import pytest
from peeled_oracle import dense_gap, dense_loss

from layerlaw.peeled.counts import grouped
from layerlaw.peeled.logits import GroupMatrix, Logits, gap, slope
from layerlaw.peeled.many_groups import Factors, Search

COUNTS = {50: 3, 20: 1, 8: 4, 1: 2}


@pytest.fixture
def logits() -> Logits:
    rng = np.random.default_rng(0)
    return Logits(rng.uniform(0, 2, 4) * [1, 0, 1, 1], rng.normal(size=(4, 4)), rng.normal(size=4))


def dense(logits: Logits, *, bias: bool = True) -> np.ndarray:
    groups = grouped(COUNTS)
    own, same, between = Logits(logits.z, logits.T, logits.b * bias).rows(groups)
    return GroupMatrix(groups, own, same, between).dense()


@pytest.mark.parametrize("kind", ["ce", "mse"])
def test_the_reduced_loss_and_gradient_are_the_dense_ones(logits: Logits, kind) -> None:
    groups = grouped(COUNTS)
    counts = groups.sizes[groups.members]
    loss, G = dense_loss(counts, dense(logits), kind)
    s = slope(groups, logits, kind)
    assert s.loss == pytest.approx(loss, rel=1e-13)
    assert s.norm(groups) == pytest.approx(np.linalg.norm(G, 2), rel=1e-12)
    assert s.bias(groups)[groups.members] == pytest.approx(G.sum(0), abs=1e-14)
    Z = dense(logits, bias=False)
    assert logits.nuclear(groups) == pytest.approx(np.linalg.norm(Z, "nuc"), rel=1e-12)
    b = logits.b[groups.members]
    assert gap(groups, logits, 2.0, kind) == pytest.approx(dense_gap(counts, Z, 2.0, b=b, kind=kind), rel=1e-12)


@pytest.mark.parametrize("kind", ["ce", "mse"])
def test_the_reduced_gradient_is_the_slope_of_the_reduced_loss(logits: Logits, kind) -> None:
    groups, h = grouped(COUNTS), 1e-6
    s = slope(groups, logits, kind)

    def at(z=0.0, T=0.0, b=0.0) -> float:
        return slope(groups, Logits(logits.z + z, logits.T + T, logits.b + b), kind).loss

    for g in range(4):
        e = np.eye(4)[g]
        assert (at(z=h * e) - at(z=-h * e)) / (2 * h) == pytest.approx(-(groups.classes[g] - 1) * s.within[g], abs=1e-8)
        assert (at(b=h * e) - at(b=-h * e)) / (2 * h) == pytest.approx(groups.classes[g] * s.bias(groups)[g], abs=1e-8)
        for j in range(4):
            E = np.outer(e, np.eye(4)[j])
            assert (at(T=h * E) - at(T=-h * E)) / (2 * h) == pytest.approx(s.between[g, j], abs=1e-8)


@pytest.mark.parametrize("total", [None, 7.0])
@pytest.mark.parametrize("bias", [False, True])
def test_the_factored_gradient_is_the_slope_of_the_factored_objective(total: float | None, bias: bool) -> None:
    groups, rng = grouped(COUNTS), np.random.default_rng(1)
    free = groups.classes > 1
    point = Factors(
        rng.uniform(0.5, 1, 4) * free, *rng.normal(size=(2, 4, 3)), rng.normal(size=4) if bias else np.zeros(0)
    )
    f = Search(groups, total, 0.05 if total is None else None, bias).objective(free, 3)
    v, h = point.flat(free), 1e-6
    gradient = f(v)[1]
    for i in range(len(v)):
        e = h * np.eye(len(v))[i]
        assert (f(v + e)[0] - f(v - e)[0]) / (2 * h) == pytest.approx(gradient[i], abs=2e-8)


def test_huge_logits_neither_overflow_nor_cancel() -> None:
    groups = grouped({3: 5, 1: 5})
    s = slope(groups, Logits(np.array([400.0, 390.0]), np.zeros((2, 2)), np.zeros(2)))
    assert 0 < s.loss < 1e-130
    assert (s.within > 0).all()
    s = slope(groups, Logits(np.array([0.0, 0.0]), 1e4 * np.array([[-1.0, 1.0], [1.0, -1.0]]), np.zeros(2)))
    assert np.isfinite(s.loss)
    assert np.isfinite(s.between).all()
