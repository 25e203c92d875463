"""What the tests of the language models share: a text with a known entropy rate, and small models."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from layerlaw.lab import GPT, Recurrent
from layerlaw.lab.networks.text_model import TextModel

VOCABULARY = 64
FOLLOWERS = torch.tensor([0.55, 0.25, 0.15, 0.05])  # chances of the four tokens that may follow a token
ENTROPY = -float((FOLLOWERS * FOLLOWERS.log()).sum())  # nats per token, the same after every token
CHANCE = math.log(VOCABULARY)


@cache
def chain() -> Tensor:
    """Transition probabilities (64, 64)."""
    generator = torch.Generator().manual_seed(0)
    P = torch.zeros(VOCABULARY, VOCABULARY)
    for row in P:
        row[torch.randperm(VOCABULARY, generator=generator)[:4]] = FOLLOWERS
    return P


@cache
def markov(n: int, seed: int) -> Tensor:
    """A text of this length: each token depends on the one before."""
    followers = [row.nonzero().flatten().tolist() for row in chain()]
    bounds = [chain()[token][followers[token]].cumsum(0).tolist() for token in range(VOCABULARY)]
    lots = torch.rand(n, generator=torch.Generator().manual_seed(seed)).tolist()
    text = [0]
    for lot in lots[1:]:
        last = text[-1]
        text.append(followers[last][sum(lot >= bound for bound in bounds[last][:3])])
    return torch.tensor(text)


def best_loss(text: Tensor) -> float:
    """The cross-entropy on this text of one who knows the chain."""
    return -float(chain()[text[:-1], text[1:]].log().mean())


def gpt(*, seed: int = 0, context: int = 32, causal: bool = True, vocabulary: int = VOCABULARY) -> GPT:
    torch.manual_seed(seed)
    return GPT(vocabulary=vocabulary, width=32, depth=3, heads=4, context=context, causal=causal)


def recurrent(*, seed: int = 0, context: int = 32, state: int = 4) -> Recurrent:
    torch.manual_seed(seed)
    return Recurrent(vocabulary=VOCABULARY, width=32, depth=3, context=context, state=state)


def some_ids(texts: int = 3, tokens: int = 20, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (texts, tokens), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def touched(model: TextModel, place: int, tokens: int = 20) -> list[bool]:
    """At which positions the logits change when the token at this place does."""
    ids = some_ids(1, tokens)
    other = ids.clone()
    other[0, place] = (ids[0, place] + 1) % VOCABULARY
    return ((model(ids) - model(other)).abs().amax(-1)[0] > 1e-6).tolist()


def livened(model: TextModel) -> TextModel:
    """The same model with larger weights: at the start, what one token tells another is small."""
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "rate" not in name:
            parameter.data = torch.randn_like(parameter) / parameter.shape[1] ** 0.5
    return model
