"""The prediction residual: NumPy oracle, closed forms, invariances, groups."""

import numpy as np
import pytest
import torch

from layerlaw.errors import FeatureError
from layerlaw.measures.residual import prediction_residuals
from layerlaw.stats.moments import Columns, Moments, TargetMoments, gram

ONE = {"y": slice(0, 1)}


def moments(X, Y, groups):
    X, Y = torch.as_tensor(X), torch.as_tensor(Y)
    g = int(max(groups)) + 1
    own, targets = Moments.empty(g, X.shape[1], Y.shape[1]), TargetMoments.empty(g, Y.shape[1])
    for k in range(g):
        rows = torch.as_tensor(groups) == k
        targets.update(k, Y[rows])
        own.update(k, X[rows], Columns(torch.cat([Y[rows], torch.ones(int(rows.sum()), 1, dtype=Y.dtype)], 1)))
    own.settle(targets)
    return own, targets


def residual(X, Y, groups=None, *, columns=ONE, **options):
    groups = np.zeros(len(X), int) if groups is None else groups
    return prediction_residuals(*moments(X, Y, groups), columns, where="'here'", **options)


def oracle(X, Y, fit=None, test=None):
    """By least squares on the rows themselves."""
    fit = slice(None) if fit is None else fit
    test = fit if test is None else test
    A = np.c_[X, np.ones(len(X))]
    beta = np.linalg.lstsq(A[fit], Y[fit], rcond=None)[0]
    error, spread = Y[test] - A[test] @ beta, Y[test] - Y[fit].mean(0)
    return (error**2).sum(), (spread**2).sum()


@pytest.mark.parametrize("value", [3.0, 7.0, 29.0, 30.0, 41.0, 0.1])
@pytest.mark.parametrize("g", [1, 8])
def test_a_target_that_never_changes_is_told_whatever_the_rounding(value, g):
    X = np.random.default_rng(0).normal(size=(400, 5))
    with pytest.raises(FeatureError, match="the same for every token"):
        residual(X, np.full((400, 1), value), np.arange(400) % g)


def test_a_target_that_changes_in_one_group_alone_has_nothing_held_out():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(400, 5)), np.full((400, 1), 30.0)
    Y[::4] += rng.normal(size=(100, 1))
    found = residual(X, Y, np.arange(400) % 4)["y"]
    assert 0 < found.in_sample < 1
    assert (found.held_out, found.left_out) == (None, None)


@pytest.mark.parametrize("d", [1, 6, 255, 256, 257, 300])  # from 253 on by strips
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_are_the_products_of_the_rows(d, dtype):
    X, Y = np.random.default_rng(d).normal(size=(2, 400, d))
    X = X + 3
    own, _ = moments(torch.as_tensor(X, dtype=dtype), torch.as_tensor(Y[:, :1]), np.arange(400) % 2)
    near = {"rtol": 1e-12, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-6, "atol": 2e-3}
    for k, squares in enumerate(own.squares()):
        np.testing.assert_allclose(squares, X[k::2].T @ X[k::2], **near)
        np.testing.assert_allclose(own.cross[k], X[k::2].T @ np.c_[Y[k::2, 0], np.ones(200)], **near)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 7)) * 10.0 ** rng.uniform(-2, 2, 7) + rng.normal(size=7) * 5
    Y = np.c_[X @ rng.normal(size=(7, 3)) * 0.3 + rng.normal(size=(600, 3))]
    return X, Y, np.arange(600) * 4 // 600


def test_in_sample_held_out_and_left_out_equal_least_squares_on_the_rows(data):
    X, Y, groups = data
    found = residual(X, Y, groups, columns={"y": slice(0, 1), "all": slice(0, 3)})
    for name, columns in (("y", slice(0, 1)), ("all", slice(0, 3))):
        y, r = Y[:, columns], found[name]
        error, spread = oracle(X, y)
        assert r.in_sample == pytest.approx(error / spread, rel=1e-10)
        assert r.adjusted == pytest.approx(error / spread * 599 / 592, rel=1e-10)
        parts = [oracle(X, y, groups != k, groups == k) for k in range(4)]
        assert r.held_out == pytest.approx(sum(e for e, _ in parts) / sum(s for _, s in parts), rel=1e-10)
        for k in range(4):
            error, spread = oracle(X, y, groups != k)
            assert r.left_out[k] == pytest.approx(error / spread, rel=1e-10)
            others = [part for j, part in enumerate(parts) if j != k]
            assert r.held_out_left_out[k] == pytest.approx(
                sum(e for e, _ in others) / sum(s for _, s in others), rel=1e-10
            )


def test_closed_forms():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 3))
    assert residual(X, X[:, :1] * 2 - 5)["y"].in_sample == pytest.approx(0, abs=1e-12)
    Q, _ = np.linalg.qr(np.c_[np.ones(50), X, rng.normal(size=50)])
    assert residual(Q[:, 1:4], Q[:, 4:])["y"].in_sample == pytest.approx(1, abs=1e-12)  # orthogonal: nothing explained
    mixed = Q[:, 1:2] + 2 * Q[:, 4:]
    assert residual(Q[:, 1:4], mixed)["y"].in_sample == pytest.approx(0.8, abs=1e-12)


def test_invariant_under_affine_maps_of_features_and_target(data):
    X, Y, groups = data
    rng = np.random.default_rng(2)
    moved = X @ rng.normal(size=(7, 7)) + rng.normal(size=7)
    a, b = residual(X, Y[:, :1], groups)["y"], residual(moved, 3 * Y[:, :1] + 8, groups)["y"]
    assert b.in_sample == pytest.approx(a.in_sample, rel=1e-8)
    assert b.held_out == pytest.approx(a.held_out, rel=1e-8)


def test_dead_copied_and_summing_features_change_nothing(data):
    X, Y, groups = data
    X = (X - X.mean(0)) / X.std(0)
    plain = residual(X, Y[:, :1], groups)["y"]
    dead = residual(np.c_[X, np.zeros(600)], Y[:, :1], groups)["y"]
    copied = residual(np.c_[X, X[:, 0] + X[:, 1]], Y[:, :1], groups)["y"]
    for other in (dead, copied):
        assert other.rank == 7
        assert other.in_sample == pytest.approx(plain.in_sample, rel=1e-9)
        assert other.held_out == pytest.approx(plain.held_out, rel=1e-9)
    rows = X - X.mean(1, keepdims=True)  # as after LayerNorm
    full, short = residual(rows, Y[:, :1], groups)["y"], residual(rows, Y[:, :1], groups, null_direction=True)["y"]
    assert full.rank == short.rank == 6
    assert short.in_sample == pytest.approx(full.in_sample, rel=1e-9)
    assert short.held_out == pytest.approx(full.held_out, rel=1e-9)


def test_groups_do_not_change_the_value_in_sample_and_one_group_has_no_held_out_value(data):
    X, Y, groups = data
    one, four = residual(X, Y[:, :1])["y"], residual(X, Y[:, :1], groups)["y"]
    assert one.in_sample == pytest.approx(four.in_sample, rel=1e-12)
    assert (one.held_out, one.left_out, one.log_error) == (None, None, None)


def test_standard_errors_tell_the_spread_over_samples():
    rng = np.random.default_rng(3)
    logs, errors, held_errors, helds = [], [], [], []
    for _ in range(200):
        X = rng.normal(size=(400, 3))
        y = X @ np.array([[1.0], [0.5], [0.0]]) + rng.normal(size=(400, 1))
        r = residual(X, y, np.arange(400) * 8 // 400)["y"]
        logs.append(np.log(r.in_sample))
        helds.append(np.log(r.held_out))
        errors.append(r.log_error)
        held_errors.append(r.held_out_log_error)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(logs), rel=0.2)
    assert np.sqrt(np.mean(np.square(held_errors))) == pytest.approx(np.std(helds), rel=0.2)


def test_a_constant_target_and_broken_features_are_told(data):
    X, _, _ = data
    with pytest.raises(FeatureError, match="'here': the target 'y' is the same for every token"):
        residual(X, np.ones((600, 1)))
    broken = X.copy()
    broken[3, 2] = np.nan
    with pytest.raises(FeatureError, match="'here': expected finite features"):
        residual(broken, X[:, :1])


def test_float32_products_are_as_good_as_float64_for_correlated_features_with_an_offset():
    rng = np.random.default_rng(4)
    base = rng.normal(size=(20000, 40)) @ rng.normal(size=(40, 40)) + 30 * rng.normal(size=40)
    X = base / np.sqrt((base**2).mean(1, keepdims=True))
    y = X[:, :1] + 0.3 * rng.normal(size=(20000, 1))
    exact, rounded = residual(X, y)["y"].in_sample, residual(X.astype(np.float32), y.astype(np.float32))["y"].in_sample
    assert rounded == pytest.approx(exact, rel=2e-7)


def test_products_of_half_precision_are_added_in_float32():
    X = torch.ones(5000, 2, dtype=torch.float16)
    assert gram(X).tolist() == [[5000.0, 5000.0]] * 2
