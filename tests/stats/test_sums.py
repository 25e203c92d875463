"""Three ways to add up rows by class: row by row, by sorted runs, by products. A CPU takes the first, a GPU the others."""

import numpy as np
import pytest
import torch

from layerlaw.stats import one_hot, precision
from layerlaw.stats.closer import exact_sums
from layerlaw.stats.labels import Labelings
from layerlaw.stats.sums import (
    FEW_LABELS,
    Assignment,
    ClassSums,
    _add_runs,
    _add_up,
    _multiply_out,
    by_label,
    sums_by_class,
)

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


@pytest.mark.parametrize(
    "chunk", [2**30, 4 * 6 * 2 * 2048, 4 * 6 * 2 * 300], ids=["one", "whole blocks", "parts of blocks"]
)
@pytest.mark.parametrize("own", [False, True], ids=["labels of all", "labels of their own"])
def test_products_give_the_same_sums_in_chunks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, chunk: int, own: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    n, d, sites, classes = 5000, 6, 2, 5
    y = torch.randint(classes, (sites, n) if own else (n,), generator=generator)
    x = torch.randn(sites, n, d, generator=generator) + 3
    to = Assignment.of(y, classes) if own else Assignment.of(y, classes).for_sites(sites)
    assert to.shared is not own
    rows = x.reshape(-1, d)
    reference = rows.index_select(0, to.first)
    expected, lengths = _add_up(rows.double(), reference.double(), to)
    monkeypatch.setitem(precision.CHUNK_BYTES, "cpu", chunk)
    sums, found = _multiply_out(rows, reference, to)
    torch.testing.assert_close(sums, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.double(), lengths, rtol=1e-6, atol=0)


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


def test_what_is_kept_of_labels_is_dropped_when_they_change() -> None:
    x, y = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3

    def right(labels: torch.Tensor, classes: int) -> bool:
        found = ClassSums.of(x, labels, classes)
        hot = one_hot(labels, classes, torch.float64)
        return torch.allclose(found.sums, hot @ x.double(), atol=1e-5) and torch.equal(found.counts, hot.sum(-1))

    assert right(y, 3)
    assert Assignment.of(y, 3) is Assignment.of(y.clone(), 3)
    y[:7] = 2  # the same tensor, other labels
    assert right(y, 3)
    assert right(y, 4)
    assert right(y, 3)
    assert right(y[torch.randperm(50, generator=torch.Generator().manual_seed(1))], 3)
    np.from_dlpack(y)[:9] = 1  # torch does not notice
    assert right(y, 3)
    assert right(y.int(), 3)


def test_sums_of_several_sites_are_those_of_the_labels_that_there_are() -> None:
    x, y = torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    for labels in (y, y.flip(0), y):
        together = ClassSums.assigned(x, Assignment.of(labels, 3).for_sites(3))
        for i, features in enumerate(x):
            one, alone = together.at(i), ClassSums.of(features, labels, 3)
            torch.testing.assert_close(one.sums, alone.sums)
            assert torch.equal(one.counts, alone.counts)


def test_what_is_kept_may_be_used_with_gradients_and_is_not_changed_by_sums() -> None:
    y = torch.arange(40) % 5
    with torch.inference_mode():
        kept = Assignment.of(y, 5).for_sites(2)
    assert not any(tensor.is_inference() for tensor in (kept.own, kept.cells, kept.first, kept.labels, kept.counts))
    before = kept.counts.clone()
    features = torch.randn(2, 40, 3)
    sums = ClassSums.assigned(features, Assignment.of(y, 5).for_sites(2))
    sums.add(ClassSums.assigned(features, Assignment.of(y, 5).for_sites(2)))
    assert torch.equal(Assignment.of(y, 5).for_sites(2).counts, before)


def test_of_many_labels_nothing_is_kept() -> None:
    y = torch.arange(FEW_LABELS + 1) % 3
    assert Assignment.of(y, 3) is not Assignment.of(y, 3)


@pytest.mark.parametrize("classes", [5, 40], ids=["two labelings at once", "one after the other"])
@pytest.mark.parametrize("groups", [0, 3])
def test_exact_sums_are_those_of_numpy_however_samples_are_put_together(
    monkeypatch: pytest.MonkeyPatch, classes: int, groups: int
) -> None:
    monkeypatch.setitem(precision.CHUNK_BYTES, "cpu", 16 * 6 * 700)
    generator = torch.Generator().manual_seed(0)
    n, d, sites = 2500, 6, 2
    y, drawn = (torch.randint(classes, shape, generator=generator) for shape in ((n,), (5, n)))
    split = torch.randint(max(1, groups), (n,), generator=generator)
    x = torch.randn(sites, n, d, generator=generator) + 1000 * torch.randn(classes, d, generator=generator)[y]

    def sums(rows: slice) -> list[ClassSums]:
        to = Assignment.of(y[rows], classes, split[rows] if groups else None, groups).for_sites(sites)
        own, permuted = exact_sums(x[:, rows], to, Labelings.of(drawn[:, rows], classes))
        assert permuted is not None
        return [own, permuted]

    whole, parts = sums(slice(None)), [sums(slice(0, 900)), sums(slice(900, None))]
    numbers = x.double().numpy()
    cells = [(split == g) & (y == k) for g in range(max(1, groups)) for k in range(classes)]
    drawn_cells = [one == k for one in drawn for k in range(classes)]
    for found, split_up, masks in zip(whole, zip(*parts, strict=True), (cells, drawn_cells), strict=True):
        expected = np.stack([numbers[:, mask.numpy()].sum(1) for mask in masks], 1).reshape(found.sums.shape)
        counts = torch.stack([mask.sum() for mask in masks]).double().expand(sites, -1)
        torch.testing.assert_close(found.sums, torch.from_numpy(expected), rtol=1e-13, atol=1e-9)
        torch.testing.assert_close(ClassSums.merge(split_up).sums, found.sums, rtol=1e-14, atol=1e-11)
        assert torch.equal(found.counts.flatten(1), counts)
    around = ClassSums.assigned(x, Assignment.of(y, classes, split if groups else None, groups).for_sites(sites))
    torch.testing.assert_close(whole[0].spread, around.spread)
