import gzip
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest

import layerlaw.data as sources
from layerlaw.data import DEFAULT, load, mnist, names
from layerlaw.errors import DataError, MissingExtraError

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)
LABELS = np.array([9, 0, 4], np.uint8)
FILES = {
    f"{prefix}-{kind}": bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    for prefix in ("train", "t10k")
    for kind, array in (("images-idx3-ubyte", IMAGES), ("labels-idx1-ubyte", LABELS))
}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> mnist.IdxSet:
    """Lower the official checksums of Fashion-MNIST to those of three 4×4 images."""
    lowered = replace(
        mnist.FASHION_MNIST,
        digests={name: (md5(gzip.compress(raw, mtime=0)), md5(raw)) for name, raw in FILES.items()},
    )
    monkeypatch.setattr(sources, "FASHION_MNIST", lowered)
    return lowered


@pytest.fixture
def home(tmp_path: Path, small: mnist.IdxSet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real web server on this machine in the place of the official home."""
    folder = tmp_path / "home"
    write(folder, packed=True)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setattr(sources, "FASHION_MNIST", replace(small, home=f"http://127.0.0.1:{server.server_port}/"))
        yield folder
        server.shutdown()
        thread.join()


def write(folder: Path, *, packed: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in FILES.items():
        (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(raw, mtime=0) if packed else raw)


@pytest.mark.parametrize("place", ["fashion_mnist", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("split", ["train", "test"])
def test_official_files_are_found_under_the_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: mnist.IdxSet, place: str, packed: bool, split: sources.Split
) -> None:
    write(tmp_path / place, packed=packed)
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    data = load("fashion_mnist", split=split)
    assert np.array_equal(data.images[:, 0].numpy(), IMAGES)
    assert data.labels.tolist() == [9, 0, 4]
    assert data.class_names[9] == "Ankle boot"
    assert data.name == "fashion_mnist"


def test_a_changed_local_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: mnist.IdxSet) -> None:
    write(tmp_path / "fashion_mnist", packed=False)
    path = tmp_path / "fashion_mnist" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    with pytest.raises(DataError, match="train-images-idx3-ubyte: expected the official content, md5"):
        load("fashion_mnist")


def test_images_and_labels_of_different_number_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: mnist.IdxSet
) -> None:
    write(tmp_path / "fashion_mnist", packed=False)
    short = bytes([0, 0, 8, 1, 0, 0, 0, 1, 5])
    (tmp_path / "fashion_mnist" / "train-labels-idx1-ubyte").write_bytes(short)
    digests = {**small.digests, "train-labels-idx1-ubyte": ("", md5(short))}
    monkeypatch.setattr(sources, "FASHION_MNIST", replace(small, digests=digests))
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"expected 3 labels, one for each image of train-images-idx3-ubyte, got 1"):
        load("fashion_mnist")


def test_a_download_is_checked_and_kept(home: Path, tmp_path: Path) -> None:
    data = load("fashion_mnist", progress=False)
    assert np.array_equal(data.images[:, 0].numpy(), IMAGES)
    kept = sorted(path.name for path in (tmp_path / "cache").rglob("*.gz"))
    assert kept == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]  # one split only
    for path in home.iterdir():
        path.unlink()
    assert load("fashion_mnist", progress=False).checksum() == data.checksum()  # from the cache


def test_only_what_is_missing_under_the_environment_variable_is_downloaded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine" / "fashion_mnist", packed=False)
    (tmp_path / "mine" / "fashion_mnist" / "t10k-labels-idx1-ubyte").unlink()
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path / "mine"))
    assert load("fashion_mnist", split="test", progress=False).labels.tolist() == [9, 0, 4]
    assert [path.name for path in (tmp_path / "cache").rglob("*.gz")] == ["t10k-labels-idx1-ubyte.gz"]


def test_a_download_shows_a_bar_unless_silent(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load("fashion_mnist", split="test", progress=False)
    assert capfd.readouterr().err == ""
    load("fashion_mnist", split="train", progress=True)
    assert "100%" in capfd.readouterr().err


def test_a_download_that_differs_is_refused_and_not_kept(home: Path, tmp_path: Path) -> None:
    (home / "train-images-idx3-ubyte.gz").write_bytes(b"<html>captive portal</html>")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz: expected to download http.*LAYERLAW_DATA"):
        load("fashion_mnist", progress=False)
    assert not list((tmp_path / "cache").rglob("*images*"))


def test_a_home_that_does_not_answer_names_the_ways_out(home: Path) -> None:
    (home / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"404.*a folder fashion_mnist/ .* or use 'fashion_mnist_sample'"):
        load("fashion_mnist", progress=False)


def test_cifar10_is_downloaded_from_its_home_with_its_published_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def retrieve(url: str, known_hash: str, **_: object) -> str:
        asked[url] = known_hash
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(DataError, match="no network"):
        load("cifar10")
    with pytest.raises(DataError, match="no network"):
        load("mnist", split="test")
    assert asked == {
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
        "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    }


def test_missing_pooch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtraError, match=r"downloading cifar-10-binary.tar.gz needs the package 'pooch'"):
        load("cifar10")


def test_an_environment_variable_that_names_no_folder_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERLAW_DATA", "/no/such/folder")
    for name in ("mnist", "cifar10"):
        with pytest.raises(DataError, match="'/no/such/folder', which is no folder; correct it, or unset it"):
            load(name)
    load(DEFAULT)  # embedded, asks for nothing


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("fasion_mnist", "did you mean 'fashion_mnist'"),
        ("Fashion-MNIST", "did you mean 'fashion_mnist'"),
        ("CIFAR-10", "did you mean 'cifar10'"),
        ("imagenet_please", "or the path of a folder of class folders, got 'imagenet_please'"),
    ],
)
def test_an_unknown_name_lists_the_names_and_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(DataError, match=near) as caught:
        load(asked)
    assert all(name in str(caught.value) for name in names())


def test_odd_arguments_are_answered() -> None:
    with pytest.raises(DataError, match="expected split 'train' or 'test', got 'val'"):
        load(split="val")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"fashion_mnist_sample: expected channels 1 \(gray\) or 3 \(color\), got 2"):
        load(channels=2)


def test_size_resizes_a_named_data_set() -> None:
    assert load(split="test", size=10).checksum() == load(split="test").resized(10).checksum()


def test_importing_data_brings_in_no_optional_package() -> None:
    code = (
        "import sys, layerlaw.data as d; d.load(); "
        "print([m for m in ('PIL', 'pooch', 'pandas', 'matplotlib', 'requests') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.shared
@pytest.mark.parametrize("name", ["fashion_mnist", "mnist"])
def test_the_full_official_files_load(shared: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LAYERLAW_DATA", str(shared))
    test = load(name, split="test")
    assert test.images.shape == (10_000, 1, 28, 28)
    train = load(name)
    assert train.images.shape == (60_000, 1, 28, 28)
    x, _ = train.tensors("dataset")
    assert abs(float(x.mean())) < 2e-3
    assert abs(float(x.std()) - 1) < 2e-3
