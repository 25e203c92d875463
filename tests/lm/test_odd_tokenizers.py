"""Tokenizers of strangers: whatever is wrong with them is an error of ours, before it takes memory."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from layerlaw.errors import DataError  # noqa: E402
from layerlaw.lm.tokenizer import load_tokenizer, tokens_of  # noqa: E402

TEXT = "the cat sat on the mat. " * 20


def saved(folder: Path, **changes: Any) -> Path:
    """A small tokenizer.json with other parts."""
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([TEXT], vocab_size=300)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(made._tokenizer.to_str()) | changes))
    return path


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def test_a_sound_tokenizer_gives_tokens(tmp_path: Path) -> None:
    spaced = {"type": "Sequence", "normalizers": [replacing({"String": " "}, "▁"), {"type": "Prepend", "prepend": "▁"}]}
    for path in (saved(tmp_path), saved(tmp_path, normalizer=spaced)):
        assert len(tokens_of(load_tokenizer(path), TEXT)) > 10


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "((a|b|c|d|e|t|h| |o|s|n|m)+)+Z"}, "behavior": "Isolated",
                           "invert": False}},
        {"model": {"type": "Unigram", "unk_id": None, "vocab": []}, "pre_tokenizer": None, "post_processor": None,
         "decoder": None},
    ],
    ids=["a panic", "an exception"],
)  # fmt: skip
def test_a_tokenizer_that_fails_at_a_text_is_an_error_of_ours(changes: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = load_tokenizer(saved(tmp_path, **changes))
    with pytest.raises(DataError, match="expected one that turns a text into tokens"):
        tokens_of(tokenizer, "the cat sat on the mat and the dog ate the cat " * 30)


def test_normalizers_that_make_a_text_far_longer_are_refused(tmp_path: Path) -> None:
    longer = [replacing({"String": "a"}, "a" * 10)] * 8
    with pytest.raises(
        DataError, match=r"at most 64 times longer, got Replace normalizers that make it 1e\+08 times longer"
    ):
        load_tokenizer(saved(tmp_path, normalizer={"type": "Sequence", "normalizers": longer}))
    with pytest.raises(DataError, match="at most 64 times longer"):
        load_tokenizer(saved(tmp_path, normalizer=replacing({"Regex": "x*"}, "a" * 100)))


def test_what_is_interrupted_stays_interrupted() -> None:
    def stopped(text: str) -> dict[str, list[int]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokens_of(stopped, "a")
    with pytest.raises(DataError, match="object is not iterable"):
        tokens_of(lambda text: {"input_ids": 1.5}, "a")
