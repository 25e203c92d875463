"""Text for language models: plain or gzipped files, folders, named texts under LAYERLAW_DATA, Hugging Face datasets."""

from __future__ import annotations

import codecs
import difflib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import IO, Any

from layerlaw.data.official import ENVIRONMENT, data_folder, find
from layerlaw.errors import DataError, Demand, demand, needed, whole
from layerlaw.files import as_path, sha256
from layerlaw.packed import BoundedGzip
from layerlaw.plain import check_taken

MOST = 50_000_000  # characters that are taken from a file or a Hugging Face dataset, which may be endless
WIDEST = 4  # bytes of a character
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[^:/]+){0,2}")
# " = Title = " between empty lines; a section is " = = Title = = ", mathematics has no empty lines
ARTICLE = re.compile(r"(?:\A|(?<=\A\n)|(?<=\A \n)|(?<=\n\n)|(?<=\n \n)) ?= (?!=)[^\n]*[^=\s] = ?(?=\n ?(?:\n|\Z))")
BOOK = re.compile(r"^# Title:", re.MULTILINE)  # "# VOLUME II" is a heading within a book
SUFFIXES = (".txt", ".md", ".jsonl")
OTHER_FORMATS = (".json", ".parquet", ".arrow", ".pdf", ".docx", ".epub", ".zip", ".tar", ".csv", ".tsv")
LOOKED_AT = 1 << 16  # bytes in which a binary file shows itself
MARKS = {  # longest first: the mark of UTF-16 begins that of UTF-32
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16"),
}


@dataclass(frozen=True)
class Text:
    """Documents, what they are called, whether there would be more of them, and a sha256 of their content."""

    documents: list[str] = field(repr=False)
    name: str
    cut: bool = False
    checksum: str = field(init=False)

    def __post_init__(self) -> None:
        encoded = (
            document.encode("utf-8", "surrogatepass") for document in self.documents
        )  # JSON may hold half a pair
        object.__setattr__(self, "checksum", sha256(part for document in encoded for part in (document, b"\0")))

    def __str__(self) -> str:
        n, characters = len(self.documents), sum(map(len, self.documents))
        more = "; what comes after them was not read" if self.cut else ""
        return f"{self.name}, {n:,} document{'s' * (n != 1)}, {characters:,} characters{more}"


def text_names() -> tuple[str, ...]:
    """List the texts that `load_text` knows by name.

    >>> text_names()
    ('wikitext-2', 'classic-books')
    """
    return tuple(_NAMED)


def load_text(source: str | os.PathLike[str], *, articles: bool = False, characters: int = MOST) -> Text:
    """Load documents from a file, a folder, a name, or a Hugging Face dataset.

    A plain text file is one document; a .jsonl file has one per line, in the field "text"; both may be gzipped. A folder
    gives one document per .txt file, in the order of their names. A named text is looked for in the folder that the
    environment variable LAYERLAW_DATA names, and nowhere else: `wikitext-2` (validation and test part as one document;
    `articles=True`: an article is a document), `classic-books` (a book is a document). "owner/name",
    "owner/name:config" and "owner/name:config:split" are Hugging Face datasets with a field "text".
    `characters`: reading a file or a dataset stops after so many.
    """
    if not isinstance(source, (str, os.PathLike)) or not str(source).strip():
        raise DataError(f"text: expected the name of a text, a file or a folder, got {source!r}")
    demand(DataError, articles=(articles, Demand("True or False", lambda value: isinstance(value, bool))))
    if articles and source != "wikitext-2":
        raise DataError(f"articles: expected with 'wikitext-2', which has articles, got {os.fspath(source)!r}")
    if isinstance(source, str) and source in _NAMED:
        places, parts, heading = _NAMED[source]
        whole = "".join(read_text(_found(source, places, spellings)) for spellings in parts)
        return Text(_split(whole, heading) if articles or source != "wikitext-2" else [whole], source)
    path = as_path(source, "text.txt")
    if path.is_dir():
        return Text(folder_documents(path), path.resolve().name)
    if path.exists():
        lines = path.name.removesuffix(".gz").endswith(".jsonl")
        if lines:
            return _upto(characters, json_lines(path), path.name)
        _check_characters(characters)
        text = read_text(path, most=characters + 1)
        return Text([text[:characters]], path.name, cut=len(text) > characters)
    if isinstance(source, str) and HUB_NAME.fullmatch(source) and not is_text_name(source) and source[0] != ".":
        return _upto(characters, _dataset(source), source)
    given = os.fspath(source)
    if not isinstance(source, str) or "/" in given or os.sep in given or is_text_name(given):
        raise DataError(f"{given}: expected a text file (.txt, .md, .jsonl, also .gz) or a folder of them, found none")
    near = difflib.get_close_matches(given.lower().replace("_", "-").replace(" ", "-"), text_names(), cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise DataError(
        f"text: expected a file, a folder of .txt files, {' or '.join(text_names())} (looked for under {ENVIRONMENT}, never "
        f"downloaded), or a Hugging Face dataset 'owner/name:config:split', got {given!r}.{hint}"
    )


def _split(text: str, heading: re.Pattern[str]) -> list[str]:
    """Documents from one heading to the next; what stands before the first belongs to nobody."""
    starts = [match.start() for match in heading.finditer(text)]
    return [text[a:b] for a, b in pairwise([*starts, len(text)])] or [text]


_NAMED: dict[str, tuple[tuple[str, ...], list[tuple[str, ...]], re.Pattern[str]]] = {
    "wikitext-2": (  # where it may lie under LAYERLAW_DATA, its parts with their spellings, what begins a document
        ("wikitext-2", "text/wikitext-2"),
        [(f"{part}.txt", f"wiki.{part}.tokens", f"wiki.{part}.raw") for part in ("valid", "test")],
        ARTICLE,
    ),
    "classic-books": (("", "text"), [("classic_books.txt.gz", "classic_books.txt")], BOOK),
}


def _found(name: str, places: tuple[str, ...], spellings: tuple[str, ...]) -> Path:
    path = find(places, spellings)
    if path is not None:
        return path
    where, folder = " or ".join(str(Path(ENVIRONMENT) / place) for place in places), data_folder()
    state = f"none there ({ENVIRONMENT} is {folder})" if folder else f"{ENVIRONMENT} not set"
    cure = f"put the file there and let {ENVIRONMENT} name the folder, or give the path of a file of your own"
    expected = f"expected {' or '.join(spellings)} in {where}, got {state}"
    raise DataError(f"{name}: {expected}. Named texts are not downloaded: {cure}")


def _check_characters(characters: int) -> None:
    demand(DataError, characters=(characters, whole(1, kind=Integral)))


def _upto(characters: int, documents: Iterable[str], name: str) -> Text:
    """Whole documents until so many characters are there."""
    _check_characters(characters)
    taken, left, rest = [], characters, iter(documents)
    while left > 0 and (document := next(rest, None)) is not None:
        taken.append(document)
        left -= len(document)
    return Text(taken, name, cut=next(rest, None) is not None)


def _dataset(source: str) -> Iterable[str]:
    """The field "text" of a Hugging Face dataset, streamed."""
    why = f"'{source}' is no file or folder here; reading it as a Hugging Face dataset"
    datasets = needed("datasets", "datasets", why)
    name, config, split = (*source.split(":"), None, None)[:3]
    where = f"Hugging Face dataset '{source}'"
    try:
        rows: Any = datasets.load_dataset(name, config, split=split or "train", streaming=True)
        for number, row in enumerate(rows):
            if not isinstance(row.get("text"), str):
                raise DataError(f"{where}, row {number}: expected a field 'text', got the fields {', '.join(row)}")
            if row["text"].strip():
                yield row["text"]
    except DataError:
        raise
    except Exception as error:  # the package raises its own, those of the network, and those of every file format
        offline = [k for k in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE") if os.environ.get(k, "0") not in ("", "0")]
        hint = f"{offline[0]} is set, so nothing is downloaded" if offline else "is the name right, is there a network?"
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        cure = f"{hint}; a file or a folder of text needs none"
        raise DataError(f"{where}: expected rows with a field 'text', got {got} ({cure})") from error


def is_text_name(name: str) -> bool:
    """Whether a name looks like that of a text file.

    >>> is_text_name("corpus/part.jsonl.gz"), is_text_name("owner/corpus")
    (True, False)
    """
    return name.removesuffix(".gz").endswith(SUFFIXES)


def read_text(path: Path, *, most: int | None = None) -> str:
    """The content of a text file, or its first `most` characters; a byte-order mark of UTF-8 is dropped."""
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind in OTHER_FORMATS:
        expected = "plain text (.txt, .md) or JSON lines (.jsonl) with a field 'text'"
        raise DataError(f"{path}: expected {expected}, got a {kind} file; convert it first")
    with _opened(path) as file:
        content = file.read(-1 if most is None else WIDEST * most + len(codecs.BOM_UTF8))
        whole = most is None or not file.read(1)
    _refuse_binary(content[:LOOKED_AT], path)
    try:  # the last character of what was read may be half of one
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(content, final=whole)
    except UnicodeDecodeError as error:
        # The codec drops a mark of three bytes before it counts.
        at = error.start + len(codecs.BOM_UTF8) * content.startswith(codecs.BOM_UTF8)
        line = content.count(b"\n", 0, at) + 1
        got = f"the byte 0x{content[at]:02x} at position {at} (line {line})"
        cure = f"save the file as UTF-8 (from Latin-1: iconv -f latin1 -t utf-8 {path.name})"
        raise DataError(f"{path}: expected UTF-8, got {got}, which is none; {cure}") from None
    text = text.replace("\r\n", "\n")[:most]
    if not text.strip():
        raise DataError(f"{path}: expected text, got {'an empty file' if not content else 'nothing but white space'}")
    return text


def json_lines(path: Path) -> Iterator[str]:
    """The field "text" of every line of JSON; lines and documents without content are skipped."""
    return (row["text"] for _, row in json_rows(path))


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every line of JSON with some "text" in it, and its number."""
    found, number = False, 0
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                _refuse_binary(line[:LOOKED_AT], path)
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                check_taken(line, path.stat().st_size)
                row = json.loads(line)
            except DataError as error:
                raise DataError(f"{path}, line {number}: {error}") from None
            except UnicodeDecodeError as error:
                got = f"the byte 0x{line[error.start]:02x} at position {error.start} of the line"
                raise DataError(f"{path}, line {number}: expected UTF-8, got {got}; save the file as UTF-8") from None
            except (ValueError, RecursionError) as error:
                got = f"{line[:40].decode('utf-8', 'replace').strip()!r}{'…' * (len(line) > 40)} ({error})"
                expected = 'one JSON object per line, {"text": "…"}'
                raise DataError(f"{path}, line {number}: expected {expected}, got {got}") from None
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                got = f"the fields {', '.join(map(str, row))}" if isinstance(row, dict) else type(row).__name__
                if isinstance(row, dict) and "text" in row:
                    got = f"{type(row['text']).__name__} in it"
                raise DataError(f"{path}, line {number}: expected a string in the field 'text', got {got}")
            if row["text"].strip():
                found = True
                yield number, row
    if not found:
        got = "no text in any line" if number else "an empty file"
        raise DataError(f"{path}: expected lines of JSON with a 'text', got {got}")


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
    with _opened(path) as file:
        return path.stat().st_size < LOOKED_AT and not file.read().removeprefix(codecs.BOM_UTF8).strip()


def _refuse_binary(content: bytes, path: Path) -> None:
    mark = next((name for mark, name in MARKS.items() if content.startswith(mark)), None)
    if mark is not None:
        cure = f"save the file as UTF-8 (iconv -f {mark.lower()} -t utf-8 {path.name})"
        raise DataError(f"{path}: expected UTF-8, got {mark} (by its byte-order mark at position 0); {cure}")
    if content.startswith(b"\x1f\x8b"):
        raise DataError(f"{path}: expected text, got gzipped content; call the file {path.name}.gz")
    at = content.find(b"\0")
    if at >= 0:
        raise DataError(f"{path}: expected text, got a binary file (a zero byte at position {at})")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, unpacked where it is gzipped; whatever fails while it is open is said of it."""
    try:
        with BoundedGzip(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        if reason := getattr(error, "strerror", None):
            raise DataError(f"{path}: expected a file that can be read ({reason})") from None
        cut = "it may be cut off: copy it again"
        raise DataError(f"{path}: expected a whole, readable file, got: {error}; {cut}") from None
