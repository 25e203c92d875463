"""`Labeled`: images with labels and class names; choosing samples and classes; resizing (Pillow) and scaling."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from layerlaw.errors import MOST_WHOLE, SEED, DataError, Demand, LabelError, demand, needed, shown, whole, whole_number
from layerlaw.files import sha256

LARGEST_SIDE = 2**16  # pixels

Numbers: TypeAlias = float | Sequence[float]
Normalize: TypeAlias = Literal["half", "dataset", "none", "imagenet"] | tuple[Numbers, Numbers]

# Mean and standard deviation of the training pixels in [0, 1], per channel, as the papers use them.
MOMENTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "fashion_mnist_sample": ((0.2860,), (0.3530,)),  # a part of Fashion-MNIST, scaled like the whole
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
}
AMOUNT = whole(-MOST_WHOLE, kind=Integral)  # what is out of range is answered with what there is
NUMBERS = Demand("a number, or one per channel", lambda values: np.asarray(values, dtype=float).size)
SIDES = Demand(
    "(height, width)", lambda pair: len(pair) == 2 and whole(1, LARGEST_SIDE, kind=Integral).each.met_by(pair)
)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # what most published image models were trained with


@dataclass(frozen=True, eq=False, repr=False)
class Labeled:
    """Labeled images; every choice returns a new one, in file order, under the same name.

    >>> images = torch.arange(24, dtype=torch.uint8).reshape(6, 1, 2, 2)
    >>> toy = Labeled(images, torch.tensor([0, 1, 0, 1, 0, 1]), ("cat", "dog"), "toy")
    >>> toy
    Labeled('toy', 6 images of 1×2×2, 2 classes)
    >>> toy.balanced(2).labels.tolist()
    [0, 1, 0, 1]
    """

    images: Tensor  # (n, c, h, w) uint8
    labels: Tensor  # (n,) int64
    class_names: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        n, K = len(self.images), len(self.class_names)
        images, labels = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (self.images, self.labels))
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            cure = "keep pixels as whole numbers 0..255, tensors() scales them"
            raise DataError(f"{self.name}: expected uint8 images of shape (n, c, h, w), got {images}; {cure}")
        if self.labels.shape != (n,) or self.labels.dtype != torch.int64:
            raise LabelError(f"{self.name}: expected int64 labels of shape ({n},), one per image, got {labels}")
        low, high = (int(end) for end in self.labels.aminmax()) if n else (0, 0)
        if n and not 0 <= low <= high < K:
            expected = f"expected labels 0..{K - 1} for {K} class names"
            raise LabelError(f"{self.name}: {expected}, got labels from {low} to {high}; name every class")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = "×".join(str(side) for side in self.images.shape[1:])
        return f"Labeled({self.name!r}, {len(self)} images of {shape}, {len(self.class_names)} classes)"

    def counts(self) -> tuple[int, ...]:
        """Count the images of each class.

        >>> Labeled(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 2, 2]), ("a", "b", "c"), "toy").counts()
        (1, 0, 2)
        """
        return tuple(torch.bincount(self.labels, minlength=len(self.class_names)).tolist())

    def checksum(self) -> str:
        """Give the sha256 (hex) of the bytes of images and labels: equal exactly when both are equal."""
        labels = self.labels.cpu().numpy().astype("<i8")  # little-endian on every machine
        return sha256((self.images.cpu().numpy(), labels))

    def balanced(self, per_class: int, *, seed: int | None = None) -> "Labeled":
        """Keep `per_class` images of every class: the first ones, or with a seed a random choice.

        With one seed, a smaller choice is part of a larger one.
        """
        demand(DataError, self.name, per_class=(per_class, AMOUNT))
        return self.imbalanced([per_class] * len(self.class_names), seed=seed)

    def imbalanced(self, counts: Sequence[int], *, seed: int | None = None) -> "Labeled":
        """Keep `counts[k]` images of class k: the first ones, or with a seed a random choice.

        >>> images = torch.zeros(6, 1, 2, 2, dtype=torch.uint8)
        >>> toy = Labeled(images, torch.tensor([0, 0, 0, 1, 1, 1]), ("cat", "dog"), "toy")
        >>> toy.imbalanced([3, 1]).counts()
        (3, 1)
        """
        available = self.counts()
        demand(DataError, self.name, counts=(counts, AMOUNT.each), seed=(seed, SEED.or_none))
        if len(counts) != len(available):
            raise DataError(f"{self.name}: expected {len(available)} counts, one per class, got {len(counts)}")
        if (least := min(counts)) < 1:
            cure = "use classes(ids) to leave one out"
            raise DataError(f"{self.name}: expected at least 1 image per class, got {least}; {cure}")
        short = [
            f"class {k} ({self.class_names[k]!r}) has {have}, {want} were requested"
            for k, (want, have) in enumerate(zip(counts, available, strict=True))
            if want > have
        ]
        if short:
            said = "; ".join(short[:3]) + (f" (and {len(short) - 3} more classes)" if len(short) > 3 else "")
            cure = f"request at most {min(available)} per class or load a larger data set"
            raise DataError(f"{self.name}: more images than there are: {said}; {cure}")
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        chosen = []
        for k, count in enumerate(counts):
            index = torch.nonzero(self.labels == k).flatten()
            if generator is not None:
                index = index[torch.randperm(len(index), generator=generator)]
            chosen.append(index[:count])
        index = torch.cat(chosen).sort().values
        return replace(self, images=self.images[index], labels=self.labels[index])

    def classes(self, ids: Sequence[int]) -> "Labeled":
        """Keep the classes `ids` alone; class `ids[i]` becomes class i.

        >>> images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
        >>> toy = Labeled(images, torch.tensor([0, 1, 2, 1]), ("cat", "dog", "owl"), "toy").classes([2, 1])
        >>> toy.class_names, toy.labels.tolist()
        (('owl', 'dog'), [1, 0, 1])
        """
        K = len(self.class_names)
        demand(DataError, self.name, ids=(ids, AMOUNT.each))
        if not ids or len(set(ids)) < len(ids) or not all(0 <= k < K for k in ids):
            known = ", ".join(f"{k} {name!r}" for k, name in enumerate(self.class_names))
            expected = f"expected different class ids from 0 to {K - 1}, got {list(ids)}"
            raise DataError(f"{self.name}: {expected}; the classes are {known}")
        renamed = torch.full((K,), -1)
        renamed[list(ids)] = torch.arange(len(ids))
        labels = renamed[self.labels]  # (n,), −1 where the class is left out
        keep = labels >= 0
        names = tuple(self.class_names[k] for k in ids)
        return replace(self, images=self.images[keep], labels=labels[keep], class_names=names)

    def resized(self, size: int | tuple[int, int]) -> "Labeled":
        """Resize to size×size (or height, width) with Pillow's antialiased bilinear filter, channel by channel.

        The same numbers as torchvision's `Resize((height, width))` on Pillow images; the right size stays as it is.
        """
        h, w = height_width(size)
        n, c = self.images.shape[:2]
        if self.images.shape[2:] == (h, w):
            return self
        Image = needed("PIL.Image", "data", "resizing images", package="pillow")
        planes = self.images.flatten(0, 1).cpu().numpy()  # (n·c, h_old, w_old)
        out = np.empty((n * c, h, w), np.uint8)
        for plane, target in zip(planes, out, strict=True):
            target[:] = np.asarray(Image.fromarray(plane).resize((w, h), Image.Resampling.BILINEAR))
        return replace(self, images=torch.from_numpy(out).reshape(n, c, h, w))

    @property
    def gray(self) -> bool:
        """Whether the channels of every image are all the same."""
        return bool((self.images == self.images[:, :1]).all())

    def with_channels(self, channels: int) -> "Labeled":
        """The same images with 1 channel or 3: gray ones keep their pixels, colors become gray as Pillow's "L" does it.

        >>> white = Labeled(torch.full((1, 1, 1, 2), 255, dtype=torch.uint8), torch.tensor([0]), ("white",), "toy")
        >>> white.with_channels(3)
        Labeled('toy', 1 images of 3×1×2, 1 classes)
        """
        there = self.images.shape[1]
        if whole_number(channels) not in (1, 3):
            raise DataError(f"{self.name}: expected channels 1 (gray) or 3 (color), got {shown(channels)}")
        if channels == there:
            return self
        if there not in (1, 3):
            raise DataError(f"{self.name}: expected images of 1 or 3 channels to convert, got {there}")
        if channels == 3:
            return replace(self, images=self.images.repeat(1, 3, 1, 1))
        red, green, blue = (self.images[:, i : i + 1].to(torch.int32) for i in range(3))
        gray = (19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16  # .299, .587, .114, rounded as Pillow does
        return replace(self, images=gray.to(torch.uint8))

    def tensors(
        self, normalize: Normalize = "half", *, flat: bool = False, channel: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give float32 inputs (n, c, h, w), or (n, c·h·w) when flat, and int64 labels (n,).

        Pixels are scaled to [0, 1], then normalized: "half" (x − 0.5)/0.5; "dataset" by the published mean and
        standard deviation of the data set; "imagenet" by ImageNet's; "none"; or by a pair (mean, std) of numbers, or of one
        number per channel.
        `channel` keeps one channel of the result.

        >>> toy = Labeled(torch.full((1, 1, 1, 2), 255, dtype=torch.uint8), torch.tensor([0]), ("white",), "toy")
        >>> toy.tensors(flat=True)[0].tolist(), toy.tensors((0.5, 0.25), flat=True)[0].tolist()
        ([[1.0, 1.0]], [[2.0, 2.0]])
        """
        x = self.images.to(torch.float32).div_(255)
        if normalize != "none":
            mean, std = self._moments(normalize)
            m, s = self._per_channel(mean), self._per_channel(std)  # (1, c, 1, 1)
            if not (torch.isfinite(m).all() and torch.isfinite(s).all() and (s > 0).all()):
                raise DataError(f"{self.name}: expected a finite mean and a deviation above 0, got {mean} and {std}")
            x.sub_(m).div_(s)
        if channel is not None:
            demand(DataError, self.name, channel=(channel, AMOUNT))
            if not 0 <= channel < x.shape[1]:
                raise DataError(f"{self.name}: expected a channel from 0 to {x.shape[1] - 1}, got {channel}")
            x = x[:, channel : channel + 1].contiguous()
        return (x.flatten(1) if flat else x), self.labels.clone()

    def _moments(self, how: Normalize) -> tuple[Numbers, Numbers]:
        if how == "half":
            return 0.5, 0.5
        if how == "imagenet":
            return IMAGENET
        if how == "dataset" and self.name in MOMENTS:
            return MOMENTS[self.name]
        if how == "dataset":
            known, cure = ", ".join(MOMENTS), "pass normalize=(mean, std), measured on the training images"
            raise DataError(f"{self.name}: no published mean and standard deviation (known: {known}); {cure}")
        if isinstance(how, tuple) and len(how) == 2:
            return how
        raise DataError(f"expected normalize 'half', 'dataset', 'imagenet', 'none' or a pair (mean, std), got {how!r}")

    def _per_channel(self, values: Numbers) -> Tensor:
        demand(DataError, self.name, normalize=(values, NUMBERS))
        tensor, channels = torch.as_tensor(values, dtype=torch.float32).flatten(), self.images.shape[1]
        if len(tensor) not in (1, channels):
            several = f"1 or {channels} numbers, one per channel" if channels > 1 else "1 number for the only channel"
            raise DataError(f"{self.name}: expected {several}, got {len(tensor)}: {values}")
        return tensor.reshape(1, -1, 1, 1)


def height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Read a size as (height, width).

    >>> height_width(10)
    (10, 10)
    """
    pair = (size, size) if isinstance(size, Integral) else size
    if not SIDES.met_by(pair):
        raise DataError(f"expected a size as one whole number or (height, width), each at least 1, got {shown(size)}")
    height, width = (int(side) for side in pair)  # type: ignore[union-attr]
    return height, width


def normalization(text: str) -> Normalize:
    """A name, or numbers: the means of the channels, then as many deviations.

    >>> normalization("0.5,0.25"), normalization("imagenet"), normalization("0.1,0.2,0.3,1,1,1")
    ((0.5, 0.25), 'imagenet', ((0.1, 0.2, 0.3), (1.0, 1.0, 1.0)))
    """
    if text in ("half", "dataset", "none", "imagenet"):
        return text  # type: ignore[return-value]
    parts = [part for part in re.split(r"[\s,;/]+", text) if part]
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        numbers = ()
    if len(numbers) not in (2, 6):
        expected = (
            "expected auto, half, dataset, imagenet, none, or mean,std as 2 numbers (6: three means, three deviations)"
        )
        raise DataError(f"normalize: {expected}, got {text!r}.")
    m = len(numbers) // 2
    return (numbers[0], numbers[1]) if m == 1 else (numbers[:m], numbers[m:])


def scaling_in_words(how: Normalize, name: str) -> str:
    """What becomes of a pixel x in 0 … 1.

    >>> scaling_in_words("half", ""), scaling_in_words((0.5, 0.25), "")
    ('(x − 0.5)/0.5', '(x − 0.5)/0.25')
    """
    if how == "none":
        return "x, in 0 … 1"
    known = {"half": (0.5, 0.5), "imagenet": IMAGENET, "dataset": MOMENTS.get(name, ("mean", "deviation"))}
    mean, std = known[how] if isinstance(how, str) else how

    def written(values: Any) -> str:
        several = list(values) if isinstance(values, (tuple, list)) else [values]
        shown = [value if isinstance(value, str) else f"{value:g}" for value in several]
        return shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"

    return f"(x − {written(mean)})/{written(std)}"
