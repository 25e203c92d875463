"""The memory of a probe grows neither with the number of samples nor with that of sites, and words say what it needs."""

import gc
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import layerlaw as ll
from layerlaw import probing
from layerlaw.capture.plan import statistic_bytes
from layerlaw.errors import MemoryBudgetError
from layerlaw.probing.memory import kept_bytes
from layerlaw.stats.around import Finished

SCRIPT = Path(__file__).parent / "stream_memory.py"


def peak_mib(batches: int) -> float:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(batches)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_eight_times_the_samples_take_the_same_memory() -> None:
    few, many = peak_mib(20), peak_mib(160)
    assert many - few < 10  # the features of the other 140 batches would be 213 MiB


K, WIDTH, DEPTH = 20, 3000, 5
GENERATOR = torch.Generator().manual_seed(0)
Y = torch.arange(60) % K
X = torch.randn(60, 30, generator=GENERATOR) + torch.randn(K, 30, generator=GENERATOR)[Y]
TEST = X[:30] + 0.1, Y[:30]
SITE = statistic_bytes(K, WIDTH) / 2**30  # GiB


def network(width: int = WIDTH, outputs: int = K, depth: int = DEPTH) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        narrow = [part for _ in range(depth) for part in (nn.Linear(30, width), nn.ReLU(), nn.Linear(width, 30))]
        return nn.Sequential(*narrow, nn.Linear(30, outputs)).eval()


WIDE = [str(3 * i + 1) for i in range(DEPTH)]


def probe(model: nn.Module | None = None, data: Any = (X, Y), **how: Any) -> ll.Record:
    usual = {"sites": WIDE, "uncertainty": False, "batch_size": 20, "progress": False}
    return ll.probe(network() if model is None else model, data, **{**usual, **how})


class Titles:
    """A progress that remembers what it was told, and how many bytes of tensors there were at the first of several passes.

    To look for them takes a second where other tests have left much behind.
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        self.held: list[int] = []

    def __call__(self, items: Any, label: str, total: int | None) -> Iterator[Any]:
        self.told.append(label)
        if not label.endswith(("pass 1", "forward 1")) and "forward 1 " not in label:
            self.held.append(self.held[-1] if self.held else 0)
            yield from items
            return
        gc.collect()
        # Those that other tests left behind may be of kinds without a storage.
        plain = [one for one in gc.get_objects() if type(one) in (Tensor, nn.Parameter)]
        tensors = [one for one in plain if one.layout == torch.strided and one.is_cpu]
        self.held.append(sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()))
        yield from items


@pytest.mark.parametrize(
    "how", [{}, {"test": TEST}, {"null": True}, {"uncertainty": True, "test": TEST}, {"linear": True}]
)
def test_what_earlier_groups_of_sites_held_is_let_go(how: dict[str, Any]) -> None:
    views = 16 if how.get("uncertainty") else 1
    seen, model = Titles(), network()
    probe(model, memory_gib=1.1 * SITE * views * (4 / 3 if how.get("linear") else 1), progress=seen, **how)
    for label in {"data", *({"test"} & how.keys()), *({"untrained"} if "null" in how else ())}:
        both = zip(seen.held, seen.told, strict=True)
        began = [held for held, title in both if title.startswith(label) and title.endswith("pass 1")]
        assert len(began) == DEPTH
        assert (
            began[-1] - began[1] < 8 * K * WIDTH
        )  # the class means of one site; before the first are those of nothing


def test_sites_that_fit_whole_are_let_go_before_others_are_measured_in_slices() -> None:
    model = nn.Sequential(*network(depth=2)[:-1], nn.Linear(30, 4 * WIDTH), nn.Linear(4 * WIDTH, K))
    for first in (True, False):  # what a process keeps from its first probe on is there already in the second
        seen = Titles()
        probe(model, memory_gib=2.1 * SITE, sites=["1", "4", "6"], test=TEST, progress=not first and seen)
    sliced = [held for held, title in zip(seen.held, seen.told, strict=True) if "data, slices, forward 1" in title]
    assert sliced[0] - seen.held[0] < 8 * K * WIDTH  # those of one of them


def assert_same(a: ll.Record, b: ll.Record) -> None:
    assert [(site.name, site.in_fit, site.aside) for site in a.sites] == [(s.name, s.in_fit, s.aside) for s in b.sites]
    for one, other in zip(a.sites, b.sites, strict=True):
        assert list(one.values) == list(other.values)
        known = [name for name, value in one.values.items() if value is not None]
        assert known == [name for name, value in other.values.items() if value is not None]
        assert [one.values[k] for k in known] == pytest.approx([other.values[k] for k in known], rel=1e-9, abs=1e-12)
        assert one.by_class.keys() == other.by_class.keys()
        for name, each in one.by_class.items():
            mine, theirs = (
                [math.nan if value is None else value for value in one] for one in (each, other.by_class[name])
            )
            assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-12, nan_ok=True)
    for mine, theirs in zip(a.parts, b.parts, strict=True):
        assert mine.values == pytest.approx(theirs.values, rel=1e-9)


@pytest.mark.filterwarnings("ignore:.*forwards over the data")
@pytest.mark.parametrize("case", ["read", "foreign", "again", "parts"])
def test_groups_of_sites_give_the_record_of_all_at_once(case: str) -> None:
    model, how = network(width=40), {"sites": "layers", "test": TEST}
    if case == "foreign":  # labels that are not the network's own classes: its decisions are left out
        model, how = network(width=40, outputs=200), {**how, "classes": list(range(K))}
        model[-1].bias.data[K:] += 100
    if case == "again":  # a layer that changes nothing is no point of the law
        model, how = nn.Sequential(*model[:2], nn.ReLU(), *model[2:]), {**how, "sites": ["*"]}
    if case == "parts":
        how["parts"] = True
    model, data, how["test"] = model.double(), (X.double(), Y), (TEST[0].double(), TEST[1])
    together, grouped = (probe(model, data, memory_gib=statistic_bytes(K, 40) * n / 2**30, **how) for n in (14.5, 1.1))
    assert not together.settings["one_forward"]
    assert_same(grouped, together)
    assert (grouped.notes, len(grouped.collapse_view)) == (together.notes, len(together.collapse_view))
    assert (grouped.settings, grouped.accuracy) == (together.settings, together.accuracy)
    assert ("nc3" in grouped.columns) == (case in ("read", "again", "parts"))
    assert (grouped.sites[0].values["ncc_mismatch"] is None) == (case == "foreign")
    assert ["same features" in site.aside for site in grouped.sites].count(True) == (case == "again")


@pytest.mark.filterwarnings("ignore:.*forwards over the data")
def test_a_merge_of_shards_holds_the_statistics_of_one_group_of_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, memory = network(width=40).double(), 1.1 * statistic_bytes(K, 40) / 2**30
    how = {"sites": "layers", "uncertainty": False, "batch_size": 20, "progress": False, "memory_gib": memory}
    for _ in range(2):
        for i in (1, 2):
            probing.probe_shard(model, (X.double(), Y), shard=(i, 2), state=tmp_path, **how)
    recorded, seen = probing.recorded, []

    def spy(*args: Any, **more: Any) -> ll.Record:
        seen.extend(args[2].around.values())
        return recorded(*args, **more)

    monkeypatch.setattr(probing, "recorded", spy)
    record = probing.merge(tmp_path)
    assert all(isinstance(one, Finished) for one in seen)
    assert len(seen) == len(record.sites)
    assert_same(record, ll.probe(model, (X.double(), Y), **how))


def test_test_data_that_do_not_fit_are_told_before_the_first_pass() -> None:
    seen = Titles()
    x, y = torch.randn(3000, 30, generator=GENERATOR), torch.arange(3000) % K
    words = r"^test: site '1' has 3000 features: with 20 classes and 3000 samples .* memory_gib=(\S+) measures it"
    with pytest.raises(MemoryBudgetError, match=words) as told:
        probe(memory_gib=1e-4, test=(x, y), progress=seen)
    assert seen.told == []
    (enough,) = re.findall(words, str(told.value))
    assert probe(memory_gib=float(enough), test=(x, y), sites=["1"]).test_counts


def test_the_progress_says_which_sites_of_how_many() -> None:
    seen = Titles()
    probe(memory_gib=2.1 * SITE, progress=seen)
    places = ["sites 1–2 of 5, group 1 of 3", "sites 3–4 of 5, group 2 of 3", "site 5 of 5, group 3 of 3"]
    assert seen.told == [f"data, {place}, pass {n}" for place in places for n in (1, 2)]
    alone = Titles()
    probe(progress=alone)
    assert alone.told == ["data, pass 1"]


def test_the_budget_in_words_is_the_one_that_was_given() -> None:
    targets = torch.randn(60, 3, generator=GENERATOR).repeat(9, 1)
    how = {"sites": ["input", "1"], "uncertainty": True, "data": (X.repeat(9, 1), targets)}
    model = network(width=200, outputs=3)
    with pytest.raises(MemoryBudgetError, match=r"the budget is 0.0004 GiB, of which \S+ are for matrices d×d") as told:
        probe(model, memory_gib=0.0004, **how)
    (enough,) = re.findall(r"memory_gib=(\S+) measures it", str(told.value))
    assert probe(model, memory_gib=float(enough), **how).counts


def test_a_batch_of_all_samples_that_hardly_does_not_fit_is_told_with_its_digits() -> None:
    model = nn.Sequential(nn.Linear(30, 8), nn.BatchNorm1d(8), nn.Linear(8, K))
    how = {"batchnorm": "whole", "sites": ["1"]}
    with pytest.raises(MemoryBudgetError) as told:
        probe(model, memory_gib=59.9 * 4 * 38 / 2**30, **how)
    need, budget, fit, enough = re.search(
        r"need (\S+) GiB, the budget is (\S+) GiB, which fits (\d+) samples.* memory_gib=([\d.e-]+),", str(told.value)
    ).groups()  # type: ignore[union-attr]
    assert float(need) > float(budget)
    assert fit == "59"
    assert probe(model, memory_gib=float(enough), **how).counts


def test_slices_that_hardly_do_not_fit_are_told_with_their_digits() -> None:
    kept = kept_bytes(1, K, len(X))
    with pytest.raises(MemoryBudgetError, match="a slice of features needs more on top") as told:
        probe(memory_gib=1.002 * kept / 2**30, uncertainty=False)
    need, budget = re.search(r"needs (\S+) GiB, and a slice .*; the budget is (\S+) GiB", str(told.value)).groups()  # type: ignore[union-attr]
    assert float(need) < float(budget)


class Endless(IterableDataset):  # type: ignore[type-arg]
    """Samples of unknown number."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(X, Y, strict=True)


def test_of_samples_of_unknown_number_no_budget_is_named_that_may_not_do() -> None:
    loader = DataLoader(Endless(), batch_size=20)
    how = {"batch_size": None, "uncertainty": None, "classes": K}
    (note,) = (note for note in probe(data=loader, memory_gib=1.1 * SITE, **how).notes if "floor" in note)
    assert "features of samples of unknown number" in note
    assert note.endswith("request them with uncertainty=True.")
    with pytest.raises(MemoryBudgetError, match=r"not even in 1,000 rounds of slices, the budget is 3e-06 GiB") as told:
        probe(data=loader, memory_gib=3e-6, **how)
    (enough,) = re.findall(r"memory_gib=(\S+) measures it whole", str(told.value))
    assert probe(data=loader, memory_gib=float(enough), **how).counts
