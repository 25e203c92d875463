"""Files that hold more than meets the eye: what they claim is compared with what they are before memory is taken."""

import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from layerlaw.data import cifar, texts
from layerlaw.data.mnist import read_idx
from layerlaw.errors import DataError, LayerlawError
from layerlaw.packed import (
    BoundedGzip,
    check_gguf,
    check_safetensors,
    check_weight_files,
    digest_of,
    read_npz,
    read_sealed_npz,
    read_torch,
    unpacked_limit,
    write_npz,
    write_torch,
)

CONTENT = {"name": "x", "values": [1, 2.5, None], "state": {"w": torch.arange(600.0).reshape(20, 30)}}
BLOCKS = {0: (1, 4), 8: (32, 34)}  # F32 and Q8_0


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    """Python itself must not ask for more; what only numpy and torch ask for shows up here too, as numpy tells it."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def bomb(path: Path, start: bytes = b"", megabytes: int = 40, fill: bytes = b"\0") -> Path:
    """A gzip file of about a thousandth of what it unpacks to."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(start)
        for _ in range(megabytes):
            file.write(fill * 2**20)
    return path


def test_what_was_written_comes_back_and_its_file_is_a_plain_torch_file(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "a.pt", CONTENT)
    back = read_torch(path, what="a test", sealed=True)
    assert digest_of(back) == digest_of(CONTENT)
    assert torch.equal(torch.load(path, weights_only=True)["state"]["w"], CONTENT["state"]["w"])


def test_no_flipped_bit_goes_unnoticed_in_a_torch_file(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "a.pt", CONTENT)
    whole, draw, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(120):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert digest_of(read_torch(path, what="a test", sealed=True)) == digest_of(CONTENT)  # a bit of no meaning
        except DataError:
            refused += 1
    assert refused > 80


def test_a_torch_file_with_a_changed_number_and_right_checksums_of_its_records_is_refused(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "a.pt", CONTENT)
    changed = torch.load(path, weights_only=True)
    changed["state"]["w"][3, 4] += 1
    torch.save(changed, path)
    with pytest.raises(DataError, match="a test, got other content than was written: its checksum differs"):
        read_torch(path, what="a test", sealed=True)
    del changed["sha256"]
    torch.save(changed, path)  # of an older version, which wrote none
    assert read_torch(path, what="a test", sealed=True)["state"]["w"][3, 4] == 95


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_torch_file_that_ends_early_is_cut_short(share: float, tmp_path: Path) -> None:
    whole = write_torch(tmp_path / "a.pt", CONTENT).read_bytes()
    (tmp_path / "a.pt").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match="cut short: download it again"):
        read_torch(tmp_path / "a.pt", what="a test")


def rewritten(path: Path, packing: int = zipfile.ZIP_STORED, **records: bytes) -> Path:
    """The same torch file with other records."""
    with zipfile.ZipFile(path) as file:
        parts = {entry: file.read(entry) for entry in file.namelist()}
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in parts.items():
            file.writestr(name, records.get(name.rpartition("/")[2].partition(".")[0], content))
    return path


class Zeros:
    """Pickled in a few bytes, made of any size when it is read."""

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return bytearray, (2**33,)


def test_torch_files_that_claim_more_than_they_hold_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with memory_below(50 * 2**20):
        torch.save({"zeros": Zeros()}, path)
        with pytest.raises(DataError, match="not loaded for safety"):
            read_torch(path, what="a test")
        path.write_bytes(pickle.dumps({"zeros": Zeros()}, protocol=2))
        with pytest.raises(DataError, match="not loaded for safety"):
            read_torch(path, what="a test")
        torch.save({"w": torch.zeros(1)}, path)
        with pytest.raises(DataError, match="claims to hold more than its"):
            read_torch(rewritten(path, zipfile.ZIP_DEFLATED, **{"0": bytes(2**20)}), what="a test")
        torch.save({"w": torch.zeros(1).expand(2**31)}, path)  # numbers that stand for many
        with pytest.raises(DataError, match="expected tensors with all their numbers"):
            digest_of(torch.load(path, weights_only=True))
        nested: list[object] = []
        for _ in range(40):
            nested = [nested, nested]
        torch.save({"nested": nested, "sha256": "0"}, path)
        with pytest.raises(DataError, match=r"expected at most .* values in a file of this size"):
            read_torch(path, what="a test", sealed=True)


def test_a_folder_nothing_and_a_strange_name_are_answered(tmp_path: Path) -> None:
    for where, words in (
        (tmp_path, "got a folder"),
        (tmp_path / "no.pt", "found nothing there"),
        (None, "a path such as"),
    ):
        with pytest.raises(DataError, match=words):
            read_torch(where, what="a test")  # type: ignore[arg-type]


ARRAYS = {"images": np.arange(240, dtype=np.uint8).reshape(10, 1, 4, 6), "names": np.array(["a", "b"])}


def test_arrays_come_back_as_they_were_and_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", {**ARRAYS, "fortran": np.asfortranarray(np.eye(3)[:, :2])})
    whole, draw = path.read_bytes(), random.Random(1)
    back = read_sealed_npz(path)
    assert list(back) == ["images", "names", "fortran"]
    assert all(np.array_equal(back[name], array) for name, array in ARRAYS.items())
    assert np.array_equal(back["fortran"], np.eye(3)[:, :2])
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert digest_of(read_sealed_npz(path)) == digest_of(back)
        except DataError:
            continue


def test_arrays_whose_headers_claim_more_than_there_is_are_refused(tmp_path: Path) -> None:
    path, file = tmp_path / "a.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (2**20, 2**20)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", file.getvalue() + bytes(80))
    with memory_below(2**20), pytest.raises(DataError, match=r"for 'x' of the shape \(1048576, 1048576\), got 80"):
        read_npz(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(100 * 2**20))
    with (
        memory_below(2**20),
        pytest.raises(DataError, match=r"expected it to unpack to at most .* \(24 times the file"),
    ):
        read_npz(path)
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="got objects in 'x', which are not read"):
        read_npz(path)


READERS: dict[str, Callable[[Path], object]] = {
    "a.txt.gz": lambda path: texts.load_text(path),
    "b.jsonl.gz": lambda path: texts.load_text(path),
    "c-idx3-ubyte.gz": lambda path: read_idx(path, ndim=3),
    "d.tar.gz": lambda path: list(cifar._contents(cifar.BINARY, path, "train")),
}


@pytest.mark.parametrize("name", READERS)
def test_a_small_gzip_that_unpacks_to_much_is_refused(name: str, tmp_path: Path) -> None:
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**31
    start = {
        "c-idx3-ubyte.gz": bytes([0, 0, 8, 3]) + struct.pack(">III", 300, 1024, 1024),
        "d.tar.gz": header.tobuf(tarfile.GNU_FORMAT),
    }.get(name, b"")
    path = bomb(tmp_path / name, start, fill=b"a" if "ubyte" not in name else b"\0")
    assert path.stat().st_size < 200_000
    with memory_below(200 * 2**20), pytest.raises(DataError, match=r"expected it to unpack to at most"):
        READERS[name](path)


def test_ordinary_gzip_files_are_read_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    lines = [b"%d\n" % i for i in range(1000)]
    path.write_bytes(gzip.compress(b"".join(lines)))
    with BoundedGzip(path) as file:
        assert list(file) == lines
    with BoundedGzip(path) as file:
        assert (file.read(5), file.readline(), file.read()) == (b"0\n1\n2", b"\n", b"".join(lines)[6:])
    assert unpacked_limit(path.stat().st_size) > 16 * 2**20


def safetensors(path: Path) -> Path:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [25], "data_offsets": [0, 100]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))
    return path


def test_safetensors_that_end_early_are_cut_short(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "model.safetensors")
    check_safetensors(path)
    whole = path.read_bytes()
    for end in (0, 5, 20, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match="cut short: download it again"):
            check_safetensors(path)
        with pytest.raises(DataError, match="cut short: download it again"):
            check_weight_files(tmp_path)
    for content in (b"\xff" * 50, (2).to_bytes(8, "little") + b"[]", (4).to_bytes(8, "little") + b"nope"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="expected a safetensors file, got another or a damaged one"):
            check_safetensors(path)


def gguf(path: Path) -> Path:
    def text(words: bytes) -> bytes:
        return struct.pack("<Q", len(words)) + words

    fields = [
        text(b"general.alignment") + struct.pack("<II", 4, 64),
        text(b"names") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc"),
        text(b"scores") + struct.pack("<IIQfff", 9, 6, 3, 1, 2, 3),
    ]
    tensor = text(b"w") + struct.pack("<IQQIQ", 2, 64, 3, 8, 0)
    content = b"GGUF" + struct.pack("<IQQ", 3, 1, len(fields)) + b"".join(fields) + tensor
    path.write_bytes(content + bytes(-len(content) % 64) + bytes(64 * 3 // 32 * 34))
    return path


def test_gguf_files_that_end_early_are_cut_short(tmp_path: Path) -> None:
    path = gguf(tmp_path / "model.gguf")
    check_gguf(path, BLOCKS)
    whole = path.read_bytes()
    for end in (0, 3, 10, 40, 120, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match="cut short: download it again"):
            check_gguf(path, BLOCKS)


def test_no_claim_of_a_gguf_header_takes_memory_or_time(tmp_path: Path) -> None:
    path = gguf(tmp_path / "model.gguf")
    whole, draw = path.read_bytes(), random.Random(2)
    with memory_below(2**20):
        for _ in range(150):
            damaged = bytearray(whole)
            for _ in range(draw.randrange(1, 4)):
                damaged[draw.randrange(200)] = draw.choice([0, 1, 255, draw.randrange(256)])
            path.write_bytes(damaged)
            try:
                check_gguf(path, BLOCKS)
            except LayerlawError:
                continue


def test_a_pickle_that_asks_for_a_far_place_is_refused() -> None:
    content = b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b"."
    with memory_below(2**20), pytest.raises(DataError, match="got a place 2147483647"):
        cifar.unpickle(content, "data_batch_1")


def test_a_flipped_byte_is_damage_and_not_a_file_cut_short(tmp_path: Path) -> None:
    whole = write_torch(tmp_path / "a.pt", CONTENT).read_bytes()
    for at in (0, 40, len(whole) // 2):
        flipped = bytearray(whole)
        flipped[at] ^= 0xFF
        (tmp_path / "a.pt").write_bytes(flipped)
        with pytest.raises(DataError, match="damaged") as caught:
            read_torch(tmp_path / "a.pt", what="a test")
        assert "cut short" not in str(caught.value)


def test_nobody_is_told_to_download_what_was_written_here(tmp_path: Path) -> None:
    whole = write_torch(tmp_path / "a.pt", CONTENT).read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"text", whole[:40] + b"?" + whole[41:]):
        (tmp_path / "a.pt").write_bytes(content)
        with pytest.raises(DataError) as caught:
            read_torch(tmp_path / "a.pt", what="a test", sealed=True)
        assert "download" not in str(caught.value)


@pytest.mark.parametrize("header", [b"[]", b"3", b"null", b'{"w": []}', b'{"w": {}}', b"{"])
def test_a_safetensors_header_that_is_none_is_told_in_words(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(
        DataError, match="expected a safetensors file, got another or a damaged one: its header"
    ) as caught:
        check_safetensors(tmp_path / "a.safetensors")
    assert "AttributeError" not in str(caught.value)


def test_an_array_with_a_negative_side_is_refused_as_such(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f4", "fortran_order": False, "shape": (-1, 784)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content.getvalue())
    with pytest.raises(DataError, match=r"expected sides of at least 0 for 'x', got the shape \(-1, 784\)"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..\\b", "C:/b"])
def test_an_index_of_weights_that_leads_out_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": name}})
    )
    with pytest.raises(DataError, match=r"expected files in this folder, got '.*' in its weight_map"):
        check_weight_files(tmp_path)


def test_an_index_of_weights_in_its_folder_is_fine_and_another_file_is_told(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "parts/model-2.safetensors"}}))
    check_weight_files(tmp_path)
    index.write_text("[]")
    with pytest.raises(DataError, match="expected an index of weights with a weight_map"):
        check_weight_files(tmp_path)


def test_colors_of_torch_are_not_in_its_message(tmp_path: Path) -> None:
    torch.save({"a": slice(1)}, tmp_path / "a.pt")
    with pytest.raises(DataError) as caught:
        read_torch(tmp_path / "a.pt", what="a test")
    assert "x1b" not in str(caught.value)


class Called:
    """What becomes a call where it is unpickled."""

    def __init__(self, function: object, *given: object) -> None:
        self.made = function, given

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.made


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("function", "given"),
    [(torch.Tensor, (30_000, 1000)), (torch.FloatTensor, (9,)), (torch.FloatStorage, (10**9,)), (bytearray, (10**9,))],
    ids=["Tensor", "FloatTensor", "FloatStorage", "bytearray"],
)
def test_a_torch_file_that_calls_for_memory_is_refused(
    function: object, given: object, new: bool, tmp_path: Path
) -> None:
    """torch itself would take any number of bytes, with whatever was in them, for numbers of the file."""
    torch.save({"x": Called(function, *given)}, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    with (
        memory_below(50 * 2**20),
        pytest.raises(DataError, match=r"a\.pt: expected weights, got objects that are not loaded"),
    ):
        read_torch(tmp_path / "a.pt", what="weights")


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_what_torch_saves_of_networks_is_read(new: bool, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    content = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "weight": net[0].weight}
    content |= {"plain": [1, 2.5, "a", None, True, (2, 3)], "size": torch.Size([2, 3]), "device": torch.device("cpu")}
    content |= {"half": torch.ones(2, dtype=torch.bfloat16), "kind": torch.float16, "sparse": torch.eye(2).to_sparse()}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    found = read_torch(tmp_path / "a.pt", what="weights")
    assert list(found) == list(content)
    assert torch.equal(found["net"]["0.weight"], net[0].weight)
