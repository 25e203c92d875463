"""Text files: plain or gzipped, UTF-8, one document each or one per line of JSON."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path

from layerlaw.errors import DataError

SUFFIXES = (".txt", ".md", ".jsonl")
OTHER_FORMATS = (".json", ".parquet", ".arrow", ".pdf", ".docx", ".epub", ".zip", ".tar", ".csv", ".tsv")
LOOKED_AT = 1 << 16  # bytes in which a binary file shows itself
MARKS = {  # longest first: the mark of UTF-16 begins that of UTF-32
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def is_text_name(name: str) -> bool:
    """Whether a name looks like that of a text file.

    >>> is_text_name("corpus/part.jsonl.gz"), is_text_name("owner/corpus")
    (True, False)
    """
    return name.removesuffix(".gz").endswith(SUFFIXES)


def read_text(path: Path) -> str:
    """The content of a text file; a byte-order mark of UTF-8 is dropped."""
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind in OTHER_FORMATS:
        raise DataError(
            f"{path}: expected plain text (.txt, .md) or JSON lines (.jsonl) with a field 'text', got a {kind} file; "
            "convert it first"
        )
    content = _bytes(path)
    _refuse_binary(content[:LOOKED_AT], path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec drops a mark of three bytes before it counts.
        at = error.start + len(codecs.BOM_UTF8) * content.startswith(codecs.BOM_UTF8)
        line = content.count(b"\n", 0, at) + 1
        raise DataError(
            f"{path}: expected UTF-8, got the byte 0x{content[at]:02x} at position {at} (line {line}), which is none; save "
            f"the file as UTF-8 (from Latin-1: iconv -f latin1 -t utf-8 {path.name})"
        ) from None
    text = text.replace("\r\n", "\n")
    if not text.strip():
        raise DataError(f"{path}: expected text, got {'an empty file' if not content else 'nothing but white space'}")
    return text


def json_lines(path: Path) -> Iterator[str]:
    """The field "text" of every line of JSON; lines and documents without content are skipped."""
    found = False
    number = 0
    with _opened(path) as file:
        for number, line in enumerate(_lines(file, path), start=1):
            if number == 1:
                _refuse_binary(line[:LOOKED_AT], path)
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: expected UTF-8, got the byte 0x{line[error.start]:02x} at position "
                    f"{error.start} of the line; save the file as UTF-8"
                ) from None
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f'{path}, line {number}: expected one JSON object per line, {{"text": "…"}}, got '
                    f"{_short(line)} ({error})"
                ) from None
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                got = f"the fields {', '.join(map(str, row))}" if isinstance(row, dict) else type(row).__name__
                if isinstance(row, dict) and "text" in row:
                    got = f"{type(row['text']).__name__} in it"
                raise DataError(f"{path}, line {number}: expected a string in the field 'text', got {got}")
            if row["text"].strip():
                found = True
                yield row["text"]
    if not found:
        raise DataError(
            f"{path}: expected lines of JSON with a 'text', got {'an empty file' if not number else 'no text in any line'}"
        )


def folder_documents(folder: Path) -> list[str]:
    """One document per .txt file of a folder, in the order of the names; files without content are skipped."""
    try:
        names = sorted(p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: expected a folder that can be read ({error.strerror})") from None
    texts = [name for name in names if name.removesuffix(".gz").endswith(".txt")]
    if not texts:
        there = f"{', '.join(names[:5])}{', …' * (len(names) > 5)}" if names else "no file at all"
        raise DataError(f"{folder}: expected .txt files in this folder, got {there}")
    documents = [read_text(folder / name) for name in texts if not _is_empty(folder / name)]
    if not documents:
        raise DataError(f"{folder}: expected text, got {len(texts)} empty .txt file{'s' * (len(texts) > 1)}")
    return documents


def _is_empty(path: Path) -> bool:
    """Whether nothing but white space is in a small file."""
    return path.stat().st_size < LOOKED_AT and not _bytes(path).removeprefix(codecs.BOM_UTF8).strip()


def _refuse_binary(content: bytes, path: Path) -> None:
    mark = next((name for mark, name in MARKS.items() if content.startswith(mark)), None)
    if mark is not None:
        raise DataError(
            f"{path}: expected UTF-8, got {mark} (by its byte-order mark at position 0); save the file as UTF-8 "
            f"(iconv -f {mark.lower()} -t utf-8 {path.name})"
        )
    if content.startswith(b"\x1f\x8b"):
        raise DataError(f"{path}: expected text, got gzipped content; call the file {path.name}.gz")
    at = content.find(b"\0")
    if at >= 0:
        raise DataError(f"{path}: expected text, got a binary file (a zero byte at position {at})")


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    try:
        return gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: expected a file that can be read ({error.strerror})") from None


def _bytes(path: Path) -> bytes:
    with _opened(path) as file:
        try:
            return file.read()
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(path, error) from None


def _lines(file: Iterable[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: expected a whole, readable file, got: {error}; it may be cut off: copy it again")


def _short(line: bytes) -> str:
    text = line[:40].decode("utf-8", "replace").strip()
    return f"{text!r}{'…' * (len(line) > 40)}"
