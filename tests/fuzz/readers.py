"""Every reader of files of the package, with sound files and what a right value is."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_records import lm_record
from pages_outcomes import law_outcome
from rich.console import Console
from torch import Tensor, nn

import layerlaw as ll
from fuzz.judging import Reader
from fuzz.mutating import mutated_bytes, mutated_gzip, mutated_json, mutated_zip
from layerlaw import data, lab
from layerlaw.cli.inputs import _load_weights, arrays
from layerlaw.data.cifar import CifarLayout, _contents, parse_binary, parse_python
from layerlaw.data.folder import load_folder
from layerlaw.data.labeled import Labeled
from layerlaw.data.mnist import read_idx
from layerlaw.data.official import check
from layerlaw.errors import LayerlawError
from layerlaw.experiments import setting
from layerlaw.outcome import Outcome
from layerlaw.pages.terminal import print_outcome, print_record
from layerlaw.verdict import judge

Files = Mapping[str, bytes]


def saved(write: Callable[[Path], object], name: str) -> dict[str, bytes]:
    """What `write` leaves under a path of this name."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return {name: (Path(folder) / name).read_bytes()}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@cache
def numbers() -> tuple[Tensor, Tensor]:
    return torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3


# Records: what is taken can be used for everything a record is for, and is the same after it is saved again.


def records() -> dict[str, bytes]:
    record = ll.probe(network(), numbers(), test=numbers(), progress=False)
    return saved(record.save, "record.json")


def use(record: ll.Record) -> ll.Record:
    """Shown, judged, printed; a record that says too little for a law gets an error of ours there."""
    str(record), repr(record), record._view().html()
    for column in (None, *record.columns[:2]):
        with suppress(LayerlawError):
            record.law(column)
    with suppress(LayerlawError):
        judge(record)
    with suppress(LayerlawError):
        print_record(record, Console(file=io.StringIO(), width=100))
    return record


def language_records() -> dict[str, bytes]:
    return saved(lm_record(blocks=5, held_out=False, shuffled=0).save, "record.json")


def outcomes() -> dict[str, bytes]:
    return saved(law_outcome().save, "outcome.json")


def use_outcome(outcome: Outcome) -> Outcome:
    repr(outcome)
    with suppress(LayerlawError):
        print_outcome(outcome, Console(file=io.StringIO(), width=100))
    return outcome


def same_again(record: Any, _: Files) -> bool:
    plain = json.loads(json.dumps(record.to_dict()))
    return bool(type(record).from_dict(plain).to_dict() == record.to_dict())


# idx and CIFAR: small oracles of their own.


def idx_files() -> dict[str, bytes]:
    images = np.arange(3 * 5 * 4, dtype=np.uint8).tobytes()
    plain = struct.pack(">BBBB3I", 0, 0, 8, 3, 3, 5, 4) + images
    return {"images": plain}


def idx_says(value: Any, files: Files) -> bool:
    (content,) = files.values()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    magic, *shape = struct.unpack(">4I", content[:16])
    return magic == 0x803 and value.shape == tuple(shape) and value.tobytes() == content[16:]


def read_file(parse: Callable[[bytes, str], Any], name: str) -> Callable[[Path], Any]:
    return lambda folder: parse((folder / name).read_bytes(), name)


def cifar_binary() -> dict[str, bytes]:
    return {"batch.bin": b"".join(bytes([k]) + bytes([k * 20]) * 3072 for k in range(3))}


def cifar_says(value: Any, files: Files) -> bool:
    (content,) = files.values()
    rows = [content[i : i + 3073] for i in range(0, len(content), 3073)]
    images, labels = value
    whole = images.tobytes() == b"".join(row[1:] for row in rows)
    return whole and labels.tolist() == [row[0] for row in rows] and max(labels) < 10


def cifar_python() -> dict[str, bytes]:
    batch = {
        b"data": np.zeros((2, 3072), np.uint8),
        b"labels": [3, 1],
        b"batch_label": b"one",
        b"filenames": [b"a", b"b"],
    }
    return {"old": pickle.dumps(batch, protocol=2)}


def is_cifar(value: Any, _: Files) -> bool:
    images, labels = value
    sound = images.dtype == labels.dtype == np.uint8 and images.shape == (len(labels), 3, 32, 32)
    return bool(sound and (labels < 10).all())


@cache
def cifar_layout() -> CifarLayout:
    digest = "sha1:" + hashlib.sha1(cifar_binary()["batch.bin"], usedforsecurity=False).hexdigest()
    return CifarLayout("cifar", "cifar.tar.gz", "", parse_binary, {}, {"batch.bin": digest})


def cifar_archive() -> dict[str, bytes]:
    out, content = io.BytesIO(), cifar_binary()["batch.bin"]
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        entry = tarfile.TarInfo("cifar/batch.bin")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return {"cifar.tar.gz": out.getvalue()}


def read_archive(folder: Path) -> Any:
    layout = cifar_layout()
    ((file, content),) = _contents(layout, folder / layout.archive, "test")
    check(content, layout.test[file], file)
    return layout.parse(content, file)


def official(value: Any, _: Files) -> bool:
    return cifar_says(value, cifar_binary())


# Weights and arrays of others: no checksum of ours; shapes and types are those of the model.


def state_file() -> dict[str, bytes]:
    return saved(lambda path: torch.save(network().state_dict(), path), "weights.pt")


def safetensors_file() -> dict[str, bytes]:
    from safetensors.torch import save

    return {"weights.safetensors": save(network().state_dict())}


def feature_files() -> dict[str, bytes]:
    x, y = numbers()
    return saved(lambda path: np.save(path, x.numpy()), "a.npy") | saved(lambda p: np.save(p, y.numpy()), "labels.npy")


def read_features(folder: Path) -> Any:
    return ll.record_of(folder, uncertainty=False, progress=False)


def are_features(value: Any, _: Files) -> bool:
    """A record like any, of as many samples as there are labels."""
    return bool(use(value).sites) and sum(value.counts) <= 10_000


def read_weights(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        model = network()
        _load_weights(model, folder / name)
        return model

    return read


def is_network(value: Any, _: Files) -> bool:
    mine, theirs = value.state_dict(), network().state_dict()
    return mine.keys() == theirs.keys() and all(
        mine[k].shape == theirs[k].shape and mine[k].dtype == theirs[k].dtype for k in mine
    )


def array_file() -> dict[str, bytes]:
    x, y = numbers()
    return saved(lambda path: np.savez(path, x=x.numpy(), y=y.numpy()), "data.npz")


def are_arrays(value: Any, _: Files) -> bool:
    (x, y), tested = value
    return isinstance(x, Tensor) and isinstance(y, Tensor) and tested is None and x.numel() < 10**6


# What layerlaw writes itself has a checksum inside: it comes back as it was, or not at all.


@cache
def prepared_images() -> Labeled:
    return data.load(split="test").balanced(1)


def read_prepared(folder: Path) -> Labeled:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(setting.PREPARED, str(folder))
        return setting._prepared("images", prepared_images)


def prepared() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        read_prepared(Path(folder))
        return {"images.npz": (Path(folder) / "images.npz").read_bytes()}


def same_images(value: Any, _: Files) -> bool:
    made = prepared_images()
    same = torch.equal(value.images, made.images) and torch.equal(value.labels, made.labels)
    return same and value.class_names == made.class_names and value.name == made.name


def swept(folder: Path | None = None) -> list[lab.Run]:
    recipes = lab.Recipe(network=lab.Shape(4, (5,), 3), epochs=2, batch_size=10).grid(seed=(1, 2))
    return lab.sweep(recipes, lab.Samples.of(numbers()), folder=folder, workers=1, progress=False)


@cache
def unbroken() -> list[lab.Run]:
    return swept()


def fleet_file() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        swept(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).glob("*.pt")}


def same_runs(value: Any, _: Files) -> bool:
    def plain(run: lab.Run) -> Any:
        return {key: part for key, part in run.to_dict().items() if key != "how"}

    return all(
        plain(mine) == plain(theirs)
        and mine.state is not None
        and theirs.state is not None
        and all(torch.equal(mine.state[k], theirs.state[k]) for k in theirs.state)
        for mine, theirs in zip(value, unbroken(), strict=True)
    )


@cache
def text_model() -> lab.GPT:
    torch.manual_seed(0)
    return lab.GPT(vocabulary=20, width=8, depth=1, heads=2, context=8).eval()


def text_model_file() -> dict[str, bytes]:
    return saved(lambda path: lab.save_text_model(text_model(), path), "model.pt")


def same_model(value: Any, _: Files) -> bool:
    mine, theirs = value.state_dict(), text_model().state_dict()
    return value.arguments == text_model().arguments and all(torch.equal(mine[k], theirs[k]) for k in theirs)


# GGUF headers, folders of pictures, texts.


def gguf_file() -> dict[str, bytes]:
    import gguf

    def write(path: Path) -> None:
        file = gguf.GGUFWriter(str(path), "llama")
        file.add_block_count(1)
        file.add_bos_token_id(1)
        file.add_add_bos_token(True)
        file.add_token_list(["a", "b", "c"])
        file.add_tensor("blk.0.attn_q.weight", np.ones((4, 8), np.float32))
        file.add_tensor("output.weight", np.ones((3, 8), np.float16))
        file.write_header_to_file()
        file.write_kv_data_to_file()
        file.write_tensors_to_file()
        file.close()

    return saved(write, "model.gguf")


def read_gguf(folder: Path) -> Any:
    from layerlaw.lm.loading import _gguf_header

    return _gguf_header(folder / "model.gguf")


def is_header(value: Any, _: Files) -> bool:
    whole = value.bos_id is None or isinstance(value.bos_id, int)
    return value.quantization.endswith("(GGUF)") and value.bos in (None, True, False) and whole


def pictures() -> dict[str, bytes]:
    from PIL import Image

    made = {}
    for i, kind in enumerate(("png", "ppm", "bmp", "gif", "jpeg", "tiff", "webp")):
        pixels = np.random.default_rng(i).integers(0, 255, (9, 8, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, kind)
        made[f"{'cats' if i % 2 else 'dogs'}/{i}.{kind}"] = out.getvalue()
    return made


def are_pictures(value: Any, files: Files) -> bool:
    n, channels, *_ = value.images.shape
    labels = sorted(int(name.startswith("dogs")) for name in files)
    return n == len(files) and channels == 3 and value.labels.tolist() == labels


def text_files() -> dict[str, bytes]:
    return {"text.txt": "Ein kurzer Text, größer als nichts.\n".encode() * 5}


def text_says(value: Any, files: Files) -> bool:
    (content,) = files.values()
    content = gzip.decompress(content) if next(iter(files)).endswith(".gz") else content
    return bool(value.documents == [content.decode("utf-8-sig").replace("\r\n", "\n")])


def line_files() -> dict[str, bytes]:
    return {"lines.jsonl": b"".join(json.dumps({"text": f"document {i}"}).encode() + b"\n" for i in range(4))}


def lines_say(value: Any, files: Files) -> bool:
    (content,) = files.values()
    lines = [json.loads(line) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    return bool(value.documents == [line["text"] for line in lines if line["text"].strip()])


def packed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}


READERS = {
    reader.name: reader
    for reader in (
        Reader("records", records, lambda f: use(ll.Record.load(f / "record.json")), same_again, mutated_json),
        Reader(
            "language records",
            language_records,
            lambda f: use(ll.Record.load(f / "record.json")),
            same_again,
            mutated_json,
        ),
        Reader("outcomes", outcomes, lambda f: use_outcome(Outcome.load(f / "outcome.json")), same_again, mutated_json),
        Reader("idx", idx_files, lambda f: read_idx(f / "images", ndim=3), idx_says),
        Reader(
            "idx gzip", lambda: packed(idx_files()), lambda f: read_idx(f / "images.gz", ndim=3), idx_says, mutated_gzip
        ),
        Reader("CIFAR binary", cifar_binary, read_file(parse_binary, "batch.bin"), cifar_says),
        Reader("CIFAR pickle", cifar_python, read_file(parse_python, "old"), is_cifar),
        Reader("CIFAR archive", cifar_archive, read_archive, official, mutated_gzip),
        Reader("weights", state_file, read_weights("weights.pt"), is_network, mutated_zip),
        Reader("safetensors", safetensors_file, read_weights("weights.safetensors"), is_network),
        Reader("arrays", array_file, lambda f: arrays(f / "data.npz"), are_arrays, mutated_zip),
        Reader("prepared", prepared, read_prepared, same_images, mutated_zip),
        Reader("fleets", fleet_file, swept, same_runs, mutated_zip),
        Reader("text models", text_model_file, lambda f: lab.load_text_model(f / "model.pt"), same_model, mutated_zip),
        Reader("GGUF", gguf_file, read_gguf, is_header),
        Reader("features", feature_files, read_features, are_features),
        Reader("folders", pictures, lambda f: load_folder(f, progress=False), are_pictures),
        Reader("texts", text_files, lambda f: data.load_text(f / "text.txt"), text_says),
        Reader(
            "texts gzip",
            lambda: packed(text_files()),
            lambda f: data.load_text(f / "text.txt.gz"),
            text_says,
            mutated_gzip,
        ),
        Reader("lines", line_files, lambda f: data.load_text(f / "lines.jsonl"), lines_say, mutated_bytes),
    )
}
