"""On a CUDA device, or one that is pretended: the numbers of the CPU, and everything back where it was."""

import pytest
import torch
from capture_networks import FNN, Encoder, Gated, InPlaceResNet, clouds, seeded
from torch import nn

import layerlaw as ll

pytestmark = pytest.mark.usefixtures("cuda")

X, Y = clouds(120, 3, 8, 8)
COLUMNS = ("separation", "nc1", "cdnv", "compression", "ncc_accuracy")


def assert_same(a: ll.Record, b: ll.Record, rel: float = 1e-4) -> None:
    for column in COLUMNS:
        assert a.column(column) == pytest.approx(b.column(column), rel=rel), column


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    torch.backends.cudnn.allow_tf32 = False


def probe(network: nn.Module, data: object, **how: object) -> ll.Record:
    return ll.probe(network, data, sites="layers", progress=False, **how)


@pytest.mark.parametrize("batchnorm", ["running", "batch"])
@pytest.mark.parametrize("memory", [2.0, 3e-4])
def test_a_model_sent_to_the_device_gives_the_numbers_of_the_cpu_and_comes_back(batchnorm: str, memory: float) -> None:
    network = seeded(InPlaceResNet)
    parameters = list(network.parameters())
    state = {name: value.clone() for name, value in network.state_dict().items()}
    how = {"batchnorm": batchnorm, "memory_gib": memory, "null": True, "test": (X[:60], Y[:60]), "batch_size": 40}
    there, here = probe(network, (X, Y), device="cuda", **how), probe(network, (X, Y), **how)
    assert_same(there, here)
    assert there.provenance["device"] == torch.cuda.get_device_name()
    assert here.provenance["device"] == "cpu"
    assert all(a is b for a, b in zip(parameters, network.parameters(), strict=True))
    for name, value in network.state_dict().items():
        assert value.device.type == "cpu"
        assert torch.equal(value, state[name])


@pytest.mark.filterwarnings("ignore:.*forwards over the data")
@pytest.mark.parametrize("uncertainty", [False, True])
def test_slices_on_the_device_give_the_numbers_of_the_cpu(uncertainty: bool) -> None:
    network, memory = seeded(InPlaceResNet), 3e-4 if uncertainty else 2e-5
    how = {"memory_gib": memory, "test": (X[:60], Y[:60]), "batch_size": 40, "uncertainty": uncertainty}
    there, here = probe(network, (X, Y), device="cuda", **how), probe(network, (X, Y), **how)
    assert any("in slices of the features" in note for note in there.notes)
    assert_same(there, here)


def test_data_follow_a_model_on_the_device_but_not_the_other_way_round() -> None:
    network = seeded(InPlaceResNet)
    expected = probe(network, (X, Y))
    assert_same(probe(network.cuda(), (X, Y)), expected)
    assert_same(probe(network, (X.cuda(), Y.cuda())), expected)
    assert_same(probe(network, (X.cuda(), Y)), expected)
    with pytest.raises(ll.LayerlawError, match=r"the model on cpu and the data on cuda:0.*device='cuda:0'"):
        probe(network.cpu(), (X.cuda(), Y))


def test_tf32_and_autocast_do_not_reach_the_statistics() -> None:
    network, x = seeded(FNN, (192, 8, 8, 3)).cuda(), 1e3 + X.flatten(1)
    expected = probe(network.cpu(), (x, Y)).column("separation")[0]
    network.cuda()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with torch.autocast("cuda", torch.bfloat16):
            found = probe(network, (x, Y)).column("separation")[0]
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert found == pytest.approx(expected, rel=1e-6)


def test_random_states_of_the_device_are_as_before() -> None:
    network = seeded(InPlaceResNet).cuda()
    state, here = torch.cuda.get_rng_state(), torch.get_rng_state()
    probe(network, (X, Y), null=True)
    ll.untrained(network)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.equal(torch.get_rng_state(), here)


def test_parameters_without_a_reset_are_redrawn_on_the_device() -> None:
    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(4, 5))

    network = Token().cuda()
    fresh = ll.untrained(network)
    assert fresh.token.device.type == "cuda"
    assert not torch.equal(fresh.token, network.token)


@pytest.mark.parametrize("reduce", ["flatten", "mean", "last"])
def test_masks_and_chosen_classes_work_on_the_device(reduce: str) -> None:
    x, y = clouds(60, 5, 8)
    padding = torch.arange(5) >= (2 + torch.arange(60) % 4)[:, None]
    data = [{"src": x, "src_key_padding_mask": padding, "labels": y}]
    network = seeded(Encoder, batch_first=True)
    how = {"reduce": reduce, "classes": [0, 2], "uncertainty": "jackknife"}
    assert_same(probe(network, data, device="cuda", **how), probe(network, data, **how), rel=1e-3)


def assert_same_parts(there: ll.Record, here: ll.Record, column: str = "separation") -> None:
    assert there.parts
    assert not [note for note in (*there.notes, *here.notes) if note.startswith("Parts at")]
    for a, b in zip(there.parts, here.parts, strict=True):
        assert (a.layer, a.kind, a.module, a.type, a.branch) == (b.layer, b.kind, b.module, b.type, b.branch)
        if not a.branch:  # the D of a gate has directions that are hardly more than rounding
            assert a.before[column] == pytest.approx(b.before[column], rel=1e-3), a
            assert a.values[column] == pytest.approx(b.values[column], rel=1e-3), a


@pytest.mark.parametrize("memory", [2.0, 3e-4])
def test_parts_and_the_best_linear_map_are_those_of_the_cpu(memory: float) -> None:
    network = seeded(InPlaceResNet)
    how = {"parts": True, "linear": memory > 1, "reduce": "mean", "memory_gib": memory, "batch_size": 40}
    there, here = probe(network, (X, Y), device="cuda", **how), probe(network, (X, Y), **how)
    if memory > 1:
        assert there.column("separation_linear") == pytest.approx(here.column("separation_linear"), rel=1e-3)
    assert_same_parts(there, here)


@pytest.mark.parametrize("skip", [True, False])
def test_parts_of_a_network_with_gates_are_those_of_the_cpu(skip: bool) -> None:
    network = seeded(Gated, skip)
    here = probe(network, (X, Y), parts=True)
    assert {part.kind for part in here.parts if not part.branch} >= {"map", "branches"}
    assert_same_parts(probe(network, (X, Y), parts=True, device="cuda"), here)
    assert_same_parts(probe(network.cuda(), (X.cuda(), Y.cuda()), parts=True), here)


@pytest.mark.parametrize("labels", [False, True])
def test_parts_of_targets_are_those_of_the_cpu(labels: bool) -> None:
    targets = X.mean((2, 3))
    data, network = (X, targets > 0 if labels else targets), seeded(Gated, False)
    there, here = probe(network, data, parts=True, device="cuda"), probe(network, data, parts=True)
    assert_same_parts(there, here, "target_separation")


TARGET_COLUMNS = (
    "target_separation", "test_target_separation", "target_separation_untrained", "target_separation_permuted",
    "target_separation_log_se",
)  # fmt: skip


@pytest.mark.parametrize("memory", [2.0, 3e-4])
@pytest.mark.parametrize("labels", [False, True])
def test_targets_on_the_device_give_the_numbers_of_the_cpu(memory: float, labels: bool) -> None:
    targets = X.mean((2, 3))
    data = (X, targets > 0 if labels else targets + 1990)
    how = {"memory_gib": memory, "null": True, "test": tuple(part[:60] for part in data), "batch_size": 40}
    network = seeded(InPlaceResNet)
    there, here = probe(network, data, device="cuda", **how), probe(network, data, **how)
    for column in TARGET_COLUMNS[: None if memory > 1 else 3]:
        assert there.column(column) == pytest.approx(here.column(column), rel=1e-4), column
    assert (there.accuracy, there.test_accuracy) == (here.accuracy, here.test_accuracy)
    if not labels:
        assert there.r_squared == pytest.approx(here.r_squared, rel=1e-4)
        assert there.test_r_squared == pytest.approx(here.test_r_squared, rel=1e-4)


def test_held_out_residuals_and_targets_on_the_device_are_those_of_the_cpu() -> None:
    x, targets = X.flatten(1)[:, :20], X.mean((2, 3))
    network = seeded(FNN, (20, 16, 16, 3))
    for y in (targets, targets > 0):
        here = probe(network.cpu(), (x, y), test=(x[:60], y[:60]))
        there = probe(network.cuda(), (x.cuda(), y.cuda()), test=(x[:60].cuda(), y[:60].cuda()))
        for column in ("residual", "residual_held_out", "test_residual", "target_separation"):
            assert there.column(column) == pytest.approx(here.column(column), rel=1e-3), column
        assert there.accuracy == here.accuracy
        assert there.classes == here.classes


def test_bad_labels_on_the_device_get_the_answers_of_the_cpu() -> None:
    network = seeded(FNN, (20, 16, 16, 3)).cuda()
    x = X.flatten(1)[:, :20].cuda()
    with pytest.raises(ll.LayerlawError, match="sum to 1, which are soft labels"):
        probe(network, (x, torch.randn(len(x), 3, device="cuda").softmax(1)))
    with pytest.raises(ll.LayerlawError, match=r"pass y.float\(\)"):
        probe(network, (x, torch.arange(len(x), device="cuda") - 7))
    x[3, 2] = torch.nan
    with pytest.raises(ll.LayerlawError, match="expected finite features, got NaN or infinity in data, batch 0"):
        probe(network, (x, Y.cuda()), parts=True)
