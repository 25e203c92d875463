"""Measure the costs and write the first table of docs/benchmarks.md, between two markers: `make bench`.

One thread. Times are medians of interleaved runs and appear only as ratios within one run, in a process that keeps its
memory (`kept_memory`); memory is the peak resident set of a process of its own.
"""

import argparse
import datetime
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from unittest import mock

import torch
from kept_memory import keep_memory, usual
from networks import ResNet20, separated

import layerlaw as ll
from layerlaw.files import write_whole
from layerlaw.lab import FeedForward

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- make bench begins -->", "<!-- make bench ends -->"


def interleaved(*jobs: Callable[[], object], rounds: int) -> list[float]:
    """Median seconds of each job, run in turns so that a busy moment hits all of them."""
    times: list[list[float]] = [[] for _ in jobs]
    for job in jobs:
        job()
    for _ in range(rounds):
        for job, taken in zip(jobs, times, strict=True):
            start = time.perf_counter()
            job()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def by_pseudo_inverse(x: torch.Tensor, y: torch.Tensor) -> float:
    """D by its definition, with d×d scatter matrices."""
    x = x.double()
    n, K = len(x), int(y.max()) + 1
    hot = torch.nn.functional.one_hot(y, K).double()
    counts = hot.sum(0)
    means = hot.T @ x / counts[:, None]
    between = (means - x.mean(0)) * (counts / n).sqrt()[:, None]
    within = x - means[y]
    inverse = torch.linalg.pinv(between.T @ between, rtol=1e-10, hermitian=True)
    return float(torch.trace(within.T @ within @ inverse) / n)


def separation(rounds: int) -> list[tuple[str, str, str]]:
    rows = []
    for d, wanted in ((1000, 20), (2000, 80)):
        x, y = separated(1000, d)
        ours, theirs = interleaved(
            lambda x=x, y=y: ll.separation_fuzziness(x, y), lambda x=x, y=y: by_pseudo_inverse(x, y), rounds=rounds
        )
        gap = abs(float(ll.separation_fuzziness(x, y)) / by_pseudo_inverse(x, y) - 1)
        rows.append(
            (
                f"D against the d×d pseudo-inverse, n=1000, K=10, d={d} (they agree to {gap:.0e})",
                f"{theirs / ours:.0f}× faster",
                f"≥ {wanted}×",
            )
        )
    x, y = separated(10_000, 2048, classes=1000)

    def by_singular_values() -> None:
        with mock.patch("layerlaw.measures.at_hand.separation_by_inverse", return_value=None):
            ll.separation_fuzziness(x, y)

    ours, theirs = interleaved(lambda: ll.separation_fuzziness(x, y), by_singular_values, rounds=3)
    what = "D of 1,000 classes against singular values of the means, n=10,000, d=2,048"
    rows.append((what, f"{theirs / ours:.2f}× faster", ""))
    return rows


def probes(rounds: int) -> list[tuple[str, str, str]]:
    rows = []
    x, y = separated(4000, 100)
    batches = [(x[i : i + 1000], y[i : i + 1000]) for i in range(0, 4000, 1000)]
    rows += probe_cost(
        "8-layer FNN, 4 batches of 1000",
        FeedForward(depth=8, inputs=100),
        batches,
        {"layers": (2.0, 2.6, 3.0)},
        5 * rounds,
    )
    x, y = separated(1000, 3, 32, 32)
    batches = [(x[i : i + 250], y[i : i + 250]) for i in range(0, 1000, 250)]
    rows += probe_cost(
        "ResNet-20, 4 batches of 250, 32×32",
        ResNet20(),
        batches,
        {"layers": (1.4, 1.4), "blocks": (1.25, 1.25)},
        rounds,
    )
    return rows


def probe_cost(
    what: str, network: torch.nn.Module, batches: list, wanted: dict[str, tuple[float, ...]], rounds: int
) -> list[tuple[str, str, str]]:
    network.eval()

    def bare() -> None:
        with torch.no_grad():
            for _ in range(2):
                for x, _y in batches:
                    network(x)

    rows = []
    for sites, limits in wanted.items():
        plain = {"sites": sites, "progress": False, "uncertainty": False}
        streamed = plain | {"memory_gib": 0.12 if isinstance(network, ResNet20) else 0.004}
        jobs = (
            bare,
            lambda plain=plain: ll.probe(network, batches, **plain),
            lambda streamed=streamed: ll.probe(network, batches, **streamed),
            lambda sites=sites: ll.probe(network, batches, sites=sites, progress=False),
        )
        base, kept, twice, full = interleaved(*jobs, rounds=rounds)
        assert not ll.probe(network, batches, **streamed).settings["one_forward"]
        names = (
            f"probe over two bare forwards: {what}, {sites}, features kept",
            "the same, features streamed (two forwards)",
            "the same, features kept, with standard errors and permuted-label floor (the default)",
        )
        for name, took, most in zip_longest(names, (kept, twice, full), limits):
            rows.append((name, f"{took / base:.2f}", f"≤ {most}" if most else ""))
    return rows


def regressions(rounds: int) -> list[tuple[str, str, str]]:
    """Targets instead of classes: the same network and samples, beside the classifier's probe."""
    x, y = separated(4000, 100)
    hot = torch.nn.functional.one_hot(y).float()
    generator = torch.Generator().manual_seed(0)
    one = (hot @ torch.randn(10, 1, generator=generator)) + torch.randn(4000, 1, generator=generator)
    network = FeedForward(depth=8, inputs=100).eval()

    def bare() -> None:
        with torch.no_grad():
            for _ in range(2):
                for part in x.split(1000):
                    network(part)

    def probed(labels: torch.Tensor, **how: object) -> Callable[[], object]:
        batches = list(zip(x.split(1000), labels.split(1000), strict=True))
        return lambda: ll.probe(network, batches, progress=False, **how)

    names = ("classes", "one target", "ten labels")
    rows = []
    for what, how in (("", {}), (", without standard errors and chance level", {"uncertainty": False})):
        base, *times = interleaved(bare, *(probed(labels, **how) for labels in (y, one, hot)), rounds=rounds)
        for name, seconds in zip(names, times, strict=True):
            rows.append((f"probe over two bare forwards: 8-layer FNN, {name}{what}", f"{seconds / base:.2f}", ""))
    return rows


def peak_mib(job: str) -> float:
    """Peak memory of a job of this file in a process of its own."""
    command = [sys.executable, __file__, "--job", job]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=usual())
    return float(json.loads(done.stdout)["peak_mib"])


def memory() -> list[tuple[str, str, str]]:
    base = peak_mib("nothing")
    wide, few, many = peak_mib("wide") - base, peak_mib("stream-8"), peak_mib("stream-64")
    return [
        (
            "D at n=1000, K=10, d=65,536: peak memory over the bare import, features included",
            f"{wide:.0f} MiB",
            "≤ 1024 MiB",
        ),
        (
            "streamed probe, 8-layer FNN: peak memory at 64,000 samples minus at 8,000",
            f"{many - few:.1f} MiB",
            "no growth",
        ),
    ]


class Stream:
    """Batches made on the fly, the same each time."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self):
        for i in range(self.batches):
            yield separated(1000, 100, seed=i)


def job(name: str) -> None:
    torch.set_num_threads(1)
    if name == "wide":
        x, y = separated(1000, 65_536)
        ll.separation_fuzziness(x, y)
    elif name.startswith("stream-"):
        torch.manual_seed(0)
        data = Stream(int(name.removeprefix("stream-")))
        ll.probe(FeedForward(depth=8, inputs=100), data, memory_gib=0.004, progress=False)
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())  # of this process alone (Linux)
    assert peak is not None
    print(json.dumps({"peak_mib": int(peak[1]) / 1024}))


def with_table(page: str, table: str) -> str:
    """The page with another table between the markers; all that was written by hand stays."""
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended or BEGIN in after or END in before + after:
        raise SystemExit(f"{PAGE}: expected '{BEGIN}' and behind it '{END}', each once: put them around the table.")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", help="one memory job, in this process")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.job:
        job(arguments.job)
        return
    keep_memory()
    with_table(PAGE.read_text(encoding="utf-8"), "")  # before minutes of work
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = separation(arguments.rounds) + probes(arguments.rounds) + regressions(arguments.rounds) + memory()
    lines = [
        f"{datetime.date.today()} · Python {platform.python_version()} · torch {torch.__version__} · {platform.machine()}",
        "",
        "| what | measured | wanted |",
        "|---|---:|---:|",
        *(f"| {what} | {value} | {wanted} |" for what, value, wanted in rows),
    ]
    write_whole(PAGE, with_table(PAGE.read_text(encoding="utf-8"), "\n".join(lines)))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
