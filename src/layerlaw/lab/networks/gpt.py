"""A compact decoder-only transformer, and its bidirectional twin."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import InputError, check_whole
from layerlaw.lab.networks.text_model import TextModel

ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """Multi-head attention with rotary positions and no biases; causal, or over the whole text."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, *, heads: int, context: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.input = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        half = width // heads // 2
        frequencies = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)  # (context, d/2)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """(B, T, width) → (B, T, width)."""
        B, T, width = x.shape
        q, k, v = self.input(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each (B, heads, T, d)
        q, k = self._rotate(q).to(v.dtype), self._rotate(k).to(v.dtype)
        allowed = None
        if real is not None:  # (B, 1, T, T): who may see whom
            itself = torch.eye(T, dtype=torch.bool, device=x.device)
            seen_at = real[:, None, None, :] & torch.ones_like(itself).tril() if self.causal else real[:, None, None, :]
            allowed = seen_at | itself  # padding before a text sees itself: a softmax over nothing would be NaN
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=self.causal and real is None)
        return self.output(seen.transpose(1, 2).reshape(B, T, width))  # type: ignore[no-any-return]

    def _rotate(self, x: Tensor) -> Tensor:
        """Turn each pair of features by an angle that grows with the position."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class GPT(TextModel):
    """A decoder-only transformer: RMSNorm first, rotary positions, GELU, no biases, tied head.

    `causal=False` is the bidirectional twin for masked tokens, the same in everything else.

    >>> model = GPT(vocabulary=100, width=32, depth=2, heads=4, context=16)
    >>> model(torch.zeros(3, 16, dtype=torch.long)).shape
    torch.Size([3, 16, 100])
    """

    def __init__(
        self, *, vocabulary: int, width: int, depth: int, heads: int, context: int, causal: bool = True
    ) -> None:
        check_whole(2, vocabulary=vocabulary)
        check_whole(1, width=width, depth=depth, heads=heads, context=context)
        if width % (2 * heads):
            expected = f"expected an even number of features for each of the {heads} heads"
            raise InputError(f"width: {expected}, got {width}. Choose a multiple of {2 * heads}.")
        mixers = [Attention(width, heads=heads, context=context, causal=causal) for _ in range(depth)]
        super().__init__(vocabulary=vocabulary, width=width, context=context, mixers=mixers, causal=causal, heads=heads)
        self.arguments["causal"] = causal
