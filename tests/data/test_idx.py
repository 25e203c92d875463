import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from layerlaw.data.mnist import read_idx
from layerlaw.errors import DataError

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


PACKED = gzip.compress(idx_bytes(ARRAY), mtime=0)  # the names of the tests must not depend on the time


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_an_idx_file_is_read_gzipped_or_plain(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "images"
    path.write_bytes(pack(idx_bytes(ARRAY)))
    digest = "md5:" + hashlib.md5(idx_bytes(ARRAY)).hexdigest()
    assert np.array_equal(read_idx(path, ndim=3, digest=digest), ARRAY)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes(ARRAY)[:-1], r"expected 24 bytes after the header, for the shape \(2, 3, 4\) it names, got 23"),
        (idx_bytes(ARRAY) + b"x", "expected 24 bytes after the header.*got 25"),
        (idx_bytes(ARRAY)[:9], "expected a header of 16 bytes, got 9"),
        (idx_bytes(ARRAY[0]), "magic 00000803, got 00000802"),
        (b"\x00\x00\x0d\x03" + idx_bytes(ARRAY)[4:], "magic 00000803, got 00000d03"),
        (b"", "magic 00000803, got an empty file"),
        (b"<html>not found</html>", "magic 00000803, got 3c68746d"),
        (PACKED[:-9], "expected a whole gzip file"),
        (PACKED[:12] + b"\xff" * 30, "expected a whole gzip file"),
        (PACKED[:-8] + bytes(8), "expected a whole gzip file"),
    ],
)
def test_truncated_or_foreign_idx_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, ndim=3)
    assert str(path) in str(caught.value)
    assert "fetch it again" in str(caught.value)


def test_a_wrong_checksum_names_both(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(ARRAY))
    got = hashlib.md5(idx_bytes(ARRAY)).hexdigest()
    with pytest.raises(DataError, match=f"expected the official content, md5 {'0' * 32}, got {got}"):
        read_idx(path, ndim=3, digest="md5:" + "0" * 32)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: expected a readable file"):
        read_idx(tmp_path / "nowhere", ndim=1)
