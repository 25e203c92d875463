"""Features that another program has computed give the record that a probe of their network would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.errors import FeatureError, InputError, LabelError
from layerlaw.verdict import judge


class Known:
    """A small network, its data, and the features that it has."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.y = torch.arange(240) % 3
        self.x = torch.randn(240, 8) + 2 * nn.functional.one_hot(self.y, 8)
        self.network = nn.Sequential(
            nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3)
        )
        self.sites = ("1", "3", "5")

    def features(self, x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            return {name: self.network[: int(name) + 1](x) for name in self.sites}

    def logits(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network(x)


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


def record_of(features: Any, labels: Any = None, **how: Any) -> ll.Record:
    return ll.record_of(features, labels, progress=False, **how)


def numbers(record: ll.Record) -> list[Any]:
    return [(site.name, site.values, site.by_class, site.plane, site.in_fit) for site in record.sites]


def test_the_record_is_that_of_a_probe_of_the_network(known: Known) -> None:
    half = known.x[:90], known.y[:90]
    probed = ll.probe(
        known.network, (known.x, known.y), test=half, sites=list(known.sites), linear=True, progress=False
    )
    arrays = {name: values.numpy() for name, values in known.features(known.x).items()}
    test = known.features(half[0]), half[1].tolist(), known.logits(half[0])
    weight = known.network[-1].weight.detach().numpy()
    given: Any = {"logits": known.logits(known.x).numpy(), "test": test, "classifier": weight}
    found = record_of(arrays, known.y.numpy(), linear=True, **given)
    assert numbers(found) == numbers(probed)
    assert (found.accuracy, found.test_accuracy) == (probed.accuracy, probed.test_accuracy)
    assert found.plane_labels == probed.plane_labels
    expected = {
        "separation_log_se",
        "separation_permuted",
        "nc1",
        "ncc_mismatch",
        "nc3",
        "separation_linear",
        "test_separation",
    }
    assert expected <= set(found.columns)
    assert found.law().rho == probed.law().rho


def test_it_is_judged_shown_and_saved_like_any_record(known: Known, tmp_path: Path) -> None:
    found = record_of(known.features(known.x), known.y, name="from elsewhere", data_name="toy data")
    assert found.name == "from elsewhere"
    assert found.provenance["model"] == "features at hand"
    assert not {"parameters", "parameters_sha256"} & found.provenance.keys()
    assert any("no logits were given" in note for note in found.notes)
    assert judge(found).headline
    assert ll.Record.load(found.save(tmp_path / "record.json")).to_dict() == found.to_dict()
    assert "from elsewhere" in ll.report(found, tmp_path / "page.html").read_text(encoding="utf-8")


def test_features_that_do_not_fit_the_memory_are_streamed_to_the_same_numbers(known: Known) -> None:
    features = {name: x.repeat(9, 1).double() for name, x in known.features(known.x).items()}
    labels = known.y.repeat(9)
    kept = record_of(features, labels, uncertainty=False)
    streamed = record_of(features, labels, uncertainty=False, memory_gib=1e-4)
    assert kept.settings["one_forward"]
    assert not streamed.settings["one_forward"]
    np.testing.assert_allclose(streamed.column("separation"), kept.column("separation"), rtol=1e-9)


def test_features_of_many_axes_are_flattened(known: Known) -> None:
    images = torch.randn(60, 2, 3, 4, generator=torch.Generator().manual_seed(1))
    found = record_of({"conv": images}, known.y[:60], uncertainty=False)
    assert found.sites[0].shape == (2, 3, 4)
    assert found.column("separation")[0] == pytest.approx(ll.separation_fuzziness(images.flatten(1), known.y[:60]))


class Foreign:
    """An array of a library that torch does not know: it tells its numbers by __array__."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)


class Shared:
    """An array that can be shared by DLPack alone."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __dlpack__(self, **how: Any) -> Any:
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


@pytest.mark.parametrize("made", [lambda x: Foreign(x.numpy()), Shared], ids=["__array__", "dlpack"])
def test_arrays_of_other_libraries_are_taken(known: Known, made: Any) -> None:
    features = known.features(known.x)
    plain = record_of(features, known.y)
    found = record_of({name: made(x) for name, x in features.items()}, made(known.y))
    assert numbers(found) == numbers(plain)
    assert ll.nc1(made(features["1"]), made(known.y)) == ll.nc1(features["1"], known.y)


def test_arrays_of_jax_are_taken(known: Known) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    numpy, features = jax.numpy, known.features(known.x)
    jax.config.update("jax_default_device", jax.devices("cpu")[0])  # where the other arrays are, too
    found = record_of({name: numpy.asarray(x.numpy()) for name, x in features.items()}, numpy.asarray(known.y.numpy()))
    assert numbers(found) == numbers(record_of(features, known.y))
    half = record_of({"1": numpy.asarray(features["1"].numpy(), numpy.bfloat16)}, known.y, uncertainty=False)
    assert half.column("separation")[0] == pytest.approx(found.column("separation")[0], rel=0.02)


def test_targets_are_regressed(known: Known) -> None:
    targets = known.x[:, :2]
    found = record_of(known.features(known.x), targets, logits=known.logits(known.x)[:, :2])
    probed = ll.probe(known.network[:6], (known.x, targets), sites=list(known.sites), scores=None, progress=False)
    assert found.column("target_separation") == probed.column("target_separation")
    assert found.r_squared is not None


def test_class_numbers_as_floats_are_told_to_be_taken_as_a_target(known: Known) -> None:
    found = record_of(known.features(known.x), known.y.double().numpy())
    assert any("taken as a regression target; pass integer labels for classes" in note for note in found.notes)


def test_layers_are_chosen_and_ordered_by_name(known: Known) -> None:
    found = record_of(known.features(known.x), known.y, sites=["5", "[13]"], uncertainty=False)
    assert [site.name for site in found.sites] == ["5", "1", "3"]


def saved(folder: Path, known: Known, how: str) -> None:
    (folder / "test").mkdir(parents=True)
    for place, rows in ((folder, slice(None)), (folder / "test", slice(0, 90))):
        arrays = {f"layer{name}": x for name, x in known.features(known.x[rows]).items()}
        arrays["layer10"] = arrays.pop("layer5")
        arrays |= {"labels": known.y[rows], "logits": known.logits(known.x[rows])}
        if how == "npy":
            for name, values in arrays.items():
                np.save(place / f"{name}.npy", values.numpy())
        else:
            torch_files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
            torch_files.save_file(
                {name: values.contiguous() for name, values in arrays.items()}, place / "all.safetensors"
            )
    (folder / "classes.txt").write_text("cat\ndog\nowl\n", encoding="utf-8")


@pytest.mark.parametrize("how", ["npy", "safetensors"])
def test_a_folder_of_files_gives_the_same_record(known: Known, tmp_path: Path, how: str) -> None:
    folder = tmp_path / "resnet"
    saved(folder, known, how)
    found = record_of(folder)
    assert [site.name for site in found.sites] == ["layer1", "layer3", "layer10"]
    assert found.classes == ["cat", "dog", "owl"]
    assert found.name == "resnet"
    test = known.features(known.x[:90]), known.y[:90], known.logits(known.x[:90])
    plain = record_of(known.features(known.x), known.y, logits=known.logits(known.x), test=test)
    assert [row[1:] for row in numbers(found)] == [row[1:] for row in numbers(plain)]
    assert (found.accuracy, found.test_accuracy) == (plain.accuracy, plain.test_accuracy)


X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.arange(12) % 3


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: record_of(X, Y),
            InputError,
            "expected arrays by the names of their layers.*got ndarray.*'layer1': array",
        ),
        (lambda: record_of({}, Y), InputError, "at least one layer, got none"),
        (lambda: record_of({3: X}, Y), InputError, "expected names of layers, got 3"),
        (lambda: record_of({"a": X}), LabelError, "expected labels, one for each row of features, got none"),
        (lambda: record_of({"a": X, "b": X[:5]}, Y), LabelError, "of 'b': expected a row for each of 12 labels, got 5"),
        (lambda: record_of({"a": X[:, 0]}, Y), FeatureError, r"of 'a'.*shape \(n, d\).*column"),
        (lambda: record_of({"a": X.astype(int)}, Y), FeatureError, "of 'a': expected floating-point numbers"),
        (lambda: record_of({"a": np.where(X > 1, np.nan, X)}, Y), FeatureError, "'a'.*NaN"),
        (lambda: record_of({"a": X}, Y, sites=["b*"]), InputError, "'b\\*' matches no layer of 'a'"),
        (lambda: record_of({"a": X}, Y, test=X), InputError, r"test: expected \(features, labels\)"),
        (lambda: record_of({"a": X}, Y, test=({"b": X}, Y)), FeatureError, "test: expected features of 'a', got 'b'"),
        (lambda: record_of({"a": X}, Y, test=({"a": X[:, :2]}, Y)), FeatureError, r"test of 'a': expected \(4,\)"),
        (lambda: record_of({"a": X}, Y, logits=X[:5]), FeatureError, r"expected logits of shape \(12, K\)"),
        (
            lambda: record_of({"a": X}, Y, logits=X[:, :3], test=({"a": X}, Y)),
            InputError,
            "of the training data alone",
        ),
        (lambda: record_of({"a": X}, Y, classifier=X[:3]), InputError, "expected together with logits"),
        (
            lambda: record_of({"a": X}, Y, classifier=X[:3, :2], logits=X[:, :3]),
            FeatureError,
            r"expected a weight \(K, 4\)",
        ),
        (lambda: record_of({"a": X}, np.array(list("abc") * 4)), LabelError, "Number the classes from 0"),
        (lambda: record_of({"a": X}, X[:, 0], linear=True), InputError, "linear: D_lin is the least D of classes"),
    ],
)
def test_bad_input_is_answered(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
