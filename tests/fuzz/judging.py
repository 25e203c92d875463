"""The rule for damaged files: an error of ours or the right value, in seconds, in memory that goes with the file."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutating import Mutator, mutated_bytes
from layerlaw.errors import LayerlawError

SECONDS = 20.0  # a file of some kilobytes that takes longer hangs
MEMORY_RATIO, MEMORY_MORE = 4, 300 * 2**20


@dataclass(frozen=True)
class Reader:
    """Something that reads files, sound ones for it, and whether a value is what these files say.

    read: from a folder that holds the files; right(value, files): files by name, one of them damaged; mutate: how.
    """

    name: str
    files: Callable[[], dict[str, bytes]]
    read: Callable[[Path], Any]
    right: Callable[[Any, Mapping[str, bytes]], bool]
    mutate: Mutator = mutated_bytes


class HangError(BaseException):
    """Reading took too long; no `except Exception` keeps it."""


@contextmanager
def limited() -> Iterator[None]:
    """Raises `HangError` in here when the time is over."""

    def late(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


class Peak:
    """How much more memory the process took at most since it was made; 0 where the system does not say."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            self.before: int | None = _status("VmRSS")
        except OSError:
            self.before = None

    @property
    def taken(self) -> int:
        return 0 if self.before is None else max(0, _status("VmHWM") - self.before)


def complaints(reader: Reader, folder: Path, count: int, seed: int) -> Iterator[str]:
    """What is wrong with the reader, found by so many mutants; each can be made again from its name."""
    sound = reader.files()
    _write(folder, sound)
    assert reader.right(reader.read(folder), sound), f"{reader.name}: the sound file is not read"
    for number in range(count):
        name = f"{reader.name}, seed {seed}, mutant {number}"
        random = Random(name)
        file = random.choice(sorted(sound))
        damaged = reader.mutate(sound[file], random)
        (folder / file).write_bytes(damaged)
        said = judged(reader, folder, {**sound, file: damaged})
        (folder / file).write_bytes(sound[file])
        if said:
            yield f"{name} ({file}): {said}"


def judged(reader: Reader, folder: Path, files: Mapping[str, bytes]) -> str:
    """What is wrong with how these files are read; empty where nothing is."""
    peak = Peak()
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = reader.read(folder)
            if not reader.right(value, files):
                return f"wrong value {value!r:.200}"
    except LayerlawError:
        pass
    except HangError:
        return f"hangs: not read after {SECONDS:g} s"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"foreign {type(error).__name__}: {error!s:.200}"
    allowed = MEMORY_RATIO * sum(map(len, files.values())) + MEMORY_MORE
    return f"took {peak.taken / 2**20:.0f} MB" if peak.taken > allowed else ""


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
