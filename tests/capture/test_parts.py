"""Which tensors bound the linear map, the normalization and the nonlinearity of a layer."""

from itertools import pairwise

import pytest
import torch
from capture_networks import Gated
from torch import nn
from torch.nn import functional as F

from layerlaw.capture.batches import Batches
from layerlaw.capture.parts import acts_alone
from layerlaw.capture.site_rules import find_sites
from layerlaw.errors import CaptureError


def parts_of(network: nn.Module, *shape: int, n: int = 64, **how):
    torch.manual_seed(0)
    x = torch.randn(n, *shape)
    batch = next(iter(Batches((x, torch.arange(n) % 3), batch_size=None, batchnorm="running", where="data")))
    with torch.no_grad():
        return find_sites(network.eval(), batch, choice="auto", parts=True, **how)


def told(plan) -> list[tuple[str, str, str]]:
    return [(part.layer, part.kind, part.module) for part in plan.parts]


def on_trunk(plan) -> list[tuple[str, str, str]]:
    return [(part.layer, part.kind, part.module) for part in plan.parts if not part.branch]


def test_a_plain_stack_has_three_parts_a_layer_and_the_classifier_none() -> None:
    net = nn.Sequential(
        nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3),
    )  # fmt: skip
    plan = parts_of(net, 20)
    assert told(plan) == [
        ("0", "map", "0"), ("0", "normalization", "1"), ("0", "nonlinearity", "2"),
        ("4", "map", "4"), ("4", "normalization", "5"), ("4", "nonlinearity", "6"),
    ]  # fmt: skip
    for one, after in zip(plan.parts, plan.parts[1:], strict=False):
        assert one.after == after.before  # no tensor is measured twice, none is left out
    assert len(plan.of_parts().sites) == 7
    assert not any(site.in_fit for site in plan.of_parts().sites)
    assert all(site.in_fit for site in plan.sites)


class Functional(nn.Module):
    def __init__(self, act, norm: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(20, 20) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(20) if norm else nn.Identity() for _ in range(2))
        self.fc, self.act = nn.Linear(20, 3), act

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.act(norm(layer(x)))
        return self.fc(x)


ACTS = {
    "relu": F.relu, "relu in place": lambda x: F.relu(x, inplace=True), "method": lambda x: x.relu(), "tanh": torch.tanh,
    "swish": lambda x: x * torch.sigmoid(x), "gelu": F.gelu, "clamp": lambda x: x.clamp(min=0), "leaky": F.leaky_relu,
    "abs": torch.abs, "hard": lambda x: F.hardtanh(x, -0.1, 0.1), "square": torch.square,
}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("norm", [True, False])
def test_a_functional_activation_is_what_happens_up_to_the_next_layer(act: str, norm: bool) -> None:
    plan = parts_of(Functional(ACTS[act], norm), 20)
    normalized = [("layers.0", "normalization", "norms.0")] * norm
    assert told(plan)[: 2 + norm] == [("layers.0", "map", "layers.0"), *normalized, ("layers.0", "nonlinearity", "")]
    assert plan.parts[-1].after.name == "fc (input)"
    assert plan.parts[-1].type == "functions"


def test_without_an_activation_there_is_no_nonlinearity() -> None:
    kinds = [kind for _, kind, _ in told(parts_of(Functional(lambda x: x), 20))]
    assert kinds == ["map", "normalization"] * 2
    scaled = [kind for _, kind, _ in told(parts_of(Functional(lambda x: 2 * x), 20))]
    assert scaled == ["map", "normalization", "other"] * 2


class Residual(nn.Module):
    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16)
        self.down, self.norm3 = nn.Conv2d(8, 16, 1, stride=2), nn.BatchNorm2d(16)
        self.relu = F.relu if functional else nn.ReLU(inplace=True)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = self.relu(self.norm(self.stem(x)))
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        x = self.relu(y + self.norm3(self.down(x)))
        return self.fc(x.mean((2, 3)))


def test_a_skip_connection_is_apart_from_the_activation_module_after_it() -> None:
    plan = parts_of(Residual(functional=False), 3, 8, 8)
    assert [(part.layer, part.kind, part.module) for part in plan.parts if part.branch] == [
        ("conv1", "map", "conv1"), ("conv1", "normalization", "norm1"), ("conv1", "nonlinearity", "relu#2"),
        ("conv2", "map", "conv2"), ("conv2", "normalization", "norm2"),
        ("down", "map", "down"), ("down", "normalization", "norm3"), ("down", "other", ""),
    ]  # fmt: skip
    assert on_trunk(plan) == [
        ("stem", "map", "stem"), ("stem", "normalization", "norm"), ("stem", "nonlinearity", "relu"),
        ("conv1", "branches", ""), ("conv1", "nonlinearity", "relu#3"), ("conv1", "other", ""),
    ]  # fmt: skip


def test_a_functional_activation_after_a_skip_connection_is_not_taken_for_a_nonlinearity_alone() -> None:
    plan = parts_of(Residual(functional=True), 3, 8, 8)
    found = told(plan)
    assert found[2] == ("stem", "nonlinearity", "")
    assert found[5] == ("conv1", "nonlinearity", "")
    assert found[-2] == ("down", "other", "")  # skip connection, activation and pooling in one
    assert ("conv2", "other", "") not in found  # the next layer reads another branch
    assert on_trunk(plan)[3:] == [("conv1", "branches", "")]


def test_gates_are_side_branches_whose_parts_are_not_of_the_trunk() -> None:
    plan = parts_of(Gated(skip=False), 3, 8, 8)
    assert on_trunk(plan) == [
        ("stem", "map", "stem"),
        ("blocks.0.conv", "map", "blocks.0.conv"), ("blocks.0.conv", "nonlinearity", "blocks.0.act"),
        ("blocks.0", "branches", ""),
        ("blocks.1.conv", "map", "blocks.1.conv"), ("blocks.1.conv", "nonlinearity", "blocks.1.act"),
        ("blocks.1", "branches", ""),
    ]  # fmt: skip
    inside = {part.module for part in plan.parts if part.branch}
    assert {"blocks.0.fc1", "blocks.0.fc2", "blocks.0.gate"} <= inside
    assert on_trunk(parts_of(Gated(skip=True), 3, 8, 8)) == [
        ("stem", "map", "stem"), ("blocks.0", "branches", ""), ("blocks.1", "branches", "")
    ]  # fmt: skip


class Excited(nn.Module):
    """A squeeze-and-excitation gate that is a module of its own, inside a block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.block = nn.ModuleDict({"dw": nn.Conv2d(16, 16, 3, padding=1), "project": nn.Conv2d(16, 16, 1)})
        self.block["se"] = nn.ModuleDict({"fc1": nn.Conv2d(16, 4, 1), "fc2": nn.Conv2d(4, 16, 1)})
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = self.block["dw"](self.stem(x).relu()).relu()
        gate = self.block["se"]["fc2"](self.block["se"]["fc1"](x.mean((2, 3), keepdim=True)).relu())
        return self.fc(self.block["project"](x * gate.sigmoid()).mean((2, 3)))


def test_a_gate_bears_the_name_of_the_module_that_holds_its_layers() -> None:
    parts = on_trunk(parts_of(Excited(), 3, 8, 8))
    assert [layer for layer, kind, _ in parts if kind == "branches"] == ["block.se"]


@pytest.mark.parametrize("skip", [True, False])
def test_the_parts_of_the_trunk_follow_each_other(skip: bool) -> None:
    trunk = [part for part in parts_of(Gated(skip), 3, 8, 8).parts if not part.branch]
    for one, after in pairwise(trunk):
        assert one.after == after.before
    assert (trunk[0].before.name, trunk[-1].after.name) == ("stem (input)", "fc (input)")


class Swish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sigmoid()

    def forward(self, x):
        return x * self.gate(x)


class Bend(nn.Module):
    def forward(self, x):
        return torch.where(x > 0.3, x, -0.1 * x)


class UnitLength(nn.Module):
    """A normalization whose name does not say so."""

    def forward(self, x):
        return x / x.square().mean(-1, keepdim=True).sqrt()


class NormAct(nn.BatchNorm1d):
    """One module that normalizes and activates, as some libraries have it."""

    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


@pytest.mark.parametrize("act", [Swish(), Bend(), nn.PReLU(), nn.Hardswish(), nn.Softplus()])
def test_modules_are_known_by_what_they_do(act: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(20, 16), UnitLength(), act, nn.Linear(16, 3))
    assert told(parts_of(net, 20)) == [("0", "map", "0"), ("0", "normalization", "1"), ("0", "nonlinearity", "2")]


def test_a_module_that_normalizes_and_activates_is_two_parts() -> None:
    net = nn.Sequential(nn.Linear(20, 16), NormAct(16), nn.Linear(16, 3))
    plan = parts_of(net, 20)
    assert told(plan) == [("0", "map", "0"), ("0", "normalization", "1"), ("0", "nonlinearity", "1.act")]
    assert plan.parts[1].after == plan.parts[2].before


def test_a_relu_that_gets_positive_numbers_alone_is_still_one() -> None:
    net = nn.Sequential(nn.Linear(20, 16), nn.Sigmoid(), nn.ReLU(), nn.Linear(16, 3))
    assert [part.type for part in parts_of(net, 20).parts] == ["Linear", "Sigmoid", "ReLU"]


def test_blocks_of_a_transformer_have_parts_that_follow_each_other() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation=F.gelu)

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.fc = layer, nn.Linear(16, 3)

        def forward(self, x):
            return self.fc(self.layer(x).mean(1))

    plan = parts_of(Tokens(), 5, 16)
    assert [(part.layer, part.kind, part.module) for part in plan.parts if part.branch] == [
        ("layer.self_attn", "other", "layer.self_attn"), ("layer.self_attn", "other", ""),
        ("layer.self_attn", "normalization", "layer.norm2"), ("layer.linear1", "map", "layer.linear1"),
        ("layer.linear1", "nonlinearity", ""), ("layer.linear2", "map", "layer.linear2"), ("layer.linear2", "other", ""),
    ]  # fmt: skip
    assert on_trunk(plan) == [("layer", "branches", "")]


class Dense(nn.Module):
    """A layer of one's own, with or without an activation inside."""

    def __init__(self, act) -> None:
        super().__init__()
        self.weight, self.act = nn.Parameter(torch.randn(20, 20) / 4), act

    def forward(self, x):
        return self.act(x @ self.weight)


def test_a_layer_that_activates_inside_is_no_linear_map() -> None:
    plain, bent = (nn.Sequential(Dense(act), nn.Tanh(), nn.Linear(20, 3)) for act in (lambda x: x, torch.relu))
    assert [part.kind for part in parts_of(plain, 20).parts] == ["map", "nonlinearity"]
    assert [part.kind for part in parts_of(bent, 20).parts] == ["other", "nonlinearity"]


def test_parts_need_a_layer_before_the_classifier() -> None:
    with pytest.raises(CaptureError, match="no weight layer before its classifier"):
        parts_of(nn.Sequential(nn.Flatten(), nn.Linear(20, 3)), 20)


def test_numbers_that_are_few_or_not_finite_tell_nothing() -> None:
    x = torch.linspace(-1, 1, 100).double()
    assert acts_alone(x, x.relu())
    assert not acts_alone(x[:10], x[:10].relu())
    assert not acts_alone(x, x.relu() / 0)
    assert not acts_alone(x, torch.zeros_like(x))
    assert not acts_alone(None, x)
