"""Text as pieces of token ids: documents are tokenized, cut, truncated or packed, and dealt into groups.

A piece is what the model reads at once. Tokens of one document are not independent of each other, so groups (for held-out
values and standard errors) are runs of whole documents; only a text of fewer documents than groups, or with one that is most
of it, is cut between pieces.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from layerlaw.data import Text
from layerlaw.errors import InputError, check_choice, check_whole
from layerlaw.files import sha256
from layerlaw.lm.tokenizer import Chat, chat_front, tokens_of

Documents = Literal["cut", "truncate", "pack"]
SHORTEST = 2  # a token and the next
TIMES = 32  # a text is read up to so many times the tokens that are wanted: those used are spread over it
GOLDEN = (1 + 5**0.5) / 2
STRING_PART = 200_000  # characters of a long string that are tokenized at once
READ_WHOLE = 3_000_000  # characters of a document: some seconds; of a longer one parts spread over it are tokenized
SAMPLE_PART = 16_000  # characters of such a part
TRIED = 8  # parts that tell how many tokens the whole has


@dataclass(frozen=True)
class Pieces:
    """Token ids of the pieces, the document each belongs to (of so many `given`), and the group it is dealt into."""

    ids: tuple[Tensor, ...]
    documents: tuple[int, ...]
    groups: tuple[int, ...] = ()
    bos: int | None = None
    front: int = 0  # tokens before every piece that are no text: a BOS, or the beginning of a chat
    packed: bool = False
    given: int | None = None
    notes: tuple[str, ...] = field(default=(), repr=False)

    @property
    def tokens(self) -> int:
        """Tokens in all pieces, without what stands in front."""
        return sum(map(len, self.ids)) - len(self.ids) * self.front

    @property
    def left_out(self) -> str:
        """A remark where most documents of a list gave nothing."""
        used = len(set(self.documents))
        if self.packed or self.given is None or 2 * used >= self.given:
            return ""
        return f"Tokens come from {used:,} of {self.given:,} documents."

    @property
    def checksum(self) -> str:
        """sha256 of the ids, piece by piece."""
        return sha256(part for piece in self.ids for part in (piece.numpy(), b"|"))

    def spread(self, tokens: int) -> Pieces:
        """At most so many tokens, in pieces spread evenly over the text; the last one chosen may be shortened."""
        kept: dict[int, Tensor] = {}
        left, extra = tokens, self.front
        for i in evenly(len(self.ids)):  # whatever its length: long pieces are not preferred
            if left < SHORTEST:
                break
            kept[i] = self.ids[i][: left + extra]
            left -= len(kept[i]) - extra
        chosen = sorted(kept)
        return replace(self, ids=tuple(kept[i] for i in chosen), documents=tuple(self.documents[i] for i in chosen))

    def noted(self, *notes: str) -> Pieces:
        """The same with remarks for the record, those that are not empty."""
        return replace(self, notes=(*self.notes, *filter(None, notes)))

    def dealt(self, groups: int, note: str = "") -> Pieces:
        """Deal the pieces into groups of about equally many tokens: runs of whole documents where there are enough."""
        whole = len(set(self.documents))
        by_owner = self._sizes(self.documents)
        most = max(by_owner.values()) / sum(by_owner.values())
        by_document = whole >= groups and most <= min(2 / groups, 0.75)
        units = self.documents if by_document else tuple(range(len(self.ids)))
        groups = min(groups, len(set(units)))
        sizes = self._sizes(units)
        total, before, home, last = sum(sizes.values()), 0, {}, -1
        for i, (unit, size) in enumerate(sizes.items()):
            middle = int((before + size / 2) * groups / total)
            behind = groups - (len(sizes) - i)  # a unit must be left for every later group
            last = max(min(middle, last + 1), last, behind) if last >= 0 else 0
            home[unit] = last
            before += size
        here = replace(self, groups=tuple(home[unit] for unit in units)).noted(note)
        if by_document or groups == 1:
            return here
        if self.packed:
            return here.noted("Documents are packed into one stream: two groups may share a document where they meet.")
        why = f"Of {whole} document{'s' * (whole > 1)}" + (f", one of them {most:.0%} of the text" if whole > 1 else "")
        return here.noted(f"{why}, groups are runs of pieces, not whole documents.")

    def _sizes(self, units: Sequence[int]) -> dict[int, int]:
        sizes: Counter[int] = Counter()  # tokens of each unit
        for unit, piece in zip(units, self.ids, strict=True):
            sizes[unit] += len(piece)
        return sizes


@dataclass(frozen=True)
class UncutText:
    """A string, documents (strings, or rows with a "text") or token ids (documents, length), and how they become pieces.

    Nothing is read yet: `probe_lm` does that when it knows the model; `.cut()` gives the pieces by hand.

    tokenizer   for this text; default: that of the model
    length      tokens the model reads at once
    documents   "cut" every document into pieces of `length`, "truncate" it to one piece, or "pack" all into one stream
    bos         put the tokenizer's BOS in front of every piece; `None`: where the tokenizer itself puts one
    chat        the text stands in a chat, as the tokenizer's template writes it: in the turn of the "user" or "assistant",
                or as the answer to these messages ([{"role": …, "content": …}, …]); the template itself is not predicted
    tokens      how many to read, spread over the text; default: so many that about 100 per feature are predicted (masked
                tasks predict about 15 % of the tokens they read)
    groups      groups of documents for held-out values and standard errors; default: 8, or as many as the memory allows
    """

    text: Any = field(repr=False)
    tokenizer: Any = None
    _: KW_ONLY
    length: int = 512
    documents: Documents = "cut"
    bos: bool | None = None
    chat: Chat | None = None
    tokens: int | None = None
    groups: int | None = None
    about: dict[str, Any] | None = field(
        init=False, default=None, repr=False
    )  # name, documents and checksum of the text

    def __post_init__(self) -> None:
        check_choice("documents", self.documents, get_args(Documents))
        tokens, groups = (least if n is None else n for n, least in ((self.tokens, SHORTEST), (self.groups, 1)))
        check_whole(SHORTEST, kind=Integral, length=self.length, tokens=tokens)
        check_whole(1, kind=Integral, groups=groups)
        if self.bos not in (None, True, False):
            raise InputError(f"bos: expected True, False or None (as the tokenizer does), got {self.bos!r}.")
        if self.chat is not None and self.bos is not None:
            raise InputError(
                "bos, chat: expected one of them: a chat template says itself whether it begins with a BOS."
            )
        text: Any = self.text.documents if isinstance(self.text, Text) else self.text
        object.__setattr__(self, "about", _about(self.text))
        object.__setattr__(self, "text", text)
        short = isinstance(text, str) and len(text) < 300 and "\n" not in text
        if isinstance(text, os.PathLike) or (short and os.path.isfile(text)):  # which minds neither length nor letters
            cure = f"pass ll.data.load_text({os.fspath(text)!r})"
            raise InputError(f"text: expected text, got the name of a file: {cure}.")
        if isinstance(text, (bytes, bytearray)):
            raise InputError("text: expected a string, got bytes: pass text.decode().")
        if isinstance(text, Mapping) and "input_ids" in text:
            raise InputError(f"text: expected token ids, got a {type(text).__name__}: pass its 'input_ids'.")

    def cut(
        self, tokenizer: Any = None, *, wanted: int | None = None, habit: bool | None = None, bos_id: int | None = None
    ) -> Pieces:
        """Tokenize and cut; the tokenizer is for a text that came without, reading stops at many times `wanted` tokens.

        habit   whether a BOS is put before a text where nothing else was requested; default: as the tokenizer does
        bos_id  the BOS of a tokenizer that names none
        """
        text, read = self.text, None
        front: list[int] = []
        documents: Any = _token_ids(text)
        if documents is not None and self.bos:
            raise InputError("bos=True: token ids are taken as they are; put the BOS into them, or pass text.")
        if documents is not None and self.chat is not None:
            raise InputError("chat: expected text, which a template is put around, got token ids.")
        if documents is None:
            tokenizer = self.tokenizer if self.tokenizer is not None else tokenizer
            if tokenizer is None:
                cure = "Pass lm.load(model, tokenizer=…), or ids"
                raise InputError(f"tokenizer: expected one for this text, got none. {cure}.")
            if not callable(tokenizer):
                raise InputError(f"tokenizer: expected one of transformers, got {type(tokenizer).__name__}.")
            first = bos_of(tokenizer, habit if self.bos is None else self.bos, bos_id) if self.chat is None else None
            front = chat_front(tokenizer, self.chat) if self.chat is not None else [] if first is None else [first]
            end = getattr(tokenizer, "eos_token_id", None) if self.documents == "pack" else None
            documents, read = _documents(text), _Reader(tokenizer, end)
        size = self.length - len(front)
        if size < 1:
            what = "a BOS" if self.chat is None else f"the {len(front)} tokens of the chat template"
            raise InputError(f"length: expected {what} and at least one token in a piece, got {self.length}.")
        most = size if self.documents == "truncate" else None
        taken, note = _read(documents, read, most, None if wanted is None else TIMES * wanted)
        packed = self.documents == "pack"
        runs = [(number, ids) for number, parts in taken for ids in parts]  # of tokens that follow each other
        whole = [(0, torch.cat([ids for _, ids in runs]))] if packed and runs else runs
        found, owners = [], []
        for number, ids in whole:
            for cut in torch.split(ids, size):
                piece = torch.cat([torch.tensor(front, dtype=torch.long), cut]) if front else cut
                if len(piece) >= SHORTEST:
                    found.append(piece.long())
                    owners.append(number)
        if not found:
            hint = ""
            if isinstance(text, str) and 0 < len(text) < 300 and "\n" not in text:
                hint = f" It is {text!r}: if that is a file, pass its content (the command line takes names)."
            raise InputError(f"text: expected at least {SHORTEST} tokens in a row, got none.{hint}")
        given = len(documents) if hasattr(documents, "__len__") else None
        begins = front[0] if front and front[0] in (bos_id, getattr(tokenizer, "bos_token_id", None)) else None
        about: Any = {"bos": begins, "front": len(front), "packed": packed, "given": given}
        return Pieces(tuple(found), tuple(owners), **about).noted(note)


def _about(text: Any) -> dict[str, Any] | None:
    """What tells a text from another, whatever tokenizer reads it; `None` of token ids and of what is read only once."""
    documents = [text] if isinstance(text, str) else text
    if isinstance(documents, (list, tuple)) and documents and all(isinstance(one, str) for one in documents):
        text = Text(list(documents), "")
    if not isinstance(text, Text):
        return None
    return {"name": text.name, "documents": len(text.documents), "sha256": text.checksum}


pieces_of = UncutText  # as users call it: what is not cut yet


def _read(
    documents: Any, read: _Reader | None, most: int | None, enough: int | None
) -> tuple[list[tuple[int, list[Tensor]]], str]:
    """Documents with their numbers, evenly over a list, up to `most` tokens of each, until there are enough; a remark.

    Of a very long document parts are read that are spread over it, as many as are its share of what is still wanted.
    """
    listed = hasattr(documents, "__len__")
    order = ((i, documents[i]) for i in evenly(len(documents))) if listed else enumerate(documents)
    taken: list[tuple[int, list[Tensor]]] = []
    have, note = 0, ""
    for number, document in order:
        if read is None:
            parts = [document[:most]]
        else:
            others = len(documents) - len(taken) if listed else 1
            parts = read.parts(number, document, most, None if enough is None else -(-(enough - have) // others))
        taken.append((number, parts))
        have += sum(map(len, parts))
        if enough is not None and have >= enough:
            if not listed:
                note = f"Reading stopped after {number + 1:,} document{'s' * (number > 0)} with {have:,} tokens."
            break
    return sorted(taken, key=lambda one: one[0]), note


def evenly(n: int) -> Iterator[int]:
    """0 … n−1 in an order whose every beginning is spread over all of them: multiples of the golden ratio, modulo 1.

    No beginning falls in step with lists that alternate (even numbers first would take one of two sources alone).

    >>> list(evenly(8))
    [0, 4, 1, 6, 3, 5, 2, 7]
    """
    taken = bytearray(n)
    for k in range(3 * n):  # the gaps between k such points are below 3/k: every number's turn comes
        i = int(k * GOLDEN % 1 * n)
        if not taken[i]:
            taken[i] = 1
            yield i


def bos_of(tokenizer: Any, wanted: bool | None, other: int | None = None) -> int | None:
    """The BOS to put in front of every piece: by the tokenizer's own habit, or as requested; `other`: if it has none."""
    known = getattr(tokenizer, "bos_token_id", None)
    known = other if known is None else known
    if wanted and known is None:
        raise InputError("bos=True: expected a tokenizer with a BOS token, got one without.")
    if known is None or wanted is False:
        return None
    return int(known) if wanted or tokens_of(tokenizer, "a")[:1] == [known] else None


@dataclass(frozen=True)
class _Reader:
    """Token ids of documents, without special tokens; `end` closes a document where documents are packed."""

    tokenizer: Any
    end: int | None

    def parts(self, number: int, document: Any, most: int | None, enough: int | None) -> list[Tensor]:
        """Of one document, runs of tokens in their order: one with all of them, or several that are enough together."""
        if isinstance(document, Mapping) and "text" in document:
            document = document["text"]
        if not isinstance(document, str):
            came = f"{type(document).__name__} as document {number}"
            raise InputError(f"text: expected documents that are strings (or rows with a 'text'), got {came}.")
        long = len(document) > READ_WHOLE and most is None and enough is not None
        some = self._some(document, enough) if long and enough is not None else None
        return [self._whole(document, most)] if some is None else some

    def _ids(self, text: str) -> list[int]:
        return tokens_of(self.tokenizer, text, add_special_tokens=False, verbose=False)

    def _whole(self, document: str, most: int | None) -> Tensor:
        ids: list[int] = []
        for part in _parts(document) if document.strip() else ():
            ids += self._ids(part)
            if most is not None and len(ids) >= most:
                return torch.tensor(ids[:most], dtype=torch.long)
        ids += [] if self.end is None or not document.strip() else [self.end]
        return torch.tensor(ids[:most], dtype=torch.long)

    def _some(self, document: str, enough: int) -> list[Tensor] | None:
        """Parts spread over a long document with enough tokens; `None` where that would be most of it."""
        pieces, taken, have = list(_parts(document, SAMPLE_PART)), {}, 0
        for i in evenly(len(pieces)):
            taken[i] = torch.tensor(self._ids(pieces[i]), dtype=torch.long)
            have += len(taken[i])
            if len(taken) == TRIED and have * len(pieces) < 2 * TRIED * enough:
                return None
            if have >= enough:
                break
        return [taken[i] for i in sorted(taken)]


def _parts(document: str, size: int = STRING_PART) -> Iterator[str]:
    """A long text in parts that end at a line, so that a tokenizer need not hold all of it at once."""
    at = 0
    while at < len(document):
        end = min(at + size, len(document))
        if end < len(document):
            line, word = document.rfind("\n", at, end), document.rfind(" ", at, end)
            end = line + 1 if line > at else word if word > at else end
        yield document[at:end]
        at = end


def _token_ids(text: Any) -> list[Tensor] | None:
    """Token ids as a list of 1-D tensors, where that is what came; `None` for text."""
    if isinstance(text, Tensor) or (isinstance(text, np.ndarray) and text.dtype.kind not in "UTO"):
        ids = torch.as_tensor(text)
        if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
            came = f"{tuple(ids.shape)} {ids.dtype}. One long document of ids: ids[None]"
            raise InputError(f"text: expected token ids of shape (documents, length) as whole numbers, got {came}.")
        return list(ids.cpu())
    if not isinstance(text, Sequence) or isinstance(text, str) or not len(text):
        return None
    first = text[0]
    row = isinstance(first, (Tensor, np.ndarray)) and first.ndim == 1
    listed = isinstance(first, Sequence) and not isinstance(first, str) and all(isinstance(i, int) for i in first[:8])
    return [torch.as_tensor(ids).long().cpu() for ids in text] if row or listed else None


def _documents(text: Any) -> Any:
    """The documents, as they are where all are there (a list, a dataset: a length and numbered entries), else one by one."""
    if isinstance(text, str):
        return [text]
    if not isinstance(text, Iterable):
        expected = "a string, an iterable of documents, or token ids (documents, length)"
        raise InputError(f"text: expected {expected}, got {type(text).__name__}.")
    if isinstance(text, Mapping) or (hasattr(text, "iloc") and hasattr(text, "columns")):
        raise InputError(f"text: expected documents, got a {type(text).__name__}: pass its column, as in text['text'].")
    # a column of pandas has labels, not numbers
    numbered = hasattr(text, "__len__") and hasattr(text, "__getitem__") and not hasattr(text, "iloc")
    return text if numbered else iter(text)


def batches(pieces: Pieces, size: int) -> Iterator[tuple[int, list[int]]]:
    """Groups and indices of pieces that are run together: of one group, of similar length, in a fixed order."""
    by_group: dict[int, list[int]] = defaultdict(list)
    for i, group in enumerate(pieces.groups):
        by_group[group].append(i)
    for group, members in by_group.items():
        members.sort(key=lambda i: -len(pieces.ids[i]))
        for at in range(0, len(members), size):
            yield group, members[at : at + size]


def counted(pieces: Sequence[Tensor], vocabulary: int) -> Tensor:
    """How often each token occurs."""
    return torch.bincount(torch.cat(list(pieces)), minlength=vocabulary)


def check_ids(pieces: Pieces, vocabulary: int, tokenizer: Any, mask_id: int | None = None) -> None:
    """Token ids must be rows of the model's embedding."""
    if mask_id is not None and not 0 <= mask_id < vocabulary:
        raise InputError(f"mask_id: expected a token id 0 … {vocabulary - 1}, got {mask_id}.")
    low = min(int(piece.min()) for piece in pieces.ids)
    high = max(int(piece.max()) for piece in pieces.ids)
    if low >= 0 and high < vocabulary:
        return
    size = f" ({len(tokenizer):,} entries)" if hasattr(tokenizer, "__len__") else ""
    what = "token ids that do" if tokenizer is None else f"a tokenizer{size} that does"
    came = f"{low if low < 0 else high}: {what} not belong to this model"
    raise InputError(f"text: expected token ids 0 … {vocabulary - 1}, as the model has embeddings, got {came}.")
