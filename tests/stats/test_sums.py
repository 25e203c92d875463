"""Three ways to add up rows by class: row by row, by sorted runs, by products. A CPU takes the first, a GPU the others."""

import pytest
import torch

from layerlaw.stats import one_hot
from layerlaw.stats.sums import Assignment, _add_runs, _add_up, _multiply_out, by_label, sums_by_class

CLASSES = 70


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("groups", [0, 3])
@pytest.mark.parametrize("skewed", [False, True])
def test_all_ways_give_the_same_sums_and_lengths(dtype: torch.dtype, groups: int, skewed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    n, d, sites = 3000, 6, 2
    y = torch.randint(CLASSES, (n,), generator=generator)
    y = torch.where(torch.arange(n) % 4 > 0, 0, y) if skewed else y  # a class of more rows than float32 may add up
    split = torch.randint(groups, (n,), generator=generator) if groups else None
    x = (torch.randn(sites, n, d, generator=generator, dtype=torch.float64) + 3).to(dtype)
    to = Assignment.of(y, CLASSES, split, groups).for_sites(sites)
    assert to.shared
    rows = x.reshape(-1, d)
    reference = rows.index_select(0, to.first)
    reference = reference.float() if dtype == torch.bfloat16 else reference
    expected, lengths = _add_up(rows, reference, to)
    for way in (_add_runs, _multiply_out):
        sums, found = way(rows, reference, to)
        tolerance = 1e-11 if dtype == torch.float64 else 2e-3 if skewed else 2e-4
        torch.testing.assert_close(sums, expected, rtol=0, atol=tolerance)
        torch.testing.assert_close(found, lengths)


def test_entries_with_labels_of_their_own_do_not_share_them() -> None:
    assert not Assignment.of(torch.tensor([[0, 1, 1], [1, 0, 1]]), 2).shared
    assert Assignment.of(torch.tensor([0, 1, 1]), 2).shared


@pytest.mark.parametrize("classes", [5, CLASSES])
def test_sums_and_columns_by_class_are_products_with_indicators(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (400,), generator=generator)
    values = torch.randn(3, 4, 400, dtype=torch.float64, generator=generator)
    hot = one_hot(y, classes, torch.float64)
    torch.testing.assert_close(sums_by_class(values, y, classes), hot @ values.mT)
    columns = torch.randn(3, 4, classes, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(by_label(columns, y), columns @ hot)
