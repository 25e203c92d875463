"""A dense block as one operation: values, gradients and running statistics are those of its layers one by one."""

import copy
import os
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from layerlaw.lab import Architecture
from layerlaw.lab.networks import dense
from layerlaw.lab.networks.dense import DenseBlock, DenseLayer
from layerlaw.lab.trainer import arithmetic

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SHAPE = (6, 16, 12, 20)


def block_of(first: int, growth: int, layers: int = 3) -> DenseBlock:
    torch.manual_seed(0)
    made = DenseBlock(*(DenseLayer(first + i * growth, growth) for i in range(layers)))
    for parameter in made.parameters():
        if parameter.dim() == 1:  # the scales and shifts of a network that was trained
            nn.init.uniform_(parameter, -0.5, 1.5)
    return made


def gone_through(block: nn.Module, x: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """What comes out, all gradients and all buffers, by name."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = block(x)
    (y * weights).sum().backward()
    assert x.grad is not None
    slopes = {name: p.grad for name, p in block.named_parameters() if p.grad is not None}
    return {"out": y.detach(), "in": x.grad, **slopes, **dict(block.named_buffers())}


@pytest.fixture(params=[pytest.param("cuda", marks=cuda), "cpu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU; or a CPU, by Triton's interpreter."""
    if request.param == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1" or dense._kernels() is None:
            pytest.skip("TRITON_INTERPRET=1 and triton are needed")
        monkeypatch.setattr(DenseBlock, "_as_one", lambda _, x: x.dtype != torch.float64)
        monkeypatch.setattr(torch.cuda, "device_of", lambda _: nullcontext())
    return torch.device(request.param)


@pytest.mark.parametrize("growth", [8, 48])
def test_a_dense_block_equals_its_layers(growth: int, device: torch.device) -> None:
    block = block_of(16, growth).to(device)
    x = (3 * torch.randn(SHAPE) + 10).to(device).contiguous(memory_format=torch.channels_last)
    weights = torch.randn(6, 16 + 3 * growth, 12, 20, device=device)
    exact, plain = copy.deepcopy(block).double(), copy.deepcopy(block)
    with arithmetic("float32", device):
        true = gone_through(exact, x.double(), weights.double())
        found = gone_through(block, x, weights)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dense, "_kernels", lambda: None)
            other = gone_through(plain, x, weights)
    for name, value in true.items():
        size = value.abs().max()
        error, usual = ((each[name].double() - value).abs().max() / size for each in (found, other))
        assert error <= max(3 * usual, 2e-6), name


@cuda
def test_in_bf16_it_is_as_near_to_the_truth_as_its_layers() -> None:
    device, block = torch.device("cuda"), block_of(96, 48, 6).cuda()
    x = torch.randn(4, 96, 16, 16, device=device, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    weights = torch.randn(4, 96 + 6 * 48, 16, 16, device=device)
    exact, plain = copy.deepcopy(block).double(), copy.deepcopy(block)
    true = gone_through(exact, x.double(), weights.double())
    with torch.autocast("cuda", torch.bfloat16):
        found = gone_through(block, x, weights)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dense, "_kernels", lambda: None)
            other = gone_through(plain, x, weights)
    assert found["out"].dtype == torch.bfloat16
    for name, value in true.items():
        size = value.double().norm()
        error, usual = ((each[name].double() - value).norm() / size for each in (found, other))
        assert error <= 1.5 * usual + 1e-5, name


@cuda
def test_it_is_taken_apart_where_the_inside_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernels:
        @staticmethod
        def dense_block(*_: object) -> None:
            raise ZeroDivisionError

    monkeypatch.setattr(dense, "_kernels", lambda: Kernels)
    block = block_of(16, 8).cuda()
    x = torch.randn(SHAPE, device="cuda").contiguous(memory_format=torch.channels_last)
    with pytest.raises(ZeroDivisionError):
        block(x)
    block(x.contiguous())  # channels first
    with torch.no_grad():
        block(x)
    copy.deepcopy(block).eval()(x)
    seen: list[Tensor] = []
    hook = block[1].register_forward_hook(lambda _, __, out: seen.append(out))
    block(x)
    assert seen[0].shape == (6, 32, 12, 20)
    hook.remove()
    with pytest.raises(ZeroDivisionError):
        block(x)


def test_running_statistics_follow_as_those_of_batchnorm() -> None:
    block = block_of(16, 8)
    usual = copy.deepcopy(block)
    x = 3 * torch.randn(SHAPE) + 10
    inside: list[Tensor] = []
    for layer in usual:
        assert isinstance(layer, DenseLayer)
        layer.conv1.register_forward_hook(lambda _, __, out: inside.append(out))
    y = usual(x)
    statistics = [
        torch.cat([one(of, (0, 2, 3)) for of in some]) for some in ([y], inside) for one in (torch.mean, variance)
    ]
    block._follow(statistics, 6 * 12 * 20)
    for (name, ours), (_, theirs) in zip(block.named_buffers(), usual.named_buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_a_block_is_as_built_until_it_is_changed_or_looked_at() -> None:
    def as_built(change: Callable[[DenseLayer], object]) -> bool:
        layer = block_of(16, 8, 1)[0]
        assert isinstance(layer, DenseLayer)
        change(layer)
        return all(map(dense._as_built, layer.modules()))

    assert as_built(lambda layer: None)
    assert not as_built(lambda layer: layer.norm2.eval())
    assert not as_built(lambda layer: layer.conv1.register_forward_hook(lambda *_: None))
    assert not as_built(lambda layer: layer.norm1.register_full_backward_hook(lambda *_: None))
    assert not as_built(lambda layer: setattr(layer, "norm1", nn.SyncBatchNorm(16)))
    assert not as_built(lambda layer: setattr(layer.norm1, "momentum", None))


def variance(x: Tensor, over: tuple[int, ...]) -> Tensor:
    return x.var(over, correction=0)


def test_on_a_cpu_a_dense_network_is_that_of_plain_layers() -> None:
    network = Architecture.named("densenet121", layers=(2, 2), growth=4, inputs=1).build()
    assert isinstance(network.stage1, DenseBlock)
    x = torch.randn(3, 1, 8, 8)
    plain = nn.Sequential(*network.stage1)
    kept = network.conv(x)
    torch.testing.assert_close(network.stage1(kept), plain(kept), rtol=0, atol=0)
