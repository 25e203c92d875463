"""Damage to files: seeded mutators of bytes, of JSON, and of what is inside archives (whose checksums then fit)."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

Mutator = Callable[[bytes, Random], bytes]

DEEP = "nested so deep: "  # stands in JSON for lists or objects inside each other
EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**27, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, -1e308, 1e-320, 2**31, 2**53 + 1, 2**70, 10**300, 10**450, "", "0.5", "x",
    "x" * 10_000, "\x1b[2J", "<script>", "`", "\u202e", "\ud800", [], {}, [[]], [None], {"": None}, "NaN", 17.5, "false",
)  # fmt: skip


def mutated_bytes(content: bytes, random: Random) -> bytes:
    """One to three kinds of damage, anywhere, but more often in the first kilobyte, where headers are."""
    damaged = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(_DAMAGE)(damaged, random)
    return bytes(damaged)


def _at(content: bytearray, random: Random) -> int:
    n = len(content)
    return 0 if n == 0 else random.randrange(min(n, 1024) if random.random() < 0.5 else n)


def _flip(content: bytearray, random: Random) -> None:
    if content:
        content[_at(content, random)] ^= 1 << random.randrange(8)


def _set(content: bytearray, random: Random) -> None:
    if content:
        content[_at(content, random)] = random.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, random.randrange(256)))


def _number(content: bytearray, random: Random) -> None:
    """A whole number that is at the edge of some type, in either byte order."""
    at, width = _at(content, random), random.choice((1, 2, 4, 8))
    number = random.choice(EXTREMES) % 2 ** (8 * width)
    content[at : at + width] = number.to_bytes(width, random.choice(("little", "big")))


def _cut(content: bytearray, random: Random) -> None:
    del content[_at(content, random) :]


def _drop(content: bytearray, random: Random) -> None:
    at = _at(content, random)
    del content[at : at + random.choice((1, 2, 8, 100))]


def _repeat(content: bytearray, random: Random) -> None:
    at, length = _at(content, random), random.choice((1, 4, 64, 500))
    content[at:at] = content[at : at + length] * random.choice((1, 1, 3))


def _insert(content: bytearray, random: Random) -> None:
    at = _at(content, random)
    content[at:at] = random.randbytes(random.choice((1, 2, 8, 64)))


def _fill(content: bytearray, random: Random) -> None:
    at, length = _at(content, random), random.choice((4, 16, 200))
    content[at : at + length] = bytes([random.choice((0, 0xFF))]) * length


def _move(content: bytearray, random: Random) -> None:
    source, at, length = _at(content, random), _at(content, random), random.choice((4, 32, 300))
    content[at : at + length] = content[source : source + length]


_DAMAGE = (_flip, _flip, _set, _set, _number, _number, _cut, _drop, _repeat, _insert, _fill, _move)


def mutated_json(content: bytes, random: Random) -> bytes:
    """A value replaced, removed, doubled, renamed or nested; a quarter of the time bytes of the text."""
    if random.random() < 0.25:
        return mutated_bytes(content, random)
    data = json.loads(content)
    for _ in range(random.choice((1, 1, 2))):
        _change_somewhere(data, random)
    text = re.sub(f'"{DEEP}([0-9]+)"', _nested, json.dumps(data))
    if random.random() < 0.1:  # a key twice
        key = random.choice(list(data)) if isinstance(data, dict) and data else "x"
        text = text[:-1] + f", {json.dumps(key)}: {json.dumps(random.choice(ODD[:20]))}}}"
    if random.random() < 0.05:
        text = text.replace("0.", random.choice(("NaN", "Infinity", "-Infinity", "00.", "1e999")) + " ", 1)
    return text.encode("utf-8", "surrogatepass")


def _nested(found: re.Match[str]) -> str:
    depth = int(found[1])
    return "[" * depth + "0" + "]" * depth if depth % 2 else '{"x": ' * depth + "0" + "}" * depth


def _change_somewhere(data: Any, random: Random) -> None:
    inside = data
    while True:
        keys: list[Any] = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            return
        key = random.choice(keys)
        deeper = inside[key]
        if not isinstance(deeper, (dict, list)) or not deeper or random.random() < 0.15:
            break
        inside = deeper
    how = random.random()
    if how < 0.6:
        inside[key] = deepcopy(random.choice(ODD))  # else a later change would be one of them all, or of itself
    elif how < 0.7:
        inside.pop(key)
    elif how < 0.8 and isinstance(inside, dict):
        inside[random.choice(("", "x", "residual_<b>", "residual_[/zz]", "version", "name", "\x1b"))] = inside.pop(key)
    elif how < 0.9:
        inside[key] = [inside[key]] * random.choice((0, 2, 3))
    else:
        inside[key] = f"{DEEP}{random.choice((1, 5, 45, 60, 500, 3000, 100_000))}"


def mutated_zip(content: bytes, random: Random) -> bytes:
    """Half of the time one member of the archive, written anew with a checksum that fits; else its bytes."""
    if random.random() < 0.5:
        return mutated_bytes(content, random)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        entries = old.infolist()
        chosen = random.choice(entries)
        for entry in entries:
            inside = old.read(entry)
            if entry is chosen and random.random() < 0.05:
                continue  # left out
            named = entry.filename if entry is not chosen or random.random() > 0.03 else "../" + entry.filename
            new.writestr(named, mutated_bytes(inside, random) if entry is chosen else inside)
    return out.getvalue()


def mutated_gzip(content: bytes, random: Random) -> bytes:
    """Half of the time what is inside, packed anew; else the bytes of the file; now and then very much of nothing."""
    if random.random() < 0.5:
        return mutated_bytes(content, random)
    inside = mutated_bytes(gzip.decompress(content), random)
    if random.random() < 0.05:
        inside += bytes(random.choice((10**6, 10**8)))
    return gzip.compress(inside, 1, mtime=0)
