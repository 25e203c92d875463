"""Data of every kind become batches."""

import collections

import numpy as np
import pytest
import torch
from capture_networks import clouds
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from layerlaw.capture.batches import Batch, Batches, as_batch
from layerlaw.capture.network import unequal_shares
from layerlaw.errors import DataError, LabelError

X, Y = clouds(50, 6)


def batches(data: object, batch_size: int | None = None, batchnorm: str = "running", **how: object) -> Batches:
    return Batches(data, batch_size=batch_size, batchnorm=batchnorm, where="data", **how)


def joined(data: Batches) -> tuple[torch.Tensor, torch.Tensor]:
    parts = list(data)
    return torch.cat([p.tensors()[0] for p in parts]), torch.cat([p.labels for p in parts])


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (X, Y.unsqueeze(1)),
        ({"x": X}, Y),
        {"x": X, "labels": Y},
        {"x": X.numpy(), "label": Y.numpy()},
        {"x": X, "targets": Y},
        (X, Y.tolist()),
        (X.numpy(), tuple(Y.tolist())),
        (X, list(Y)),
        (X, list(Y.numpy())),
        [(X[:25], Y[:25].tolist()), (X[25:], list(Y[25:]))],
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=7),
        DataLoader(Stream(), batch_size=7),
        [(X[:25], Y[:25]), (X[25:], Y[25:])],
        [(X[:25].numpy(), Y[:25].numpy()), [X[25:], Y[25:]]],
        [{"x": X[:25], "labels": Y[:25]}, {"x": X[25:], "labels": Y[25:]}],
        [({"x": X[:25]}, Y[:25]), ({"x": X[25:]}, Y[25:, None])],
    ],
    ids=lambda d: type(d).__name__,
)
def test_every_kind_of_data_gives_the_same_samples(data: object) -> None:
    source = batches(data)
    for _ in range(2):
        x, y = joined(source)
        assert torch.equal(x, X)
        assert torch.equal(y, Y)


def test_several_inputs_are_several_arguments() -> None:
    for data, at in (([(X, X + 1, Y)], 2), ([(X, X + 1, Y)], -1), (((X, X + 1), Y), None), ([((X, X + 1), Y)], None)):
        (batch,) = batches(data, labels_at=at)
        assert len(batch.args) == 2
        assert torch.equal(batch.args[1], X + 1)


META = torch.arange(50)


def test_what_follows_the_labels_is_no_input_and_not_the_label_either() -> None:
    for data in ([(X, Y, META)], (X, Y, META), TensorDataset(X, Y, META), DataLoader(TensorDataset(X, Y, META), 25)):
        x, y = joined(batches(data, labels_at=1))
        assert torch.equal(x, X)
        assert torch.equal(y, Y)
        assert all(len(batch.args) == 1 for batch in batches(data, labels_at=1))
        with pytest.raises(DataError, match=r"expected \(inputs, labels\), got 3 items: \(.*\. Which are the labels\?"):
            next(iter(batches(data)))
    (batch,) = batches([(Y, X)], labels_at=0)
    assert torch.equal(batch.args[0], X)
    for at in (3, -4, "y", 1.5, True):
        with pytest.raises(DataError, match=r"labels=.*: expected an index of the 3 items of a batch, from 0 to 2"):
            next(iter(batches([(X, Y, META)], labels_at=at)))


class ByImage(torch.nn.Module):
    def forward(self, image):
        return image


class ByAnyName(torch.nn.Module):
    def forward(self, x, scale=1.0, **others):
        return x


def test_dictionaries_are_handed_over_as_the_forward_takes_them() -> None:
    row = {"image": X, "label": Y, "idx": META, "path": ["a"] * 50}
    for data in (row, [row], [({k: v for k, v in row.items() if k != "label"}, Y)]):
        by_name = batches(data, network=ByImage())
        (batch,) = by_name
        assert (batch.args, list(batch.kwargs)) == ((), ["image"])
        assert by_name.unused == ["idx", "path"]
        by_place = batches(data, network=torch.nn.Linear(6, 3))
        (batch,) = by_place
        assert (len(batch.args), batch.kwargs) == (1, {})
        assert torch.equal(batch.args[0], X)
        assert by_place.unused == ["idx", "path"]
    (batch,) = batches([{"x": X, "scale": 2.0, "more": X, "label": Y}], network=ByAnyName())
    assert list(batch.kwargs) == ["x", "scale", "more"]
    (batch,) = batches([{"image": X, "fine_label": Y}], network=ByImage(), labels_at="fine_label")
    assert torch.equal(batch.labels, Y)
    with pytest.raises(
        DataError, match=r"batch 0: the model takes image; got the keys left, right. Rename the keys, or"
    ):
        next(iter(batches([{"left": X, "right": X, "label": Y}], network=ByImage())))
    with pytest.raises(
        DataError, match=r"expected a dictionary with 'labels', got the keys \['fine', 'image'\]; labels="
    ):
        next(iter(batches([{"image": X, "fine": Y}])))
    with pytest.raises(DataError, match=r"expected a dictionary with 'coarse', got the keys"):
        next(iter(batches([{"image": X, "label": Y}], labels_at="coarse")))


def test_a_named_tuple_with_labels_is_read_by_its_names() -> None:
    Sample = collections.namedtuple("Sample", "image label index")
    (batch,) = batches([Sample(X, Y, META)], network=ByImage())
    assert torch.equal(batch.kwargs["image"], X)
    assert torch.equal(batch.labels, Y)


def test_tables_of_pandas_are_data() -> None:
    pandas = pytest.importorskip("pandas")
    (batch,) = batches((pandas.DataFrame(X.numpy()), pandas.Series(Y.numpy())))
    assert torch.equal(batch.args[0], X)
    assert torch.equal(batch.labels, Y)


def test_lengths_and_labels_are_known_where_they_can_be() -> None:
    pair = batches((X, Y), batch_size=20)
    assert (pair.samples, pair.length) == (50, 3)
    assert torch.equal(pair.labels, Y)
    loader = batches(DataLoader(TensorDataset(X, Y), batch_size=7, sampler=range(14)))
    assert (loader.samples, loader.length, loader.labels) == (14, 2, None)
    stream = batches(DataLoader(Stream(), batch_size=7))
    assert (stream.samples, stream.length, stream.labels) == (None, None, None)


def test_batch_sizes_are_256_and_in_train_mode_the_authors_100() -> None:
    x, y = clouds(300, 2)
    assert [len(b.labels) for b in batches((x, y))] == [256, 44]
    assert [len(b.labels) for b in batches((x, y), batchnorm="batch")] == [100] * 3
    assert [len(b.labels) for b in batches(TensorDataset(x, y), 150)] == [150, 150]


def test_a_pair_sorted_by_class_is_mixed_in_train_mode_only_and_always_in_the_same_way() -> None:
    y = Y.sort().values
    assert torch.equal(joined(batches((X, y), 10))[1], y)
    mixed = batches((X, y), 10, "batch")
    assert mixed.order == "mixed with seed 0, since it was sorted by class"
    x, first = joined(mixed)
    assert not torch.equal(first, y)
    assert torch.equal(joined(mixed)[1], first)
    rows = [int((row == X).all(1).nonzero()) for row in x]
    assert torch.equal(y[rows], first)
    assert torch.equal(joined(batches((X.numpy(), y.numpy()), 10, "batch"))[0], x)
    assert batches((X, Y), 10, "batch").order == "as given"


def test_the_order_of_a_shuffling_loader_is_recorded() -> None:
    assert batches(DataLoader(TensorDataset(X, Y), shuffle=True)).order == "shuffled by the loader"
    assert batches(DataLoader(TensorDataset(X, Y))).order == "as given"


def test_the_order_is_that_of_the_sampler_inside() -> None:
    data = TensorDataset(X, Y)
    mixed = BatchSampler(RandomSampler(data), batch_size=4, drop_last=False)
    assert batches(DataLoader(data, batch_sampler=mixed)).order == "shuffled by the loader"
    plain = BatchSampler(SequentialSampler(data), batch_size=4, drop_last=False)
    assert batches(DataLoader(data, batch_sampler=plain)).order == "as given"
    weighted = WeightedRandomSampler([1.0] * len(Y), 20)
    assert batches(DataLoader(data, sampler=weighted)).order == "chosen by the loader's WeightedRandomSampler"
    for shuffle, words in ((True, "shuffled by the loader"), (False, "as given")):
        dealt = DistributedSampler(data, num_replicas=2, rank=0, shuffle=shuffle)
        assert batches(DataLoader(data, sampler=dealt)).order == words


def test_what_a_sampler_repeats_or_leaves_out_is_known() -> None:
    data = TensorDataset(X[:49], Y[:49])

    def said(sampler: object) -> str:
        return unequal_shares(DataLoader(data, sampler=sampler))[0]

    assert "DistributedSampler repeats 2 of 49 samples" in said(DistributedSampler(data, num_replicas=3, rank=0))
    dropping = DistributedSampler(data, num_replicas=3, rank=0, drop_last=True)
    assert "DistributedSampler leaves out 1 of 49 samples" in said(dropping)
    assert said(DistributedSampler(data, num_replicas=7, rank=0)) == said(None) == ""
    assert batches(DataLoader(data, sampler=dropping)).unequal == ""  # of one process, which has what it has


def test_read_only_arrays_are_read_batch_by_batch(tmp_path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert torch.equal(joined(batches((mapped, Y), 20))[0], X)


def test_a_generator_and_an_iterator_are_refused() -> None:
    for data in (iter([(X, Y)]), ((x, y) for x, y in [(X, Y)]), map(tuple, [(X, Y)])):
        with pytest.raises(
            DataError, match=r"data: expected data that can be gone through twice, got a one-shot iterator"
        ):
            batches(data)


def test_an_object_that_gives_one_iterator_again_and_again_is_found_out() -> None:
    class OneShot:
        def __init__(self) -> None:
            self.items = iter([(X[:25], Y[:25]), (X[25:], Y[25:])])

        def __iter__(self):
            return self.items

    data = batches(OneShot())
    next(iter(data))
    with pytest.raises(DataError, match=r"got a one-shot iterator \(OneShot\). Pass the DataLoader or list itself"):
        next(iter(data))


def test_a_loader_with_persistent_workers_is_no_one_shot_iterator() -> None:
    data = batches(DataLoader(TensorDataset(X, Y), batch_size=25, num_workers=1, persistent_workers=True))
    for _ in range(2):
        assert torch.equal(joined(data)[1], Y)


@pytest.mark.parametrize("data", [[], DataLoader(TensorDataset(X[:0], Y[:0])), (X[:0], Y[:0])])
def test_empty_data_are_told(data: object) -> None:
    with pytest.raises(DataError, match="data: expected at least one batch, got none"):
        list(batches(data))


def test_batches_without_labels_are_told() -> None:
    with pytest.raises(DataError, match=r"data, batch 0: expected \(inputs, labels\) or a dictionary.*got Tensor"):
        list(batches([X]))
    with pytest.raises(DataError, match=r"expected a dictionary with 'labels', got the keys \['a', 'b'\]"):
        list(batches([{"b": X, "a": X}]))
    with pytest.raises(DataError, match="Data sets without labels cannot be measured"):
        list(batches([(X,)]))


def test_labels_of_a_wrong_kind_are_told() -> None:
    for labels, came in (
        (torch.zeros(50, 3, 2), r"torch.float32 of shape \(50, 3, 2\)"),
        (X.long() + 2, "torch.int64"),
    ):
        with pytest.raises(LabelError, match=rf"batch 0: expected one label per sample, shape \(n,\), or.*got {came}"):
            list(batches([(X, labels)]))
    with pytest.raises(LabelError, match="expected one label per sample, got 2 labels for inputs of shape"):
        list(batches([(X, [0, 1])]))
    for data in ((X, ["cat", "dog"] * 25), [(X, ["cat", "dog"] * 25)], {"x": X, "labels": ["cat"] * 50}):
        with pytest.raises(
            LabelError, match=r"expected class numbers, got strings such as 'cat'. Number the classes from 0"
        ):
            list(batches(data))
    with pytest.raises(LabelError, match="expected a tensor of labels, got list"):
        list(batches([(X, [[0], [1]])]))
    with pytest.raises(LabelError, match="expected a tensor of labels, got str"):
        list(batches([{"x": X, "labels": "cat"}]))


def test_as_many_labels_as_inputs_are_wanted() -> None:
    with pytest.raises(LabelError, match="data: expected one label per sample, got 49 labels for inputs of shape"):
        batches((X, Y[1:]))
    with pytest.raises(
        LabelError, match=r"data, batch 0: expected one label per sample, got 49 labels for inputs of shape \(50, 6\)"
    ):
        list(batches([(X, Y[1:])]))


def test_what_is_no_data_is_told() -> None:
    with pytest.raises(DataError, match=r"expected a DataLoader, a pair .* got int"):
        batches(3)


def test_a_batch_size_is_at_least_one_and_not_for_loaders() -> None:
    for data in ((X, Y), TensorDataset(X, Y)):
        with pytest.raises(DataError, match="data: expected a batch_size of at least 1, got 0"):
            batches(data, 0)
    with pytest.raises(
        DataError, match=r"^batch_size: leave it out\. The DataLoader given as data has its own \(\d+\)\.$"
    ):
        batches(DataLoader(TensorDataset(X, Y)), 5)


def test_the_first_samples_are_cut_on_either_axis_and_are_copies() -> None:
    batch = Batch((X, [X.T.clone()]), {"mask": X[:, 0] > 0, "flag": True, "scale": torch.ones(4)}, Y)
    cut = batch.first(3)
    assert torch.equal(cut.args[0], X[:3])
    assert torch.equal(cut.args[1][0], X.T[:, :3])
    assert (cut.kwargs["mask"].shape, cut.kwargs["flag"], cut.kwargs["scale"].shape) == ((3,), True, (4,))
    cut.args[0].zero_()
    assert X.abs().sum() > 0
    assert cut.labels.untyped_storage().nbytes() == cut.labels.nbytes  # other ranks are sent no more than these


def test_masks_are_true_at_real_tokens() -> None:
    real = torch.tensor([[1, 1, 0], [1, 0, 0]])
    for kwargs in (
        {"attention_mask": real},
        {"attention_mask": real.float()},
        {"src_key_padding_mask": real == 0},
        {"key_padding_mask": torch.where(real == 1, 0.0, -torch.inf)},
    ):
        assert torch.equal(Batch((), kwargs, torch.zeros(2)).mask, real.bool())
    assert Batch((), {"attention_mask": real[:, None, None]}, torch.zeros(2)).mask is None


def test_data_on_another_device_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"expected model and data on one device, got the model on cpu and the data on meta"
    ):
        as_batch((X.to("meta"), Y), "data").to(torch.device("cpu"))
