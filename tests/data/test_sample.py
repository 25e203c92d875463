import hashlib
import runpy
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from layerlaw.data import DEFAULT, load, mnist
from layerlaw.errors import DataError

ROOT = Path(__file__).parents[2]
SHIPPED = files("layerlaw.data").joinpath("sample", mnist.SAMPLE_FILE)


def test_the_sample_is_the_default_and_has_500_and_200_images_per_class() -> None:
    assert DEFAULT == "fashion_mnist_sample"
    assert load().counts() == (500,) * 10
    assert load(split="test").counts() == (200,) * 10
    assert load().images.shape == (5000, 1, 28, 28)


def test_the_shipped_file_is_small_and_its_sha256_is_fixed() -> None:
    content = SHIPPED.read_bytes()
    assert len(content) <= 4_000_000
    assert hashlib.sha256(content).hexdigest() == mnist.SAMPLE_SHA256


def test_the_shipped_file_needs_no_pickle_and_has_four_arrays() -> None:
    with np.load(Path(str(SHIPPED)), allow_pickle=False) as arrays:
        assert {name: (arrays[name].shape, arrays[name].dtype.name) for name in arrays} == {
            "train_images": ((5000, 28, 28), "uint8"),
            "train_labels": ((5000,), "uint8"),
            "test_images": ((2000, 28, 28), "uint8"),
            "test_labels": ((2000,), "uint8"),
        }


def test_the_license_lies_beside_it() -> None:
    license = files("layerlaw.data").joinpath("sample", "LICENSE").read_text()
    assert "MIT" in license
    assert "Copyright (c) 2017 Zalando SE" in license


def test_a_damaged_sample_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "SAMPLE_SHA256", "0" * 64)
    with pytest.raises(DataError, match="the installation is damaged, install it again"):
        load()


@pytest.mark.shared
def test_the_recipe_makes_the_shipped_sample_and_the_same_bytes_twice(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = runpy.run_path(str(ROOT / "scripts" / "embed_sample.py"))
    monkeypatch.setattr(
        sys, "argv", ["embed_sample.py", str(shared / "fashion_mnist"), "--out", str(tmp_path / "one.npz")]
    )
    recipe["main"]()
    recipe["write_npz"](tmp_path / "two.npz", recipe["arrays"](shared / "fashion_mnist"))
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    # Arrays, not bytes: another compressor may pack the same arrays into other bytes.
    with np.load(tmp_path / "one.npz") as ours, np.load(Path(str(SHIPPED))) as shipped:
        assert sorted(ours) == sorted(shipped)
        assert all(np.array_equal(ours[name], shipped[name]) for name in ours)


@pytest.mark.shared
def test_the_sample_is_the_beginning_of_each_class(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERLAW_DATA", str(shared))
    assert load("fashion_mnist", split="test").balanced(200).checksum() == load(split="test").checksum()
    assert load("fashion_mnist").balanced(100).checksum() == load().balanced(100).checksum()
