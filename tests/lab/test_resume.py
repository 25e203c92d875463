"""A sweep survives whatever ends it: nothing is lost but the last minute, and nothing is different afterwards."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab_parts import (
    SCHEDULE,
    Told,
    clouds,
    kill_on_the_way,
    numbers,
    same_networks,
    small_sweep,
    uninterrupted,
)

import layerlaw.lab
from layerlaw.errors import DataError
from layerlaw.lab import Recipe, Run, Samples, Schedule, Shape, jobs, sweep, sweeping
from layerlaw.lab.jobs import Checkpoint

SCRIPT = Path(__file__).with_name("killed_sweep.py")
SAMPLES = clouds(150)
BASE = Recipe(network=Shape(12, (16, 10), 4), epochs=4, batch_size=32)


def quiet(recipes: list[Recipe], data: Any = SAMPLES, **how: Any) -> list[Run]:
    return sweep(recipes, data, **{"progress": False, "workers": 1, **how})


def goes_on(folder: Path, workers: int = 1) -> str:
    """The same networks as in one go; returns what the progress is called."""
    (recipes, samples), told = small_sweep(), Told()
    resumed = quiet(recipes, samples, schedule=SCHEDULE, members=2, folder=folder, workers=workers, progress=told)
    assert numbers(resumed) == numbers(uninterrupted())
    assert same_networks(resumed, uninterrupted())
    table = json.loads((folder / "sweep.json").read_text())
    assert table["runs"] == json.loads(json.dumps(numbers(uninterrupted())))
    return str(told.all[0][0])


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def trained_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    trained: list[Recipe] = []
    run = layerlaw.lab.processes.run

    def counting(job: Any, *args: Any) -> Checkpoint:
        trained.extend(member.recipe for member in job.members)
        return run(job, *args)

    monkeypatch.setattr(layerlaw.lab.processes, "run", counting)
    return trained


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sweep"
    parts = kill_on_the_way(folder, 1, 45)  # one fleet done, one on its way, one not begun
    assert sorted((part.epoch, part.done) for part in parts) == [(14, False), (30, True)]
    seen = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    finished = next(path for path in seen if Checkpoint.from_file(path)[0].done)
    uninterrupted()
    epochs: list[int] = []
    monkeypatch.setattr(
        layerlaw.lab.processes, "_where", lambda job, epoch, loss: epochs.append(epoch) or "", raising=True
    )
    assert goes_on(folder) == "3 networks left (2 of them begun, 2 finished before)"
    assert sorted(epochs) == sorted([*range(15, 31), *range(1, 31)])
    assert finished.stat().st_mtime_ns == seen[finished]


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_sweep_killed_with_its_processes_at_work_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sweep"
    parts = kill_on_the_way(folder, 2, 4)
    assert parts  # saved by the workers when they noticed
    assert all(0 < part.epoch < 30 and not part.done for part in parts)
    assert not list((tmp_path / "scratch").iterdir())  # the last worker tidied up
    monkeypatch.setattr(sweeping, "WORTH_PROCESSES", 0)
    goes_on(folder, workers=2)


def test_a_worker_whose_sweep_dies_while_it_reports_saves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    recipes, samples = small_sweep()
    member, file = jobs.Member(recipes[0], samples, "key"), tmp_path / "fleet-1.pt"
    (tmp_path / "job-0").write_bytes(pickle.dumps(jobs.Job([member], SCHEDULE, file=file)))
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path), str(os.getppid())])
    monkeypatch.setattr(sys, "stdin", io.StringIO("0\n"))
    monkeypatch.setattr(sys, "stdout", Closed())
    layerlaw.lab.processes.serve()
    part, _ = Checkpoint.from_file(file)
    assert (part.epoch, part.done) == (1, False)


def test_a_sweep_killed_while_it_saves_goes_on_from_the_save_before(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    parts = kill_on_the_way(folder, 1, 9, "saving")
    assert [part.epoch for part in parts] == [8]
    assert len(list(folder.iterdir())) == 2  # and half a file that nobody reads
    goes_on(folder)
    assert not list(folder.glob(".layerlaw.*"))  # which the next writer removes


def test_what_is_finished_is_never_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = BASE.grid(seed=(1, 2), optimizer=("sgd", "adam"))
    first = quiet(recipes, folder=tmp_path, members=3)
    fleets = {path: path.stat().st_mtime_ns for path in tmp_path.glob("fleet-*.pt")}
    assert len(fleets) == 2
    trained = trained_from_now_on(monkeypatch)
    for order in (recipes, recipes[::-1], recipes[1:3]):
        again = quiet(order, folder=tmp_path)
        assert not trained
        expected = {run.recipe: run for run in first}
        assert numbers(again) == numbers([expected[recipe] for recipe in order])
        assert same_networks(again, [expected[recipe] for recipe in order])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("fleet-*.pt")} == fleets


def test_more_seeds_are_added_to_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = quiet(BASE.grid(seed=(1, 2)), folder=tmp_path)
    trained = trained_from_now_on(monkeypatch)
    told = Told()
    more = quiet(BASE.grid(seed=(3, 1, 4, 2)), folder=tmp_path, progress=told)
    assert told.all[0] == ("2 networks left (2 finished before)", 4)
    assert sorted(recipe.seed for recipe in trained) == [3, 4]
    assert [run.recipe.seed for run in more] == [3, 1, 4, 2]
    assert numbers([more[1], more[3]]) == numbers(first)
    assert len(json.loads((tmp_path / "sweep.json").read_text())["runs"]) == 4
    trained.clear()
    quiet(BASE.grid(seed=(1, 2, 3, 4)), folder=tmp_path)
    assert not trained


def test_other_samples_measurements_or_starts_are_another_sweep(tmp_path: Path) -> None:
    state = quiet([BASE], folder=tmp_path)[0].state
    others: list[dict[str, Any]] = [
        {"data": clouds(150, seed=1)},
        {"schedule": Schedule(batchnorm=("running",))},
        {"start": [state]},
        {"data": Samples.of((SAMPLES.inputs, SAMPLES.labels), (SAMPLES.inputs, SAMPLES.labels))},
    ]
    for other in others:
        with pytest.raises(DataError, match=r"another one \(other data, measurements or starting points"):
            quiet([BASE], folder=tmp_path, **other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.5}, r"learning_rate 0.001 there, 0.5 here"),
        ({"epochs": 9}, r"epochs 4 there, 9 here"),
        ({"weight_decay": 0.0, "batch_size": 50}, r"batch_size 32 there, 50 here; weight_decay 0.0005 there, 0.0 here"),
        ({"network": Shape(12, (16, 11), 4)}, r"widths \(16, 10\) there, \(16, 11\) here"),
        ({"layers": (0, 1)}, r"layers None there, \(0, 1\) here"),
    ],
    ids=["rate", "epochs", "two fields", "shape", "layers"],
)
def test_the_folder_of_another_sweep_is_left_alone_and_the_difference_told(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    quiet(BASE.grid(optimizer=("sgd", "adam"), seed=(3, 4)), folder=tmp_path)
    before = files_of(tmp_path)
    wanted = [replace(BASE, **change, optimizer="sgd", seed=seed) for seed in (5, 4)]
    with pytest.raises(DataError) as error:
        quiet(wanted, folder=tmp_path)
    message = str(error.value)
    assert message.startswith(f"{tmp_path}: expected an empty folder or one of this sweep. It holds another one (")
    assert message.endswith(" here). Choose another folder.")
    assert "optimizer" not in message  # the two most alike are compared
    assert "seed" not in message
    with pytest.raises(DataError, match=words):
        quiet(wanted, folder=tmp_path)
    assert files_of(tmp_path) == before


def test_seeds_may_come_one_after_the_other(tmp_path: Path) -> None:
    (first,) = quiet([BASE], folder=tmp_path)
    (second,) = quiet([replace(BASE, seed=BASE.seed + 1)], folder=tmp_path)
    both = quiet(BASE.grid(seed=(BASE.seed, BASE.seed + 1)), folder=tmp_path, progress=_nothing_is_trained)
    assert [run.losses for run in both] == [first.losses, second.losses]


def _nothing_is_trained(items: Any, label: str, total: int | None) -> Any:
    raise AssertionError(label)


def test_a_part_of_an_unfinished_sweep_is_trained_by_itself(tmp_path: Path) -> None:
    recipes = BASE.grid(seed=(1, 2))

    def stop(items: Any, label: str, total: int | None) -> Any:
        for item in items:
            if item == 1:
                os.kill(os.getpid(), signal.SIGINT)
            yield item

    with pytest.raises(KeyboardInterrupt):
        quiet(recipes, folder=tmp_path, progress=stop)
    alone = quiet([recipes[0]], folder=tmp_path)[0]
    assert alone.losses == pytest.approx(quiet([recipes[0]])[0].losses, rel=1e-5)
    both = quiet(recipes, folder=tmp_path)
    assert both[0].losses == alone.losses
    assert both[1].finished


@pytest.mark.parametrize("rest", [0, 10, 0.5, 0.99], ids=str)
def test_a_truncated_file_is_told(rest: float, tmp_path: Path) -> None:
    quiet([BASE], folder=tmp_path)
    (path,) = tmp_path.glob("fleet-*.pt")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(rest if rest >= 1 else rest * len(whole))])
    before = files_of(tmp_path)
    with pytest.raises(
        DataError,
        match=rf"{path}: expected the progress of a sweep, got .*cut short.* Delete it, and its members",
    ):
        quiet([BASE], folder=tmp_path)
    assert files_of(tmp_path) == before
    path.unlink()
    assert quiet([BASE], folder=tmp_path)[0].finished


def test_a_file_of_something_else_is_told(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(3)}, tmp_path / "fleet-mine.pt")
    with pytest.raises(DataError, match=r"fleet-mine\.pt: expected the progress of a sweep"):
        quiet([BASE], folder=tmp_path)


def test_a_folder_is_made_where_there_is_none_and_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    quiet([BASE], folder=str(folder))
    assert sorted(path.name.partition("-")[0] for path in folder.iterdir()) == ["fleet", "sweep.json"]
    (folder / "notes.txt").write_text("mine")
    quiet([BASE], folder=folder)
    assert (folder / "notes.txt").read_text() == "mine"
