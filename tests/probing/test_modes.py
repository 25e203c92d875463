"""`batchnorm="batch"` and "whole": BatchNorm on the statistics of each batch or of all samples, all else as in eval mode."""

import pytest
import torch
from capture_networks import FNN, InPlaceResNet, clouds, seeded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll
import oracle
from layerlaw.errors import MemoryBudgetError
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep

K = 3
X, Y = clouds(200, 12)


class Normed(nn.Module):
    """Linear, BatchNorm, ReLU, Dropout, twice, then a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.bn1, self.two, self.bn2 = nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(8, K)

    def forward(self, x):
        x = self.drop(self.bn1(self.one(x)).relu())
        x = self.drop(self.bn2(self.two(x)).relu())
        return self.last(x)


def normalized(x: torch.Tensor, norm: nn.BatchNorm1d) -> torch.Tensor:
    mean, variance = x.mean(0), x.var(0, correction=0)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


@torch.no_grad()
def by_hand(network: Normed, x: torch.Tensor, chunk: int) -> list[torch.Tensor]:
    """Features with the batch's own statistics and without Dropout, chunk by chunk, in float64."""
    network = network.double()
    parts: list[list[torch.Tensor]] = [[], [], []]
    for h in torch.split(x.double(), chunk):
        parts[0].append(h)
        h = normalized(network.one(h), network.bn1).relu()
        parts[1].append(h)
        h = normalized(network.two(h), network.bn2).relu()
        parts[2].append(h)
    network.float()
    return [torch.cat(part) for part in parts]


@pytest.mark.parametrize("memory", [2.0, 2e-5], ids=["kept", "streamed"])
@pytest.mark.parametrize("flag", [True, False])
def test_train_mode_equals_a_manual_forward_with_batch_statistics(memory: float, flag: bool) -> None:
    network = seeded(Normed).train(flag)
    buffers = {name: value.clone() for name, value in network.named_buffers()}
    record = ll.probe(network, (X, Y), batchnorm="batch", batch_size=50, memory_gib=memory, progress=False)
    assert record.settings["one_forward"] == (memory == 2.0)
    assert record.settings["batchnorm"] == "batch"
    assert record.settings["batch_size"] == 50
    for site, features in zip(record.sites, by_hand(network, X, 50), strict=True):
        assert site.values["separation"] == pytest.approx(oracle.separation(features, Y, K), rel=1e-5)
    assert network.training == flag
    for name, value in network.named_buffers():
        assert torch.equal(value, buffers[name]), name


def test_the_batch_size_of_the_authors_is_the_default_and_matters() -> None:
    network = seeded(Normed)
    hundred, fifty, default = (
        ll.probe(network, (X, Y), batchnorm="batch", batch_size=size, progress=False) for size in (100, 50, None)
    )
    assert default.column("separation") == hundred.column("separation")
    assert default.settings["batch_size"] == 100
    assert fifty.column("separation")[1] != pytest.approx(hundred.column("separation")[1], rel=1e-4)


def test_eval_mode_uses_the_running_statistics_and_train_mode_does_not() -> None:
    network = seeded(Normed)
    before = ll.probe(network, (X, Y), batchnorm="batch", progress=False).column("separation")
    eval_before = ll.probe(network, (X, Y), progress=False).column("separation")
    network.bn1.running_var.mul_(torch.linspace(0.1, 10, 8))
    assert ll.probe(network, (X, Y), batchnorm="batch", progress=False).column("separation") == before
    assert ll.probe(network, (X, Y), progress=False).column("separation") != eval_before


@pytest.mark.parametrize("batchnorm", ["running", "batch"])
def test_dropout_is_off_in_both_modes(batchnorm: str) -> None:
    network = seeded(Normed).train()
    first, second = (ll.probe(network, (X, Y), batchnorm=batchnorm, progress=False) for _ in range(2))
    assert first.to_pandas().equals(second.to_pandas())


def test_pairs_sorted_by_class_are_mixed_and_the_record_says_so() -> None:
    order = Y.argsort(stable=True)
    x, y = X[order], Y[order]
    record = ll.probe(seeded(Normed), (x, y), batchnorm="batch", batch_size=50, seed=4, progress=False)
    assert record.settings["order"] == "mixed with seed 4, since it was sorted by class"
    mixed = torch.randperm(200, generator=torch.Generator().manual_seed(4))
    features = by_hand(seeded(Normed), x[mixed], 50)
    for site, value in zip(record.sites, features, strict=True):
        assert site.values["separation"] == pytest.approx(oracle.separation(value, y[mixed], K), rel=1e-5)
    assert (
        ll.probe(seeded(Normed), (X, Y), batchnorm="batch", batch_size=50, progress=False).settings["order"]
        == "as given"
    )


@pytest.mark.parametrize("memory", [2.0, 2e-5], ids=["kept", "streamed"])
def test_a_shuffling_loader_gives_the_same_batches_in_both_passes(memory: float) -> None:
    loaders = [
        DataLoader(TensorDataset(X, Y), batch_size=50, shuffle=True),
        DataLoader(TensorDataset(X, Y), batch_size=50, shuffle=True, generator=torch.Generator().manual_seed(1)),
    ]
    for loader in loaders:
        record = ll.probe(seeded(Normed), loader, test=loader, batchnorm="batch", memory_gib=memory, progress=False)
        assert record.settings["order"] == "shuffled by the loader"
        assert record.settings["one_forward"] == (memory == 2.0)


def test_test_data_are_normalized_by_their_own_batches() -> None:
    network = seeded(Normed)
    record = ll.probe(network, (X, Y), test=(X[:100], Y[:100]), batchnorm="batch", batch_size=50, progress=False)
    for site, features in zip(record.sites, by_hand(network, X[:100], 50), strict=True):
        assert site.values["test_separation"] == pytest.approx(oracle.separation(features, Y[:100], K), rel=1e-5)


def test_a_tail_batch_of_one_is_told() -> None:
    with pytest.raises(
        ll.LayerlawError, match=r"data, batch 4: a batch of one sample has no batch statistics.*drop_last"
    ):
        ll.probe(seeded(Normed), (X[:197], Y[:197]), batchnorm="batch", batch_size=49, progress=False)
    with pytest.raises(ll.LayerlawError, match="test, batch 1: a batch of one sample"):
        ll.probe(seeded(Normed), (X, Y), test=(X[:51], Y[:51]), batchnorm="batch", batch_size=50, progress=False)


def test_batches_of_one_class_are_told() -> None:
    order = Y.argsort(stable=True)
    loader = DataLoader(TensorDataset(X[order], Y[order]), batch_size=50)
    with pytest.raises(
        ll.LayerlawError, match=r"data, batch 0: all 50 samples are of one class, and batchnorm='batch'.*Mix the"
    ):
        ll.probe(seeded(Normed), loader, batchnorm="batch", progress=False)
    assert ll.probe(seeded(Normed), loader, progress=False).counts == [67, 67, 66]


def test_a_network_without_batch_norm_has_no_such_wishes() -> None:
    order = Y.argsort(stable=True)
    network = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, K))
    loader = DataLoader(TensorDataset(X[order][:151], Y[order][:151]), batch_size=50)
    assert ll.probe(network, loader, batchnorm="batch", progress=False).counts == [67, 67, 17]


def test_few_of_the_chosen_classes_in_a_batch_are_enough_since_all_samples_normalize_it() -> None:
    network = seeded(Normed)
    batches = [(X[i : i + 50], Y[i : i + 50].clone()) for i in range(0, 200, 50)]
    for _, y in batches:  # one sample of class 0 in each batch, many of class 1
        y[y == 0] = 2
        y[0] = 0
    record = ll.probe(network, batches, classes=[0, 1], batchnorm="batch", progress=False)
    assert record.counts[0] == 4
    with torch.no_grad():
        features = by_hand(network, X, 50)[1]
    y = torch.cat([labels for _, labels in batches])
    kept = y < 2
    expected = oracle.separation(features[kept], y[kept], 2)
    assert record.sites[1].values["separation"] == pytest.approx(expected, rel=1e-5)


def test_train_mode_works_for_convolutions_and_with_a_null() -> None:
    x, y = clouds(60, 3, 8, 8)
    record = ll.probe(seeded(InPlaceResNet), (x, y), batchnorm="batch", batch_size=20, null=True, progress=False)
    assert all(value is not None for value in record.column("separation_untrained"))


def in_batches(x: torch.Tensor, y: torch.Tensor, size: int) -> list:
    return list(zip(x.split(size), y.split(size), strict=True))


@pytest.mark.parametrize("data", [(X, Y), in_batches(X, Y, 30), DataLoader(TensorDataset(X, Y), batch_size=70)])
def test_whole_normalizes_by_the_statistics_of_all_samples(data: object) -> None:
    network = seeded(Normed).train()
    test = (X[:80] + 1, Y[:80])
    record = ll.probe(network, data, test=test, batchnorm="whole", null=True, progress=False)
    assert (record.settings["batchnorm"], record.settings["batch_size"]) == ("whole", 200)
    for column, (x, y) in {"separation": (X, Y), "test_separation": test}.items():
        for site, features in zip(record.sites, by_hand(network, x, len(x)), strict=True):
            assert site.values[column] == pytest.approx(oracle.separation(features, y, K), rel=1e-5)
    fresh = by_hand(ll.untrained(network), X, 200)
    for site, features in zip(record.sites, fresh, strict=True):
        assert site.values["separation_untrained"] == pytest.approx(oracle.separation(features, Y, K), rel=1e-5)


def test_whole_is_what_the_lab_measures_of_a_feed_forward_network() -> None:
    recipe = Recipe(Shape.even(3, inputs=12, width=20, classes=K), epochs=3, learning_rate=1e-2)
    run = sweep(
        [recipe], Samples.of((X, Y), (X[:60] + 0.1, Y[:60])), schedule=Schedule(batchnorm=("whole",), test=True)
    )[0]
    record = ll.probe(run.network(), (X, Y), test=(X[:60] + 0.1, Y[:60]), batchnorm="whole", progress=False)
    for split, column in (("train", "separation"), ("test", "test_separation")):
        expected = run.measurement(batchnorm="whole", split=split).separation
        assert record.column(column) == pytest.approx(list(expected), rel=1e-5)


def test_whole_equals_running_statistics_that_are_recalibrated_layer_after_layer() -> None:
    network = seeded(Normed)
    expected = ll.probe(network, (X, Y), batchnorm="whole", progress=False).column("separation")
    for norm in (network.bn1, network.bn2):
        captured = []
        hook = norm.register_forward_pre_hook(lambda _, args, seen=captured: seen.append(args[0]))
        with torch.no_grad():
            network.eval()(X)
        hook.remove()
        norm.running_mean.copy_(captured[0].mean(0))
        norm.running_var.copy_(captured[0].var(0, correction=0))
    assert ll.probe(network, (X, Y), progress=False).column("separation") == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("data", "how_many"), [((X, Y), "200 samples"), (in_batches(X, Y, 30), "or more samples")])
def test_whole_beyond_the_budget_is_refused_with_what_would_fit(data: object, how_many: str) -> None:
    memory = 100 * 4 * (12 + 12 + 8 + 8) / 2**30
    with pytest.raises(MemoryBudgetError, match=rf"{how_many} with the features of 3 sites .* which fits 100 samples"):
        ll.probe(seeded(Normed), data, sites="layers", batchnorm="whole", memory_gib=memory, progress=False)
    assert ll.probe(seeded(FNN), data, batchnorm="whole", memory_gib=memory, progress=False).counts  # no BatchNorm


def test_whole_needs_batches_that_can_be_joined() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, K)

        def forward(self, x):
            return self.last(self.norm(self.one(x).mean(1)))

    data = [(torch.randn(9, length, 4), torch.arange(9) % K) for length in (5, 6)]
    with pytest.raises(ll.LayerlawError, match="expected batches that can be joined into one, got inputs of different"):
        ll.probe(Pooled(), data, reduce="mean", batchnorm="whole", progress=False)
