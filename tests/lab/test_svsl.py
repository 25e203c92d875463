"""SVSL: value and gradient against direct autograd, one forward, and every way in which a loop may run it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from svsl_parts import NAMES, SmallNet, batch, direct, features_of, gradients, penalty
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import layerlaw as ll
from layerlaw.errors import CaptureError, FeatureError, InputError, LabelError
from layerlaw.lab import CrossEntropy, Recipe, Samples, Shape, VariabilityCrossEntropy, sweep, variability

HERE = Path(__file__).resolve().parent
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(params=["operations", "kernels"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals as on a CPU, and by the kernels for a GPU (TRITON_INTERPRET=1 where Triton is installed)."""
    if request.param == "kernels":
        by_kernels(monkeypatch)


def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1" or variability._kernels() is None:
        pytest.skip("needs Triton, and TRITON_INTERPRET=1")
    monkeypatch.setattr(variability, "KERNELS", {"cpu"})


def network(dtype: torch.dtype = torch.float64) -> SmallNet:
    torch.manual_seed(0)
    return SmallNet().to(dtype)


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor], **how: float) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, **how)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("reduction", ["paper", "authors"])
def test_value_and_gradient_are_those_of_direct_autograd(reduction: str) -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES), reduction=reduction)
    found, expected = loss(net(x), y), direct(features_of(net, x), y, 0.3, reduction)
    torch.testing.assert_close(found, expected, **TIGHT)
    assert_equal(gradients(found, net), gradients(expected, net), **TIGHT)
    assert loss.sites == list(NAMES)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("means", ["batch", "moving"])
def test_images_whose_channels_lie_side_by_side_give_the_same(means: str) -> None:
    """Of batch means the order of the features does not matter, and none is made; others are kept in one order."""
    net, other, (x, y) = network(), network(), batch()
    other.conv1.register_forward_hook(lambda *call: call[-1].contiguous(memory_format=torch.channels_last))
    plain, there = (ll.SVSL(one, alpha=0.3, sites=["conv1"], means=means) for one in (net, other))
    for _ in range(2):
        found, expected = there(other(x), y), plain(net(x), y)
        torch.testing.assert_close(found, expected, **TIGHT)
        assert_equal(gradients(found, other), gradients(expected, net), **TIGHT)
    if means == "moving":
        torch.testing.assert_close(there.criterion.means["conv1"], plain.criterion.means["conv1"], **TIGHT)


@pytest.mark.usefixtures("both_ways")
def test_many_classes_and_large_batches() -> None:
    torch.manual_seed(0)
    y = torch.randint(70, (600,))
    for n, classes in ((600, 9), (300, 70), (500, 64)):
        x = torch.randn(n, 33, dtype=torch.float64, requires_grad=True)
        here = y[:n] % classes
        criterion = variability.VariabilityCriterion(variability.PenaltySettings(0.7, reduction="authors"))
        found, expected = criterion.penalty({"a": x}, here, classes), penalty([x], here, 0.7, classes)
        torch.testing.assert_close(found, expected, **TIGHT)
        assert_equal(torch.autograd.grad(found, x), torch.autograd.grad(expected, x), **TIGHT)


@pytest.mark.parametrize("reduction", ["paper", "authors"])
def test_moving_means_are_constants_that_follow_the_batches(reduction: str) -> None:
    net = network()
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES), reduction=reduction, means="moving", momentum=0.1)
    means: list[dict[int, torch.Tensor]] = [{} for _ in NAMES]
    for seed in range(3):
        x, y = batch(seed=seed)
        y = y if seed < 2 else (y + 1) % 4  # class 3 comes later
        features = features_of(net, x)
        for known, g in zip(means, features, strict=True):
            for c in y.unique().tolist():
                now = g[y == c].mean(0).detach()
                known[c] = now if c not in known else 0.9 * known[c] + 0.1 * now
        expected = direct(features, y, 0.3, reduction, means=means)
        found = loss(net(x), y)
        torch.testing.assert_close(found, expected, **TIGHT)
        assert_equal(gradients(found, net), gradients(expected, net), **TIGHT)


@pytest.mark.parametrize("reduction", ["paper", "authors"])
def test_means_of_the_whole_set_are_measured_once(reduction: str) -> None:
    net, (x, y) = network(), batch()
    xs = torch.randn(40, 1, 8, 8, dtype=torch.float64)
    ys = torch.arange(40) % 4
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES), reduction=reduction, means="whole")
    loss.measure_means((xs, ys), batch_size=7)
    with torch.no_grad():
        means = [torch.stack([g[ys == c].mean(0) for c in range(4)]) for g in features_of(net, xs)]
    found, expected = loss(net(x), y), direct(features_of(net, x), y, 0.3, reduction, means=means)
    torch.testing.assert_close(found, expected, **TIGHT)
    assert_equal(gradients(found, net), gradients(expected, net), **TIGHT)


@pytest.mark.usefixtures("both_ways")
def test_the_gradient_agrees_with_differences() -> None:
    from layerlaw.lab.variability import PenaltySettings, VariabilityCriterion

    criterion = VariabilityCriterion(PenaltySettings(0.7))
    y = torch.tensor([0, 1, 0, 2, 1])
    g = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: criterion.penalty({"a": v, "b": v.sin()}, y, 4), (g,))


@pytest.mark.usefixtures("both_ways")
def test_single_samples_and_absent_classes_add_exactly_nothing() -> None:
    net, (x, _) = network(torch.float32), batch(4, dtype=torch.float32)
    y = torch.arange(4)
    found = ll.SVSL(net, alpha=5.0)(net(x), y)
    assert torch.equal(found, F.cross_entropy(net(x), y))


def test_near_collapse_kernels_have_the_digits_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    y = torch.arange(96) % 7
    wide = 100 * torch.randn(7, 500, dtype=torch.float64)[y] + 0.1 * torch.randn(96, 500, dtype=torch.float64)
    x = wide.float().requires_grad_()
    exact = x.detach().double().requires_grad_()
    criterion = variability.VariabilityCriterion(variability.PenaltySettings(1.0, reduction="authors"))
    expected = criterion.penalty({"site": exact}, y, 7)
    expected.backward()
    by_kernels(monkeypatch)
    found = criterion.penalty({"site": x}, y, 7)
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=2e-5)  # 100 / 0.1 · 6e-8
    assert (x.grad - exact.grad).norm() < 2e-4 * exact.grad.norm()


@pytest.mark.usefixtures("both_ways")
def test_one_class_in_the_batch_is_defined() -> None:
    net, (x, _) = network(), batch()
    y = torch.full((12,), 3)
    found = ll.SVSL(net, alpha=0.3, sites=list(NAMES), reduction="authors")(net(x), y)
    torch.testing.assert_close(found, direct(features_of(net, x), y, 0.3, "authors"), **TIGHT)


@pytest.mark.usefixtures("both_ways")
def test_the_first_site_leaves_out_those_before_and_c_is_the_number_of_logits() -> None:
    net, (x, y) = network(), batch()
    found = ll.SVSL(net, alpha=0.3, sites=list(NAMES), first="conv2", reduction="authors")(net(x), y)
    expected = direct(features_of(net, x)[1:], y, 0.3, "authors")
    torch.testing.assert_close(found, expected, **TIGHT)


@pytest.mark.usefixtures("both_ways")
def test_a_rule_takes_the_logits_and_leaves_out_what_cannot_learn() -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3, reduction="authors")
    found = loss(net(x), y)
    assert loss.sites == ["conv1", "conv2", "fc", "logits"]  # what enters the layers; the raw input is no penalty
    a, b, logits = features_of(net, x)
    torch.testing.assert_close(
        found, direct([F.relu(a), F.relu(b), logits], y, 0.3, "authors"), **TIGHT
    )  # m = 3: the raw input does not count
    for parameter in net.conv1.parameters():
        parameter.requires_grad_(False)
    frozen = ll.SVSL(net, alpha=0.3, reduction="authors")
    torch.testing.assert_close(frozen(net(x), y), direct([F.relu(b), logits], y, 0.3, "authors"), **TIGHT)


def test_a_first_batch_of_one_sample_asks_for_an_example() -> None:
    x, y = batch()
    model = network()
    loss = ll.SVSL(model, alpha=1.0)
    with pytest.raises(
        CaptureError, match=r"2 samples in the first forward \(dry run\), got 1\. Pass a few inputs as example="
    ):
        loss(model(x[:1]), y[:1])
    loss = ll.SVSL(model, alpha=1.0, example=x)
    logits = model(x[:1])
    torch.testing.assert_close(loss(logits, y[:1]), F.cross_entropy(logits, y[:1]))


def test_a_first_site_without_gradient_is_told_once() -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3, first="conv1", reduction="authors")
    with pytest.warns(UserWarning, match=r"first='conv1' carries no gradient .*: features are pulled from 'conv2' on"):
        found = loss(net(x), y)
    assert torch.equal(loss(net(x), y), found)


def test_the_loss_shows_its_settings() -> None:
    net, (x, _) = network(), batch()
    loss = ll.SVSL(net, alpha=1e-5, reduction="authors")
    assert repr(loss) == "SVSL(alpha=1e-05, reduction='authors', sites=['auto', 'logits'])"
    net(x)
    assert "sites=['conv2', 'fc', 'logits']" in repr(loss)  # what enters conv1 is the raw input


def test_the_loss_shows_the_sites_that_the_penalty_acts_on() -> None:
    net, (x, y) = network(), batch()
    given = ll.SVSL(net, alpha=0.3, example=x, first="conv2")
    assert repr(given).endswith("sites=['conv2', 'fc', 'logits'])")
    for parameter in net.conv1.parameters():
        parameter.requires_grad_(False)
    loss = ll.SVSL(net, alpha=0.3)
    for _ in range(2):
        loss(net(x), y)
        assert repr(loss).endswith("sites=['fc', 'logits'])")
        assert loss.sites == ["conv1", "conv2", "fc", "logits"]  # where it looks
    net.requires_grad_(True)
    loss(net(x), y)
    assert repr(loss).endswith("sites=['conv2', 'fc', 'logits'])")


def trained(loss_of, dtype: torch.dtype = torch.float32, steps: int = 4) -> list[torch.Tensor]:
    net = network(dtype)
    net.add_module("drop", nn.Dropout(0.5))
    torch.manual_seed(5)
    criterion = loss_of(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for seed in range(steps):
        x, y = batch(seed=seed, dtype=dtype)
        optimizer.zero_grad()
        criterion(net.drop(net(x)), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def test_alpha_zero_is_plain_training_bit_for_bit() -> None:
    plain = trained(lambda net: F.cross_entropy)
    assert all(torch.equal(a, b) for a, b in zip(trained(lambda net: ll.SVSL(net, alpha=0.0)), plain, strict=True))
    pulled = trained(lambda net: ll.SVSL(net, alpha=1e-2))
    assert not torch.equal(pulled[0], plain[0])


def test_before_its_start_it_is_plain_training_too_and_the_dry_run_draws_no_random_numbers() -> None:
    plain = trained(lambda net: F.cross_entropy, steps=3)
    late = trained(lambda net: ll.SVSL(net, alpha=1e-2, start=3), steps=3)
    assert all(torch.equal(a, b) for a, b in zip(late, plain, strict=True))
    assert not torch.equal(trained(lambda net: ll.SVSL(net, alpha=1e-2, start=2), steps=3)[0], plain[0])
    tiny = trained(lambda net: ll.SVSL(net, alpha=1e-30), torch.float64, steps=3)
    for a, b in zip(tiny, trained(lambda net: F.cross_entropy, torch.float64, steps=3), strict=True):
        torch.testing.assert_close(a, b, **TIGHT)  # the same dropout masks


def test_the_terminal_phase_begins_after_an_epoch_of_right_decisions() -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES), start="terminal")
    assert torch.equal(loss(net(x), y), F.cross_entropy(net(x), y))
    loss.reset()
    assert not loss.end_epoch()
    right = net(x).argmax(1)
    loss(net(x), right)
    assert loss.end_epoch()
    torch.testing.assert_close(loss(net(x), y), direct(features_of(net, x), y, 0.3, "paper"), **TIGHT)
    other = ll.SVSL(network(), alpha=0.3, start="terminal")
    assert [other.end_epoch(a) for a in (0.9, 0.995, 0.5)] == [False, True, True]
    assert ll.SVSL(network(), alpha=0.3).end_epoch()  # it counts from the first step on
    assert not ll.SVSL(network(), alpha=0.3, start=1).end_epoch()


def test_a_learned_alpha_settles_where_the_penalty_has_the_size_that_was_named() -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=1e-3, sites=list(NAMES), learn_alpha=0.2)
    optimizer = torch.optim.SGD(loss.parameters(), lr=1.0)
    for _ in range(60):
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
    features = features_of(net, x)
    size = direct(features, y, loss.alpha, "paper") - F.cross_entropy(features[-1], y)
    assert float(size.detach()) == pytest.approx(0.2, rel=1e-3)
    assert [p.shape for p in loss.parameters()] == [torch.Size([])]  # the network's are not its own


@pytest.mark.usefixtures("both_ways")
def test_under_autocast_statistics_are_in_float32() -> None:
    net, (x, y) = network(torch.float32), batch(dtype=torch.float32)
    seen = {}
    handles = [net.get_submodule(n).register_forward_hook(lambda m, a, o, n=n: seen.update({n: o.detach().clone()}))
               for n in NAMES]  # fmt: skip
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES), reduction="authors", example=x)
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(x)
        found = loss(logits, y)
    assert logits.dtype == torch.bfloat16
    features = [seen[name].double().flatten(1).requires_grad_() for name in NAMES]
    expected = direct(features, y, 0.3, "authors")
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)  # bfloat16 statistics would be off by 1e-3
    found.backward()
    assert all(p.grad.dtype == torch.float32 and bool(p.grad.isfinite().all()) for p in net.parameters())
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("where", ["whole", "part"])
def test_gradient_checkpointing_changes_nothing(where: str) -> None:
    net, (x, y) = network(), batch()

    class Outer(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.inner, self.reentrant = net, reentrant

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if where == "whole":
                return checkpoint(self.inner, x, use_reentrant=self.reentrant)
            a = checkpoint(lambda v: net.relu(net.conv1(v)), x, use_reentrant=self.reentrant)
            return net.fc(net.relu(net.conv2(a)).flatten(1))

    names = [f"inner.{name}" for name in NAMES]
    outer = Outer(reentrant=False)
    loss = ll.SVSL(outer, alpha=0.3, sites=names)
    for _ in range(2):
        found, expected = loss(outer(x), y), direct(features_of(net, x), y, 0.3, "paper")
        torch.testing.assert_close(found, expected, **TIGHT)
        net.zero_grad()
        found.backward()
        assert_equal([p.grad for p in net.parameters()], gradients(expected, net), **TIGHT)
    outer = Outer(reentrant=True)
    again = ll.SVSL(outer, alpha=0.3, sites=names)
    message = r"^Site '.*' carries no gradient: .*checkpointing\. Use torch\.utils\.checkpoint with use_reentrant=False"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of the dry run without gradients
        with pytest.raises(CaptureError, match=message):
            again(outer(x.requires_grad_()), y)
        again.remove()
        by_rule = ll.SVSL(outer, alpha=0.3)
        with pytest.raises(CaptureError, match=message):  # it would learn: not just left out
            by_rule(outer(x), y)


class Encoded(nn.Module):
    """A frozen part that runs in no_grad mode, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            h = self.enc(x)
        return self.head(h)


def test_a_rule_leaves_out_what_runs_in_no_grad_mode() -> None:
    torch.manual_seed(0)
    net, x, y = Encoded().double(), torch.randn(12, 10).double(), batch()[1]
    loss = ll.SVSL(net, alpha=0.3, reduction="authors")
    found = loss(net(x), y)
    assert loss.sites == ["enc.0", "enc.2", "head.0", "head.2", "logits"]
    hidden = F.relu(net.head[0](net.enc(x).detach()))
    torch.testing.assert_close(found, direct([hidden, net.head[2](hidden)], y, 0.3, "authors"), **TIGHT)
    found.backward()
    named = ll.SVSL(net, alpha=0.3, sites=["enc.0", "head.0"])
    message = (
        r"^Site 'enc\.0' carries no gradient: the model runs it in no_grad mode\. Choose sites behind it, or a rule"
    )
    with pytest.raises(CaptureError, match=message):
        named(net(x), y)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile's own
@pytest.mark.parametrize("whole", [True, False])
def test_compiled_networks_give_the_same_loss(whole: bool) -> None:
    net, (x, y) = network(), batch()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=whole)
    loss = ll.SVSL(compiled, alpha=0.3, sites=list(NAMES), example=x if whole else None)
    for _ in range(3):
        found, expected = loss(compiled(x), y), direct(features_of(net, x), y, 0.3, "paper")
        torch.testing.assert_close(found, expected, **TIGHT)
        assert_equal(gradients(found, net), gradients(expected, net), **TIGHT)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_loss_made_after_the_first_call_of_a_compiled_network_says_what_to_do() -> None:
    net, (x, y) = network(), batch()
    compiled = torch.compile(net, backend="aot_eager")
    compiled(x)
    loss = ll.SVSL(compiled, alpha=0.3, sites=list(NAMES))
    with pytest.raises(InputError, match=r"torch\.compile had compiled before .* call torch\.compiler\.reset\(\)"):
        loss(compiled(x), y)
    torch.compiler.reset()
    expected = direct(features_of(net, x), y, 0.3, "paper")
    torch.testing.assert_close(loss(compiled(x), y), expected, **TIGHT)


@pytest.mark.parametrize("sites", ["auto", list(NAMES)])
def test_two_losses_of_one_network_do_not_disturb_each_other(sites: str | list[str]) -> None:
    net, (x, y) = network(), batch()
    both = [ll.SVSL(net, alpha=alpha, sites=sites) for alpha in (0.3, 0.6)]
    alone = []
    for alpha in (0.3, 0.6):
        twin = network()
        alone.append(ll.SVSL(twin, alpha=alpha, sites=sites)(twin(x), y))
    for _ in range(2):
        logits = net(x)
        for loss, expected in zip(both, alone, strict=True):
            torch.testing.assert_close(loss(logits, y), expected, **TIGHT)


@pytest.mark.usefixtures("both_ways")
def test_accumulated_gradients_are_the_mean_over_the_parts() -> None:
    net = network()
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES))
    parts = [batch(seed=seed) for seed in range(3)]
    for x, y in parts:
        (loss(net(x), y) / 3).backward()
    expected = sum(direct(features_of(net, x), y, 0.3, "paper") for x, y in parts) / 3
    assert_equal([p.grad for p in net.parameters()], gradients(expected, net), **TIGHT)


@pytest.mark.parametrize("means", ["batch", "moving", "whole"])
def test_two_processes_give_the_gradient_of_the_joined_batch(means: str, tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "svsl_on_ranks.py"), means, str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]  # fmt: skip
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        assert rank.returncode == 0, err
        assert out.strip() == "equal"


def test_validation_is_the_base_loss_and_does_not_disturb_training() -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES))
    logits = net(x)
    with torch.no_grad():
        assert float(loss(net(x), y)) == float(F.cross_entropy(net(x), y))
    ll.probe(net, (torch.randn(16, 1, 8, 8, dtype=torch.float64), torch.arange(16) % 4), progress=False)
    torch.testing.assert_close(loss(logits, y), direct(features_of(net, x), y, 0.3, "paper"), **TIGHT)


def test_copies_of_the_network_are_free_of_hooks_and_removal_is_complete(tmp_path: Path) -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES))
    loss(net(x), y)
    twin = copy.deepcopy(net)
    twin(x)
    assert loss._forwards == 0
    torch.save(net, tmp_path / "net.pt")
    loss.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def hooks_of(net: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())


def test_a_name_that_matches_no_module_is_an_error_at_once() -> None:
    net = network()
    for sites in (["conv3"], "conv3", ["conv1", "conv3"]):
        with pytest.raises(CaptureError, match=r"site 'conv3' matches no module of the model\. Nearest names: conv"):
            ll.SVSL(net, alpha=0.3, sites=sites)
    assert hooks_of(net) == 0
    ll.SVSL(net, alpha=0.3, sites=["conv1", "logits"])


class Switched(nn.Module):
    """A layer that is never called, and one that runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.front, self.back = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.front(x)
        return self.fc(self.back(x).relu())


@pytest.mark.parametrize("example", [False, True])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"sites": ["spare"]}, "site 'spare' never fires"),
        ({"first": "nowhere"}, "first: expected one of the sites"),
        ({"sites": ["front"]}, "Site 'front' carries no gradient"),
    ],
)
def test_a_loss_that_fails_leaves_no_hook_though_its_traceback_lives(how: dict, words: str, example: bool) -> None:
    net, x, y = Switched(), torch.randn(12, 6), torch.arange(12) % 4
    made: list[ll.SVSL] = []  # alive, as by the traceback that a notebook keeps

    def use() -> None:
        made.append(ll.SVSL(net, alpha=0.3, example=x if example else None, **how))
        net(x)

    with pytest.raises((CaptureError, InputError), match=words) as kept:
        use()
    assert hooks_of(net) == 0
    for loss in made:
        with pytest.raises(InputError, match=r"whose hooks are removed .*first forward failed.*Make a new one"):
            loss(net(x), y)
    mended = ll.SVSL(net, alpha=0.3, sites=["back"])
    assert mended(net(x), y).item() > F.cross_entropy(net(x), y).item()
    assert kept.traceback


def test_the_raw_input_is_not_listed() -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)) for _ in range(4)]
    net = nn.Sequential(*(Residual(block) for block in blocks), nn.Linear(6, 4))
    x = torch.randn(12, 6)
    loss = ll.SVSL(net, alpha=0.3, sites="blocks")
    net(x)
    assert loss.sites[0] == "input"
    assert repr(loss).endswith("sites=['0', '1', '2', '3', 'logits'])")
    with pytest.raises(InputError, match="first: expected one of the sites 0, 1, 2, 3, logits, got 'nowhere'"):
        ll.SVSL(net, alpha=0.3, sites="blocks", first="nowhere", example=x)
    criterion = variability.VariabilityCriterion(variability.PenaltySettings(1.0, first="nowhere"))
    with pytest.raises(InputError, match="first: expected one of the sites b, got 'nowhere'"):
        criterion.pulled({"input": x, "b": x.clone().requires_grad_()})


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def test_moving_means_and_steps_go_on_from_a_saved_state(tmp_path: Path) -> None:
    net, (x, y) = network(), batch()
    how = {"alpha": 0.3, "sites": list(NAMES), "means": "moving", "start": 1}
    loss = ll.SVSL(net, **how)
    for seed in range(3):
        loss(net(batch(seed=seed)[0]), batch(seed=seed)[1])
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    expected = loss(net(x), y)
    again = ll.SVSL(net, **how)
    again.load_state_dict(torch.load(tmp_path / "loss.pt", weights_only=True))
    assert torch.equal(again(net(x), y), expected)


@pytest.mark.parametrize("means", ["moving", "whole"])
def test_a_state_of_another_network_names_the_site(means: str) -> None:
    net, (x, y) = network(), batch()
    how = {"alpha": 0.3, "sites": list(NAMES), "means": means}
    loss = ll.SVSL(net, **how)
    loss.measure_means((torch.cat([x, x]), torch.arange(24) % 4)) if means == "whole" else loss(net(x), y)
    wider = network()
    wider.conv1, wider.conv2 = nn.Conv2d(1, 7, 3).double(), nn.Conv2d(7, 6, 3).double()
    other = ll.SVSL(wider, **how)
    other.load_state_dict(loss.state_dict())
    message = r"site 'conv1': expected class means of shape \(4, 252\), got \(4, 180\) in the state that was loaded"
    with pytest.raises(InputError, match=message):
        other(wider(x), y)
    fewer = ll.SVSL(net, **(how | {"sites": list(NAMES[1:])}), example=x)
    with pytest.raises(InputError, match="class means of the sites conv2, fc, got those of 'conv1' in the state"):
        fewer.load_state_dict(loss.state_dict())
    later = ll.SVSL(net, **(how | {"sites": list(NAMES[1:])}))
    later.load_state_dict(loss.state_dict())
    with pytest.raises(InputError, match="class means of the sites conv2, fc, got those of 'conv1' in the state"):
        net(x)


def test_any_base_loss_stands_beside_the_penalty() -> None:
    net, (x, y) = network(), batch()
    base = nn.CrossEntropyLoss(label_smoothing=0.1)
    found = ll.SVSL(net, alpha=0.3, sites=list(NAMES), base=base)(net(x), y)
    features = features_of(net, x)
    expected = direct(features, y, 0.3, "paper") - F.cross_entropy(features[-1], y) + base(features[-1], y)
    torch.testing.assert_close(found, expected, **TIGHT)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"alpha": -1.0}, "alpha: expected a finite number ≥ 0, got -1.0"),
        ({"alpha": float("nan")}, "alpha: expected a finite number ≥ 0, got nan"),
        ({"alpha": 1.0, "reduction": "sum"}, "reduction: expected one of paper, authors, got 'sum'"),
        ({"alpha": 1.0, "means": "all"}, "means: expected one of batch, moving, whole"),
        ({"alpha": 1.0, "momentum": 0.0}, "momentum: expected a share above 0"),
        ({"alpha": 1.0, "start": -1}, "start: expected a whole number of at least 0"),
        (
            {"alpha": 1.0, "start": "termnal"},
            "start: expected a whole number of at least 0, or \"terminal\", got 'termnal'",
        ),
        ({"alpha": 0.0, "learn_alpha": 0.1}, "learn_alpha: expected a positive size"),
        ({"alpha": 1.0, "first": "conv9"}, "first: expected one of the sites conv1, conv2, fc, logits, got 'conv9'"),
        ({"alpha": 1.0, "sites": []}, "sites: expected a rule or names of modules, got an empty list"),
        ({"alpha": 1.0, "sites": ["conv9"]}, "'conv9' matches no module"),
    ],
)
def test_bad_settings_are_answered(how: dict, words: str) -> None:
    with pytest.raises((InputError, CaptureError), match=words):
        ll.SVSL(network(), example=batch()[0], **how)


@pytest.mark.parametrize("how", [{"alpha": 0.0}, {"alpha": 0.3, "start": 100}, {"alpha": 0.3, "start": "terminal"}])
def test_a_wrong_first_site_is_told_at_once_also_where_there_is_no_penalty_yet(how: dict) -> None:
    words = "first: expected one of the sites conv1, conv2, fc, logits, got 'conv9'"
    net, (x, y) = network(), batch()
    with pytest.raises(InputError, match=words):
        ll.SVSL(net, first="conv9", example=x, **how)
    wrong = ll.SVSL(net, first="conv9", **how)
    with pytest.raises(InputError, match=words):
        wrong(net(x), y)
    right = ll.SVSL(net, first="conv2", **how)
    assert torch.equal(right(net(x), y), F.cross_entropy(net(x), y))


@pytest.mark.parametrize(("name", "near"), [("frist", "Did you mean 'first'"), ("xyz", "It has alpha, sites, reduce")])
def test_a_keyword_that_is_unknown_is_named_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(TypeError, match=rf"SVSL\(\) got an unexpected keyword argument '{name}'\. {near}"):
        ll.SVSL(network(), alpha=1.0, **{name: "conv1"})


@pytest.mark.parametrize("accuracy", [99.9, -0.1, float("nan")])
def test_an_accuracy_that_is_no_share_is_refused(accuracy: float) -> None:
    loss = ll.SVSL(network(), alpha=0.3, start="terminal")
    with pytest.raises(InputError, match="accuracy: expected a share from 0 to 1, got"):
        loss.end_epoch(accuracy)
    assert loss.end_epoch(1.0)


def test_a_network_that_is_all_frozen_blames_no_single_site() -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3)
    net.requires_grad_(False)
    with pytest.raises(InputError, match="none of the sites conv1, conv2, fc, logits carries a gradient"):
        loss(net(x), y)


def test_bad_batches_are_answered() -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES))
    with pytest.raises(InputError, match="expected one forward of the model for one loss, got no forward"):
        loss(torch.randn(12, 4), y)
    net(x)
    with pytest.raises(
        InputError,
        match=r"got 2 forwards: run validation under torch\.no_grad\(\); in training call the loss after every",
    ):
        loss(net(x), y)
    with pytest.raises(LabelError, match="got NoneType: SVSL needs them"):
        loss(net(x), None)
    loss.reset()
    with pytest.raises(LabelError, match=r"expected labels in 0 … 3 .*got 6"):
        loss(net(x), y + 4)
    loss.reset()
    with pytest.raises(LabelError, match=r"expected class numbers of shape \(n,\), got torch\.float64"):
        loss(net(x), F.one_hot(y, 4).double())
    with pytest.raises(InputError, match=r"expected class scores of shape \(n, C\) with C ≥ 2, got \(12, 1\)"):
        loss(torch.randn(12, 1), y)
    with pytest.raises(InputError, match="expected one network, got DataParallel"):
        ll.SVSL(nn.DataParallel(net), alpha=1.0)
    for parameter in net.conv1.parameters():
        parameter.requires_grad_(False)
    loss.reset()
    with pytest.raises(InputError, match="site 'conv1' carries no gradient: no trained parameter lies before it"):
        loss(net(x), y)
    whole = ll.SVSL(net, alpha=0.3, means="whole")
    with pytest.raises(InputError, match="call measure_means"):
        whole(net(x), y)
    with pytest.raises(LabelError, match="expected samples of all 4 classes, got none of class 3"):
        whole.measure_means((x, y))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("inputs", "the loss is NaN: at 'conv1' 1 of 12 samples have NaN or infinite features. Check the inputs"),
        ("weights", "the loss is NaN: at 'fc' 12 of 12 samples have NaN or infinite features"),
        ("too large", "the loss is infinite: features and logits are finite, so they .* too large"),
        ("no penalty", "the loss is NaN: at 'logits' 1 of 12 samples have NaN or infinite features"),
    ],
)
def test_a_loss_that_is_not_finite_is_told_once(way: str, words: str) -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.0 if way == "no penalty" else 0.3)
    with torch.no_grad():
        if way == "weights":
            net.conv2.bias.fill_(torch.inf)
            net.fc.weight[0] = -1.0
            net.fc.weight[1] = 1.0
        elif way == "too large":
            net.conv1.weight.mul_(1e160)
            net.fc.weight.mul_(1e-160)
        else:
            x[3, 0, 0, 0] = torch.nan
    with pytest.warns(UserWarning, match=words) as told:
        assert not loss(net(x), y).isfinite()
    assert told[0].filename == __file__
    assert not loss(net(x), y).isfinite()  # a warning would be an error here


def test_one_lost_batch_does_not_stay_in_moving_means() -> None:
    x, y = batch()
    lost = x.clone()
    lost[0] = torch.inf  # of class 0
    values = []
    for spoilt in (False, True):
        net = network()
        loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES), means="moving")
        loss(net(x), y)
        if spoilt:
            with pytest.warns(UserWarning, match="the loss is NaN"):
                loss(net(lost), y)
        loss(net(x), y)
        values.append(loss(net(x), y))
    torch.testing.assert_close(values[1], values[0], **TIGHT)


def test_class_means_of_data_with_nan_are_refused() -> None:
    net, x = network(), torch.randn(24, 1, 8, 8).double()
    x[9, 0, 2, 2] = torch.nan
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES), means="whole")
    with pytest.raises(FeatureError, match="site 'conv1': expected finite features, got NaN or infinity in batch 1"):
        loss.measure_means((x, torch.arange(24) % 4), batch_size=8)


EARLIER = r"logits: expected those of the model's last forward, got those of an earlier one\. Call the loss with what"
ANOTHER = r"no gradient leads from the logits to the model's last forward: are they those of another network\?"


@pytest.mark.parametrize("sites", ["auto", ["conv1"]])
def test_logits_of_an_earlier_forward_are_an_error(sites: str | list[str]) -> None:
    net, (x, y) = network(), batch()
    loss = ll.SVSL(net, alpha=0.3, sites=sites)
    before = net(x)
    loss.reset()
    net(x + 1)
    with pytest.raises(InputError, match=EARLIER):
        loss(before, y)
    net.eval()
    before = net(x)  # in eval mode the last forward counts
    net(x + 1)
    with pytest.raises(InputError, match=EARLIER):
        loss(2 * before, y)
    loss(net(x), y).backward()


def test_logits_of_another_network_are_told_once() -> None:
    net, other, (x, y) = network(), network(), batch()
    loss = ll.SVSL(net, alpha=0.3, sites=list(NAMES))
    net(x)
    with pytest.warns(UserWarning, match=ANOTHER) as told:
        loss(other(x), y)
    assert told[0].filename == __file__
    net(x)
    loss(other(x), y)  # a warning would be an error here
    net(x[:6])
    with pytest.raises(FeatureError, match=r"expected 12 samples, got features for 6"):
        loss(other(x), y)


class KeepsAside(nn.Module):
    """Its logits are an attribute; what it returns is something else."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.other = nn.Linear(10, 8), nn.Linear(8, 4), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.trunk(x)
        self.logits = self.head(h)
        return self.other(h)


def test_what_is_computed_from_the_last_forward_is_never_refused() -> None:
    torch.manual_seed(0)
    net, other, (x, y) = network(), network(), batch()
    scale, head = nn.Parameter(torch.ones((), dtype=torch.float64)), nn.Linear(4, 4).double()
    ways = {
        "scaled": lambda out: out * scale,
        "a head": lambda out: head(F.relu(out, inplace=True)),
        "an ensemble": lambda out: (other(x) + out) / 2,
        "other numbers": lambda out: out.float().double(),
        "some classes": lambda out: out[:, :3],
        "a gradient by hand": lambda out: out.detach().requires_grad_(),
        "and a scale": lambda out: scale * out.detach().requires_grad_(),
        "a value alone": lambda out: out.detach(),
    }
    loss = ll.SVSL(net, alpha=0.3, sites=["conv1"])
    for name, way in ways.items():
        assert torch.isfinite(loss(way(net(x)), y)), name
    in_a_box = ll.SVSL(holder := KeepsAside(), alpha=0.3, sites=["trunk"])
    holder(torch.randn(12, 10))
    in_a_box(holder.logits, y).backward()
    with pytest.warns(UserWarning, match=ANOTHER):  # a head that reads detached features: it cannot be told
        loss(head(net(x).detach()), y)


class SideHead(nn.Module):
    """Its logits are an attribute, of a head in front of the only site; with `tied`, that site has the trunk's weights."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.trunk, self.side, self.deep = nn.Linear(10, 10), nn.Linear(10, 4), nn.Linear(10, 10)
        if tied:
            self.deep.weight, self.deep.bias = self.trunk.weight, self.trunk.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.trunk(x)
        self.logits = self.side(h)
        return self.deep(h.relu())


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_a_side_head_in_front_of_the_first_site_are_of_the_same_forward(tied: bool) -> None:
    torch.manual_seed(0)
    net, (_, y) = SideHead(tied=tied), batch()
    loss = ll.SVSL(net, alpha=0.3, sites=["deep"])
    for _ in range(2):
        net(torch.randn(12, 10))
        loss(2 * net.logits, y).backward()  # a warning would be an error here
    net(torch.randn(12, 10))
    before = net.logits
    loss.reset()
    net(torch.randn(12, 10))
    if tied:  # all that the last forward trains is behind them
        with pytest.raises(InputError, match=EARLIER):
            loss(before, y)
    else:  # they may be those of another network that shares the trunk
        with pytest.warns(UserWarning, match=ANOTHER):
            loss(before, y)


def test_an_earlier_forward_is_an_error_after_the_warning_too() -> None:
    net, other, (x, y) = network(), network(), batch()
    loss = ll.SVSL(net, alpha=0.3)
    net(x)
    with pytest.warns(UserWarning, match=ANOTHER):
        loss(other(x), y)
    before = net(x)
    loss.reset()
    net(x + 1)
    with pytest.raises(InputError, match=EARLIER):
        loss(before, y)


def test_a_recipe_names_the_loss_and_alpha_zero_is_the_control() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    x = torch.randn(4, 10, generator=g)[y] + torch.randn(80, 10, generator=g)
    shape = Shape(10, (12, 12, 12), 4)
    losses = (
        CrossEntropy(),
        VariabilityCrossEntropy(0.0),
        VariabilityCrossEntropy(0.5, reduction="authors"),
        VariabilityCrossEntropy(0.5, reduction="authors", means="moving", start="terminal"),
    )
    recipes = Recipe(shape, epochs=40, batch_size=20).grid(loss=losses)
    assert [Recipe.from_dict(r.to_dict()) for r in recipes] == recipes
    plain, control, pulled, late = sweep(recipes, Samples.of((x, y)), progress=False)
    assert control.losses == pytest.approx(plain.losses, rel=1e-3)
    spread = {}
    for name, run in (("plain", plain), ("pulled", pulled), ("late", late)):
        record = ll.probe(run.network(), (x, y), progress=False)
        spread[name] = record.sites[-1].values["compression"]
    assert spread["pulled"] < 0.8 * spread["plain"]
    assert late.losses[:3] == pytest.approx(control.losses[:3], rel=1e-6)
    with pytest.raises(InputError, match="expected 'batch' or 'moving' in a recipe"):
        VariabilityCrossEntropy(1.0, means="whole")
