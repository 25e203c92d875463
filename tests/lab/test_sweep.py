"""A sweep gives one run per recipe, however the recipes are put together, trained and interrupted."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab_parts import (
    SCHEDULE,
    Told,
    clouds,
    numbers,
    plain_loop,
    same_networks,
    slow_worker,
    small_sweep,
    uninterrupted,
)

import layerlaw.lab
from layerlaw.errors import InputError
from layerlaw.lab import EvenCrossEntropy, Recipe, Samples, Schedule, Shape, processes, sweep, sweeping
from layerlaw.lab.fleet.engine import AHEAD, EpochGraph, Orders

SAMPLES = clouds(150)
BASE = Recipe(network=Shape(12, (16, 10), 4), epochs=4, batch_size=32, learning_rate=0.01)


def quiet(recipes: list[Recipe], data: Any = SAMPLES, **how: Any) -> list[layerlaw.lab.Run]:
    return sweep(recipes, data, **{"progress": False, "workers": 1, **how})


def interrupting(at: int, times: int = 1) -> Callable[..., Iterator[int]]:
    """A progress that presses Ctrl-C when so many epochs are done."""

    def progress(items: Iterable[int], label: str, total: int | None) -> Iterator[int]:
        for step, item in enumerate(items, 1):
            if step == at:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
            yield item

    return progress


def test_runs_come_in_the_order_of_the_recipes() -> None:
    data = {"four": SAMPLES, "short": clouds(90, seed=5), "three": clouds(150, classes=3, seed=6)}
    recipes = [
        replace(BASE, data="four", optimizer="sgd"),
        replace(BASE, data="short"),
        replace(BASE, data="four", network=Shape(12, (9,), 4)),
        replace(BASE, data="four", optimizer="adam", seed=3),
        replace(BASE, data="three", network=replace(BASE.network, classes=3)),
        replace(BASE, data="four", batch_size=50),
        replace(BASE, data="four", epochs=3),
        replace(BASE, data="four", layers=(1, 3)),
        replace(BASE, data="four", optimizer="sgd", seed=2),
    ]
    expected = {r: plain_loop(r, data[r.data].inputs, data[r.data].labels, r.epochs).losses for r in recipes}
    for members in (None, 1, 2):
        for order in (recipes, recipes[::-1]):
            runs = quiet(order, data, members=members)
            assert [run.recipe for run in runs] == order
            for run in runs:
                assert list(run.losses) == pytest.approx(expected[run.recipe], rel=1e-3)
                assert run.finished
                assert run.diverged is None


def test_the_same_recipe_twice_is_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = counted(monkeypatch)
    first, other, second = quiet([BASE, replace(BASE, seed=1), BASE])
    assert sum(map(len, trained)) == 2
    assert first.losses == second.losses != other.losses


def counted(monkeypatch: pytest.MonkeyPatch) -> list[list[Recipe]]:
    """The recipes of every fleet that is trained from now on."""
    trained: list[list[Recipe]] = []
    run = layerlaw.lab.processes.run

    def counting(job: Any, *args: Any) -> Any:
        trained.append([member.recipe for member in job.members])
        return run(job, *args)

    monkeypatch.setattr(layerlaw.lab.processes, "run", counting)
    return trained


def test_members_that_fit_together_are_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = counted(monkeypatch)
    quiet([*BASE.grid(seed=range(5)), *replace(BASE, network=Shape(12, (9,), 4)).grid(seed=range(2))], members=3)
    assert sorted(map(len, trained)) == [2, 2, 3]
    assert all(len({r.network for r in fleet}) == 1 for fleet in trained)


def test_training_twice_gives_the_same_bits() -> None:
    recipes, samples = small_sweep()
    again = quiet(recipes, samples, schedule=SCHEDULE, members=2)
    assert numbers(again) == numbers(uninterrupted())
    assert same_networks(again, uninterrupted())


def test_two_processes_give_the_same_bits_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes, samples = small_sweep()
    one = uninterrupted()
    trained = counted(monkeypatch)
    monkeypatch.setattr(sweeping, "WORTH_PROCESSES", 0)
    steps: list[int] = []

    def progress(items: Iterable[int], label: str, total: int | None) -> Iterator[int]:
        assert (label, total) == ("5 networks", 90)
        for item in items:
            steps.append(item)
            yield item

    two = quiet(recipes, samples, schedule=SCHEDULE, members=2, workers=2, progress=progress)
    assert not trained  # not here, that is
    assert len(steps) == 90
    assert one == two
    assert numbers(one) == numbers(two)
    assert same_networks(one, two)


def test_what_goes_wrong_in_a_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(layerlaw.lab.processes, "_PROGRAM", "import sys; sys.exit(3)")
    words = (
        r"^training failed: a worker process ended with exit code 3 while training 1 × depth 3, widths 16, 10\. Noth"
    )
    with pytest.raises(layerlaw.LayerlawError, match=words):
        quiet(BASE.grid(seed=range(2)), members=1, workers=2)


def test_a_worker_that_is_killed_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.{})"
    monkeypatch.setattr(layerlaw.lab.processes, "_PROGRAM", killed.format("SIGKILL"))
    recipes, what = BASE.grid(seed=range(2)), "1 × depth 3, widths 16, 10"
    lack = f"a worker process was killed (SIGKILL), perhaps for lack of memory, while training {what}."
    less = "Fewer workers need less memory."
    with pytest.raises(layerlaw.LayerlawError) as error:
        quiet(recipes, members=1, workers=2)
    folder = "Nothing of it was saved: with folder=… it would be, and a second call go on from there."
    assert str(error.value) == f"training failed: {lack} {folder} {less}"
    with pytest.raises(layerlaw.LayerlawError) as error:
        quiet(recipes, members=1, workers=2, folder=tmp_path)
    again = f"What was saved is in {tmp_path}: call sweep again with this folder to go on."
    assert str(error.value) == f"training failed: {lack} {less} {again}"
    monkeypatch.setattr(layerlaw.lab.processes, "_PROGRAM", killed.format("SIGSEGV"))
    with pytest.raises(layerlaw.LayerlawError, match=rf"was killed \(SIGSEGV\) while training {what}\. What was saved"):
        quiet(recipes, members=1, workers=2, folder=tmp_path)
    monkeypatch.undo()
    assert all(run.finished for run in quiet(recipes, members=1, workers=2, folder=tmp_path))


def test_a_transferred_network_keeps_the_layers_it_got(tmp_path: Path) -> None:
    source = quiet([replace(BASE, seed=seed) for seed in (1, 2)])
    states = [run.state for run in source]
    other = clouds(150, seed=9)
    m, depth = 2, BASE.network.depth
    recipes = [replace(BASE, seed=seed, layers=(m, depth)) for seed in (11, 12)]
    for run, state in zip(quiet(recipes, other, start=states, copied=(0, m)), states, strict=True):
        assert run.state is not None
        assert state is not None
        for name in ("linear1", "linear2", "norm1", "norm2"):
            for what in ("weight", "bias"):
                assert torch.equal(run.state[f"{name}.{what}"], state[f"{name}.{what}"])
        assert not torch.equal(run.state["classifier.weight"], state["classifier.weight"])
        assert not torch.equal(run.state["norm1.running_mean"], state["norm1.running_mean"])


def test_only_the_copied_layers_come_from_the_start() -> None:
    state = quiet([replace(BASE, seed=1)])[0].network().state_dict()
    target = replace(BASE, seed=11)
    fleet = layerlaw.lab.Fleet([target], [SAMPLES])
    fresh = fleet.state_dict(0)
    fleet.load_state_dict(0, state, (1, 2))
    mine = fleet.state_dict(0)
    for name in [name for name in mine if "tracked" not in name]:
        wanted = state if name.split(".")[0] in ("linear2", "norm2") else fresh
        assert torch.equal(mine[name], wanted[name]), name
    fleet.load_state_dict(0, state)
    assert all(torch.equal(fleet.state_dict(0)[name], state[name]) for name in mine if "tracked" not in name)


def test_a_start_is_where_the_training_starts() -> None:
    recipe = replace(BASE, optimizer="sgd", learning_rate=0.1, drops=())
    first = quiet([recipe])[0]
    again = quiet([recipe], start=[first.state])[0]
    assert again.losses[0] < 0.9 * first.losses[0]
    schedule = Schedule(epochs=(0,), batchnorm=("running",))
    onward = quiet([BASE], start=[first.state], schedule=schedule)[0]
    assert (
        onward.measurement(epoch=0, batchnorm="running").separation == first.measurement(batchnorm="running").separation
    )


def test_a_member_that_diverges_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    base = Recipe(network=Shape(12, (16, 10), 4, norm=False), optimizer="momentum", epochs=6, batch_size=32, drops=())
    good, wild, other = base.grid(learning_rate=(0.01, 1e4, 0.02))
    runs = quiet([good, wild, other], schedule=Schedule(epochs=(0,), by_class=True), folder=tmp_path)
    assert [run.diverged is None for run in runs] == [True, False, True]
    assert runs[1].diverged == 1 + next(i for i, loss in enumerate(runs[1].losses) if not math.isfinite(loss))
    assert len(runs[1].losses) == 6
    last = runs[1].measurement()
    assert last.separation[1:] == (None, None)
    assert (last.loss, last.accuracy) == (None, None)
    assert runs[1].law() is None
    assert runs[1].measurement(epoch=0).separation[1] is not None
    for run, recipe in ((runs[0], good), (runs[2], other)):
        alone = plain_loop(recipe, SAMPLES.inputs, SAMPLES.labels, 6).losses
        assert list(run.losses) == pytest.approx(alone, rel=1e-3)
    text = (tmp_path / "sweep.json").read_text()
    table = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert table["runs"][1]["diverged"] == runs[1].diverged
    assert table["runs"][1]["losses"][-1] is None


def test_progress_is_told_of_every_epoch() -> None:
    told = Told()
    quiet([BASE, replace(BASE, seed=2), replace(BASE, epochs=3)], progress=told)
    assert told.all == [("3 networks", 7), *range(7)]


def test_the_bar_is_there_and_gone(capfd: pytest.CaptureFixture[str]) -> None:
    quiet([BASE], progress=True)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_saves_and_a_second_call_goes_on(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(layerlaw.lab.processes, "_PROGRAM", slow_worker())
    recipes, samples = small_sweep()
    how: dict[str, Any] = {"schedule": SCHEDULE, "members": 2, "workers": workers}
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        quiet(recipes, samples, folder=tmp_path, progress=interrupting(40 if workers == 1 else 8), **how)
    assert signal.getsignal(signal.SIGINT) is handler
    table = json.loads((tmp_path / "sweep.json").read_text())
    assert (table["format"], table["version"]) == ("layerlaw sweep", 1)
    epochs = [run["epoch"] for run in table["runs"]]
    assert any(0 < epoch < 30 for epoch in epochs)
    assert all(len(run["losses"]) == run["epoch"] for run in table["runs"])
    monkeypatch.setattr(sweeping, "WORTH_PROCESSES", math.inf)
    partial = {json.dumps(run["recipe"]): run for run in table["runs"]}
    for run in uninterrupted():  # what is there is right
        known = partial.get(json.dumps(run.recipe.to_dict()))
        if known is not None:
            assert known["losses"] == list(run.losses)[: known["epoch"]]
    resumed = quiet(recipes, samples, folder=tmp_path, **how)
    assert numbers(resumed) == numbers(uninterrupted())
    assert same_networks(resumed, uninterrupted())
    assert json.loads((tmp_path / "sweep.json").read_text())["runs"] == json.loads(json.dumps(numbers(uninterrupted())))


def test_ctrl_c_without_a_folder_still_stops() -> None:
    with pytest.raises(KeyboardInterrupt):
        quiet([BASE], progress=interrupting(2))


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        quiet([BASE], folder=tmp_path, progress=interrupting(2, times=2))
    assert signal.getsignal(signal.SIGINT) is handler
    assert not (tmp_path / "sweep.json").exists()


def test_a_run_gives_its_network_and_one_stopped_on_the_way_says_so() -> None:
    run = quiet([BASE])[0]
    network = run.network()
    assert not network.training
    plain = plain_loop(BASE, SAMPLES.inputs, SAMPLES.labels, 4).network
    torch.testing.assert_close(network.linear1.weight, plain.linear1.weight, rtol=1e-3, atol=1e-4)
    with pytest.raises(layerlaw.errors.InputError, match="expected a finished run with its state"):
        replace(run, state=None).network()


def test_runs_are_equal_where_all_their_numbers_are(tmp_path: Path) -> None:
    recipes, schedule = BASE.grid(seed=(1, 2)), Schedule(epochs=(0, 2), keep=True)
    first, other = quiet(recipes, schedule=schedule, folder=tmp_path)
    again = quiet(recipes, schedule=schedule, folder=tmp_path)[0]  # read from the file
    assert first == again
    assert first != other
    assert first != "a run"
    assert first != replace(again, state=None)
    assert first != replace(again, snapshots={})
    assert first != replace(again, losses=(*again.losses[:-1], 0.0))
    for state in (again.state, again.snapshots[2]):
        assert state is not None
        weight = state["classifier.weight"][0]
        kept = weight[0].item()
        weight[0] = kept + 1e-6
        assert first != again
        weight[0] = kept
        assert first == again
    assert again.state is not None
    assert first != replace(again, state={name: tensor.double() for name, tensor in again.state.items()})
    with pytest.raises(TypeError, match="unhashable"):  # it can be changed
        hash(first)


def test_runs_that_diverged_in_the_same_way_are_equal() -> None:
    wild = Recipe(Shape(12, (16, 10), 4, norm=False), optimizer="momentum", learning_rate=1e4, epochs=3, batch_size=32)
    first, again = (quiet([wild])[0] for _ in range(2))
    assert first.diverged is not None
    assert math.isnan(first.losses[-1])
    assert first.state is not None
    assert any(tensor.isnan().any() for tensor in first.state.values())
    assert first == again
    assert first != replace(again, losses=(*again.losses[:-1], math.inf))
    assert repr(first) == (
        "<Run 'depth 3, widths 16, 10, no BatchNorm; momentum, learning rate 10000, seed 666': 3 of 3 epochs, diverged in "
        f"epoch {first.diverged}, 2 measurements>"
    )


def test_a_run_is_shown_in_a_line() -> None:
    run = replace(quiet([replace(BASE, data="clouds")])[0], losses=(0.5, 0.01234))
    what = "depth 3, widths 16, 10; adam, learning rate 0.01, seed 666; data clouds"
    assert repr(run) == str(run) == f"<Run '{what}': 4 of 4 epochs, loss 0.0123, 2 measurements>"
    begun = replace(run, epoch=0, losses=(), measurements=run.measurements[:1], recipe=replace(BASE, epochs=1))
    assert repr(begun).endswith(": 0 of 1 epoch, no loss, 1 measurement>")
    many = replace(BASE, network=Shape(12, tuple(range(10, 200)), 4), data="data", loss=EvenCrossEntropy())
    words = repr(replace(run, recipe=many))
    assert "; cross-entropy with even steps" in words
    assert len(words) < 300


def test_samples_may_be_given_for_all_recipes_or_by_name() -> None:
    other: Samples = clouds(150, seed=8)
    mine, theirs = quiet([replace(BASE, data="mine"), replace(BASE, data="theirs")], {"mine": SAMPLES, "theirs": other})
    assert quiet([replace(BASE, data="mine")], SAMPLES)[0].losses == pytest.approx(mine.losses, rel=1e-5)
    assert mine.losses[0] != pytest.approx(theirs.losses[0], rel=1e-3)


def test_without_networks_the_numbers_alone_are_kept(tmp_path: Path) -> None:
    recipes = BASE.grid(seed=(1, 2))
    kept, light = quiet(recipes), quiet(recipes, networks=False, folder=tmp_path)
    again = quiet(recipes, networks=False, folder=tmp_path)
    for run, other, once_more in zip(kept, light, again, strict=True):
        assert run.losses == other.losses == once_more.losses
        assert run.measurements == other.measurements == once_more.measurements
    with pytest.raises(InputError, match=r"of this one its network was not kept \(networks=False\)"):
        light[0].network()


@pytest.fixture
def several_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fleets in threads, as on a GPU, with room for two of them."""
    monkeypatch.setattr(processes, "fits_beside_others", lambda job: True)
    monkeypatch.setattr(processes, "member_bytes", lambda recipe, samples: 1)
    monkeypatch.setattr(processes, "_stream", lambda device, number: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8, 8))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    run = processes.run

    def with_one_thread(*job: Any) -> Any:
        torch.set_num_threads(1)  # as fleets have it that are trained one after the other: their bits depend on it
        return run(*job)

    monkeypatch.setattr(processes, "run", with_one_thread)


def test_fleets_trained_at_once_give_the_same_bits(several_at_once: None) -> None:
    recipes, samples = small_sweep()
    told = Told()
    runs = sweep(recipes, samples, schedule=SCHEDULE, members=2, workers=1, progress=told)
    assert numbers(runs) == numbers(uninterrupted())
    assert same_networks(runs, uninterrupted())
    assert len(told.all) == 1 + 3 * 30


def test_what_goes_wrong_beside_others_is_told(several_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(self: Any, epoch: int) -> None:
        raise ValueError("no measure today")

    monkeypatch.setattr(layerlaw.lab.fleet.engine.FleetEngine, "measure", measure)
    recipes, samples = small_sweep()
    with pytest.raises(ValueError, match="no measure today"):
        sweep(recipes, samples, schedule=SCHEDULE, members=2, workers=1, progress=False)


def test_ctrl_c_stops_fleets_trained_at_once(several_at_once: None, tmp_path: Path) -> None:
    recipes, samples = small_sweep()
    how: dict[str, Any] = {"schedule": SCHEDULE, "members": 2, "workers": 1, "folder": tmp_path}
    with pytest.raises(KeyboardInterrupt, match="call it again to go on"):
        sweep(recipes, samples, progress=interrupting(20), **how)
    runs = sweep(recipes, samples, progress=False, **how)
    assert numbers(runs) == numbers(uninterrupted())
    assert same_networks(runs, uninterrupted())


class LateDevice:
    """A GPU that does nothing until somebody waits for it: copies, events and graphs stay in a queue."""

    def __init__(self, there: torch.Tensor) -> None:
        self.there, self.queue, self.seen = there, list[Callable[[], Any]](), list[torch.Tensor]()

    def copy_(self, orders: torch.Tensor, *, non_blocking: bool) -> None:
        self.queue.append(lambda: self.there.copy_(orders))

    def replay(self) -> None:
        self.queue.append(lambda: self.seen.append(self.there.clone()))

    def wait_for(self, done: Callable[[], bool]) -> None:
        while self.queue and not done():
            self.queue.pop(0)()


class LateEvent:
    """Recorded on such a device: waiting runs the queue up to the place where it was recorded."""

    def __init__(self, device: LateDevice) -> None:
        self.device, self.open = device, 0

    def record(self, stream: object) -> None:
        self.open += 1
        self.device.queue.append(self.passed)

    def passed(self) -> None:
        self.open -= 1

    def synchronize(self) -> None:
        self.device.wait_for(lambda: not self.open)


def test_orders_drawn_ahead_are_never_overwritten_before_a_late_device_has_copied_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds, n = [1, 2, 1], 40
    graph, orders = object.__new__(EpochGraph), Orders(seeds, n)
    device = LateDevice(orders.empty())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    waiting = [orders.empty() for _ in range(AHEAD)]
    parts = {"_orders": orders, "_waiting": waiting, "_copied": [LateEvent(device) for _ in waiting], "_epoch": 0}
    graph.__dict__.update(parts, _there=device, _graph=device, _device="cuda", _losses=None)
    for _ in range(5 * AHEAD + 1):
        graph()
    assert len(device.seen) < 5 * AHEAD  # it is late
    device.wait_for(lambda: False)
    expected = Orders(seeds, n)
    assert all(torch.equal(drawn[orders.member], expected.next()) for drawn in device.seen)
    assert len(device.seen) == 5 * AHEAD + 1
