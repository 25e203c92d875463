"""Labels: what is accepted, what is refused and in which words; dealing samples into groups."""

import pytest
import torch

import layerlaw.stats.labels as labels_module
from layerlaw.errors import LabelError
from layerlaw.stats import checked_labels, deal_groups, one_hot
from layerlaw.stats.labels import Labelings, check_counts, indicator_rows, shuffled_groups
from layerlaw.stats.precision import CHUNK_BYTES


def test_labels_become_int64_and_the_classes_are_counted() -> None:
    labels, K = checked_labels(torch.tensor([3, 0, 1], dtype=torch.uint8))
    assert labels.dtype == torch.int64
    assert K == 4
    assert checked_labels(torch.tensor([0, 1]), 7)[1] == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bool, torch.complex64], ids=str)
def test_labels_that_are_no_whole_numbers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(LabelError) as error:
        checked_labels(torch.tensor([0, 1, 1]).to(dtype), where="test labels")
    assert str(error.value) == (
        f"test labels: expected whole-number class labels (int64), got {dtype}. "
        "Convert them with labels.long() if they are class numbers; one-hot or soft labels need argmax(-1)."
    )


def test_one_number_is_not_one_label_per_sample() -> None:
    with pytest.raises(LabelError, match=r"expected one label per sample, shape \(n,\), got shape \(\)"):
        checked_labels(torch.tensor(3))


def test_no_labels_are_refused() -> None:
    with pytest.raises(LabelError, match="expected at least one label, got none"):
        checked_labels(torch.tensor([], dtype=torch.long))


@pytest.mark.parametrize(("labels", "classes", "bad"), [([0, -100, 1], None, -100), ([0, 1, 5], 5, 5), ([0, 9], 3, 9)])
def test_labels_out_of_range_are_refused(labels: list[int], classes: int | None, bad: int) -> None:
    with pytest.raises(LabelError, match=rf"expected labels in 0 … .*, got {bad}\. Number the classes from 0"):
        checked_labels(torch.tensor(labels), classes)


def test_a_negative_label_hints_at_the_ignore_index() -> None:
    with pytest.raises(LabelError, match=r"a negative label \(an ignore index, say\) must be filtered out first"):
        checked_labels(torch.tensor([0, 1, -1]))


def test_one_class_is_refused() -> None:
    with pytest.raises(LabelError, match="data: expected at least 2 classes, got 1"):
        check_counts(torch.tensor([5.0]))


def test_an_empty_class_is_refused_by_number_or_name() -> None:
    with pytest.raises(LabelError, match=r"train: expected samples of all 3 classes, got none of class 1 \(1 empty\)"):
        check_counts(torch.tensor([5.0, 0.0, 2.0]), where="train")
    with pytest.raises(LabelError, match="got none of class cat, dog"):
        check_counts(torch.tensor([0.0, 0.0, 2.0]), names=("cat", "dog", "cow"))


def test_many_empty_classes_are_shortened() -> None:
    with pytest.raises(LabelError, match=r"class 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 … \(19 empty\)"):
        check_counts(torch.tensor([1.0] + [0.0] * 19))


def test_no_samples_at_all_are_refused() -> None:
    with pytest.raises(LabelError, match="expected samples, got none"):
        check_counts(torch.zeros(3))


def test_a_class_empty_at_one_leading_index_is_refused() -> None:
    with pytest.raises(LabelError, match="got none of class 2"):
        check_counts(torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 0.0]]))


def test_full_classes_pass() -> None:
    check_counts(torch.full((2, 3), 2.0))


def test_one_hot_rows_have_leading_dimensions() -> None:
    labels = torch.tensor([[0, 2, 1], [1, 1, 0]])
    hot = one_hot(labels, 3, torch.float64)
    assert hot.shape == (2, 3, 3)
    assert torch.equal(hot, torch.nn.functional.one_hot(labels, 3).mT.double())


@pytest.mark.parametrize("g", [2, 3, 10])
def test_groups_are_stratified(g: int) -> None:
    labels = torch.randint(5, (503,), generator=torch.Generator().manual_seed(0))
    groups = deal_groups(labels, torch.zeros(5, dtype=torch.long), g)
    assert groups.min() >= 0
    assert groups.max() < g
    for k in range(5):
        sizes = torch.bincount(groups[labels == k], minlength=g)
        assert int(sizes.max() - sizes.min()) <= 1


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_dealing_over_batches_equals_dealing_at_once(batch: int) -> None:
    labels = torch.randint(5, (211,), generator=torch.Generator().manual_seed(0))
    at_once = torch.zeros(5, dtype=torch.long)
    whole = deal_groups(labels, at_once, 10)
    seen = torch.zeros(5, dtype=torch.long)
    parts = torch.cat([deal_groups(part, seen, 10) for part in labels.split(batch)])
    assert torch.equal(parts, whole)
    assert torch.equal(seen, at_once)
    assert torch.equal(seen, torch.bincount(labels, minlength=5))


def test_one_sample_of_each_class_is_refused() -> None:
    with pytest.raises(LabelError, match="got one of each: the spread within classes cannot be measured"):
        check_counts(torch.ones(3))


def test_shuffled_groups_are_balanced_and_the_same_in_every_pass() -> None:
    order = shuffled_groups(10, seed=3)
    assert torch.equal(order, shuffled_groups(10, seed=3))
    assert not torch.equal(order, shuffled_groups(10, seed=4))
    for start in range(0, 1000, 100):
        assert torch.bincount(order[start : start + 100]).tolist() == [10] * 10
    labels = torch.arange(2500) % 5
    groups = deal_groups(labels, torch.zeros(5, dtype=torch.long), 10, order)
    for label in range(5):
        assert torch.bincount(groups[labels == label], minlength=10).tolist() == [50] * 10


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7)])
def test_indicators_of_labels_that_are_known_to_fit_are_those_of_any(shape: tuple[int, ...]) -> None:
    labels = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.float64, torch.bool):
        assert torch.equal(indicator_rows(labels, 4, dtype), one_hot(labels, 4, dtype))


@pytest.mark.parametrize("size", [1, 300, 2**22], ids=["row by row", "in chunks", "at once"])
@pytest.mark.parametrize("block", [1, 3, 1024])
@pytest.mark.parametrize("classes", [3, 20_000], ids=["few cells", "more cells than 16 bits number"])
def test_labelings_in_chunks_and_runs_count_and_add_up_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, size: int, block: int, classes: int
) -> None:
    monkeypatch.setattr(labels_module, "BLOCK", block)
    monkeypatch.setitem(CHUNK_BYTES, "cpu", size)
    labels = torch.randint(0, 3, (5, 10), generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 10, 2, generator=torch.Generator().manual_seed(1))
    whole, cut = one_hot(labels, classes, torch.float32), Labelings.of(labels, classes)
    assert torch.equal(cut.counts, whole.sum(-1).double())
    chunks = list(cut.chunks(8))
    assert [row for chunk in chunks for row in range(10)[chunk]] == list(range(10))
    for _ in range(2):  # what is made of the labels is kept
        added = torch.stack([cut.added_up(x[:, chunk], chunk) for chunk in chunks]).sum(0)
        torch.testing.assert_close(added, (whole @ x.unsqueeze(1)).double(), rtol=0, atol=1e-6)
