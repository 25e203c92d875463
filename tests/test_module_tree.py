"""One walk over a network finds what torch's own generators find."""

import pytest
import torch
from torch import nn

from layerlaw.module_tree import buffers_in, class_of, named, parameters_in, walk


class Shared(nn.Module):
    """Modules, parameters and buffers that are there twice, and some that are not there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.first = nn.Sequential(nn.Linear(3, 3), self.norm, nn.Sequential())
        self.tied = nn.Linear(3, 3, bias=False)
        self.tied.weight = self.first[0].weight  # type: ignore[assignment]
        self.again = self.first
        self.register_module("none", None)
        self.register_buffer("mean", self.norm.running_mean)
        self.register_buffer("empty", None)
        self.list = nn.ModuleList([self.tied, nn.ReLU()])


NETWORKS = {
    "shared": Shared,
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU()), nn.Linear(2, 2)),
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False),
    "leaf": nn.ReLU,
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", NETWORKS)
def test_modules_parameters_and_buffers_are_those_of_torch_in_its_order(kind: str) -> None:
    network = NETWORKS[kind]()
    modules = walk(network)
    if kind != "scripted":  # of those torch makes new objects whenever it is asked
        assert [id(module) for module in modules] == [id(module) for module in network.modules()]
        assert {k: id(v) for k, v in named(network).items()} == {k: id(v) for k, v in network.named_modules()}
        assert list(named(network)) == [name for name, _ in network.named_modules()]
    assert [p.data_ptr() for p in parameters_in(modules)] == [p.data_ptr() for p in network.parameters()]
    assert [b.data_ptr() for b in buffers_in(modules)] == [b.data_ptr() for b in network.buffers()]


def test_a_module_that_holds_itself_is_found_once() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    network._modules["self"] = network
    assert len(walk(network)) == len(named(network)) == 2


def test_only_a_class_that_torch_made_to_shard_another_has_the_name_of_that_one() -> None:
    class FSDPLinear(nn.Linear):
        """Of a user."""

    class FSDPShared(Shared, nn.Module):
        """Of two classes, the second of which its name does not end with."""

    assert class_of(FSDPLinear(2, 2)) is FSDPLinear
    assert class_of(FSDPShared()) is FSDPShared
    assert class_of(nn.DataParallel(nn.ReLU())) is nn.DataParallel
    made = type("FSDPLinear", (FSDPLinear, nn.Linear), {"__module__": "torch.distributed.fsdp"})
    assert class_of(made(2, 2)) is nn.Linear
