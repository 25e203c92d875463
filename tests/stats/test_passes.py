"""The two passes over batches of several sites, against the oracle on all the data at once."""

import numpy as np
import pytest
import torch

import layerlaw.stats.scatter as scatter_module
import oracle
from layerlaw.errors import FeatureError, PassError
from layerlaw.measures import measure, separation
from layerlaw.stats.around import Around
from layerlaw.stats.design import Dealer
from layerlaw.stats.passes import FirstPass, SecondPass
from layerlaw.stats.plane import PlaneSample, principal_plane
from layerlaw.stats.scatter import Frame, project
from layerlaw.stats.stacking import squares_by_view

K, GROUPS = 3, 5
COUNTS = [50, 30, 20]


def network_like() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Three sites of different widths over the same samples (the last narrower than K−1 and the others not)."""
    x, y = oracle.blobs(COUNTS, 12, seed=3, offset=1.0)
    return {"wide": x, "ten": x[:, :10].tanh(), "one": x[:, :1] + 0.3 * y.unsqueeze(-1)}, y


def run(
    sites: dict[str, torch.Tensor],
    y: torch.Tensor,
    *,
    second: dict[str, torch.Tensor] | None = None,
    batch: int = 13,
    known: bool = True,
    reference: dict[str, Around] | None = None,
    weighting: str = "samples",
) -> tuple[SecondPass, Dealer]:
    dealer = Dealer(K, groups=GROUPS, permuted=3, seed=0, all_labels=y if known else None)
    first = FirstPass(K, GROUPS)
    for i, rows in enumerate(torch.arange(len(y)).split(batch)):
        first.begin(dealer.deal(y[rows]))
        for name, x in sites.items():
            first.update(name, x[rows])
        first.end(lambda _, i=i: f"batch {i}")
    first.all_reduce()
    lent = {name: reference[name].centers for name in sites} if reference else None
    around = Around.all_of(first, weighting, lent)
    dealer.restart()
    later = SecondPass(around)
    sites = second or sites
    y = y[: len(next(iter(sites.values())))]
    for rows in torch.arange(len(y)).split(batch):
        later.begin(dealer.deal(y[rows]), torch.flip(y[rows], [0]))
        for name, x in sites.items():
            later.update(name, x[rows])
        later.end()
    later.all_reduce()
    dealer.restart()
    return later, dealer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("weighting", ["samples", "classes"])
def test_two_passes_over_batches_give_the_separation_of_all_the_data(dtype: torch.dtype, weighting: str) -> None:
    sites, y = network_like()
    sites = {name: x.to(dtype) for name, x in sites.items()}
    second, _ = run(sites, y, weighting=weighting)
    for name, scatter in second.scatters().items():
        found = float(separation(second.around[name].centers, scatter))
        expected = oracle.separation(sites[name], y, K, weighting=weighting)
        assert found == pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 1e-6), name
        hits = float(scatter.near.hits.sum() / scatter.counts.sum())
        assert hits == pytest.approx(float(measure(sites[name], y)["ncc_accuracy"])), name


def test_the_left_out_groups_are_those_of_the_dealer() -> None:
    sites, y = network_like()
    second, dealer = run(sites, y)
    groups = dealer.deal(y).groups
    assert groups is not None
    for name, x in sites.items():
        left_out = second.around[name].left_out
        assert left_out is not None
        expected = [oracle.separation(x[groups != i], y[groups != i], K) for i in range(GROUPS)]
        np.testing.assert_allclose(left_out.separation(), expected, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("known", [True, False], ids=["permuted", "drawn"])
@pytest.mark.parametrize("weighting", ["samples", "classes"])
@pytest.mark.parametrize("many", [True, False], ids=["classes added up together", "classes apart"])
def test_the_floor_is_the_separation_under_the_permuted_labels(
    monkeypatch: pytest.MonkeyPatch, known: bool, weighting: str, many: bool
) -> None:
    monkeypatch.setattr(scatter_module, "PER_CLASS", 20 if many else 10**9)
    sites, y = network_like()
    second, dealer = run(sites, y, known=known, weighting=weighting)
    # In batches as before: labels that are drawn depend on nothing but the order.
    other = torch.cat([dealer.deal(part).permuted for part in y.split(13)], 1)
    if known:
        assert all(torch.equal(torch.bincount(labels), torch.bincount(y)) for labels in other)
    assert len({tuple(labels.tolist()) for labels in (y, *other)}) == 4
    for name, x in sites.items():
        permuted = second.around[name].permuted
        assert permuted is not None
        assert (permuted.moves is None) == (many and weighting == "samples")
        expected = [oracle.separation(x, labels, K, weighting=weighting) for labels in other]
        assert permuted.separation().tolist() == pytest.approx(expected, rel=1e-9), name


def test_nearest_centers_of_other_data() -> None:
    """Test data are told by the class means of the training data."""
    sites, y = network_like()
    train, _ = run(sites, y)
    rng = np.random.default_rng(1)
    test = {name: x + 0.5 * torch.from_numpy(rng.normal(size=x.shape)) for name, x in sites.items()}
    second, _ = run(test, y, reference=dict(train.around))
    for name, x in test.items():
        means = oracle.class_means(sites[name].numpy(), y.numpy(), K)
        nearest = ((x.numpy()[:, None] - means) ** 2).sum(-1).argmin(1)
        near = second.near_reference[name]
        assert float(near.hits.sum()) == float((nearest == y.numpy()).sum()), name
        decision = torch.cat([torch.flip(part, [0]) for part in y.split(13)]).numpy()
        assert float(near.mismatches.sum()) == float((nearest != decision).sum()), name


def test_batches_do_not_matter() -> None:
    sites, y = network_like()
    one, _ = run(sites, y, batch=len(y))
    many, _ = run(sites, y, batch=7)
    for name, scatter in one.scatters().items():
        torch.testing.assert_close(many.scatters()[name].fuzziness, scatter.fuzziness, rtol=1e-10, atol=1e-12)


def test_other_features_in_the_second_pass_are_noticed() -> None:
    sites, y = network_like()
    changed = {name: x + 0.01 * x.square() for name, x in sites.items()}
    second, _ = run(sites, y, second=changed)
    with pytest.raises(PassError, match=r"site 'wide': the data changed between the two passes: the class means moved"):
        second.scatters()


def nearly_flat(small: float, offset: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Class means that hardly differ in one direction of two, as behind a narrow linear map."""
    g, y = torch.Generator().manual_seed(0), torch.arange(600) % K
    hidden = torch.randn(K, 2, generator=g)[y] + torch.randn(600, 2, generator=g)
    hidden[:, 1] *= small
    return (hidden @ torch.randn(2, 16, generator=g) + offset).float(), y


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("small", [1.0, 1e-4, 1e-5, 3e-6, 1e-6])
def test_rounding_along_a_direction_without_spread_is_no_change(small: float, offset: float) -> None:
    x, y = nearly_flat(small, offset)
    for batch in (600, 40):
        assert run({"narrow": x}, y, batch=batch)[0].scatters()
    wobble = x * (1 + 1e-7 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))  # another order of sums
    assert run({"narrow": x}, y, second={"narrow": wobble})[0].scatters()


@pytest.mark.parametrize("small", [1.0, 1e-5])
def test_a_real_change_is_noticed_where_one_direction_has_no_spread(small: float) -> None:
    x, y = nearly_flat(small, 0.0)
    other = x.clone()
    other[7] = x[7 + K]  # another sample of its class
    second, _ = run({"narrow": x}, y, second={"narrow": other})
    with pytest.raises(PassError, match=r"site 'narrow'.*the class means moved by"):
        second.scatters()


def test_sites_that_changed_may_be_named_instead_of_an_error() -> None:
    sites, y = network_like()
    second, _ = run(sites, y, second=sites | {"ten": sites["ten"] + 0.01 * sites["ten"].square()})
    untrusted: dict = {}
    assert set(second.scatters(untrusted)) == set(sites)
    assert list(untrusted) == ["ten"]
    assert untrusted["ten"].startswith("the data changed between the two passes: the class means moved by ")


def test_fewer_samples_in_the_second_pass_are_noticed() -> None:
    sites, y = network_like()
    second, _ = run(sites, y, second={name: x[:-5] for name, x in sites.items()})
    with pytest.raises(PassError, match=r"class counts \[50, 30, 20\] in pass 1, \[\d+, \d+, \d+\] in pass 2"):
        second.scatters()


def test_features_that_are_not_finite_are_named() -> None:
    sites, y = network_like()
    sites["ten"][40, 3] = torch.nan
    with pytest.raises(FeatureError, match="site 'ten': expected finite features, got NaN or infinity in batch 3"):
        run(sites, y)


def test_the_plane_holds_the_two_leading_principal_components() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 12)) * np.array([9.0, 4.0, *[0.5] * 10]) + 3
    plane = principal_plane(torch.from_numpy(x)).numpy()
    U, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    expected = U[:, :2] * s[:2]
    signs = np.sign((plane * expected).sum(0))
    np.testing.assert_allclose(plane, expected * signs, atol=1e-2 * s[0] / np.sqrt(80))


@pytest.mark.parametrize("shape", [(1, 5), (2, 5), (6, 1), (3, 2), (30, 2)])
def test_a_plane_of_few_samples_or_features(shape: tuple[int, int]) -> None:
    plane = principal_plane(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    assert plane.shape == (shape[0], 2)
    assert bool(torch.isfinite(plane).all())


def test_the_plane_keeps_the_same_samples_of_every_class_at_every_site() -> None:
    sites, y = network_like()
    sample = PlaneSample(K, samples=9)
    for rows in torch.arange(len(y)).split(13):
        sample.begin(y[rows])
        for name, x in sites.items():
            sample.update(name, x[rows])
    assert sorted(sample.labels) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    planes = sample.planes()
    assert set(planes) == set(sites)
    assert all(len(plane) == 9 for plane in planes.values())


@pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="how the products of another library round is not known"
)
@pytest.mark.parametrize(("sites", "rows", "d"), [(1, 1, 30), (1, 9, 100), (3, 1, 2), (2, 90, 20), (8, 54, 700)])
def test_what_a_sample_adds_does_not_depend_on_those_beside_it(sites: int, rows: int, d: int) -> None:
    """To the last bit: float32 numbers of each sample are added up in float64, so no way of dealing them makes others."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(sites, 203, d, generator=generator), torch.randint(3, (203,), generator=generator)
    frame = Frame(torch.randn(sites, 3, d, generator=generator), torch.randn(sites, rows, d, generator=generator))
    coordinates, lengths = project(x, y, frame)
    for cut in (1, 2, 17, 100, 201):
        found = [project(x[:, part], y[part], frame) for part in (slice(cut), slice(cut, None))]
        assert torch.equal(torch.cat([one for one, _ in found], -1), coordinates)
        assert torch.equal(torch.cat([one for _, one in found], -1), lengths)
        squares = [squares_by_view(one.clone(), 1) for one, _ in found]
        assert torch.equal(torch.cat(squares, -1), squares_by_view(coordinates.clone(), 1))
    residuals = x.double() - frame.means.double()[:, y]
    torch.testing.assert_close(coordinates.double(), frame.basis.double() @ residuals.mT, rtol=1e-4, atol=1e-4)
