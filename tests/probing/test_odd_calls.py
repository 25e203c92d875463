"""Calls that people make by mistake: each gets an answer of ours, or the right numbers; never a foreign traceback."""

import types

import numpy as np
import pytest
import torch
from capture_networks import clouds
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import layerlaw as ll
from layerlaw.errors import CaptureError, DataError, FeatureError, InputError, LabelError, LayerlawError

X, Y = clouds(90, 12)
INDEX = torch.arange(90)


def network(outputs: int = 3, inputs: int = 12) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


class Made(nn.Module):
    """Its output is made of logits by a function."""

    def __init__(self, made) -> None:
        super().__init__()
        self.inner, self.made = network(), made

    def forward(self, x):
        return self.made(self.inner(x))


class Rows(Dataset):
    """Rows by a function of their number."""

    def __init__(self, row) -> None:
        self.row = row

    def __len__(self) -> int:
        return 90

    def __getitem__(self, i):
        return self.row(i)


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


def broken(i):
    raise ValueError("broken file")


def probe(data: object = (X, Y), model: object = None, **how: object) -> ll.Record:
    return ll.probe(network() if model is None else model, data, **{"progress": False, **how})


DATA = {
    "a name": ("cifar10", DataError, r"expected data, got 'cifar10'. layerlaw.data.load\('cifar10'\)"),
    "nothing": (None, DataError, "expected a DataLoader, a pair"),
    "inputs alone": (X, DataError, "got Tensor. Data sets without labels"),
    "arrays alone": (X.numpy(), DataError, "got ndarray. Data sets without labels"),
    "a dictionary without labels": ({"x": X}, DataError, r"expected a dictionary with 'labels', got the keys \['x'\]"),
    "nested lists": ((X.tolist(), Y.tolist()), DataError, "expected inputs as a tensor or an array, got a list"),
    "double precision": ((X.double(), Y), CaptureError, r"torch.float64.*It takes inputs of float32: pass x.float\(\)"),
    "bytes": (((X * 9).to(torch.uint8), Y), CaptureError, "torch.uint8"),
    "words as labels": ((X, np.array(["a", "b", "c"])[Y.numpy()]), LabelError, "expected arrays of numbers, got <U1"),
    "words in a list": ((X, [0, "a"] * 45), LabelError, "got strings such as 'a'"),
    "words from a loader": (DataLoader(Rows(lambda i: (X[i], "abc"[int(Y[i])])), 30), LabelError, "got strings such as"),
    "objects as labels": ((X, np.array([None] * 90)), LabelError, "expected arrays of numbers, got object"),
    "complex labels": ((X, Y.to(torch.complex64)), LabelError, "expected whole-number class labels"),
    "truth values as labels": ((X, Y > 0), LabelError, r"expected whole-number class labels .* labels.long\(\)"),
    "labels of two columns": ((X, torch.stack([Y, Y], 1) + 3), LabelError, r"got .*\(90, 2\)"),
    "one label": ((X, torch.tensor(1)), LabelError, r"got one number. Are these single samples\? DataLoader"),
    "single samples": ([(x, int(y)) for x, y in zip(X, Y, strict=True)], LabelError, "Are these single samples"),
    "single samples of NumPy": (list(zip(X.numpy(), Y.numpy(), strict=True)), LabelError, "Are these single samples"),
    "boxes": (DataLoader(Rows(lambda i: (X[i], {"labels": Y[i]})), 30), LabelError, "a tensor of labels, got dict"),
    "no labels in a data set": (Rows(lambda i: X[i]), DataError, "got Tensor. Data sets without labels"),
    "three items": (TensorDataset(X, Y, INDEX), DataError, r"got 3 items: \(90, 12\), \(90,\), \(90,\). Which are"),
    "three items later": ([(X[:30], Y[:30]), (X[30:], Y[30:], Y[30:])], DataError, "data, batch 1: .*got 3 items"),
    "a broken data set": (Rows(broken), DataError, "data, batch 0: the data failed with ValueError: broken file"),
    "a broken loader": (DataLoader(Rows(broken), 30), DataError, "the data failed with ValueError: broken file"),
    "rows that do not stack": (
        DataLoader(Rows(lambda i: (torch.zeros(i + 1, 12), 0)), 4), DataError, "failed with RuntimeError: stack expects"
    ),
    "an empty stream": (DataLoader(Nothing()), DataError, "expected at least one batch, got none"),
    "one sample": ((X[:1], Y[:1]), CaptureError, "at least 2 samples in the first batch"),
    "batches of one": (DataLoader(TensorDataset(X, Y)), CaptureError, "at least 2 samples in the first batch"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_data_that_cannot_be_measured_are_told(case: str) -> None:
    data, error, words = DATA[case]
    with pytest.raises(error, match=words):
        probe(data)
    assert issubclass(error, LayerlawError)


def test_the_cause_of_a_failure_in_the_data_is_kept() -> None:
    with pytest.raises(DataError) as caught:
        probe(Rows(broken))
    assert isinstance(caught.value.__cause__, ValueError)


def test_dictionaries_of_a_data_set_reach_the_model_and_what_it_does_not_take_is_noted() -> None:
    rows = Rows(lambda i: {"image": X[i], "label": int(Y[i]), "path": f"{i}.png", "idx": i})
    expected = probe()
    for data in (rows, DataLoader(rows, batch_size=30)):
        record = probe(data)
        assert record.accuracy == expected.accuracy
        assert record.column("separation") == pytest.approx(expected.column("separation"))
        assert record.notes == ["Not handed to the model, whose forward does not take it: 'idx', 'path'."]


def test_the_label_of_three_items_is_the_one_that_is_named() -> None:
    class WithExtra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x, extra=None):
            return self.inner(x if extra is None else x + extra[:, None])

    record = probe(DataLoader(TensorDataset(X, Y, INDEX), batch_size=30), WithExtra(), labels=1)
    assert record.column("separation") == pytest.approx(probe().column("separation"))
    with pytest.raises(DataError, match="got 3 items"):
        probe(DataLoader(TensorDataset(X, Y, INDEX), batch_size=30), WithExtra())


SCORES = {  # what is made of the logits, whether decisions are found in it
    "a dictionary": (lambda z: {"out": z}, True),
    "one in a tuple": (lambda z: (z,), True),
    "nested": (lambda z: {"a": [{"b": z}]}, True),
    "an object with logits": (lambda z: types.SimpleNamespace(logits=z), True),
    "behind decisions": (lambda z: {"ids": z.argmax(1), "logits": z}, True),
    "half precision": (lambda z: z.bfloat16(), True),
    "an object without logits": (lambda z: types.SimpleNamespace(out=z), False),
    "nothing": (lambda z: None, False),
    "a string": (lambda z: "x", False),
    "decisions": (lambda z: z.argmax(1), False),
    "a sum": (lambda z: z.sum(), False),
    "three axes": (lambda z: z[:, None], False),
    "transposed": (lambda z: z.T, False),
    "an array": (lambda z: z.detach().numpy(), False),
    "sparse": (lambda z: z.to_sparse(), False),
    "complex": (lambda z: torch.complex(z, z), False),
    "an ensemble": (lambda z: torch.stack([z, z, z]), False),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", SCORES)
def test_outputs_of_every_kind_give_decisions_or_a_note(case: str) -> None:
    made, decided = SCORES[case]
    record, expected = probe(model=Made(made)), probe()
    assert record.column("separation") == pytest.approx(expected.column("separation"))
    assert record.accuracy == (expected.accuracy if decided and case != "half precision" else record.accuracy)
    assert (record.accuracy is not None) == decided
    assert decided or any("the model's output is no tensor of class scores" in note for note in record.notes)


MODELS = {
    "a number": (3, CaptureError, "expected an nn.Module, got int"),
    "a class": (nn.Linear, CaptureError, "expected an nn.Module, got type"),
    "one that fails": (Made(lambda z: 1 / 0), CaptureError, "ZeroDivisionError: division by zero"),
    "other inputs": (network(inputs=7), CaptureError, "shapes cannot be multiplied"),
    "two inputs": (nn.Bilinear(12, 12, 3), CaptureError, "missing 1 required positional argument"),
    "no layers": (nn.Flatten(), CaptureError, "no site found"),
    "scores that are no numbers": (
        Made(lambda z: z * torch.nan),
        FeatureError,
        "class scores: .* got NaN in data, batch 0",
    ),
    "a single logit": (network(1), LabelError, "expected labels in 0 … 1 .* taken for the scores of 2 classes"),
    "many outputs": (Made(lambda z: [z + i for i in range(12)]), CaptureError, r"\[7\] \(2, 3\) and 4 more. Say it by"),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_that_cannot_be_measured_are_told(case: str) -> None:
    model, error, words = MODELS[case]
    with pytest.raises(error, match=words):
        probe(model=model)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"device": "gpu"}, InputError, "device: cannot compute on 'gpu'"),
        ({"device": [1]}, InputError, r"device: cannot compute on '\[1\]'"),
        ({"batch_size": "10"}, DataError, "expected a batch_size of at least 1, got '10'"),
        ({"batch_size": 2.5}, DataError, "expected a batch_size of at least 1, got 2.5"),
        ({"memory_gib": "2"}, InputError, "memory_gib: expected a positive number of GiB, got '2'"),
        ({"seed": "a"}, InputError, "seed: expected a whole number"),
        ({"batchnorm": ["batch"]}, InputError, "batchnorm: expected one of running, batch, whole"),
        ({"uncertainty": [True]}, InputError, "uncertainty: expected one of"),
        ({"weighting": None}, InputError, "weighting: expected one of samples, classes, got None"),
        ({"classes": 3.0}, InputError, "classes: expected K, names of all classes"),
        ({"classes": True}, InputError, "classes: expected K, names of all classes"),
        ({"labels": "label"}, DataError, "labels='label': expected an index of the 2 items of a batch"),
        ({"data_name": 3}, InputError, "data_name: expected words such as 'CIFAR-10 test', got 3"),
        ({"scores": 0}, InputError, r"at 0, got LookupError: the output is one tensor. The model returns a tensor"),
        ({"scores": lambda out: 1 / 0}, InputError, "at this function, got ZeroDivisionError"),
        ({"scores": lambda out: out[:1]}, InputError, r"got a tensor of shape \(1, 3\)"),
        ({"test": (X, Y + 1)}, LabelError, r"labels of test: expected labels in 0 … 2 \(3 classes\), got 3"),
        ({"test": (X[:, :5], Y)}, FeatureError, "expected 12 features per sample as in the first batch, got 5"),
    ],
)
def test_wrong_options_are_told(how: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        probe(**how)


def test_class_numbers_may_be_arrays() -> None:
    for classes in (torch.tensor([0, 2]), np.array([0, 2]), {0, 2}, range(0, 3, 2)):
        assert probe(classes=classes).classes == ["0", "2"]


def test_a_shape_is_no_example() -> None:
    for shape in ((3, 12), [3, 12], torch.Size([3, 12])):
        with pytest.raises(InputError, match=r"example: expected inputs, got a shape \(3, 12\). Use torch.randn"):
            ll.sites(network(), shape)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", Y), "features: expected numbers, got 'a'"),
        ((None, Y), "features: expected numbers, got None"),
        ((X, ["a", "b", "c"] * 30), r"labels: expected numbers, got words. Number the classes from 0"),
        (([[1.0, 2.0], [3.0]], [0, 1]), "features: expected numbers, got rows of different length"),
        ((X.to("meta"), Y), "features: expected numbers, got a tensor on the meta device"),
        ((X[:0], Y[:0]), "labels: expected at least one label, got none"),
    ],
)
def test_features_at_hand_that_are_no_numbers_are_told(arguments: tuple, words: str) -> None:
    for function in (ll.nc1, ll.measure):
        with pytest.raises(InputError, match=words):
            function(*arguments)
    with pytest.raises(InputError, match="classes: expected a whole number of at least 2, got '3'"):
        ll.nc1(X, Y, classes="3")
    with pytest.raises(FeatureError, match="classifier: expected numbers, got 'w'"):
        ll.measure(X, Y, classifier="w")
