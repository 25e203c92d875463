import hashlib
import io
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerlaw.data import cifar, load
from layerlaw.data.cifar import unpickle
from layerlaw.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 2, 3072), dtype=np.uint8)  # five training batches and a test batch of two images
LABELS = RNG.integers(0, 10, (6, 2), dtype=np.uint8)
IMAGES = PIXELS.reshape(6, 2, 3, 32, 32)


def binary(batch: int) -> bytes:
    return np.concatenate([LABELS[batch][:, None], PIXELS[batch]], 1).tobytes()


def python(batch: int, protocol: int = 2) -> bytes:
    return pickle.dumps({b"data": PIXELS[batch], b"labels": LABELS[batch].tolist()}, protocol)


class Call:
    """Pickles as a call, the way an attack does it."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """Lower the official digests to those of the small batches; give the content of all files by layout."""
    contents = {}
    for name, make in (("BINARY", binary), ("PYTHON", python)):
        layout: cifar.CifarLayout = getattr(cifar, name)
        files = {file: make(i) for i, file in enumerate([*layout.train, *layout.test])}
        digests = {file: "md5:" + hashlib.md5(content).hexdigest() for file, content in files.items()}
        train = {file: digests[file] for file in layout.train}
        test = {file: digests[file] for file in layout.test}
        monkeypatch.setattr(cifar, name, replace(layout, train=train, test=test))
        contents[name] = files
    return contents


def archive(path: Path, folder: str, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"../escape.txt": b"outside", **{f"{folder}/{k}": v for k, v in files.items()}}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(
    ("layout", "place"),
    [
        ("BINARY", "cifar10/cifar-10-batches-bin"),
        ("BINARY", "cifar10/download/cifar-10-batches-bin"),
        ("BINARY", "cifar10"),
        ("BINARY", "cifar-10-batches-bin"),
        ("PYTHON", "cifar10/cifar-10-batches-py"),
        ("PYTHON", "cifar-10"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_both_layouts_are_found_and_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small: dict[str, dict[str, bytes]],
    layout: str,
    place: str,
    split: str,
) -> None:
    (tmp_path / place).mkdir(parents=True)
    for file, content in small[layout].items():
        (tmp_path / place / file).write_bytes(content)
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    data = load("cifar10", split=split)  # type: ignore[arg-type]
    part = slice(0, 5) if split == "train" else slice(5, 6)
    assert np.array_equal(data.images.numpy(), IMAGES[part].reshape(-1, 3, 32, 32))
    assert data.labels.tolist() == LABELS[part].flatten().tolist()
    assert data.class_names[9] == "truck"


@pytest.mark.parametrize("layout", ["BINARY", "PYTHON"])
def test_an_archive_is_read_in_memory_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: dict[str, dict[str, bytes]], layout: str
) -> None:
    home = tmp_path / "data" / "cifar10"
    home.mkdir(parents=True)
    which: cifar.CifarLayout = getattr(cifar, layout)
    archive(home / which.archive, which.folder, small[layout])
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path / "data"))
    before = sorted(tmp_path.rglob("*"))
    data = load("cifar10")
    assert np.array_equal(data.images.numpy(), IMAGES[:5].reshape(-1, 3, 32, 32))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_truncated_or_incomplete_archive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: dict[str, dict[str, bytes]]
) -> None:
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / cifar.BINARY.archive
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    archive(path, cifar.BINARY.folder, {"data_batch_1.bin": small["BINARY"]["data_batch_1.bin"]})
    with pytest.raises(DataError, match=r"got no data_batch_2.bin, data_batch_3.bin"):
        load("cifar10")
    archive(path, cifar.BINARY.folder, small["BINARY"])
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"expected a whole .tar.gz archive"):
        load("cifar10")


def test_a_changed_batch_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: dict[str, dict[str, bytes]]
) -> None:
    (tmp_path / "cifar10").mkdir()
    for file, content in small["PYTHON"].items():
        (tmp_path / "cifar10" / file).write_bytes(content)
    (tmp_path / "cifar10" / "test_batch").write_bytes(pickle.dumps(Call(os.system, "true")))
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    with pytest.raises(DataError, match="test_batch: expected the official content, md5"):
        load("cifar10", split="test")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_python_batches_of_every_usual_protocol_are_read(protocol: int) -> None:
    images, labels = cifar.parse_python(python(0, protocol), "batch")
    assert np.array_equal(images, IMAGES[0])
    assert np.array_equal(labels, LABELS[0])


def test_a_python_two_batch_is_read() -> None:
    """Byte strings as Python 2 wrote them: keys, type code and pixels are STRING opcodes."""
    pixels = bytes(range(256)) * 12
    raw = (
        b"\x80\x02}q\x01(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T\x00\x0c\x00\x00" + pixels + b"tbU\x06labels]K\x07au."
    )
    images, labels = cifar.parse_python(raw, "batch")
    assert images.tobytes() == pixels
    assert labels.tolist() == [7]


def test_a_pickle_that_calls_os_system_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    attack = pickle.dumps({b"data": Call(os.system, f"touch {trace}"), b"labels": []})
    with pytest.raises(DataError, match=rf"batch: the pickle names {os.system.__module__}.system, which is refused"):
        cifar.parse_python(attack, "batch")
    assert not trace.exists()


@pytest.mark.parametrize("function", [eval, exec, getattr, __import__, np.load, np.memmap, open])
def test_other_functions_in_a_pickle_are_refused(function: object) -> None:
    with pytest.raises(DataError, match="which is refused"):
        unpickle(pickle.dumps(Call(function, "x")), "batch")


def test_bytes_through_other_codecs_are_refused() -> None:
    import _codecs

    with pytest.raises(DataError, match="got the encoding 'zlib_codec'"):
        unpickle(pickle.dumps(Call(_codecs.encode, "x", "zlib_codec")), "batch")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (python(0)[:-20], "expected a whole pickle"),
        (b"", "expected a whole pickle"),
        (b"not a pickle", "expected a whole pickle"),
        (pickle.dumps([1, 2]), "expected a dictionary with an array 'data' and a list 'labels'"),
        (pickle.dumps({b"data": PIXELS[0], b"labels": [1]}), r"expected data of shape \(1, 3072\), got \(2, 3072\)"),
        (pickle.dumps({b"data": PIXELS[0], b"labels": [1, 10]}), r"expected labels 0..9, got 10"),
        (pickle.dumps({b"data": PIXELS[0], b"labels": [1, "x"]}), r"expected labels 0..9, got b?'x'"),
        (
            pickle.dumps({b"data": PIXELS[0].astype(np.float32), b"labels": [1, 1]}),
            "expected an array of unsigned bytes",
        ),
    ],
)
def test_a_malformed_python_batch_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        cifar.parse_python(content, "batch")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (binary(0)[:-1], "a whole number of records of 3073 bytes, got 6145 bytes"),
        (b"", "a whole number of records of 3073 bytes, got 0 bytes"),
        (bytes([10]) + bytes(3072), r"expected labels 0..9, got 10"),
    ],
)
def test_a_malformed_binary_batch_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        cifar.parse_binary(content, "batch.bin")
