"""What is predicted at a token: a function of the token some steps away, given as a row of numbers for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from layerlaw.errors import InputError

SKETCH = 256  # columns of the random sketch of one-hot targets
SHUFFLES = 8  # shuffled vocabularies


@dataclass(frozen=True)
class Target:
    """A named target: codes (V, q) of the token `offset` steps away (1: the next)."""

    name: str
    offset: int
    codes: Callable[[], Tensor]
    about: str
    columns: int = 1


WORDS = {"next": "the next token", "masked": "the masked token", "span": "the hidden token"}


def targets_of(
    names: Sequence[str], vocabulary: int, embedding: Tensor | None, counts: Tensor, seed: int, task: str = "next"
) -> list[Target]:
    """The targets by name; "id" always comes first, since it costs nothing."""
    ids, what, shuffled = partial(_scaled, vocabulary), WORDS[task], f"each of {SHUFFLES} shuffled vocabularies"
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**40:
        raise InputError(f"seed: expected a whole number from 0 to 2**40, got {seed!r}.")
    width = 0 if embedding is None else embedding.shape[1]
    all_known = (
        Target("id", 1, ids, f"{what}'s id"),
        Target("embedding", 1, partial(_rows, embedding), f"{what}'s row of the output embedding", width),
        Target("onehot", 1, partial(_sketch, vocabulary, seed), f"{what}, one-hot (random sketch)", SKETCH),
        Target("shuffled", 1, partial(_shuffled, vocabulary, seed), f"its id in {shuffled}", SHUFFLES),
        Target("rank", 1, partial(_ranks, counts), f"{what}'s frequency rank in this text"),
        Target("previous", -1, ids, "the previous token's id"),
        Target("current", 0, ids, "the token's own id"),
        Target("next2", 2, ids, "the id of the token after the next"),
    )
    known = {target.name: target for target in all_known}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise InputError(f"targets: expected some of {', '.join(known)}, got {', '.join(map(repr, wrong))}.")
    if "embedding" in names and embedding is None:
        raise InputError(
            "target 'embedding': expected a model with an output embedding (a language-model head), got one without. Load "
            "it with its head (AutoModelForCausalLM, AutoModelForMaskedLM), or leave this target out."
        )
    return [known[name] for name in dict.fromkeys(["id", *names])]


def _scaled(vocabulary: int) -> Tensor:
    """Ids in −½ … ½: PR does not change with scale and shift, and sums stay small."""
    return ((torch.arange(vocabulary, dtype=torch.float64) + 0.5) / vocabulary - 0.5)[:, None]


def _rows(embedding: Tensor | None) -> Tensor:
    assert embedding is not None
    return embedding.detach().float().cpu()


def _sketch(vocabulary: int, seed: int) -> Tensor:
    """Random signs: E‖Sᵀ(y − ŷ)‖² = ‖y − ŷ‖² for one-hot y, so the sums over columns estimate the one-hot sums."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (vocabulary, SKETCH), generator=generator).float() * 2 - 1


def _shuffled(vocabulary: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(vocabulary, generator=generator) for _ in range(SHUFFLES)]
    return torch.cat([_scaled(vocabulary)[order] for order in orders], 1)


def _ranks(counts: Tensor) -> Tensor:
    """0 for the most frequent token of the text, 1 for the next …; equal counts in the order of the ids."""
    order = torch.argsort(counts, descending=True, stable=True)
    ranks = torch.empty(len(counts), dtype=torch.float64)
    ranks[order] = torch.arange(len(counts), dtype=torch.float64)
    seen = max(1, int((counts > 0).sum()))
    return (ranks / seen - 0.5)[:, None]
