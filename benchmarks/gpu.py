"""The same measures on a CUDA device: agreement with the CPU, and absolute times.

python benchmarks/gpu.py [FILE]                    # prints a table as it goes and, when given, writes it
python benchmarks/gpu.py --only slices [--small]   # flattened blocks of a ResNet-50 in slices; --small: on a CPU too
python benchmarks/gpu.py --only resnet20           # a small network alone
python benchmarks/gpu.py --only parts              # what D of 1,000 classes consists of, and how long a GPU works in a probe
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from networks import ResNet20, separated
from run import by_pseudo_inverse

import layerlaw as ll
from layerlaw.lab import Architecture, FeedForward
from layerlaw.stats import ClassSums, Frame, Scatter, find_centers, project
from layerlaw.stats import spectrum as spectrum_of
from layerlaw.stats.precision import full_precision


def milliseconds(job: Callable[[], object], rounds: int = 9) -> float:
    """Median wall time after warm-up, with the device idle before and after."""
    times = []
    for i in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        job()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def beside(
    base: Callable[[], object], jobs: dict[str, Callable[[], object]], rounds: int
) -> dict[str, tuple[float, float]]:
    """Median milliseconds of each job and its median ratio to `base`, which is timed right before it in every round:
    what a network of small kernels takes depends on how fast the host launches them, and that changes within seconds."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for i in range(rounds + 1):
        for name, job in jobs.items():
            pair = []
            for one in (base, job):
                torch.cuda.synchronize()
                start = time.perf_counter()
                one()
                torch.cuda.synchronize()
                pair.append(1e3 * (time.perf_counter() - start))
            if i:
                times[name].append((pair[0], pair[1]))
    base_ms = [pair[0] for pairs in times.values() for pair in pairs]
    found = {
        name: (statistics.median(b for _, b in pairs), statistics.median(b / a for a, b in pairs))
        for name, pairs in times.items()
    }
    return {"": (statistics.median(base_ms), max(base_ms) / min(base_ms)), **found}


def largest_gap(a: ll.Record, b: ll.Record) -> float:
    """Largest relative difference of a column at any site."""
    gaps = [0.0]
    for one, other in zip(a.sites, b.sites, strict=True):
        for name in ("separation", "nc1", "cdnv", "compression", "ncc_accuracy", "separation_corrected"):
            x, y = one.values.get(name), other.values.get(name)
            if x and y:
                gaps.append(abs(x / y - 1))
    return max(gaps)


def spectrum() -> Iterator[tuple[str, str]]:
    """Between the passes: the directions of 1,000 class means of 4,096 features."""
    X, Y = (t.cuda() for t in separated(50_000, 4096, classes=1000))
    sums = ClassSums.of(X, Y, 1000)
    yield "class sums, n=50,000, d=4,096, K=1,000", f"{milliseconds(lambda: ClassSums.of(X, Y, 1000)):.1f} ms"
    yield "centers of them, by eigenvalues", f"{milliseconds(lambda: find_centers(sums)):.1f} ms (wanted ≤ 15)"
    by_eigenvalues, few = find_centers(sums), spectrum_of.FEW
    spectrum_of.FEW = {"cuda": 10**9}
    exactly = milliseconds(lambda: find_centers(sums), 3)
    gap = float((by_eigenvalues.scales / find_centers(sums).scales - 1).abs().max())
    spectrum_of.FEW = few
    yield "the same by QR and SVD", f"{exactly:.1f} ms, scales differ by {gap:.0e}"
    A = by_eigenvalues.means - by_eigenvalues.mean
    for d in (256, 4096):
        some = A[:, :d] * torch.logspace(0, -8, d, dtype=torch.float64, device="cuda")
        yield (
            f"singular vectors of 1,000 × {d:,}, eight decades, in steps",
            f"{milliseconds(lambda a=some: spectrum_of.in_steps(a)):.1f} ms",
        )


def imagenet(images: int = 10_240, size: int = 256) -> Iterator[tuple[str, str]]:
    """ResNet-50 on images of 224 pixels and 1,000 classes, random weights: blocks and layers, the mean over space."""
    architecture = replace(Architecture.named("resnet50_7x7", side=224), classes=1000)
    network = architecture.build().cuda().eval()
    generator = torch.Generator(device="cuda").manual_seed(0)
    some = torch.randn(size, 3, 224, 224, device="cuda", generator=generator)
    batches = [
        (some.roll(i, 0) * (1 + i / 100), (torch.arange(size) + size * i).cuda() % 1000) for i in range(images // size)
    ]

    def bare() -> None:
        with torch.no_grad():
            for _ in range(2):
                for part, _y in batches:
                    network(part)

    base = milliseconds(bare, 3)
    yield f"ResNet-50, 224 pixels, two bare forwards of {images:,} images, batch {size}", f"{base:.0f} ms"
    plain = {"reduce": "mean", "progress": False, "uncertainty": False}
    for sites, wanted in (("blocks", 1.3), ("layers", 1.6)):
        job = partial(ll.probe, network, batches, sites=sites, **plain)
        found, took = len(job().sites), milliseconds(job, 3)
        yield (
            f"probe of the same, K=1,000, {found} {sites}, mean",
            f"{took:.0f} ms ({took / base:.2f}×, wanted ≤ {wanted})",
        )


def rows() -> Iterator[tuple[str, str]]:
    yield from exactness()
    yield from resnet20()
    yield from spectrum()
    yield from imagenet()


def exactness() -> list[tuple[str, str]]:
    """D of many classes, and the same numbers on the CPU."""
    out = []
    x, y = separated(50_000, 4096, classes=1000)
    X, Y = x.cuda(), y.cuda()
    ours = milliseconds(lambda: ll.separation_fuzziness(X, Y))
    out.append(("D, n=50,000, d=4,096, K=1,000, float32", f"{ours:.1f} ms (wanted ≤ 30)"))
    theirs = milliseconds(lambda: by_pseudo_inverse(X, Y), rounds=3)
    out.append(("the same by d×d pseudo-inverse in float64", f"{theirs:.1f} ms ({theirs / ours:.0f}×)"))
    gap = abs(
        float(ll.separation_fuzziness(X[:5000], Y[:5000])) / float(ll.separation_fuzziness(x[:5000], y[:5000])) - 1
    )
    out.append(("GPU against CPU, n=5,000", f"{gap:.1e} relative"))

    network = FeedForward(depth=8, inputs=100).cuda().eval()
    x, y = separated(4000, 100)
    on_gpu, on_cpu = ll.probe(network, (x, y), progress=False), ll.probe(network.cpu(), (x, y), progress=False)
    out.append(("probe of an 8-layer FNN, GPU against CPU, all columns", f"{largest_gap(on_gpu, on_cpu):.1e} relative"))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half = ll.probe(network.cuda(), (x, y), progress=False)
    out.append(
        (
            "the same under bf16 autocast: last D against float32",
            f"{half.sites[-1].values['separation'] / on_gpu.sites[-1].values['separation']:.4f}×",
        )
    )

    return out


def resnet20(_: bool = False) -> list[tuple[str, str]]:
    """A network whose kernels take less time than their launches; its features at all layers are 7 GiB."""
    out = []
    network = ResNet20().cuda().eval()
    x, y = separated(10_000, 3, 32, 32)
    x, y = x.cuda(), y.cuda()

    def bare() -> None:
        with torch.no_grad():
            for _ in range(2):
                for part in x.split(250):
                    network(part)

    plain = {"batch_size": 250, "progress": False, "uncertainty": False}
    jobs, wanted = {}, {}
    for sites in ("layers", "blocks"):
        for gib, how, most in ((32, "kept", "≤ 1.2"), (2, "streamed", "≤ 2.0"), (0.2, "streamed", "")):
            what = f"probe of the same, {sites}, {how} within {gib} GiB"
            jobs[what] = partial(ll.probe, network, (x, y), sites=sites, memory_gib=gib, **plain)
            wanted[what] = most
    for what, (took, ratio) in beside(bare, jobs, 9).items():
        if not what:
            varies = f"{took:.0f} ms (the slowest {ratio:.2f} times the fastest)"
            out.append(("ResNet-20, two bare forwards of 10,000 images, batch 250", varies))
            continue
        most = f", wanted {wanted[what]}" if wanted[what] else ""
        out.append((what, f"{took:.0f} ms ({ratio:.2f}×{most}; median of pairs)"))
    return out


def parts(_: bool = False) -> Iterator[tuple[str, str]]:
    """What D of many classes consists of; and for how long kernels run while a small network is probed."""
    x, y = (t.cuda() for t in separated(50_000, 4096, classes=1000))
    with full_precision():
        sums = ClassSums.of(x, y, 1000)
        centers = find_centers(sums)
        frame, gram = Frame.of(centers), (centers.means - centers.mean) @ (centers.means - centers.mean).mT
        coordinates, lengths = project(x, y, frame)
        known = centers.expected_residuals * centers.counts.unsqueeze(-1)
        of_d: dict[str, Callable[[], object]] = {
            "D": lambda: ll.separation_fuzziness(x, y),
            "class sums": lambda: ClassSums.of(x, y, 1000),
            "centers": lambda: find_centers(sums),
            "their eigenvalues": lambda: torch.linalg.eigh(gram),
            "residuals in the span of the means": lambda: project(x, y, frame),
            "their product": lambda: frame.basis @ x.mT,
            "scatter": lambda: Scatter.of(coordinates, lengths, y, centers, nearest=False, residuals=known),
            "scatter, residuals added up": lambda: Scatter.of(coordinates, lengths, y, centers, nearest=False),
        }
        for what, job in of_d.items():
            yield what, f"{milliseconds(job):.2f} ms"
    network = ResNet20().cuda().eval()
    images, labels = (t.cuda() for t in separated(10_000, 3, 32, 32))
    for gib in (32, 2):
        how = {"batch_size": 250, "progress": False, "uncertainty": False, "sites": "layers", "memory_gib": gib}
        job = partial(ll.probe, network, (images, labels), **how)
        took = milliseconds(job, 5)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            job()
            torch.cuda.synchronize()
        works = sum(event.self_device_time_total for event in profile.key_averages()) / 1e3
        yield f"probe of ResNet-20's layers within {gib} GiB", f"{took:.0f} ms, of which kernels run {works:.0f}"


def slices(small: bool) -> list[tuple[str, str]]:
    """Flattened blocks of a ResNet-50 at 1000 classes within 8 GiB: time over that of the forwards the slices need.

    `small` is a trial of seconds on any machine: 32 px, 30 classes, 0.01 GiB.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n, K, side, gib, batch = (120, 30, 32, 0.01, 40) if small else (10_240, 1000, 224, 8.0, 256)
    network = Architecture.named("resnet50_7x7", side=side, classes=K).build().to(device)
    y = torch.arange(n, device=device) % K
    x = torch.randn(n, 3, side, side, device=device)
    patterns = torch.randn(K, 3, side // 8, side // 8, device=device)
    for rows in torch.arange(n, device=device).split(batch):
        x[rows] += torch.nn.functional.interpolate(patterns[y[rows]], scale_factor=8)
    titles: list[str] = []

    def progress(items: Iterable[Any], label: str, total: int | None) -> Iterator[Any]:
        titles.append(label)
        return iter(items)

    def wait() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() if device == "cuda" else time.process_time()

    with torch.no_grad():
        for part in x[: 4 * batch].split(batch):  # running statistics of these images
            network(part)
        network.eval()
        bare = []
        for _ in range(3):
            start = wait()
            for part in x.split(batch):
                network(part)
            bare.append(wait() - start)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if device == "cuda" else 0
    start = wait()
    how: Any = {"batch_size": batch, "uncertainty": False, "memory_gib": gib, "progress": progress}
    record = ll.probe(network, (x, y), sites="blocks", **how)
    took, forward = wait() - start, statistics.median(bare)
    said = next(note for note in record.notes if "slices" in note)
    what = f"ResNet-50, {side} px, K={K}, {n:,} images, blocks flattened, {gib} GiB"
    rows_ = [
        (f"{what}: one bare forward", f"{forward:.2f} s"),
        ("forwards that its slices (and narrower sites) need", f"{len(titles)} ({said.split(': ')[0]})"),
        ("probe over that many forwards", f"{took:.1f} s ({took / (len(titles) * forward):.2f}×)"),
        (
            "D of the first and the last block",
            " and ".join(f"{r.values['separation']:.4g}" for r in record.sites[:: len(record.sites) - 1]),
        ),
    ]
    if device == "cuda":
        peak = torch.cuda.max_memory_allocated() - held
        rows_.append(("most memory beside network and images, that of the forward included", f"{peak / 2**30:.1f} GiB"))
    return rows_


def main() -> None:
    torch.manual_seed(0)
    if "--only" in sys.argv:
        only = {"slices": slices, "resnet20": resnet20, "parts": parts}[sys.argv[sys.argv.index("--only") + 1]]
        print("\n".join(f"| {what} | {value} |" for what, value in only("--small" in sys.argv)))
        return
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}", "", "| what | measured |", "|---|---:|"]
    print("\n".join(lines), flush=True)
    for what, value in rows():
        lines.append(f"| {what} | {value} |")
        print(lines[-1], flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
