"""Prepared images: written whole, with a checksum, and whatever is wrong with them is told."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disk import full_disk
from layerlaw.data import Labeled, load
from layerlaw.errors import DataError
from layerlaw.experiments import setting
from layerlaw.packed import write_npz

AGAIN = r"Delete the file, and it is made again from the official ones\.$"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(setting.PREPARED, str(tmp_path / "prepared"))
    return tmp_path / "prepared"


def made() -> Labeled:
    return load(split="test").balanced(3).resized(6)


def refused() -> Labeled:
    raise AssertionError("made again")


def test_images_are_kept_and_come_back(folder: Path) -> None:
    first, again = setting._prepared("a", made), setting._prepared("a", refused)
    assert (first.images == again.images).all()
    assert (first.labels == again.labels).all()
    assert (first.class_names, first.name) == (again.class_names, again.name)
    assert [path.name for path in folder.iterdir()] == ["a.npz"]


def test_a_full_disk_leaves_nothing_that_later_runs_would_stumble_over(folder: Path) -> None:
    with full_disk(200), pytest.raises(DataError, match="expected space on the disk"):
        setting._prepared("a", refused)  # told before the work
    assert list(folder.iterdir()) == []
    assert len(setting._prepared("a", made)) == 30


def test_no_flipped_bit_changes_a_pixel(folder: Path) -> None:
    first = setting._prepared("a", made)
    path, draw = folder / "a.npz", random.Random(0)
    whole = path.read_bytes()
    for _ in range(80):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert (setting._prepared("a", refused).images == first.images).all()
        except DataError as error:
            assert "made again from the official ones" in str(error)  # noqa: PT017


IMAGES, LABELS = np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1], np.uint8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": np.full((4, 1, 2, 2), np.nan)}, "prepared images of bytes .* got float64"),
        ({"images": IMAGES[0]}, r"got uint8 \(1, 2, 2\)"),
        ({"labels": np.array([0, -1, 0, 1])}, "prepared images of 2 classes, got numbers -1 … 1"),
        ({"labels": np.array([0, 7, 0, 1])}, "got numbers 0 … 7"),
        ({"labels": LABELS[:3]}, "with 4 class numbers, got uint8"),
        ({"labels": None}, "got a file without 'labels'"),
    ],
)
def test_other_arrays_are_answered(change: dict[str, Any], words: str, folder: Path) -> None:
    arrays = {"images": IMAGES, "labels": LABELS, "names": np.array(["a", "b"]), "name": np.array("x"), **change}
    folder.mkdir()
    write_npz(folder / "a.npz", {name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DataError, match=f"{words}.*{AGAIN}"):
        setting._prepared("a", refused)
    (folder / "a.npz").write_bytes(b"")
    with pytest.raises(DataError, match=f"got another or a damaged file .*{AGAIN}"):
        setting._prepared("a", refused)
