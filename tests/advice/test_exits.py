"""Early exits: what they decide, that they stop, what is chosen on which half, files, and bad input."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.advice import EarlyExit, exit_network, exits, readouts
from layerlaw.advice.exit_report import KINDS, _speeds
from layerlaw.advice.readouts import Held, Readout, limits_within, simulated
from layerlaw.capture.batches import Batch
from layerlaw.errors import CaptureError, DataError, FeatureError, InputError, LabelError
from layerlaw.pages.advice_terminal import print_exits
from layerlaw.stats import ClassSums
from layerlaw.wording import percent
from pretended_gpu import Gpu


class Counted(nn.Module):
    """A stack of linear layers with ReLU that counts how often each of them runs, and for how many samples."""

    def __init__(self, depth: int = 6, width: int = 12, classes: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, classes)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen = []
        for layer in self.layers:
            self.seen.append(len(x))
            x = layer(x).relu()
        self.seen.append(len(x))
        return self.head(x)


def samples(n: int, seed: int, spread: float = 1.0, d: int = 12, K: int = 4) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    places = 2.0 * torch.randn(K, d, generator=torch.Generator().manual_seed(7))
    y = torch.arange(n) % K
    return places[y] + spread * torch.randn(n, d, generator=g), y


@pytest.fixture(scope="module")
def trained() -> Counted:
    torch.manual_seed(0)
    net = Counted()
    x, y = samples(400, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def found(trained: Counted) -> EarlyExit:
    return ll.early_exit(trained, samples(400, 1), test=samples(600, 2), tolerance=0.02, times=(1, 64))


def test_a_readout_of_centers_is_the_nearest_class_mean_also_far_from_the_origin() -> None:
    x, y = samples(200, 3)
    for offset in (0.0, 1e3):
        shifted = (x + offset).double()
        readout = Readout.nearest_center(ClassSums.of((x + offset), y, 4))
        means = np.stack([shifted[y == k].numpy().mean(0) for k in range(4)])
        expected = ((shifted.numpy()[:, None] - means) ** 2).sum(-1).argmin(1)
        assert (readout(x + offset).argmax(1).numpy() == expected).mean() > 0.99


def test_a_class_without_samples_is_never_the_nearest() -> None:
    x, y = samples(60, 3)
    readout = Readout.nearest_center(ClassSums.of(x, y, 5))
    assert int(readout(x).argmax(1).max()) < 4


def test_a_linear_readout_is_a_logistic_regression() -> None:
    x, y = samples(300, 3, spread=3.0)
    readout = Readout.trained(x, y, 4)
    from sklearn.linear_model import LogisticRegression

    theirs = LogisticRegression(max_iter=500).fit(x.numpy(), y.numpy())
    ours = float((readout(x).argmax(1) == y).double().mean())
    assert ours == pytest.approx(theirs.score(x.numpy(), y.numpy()), abs=0.03)


def test_the_network_stops_at_its_exit_and_decides_by_stored_means(trained: Counted, found: EarlyExit) -> None:
    x, _ = samples(50, 5)
    assert found.site is not None
    trained.seen = []
    with torch.no_grad():
        scores = found(x)
    assert len(trained.seen) < 7  # not all layers ran
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in trained.modules())
    features, fitted = [], samples(400, 1)
    for batch, out in ((fitted[0], []), (x, [])):
        name = found.sites[0].module
        hook = trained.get_submodule(name).register_forward_pre_hook(lambda m, a, out=out: out.append(a[0].detach()))
        with torch.no_grad():
            trained(batch)
        hook.remove()
        features.append(out[0].double())
    means = torch.stack([features[0][fitted[1] == k].mean(0) for k in range(4)])
    assert torch.equal(scores.argmax(1), torch.cdist(features[1], means).argmin(1))


def test_what_chooses_does_not_judge_and_the_drop_is_that_of_the_judging_half(found: EarlyExit) -> None:
    report = found.report
    assert report is not None
    assert report.samples[0] == 400
    assert report.samples[1] + report.samples[2] == 600
    one = report.static["centers"]
    assert one.accuracy == pytest.approx(report.accuracy - one.drop, abs=1e-9)
    first = next(site for site in report.sites if site.choosing["centers"] >= report.accuracy_choosing - 0.02 - 1e-9)
    assert one.site == first.name == found.site
    assert one.accuracy == pytest.approx(first.judged["centers"])


def test_layers_are_counted_and_times_are_shares_of_the_whole(found: EarlyExit) -> None:
    report = found.report
    assert [site.layers for site in report.sites] == list(range(7))
    assert report.layers == 7
    assert set(report.sites[0].time) == {1, 64}
    assert report.sites[0].time[64] < report.sites[-1].time[64]
    one, where = report.static["centers"], f"(exit before '{found.site}' by the nearest class center): test accuracy"
    raw = replace(report, static={"centers": replace(one, faster={})})
    assert raw.sentence.startswith(f"The raw input decides, without any of the 7 layers {where}")
    deeper = replace(report, static={"centers": replace(one, layers=4, faster={})})
    assert deeper.sentence.startswith(f"The last 3 of 7 layers can go {where}")
    row = next(site for site in report.sites if site.name == one.site)
    assert one.faster == {size: pytest.approx(1 / share) for size, share in row.time.items()}  # the table's own rounds
    assert all(low <= one.faster[size] <= high for size, (low, high) in one.between.items())


def test_single_samples_leave_and_the_others_go_on_alone(trained: Counted) -> None:
    (x, _), fitted = samples(80, 6, spread=2.0), samples(400, 1)
    sites = [site for site in ll.sites(trained, fitted).sites if site.name in ("layers.2", "layers.4")]
    readouts, limits = [], []
    for site in sites:
        out: list[Tensor] = []
        hook = trained.get_submodule(site.module).register_forward_pre_hook(lambda m, a, out=out: out.append(a[0]))
        with torch.no_grad():
            trained(fitted[0])
            trained(x)
        hook.remove()
        readouts.append(Readout.nearest_center(ClassSums.of(out[0], fitted[1], 4)))
        best = readouts[-1](out[1]).topk(2, 1).values
        limits.append(float((best[:, 0] - best[:, 1]).quantile(0.6)))
    net = EarlyExit(trained, sites, readouts, thresholds=limits)
    with torch.no_grad():
        whole = trained(x)
        alone = torch.cat([net(row.unsqueeze(0)) for row in x])
        scores = net(x)
    assert set(net.exits.tolist()) == {0, 1, 2}
    torch.testing.assert_close(scores, alone, rtol=1e-4, atol=1e-4)  # a sample does not depend on its batch
    torch.testing.assert_close(scores[net.exits == 2], whole[net.exits == 2], rtol=1e-4, atol=1e-4)
    assert trained.seen[-1] == int((net.exits == 2).sum()) < 80  # the rest of the network ran for them alone


def test_thresholds_hold_their_budget_on_the_half_that_chose_them() -> None:
    g = torch.Generator().manual_seed(0)
    n = 2000
    y = torch.randint(4, (n,), generator=g)
    margin = torch.rand(2, n, generator=g, dtype=torch.float64)
    wrong = torch.rand(2, n, generator=g) > margin  # the surer, the more often right
    top = torch.where(wrong, (y + 1) % 4, y)
    half = Held(y, y.clone(), {"centers": (top, margin)}, torch.ones(n, dtype=torch.bool))
    left = []
    for budget in (0.0, 0.05, 0.2):
        limits = limits_within(half, "centers", [0, 1], budget)
        decision, out = simulated(half, "centers", limits)
        for j in (0, 1):
            mine = out == j
            assert not mine.any() or float((decision[mine] != y[mine]).double().mean()) <= budget
        left.append(float((out < 2).double().mean()))
        assert torch.equal(decision[out == 2], y[out == 2])
    assert left == sorted(left)
    assert left[0] < left[2]


def test_saved_and_loaded_exits_give_the_same_scores(trained: Counted, found: EarlyExit, tmp_path: Path) -> None:
    x, _ = samples(30, 8)
    path = found.save(tmp_path / "exit.safetensors")
    again = EarlyExit.load(path, trained)
    with torch.no_grad():
        assert torch.equal(again(x), found(x))
    assert again.site == found.site
    with pytest.raises(
        DataError, match="expected the Counted that the exits were made for, got one with other weights"
    ):
        EarlyExit.load(path, Counted())
    with pytest.raises(DataError, match="found nothing there"):
        EarlyExit.load(tmp_path / "none.safetensors", trained)
    content = bytearray(path.read_bytes())
    (tmp_path / "cut.safetensors").write_bytes(content[:-20])
    with pytest.raises(DataError, match="cut short: download it again"):
        EarlyExit.load(tmp_path / "cut.safetensors", trained)
    content[-3] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="expected the exits that were written, got others: their checksum differs"):
        EarlyExit.load(tmp_path / "flipped.safetensors", trained)
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="another or a damaged one"):
        EarlyExit.load(tmp_path / "bad.safetensors", trained)


def test_exits_of_single_samples_are_saved_with_their_thresholds(trained: Counted, tmp_path: Path) -> None:
    sites = ll.sites(trained, samples(8, 1)).sites[2:4]
    readouts = [Readout.nearest_center(ClassSums.of(*samples(80, 1), 4)) for _ in sites]
    net = EarlyExit(trained, sites, readouts, thresholds=[3.0, float("inf")], kind="linear")
    again = EarlyExit.load(net.save(tmp_path / "exits.safetensors"), trained)
    assert again.thresholds == (3.0, float("inf"))
    assert (again.kind, again.sites) == ("linear", sites)
    assert again.per_sample() is again
    with pytest.raises(
        InputError, match=r"got none: the file keeps none: .* Run `early_exit` again and read its report"
    ):
        EarlyExit.load(
            EarlyExit(trained, sites[:1], readouts[:1]).save(tmp_path / "one.safetensors"), trained
        ).per_sample()
    with pytest.raises(InputError, match=r"expected EarlyExit.load\(path, model\), got the model first: Counted"):
        EarlyExit.load(trained, tmp_path / "exits.safetensors")


def test_one_score_for_two_classes_and_models_of_several_inputs_have_exits() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
            return {"logits": self.c(self.b(self.a(left + right).relu()).relu())}

    torch.manual_seed(0)
    net, (x, y) = Sum().eval(), samples(200, 1)
    data = [
        {"left": x[i : i + 50], "right": -0.5 * x[i : i + 50], "labels": y[i : i + 50] % 2} for i in range(0, 200, 50)
    ]
    found = ll.early_exit(net, data, test=data, tolerance=0.99, times=())
    assert found.site == found.report.sites[0].name
    with torch.no_grad():
        assert found(left=x, right=-0.5 * x).shape == (200, 2)
    assert any(note.endswith("would still be of the whole batch.") for note in found.report.notes)
    assert found.report.per_sample == {}


def test_a_tolerance_that_no_layer_meets_is_an_answer() -> None:
    class Radius(nn.Module):
        """Far or near, whatever the direction: class means say little about that."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 2)
            nn.init.eye_(self.first.weight)
            nn.init.zeros_(self.first.bias)
            self.second.weight.data, self.second.bias.data = torch.stack([-torch.ones(12), torch.ones(12)]), torch.tensor([11.0, -11.0])  # noqa: E501  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).square())

    net = Radius().eval()
    x = torch.randn(800, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = net(x).argmax(1)
    found = ll.early_exit(net, (x[:400], y[:400]), test=(x[400:], y[400:]), tolerance=0.0, times=())
    assert found.site is None
    assert "centers" not in found.report.static
    best = max(site.choosing["centers"] for site in found.report.sites)
    said = (
        "Nothing to gain here (nearest class center): on the half that chooses no site is within 0 points of the network "
        "(100%); nearest: "
    )
    assert replace(found.report, per_sample={}).sentence == (
        f"{said}'second' with {100 * best:.1f}%, {100 - 100 * best:.1f} points below. The result is the whole network."
    )  # fmt: skip
    with torch.no_grad():
        assert torch.equal(found(x), net(x))


def test_agreement_is_stricter_than_accuracy(trained: Counted) -> None:
    how = {"test": samples(600, 2, spread=2.0), "tolerance": 0.02, "times": ()}
    loose = ll.early_exit(trained, samples(400, 1, spread=2.0), **how).report.static["centers"]
    strict = ll.early_exit(trained, samples(400, 1, spread=2.0), within="agreement", **how).report.static.get("centers")
    assert strict is None or strict.layers >= loose.layers


def test_a_residual_network_lets_single_samples_leave_behind_its_blocks_only() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.b(self.a(x).relu())

    torch.manual_seed(0)
    net = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(12, 4)).eval()
    data, test = samples(200, 1), samples(300, 2)
    blocks = ll.early_exit(net, data, test=test, sites="blocks", times=()).report
    assert not any("cannot leave" in note for note in blocks.notes)
    inside = ll.early_exit(net, data, test=test, sites=["0.a", "1"], times=()).report
    why = "it lies on a branch, and what it is joined with later would still be of the whole batch"
    assert f"Single samples cannot leave at '0.a': {why}." in inside.notes


@pytest.mark.parametrize("by", ["centers", "linear", "best"])
def test_the_headline_is_about_the_exit_that_is_returned(trained: Counted, by: str) -> None:
    found = ll.early_exit(trained, samples(400, 1), test=samples(600, 2), tolerance=0.02, by=by, times=())
    report = found.report
    words = {"centers": "nearest class center", "linear": "linear read-out"}[found.kind]
    assert report.kind == found.kind == (by if by != "best" else found.kind)
    assert f"(exit before '{found.site}' by the {words}): test accuracy" in report.sentence
    drop = report.static[found.kind].drop
    assert f"{-100 * drop:+.1f} points".replace("-", "−") in report.sentence
    others = ("With class means instead of a linear read-out", "With a linear read-out instead of class means")
    assert report.findings[0].startswith(others[found.kind == "centers"])
    head = {"centers": "agreement, center", "linear": "agreement, linear"}[found.kind]
    shown = [row[report.rows[0].index(head)] for row in report.rows[1:-1]]
    assert shown == [percent(site.agreement[found.kind]) for site in report.sites]


def test_the_best_of_two_exits_at_one_site_is_the_more_accurate() -> None:
    """Two classes on two lines that cross: a linear read-out tells them better than class means, at the same site."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(1200) % 2
    x = torch.randn(1200, 2, generator=g) * torch.tensor([1.0, 8.0])
    x[:, 0] += 1.5 * y - 0.75 + 0.4 * x[:, 1]
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    found = ll.early_exit(net, (x[:600], y[:600]), test=(x[600:], y[600:]), tolerance=0.99, by="best", times=())
    first = found.report.sites[0]
    assert {one.site for one in found.report.static.values()} == {first.name}
    assert first.choosing["linear"] > first.choosing["centers"]
    assert found.kind == found.report.kind == "linear"
    assert "The raw input decides, without any of the 2 layers (exit before '0' by the linear" in found.report.sentence


def test_a_linear_exit_that_could_not_be_trained_is_told(trained: Counted) -> None:
    found = ll.early_exit(trained, samples(16, 1), test=samples(100, 2), by="linear", times=())
    why = "no linear read-out was trained"
    assert found.report.sentence.startswith("The nearest class center can decide for all samples before 'layers.0': ")
    assert f"there is nothing to gain with a linear read-out: {why}. The result is the" in found.report.sentence
    alone = replace(found.report, static={}, per_sample={})
    assert alone.sentence == f"Nothing to gain here: {why}. The result is the whole network."
    assert found.site is None


class Normed(nn.Module):
    """Residual blocks, a norm, a mean over tokens, a classifier: nothing with a weight matrix in front of the latter."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(self.up(self.norm(x)).relu())

    def __init__(self, normed: bool = True) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(self.Block() for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(6) if normed else nn.Identity(), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(x.unflatten(1, (2, 6)))).mean(1))


def test_what_the_classifier_reads_is_an_exit_unless_it_is_the_last_block_again() -> None:
    torch.manual_seed(0)
    data, test = samples(200, 1), samples(300, 2)
    names = [site.name for site in ll.early_exit(Normed().eval(), data, test=test, times=()).report.sites]
    assert names == ["input", *(f"blocks.{i}" for i in range(4)), "head"]
    how = {"test": test, "times": (), "reduce": "mean"}
    names = [site.name for site in ll.early_exit(Normed(normed=False).eval(), data, **how).report.sites]
    assert names[-1] == "blocks.3"


def test_an_exit_gives_no_scores_for_no_samples(found: EarlyExit, trained: Counted) -> None:
    class Reshaped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = trained

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.reshape(len(x), -1))

    x, _ = samples(0, 1)
    assert found(x).shape == (0, 4)
    assert found.exits.shape == (0,)
    assert ll.early_exit(Reshaped(), samples(200, 1), test=samples(200, 2), times=())(x).shape == (0, 4)


def test_exits_are_found_on_a_gpu_as_on_the_cpu(gpu: Gpu, trained: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {(exit_network, "SECONDS"): 0.0, (exit_network, "SHORTEST"): 0.0, (exit_network, "ROUNDS"): (2, 2)}
    for (module, name), value in (quick | {(readouts, "ITERATIONS"): 5}).items():
        monkeypatch.setattr(module, name, value)
    network, data, test = copy.deepcopy(trained), samples(400, 1), samples(200, 2)
    how = {"times": (1,), "progress": False}
    here = ll.early_exit(network, data, test=test, **how).report.sites
    there = ll.early_exit(network.cuda(), on_gpu(data), test=on_gpu(test), **how).report.sites
    for site, other in zip(there, here, strict=True):
        assert site.choosing.keys() == {"centers", "linear"}
        assert (site.name, site.choosing, site.judged) == (other.name, other.choosing, other.judged)


def on_gpu(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return pair[0].cuda(), pair[1].cuda()


@torch.no_grad()
@pytest.mark.parametrize("limits", [None, [3.0, 1.0]])
def test_read_outs_follow_the_network_to_another_device(
    limits: list[float] | None, gpu: Gpu, trained: Counted, tmp_path: Path
) -> None:
    network, x = copy.deepcopy(trained), samples(80, 1)[0]
    sites = ll.sites(network, samples(8, 1)).sites[2 : 3 if limits is None else 4]
    made = [Readout.nearest_center(ClassSums.of(*samples(80, 1), 4)) for _ in sites]
    early = EarlyExit(network, sites, made, thresholds=limits)
    expected, path = early(x), early.save(tmp_path / "exits.safetensors")
    network.cuda()
    for found in (early, EarlyExit.load(path, network)):
        assert found(x[:0].cuda()).is_cuda
        torch.testing.assert_close(found(x.cuda()).cpu(), expected)
    found.save(path)
    network.cpu()
    torch.testing.assert_close(EarlyExit.load(path, network)(x), expected)
    torch.testing.assert_close(early(x), expected)


def test_times_of_a_machine_that_stalls_are_medians_with_their_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps while the whole network runs, in two of five rounds: the exit is no faster for it."""
    calls = {"now": 0.0, "whole": 0}
    monkeypatch.setattr(exit_network.time, "perf_counter", lambda: calls["now"])

    class Takes(nn.Module):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.seconds = seconds

        def forward(self, x: Tensor) -> Tensor:
            calls["whole"] += self.seconds == 1
            calls["now"] += self.seconds * (1000 if self.seconds == 1 and calls["whole"] % 4 == 3 else 1)
            return x

    batch = Batch((torch.zeros(2, 1),), {}, torch.zeros(2, dtype=torch.long))
    one = exit_network.compared(Takes(1.0), {"a": Takes(0.25)}, batch, 2)["a"]
    assert (one.share, one.low, one.high, one.wild) == (0.25, 0.25, 0.25, False)
    monkeypatch.setattr(exit_network, "ROUNDS", (5, 5))
    uneven = iter([1, 1, 1, 2, 8, 8, 8, 1, 1, 1, 1, 1])

    class Uneven(Takes):
        def forward(self, x: Tensor) -> Tensor:
            calls["now"] += next(uneven)
            return x

    assert exit_network.compared(Takes(1.0), {"a": Uneven(0.0)}, batch, 2)["a"].wild


def test_a_rough_speed_is_told_with_its_range(found: EarlyExit) -> None:
    one = found.report.static["centers"]
    steady = replace(one, faster={1: 13.04}, between={1: (12.9, 13.3)})
    rough = replace(one, faster={1: 2.5, 64: 0.5}, between={1: (1.8, 4.1), 64: (0.25, 0.6)})
    assert _speeds(steady) == ["13× faster (batch 1)"]
    assert _speeds(rough) == [
        "about 2.5× faster (batch 1; 1.8 to 4.1× in half of the rounds)",
        "about 2.0× slower (batch 64; 1.7 to 4.0× in half of the rounds)",
    ]


@pytest.mark.parametrize(("way", "word"), [("table", "embedded"), ("bag", "embedded"), ("one-hot", "raw")])
def test_what_an_embedding_gives_is_called_embedded(way: str, word: str) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(9, 9) if way == "bag" else nn.Parameter(torch.randn(9, 9))
            self.first, self.out = nn.Linear(9, 8), nn.Linear(8, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            h = self.table(ids) if way == "bag" else self.table[ids].mean(1)
            h = nn.functional.one_hot(ids, 9).float().mean(1) if way == "one-hot" else h
            return self.out(self.first(h).relu())

    torch.manual_seed(0)
    y = torch.arange(300) % 3
    ids = torch.stack([y, y + 3, torch.randint(9, (300,))], 1)
    report = ll.early_exit(Words().eval(), (ids, y), test=(ids, y), tolerance=0.99, times=(), progress=False).report
    assert f"The {word} input decides, without any of the 2 layers (exit before 'first'" in report.sentence


def test_an_untrained_network_is_told_first_to_be_near_chance(found: EarlyExit) -> None:
    torch.manual_seed(0)
    report = ll.early_exit(Counted(), samples(400, 1), test=samples(600, 2), tolerance=0.02, times=()).report
    share = f"its accuracy on {report.samples[2]} samples is {percent(report.accuracy)}"
    assert report.sentence.startswith(f"The network itself is near chance: {share}, that of always naming the largest ")
    assert f"{percent(report.largest)} (binomial p = " in report.sentence
    assert "); there is nothing to preserve. The raw input decides, without any of the 7 layers" in report.sentence
    assert "near chance" not in found.report.sentence


@pytest.mark.parametrize(
    ("right", "largest", "n", "words"),
    [
        (
            0.12,
            0.10,
            100,
            r"near chance: .* 100 samples is 12\.0%, .* 10\.0% \(binomial p = 0\.3\); there is nothing to",
        ),
        (0.14, 0.10, 5000, r"near chance: .*\(binomial p < 0\.0001\); there is little to preserve"),
        (
            0.95,
            0.99,
            5000,
            r"no more accurate than one answer for all samples: .*\(binomial p = 1\); there is no accuracy",
        ),
        (0.60, 0.40, 10, r"not clearly more accurate than one answer for all samples: .*; there may be no accuracy"),
        (0.30, 0.10, 100, None),
        (0.90, 0.60, 50, None),
    ],
)
def test_what_is_said_first_depends_on_the_largest_class(
    found: EarlyExit, right: float, largest: float, n: int, words: str | None
) -> None:
    counts = (*found.report.samples[:2], n)
    report = replace(found.report, accuracy=right, largest=largest, classes=10, samples=counts, tested=False)
    first = report.sentence.partition("Judged without")[0]
    assert (first == "") if words is None else re.match(f"The network itself is {words}", first)


def test_labels_that_are_numbered_otherwise_are_told(trained: Counted) -> None:
    turn = torch.tensor([1, 2, 3, 0])
    data, test = ((x, turn[y]) for x, y in (samples(400, 1), samples(600, 2)))
    notes = ll.early_exit(trained, data, test=test, times=()).report.notes
    assert any("decides hardly better than by chance" in n and "labels numbered otherwise" in n for n in notes)


def test_without_test_data_parts_of_the_data_choose_and_judge(trained: Counted) -> None:
    report = ll.early_exit(trained, samples(800, 1), times=()).report
    assert sum(report.samples) == 800
    assert 300 < report.samples[0] < 500
    assert report.sentence.startswith("Judged without test data, on samples held back from the same data")
    assert str(report).startswith("Judged without test data")
    assert "test accuracy" not in str(report)
    assert str(report).splitlines()[-1].startswith("Pass test=")


def test_no_site_within_the_tolerance_says_on_which_half_and_with_digits_that_show_it(found: EarlyExit) -> None:
    report = found.report
    assert report is not None
    sites = [replace(site, name=name, choosing={**site.choosing, "centers": right})
             for site, name, right in zip(report.sites, "abc", (0.5, 187 / 192, 187 / 192), strict=False)]  # fmt: skip
    about = {**report.provenance, "accuracy_choosing": 189 / 192}
    none = replace(report, sites=tuple(sites), static={}, per_sample={}, tolerance=0.01, provenance=about)
    assert none.sentence == (
        "Nothing to gain here (nearest class center): on the half that chooses no site is within 1 point of the network "
        "(98.4%); "
        "nearest: 'b' and 'c' with 97.4%, 1.04 points below. The result is the whole network."
    )
    assert "of the half that judges" in str(none)
    alike = replace(none, within="agreement")
    alike = replace(alike, sites=tuple(replace(site, agreement_choosing={"centers": 0.98999}) for site in alike.sites))
    near = (
        "no site decides like the network on all but 1.0%; nearest: 'a', 'b' and 'c', the same on 98.999%. The result"
    )
    assert f"on the half that chooses {near}" in alike.sentence


def test_the_report_can_be_saved_drawn_and_put_on_a_page(found: EarlyExit, tmp_path: Path) -> None:
    report = found.report
    data = json.loads(report.save(tmp_path / "exit.json").read_text())
    assert data["sentence"] == report.sentence
    report.plot().savefig(tmp_path / "exit.png")
    page = report.page(tmp_path / "exit.html").read_text()
    assert all(site.name in page for site in report.sites)
    assert "nearest class center" in page
    assert str(report).count("\n") >= len(report.sites)
    sheet = report.sheet()
    assert sheet.caption.startswith(f"Accuracy on the {report.samples[2]} samples of the half that judges.")
    assert sheet.panels[1].xlabel == "expected time (batch 1), share of the network's"
    assert "400 made the class means, " in page
    assert f"{percent(report.accuracy_choosing)} (the network, on the half that chooses)" in page


def test_the_drawing_marks_the_exit_and_draws_the_network_as_far_as_the_exits_of_single_samples(
    found: EarlyExit,
) -> None:
    report = found.report
    first, second = report.sheet().panels
    assert first.xlabel == "site, counted from 0: 'layers.0' to 'head'"
    assert report.sites[int(first.marked)].name == found.site
    assert "The vertical line is the exit that was chosen." in report.sheet().caption
    slow = replace(report, static={}, curve=tuple(replace(point, cost=5 + point.cost) for point in report.curve))
    first, second = slow.sheet().panels
    assert first.marked is None
    assert "vertical" not in slow.sheet().caption
    whole = second.series[-1]
    assert (whole.label, whole.x[0]) == ("whole network", 1.0)
    assert whole.x[1] == max(point.cost for point in slow.curve)  # beside them, not up to where they begin


def test_sites_that_are_inputs_of_layers_are_told_so(found: EarlyExit) -> None:
    report = found.report
    assert {site.at for site in report.sites} == {"input"}
    assert "A site has the name of the layer whose input it is." in str(report)
    one = report.static["centers"]
    after = tuple(replace(site, at="input" if site.name == "head" else "output") for site in report.sites)
    blocks = replace(report, sites=after, static={"centers": replace(one, site="layers.1", layers=2)})
    assert "(exit at 'layers.1' by the nearest class center)" in blocks.sentence
    assert blocks.legend.endswith(" 'head': the input of the layer of that name.")
    raw = replace(report, sites=(replace(report.sites[0], name="input"), *after[1:6]))
    assert "input of the layer" not in raw.legend


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"tolerance": -0.1}, InputError, "tolerance: expected a share from 0 to below 1, got -0.1"),
        ({"tolerance": float("nan")}, InputError, "tolerance: expected a share"),
        ({"times": (0,)}, InputError, "times: expected a list, each a whole number of at least 1, got"),
        ({"times": 3}, InputError, "times: expected a list"),
        ({"memory_gib": float("nan")}, InputError, "memory_gib: expected a positive number of GiB, got nan"),
        ({"seed": 1.5}, InputError, "seed: expected a whole number"),
        (
            {"progress": "x"},
            InputError,
            r"progress: expected True, False or a function \(items, label, total\), got 'x'",
        ),
        ({"progress": lambda items, label, total: None}, InputError, "that gives the items, got None from it"),
        ({"by": "magic"}, InputError, "by: expected one of centers, linear, best"),
        ({"within": "loss"}, InputError, "within: expected one of accuracy, agreement"),
        ({"scores": None}, InputError, "scores: expected .* got None: the network's decisions are needed"),
        ({"sites": ["head"]}, CaptureError, "expected one before the class scores, got 'head': these are the logits"),
    ],
)
def test_bad_settings_are_answered(trained: Counted, how: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        ll.early_exit(trained, samples(100, 1), test=samples(100, 2), **how)


def test_a_class_that_only_the_test_data_have_is_an_error(trained: Counted) -> None:
    x, y = samples(100, 1)
    with pytest.raises(
        LabelError, match=r"test: expected classes that data has too, got class 3 without a center\. Add"
    ):
        ll.early_exit(trained, (x[y < 3], y[y < 3]), test=samples(100, 2), times=())
    with pytest.raises(LabelError, match="got classes 2 and 3 without a center"):
        ll.early_exit(trained, (x[y < 2], y[y < 2]), test=samples(100, 2), times=())
    with pytest.raises(LabelError, match="data: expected samples of two or more classes, got those of class 1 alone"):
        ll.early_exit(trained, (x[y == 1], y[y == 1]), test=samples(100, 2), times=())
    rare = torch.cat([(y < 3).nonzero().squeeze(1), (y == 3).nonzero().squeeze(1)[:1]])
    told = []
    for seed in range(6):  # by which half the one of class 3 is in
        try:
            ll.early_exit(trained, (x[rare], y[rare]), times=(), seed=seed)
        except LabelError as error:
            told.append(str(error))
    assert 0 < len(told) < 6
    words = "enough samples of every class for both halves, got too few of class 3: the half for class means has none"
    assert set(told) == {f"data: expected {words}. Add some, or give test data."}


def test_labels_that_do_not_fit_the_scores_are_answered_without_advice_that_would_be_refused(trained: Counted) -> None:
    x, y = samples(100, 1)
    with pytest.raises(LabelError, match="labels of data, batch 0: expected labels in 0 … 3") as caught:
        ll.early_exit(trained, (x, y + 7), test=samples(100, 2), times=())
    assert str(caught.value).endswith("The model's output was taken for the scores of 4 classes.")
    with pytest.raises(LabelError, match=r"test: expected samples for two halves, .*, got 2 samples\. Give more"):
        ll.early_exit(trained, (x, y), test=samples(2, 2), times=())


@pytest.mark.parametrize("spoilt", ["data", "test"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_inputs_that_are_no_numbers_are_an_error_with_their_batch(trained: Counted, spoilt: str, value: float) -> None:
    given = {"data": samples(100, 1), "test": samples(100, 2)}
    given[spoilt][0][70, 2] = value
    words = rf"site 'layers.0': expected finite features, got NaN or infinity in {spoilt}, batch 1"
    with pytest.raises(FeatureError, match=words):
        ll.early_exit(trained, given["data"], test=given["test"], batch_size=50, times=())


def test_scores_that_are_no_numbers_are_an_error_also_behind_sound_features(trained: Counted) -> None:
    net = copy.deepcopy(trained)
    net.head.bias.data[1] = float("nan")
    with pytest.raises(
        FeatureError, match=r"class scores: expected numbers, got NaN in test, batch 0\. Look at the last"
    ):
        ll.early_exit(net, samples(100, 1), test=samples(100, 2), times=())


def test_a_network_that_fails_on_test_data_is_told_with_the_batch(trained: Counted) -> None:
    x, y = samples(100, 2)
    with pytest.raises(CaptureError, match=r"the model failed in test, batch 0 \(inputs: \(100, 12\) torch.float16\)"):
        ll.early_exit(trained, samples(100, 1), test=(x.half(), y), times=())


def test_progress_is_told_of_every_pass_and_of_the_times(trained: Counted) -> None:
    told: list[tuple[str, int | None, int]] = []

    def progress(items: Iterable[Any], label: str, total: int | None) -> Iterator[Any]:
        n = 0
        try:
            for n, item in enumerate(items, 1):  # noqa: B007 - how many there were
                yield item
        finally:  # of rounds there may be fewer than were expected
            told.append((label, total, n))

    how = {"test": samples(600, 2), "tolerance": 0.02, "batch_size": 100, "times": (1, 64)}
    found = ll.early_exit(trained, samples(400, 1), progress=progress, **how)
    assert told[:4] == [
        ("data, class means", 4, 4),
        ("linear read-outs", 7, 7),
        ("test, decisions", 6, 6),
        ("exits of single samples", 7, 7),
    ]
    first, second, *single = [label for label, *_ in told[4:] if not label.endswith("first runs")]
    assert (first, second) == ("times, batch 1", "times, batch 64")
    assert single == [f"times of single samples, batch {n}" for n in (1, 64)] * bool(found.report.per_sample)
    assert [(label, total) for label, total, _ in told if label == "times, batch 1, first runs"] == [
        ("times, batch 1, first runs", 9)
    ]
    assert all(n == total for label, total, n in told if label.endswith("first runs"))
    silent = ll.early_exit(trained, samples(400, 1), progress=False, **how)
    assert (silent.site, silent.report.accuracy) == (found.site, found.report.accuracy)


def test_the_bar_is_on_standard_error_and_gone(trained: Counted, capfd: pytest.CaptureFixture[str]) -> None:
    ll.early_exit(trained, samples(400, 1), test=samples(600, 2), times=(1,))
    assert capfd.readouterr() == ("", "")  # no terminal


ODD_PARTS = {
    "a bias that is broadcast": (lambda about, tensors: tensors.update({"0.bias": torch.zeros(1)}), "a bias"),
    "half": (lambda about, tensors: tensors.update({"0.weight": tensors["0.weight"].half()}), "float32 or float64"),
    "NaN": (lambda about, tensors: tensors.update({"0.mean": tensors["0.mean"] * float("nan")}), "finite numbers"),
    "at": (lambda about, tensors: about["sites"][0].update(at=None), "at: expected"),
    "call": (lambda about, tensors: about["sites"][0].update(call=None), "call: expected"),
    "fold": (lambda about, tensors: about["sites"][0].update(fold="1"), "fold: expected"),
    "module": (lambda about, tensors: about["sites"][0].update(module="elsewhere"), "a module of the network"),
    "features": (lambda about, tensors: about["sites"][0].update(features=5), "a mean"),
    "thresholds": (lambda about, tensors: about.update(thresholds=""), "thresholds: expected"),
    "more thresholds": (lambda about, tensors: about.update(thresholds=[0.1] * 9), "one for each of"),
    "kind": (lambda about, tensors: about.update(kind="other"), "kind: expected"),
    "single": (lambda about, tensors: about.update(per_sample={"sites": [], "thresholds": [1]}), "one for each of 0"),
}


@pytest.mark.parametrize("name", ODD_PARTS)
def test_exits_without_a_checksum_are_checked_part_by_part(
    name: str, found: EarlyExit, trained: Counted, tmp_path: Path
) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = found.save(tmp_path / "exit.safetensors")
    with safe_open(str(path), "pt") as file:
        about = json.loads(file.metadata()["layerlaw"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dictionary
    del about["sha256"]  # as in files of an older version
    save_file(tensors, path, {"layerlaw": json.dumps(about)})
    x = samples(50, 9)[0]
    assert torch.equal(EarlyExit.load(path, trained)(x), found(x))
    spoil, words = ODD_PARTS[name]
    spoil(about, tensors)
    save_file(tensors, path, {"layerlaw": json.dumps(about)})
    with pytest.raises(DataError, match=words):
        EarlyExit.load(path, trained)


def test_single_samples_leave_by_agreement_where_that_is_asked_for(trained: Counted) -> None:
    """Test labels at random: leaving early costs no accuracy, whatever the exits decide, but it costs agreement."""
    x, _ = samples(1200, 2, spread=5.0)
    test = (x, torch.randint(4, (1200,), generator=torch.Generator().manual_seed(0)))
    found = ll.early_exit(trained, samples(400, 1), test=test, within="agreement", tolerance=0.05, times=())
    assert found.report.per_sample
    for kind, one in found.report.per_sample.items():
        assert one.agreement > 0.92
        line = next(
            line for line in found.report.findings if line.startswith(f"Each sample on its own ({KINDS[kind]})")
        )
        assert f"decides like the network on {percent(one.agreement)}" in line


def test_exits_of_single_samples_that_break_the_tolerance_say_so(found: EarlyExit) -> None:
    one = replace(found.report.static["centers"], site=None, shares=(0.9, 0.1), drop=0.05, error=0.01, agreement=0.9)
    report = replace(found.report, per_sample={"centers": one}, tolerance=0.02)
    line = next(line for line in report.findings if line.startswith("Each sample on its own (nearest"))
    assert line.endswith("; more than the 2 points it was chosen for.")
    alike = replace(report, within="agreement")
    line = next(line for line in alike.findings if line.startswith("Each sample on its own (nearest"))
    assert line.endswith("; less than the 98.0% it was chosen for.")
    assert "decides like the network on 90.0%" in line
    kept = replace(alike, per_sample={"centers": replace(one, agreement=0.975)})
    assert "it was chosen for" not in next(line for line in kept.findings if line.startswith("Each sample"))


def test_the_headline_names_the_best_that_there_is_to_gain(found: EarlyExit) -> None:
    report, one = found.report, found.report.static["centers"]
    slow = replace(one, site="late", layers=6, faster={1: 0.7, 64: 1.01}, between={})
    single = replace(one, site=None, shares=(0.96, 0.04), drop=0.01, error=0.004, faster={1: 3.8}, between={})
    linear = replace(one, kind="linear", site="early", drop=-0.062, error=0.01, faster={1: 14.0}, between={})
    none = replace(report, static={"centers": slow}, per_sample={})
    why = (
        "the first site within 2 points of the network is 'late', 1 layer less, 1.4× slower (batch 1), "
        "no faster (batch 64). The result is the whole network."
    )
    assert none.sentence == f"Nothing to gain here (nearest class center): {why}"
    also = f"By one exit for all samples there is nothing to gain with class means: {why}"
    alone = replace(none, per_sample={"centers": single})
    assert alone.sentence == (
        "Each sample on its own can leave early by the nearest class center (96% of the samples do): "
        f"test accuracy −1.0 points (± 0.4), 3.8× faster (batch 1). {also}"
    )
    best = replace(alone, static={"centers": slow, "linear": linear})
    assert best.sentence == (
        "The linear read-out can decide for all samples at 'early': test accuracy +6.2 points (± 1.0), "
        f"14× faster (batch 1). {also}"
    )
    broken = replace(best, static={"centers": slow, "linear": replace(linear, drop=0.5)})
    assert broken.sentence == alone.sentence  # what keeps the tolerance goes first
    alike = replace(none, within="agreement", tolerance=0.05)
    assert "the first site that decides like the network on all but 5.0% of the samples is 'late'" in alike.sentence
    assert "instead of class means there is no exit: on the half that chooses" in alone.findings[0]


def test_an_exit_that_saves_no_time_is_not_returned(trained: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(whole: nn.Module, runs: dict, example: Batch, size: int, *progress: object) -> dict:
        return dict.fromkeys(runs, exit_network.Timing(1.5, 1.5, 1.5))

    monkeypatch.setattr(exits, "compared", slower)
    found = ll.early_exit(trained, samples(400, 1), test=samples(600, 2), tolerance=0.02, times=(1,))
    assert "centers" in found.report.static
    assert found.sites == ()
    assert found.report.sentence.startswith(
        "Nothing to gain here (nearest class center): the first site within 2 points"
    )
    assert found.report.sentence.endswith("1.5× slower (batch 1). The result is the whole network.")
    x, _ = samples(20, 4)
    with torch.no_grad():
        assert torch.equal(found(x), trained(x))


@pytest.mark.parametrize("at", ["one", "none"])
def test_the_form_of_single_samples_is_saved_and_loaded_with_the_other(
    at: str, trained: Counted, tmp_path: Path
) -> None:
    sites = ll.sites(trained, samples(8, 1)).sites[1:4]
    readouts = [Readout.nearest_center(ClassSums.of(*samples(80, seed), 4)) for seed in (1, 2, 3)]
    one = EarlyExit(trained, *((sites[:1], readouts[:1]) if at == "one" else ([], [])))
    one._alternative = (EarlyExit(trained, sites, readouts, thresholds=[3.0, 1.0, float("inf")]),)
    path = one.save(tmp_path / "exit.safetensors")
    again, (x, _) = EarlyExit.load(path, trained), samples(40, 8)
    assert again.per_sample().thresholds == (3.0, 1.0, float("inf"))
    with torch.no_grad():
        assert torch.equal(again(x), one(x))
        assert torch.equal(again.per_sample()(x), one.per_sample()(x))
    assert again.save(tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_a_narrow_terminal_keeps_the_times(found: EarlyExit) -> None:
    report, out = found.report, io.StringIO()
    timed = tuple(replace(site, time={1: 0.5, 256: 0.25}) for site in report.sites)
    rows = replace(report, sites=timed).rows
    print_exits("So it is.", [], rows, [], Console(file=out, width=80))
    heads = next(line for line in out.getvalue().splitlines() if "site" in line)
    assert all(head in heads for head in ("nearest center", "linear read-out", "time, batch 1", "time, batch 256"))


class TwoModes(nn.Module):
    """With what differs between train and eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.b, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.drop(self.norm(self.a(x)).relu())).relu())


def test_an_exit_of_a_network_in_train_mode_is_in_eval_mode(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = TwoModes().train()
    one = ll.early_exit(net, samples(200, 1), test=samples(200, 2), by="best", tolerance=0.5, times=(), progress=False)
    assert not net.training
    x = samples(20, 3)[0]
    before = net.norm.running_mean.clone()
    with torch.no_grad():
        assert torch.equal(torch.cat([one(row[None]) for row in x]).argmax(1), one(x).argmax(1))
    assert torch.equal(net.norm.running_mean, before)
    again = EarlyExit.load(one.save(tmp_path / "exit.safetensors"), net.train())
    assert not net.training
    with torch.no_grad():
        assert torch.equal(again(x), one(x))
    net.train()
    with pytest.raises(InputError, match=r"expected eval mode, in which its exits were found, got train mode"):
        one(x)


def test_the_time_of_single_samples_is_that_of_all_who_judge(monkeypatch: pytest.MonkeyPatch, trained: Counted) -> None:
    def clocked(whole: nn.Module, runs: dict[str, nn.Module], example: Batch, size: int, *more: Any) -> dict[str, Any]:
        times = (
            {f"site {j}": 0.1 * (j + 1) for j in range(len(runs) - 1)}
            if "visits" in runs
            else dict.fromkeys(runs, 0.01)
        )
        times |= {"visits": 1.0} if "visits" in runs else {}
        return {name: exit_network.Timing(share, share, share) for name, share in times.items()}

    monkeypatch.setattr(exits, "compared", clocked)
    report = ll.early_exit(
        trained, samples(400, 1), test=samples(2000, 2, spread=2.5), tolerance=0.02, times=(1,), progress=False
    ).report
    one = report.per_sample["centers"]
    costs = [*(0.1 * (j + 1) for j in range(len(report.sites))), 1.0]
    expected = sum(share * cost for share, cost in zip(one.shares, costs, strict=True))
    assert 1 / one.faster[1] == pytest.approx(expected, rel=1e-6)  # not 100 times faster, as the first few samples were


def test_classes_that_no_test_sample_has_are_told(trained: Counted) -> None:
    x, y = samples(400, 2)
    few = x[y < 2], y[y < 2]
    found = ll.early_exit(trained, samples(400, 1), test=few, times=(), progress=False)
    assert "Judged without samples of classes 2 and 3: test has none." in str(found.report)


def test_why_single_samples_gain_nothing_is_said(monkeypatch: pytest.MonkeyPatch, trained: Counted) -> None:
    monkeypatch.setattr(exits, "per_sample_limits", lambda *given: None)
    found = ll.early_exit(trained, samples(400, 1), test=samples(400, 2), times=(), progress=False)
    assert "nothing to gain; within 1 point they take" in " ".join(found.report.findings)
    with pytest.raises(
        InputError, match=r"within 1 point they take \d+% of the network's layers at least\. Try another"
    ):
        found.per_sample()
