"""Tokens of which more is kept than moments: D of the most frequent ones as classes, and pictures of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from layerlaw.errors import InputError
from layerlaw.lm.tokenizer import tokens_of
from layerlaw.measures.separation import separation_from_scatter
from layerlaw.stats import ClassSums, find_centers
from layerlaw.stats.moments import Columns, Moments, TargetMoments
from layerlaw.stats.plane import PlaneSample


@dataclass
class FrequentTokens:
    """The most frequent of the tokens that are predicted, as classes, and what D = Tr(SSw SSb⁺) needs at every site.

    That is the sums of each class (K, d) and the Gram matrix of all their states (d, d), since the class means are not known
    before the one pass over the text ends.
    """

    ids: Tensor
    counts: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    grams: dict[str, Moments] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64

    @classmethod
    def of(cls, counts: Tensor, classes: int) -> FrequentTokens:
        """By how often each token is to be predicted."""
        order = torch.argsort(counts, descending=True, stable=True)
        ids = order[: min(classes, int((counts > 1).sum()))].sort().values
        return cls(ids, torch.zeros(len(ids), dtype=torch.float64))

    def begin(self, tokens: Tensor) -> None:
        """The next tokens (n,) of a batch."""
        place = torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)
        self._rows = (self.ids[place] == tokens).nonzero().flatten()
        self._labels = place[self._rows]
        self.counts += torch.bincount(self._labels, minlength=len(self.ids))

    def update(self, site: str, X: Tensor, dtype: torch.dtype) -> None:
        """Normalized states (n, d) of one site, which came from the model in this dtype."""
        part = X.index_select(0, self._rows.to(X.device))
        if not len(part):
            return
        self._open(site, X.shape[1], X.device)
        self.dtype = dtype
        self.sums[site].index_add_(0, self._labels.to(X.device), part.double())
        self.grams[site].update(0, part, Columns(torch.ones(len(part), 1), X.device))

    def _open(self, site: str, d: int, device: torch.device) -> None:
        if site not in self.sums:
            self.sums[site] = torch.zeros(len(self.ids), d, dtype=torch.float64, device=device)
            self.grams[site] = Moments.empty(1, d, 0, device)

    def settle(self, sites: Sequence[str], d: int, device: torch.device) -> list[Tensor]:
        """End the pass; gives what is added up over ranks, where one that saw none of these tokens has zeros."""
        total = TargetMoments.empty(1, 0)
        total.counts += self.counts.sum()
        for site in sites:
            self._open(site, d, device)
            self.grams[site].settle(total)
        return [self.counts, *(t for site in sites for t in (self.sums[site], *self.grams[site].tensors))]

    def separation(self, site: str) -> float | None:
        """D of one site, of the classes that came; `None` where all means coincide."""
        came = self.counts > 0
        if int(came.sum()) < 2:
            return None
        sums = self.sums[site]
        sums, counts = sums[came.to(sums.device)], self.counts[came].to(sums.device)
        weighted = sums / counts.sqrt()[:, None]
        within = self.grams[site].squares()[0] - weighted.mT @ weighted  # n·SSw
        spread = within.diagonal().sum().clamp_min(0)
        centers = find_centers(ClassSums(counts, sums, spread, self.dtype))
        return float(separation_from_scatter(centers, within / counts.sum())) if int(centers.rank) else None


@dataclass
class PicturedWords:
    """The chosen words, the token that stands for each, and the samples kept so far."""

    names: tuple[str, ...]
    ids: Tensor
    sample: PlaneSample = field(repr=False)
    seen: Tensor = field(repr=False)  # how often each came

    @classmethod
    def of(cls, words: Sequence[str | int], tokenizer: Any, vocabulary: int) -> PicturedWords:
        """Words by name (one token each, with or without a blank before them), or token ids."""
        ids = []
        for word in words:
            if isinstance(word, bool) or not isinstance(word, (str, Integral)):
                raise InputError(f"words: expected words or token ids, got {word!r}.")
            ids.append(_single_token(word, tokenizer) if isinstance(word, str) else int(word))
        if wrong := [i for i in ids if not 0 <= i < vocabulary]:
            raise InputError(f"words: expected token ids 0 … {vocabulary - 1}, got {wrong[0]}.")
        if len(set(ids)) < len(ids):
            raise InputError(f"words: expected different words, got {', '.join(map(repr, words))}.")
        names = tuple(str(word).strip() for word in words)
        return cls(names, torch.tensor(ids), PlaneSample(len(ids)), torch.zeros(len(ids), dtype=torch.float64))

    def begin(self, tokens: Tensor, number: int) -> None:
        """The tokens (n,) at the rows of a batch, and which of all batches it is."""
        hits = tokens[:, None] == self.ids  # (n, words)
        self.seen += hits.sum(0)
        self._rows = hits.any(1).nonzero().flatten()
        self.sample.begin(hits[self._rows].long().argmax(1), number)

    def update(self, site: str, X: Tensor) -> None:
        """Normalized states (n, d) of one site."""
        if len(self._rows):
            self.sample.update(site, X.index_select(0, self._rows.to(X.device)))


def _single_token(word: str, tokenizer: Any) -> int:
    if tokenizer is None:
        raise InputError(f"words: expected token ids where there is no tokenizer, got {word!r}.")
    for spelling in (f" {word.strip()}", word.strip()):  # within a text a blank stands before a word
        ids = tokens_of(tokenizer, spelling, add_special_tokens=False)
        unknown = ids == [getattr(tokenizer, "unk_token_id", None)] and word.strip() != tokenizer.unk_token
        if len(ids) == 1 and not unknown:
            return int(ids[0])
    what = "which the tokenizer does not know" if unknown else f"which is {len(ids)}"
    raise InputError(f"words: expected words that are one token each, got {word!r}, {what}. Choose others.")
