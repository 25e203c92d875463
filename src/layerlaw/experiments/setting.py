"""How an experiment is run: quickly or in full, over which seeds, on which images, where."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from layerlaw.data import DEFAULT, Labeled, load
from layerlaw.data.official import ENVIRONMENT, data_folder
from layerlaw.errors import DataError, InputError
from layerlaw.experiments.runs import Runs
from layerlaw.files import check_room, json_safe, made_folder, write_json
from layerlaw.lab import Recipe, Samples, Schedule, sweep
from layerlaw.lab.engines import Engine
from layerlaw.lab.fleet.rows import compiles
from layerlaw.lab.networks import Precision
from layerlaw.packed import read_sealed_npz, write_npz
from layerlaw.progress import Progress

PAPER_SEED = 666
ADAM = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)  # the learning rates of the authors' grid
TITLES = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST", "cifar10": "CIFAR-10"}
SMALL = 10  # pixels: so small, whole data sets are resized once and drawn from
FILE_ORDER = "first-in-file-order"  # the name of samples that are not drawn
EMBEDDED = "embedded Fashion-MNIST"  # what stands in for all images in a quick run
PREPARED = "LAYERLAW_PREPARED"
"""Environment variable: a folder in which prepared samples are kept, for machines without the official files."""
Data = Mapping[str, Samples | Callable[[int], Samples]]
"""Samples by their name in recipes, or what gives them for a seed."""
Key = TypeVar("Key")


@dataclass
class Setting:
    """Quick or full, seeds, device, folder for the sweeps (to go on after an interruption), progress, processes.

    Every sweep of an experiment goes through `train`, which notes what the outcome's provenance needs.
    """

    quick: bool = False
    seed_count: int | None = None
    device: str = "cpu"
    folder: Path | None = None
    progress: bool | Progress = True
    workers: int | None = None
    engine: Engine = "processes"
    checksums: dict[str, str] = field(default_factory=dict)
    used_seeds: set[int] = field(default_factory=set)
    networks: int = 0

    def __post_init__(self) -> None:
        if self.seed_count is not None and self.seed_count < 1:
            raise InputError(f"seeds: expected at least 1, got {self.seed_count}.")

    def seeds(self, least: int = 1) -> tuple[int, ...]:
        """The authors' seed, then 1, 2, …; `least` where a claim needs more than a few (not in a quick run)."""
        count = self.seed_count or 1 if self.quick else max(self.seed_count or 3, least)
        return (PAPER_SEED, *range(1, count))

    def epochs(self, full: int = 600, quick: int = 60) -> int:
        """Epochs of training."""
        return quick if self.quick else full

    def on_gpu(self, precision: Precision | None) -> Precision | None:
        """This precision for recipes that are trained on a GPU; on a CPU, some of which die of bf16, none."""
        return precision if torch.device(self.device).type == "cuda" else None

    def note(self, words: str, *, quick: bool = True) -> list[str]:
        """A note of quick runs alone, or of full runs alone."""
        return [words] if self.quick is quick else []

    def kept(self, key: Any, kind: str, *, shared: str = "") -> Path | None:
        """The file for what this key describes, in the folder or, `shared` by experiments, beside it; `None` without one."""
        if self.folder is None:
            return None
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return (self.folder.parent / shared if shared else self.folder) / f"{digest[:16]}.{kind}"

    def remembered(
        self,
        keys: Mapping[Key, Any],
        make: Callable[[list[Key]], Iterable[tuple[Key, dict[str, Any]]]],
        *,
        shared: str = "",
    ) -> dict[Key, dict[str, Any]]:
        """What was kept before of each, and of the others what `make` gives, kept as it comes; as plain data.

        These are files of kilobytes, with which an experiment goes on where its networks are gone.
        """
        places = {name: self.kept(key, "json", shared=shared) for name, key in keys.items()}
        found = {name: _read_kept(place) for name, place in places.items() if place is not None and place.exists()}
        missing = [name for name in keys if name not in found]
        for name, made in make(missing) if missing else ():
            found[name] = json_safe(made)
            if (place := places[name]) is not None:
                write_json(made_folder(place.parent) / place.name, made)
        return {name: found[name] for name in keys}

    def train(
        self,
        name: str,
        recipes: Sequence[Recipe],
        data: Data,
        schedule: Schedule,
        *,
        start: Sequence[dict[str, Any]] | None = None,
        copied: tuple[int, int] | None = None,
        shared: str = "",
        networks: bool = True,
        compile: bool = False,
    ) -> Runs:
        """Train and measure; `name` tells the sweeps of one experiment apart in its folder, or in that of the experiment
        that it is `shared` with, whose networks are then not trained again. Without `networks` only numbers are kept.
        `compile`, as in `sweep`, where there is a GPU that can: for long trainings, a network at a time."""
        self.used(recipes, data)
        folder = None if self.folder is None else (self.folder.parent / shared if shared else self.folder) / name
        how: dict[str, Any] = {
            "schedule": schedule,
            "start": start,
            "copied": copied,
            "workers": self.workers,
            "engine": self.engine,
            "networks": networks,
            "compile": compile and torch.device(self.device).type == "cuda" and compiles(),
        }
        return Runs(sweep(recipes, data, folder=folder, device=self.device, progress=self.progress, **how))

    def used(self, recipes: Sequence[Recipe], data: Data) -> None:
        """Note these networks, their seeds and their samples for the outcome's provenance."""
        which = f" ({EMBEDDED})" if self.quick else ""
        for recipe in recipes:
            drawn = "" if isinstance(data[recipe.data], Samples) else f", seed {recipe.seed}"
            self.checksums[f"{recipe.data}{drawn}{which}"] = _given(data, recipe).checksum
        self.used_seeds |= {recipe.seed for recipe in recipes}
        self.networks += len(recipes)

    def measure(self, runs: Runs, data: Data, schedule: Schedule) -> Runs:
        """The networks of these runs measured once more, at other sites or in other modes; nothing is trained."""
        return Runs(run.measured(_given(data, run.recipe), schedule, device=self.device) for run in runs)


def _read_kept(file: Path) -> dict[str, Any]:
    """What an experiment kept there; a file that is damaged is told."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        found = error
    if not isinstance(found, dict):
        raise DataError(
            f"{file}: expected what an experiment kept (JSON), got {found}. Delete it, and it is made again."
        )
    return found


def _given(data: Data, recipe: Recipe) -> Samples:
    images = data[recipe.data]
    return images if isinstance(images, Samples) else images(recipe.seed)


def model_folder(name: str, what: str) -> Path:
    """Where a model of others was put, in the folder that LAYERLAW_DATA names."""
    folder = data_folder()
    if folder is None or not (folder / name).is_dir():
        raise DataError(
            f"expected a folder {name}/ in the folder that the environment variable {ENVIRONMENT} names, found none. Put "
            f"{what} there; --quick needs none."
        )
    return folder / name


def quick_title(title: str, data: Iterable[str]) -> str:
    """The title of a quick run, which may name images that it has not seen; `data` are the names of those that it used.

    >>> quick_title("ResNet18 on MNIST", ["mnist (embedded Fashion-MNIST)"])
    'ResNet18 on MNIST (quick run, on embedded Fashion-MNIST)'
    """
    return f"{title} (quick run{f', on {EMBEDDED}' * any(EMBEDDED in name for name in data)})"


@dataclass(frozen=True)
class Images:
    """Training and test images of one kind; called with a seed it gives the samples that this seed draws."""

    name: str
    counts: tuple[int, ...]
    size: int
    tests: int
    flat: bool = True

    def __call__(self, seed: int | None) -> Samples:
        """The first of every class in a random order of all images, in that order; without a seed in file order.

        So the last chunks hold more of the classes that were full last, as in any sample collected in this way.
        """
        return _drawn(self, seed)


def samples(
    setting: Setting,
    name: str,
    counts: int | Sequence[int] = 100,
    *,
    size: int = 10,
    tests: int = 200,
    flat: bool = True,
) -> Images:
    """`counts` training images of every class (or one per class), drawn by the seed, and the first `tests` test images.

    Resized by Pillow (bilinear). CIFAR-10 at 10×10 pixels keeps channel 1, as the authors did; larger images keep all
    channels and are normalized by the data set's mean and deviation. `flat=False` keeps their shape, for convolutions.
    In a quick run the embedded Fashion-MNIST sample stands in for every data set, so that it needs no download.
    """
    each = (counts,) * 10 if isinstance(counts, int) else tuple(counts)
    return Images(DEFAULT if setting.quick else name, each, size, min(tests, 200) if setting.quick else tests, flat)


def stand_in(setting: Setting, *names: str) -> list[str]:
    """A note when a quick run does not use the data it should."""
    absent = [TITLES[name] for name in names if name != "fashion_mnist"]
    return setting.note(f"Quick run: Fashion-MNIST stands in for {' and '.join(absent)}.") if absent else []


@cache
def _drawn(images: Images, seed: int | None) -> Samples:
    train = _chosen(images.name, "train", images.counts, images.size, seed)
    tests = (images.tests,) * len(images.counts)
    test = _chosen(images.name, "test", tests, images.size, None)
    pairs = (_tensors(part, images.size, images.flat) for part in (train, test))
    return Samples.of(*pairs, class_names=train.class_names)


def _chosen(
    name: str, split: Literal["train", "test"], counts: tuple[int, ...], size: int, seed: int | None
) -> Labeled:
    """So many images of each class, at most what there are, resized."""
    if size <= SMALL:
        whole = _whole(name, split, size)
        return _first(whole, counts, seed)

    def make() -> Labeled:
        return _first(load(name, split=split), counts, seed).resized(size)

    digits = "-".join(map(str, counts)) if len(set(counts)) > 1 else str(counts[0])
    return _prepared(f"{name}_{split}_{size}_{digits}_{seed}", make)


def _first(images: Labeled, counts: tuple[int, ...], seed: int | None) -> Labeled:
    """The first so many of each class, at most what there are, in the order of the seed."""
    if seed is not None:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        images = replace(images, images=images.images[order], labels=images.labels[order])
    return images.imbalanced(tuple(map(min, counts, images.counts())))


@cache
def _whole(name: str, split: Literal["train", "test"], size: int) -> Labeled:
    return _prepared(f"{name}_{split}_{size}", lambda: load(name, split=split).resized(size))


def _prepared(key: str, make: Callable[[], Labeled]) -> Labeled:
    """Images as they were prepared before, if a folder for them is named, else made and kept there."""
    folder = os.environ.get(PREPARED)
    if not folder:
        return make()
    file = Path(folder) / f"{key}.npz"
    if file.exists():
        return _read_prepared(file)
    check_room(made_folder(file.parent))  # before the work
    made = make()
    parts: dict[str, Any] = {"images": made.images.numpy(), "labels": made.labels.numpy().astype(np.uint8)}
    write_npz(file, {"names": np.array(made.class_names), "name": np.array(made.name), **parts})
    return made


def _read_prepared(file: Path) -> Labeled:
    """Images that were prepared before; whatever is wrong with them is said."""
    expected, again = (
        f"{file}: expected prepared images",
        "Delete the file, and it is made again from the official ones",
    )
    try:
        arrays = read_sealed_npz(file)
        images, labels, names = arrays["images"], arrays["labels"], tuple(map(str, arrays["names"]))
        if images.dtype != np.uint8 or images.ndim != 4 or not images.size:
            raise DataError(f"{expected} of bytes (n, channels, h, w), got {images.dtype} {images.shape}")
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
            raise DataError(f"{expected} with {len(images)} class numbers, got {labels.dtype} {labels.shape}")
        if not 0 <= int(labels.min()) <= int(labels.max()) < len(names):
            raise DataError(f"{expected} of {len(names)} classes, got numbers {labels.min()} … {labels.max()}")
        numbers = torch.from_numpy(labels.astype(np.int64))
        return Labeled(torch.from_numpy(images), numbers, names, str(arrays["name"]))
    except DataError as error:
        raise DataError(f"{str(error).rstrip('.')}. {again}.") from None
    except KeyError as error:
        raise DataError(f"{expected}, got a file without {error}. {again}.") from None


def _tensors(images: Labeled, size: int, flat: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if size > SMALL:
        return images.tensors("dataset", flat=flat)
    if images.name == "cifar10":
        return images.tensors("dataset", flat=flat, channel=1)
    return images.tensors("half", flat=flat)
