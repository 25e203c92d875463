"""What is refused before or after a pass, and why."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, get_args

from torch import Tensor

from layerlaw.errors import InputError
from layerlaw.lm.pieces import Pieces
from layerlaw.lm.stream import Normalize
from layerlaw.lm.tasks import TaskName


def check_options(
    *,
    normalize: str,
    task: str | None,
    targets: Any,
    words: Any,
    bos: Any,
    null: Any,
    batch_size: int,
    classes: int,
    memory_gib: Any,
    blocks: Any,
    **whole: Any,
) -> None:
    """Words and numbers that have a fixed range."""
    if normalize not in get_args(Normalize):
        raise InputError(f"normalize: expected one of {', '.join(get_args(Normalize))}, got {normalize!r}.")
    if task is not None and task not in get_args(TaskName):
        raise InputError(f"task: expected one of {', '.join(get_args(TaskName))}, got {task!r}.")
    if not isinstance(targets, (str, Sequence)):
        raise InputError(f"targets: expected names, got {targets!r}.")
    for name, value in {**whole, "batch_size": batch_size, "classes": classes}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise InputError(f"{name}: expected a whole number, got {value!r}.")
    if isinstance(memory_gib, bool) or not isinstance(memory_gib, Real):
        raise InputError(f"memory_gib: expected a number of GiB, got {memory_gib!r}.")
    if not isinstance(words, Sequence):
        raise InputError(f"words: expected a list of words or token ids, got {words!r}.")
    if blocks is not None and not isinstance(blocks, Sequence):
        raise InputError(f"blocks: expected names of modules, got {blocks!r}.")
    if batch_size < 1:
        raise InputError(f"batch_size: expected at least 1 piece, got {batch_size}.")
    if classes < 0 or classes == 1:
        raise InputError(f"classes: expected 0 (none) or at least 2 frequent tokens, got {classes}.")
    if isinstance(words, str):
        raise InputError(f"words: expected a list of words, got the string {words!r}: words=[{words!r}].")
    if not isinstance(null, bool):
        raise InputError(f"null: expected True or False, got {null!r}.")
    if bos not in (None, True, False):
        raise InputError(f"bos: expected True, False or None (as the tokenizer does), got {bos!r}.")


def check_task(task: str, two_stacks: bool) -> None:
    """Spans are for encoder-decoders, and they for spans."""
    if task == "span" and not two_stacks:
        raise InputError("task 'span': expected an encoder-decoder, got a model with one stack of blocks. Use 'next'.")
    if task != "span" and two_stacks:
        raise InputError(
            f"task {task!r}: expected 'span' for an encoder-decoder, whose decoder tells what was cut out."
        )


def check_ids(pieces: Pieces, vocabulary: int, tokenizer: Any, mask_id: int | None = None) -> None:
    """Token ids must be rows of the model's embedding."""
    if mask_id is not None and not 0 <= mask_id < vocabulary:
        raise InputError(f"mask_id: expected a token id 0 … {vocabulary - 1}, got {mask_id}.")
    low = min(int(piece.min()) for piece in pieces.ids)
    high = max(int(piece.max()) for piece in pieces.ids)
    if low >= 0 and high < vocabulary:
        return
    what = "token ids that do"
    if tokenizer is not None:
        size = f" ({len(tokenizer):,} entries)" if hasattr(tokenizer, "__len__") else ""
        what = f"a tokenizer{size} that does"
    wrong = low if low < 0 else high
    raise InputError(
        f"text: expected token ids 0 … {vocabulary - 1}, as the model has embeddings, got {wrong}: {what} not belong "
        "to this model."
    )


def check_enough(counts: Tensor, width: int, task: str, *, tokens: int | None, length: int) -> None:
    """A regression on d features with n ≤ d+1 rows explains everything and says nothing; `counts`: rows of every group."""
    n = int(counts.sum())
    least = int((counts.sum() - counts).min()) if len(counts) > 1 else n
    if n == 0 and task == "next":
        raise InputError(
            f"length: expected pieces in which a token has all the neighbors that are asked for, got none in pieces of "
            f"{length}. Use longer ones."
        )
    if n <= width + 1:
        share = " (about 15 % of the tokens are masked)" if task != "next" else ""
        cure = "Pass a longer text" if tokens is None else f"Use more than tokens={tokens}"
        raise InputError(
            f"text: expected more predicted tokens than features, got {n} for {width}{share}. {cure}; 20 per feature are "
            "the least for numbers to trust, 100 are good."
        )
    if least <= width + 1:
        raise InputError(
            f"groups: leaving one group out leaves {least} tokens for {width} features. Pass a longer text, or groups=1 (no "
            "held-out values)."
        )
