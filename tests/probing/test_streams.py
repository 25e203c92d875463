"""However the data come and whatever the memory, the numbers are the same."""

import re

import numpy as np
import pytest
import torch
from capture_networks import FNN, InPlaceResNet, clouds, seeded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layerlaw as ll
from layerlaw.capture.hooks import Capture
from layerlaw.capture.plan import statistic_bytes
from layerlaw.errors import MemoryBudgetError

X, Y = clouds(120, 12)
X = X.double()  # in float64 only the order of additions differs; float32 has a test of its own


def table(record: ll.Record, without: tuple[str, ...] = ()):
    frame = record.to_pandas().drop(columns=["site", "type", "at"])
    return frame.drop(columns=[c for c in frame.columns if c.removeprefix("test_") in without])


def assert_same(a: ll.Record, b: ll.Record, rel: float = 1e-9, without: tuple[str, ...] = ()) -> None:
    left, right = table(a, without), table(b, without)
    assert list(left.columns) == list(right.columns)
    for column in left.columns:
        np.testing.assert_allclose(left[column], right[column], rtol=rel, atol=1e-12, err_msg=column)
    for mine, theirs in zip(a.sites, b.sites, strict=True):
        for key in mine.by_class:
            np.testing.assert_allclose(mine.by_class[key], theirs.by_class[key], rtol=rel, atol=1e-12)


def net() -> nn.Module:
    return seeded(FNN).double()


def probe(data: object = (X, Y), network: nn.Module | None = None, **how: object) -> ll.Record:
    return ll.probe(network or net(), data, **{"sites": "layers", "progress": False, **how})


def bytes_of(network: nn.Module, x: torch.Tensor) -> list[int]:
    return [statistic_bytes(3, site.features) for site in ll.sites(network, x, sites="layers").sites]


def gib(size: float) -> float:
    return size / 2**30


EXTRAS = {"uncertainty": True}
DRAWN = (
    "separation_permuted",
    "separation_permuted_low",
    "separation_permuted_high",
)  # where labels are not known beforehand, a streamed floor uses drawn labels


@pytest.mark.filterwarnings("ignore:.*forwards over the data")
@pytest.mark.parametrize("kind", ["fnn", "resnet"])
def test_streamed_equals_kept_equals_grouped(kind: str) -> None:
    network, x = (net(), X) if kind == "fnn" else (seeded(InPlaceResNet).double(), clouds(120, 3, 8, 8)[0].double())
    data, test = (x, Y), (x[:60], Y[:60])
    kept = probe(data, network, test=test, batch_size=50, **EXTRAS)
    assert kept.settings["one_forward"]
    each = bytes_of(network, x)
    views = 16  # of the statistics: plain, ten groups, five permutations of the labels
    streamed = probe(data, network, test=test, batch_size=50, memory_gib=gib(views * sum(each) + 100), **EXTRAS)
    assert not streamed.settings["one_forward"]
    grouped = probe(data, network, test=test, batch_size=50, memory_gib=gib(views * max(each) + 100), **EXTRAS)
    assert not grouped.settings["one_forward"]
    for other in (streamed, grouped):
        assert_same(kept, other)
        assert other.settings["jackknife_groups"] == 10
        for mine, theirs in zip(kept.sites, other.sites, strict=True):
            np.testing.assert_allclose(mine.plane, theirs.plane, rtol=1e-6, atol=1e-6)
        assert other.provenance["data_fingerprint"] == kept.provenance["data_fingerprint"]
        assert other.notes == kept.notes


def test_in_float32_streamed_equals_kept_but_for_rounding() -> None:
    network, data = seeded(FNN), (X.float(), Y)
    memory = gib(16 * sum(bytes_of(network, data[0])) + 100)
    kept, streamed = (probe(data, network, memory_gib=m, batch_size=50, **EXTRAS) for m in (2.0, memory))
    assert (kept.settings["one_forward"], streamed.settings["one_forward"]) == (True, False)
    assert_same(kept, streamed, rel=2e-5)
    np.testing.assert_allclose(kept.column("separation"), streamed.column("separation"), rtol=1e-6)


def test_standard_errors_and_the_floor_are_left_out_when_features_do_not_fit_and_the_record_says_so() -> None:
    plain = probe(uncertainty=False)
    small = probe(memory_gib=gib(sum(bytes_of(net(), X)) + 100))
    assert_same(plain, small)
    assert "separation_log_se" not in small.columns
    (note,) = small.notes
    found = re.fullmatch(
        r"No standard errors and permuted-label floor: features take (\S+) GiB, statistics (\S+) GiB, the budget is "
        r"(\S+) GiB; request them with uncertainty=True, or give memory_gib=(\S+)\.", note
    )  # fmt: skip
    assert found is not None, note
    features, statistics, budget, enough = map(float, found.groups())
    assert features + statistics > budget
    assert "separation_log_se" in probe(memory_gib=enough).columns
    assert plain.notes == []


def test_one_of_the_extras_may_be_asked_for_alone() -> None:
    both = probe()
    for asked, other in (("jackknife", "separation_permuted"), ("permuted", "separation_log_se")):
        alone = probe(uncertainty=asked)
        assert other not in alone.columns
        kept = tuple(column for column in both.columns if column not in alone.columns)
        assert_same(alone, both, without=kept)


class Endless:
    """Batches of unknown number, made anew each time."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __iter__(self):
        for i in range(self.times):
            x, y = clouds(60, 12, seed=i)
            yield x.double(), y


def test_a_stream_that_outgrows_the_budget_lets_go_of_what_nobody_asked_for() -> None:
    room = gib(16 * sum(bytes_of(net(), X)) + 60 * 36 * 8 * 2.5)  # for two and a half batches
    small, large = probe(Endless(2), memory_gib=room), probe(Endless(5), memory_gib=room)
    assert small.settings["one_forward"]
    assert "separation_log_se" in small.columns
    assert not large.settings["one_forward"]
    assert "separation_log_se" not in large.columns
    assert "separation_permuted" not in large.columns
    assert large.notes[0].startswith("No standard errors and permuted-label floor: the features do not fit")
    assert_same(large, probe(Endless(5), uncertainty=False))
    asked = probe(Endless(5), memory_gib=room, uncertainty="jackknife")
    assert_same(asked, probe(Endless(5), uncertainty="jackknife"), without=DRAWN)


def data_of_every_kind(x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
    dataset = TensorDataset(x, y)
    generator = torch.Generator().manual_seed(3)
    return {
        "pair": (x, y),
        "arrays": (x.numpy(), y.numpy()),
        "dataset": dataset,
        "loader": DataLoader(dataset, batch_size=32),
        "shuffling loader": DataLoader(dataset, batch_size=32, shuffle=True),
        "loader with a generator": DataLoader(dataset, batch_size=32, shuffle=True, generator=generator),
        "list": [(x[i : i + 32], y[i : i + 32]) for i in range(0, len(y), 32)],
        "dictionaries": [{"x": x[i : i + 32], "labels": y[i : i + 32]} for i in range(0, len(y), 32)],
        "dictionary": {"x": x, "labels": y},
    }


@pytest.mark.parametrize("kind", data_of_every_kind(X, Y))
@pytest.mark.parametrize("memory", [2.0, None], ids=["kept", "streamed"])
def test_data_of_every_kind_give_the_same_numbers(kind: str, memory: float | None) -> None:
    memory = memory or gib(sum(bytes_of(net(), X)) + 100)
    plain = probe(uncertainty=False)
    record = probe(data_of_every_kind(X, Y)[kind], memory_gib=memory, uncertainty=False)
    assert_same(plain, record)
    assert record.counts == plain.counts
    assert record.accuracy == plain.accuracy


def test_labeled_images_give_the_numbers_of_their_tensors() -> None:
    images = ll.data.load(split="test").balanced(20)
    network = seeded(FNN, (784, 20, 20, 10))
    record = probe(images, network)
    assert_same(record, probe(images.tensors(), network))
    assert record.classes == list(images.class_names)


def test_a_shuffling_loader_with_jackknife_streams_in_the_same_order_twice() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)
    memory = gib(16 * sum(bytes_of(net(), X)) + 100)
    torch.manual_seed(1)
    kept = probe(loader, **EXTRAS)
    torch.manual_seed(1)
    streamed = probe(loader, memory_gib=memory, **EXTRAS)
    assert not streamed.settings["one_forward"]
    assert_same(kept, streamed, without=DRAWN)


class Overwriting(FNN):
    """Writes over everything it has handed on, and over its input."""

    def forward(self, x):
        x.mul_(0.5)
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            y = layer(x).relu()
            x.fill_(7.0)
            x = y
        scores = self.layers[-1](x)
        x.zero_()
        return scores


class Quiet(FNN):
    """The same without overwriting."""

    def forward(self, x):
        return super().forward(x * 0.5)


@pytest.mark.parametrize("kind", ["pair", "list", "loader"])
@pytest.mark.parametrize("memory", ["kept", "streamed", "grouped"])
def test_overwriting_in_place_after_a_hook_is_harmless(kind: str, memory: str) -> None:
    each = bytes_of(net(), X)
    size = {"kept": 2.0, "streamed": gib(sum(each) + 100), "grouped": gib(max(each) + 100)}[memory]
    x = X.clone()
    how = {"memory_gib": size, "uncertainty": False}
    sites = [f"layers.{i}" for i in range(3)]
    noisy = probe(data_of_every_kind(x, Y)[kind], seeded(Overwriting).double(), sites=["input", *sites], **how)
    quiet = probe((X, Y), seeded(Quiet).double(), sites=["input", *sites], batch_size=32, **how)
    assert noisy.settings["one_forward"] == (memory == "kept")
    assert_same(noisy, quiet)
    assert torch.equal(x, X)
    assert_same(probe((x, Y), seeded(Overwriting).double(), **how), probe((X, Y), seeded(Quiet).double(), **how))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_features_of_other_precisions_are_measured_in_theirs(dtype: torch.dtype) -> None:
    import oracle

    network, x = seeded(FNN).to(dtype), X.to(dtype)
    record = probe((x, Y), network)
    h = x
    for site, layer in zip(record.sites, network.layers, strict=True):
        assert site.values["separation"] == pytest.approx(oracle.separation(h, Y, 3), rel=1e-6)
        with torch.no_grad():
            h = layer(h).relu()


def test_the_network_may_run_under_autocast() -> None:
    import oracle

    network, x = seeded(FNN), X.float()
    with torch.autocast("cpu", torch.bfloat16):
        record = probe((x, Y), network)
        with torch.no_grad():
            h = network.layers[0](x).relu()
    assert h.dtype == torch.bfloat16
    assert record.sites[0].values["separation"] == pytest.approx(oracle.separation(x, Y, 3), rel=1e-6)
    assert record.sites[1].values["separation"] == pytest.approx(oracle.separation(h, Y, 3), rel=1e-6)


def test_out_of_memory_says_how_many_samples_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **how: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Capture, "run", full)
    words = r"data, batch 0: 50 samples at once ran out of memory on cpu: about 25 would fit. Pass batch_size=25"
    with pytest.raises(MemoryBudgetError, match=words):
        probe((X, Y), net(), batch_size=50)
    with pytest.raises(MemoryBudgetError, match="ran out of memory on cpu: about 1 would fit"):
        probe((X[:6], Y[:6]), net(), batch_size=3)
