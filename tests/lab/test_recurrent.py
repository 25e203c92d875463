"""The recurrence: the scan equals the loop, and the model sees only what came before."""

from __future__ import annotations

import pytest
import torch
from text_parts import livened, recurrent, some_ids, touched
from torch import Tensor, nn
from torch.nn import functional as F

from layerlaw.errors import InputError
from layerlaw.lab import GPT, Recurrent
from layerlaw.lab.networks.recurrent import Selective, _scan, linear_scan


def step_by_step(a: Tensor, u: Tensor) -> Tensor:
    h, states = torch.zeros_like(u[:, 0]), []
    for t in range(u.shape[1]):
        h = a[:, t] * h + u[:, t]
        states.append(h)
    return torch.stack(states, dim=1)


@pytest.mark.parametrize("T", [1, 2, 3, 16, 17, 100, 256])
def test_the_scan_equals_the_loop_and_so_do_its_gradients(T: int) -> None:
    torch.manual_seed(T)
    a = torch.rand(2, T, 5, 3, dtype=torch.float64, requires_grad=True)
    u = torch.randn(2, T, 5, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, T, 5, 3, dtype=torch.float64)
    kept = a.detach().clone(), u.detach().clone()
    by_scan, by_loop = linear_scan(a, u), step_by_step(a, u)
    torch.testing.assert_close(by_scan, by_loop)
    for one, other in zip(
        torch.autograd.grad((by_scan * weights).sum(), (a, u)),
        torch.autograd.grad((by_loop * weights).sum(), (a, u)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    assert torch.equal(a, kept[0])  # what came in is left alone
    assert torch.equal(u, kept[1])


def test_gradients_of_the_scan_equal_differences() -> None:
    torch.manual_seed(0)
    a = torch.rand(2, 7, 3, dtype=torch.float64, requires_grad=True)
    u = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(linear_scan, (a, u))


def test_the_compiler_may_take_the_scan_as_one_step() -> None:
    a, u = torch.rand(2, 7, 3, requires_grad=True), torch.randn(2, 7, 3, requires_grad=True)
    assert set(torch.library.opcheck(_scan, (a, u)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("a", [0.0, 1e-30, 0.5, 1 - 1e-6, 1.0])
def test_extreme_memories_are_exact_in_float32(a: float) -> None:
    T = 400
    decay, u = torch.full((1, T, 2), a, requires_grad=True), torch.ones(1, T, 2, requires_grad=True)
    h = linear_scan(decay, u)
    exact = step_by_step(decay.detach().double(), u.detach().double())  # Σ a^s over s ≤ t, whatever underflows
    torch.testing.assert_close(h.double(), exact, rtol=1e-5, atol=0)
    h.sum().backward()
    assert decay.grad is not None
    assert decay.grad.isfinite().all()


def plain_mixer(layer: Selective, x: Tensor) -> Tensor:
    """One text, token by token."""
    x, gate = layer.input(x).chunk(2, dim=-1)
    T, width = x.shape
    h = torch.zeros(width, layer.log_rate.shape[1])
    rows = []
    for t in range(T):
        taps = [layer.conv.weight[:, 0, 3 - back] * x[t - back] for back in range(4) if t >= back]
        v = F.silu(torch.stack(taps).sum(0))
        pace = F.softplus(layer.pace(v))
        write, read = layer.select(v).chunk(2)
        h = torch.exp(-torch.outer(pace, torch.ones(h.shape[1])) * layer.log_rate.exp()) * h
        h = h + torch.outer(pace * v, write)
        rows.append(layer.output((h @ read + layer.skip * v) * F.silu(gate[t])))
    return torch.stack(rows)


@pytest.mark.parametrize("state", [1, 4])
def test_the_mixer_equals_one_that_goes_token_by_token(state: int) -> None:
    torch.manual_seed(0)
    layer = Selective(12, state=state)
    layer.pace.bias.data += 2
    x = 3 * torch.randn(2, 30, 12)
    for text, mixed in zip(x, layer(x, None), strict=True):
        torch.testing.assert_close(mixed, plain_mixer(layer, text), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", [0, 7, 19])
def test_a_later_token_changes_no_earlier_logits(place: int) -> None:
    assert touched(livened(recurrent()), place) == [t >= place for t in range(20)]


def test_it_remembers_beyond_the_reach_of_its_convolutions() -> None:
    model = livened(recurrent(context=64))
    reach = 3 * 3  # three layers of four taps
    assert all(touched(model, 0, tokens=64)[: 3 * reach])
    for block in model.blocks:
        block.mixer.select.weight.data.zero_()  # nothing is written, nothing read
    assert touched(model, 0, tokens=64) == [t <= reach for t in range(64)]


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_does_not_change_the_others(side: str) -> None:
    model = livened(recurrent())
    ids = some_ids(3, 20)
    real = torch.ones_like(ids)
    kept = slice(6, 20) if side == "left" else slice(0, 14)
    real[1] = 0
    real[1, kept] = 1
    logits = model(ids, real)
    torch.testing.assert_close(logits[[0, 2]], model(ids)[[0, 2]], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits[1:2, kept], model(ids[1:2, kept]), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_decays_at_the_start_lie_between_zero_and_one_and_remember() -> None:
    torch.manual_seed(0)
    pace = F.softplus(Selective(500, state=1).pace.bias)
    assert float(pace.min()) == pytest.approx(1e-3, rel=0.1)
    assert float(pace.max()) == pytest.approx(1e-1, rel=0.1)
    a = torch.exp(-pace)
    assert ((a > 0) & (a < 1)).all()


def test_it_is_as_large_as_its_twin() -> None:
    def size(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    twin = GPT(vocabulary=100, width=128, depth=4, heads=4, context=16)
    assert size(Recurrent(vocabulary=100, width=128, depth=4, context=16)) == pytest.approx(size(twin), rel=0.02)


def test_it_has_the_layout_of_its_twin() -> None:
    model = recurrent()
    assert [name for name, _ in model.named_children()] == ["embedding", "blocks", "norm", "head"]
    assert model.head.weight is model.embedding.weight
    assert model.causal
    torch.testing.assert_close(model(some_ids()), model.head(model.hidden(some_ids())))


def test_shapes_that_cannot_be() -> None:
    with pytest.raises(InputError, match="state: expected a whole number of at least 1, got 0"):
        Recurrent(vocabulary=10, width=8, depth=1, context=4, state=0)
    with pytest.raises(InputError, match="width: expected a whole number of at least 1, got -8"):
        Recurrent(vocabulary=10, width=-8, depth=1, context=4)
    with pytest.raises(InputError, match=r"1 … 4 tokens .*, got the shape \(3, 20\)"):
        Recurrent(vocabulary=64, width=8, depth=1, context=4)(some_ids())
