"""A byte-pair vocabulary of one's own, trained on a text (the library tokenizers)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from layerlaw.errors import InputError, MissingExtraError

END, MASK = "<|end|>", "<|mask|>"
LEAST = 300  # 256 bytes, two special tokens, and some pairs


def train_vocabulary(documents: Iterable[str], size: int) -> Any:
    """A byte-level byte-pair tokenizer of transformers' kind with `size` entries; the last one is the mask."""
    if size < LEAST:
        raise InputError(f"size: expected at least {LEAST} entries (all bytes and some pairs), got {size}.")
    try:
        from tokenizers import ByteLevelBPETokenizer
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtraError("tokenizers and transformers", "lm", "training a vocabulary") from error
    pairs = ByteLevelBPETokenizer()
    lines = (line for document in documents for line in document.splitlines(keepends=True))
    pairs.train_from_iterator(lines, vocab_size=size - 1, special_tokens=[END], show_progress=False)
    made: Any = PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, eos_token=END, mask_token=MASK)  # type: ignore[no-untyped-call]
    if len(made) != size:
        raise InputError(f"text: expected enough of it for {size} entries, got {len(made)}. Ask for fewer.")
    return made
