"""What probing costs beside what is probed: `python benchmarks/probing_cost.py [--device cuda] [--images 512] [--out FILE]`.

Two tables of ratios. The fingerprint of the data: its share of a probe of images of 224 pixels (batches of 32 on a CPU,
256 on a GPU), and the time that copying to the host and sha256 take. And measuring while training: the share of a
training by a recipe that the measurements of a schedule take, one in 60 epochs, so ten in the 600 of the figures (train and
eval mode, every block; `--epochs` are timed). Times are medians of `--rounds` interleaved rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import layerlaw as ll
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.lab import Architecture, Recipe, Samples, Schedule
from layerlaw.lab.training import SingleEngine

EVERY = 60  # epochs between two measurements


def seconds(job: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    job()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def medians(jobs: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Of every job, run in turns so that a busy moment hits all of them; a first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for i in range(rounds + 1):
        for name, job in jobs.items():
            took = seconds(job, device)
            if i:
                times[name].append(took)
    return {name: statistics.median(taken) for name, taken in times.items()}


def of_the_fingerprint(name: str, images: int, rounds: int, device: str) -> dict[str, Any]:
    network = Architecture.named(name, side=224).build().eval().to(device)
    size = 256 if device == "cuda" else 32
    x, y = torch.randn(images, 3, 224, 224, device=device), torch.arange(images, device=device) % 10
    pairs = list(zip(x.split(size), y.split(size), strict=True))

    def fingerprint() -> None:
        found = Fingerprint()
        for a, b in pairs:
            found.update(b, a)
        found.text()

    def sha256() -> None:
        digest = hashlib.sha256()
        for a, b in pairs:
            for part in (b, a):
                digest.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def probe() -> None:
        ll.probe(network, pairs, sites="blocks", uncertainty=False, progress=False)

    took = medians({"fingerprint": fingerprint, "sha256": sha256, "probe": probe}, rounds, device)
    share = took["fingerprint"] / took["probe"]
    return {"network": name, "images": images, **{k: round(v, 4) for k, v in took.items()}, "share": round(share, 5)}


def of_measuring(name: str, images: int, epochs: int, rounds: int, device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    samples = Samples(torch.randn(images, 3, 32, 32, generator=generator), torch.arange(images) % 10, classes=10)
    recipe = Recipe(Architecture.named(name), epochs=epochs, learning_rate=1e-4, seed=1)
    engine = SingleEngine(recipe, samples, Schedule(), device=device)
    engine.train_epoch(0)

    def train() -> None:
        for _ in range(epochs):
            loss = engine.train_epoch(0)
        float(loss)

    took = medians({"train": train, "measure": lambda: engine.measure(0)}, rounds, device)
    share = took["measure"] / (took["measure"] + took["train"] * EVERY / epochs)
    plain = {f"{epochs} epochs": round(took["train"], 4), "one measurement": round(took["measure"], 4)}
    return {"network": name, **plain, "share": round(share, 5), "how": engine.how}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=64, help="of 224 pixels")
    parser.add_argument("--small", type=int, default=1000, help="images of 32 pixels that are trained on")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="*", default=["resnet18_7x7", "resnet50_7x7"])
    parser.add_argument("--trained", nargs="*", default=["resnet_2layer", "resnet18"])
    parser.add_argument("--out", help="a file for the numbers")
    given = parser.parse_args()
    where = torch.cuda.get_device_name() if given.device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    print(f"{where}, torch {torch.__version__}", flush=True)
    rows = []
    for name in given.networks:
        rows.append(of_the_fingerprint(name, given.images, given.rounds, given.device))
        print("fingerprint", json.dumps(rows[-1]), flush=True)
    for name in given.trained:
        rows.append(of_measuring(name, given.small, given.epochs, given.rounds, given.device))
        print("measuring", json.dumps(rows[-1]), flush=True)
    if given.out:
        with open(given.out, "w") as file:
            json.dump({"device": where, "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
