"""What commands are given that train a network for images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from layerlaw.advice.choosing import pictures
from layerlaw.cli.app import JsonFlag
from layerlaw.cli.inputs import Size
from layerlaw.data import DEFAULT, names
from layerlaw.lab import Architecture, Recipe, Samples

EngineName = Annotated[
    str, Option(help="processes (of this machine), or ray: a Ray cluster, the one that runs here or RAY_ADDRESS names.")
]


@dataclass(frozen=True)
class ImageTrainingOptions:
    """One network for images, and how it is trained."""

    network: Annotated[str, Option(help="resnet18, resnet18_7x7, vgg11, …: a network of layerlaw.lab.")] = "resnet18"
    data: Annotated[str, Option(help=f"{', '.join(names())}, or a folder of class folders of images.")] = DEFAULT
    size: Size = None
    per_class: Annotated[int | None, Option(help="Use this many images of each class.", show_default="all")] = None
    rate: Annotated[float, Option(help="Learning rate, of SGD with momentum.")] = 0.05
    epochs: Annotated[int, Option(help="Epochs of each training.")] = 60
    batch_size: Annotated[int, Option(help="Images of a step.")] = 128
    validation: Annotated[float, Option(help="Share of every class held back to judge by.")] = 0.1
    seed: Annotated[int, Option(help="Of initial weights, orders and the search.")] = 0
    device: Annotated[str, Option(help="cpu, cuda, cuda:1, …")] = "cpu"
    out: Annotated[Path | None, Option(help="Folder for results and networks; a second call continues there.")] = None
    as_json: JsonFlag = False

    def samples(self) -> Samples:
        """The training images, normalized by their own mean and deviation."""
        images = pictures(self.data, self.size)
        images = images if self.per_class is None else images.balanced(self.per_class)
        images = images if self.size is None else images.resized(self.size)
        pixels = images.images.double() / 255
        mean, std = float(pixels.mean()), float(pixels.std())
        return Samples.of(images.tensors((mean, std)), class_names=images.class_names)

    def recipe(self) -> Recipe:
        """For these images."""
        given = self.samples()
        network = Architecture.named(self.network, inputs=given.inputs.shape[1], classes=given.classes)
        how: dict[str, Any] = {"epochs": self.epochs, "batch_size": self.batch_size, "seed": self.seed}
        return Recipe(network, optimizer="momentum", learning_rate=self.rate, **how)
