"""A folder of class folders of pictures, optionally below train/ and test/; it is only ever read."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerlaw.data.labeled import Labeled, height_width
from layerlaw.errors import DataError, needed
from layerlaw.packed import unpacked_limit
from layerlaw.progress import Progress, choose

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # whatever the suffix claims, no other decoder runs
DEEP_MODES = ("I", "F")  # more than 8 bits per pixel


def load_folder(
    root: Path,
    *,
    split: str = "train",
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    progress: bool | Progress = True,
) -> Labeled:
    """Load all pictures; the classes are the sub-folders, sorted by name, and so are the pictures of a class.

    `size` (a number or (height, width)) is needed when pictures differ in size; `channels` is 1 (gray) or 3 (color,
    the default). Only regular files with a picture suffix directly in a class folder are read.
    """
    channels = 3 if channels is None else channels
    if isinstance(channels, bool) or channels not in (1, 3):
        raise DataError(f"{root}: expected channels 1 (gray) or 3 (color), got {channels!r}")
    files, names = picture_files(root, split)
    images = torch.from_numpy(_read_all([path for path, _ in files], size, channels, progress))
    labels = torch.tensor([k for _, k in files], dtype=torch.int64)
    return Labeled(images, labels, names, root.resolve().name)


def picture_files(root: Path, split: str) -> tuple[list[tuple[Path, int]], tuple[str, ...]]:
    """The files of a split, each with the number of its class, and the names of the classes."""
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder of class folders, got {'a file' if root.exists() else 'nothing'}")
    folders = _class_folders(root, split)
    files = [(path, k) for k, folder in enumerate(folders) for path in _pictures(folder, root)]
    return files, tuple(folder.name for folder in folders)


def _subfolders(folder: Path, root: Path) -> list[Path]:
    return _inside(sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."), root)


def _class_folders(root: Path, split: str) -> list[Path]:
    """Choose the class folders of the split; a root without train/ and test/ is all training data."""
    parts = {part: root / part for part in ("train", "test") if (root / part).is_dir()}
    parts = {part: path for part, path in parts.items() if _subfolders(path, root)}
    if not parts and split == "test":
        raise DataError(f"{root}: expected a sub-folder test/ with class folders, got none; split the pictures first")
    if parts and split not in parts:
        raise DataError(f"{root}: expected a sub-folder {split}/ with class folders, got only {next(iter(parts))}/")
    folders = _subfolders(parts.get(split, root), root)
    if not folders:
        raise DataError(f"{root}: expected one sub-folder per class, got none; put the pictures into class folders")
    if len(parts) == 2:  # labels mean the same in both splits only when the classes are the same
        train, test = ({path.name for path in _subfolders(part, root)} for part in parts.values())
        if alone := sorted(train ^ test):
            raise DataError(f"{root}: expected the same classes in train/ and test/, got {alone} in one of them alone")
    return folders


def _pictures(folder: Path, root: Path) -> list[Path]:
    named = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != ".")
    found = [path for path in _inside(named, root) if path.is_file()]
    if not found:
        what, cure = ", ".join(SUFFIXES), "add some (sub-folders of a class are not read) or remove the folder"
        raise DataError(f"{folder}: expected pictures ({what}) of the class {folder.name!r}, got none; {cure}")
    return found


def _inside(paths: list[Path], root: Path) -> list[Path]:
    """The paths, if no link leads elsewhere."""
    for path in paths:
        target = path.resolve()
        if not target.is_relative_to(root.resolve()):
            raise DataError(f"{path}: expected something inside {root}, got a link to {target}; copy or remove it")
        if not target.exists():
            raise DataError(f"{path}: expected a file, got a link to {target}, which does not exist; remove the link")
    return paths


def _read_all(
    paths: list[Path], size: int | tuple[int, int] | None, channels: int, progress: bool | Progress
) -> NDArray[np.uint8]:
    Image = needed("PIL.Image", "data", "reading a folder of pictures", package="pillow")
    shape = None if size is None else height_width(size)
    images: NDArray[np.uint8] | None = None
    for i, path in enumerate(choose(progress)(paths, "reading pictures", len(paths))):
        pixels = _read(Image, path, shape, channels)  # (h, w, c)
        h, w = pixels.shape[:2]
        if images is None:
            stored = sum(each.stat().st_size for each in paths)
            if shape is None and len(paths) * channels * h * w > unpacked_limit(stored):
                all_ = f"{len(paths)} pictures of {h}×{w} pixels"
                raise DataError(
                    f"{path.parent.parent}: expected pictures that take at most {unpacked_limit(stored):,} bytes, for "
                    f"files of {stored:,}, got {all_}. Pass size= to make them smaller."
                )
            images = np.empty((len(paths), channels, h, w), np.uint8)
        if (h, w) != images.shape[2:]:
            like = f"{images.shape[2]}×{images.shape[3]} pixels like {paths[0]}"
            raise DataError(f"{path}: expected {like}, got {h}×{w}; pass size= to bring all pictures to one size")
        images[i] = pixels.transpose(2, 0, 1)
    assert images is not None  # every class has a picture
    return images


def _read(Image: Any, path: Path, shape: tuple[int, int] | None, channels: int) -> NDArray[np.uint8]:
    picture = open_picture(path, channels)
    if shape is not None and picture.size != (shape[1], shape[0]):
        picture = picture.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
    return np.asarray(picture, np.uint8).reshape(picture.height, picture.width, channels)


def open_picture(path: Path, channels: int) -> Any:
    """A picture of Pillow, gray or in color, wholly read."""
    Image = needed("PIL.Image", "data", "reading a folder of pictures", package="pillow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as picture:
                if 3 * picture.width * picture.height > (most := unpacked_limit(path.stat().st_size)):
                    claimed, cure = f"{picture.width}×{picture.height}", "If that is right, make it smaller"
                    raise DataError(
                        f"{path}: expected at most {most // 3:,} pixels in a file of its size, got {claimed}. {cure}."
                    )
                if picture.mode.startswith(DEEP_MODES):  # converting would clip silently
                    raise ValueError(f"more than 8 bits per pixel (mode {picture.mode})")
                return picture.convert("L" if channels == 1 else "RGB")
    except DataError:
        raise
    except Exception as error:  # picture decoders raise nearly anything
        came = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: expected a readable 8-bit picture, got {came}; replace or remove it") from error
