"""Bad input is answered: what was expected, what came, where, what to do."""

import pytest
import torch
from capture_networks import FNN, clouds, seeded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll
from layerlaw.errors import (
    CaptureError,
    DataError,
    FeatureError,
    InputError,
    LabelError,
    LayerlawError,
    MemoryBudgetError,
)

X, Y = clouds(60, 12)


def probe(data: object = (X, Y), network: nn.Module | None = None, **how: object) -> ll.Record:
    return ll.probe(network or seeded(FNN), data, **{"progress": False, **how})


def test_an_empty_class() -> None:
    y = Y.clone()
    y[y == 1] = 2
    with pytest.raises(
        LabelError, match=r"data: expected samples of all 3 classes, got none of class 1 .*classes=\[…\]"
    ):
        probe((X, y))
    with pytest.raises(LabelError, match="test: expected samples of all 3 classes, got none of class 1"):
        probe((X, Y), test=(X, y))
    with pytest.raises(LabelError, match=r"got none of class 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 … \(997 empty\)"):
        probe((X, Y), seeded(FNN, (12, 8, 1000)))


def test_one_class() -> None:
    with pytest.raises(LabelError, match="got none of class 1, 2"):
        probe((X, torch.zeros(60, dtype=torch.long)))
    with pytest.raises(LabelError, match="classes: expected at least 2 classes, got 1: one class cannot be separated"):
        probe(classes=1)
    with pytest.raises(LabelError, match=r"classes: expected at least two different class numbers ≥ 0, got \[2\]"):
        probe(classes=[2])


@pytest.mark.parametrize("kind", ["pair", "loader"])
def test_labels_out_of_range(kind: str) -> None:
    for label, wrong in ((3, 3), (-1, -1), (-100, -100)):
        y = Y.clone()
        y[33] = label
        data = (X, y) if kind == "pair" else DataLoader(TensorDataset(X, y), batch_size=20)
        where = "labels of data: " if kind == "pair" else "labels of data, batch 1: "
        with pytest.raises(LabelError, match=rf"{where}expected labels in 0 … 2 \(3 classes\), got {wrong}"):
            probe(data)


def test_labels_that_are_no_whole_numbers() -> None:
    for y in (Y.float(), Y.double(), Y == 1):
        with pytest.raises(
            LabelError, match=r"labels of data: expected whole-number class labels \(int64\), got torch"
        ):
            probe((X, y))
    with pytest.raises(LabelError, match=r"labels of data, batch 0: expected whole-number.*labels.long\(\)"):
        probe([(X, Y.float())])


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.int16])
def test_whole_numbers_of_any_size_are_labels(kind: torch.dtype) -> None:
    assert probe((X, Y.to(kind))).counts == probe().counts


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("memory", [2.0, 4e-6])
def test_features_that_are_not_finite_name_site_and_batch(bad: float, memory: float) -> None:
    x = X.clone()
    x[45, 3] = bad
    with pytest.raises(
        FeatureError, match=r"site 'layers.0': expected finite features, got NaN or infinity in data, batch 2"
    ):
        probe([(x[i : i + 20], Y[i : i + 20]) for i in range(0, 60, 20)], sites="layers", memory_gib=memory)

    class Overflows(FNN):
        def forward(self, x):
            h = self.layers[0](x)
            h = h / (x[:, :1] != X[45, 0])  # one sample is divided by zero
            return self.layers[3](self.layers[2](self.layers[1](h)))

    good = X[torch.arange(60) != 45], Y[torch.arange(60) != 45]
    with pytest.raises(FeatureError, match=r"site 'layers.1': .* in test, batch 2"):
        probe(good, seeded(Overflows), test=(X, Y), sites="layers", memory_gib=memory, batch_size=20)


@pytest.mark.parametrize("memory", [2.0, 4e-6])
def test_batches_that_are_passed_over_are_counted_too(memory: float) -> None:
    order = Y.argsort(stable=True)
    x = X[order].clone()
    x[45, 3] = torch.nan  # of class 2, in the fifth batch of ten
    batches = [(x[i : i + 10], Y[order][i : i + 10]) for i in range(0, 60, 10)]
    with pytest.raises(FeatureError, match=r"site 'layers.0': .* in data, batch 4"):
        probe(batches, sites="layers", classes=[0, 2], memory_gib=memory)


def test_features_of_a_class_that_is_not_measured_may_be_anything() -> None:
    x = X.clone()
    x[(Y == 1).nonzero()[0]] = torch.nan
    assert probe((x, Y), classes=[0, 2]).counts == [20, 20]


def test_features_too_wide_for_the_memory_budget() -> None:
    with pytest.raises(
        MemoryBudgetError,
        match=r"site 'layers.0' has 12 features: with 3 classes and 60 samples what is kept from slice to slice "
        r"needs 1.5e-06 GiB, and "
        "a slice of features needs more on top; the budget is 1e-06 GiB. "
        "memory_gib=1.5e-06 measures it whole; or use reduce='mean', fewer ",
    ):
        probe(memory_gib=1e-6)
    with pytest.raises(MemoryBudgetError, match=r"what is kept from slice to slice needs 1.6e-05 GiB, and a slice"):
        probe(memory_gib=1e-5, uncertainty="jackknife")  # ten groups need eleven times as much


def test_choices_that_do_not_exist() -> None:
    with pytest.raises(InputError, match="batchnorm: expected one of running, batch, whole, got 'test'"):
        probe(batchnorm="test")
    with pytest.raises(InputError, match="weighting: expected one of samples, classes, got 'mean'"):
        probe(weighting="mean")
    with pytest.raises(CaptureError, match="reduce: expected one of flatten, mean, max, first, last, got 'sum'"):
        probe(reduce="sum")
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(InputError, match="memory_gib: expected a positive number of GiB, got"):
            probe(memory_gib=wrong)


def test_model_and_data_on_different_devices() -> None:
    with pytest.raises(
        DataError,
        match=r"expected model and data on one device, got the model on cpu and the data on meta.*device='meta'",
    ):
        probe((X.to("meta"), Y))


def test_data_that_can_be_gone_through_once_only() -> None:
    with pytest.raises(DataError, match="expected data that can be gone through twice, got a one-shot iterator"):
        probe(iter([(X, Y)]))
    with pytest.raises(DataError, match="test: expected data that can be gone through twice, got a one-shot iterator"):
        probe((X, Y), test=(b for b in [(X, Y)]))


def test_empty_data() -> None:
    with pytest.raises(DataError, match="data: expected at least one batch, got none"):
        probe([])
    with pytest.raises(DataError, match="test: expected at least one batch, got none"):
        probe((X, Y), test=[])


def test_a_model_without_class_scores_wants_the_number_of_classes() -> None:
    class Maps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(12, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.two(self.one(x).relu()).reshape(-1, 2, 2, 2)

    with pytest.raises(
        InputError, match=r"how many classes\? The model's output is no tensor of class scores .* pass classes=K"
    ):
        probe([(X, Y)], Maps())
    record = probe([(X, Y)], Maps(), classes=3)
    assert record.accuracy is None
    assert record.column("ncc_mismatch") == [None, None]
    assert record.notes[0].startswith(
        "No NC2 and NC3 of the classifier: the model's output is no tensor of class scores"
    )
    assert probe((X, Y), Maps()).counts == record.counts  # a pair shows its labels beforehand
    with pytest.raises(CaptureError, match="site 'logits': the model's output holds no class scores"):
        probe((X, Y), Maps(), sites=["auto", "logits"])


def test_classes_beyond_the_logits() -> None:
    with pytest.raises(LabelError, match="classes: expected numbers below the model's 3 logits, got 3"):
        probe(classes=[0, 3])
    with pytest.raises(LabelError, match="at least two different class numbers"):
        probe(classes=[1, 1])


def test_every_error_is_one_of_ours() -> None:
    for error in (CaptureError, DataError, FeatureError, InputError, LabelError, MemoryBudgetError):
        assert issubclass(error, LayerlawError)
    assert ll.LayerlawError is LayerlawError


def test_class_means_that_coincide_are_flagged_and_give_no_number() -> None:
    x = torch.zeros(60, 12)
    x[:, 0] = torch.arange(60) // 3 % 2  # the same in every class
    y = torch.arange(60) % 3
    record = probe((x, y), sites="layers")
    assert record.column("separation")[0] is None
    assert record.column("full_rank")[0] == 0
    assert any(note.startswith("The class means span fewer than K−1 dimensions at: layers.0") for note in record.notes)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mode", r"'batchnorm' \('train' → 'batch', 'eval' → 'running'\)"),
        ("logits", r"'sites' \(with the name 'logits' among them"),
        ("jackknife", r"'uncertainty' \(True: standard errors and permuted labels"),
        ("permuted", "'uncertainty'"),
        ("class_names", r"'classes' \(which takes names"),
        ("name", r"'record.name' \(set it afterwards\)"),
    ],
)
def test_old_arguments_name_the_new_ones(old: str, new: str) -> None:
    with pytest.raises(TypeError, match=f"probe: '{old}' is now {new}"):
        probe(**{old: None})
    with pytest.raises(TypeError, match=r"probe\(\) got an unexpected keyword argument 'colour'"):
        probe(colour=1)
