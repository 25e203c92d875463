"""A probe leaves everything as it was."""

import copy
import random

import numpy as np
import pytest
import torch
from capture_networks import Encoder, InPlaceResNet, clouds, seeded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll

X, Y = clouds(60, 3, 8, 8)


def hooks_of(network: nn.Module) -> list[int]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    kinds += ("_backward_hooks", "_backward_pre_hooks")
    return [len(getattr(module, kind)) for module in network.modules() for kind in kinds]


def snapshot(network: nn.Module) -> dict[str, object]:
    return {
        "training": [module.training for module in network.modules()],
        "parameters": {name: (id(p), p.detach().clone(), p.requires_grad) for name, p in network.named_parameters()},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in network.named_parameters()},
        "buffers": {name: (id(b), b.clone()) for name, b in network.named_buffers()},
        "hooks": hooks_of(network),
        "attributes": [set(vars(module)) for module in network.modules()],
        "momenta": [getattr(module, "momentum", None) for module in network.modules()],
        "tracking": [getattr(module, "track_running_stats", None) for module in network.modules()],
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "grad mode": torch.is_grad_enabled(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "python": random.getstate(),
    }


def assert_equal(before: object, after: object, where: str = "") -> None:
    if isinstance(before, torch.Tensor):
        assert torch.equal(before, after), where
    elif isinstance(before, dict):
        assert before.keys() == after.keys(), where
        for key in before:
            assert_equal(before[key], after[key], f"{where} {key}")
    elif isinstance(before, (tuple, list)):
        assert len(before) == len(after), where
        for i, (a, b) in enumerate(zip(before, after, strict=True)):
            assert_equal(a, b, f"{where} {i}")
    else:
        assert before == after, where


def trained() -> nn.Module:
    """Mixed flags, frozen parameters, gradients in place, buffers that are not fresh."""
    network = seeded(InPlaceResNet).train()
    network(X).sum().backward()
    network.layer1.eval()
    network.conv1.weight.requires_grad_(False)
    network.fc.bias.grad = None
    return network


@pytest.mark.parametrize("batchnorm", ["running", "batch"])
@pytest.mark.parametrize("memory", [2.0, 2e-4], ids=["kept", "grouped"])
def test_the_model_and_all_random_states_are_as_before(batchnorm: str, memory: float) -> None:
    network = trained()
    torch.manual_seed(3)
    before = snapshot(network)
    how = {"batchnorm": batchnorm, "memory_gib": memory, "test": (X[:30], Y[:30]), "null": True}
    ll.probe(network, (X, Y), sites=["layers", "logits"], batch_size=20, progress=False, **how)
    assert_equal(before, snapshot(network))


def test_an_exception_inside_the_forward_leaves_nothing_behind() -> None:
    class Breaks(nn.ReLU):
        calls = 0

        def forward(self, x):
            Breaks.calls += 1
            if Breaks.calls == self.stop:
                raise RuntimeError("stop here")
            return super().forward(x)

    for stop in (1, 6, 13):  # in the dry run, in pass 1, in pass 2 (called twice in each of 2, 3 and 3 forwards)
        network = trained()
        network.layer2[0].relu = Breaks()
        Breaks.stop, Breaks.calls = stop, 0
        before = snapshot(network)
        with pytest.raises((RuntimeError, ll.LayerlawError), match="stop here"):
            ll.probe(network, (X, Y), batchnorm="batch", memory_gib=3e-4, batch_size=20, progress=False)
        assert_equal(before, snapshot(network))


def test_an_encoder_keeps_its_fast_path() -> None:
    network = seeded(Encoder, batch_first=True).train()
    x, y = clouds(60, 5, 8)
    for enabled in (True, False):
        torch.backends.mha.set_fastpath_enabled(enabled)
        before = snapshot(network)
        ll.probe(network, (x, y), progress=False)
        assert_equal(before, snapshot(network))
    torch.backends.mha.set_fastpath_enabled(True)


def test_the_generators_of_train_and_test_loaders_are_as_before() -> None:
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    loaders = [DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True, generator=g) for g in generators]
    states = [g.get_state() for g in generators]
    ll.probe(trained(), loaders[0], test=loaders[1], progress=False)
    assert all(torch.equal(g.get_state(), state) for g, state in zip(generators, states, strict=True))


def test_data_stay_as_they_are() -> None:
    x, y = X.clone(), Y.clone()
    ll.probe(trained(), (x, y), progress=False)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_the_power_iteration_of_spectral_norm_does_not_move() -> None:
    def normed(a: int, b: int) -> nn.Module:
        return nn.utils.parametrizations.spectral_norm(nn.Linear(a, b))

    network = nn.Sequential(nn.Flatten(), normed(192, 8), nn.ReLU(), normed(8, 3)).train()
    before = snapshot(network)
    record = ll.probe(network, (X, Y), progress=False)
    assert_equal(before, snapshot(network))
    assert record.sites[-1].values["nc3"] is not None


def test_a_probe_goes_on_where_training_stopped() -> None:
    """Training with a probe in the middle gives the weights of training without it."""

    def weights(probed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True)
        for _ in range(3):
            for x, y in loader:
                loss = nn.functional.cross_entropy(network(x), y)
                loss.backward()
                if probed:
                    ll.probe(network, loader, progress=False)
                optimizer.step()
                optimizer.zero_grad()
        return [*network.parameters(), *network.buffers()]

    for a, b in zip(weights(False), weights(True), strict=True):
        assert torch.equal(a, b)


def test_a_copy_for_the_null_does_not_touch_the_model() -> None:
    network = trained()
    before = copy.deepcopy(network.state_dict())
    ll.probe(network, (X, Y), null=True, progress=False)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
