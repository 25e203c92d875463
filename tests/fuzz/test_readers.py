"""Damaged files of every kind: an error of ours or the right value. `make fuzz N=100000` tries more of them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import pytest

from fuzz.judging import Reader, complaints, judged
from fuzz.mutating import mutated_bytes, mutated_json
from fuzz.readers import READERS

COUNT = -(-int(os.environ.get("FUZZ_IN_ALL", 300 * len(READERS))) // len(READERS))  # mutants for each reader
SEED = int(os.environ.get("FUZZ_SEED", "0"))
NEEDS = {"GGUF": "gguf", "safetensors": "safetensors", "folders": "PIL"}


@pytest.mark.timeout(0)  # as long as there are mutants; each of them has its own limit
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_answered_or_read_rightly(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    found = list(complaints(READERS[name], tmp_path, COUNT, SEED))
    assert not found, f"{len(found)} of {COUNT}:\n" + "\n".join(found[:20])


def test_mutants_are_the_same_for_one_seed_and_others_for_another() -> None:
    content = bytes(range(256)) * 8
    first, again = ([mutated_bytes(content, Random(f"{i}")) for i in range(50)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 40
    assert len({mutated_json(b'{"a": [1, 2, {"b": 3}]}', Random(i)) for i in range(50)}) > 20


@pytest.mark.parametrize(
    ("read", "complaint"),
    [
        (lambda _: 1, ""),
        (lambda _: 2, "wrong value 2"),
        (lambda _: 1 / 0, "foreign ZeroDivisionError"),
        (lambda _: time.sleep(30), "hangs"),
        (lambda _: len(bytearray(400 * 2**20)) // (400 * 2**20), "took 4"),
    ],
    ids=["right", "wrong", "foreign", "hanging", "greedy"],
)
def test_the_rule_finds_what_breaks_it(
    read: object, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if complaint == "hangs":  # the others may take longer where the machine is busy
        monkeypatch.setattr("fuzz.judging.SECONDS", 2.0)
    reader = Reader("any", lambda: {"a": b"x"}, read, lambda value, _: value == 1)  # type: ignore[arg-type]
    assert judged(reader, tmp_path, {"a": b"x"}).startswith(complaint)
