"""A language model without attention: a selective linear recurrence in the place of it, as in Mamba."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.lab.scan import linear_scan
from layerlaw.lab.text_model import Mixer, TextModel, check_sizes

TAPS = 4
SLOWEST, FASTEST = 1e-3, 1e-1  # Δ at the start, as Mamba has it: memories from about 10 to 1000 tokens


class Selective(Mixer):
    """h_t = exp(−Δ_t·r) ⊙ h_{t−1} + Δ_t B_t x_t, read as C_t·h_t, where Δ, B and C depend on the token.

    Each of the `width` channels has `state` numbers of memory, each with its own rate r. A short causal convolution
    comes before, a SiLU gate after. With Δ of full rank it has about the 4·width² parameters of attention.
    """

    def __init__(self, width: int, *, state: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 2 * width, bias=False)  # x and the gate
        self.conv = nn.Conv1d(width, width, TAPS, groups=width, bias=False)
        self.pace = nn.Linear(width, width)
        self.select = nn.Linear(width, 2 * state, bias=False)  # B and C
        self.log_rate = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.output = nn.Linear(width, width, bias=False)
        start = torch.exp(torch.empty(width).uniform_(math.log(SLOWEST), math.log(FASTEST)))
        self.pace.bias.data = start + torch.log(-torch.expm1(-start))  # the inverse of softplus

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """(B, T, width) → (B, T, width)."""
        x, gate = self.input(x).chunk(2, dim=-1)
        if real is not None:
            x = x * real[..., None]
        x = F.silu(self.conv(F.pad(x.mT, (TAPS - 1, 0))).mT)
        # the recurrence is float32 under autocast, too: 1 − a of a long memory is lost in bfloat16
        pace = F.softplus(self.pace(x).float())  # Δ (B, T, width)
        if real is not None:
            pace = pace * real[..., None]  # padding: a = 1 and u = 0, the state stays
        write, read = self.select(x).float().chunk(2, dim=-1)  # B, C: (B, T, state)
        a = torch.exp(-pace[..., None] * self.log_rate.exp())  # (B, T, width, state)
        u = (pace * x.float())[..., None] * write[..., None, :]
        y = (linear_scan(a, u) * read[..., None, :]).sum(-1) + self.skip * x
        mixed: Tensor = self.output(y.to(gate.dtype) * F.silu(gate))
        return mixed


class Recurrent(TextModel):
    """GPT's twin without attention: same blocks, norms, MLPs and head, a selective recurrence as the mixer.

    `state` is the memory per channel; `context` limits the length only because the training does (no positions here).

    >>> model = Recurrent(vocabulary=100, width=32, depth=2, context=16)
    >>> model(torch.zeros(3, 16, dtype=torch.long)).shape
    torch.Size([3, 16, 100])
    """

    def __init__(self, *, vocabulary: int, width: int, depth: int, context: int, state: int = 4) -> None:
        check_sizes(vocabulary=vocabulary, width=width, depth=depth, context=context, state=state)
        super().__init__(
            vocabulary=vocabulary,
            width=width,
            context=context,
            mixers=[Selective(width, state=state) for _ in range(depth)],
            causal=True,
            state=state,
        )
