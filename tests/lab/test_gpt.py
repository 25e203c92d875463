"""The transformer: who sees whom, padding, positions, initialization."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from text_parts import VOCABULARY, gpt, livened, some_ids, touched
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import InputError
from layerlaw.lab import GPT
from layerlaw.lab.networks.gpt import Attention


def plain_attention(layer: Attention, x: Tensor) -> Tensor:
    """One text, head by head, token by token, positions as complex numbers."""
    T, width = x.shape
    d = width // layer.heads
    q, k, v = (layer.input.weight @ x.T).T.chunk(3, dim=1)
    turn = torch.polar(
        torch.ones(T, d // 2),
        torch.outer(torch.arange(T).float(), 10_000.0 ** (-2 * torch.arange(d // 2).float() / d)),
    )
    rows = []
    for t in range(T):
        seen = range(t + 1) if layer.causal else range(T)
        row = []
        for head in range(layer.heads):
            part = slice(head * d, (head + 1) * d)
            spin = [torch.complex(y[:, part][:, : d // 2], y[:, part][:, d // 2 :]) * turn for y in (q, k)]
            scores = torch.stack([(spin[0][t] * spin[1][s].conj()).real.sum() / d**0.5 for s in seen])
            row.append(scores.softmax(0) @ v[list(seen), part])
        rows.append(layer.output.weight @ torch.cat(row))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_one_written_out_by_hand(causal: bool) -> None:
    torch.manual_seed(0)
    layer = Attention(16, heads=2, context=12, causal=causal)
    x = torch.randn(2, 9, 16)
    for text, mixed in zip(x, layer(x, None), strict=True):
        torch.testing.assert_close(mixed, plain_attention(layer, text), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", [0, 7, 19])
def test_a_later_token_changes_no_earlier_logits(place: int) -> None:
    assert touched(livened(gpt()), place) == [t >= place for t in range(20)]


def test_the_masked_twin_sees_both_ways() -> None:
    assert all(touched(livened(gpt(causal=False)), 7))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_does_not_change_the_others(causal: bool, side: str) -> None:
    model = livened(gpt(causal=causal))
    ids = some_ids(3, 20)
    real = torch.ones_like(ids)
    hole = slice(0, 6) if side == "left" else slice(14, 20)
    kept = slice(6, 20) if side == "left" else slice(0, 14)
    real[1, hole] = 0
    logits = model(ids, real)
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[[0, 2]], model(ids)[[0, 2]], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits[1:2, kept], model(ids[1:2, kept]), rtol=1e-4, atol=1e-4)  # positions are relative
    other = ids.clone()
    other[1, hole] = 3
    torch.testing.assert_close(model(other, real)[:, kept], logits[:, kept], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_order_matters() -> None:
    model = livened(gpt(causal=False))
    ids = some_ids(1, 8)
    swapped = ids[:, [1, 0, *range(2, 8)]]
    assert (model(ids) - model(swapped))[0, -1].abs().max() > 1e-3


def test_hidden_is_everything_but_the_tied_head() -> None:
    model = gpt()
    ids = some_ids()
    assert model.head.weight is model.embedding.weight
    assert model.hidden(ids).shape == (3, 20, 32)
    torch.testing.assert_close(model(ids), F.linear(model.hidden(ids), model.embedding.weight))
    assert [name for name, _ in model.named_children()] == ["embedding", "blocks", "norm", "head"]
    assert len(model.blocks) == model.depth == 3
    assert all(m.bias is None for m in model.modules() if isinstance(m, nn.Linear))


def test_blocks_can_be_hooked_and_give_the_residual_stream() -> None:
    model, seen = gpt(), []
    for block in model.blocks:
        block.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
    hidden = model.hidden(some_ids())
    assert [tuple(out.shape) for _, out in seen] == [(3, 20, 32)] * 3
    assert all(torch.equal(before[1], after[0]) for before, after in pairwise(seen))
    torch.testing.assert_close(model.norm(seen[-1][1]), hidden)


@torch.no_grad()
def test_the_start_is_scaled_and_knows_nothing() -> None:
    torch.manual_seed(0)
    model = GPT(vocabulary=500, width=192, depth=6, heads=4, context=16)
    plain = 1 / math.sqrt(3 * 192)
    for block in model.blocks:
        assert float(block.up.weight.std()) == pytest.approx(plain, rel=0.03)
        assert float(block.mixer.output.weight.std()) == pytest.approx(plain / math.sqrt(12), rel=0.03)
        assert float(block.down.weight.std()) == pytest.approx(plain / 2 / math.sqrt(12), rel=0.03)
    assert float(model.embedding.weight.std()) == pytest.approx(0.02, rel=0.03)
    ids = torch.randint(500, (8, 16))
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert float(loss) == pytest.approx(math.log(500), abs=0.15)


def test_twins_of_one_seed_have_the_same_weights() -> None:
    causal, both = gpt().state_dict(), gpt(causal=False).state_dict()
    assert causal.keys() == both.keys()
    assert all(torch.equal(causal[name], both[name]) for name in causal)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 30}, "width: expected an even number of features for each of the 4 heads, got 30.*multiple of 8"),
        ({"width": 36}, "width: expected an even number of features"),
        ({"depth": 0}, "depth: expected a whole number of at least 1, got 0"),
        ({"vocabulary": 1}, "vocabulary: expected a whole number of at least 2, got 1"),
        ({"context": 8.0}, r"context: expected a whole number of at least 1, got 8\.0"),
        ({"heads": True}, "heads: expected a whole number of at least 1, got True"),
    ],
    ids=str,
)
def test_shapes_that_cannot_be(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        GPT(**{"vocabulary": VOCABULARY, "width": 32, "depth": 3, "heads": 4, "context": 32, **change})


def test_texts_that_do_not_fit() -> None:
    model = gpt(context=16)
    with pytest.raises(InputError, match=r"1 … 16 tokens .*, got the shape \(3, 20\)\. Cut longer texts"):
        model(some_ids())
    with pytest.raises(InputError, match=r"got the shape \(16,\)"):
        model(torch.zeros(16, dtype=torch.long))
    with pytest.raises(InputError, match=r"got the shape \(2, 0\)"):
        model(torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(InputError, match=r"attention_mask: expected the shape of input_ids, \(3, 9\) .*, got \(3, 8\)"):
        model(some_ids(3, 9), torch.ones(3, 8))
