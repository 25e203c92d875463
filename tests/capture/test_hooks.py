"""Hooks: what they hand over, what they refuse, and that nothing stays."""

import pytest
import torch
from capture_networks import FNN, Beside, clouds, seeded
from torch import nn

import layerlaw as ll
from layerlaw.capture.batches import Batches
from layerlaw.capture.hooks import Capture
from layerlaw.capture.network import probing_state
from layerlaw.capture.site_rules import find_sites

X, Y = clouds(40, 12)


def captured(network: nn.Module, x: torch.Tensor = X, y: torch.Tensor = Y, **how: object) -> dict[str, torch.Tensor]:
    """Copies of what every site hands over for one batch."""
    found: dict[str, torch.Tensor] = {}
    (batch,) = Batches([(x, y)], batch_size=None, batchnorm="running", where="data")
    with probing_state(network, "running"):
        plan = find_sites(network, batch, choice=how.pop("sites", "layers"), **how)

        def consume(site, features):
            found[site.name] = features.clone()

        with Capture(network, plan, plan.sites, reduce="flatten", consume=consume) as capture:
            capture.run(batch, where="data, batch 0")
    assert hooks_of(network) == 0
    return found


def hooks_of(network: nn.Module) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._forward_hooks_with_kwargs) for m in network.modules()
    )


def test_sites_hand_over_what_a_manual_forward_shows() -> None:
    network = seeded(FNN)
    found = captured(network, sites=["layers", "logits"])
    x = X
    with torch.no_grad():
        for i, layer in enumerate(network.layers):
            assert torch.equal(found[f"layers.{i}"], x)
            x = layer(x).relu() if i < 3 else layer(x)
    assert torch.equal(found["logits"], x)


def test_features_leave_autocast_as_they_are_and_products_run_in_full_precision() -> None:
    network = seeded(FNN)
    enabled = []

    def consume(site, features):
        enabled.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))

    (batch,) = Batches([(X, Y)], batch_size=None, batchnorm="running", where="data")
    plan = find_sites(network, batch, choice="layers")
    with (
        torch.autocast("cpu", torch.bfloat16),
        Capture(network, plan, plan.sites, reduce="flatten", consume=consume) as c,
    ):
        c.run(batch, where="data")
    assert enabled == [(False, False)] * 4


def test_hooks_are_removed_after_an_exception_anywhere() -> None:
    class Breaks(FNN):
        def forward(self, x):
            if len(x) > 3:
                raise RuntimeError("too many")
            return super().forward(x)

    network = seeded(Breaks)
    with pytest.raises(ll.LayerlawError, match=r"the model failed in data, batch 0 \(inputs: .*RuntimeError: too many"):
        ll.probe(network, (X, Y), progress=False)
    assert hooks_of(network) == 0
    network = seeded(FNN)
    with pytest.raises(ll.LayerlawError, match="the model failed in the dry run with 2 samples"):
        ll.probe(network, (X[:, :5], Y), progress=False)
    assert hooks_of(network) == 0


def test_hooks_of_the_user_stay_and_are_seen() -> None:
    network = seeded(FNN)
    handle = network.layers[0].register_forward_hook(lambda m, args, output: output * 0 + 1)
    found = captured_keeping(network)
    assert torch.equal(found["layers.1"], torch.ones(40, 8))
    assert hooks_of(network) == 1
    handle.remove()


def captured_keeping(network: nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    (batch,) = Batches([(X, Y)], batch_size=None, batchnorm="running", where="data")
    plan = find_sites(network, batch, choice="layers")
    with Capture(
        network, plan, plan.sites, reduce="flatten", consume=lambda s, f: found.update({s.name: f.clone()})
    ) as c:
        c.run(batch, where="data")
    return found


def test_a_dry_run_that_fails_names_shapes_and_types() -> None:
    with pytest.raises(
        ll.LayerlawError,
        match=r"inputs: \(2, 12\) torch.float64\).*RuntimeError.*It takes inputs of float32: pass x.float\(\)",
    ):
        ll.sites(seeded(FNN), X.double())


def test_fewer_than_two_samples_are_too_few_for_a_dry_run() -> None:
    with pytest.raises(ll.LayerlawError, match=r"at least 2 samples in the first batch \(dry run\), got 1: pass more"):
        ll.sites(seeded(FNN), X[:1])


class Loops(nn.Module):
    """Calls its layer as often as the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(12, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        times = 3 if x[0, 0] > 100 else 2
        y = self.first(x).relu()
        for _ in range(times):
            y = self.again(y).relu()
        return self.last(y)


def test_a_call_count_that_varies_between_batches_is_told() -> None:
    other = X.clone()
    other[0, 0] = 1000
    for batches in ([(X, Y), (other, Y)], [(other, Y), (X, Y)]):
        with pytest.raises(
            ll.LayerlawError, match=r"module 'again' was called \d times in the dry run and \d times in data, batch 1"
        ):
            ll.probe(seeded(Loops), batches, progress=False)


def test_calls_that_depend_on_the_number_of_samples_are_told() -> None:
    class Depends(FNN):
        def forward(self, x):
            if len(x) == 3:
                self.layers[0](x)
            return super().forward(x)

    with pytest.raises(ll.LayerlawError, match="calls other modules for 3 samples than for 2"):
        ll.sites(seeded(Depends), X)


def test_a_site_that_hands_over_other_samples_is_told() -> None:
    class Drops(FNN):
        def forward(self, x):
            return super().forward(x if len(x) <= 3 else x[:-1])

    with pytest.raises(ll.LayerlawError, match=r"site 'layers.0': expected 40 samples, got features for 39"):
        ll.probe(seeded(Drops), [(X, Y)], progress=False)


def test_a_site_that_hands_over_no_tensor_any_more_is_told() -> None:
    class Fickle(nn.Module):
        def forward(self, x):
            return x * 1 if len(x) <= 3 else None

    with pytest.raises(
        ll.LayerlawError, match="site 'fickle': expected a floating-point tensor as in the dry run, got none"
    ):
        ll.probe(seeded(lambda: Beside(fickle=Fickle())), [(X, Y)], sites=["fickle"], progress=False)


def attached(network: nn.Module, x: torch.Tensor, *, sites: object = "layers", reduce: str = "flatten"):
    """The model's output and the features of every site, attached to the graph."""
    (batch,) = Batches([(x, Y[: len(x)])], batch_size=None, batchnorm="running", where="data")
    with probing_state(network, "running"):
        plan = find_sites(network, batch, choice=sites, reduce=reduce)
    found: dict[str, torch.Tensor] = {}

    def consume(site, features):
        assert not torch.is_autocast_enabled("cpu")
        found[site.name] = features

    with Capture(network, plan, plan.sites, reduce=reduce, consume=consume, gradients=True) as capture:
        output = capture.run(batch, where="data")
    return output, found


def gradients_of(loss: torch.Tensor, network: nn.Module) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(network.parameters()), allow_unused=True))


@pytest.mark.parametrize("autocast", [False, True])
def test_features_with_gradients_give_the_gradients_of_a_direct_forward(autocast: bool) -> None:
    network = seeded(FNN).train()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output, found = attached(network, X)
        loss = output.float().square().mean() + sum(f.float().square().mean() for f in found.values())
        x, direct = X, 0.0
        for layer in network.layers[:-1]:
            direct = direct + x.float().square().mean()
            x = layer(x).relu()
        direct = direct + x.float().square().mean() + network.layers[-1](x).float().square().mean()
    assert found["layers.1"].dtype == (torch.bfloat16 if autocast else torch.float32)
    assert torch.allclose(loss, direct, rtol=1e-6)
    for got, expected in zip(gradients_of(loss, network), gradients_of(direct, network), strict=True):
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-7)
    assert hooks_of(network) == 0


@pytest.mark.parametrize("reduce", ["flatten", "mean"])
def test_features_with_gradients_are_those_before_an_in_place_layer(reduce: str) -> None:
    network = seeded(
        nn.Sequential, nn.Conv2d(1, 4, 3), nn.Identity(), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 3)
    )
    x = X.repeat(1, 2)[:, :16].reshape(-1, 1, 4, 4)
    _, found = attached(network, x, sites=["1"], reduce=reduce)
    before = network[0](x)
    direct = before.flatten(1) if reduce == "flatten" else before.mean((2, 3))
    assert bool((before < 0).any())
    assert torch.equal(found["1"], direct)
    for got, expected in zip(
        gradients_of(found["1"].square().sum(), network), gradients_of(direct.square().sum(), network), strict=True
    ):
        assert (got is None) == (expected is None)
        assert got is None or torch.allclose(got, expected, rtol=1e-5)


def test_gradients_without_a_graph_are_refused() -> None:
    with torch.no_grad(), pytest.raises(ll.LayerlawError, match="expected gradients to be enabled"):
        attached(seeded(FNN), X)
