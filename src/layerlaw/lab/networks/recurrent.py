"""A language model without attention: a selective linear recurrence, as in Mamba, in about 2·√T steps instead of T."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import check_whole
from layerlaw.lab.networks.text_model import TextModel

TAPS = 4
SLOWEST, FASTEST = 1e-3, 1e-1  # Δ at the start, as Mamba has it: memories from about 10 to 1000 tokens


class Selective(nn.Module):
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
        return self.output(y.to(gate.dtype) * F.silu(gate))  # type: ignore[no-any-return]


class Recurrent(TextModel):
    """GPT's twin without attention: same blocks, norms, MLPs and head, a selective recurrence as the mixer.

    `state` is the memory per channel; `context` limits the length only because the training does (no positions here).

    >>> model = Recurrent(vocabulary=100, width=32, depth=2, context=16)
    >>> model(torch.zeros(3, 16, dtype=torch.long)).shape
    torch.Size([3, 16, 100])
    """

    def __init__(self, *, vocabulary: int, width: int, depth: int, context: int, state: int = 4) -> None:
        check_whole(2, vocabulary=vocabulary)
        check_whole(1, width=width, depth=depth, context=context, state=state)
        mixers = [Selective(width, state=state) for _ in range(depth)]
        super().__init__(vocabulary=vocabulary, width=width, context=context, mixers=mixers, causal=True, state=state)


def linear_scan(a: Tensor, u: Tensor) -> Tensor:
    """All h_t of h_t = a_t ⊙ h_{t−1} + u_t with h_{−1} = 0; a and u (B, T, …) of one shape, a within [0, 1].

    Nothing is divided and no logarithm taken: products of numbers within [0, 1] can at worst be 0, which is then right.

    >>> linear_scan(torch.full((1, 4), 0.5), torch.ones(1, 4))
    tensor([[1.0000, 1.5000, 1.7500, 1.8750]])
    """
    return _scan(a, u)  # type: ignore[no-any-return]


# An operator of its own: torch.compile takes minutes over the unrolled loops, and autograd would keep every step of them.
@torch.library.custom_op("layerlaw::linear_scan", mutates_args=())
def _scan(a: Tensor, u: Tensor) -> Tensor:
    """Scan all chunks of length c side by side, then hand the last state of each on to the next."""
    B, T = u.shape[:2]
    c = math.ceil(math.sqrt(T))
    m = math.ceil(T / c)
    rest = u.new_zeros(B, m * c - T, *u.shape[2:])
    reach = torch.cat((a, rest), dim=1).view(B, m, c, -1)  # copies: what follows writes into them
    h = torch.cat((u, rest), dim=1).view(B, m, c, -1)
    for j in range(1, c):
        h[:, :, j].addcmul_(reach[:, :, j], h[:, :, j - 1])
        reach[:, :, j].mul_(reach[:, :, j - 1])  # now what is left here of the state before the chunk
    for k in range(1, m):
        h[:, k].addcmul_(reach[:, k], h[:, k - 1, -1:])
    return h.view(B, m * c, *u.shape[2:])[:, :T].contiguous()


@_scan.register_fake
def _shape(a: Tensor, u: Tensor) -> Tensor:
    return u.new_empty(u.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    a, h = ctx.saved_tensors
    # g_t = ∂L/∂h_t + a_{t+1} ⊙ g_{t+1}: the same recurrence, from the end
    following = torch.cat((a[:, 1:], torch.zeros_like(a[:, :1])), dim=1)
    g = linear_scan(following.flip(1), gradient.flip(1)).flip(1)
    before = torch.cat((torch.zeros_like(h[:, :1]), h[:, :-1]), dim=1)
    return g * before, g


_scan.register_autograd(_backward, setup_context=_keep)
