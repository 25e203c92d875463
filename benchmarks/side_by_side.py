"""Narrow networks for images on a GPU, alone and side by side: `python benchmarks/side_by_side.py [--steps 4800]`.

Seconds per network for so many steps of batch 128 (600 epochs of 1000 images): alone as a recorded graph, and E networks
at once with their weights as blocks on a diagonal or as groups; the start (recording, trying convolutions) and one
measurement in all five BatchNorm protocols are given apart. Of the steps only `--epochs` × 8 are made and the rest is
computed from them. Random images; `--device cpu --epochs 1 --images 40` tries the script.

    python benchmarks/side_by_side.py --only resnet18_7x7 --ways alone:1 groups:3 groups:6   # wide networks, small maps
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import torch
from conv_training import random_images, waited

from layerlaw.experiments.runs import PROTOCOLS
from layerlaw.lab import Architecture, Recipe, Samples
from layerlaw.lab.fleet import engine as engines
from layerlaw.lab.fleet.engine import FleetEngine
from layerlaw.lab.fleet.images import ImageFleet
from layerlaw.lab.training import SingleEngine

NETWORKS = ("resnet_2layer", "resnet_3layer", "resnet_mixed", "pure_cnn_16")
WIDE = ("resnet18_7x7", "resnet18", "vgg11")
WAYS = ("alone:1", "blocks:4", "blocks:8", "blocks:16", "groups:8")
SCHEDULE = replace(PROTOCOLS, test=False, sites=("input", "*relu*"))


def timed(name: str, way: str, members: int, samples: Samples, given: argparse.Namespace) -> dict[str, Any]:
    recipes = [Recipe(Architecture.named(name), seed=seed, learning_rate=1e-4) for seed in range(1, members + 1)]
    if given.precision:
        recipes = [replace(recipe, precision=given.precision) for recipe in recipes]
    began = waited(given.device)
    engine: Any
    if way == "alone":
        engine = SingleEngine(recipes[0], samples, SCHEDULE, device=given.device)
    else:
        engines.ImageFleet = lambda *a: ImageFleet(*a, by=way)  # type: ignore[misc, assignment, arg-type]
        try:
            engine = FleetEngine(recipes, [samples] * members, SCHEDULE, device=given.device)
        finally:
            engines.ImageFleet = ImageFleet  # type: ignore[misc]
    for _ in range(2):
        engine.train_epoch(0)
    started = waited(given.device)
    for _ in range(given.epochs):
        loss = engine.train_epoch(0)
    seconds = waited(given.device) - started
    per_epoch = -(-len(samples.labels) // 128)
    began_measuring = time.perf_counter()
    measured = engine.measure(0) if way != "alone" or members == 1 else []
    return {
        "network": name,
        "way": f"{way} {members}",
        "seconds": round(seconds * given.steps / (given.epochs * per_epoch) / members, 2),
        "start_s": round(started - began, 2),
        "measure_s": round((waited(given.device) - began_measuring) / max(1, len(measured)), 2),
        "loss": round(float(loss[0]), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4800)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=(*NETWORKS, *WIDE), default=list(NETWORKS))
    parser.add_argument("--ways", nargs="+", default=WAYS, help="alone:1, blocks:E or groups:E")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--precision")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    for name in given.only:
        for way, _, count in (word.partition(":") for word in given.ways):
            members = int(count)
            try:
                row = timed(name, way, members, random_images(given.images), given)
            except Exception as error:  # one way that fails must not take the others along
                row = {
                    "network": name,
                    "way": f"{way} {members}",
                    "error": f"{type(error).__name__}: {str(error)[:300]}",
                }
            print(json.dumps(row), flush=True)
            if given.device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
