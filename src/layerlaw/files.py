"""Files on disk: written whole or not at all, read with an answer to whatever is wrong with them."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from layerlaw.errors import DataError, InputError, shown
from layerlaw.plain import LARGEST_FILE, check_plain, json_words, parse

Made = TypeVar("Made")
OLD_SPELLINGS = {"colour": "color"}  # of files written by earlier versions
LONGEST_NAME, LONGEST_PATH = 255, 4000  # bytes of the name of a file, and of the folders before it too


def as_path(path: object, such_as: str = "record.json") -> Path:
    """A path, from what a user gave for one: `~` stands for a home folder, and no name is one that no disk can hold."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise DataError(f"expected a path such as '{such_as}', got {shown(path)}.")
    expected = f"{shown(text)}: expected the path of a file or a folder"
    try:
        encoded = os.fsencode(text)
        found = Path(text) if os.path.lexists(text) else Path(text).expanduser()
    except ValueError:  # a zero byte, half of a surrogate pair
        raise DataError(f"{expected}, got characters that no name can have.") from None
    except RuntimeError:
        raise DataError(f"{expected}, got the home of a user whom this machine does not know.") from None
    except OSError as error:
        raise DataError(f"{expected} ({error.strerror}).") from None
    if b"\0" in encoded:
        raise DataError(f"{expected}, got characters that no name can have.")
    if len(encoded) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in encoded.split(os.fsencode(os.sep))):
        raise DataError(f"{text[:40]}…: expected a shorter name for a file.")
    try:
        found.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DataError(f"{expected}, got a link that leads back to itself. Remove the link.") from None
    return found


def check_readable(path: Path, what: str) -> None:
    """Raise where a device or a pipe is, which may never end, or wait forever for a writer; files and folders pass."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"{path}: expected {what}, got a device or a pipe.")


def check_place(path: Path) -> None:
    """Whether a file may be written there; before the work, not after it."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise DataError(f"{path.name[:40]}…: expected a shorter name for a file.")
    folder = path.resolve().parent
    if path.exists() and not path.is_file():
        got = "a folder" if path.is_dir() else "a device or a pipe"
        raise DataError(f"{path}: expected the name of a file to write, got {got}.")
    if not folder.exists():
        raise DataError(f"{path}: expected the folder {path.parent} to exist. Create it first.")
    if not folder.is_dir():
        raise DataError(f"{path}: expected {path.parent} to be a folder, got a file.")
    if not os.access(folder, os.W_OK):
        raise DataError(f"{path}: expected a folder that can be written to, got {path.parent}, which cannot.")


def made_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, created with its parents where it is missing."""
    folder = as_path(path, "results")
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: expected a folder, got a file. Name a folder, or one that is to be made.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: expected a folder that can be made or used ({error.strerror}).") from None
    return folder


@contextmanager
def folder_for(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The folder, made where it is missing; where the work fails before anything is in it, it is taken away again."""
    folder = as_path(path, "results")
    new = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
    try:
        yield made_folder(folder)
    except BaseException:
        with suppress(OSError):  # there is something in it
            for one in new:
                one.rmdir()
        raise


def replace_whole(path: str | os.PathLike[str], write: Callable[[Path], object], *, wanted: int | None = None) -> Path:
    """Let `write` fill a file in a folder beside the path, then rename it into place: nobody ever sees half of it.

    What was there stays until then, also where the disk is full; `wanted` is how many bytes come, where that is known.
    What writers left behind that were killed in the middle is removed.
    """
    check_place(path := as_path(path))
    place = path.resolve()  # a link goes on to point where it did
    with disk_told(path, wanted), _workplace(place.parent) as own:
        part = own / place.name
        try:
            write(part)
            with part.open("r+b") as file:
                os.fsync(file.fileno())  # a disk may say that it is full only now
            os.chmod(part, 0o644)
            os.replace(part, place)
        except BaseException as error:
            if _is_full(error):
                size = sum(one.stat().st_size for one in own.iterdir())
                raise full_disk(path, wanted, written=size) from None
            raise
    return path


HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
PART = f".layerlaw.{HOST}.", ".part"  # how the names of folders begin and end in which something is being written
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NEW = 60.0  # seconds in which a folder without content may be one that was just made
FOREIGN = 86_400.0  # seconds for which folders of other machines are left alone, whose locks may not be seen here


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """A folder inside of another to write in, held while this process lives: what nobody holds is of a dead writer.

    Not the file is held: libraries may write beside it and rename (safetensors does), which leaves another file there.
    """
    clear_parts(folder)
    own = Path(tempfile.mkdtemp(dir=folder, prefix=PART[0], suffix=PART[1]))
    try:
        with _held(own):
            yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


@contextmanager
def _held(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Whether nobody else holds a folder, which this process then does in here, where the system has such locks."""
    with ExitStack() as stack:
        free = False
        with suppress(ImportError, OSError):  # another one's; gone; or a system, or a file system, without such locks
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            free = True
        yield free


def clear_parts(folder: Path) -> None:
    """Remove what writers left in a folder that were killed in the middle; those that live hold theirs."""
    with suppress(OSError):
        left = [Path(entry) for entry in os.scandir(folder) if entry.name.startswith(".layerlaw.")]
        for one in left:
            if one.name.endswith(PART[1]) and one.is_dir():
                with _held(one, wait=False) as free, suppress(OSError):
                    least = (0.0 if os.listdir(one) else NEW) if one.name.startswith(PART[0]) else FOREIGN
                    if free and time.time() - one.stat().st_mtime >= least:
                        shutil.rmtree(one, ignore_errors=True)


def _is_full(error: BaseException) -> bool:
    """Whether a disk was full; libraries in other languages say it in words."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    return isinstance(error, Exception) and any(os.strerror(number) in str(error) for number in FULL)


def full_disk(path: object, wanted: int | None = None, *, written: int = 0) -> DataError:
    """That a file could not be written for want of space, how much was wanted, and how much there is."""
    place = as_path(path).absolute()  # a folder may be a disk of its own
    folder = next((one for one in (place, *place.parents) if one.is_dir()), Path("/"))
    more = f"more than {_bytes(written)}" if written else "some bytes"
    free = None
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
        more = f"{_bytes(wanted) if wanted else more} were wanted, {_bytes(free)} are free"
    limit = _largest_file()
    if limit is not None and (free is None or free > limit):
        got = f"got a limit of {_bytes(limit)} for the size of files: {more}"
        cure = "Raise it (ulimit -f); what was there before is untouched"
        return DataError(f"{path}: expected space on the disk for this file, {got}. {cure}.")
    cure = "Free some, or choose another place; what was there before is untouched"
    return DataError(f"{path}: expected space on the disk for this file, got none: {more}. {cure}.")


def _largest_file() -> int | None:
    """How large files of this process may become, where a limit is set; disks with room refuse larger ones."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return None
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if unit != "bytes" else f"{count:.0f} bytes"


@contextmanager
def disk_told(path: object, wanted: int | None = None) -> Iterator[None]:
    """Whatever the disk refuses in here is an error of ours: that it is full, read-only, or not ours to write to."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        if _is_full(error):
            raise full_disk(path, wanted) from None
        raise DataError(f"{path}: expected a place that can be written to ({error.strerror or error}).") from None
    except Exception as error:
        if _is_full(error):
            raise full_disk(path, wanted) from None
        raise


def check_room(folder: str | os.PathLike[str], wanted: int = 1 << 16, *, of: Path | None = None) -> None:
    """Whether a folder, or where it is missing the one that it is to be made in, takes so many bytes: it is tried.

    Errors name the file that is to be written there, where that is known (`of`).
    """
    place = Path(folder).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise DataError(f"{folder}: expected a folder, got a file ({place}).")
    with disk_told(of or folder, wanted), _workplace(place) as own, (own / "tried").open("wb") as file:
        file.write(bytes(wanted))
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: str | os.PathLike[str], content: str | bytes | memoryview) -> Path:
    """Write a text file or bytes, whole or not at all."""
    encoded = content.encode("utf-8") if isinstance(content, str) else content
    return replace_whole(path, lambda part: part.write_bytes(encoded), wanted=len(encoded))


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write plain data as JSON, whole or not at all; what is not finite becomes null."""
    return write_whole(path, json.dumps(json_safe(data), ensure_ascii=False, allow_nan=False))


class Saved(ABC):
    """What is kept as one JSON file: a `_what` (record, outcome) of a `_version`; if it is lost, `_again` is the advice."""

    _what: ClassVar[str]
    _version: ClassVar[int]
    _again: ClassVar[str]

    @classmethod
    @abstractmethod
    def _check(cls, data: dict[str, Any]) -> None:
        """Raise unless every field of plain data is as it should be."""

    @classmethod
    @abstractmethod
    def _made(cls, data: dict[str, Any], version: int) -> Self: ...

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of this or an older version."""
        path, what = as_path(path), cls._what
        check_readable(path, f"a layerlaw {what}")
        try:
            with path.open("rb") as file:
                data = parse(file.read(LARGEST_FILE + 1))
        except FileNotFoundError:
            raise DataError(f"{path}: expected a layerlaw {what}, found nothing there.") from None
        except IsADirectoryError:
            cure = f"Name the files in it, as {path.name}/*.json does in a shell"
            raise DataError(f"{path}: expected the file of a layerlaw {what}, got a folder. {cure}.") from None
        except OSError as error:
            raise DataError(f"{path}: expected a layerlaw {what} that can be read ({error.strerror}).") from None
        except DataError as error:
            raise DataError(f"{path}: expected a layerlaw {what} (JSON): {error}.") from None
        except ValueError as error:
            got = f"a file that is no JSON, or ends or breaks early ({error})"
            cure = f"It may be truncated; copy it again or {cls._again}"
            raise DataError(f"{path}: expected a layerlaw {what} (JSON), got {got}. {cure}.") from None
        return cls.from_dict(data, where=str(path))

    @classmethod
    def from_dict(cls, data: Any, *, where: str = "") -> Self:
        """Made from plain data, which are checked whole before; unknown fields are ignored."""
        what, where = cls._what, where or cls._what
        version = check_format(data, what, cls._version, where=where)
        try:
            check_plain(data)
            cls._check(data)
        except DataError as error:
            expected = f"expected a layerlaw {what} of version {version}"
            raise DataError(f"{where}: {expected}, but a field is missing or wrong: {error}.") from None
        try:
            return cls._made(data, version)
        except InputError as error:
            raise DataError(f"{where}: {error}") from None


def check_format(data: Any, what: str, version: int, *, where: str, writer: str = "") -> int:
    """The version of plain data, if they are a layerlaw `what` (record, outcome) of at most this version."""
    if not isinstance(data, dict) or data.get("format") != f"layerlaw {what}":
        came = "another torch file" if writer else "other JSON"
        writer = writer or f"{what.capitalize()}.save"
        raise DataError(f"{where}: expected a layerlaw {what}, got {came}. Was it written by {writer}?")
    found = data.get("version")
    if isinstance(found, int) and not isinstance(found, bool) and 1 <= found <= version:
        return found
    newer = isinstance(found, int) and found > version
    cure = " It was written by a newer layerlaw: pip install --upgrade layerlaw" if newer else ""
    expected = f"expected a layerlaw {what} of version ≤ {version}"
    raise DataError(f"{where}: {expected}, got version {json_words(found)}.{cure}")


def sha256(parts: Iterable[bytes | npt.NDArray[Any]]) -> str:
    """The checksum (hex) of bytes and arrays, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.hexdigest()


def from_plain(cls: type[Made], data: Mapping[str, Any], **parts: Any) -> Made:
    """A dataclass from plain data, fields that it does not know left out; `parts` are already made."""
    known = {f.name for f in fields(cls) if f.init}  # type: ignore[arg-type]  # all of them are dataclasses
    renamed = {OLD_SPELLINGS.get(key, key): value for key, value in data.items()}
    return cls(**{key: value for key, value in renamed.items() if key in known} | parts)


def json_safe(data: Any) -> Any:
    """JSON knows no infinity and no NaN: they become null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(k): json_safe(v) for k, v in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [json_safe(v) for v in data]
    return data
