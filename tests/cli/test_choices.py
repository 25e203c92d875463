"""`layerlaw depth | width | shape` through the real entry point."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import layerlaw
from PIL import Image

from layerlaw.cli.inputs import whole_numbers

SMALL = ("--size", "6", "--per-class", "20", "--rates", "0.003", "--epochs", "3", "--seeds", "2")


def test_depth_prints_the_recommendation_first_and_leaves_files(tmp_path: Path) -> None:
    done = layerlaw("depth", "--depths", "2-4", *SMALL, "--out", "found", cwd=tmp_path)
    assert done.stdout.startswith(("Take depth ", "By D take depth "))
    assert "6 networks of 2–4 layers, 3 epochs each, on 160 samples of 36 numbers: roughly 10 seconds" in done.stderr
    assert "you may stop and go on, all is kept in found" in done.stderr
    assert "D with running statistics (eval mode)" in done.stdout
    assert all(word in done.stdout for word in ("final D", "val. accuracy", "160 training + 40 validation", "→"))
    assert "On the test data" in done.stdout
    saved = json.loads((tmp_path / "found" / "choice.json").read_text())
    assert [row["label"] for row in saved["candidates"]] == ["depth 2", "depth 3", "depth 4"]
    assert (tmp_path / "found" / "choice.png").read_bytes().startswith(b"\x89PNG")
    again = layerlaw("depth", "--depths", "2-4", *SMALL, "--out", "found", "--json", cwd=tmp_path)
    told = json.loads(again.stdout)  # nothing is trained again, and nothing comes out differently
    assert told["candidates"] == saved["candidates"]
    assert told["figure"] == "found/choice.png"


def test_width_and_shape_give_one_json_object(tmp_path: Path) -> None:
    done = layerlaw("width", "--widths", "5,10", "--depth", "3", *SMALL, "--no-test", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert data["kind"] == "width"
    assert data["test_accuracy"] is None
    assert data["compared_by"] == "separation_over_permuted"
    assert "D over its noise floor" in done.stderr
    assert "‰" not in done.stderr
    assert "4 networks of 3 layers" in done.stderr
    done = layerlaw("shape", "--shapes", "5x2,10; 10,5x2", *SMALL, "--no-norm", cwd=tmp_path)
    assert "5×2 → 10" in done.stdout
    assert "10 → 5×2" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("depth", "--depths", "1-3"), "expected a whole number of at least 2"),
        (("depth", "--depths", "8-3"), "got the empty range '8-3'"),
        (("depth", "--depths", "4"), "expected at least 2 different ones"),
        (("depth", "--depths", "three"), "expected whole numbers and ranges such as 3-12"),
        (("depth", "--rates", "fast"), "rates: expected numbers separated by commas"),
        (("depth", "--rates", "0"), "rates: expected positive learning rates, got 0.0"),
        (("depth", "--validation", "0"), "validation: expected a share between 0 and 1"),
        (("depth", "--seeds", "0"), "seeds: expected at least 1"),
        (("depth", "--device", "gpu"), "device: expected one that torch can use here"),
        (("depth", "--optimizer", "adamw"), "optimizer: expected one of sgd, momentum, adam"),
        (("depth", "--per-class", "9999"), "more images than there are"),
        (("depth", "--per-class", "0"), "--per-class: expected a whole number of at least 1, got 0."),
        (("depth", "--data", "fashion"), "did you mean"),
        (("depth", "--data", "./nowhere"), "expected a folder of class folders, got nothing"),
        (("depth", "--data", "./empty"), "expected one sub-folder per class, got none"),
        (("depth", "--data", "./pictureless"), "expected pictures"),
        (("depth", "--data", "./one", "--quick"), "expected at least 2 classes, got 1"),
        (("depth", "--out", "file"), "expected a folder, got a file"),
        (("width", "--widths", "0,5"), "expected a whole number of at least 1"),
        (("width", "--depth", "1"), "depth: expected a whole number of at least 2"),
        (("shape", "--shapes", "10x2"), "shapes: expected at least 2"),
        (("shape", "--shapes", "10xx; 5"), "expected widths such as 100x4,1000x3"),
        (("shape", "--shapes", "10x0; 5"), "with 1 to a million after 'x', got '10x0'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_one(
    arguments: tuple[str, ...], words: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """The entry point itself, without a process of its own for each."""
    (tmp_path / "file").touch()
    for folder in ("empty", "pictureless/cat", "one/cat"):
        (tmp_path / folder).mkdir(parents=True)
    for i in range(10):
        Image.new("L", (6, 6), i).save(tmp_path / "one" / "cat" / f"{i}.png")
    assert words in refused(*arguments)


def test_a_folder_of_unequal_classes_is_used_whole_and_said_so(tmp_path: Path) -> None:
    for shade, (name, count) in enumerate((("cat", 30), ("dog", 12))):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (6, 6), 120 * shade + 3 * i).save(tmp_path / "pets" / name / f"{i}.png")
    how = ("--quick", "--depths", "2,3", "--epochs", "2", "--seeds", "1", "--size", "4")
    done = layerlaw("depth", "--data", "./pets", *how, cwd=tmp_path)
    assert "Classes have 12 to 30 images, all of them used; --per-class 12 balances them." in done.stdout
    assert "on 34 samples of 16 numbers" in done.stderr  # gray: one channel
    assert "nothing is kept: --out FOLDER lets you stop and go on" in done.stderr
    assert "[default: (fashion_mnist_sample)]" in layerlaw("depth", "--help", cwd=tmp_path).stdout


def test_bad_input_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = layerlaw("depth", "--depths", "1-3", "--json", cwd=tmp_path, code=1)
    assert json.loads(done.stdout)["error"]["type"] == "InputError"
    assert "Traceback" not in done.stderr


def test_numbers_and_shapes_are_read_as_written() -> None:
    assert whole_numbers("3-5,8, 10-10", "depths") == [3, 4, 5, 8, 10]
    assert whole_numbers("100x2, 1000, 50×3", "shapes") == [100, 100, 1000, 50, 50, 50]
