"""Pictures of chosen words: the hidden states of their tokens in the plane of their two main directions, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from layerlaw.errors import InputError
from layerlaw.stats.plane import PlaneSample


@dataclass
class Words:
    """The chosen words, the token that stands for each, and the samples kept so far."""

    names: tuple[str, ...]
    ids: Tensor
    sample: PlaneSample = field(repr=False)
    seen: Tensor = field(repr=False)
    """How often each was looked at."""

    @classmethod
    def of(cls, words: Sequence[str | int], tokenizer: Any, vocabulary: int) -> Words:
        """Words by name (one token each, with or without a blank before them), or token ids."""
        names, ids = [], []
        for word in words:
            if isinstance(word, bool) or not isinstance(word, (str, Integral)):
                raise InputError(f"words: expected words or token ids, got {word!r}.")
            names.append(str(word).strip())
            ids.append(_single_token(word, tokenizer) if isinstance(word, str) else int(word))
        wrong = [i for i in ids if not 0 <= i < vocabulary]
        if wrong:
            raise InputError(f"words: expected token ids 0 … {vocabulary - 1}, got {wrong[0]}.")
        if len(set(ids)) < len(ids):
            raise InputError(f"words: expected different words, got {', '.join(map(repr, words))}.")
        return cls(tuple(names), torch.tensor(ids), PlaneSample(len(ids)), torch.zeros(len(ids), dtype=torch.float64))

    def fresh(self) -> Words:
        """Nothing kept yet."""
        return Words(self.names, self.ids, PlaneSample(len(self.ids)), torch.zeros_like(self.seen))

    def begin(self, tokens: Tensor, number: int) -> None:
        """The tokens (n,) at the rows of a batch, and which of all batches it is."""
        hits = tokens[:, None] == self.ids  # (n, words)
        self.seen += hits.sum(0)
        self._rows = hits.any(1).nonzero().flatten()
        self.sample.begin(hits[self._rows].long().argmax(1), number)

    def update(self, site: int, X: Tensor) -> None:
        """Features (n, d) of one site."""
        if len(self._rows):
            self.sample.update(site, X.index_select(0, self._rows.to(X.device)))

    def planes(self) -> dict[object, list[list[float]]]:
        """Coordinates at every site, in the order of `labels`."""
        return self.sample.planes()

    @property
    def labels(self) -> list[int]:
        """The number of the word of every sample."""
        return self.sample.labels


def _single_token(word: str, tokenizer: Any) -> int:
    if tokenizer is None:
        raise InputError(f"words: expected token ids where there is no tokenizer, got {word!r}.")
    for spelling in (f" {word.strip()}", word.strip()):  # within a text a blank stands before a word
        ids = tokenizer(spelling, add_special_tokens=False)["input_ids"]
        unknown = ids == [getattr(tokenizer, "unk_token_id", None)] and word.strip() != tokenizer.unk_token
        if len(ids) == 1 and not unknown:
            return int(ids[0])
    what = "which the tokenizer does not know" if unknown else f"which is {len(ids)}"
    raise InputError(f"words: expected words that are one token each, got {word!r}, {what}. Choose others.")
