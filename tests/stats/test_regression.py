"""The two passes over features and targets: streamed = merged = at once, groups, permuted targets, changed data."""

import pytest
import torch

import oracle
from layerlaw.errors import PassError
from layerlaw.measures.columns import target_columns
from layerlaw.stats.design import TargetDealer
from layerlaw.stats.regression import FirstRegression, SecondRegression

G, P = 5, 3


def draw(n=240, d=7, q=2, dtype=torch.float64):
    g = torch.Generator().manual_seed(1)
    y = torch.randn(n, q, generator=g, dtype=torch.float64) + 50
    x = y @ torch.randn(q, d, generator=g, dtype=torch.float64) + torch.randn(n, d, generator=g, dtype=torch.float64)
    return x.to(dtype), y


def passed(x, y, cuts, *, known=True, again=None, moments=("a",)):
    """Both passes over two sites of one network, cut into batches."""
    dealer = TargetDealer(G, groups=G, permuted=P, seed=0, all_labels=y if known else None)
    first = FirstRegression(y.shape[1], G, jackknife=True, moments=moments)
    batches = list(zip(x.split(cuts), y.split(cuts), strict=True))
    for features, targets in batches:
        first.begin(dealer.deal(targets))
        first.update("a", features)
        first.update("b", features[:, :3])
        first.end(lambda _: "batch")
    first.all_reduce()
    second = SecondRegression(first)
    dealer.restart()
    for features, targets in again or batches:
        second.begin(dealer.deal(targets), targets + 1)
        second.update("a", features)
        second.update("b", features[:, :3])
        second.end()
    second.all_reduce()
    return dict(second.sites()), second, dealer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cuts", [240, 7, [1, 100, 39, 100]])
def test_batches_add_up_to_the_whole(cuts, dtype) -> None:
    x, y = draw(dtype=dtype)
    found, _, _ = passed(x, y, cuts)
    assert float(found["a"].separation) == pytest.approx(oracle.target_separation(x, y), rel=1e-9)
    assert float(found["b"].separation) == pytest.approx(oracle.target_separation(x[:, :3], y), rel=1e-9)


@pytest.mark.parametrize("cuts", [240, 31])
def test_without_a_group_it_is_that_of_the_other_samples(cuts) -> None:
    x, y = draw()
    found, _, _ = passed(x, y, cuts)
    groups = TargetDealer(G, groups=G, permuted=0, seed=0, all_labels=None).deal(y).groups
    assert groups.bincount().tolist() == pytest.approx([48] * G, abs=2)
    expected = [oracle.target_separation(x[groups != k], y[groups != k]) for k in range(G)]
    assert found["a"].left_out.tolist() == pytest.approx(expected, rel=1e-9)


def test_permuted_targets_are_those_of_permuted_rows() -> None:
    x, y = draw()
    found, _, dealer = passed(x, y, 60)
    dealer.restart()
    permuted = dealer.deal(y).permuted  # (P, q, n)
    assert [sorted(row[0].tolist()) for row in permuted] == [sorted(y[:, 0].tolist())] * P
    expected = [oracle.target_separation(x, rows.T) for rows in permuted]
    assert found["a"].permuted.tolist() == pytest.approx(expected, rel=1e-9)
    assert min(expected) > 10 * float(found["a"].separation)


def test_of_a_stream_noise_takes_the_place_of_permuted_targets() -> None:
    x, y = draw(2000)
    known, unknown = (passed(x, y, 250, known=known)[0]["a"].permuted.log().mean() for known in (True, False))
    assert float(unknown) == pytest.approx(float(known), abs=0.7)  # of three draws each
    assert float(unknown) > float(passed(x, y, 250)[0]["a"].separation.log()) + 2


def test_residuals_are_those_of_least_squares_on_the_rows() -> None:
    import numpy as np

    x, y = draw()
    scaled = y * torch.tensor([1.0, 1000.0], dtype=torch.float64)  # units do not matter: each target counts the same
    values, single = target_columns(passed(x, scaled, 31)[0]["a"], "'a'")
    groups = TargetDealer(G, groups=G, permuted=0, seed=0, all_labels=None).deal(y).groups.numpy()
    A, Y = np.c_[x.numpy(), np.ones(len(x))], y.numpy()

    def left(fit, test):
        beta = np.linalg.lstsq(A[fit], Y[fit], rcond=None)[0]
        return ((Y[test] - A[test] @ beta) ** 2).sum(0), ((Y[test] - Y[fit].mean(0)) ** 2).sum(0)

    error, spread = left(slice(None), slice(None))
    assert single["residual"] == pytest.approx((error / spread).tolist(), rel=1e-8)
    assert values["residual"] == pytest.approx((error / spread).mean(), rel=1e-8)
    pairs = [left(groups != k, groups == k) for k in range(G)]
    errors, spreads = (sum(pair[i] for pair in pairs) for i in (0, 1))
    assert single["residual_held_out"] == pytest.approx((errors / spreads).tolist(), rel=1e-8)
    assert values["residual_held_out"] == pytest.approx((errors / spreads).mean(), rel=1e-2)
    assert values["residual_held_out"] > values["residual"]


def test_data_that_changed_between_the_passes_are_told() -> None:
    x, y = draw()
    with pytest.raises(PassError, match="240 samples in pass 1, 200 in pass 2"):
        passed(x, y, 40, again=[(x[:200], y[:200])])
    with pytest.raises(PassError, match="the targets are not the same"):
        passed(x, y, 40, again=[(x, y + 1)])
    with pytest.raises(PassError, match=r"site 'a': the data changed.*the features moved"):
        passed(x, y, 40, again=[(x + 0.1 * y[:, :1], y)])


def test_rounding_along_a_direction_that_hardly_follows_the_targets_is_no_change() -> None:
    g = torch.Generator().manual_seed(2)
    y = torch.randn(300, 2, generator=g, dtype=torch.float64)
    hidden = y * torch.tensor([1.0, 1e-5]) + torch.randn(300, 2, generator=g) * torch.tensor([1.0, 1e-5])
    x = (hidden @ torch.randn(2, 7, generator=g, dtype=torch.float64)).float()
    wobble = x * (1 + 1e-7 * torch.randn(x.shape, generator=g))
    assert passed(x, y, 300, again=[(wobble, y)])
    other = x.clone()
    other[7] = -x[7]
    with pytest.raises(PassError, match="the features moved against the targets"):
        passed(x, y, 300, again=[(other, y)])


def test_r_squared_of_the_output_is_a_mean_over_targets() -> None:
    x, y = draw()
    _, second, _ = passed(x, y, 50)  # the output is the target + 1
    assert second.r_squared == pytest.approx(float((1 - 1 / y.var(0, correction=0)).mean()), rel=1e-9)
    assert second.label_accuracy is None


def test_a_site_without_moments_has_no_residual() -> None:
    x, y = draw()
    values, single = target_columns(passed(x, y, 50)[0]["b"], "'b'")
    assert "residual" not in values
    assert single == {}
    wide = torch.randn(240, 230, dtype=torch.float64)  # 192 samples without a group are too few
    assert "residual" not in target_columns(passed(wide, y, 50)[0]["a"], "'a'")[0]
