"""Plain bad arguments: every one is answered by an error of ours that names the argument and what it must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import layerlaw as ll
from layerlaw import data, lab, lm
from layerlaw.errors import Demand, LayerlawError, demand, whole

X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
ODD: list[Any] = [1.5, "ab", "8", None, -1, 0, True, 2**70, float("nan"), float("inf"), [1.5], object(), b"x", 1j, {}]
FINE = {  # what of these some argument takes
    "classes": [None],
    "memory_gib": [1.5, float("inf"), 2**70],
    "batch_size": [None, 2**70],
    "seed": [0],
    "uncertainty": [None, True, 0, False],
    "null": [True, 0],
    "linear": [True, 0],
    "parts": [True, 0],
    "size": [None],
    "channels": [None],
    "balanced seed": [None, 0],
    "per_class": [],
    "characters": [],
    "depth": [],
    "at hand": [None],
}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def probed(**options: Any) -> object:
    return ll.probe(small(), (X, Y), progress=False, **options)


SHORT = Path(data.__file__)  # of text, at any rate
SAMPLE = data.load(split="test").balanced(2)
CALLS: dict[str, Callable[[Any], object]] = {
    **{
        name: lambda value, name=name: probed(**{name: value})  # type: ignore[misc]
        for name in ("classes", "memory_gib", "batch_size", "seed", "uncertainty", "null", "linear", "parts")
    },
    "at hand": lambda value: ll.measure(X, Y, classes=value),
    "size": lambda value: data.load(split="test", size=value) if value is None else SAMPLE.resized(value),
    "channels": lambda value: None if value is None else SAMPLE.with_channels(value),
    "per_class": SAMPLE.balanced,
    "balanced seed": lambda value: SAMPLE.balanced(1, seed=value),
    "characters": lambda value: data.load_text(SHORT, characters=value),
    "depth": lambda value: lab.FeedForward(inputs=4, width=8, depth=value, classes=3),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_odd_value_is_taken_or_answered(name: str) -> None:
    for value in ODD:
        taken = any(value is fine or (type(value) is type(fine) and value == fine) for fine in FINE[name])
        if taken:
            CALLS[name](value)
            continue
        with pytest.raises(LayerlawError) as caught:
            CALLS[name](value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["vocabulary", "width", "depth", "heads", "context"])
def test_sizes_of_a_text_model_are_whole_numbers_that_memory_could_hold(name: str) -> None:
    plain: dict[str, Any] = {"vocabulary": 50, "width": 16, "depth": 1, "context": 8, "heads": 2}
    for value in (1.5, "8", None, -1, 0, True, 2**70, float("nan"), [1]):
        with pytest.raises(LayerlawError, match=f"{name}: expected a whole number"):
            lab.GPT(**{**plain, name: value})


@pytest.mark.parametrize("call", ["class_names", "jackknife"])
def test_an_argument_that_has_moved_says_where(call: str) -> None:
    with pytest.raises(TypeError, match=f"probe: '{call}' is now"):
        probed(**{call: "yes"})


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::-1],
        lambda x: x.astype(x.dtype.newbyteorder(">")),
        lambda x: np.asfortranarray(x)[::-1],
        lambda x: x.astype(np.longdouble) if x.dtype.kind == "f" else x.astype(np.uint16),
    ],
    ids=["negative strides", "big-endian", "Fortran order", "other widths"],
)
def test_arrays_of_any_layout_are_measured_as_their_plain_copies(change: Callable[[Any], Any]) -> None:
    x, y = change(X.numpy()), change(Y.numpy())
    wide = torch.float64 if x.dtype == np.longdouble else torch.float32
    plain = torch.from_numpy(np.array(x, np.float64)).to(wide), torch.from_numpy(np.array(y, np.int64))
    assert ll.separation_fuzziness(x, y) == pytest.approx(ll.separation_fuzziness(*plain), rel=1e-6)
    exact = ll.separation_fuzziness(plain[0].double(), plain[1])
    for given in ((x, y), plain):
        record = ll.probe(small().to(wide), given, sites=["input"], progress=False)
        assert record.sites[0].values["separation"] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.tensor(1.0), torch.tensor(1)),
        (X.to_sparse(), Y),
        (X, Y.to_sparse()),
        (X.to("meta"), Y),
        (np.array([None] * 60), Y),
        (np.zeros(60, dtype=[("a", "f4")]), Y),
        (np.array(["2020"] * 60, dtype="M8[D]"), Y),
        (X, [2**70] * 60),
        (X, np.array(["a"] * 60)),
        (None, None),
    ],
    ids=["0-d", "sparse", "sparse labels", "meta", "objects", "structured", "dates", "huge", "words", "nothing"],
)
def test_data_without_plain_numbers_are_answered(x: Any, y: Any) -> None:
    for call in (ll.separation_fuzziness, ll.measure, lambda a, b: ll.probe(small(), (a, b), progress=False)):
        with pytest.raises(LayerlawError):
            call(x, y)


def test_features_of_8_bits_are_measured() -> None:
    x = X.to(torch.float8_e5m2)
    assert ll.separation_fuzziness(x, Y) == ll.separation_fuzziness(x.float(), Y)


@pytest.mark.parametrize(
    "read", [data.load, data.load_text, ll.Record.load, lab.load_text_model, lm.load], ids=lambda read: read.__module__
)
def test_paths_that_lead_nowhere_are_answered(read: Callable[[Any], object], tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, str(loop), "~nouser/x", "x" * 5000, "/" + "x" * 300, "/a" * 3000, None, 5, "a\0b", b"ab", 1.5,
                 ["a"], "/tmp/\ud800", tmp_path / "none"):  # fmt: skip
        with pytest.raises(LayerlawError) as caught:
            read(path)
        assert len(str(caught.value)) < 1000


def test_places_that_cannot_be_written_are_answered(tmp_path: Path) -> None:
    record = ll.probe(small(), (X, Y), progress=False)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, "~nouser/x.json", "x" * 5000, None, 5, "a\0b", b"ab", "/tmp/\ud800/x"):
        for save in (record.save, lambda place: ll.report(record, place)):
            with pytest.raises(LayerlawError):
                save(path)
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_a_home_folder_is_found_and_a_file_of_such_a_name_too(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    record = ll.probe(small(), (X, Y), progress=False)
    record.save("~/record.json")
    assert ll.Record.load(tmp_path / "record.json").sites == ll.Record.load("~/record.json").sites
    (tmp_path / "~odd.json").write_bytes((tmp_path / "record.json").read_bytes())
    assert ll.Record.load("~odd.json").name == record.name


def test_a_demand_is_stated_once_and_answers_whatever_comes() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    for value in (*ODD[:1], Hostile(), 10**5000, "x" * 10**6):
        with pytest.raises(LayerlawError, match="size: expected a whole number of at least 1, got") as caught:
            demand(size=(value, whole(1)))
        assert len(str(caught.value)) < 200
    demand(size=(3, whole(1)), sides=([1, 2], whole(1).each), seed=(None, whole(0).or_none))
    with pytest.raises(LayerlawError, match="data: even: expected an even number, got 3"):
        demand(LayerlawError, "data", even=(3, Demand("an even number", lambda value: value % 2 == 0)))


ARRAY = np.array([1, 2])
STRANGE: dict[str, Callable[[], object]] = {
    "batch_size array": lambda: probed(batch_size=ARRAY),
    "batch_size type": lambda: probed(batch_size=int),
    "sites array": lambda: probed(sites=ARRAY),
    "scores array": lambda: probed(scores=np.array([])),
    "classes type": lambda: probed(classes=int),
    "classes sparse": lambda: probed(classes=torch.eye(3).to_sparse()),
    "classes meta": lambda: probed(classes=torch.zeros(3, device="meta")),
    "device number": lambda: probed(device=2**70),
    "device bytes": lambda: probed(device=b"\xff"),
    "progress array": lambda: ll.probe(small(), (X, Y), progress=np.array([])),  # type: ignore[arg-type]
    "chosen_from": lambda: ll.fit_law([5.0, 3.0, 2.0, 1.0, 0.5], chosen_from=10**400),
    "law meta": lambda: ll.fit_law(torch.zeros(3, device="meta")),
    "title": lambda: ll.report(probed(), "o.html", title=torch.zeros(2)),  # type: ignore[arg-type]
    "a record without sides": lambda: ll.report(torch.tensor(3), "o.html"),  # type: ignore[arg-type]
    "ax": lambda: ll.plot(probed(), ax=3),  # type: ignore[arg-type]
    "column": lambda: probed().law(ARRAY),  # type: ignore[attr-defined]
    "split": lambda: data.load(split=np.array([])),  # type: ignore[arg-type]
    "channels": lambda: SAMPLE.with_channels(np.array([])),  # type: ignore[arg-type]
    "articles": lambda: data.load_text(SHORT, articles=ARRAY),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", STRANGE)
def test_arrays_and_types_in_the_place_of_numbers_and_words_are_answered(name: str) -> None:
    with pytest.raises(LayerlawError, match=r"expected|cannot compute"):
        STRANGE[name]()
