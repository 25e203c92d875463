"""Sites that are worked through together have the numbers that each has alone."""

import pytest
import torch

import oracle
from layerlaw.errors import FeatureError
from layerlaw.stats import stacking
from layerlaw.stats import sums as sums_module
from layerlaw.stats.around import Around, by_kin
from layerlaw.stats.design import Dealer
from layerlaw.stats.passes import FirstPass, SecondPass
from layerlaw.stats.scatter import Frame, project
from layerlaw.stats.stacking import Stacks
from layerlaw.stats.sums import ClassSums

K, GROUPS = 4, 5


def test_small_features_wait_and_come_together_by_shape_and_large_ones_come_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(stacking.SMALL, "cpu", 100)
    seen: list[tuple[list[object], torch.Size]] = []
    stacks = Stacks(lambda keys, features: seen.append((keys, features.shape)))
    for name, shape in (("a", (5, 2)), ("b", (5, 3)), ("large", (50, 2)), ("c", (5, 2))):
        stacks.add(name, torch.zeros(shape))
    assert seen == [(["large"], (1, 50, 2))]
    stacks.flush()
    assert seen[1:] == [(["a", "c"], (2, 5, 2)), (["b"], (1, 5, 3))]


def test_what_waits_is_a_copy_and_is_worked_through_before_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stacking.SMALL, "cpu", 100)
    monkeypatch.setitem(stacking.AT_ONCE, "cpu", 80)
    seen: list[torch.Tensor] = []
    stacks = Stacks(lambda keys, features: seen.append(features))
    features = torch.ones(5, 2)
    stacks.add("a", features)
    features.zero_()  # as a layer that works in place does
    stacks.add("b", features)
    assert [float(part.sum()) for part in seen] == [10.0]
    stacks.add("c", features)
    stacks.drop()
    stacks.flush()
    assert len(seen) == 1


def network_like() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Sites of which some have one shape; one of them is dead, one in float64."""
    x, y = oracle.blobs([40, 30, 20, 30], 9, seed=1, offset=1.0)
    wide = x.float()
    sites = {"one": wide, "narrow": wide[:, :2], "two": wide.tanh(), "dead": torch.zeros_like(wide), "three": 2 * wide}
    return {**sites, "double": x}, y


def measured(sites: dict[str, torch.Tensor], y: torch.Tensor, reference: dict[str, Around] | None = None) -> SecondPass:
    dealer = Dealer(K, groups=GROUPS, permuted=3, seed=0, all_labels=y)
    first = FirstPass(K, GROUPS)
    parts = torch.arange(len(y)).split(50)
    for rows in parts:
        first.begin(dealer.deal(y[rows]))
        for name, x in sites.items():
            first.update(name, x[rows])
        first.end(lambda _: "")
    assert list(first.sums) == list(sites)
    second = SecondPass(Around.all_of(first, "samples", reference and {n: a.centers for n, a in reference.items()}))
    dealer.restart()
    for rows in parts:
        second.begin(dealer.deal(y[rows]), y[rows].flip(0))
        for name, x in sites.items():
            second.update(name, x[rows])
        second.end()
    return second


@pytest.mark.parametrize("lent", [False, True])
def test_sites_together_have_the_statistics_of_each_alone(monkeypatch: pytest.MonkeyPatch, lent: bool) -> None:
    sites, y = network_like()
    reference = dict(measured(sites, y).around) if lent else None
    together = measured(sites, y, reference)
    monkeypatch.setitem(stacking.SMALL, "cpu", 0)
    alone = measured(sites, y, reference)
    assert len(by_kin(list(together.around.values()))) == 3  # shapes and dtypes
    one, other = together.scatters(), alone.scatters()
    for name in sites:
        a, b = together.around[name], alone.around[name]
        close = {"rtol": 1e-6, "atol": 1e-5} if name != "double" else {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(one[name].sums, other[name].sums, **close)
        for x, y_ in ((a.left_out, b.left_out), (a.permuted, b.permuted)):
            assert x is not None
            assert y_ is not None
            torch.testing.assert_close(x.fuzziness, y_.fuzziness, rtol=1e-5, atol=1e-5)
        if lent:
            torch.testing.assert_close(together.near_reference[name].sums, alone.near_reference[name].sums)
    assert together.near_reference.keys() == (sites.keys() if lent else set())


def class_sums(sites: dict[str, torch.Tensor], y: torch.Tensor, groups: int, batch: int) -> FirstPass:
    dealer = Dealer(K, groups=groups, permuted=0, seed=0, all_labels=y)
    first = FirstPass(K, groups)
    for number, rows in enumerate(torch.arange(len(y)).split(batch)):
        first.begin(dealer.deal(y[rows]))
        for name, x in sites.items():
            first.update(name, x[rows])
        first.end(lambda _, number=number: f"batch {number}")
    return first


@pytest.mark.parametrize("groups", [0, 5])
@pytest.mark.parametrize("batch", [50, 120, 7])
@pytest.mark.parametrize("at_once", [2**21, 1000], ids=["one page", "several pages"])
def test_sums_of_sites_of_all_widths_side_by_side_are_those_of_each(
    monkeypatch: pytest.MonkeyPatch, groups: int, batch: int, at_once: int
) -> None:
    """As on a GPU; one of the sites is in half precision, one is too large for a page, and some blocks are."""
    sites, y = network_like()
    sites |= {"half": sites["one"].bfloat16(), "large": sites["one"].repeat(1, 20)}
    expected = class_sums(sites, y, groups, batch)
    monkeypatch.setattr(sums_module, "PAGED", {"cpu"})
    monkeypatch.setattr(sums_module, "ROWS_IN_FLOAT32", 16)
    monkeypatch.setattr(sums_module, "_kept", [])  # made for more rows
    monkeypatch.setitem(stacking.SMALL, "cpu", 10_000)
    monkeypatch.setitem(stacking.AT_ONCE, "cpu", at_once)
    worked: list[int] = []
    add_up = sums_module.PagedSums._add_up
    monkeypatch.setattr(
        sums_module.PagedSums, "_add_up", lambda self, *page: (worked.append(len(page[0])), add_up(self, *page))[1]
    )
    found = class_sums(sites, y, groups, batch)
    assert max(worked) > 1
    assert list(found.sums) == list(expected.sums) == list(sites)
    for name, own in expected.sums.items():
        mine = found.sums[name]
        assert torch.equal(mine.counts, own.counts)
        assert mine.dtype == own.dtype
        tolerance = 1e-11 if own.dtype == torch.float64 else 2e-5
        torch.testing.assert_close(mine.sums, own.sums, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(mine.spread, own.spread, rtol=1e-5, atol=0)
    found.drop_extras()
    assert found.sums["one"].sums.shape == (K, 9)


def test_a_site_that_is_not_finite_is_named_among_those_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sites, y = network_like()
    sites["two"] = sites["two"].clone()
    sites["two"][60, 3] = torch.inf
    monkeypatch.setattr(sums_module, "PAGED", {"cpu"})
    with pytest.raises(FeatureError, match="site 'two': expected finite features, got NaN or infinity in batch 1"):
        class_sums(sites, y, 0, 50)


def test_many_classes_and_permuted_labels_are_not_added_up_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    sites, y = network_like()
    expected = {name: scatter.fuzziness for name, scatter in measured(sites, y).scatters().items()}
    monkeypatch.setattr(sums_module, "PAGED", {"cpu"})
    monkeypatch.setattr(sums_module.PagedSums, "_add_up", None)
    for name, scatter in measured(sites, y).scatters().items():  # under permuted labels too
        assert torch.equal(scatter.fuzziness, expected[name])
    monkeypatch.setattr(sums_module, "MANY", K)
    assert set(class_sums(sites, y, 0, 50).sums) == set(sites)


def test_statistics_that_lie_side_by_side_are_put_side_by_side_as_they_are() -> None:
    x, y = torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % K
    three, two = ClassSums.of(x[:3], y.expand(3, -1), K), ClassSums.of(x[3:], y.expand(2, -1), K)
    parts = [three.at(i) for i in range(3)] + [two.at(i) for i in range(2)]
    orders = (
        [0, 1, 2],
        [3, 4],
        [0, 1, 2, 3, 4],
        [3, 4, 0, 1, 2],
        [3, 4, 3, 4],
        [0, 2, 1],
        [1, 2],
        [0, 1],
        [0, 1, 3],
        [4],
    )
    for order in orders:
        found = ClassSums.stack([parts[i] for i in order])
        for tensor, each in zip(found.tensors, zip(*(parts[i].tensors for i in order), strict=True), strict=True):
            assert torch.equal(tensor, torch.stack(each)), order
        found.sums.zero_(), found.counts.zero_()
    assert bool((three.sums != 0).any())
    assert bool((two.counts > 0).all())
    parts[1].add(parts[4])  # what is added to one of them is there
    assert torch.equal(ClassSums.stack(parts[:3]).sums[1], parts[1].sums)


def test_a_site_has_the_entries_of_what_it_is_worked_through_among() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % K
    dealer = Dealer(K, groups=GROUPS, permuted=2, seed=0, all_labels=y)
    first = FirstPass(K, GROUPS)
    first.begin(dealer.deal(y))
    for name in "abc":
        first.update(name, torch.randn(60, 8, generator=generator))
    first.end(str)
    for i, around in enumerate(Around.all_of(first, "samples").values()):
        among = around.alike
        assert among.left_out is not None
        assert among.permuted is not None
        assert around.left_out is not None
        assert around.permuted is not None
        assert around.index == i
        assert torch.equal(around.centers.means, among.centers.means[i])
        around.left_out.fuzziness += 1.0
        around.permuted.fuzziness += 2.0
        assert bool((among.left_out.fuzziness[i] == 1).all())
        assert bool((among.permuted.fuzziness[i] == 2).all())


def test_from_the_second_batch_on_features_are_copied_to_where_they_are_side_by_side() -> None:
    seen: list[tuple[list[object], torch.Tensor]] = []
    stacks = Stacks(lambda keys, features: seen.append((keys, features.clone())))
    batches = [
        ["a", "b", "c"],
        ["a", "b", "c"],
        ["b", "c"],
        ["c", "a", "b", "d"],
        ["a", "b", "b"],
        ["a", "b", "c", "d"],
    ]
    for number, batch in enumerate(batches):
        expected = {}
        for place, name in enumerate(batch):
            features = torch.full((5, 2), 10.0 * number + place)
            expected[name] = features.clone()
            stacks.add(name, features)
            features.zero_()  # as a layer that works in place does
        stacks.flush()
        keys, together = seen[-1]
        assert keys == list(expected)
        assert torch.equal(together, torch.stack(list(expected.values())))
    stacks.add("a", torch.ones(5, 2))
    stacks.drop()
    stacks.add("b", torch.ones(5, 2))
    stacks.flush()
    assert seen[-1][0] == ["b"]
    assert len(seen) == len(batches) + 1


def test_the_memory_of_a_batch_is_that_of_the_one_before() -> None:
    places: list[int] = []
    stacks = Stacks(lambda keys, features: places.append(features.data_ptr()))
    for number in range(4):
        for name in "abc":
            stacks.add(name, torch.full((5, 2), float(number)))
        stacks.flush()
    assert len(set(places[1:])) == 1  # the first batch shows how many come together


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="products of other libraries are their own")
@pytest.mark.parametrize("d", [20, 100, 512, 800, 2048])
@pytest.mark.parametrize("P", [1, 9, 19, 99])
def test_a_sample_has_the_same_coordinates_among_any_others(P: int, d: int) -> None:
    generator = torch.Generator().manual_seed(0)
    basis, x = (torch.randn(2, n, d, generator=generator) for n in (P, 400))
    frame, labels = Frame(torch.randn(2, 3, d, generator=generator), basis), torch.arange(400) % 3
    every = project(x, labels, frame)[0]
    torch.testing.assert_close(every, basis @ (x - frame.means[:, labels]).mT, rtol=1e-4, atol=1e-4)
    for rows in (slice(0, 7), slice(0, 160), slice(160, 320), slice(33, 400)):
        assert torch.equal(project(x[:, rows], labels[rows], frame)[0], every[..., rows])
