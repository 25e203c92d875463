"""Files are written whole or not at all: on a full disk, beside writers that were killed, in folders that take none."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from disk import full_disk
from layerlaw import files
from layerlaw.cli.app import save_figure
from layerlaw.errors import DataError
from layerlaw.files import check_room, clear_parts, replace_whole, write_whole
from layerlaw.lab import GPT, Recipe, Samples, Shape, save_text_model, sweep
from layerlaw.packed import write_npz, write_torch
from layerlaw.record import Record, SiteRow


def figure(path: Path) -> None:
    drawn, _ = plt.subplots()
    try:
        save_figure(drawn, path)
    finally:
        plt.close(drawn)


def exit_file(path: Path) -> None:
    from safetensors.torch import save_file

    replace_whole(path, lambda part: save_file({"w": torch.zeros(5000)}, part), wanted=20_000)


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_whole(path, "x" * 20_000),
    "record": lambda path: Record("a", [SiteRow(f"{i}", "Linear", (3,), 3) for i in range(300)], []).save(path),
    "torch": lambda path: write_torch(path, {"w": torch.zeros(5000)}),
    "text model": lambda path: save_text_model(GPT(vocabulary=20, width=16, depth=1, heads=2, context=8), path),
    "arrays": lambda path: write_npz(path, {"x": np.random.default_rng(0).integers(0, 255, 30_000, np.uint8)}),
    "figure.png": figure,
    "safetensors": exit_file,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_told_and_what_was_there_is_untouched(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    with full_disk(4096), pytest.raises(DataError, match=r"space on the disk .* (kB|bytes) were wanted, .* are free"):
        WRITERS[name](path)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == [name]
    WRITERS[name](path)  # there is room again
    assert path.stat().st_size > 4096


def test_how_much_was_wanted_is_told(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(DataError, match=r"a\.txt: expected space on the disk .*: 20 kB were wanted"):
        write_whole(tmp_path / "a.txt", "x" * 20_000)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_tells_late_is_heard(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DataError, match="expected space on the disk"):
        write_whole(tmp_path / "a.txt", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_place_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **how: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    monkeypatch.setattr(files.tempfile, "mkdtemp", refuse)
    for call in (lambda: write_whole(tmp_path / "a.txt", "x"), lambda: check_room(tmp_path / "new" / "deeper")):
        with pytest.raises(DataError, match=r"expected a place that can be written to \(Read-only file system\)"):
            call()


def test_whether_there_is_room_is_tried_before_the_work(tmp_path: Path) -> None:
    check_room(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    with full_disk(1000), pytest.raises(DataError, match=r"65\.5 kB were wanted"):
        check_room(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="expected a folder, got a file"):
        check_room(tmp_path / "file" / "inside")


def test_a_sweep_finds_out_that_it_cannot_write_before_it_trains(tmp_path: Path) -> None:
    inputs, labels = torch.randn(40, 5), torch.arange(40) % 2

    def fails(*given: object) -> Iterator[int]:
        raise AssertionError("trained")

    recipe = Recipe(Shape(5, (4,), 2), epochs=1)
    with full_disk(100), pytest.raises(DataError, match="expected space on the disk"):
        sweep([recipe], Samples.of((inputs, labels)), folder=tmp_path / "s", progress=fails, workers=1)


KILLED = """
import os, signal, sys
from layerlaw.files import replace_whole
def write(part):
    part.write_bytes(b"half")
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("writing", flush=True)
    sys.stdin.readline()
replace_whole(sys.argv[1], write)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    living = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "b"), "living"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert living.stdin is not None
    assert living.stdout is not None
    assert living.stdout.readline() == "writing\n"  # before the other one: a writer that begins clears the folder
    dead = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a"), "killed"], check=False)
    assert dead.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".layerlaw.*.part"))) == 2
    write_whole(tmp_path / "c", "new")
    assert len(list(tmp_path.glob(".layerlaw.*.part"))) == 1
    living.communicate("go\n", timeout=20)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b", "c"]
    assert (tmp_path / "b").read_text() == "half"


def test_a_folder_that_was_just_made_is_left_alone(tmp_path: Path) -> None:
    part, strange = tmp_path / "abc".join(files.PART), tmp_path / ".layerlaw.notes"
    foreign = tmp_path / ".layerlaw.0.abc.part"  # of another machine, whose lock may not be seen
    part.mkdir()
    foreign.mkdir()
    (foreign / "a").write_text("half")
    strange.write_text("mine")
    clear_parts(tmp_path)
    assert part.exists()
    os.utime(part, (time.time() - 120,) * 2)
    clear_parts(tmp_path)
    assert not part.exists()
    assert strange.exists()
    assert foreign.exists()
    os.utime(foreign, (time.time() - 100_000,) * 2)
    clear_parts(tmp_path)
    assert not foreign.exists()


MANY = """
import sys, torch
from safetensors.torch import save_file  # writes beside the file, and renames
from layerlaw.files import replace_whole
for i in range(60):
    replace_whole(f"{sys.argv[1]}/{sys.argv[2]}-{i}", lambda part: save_file({"a": torch.zeros(20_000)}, part))
"""


def test_writers_of_one_folder_leave_each_other_alone(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", MANY, str(tmp_path), name], stderr=subprocess.PIPE, text=True)
        for name in "abc"
    ]
    assert [writer.communicate(timeout=100)[1] for writer in writers] == [""] * 3
    assert len(list(tmp_path.iterdir())) == 180


def test_a_writer_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def write(part: Path) -> None:
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_whole(tmp_path / "a", write)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_on_the_size_of_files_is_no_full_disk(tmp_path: Path) -> None:
    with full_disk(4096), pytest.raises(DataError, match=r"got a limit of 4\.1 kB .* Raise it \(ulimit -f\)"):
        write_whole(tmp_path / "a.txt", "x" * 20_000)


def test_a_device_is_told_once() -> None:
    with pytest.raises(DataError) as caught:
        Record.load("/dev/zero")
    assert str(caught.value) == "/dev/zero: expected a layerlaw record, got a device or a pipe."


def test_the_free_space_told_is_that_of_the_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a disk of its own."""
    asked: list[Path] = []
    usage = files.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda place: asked.append(Path(place)) or usage)
    for place in (tmp_path, tmp_path / "record.json", tmp_path / "new" / "record.json"):
        files.full_disk(place)
    assert asked == [tmp_path] * 3
