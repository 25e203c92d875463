"""Numbers of a site in slices of its features are those of all features at once."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import oracle
from layerlaw.stats import slices
from layerlaw.stats.centers import find_centers
from layerlaw.stats.passes import Dealt
from layerlaw.stats.scatter import Frame, Scatter, project
from layerlaw.stats.slices import Added, Slice, Sliced, SlicedSite, Views
from layerlaw.stats.sums import ClassSums

K = 6


def clouds(n: int = 240, d: int = 50, apart: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % K
    y[: n // 8] = 0  # unequal classes
    means = apart * torch.randn(K, d, generator=generator, dtype=torch.float64)
    return means[y] + torch.randn(n, d, generator=generator, dtype=torch.float64), y


def in_slices(
    x: Tensor, y: Tensor, widths: list[int], *, batch: int = 64, exact: bool = False
) -> tuple[Sliced, SlicedSite]:
    """What a probe does, of features at hand."""
    views, edges = Views(), [0, *torch.tensor(widths).cumsum(0).tolist()]
    site = SlicedSite(x.shape[1], K, views, "samples", None)
    site.dtype = x.dtype
    counts = torch.bincount(y, minlength=K).double().unsqueeze(0)
    for number, (start, stop) in enumerate(pairwise(edges)):
        part = Slice(start, stop)
        for some in torch.arange(len(y)).split(batch):
            part.add(x[some], Added(views.rows(Dealt(y[some]), K)), 1, K)
        if number == 0:
            site.begin(counts, len(y), x.device)
        site.center(part)
        for some in torch.arange(len(y)).split(batch):
            site.add(part, x[some], y[some], slice(int(some[0]), int(some[-1]) + 1))
        if exact or site.triangle is not None:
            site.fold(part)
    return site.finish(Dealt(y), None), site


def whole(x: Tensor, y: Tensor) -> Scatter:
    centers = find_centers(ClassSums.of(x, y, K))
    return Scatter.of(*project(x, y, Frame.of(centers)), y, centers)


def D(found: Scatter) -> float:
    return float(found.fuzziness.sum() / found.counts.sum())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("widths", [[50], [17, 17, 16], [1, 4, 45], [5] * 10])
def test_slices_equal_all_features_at_once(widths: list[int], exact: bool) -> None:
    x, y = clouds()
    found, _ = in_slices(x, y, widths, exact=exact)
    assert found.scatter is not None
    expected = whole(x, y)
    torch.testing.assert_close(found.scatter.fuzziness, expected.fuzziness, rtol=1e-11, atol=0)
    torch.testing.assert_close(found.scatter.fuzziness_equal, expected.fuzziness_equal, rtol=1e-11, atol=0)
    torch.testing.assert_close(found.scatter.lengths, expected.lengths, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.scatter.fourth, expected.fourth, rtol=1e-12, atol=0)
    assert torch.equal(found.scatter.near.sums, expected.near.sums)
    assert found.moved() is None


def test_both_ways_to_the_directions_and_their_other_signs_give_the_same_coordinates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ranks add up: each may find the other sign on its device."""
    x, y = clouds()
    expected = in_slices(x, y, [30, 20])[0].around.centers.coordinates
    exact = in_slices(x, y, [30, 20], exact=True)[0].around.centers.coordinates
    plainly = slices.right_singular
    monkeypatch.setattr(slices, "right_singular", lambda A: (plainly(A)[0], -plainly(A)[1]))
    other = in_slices(x, y, [30, 20], exact=True)[0].around.centers.coordinates
    for found in (exact, other):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_sums_by_products_are_those_added_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    x, y = clouds()
    rows, _ = in_slices(x, y, [17, 33])
    monkeypatch.setattr(slices, "_row_by_row", lambda device: False)
    products, _ = in_slices(x, y, [17, 33])
    assert rows.scatter is not None
    assert products.scatter is not None
    torch.testing.assert_close(products.scatter.sums, rows.scatter.sums, rtol=1e-10, atol=1e-10)


def test_class_means_keep_their_lengths_and_angles() -> None:
    x, y = clouds()
    found, _ = in_slices(x + 3, y, [25, 25])
    means = find_centers(ClassSums.of(x + 3, y, K)).means
    mine = found.around.centers.means
    assert mine.shape == (K, K)
    torch.testing.assert_close(mine @ mine.T, means @ means.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("offset", "spread", "exact"), [(0.0, 1.0, False), (1e3, 1.0, False), (1e3, 1e-2, True)])
def test_precision_beside_an_offset_in_float32(offset: float, spread: float, exact: bool) -> None:
    x, y = clouds(apart=1.0)
    centers = torch.stack([x[y == k].mean(0) for k in range(K)])
    x = (centers[y] + spread * (x - centers[y]) + offset).float()
    found, _ = in_slices(x, y, [20, 30], exact=exact)
    assert found.scatter is not None
    assert D(found.scatter) == pytest.approx(oracle.separation(x.double(), y, K), rel=1e-6)


@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 1e-5), (torch.float32, 2e-3)])
def test_small_scales_ask_for_a_triangular_factor(dtype: torch.dtype, least: float) -> None:
    x, y, well_scaled = uneven(least)
    x = x.to(dtype)
    _, rough = in_slices(x, y, [13, 13, 14])
    assert rough.short_of_digits
    found, site = in_slices(x, y, [13, 13, 14], exact=True)
    assert not site.short_of_digits
    assert found.scatter is not None
    assert int(found.around.centers.rank) == K - 1
    assert found.around.doubt(found.scatter) is None
    assert D(found.scatter) == pytest.approx(
        oracle.separation(well_scaled, y, K), rel=1e-6 if dtype.itemsize > 4 else 1e-4
    )


def test_float64_directions_that_products_lose_have_no_D() -> None:
    x, y, _ = uneven(1e-7)
    found, _ = in_slices(x, y, [13, 13, 14], exact=True)
    assert found.scatter is not None
    assert "products with them lose the digits" in str(found.around.doubt(found.scatter))


def test_classes_with_one_mean_are_no_direction() -> None:
    x, y = clouds()
    x[y == 1] = torch.cat([x[y == 0], x[y == 0]])[: int((y == 1).sum())]
    x[y == 1] += x[y == 0].mean(0) - x[y == 1].mean(0)
    found, _ = in_slices(x, y, [25, 25], exact=True)
    assert found.scatter is not None
    assert int(found.around.centers.rank) == K - 2
    expected = whole(x, y)
    torch.testing.assert_close(found.scatter.fuzziness, expected.fuzziness, rtol=1e-10, atol=0)


def uneven(least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Features whose class means and residuals have scales from 1 to `least`, and the same with scales of 1."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(300) % K
    turned = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64))[0]
    scales = torch.logspace(0, torch.tensor(least).log10(), K - 1, dtype=torch.float64)
    places = torch.randn(K, K - 1, generator=generator, dtype=torch.float64) * scales
    noise = torch.randn(300, K - 1, generator=generator, dtype=torch.float64) * scales
    z = places[y] + noise  # in K−1 dimensions D does not change with their scales
    return z @ turned[: K - 1], y, z / scales


def test_well_conditioned_means_need_no_triangular_factor() -> None:
    _, site = in_slices(*clouds(), [25, 25])
    assert not site.short_of_digits


def test_float32_directions_that_may_be_rounding_have_no_D() -> None:
    x, y = clouds()
    x[:, 0] *= 1e7  # beside it the differences of the others are of the size of its rounding
    found, _ = in_slices(x.float(), y, [25, 25], exact=True)
    assert found.scatter is not None
    doubt = found.around.doubt(found.scatter)
    assert doubt is not None
    assert "memory_gib that holds the site whole" in str(doubt)
