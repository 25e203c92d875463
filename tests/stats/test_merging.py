"""Streamed = merged = at once: every statistic from shuffled parts."""

import copy

import numpy as np
import pytest
import torch
from statistics_parts import feed, group_sums, scatter_of, started

import oracle
from layerlaw.errors import PassError
from layerlaw.measures import equal_separation, separation
from layerlaw.measures.variability import class_variances
from layerlaw.stats import ClassSums, Scatter, deal_groups, find_centers
from layerlaw.stats.sums import Assignment

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
COUNTS, D = [90, 50, 30, 7], 9


def problem(dtype: torch.dtype, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Features, labels, and the rows of six uneven shuffled parts (some lack classes)."""
    x, y = oracle.blobs(COUNTS, D, seed=5, offset=offset)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    return x.to(dtype), y, list(order.split([1, 2, 60, 64, 40, 10]))


def close(a: torch.Tensor, b: torch.Tensor, relative: float) -> None:
    """Relative to the size of the whole tensor: its entries may cancel."""
    torch.testing.assert_close(a, b, rtol=relative, atol=relative * float(b.abs().max()), equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_class_sums_of_parts_merge_to_the_sums_of_all(dtype: torch.dtype, offset: float) -> None:
    x, y, parts = problem(dtype, offset)
    K = len(COUNTS)
    at_once = ClassSums.of(x, y, K)
    merged = ClassSums.merge([ClassSums.of(x[rows], y[rows], K) for rows in parts])
    assert torch.equal(merged.counts, at_once.counts)
    close(merged.sums, at_once.sums, TOLERANCE[dtype])
    assert merged.dtype == dtype
    expected = np.stack([oracle.as_array(x)[y == k].sum(0) for k in range(K)])
    close(merged.sums, torch.from_numpy(expected), TOLERANCE[dtype])


def test_merging_leaves_the_parts_alone() -> None:
    x, y, parts = problem(torch.float64)
    sums = [ClassSums.of(x[rows], y[rows], 4) for rows in parts]
    centers = find_centers(ClassSums.merge(sums))
    scatters = [scatter_of(x[rows], y[rows], centers) for rows in parts]
    before = copy.deepcopy(sums[0].tensors), scatters[0].sums.clone()
    ClassSums.merge(sums)
    Scatter.merge(scatters)
    assert all(torch.equal(a, b) for a, b in zip(sums[0].tensors, before[0], strict=True))
    assert torch.equal(scatters[0].sums, before[1])


def test_merged_sums_remember_the_coarsest_dtype() -> None:
    x, y, _ = problem(torch.float64)
    fine, coarse = ClassSums.of(x, y, 4), ClassSums.of(x.float(), y, 4)
    assert ClassSums.merge([fine, coarse]).dtype == torch.float32
    assert ClassSums.merge([coarse, fine]).dtype == torch.float32


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_scatters_of_parts_merge_to_the_scatter_of_all(dtype: torch.dtype, weighting: str) -> None:
    x, y, parts = problem(dtype, offset=3.0)
    decision = torch.flip(y, [0])
    centers = find_centers(ClassSums.merge([ClassSums.of(x[rows], y[rows], 4) for rows in parts]), weighting)
    at_once = scatter_of(x, y, centers, decision)
    merged = Scatter.merge([scatter_of(x[rows], y[rows], centers, decision[rows]) for rows in parts])
    names = ("fuzziness", "fuzziness_equal", "lengths")
    for name in names:
        close(getattr(merged, name), getattr(at_once, name), TOLERANCE[dtype])
    # the residuals sum to nothing: what remains is rounding, small beside what was added up
    assert float((merged.residuals - at_once.residuals).abs().max()) < TOLERANCE[dtype] * float(merged.lengths.sum())
    for mine, theirs in zip(merged.near.sums.unbind(-1), at_once.near.sums.unbind(-1), strict=True):
        assert torch.equal(mine, theirs)
    for value in (separation, equal_separation, class_variances):
        close(value(centers, merged), value(centers, at_once), TOLERANCE[dtype])
    assert float(separation(centers, merged)) == pytest.approx(
        oracle.separation(x, y, 4, weighting=weighting), rel=max(TOLERANCE[dtype], 1e-10)
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_left_out_statistics_of_parts_add_up_to_those_of_all(dtype: torch.dtype, weighting: str) -> None:
    x, y, parts = problem(dtype)
    K, g = 4, 5
    groups = deal_groups(y, torch.zeros(K, dtype=torch.long), g)
    at_once, centers = started(x, y, groups, K, g, weighting)
    feed(at_once, centers, x, y, groups)
    streamed, centers = started(x, y, groups, K, g, weighting)
    for rows in parts:
        feed(streamed, centers, x[rows], y[rows], groups[rows])
    close(streamed.fuzziness, at_once.fuzziness, TOLERANCE[dtype])
    close(streamed.separation(), at_once.separation(), TOLERANCE[dtype])
    merged, _ = started(x, y, groups, K, g, weighting)
    for rows in parts:
        part, _ = started(x, y, groups, K, g, weighting)
        feed(part, centers, x[rows], y[rows], groups[rows])
        merged.fuzziness += part.fuzziness
    close(merged.separation(), at_once.separation(), TOLERANCE[dtype])


def test_grouped_sums_total_and_leave_out() -> None:
    x, y, _ = problem(torch.float64)
    groups = deal_groups(y, torch.zeros(4, dtype=torch.long), 3)
    grouped = group_sums(x, y, groups, 4, 3)
    close(grouped.total().sums, ClassSums.of(x, y, 4).sums, 1e-12)
    without = grouped.left_out()
    for i in range(3):
        rest = ClassSums.of(x[groups != i], y[groups != i], 4)
        assert torch.equal(without.counts[i], rest.counts)
        close(without.sums[i], rest.sums, 1e-12)


@pytest.mark.parametrize("change", ["other data", "other labels", "shifted", "relabeled"])
def test_scatters_around_different_centers_do_not_merge(change: str) -> None:
    x, y, _ = problem(torch.float64)
    first, second = find_centers(ClassSums.of(x, y, 4)), None
    if change == "other data":
        second = find_centers(ClassSums.of(x[:100], y[:100], 4))
    elif change == "other labels":
        second = find_centers(ClassSums.of(x, y.roll(1), 4))
    elif change == "shifted":
        second = find_centers(ClassSums.of(x + 1e-3, y, 4))
    else:
        second = find_centers(ClassSums.of(x, (y + 1) % 4, 4))
    with pytest.raises(PassError) as error:
        Scatter.merge([scatter_of(x, y, first), scatter_of(x, y, second)])
    assert str(error.value) == (
        "scatters merge only under equal centers, and these were taken around different class means. "
        "Merge (or all-reduce) the class sums of pass 1 first, then take every scatter around the merged centers."
    )


def test_centers_of_two_halves_far_from_the_origin_are_told_apart() -> None:
    """The digest must see a difference of the size of the spread, not of the offset."""
    x, y = oracle.blobs([500, 500], 400, spread=1e-3, distance=1.0, offset=1e3, seed=0)
    missed = 0
    for seed in range(20):
        half = torch.from_numpy(np.random.default_rng(seed).permutation(1000))
        a, b = half[:500], half[500:]
        one, other = find_centers(ClassSums.of(x[a], y[a], 2)), find_centers(ClassSums.of(x[b], y[b], 2))
        try:
            Scatter.merge([scatter_of(x[a], y[a], one), scatter_of(x[b], y[b], other)])
            missed += 1
        except PassError:
            pass
    assert missed == 0


def test_scatters_of_different_shapes_do_not_merge() -> None:
    x, y, _ = problem(torch.float64)
    one = scatter_of(x, y, find_centers(ClassSums.of(x, y, 4)))
    x2, y2 = x.expand(2, -1, -1), y.expand(2, -1)
    two = scatter_of(x2, y2, find_centers(ClassSums.of(x2, y2, 4)))
    with pytest.raises(PassError):
        Scatter.merge([one, two])


def test_sums_split_into_groups_equal_the_sums_of_each_group() -> None:
    x, y, _ = problem(torch.float64)
    groups = deal_groups(y, torch.zeros(4, dtype=torch.long), 3)
    split = ClassSums.assigned(x, Assignment.of(y, 4, groups, 3))
    for i in range(3):
        part = ClassSums.of(x[groups == i], y[groups == i], 4)
        assert torch.equal(split.counts[i], part.counts)
        close(split.sums[i], part.sums, 1e-12)
