"""Tokenizers: loaded, trained, and what a chat template puts before a text; errors of transformers in words of ours."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layerlaw.errors import (
    DataError,
    InputError,
    LayerlawError,
    MissingExtraError,
    check_choice,
    needed,
    without_colors,
)
from layerlaw.files import as_path

Chat = str | Sequence[Mapping[str, str]]
ROLES = ("user", "assistant")
PLACE = "layerlaw-puts-the-text-here"  # nothing that a template would change
LEAST_ENTRIES = 300  # 256 bytes, two special tokens, and some pairs
MOST_GROWTH = 64  # times as long a text may become; those that we know of double it at most
END, MASK = "<|end|>", "<|mask|>"


def pretrained_tokenizer(where: str, *, trust_remote_code: bool, **which: Any) -> Any:
    """From a folder or by a name on Hugging Face."""
    transformers = needed("transformers", "lm", "loading a tokenizer")
    found = transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=trust_remote_code, **which)
    check_growth(found)
    return found


def knows_no_words(tokenizer: Any) -> bool:
    """Whether it has special tokens alone: what transformers makes of a folder without the files of a tokenizer."""
    try:
        return len(tokenizer) <= len(set(tokenizer.all_special_ids))
    except (AttributeError, TypeError, NotImplementedError):  # one of its own kind
        return False


def load_tokenizer(tokenizer: Any, *, trust_remote_code: bool = False) -> Any:
    """A tokenizer from a folder, a name or a tokenizer.json; a loaded one stays (one of `tokenizers` is wrapped)."""
    if type(tokenizer).__module__.partition(".")[0] == "tokenizers":  # the library's own, which knows no special tokens
        transformers = needed("transformers", "lm", "a tokenizer of the package tokenizers")
        return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    if not isinstance(tokenizer, (str, os.PathLike)):
        return tokenizer
    transformers = needed("transformers", "lm", "loading a tokenizer")
    path = as_path(tokenizer, "tokenizer.json")
    if not path.exists() and (path.suffix == ".json" or str(tokenizer).startswith((".", "/", "~"))):
        raise DataError(f"{tokenizer}: expected the folder of a tokenizer or a tokenizer.json, found none.")
    if path.suffix == ".json":
        try:
            found = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
            check_growth(found)
            return found
        except DataError:
            raise
        except Exception as error:  # the Rust side raises plain exceptions
            expected = "expected a tokenizer.json as the package tokenizers writes it"
            raise DataError(f"{tokenizer}: {expected}, got: {error_line(error)}") from None
    with explained(str(tokenizer)):
        return pretrained_tokenizer(str(path) if path.exists() else str(tokenizer), trust_remote_code=trust_remote_code)


def tokens_of(tokenizer: Any, text: str, **how: Any) -> list[int]:
    """The token ids of a text; what a tokenizer makes of its own mistakes is an error of ours."""
    try:
        ids = tokenizer(text, **how)["input_ids"]
        return [int(i) for i in ids]
    except Exception as error:
        said = error_line(error)
    except BaseException as error:  # its Rust side panics so
        if type(error).__name__ != "PanicException":
            raise
        said = error_line(error)
    cure = "Look at its tokenizer.json and tokenizer_config.json, or give another (tokenizer=…)"
    raise DataError(f"tokenizer: expected one that turns a text into tokens, got an error: {said} {cure}.")


def check_growth(tokenizer: Any) -> None:
    """Raise where a tokenizer would make a text longer by a factor before it looks at it: a small file, any memory."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is None:
        return
    try:
        growth = _growth(json.loads(normalizer.__getstate__()))
    except (ValueError, TypeError, AttributeError, RecursionError):  # one written in Python, by whoever loads it
        return
    if growth > MOST_GROWTH:
        expected = f"expected normalizers that make a text at most {MOST_GROWTH} times longer"
        raise DataError(f"tokenizer: {expected}, got Replace normalizers that make it {growth:.2g} times longer.")


def _growth(normalizer: Any) -> float:
    """By how much a normalizer may lengthen a text, at most."""
    if isinstance(normalizer, list):
        return math.prod(map(_growth, normalizer))
    if not isinstance(normalizer, dict):
        return 1.0
    if normalizer.get("type") == "Replace":
        found = normalizer.get("pattern", {}).get("String")
        new = len(str(normalizer.get("content", "")))
        return max(1.0, new / len(found)) if found else 1.0 + new  # a regular expression may fit nothing at all
    return _growth(normalizer.get("normalizers", []))


def chat_front(tokenizer: Any, chat: Chat) -> list[int]:
    """The tokens that a chat template puts before a text in the turn of a role, or before the answer to messages."""
    messages: list[Any] = [{"role": "user", "content": PLACE if chat == "user" else ""}]
    if isinstance(chat, str):
        check_choice("chat", chat, ROLES)
    elif not chat or not all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in chat):
        raise InputError(f"chat: expected 'user', 'assistant' or messages with a role and a content, got {chat!r}.")
    else:
        messages = [dict(message) for message in chat]
    if not getattr(tokenizer, "chat_template", None):
        cure = "Use the tokenizer of a model that was tuned for chats (tokenizer=…), or leave chat out"
        raise InputError(f"chat: expected a tokenizer with a chat template, got one without. {cure}.")
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=chat != "user")
    except Exception as error:  # templates raise what they like
        raise InputError(f"chat: the tokenizer's template does not take these messages: {error_line(error)}") from None
    if chat == "user" and PLACE not in text:
        raise InputError("chat: expected a template that writes what the user says as it is, got another.")
    front = str(text).split(PLACE)[0] if chat == "user" else str(text)
    return tokens_of(tokenizer, front, add_special_tokens=False)


def train_vocabulary(documents: Iterable[str], size: int) -> Any:
    """A byte-level byte-pair tokenizer of transformers' kind with `size` entries; the last one is the mask."""
    if size < LEAST_ENTRIES:
        raise InputError(f"size: expected at least {LEAST_ENTRIES} entries (all bytes and some pairs), got {size}.")
    tokenizers, transformers = (needed(name, "lm", "training a vocabulary") for name in ("tokenizers", "transformers"))
    pairs = tokenizers.ByteLevelBPETokenizer()
    lines = (line for document in documents for line in document.splitlines(keepends=True))
    pairs.train_from_iterator(lines, vocab_size=size - 1, special_tokens=[END], show_progress=False)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, eos_token=END, mask_token=MASK)
    if len(made) != size:
        raise InputError(f"text: expected enough of it for {size} entries, got {len(made)}. Ask for fewer.")
    return made


@contextmanager
def explained(where: str, what: str = "a language model or tokenizer") -> Iterator[None]:
    """Errors of the loader, with what was looked for and what to do."""
    try:
        yield
    except ImportError as error:
        why = f"loading '{where}' ({error_line(error)})"
        raise MissingExtraError("transformers and what it asks for", "lm", why) from error
    except LayerlawError:
        raise
    except Exception as error:  # the Rust side of tokenizers raises plain ones
        if "trust_remote_code" in str(error):
            risk = "which may do on this machine whatever you may do. Where you trust its author"
            cure = f"lm.load({where!r}, trust_remote_code=True) runs it, and the command line never does"
            raise DataError(f"'{where}': it brings Python code of its own (auto_map), {risk}, {cure}.") from None
        hint = "Is the name right, is there a network? A local folder or a GGUF file needs none."
        if Path(where).exists():
            hint = "Is it whole, and is it a model (a folder with a config.json and weights, or a GGUF file)?"
        elif os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
            hint = "HF_HUB_OFFLINE is set, so nothing is downloaded: give a local folder or a GGUF file, or unset it."
        here = "" if Path(where).exists() else ", and there is no folder of that name here"
        expected = f"expected {what} that transformers can load{here}"
        raise DataError(f"'{where}': {expected}. {hint} (They say: {error_line(error)})") from error


def error_line(error: BaseException) -> str:
    """What an error says, on one line; its type where it says nothing."""
    text = " ".join(without_colors(str(error)).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"
