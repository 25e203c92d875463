"""D_reg of features at hand: oracle, closed forms, invariances, precision, bad input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layerlaw as ll
import oracle
from layerlaw.errors import FeatureError, LabelError
from layerlaw.measures import target_separation


def draw(n: int = 200, d: int = 12, q: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(seed)
    y = torch.randn(n, q, generator=g, dtype=dtype)
    x = y @ torch.randn(q, d, generator=g, dtype=dtype) + torch.randn(n, d, generator=g, dtype=dtype)
    return x, y


@pytest.mark.parametrize(("n", "d", "q"), [(200, 12, 3), (50, 4, 1), (60, 200, 5), (40, 2, 6), (500, 30, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_what_the_definition_says(n: int, d: int, q: int, dtype: torch.dtype) -> None:
    x, y = draw(n, d, q, dtype=dtype)
    assert float(target_separation(x, y)) == pytest.approx(oracle.target_separation(x, y), rel=1e-9)


def test_of_one_target_it_follows_from_correlations() -> None:
    """SS_b = aaᵀ with a = cov(x, y)/σ_y, so D_reg = aᵀ SS_T a / ‖a‖⁴ − 1."""
    x, y = draw(q=1)
    X, Y = x - x.mean(0), y[:, 0] - y[:, 0].mean()
    a = X.mT @ Y / len(x) / Y.std(correction=0)
    expected = float((X @ a).square().mean() / a.dot(a) ** 2 - 1)
    assert float(target_separation(x, y)) == pytest.approx(expected, rel=1e-12)


def test_of_one_target_and_whitened_features_it_is_the_residual_over_what_is_explained() -> None:
    x, y = draw(q=1)
    X = x - x.mean(0)
    values, vectors = torch.linalg.eigh(X.mT @ X / len(x))
    white = X @ vectors / values.sqrt()
    A = np.c_[oracle.as_array(x), np.ones(len(x))]
    error = oracle.as_array(y) - A @ np.linalg.lstsq(A, oracle.as_array(y), rcond=None)[0]
    residual = (error**2).mean() / oracle.as_array(y).var()
    assert float(target_separation(white, y)) == pytest.approx(residual / (1 - residual), rel=1e-10)


def test_features_that_are_the_targets_leave_nothing() -> None:
    _, y = draw()
    assert float(target_separation(y @ torch.randn(3, 8, dtype=torch.float64) + 5, y)) == pytest.approx(0, abs=1e-24)


@pytest.mark.parametrize("counts", [[30, 20, 10], [25, 25], [5, 60, 7, 8, 20]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_one_hot_targets_it_is_the_separation_of_classes(counts: list[int], dtype: torch.dtype) -> None:
    x, y = oracle.blobs(counts, 7)
    x = x.to(dtype)
    hot = torch.nn.functional.one_hot(y)
    expected = float(ll.separation_fuzziness(x, y))
    for targets in (hot, hot.double(), hot[:, 1:].float(), hot == 1):  # one column is as good as told by the others
        if targets.shape[1] > 1 or targets.dtype.is_floating_point:
            assert float(target_separation(x, targets)) == pytest.approx(
                expected, rel=1e-12 if dtype == torch.float64 else 1e-6
            )


CORE = settings(deadline=None, derandomize=True, max_examples=25)


@CORE
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_it_depends_on_the_space_of_the_targets_alone(seed: int, scale: float, shift: float) -> None:
    x, y = draw(seed=seed)
    g = torch.Generator().manual_seed(seed)
    M = torch.randn(3, 3, generator=g, dtype=torch.float64) + 3 * torch.eye(3, dtype=torch.float64)
    assert float(target_separation(x, scale * (y @ M) + shift)) == pytest.approx(
        float(target_separation(x, y)), rel=1e-6
    )


@CORE
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_rotations_scales_and_shifts_of_the_features_change_nothing(seed: int, scale: float, shift: float) -> None:
    x, y = draw(seed=seed)
    Q, _ = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    changed = float(target_separation((scale * x @ Q + shift)[order], y[order]))
    assert changed == pytest.approx(float(target_separation(x, y)), rel=1e-6)


def test_collinear_targets_add_nothing() -> None:
    x, y = draw()
    more = torch.cat([y, y[:, :1] - 2 * y[:, 1:2], torch.full((len(y), 1), 7.0, dtype=torch.float64)], 1)
    assert float(target_separation(x, more)) == pytest.approx(float(target_separation(x, y)), rel=1e-9)


@pytest.mark.parametrize("apart", [1e-3, 1e-5, 3e-6])
def test_targets_that_are_nearly_collinear_span_as_much_as_their_difference(apart: float) -> None:
    x, y = draw(q=2)
    alike = torch.stack([y[:, 0], y[:, 0] + apart * y[:, 1]], 1)
    assert float(target_separation(x, alike)) == pytest.approx(float(target_separation(x, y)), rel=1e-8)
    more = torch.cat([alike, torch.full((len(y), 1), 7.0, dtype=torch.float64)], 1)  # one that does not vary
    assert float(target_separation(x, more)) == pytest.approx(float(target_separation(x, y)), rel=1e-8)


def test_targets_within_a_millionth_of_each_other_are_taken_for_one() -> None:
    x, y = draw(q=2)
    alike = torch.stack([y[:, 0], y[:, 0] + 1e-7 * y[:, 1]], 1)
    assert float(target_separation(x, alike)) == pytest.approx(float(target_separation(x, y[:, 0])), rel=1e-5)


def test_targets_far_from_zero_keep_their_digits() -> None:
    x, y = draw(q=1)
    times = (y * 3600).round() + 1.7e9  # seconds since 1970
    assert float(target_separation(x, times)) == pytest.approx(oracle.target_separation(x, times - 1.7e9), rel=1e-7)


def test_precision_with_an_offset_and_a_small_spread_in_float32() -> None:
    g = torch.Generator().manual_seed(3)
    y = torch.randn(300, 2, generator=g, dtype=torch.float64)
    x = y @ torch.randn(2, 20, generator=g, dtype=torch.float64)
    near = (x + 1e-5 * torch.randn(300, 20, generator=g, dtype=torch.float64)).float()
    assert float(target_separation(near, y)) == pytest.approx(oracle.target_separation(near, y), rel=1e-6)
    far = (x + torch.randn(300, 20, generator=g, dtype=torch.float64) + 1e3).float()
    assert float(target_separation(far, y)) == pytest.approx(oracle.target_separation(far, y), rel=1e-6)


def test_bad_input_is_answered() -> None:
    x, y = draw(30)
    with pytest.raises(LabelError, match="expected targets that differ between samples, got the same everywhere"):
        target_separation(x, torch.full((30, 2), 0.1))
    with pytest.raises(LabelError, match="expected more samples than targets, got 5 samples for 4 targets"):
        target_separation(x[:5], torch.randn(5, 4))
    bad = y.clone()
    bad[3, 1] = bad[7, 0] = torch.nan
    with pytest.raises(LabelError, match=r"expected finite targets, got nan in target 1 of sample 3 \(2 of 30"):
        target_separation(x, bad)
    with pytest.raises(LabelError, match="expected one row for each of the 30 rows of features, got 29"):
        target_separation(x, y[1:])
    with pytest.raises(LabelError, match=r"expected floating-point numbers of shape \(n,\) or \(n, q\)"):
        target_separation(x, torch.arange(30))
    with pytest.raises(FeatureError, match=r"expected floating-point numbers of shape \(n, d\)"):
        target_separation(x.long(), y)
    with pytest.raises(FeatureError, match="expected finite features, got NaN or infinity"):
        target_separation(x * torch.nan, y)
    with pytest.raises(FeatureError, match="D_reg is not defined"):
        target_separation(torch.ones(30, 4), y)
