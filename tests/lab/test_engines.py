"""Sweeps over a Ray cluster: the numbers of one process, whatever is lost on the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from lab_parts import SCHEDULE, Told, clouds, numbers, same_networks, small_sweep, uninterrupted
from ray_parts import TracedEntropy
from torch import nn

from layerlaw.errors import InputError, LayerlawError, MissingExtraError
from layerlaw.lab import Architecture, Recipe, Run, Schedule, Shape, engines, sweep
from layerlaw.lab.jobs import Checkpoint, Job, run
from layerlaw.lab.recipe import Member

SAMPLES = clouds(150)
EPOCHS = 20  # some seconds: time enough to lose a worker, also on a busy machine
BASE = Recipe(network=Shape(12, (16, 10), 4), epochs=EPOCHS, batch_size=32, learning_rate=0.01)


def quiet(recipes: list[Recipe], **how: Any) -> list[Run]:
    return sweep(recipes, SAMPLES, **{"progress": False, **how})


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two nodes of one core each on this machine; this process is connected to them."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'layerlaw[ray]'); make ray runs these")
    from ray.cluster_utils import Cluster

    before = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, handler)
        cluster.shutdown()
        os.environ.pop("RAY_USAGE_STATS_ENABLED")
        if before is not None:
            os.environ["RAY_USAGE_STATS_ENABLED"] = before


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are copied as often as workers are asked."""
    monkeypatch.setattr(engines, "COPY_EVERY", 0.0)


def once(moment: Callable[[int], object], do: Callable[[], object]) -> Callable[..., Iterator[int]]:
    """A progress that does something after the first epoch at which it is the moment for it."""

    def progress(items: Iterable[int], label: str, total: int | None) -> Iterator[int]:
        done = False
        for step, item in enumerate(items, 1):
            if not done and moment(step):
                do()
                done = True
            yield item
        assert done

    return progress


def copied(folder: Path, files: int) -> Callable[[int], bool]:
    """Whether so many jobs have a file in the folder."""
    return lambda step: len(list(folder.glob("*.pt"))) >= files


def traced(folder: Path, pause: float = 0.03) -> list[Recipe]:
    """Two recipes for the plain loop that leave a trace in a folder."""
    return replace(BASE, loss=TracedEntropy(str(folder), pause)).grid(seed=(1, 2))


def trace(folder: Path) -> Counter[tuple[int, str]]:
    """How many epochs every (process, node) trained."""
    lines = [line.split() for line in (folder / "trace").read_text().splitlines()]
    return Counter((int(process), node) for process, node in lines)


def alike(runs: list[Run], others: list[Run]) -> bool:
    """The same numbers and networks; the folder of the trace may differ."""
    kept = [[{**one, "recipe": None} for one in numbers(some)] for some in (runs, others)]
    return kept[0] == kept[1] and same_networks(runs, others)


@pytest.fixture
def own() -> Iterator[type[Architecture]]:
    """A network that, like those of a script, no module has: it travels pickled by value."""

    @dataclass(frozen=True)
    class Own(Architecture):
        kind: ClassVar[str] = "own_of_a_test"
        classes: int = 4

        def build(self) -> nn.Module:
            return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, self.classes))

    yield Own
    Architecture.kinds.pop("own_of_a_test", None)


def answer_of(worker: engines.RayWorker) -> engines.Answer:
    """What a worker says at the end of its job."""
    deadline = time.monotonic() + 60
    while not (said := worker.look(stop=False, files=False)).over:
        assert time.monotonic() < deadline
    return said


def begun_job(own: type[Architecture], folder: Path) -> Job:
    """A job that was stopped after two epochs, with its file."""
    member = Member(replace(BASE, network=own(), epochs=4), SAMPLES, "0" * 24)
    job = Job([member], Schedule(), file=folder / "network-1.pt")
    run(job, lambda epoch, loss: epoch < 2)
    return job


def test_a_worker_goes_on_with_a_network_that_only_the_script_defines(own: type[Architecture], tmp_path: Path) -> None:
    job, worker = begun_job(own, tmp_path), engines.RayWorker()
    assert job.file is not None
    del Architecture.kinds["own_of_a_test"]  # as where a class comes pickled by value
    worker.start(job, {job.file.name: job.file.read_bytes()}, SAMPLES)
    said = answer_of(worker)
    assert said.error == ""
    assert [epoch for epoch, _ in said.epochs] == [3, 4]


def test_a_damaged_file_is_named_where_the_user_has_it(own: type[Architecture], tmp_path: Path) -> None:
    job, worker = begun_job(own, tmp_path), engines.RayWorker()
    assert job.file is not None
    worker.start(job, {job.file.name: job.file.read_bytes()[:-9]}, SAMPLES)
    said = answer_of(worker)
    assert str(job.file) in said.error
    assert "/layerlaw-" not in said.error


def test_a_network_of_the_script_is_resumed_on_the_cluster(nodes: Any, own: type[Architecture], tmp_path: Path) -> None:
    recipes = replace(BASE, network=own(), loss=TracedEntropy(str(tmp_path), 0.03)).grid(seed=(1, 2))
    plain, folder = quiet(recipes, workers=1), tmp_path / "sweep"
    stop = once(lambda step: step == 6, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        quiet(recipes, engine="ray", folder=folder, progress=stop)
    reached = [run["epoch"] for run in json.loads((folder / "sweep.json").read_text())["runs"]]
    assert any(0 < epoch < EPOCHS for epoch in reached)
    (tmp_path / "trace").unlink()
    assert alike(quiet(recipes, engine="ray", folder=folder), plain)
    assert trace(tmp_path).total() == 2 * EPOCHS - sum(reached)


def test_two_nodes_give_the_same_bits_as_one_process(nodes: Any, tmp_path: Path) -> None:
    recipes, samples = small_sweep()
    told = Told()
    runs = sweep(recipes, samples, schedule=SCHEDULE, members=2, engine="ray", folder=tmp_path, progress=told)
    assert numbers(runs) == numbers(uninterrupted())
    assert same_networks(runs, uninterrupted())
    assert told.all == [("5 networks", 90), *range(90)]
    assert json.loads((tmp_path / "sweep.json").read_text())["runs"] == json.loads(json.dumps(numbers(runs)))
    files = {file: file.stat().st_mtime_ns for file in tmp_path.glob("fleet-*.pt")}
    assert len(files) == 3
    again = sweep(recipes, samples, schedule=SCHEDULE, members=2, engine="ray", folder=tmp_path, progress=False)
    assert numbers(again) == numbers(runs)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("fleet-*.pt")} == files


def test_every_core_of_the_cluster_gets_a_part_and_a_member_that_diverges_is_told(nodes: Any) -> None:
    base = replace(BASE, network=replace(BASE.network, norm=False), optimizer="momentum", epochs=6, drops=())
    recipes = base.grid(learning_rate=(0.01, 1e4, 0.02))
    runs = quiet(recipes, engine="ray")
    here = quiet(recipes, workers=1)
    assert [run.diverged is None for run in runs] == [True, False, True]
    assert [run.diverged for run in runs] == [run.diverged for run in here]
    assert list(runs[2].losses) == pytest.approx(list(here[2].losses), rel=1e-4)


def test_a_worker_that_is_killed_is_replaced_and_the_job_goes_on(nodes: Any, often: None, tmp_path: Path) -> None:
    plain, folder = quiet(traced(tmp_path, 0.0)[:1], workers=1), tmp_path / "sweep"
    (tmp_path / "trace").unlink()
    killed: list[int] = []

    def kill() -> None:
        killed.append(next(process for process, _ in trace(tmp_path)))
        os.kill(killed[0], signal.SIGKILL)
        (tmp_path / "slow").unlink()

    (tmp_path / "slow").touch()
    runs = quiet(traced(tmp_path)[:1], engine="ray", folder=folder, progress=once(copied(folder, 1), kill))
    assert alike(runs, plain)
    trained = Counter({process: epochs for (process, _), epochs in trace(tmp_path).items()})
    assert len(trained) == 2
    assert EPOCHS <= trained.total() < EPOCHS + trained[killed[0]]  # not from the beginning


def test_ctrl_c_saves_what_workers_did_and_processes_go_on(nodes: Any, tmp_path: Path) -> None:
    plain, folder = quiet(traced(tmp_path, 0.0), workers=1), tmp_path / "sweep"
    stop = once(lambda step: step == 6, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        quiet(traced(tmp_path), engine="ray", folder=folder, progress=stop)
    reached = [run["epoch"] for run in json.loads((folder / "sweep.json").read_text())["runs"]]
    assert any(0 < epoch < EPOCHS for epoch in reached)
    (tmp_path / "trace").unlink()
    assert alike(quiet(traced(tmp_path), workers=1, folder=folder), plain)
    assert trace(tmp_path).total() == 2 * EPOCHS - sum(reached)


def test_workers_that_always_die_are_reported_and_nothing_is_lost(
    nodes: Any, often: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, folder = quiet(traced(tmp_path, 0.0)[:1], workers=1), tmp_path / "sweep"
    monkeypatch.setattr(engines, "TRIES", 2)
    words = r"failed: 2 workers of the cluster were lost one after the other while training 1 × .* members=1 .*sweep"
    die = once(copied(folder, 1), (tmp_path / "die").touch)
    (tmp_path / "slow").touch()
    with pytest.raises(LayerlawError, match=words):
        quiet(traced(tmp_path)[:1], engine="ray", folder=folder, progress=die)
    (saved,) = (Checkpoint.from_file(file)[0] for file in folder.glob("*.pt"))
    assert 0 < saved.epoch < EPOCHS
    assert not saved.done
    for name in ("die", "slow", "trace"):
        (tmp_path / name).unlink()
    assert alike(quiet(traced(tmp_path)[:1], workers=1, folder=folder), plain)
    assert trace(tmp_path).total() == EPOCHS - saved.epoch


def test_what_goes_wrong_in_a_worker_is_told_and_the_others_are_saved(nodes: Any, tmp_path: Path) -> None:
    folder, lame = tmp_path / "sweep", tmp_path / "lame"
    lame.mkdir()
    (lame / "fail").touch()
    recipes = [traced(tmp_path)[0], traced(lame)[1]]
    with pytest.raises(LayerlawError, match="training failed: ArithmeticError: the test wants a failure"):
        quiet(recipes, engine="ray", folder=folder)
    (part,) = [Checkpoint.from_file(file)[0] for file in folder.glob("*.pt")]
    assert part.epoch > 0


def test_other_versions_on_other_machines_are_refused(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_versions", lambda: {"layerlaw": "9.9", "torch": "9.9"})
    with pytest.raises(LayerlawError, match=r"expected layerlaw 9.9, torch 9.9 on every machine .*, got layerlaw"):
        quiet([BASE], engine="ray")


def test_a_cluster_without_gpus_and_one_that_is_busy_are_told(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    with pytest.raises(LayerlawError, match=r"expected a cluster with GPUs for the device 'cuda', got none"):
        engines.workers_of(ray, "cuda")
    assert engines.workers_of(ray, "cpu") == 2
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])  # takes both
    ray.get(group.ready())
    monkeypatch.setattr(engines, "PATIENCE", 0.2)
    timer = threading.Timer(1.5, ray.util.remove_placement_group, [group])
    timer.start()
    with pytest.warns(UserWarning, match="the cluster has had no free core or GPU"):
        assert quiet([BASE], engine="ray")[0].finished


def test_a_node_that_is_lost_is_done_without(nodes: Any, often: None, tmp_path: Path) -> None:
    plain = quiet(traced(tmp_path, 0.0), workers=1)
    (tmp_path / "trace").unlink()
    (second,) = nodes.worker_nodes

    def at_work(step: int) -> bool:
        return any(node == second.node_id for _, node in trace(tmp_path))

    lose = once(at_work, lambda: nodes.remove_node(second, allow_graceful=False))
    try:
        runs = quiet(traced(tmp_path), engine="ray", progress=lose)
    finally:
        nodes.add_node(num_cpus=1)
    assert alike(runs, plain)
    trained = trace(tmp_path)
    assert len({node for _, node in trained}) == 2
    assert 2 * EPOCHS <= trained.total() < 3 * EPOCHS


def test_depth_is_chosen_over_the_cluster(nodes: Any, tmp_path: Path) -> None:
    from layerlaw.advice import choose_depth

    plans: list[str] = []
    how: dict[str, Any] = {"depths": (2, 3), "width": 8, "rates": (0.01,), "seeds": (0, 1), "progress": False}
    short = Recipe(epochs=4)
    there = choose_depth(SAMPLES, recipe=short, engine="ray", announce=lambda plan: plans.append(str(plan)), **how)
    here = choose_depth(SAMPLES, recipe=short, **how)
    assert [c.trials[0].accuracies for c in there.candidates] == [c.trials[0].accuracies for c in here.candidates]
    assert "roughly" not in plans[0]


def test_an_address_at_which_nobody_answers_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    note = tmp_path / "ray" / "ray_current_cluster"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        there = f"127.0.0.1:{taken.getsockname()[1]}"  # bound, but nobody listens
        monkeypatch.setenv("RAY_ADDRESS", there)
        with pytest.raises(LayerlawError, match=rf"expected a cluster at RAY_ADDRESS={there}, got .*ray start --head"):
            engines._address()
        monkeypatch.delenv("RAY_ADDRESS")
        note.write_text(there)
        assert engines._address() == "local"  # the note of a cluster that was killed
        taken.listen()
        assert engines._address() is None  # Ray finds it
    note.unlink()
    assert engines._address() is None
    for word in ("auto", "local", "anyscale://mine"):
        monkeypatch.setenv("RAY_ADDRESS", word)
        assert engines._address() == word


@pytest.mark.parametrize("mode", [None, "token"])
def test_a_cluster_that_wants_a_token_is_told_with_what_to_set(
    mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(*_: Any, **__: Any) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 127.0.0.1:6379")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init, exceptions=SimpleNamespace(RayError=LookupError))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(engines, "_address", lambda: "127.0.0.1:6379")
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(LayerlawError, match=r"expected a cluster that can be used at 127\.0\.0\.1:6379") as error:
        quiet([BASE], engine="ray")
    assert ("want RAY_AUTH_MODE=token, and their token, on every machine." in str(error.value)) == (mode is None)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"engine='ray' needs the package 'ray': pip install 'layerlaw\[ray\]'"):
        quiet([BASE], engine="ray")


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match=r"engine: expected .*processes.*ray.*, got 'dask'"):
        quiet([BASE], engine="dask")
