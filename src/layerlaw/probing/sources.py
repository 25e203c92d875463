"""What data are for a network: tensors, or images and texts turned into its inputs; how a model wants images prepared."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from layerlaw.capture.batches import Batch, Batches, Pair
from layerlaw.capture.fingerprint import Fingerprint
from layerlaw.capture.network import Randomness, parts_of, seeding
from layerlaw.data.labeled import Labeled, Normalize, scaling_in_words
from layerlaw.data.prepared import Prepared, hub_data, is_hub_data, labeled_pictures
from layerlaw.data.sharding import dealt_to_others, replicas_of
from layerlaw.errors import DataError, needed
from layerlaw.probing.classes import names_in
from layerlaw.probing.shard_words import STEADY_SHARDS
from layerlaw.threads import on_cpu

FEW = 32  # samples by which random augmentation is noticed


@dataclass(frozen=True)
class Preprocessing:
    """What a model says of how its images are to be prepared, and where it says so."""

    normalize: Normalize | None = None
    size: tuple[int, int] | None = None
    source: str = ""


MOMENT_NAMES = (("mean", "std"), ("pixel_mean", "pixel_std"), ("image_mean", "image_std"), ("norm_mean", "norm_std"))


def preprocessing_of(network: nn.Module | None) -> Preprocessing:
    """Mean, deviation and size as timm keeps them with the model, or transformers beside its weights; a model that holds a
    mean and a deviation itself, in a module that does nothing else, needs no other."""
    if network is None:
        return Preprocessing()
    for name, module in network.named_modules():
        pair = next((p for p in MOMENT_NAMES if all(_few_numbers(getattr(module, part, None)) for part in p)), None)
        if pair is not None and not any(True for _ in module.parameters(recurse=False)):
            return Preprocessing("none", source=f"'{'.'.join(filter(None, (name, pair[0])))}'")
    kept = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None)  # of timm
    folder = getattr(getattr(network, "config", None), "_name_or_path", None)
    beside = Path(folder) / "preprocessor_config.json" if isinstance(folder, str) and folder else None
    if kept is not None:
        read = kept if isinstance(kept, dict) else vars(kept)
        found = {"mean": read.get("mean"), "std": read.get("std"), "size": (read.get("input_size") or ())[-2:]}
        return _stated(found, "pretrained_cfg")
    if beside is not None and beside.is_file():
        try:
            read = json.loads(beside.read_text(encoding="utf-8"))
            size = read.get("crop_size") or read.get("size") or {}
        except (OSError, ValueError, AttributeError):
            return Preprocessing()
        sides = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
        return _stated({"mean": read.get("image_mean"), "std": read.get("image_std"), "size": sides}, beside.name)
    return Preprocessing()


def first_layer(network: nn.Module | None) -> tuple[str, nn.Conv2d | nn.Linear] | None:
    """The convolution or linear layer that a network defines first, which most often is the one that reads the images."""
    modules = () if network is None else network.named_modules()
    return next(((name, m) for name, m in modules if isinstance(m, (nn.Conv2d, nn.Linear))), None)


def channels_read(network: nn.Module | None, pixels: int) -> tuple[int, str] | None:
    """1 or 3, where the first layer of a network takes so many channels of so many `pixels`, and what says so."""
    if (found := first_layer(network)) is None:
        return None
    name, layer = found
    takes = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.in_features / pixels
    return (int(takes), f"'{name}' of the model") if takes in (1, 3) else None


def channels_of(network: nn.Module | None) -> int | None:
    """1 or 3, where the first layer is a convolution of so many channels; `None`: images as they are."""
    found = first_layer(network)
    takes = found[1].in_channels if found is not None and isinstance(found[1], nn.Conv2d) else None
    return takes if takes in (1, 3) else None


def _stated(found: dict[str, Any], source: str) -> Preprocessing:
    mean, std, size = found["mean"], found["std"], tuple(found["size"])
    sides = size if len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size) else None
    if not (_few_numbers(mean) and _few_numbers(std)):
        return Preprocessing(None, sides, source)
    return Preprocessing((tuple(map(float, mean)), tuple(map(float, std))), sides, source)


def _few_numbers(value: Any) -> bool:
    """One number per channel."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.numel() in (1, 3)
    return isinstance(value, (tuple, list)) and len(value) in (1, 3) and all(isinstance(v, (int, float)) for v in value)


class Source(NamedTuple):
    """What batches are made of, the names of the classes where the data know them, where the labels are, and in words how
    images or texts became inputs."""

    data: Any
    class_names: Sequence[str] | None
    labels_at: int | str | None
    prepared: str = ""


@on_cpu
def source_of(data: Any, network: nn.Module, *, prepare: Any = None, labels: int | str | None = None) -> Source:
    """Data as `probe` takes them, with what `prepare` makes of images or texts; `labels` says where their labels are."""
    by = "" if prepare is None else f"by {getattr(prepare, '__name__', type(prepare).__name__)}"
    if isinstance(data, Prepared) or (data is not None and is_hub_data(data)):
        if not isinstance(data, Prepared):
            own = OwnImages.of(network)
            data = hub_data(data, prepare, images_by=own, label=labels, channels=channels_of(network))
            by = by or (str(own) if isinstance(data, Prepared) else "")
        return Source(data, names_in(data), None, by)
    if prepare is None:
        return Source(data.tensors() if isinstance(data, Labeled) else data, names_in(data), labels)
    if isinstance(data, Labeled):
        found = labeled_pictures(data, prepare, channels_of(network))
        return Source(found, found.class_names, None, by)
    expected = "a Hugging Face dataset or layerlaw.data.load(…), whose images or texts it turns into inputs"
    raise DataError(f"prepare: expected with {expected}, got {type(data).__name__}. A loader prepares its own.")


@dataclass(frozen=True)
class OwnImages:
    """Images as a model says of itself that they are to be prepared: their size, mean and deviation."""

    own: Preprocessing

    @classmethod
    def of(cls, network: nn.Module) -> OwnImages:
        """For a network."""
        return cls(preprocessing_of(network))

    def __str__(self) -> str:
        scale = scaling_in_words(self.own.normalize or "half", "")
        size = "" if self.own.size is None else f"{'×'.join(map(str, self.own.size))} pixels, "
        return f"{size}{scale} ({self.own.source + ' of the model' if self.own.source else 'the default'})"

    @on_cpu
    def __call__(self, image: Any) -> Tensor:
        """One picture of Pillow as (c, h, w)."""
        Image = needed("PIL.Image", "data", "preparing images", package="pillow")
        if not hasattr(image, "resize"):
            cure = "A function as `prepare` turns others into tensors"
            raise DataError(f"expected a picture of Pillow, got {type(image).__name__}. {cure}.")
        if self.own.size is not None and image.size != self.own.size[::-1]:
            image = image.resize(self.own.size[::-1], Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image, np.uint8)).reshape(1, image.height, image.width, -1)  # (1, h, w, c)
        one = Labeled(pixels.permute(0, 3, 1, 2), torch.zeros(1, dtype=torch.int64), ("",), "an image")
        return one.tensors(self.own.normalize or "half")[0][0]


@dataclass(frozen=True)
class SomeBatches:
    """The batches from `first` to before `end` of a source; those in front of them are gone through."""

    source: Any
    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.source), self.first, self.end)


def part_of(data: Batches, shard: int, shards: int) -> Batches:
    """The batches of one shard; a loader of a data set with places does not load the others."""
    assert data.length is not None
    first, end = data.length * (shard - 1) // shards, data.length * shard // shards
    part, loader = copy.copy(data), data.source
    part.source, part.length = SomeBatches(loader, first, end), end - first
    part.where = f"{data.where}, shard {shard}/{shards}"
    if (chosen := places_in(loader)) is not None:
        kept = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
        how: Any = {name: getattr(loader, name) for name in kept}
        part.source = DataLoader(loader.dataset, batch_sampler=chosen[first:end], **how)
    return part


def steady_first(data: Batches, randomness: Randomness) -> Batch:
    """The first batch; raises where random numbers change it, of which every job of an array may draw others."""
    randomness.rewind()
    first, few, marks = next(iter(data)), copy.copy(data), set()
    if (chosen := places_in(data.source)) is not None:  # without the workers, which take long to start
        few.source = DataLoader(data.source.dataset, batch_sampler=[chosen[0][:FEW]], collate_fn=data.source.collate_fn)
    for seed in () if isinstance(data.source, Pair) else (1, 2):
        randomness.rewind()
        with seeding(seed), suppress(DataError):  # what fails here alone needs the workers
            batch, mark = next(iter(few)), Fingerprint()
            mark.update(batch.labels, *batch.tensors())
            marks.add(mark.text())
    randomness.rewind()
    if len(marks) > 1:
        expected = "expected samples that are the same in every job, got some that change with the random generators"
        raise DataError(f"{data.where}: {expected}. {STEADY_SHARDS}.")
    return first


def places_in(loader: Any) -> list[list[int]] | None:
    """The places in the data set of the samples of every batch; `None` of what is no plain loader."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    return [list(batch) for batch in loader.batch_sampler]


def check_whole_in_shards(**all_data: Any) -> None:
    """Raise where a sampler has dealt some data to ranks: shards deal the batches of all samples themselves."""
    for name, data in all_data.items():
        if deals := dealt_to_others(parts_of(data)):
            kind, ranks = next((type(part).__name__, n) for part in parts_of(data) if (n := replicas_of(part)))
            seen = f"so that this job sees only 1/{ranks} of them" if ranks > 1 else f"but {deals.partition('. ')[0]}"
            expected = f"{name}: expected a loader of all samples, got one with a {kind}, {seen}"
            raise DataError(f"{expected}. Remove the sampler: the shard chooses the batches.")
