"""A site too wide for the memory budget is measured in slices of its features: same numbers, more forwards, told before."""

import math
import re
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from capture_networks import seeded
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import layerlaw as ll
from layerlaw.capture.plan import Site
from layerlaw.errors import MemoryBudgetError, PassError
from layerlaw.probing.slices import FEW, MANY, rounds_of

K = 5
GENERATOR = torch.Generator().manual_seed(0)
Y = torch.arange(150) % K
Y[:20] = 0  # unequal classes
X = torch.randn(150, 3, 8, 8, generator=GENERATOR) + 0.6 * torch.randn(K, 3, 8, 8, generator=GENERATOR)[Y]
TEST = torch.randn(60, 3, 8, 8, generator=GENERATOR, dtype=torch.float64), torch.arange(60) % K
TINY = 3e-5  # GiB: 32 kB, for sites whose class sums, means and bases take 102


class Counted(nn.Sequential):
    """Counts the samples that it runs."""

    samples = 0

    def forward(self, x: Tensor) -> Tensor:
        self.samples += len(x)
        return super().forward(x)


def network(dtype: torch.dtype = torch.float64) -> Counted:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        maps = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()]
        return Counted(*maps, nn.Flatten(), nn.Linear(128, 20), nn.ReLU(), nn.Linear(20, K)).to(dtype).eval()


def probe(model: nn.Module | None = None, data: Any = None, **how: Any) -> ll.Record:
    data = (X.double(), Y) if data is None else data
    given = {"batch_size": 32} if isinstance(data, tuple) else {}
    return ll.probe(
        model or network(), data, **{"progress": False, "uncertainty": False, "sites": "layers", **given, **how}
    )


def same(one: float | None, other: float | None, rel: float) -> bool:
    return one is other if one is None or other is None else other == pytest.approx(one, rel=rel, abs=1e-13)


def assert_equal(a: ll.Record, b: ll.Record, rel: float = 1e-10) -> None:
    assert [site.name for site in a.sites] == [site.name for site in b.sites]
    for one, other in zip(a.sites, b.sites, strict=True):
        assert one.values.keys() == other.values.keys()
        for name, value in one.values.items():
            assert same(value, other.values[name], rel), (one.name, name)
        assert one.by_class.keys() == other.by_class.keys()
        for name, values in one.by_class.items():
            for value, found in zip(values, other.by_class[name], strict=True):
                assert same(value, found, rel), (one.name, name)
        assert one.plane == other.plane
    for name in ("accuracy", "test_accuracy", "counts", "test_counts", "plane_labels"):
        assert getattr(a, name) == getattr(b, name)
    for name in ("data_fingerprint", "test_fingerprint"):
        assert a.provenance[name] == b.provenance[name]


def forwards(record: ll.Record, label: str = "data") -> int:
    found = [re.search(rf"slices of the features, {label}, by (\d+) forwards", note) for note in record.notes]
    return sum(int(one[1]) for one in found if one)


@pytest.mark.parametrize(
    ("how", "memory"),
    [
        ({}, TINY),
        ({"weighting": "classes"}, TINY),
        ({"test": TEST}, 6e-5),
        ({"null": True}, TINY),
        ({"uncertainty": True}, 4e-4),
        ({"uncertainty": "jackknife", "test": TEST}, 5e-4),
        ({"classes": [0, 2, 3]}, TINY),
        ({"scores": None, "classes": K}, TINY),
    ],
)
def test_every_column_equals_the_one_measured_whole(how: dict[str, Any], memory: float) -> None:
    sliced = probe(memory_gib=memory, **how)
    assert forwards(sliced) > 0
    assert_equal(probe(**how), sliced)


def test_float32_features_keep_their_digits() -> None:
    data = X, Y
    sliced = probe(network(torch.float32), data, memory_gib=TINY)
    assert forwards(sliced) == 4
    assert_equal(probe(network(torch.float32), data), sliced, rel=3e-6)


def test_a_layer_that_tells_no_samples_apart_has_no_nearest_center() -> None:
    model = network(torch.float32)
    with torch.no_grad():
        model[0].weight.zero_()
    record = probe(model, (X, Y), memory_gib=TINY, sites=["0"])
    assert forwards(record) >= 2  # one more where rounding makes small scales
    values = record.sites[0].values
    assert values["rank"] == 0
    assert values["separation"] is None
    whole = probe(model, (X, Y), sites=["0"]).sites[0].values
    assert values["ncc_accuracy"] == whole["ncc_accuracy"] == pytest.approx(1 / K)  # all centers are equally near
    assert values["ncc_mismatch"] == pytest.approx(whole["ncc_mismatch"])


class Titles(list[str]):
    """Progress that keeps its titles, one for each forward over the data."""

    def __call__(self, items: Any, label: str, total: int | None) -> Iterator[Any]:
        self.append(label)
        yield from items


def test_as_many_forwards_are_run_as_the_progress_said_before() -> None:
    titles, model = Titles(), network()
    record = probe(model, memory_gib=TINY / 2, progress=titles)
    wide = [title for title in titles if "slices" in title]
    assert wide[0] == f"data, slices, forward 1 of {len(wide)} ({len(titles)} in all)"
    assert len(wide) == forwards(record) == 10
    assert "'0', '2'" in next(note for note in record.notes if "slices" in note)
    dry_run = model.samples - 150 * len(titles)
    assert 0 < dry_run < 150


TOLD = re.compile(
    r"([\d,]+) forwards over (.*) are needed within memory_gib=([^;]+)((; memory_gib=\S+ takes \d+){1,2})\."
)


@pytest.mark.parametrize(
    ("how", "memory"),
    [
        ({}, TINY / 4),
        ({"test": TEST}, TINY / 2),
        ({"uncertainty": True, "test": TEST}, TINY * 4),
        ({"uncertainty": None}, TINY / 4),
        ({"linear": True}, TINY / 3),
        ({"parts": True}, TINY / 3),
        ({"null": True}, TINY / 3),
    ],
)
def test_many_forwards_are_told_beforehand_with_budgets_that_take_fewer(how: dict[str, Any], memory: float) -> None:
    many, model = Titles(), network()
    if "null" in how:  # which is calibrated first, by a forward more
        model.insert(1, nn.BatchNorm2d(8).double().eval())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        probe(model, memory_gib=memory, progress=many, **how)
    found = [TOLD.fullmatch(str(one.message).removeprefix("layerlaw: ")) for one in told]
    assert {one.filename for one in told} == {__file__}
    counts = [int(one[1].replace(",", "")) for one in found if one]
    assert sum(counts) == len(many)
    assert min(counts) > MANY
    if further := [{"parts": "parts", "null": "untrained"}[name] for name in ("parts", "null") if name in how]:
        assert [one[2] for one in found if one] == ["the data", f"the data ({further[0]})"]
        return
    (one,) = found
    assert one
    assert one[2] == ("the data and the test data" if "test" in how else "the data")
    assert float(one[3]) == pytest.approx(memory, rel=1e-5)
    budgets = [(float(gib), int(n)) for gib, n in re.findall(r"memory_gib=(\S+) takes (\d+)", one[4])]
    assert memory < budgets[0][0] <= budgets[-1][0]
    assert budgets[0][1] <= max(FEW, len(many) // 10)
    assert budgets[-1][1] <= FEW
    for gib, n in budgets:
        few = Titles()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe(memory_gib=gib, progress=few, **how)
        assert len(few) == n


@pytest.mark.parametrize("test", [False, True])
def test_many_forwards_over_groups_of_sites_are_told_too(test: bool) -> None:
    """Of targets, which are not measured in slices; and over their test data, when these are come to."""
    model = nn.Sequential(*(nn.Linear(20, 20) for _ in range(12)), nn.Linear(20, 2)).double()
    data = torch.randn(150, 20, generator=GENERATOR).double(), torch.randn(150, 2, generator=GENERATOR).double()
    titles = Titles()
    with pytest.warns(UserWarning, match="forwards over the (test )?data are needed") as told:
        probe(model, data, memory_gib=4e-6, progress=titles, **({"test": data} if test else {}))
    found = [TOLD.search(str(one.message)) for one in told]
    assert [one[2] for one in found if one] == ["the data", "the test data"][: 1 + test]
    assert sum(int(one[1]) for one in found if one) == len(titles)


def test_the_total_over_data_and_test_data_is_in_the_progress() -> None:
    titles = Titles()
    probe(memory_gib=6e-5, test=TEST, progress=titles)  # few: no warning
    wide = [title for title in titles if "slices" in title]
    assert len(titles) <= MANY
    assert all(title.endswith(f" ({len(titles)} in all)") for title in wide)


def test_few_forwards_are_no_warning_and_progress_of_one_data_set_alone_says_no_total() -> None:
    titles = Titles()
    probe(memory_gib=TINY, sites=["0"], progress=titles)
    assert titles == [f"data, slices, forward {i} of {len(titles)}" for i in range(1, len(titles) + 1)]


def test_test_data_take_a_forward_over_the_training_data_in_each_round() -> None:
    record = probe(memory_gib=6e-5, test=TEST)
    note = next(note for note in record.notes if "features, test" in note)
    assert forwards(record, "test") % 3 == 0
    assert f"{forwards(record, 'test') // 3} of them over the training data" in note


class Endless(IterableDataset):  # type: ignore[type-arg]
    """A stream of unknown length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X.double(), Y, strict=True))


def test_a_stream_and_a_shuffling_loader() -> None:
    whole = probe()
    stream = probe(data=DataLoader(Endless(), batch_size=32), memory_gib=TINY)
    assert forwards(stream) > 4  # half of the budget waits for the samples
    assert_equal(whole, stream)
    loader = DataLoader(TensorDataset(X.double(), Y), batch_size=32, shuffle=True)
    shuffled = probe(data=loader, memory_gib=TINY)
    for one, other in zip(whole.sites, shuffled.sites, strict=True):
        assert other.values["separation"] == pytest.approx(one.values["separation"], rel=1e-10)


@pytest.mark.filterwarnings("ignore:.*forwards over the data")
def test_a_stream_too_long_for_the_budget_is_told() -> None:
    with pytest.raises(MemoryBudgetError, match=r"site '2' has 512 features: with 5 classes and 64 samples"):
        probe(data=DataLoader(Endless(), batch_size=32), memory_gib=4e-6)


@pytest.mark.parametrize("uncertainty", [True, False, None])
def test_the_budget_that_an_error_names_does(uncertainty: bool | None) -> None:
    """Of many samples a site takes less whole than in slices; and narrow sites are in slices as long as the widest is."""
    narrow = seeded(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 12), nn.Linear(12, 5))
    )
    how = {"model": narrow.double(), "sites": ["1", "3"], "uncertainty": uncertainty}
    refused = 0
    for memory in np.geomspace(1e-6, 1e-4, 50):
        try:
            probe(memory_gib=memory, **how)
        except MemoryBudgetError as error:
            (enough,) = re.findall(r"memory_gib=(\S+) measures it", str(error))
            assert float(enough) > memory
            assert probe(memory_gib=float(enough), **how).counts
            refused += 1
    assert 5 < refused < 45


def test_data_that_change_between_forwards() -> None:
    class Changing(IterableDataset):  # type: ignore[type-arg]
        rounds = 0

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            self.rounds += 1
            return iter(zip(X.double() + 0.01 * self.rounds, Y, strict=True))

    with pytest.raises(PassError, match="samples or their order changed between two forwards"):
        probe(data=DataLoader(Changing(), batch_size=32), memory_gib=TINY / 2, sites=["2"])


def test_a_network_that_changes_between_forwards() -> None:
    class Restless(Counted):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * (1 + self.samples / 1000))

    model = Restless(*network())
    with pytest.raises(PassError, match=r"class means moved by .*left on by hand, does this"):
        probe(model, memory_gib=TINY / 2, sites=["2"])


def test_what_slices_do_not_give_is_left_out_with_a_reason() -> None:
    model = Counted(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, K)).double()
    record = probe(model, memory_gib=TINY, linear=True, sites=["0", "2"])
    assert forwards(record) > 0
    assert "'3' reads is measured in slices of its features" in " ".join(record.notes)
    small = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, K)).double()
    data = X[:20, 0].double().flatten(1)[:, :12], torch.arange(20) % K
    record = probe(small, data, memory_gib=2500 / 2**30, linear=True, sites=["0"])
    assert forwards(record) > 0
    assert "No least D of a linear map at '0': it is measured in slices of its features." in record.notes
    assert "separation_linear" not in record.sites[0].values
    few = data[0][:10], data[1][:10]  # too few for D_lin, so that more memory is left: sliced where the others were
    tested = probe(small, data, memory_gib=2500 / 2**30, linear=True, sites=["0"], test=few)
    assert forwards(tested, "test") > 0
    whole = probe(small, data, sites=["0"], test=few)
    assert tested.sites[0].values["test_separation"] == pytest.approx(
        whole.sites[0].values["test_separation"], rel=1e-10
    )


def test_small_scales_take_one_more_forward_per_slice() -> None:
    x = X.double()
    x[:, 0] *= 1e-4
    x[:, 1:] = x[:, 1:].mean((1, 2, 3))[:, None, None, None]
    whole, sliced = (probe(data=(x, Y), sites=["input", "0"], memory_gib=m) for m in (1.0, 2.5e-5))
    assert forwards(sliced) % 2 == 1 or forwards(sliced) > 6
    for one, other in zip(whole.sites, sliced.sites, strict=True):
        assert other.values["separation"] == pytest.approx(one.values["separation"], rel=1e-6)


def site(name: str, features: int) -> Site:
    return Site(name, name, "output", 0, "Conv2d", 0, 1, False, (features,), features)


def test_rounds_cover_every_feature_once_within_the_budget() -> None:
    sites = [site("a", 1000), site("b", 350), site("c", 40)]
    memory = 9 * 10 * 360 + 8 * 10 * (20 + 50)
    rounds = rounds_of(sites, 10, 1, 50, memory)
    for one in sites:
        edges = [(piece.start, piece.stop) for pieces in rounds for piece in pieces if piece.site is one]
        assert edges[0][0] == 0
        assert edges[-1][1] == one.features
        assert all(left[1] == right[0] for left, right in pairwise(edges))
    taken = [sum(90 * (piece.stop - piece.start) + 80 * 70 for piece in pieces) for pieces in rounds]
    assert max(taken) <= memory
    assert len(rounds) == math.ceil(1390 / 360) + 1  # where sites meet, what is kept of both takes room


def test_imagenet_in_eight_gib() -> None:
    """The blocks of a ResNet-50 at 224 px and 1000 classes, 10,240 images."""
    widths = [256 * 56**2] * 3 + [512 * 28**2] * 4 + [1024 * 14**2] * 6 + [2048 * 7**2] * 3
    sites = [site(f"block {i}", width) for i, width in enumerate(widths)]
    assert len(rounds_of(sites, 1000, 1, 10_240, 8 * 2**30)) == 7
