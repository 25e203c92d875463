from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerlaw.data import load
from layerlaw.errors import DataError, MissingExtraError


def picture(
    path: Path, value: int | tuple[int, int, int] = 7, size: tuple[int, int] = (6, 5), mode: str = "RGB"
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)  # size is (width, height)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    picture(tmp_path / "pets" / "dog" / "b.png", (1, 2, 3))
    picture(tmp_path / "pets" / "dog" / "a.bmp", (4, 5, 6))
    picture(tmp_path / "pets" / "cat" / "c.PNG", (7, 8, 9))
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / "pets" / "cat" / ".hidden.png").write_text("no picture")
    (tmp_path / "pets" / ".git").mkdir()
    return tmp_path / "pets"


def test_classes_and_pictures_are_sorted_by_name(root: Path) -> None:
    data = load(root)
    assert data.class_names == ("cat", "dog")
    assert data.labels.tolist() == [0, 1, 1]
    assert data.images.shape == (3, 3, 5, 6)
    assert data.images[:, :, 0, 0].tolist() == [[7, 8, 9], [4, 5, 6], [1, 2, 3]]
    assert data.name == "pets"
    assert load(str(root)).checksum() == data.checksum()


def test_pictures_are_read_gray_and_resized_when_asked(root: Path) -> None:
    picture(root / "cat" / "d.jpg", 100, size=(20, 20), mode="L")
    with pytest.raises(DataError, match=r"d.jpg: expected 5×6 pixels like .*c.PNG, got 20×20; pass size="):
        load(root)
    data = load(root, size=(4, 8), channels=1, progress=False)
    assert data.images.shape == (4, 1, 4, 8)
    assert (data.images[1] == 100).all()


def test_resizing_on_loading_equals_resizing_afterwards(root: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "cat" / "noise.png")
    assert load(root, size=3).checksum() == load(root).resized(3).checksum()


def test_train_and_test_folders_are_the_splits(tmp_path: Path) -> None:
    for part, value in (("train", 1), ("test", 2)):
        for name in ("cat", "dog"):
            picture(tmp_path / part / name / "a.png", (value, 0, 0))
    assert load(tmp_path, split="train").images[0, 0, 0, 0] == 1
    assert load(tmp_path, split="test").images[0, 0, 0, 0] == 2
    picture(tmp_path / "test" / "owl" / "a.png")
    with pytest.raises(DataError, match=r"expected the same classes in train/ and test/, got \['owl'\]"):
        load(tmp_path, split="test")


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a.png")
    picture(tmp_path / "ship" / "a.png")
    assert load(tmp_path).class_names == ("ship", "train")


def test_a_missing_split_is_answered(tmp_path: Path, root: Path) -> None:
    with pytest.raises(DataError, match=r"expected a sub-folder test/ with class folders, got none"):
        load(root, split="test")
    picture(tmp_path / "half" / "train" / "cat" / "a.png")
    with pytest.raises(DataError, match=r"expected a sub-folder test/ with class folders, got only train/"):
        load(tmp_path / "half", split="test")


def test_an_empty_class_folder_is_named(root: Path) -> None:
    (root / "owl").mkdir()
    with pytest.raises(DataError, match=r"owl: expected pictures .* of the class 'owl', got none"):
        load(root)


def test_links_that_lead_outside_are_refused(tmp_path: Path, root: Path) -> None:
    picture(tmp_path / "secret" / "inner" / "x.png")
    link = root / "cat" / "x.png"
    link.symlink_to(tmp_path / "secret" / "inner" / "x.png")
    with pytest.raises(DataError, match=r"x.png: expected something inside .*, got a link to .*secret"):
        load(root)
    link.unlink()
    (root / "owl").symlink_to(tmp_path / "secret" / "inner", target_is_directory=True)
    with pytest.raises(DataError, match=r"owl: expected something inside"):
        load(root)
    (root / "owl").unlink()
    (root / "train").symlink_to(tmp_path / "secret", target_is_directory=True)
    with pytest.raises(DataError, match=r"expected something inside"):
        load(root)


def test_links_inside_are_followed_and_broken_ones_refused(root: Path) -> None:
    (root / "cat" / "x.png").symlink_to(root / "dog" / "b.png")
    assert len(load(root)) == 4
    (root / "cat" / "y.png").symlink_to(root / "dog" / "nothing.png")
    with pytest.raises(DataError, match=r"y.png: .*does not exist; remove the link"):
        load(root)


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "sixteen bit", "postscript"])
def test_an_unreadable_picture_is_named(root: Path, damage: str) -> None:
    path = root / "cat" / "bad.png"
    if damage == "sixteen bit":
        Image.fromarray(np.full((5, 6), 40000, np.uint16)).save(path)
    else:
        noise = np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
        whole = path.read_bytes()
        broken = {
            "truncated": whole[:-4000],
            "text": b"hello",
            "empty": b"",
            "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n",
        }
        path.write_bytes(broken[damage])
    with pytest.raises(DataError, match=r"bad.png: expected a readable 8-bit picture, got .*; replace or remove it"):
        load(root)


def test_an_enormous_picture_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(DataError, match="DecompressionBomb"):
        load(root)


@pytest.mark.parametrize(("place", "got"), [("nowhere", "nothing"), ("file", "a file")])
def test_what_is_no_folder_is_answered(tmp_path: Path, place: str, got: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=f"expected a folder of class folders, got {got}"):
        load(tmp_path / place)


def test_a_text_with_a_slash_is_a_path() -> None:
    with pytest.raises(DataError, match="nowhere: expected a folder of class folders, got nothing"):
        load("./nowhere")


def test_a_folder_without_classes_and_odd_channels_are_answered(tmp_path: Path, root: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected one sub-folder per class, got none"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match=r"expected channels 1 \(gray\) or 3 \(color\), got 2"):
        load(root, channels=2)


def test_reading_writes_nothing(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    load(root, size=3)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_missing_pillow_names_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'layerlaw\[data\]'"):
        load(root)


def test_pictures_of_many_pixels_in_a_small_file_are_refused(root: Path, tmp_path: Path) -> None:
    Image.new("RGB", (4000, 4000)).save(root / "cat" / "blank.png")
    with pytest.raises(
        DataError, match=r"blank\.png: expected at most [\d,]+ pixels in a file of its size, got 4000×4000"
    ):
        load(str(root), size=8)
    for i in range(6):
        (tmp_path / "many" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (1500, 1500)).save(tmp_path / "many" / "ab"[i % 2] / f"{i}.png")
    with pytest.raises(DataError, match=r"many: expected pictures that take at most .* got 6 pictures of 1500×1500"):
        load(str(tmp_path / "many"))
    assert len(load(str(tmp_path / "many"), size=8).labels) == 6
