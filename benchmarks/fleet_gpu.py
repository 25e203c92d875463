"""What the fleet does on a GPU: `python benchmarks/fleet_gpu.py` (absolute times, after a warm-up).

All 57 networks of Figure 1 trained and measured, and 1000 members of depth 20; losses against the CPU. `--plain` takes plain
operations instead of the fused kernels; `--profile` says where the time goes, for several variants of these and for the
plain path, part by part (at most 42 seconds each).
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from layerlaw.data import load
from layerlaw.lab import Fleet, Recipe, Samples, Schedule, Shape, processes, sweep, sweeping
from layerlaw.lab.fleet import rows
from layerlaw.lab.fleet.engine import EpochGraph, FleetEngine, Orders

RATES = {"sgd": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "adam": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)}
RATES["momentum"] = RATES["sgd"]
BEGAN = time.perf_counter()
VARIANTS = [  # precision, units of a program, terms at a time, warps, whether the backward has two programs, stages
    ("tf32x3", 32, 16, 2, True, 3), ("tf32x3", 32, 32, 4, True, 3), ("tf32x3", 16, 16, 2, True, 3),
    ("tf32x3", 32, 16, 4, True, 3), ("tf32x3", 32, 16, 2, False, 3), ("tf32x3", 64, 16, 2, True, 3),
    ("bf16x6", 32, 32, 4, True, 3), ("bf16x6", 32, 16, 2, True, 3), ("ieee", 32, 16, 4, True, 3),
]  # fmt: skip


def figure1(epochs: int, depths: tuple[int, ...] = (4, 8, 20)) -> list[Recipe]:
    return [
        recipe
        for kind, rates in RATES.items()
        for recipe in Recipe(optimizer=kind, epochs=epochs).grid(
            network=[Shape.even(depth) for depth in depths], learning_rate=rates
        )
    ]


def many(members: int, epochs: int, depth: int = 20) -> list[Recipe]:
    return Recipe(Shape.even(depth), learning_rate=3e-4, epochs=epochs).grid(seed=range(members))


def timed(recipes: list[Recipe], samples: Samples, schedule: Schedule, device: str) -> tuple[float, list]:
    torch.cuda.synchronize()
    began = time.perf_counter()
    runs = sweep(recipes, samples, schedule=schedule, device=device, progress=False)
    torch.cuda.synchronize()
    return time.perf_counter() - began, runs


def say(*what: object) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f}]", *what, flush=True)


def losses_of(fleet: Fleet, orders: Orders, epochs: int) -> torch.Tensor:
    found = []
    with torch.no_grad():
        for epoch in range(epochs):
            fleet.start_epoch(epoch)
            found.append(fleet.train_epoch(orders.next().to(fleet.device)).cpu())
    return torch.stack(found)


def gap_to_cpu(samples: Samples, prepare: Callable[[Fleet], object] = lambda fleet: None) -> str:
    """The largest relative difference of the losses of 3 epochs, for three seeds."""
    said = []
    for kind, rate in (("sgd", 0.03), ("momentum", 0.01), ("adam", 1e-3)):
        recipes, found = Recipe(optimizer=kind, learning_rate=rate).grid(seed=(1, 2, 3)), []
        for device in ("cpu", "cuda"):
            fleet = Fleet(recipes, [samples] * 3, device)
            if device == "cuda":
                prepare(fleet)
            found.append(losses_of(fleet, Orders([1, 2, 3], len(samples.labels)), 3))
        said.append(f"{kind} {float(((found[0] - found[1]).abs() / found[0]).max()):.1e}")
    return ", ".join(said)


def variant(fleet: Fleet, which: tuple[Any, ...] | None) -> None:
    """Let a fleet train by the fused kernels in this variant; `None`: by the plain path."""
    fleet._fused = None
    if which is not None:
        from layerlaw.lab.fleet.fused import FusedStep

        names = "precision", "units", "piece", "warps", "split", "stages"
        fleet._fused = FusedStep(fleet, **dict(zip(names, which, strict=True)))


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """A part that fails is said, and does not hide the others."""
    try:
        yield
    except Exception as error:
        say(f"{what} FAILED: {type(error).__name__}: {str(error)[:600]}")
        print("".join(traceback.format_exc().splitlines(keepends=True)[-6:]), flush=True)


def replay_time(graph: EpochGraph, repeats: int = 5) -> float:
    """Milliseconds of an epoch on the GPU, without its orders."""
    found = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph._graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


@torch.no_grad()
def variants(name: str, recipes: list[Recipe], samples: Samples, until: float) -> None:
    """Every variant's epoch as a graph: time, and losses of 2 epochs against the plain path."""
    fleet, seeds = Fleet(recipes, [samples] * len(recipes), "cuda"), [r.seed for r in recipes]
    start = {key: tensor.clone() for key, tensor in fleet.state().items()}
    plain: torch.Tensor | None = None
    say(f"{name}: {len(recipes)} members, ms per epoch of 8 steps (gradients alone, without the optimizer)")
    for which in (None, *VARIANTS):
        if time.perf_counter() - BEGAN > until:
            say("  out of time")
            break
        with guarded(str(which)):
            variant(fleet, which)
            for key, tensor in fleet.state().items():
                tensor.copy_(start[key])
            orders = Orders(seeds, len(samples.labels))
            losses = losses_of(fleet, orders, 2)
            plain = losses if plain is None else plain
            gap = ((losses - plain).abs() / plain).nan_to_num()
            whole = replay_time(EpochGraph(fleet, orders))
            rules, fleet.rules = fleet.rules, []
            try:
                bare = replay_time(EpochGraph(fleet, orders))
            finally:
                fleet.rules = rules
            off = f"losses off by at most {gap.max():.1e}, median {gap.median():.1e}"
            say(f"  {which}: {whole:.2f} ({bare:.2f}); {off}")
    variant(fleet, None)


@torch.no_grad()
def kernels(name: str, recipes: list[Recipe], samples: Samples, which: tuple[Any, ...] | None) -> None:
    """The kernels of one epoch, by their time."""
    fleet = Fleet(recipes, [samples] * len(recipes), "cuda")
    variant(fleet, which)
    fleet.start_epoch(0)
    graph = EpochGraph(fleet, Orders([r.seed for r in recipes], len(samples.labels)))
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph._graph.replay()
        torch.cuda.synchronize()
    events = [e for e in profile.key_averages() if e.self_device_time_total]
    total, count = sum(e.self_device_time_total for e in events), sum(e.count for e in events)
    say(f"kernels of {name}, {which or 'plain'}: {count}, together {total / 1e3:.2f} ms; count, us each, share:")
    for e in sorted(events, key=lambda e: -e.self_device_time_total)[:9]:
        each = e.self_device_time_total / e.count
        print(f"    {e.count:5} {each:9.1f} {e.self_device_time_total / total:6.1%} {e.key[:90]}", flush=True)


def parts(name: str, recipes: list[Recipe], samples: Samples, schedule: Schedule, epochs: int) -> None:
    """The parts of training a fleet, one after the other; epochs together, so that drawing may hide behind the GPU."""
    said, clock = [], time.perf_counter()

    def lap(what: str, times: int = 1) -> None:
        nonlocal clock
        torch.cuda.synchronize()
        said.append(f"{what} {(time.perf_counter() - clock) * 1e3 / times:.1f}")
        clock = time.perf_counter()

    engine = FleetEngine(recipes, [samples] * len(recipes), schedule, device="cuda")
    lap("making it")
    engine.train_epoch(0)
    lap("first epoch and recording it")
    engine._epoch._orders.draw(engine._epoch._waiting[0])
    lap("drawing orders")
    engine._fleet.start_epoch(1)
    lap("rates")
    engine._epoch._graph.replay()
    lap("replay")
    for epoch in range(epochs):
        engine.train_epoch(epoch)
    lap("an epoch in all", epochs)
    engine.measure(1)
    lap("measuring")
    engine.measure(2)
    lap("again")
    engine.state_dicts()
    lap("states")
    say(f"{name}, ms: {'; '.join(said)}")


def losses_part(samples: Samples) -> None:
    for which in (*VARIANTS[:2], VARIANTS[-1], None):
        with guarded(str(which)):
            say(f"losses off {which}:", gap_to_cpu(samples, lambda fleet, which=which: variant(fleet, which)))


def workload_part(name: str, recipes: list[Recipe], samples: Samples, schedule: Schedule, epochs: int) -> None:
    with guarded("parts"):
        parts(name, recipes, samples, schedule, epochs)
    with guarded("kernels"):
        kernels(name, recipes, samples, VARIANTS[0])
    with guarded("variants"):
        variants(name, recipes, samples, 28)
    with guarded("kernels"):
        kernels(name, recipes, samples, None)


def figure1_part(samples: Samples) -> None:
    at_once, everything = processes.AT_ONCE, Schedule(test=True, permuted=True)
    for processes.AT_ONCE in (1, at_once):
        say(f"warm-up {timed(figure1(6), samples, everything, 'cuda')[0]:.1f} s")
        seconds, runs = timed(figure1(600), samples, everything, "cuda")
        how, without = {run.how for run in runs}, sum(run.law() is None for run in runs)
        say(f"Figure 1, {processes.AT_ONCE} at once: {seconds:.2f} s, {how}, {without} without a law")


PARTS: dict[str, Callable[[Samples], None]] = {  # each in a process of its own: a failed kernel spoils all that follow
    "losses": losses_part,
    "few": lambda s: workload_part("19 of depth 20", figure1(600, (20,)), s, Schedule(test=True, permuted=True), 40),
    "figure1": figure1_part,
    "many": lambda s: workload_part("1000 of depth 20", many(1000, 600), s, Schedule(), 12),
}


def profile() -> None:
    """Where the time goes."""
    for name in PARTS:
        try:
            subprocess.run([sys.executable, __file__, "--part", name], timeout=42, check=False)
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after 42 s", flush=True)


def sizes(samples: Samples, tried: list[str], members: int, epochs: int) -> None:
    """How long fleets of other sizes take, one size after the other."""
    say(f"warm-up {timed(many(members, 6), samples, Schedule(), 'cuda')[0]:.1f} s")
    for one in tried:
        sweeping.MEMBERS_ON_GPU, processes.AT_ONCE, processes.BUSY = map(int, one.split(","))
        say(f"{one}: {timed(many(members, epochs), samples, Schedule(), 'cuda')[0]:.2f} s for {epochs} epochs")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--profile", action="store_true", help="where the time goes, in about two minutes")
    parser.add_argument("--plain", action="store_true", help="plain operations instead of the fused kernels")
    parser.add_argument(
        "--sizes", nargs="+", help="members of a fleet, fleets at a time and members training: 128,8,512 …"
    )
    parser.add_argument("--part", choices=PARTS, help="one part of the profile")
    arguments = parser.parse_args()
    if arguments.profile:
        return profile()
    rows.FUSED = not arguments.plain
    images = load(split="train").balanced(100).resized(10)
    samples = Samples.of(images.tensors(flat=True), load(split="test").resized(10).tensors(flat=True))
    if arguments.part:
        return PARTS[arguments.part](samples)
    if arguments.sizes:
        return sizes(samples, arguments.sizes, arguments.members, min(100, arguments.epochs))
    found: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(f"losses of 3 epochs differ from the CPU by at most: {gap_to_cpu(samples)}", flush=True)
    schedule = Schedule(test=True, permuted=True)
    seconds, _ = timed(figure1(6), samples, schedule, "cuda")
    print(f"warm-up: {seconds:.1f} s", flush=True)
    seconds, runs = timed(figure1(arguments.epochs), samples, schedule, "cuda")
    found["figure1_s"] = seconds
    print(f"57 networks of Figure 1, {arguments.epochs} epochs: {seconds:.1f} s", flush=True)
    for run in runs:
        law = run.law()
        r = "diverged" if law is None else f"r {law.pearson:.4f} rho {law.rho:.3f}"
        print("  ", run.recipe.optimizer, run.recipe.network.depth, run.recipe.learning_rate, r, flush=True)
    seconds, _ = timed(many(arguments.members, 6), samples, Schedule(), "cuda")
    print(f"warm-up: {seconds:.1f} s", flush=True)
    seconds, runs = timed(many(arguments.members, arguments.epochs), samples, Schedule(), "cuda")
    found["members_s"] = seconds
    print(f"{arguments.members} members of depth 20, {arguments.epochs} epochs: {seconds:.1f} s", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
