"""D_lin, the least D of a linear map: oracle, closed form, invariance, a search for a better map, streamed = merged."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import layerlaw as ll
import oracle
from layerlaw.errors import FeatureError
from layerlaw.experiments.separation.linearized import linear_floor
from layerlaw.measures import linear_separation, measure
from layerlaw.stats import ClassSums, find_centers
from layerlaw.stats.scatter import WithinScatter

FLOAT32 = 1e-5  # relative: forwards of other batches and processors round otherwise


def d_lin(x, y, **how) -> float:
    return float(measure(x, y, linear=True, **how)["separation_linear"])


def map_of_condition(d: int, condition: float, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    U, V = (torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=g))[0] for _ in range(2))
    return U @ torch.diag(torch.logspace(0, -np.log10(condition), d, dtype=torch.float64)) @ V


@pytest.mark.parametrize("counts", [[40, 40, 40, 40], [90, 40, 15, 9], [60, 50]])
@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_it_agrees_with_the_oracle(counts: list[int], weighting: str) -> None:
    x, y = oracle.blobs(counts, 8, seed=2, offset=3.0)
    expected = oracle.linear_separation(x, y, len(counts), weighting=weighting)
    assert d_lin(x, y, weighting=weighting) == pytest.approx(expected, rel=1e-9)
    assert d_lin(x.float(), y, weighting=weighting) == pytest.approx(expected, rel=1e-5)


def test_fewer_features_than_classes_agree_with_the_oracle() -> None:
    x, y = oracle.blobs([30, 20, 25, 30, 22], 3, seed=1)
    assert d_lin(x, y) == pytest.approx(oracle.linear_separation(x, y, 5), rel=1e-9)


def test_it_agrees_with_the_floor_of_the_linearized_networks() -> None:
    x, y = oracle.blobs([50, 40, 60], 12, seed=5)
    assert d_lin(x, y) == pytest.approx(linear_floor(x, y), rel=1e-9)


def test_closed_form_of_two_classes() -> None:
    """Means ±m, within-class covariance diag(v): λ = Σ m_j²/v_j, so that D_lin = 1/λ; D itself is Σ v_j m_j² / (Σ m_j²)²."""
    m, v = np.array([1.0, 0.5]), np.array([4.0, 0.25])
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]) * np.sqrt(v)
    x, y = np.concatenate([corners + m, corners - m]), np.repeat([0, 1], 4)
    found = measure(x, y, linear=True)
    assert float(found["separation_linear"]) == pytest.approx(1 / (m**2 / v).sum(), rel=1e-12)
    assert float(found["separation"]) == pytest.approx((v * m**2).sum() / (m**2).sum() ** 2, rel=1e-12)


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
def test_no_invertible_linear_map_and_no_offset_changes_it(condition: float) -> None:
    x, y = oracle.blobs([60, 50, 40, 30], 12, seed=1)
    W, before = map_of_condition(12, condition), d_lin(x, y)
    assert d_lin(x @ W + 7.0, y) == pytest.approx(before, rel=1e-8)
    if condition <= 1e2:
        assert d_lin(x.float() @ W.float(), y) == pytest.approx(before, rel=1e-4)
    if condition > 1:  # D itself changes
        assert float(measure(x @ W, y)["separation"]) > 1.1 * float(measure(x, y)["separation"])


def test_features_in_units_that_differ_by_a_million_do_not_change_it() -> None:
    x, y = oracle.blobs([60, 50, 40], 6, seed=1)
    units = torch.tensor([1e-6, 1.0, 1e6, 1e-3, 1e3, 1.0], dtype=torch.float64)
    assert d_lin(x * units, y) == pytest.approx(d_lin(x, y), rel=1e-9)
    assert d_lin((x * units).float(), y) == pytest.approx(d_lin(x, y), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_more_features_that_say_nothing_new_do_not_change_it(dtype: torch.dtype) -> None:
    x, y = oracle.blobs([60, 50, 40], 6, seed=1)
    wide = (x.to(dtype) @ torch.randn(6, 40, dtype=dtype, generator=torch.Generator().manual_seed(0))).to(dtype)
    dead = torch.cat([wide, torch.zeros(150, 3, dtype=dtype), torch.full((150, 2), 5.0, dtype=dtype)], 1)
    for more in (wide, dead, wide + 100):
        assert d_lin(more, y) == pytest.approx(d_lin(x, y), rel=1e-4)


def test_no_map_that_a_search_finds_goes_below_it() -> None:
    x, y = oracle.blobs([40, 30, 30], 5, seed=3)
    floor, best = d_lin(x, y), np.inf
    W = torch.eye(5, dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.Adam([W], lr=0.05)
    hot = torch.nn.functional.one_hot(y).double()
    for _ in range(400):
        z = x @ W
        means = (hot.T @ z) / hot.sum(0).unsqueeze(1)
        B = (means - z.mean(0)) * (hot.mean(0).sqrt()).unsqueeze(1)
        within = (z - means[y]).T @ (z - means[y]) / len(y)
        loss = torch.trace(within @ torch.linalg.pinv(B.T @ B, rtol=1e-10, hermitian=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = min(best, float(loss.detach()))
    assert floor * (1 - 1e-9) <= best <= 1.01 * floor


def test_near_collapse_it_keeps_its_digits() -> None:
    x, y = oracle.blobs([40, 40, 40], 6, seed=4)
    for spread in (1e-2, 1e-4, 1e-6):
        means = torch.stack([x[y == k].mean(0) for k in range(3)])[y]
        found = d_lin(means + spread * (x - means), y)
        assert found == pytest.approx(spread**2 * d_lin(x, y), rel=1e-6)


def test_a_direction_that_tells_classes_apart_without_error_gives_zero() -> None:
    x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [10.0, 5.0], [12.0, 5.0]], dtype=torch.float64)
    assert d_lin(x, torch.tensor([0, 0, 1, 1])) == pytest.approx(0.0, abs=1e-12)


def test_leading_dimensions_equal_a_loop() -> None:
    parts = [oracle.blobs([30, 20, 25], 6, seed=i) for i in range(3)]
    x, y = torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])
    found = measure(x, y, linear=True)["separation_linear"]
    for i in range(3):
        assert float(found[i]) == pytest.approx(d_lin(x[i], y[i]), rel=1e-10)


def test_streamed_is_merged_is_at_hand() -> None:
    x, y = oracle.blobs([700, 500, 300], 9, seed=6, offset=100.0)
    x = x.float()
    centers = find_centers(ClassSums.of(x, y, 3))
    whole, *parts = (WithinScatter.start(centers) for _ in range(4))
    whole.update(x, y)
    for part, rows in zip(parts, (slice(0, 7), slice(7, 1200), slice(1200, None)), strict=True):
        part.update(x[rows], y[rows])
    for part in parts[1:]:
        parts[0].add(part)
    torch.testing.assert_close(parts[0].matrix(), whole.matrix(), rtol=1e-12, atol=1e-15)
    expected, _ = oracle.scatters(x.double().numpy(), y.numpy(), 3)
    np.testing.assert_allclose(whole.matrix().numpy(), expected, rtol=1e-10, atol=1e-13)
    assert float(linear_separation(centers, parts[0].matrix())) == pytest.approx(d_lin(x, y), rel=1e-10)


def test_too_few_samples_are_answered() -> None:
    x, y = oracle.blobs([5, 6, 4], 13)
    with pytest.raises(FeatureError, match="linear: expected at least d \\+ K = 16 samples of 13 features, got 15"):
        measure(x, y, linear=True)
    assert "separation_linear" not in measure(x, y)


def network(*widths: int) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [m for a, b in pairwise(widths) for m in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers[:-1])


def test_a_probe_gives_the_column_in_one_pass_or_in_many_batches() -> None:
    x, y = oracle.blobs([60, 50, 40], 7, seed=8)
    net, x = network(7, 8, 6, 3), x.float()
    record = ll.probe(net, (x, y), test=(x[:100], y[:100]), linear=True, progress=False)
    features = [x, net[:2](x), net[:4](x)]
    expected = [d_lin(f, y) for f in features]
    assert record.column("separation_linear") == pytest.approx(expected, rel=FLOAT32)
    assert record.column("test_separation_linear") == pytest.approx(
        [d_lin(f[:100], y[:100]) for f in features], rel=FLOAT32
    )
    streamed = ll.probe(net, (x, y), linear=True, batch_size=11, memory_gib=1.2e-5, uncertainty=False, progress=False)
    assert not streamed.settings["one_forward"]
    known = {site.name: v for site, v in zip(streamed.sites, streamed.column("separation_linear"), strict=True) if v}
    assert known
    for name, value in known.items():
        assert value == pytest.approx(expected[[s.name for s in record.sites].index(name)], rel=FLOAT32)
    assert record.law("separation_linear").quantity == "D_lin"
    assert "separation_linear" not in ll.probe(net, (x, y), progress=False).columns


def test_a_probe_says_where_it_cannot_be_measured() -> None:
    x, y = oracle.blobs([20, 20, 20], 100, seed=8)
    record = ll.probe(network(100, 8, 6, 3), (x.float(), y), linear=True, progress=False)
    assert [value is None for value in record.column("separation_linear")] == [True, False, False]
    assert "No least D of a linear map at '0': needs at least d + K samples, there are 60." in record.notes


def test_wide_sites_are_left_out_and_named() -> None:
    x = torch.randn(2200, 2100, generator=torch.Generator().manual_seed(0))
    y = torch.arange(2200) % 2
    record = ll.probe(network(2100, 4, 2), (x, y), linear=True, uncertainty=False, progress=False)
    assert "No least D of a linear map at '0': has more than 2,048 features." in record.notes
    tight = ll.probe(
        network(300, 4, 2), (x[:, :300], y), linear=True, uncertainty=False, memory_gib=1e-3, progress=False
    )
    assert any("more than a quarter of memory_gib" in note for note in tight.notes)
