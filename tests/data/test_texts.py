"""Texts: files, folders, names, Hugging Face datasets, and every way they can be wrong."""

import gzip
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layerlaw.data import load_text, text_names
from layerlaw.errors import DataError, MissingExtraError

WIKI = (
    " \n = First article = \n \n Words of the first . \n \n = = A section = = \n \n More words , x = y . \n a = b = \n"
)
SECOND = " \n = Second = \n \n Its words . \n"
BOOKS = "# Title: One\n\n## Author: A\n\ntext\n\n# VOLUME II\n\nmore\n\n# Title: Two\n\ntext of two\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    return tmp_path


def lines(*rows: Any) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def test_a_text_file_is_one_document_also_gzipped_and_with_a_mark(tmp_path: Path) -> None:
    content = "Zwölf Boxkämpfer\nzweite Zeile\n"
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    (tmp_path / "b.md").write_bytes(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "no_suffix").write_text(content, encoding="utf-8")
    loaded = [load_text(tmp_path / name) for name in ("a.txt", "b.md", "c.txt.gz", "no_suffix")]
    assert [text.documents for text in loaded] == [[content]] * 4
    assert len({text.checksum for text in loaded}) == 1
    assert loaded[0].name == "a.txt"
    assert str(loaded[0]) == "a.txt, 1 document, 30 characters"


def test_the_checksum_knows_where_documents_end(tmp_path: Path) -> None:
    for name, rows in (("a", ("ab", "c")), ("b", ("a", "bc"))):
        (tmp_path / f"{name}.jsonl").write_bytes(lines(*({"text": row} for row in rows)))
    assert load_text(tmp_path / "a.jsonl").checksum != load_text(tmp_path / "b.jsonl").checksum


def test_json_lines_give_one_document_each(tmp_path: Path) -> None:
    content = lines({"text": "eins", "id": 1}, {"text": "  "}) + b"\n\n" + lines({"text": "zwei"}) + b"\n"
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + content)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    assert load_text(tmp_path / "a.jsonl").documents == ["eins", "zwei"]
    assert load_text(tmp_path / "a.jsonl.gz").documents == ["eins", "zwei"]
    begun = load_text(tmp_path / "a.jsonl", characters=3)
    assert begun.documents == ["eins"]
    assert str(begun) == "a.jsonl, 1 document, 4 characters; what comes after them was not read"


def test_a_folder_gives_its_files_in_order_and_skips_empty_ones(tmp_path: Path) -> None:
    for name, content in (("b.txt", "two"), ("a.txt", "one"), ("c.txt", " \n"), ("notes.csv", "x")):
        (tmp_path / name).write_text(content)
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"four"))
    assert load_text(tmp_path).documents == ["one", "two", "four"]
    assert load_text(str(tmp_path)).name == tmp_path.name


@pytest.mark.parametrize("place", ["wikitext-2", "text/wikitext-2"])
@pytest.mark.parametrize("spelling", ["{}.txt", "wiki.{}.tokens"])
def test_wikitext_is_validation_and_test_as_one_document_or_its_articles(home: Path, place: str, spelling: str) -> None:
    (home / place).mkdir(parents=True)
    (home / place / spelling.format("valid")).write_text(WIKI)
    (home / place / spelling.format("test")).write_text(SECOND)
    assert load_text("wikitext-2").documents == [WIKI + SECOND]
    first, second = load_text("wikitext-2", articles=True).documents
    assert first.startswith(" = First article = \n")
    assert "a = b =" in first
    assert second == SECOND.removeprefix(" \n")


@pytest.mark.parametrize("place", [".", "text"])
def test_a_classic_book_is_a_document(home: Path, place: str) -> None:
    (home / place).mkdir(exist_ok=True)
    (home / place / "classic_books.txt.gz").write_bytes(gzip.compress(BOOKS.encode()))
    one, two = load_text("classic-books").documents
    assert one.startswith("# Title: One")
    assert "# VOLUME II" in one
    assert two == "# Title: Two\n\ntext of two\n"


@pytest.mark.shared
def test_the_real_texts_have_as_many_articles_and_books_as_is_known(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERLAW_DATA", str(shared))
    assert len(load_text("wikitext-2", articles=True).documents) == 120
    assert len(load_text("wikitext-2").documents) == 1
    assert len(load_text("classic-books").documents) == 41


def test_named_texts_say_where_they_are_looked_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DataError, match=r"valid\.txt or .* in LAYERLAW_DATA/wikitext-2 or .*none there.*not downloaded"
    ):
        load_text("wikitext-2")
    monkeypatch.delenv("LAYERLAW_DATA")
    with pytest.raises(DataError, match=r"classic_books\.txt\.gz or .* in LAYERLAW_DATA or .*LAYERLAW_DATA not set"):
        load_text("classic-books")


BAD = {
    "empty.txt": (b"", "got an empty file"),
    "blank.txt": (b" \n\t\n", "nothing but white space"),
    "binary.txt": (b"abc\0\1\2", "a binary file (a zero byte at position 3)"),
    "latin.txt": ("erste\nzw\xf6lf".encode("latin-1"), "the byte 0xf6 at position 8 (line 2)"),
    "marked.txt": (b"\xef\xbb\xbfab\xff", "the byte 0xff at position 5 (line 1)"),
    "wide.txt": ("text".encode("utf-16"), "got UTF-16"),
    "packed.txt": (gzip.compress(b"text"), "call the file packed.txt.gz"),
    "cut.txt.gz": (gzip.compress(os.urandom(5000))[:1000], "it may be cut off"),
    "plain.txt.gz": (b"no gzip", "expected a whole, readable file"),
    "table.csv": (b"a,b", "got a .csv file; convert it first"),
    "one.json": (b"{}", "got a .json file"),
    "nothing.jsonl": (b"", "got an empty file"),
    "blank.jsonl": (b'{"text": ""}\n', "no text in any line"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2: expected one JSON object per line"),
    "fields.jsonl": (b'{"text": "a"}\n\n{"body": "b", "id": 3}', "line 3: expected a string in the field 'text', got the "
                     "fields body, id"),
    "number.jsonl": (b'{"text": 3}', "line 1: expected a string in the field 'text', got int in it"),
    "list.jsonl": (b"[1]", "line 1: expected a string in the field 'text', got list"),
    "latin.jsonl": (b'{"text": "\xf6"}', "line 1: expected UTF-8, got the byte 0xf6 at position 10"),
    "cut.jsonl.gz": (gzip.compress(b'{"text": "a"}\n' + os.urandom(5000))[:200], "cut.jsonl.gz"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_answered(tmp_path: Path, name: str) -> None:
    content, words = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_text(tmp_path / name)
    assert words in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_a_folder_without_texts_tells_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file at all"):
        load_text(tmp_path)
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(DataError, match=r"expected \.txt files in this folder, got a\.csv"):
        load_text(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError, match=r"got 1 empty \.txt file$"):
        load_text(tmp_path)


@pytest.mark.parametrize("source", ["nothing.txt", "./corpus", "a/b/c", "no/where.jsonl.gz", Path("corpus")])
def test_a_missing_path_is_told(source: Any) -> None:
    with pytest.raises(DataError, match="or a folder of them, found none"):
        load_text(source)


def test_an_unknown_name_lists_the_known_and_the_near() -> None:
    with pytest.raises(
        DataError, match=r"wikitext-2 or classic-books \(looked for under LAYERLAW_DATA.*mean 'wikitext-2'"
    ):
        load_text("wikitext_2")
    with pytest.raises(DataError) as caught:
        load_text("qqq")
    assert "mean" not in str(caught.value)
    assert text_names() == ("wikitext-2", "classic-books")


def test_articles_are_refused_where_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    for source in (tmp_path / "a.txt", "classic-books"):
        with pytest.raises(DataError, match="expected with 'wikitext-2'"):
            load_text(source, articles=True)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    with pytest.raises(DataError, match="characters: expected a whole number of at least 1, got 0"):
        load_text(tmp_path / "a.jsonl", characters=0)


class Hub:
    """Stands for the package `datasets`: endless rows, as a stream has them."""

    def __init__(self, field: str = "text", error: Exception | None = None) -> None:
        self.field, self.error, self.asked = field, error, ()

    def load_dataset(self, name: str, config: str | None, *, split: str, streaming: bool) -> Iterator[dict[str, str]]:
        assert streaming
        self.asked: tuple[Any, ...] = (name, config, split)
        if self.error:
            raise self.error
        return ({self.field: "" if i % 2 else f"row {i}", "url": "…"} for i in range(10**9))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub, module = Hub(), types.ModuleType("datasets")
    module.load_dataset = hub.load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return hub


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("owner/name", ("owner/name", None, "train")),
        ("owner/name:en", ("owner/name", "en", "train")),
        ("owner/name:en:validation", ("owner/name", "en", "validation")),
    ],
)
def test_a_dataset_is_streamed_and_left_when_enough_is_there(hub: Hub, source: str, asked: tuple[Any, ...]) -> None:
    text = load_text(source, characters=12)
    assert text.documents == ["row 0", "row 2", "row 4"]
    assert text.name == source
    assert hub.asked == asked


def test_a_dataset_that_fails_is_answered(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.field = "content"
    with pytest.raises(DataError, match="'owner/name', row 0: expected a field 'text', got the fields content, url"):
        load_text("owner/name")
    hub.error = ConnectionError("no route")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"ConnectionError: no route.*HF_HUB_OFFLINE is set"):
        load_text("owner/name")
    for key in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(DataError, match="is there a network"):
        load_text("owner/name")


def test_without_the_package_a_dataset_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingExtraError, match=r"'owner/name' is no file or folder here.*pip install 'layerlaw\[datasets\]'"
    ):
        load_text("owner/name")


@pytest.mark.parametrize("source", ["", "  ", 5, None])
def test_no_name_is_told(source):
    with pytest.raises(DataError, match="text: expected the name of a text, a file or a folder"):
        load_text(source)


@pytest.mark.parametrize("most", range(1, 12))
def test_a_file_that_is_cut_within_a_letter_of_several_bytes_is_still_text(tmp_path: Path, most: int) -> None:
    text = "\ufeffé𝄞a\r\nß漢𝄞é𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞"
    (tmp_path / "letters.txt").write_bytes(text.encode())
    assert load_text(tmp_path / "letters.txt", characters=most).documents == [text[1:].replace("\r\n", "\n")[:most]]


def test_of_a_long_file_the_beginning_is_read_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three")
    long = load_text(tmp_path / "a.txt", characters=7)
    assert long.documents == ["one two"]
    assert str(long) == "a.txt, 1 document, 7 characters; what comes after them was not read"
    assert not load_text(tmp_path / "a.txt", characters=13).cut


def test_a_line_of_json_that_takes_far_more_memory_than_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a b", "z": [' + b"{}," * 3_000_000 + b"{}]}\n")
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: expected values that take at most"):
        load_text(tmp_path / "a.jsonl")
