"""Official files: found in the folder LAYERLAW_DATA names, or else downloaded with pooch; checked in both cases."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from layerlaw.errors import DataError, needed
from layerlaw.progress import Progress, choose, silent

ENVIRONMENT = "LAYERLAW_DATA"
AGAIN = "delete the file and fetch it again from its official home"


def data_folder() -> Path | None:
    """Give the folder named by the environment variable LAYERLAW_DATA; None when it is not set."""
    value = os.environ.get(ENVIRONMENT)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        expected = f"{ENVIRONMENT} should name a folder with sub-folders like fashion_mnist/"
        raise DataError(f"{expected}, got {value!r}, which is no folder; correct it, or unset it to download")
    return folder


def find(places: Sequence[str], spellings: Sequence[str]) -> Path | None:
    """Find a file under LAYERLAW_DATA: the first of its spellings in the first of the places that has one."""
    folder = data_folder()
    if folder is None:
        return None
    candidates = (folder / place / spelling for place in places for spelling in spellings)
    return next((path for path in candidates if path.is_file()), None)


def read_bytes(path: Path) -> bytes:
    """Read a whole file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got {error}; check the path and its permissions") from error


def check(content: bytes, digest: str, where: str) -> None:
    """Compare content with a digest written as "md5:…" or "sha1:…".

    >>> check(b"abc", "md5:900150983cd24fb0d6963f7d28e17f72", "abc.txt")
    """
    algorithm, expected = digest.split(":")
    got = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if got != expected:
        raise DataError(f"{where}: expected the official content, {algorithm} {expected}, got {got}; {AGAIN}")


def download(url: str, digest: str, *, cache: str, progress: bool | Progress = True) -> Path:
    """Download a file once into the folder `cache` of the user's cache; one that differs from the digest is not kept."""
    name = url.rsplit("/", 1)[-1]
    pooch = needed("pooch", "data", f"downloading {name}")
    visible = choose(progress) is not silent
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("INFO" if visible else "WARNING")
    how = pooch.HTTPDownloader(progressbar=visible, chunk_size=1 << 16)
    place = pooch.os_cache("layerlaw") / cache
    try:
        return Path(pooch.retrieve(url, known_hash=digest, fname=name, path=place, downloader=how))
    except (OSError, ValueError) as error:  # no connection or no permission; a wrong checksum
        by_hand = f"put the official file into a folder {cache}/ and let {ENVIRONMENT} name the folder above it"
        cure = f"try again, or {by_hand}, or use 'fashion_mnist_sample'"
        raise DataError(f"{name}: expected to download {url} ({digest}), got: {error}; {cure}") from error
    finally:
        logger.setLevel(level)
