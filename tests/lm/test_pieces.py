"""Text → pieces: cutting, truncating, packing, BOS, spreading, groups."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from layerlaw import lm
from layerlaw.errors import InputError
from layerlaw.lm.pieces import batches, evenly


def pieces_of(text, tokenizer=None, *, wanted=None, **options):
    """The pieces of a text, cut."""
    return lm.pieces_of(text, tokenizer, **options).cut(wanted=wanted)


class Letters:
    """A tokenizer of one token per letter; `habit`: it puts its BOS itself."""

    bos_token_id, eos_token_id, pad_token_id = 1, 2, 0

    def __init__(self, habit=False):
        self.habit = habit

    def __call__(self, text, add_special_tokens=True, verbose=True):
        ids = [ord(letter) for letter in text]
        return {"input_ids": ([1] if self.habit and add_special_tokens else []) + ids}


def texts(pieces):
    return ["".join(chr(i) if i > 9 else str(i) for i in piece.tolist()) for piece in pieces.ids]


def test_documents_are_cut_truncated_or_packed():
    documents = ["abcdefg", "hij", "k"]
    cut = pieces_of(documents, Letters(), length=3)
    assert texts(cut) == ["abc", "def", "hij"]  # a piece of one token has no next
    assert cut.documents == (0, 0, 1)
    assert texts(pieces_of(documents, Letters(), length=3, documents="truncate")) == ["abc", "hij"]
    packed = pieces_of(documents, Letters(), length=4, documents="pack")
    assert texts(packed) == ["abcd", "efg2", "hij2", "k2"]


def test_a_long_string_is_tokenized_in_parts_without_losing_a_letter():
    text = "a line of words\n" * 40_000
    whole = pieces_of(text, Letters(), length=1000)
    assert "".join(texts(whole)).replace("10", "\n") != ""
    assert whole.tokens == len(text)


def test_of_a_very_long_text_parts_all_over_it_are_tokenized_and_no_more(monkeypatch):
    monkeypatch.setattr("layerlaw.lm.pieces.READ_WHOLE", 30_000)
    monkeypatch.setattr("layerlaw.lm.pieces.SAMPLE_PART", 100)
    text = "".join(f"{i:09d}\n" for i in range(10_000))
    read = []

    class Watched(Letters):
        def __call__(self, part, **options):
            read.append(len(part))
            return super().__call__(part, **options)

    few = pieces_of(text, Watched(), length=20, wanted=50)
    assert 32 * 50 <= few.tokens < 32 * 50 + 100
    assert sum(read) < 32 * 50 + 100
    lines = ["".join(chr(i) for i in piece.tolist()).split("\n")[0] for piece in few.ids]
    starts = [int(line) for line in lines if len(line) == 9]
    assert starts == sorted(starts)
    assert max(b - a for a, b in itertools.pairwise([0, *starts, 10_000])) < 3 * 10_000 / 16  # spread over the text
    assert set(few.documents) == {0}
    assert few.spread(50).tokens == 50
    read.clear()  # where most of it is wanted it is read whole, in one row
    assert pieces_of(text, Watched(), length=20, wanted=3000).tokens == len(text)
    assert pieces_of(text, Watched(), length=20, wanted=50, documents="truncate").tokens == 20


def test_of_several_very_long_texts_each_gives_its_share(monkeypatch):
    monkeypatch.setattr("layerlaw.lm.pieces.READ_WHOLE", 5_000)
    monkeypatch.setattr("layerlaw.lm.pieces.SAMPLE_PART", 100)
    books = [letter * 20_000 for letter in "abcd"]
    few = pieces_of([*books, "short"], Letters(), length=20, wanted=50)
    sizes = {i: sum(len(p) for p, owner in zip(few.ids, few.documents, strict=True) if owner == i) for i in range(5)}
    assert sizes.pop(4) == 5
    assert all(300 <= size <= 700 for size in sizes.values())  # the last one makes up for a short one
    packed = pieces_of([*books, "short"], Letters(), length=20, wanted=50, documents="pack")
    assert packed.tokens >= 32 * 50


def test_bos_by_the_tokenizers_habit_or_as_told():
    assert texts(pieces_of("abcd", Letters(), length=3)) == ["abc"]
    assert texts(pieces_of("abcd", Letters(habit=True), length=3)) == ["1ab", "1cd"]
    assert texts(pieces_of("abcd", Letters(), length=3, bos=True)) == ["1ab", "1cd"]
    assert texts(pieces_of("abcd", Letters(habit=True), length=4, bos=False)) == ["abcd"]
    assert pieces_of("abcd", Letters(), length=3, bos=True).tokens == 4


def test_tokens_are_spread_over_the_text():
    ids = torch.arange(1000).reshape(100, 10)
    chosen = pieces_of(ids, length=10).spread(200)
    assert chosen.tokens == 200
    starts = [int(piece[0]) for piece in chosen.ids]
    assert starts == sorted(starts)
    assert max(b - a for a, b in itertools.pairwise([*starts, 1000])) <= 100  # twice the mean
    assert pieces_of(ids, length=10).spread(25).tokens == 25
    assert pieces_of(ids, length=10).spread(5000).tokens == 1000


@pytest.mark.parametrize("share", [1 / 2, 1 / 4, 0.3, 0.1])
def test_neither_long_documents_nor_one_of_two_sources_are_preferred(share):
    lengths = [5] * 16_000 + [101] * 800 + [40, 64] * 1200
    random.Random(0).shuffle(lengths)
    ids = [torch.full((length,), length) for length in lengths]
    alternating = [torch.full((length,), i % 2) for i, length in enumerate([64, 3] * 2400)]
    for texts_ in (ids, alternating):
        whole = pieces_of(texts_, length=64)
        chosen = whole.spread(round(share * whole.tokens))
        for kind in torch.cat(whole.ids).unique():
            before, after = (float((torch.cat(pieces.ids) == kind).double().mean()) for pieces in (whole, chosen))
            assert after == pytest.approx(before, abs=0.05), int(kind)


def test_of_a_long_list_documents_are_read_all_over_it():
    documents = [chr(65 + i // 10) * 64 for i in range(200)]
    few = pieces_of(documents, Letters(), length=64, wanted=100)
    assert sorted(set(few.documents)) == list(few.documents)
    assert len(few.documents) == 50  # 32 times what is wanted
    assert max(b - a for a, b in itertools.pairwise([*few.documents, 200])) <= 12
    assert sum(i % 2 for i in few.documents) == pytest.approx(25, abs=2)
    assert few.notes == ()
    assert few.spread(200).left_out == "Tokens come from 4 of 200 documents."
    ids = pieces_of(torch.arange(200)[:, None].expand(-1, 64), length=64, wanted=100)
    assert ids.documents == few.documents
    packed = pieces_of(documents, Letters(), length=65, wanted=100, documents="pack")  # an end behind every document
    assert texts(packed)[1] == "A" * 64 + "2"
    assert texts(packed)[-1] == "T" * 64 + "2"


def test_of_a_stream_the_beginning_is_read_and_that_is_told():
    stream = (letter * 64 for letter in "abcdefghijklmnopqrstuvwxyz" * 9)
    pieces = pieces_of(stream, Letters(), length=64, wanted=5)
    assert texts(pieces) == ["a" * 64, "b" * 64, "c" * 64]
    assert pieces.notes == ("Reading stopped after 3 documents with 192 tokens.",)
    assert len(next(stream)) == 64
    whole = pieces_of("abc" * 1000, Letters(), length=100, wanted=10)
    assert whole.tokens == 3000
    assert whole.notes == ()


@pytest.mark.parametrize("n", [1, 2, 6, 7, 64, 357, 1000, 19_944])
def test_every_beginning_of_an_even_order_is_spread(n):
    order = list(evenly(n))
    assert sorted(order) == list(range(n))
    for k in {1, min(2, n), min(5, n), -(-n // 10), -(-n // 2), n}:
        chosen = sorted([*order[:k], n])
        assert max(b - a for a, b in itertools.pairwise(chosen)) <= 3 * n / k


def test_groups_are_runs_of_whole_documents_of_about_equal_size():
    ids = [torch.zeros(length, dtype=torch.long) for length in (50, 50, 10, 10, 10, 30, 30, 10, 100, 100)]
    dealt = pieces_of(ids, length=20).dealt(4)
    owners: dict[int, set[int]] = {}
    sizes = [0] * 4
    for piece, document, group in zip(dealt.ids, dealt.documents, dealt.groups, strict=True):
        owners.setdefault(document, set()).add(group)
        sizes[group] += len(piece)
    assert all(len(groups) == 1 for groups in owners.values())
    assert list(dealt.groups) == sorted(dealt.groups)
    assert min(sizes) > 0
    assert max(sizes) <= 200
    assert dealt.notes == ()


def test_one_document_that_is_nearly_all_of_the_text_is_cut_between_pieces_too():
    dealt = pieces_of([torch.zeros(5000), *torch.zeros(20, 10)], length=100).dealt(4)
    sizes = [sum(len(p) for p, g in zip(dealt.ids, dealt.groups, strict=True) if g == k) for k in range(4)]
    assert max(sizes) < 1.1 * min(sizes)
    assert dealt.notes == (
        "Of 21 documents, one of them 96% of the text, groups are runs of pieces, not whole documents.",
    )


def test_strings_in_an_array_are_documents_and_a_table_is_not():
    for kind in (None, object):
        assert texts(pieces_of(np.array(["abc", "de"], dtype=kind), Letters())) == ["abc", "de"]
    with pytest.raises(InputError, match="got a dict: pass its column"):
        pieces_of({"text": ["abc"]}, Letters())


def test_a_single_document_is_cut_between_pieces_and_that_is_told():
    dealt = pieces_of(torch.zeros(1, 800, dtype=torch.long), length=100).dealt(4)
    assert dealt.groups == (0, 0, 1, 1, 2, 2, 3, 3)
    assert "1 document, groups are runs of pieces" in dealt.notes[0]
    packed = pieces_of(torch.zeros(9, 100, dtype=torch.long), length=100, documents="pack").dealt(4)
    assert packed.notes == ("Documents are packed into one stream: two groups may share a document where they meet.",)
    few = pieces_of(torch.zeros(1, 200, dtype=torch.long), length=100).dealt(4)
    assert few.groups == (0, 1)


@pytest.mark.parametrize("sizes", [[5], [9, 1], [1, 9], [3] * 7, [100, 1, 1, 1], [1, 1, 1, 100]])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_no_group_is_empty(sizes, groups):
    ids = [torch.zeros(2 * size, dtype=torch.long) for size in sizes]
    dealt = pieces_of(ids, length=2000).dealt(groups)
    assert set(dealt.groups) == set(range(min(groups, len(sizes))))


def test_a_batch_is_of_one_group_and_every_piece_comes_once():
    dealt = pieces_of([torch.zeros(5 + i % 7, dtype=torch.long) for i in range(40)], length=50).dealt(3)
    seen = []
    for group, members in batches(dealt, 4):
        assert len(members) <= 4
        assert {dealt.groups[i] for i in members} == {group}
        seen += members
    assert sorted(seen) == list(range(40))


def test_rows_with_a_text_are_documents():
    assert texts(pieces_of([{"text": "abc"}, {"text": "de"}, {"text": "  "}], Letters())) == ["abc", "de"]


@pytest.mark.parametrize(
    ("text", "tokenizer", "options", "message"),
    [
        ("abc", None, {}, "tokenizer: expected one for this text, got none"),
        ("", Letters(), {}, "expected at least 2 tokens in a row, got none"),
        ("a", Letters(), {}, "It is 'a': if that is a file, pass its content"),
        ([], Letters(), {}, "expected at least 2 tokens"),
        (7, Letters(), {}, "expected a string, an iterable of documents, or token ids"),
        ([3.5, "a"], Letters(), {}, "got float as document 0"),
        (b"abc", Letters(), {}, r"got bytes: pass text.decode\(\)"),
        ({"input_ids": [[1, 2]]}, Letters(), {}, "got a dict: pass its 'input_ids'"),
        (Path("a.txt"), Letters(), {}, r"got the name of a file: pass ll.data.load_text\('a.txt'\)"),
        (__file__, Letters(), {}, "got the name of a file"),
        (torch.zeros(3), None, {}, r"expected token ids of shape \(documents, length\)"),
        (torch.zeros(2, 3), None, {}, "as whole numbers"),
        (torch.zeros(2, 3, dtype=torch.long), None, {"bos": True}, "token ids are taken as they are"),
        ("abc", Letters(), {"length": 1}, "length: expected a whole number of at least 2"),
        ("abc", Letters(), {"documents": "split"}, "documents: expected one of cut, truncate, pack"),
        ("abc", "a name", {}, "tokenizer: expected one of transformers, got str"),
    ],
)
def test_bad_text_is_answered(text, tokenizer, options, message):
    with pytest.raises(InputError, match=message):
        pieces_of(text, tokenizer, **options)


@pytest.mark.parametrize("text", ["a b " * 70, "字 " * 90, "a\0b" * 5, "no_such_file.txt" * 3])
def test_a_text_without_lines_is_not_taken_for_a_file(text):
    assert pieces_of(text, Letters()).tokens > 0
