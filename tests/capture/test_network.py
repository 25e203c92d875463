"""The network while it is probed, and afterwards."""

import contextlib
import copy
import random

import numpy as np
import pytest
import torch
from capture_networks import FNN, InPlaceResNet, Pair, clouds, seeded
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import layerlaw as ll
from layerlaw.capture.modules import clean_name, modules_of
from layerlaw.capture.network import Randomness, device_of, network_of, placed, probing_state, recalibrating

X, Y = clouds(60, 12)


def same_numbers(a: ll.Record, b: ll.Record) -> bool:
    left, right = a.to_pandas(), b.to_pandas()
    return (
        left.drop(columns="site").equals(right.drop(columns="site")) and left["site"].tolist() == right["site"].tolist()
    )


def plain() -> ll.Record:
    return ll.probe(seeded(FNN), (X, Y), progress=False)


def refuse(graph: object, inputs: object) -> None:
    """A compiler that must not be called."""
    raise AssertionError("compiled while probing")


def test_data_parallel_is_unwrapped() -> None:
    assert same_numbers(ll.probe(nn.DataParallel(seeded(FNN)), (X, Y), progress=False), plain())


def test_a_compiled_model_runs_eagerly_with_the_same_numbers() -> None:
    assert same_numbers(ll.probe(torch.compile(seeded(FNN), backend=refuse), (X, Y), progress=False), plain())


def test_a_model_that_has_already_run_compiled_is_observed() -> None:
    model = torch.compile(seeded(FNN), backend="eager")
    model(X)
    assert same_numbers(ll.probe(model, (X, Y), progress=False), plain())


def test_a_model_compiled_in_place_runs_eagerly_with_the_same_numbers() -> None:
    network = seeded(FNN)
    network.compile(backend=refuse)
    network.layers[1].compile(backend=refuse)
    assert same_numbers(ll.probe(network, (X, Y), progress=False), plain())


def test_compiled_parts_count_once_and_keep_their_names() -> None:
    network = seeded(FNN)
    network.layers[1] = torch.compile(network.layers[1], backend=refuse)
    assert same_numbers(ll.probe(network, (X, Y), progress=False), plain())
    blocks = nn.Sequential(Pair(), Pair(), Pair(), nn.Linear(6, 3))
    expected = ll.sites(blocks, clouds(6, 6)[0])
    for i in range(3):
        blocks[i] = torch.compile(blocks[i], backend=refuse)
    found = ll.sites(blocks, clouds(6, 6)[0])
    assert found == expected
    assert found.why == "auto: 3 blocks of type Pair"


def test_wrappers_leave_no_trace_in_names() -> None:
    assert clean_name("_orig_mod") == ""
    assert clean_name("a._fsdp_wrapped_module.b._checkpoint_wrapped_module") == "a.b"
    assert clean_name("a._orig_module.b") == "a._orig_module.b"
    inner = nn.Linear(2, 2)
    assert modules_of(nn.Sequential(torch.compile(inner, backend=refuse)))["0"] is inner


def test_checkpointed_parts_count_once() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    network = seeded(FNN)
    network.layers[1] = checkpoint_wrapper(network.layers[1])
    assert same_numbers(ll.probe(network, (X, Y), progress=False), plain())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_models_are_refused_also_inside_others() -> None:
    scripted = torch.jit.script(nn.Linear(12, 3))
    for model in (scripted, nn.DataParallel(scripted), torch.jit.trace(FNN(), X)):
        with pytest.raises(
            ll.LayerlawError, match=r"expected a plain nn.Module, got a TorchScript model: its inner calls"
        ):
            ll.probe(model, (X, Y))
    with pytest.raises(ll.LayerlawError, match="got the TorchScript module '0' inside"):
        ll.sites(nn.Sequential(scripted, nn.ReLU()), X)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ll.LayerlawError, match=r"expected an nn.Module, got function"):
        ll.probe(lambda x: x, (X, Y))


def test_lazy_modules_are_refused_and_stay_lazy() -> None:
    network = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 3))
    with pytest.raises(ll.LayerlawError, match=r"weights in place, got a lazy one \('0.weight'\): run one batch"):
        ll.sites(network, X)
    assert isinstance(network[0].weight, nn.parameter.UninitializedParameter)


def test_a_model_on_the_meta_device_is_refused() -> None:
    with pytest.raises(ll.LayerlawError, match="got one on the meta device, which holds none"):
        ll.probe(FNN().to("meta"), (X, Y))


def test_a_device_that_is_not_there_is_refused_before_the_model_is_moved() -> None:
    network = seeded(FNN)
    for device in ("meta", "no_such_thing", *(["cuda"] if not torch.cuda.is_available() else [])):
        with pytest.raises(ll.LayerlawError, match=f"device: cannot compute on '{device}'"):
            ll.probe(network, (X, Y), device=device)
    assert device_of(network) == torch.device("cpu")
    with pytest.raises(ll.LayerlawError, match=r"'cuda:0' that is there\. torch knows no device of this name\.$"):
        ll.probe(network, (X, Y), device="gpu")
    with pytest.raises(ll.LayerlawError, match=r"torch says: Cannot copy out of meta tensor; no data\.$"):
        ll.probe(network, (X, Y), device="meta")


def test_a_placed_network_comes_back() -> None:
    network = seeded(FNN)
    parameters = list(network.parameters())
    with placed(network, "cpu") as device:
        assert device == torch.device("cpu")
    assert all(a is b for a, b in zip(parameters, network.parameters(), strict=True))
    with placed(nn.Flatten(), None) as device:
        assert device is None


def test_the_state_is_restored_module_by_module_also_after_an_exception() -> None:
    network = InPlaceResNet().train()
    network.layer1.eval()
    flags = [module.training for module in network.modules()]
    buffers = copy.deepcopy(dict(network.named_buffers()))
    for batchnorm in ("running", "batch"):
        with contextlib.suppress(ZeroDivisionError), probing_state(network, batchnorm):
            network(clouds(6, 3, 8, 8)[0])
            assert [m for m in network.modules() if m.training] == [
                m for m in network.modules() if batchnorm == "batch" and isinstance(m, nn.BatchNorm2d)
            ]
            assert not torch.is_grad_enabled()
            raise ZeroDivisionError
        assert [module.training for module in network.modules()] == flags
        assert torch.is_grad_enabled()
        assert all(module.track_running_stats for module in network.modules() if isinstance(module, nn.BatchNorm2d))
        for name, buffer in network.named_buffers():
            assert torch.equal(buffer, buffers[name])


def test_buffers_that_a_forward_writes_are_put_back() -> None:
    class Counter(FNN):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("written", torch.zeros(1))
            self.register_buffer("replaced", torch.zeros(1))

        def forward(self, x):
            self.written += 1
            self.replaced = self.replaced + 1
            return super().forward(x)

    network = seeded(Counter)
    written, replaced = network.written, network.replaced
    ll.probe(network, (X, Y), progress=False)
    assert network.written is written
    assert network.replaced is replaced
    assert float(written) == float(replaced) == 0


def test_overridden_train_and_eval_are_not_called() -> None:
    class Merging(FNN):
        def train(self, batchnorm: bool = True):
            assert batchnorm, "eval() merges weights here"
            return super().train(batchnorm)

    network = seeded(Merging)
    assert same_numbers(ll.probe(network, (X, Y), progress=False), plain())
    assert network.training


def test_inference_mode_around_the_probe_or_inside_the_model_changes_nothing() -> None:
    class Decorated(FNN):
        @torch.inference_mode()
        def forward(self, x):
            return super().forward(x)

    for memory in (2.0, 1e-5):
        expected = ll.probe(seeded(FNN), (X, Y), memory_gib=memory, progress=False)
        assert same_numbers(ll.probe(seeded(Decorated), (X, Y), memory_gib=memory, progress=False), expected)
        with torch.inference_mode():
            assert same_numbers(ll.probe(seeded(FNN), (X.clone(), Y), memory_gib=memory, progress=False), expected)
    network = nn.Sequential(nn.Linear(12, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    with torch.inference_mode():
        assert [site.name for site in ll.sites(network, X, sites="layers").sites] == ["0", "2"]


def test_every_generator_of_a_loader_is_rewound() -> None:
    generators = [torch.Generator().manual_seed(i) for i in range(3)]
    dataset = TensorDataset(X, Y)
    loaders = [
        DataLoader(dataset, shuffle=True, generator=generators[0]),
        DataLoader(dataset, sampler=RandomSampler(dataset, generator=generators[1])),
        DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset, generator=generators[2]), 4, False)),
    ]
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    states = [g.get_state() for g in generators]
    with Randomness(*loaders):
        first = [next(iter(loader))[1] for loader in loaders]
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    assert all(torch.equal(g.get_state(), s) for g, s in zip(generators, states, strict=True))
    assert all(torch.equal(next(iter(loader))[1], y) for loader, y in zip(loaders, first, strict=True))
    torch.manual_seed(5)
    with Randomness():
        a = torch.rand(3)
    assert torch.equal(torch.rand(3), a)


def test_an_untrained_copy_is_fresh_and_the_model_is_left_alone() -> None:
    network = InPlaceResNet()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(7.0)
    state = torch.get_rng_state()
    fresh, again, other = ll.untrained(network), ll.untrained(network), ll.untrained(network, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all((p == 7).all() for p in network.parameters())
    assert all(not (p == 7).any() for p in fresh.parameters())
    assert all(torch.equal(p, q) for p, q in zip(fresh.parameters(), again.parameters(), strict=True))
    assert not torch.equal(fresh.fc.weight, other.fc.weight)
    assert torch.equal(fresh.bn1.weight, torch.ones(4))


@pytest.mark.parametrize("norm", ["new", "old"])
def test_normalized_weights_are_redrawn_too(norm: str) -> None:
    layer = nn.Linear(6, 4)
    if norm == "new":
        layer = nn.utils.parametrizations.weight_norm(layer)
    else:
        with pytest.warns(FutureWarning, match="weight_norm"):
            layer = nn.utils.weight_norm(layer)
    with torch.no_grad():
        layer(clouds(6, 6)[0])
    before = layer.weight.detach().clone()
    fresh = ll.untrained(layer)
    fresh(clouds(6, 6)[0])
    assert not torch.isclose(fresh.weight, before).any()
    assert torch.isfinite(fresh.weight).all()


def test_parameters_without_a_reset_get_noise_of_their_own_size() -> None:
    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.gain = nn.Parameter(5 * torch.randn(40, 50)), nn.Parameter(torch.full((3,), 2.0))
            self.zero = nn.Parameter(torch.zeros(1, 1))

    network = seeded(Token)
    fresh = ll.untrained(network)
    assert float(fresh.token.detach().std()) == pytest.approx(5, rel=0.1)
    assert not torch.equal(fresh.token, network.token)
    assert torch.equal(fresh.gain, network.gain)
    assert not fresh.zero.any()


def test_recalibrated_batch_norm_averages_the_batches() -> None:
    norm = nn.BatchNorm1d(12).eval()
    with torch.no_grad(), recalibrating(norm):
        for part in torch.split(X, 20):
            norm(part)
    parts = [part.double().numpy() for part in torch.split(X, 20)]
    assert norm.running_mean.numpy() == pytest.approx(np.mean([p.mean(0) for p in parts], 0), abs=1e-6)
    assert norm.running_var.numpy() == pytest.approx(np.mean([p.var(0, ddof=1) for p in parts], 0), rel=1e-5)
    assert (norm.momentum, norm.training) == (0.1, False)


def test_a_distributed_wrapper_is_unwrapped(tmp_path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        network = seeded(FNN)
        assert network_of(torch.compile(nn.parallel.DistributedDataParallel(network), backend=refuse)) is network
    finally:
        dist.destroy_process_group()
