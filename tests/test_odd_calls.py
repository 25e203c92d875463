"""Odd calls of every public function: refused with an error of ours that says why, or they work; no foreign traceback."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from capture_networks import clouds
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll
from layerlaw.errors import LayerlawError

X, Y = clouds(90, 12)
NAN, INF = math.nan, math.inf
# What an answer says: what was expected, or why what came cannot be measured.
SAYS = re.compile(
    r"expected|cannot|matches no|no site found|Does it take|coincide|holds no|which axis"
    r"|statistics need|is kept from slice to slice needs"
)
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:Sparse", "ignore:Casting complex")


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


def module(forward: Callable[..., Any]) -> nn.Module:
    """A network of which nothing is known but its forward."""
    return type("Odd", (nn.Module,), {"forward": lambda self, x: forward(x)})()


def spoilt(value: float) -> nn.Module:
    made = network()
    made[0].weight.data.fill_(value)
    return made


def probe(data: Any = (X, Y), model: Any = "network", **how: Any) -> ll.Record:
    return ll.probe(network() if model == "network" else model, data, **{"progress": False, **how})


def answer(call: Callable[[], object]) -> str:
    """What an error of ours says; anything else that is raised fails the test."""
    with pytest.raises(LayerlawError) as caught:
        call()
    text = str(caught.value)
    assert SAYS.search(text), text
    assert "Traceback" not in text
    return text


DATA: dict[str, Callable[[], Any]] = {
    "a generator": lambda: ((X[i : i + 30], Y[i : i + 30]) for i in (0, 30, 60)),
    "a zip": lambda: zip(X.split(30), Y.split(30), strict=True),
    "an iterator of a loader": lambda: iter(DataLoader(TensorDataset(X, Y), 30)),
    "an empty list": list,
    "an empty tuple": tuple,
    "an empty dictionary": dict,
    "empty tensors": lambda: (X[:0], Y[:0]),
    "no labels": lambda: (X, None),
    "no inputs": lambda: (None, Y),
    "a number": lambda: 5,
    "a fraction": lambda: 2.5,
    "a function": lambda: len,
    "a path": lambda: Path("data"),
    "bytes": lambda: b"abc",
    "a set": lambda: {1, 2},
    "a network": network,
    "a class": lambda: TensorDataset,
    "a list of numbers": lambda: [1, 2, 3],
    "a list of nothing": lambda: [None, None],
    "a list of words": lambda: ["a", "b"],
    "NaN inputs": lambda: (X * NAN, Y),
    "infinite inputs": lambda: (X / 0, Y),
    "one class": lambda: (X, Y * 0),
    "one sample of each class": lambda: (X[:3], torch.arange(3)),
    "one sample": lambda: (X[:1], Y[:1]),
    "fewer labels than inputs": lambda: (X, Y[:50]),
    "negative labels": lambda: (X, Y - 1),
    "large labels": lambda: (X, Y + 100),
    "labels of more axes": lambda: (X, torch.zeros(90, 2, 2)),
    "labels without columns": lambda: (X, torch.zeros(90, 0)),
    "a single number as inputs": lambda: (torch.tensor(1.0), Y),
    "whole-number inputs": lambda: ((X * 10).long(), Y),
    "truth values as inputs": lambda: (X > 0, Y),
    "complex inputs": lambda: (X.to(torch.complex64), Y),
    "half precision inputs": lambda: (X.half(), Y),
    "sparse inputs": lambda: (X.to_sparse(), Y),
    "sparse labels": lambda: (X, Y.to_sparse()),
    "nested inputs": lambda: (torch.nested.nested_tensor([X[0], X[1]]), Y[:2]),
    "meta inputs": lambda: (X.to("meta"), Y),
    "meta labels": lambda: (X, Y.to("meta")),
    "objects as inputs": lambda: (np.array([None] * 90), Y),
    "words as inputs": lambda: (np.array(["a"] * 90), Y),
    "other inputs in a later batch": lambda: [(X[:30], Y[:30]), (X[30:60, :5], Y[30:60])],
    "other labels in a later batch": lambda: [(X[:30], Y[:30]), (X[30:60], Y[30:60].float())],
    "an empty later batch": lambda: [(X, Y), (X[:0], Y[:0])],
    "NaN targets": lambda: (X, torch.full((90,), NAN)),
    "infinite targets": lambda: (X, torch.full((90,), INF)),
    "constant targets": lambda: (X, torch.ones(90, 3)),
    "more targets than samples": lambda: (X[:5], torch.randn(5, 9)),
    "soft labels": lambda: (X, torch.randn(90, 3).softmax(1)),
}


@pytest.mark.parametrize("case", DATA)
def test_odd_data_are_refused(case: str) -> None:
    answer(lambda: probe(DATA[case]()))
    if case not in ("no labels", "an empty tuple", "a network", "a class"):
        answer(lambda: probe(test=DATA[case]()))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32])
def test_whole_numbers_of_every_size_are_labels(dtype: torch.dtype) -> None:
    assert probe((X, Y.to(dtype))).column("separation") == probe().column("separation")
    assert ll.nc1(X, Y.to(dtype)) == ll.nc1(X, Y)


MODELS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a name": lambda: "resnet18",
    "a function": lambda: lambda x: x,
    "a list": lambda: [network()],
    "a state": lambda: network().state_dict(),
    "without layers": nn.Sequential,
    "without a forward": nn.Module,
    "a list of modules": lambda: nn.ModuleList([nn.Linear(12, 3)]),
    "for images": lambda: nn.Conv2d(3, 3, 3),
    "for tokens": lambda: nn.Embedding(5, 3),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3)),
    "in double precision": lambda: network().double(),
    "in half precision": lambda: network().half(),
    "with NaN weights": lambda: spoilt(NAN),
    "with infinite weights": lambda: spoilt(INF),
    "on the meta device": lambda: network().to("meta"),
    "that fails with a KeyError": lambda: module(lambda x: {}["a"]),
    "that fails with an AssertionError": lambda: module(lambda x: pytest.fail("no") if x is None else [][0]),
    "that gives a number": lambda: module(lambda x: 3),
    "that takes nothing": lambda: type("Odd", (nn.Module,), {"forward": lambda self: 3})(),
}


@pytest.mark.parametrize("case", MODELS)
def test_odd_models_are_refused(case: str) -> None:
    answer(lambda: probe(model=MODELS[case]()))
    if not case.startswith("with "):  # a dry run does not look at the numbers
        answer(lambda: ll.sites(MODELS[case](), X))


OPTIONS: dict[str, list[Any]] = {
    "sites": ["nothing", None, 3, [], "[", {}, [["0"]], nn.Conv2d, int, lambda name, module: 1 / 0, lambda name: True],
    "reduce": ["sum", None, ["mean"]],
    "batchnorm": ["x", None, 3],
    "batch_size": [0, -3, NAN, True, "x", 1],
    "device": ["gpu", "cuda:99", "meta", "", "None", -1, 1.5, {}],
    "classes": [
        1, 0, -3, 10**9, NAN, True, "abc", [], {}, [0, 0], [0, 9], [0.5, 1], ["a", 1], ["a", "b"], {None: "a"}, {"a": "b"},
        torch.eye(2), {"a": 0, "b": 0},
    ],
    "scores": ["logits", 5, [], True, 1.5, lambda output: None, lambda output: "x", lambda output: output.argmax(1), int],
    "labels": [5, 0.5, [1], True, "label"],
    "weighting": ["x", 3, None],
    "uncertainty": ["x", 7, []],
    "memory_gib": [0, -1, NAN, 1e-9, "x", None, True],
    "seed": [-1, 1.5, None, "x", 2**70],
    "progress": ["x", 3, [], int, list, nn.Linear, network(), len, print, lambda: None, lambda items: items],
    "null": ["x", None],
    "linear": ["x", None],
    "parts": ["x", None],
    "data_name": [None, 3],
    "test": [5, "x", (X[:, :5], Y), (X, Y * 0), (X, Y + 0.5)],
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_odd_options_of_a_probe_are_refused(option: str) -> None:
    for value in OPTIONS[option]:
        answer(lambda value=value: probe(**{option: value}))


EXITS: dict[str, list[Any]] = {
    **{
        name: OPTIONS[name]
        for name in ("sites", "reduce", "batch_size", "device", "scores", "labels", "seed", "progress")
    },
    "memory_gib": [0, -1, NAN, "x", None, True],  # the least of them trains no linear read-out, and says so
    "test": [5, "x", (X[:, :5], Y), (X, Y + 0.5), (X * NAN, Y), (X / 0, Y)],
    "tolerance": [-1, 1, NAN, "x", None, True],
    "times": [None, 3, "ab", (0,), (-1,), (1.5,), ("x",), [True]],
    "by": [None, 3, []],
    "within": [None, 3, []],
}


@pytest.mark.parametrize("option", EXITS)
def test_odd_options_of_an_early_exit_are_refused(option: str) -> None:
    for value in EXITS[option]:
        how = {"test": (X, Y), "times": (), "progress": False, option: value}
        answer(lambda how=how: ll.early_exit(network(), (X, Y), **how))


@pytest.mark.parametrize("case", [case for case in DATA if case != "one sample of each class"])
def test_odd_data_of_an_early_exit_are_refused(case: str) -> None:
    answer(lambda: ll.early_exit(network(), DATA[case](), test=(X, Y), times=(), progress=False))


def test_options_that_are_only_unusual_work() -> None:
    expected = probe().column("separation")
    for how in (
        {"memory_gib": INF},
        {"batch_size": 10**12},
        {"seed": 2**63 - 1},
        {"classes": np.int64(3)},
        {"labels": -1},
    ):
        assert probe(**how).column("separation") == pytest.approx(expected), how


EXAMPLES: dict[str, Callable[[], Any]] = {
    "a shape": lambda: (3, 12),
    "nothing": lambda: None,
    "a word": lambda: "x",
    "a number": lambda: 3,
    "one sample": lambda: X[:1],
    "no sample": lambda: X[:0],
    "a single number": lambda: torch.tensor(1.0),
    "a single number of NumPy": lambda: np.array(3.0),
    "other inputs": lambda: X[:, :5],
    "an empty list": list,
    "an empty dictionary": dict,
    "a dictionary of numbers": lambda: {"x": 3},
    "a dictionary of nothing": lambda: {"x": None},
    "a list of lists": lambda: [[1.0, 2.0]],
    "a generator": lambda: (x for x in X),
    "objects": lambda: np.array([None, None]),
    "complex numbers": lambda: X.to(torch.complex64),
    "a sparse tensor": lambda: X.to_sparse(),
    "the meta device": lambda: X.to("meta"),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_odd_examples_of_a_dry_run_are_refused(case: str) -> None:
    answer(lambda: ll.sites(network(), EXAMPLES[case]()))


FEATURES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "one axis": lambda: (X[:, 0], Y),
    "single numbers": lambda: (torch.tensor(1.0), torch.tensor(0)),
    "fewer labels": lambda: (X, Y[:5]),
    "labels that are fractions": lambda: (X, Y.float()),
    "labels of two axes": lambda: (X, Y[:, None]),
    "negative labels": lambda: (X, Y - 1),
    "one class": lambda: (X, Y * 0),
    "one of each": lambda: (X[:3], torch.arange(3)),
    "NaN": lambda: (X * NAN, Y),
    "infinity": lambda: (X / 0, Y),
    "no samples": lambda: (X[:0], Y[:0]),
    "no features": lambda: (X[:, :0], Y),
    "nothing": lambda: (None, None),
    "no labels": lambda: (X, None),
    "words": lambda: ("a", "b"),
    "dictionaries": lambda: ({}, {}),
    "sets": lambda: ({1}, {2}),
    "a generator": lambda: ((x for x in X), Y),
    "whole numbers": lambda: ((X * 10).long(), Y),
    "truth values": lambda: (X > 0, Y),
    "complex numbers": lambda: (X.to(torch.complex64), Y),
    "objects": lambda: (np.array([[None]] * 90), Y),
    "dates": lambda: (np.array(["2020-01-01"] * 90, dtype="datetime64[D]")[:, None], Y),
    "a sparse tensor": lambda: (X.to_sparse(), Y),
    "sparse labels": lambda: (X, Y.to_sparse()),
    "the meta device": lambda: (X.to("meta"), Y),
    "labels on the meta device": lambda: (X, Y.to("meta")),
    "four axes": lambda: (X.reshape(90, 3, 2, 2), Y),
}


@pytest.mark.parametrize("case", FEATURES)
@pytest.mark.parametrize("function", [ll.measure, ll.separation_fuzziness, ll.nc1, ll.ncc_accuracy, ll.cdnv])
def test_odd_features_at_hand_are_refused(case: str, function: Callable[..., Any]) -> None:
    answer(lambda: function(*FEATURES[case]()))


@pytest.mark.parametrize(
    "how",
    [
        {"classes": 0}, {"classes": 2}, {"classes": 3.0}, {"weighting": "x"}, {"decision": Y[:5]}, {"decision": "x"},
        {"classifier": torch.randn(3, 5)}, {"classifier": torch.full((3, 12), NAN)}, {"classifier": None, "classes": "3"},
    ],
)  # fmt: skip
def test_odd_options_of_measures_are_refused(how: dict[str, Any]) -> None:
    answer(lambda: ll.measure(X, Y, **how))


@pytest.fixture(scope="module")
def record() -> ll.Record:
    return probe()


def changed(record: ll.Record, value: float | None) -> ll.Record:
    made = ll.Record.from_dict(record.to_dict())
    for site in made.sites:
        site.values["separation"] = value
    return made


LAWS: list[dict[str, Any]] = [
    {"column": "nothing"}, {"column": "ncc_accuracy"}, {"column": 3}, {"column": ["separation"]}, {"first": "x"},
    {"first": 99}, {"first": -1}, {"first": 1.5}, {"first": True}, {"first": 2, "last": 1}, {"last": []}, {"drop_last": 99},
    {"drop_last": -1}, {"drop_last": 1.5}, {"drop_last": "x"}, {"drop_last": None},
]  # fmt: skip


@pytest.mark.parametrize("how", LAWS, ids=str)
def test_odd_laws_of_a_record_are_refused(record: ll.Record, how: dict[str, Any]) -> None:
    answer(lambda: record.law(**how))
    answer(lambda: record.law_errors(**how))


def test_odd_questions_to_a_record_are_refused(record: ll.Record) -> None:
    for value in (NAN, None, 0.0, -1.0, INF):
        answer(lambda value=value: changed(record, value).law())
    for column in ("x", None, [], 3):
        answer(lambda column=column: record.column(column))
    for epsilon in ("x", NAN, -1, None):
        answer(lambda epsilon=epsilon: record.effective_depth(epsilon))
    for site in ("x", None, 99, True):
        answer(lambda site=site: record.position(site))
    bare = ll.Record("bare", [], [])
    answer(bare.law)
    assert "0 sites" in str(bare)


@pytest.mark.parametrize(
    "values",
    [
        [], [1.0], "abc", None, 5, {}, [1, -1, 2], [1, 0, 2], [1, NAN], [1, INF], ["a", "b"], [None, 1], [1j, 2],
        torch.rand(3, 3), [[1.0, 2.0]],
    ],
    ids=str,
)  # fmt: skip
def test_odd_values_of_a_law_are_refused(values: Any) -> None:
    answer(lambda: ll.fit_law(values))


FILES: dict[str, bytes] = {
    "empty.json": b"",
    "cut.json": b'{"format": "layerlaw rec',
    "list.json": b"[]",
    "number.json": b"3",
    "other.json": b'{"format": "x"}',
    "bare.json": b'{"format": "layerlaw record"}',
    "bytes.json": b"\xff\xfe\x00\x80",
    "newer.json": b'{"format": "layerlaw record", "version": 99}',
    "wrong.json": b'{"format": "layerlaw record", "version": 2, "name": "x", "sites": 3, "classes": []}',
    "rows.json": b'{"format": "layerlaw record", "version": 2, "name": "x", "sites": [{"name": 3}], "classes": []}',
}


@pytest.mark.parametrize("name", FILES)
def test_unreadable_records_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    assert name in answer(lambda: ll.Record.load(tmp_path / name))


@pytest.mark.parametrize("path", ["nowhere/record.json", ".", "", None, 3, [], b"record.json"], ids=str)
def test_odd_places_of_files_are_refused(path: Any, record: ll.Record, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    answer(lambda: ll.Record.load(path))
    answer(lambda: record.save(path))
    answer(lambda: ll.report(record, path))


@pytest.mark.parametrize("data", [None, [], {}, "x", 3, {"format": "layerlaw record", "version": "2"}], ids=str)
def test_odd_plain_data_are_no_record(data: Any) -> None:
    answer(lambda: ll.Record.from_dict(data))


@pytest.mark.parametrize(
    "given", [None, "x", 3, [], [None], {}, Path("x"), ll.Record, X], ids=lambda v: type(v).__name__
)
def test_what_is_no_record_cannot_be_drawn_reported_or_searched(given: Any, record: ll.Record, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("matplotlib")
    for function in (ll.plot, lambda one: ll.report(one, tmp_path / "page.html"), ll.find_modules):
        answer(lambda function=function: function(given))
        if function is not ll.find_modules:
            answer(lambda function=function: function([record, given]))
    answer(lambda: ll.find_modules(record, given))


def test_records_that_hold_too_little_are_told(record: ll.Record, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bare = ll.Record("bare", [], [])
    for one in (bare, changed(record, None), changed(record, NAN)):
        answer(lambda one=one: ll.plot(one))
        answer(lambda one=one: ll.find_modules(one))
    answer(ll.find_modules)
    for how in ({"column": "x"}, {"column": 3}, {"ax": 3}):
        answer(lambda how=how: ll.plot(record, **how))
    assert ll.plot([record, record]) is not None


def test_odd_untrained_copies_are_refused() -> None:
    for model in (None, "x", network().to("meta"), [network()]):
        answer(lambda model=model: ll.untrained(model))
    for seed in ("x", -1, 1.5, None, 2**70):
        answer(lambda seed=seed: ll.untrained(network(), seed=seed))


def test_a_record_survives_a_file_with_unknown_fields(record: ll.Record, tmp_path: Path) -> None:
    data = json.loads(record.save(tmp_path / "record.json").read_text(encoding="utf-8")) | {"more": [1, 2]}
    (tmp_path / "more.json").write_text(json.dumps(data), encoding="utf-8")
    assert ll.Record.load(tmp_path / "more.json").column("separation") == record.column("separation")
