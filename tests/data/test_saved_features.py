"""Folders of features: what is wrong with one is said, with the file."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layerlaw.data.saved_features import load_features
from layerlaw.errors import DataError


def layer(folder: Path, name: str = "layer1") -> None:
    np.save(folder / f"{name}.npy", np.zeros((6, 2)))


def labels(folder: Path) -> None:
    np.save(folder / "labels.npy", np.arange(6) % 2)


def test_a_file_stays_on_the_disk_and_is_never_written_to(tmp_path: Path) -> None:
    layer(tmp_path)
    labels(tmp_path)
    found = load_features(tmp_path)
    assert isinstance(found.features["layer1"], np.memmap)
    before = (tmp_path / "layer1.npy").read_bytes()
    found.features["layer1"][:] = 7.0
    assert (tmp_path / "layer1.npy").read_bytes() == before


def write_objects(folder: Path) -> None:
    np.save(folder / "layer1.npy", np.array([{"a": 1}]), allow_pickle=True)


def write_pickle(folder: Path) -> None:
    (folder / "layer1.npy").write_bytes(pickle.dumps([1, 2, 3]))


def write_half(folder: Path) -> None:
    layer(folder)
    content = (folder / "layer1.npy").read_bytes()
    (folder / "layer1.npy").write_bytes(content[:-20])


def write_twice(folder: Path) -> None:
    layer(folder)
    save = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed").save_file
    save({"layer1": np.zeros((6, 2))}, folder / "more.safetensors")


def write_names(folder: Path) -> None:
    layer(folder)
    labels(folder)
    (folder / "classes.txt").write_bytes(b"caf\xe9\n")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda folder: None, "got no features: there are no such files"),
        (labels, "got no features: there are labels"),
        (layer, "got no labels: there are layer1"),
        (write_objects, "layer1.npy: expected an array"),
        (write_pickle, "layer1.npy: expected an array"),
        (write_half, "layer1.npy: expected an array"),
        (write_twice, "more.safetensors: expected each name once.*'layer1' again"),
        (
            lambda folder: np.save(folder / "layer1.npy", np.array(["a"])),
            "expected an array of numbers, got one of <U1",
        ),
        (lambda folder: (folder / "layer1.safetensors").write_bytes(b"12"), "layer1.safetensors: expected a header"),
        (write_names, "classes.txt: expected a text file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, write: Callable[[Path], object], words: str) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match=words):
        load_features(tmp_path)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a folder of features.*found nothing there"):
        load_features(tmp_path / "none")
