"""What happens to pixels: resizing with Pillow, scaling and normalizing; Pillow is imported when first needed."""

from collections.abc import Sequence
from types import ModuleType
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from layerlaw.errors import DataError, MissingExtraError

Numbers: TypeAlias = float | Sequence[float]
Normalize: TypeAlias = Literal["half", "dataset", "none"] | tuple[Numbers, Numbers]

# Mean and standard deviation of the training pixels in [0, 1], per channel, as the papers use them.
MOMENTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "fashion_mnist_sample": ((0.2860,), (0.3530,)),  # a part of Fashion-MNIST, scaled like the whole
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
}


def pillow(purpose: str) -> ModuleType:
    """Import `PIL.Image`, or say which extra is missing."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "data", purpose) from error
    return Image


def height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Read a size as (height, width).

    >>> height_width(10)
    (10, 10)
    """
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side >= 1 for side in pair):
        raise DataError(f"expected a size as one whole number or (height, width), each at least 1, got {size!r}")
    return pair


def resized(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Resize (n, c, h, w) uint8 images to (n, c, *size) with Pillow's antialiased bilinear filter.

    The same numbers as torchvision's `Resize((height, width))` on Pillow images; channels are resized one by one.
    """
    h, w = height_width(size)
    n, c = images.shape[:2]
    if images.shape[2:] == (h, w):
        return images
    Image = pillow("resizing images")
    planes = images.flatten(0, 1).cpu().numpy()  # (n·c, h_old, w_old)
    out = np.empty((n * c, h, w), np.uint8)
    for plane, target in zip(planes, out, strict=True):
        target[:] = np.asarray(Image.fromarray(plane).resize((w, h), Image.Resampling.BILINEAR))
    return torch.from_numpy(out).reshape(n, c, h, w)


def normalized(images: Tensor, how: Normalize, *, name: str) -> Tensor:
    """Scale uint8 images (n, c, h, w) to [0, 1] in float32, then normalize; `name` says whose published moments to use.

    >>> normalized(torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 1, 2), "half", name="toy").tolist()
    [[[[-1.0, 1.0]]]]
    """
    x = images.to(torch.float32).div_(255)
    if how == "none":
        return x
    mean, std = _moments(how, name)
    m, s = _per_channel(mean, x.shape[1], name), _per_channel(std, x.shape[1], name)  # (1, c, 1, 1)
    if not (torch.isfinite(m).all() and torch.isfinite(s).all() and (s > 0).all()):
        raise DataError(f"{name}: expected a finite mean and a standard deviation above 0, got {mean} and {std}")
    return x.sub_(m).div_(s)


def _moments(how: Normalize, name: str) -> tuple[Numbers, Numbers]:
    if how == "half":
        return 0.5, 0.5
    if how == "dataset":
        if name in MOMENTS:
            return MOMENTS[name]
        raise DataError(
            f"{name}: no published mean and standard deviation (known: {', '.join(MOMENTS)}); "
            "pass normalize=(mean, std), measured on the training images"
        )
    if isinstance(how, tuple) and len(how) == 2:
        return how
    raise DataError(f"expected normalize 'half', 'dataset', 'none' or a pair (mean, std), got {how!r}")


def _per_channel(values: Numbers, channels: int, name: str) -> Tensor:
    tensor = torch.as_tensor(values, dtype=torch.float32).flatten()
    if len(tensor) not in (1, channels):
        raise DataError(f"{name}: expected 1 or {channels} numbers, one per channel, got {len(tensor)}: {values}")
    return tensor.reshape(1, -1, 1, 1)
